"""Is a configuration's privacy what its accountant says? An experiment with canaries, seen by the server.

The run itself is what is tried: its sampler, clipping bound, mechanism, oracle, algorithm, runtime and ledger; silos
are advanced and answered together as in the run. A run with canaries is made (`evidence.canaries`); the server's
transcript, the single uploads, is reduced to innovations of unit noise (`evidence.linear_response`), and these to a
score for each canary (`privacy.audit`).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dpfl_plugin.config.incompatible import check_compatible
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError, UnsupportedError, require
from dpfl_plugin.evidence.audit_report import Report, judged
from dpfl_plugin.evidence.audit_scores import Measured
from dpfl_plugin.evidence.canaries import CanaryEngine, Planting, plant
from dpfl_plugin.evidence.linear_response import SeenRound, responses
from dpfl_plugin.evidence.probes import influence, worst_pair
from dpfl_plugin.federation.evaluation_schedule import EvaluationSchedule
from dpfl_plugin.federation.participant_sampling import drawn_silos
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.federation.progress import Progress
from dpfl_plugin.federation.round_loop import RoundLoop
from dpfl_plugin.federation.runtime import ChargeSink, Observer, Runtime
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.gradients.base import Records, layers
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.costs import MOST_ROUNDS
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.views import server_view
from dpfl_plugin.runs.accounting import make_account
from dpfl_plugin.runs.build import Parts, build, refuse_outcome

Array = NDArray[np.float64]
MakeRuntime = Callable[[SiloGroup, int, ChargeSink, Observer], Runtime]
"""(silos, how many of them are advanced together, what takes their charges, what sees their uploads) -> runtime."""

QUIET = 256  # coordinates that nothing but noise moves
# At which the strict bound is: a mechanism may fail with probability delta, so no test is more certain than delta.
STRICT_DELTA = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to plant and for how long.

    Attributes:
        canaries: in all silos together; silos: that have canaries (None: up to 10);
        rounds: None: all that the configuration would run.
    """

    canaries: int = 1000
    silos: int | None = None
    rounds: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("canaries", "silos", "rounds", "seed"):
            value, least = getattr(self, name), 0 if name == "seed" else 1
            left_out = value is None and name in ("silos", "rounds")
            whole = isinstance(value, int) and not isinstance(value, bool)
            require(left_out or (whole and value >= least), name, value, f"be at least {least}")


def audit(config: Config, base: Path, options: Options, make_runtime: MakeRuntime) -> Report:
    """Run a configuration with canaries and compare what the server saw with what the accountant says.

    Raises:
        ConfigError, DataError: as `build`; or the configuration has no round to run.
        UnsupportedError: the algorithm's uploads cannot be read, or rounds read parts of the records only.
    """
    began = time.monotonic()
    check_compatible(config, "audit")
    parts = build(config, base)  # as for all rounds, however many are tried
    rules = parts.rules
    refuse_outcome(parts, "an audit")
    _refuse_unreadable(parts)
    torch.set_num_threads(config.runtime.threads)
    silos = _canary_silos(config, parts, options)
    planting, train = plant(parts.host.train, silos, options.canaries, QUIET, options.seed, rules.unit)
    rounds, ledger = _transcript(config, parts, planting, train, silos, options, make_runtime)
    if not rounds:
        raise ConfigError("the budget does not cover one round: there is nothing to audit. Raise privacy.epsilon.")
    found, releases = responses(parts.algorithm, rules, rounds, len(silos))
    charges = [charge for charge in ledger if charge.silo in silos]

    strict_delta = min(STRICT_DELTA, config.privacy.delta)
    measured = Measured(rules, planting, silos, [parts.num_records[silo] for silo in silos], found)
    participants = {t: seen.plan.participants for t, seen in enumerate(rounds)}
    report = Report(
        algorithm=str(config.algorithm.name or config.algorithm.module),
        unit=rules.unit,
        neighbouring=rules.neighbouring,
        accountant=parts.accountant.name,
        delta=config.privacy.delta,
        rounds=len(rounds),
        silos=len(silos),
        canaries=planting.num_canaries,
        releases=sum(releases),
        epsilon=_claimed(charges, parts.accountant, config.privacy.delta) if measured.noisy else None,
        strict_delta=strict_delta,
        strict_epsilon=_claimed(charges, parts.accountant, strict_delta, optional=True) if measured.noisy else None,
        **measured.results(config.privacy.delta, strict_delta),
        influence=influence(parts, train, silos) if rules.unit != "silo" else None,
        worst_pair=worst_pair(parts, silos),
        made=sum(len(participants[t]) * count for t, count in enumerate(releases)),
        charged=sum(charge.count for charge in ledger),
        seconds=round(time.monotonic() - began, 3),
        canary_silos=tuple(silos),
        silo_names={silo: parts.names[silo] for silo in silos if silo in parts.names},
        bits=planting.bits,
    )
    missing = _uncharged(list(ledger), participants, releases, rules, parts.num_records)
    return judged(report, missing, adapts=rules.clipping.adapts)


