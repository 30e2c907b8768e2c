"""Properties that privacy rests on, each of the real objects against an independent twin.

`tests/privacy/test_privacy_faults.py` checks that they hold, and that each fault of its list breaks one.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from dpfl_plugin import oracle
from dpfl_plugin.adapters import Server, agree
from dpfl_plugin.adapters import Silo as AdapterSilo
from dpfl_plugin.adapters.replies import failure
from dpfl_plugin.algorithms.base import RoundPlan, Setting
from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.algorithms.isrl import Facts
from dpfl_plugin.algorithms.localized import LocalizedMBSGD
from dpfl_plugin.config.load import configure
from dpfl_plugin.core import draws, shares, streams
from dpfl_plugin.core.counter_words import FreshWords
from dpfl_plugin.core.device_noise import DeviceNoise
from dpfl_plugin.core.fresh import FreshGenerator
from dpfl_plugin.core.grid import Grid
from dpfl_plugin.core.outcomes import CLASSES
from dpfl_plugin.core.scaling import Measured
from dpfl_plugin.core.streams import PURPOSES, stream
from dpfl_plugin.core.validation_scores import ValidationScore
from dpfl_plugin.data import persons
from dpfl_plugin.data.base import Federation, Inputs, Silo
from dpfl_plugin.data.memmap_store import Scratch
from dpfl_plugin.errors import ConfigError, DataError, DpflError, LedgerError, LimitError, UnsupportedError
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.federation.validation import summed
from dpfl_plugin.gradients import blocks
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.losses import cross_entropy
from dpfl_plugin.gradients.persons import MeanLoss, Persons
from dpfl_plugin.gradients.stacked import Pool, Sums
from dpfl_plugin.gradients.vmap import Vmap
from dpfl_plugin.oracle import Draw, PrivateOracle
from dpfl_plugin.owners import lifetime
from dpfl_plugin.owners.limits import Limits
from dpfl_plugin.privacy import composition, filters, shared_ledger, step_loss
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.accountants import PLD, RDP
from dpfl_plugin.privacy.budget import Budget
from dpfl_plugin.privacy.clipping import Adaptive, PerLayer
from dpfl_plugin.privacy.composition import Planned, Spending
from dpfl_plugin.privacy.correlation import Chain, correlation
from dpfl_plugin.privacy.events import Charge, SampledGaussian, Term
from dpfl_plugin.privacy.extra_releases import ExtraPlan
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import Cyclic, FixedSize, FullBatch, Poisson
from dpfl_plugin.privacy.schedules import Geometric
from dpfl_plugin.privacy.scores import Scores
from dpfl_plugin.privacy.slots import Slots, released
from dpfl_plugin.privacy.spec import BudgetSpec
from dpfl_plugin.privacy.statistics import Statistics
from dpfl_plugin.runs import public_errors
from dpfl_plugin.runs.agreed_plan import AgreedPlan
from dpfl_plugin.runtimes.in_process import InProcess
from dpfl_plugin.runtimes.mpi import wire
from tests.adapters.federation import NOISY, PUBLIC, block
from tests.cli import command
from tests.on_device import Place, noise_drawn_on
from tests.privacy import adaptive
from tests.privacy import oracle as twin
from tests.quadratics import ByHand, Lab, Quadratic, rules, silo

ALPHA = 1e-9
"""Of a statistical property: how often it fails by chance. Seeds are fixed, but for fresh noise."""
C = 0.5
SLACK = 2.0**-10
"""What arithmetic may add to a sensitivity, relative to it: twice that is made up for by noise."""
DELTA = 1e-5

# Clipping


def softmax(hidden: int | None = None) -> nn.Module:
    torch.manual_seed(0)
    if hidden is None:
        return nn.Linear(3, 2)
    return nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 2))


def parameters_of(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


BATCH = Records(torch.randn(6, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 0, 1, 1, 0]))
EXTREMES = [
    (torch.tensor(features), label)
    for features in ([0.0, 0.0, 0.0], [1e3, -1e3, 1e3], [-3.0, 3.0, 3.0], [math.inf, 0.0, 0.0])
    for label in (0, 1)
]


def neighbours(batch: Records) -> Iterator[Records]:
    """The batch with each record replaced by each extreme one."""
    for place, (features, label) in itertools.product((0, len(batch) - 1), EXTREMES):
        x, labels = batch.features.clone(), batch.labels.clone()
        x[place], labels[place] = features, label
        yield Records(x, labels)


def far_apart(sums: Sequence[Tensor]) -> float:
    """The largest distance; NaN if one of the sums is."""
    distances = torch.stack([(one - other).norm() for one, other in itertools.combinations(sums, 2)])
    return float(distances.max())


def one_record_moves_a_sum_by_at_most_2c() -> None:
    """Whatever the record is, in the closed form and per-example gradients, with one bound or one for each layer."""
    for make, hidden in ((ClosedForm, None), (Vmap, None), (Vmap, 4)):
        model = softmax(hidden)
        engine = make(model, cross_entropy, 2**20)
        engine._fused = None  # compiled loops: tests/gradients/test_fused.py compares them with these
        sizes = {"0": 16, "2": 10} if hidden else {"": 8}
        bounds = PerLayer().bounds(C, sizes)
        for clip_norm in (C, bounds):
            sums = []
            for batch in neighbours(BATCH):
                out = torch.empty(sum(sizes.values()), dtype=torch.float64)
                engine.clipped_sum(parameters_of(model), engine.prepare(batch), clip_norm, out)
                sums.append(out)
            for same_place in (sums[: len(EXTREMES)], sums[len(EXTREMES) :]):
                assert far_apart(same_place) <= 2 * C * (1 + SLACK)


def one_silo_moves_a_release_by_at_most_2c() -> None:
    """Any update at all, at silo level; the noise of both is the same, and next to nothing."""
    of_silo = rules(1e-6, C, unit="silo", neighbouring="replace_one")
    made = []
    for update in ([[1e6, 1.0]], [[-1e6, 0.0]], [[math.nan, 1.0]], [[0.01, 0.0]]):
        made.append(oracle_of(of_silo, [silo([1.0, 1.0], [0.0, 0.0])]).release(torch.tensor(update))[0])
    assert far_apart(made) <= 2 * C * (1 + 4 * SLACK)


def one_person_moves_a_sum_by_at_most_2c() -> None:
    """All of a person's records together."""
    model = softmax()
    engine = Vmap(Persons(model), MeanLoss(cross_entropy), 2**20)
    sums = []
    for sign in (1.0, -1.0):
        x, labels = torch.ones(2, 4, 3), torch.zeros(2, 4, dtype=torch.int64)
        x[0] *= sign * 10
        out = torch.empty(8, dtype=torch.float64)
        engine.clipped_sum(parameters_of(model), Records(x, labels), C, out)
        sums.append(out)
    assert far_apart(sums) <= 2 * C * (1 + SLACK)


