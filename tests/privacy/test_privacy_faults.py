"""About 40 faults that private learning code can have: each breaks a property that holds without it.

A fault is a patch of objects: (owner, attribute, what replaces it, made from the original). To add one, write the patch
here, and the property that notices it in `tests/privacy/properties.py`.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from dpfl_plugin import oracle
from dpfl_plugin.adapters import records
from dpfl_plugin.algorithms.localized import Phases
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core import device_noise, draws, grid, shares, streams
from dpfl_plugin.core.counter_words import SeededWords
from dpfl_plugin.core.grid import Grid
from dpfl_plugin.data import persons, record_order
from dpfl_plugin.data.federation import FederationSpec
from dpfl_plugin.data.record_order import Order
from dpfl_plugin.federation import silo_group
from dpfl_plugin.federation.round_loop import RoundLoop
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.gradients import blocks, closed_form, vmap
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.stacked import Pool
from dpfl_plugin.gradients.vmap import Vmap
from dpfl_plugin.oracle import PrivateOracle
from dpfl_plugin.owners import lifetime, limits
from dpfl_plugin.owners.limits import Limits
from dpfl_plugin.privacy import (
    accountants,
    budget,
    composition,
    correlation,
    filters,
    mechanisms,
    noise,
    pld,
    shared_ledger,
    step_loss,
)
from dpfl_plugin.privacy.clipping import PerLayer
from dpfl_plugin.privacy.correlation import Correlation
from dpfl_plugin.privacy.events import Term
from dpfl_plugin.privacy.ledger_file import LedgerFile
from dpfl_plugin.privacy.noise import SiloNoise
from dpfl_plugin.privacy.observers import ThirdParty
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import FixedSize, Poisson
from dpfl_plugin.privacy.scores import Scores
from dpfl_plugin.privacy.slots import Slots
from dpfl_plugin.privacy.statistics import Statistics
from dpfl_plugin.privacy.step_loss import StepLoss
from dpfl_plugin.privacy.tally import Names
from dpfl_plugin.runs import public_errors
from dpfl_plugin.runtimes.in_process import InProcess
from dpfl_plugin.runtimes.mpi import wire
from tests.privacy import cuts
from tests.privacy import properties as holds

Patch = tuple[Any, str, Callable[[Any], Any]]
"""(owner, attribute, what replaces it, made from the original)."""


@dataclass(frozen=True)
class Fault:
    """Patches that break a property."""

    name: str
    breaks: Callable[[], None]
    patches: tuple[Patch, ...]

    @contextmanager
    def applied(self) -> Iterator[None]:
        forget()
        with ExitStack() as stack:
            stack.callback(forget)
            for owner, name, make in self.patches:
                stack.enter_context(mock.patch.object(owner, name, make(getattr(owner, name))))
            yield


CACHES = [
    *(blocks.blocks_of, blocks.chunk_of, mechanisms._in_steps, correlation.correlation),
    *(step_loss.step_loss, step_loss.loss_scale, pld._epsilon, accountants._gaussian, accountants._release_rdp),
    *(filters.mu_of, filters.divergence, filters._most_squared),
]


def forget() -> None:
    """What is remembered may have been computed without the fault, or with it."""
    for cached in CACHES:
        cached.cache_clear()


def fault(name: str, breaks: Callable[[], None], *patches: Patch) -> Fault:
    return Fault(name, breaks, patches)


def to(value: Any) -> Callable[[Any], Any]:
    """A patch that does not need the original."""
    return lambda original: value


def nothing(*args: Any, **options: Any) -> None:
    """In place of a check, or of something that is left out."""


# What the patches put in place of an original


def mean_clipped(clipped_sum: Any) -> Any:
    """The sum of the whole batch is clipped to b C, and not each gradient to C."""

    def changed(self: Any, y: Any, batch: Any, clip_norm: Any, out: Any) -> Any:
        norms = clipped_sum(self, y, batch, math.inf, out)
        out.mul_(min(1.0, holds.C * len(batch) / float(out.norm())))
        return norms

    return changed


def each_record_of_a_person(clipped_sum: Any) -> Any:
    """A person's records are clipped one by one."""

    def changed(self: Any, y: Any, batch: Any, clip_norm: Any, out: Any) -> Any:
        total = torch.zeros_like(out)
        for number in range(batch.labels.shape[1]):
            one = Records(batch.features[:, number : number + 1], batch.labels[:, number : number + 1])
            clipped_sum(self, y, one, clip_norm, out)
            total += out
        out.copy_(total)

    return changed