def _refuse_unreadable(parts: Parts) -> None:
    """Raise UnsupportedError where no canary is all of an update."""
    rules = parts.rules
    if rules.unit == "silo" and rules.l2 > 0:
        raise UnsupportedError(
            f"l2={rules.l2:g} with privacy.unit='silo': the regulariser is part of the update that is clipped, and no "
            "canary is all of it then. Use l2=0."
        )
    if rules.unit == "silo" and isinstance(rules.bounds(layers(parts.layout)), tuple):
        raise UnsupportedError(
            "privacy.clip: per_layer with privacy.unit='silo': a canary's update has a layer of its own, which has no "
            "bound. Use privacy.clip=flat, which costs and hides the same."
        )


def _claimed(charges: Sequence[Charge], accountant: Accountant, delta: float, optional: bool = False) -> float | None:
    """What the accountant says of these charges, of the worst silo; None if that is nothing."""
    try:
        epsilon = server_view(charges, accountant, delta).epsilon
    except UnsupportedError:
        if optional:  # some know no delta as small
            return None
        raise
    return epsilon if math.isfinite(epsilon) else None


def _most_rounds(config: Config, options: Options) -> int:
    return min(options.rounds or MOST_ROUNDS, config.rounds or MOST_ROUNDS)


def _canary_silos(config: Config, parts: Parts, options: Options) -> list[int]:
    """Those that take part most often as far as it is drawn, the first of them; ascending."""
    setting = parts.setting
    count = min(options.silos or 10, setting.num_silos)
    rounds = min(_most_rounds(config, options), 1000)
    first = Planner(parts.algorithm, setting, parts.setting.weights, options.seed).asks(
        parts.algorithm.init_server(parts.model, setting), 0
    )
    drawn = (drawn_silos(options.seed, round, first, setting, None) for round in range(rounds))
    often = Counter(silo for silos in drawn for silo in set(silos))
    return sorted(sorted(range(setting.num_silos), key=lambda silo: (-often[silo], silo))[:count])


# The run


