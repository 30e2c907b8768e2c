"""Is a configuration's privacy what its accountant says? An experiment with canaries, seen by the server.

The run itself is what is tried: its sampler, clipping bound, mechanism, oracle, algorithm, runtime and ledger; silos
are advanced and answered together as in the run. A run with canaries is made (`training.canaries`); the server's
transcript, the single uploads, is reduced to innovations of unit noise (`training.response`), and these to a score for
each canary (`privacy.audit`).
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpfl_plugin.config.load import noise_name
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.grid import SUM_SLACK
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError, UnsupportedError, require
from dpfl_plugin.gradients.base import Records, layers
from dpfl_plugin.privacy import audit as statistics
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.audit import Correlation, Interval
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.views import server_view
from dpfl_plugin.training.accounting import MOST_ROUNDS, PrivacyAccount
from dpfl_plugin.training.beside import refuse_beside
from dpfl_plugin.training.build import Parts, build
from dpfl_plugin.training.canaries import CanaryEngine, Planting, plant
from dpfl_plugin.training.evaluations import Evaluations
from dpfl_plugin.training.experiment import Experiment, Progress
from dpfl_plugin.training.host import SiloHost
from dpfl_plugin.training.planning import Planner, drawn_silos
from dpfl_plugin.training.probes import influence, worst_pair
from dpfl_plugin.training.reruns import between_runs
from dpfl_plugin.training.response import Response, SeenRound, responses
from dpfl_plugin.training.runtime import ChargeSink, Observer, Runtime

Array = NDArray[np.float64]
MakeRuntime = Callable[[SiloHost, int, ChargeSink, Observer], Runtime]
"""(silos, how many of them are advanced together, what takes their charges, what sees their uploads) -> runtime."""

QUIET = 256  # coordinates that nothing but noise moves
FALSE_ALARM = 1e-7  # of each of the eight statements by chance that may contradict the claim: below 1e-6 together
# At which the strict bound is: a mechanism may fail with probability delta, so no test is more certain than delta.
STRICT_DELTA = 1e-10
CONFIDENCE = 0.05  # of the intervals that are shown
NOISE_MARGIN = 0.03  # by which noise may differ from the claim, beyond chance: floating point, few releases
SPREAD_MARGIN = 0.10  # as much for the canaries' scores, whose sampling is not quite normal
CLIP_MARGIN = 1e-3  # rounding of clipped gradients
MOST_NORMALS = 200_000
FEW = 10  # canaries below which nothing is said of their spread


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
        require(self.canaries >= 1, "--canaries", self.canaries, "be at least 1")
        require(self.silos is None or self.silos >= 1, "--silos", self.silos, "be at least 1")
        require(self.rounds is None or self.rounds >= 1, "--rounds", self.rounds, "be at least 1")
        require(self.seed >= 0, "--seed", self.seed, "be at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an audit found. Intervals hold with 95 %; ``strict`` ones are wrong with probability 1e-7.

    Attributes:
        rounds, silos, canaries: how many were run, had canaries, and were planted.
        releases: of each of these silos that took part in all rounds.
        epsilon: what the accountant says of what these silos were charged, the worst of them; None if it claims none.
        epsilon_bound: lower bound by one-run auditing, with 95 %.
        strict_delta: a smaller delta; strict_epsilon: the accountant's epsilon there, None if it does not tell;
        strict_bound: lower bound of it, with 1 - 1e-7.
        separation: mu, by which the groups of scores differ, in standard deviations; expected: by the claim.
        gaussian: epsilon of a mu-Gaussian mechanism; gaussian_strict: its strict lower limit.
        noise: measured / claimed standard deviation of the noise; noise_strict: the same.
        spread: the same of a canary's score, in which batches are: 1 if every release draws a fresh one.
        between_silos, between_rounds: correlations of noise.
        normality: p-value of the noise's normality.
        between_runs: of noise, of runs of one name that differ in a bit of their model or of a record.
        influence: the most that one real record changed a clipped sum, in clipping norms.
        worst_pair: the most that one record moved a sum in batches made up for that, in sensitivities; None: not tried.
        made, charged: releases of all silos, as the algorithm makes them, and as the ledger has them.
        violations: what contradicts the claim, in words; a false alarm has a probability below 1e-6 in all.
        canary_silos: that had canaries, by number; silo_names: theirs, where the data have any.
        scores, bits: (m,) of each canary, for pictures.
    """

    algorithm: str
    unit: str
    neighbouring: str
    accountant: str
    delta: float
    rounds: int
    silos: int
    canaries: int
    releases: int
    epsilon: float | None
    epsilon_bound: float
    strict_delta: float
    strict_epsilon: float | None
    strict_bound: float
    separation: Interval | None
    expected: float | None
    gaussian: Interval | None
    gaussian_strict: float | None
    noise: Interval | None
    noise_strict: Interval | None
    spread: Interval | None
    spread_strict: Interval | None
    between_silos: Correlation
    between_rounds: Correlation
    between_runs: Correlation
    normality: float | None
    influence: float | None
    worst_pair: float | None
    made: int
    charged: int
    seconds: float
    violations: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    canary_silos: tuple[int, ...] = ()
    silo_names: dict[int, str] = field(default_factory=dict)
    scores: Array = field(repr=False)
    bits: NDArray[np.bool_] = field(repr=False)

    @property
    def consistent(self) -> bool:
        return not self.violations