def norms_of_features_alone(prepare: Any) -> Any:
    def changed(self: ClosedForm, records: Records) -> Records:
        done = prepare(self, records)
        return replace(done, constants=done.constants - 1.0)

    return changed


def no_padding(take: Any) -> Any:
    def changed(self: Pool, index: Any) -> Any:
        stack = take(self, index)
        return replace(stack, padding=torch.zeros_like(stack.padding))

    return changed


def one_by_one_in_float32(g: Any, a: Any, out: Any, bad: Any = None) -> None:
    for silo in range(len(g)):
        products = (g[silo, :, :, None] * a[silo, :, None, :]).numpy()
        out[silo] += torch.from_numpy(np.cumsum(products, axis=0, dtype=np.float32)[-1])


def without_rounding(of: Any) -> Any:
    return lambda sensitivity, dimension: of(sensitivity, dimension)._replace(
        sensitivity=sensitivity * (1 + grid.SUM_SLACK)
    )


def in_floating_point(total: Any, step: float, std: float, rng: Any, out: Any) -> None:
    out.copy_(total + step * std * torch.from_numpy(rng.standard_normal(len(total))))


def without_tails(add_rounded: Any) -> Any:
    def changed(total: Any, step: float, std: float, rng: Any, out: Any) -> None:
        add_rounded(total, step, std, rng, out)
        out.copy_(torch.clamp(out - total, -3.5 * step * std, 3.5 * step * std) + total)

    return changed


def scaled(factor: float) -> Callable[[Any], Any]:
    """The sensitivity that noise is made for, times a factor."""

    def make(add_of: Any) -> Any:
        def changed(self: SiloNoise, row: int, step: int, total: Any, scale: Any, out: Any) -> None:
            add_of(self, row, step, total, (factor * scale[0], scale[1]), out)

        return changed

    return make


def without_schedule(add_of: Any) -> Any:
    def changed(self: SiloNoise, row: int, step: int, total: Any, scale: Any, out: Any) -> None:
        add_of(self, row, step, total, (scale[0], 1.0), out)

    return changed


def not_for_the_second(add_of: Any) -> Any:
    def changed(self: SiloNoise, row: int, step: int, total: Any, scale: Any, out: Any) -> None:
        out.copy_(total) if row == 1 else add_of(self, row, step, total, scale, out)

    return changed


def noise_of_all(init: Any) -> Any:
    def changed(self: SiloNoise, rules: Any, rules_of: Any, *rest: Any) -> None:
        init(self, rules, [rules] * len(rules_of), *rest)

    return changed


def forgetful(**fixed: int) -> Callable[[Any], Any]:
    """Keys that do not tell some streams apart."""

    def make(stream_key: Any) -> Any:
        def changed(seed: int, purpose: str, round: int = 0, silo: int = 0, step: int = 0, *rest: Any) -> bytes:
            names = {"round": round, "silo": silo, "step": step} | fixed
            return stream_key(seed, purpose, names["round"], names["silo"], names["step"], *rest)

        return changed

    return make


def first_row_for_all(integers: Any) -> Any:
    def of_first(self: Any, step: int, rows: slice, stds: Any) -> Any:
        found = integers(self, step, rows, stds)
        return self._values[step - self._first, :1].expand_as(found)

    return of_first


def first_step_for_all(normals: Any) -> Any:
    return lambda words, places, *rest: normals(words, [(row, 0) for row, _ in places], *rest)


def adding_only(laws: Any) -> Any:
    return lambda *args: laws(*args)[-1:]