def silos_that_are_answered_together_get_what_each_gets_alone() -> None:
    """Batches of different lengths, of which the shorter ones are filled up."""
    model, sizes = softmax(), (6, 2)
    engine = ClosedForm(model, cross_entropy, 2**20)
    y = parameters_of(model).expand(2, -1).contiguous()
    prepared = {number: engine.prepare(BATCH.between(0, size)) for number, size in enumerate(sizes)}
    pool = Pool(prepared)
    index = pool.index([0, 1], [np.arange(size) for size in sizes])
    found, *_ = Sums(engine, pool)(y, index, torch.full((2, 1), C, dtype=torch.float64))
    for row, number in enumerate(prepared):
        alone = torch.empty(8, dtype=torch.float64)
        engine.clipped_sum(y[row], prepared[number], C, alone)
        assert torch.allclose(found[row], alone, rtol=1e-4, atol=1e-6)


def a_count_is_covered_by_the_charge_of_its_gradient() -> None:
    """With noise z_g on the sum and z_b on the count, both together are one release of noise z: z^-2 = z_g^-2 + z_b^-2
    (`Adaptive`)."""
    for sampler, factor in itertools.product((FixedSize(batch_size=40), Poisson(0.5)), (1.0, 2.0)):
        of = rules(1.5, 1.0, sampler, clipping=Adaptive())
        (of_sum, z_sum), (of_count, z_count) = oracle.sum_and_count(of, 40, 1.0, factor)
        assert (of_sum, of_count) == (sampler.sensitivity, sampler.sensitivity / 2)
        z = of.release(0.5, factor).noise_multiplier
        assert math.hypot(1 / (1.5 * z_sum), 1 / (1.5 * z_count)) <= 1 / z * (1 + 1e-12)


# Sums, the grid and the noise


def a_record_decides_about_the_rounding_of_a_block_at_most() -> None:
    """A sum that a float32 accumulator would move by 2.24 instead of 2: above 1024 it rounds each of 4,000 small
    numbers away, below it none. And the proven bound, written out again: 4 L gamma_L for blocks of L."""
    small = torch.full((4000,), -0.4 * 2.0**-13)
    sums = []
    for first in (1.0, -1.0):
        rows = torch.cat([torch.tensor([first]), torch.ones(1024), small]).unsqueeze(1)
        out = torch.zeros(1, dtype=torch.float64)
        blocks.add_rows(None, rows, out)
        sums.append(out)
    assert far_apart(sums) <= 2 * (1 + SLACK)
    for count in (1, 87, 88, 89, 1000, 60_000):
        length = blocks.blocks_of(count).length
        assert length * 2.0**-24 / (1 - length * 2.0**-24) * min(2 * count - 1, 4 * length) <= SLACK


def values_at_the_sensitivity_stay_within_what_the_noise_is_made_for() -> None:
    """Two values that arithmetic may move apart by 1 + `SLACK`, and rounding to the grid further, with the same noise;
    where in a cell of the grid they lie is searched for the worst place."""
    d, made_for = 50, []

    def spied(total: Tensor, step: float, std: float, *rest: Any) -> None:
        made_for.append(std * step)
        add(total, step, std, *rest)

    add, worst = draws.add_rounded, 0.0
    with mock.patch.object(draws, "add_rounded", spied):
        for place in np.linspace(0, 2.0**-7 / math.sqrt(d), 200):
            outs = []
            for move in (0.0, (1 + SLACK) / math.sqrt(d)):
                total, out = torch.full((d,), place + move, dtype=torch.float64), torch.empty(d, dtype=torch.float64)
                Gaussian(1.0)(total, 1.0, stream(0, "noise"), out)
                outs.append(out)
            worst = max(worst, far_apart(outs))
    assert worst <= min(made_for)


def a_release_is_whole_steps_of_a_grid() -> None:
    """Whatever the low bits of the value are: else its bits tell what noise was added to (Mironov 2012)."""
    total = torch.linspace(-1, 1, 1000, dtype=torch.float64) / 3
    out = torch.empty_like(total)
    Gaussian(2.0)(total, 1.0, stream(0, "noise"), out)
    steps = out / Grid.of(1.0, 1000).step
    assert torch.equal(steps, steps.round())