def audit(config: Config, base: Path, options: Options, make_runtime: MakeRuntime) -> Report:
    """Run a configuration with canaries and compare what the server saw with what the accountant says.

    Raises:
        ConfigError, DataError: as `build`; or the configuration has no round to run.
        UnsupportedError: the algorithm's uploads cannot be read, or rounds read parts of the records only.
    """
    began = time.monotonic()
    refuse_beside(config, "an audit looks at rounds only")
    parts = build(config, base)  # as for all rounds, however many are tried
    rules = parts.rules
    if rules.unit == "silo" and rules.l2 > 0:
        raise UnsupportedError(
            f"l2={rules.l2:g} with privacy.unit='silo': the regulariser is part of the update that is clipped, and no "
            "canary is all of it then. Use --set l2=0."
        )
    if rules.unit == "silo" and isinstance(rules.bounds(layers(parts.layout)), tuple):
        raise UnsupportedError(
            "privacy.clip: per_layer with privacy.unit='silo': a canary's update has a layer of its own, which has no "
            "bound. Use --set privacy.clip=flat, which costs and hides the same."
        )
    if rules.varies:
        raise UnsupportedError(
            f"privacy.schedule={config.privacy.schedule.name or config.privacy.schedule.module!r}: an audit weighs all "
            "releases alike, which is right for noise that does not change. Use --set privacy.schedule=constant: the "
            "sampler, clipping, mechanism and algorithm that are tried are the same."
        )
    torch.set_num_threads(config.runtime.threads)
    silos = _canary_silos(config, parts, options)
    planting, train = plant(parts.host.train, silos, options.canaries, QUIET, options.seed, rules.unit)
    rounds, ledger = _transcript(config, parts, planting, train, silos, options, make_runtime)
    if not rounds:
        raise ConfigError("the budget does not cover one round: there is nothing to audit. Raise privacy.epsilon.")
    found, releases = responses(parts.algorithm, rules, rounds, len(silos))
    charges = [charge for charge in ledger if charge.silo in silos]

    def first_round(other: Parts) -> SeenRound:
        planting, train = plant(other.host.train, silos, options.canaries, QUIET, options.seed, rules.unit)
        one = replace(options, rounds=1)
        (first,), _ = _transcript(config, other, planting, train, silos, one, make_runtime)
        return first

    strict_delta = min(STRICT_DELTA, config.privacy.delta)
    measured = _Measured(rules, planting, silos, [parts.num_records[silo] for silo in silos], found)
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
        between_runs=between_runs(config, base, parts, silos, QUIET, first_round, FALSE_ALARM)
        if measured.noisy
        else Correlation(),
        influence=influence(parts, train, silos) if rules.unit == "record" else None,
        worst_pair=worst_pair(parts, silos),
        made=sum(len(participants[t]) * count for t, count in enumerate(releases)),
        charged=sum(charge.count for charge in ledger),
        seconds=round(time.monotonic() - began, 3),
        canary_silos=tuple(silos),
        silo_names={silo: parts.names[silo] for silo in silos if silo in parts.names},
        bits=planting.bits,
    )
    missing = _uncharged(list(ledger), participants, releases, rules, parts.num_records)
    return _judged(report, missing, adapts=rules.clipping.adapts)


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
    first = Planner(parts.algorithm, setting, parts.setting.weights, config.seed).asks(
        parts.algorithm.init_server(parts.model, setting), 0
    )
    drawn = (drawn_silos(config.seed, round, first, setting, None) for round in range(rounds))
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
    account = PrivacyAccount(
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

    # No run's own batches or noise.
    run_name = f"audit.{options.seed}.{noise_name(config, parts.data_sha256, parts.noise_multiplier)}"
    experiment = _experiment(parts, config, make_runtime(host, parts.stack, account, observe), account, run_name)
    progress = Progress(server=parts.algorithm.init_server(model, parts.setting))
    rounds: list[SeenRound] = []
    while progress.rounds < _most_rounds(config, options):
        plan = experiment.planner.plan(progress.server, progress.rounds, account.eligible())
        if plan is None or not account.affords(progress.rounds, plan):
            break
        if plan.share != (0.0, 1.0):
            raise UnsupportedError("dpfl audit cannot read rounds that use a part of the records (share) only.")
        down = parts.algorithm.download(progress.server)
        _check_wide(down, model.numel())
        engine.bounds.clear()
        server = experiment.advance(progress, plan)
        experiment.runtime.commit()
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


def _experiment(parts: Parts, config: Config, runtime: Runtime, account: PrivacyAccount, run_name: str) -> Experiment:
    """As a session makes it."""
    rounds = config.rounds or MOST_ROUNDS
    return Experiment(
        planner=Planner(parts.algorithm, parts.setting, parts.setting.weights, config.seed),
        runtime=runtime,
        account=account,
        rounds=rounds,
        expected_rounds=rounds,
        run_name=run_name,
        evaluations=Evaluations(rounds, rounds),
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


# What was seen


class _Measured:
    """Scores and noise of the canary silos, in units of the noise that is claimed.

    The claim is computed here from the configuration's numbers, not asked of the code that makes the noise:
    standard deviation sigma 2C / b where records are replaced and sigma C / b where one is added or removed, with
    b = rate n; at silo level without the b. Where clipping norms are adapted, C is that of each release, and sigma is
    larger by as much as the count of gradients within C costs.
    """

    def __init__(
        self,
        rules: PrivacyRules,
        planting: Planting,
        silos: Sequence[int],
        num_records: Sequence[int],
        found: Sequence[Response],
    ) -> None:
        self._planting, self._rules = planting, rules
        self._sigma = rules.release(1.0).noise_multiplier
        self.noisy = self._sigma > 0
        self.scores = np.zeros(planting.num_canaries)
        self._chance = np.zeros(planting.num_canaries)  # variance that the batches add to a score
        self._quiet: list[Array] = []
        self._names = [response.names for response in found]
        expected = []
        for silo, records, response in zip(silos, num_records, found, strict=True):
            rate = rules.sampler.rate(records) if rules.unit == "record" else 1.0
            sigma = self._sigma * self._grown(rate * records)
            seen = response.innovations(self._claimed_std(sigma, rate * records))
            size = float(np.linalg.norm(response.mean))
            own = planting.of(silo)
            if size > 0:
                self.scores[own] = response.mean / size @ seen[:, own]
            self._quiet.append(seen[:, planting.num_canaries :])
            if self.noisy:
                replaced = self._sensitivity
                present = np.ones(len(own)) if replaced == 2.0 else planting.bits[own].astype(float)
                self._chance[own] = present * rate * (1 - rate) / (replaced * sigma) ** 2
                expected += [rate * size / sigma] * len(own)
        self._expected = float(np.mean(expected)) if expected else None

    @property
    def _sensitivity(self) -> float:
        return 2.0 if self._rules.neighbouring == "replace_one" else 1.0

    def _grown(self, batch: float) -> float:
        """z_g / z: how much larger the noise of a gradient is for the sake of a count."""
        clipping = self._rules.clipping
        if not self.noisy or not clipping.adapts:
            return 1.0
        return 1 / math.sqrt(1 - clipping.bit_weight(self._sigma, batch, self._sensitivity / 2) ** 2)

    def _claimed_std(self, sigma: float, batch: float) -> float:
        if not self.noisy:
            return 1.0
        return sigma * self._sensitivity * self._rules.clip_norm / (batch if self._rules.unit == "record" else 1.0)

    def results(self, delta: float, strict_delta: float) -> dict[str, Any]:
        bits, scores = self._planting.bits, self.scores
        mu = statistics.separation(scores, bits, CONFIDENCE / 2)
        strict = statistics.separation(scores, bits, FALSE_ALARM)
        noise = np.concatenate([seen.ravel() for seen in self._quiet]) if self.noisy else np.zeros(0)
        spread = self._spread() if self.noisy else None

        def epsilon(mu: float) -> float:
            return statistics.gaussian_epsilon(mu, delta)

        def size(values: Array, freedom: int, false_alarm: float) -> Interval | None:
            return statistics.spread(values, freedom, false_alarm) if freedom > 0 else None

        return {
            "epsilon_bound": statistics.one_run_bound(scores, bits, delta, CONFIDENCE),
            "strict_bound": statistics.one_run_bound(scores, bits, strict_delta, FALSE_ALARM),
            "separation": mu,
            "expected": self._expected,
            "gaussian": None if mu is None else mu.map(epsilon),
            "gaussian_strict": None if strict is None else epsilon(strict.low),
            "noise": size(noise, len(noise), CONFIDENCE),
            "noise_strict": size(noise, len(noise), FALSE_ALARM),
            "spread": None if spread is None else size(*spread, CONFIDENCE),
            "spread_strict": None if spread is None else size(*spread, FALSE_ALARM),
            "between_silos": self._between_silos(),
            "between_rounds": self._between_rounds(),
            "normality": statistics.normality(noise[:MOST_NORMALS]) if len(noise) else None,
            "scores": scores,
        }

    def _spread(self) -> tuple[Array, int] | None:
        """Scores around the means of their groups (silo and bit), in claimed standard deviations; and their freedom."""
        planting, residuals, freedom = self._planting, [], 0
        for silo, bit in itertools.product(np.unique(planting.silo), (False, True)):
            group = (planting.silo == silo) & (planting.bits == bit)
            if group.sum() >= 2:
                values = self.scores[group] / np.sqrt(1 + self._chance[group])
                residuals.append(values - values.mean())
                freedom += int(group.sum()) - 1
        return (np.concatenate(residuals), freedom) if freedom >= FEW else None

    def _between_silos(self) -> Correlation:
        """Of two silos' noise at the same places, over all rounds."""
        found = []
        if self.noisy:
            for i, j in itertools.combinations(range(len(self._quiet)), 2):
                both = sorted(set(self._names[i]) & set(self._names[j]))
                if both:
                    rows = [[self._names[s].index(name) for name in both] for s in (i, j)]
                    x, y = self._quiet[i][rows[0]], self._quiet[j][rows[1]]
                    found.append((statistics.correlation(x, y), x.size))
        return statistics.striking(found, FALSE_ALARM)

    def _between_rounds(self) -> Correlation:
        """Of the noise of two innovations (rounds, or different uploads of one), over all silos that made both."""
        if not self.noisy:
            return Correlation()
        names = sorted({name for own in self._names for name in own})
        place = {name: i for i, name in enumerate(names)}
        products, squares = np.zeros((len(names),) * 2), np.zeros((len(names),) * 2)
        counts = np.zeros((len(names),) * 2, dtype=int)
        for own, seen in zip(self._names, self._quiet, strict=True):
            at = np.ix_(*([[place[name] for name in own]] * 2))
            products[at] += seen @ seen.T
            squares[at] += np.square(seen).sum(axis=1)[:, None]
            counts[at] += seen.shape[1]
        i, j = np.triu_indices(len(names), 1)
        some = squares[i, j] * squares[j, i] > 0
        i, j = i[some], j[some]
        r = products[i, j] / np.sqrt(squares[i, j] * squares[j, i])
        return statistics.striking(list(zip(r.tolist(), counts[i, j].tolist(), strict=True)), FALSE_ALARM)


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
        rate = rules.sampler.rate(num_records[charge.silo]) if rules.unit == "record" else 1.0
        release = charge.release
        meant = release.unit == rules.unit and release.neighbouring == rules.neighbouring
        whole = charge.share == (0.0, 1.0)  # other rounds are refused; disjoint parts would compose in parallel
        if meant and whole and release.noise_multiplier <= sigma and release.rate >= rate * (1 - 1e-9):
            charged[charge.round, charge.silo] += charge.count
    made = {(t, silo): count for t, count in enumerate(releases) for silo in participants[t]}
    return sum(max(0, count - charged[where]) for where, count in made.items())


# The verdict


def _judged(report: Report, missing: int, *, adapts: bool) -> Report:
    notes = []
    if report.unit == "silo":
        notes.append(
            f"at silo level a silo is one canary, so {report.canaries} bits decide: they can show little, "
            "and the noise is better evidence."
        )
    if adapts:
        notes.append(
            "the noise on the counts that clipping norms follow is part of the claim, but does not show in uploads: "
            "it is not tried here."
        )
    if report.separation is None:
        notes.append("too few canaries for two groups of scores: no Gaussian estimate. Use more --canaries or --silos.")
    if report.epsilon is None:
        notes.append("this configuration claims no epsilon, so that nothing can contradict it.")
        return replace(report, notes=tuple(notes))
    return replace(report, violations=tuple(_violations(report, missing)), notes=tuple(notes))


def _violations(report: Report, missing: int) -> list[str]:
    epsilon, found = report.epsilon, []
    assert epsilon is not None
    if report.strict_epsilon is not None and report.strict_bound > report.strict_epsilon:
        found.append(
            f"epsilon at delta {report.strict_delta:g} is at least {report.strict_bound:.2f}, and the accountant says "
            f"{report.strict_epsilon:.2f}"
        )
    if report.gaussian_strict is not None and report.gaussian_strict > epsilon:
        found.append(
            f"the canaries' scores are as far apart as an epsilon of {report.gaussian_strict:.2f} or more makes them, "
            f"and the accountant says {epsilon:.2f}"
        )
    noise = report.noise_strict
    if noise is not None and (noise.high < 1 - NOISE_MARGIN or noise.low > 1 + NOISE_MARGIN):
        found.append(f"the noise in the uploads is {noise.estimate:.3f} times what independent claimed noise would be")
    spread = report.spread_strict
    if spread is not None and spread.low > 1 + SPREAD_MARGIN:
        found.append(
            f"scores of alike canaries are spread {spread.estimate:.2f} times as far as fresh batches would spread them"
        )
    for correlation, what in ((report.between_silos, "silos"), (report.between_rounds, "rounds")):
        if correlation.largest > correlation.threshold:
            found.append(f"the noise of two {what} is correlated: |r| = {correlation.largest:.2f}")
    runs = report.between_runs
    if runs.largest > runs.threshold:
        found.append(
            "two runs that differ in a bit of their model, or of a record, have the same noise: "
            f"|r| = {runs.largest:.2f}"
        )
    if report.normality is not None and report.normality < FALSE_ALARM:
        found.append(f"the noise is not normal (p = {report.normality:.0e})")
    if report.influence is not None and report.influence > 1 + CLIP_MARGIN:
        found.append(f"one record changes a clipped sum by {report.influence:.3f} clipping norms")
    if report.worst_pair is not None and report.worst_pair > 1 + SUM_SLACK:
        found.append(
            f"by rounding, one record moves a sum by {report.worst_pair:.4f} of the sensitivity, and "
            f"{1 + SUM_SLACK:.4f} is charged"
        )
    if missing:
        found.append(f"{missing} of {report.made} releases are not in the ledger, or not as what they were")
    return found