def changed_terms(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda function: lambda terms, *rest: function(tuple(map(change, terms)), *rest)


def lowered(step: Any) -> Any:
    """Half of all mass one point of the grid lower: rounded to the middle, instead of up."""

    def changed(*args: Any) -> StepLoss:
        found = step(*args)
        mass = np.append(found.mass, 0.0) / 2 + np.append(0.0, found.mass) / 2
        return StepLoss(found.dl, found.first - 1, mass, found.infinite)

    return changed


def one_release_less(bound: Any) -> Any:
    def changed(self: Any, terms: Any, delta: float) -> float:
        return bound(self, tuple(replace(term, rounds=max(1, term.rounds - 1)) for term in terms), delta)

    return changed


def of_another_rate(step: Any) -> Any:
    return lambda release, *rest: step(replace(release, rate=release.rate * 0.9), *rest)


def absent_for_present(factors: Any) -> Any:
    return lambda *args: [
        replace(one, participation=1 - one.participation) if one.participation < 1 else one for one in factors(*args)
    ]


def passes_begun_do_not_count(in_passes: Any) -> Any:
    def changed(terms: Any) -> Any:
        found = []
        for term in terms:
            batches = round(1 / term.release.rate)
            cyclic = term.release.sampler == "cyclic"
            found.append(replace(term, rounds=term.rounds // batches * batches) if cyclic else term)
        return in_passes(found)

    return changed


def last_one_forgotten(charges: Any) -> Any:
    def changed(self: PrivateOracle) -> Any:
        return [replace(one, count=one.count - 1) for one in charges(self) if one.count > 1]

    return changed


def synced_later(run_round: Any) -> Any:
    def changed(self: InProcess, *args: Any) -> Any:
        charges = self._charges
        with mock.patch.object(self, "_charges", mock.Mock(append=charges.append)):
            total = run_round(self, *args)
        charges.sync()
        return total

    return changed


def a_slot_of_any_kind(lacking: Any) -> Any:
    def changed(self: Slots, wanted: Any) -> Any:
        wanted = list(wanted)
        enough = sum(one.count for one in wanted) <= sum(self._left.values())
        return None if enough else lacking(self, wanted)

    return changed


def flushed_only(sync: Any) -> Any:
    def changed(self: LedgerFile) -> None:
        if self._file is not None:
            self._file.flush()

    return changed


def of_any_length(rows: Any) -> Any:
    """Records are kept from where the file has them among all, not among the person's own."""
    return lambda place: [np.roll(mine, int(mine[0])) for mine in rows(place)]


def by_place(key: bytes, data: Any, rows: Any, *args: Any, **options: Any) -> Order:
    """A keyed permutation of places in the file."""
    return Order(rows[np.random.default_rng(list(key)).permutation(len(rows))], "")


def by_label(order_of: Any) -> Any:
    """One label after the other, each in the order of records."""

    def changed(key: bytes, data: Any, rows: Any, *args: Any, **options: Any) -> Order:
        found = order_of(key, data, rows, *args, **options)
        return replace(found, rows=found.rows[np.argsort(data.labels[found.rows], kind="stable")])

    return changed


def without_numbers(numbered: Any) -> Any:
    def changed(digests: Any) -> Any:
        ascending, number = numbered(digests)
        return ascending, np.zeros_like(number)

    return changed


def without_mark(derived: Any) -> Any:
    return lambda key, label, *parts: derived(key, label, *(() if label == b"cut" else parts))


def of_usable_records(order: Any) -> Any:
    """Records that cannot be used are dropped before the cut."""
    return lambda self, silo, data, rows: order(self, silo, data, rows[data.usable[rows]])


def whole_phases(stages: Any) -> Any:
    return lambda self, facts: [replace(one, share=(0.0, one.share[1])) for one in stages(self, facts)]


def pld_of(plans: Sequence[filters.RegisteredPlan], delta: float) -> float:
    terms = [Term(release=o.release, count=o.count, rounds=1) for plan in plans for o in plan.silos[0]]
    return accountants.PLD().epsilon(terms, delta)


def begin_in_it(of: Any) -> Any:
    """Shares that begin in an elementary interval, without those that go on in it."""
    return lambda shares, unit: [
        frozenset(share for share in covering if share[0] == max(first for first, _ in covering))
        for covering in of(shares, unit)
    ]


def rounded_outwards(bounds: Any) -> Any:
    return lambda share, count: (math.floor(share[0] * count), math.ceil(share[1] * count))


FAULTS = [
    # Clipping
    fault(
        "gradients are not clipped",
        holds.one_record_moves_a_sum_by_at_most_2c,
        *(
            (module, "clip_factors", to(lambda norms, c, dtype: [torch.ones_like(norms, dtype=dtype)]))
            for module in (closed_form, vmap)
        ),
    ),
    fault(
        "the sum is clipped, not each gradient",
        holds.one_record_moves_a_sum_by_at_most_2c,
        (Vmap, "clipped_sum", mean_clipped),
    ),
    fault(
        "a norm leaves out the bias",
        holds.one_record_moves_a_sum_by_at_most_2c,
        (ClosedForm, "prepare", norms_of_features_alone),
    ),
    fault(
        "each layer is clipped to C",
        holds.one_record_moves_a_sum_by_at_most_2c,
        (PerLayer, "bounds", to(lambda self, clip_norm, layers: (clip_norm,) * len(layers))),
    ),
    fault(
        "a record that is not finite spreads",
        holds.one_record_moves_a_sum_by_at_most_2c,
        *((module, "bad_among", to(nothing)) for module in (closed_form, vmap)),
    ),
    fault(
        "a silo's update is not clipped",
        holds.one_silo_moves_a_release_by_at_most_2c,
        (oracle, "clip_update", to(nothing)),
    ),
    fault(
        "a person's records are clipped one by one",
        holds.one_person_moves_a_sum_by_at_most_2c,
        (Vmap, "clipped_sum", each_record_of_a_person),
    ),
    fault(
        "records that fill up a batch count",
        holds.silos_that_are_answered_together_get_what_each_gets_alone,
        (Pool, "take", no_padding),
    ),
    fault(
        "a count of gradients within C is released for nothing",
        holds.a_count_is_covered_by_the_charge_of_its_gradient,
        (oracle, "sum_and_count", lambda of: lambda *args: ((of(*args)[0][0], 1.0), of(*args)[1])),
    ),
    # Sums and the grid
    fault(
        "records are added up one by one in float32",
        holds.a_record_decides_about_the_rounding_of_a_block_at_most,
        (blocks, "add_products", to(one_by_one_in_float32)),
    ),
    fault(
        "a block is longer than what is proven",
        holds.a_record_decides_about_the_rounding_of_a_block_at_most,
        (blocks, "LONGEST", to(1024)),
    ),
    fault(
        "what sums lose to rounding is not charged",
        holds.values_at_the_sensitivity_stay_within_what_the_noise_is_made_for,
        (grid, "SUM_SLACK", to(0.0)),
    ),
    fault(
        "rounding to the grid is not charged",
        holds.values_at_the_sensitivity_stay_within_what_the_noise_is_made_for,
        (Grid, "of", without_rounding),
    ),
    fault(
        "noise is added in floating point",
        holds.a_release_is_whole_steps_of_a_grid,
        (draws, "add_rounded", to(in_floating_point)),
    ),
    # Noise
    fault(
        "half of the noise that is charged",
        holds.every_release_has_the_noise_that_is_charged,
        (SiloNoise, "add_of", scaled(0.5)),
    ),
    fault(
        "noise without tails",
        holds.noise_has_the_law_that_is_charged,
        (draws, "add_rounded", without_tails),
    ),
    fault(
        "the schedule rules the charge, and not the noise",
        holds.every_release_has_the_noise_that_is_charged,
        (SiloNoise, "add_of", without_schedule),
    ),
    fault(
        "a silo has the others' noise, and is charged for its own",
        holds.every_release_has_the_noise_that_is_charged,
        (SiloNoise, "__init__", noise_of_all),
    ),
    fault(
        "one silo has no noise",
        holds.every_release_has_the_noise_that_is_charged,
        (SiloNoise, "add_of", not_for_the_second),
    ),
    fault(
        "a silo's release is charged as a record's",
        holds.every_release_has_the_noise_that_is_charged,
        (PrivacyRules, "release", lambda release: lambda self, *args: replace(release(self, *args), unit="record")),
    ),
    fault(
        "noise repeats from step to step",
        holds.no_two_releases_share_their_noise,
        (SiloNoise, "_name", lambda name: lambda self, row, step: name(self, row, 0)),
    ),
    fault(
        "silos share their noise",
        holds.no_two_releases_share_their_noise,
        (SiloNoise, "_name", lambda name: lambda self, row, step: name(self, 0, step)),
    ),
    fault(
        "noise repeats from round to round",
        holds.no_two_releases_share_their_noise,
        (oracle, "stream_key", forgetful(round=0)),
    ),
    fault(
        "silos share their noise on the device",
        holds.no_two_releases_share_their_noise,
        (device_noise.DeviceNoise, "integers", first_row_for_all),
    ),
    fault(
        "fresh noise has a key that everybody knows",
        holds.fresh_noise_is_drawn_once,
        (os, "urandom", to(bytes)),
    ),
    fault(
        "fresh noise follows from a seed",
        holds.fresh_noise_does_not_follow_from_names,
        (oracle, "FreshStream", to(lambda sums: streams.Stream())),
    ),
    fault(
        "fresh noise on the device follows from a seed",
        holds.fresh_noise_does_not_follow_from_names,
        (noise, "FreshWords", to(lambda: SeededWords(functools.partial(streams.stream_key, 0, "noise", 0)))),
    ),
    fault(
        "noise on the device is handed out for each step that asks",
        holds.fresh_noise_is_drawn_once,
        (device_noise, "normals", first_step_for_all),
    ),
    fault(
        "batches and noise come from one stream",
        holds.every_stream_has_a_key_of_its_own,
        (streams, "PURPOSES", lambda purposes: dict.fromkeys(purposes, 1)),
    ),
    fault(
        "correlated noise has not the norm of its coefficients",
        holds.correlated_noise_covers_all_rows_that_a_record_moves,
        (Correlation, "norm", to(1.0)),
    ),
    # Samplers
    fault(
        "batches are the first records",
        holds.a_batch_is_uniform_and_as_likely_as_is_charged,
        (draws, "subset", to(lambda rng, count, size: np.arange(size))),
    ),
    fault(
        "batches are drawn with replacement",
        holds.a_batch_is_uniform_and_as_likely_as_is_charged,
        (draws, "subset", to(lambda rng, count, size: rng.integers(count, size=size))),
    ),
    fault(
        "batches are in the order of the file",
        holds.batches_are_in_a_uniform_order,
        (draws, "shuffled", to(lambda rng, index: np.sort(index))),
    ),
    fault(
        "half of the sampling rate is charged",
        holds.a_batch_is_uniform_and_as_likely_as_is_charged,
        (FixedSize, "rate", lambda rate: lambda self, count: rate(self, count) / 2),
    ),
    fault(
        "a Poisson rate is rounded up",
        holds.a_poisson_batch_has_a_record_never_more_often_than_is_charged,
        (Poisson, "draw", to(lambda self, count, rng: np.flatnonzero(rng.random(count) <= self.record_rate))),
    ),
    fault(
        "any sampler goes with any neighbouring relation",
        holds.what_is_not_proven_is_refused,
        (pld, "check_release", to(nothing)),
    ),
    # Accountants
    fault(
        "a tenth of the sampling rate is lost",
        holds.an_epsilon_is_never_below_the_exact_one,
        (pld, "step_loss", of_another_rate),
    ),
    fault(
        "one release less is composed",
        holds.an_epsilon_is_never_below_the_exact_one,
        (accountants.PLD, "bound", one_release_less),
    ),
    fault(
        "the cheaper direction is accounted for",
        holds.an_epsilon_is_never_below_the_exact_one,
        (pld, "_laws", adding_only),
    ),
    fault(
        "epsilon is of twice the delta",
        holds.an_epsilon_is_never_below_the_exact_one,
        (accountants.PLD, "bound", lambda bound: lambda self, terms, delta: bound(self, terms, 2 * delta)),
    ),
    fault(
        "a silo takes part with probability 1 - p",
        holds.an_epsilon_is_never_below_the_exact_one,
        (pld, "_factors", absent_for_present),
    ),
    fault(
        "a pass that was begun does not count",
        holds.an_epsilon_is_never_below_the_exact_one,
        (accountants, "in_passes", passes_begun_do_not_count),
    ),
    fault(
        "Renyi divergences of half the sensitivity",
        holds.an_epsilon_is_never_below_the_exact_one,
        (accountants, "_release_rdp", lambda of: lambda release: (of(release)[0], of(release)[1] / 4)),
    ),
    fault(
        "losses are rounded to the middle of a cell",
        holds.a_discretised_loss_is_never_below_the_exact_one,
        (step_loss, "step_loss", lowered),
    ),
    fault(
        "shares that overlap compose in parallel",
        holds.a_record_is_charged_for_all_that_reads_it,
        (
            composition,
            "shares_by_interval",
            to(lambda shares, unit: [frozenset([share]) for share in set(shares)]),
        ),
    ),
    fault(
        "shares of a silo that is protected compose in parallel",
        holds.a_record_is_charged_for_all_that_reads_it,
        (composition, "shares_by_interval", lambda of: lambda shares, unit: of(shares, "record")),
    ),
    fault(
        "an interval is charged for the shares that begin in it",
        holds.a_record_is_charged_for_all_that_reads_it,
        (composition, "shares_by_interval", begin_in_it),
    ),
    fault(
        "disjoint shares have a record in common",
        holds.disjoint_shares_have_no_record_in_common,
        (shares, "share_bounds", rounded_outwards),
    ),
    fault(
        "a localized phase reads the records of the one before",
        holds.disjoint_shares_have_no_record_in_common,
        (Phases, "stages", whole_phases),
    ),
    fault(
        "a mixture is claimed where draws decide how long a run is",
        holds.a_third_partys_claim_holds_whatever_the_draws_decide,
        (ThirdParty, "_draws_decide", to(lambda self, costs: False)),
    ),
    fault(
        "one release more than the budget allows",
        holds.a_budget_is_never_passed,
        (budget, "max_rounds", lambda most: lambda *args: most(*args) + 1),
    ),
    # Totals of runs that were chosen after looking
    fault(
        "a limit is kept by the PLD of what was released",
        holds.runs_chosen_by_what_was_seen_stay_within_a_limit,
        (filters, "affords", to(lambda filter, plans: pld_of(plans, filter.delta) <= filter.epsilon)),
    ),
    fault(
        "what plans disclose is not summed",
        holds.runs_chosen_by_what_was_seen_stay_within_a_limit,
        (filters, "most_mu", lambda most: lambda epsilon, disclosed, delta: most(epsilon, 0.0, delta)),
    ),
    fault(
        "an odometer says what was released by its PLD",
        holds.what_an_odometer_says_holds_wherever_somebody_stops,
        (filters.Odometer, "passed", to(lambda self, plans: pld_of(plans, self.delta))),
    ),
    fault(
        "each threshold of an odometer has all of delta",
        holds.what_an_odometer_says_holds_wherever_somebody_stops,
        (
            filters,
            "odometer_for",
            lambda of: lambda first, delta, run=None: of(first, 16 * delta, run),
        ),
    ),
    fault(
        "of a run that ended early the rounds that ran are charged",
        holds.a_run_that_ended_early_costs_what_it_registered,
        (shared_ledger, "_read", to(lambda facts, groups: {})),
    ),
    fault(
        "of a run that stopped early the rounds that ran are charged",
        holds.a_run_that_stops_early_is_charged_for_all_its_rounds,
        (RoundLoop, "_charge_what_was_planned", to(lambda self, progress: None)),
    ),
    fault(
        "what a run released beyond its slots is not charged",
        holds.a_run_that_ended_early_costs_what_it_registered,
        (shared_ledger, "_beyond", to(lambda run, runs, ledger: {})),
    ),
    fault(
        "a slot that a run left serves every later run",
        holds.slots_that_a_run_left_serve_once_and_for_no_more_than_they_cost,
        (shared_ledger, "_left", lambda left: lambda run, runs, ledger: left(run, [], ledger)),
    ),
    fault(
        "a slot serves a release of less noise",
        holds.slots_that_a_run_left_serve_once_and_for_no_more_than_they_cost,
        (shared_ledger, "_dominates", to(lambda slot, kind: True)),
    ),
    # Ledger, slots, limits
    fault(
        "a slot is used twice",
        holds.each_release_takes_a_slot_of_its_own_kind,
        (Slots, "take", lambda take: lambda self, made: take(Slots(self.planned), made)),
    ),
    fault(
        "a slot of another kind is taken",
        holds.each_release_takes_a_slot_of_its_own_kind,
        (Slots, "lacking", a_slot_of_any_kind),
    ),
    fault(
        "the last release of a round is not charged",
        holds.every_release_has_the_noise_that_is_charged,
        (PrivateOracle, "charges", last_one_forgotten),
    ),
    fault(
        "charges are on disk after an upload has left",
        holds.everything_is_charged_before_it_leaves,
        (InProcess, "run_round", synced_later),
    ),
    fault(
        "a round that is released again is not charged",
        holds.a_ledger_counts_every_release_once_and_all_of_them,
        (Names, "noise", lambda noise: lambda self, noise_id: noise(self, "the same")),
    ),
    fault(
        "a ledger with a line missing is read",
        holds.a_damaged_ledger_is_refused,
        (LedgerFile, "_verified", to(lambda self, line, number: line.partition(b',"check"')[0] + b"}")),
    ),
    fault(
        "charges wait in the system's memory",
        holds.a_charge_is_on_disk_when_it_is_synced,
        (LedgerFile, "sync", flushed_only),
    ),
    fault(
        "agreements do not add up over a lifetime",
        holds.agreements_add_up_over_a_lifetime,
        (lifetime.Total, "with_plan", lambda of: lambda self, plan: of(lifetime.Total(self._limits, ()), plan)),
    ),
    fault(
        "an owner's limits are not asked",
        holds.what_passes_an_owners_limits_is_refused,
        (Limits, "check", to(nothing)),
    ),
    # What is released beside the rounds
    fault(
        "scores and statistics are not charged",
        holds.what_is_released_beside_the_rounds_is_charged,
        (silo_group, "_once", to(lambda *args: [])),
    ),
    fault(
        "silos' own models are not charged",
        holds.what_is_released_beside_the_rounds_is_charged,
        (SiloGroup, "_personalise", lambda make: lambda *args: make(*args)[:0]),
    ),
    fault(
        "a record that is replaced is in one cell of a histogram",
        holds.one_record_moves_a_score_by_its_sensitivity_at_most,
        (Scores, "sensitivity", to(lambda self, neighbouring: 1.0)),
    ),
    fault(
        "statistics have half of their sensitivity",
        holds.one_record_moves_statistics_by_their_sensitivity_at_most,
        (Statistics, "sensitivity", lambda of: lambda self, neighbouring: of(self, neighbouring) / 2),
    ),
    # Before the oracle
    fault(
        "cuts go by place in the file",
        cuts.one_rank_differs_between_neighbouring_exports,
        (record_order, "order_of", to(by_place)),
    ),
    fault(
        "phases go by place in the file",
        cuts.phases_are_disjoint_in_all_exports,
        (record_order, "order_of", to(by_place)),
    ),
    fault(
        "cuts are stratified by label",
        cuts.one_rank_differs_between_neighbouring_exports,
        (record_order, "order_of", by_label),
    ),
    fault(
        "records that cannot be used are dropped before the cut",
        cuts.one_rank_differs_between_neighbouring_exports,
        (FederationSpec, "order", of_usable_records),
    ),
    fault(
        "identical records have one hash",
        cuts.one_rank_differs_between_neighbouring_exports,
        (record_order, "_numbered", without_numbers),
    ),
    fault(
        "one key orders exports with other marks",
        cuts.exports_with_other_marks_are_cut_independently,
        (record_order, "derived", without_mark),
    ),
    fault(
        "an unusable record's placeholder counts",
        cuts.an_unusable_record_adds_nothing,
        (closed_form, "prepared", to(lambda records, features, squares: replace(records, constants=squares))),
    ),
    # Persons, and what rank 0 sees
    fault(
        "which records of a person are kept depends on others",
        holds.a_persons_row_depends_on_that_person_alone,
        (persons, "_rows", of_any_length),
    ),
    fault(
        "a person is at two silos",
        holds.a_person_at_two_silos_is_refused,
        (persons, "check_apart", to(nothing)),
    ),
    fault(
        "what a silo says of its epsilon follows from its number of records",
        holds.free_answers_depend_on_no_record,
        (Config, "with_least_records", to(lambda self, number: self)),
    ),
    fault(
        "a record that is not as its owner's file says makes a silo fail",
        holds.free_answers_depend_on_no_record,
        (records, "as_stated", to(lambda x, y, usable, *given: (x, y, usable, []))),
    ),
    fault(
        "code that settings name is imported before an owner's limits are asked",
        holds.code_that_settings_name_is_not_imported_within_limits,
        (limits, "check_code", to(lambda *given: None)),
    ),
    fault(
        "rank 0 is told names of classes that were read from records",
        holds.rank_0_is_told_nothing_that_was_read_from_records,
        (wire, "inputs_header", to(lambda inputs, **known: asdict(inputs))),
    ),
    fault(
        "rank 0 is told what an error says of records",
        holds.rank_0_hears_no_words_of_an_error_that_may_quote_records,
        (public_errors, "_words", to(lambda error, *kinds: str(error))),
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_breaks_a_property_that_holds_without_it(fault: Fault) -> None:
    fault.breaks()
    with fault.applied(), pytest.raises((AssertionError, pytest.fail.Exception)):
        fault.breaks()