def noise_has_the_law_that_is_charged() -> None:
    """The standard deviation within 1 % of what is charged, and both tails beyond 4 of it."""
    count, sensitivity, mechanism = 2**21, 3.0, Gaussian(1.5)
    out = torch.empty(count, dtype=torch.float64)
    mechanism(torch.zeros(count, dtype=torch.float64), sensitivity, stream(0, "noise"), out)
    event = mechanism.event("full", 1.0, "replace_one", "record")
    z = out / (event.noise_multiplier * sensitivity)
    assert abs(float(z.std()) - 1) < 0.01
    for tail in (z > 4, z < -4):
        assert stats.binomtest(int(tail.sum()), count, stats.norm.sf(4)).pvalue > ALPHA


def oracle_of(of: PrivacyRules, records: Sequence[Records], *, round: int = 0, steps: int = 1) -> PrivateOracle:
    engine = ByHand(Quadratic([0.0] * (records[0].features.shape[1] // 2)))
    return PrivateOracle(of, engine, records, range(len(records)), Draw(0, round), max_gradients=steps)


D, STEPS, SILOS, ROUNDS = 4000, 3, 2, 2


def noise_of(
    of: PrivacyRules, place: Place
) -> tuple[dict[tuple[int, int, int], Tensor], dict[tuple[int, int, int], float]]:
    """By (round, silo, step): the noise on a sum over the sensitivity, and the noise multiplier that is charged.

    All gradients are 0, so that noise is all that comes back.
    """
    noises, charged = {}, {}
    records = [silo([0.0] * D, [0.0] * D, copies=4)] * SILOS
    y = torch.zeros(SILOS, D, dtype=torch.float64)
    for round_ in range(ROUNDS):
        asked = oracle_of(of, records, round=round_, steps=STEPS)
        steps = 1 if of.unit == "silo" else STEPS
        with noise_drawn_on(place):
            outs = [asked.release(y) if of.unit == "silo" else asked.gradient(y) for _ in range(steps)]
        for number in range(SILOS):
            of_silo = [c.release.noise_multiplier for c in asked.charges() if c.silo == number for _ in range(c.count)]
            assert len(of_silo) == steps, "each release is charged"
            own = of.of(number)
            size = 1 if of.unit == "silo" else own.sampler.divisor(4)
            sensitivity = own.clip_norm * (2 if own.neighbouring == "replace_one" else 1)
            for step in range(steps):
                noises[round_, number, step] = outs[step][number] * size / sensitivity
                charged[round_, number, step] = of_silo[step]
    return noises, charged


def settings() -> Iterator[tuple[PrivacyRules, Place]]:
    falling = Geometric(beta=0.25, by="step")
    yield rules(8.0, 1.0, FixedSize(batch_size=2), schedule=falling), "host"
    yield rules(8.0, 1.0, Poisson(0.5)), "host"
    yield rules(8.0, 1.0, FullBatch()), "device"
    yield rules(8.0, 1.0, FullBatch(), fresh=True, schedule=falling), "device"
    yield rules(8.0, 1.0, FullBatch(), unit="silo", neighbouring="add_or_remove"), "host"
    yield rules(8.0, 1.0, FullBatch(), silos={1: rules(2.0, 1.0, FullBatch())}), "host"


def every_release_has_the_noise_that_is_charged() -> None:
    """At each round, silo and step, by any schedule and any silo's own settings: 6 % are 5 standard errors. What is
    protected is charged as what it is."""
    for of, place in settings():
        noises, charged = noise_of(of, place)
        for key, noise in noises.items():
            assert abs(float(noise.std()) / charged[key] - 1) < 0.06, key
        assert of.release(1.0).unit == of.unit


def no_two_releases_share_their_noise() -> None:
    """|r| < 0.11 for independent noise: 7 standard errors."""
    for of, place in settings():
        noises, _ = noise_of(of, place)
        together = torch.corrcoef(torch.stack(list(noises.values())))
        together.fill_diagonal_(0.0)
        assert float(together.abs().max()) < 0.11


def fresh_noise_is_drawn_once() -> None:
    """Two holders of fresh bits, and two draws of one, share nothing: else their difference has no noise."""
    one, other = FreshGenerator(sums=2), FreshGenerator(sums=2)
    drawn = [source.rounded(1000, 2.0**20) for source in (one, one, one, other)]
    std, there = 2.0**20, {"rows": 1, "count": 1000, "steps": 2, "device": torch.device("cpu")}
    for steps in (2, 1):
        noise = DeviceNoise(FreshWords(), **there, stds=lambda step: (std,))  # type: ignore[arg-type]
        drawn += [noise.integers(step, slice(0, 1), (std,))[0].numpy() for step in range(steps)]
    for first, second in itertools.combinations(drawn, 2):
        assert np.count_nonzero(first == second) < 10


def fresh_noise_does_not_follow_from_names() -> None:
    """Computed again, an answer has other noise, whatever round and silo it is of."""
    y, records = torch.zeros(1, D, dtype=torch.float64), [silo([0.0] * D, [0.0] * D)]
    for place in ("host", "device"):
        with noise_drawn_on(place):
            one, other = (oracle_of(rules(8.0, 1.0, fresh=True), records).gradient(y)[0] for _ in range(2))
        assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.11


def every_stream_has_a_key_of_its_own() -> None:
    names = list(itertools.product((0, 2**32), PURPOSES, (0, 1), (0, 1), (0, 1)))
    keys = {streams.stream_key(*name) for name in names}
    assert len(keys) == len(names) and all(len(key) == 32 for key in keys)


# Samplers


def a_batch_is_uniform_and_as_likely_as_is_charged() -> None:
    """Each pair of six records is a batch of two as often as any other, and a record's rate is what is charged."""
    rng, number = np.random.default_rng(0), 6000
    for sampler in (FixedSize(batch_size=2), FixedSize(record_rate=0.4)):
        drawn = [tuple(sorted(sampler.draw(6, rng).tolist())) for _ in range(number)]
        counts = [drawn.count(pair) for pair in itertools.combinations(range(6), 2)]
        assert sum(counts) == number, "a record is in a batch once"
        assert stats.chisquare(counts).pvalue > ALPHA
        assert sampler.rate(6) * (1 + 1e-12) >= 2 / 6


def a_poisson_batch_has_a_record_never_more_often_than_is_charged() -> None:
    """By all uniform numbers around the rate: multiples of 2^-53."""
    for rate in (0.1, 1 / 3, 2.0**-30 * 1.1, 1.0):
        number = math.floor(rate * 2**53)
        uniforms = np.arange(number - 2, number + 3) / 2**53
        rng = mock.Mock(random=lambda count, uniforms=uniforms: uniforms, permutation=lambda index: index)
        drawn = Poisson(rate).draw(len(uniforms), rng)
        below = number - 2 + len(drawn)  # of 2^53 numbers
        assert below / 2**53 <= rate == Poisson(rate).rate(7)


def batches_are_in_a_uniform_order() -> None:
    """Of two records in a batch each comes first as often, and one in it is at each place: else that there is one more
    or another one moves all behind it to other blocks."""
    number = 6000
    for rng in (np.random.default_rng(0), FreshGenerator()):
        for sampler in (FixedSize(batch_size=3), Poisson(0.5)):
            drawn = [batch for batch in (sampler.draw(4, rng) for _ in range(number)) if batch is not None]
            for count in (2, 3):
                orders = Counter(tuple(batch.tolist()) for batch in drawn if len(batch) == count)
                possible = list(itertools.permutations(range(4), count))
                if orders:
                    assert stats.chisquare([orders[order] for order in possible]).pvalue > ALPHA


def what_is_not_proven_is_refused() -> None:
    """Samplers under other neighbouring relations, and noise that is correlated beyond a pass."""
    for sampler, neighbouring in (("fixed", "add_or_remove"), ("poisson", "replace_one"), ("shuffled", "replace_one")):
        release = SampledGaussian(noise_multiplier=1.0, sampler=sampler, rate=0.1, neighbouring=neighbouring)
        for accountant in (PLD(), RDP()):
            with pytest.raises(UnsupportedError):
                accountant.epsilon([Term(release=release, count=1, rounds=1)], DELTA)
    with pytest.raises(ConfigError):
        Cyclic(0.5, bands=3)


# Accountants


def event(sigma: float, rate: float = 1.0, sampler: str = "full", unit: str = "record") -> SampledGaussian:
    neighbouring = "add_or_remove" if sampler == "poisson" else "replace_one"
    return SampledGaussian(noise_multiplier=sigma, sampler=sampler, rate=rate, neighbouring=neighbouring, unit=unit)


COMPOSITIONS = (
    (event(0.8, 0.1, "fixed"), 1, 20, 1.0),
    (event(0.8, 0.1, "poisson"), 1, 20, 1.0),
    (event(2.0, 0.2, "fixed"), 3, 10, 0.3),
    (event(4.0), 1, 9, 1.0),
    (event(4.0, 0.25, "cyclic"), 1, 9, 1.0),
)


def an_epsilon_is_never_below_the_exact_one() -> None:
    """By numerical integration; nor is it much above, of the accountant that is tight."""
    for release, count, rounds, participation in COMPOSITIONS:
        term = Term(release=release, count=count, rounds=rounds, participation=participation)
        if release.sampler == "cyclic":  # a record is in every fourth release, the first one among them
            factors = {twin.Factor("full", release.noise_multiplier, 1.0): math.ceil(rounds * release.rate)}
        else:
            factors = {
                twin.Factor(release.sampler, release.noise_multiplier, release.rate, count, participation): rounds
            }
        exact = twin.epsilon(factors, DELTA)
        assert exact * (1 - 5e-4) <= PLD().epsilon([term], DELTA) <= exact * 1.003
        if release.sampler != "fixed":  # of which Renyi divergences take seconds
            assert exact * (1 - 5e-4) <= RDP().epsilon([term], DELTA)


def a_discretised_loss_is_never_below_the_exact_one() -> None:
    """On a coarse grid, and with tails cut off where they matter: delta(epsilon) of a Gaussian, in closed form."""
    sigma = 1.5
    for reach, dl in ((9.0, 0.3), (2.0, 0.01)):
        loss = step_loss.step_loss(event(sigma), "symmetric", reach, dl)
        losses = loss.dl * (loss.first + np.arange(loss.mass.size))
        for epsilon in np.linspace(0.0, 4.0, 41):
            above = losses > epsilon
            found = loss.infinite + float(loss.mass[above] @ -np.expm1(epsilon - losses[above]))
            mu = 1 / sigma
            exact = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
            assert found >= exact * (1 - 1e-9)


def a_record_is_charged_for_all_that_reads_it() -> None:
    """Shares that overlap, in chains, too; a silo is read by all of them."""
    kinds = [((0.0, 0.5), 4), ((0.4, 0.7), 3), ((0.7, 1.0), 5)]
    for unit in ("record", "silo"):
        planned = [Planned(event(3.0, unit=unit), count, share) for share, count in kinds]
        found = max(PLD().epsilon(terms, DELTA) for terms in composition.compositions(planned))
        for place in (0.1, 0.45, 0.6, 0.9):
            reads = sum(count for share, count in kinds if unit == "silo" or share[0] <= place < share[1])
            assert found >= twin.epsilon({twin.Factor("full", 3.0, 1.0): reads}, DELTA) * (1 - 1e-6)


def disjoint_shares_have_no_record_in_common() -> None:
    """Of neighbouring shares, and of the phases of a localized algorithm."""
    setting = Setting(num_silos=5, num_participants=5, silo_rate=1.0, record_rate=None, num_records=100, rounds=12)
    phases = LocalizedMBSGD(phases=3, lr=0.1, regularisation=0.5, lipschitz=100.0).stages(Facts.of(setting, 3))
    for parts in ([(0.0, 0.3), (0.3, 0.65), (0.65, 1.0)], [phase.share for phase in phases]):
        for count in (10, 17, 100):
            held = [set(range(*shares.share_bounds(part, count))) for part in parts]
            assert not any(one & other for one, other in itertools.combinations(held, 2))


def correlated_noise_covers_all_rows_that_a_record_moves() -> None:
    """A record moves rows by c_k Delta: the noise of each row has to be ||c|| times that of an independent release."""
    found, sigma, count = correlation(4, 8), 2.0, 20_000
    assert sum(c**2 for c in found.coefficients) > 1.2, "there is a correlation"
    chain = Chain(found, sigma, [torch.zeros(count, dtype=torch.float64)] * 3, [torch.zeros(count).double()] * 3)
    out = torch.empty(count, dtype=torch.float64)
    chain(torch.zeros(count, dtype=torch.float64), 1.0, stream(0, "noise"), out)
    norm = math.sqrt(sum(c**2 for c in found.coefficients))
    assert float(out.std()) / (sigma * norm) > 0.96  # 8 standard errors below 1


def a_third_partys_claim_holds_whatever_the_draws_decide() -> None:
    """Where a budget ends a run when some silo was drawn too often, its length tells of the draws: the mixture over the
    rounds that happened to run proves nothing."""
    release = Term(release=event(8.0, 0.5, "fixed"), count=2, rounds=1)
    budget = RDP().epsilon([replace(release, rounds=3)], DELTA) * 1.001
    spec = BudgetSpec(
        epsilon=budget, delta=DELTA, rounds=20, num_records=(20,) * 4, num_silos=4, num_participants=2, view="server"
    )
    claims = []
    for drawn in ([(0, 1)] * 20, [(0, 1), (2, 3)] * 10):
        account = PrivacyAccount(
            spec,
            rules=rules(8.0, 1.0, FixedSize(record_rate=0.5)),
            accountant=RDP(),
            extra_plan=ExtraPlan(20),
            draw=lambda round, plan, eligible: (0, 1),
            ledger=Ledger(),
        )
        for t, participants in enumerate(drawn):
            plan = RoundPlan(local_steps=2, local_lr=0.1, num_gradients=2, participants=participants)
            if not account.affords(t, plan):
                break
            account.begin_round(t, plan)
            account.append(account.charges(t, plan, "a"))
        claims.append(account.views()["third_party"]["epsilon"])
    assert claims[0] == pytest.approx(claims[1], rel=1e-9)


def a_budget_is_never_passed() -> None:
    """By all releases that it allows together, counted by the twin."""
    one, sigma = Budget(1.0, DELTA, PLD()), 20.0
    spent, made = Spending(), 0
    while made < 200 and one.allows(spent, {0: [Planned(event(sigma), 1)]}):
        spent.add([Charge(round=made, silo=0, release=event(sigma), count=1, noise_id=f"{made}")])
        made += 1
    assert 1 < made < 200
    assert twin.epsilon({twin.Factor("full", sigma, 1.0): made}, DELTA) <= 1.0


# Ledger, slots, limits


def runs_chosen_by_what_was_seen_stay_within_a_limit() -> None:
    """The second run of a ledger by what the first one showed: at most what the limit's filter was created for."""
    first = adaptive.poisson(5.0)
    filter = filters.chosen_filter(1.0, DELTA, _plan(first, 1))

    def fits(then: SampledGaussian) -> bool:
        return filters.affords(filter, [_plan(first, 1), _plan(then, 1)])

    options = [adaptive.least_noise(rate, fits) for rate in (1.0, 0.05)]
    assert adaptive.delta_of_a_choice(first, [one for one in options if fits(one)], 1.0) <= DELTA
    # As much room as the formula gives, which what plans disclose takes from.
    disclosed = 2 * filters.FIRST_DELTA * DELTA
    mu = math.sqrt(filters.PlanFilter(1.0, DELTA).most)
    assert disclosed + (1 - disclosed) * float(filters.profile(mu, np.ones(1))[0]) <= DELTA * (1 + 1e-9)


def what_an_odometer_says_holds_wherever_somebody_stops() -> None:
    """Who stops when the losses were large has learned no more than what is said then."""
    one = _plan(event(4.0), 1)
    for run in (None, 6.0):  # with thresholds at copies of it, and with most of delta at a run that is to follow
        odometer = filters.odometer_for(one, DELTA, run)
        assert bool(odometer.shares) == (run is not None) and math.fsum(odometer.shares) <= 1 + 1e-9
        said = [odometer.passed([one] * n) for n in range(1, 21)]
        assert adaptive.delta_of_a_stop(said, 1 / 4.0) <= DELTA


def a_run_that_ended_early_costs_what_it_registered() -> None:
    """What decides on the end of a run may have been released: the rounds that ran are no bound (7 times in delta)."""
    ledger = Ledger(facts={"shared": "a"})
    slots, beyond = [Planned(event(4.0), 20)], Planned(event(8.0), 1)
    facts = {"data_sha256": "x", "started": "now"}
    ledger.begin_run({"noise": "one", "name": "one", "slots": shared_ledger.slots_to_plain({0: slots}), **facts})
    ledger.append([Charge(round=t, silo=0, release=event(4.0), count=1, noise_id=f"{t}") for t in range(3)])
    assert shared_ledger.plans_in(ledger) == [filters.RegisteredPlan("x", {0: slots})]
    ledger.append([Charge(round=3, silo=0, release=beyond.release, count=1, noise_id="3")])
    assert shared_ledger.plans_in(ledger) == [
        filters.RegisteredPlan("x", {0: slots}),
        filters.RegisteredPlan("x", {0: [beyond]}),
    ]
    ran = [filters.epsilon_of(math.sqrt(n) / 4.0, 0.0, DELTA) for n in range(1, 21)]
    ledger.facts.update(shared_ledger.first_line(filters.RegisteredPlan("x", {0: slots}), 1.01 * ran[-1], DELTA))
    said = shared_ledger.adaptive_total(ledger, DELTA)["epsilon"]
    assert said is None or adaptive.delta_of_a_stop([said] * 20, 1 / 4.0) <= DELTA


def slots_that_a_run_left_serve_once_and_for_no_more_than_they_cost() -> None:
    """Of ten slots four were used: six releases of a later run need no plan of their own, and none of less noise."""
    ledger, name = Ledger(facts={"shared": "a"}), {"name": "one", "data_sha256": "x", "started": "now"}
    slots = shared_ledger.slots_to_plain({0: [Planned(event(4.0), 10)]})
    ledger.begin_run({"noise": "one", **name, "slots": slots})
    ledger.append([Charge(round=0, silo=0, release=event(4.0), count=4, noise_id="0")])
    ledger.begin_run({"noise": "one", "ended": True})
    for noise, left in ((3.0, 8), (4.0, 2), (4.0, 8)):
        wanted = {0: [Planned(event(noise), 8)]}
        reuses = shared_ledger.unused(ledger, "x", wanted)
        assert shared_ledger.without_reused(wanted, reuses) == {0: [Planned(event(noise), left)]}
        made = {"slots": shared_ledger.slots_to_plain(wanted), "reuses": shared_ledger.reuses_to_plain(reuses)}
        ledger.begin_run({"noise": f"{left} {noise}", **name, **made})


def a_run_that_stops_early_is_charged_for_all_its_rounds() -> None:
    """When it stops follows from noisy scores, which depend on records."""
    with folder() as where:
        stopping = {"share": 0.25, "every": 2, "patience": 1, "min_gain": 0.9, "noise_multiplier": 6.0}
        result = command.run(command.write(where, {"rounds": 8, "early_stopping": stopping}))
        made = [charge for charge in command.charges(result["folder"]) if charge.silo == 0]
    assert result["rounds"] == 4 and result["early_stopping"] is not None
    assert {charge.round for charge in made if charge.kind == "round"} == set(range(8))
    assert sum(charge.kind == "score" for charge in made) == 4


def _plan(release: SampledGaussian, count: int) -> filters.RegisteredPlan:
    return filters.RegisteredPlan("", {0: [Planned(release, count)]})


def each_release_takes_a_slot_of_its_own_kind() -> None:
    planned = [Planned(event(2.0), 2), Planned(event(1.0), 1, (0.0, 0.5))]
    for wanted, wrong in itertools.product(
        [event(2.0)], [Planned(event(1.9), 1), Planned(event(1.0), 1), Planned(event(1.0), 2, (0.0, 0.5))]
    ):
        slots = Slots(planned)
        with pytest.raises(LedgerError):
            slots.take([wrong])
        with pytest.raises(LedgerError):
            slots.take([Planned(wanted, 1)] * 3)
        slots.take([Planned(wanted, 1)] * 2)
        with pytest.raises(LedgerError):
            slots.take([Planned(wanted, 1)])
    used = [Planned(charge.release, charge.count, charge.share) for charge in CHARGES]
    assert released(CHARGES) == used


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


CHARGES = [
    Charge(round=t, silo=silo, release=event(sigma), count=count, share=share, noise_id=noise)
    for t, silo, sigma, count, share, noise in (
        (0, 0, 2.0, 1, (0.0, 1.0), "a"),
        (0, 1, 2.0, 1, (0.0, 1.0), "a"),
        (0, 0, 2.0, 3, (0.0, 1.0), "a"),  # more of the same bits
        (0, 0, 2.0, 2, (0.0, 1.0), "a"),  # fewer of them
        (0, 0, 2.0, 1, (0.0, 1.0), "b"),  # the round again, with fresh noise
        (1, 0, 2.0, 1, (0.0, 1.0), "b"),
        (1, 0, 2.0, 1, (0.0, 0.5), "b"),
        (1, 0, 1.0, 1, (0.0, 1.0), "b"),
    )
]


def a_ledger_counts_every_release_once_and_all_of_them() -> None:
    """The same bits once, with the most of them; other bits again; and the same when it is read again."""
    expected: dict[Any, int] = {}
    for charge in CHARGES:
        key = replace(charge, count=1)
        expected[key] = max(expected.get(key, 0), charge.count)
    with folder() as where:
        path = where / "ledger.jsonl"
        with Ledger(path) as ledger:
            for charge in CHARGES:
                ledger.append([charge])
            ledger.sync()
            assert {replace(charge, count=1): charge.count for charge in ledger} == expected
        again = Ledger.open(path, append=False)
        assert {replace(charge, count=1): charge.count for charge in again} == expected


def a_damaged_ledger_is_refused() -> None:
    """A line that is changed, missing or in another place; the last one, cut off, was not synced."""
    with folder() as where:
        path = where / "ledger.jsonl"
        with Ledger(path) as ledger:
            for charge in CHARGES:
                ledger.append([charge])
                ledger.sync()
        lines = path.read_bytes().splitlines(keepends=True)
        changed = lines[1].replace(b'"count":1', b'"count":2')
        assert changed != lines[1]
        for damaged in (
            [lines[0], *lines[2:]],
            [lines[0], lines[2], lines[1], *lines[3:]],
            [lines[0], changed, *lines[2:]],
        ):
            path.write_bytes(b"".join(damaged))
            with pytest.raises(LedgerError):
                Ledger.open(path, append=False)


def a_charge_is_on_disk_when_it_is_synced() -> None:
    with folder() as where, Ledger(where / "ledger.jsonl") as ledger:
        ledger.append(CHARGES[:1])
        with mock.patch.object(os, "fsync", wraps=os.fsync) as fsync:
            ledger.sync()
        assert fsync.called and b'"round":0' in (where / "ledger.jsonl").read_bytes()


class Recorder:
    """A ledger that writes down in which order it is used."""

    def __init__(self, story: list[str]) -> None:
        self.story, self.charges = story, list[Charge]()

    def append(self, charges: Sequence[Charge]) -> None:
        self.charges += charges
        self.story.append("append")

    def sync(self) -> None:
        self.story.append("sync")


def everything_is_charged_before_it_leaves() -> None:
    """Rounds in one process: all gradients of all silos, on disk before anybody sees an upload."""
    lab = Lab(FedAvg(local_steps=3, local_lr=0.1), [silo([1.0], [2.0])] * 3, rules(1.0, 1.0), [0.0])
    story: list[str] = []
    recorder = Recorder(story)
    lab.runtime = InProcess(lab.host, recorder, observers=[lambda *seen: story.append("leaves")])
    asked = []
    with mock.patch.object(lab.host.engine, "clipped_sum", wraps=lab.host.engine.clipped_sum) as engine:
        for _ in range(2):
            engine.reset_mock()
            lab.step()
            asked.append(engine.call_count)
            leaves = story.index("leaves")
            assert story[:leaves][-1] == "sync" and "append" not in story[leaves:]
            story.clear()
    for round_, count in enumerate(asked):
        assert count == 9 == sum(charge.count for charge in recorder.charges if charge.round == round_)


def group(**given: Any) -> SiloGroup:
    """Two silos of a linear classifier."""
    model = softmax().double()
    records = Records(BATCH.features.double(), BATCH.labels)
    engine = Vmap(model, cross_entropy, 2**20)
    algorithm = FedAvg(local_steps=1, local_lr=0.1)
    train = {0: records, 1: records}
    states = algorithm.init_silos(parameters_of(model), 2)
    of = rules(2.0, 1.0, FullBatch())
    return SiloGroup(
        model=model, loss=cross_entropy, algorithm=algorithm, rules=of, engine=engine, train=train, test=train,
        states=states, **given,
    )  # fmt: skip


def what_is_released_beside_the_rounds_is_charged() -> None:
    """Scores, statistics of columns and silos' own models: one release of each silo, with the noise that it got."""
    scores = Scores(share=(0.5, 1.0), noise_multiplier=3.0)
    statistics = Statistics((Measured("a", "mean", 0),), noise_multiplier=4.0)
    made = group(scores=scores, statistics=statistics)
    down = {"model": parameters_of(softmax()).double()}
    for task, noise, count in (("score", 3.0, 1), ("statistics", 4.0, 1), ("personalise", 2.0, 2)):
        plan = RoundPlan(
            local_steps=2, local_lr=0.1, num_gradients=2, task=task, participants=(0, 1), weights=(0.5, 0.5)
        )
        _, charges = made.run((0, 1), down, plan, Draw(0, 5))
        assert [(charge.silo, charge.count, charge.release.noise_multiplier) for charge in charges] == [
            (0, count, noise),
            (1, count, noise),
        ]


def one_record_moves_a_score_by_its_sensitivity_at_most() -> None:
    """A sum of right answers or of log losses, and a histogram of scores, of all replacements of a record."""
    model = softmax()
    for score in (ValidationScore(), ValidationScore("log_loss", 0.5), ValidationScore("auc", bins=4)):
        found = []
        for features, label in EXTREMES[:6]:
            records = Records(torch.cat([features[None], BATCH.features]), torch.tensor([label, *BATCH.labels]))
            found.append(summed(model, records, CLASSES, score))
        without = summed(model, BATCH, CLASSES, score)
        scores = Scores(share=(0.5, 1.0), noise_multiplier=1.0, bins=score.bins)
        assert far_apart(found) <= scores.sensitivity("replace_one") * (1 + 1e-12)
        for one in found:
            assert far_apart([one, without]) <= scores.sensitivity("add_or_remove") * (1 + 1e-12)


def one_record_moves_statistics_by_their_sensitivity_at_most() -> None:
    """Whatever its values are; from what is released, without noise worth naming."""
    measured = (Measured("a", "mean", 0), Measured("b", "quantiles", 1), Measured("c", "counts", 2, values=("x", "y")))
    label = Measured("label", "labels", 0, values=("no", "yes"))
    statistics = Statistics((*measured, label), noise_multiplier=1e-7)
    values = torch.tensor(list(itertools.product((-50.0, -1.0, 0.0, 1.0, 50.0), (-1.0, 1.0), (0.0, 1.0))))
    sums = []
    for row, label in itertools.product(values, (0, 1)):
        features, labels = torch.stack([row, torch.zeros(3)]), torch.tensor([label, 0])
        sums.append(statistics.noisy(features, torch.ones(2, 1), "replace_one", stream(0, "statistics"), labels))
    made_for = statistics.sensitivity("replace_one")
    assert far_apart(sums) <= made_for * (1 + 4 * SLACK)
    assert made_for <= math.sqrt(10)


def agreements_add_up_over_a_lifetime() -> None:
    with folder() as where:
        where.chmod(0o700)
        limits = Limits(folder=where, epsilon=2.5, delta=1e-4)
        begin = functools.partial(_agree, limits)
        begin("a", 2.0)
        begin("b", 3.0)
        with pytest.raises(LimitError):
            begin("c", 2.0)
        begin("d", 8.0)
        with pytest.raises(LimitError):
            _agree(replace(limits, epsilon=1.0), "a", 2.0)  # the owner lowered them
        mu = math.sqrt(1 / 2.0**2 + 1 / 3.0**2 + 1 / 8.0**2)
        assert filters.epsilon_of(mu, 0.0, 1e-4) <= 2.5 < filters.epsilon_of(math.hypot(mu, 1 / 2.0), 0.0, 1e-4)


def _agree(limits: Limits, name: str, noise_multiplier: float) -> None:
    plan = AgreedPlan((Planned(event(noise_multiplier), 1),), 1.0, 1e-6)
    with lifetime.opened(limits) as one:
        one.begin(name, name, {0: plan}, "records", "replace_one")


def what_passes_an_owners_limits_is_refused() -> None:
    limits = Limits(folder=Path("/srv/silo"), epsilon=8, delta=1e-4)
    noisy = {**NOISY, "epsilon": 8.0}
    limits.check(configure(block(privacy=noisy), source="test"))
    for wrong in ({"epsilon": 9.0}, {"delta": 1e-3}, {"noise_multiplier": 0, "epsilon": None}, {"unit": "silo"}):
        with pytest.raises(LimitError):
            limits.check(configure(block(privacy={**noisy, **wrong}), source="test"))


def code_that_settings_name_is_not_imported_within_limits() -> None:
    limits = Limits(folder=Path("/srv/silo"), epsilon=8, delta=1e-4, **PUBLIC)
    for key in ("mechanism", "clip", "schedule"):
        values = block(privacy={**NOISY, "epsilon": 8.0, key: {"module": "no_such_module:made"}})
        with pytest.raises(DpflError) as refused:  # to import it would be a PluginError
            agree(values, num_silos=1, model=torch.nn.Linear(4, 3), permit=limits.check_settings)
        assert isinstance(refused.value, LimitError)


def free_answers_depend_on_no_record() -> None:
    """Two silos whose owners publish the same: of 41 records, and of 61 with one that is no number."""
    model, heard = torch.nn.Linear(4, 3), []
    values = block(privacy={**NOISY, "record_rate": 0.26}, rounds=1)
    agreement = agree(values, num_silos=1, model=model)
    message = Server(agreement, model).begin()
    assert message is not None
    for size in (41, 61):
        x, y = torch.zeros(size, 4), torch.arange(size) % 3
        x[7, 2] = math.nan if size == 61 else 0.0
        with folder() as where:
            where.chmod(0o700)
            limits = Limits(folder=where, epsilon=1e3, delta=1e-4, min_records=40, num_classes=3)
            try:
                with AdapterSilo(agreement, 0, model, (x, y), limits=limits) as one:
                    heard.append(one.answer(message).header)
            except DpflError:
                heard.append(failure(agreement, 0, message).header)
    assert heard[0] == heard[1]


# Persons, and what rank 0 sees


def persons_in(*counts: int) -> Federation:
    """A silo of persons with so many records each, whose features are (person, number of the record)."""
    who = np.repeat(np.arange(len(counts)), counts)
    x = np.stack([who, np.concatenate([np.arange(count) for count in counts])], axis=1).astype(np.float64)
    y = np.zeros(len(who), dtype=np.int64)
    return Federation([Silo(x, y, x[:0], y[:0], persons=who, test_persons=who[:0])], 1, (2,))


def a_persons_row_depends_on_that_person_alone() -> None:
    """Neighbours differ in all records of one person: of others the same records are kept."""
    rows = []
    for first in (1, 5, 9):
        federation = persons_in(first, 6, 7)
        persons.grouped(federation, 3, Scratch())
        rows.append(federation.silos[0].train_x[1:])
        assert federation.silos[0].train_x.shape[:2] == (3, 3)
    assert all(np.array_equal(rows[0], other) for other in rows[1:])


def a_person_at_two_silos_is_refused() -> None:
    federation = persons_in(2, 3)
    twice = Federation([federation.silos[0], persons_in(1).silos[0]], 1, (2,))
    with pytest.raises(UnsupportedError):
        persons.check_apart(twice)


def rank_0_is_told_nothing_that_was_read_from_records() -> None:
    """Names of classes and columns, but for those that the configuration or the package has."""
    inputs = Inputs((1,), 2, classes=("benign", "malignant"), columns=("age", "name of a patient"))
    told = str(wire.inputs_header(inputs, named=False, ours=False))
    assert "malignant" not in told and "patient" not in told
    with pytest.raises(Exception, match="server"):
        wire.read_dealt({"dealt": [0, 1]})


def rank_0_hears_no_words_of_an_error_that_may_quote_records() -> None:
    for error in (DataError("a.csv, line 7: 'malignant' is no number"), ValueError("malignant")):
        assert public_errors.public_text(error) is None