def _transcript(
    config: Config,
    parts: Parts,
    planting: Planting,
    train: dict[int, Records],
    silos: list[int],
    options: Options,
    make_runtime: MakeRuntime,
) -> tuple[list[SeenRound], Ledger]:
    """Run as `dpfl run` does, with an observer at the server."""
    d = parts.model.numel()
    model = torch.cat([parts.model, parts.model.new_zeros(planting.width)])
    engine = CanaryEngine(parts.host.engine, d, planting, parts.rules)
    host = parts.host.planted(engine, train, parts.algorithm.init_silos(model, parts.setting.num_silos))
    ledger = Ledger()
    account = make_account(
        config,
        rules=parts.rules,
        accountant=parts.accountant,
        setting=parts.setting,
        num_records=parts.num_records,
        ledger=ledger,
    )
    uploads: list[tuple[tuple[int, ...], Vectors]] = []

    def observe(round: int, ids: Sequence[int], up: Vectors) -> None:
        mine = [row for row, silo in enumerate(ids) if silo in silos]
        rows = tuple(silos.index(ids[row]) for row in mine)
        uploads.append((rows, {name: value[mine, d:].cpu().double() for name, value in up.items()}))

    loop = _round_loop(parts, config, make_runtime(host, parts.stack, account, observe), account, options.seed)
    progress = Progress(server=parts.algorithm.init_server(model, parts.setting))
    rounds: list[SeenRound] = []
    while progress.rounds < _most_rounds(config, options):
        plan = loop.planner.plan(progress.server, progress.rounds, account.eligible())
        if plan is None or not account.affords(progress.rounds, plan):
            break
        if plan.share != (0.0, 1.0):
            raise UnsupportedError("dpfl audit cannot read rounds that use a part of the records (share) only.")
        down = parts.algorithm.download(progress.server)
        _check_wide(down, model.numel())
        engine.bounds.clear()
        server = loop.advance(progress, plan, down)
        loop.runtime.commit()
        rows, up = uploads.pop()
        seen_down = {name: value[d:].cpu().double() for name, value in down.items()}
        scales = None
        if parts.rules.clipping.adapts:
            mine = [i for i, silo in enumerate(plan.participants) if silo in silos]
            scales = _by_silo(engine.bounds, len(plan.participants), parts.stack)[mine] / parts.rules.clip_norm
        rounds.append(SeenRound(plan, rows, seen_down, up, scales))
        progress.server, progress.rounds = server, progress.rounds + 1
    return rounds, ledger


def _by_silo(values: Sequence[float], num_silos: int, stack: int) -> Array:
    """(num_silos, releases) of values in the order of a round: one stack after another, in each step by step."""
    releases, found = len(values) // num_silos, []
    for first in range(0, num_silos, stack):
        last = min(first + stack, num_silos)
        found.append(np.reshape(values[first * releases : last * releases], (releases, last - first)).T)
    return np.concatenate(found)


def _round_loop(parts: Parts, config: Config, runtime: Runtime, account: PrivacyAccount, seed: int) -> RoundLoop:
    """As a session makes it, with an audit's own seed."""
    rounds = config.rounds or MOST_ROUNDS
    return RoundLoop(
        planner=Planner(parts.algorithm, parts.setting, parts.setting.weights, seed),
        runtime=runtime,
        account=account,
        rounds=rounds,
        expected_rounds=rounds,
        run_name=f"audit-{seed}",
        fresh=config.fresh,
        evaluations=EvaluationSchedule(rounds, rounds),
        dissimilarity=False,
        checkpoint_every=None,
        checkpoint_seconds=math.inf,
    )


def _check_wide(down: Vectors, dimension: int) -> None:
    for name, value in down.items():
        if value.shape != (dimension,):
            raise UnsupportedError(
                f"dpfl audit needs downloads of the model's shape; this algorithm sends {name!r} of shape "
                f"{tuple(value.shape)}."
            )


# What was charged


def _uncharged(
    charges: Sequence[Charge],
    participants: dict[int, tuple[int, ...]],
    releases: Sequence[int],
    rules: PrivacyRules,
    num_records: Sequence[int],
) -> int:
    """How many releases the ledger lacks, or has with more noise, smaller batches or fewer records than they had."""
    charged: Counter[tuple[int, int]] = Counter()
    sigma = rules.release(1.0).noise_multiplier
    for charge in charges:
        rate = rules.sampler.rate(num_records[charge.silo]) if rules.unit != "silo" else 1.0
        release = charge.release
        meant = release.unit == rules.unit and release.neighbouring == rules.neighbouring
        whole = charge.share == (0.0, 1.0)  # other rounds are refused; disjoint parts would compose in parallel
        if meant and whole and release.noise_multiplier <= sigma and release.rate >= rate * (1 - 1e-9):
            charged[charge.round, charge.silo] += charge.count
    made = {(t, silo): count for t, count in enumerate(releases) for silo in participants[t]}
    return sum(max(0, count - charged[where]) for where, count in made.items())
