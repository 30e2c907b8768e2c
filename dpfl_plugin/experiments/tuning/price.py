"""What a tuning releases and costs, before it begins.

**Places.** With n_0 > n_1 > ... candidates before each rung, at rounds r_0 < r_1 < ..., a tuning makes a fixed list of
releases at every silo: private statistics once, if it has any; n_0 times rounds 1 to r_0 and n_0 scores, n_1 times
rounds r_0 + 1 to r_1 and n_1 scores, and at last once the rounds up to T and one score. Which candidate takes a place
is chosen by scores, which are releases; what a place releases is not: all candidates make the same releases, with the
same noise, in a round of the same number, which is checked here. All of them begin from the same statistics, which are
a release like those before any other.

**Claim.** All that the server sees, of all candidates, is dominated by the composition of this list. **Proof.** Given
all that was seen before, the next release is a Gaussian mechanism whose dominating pair is that of its place, whichever
candidate it is of. Dominating pairs of each place dominate the adaptive composition (Zhu, Dong, Wang 2022, Thm 10). []

A place that nobody takes, since candidates failed, releases nothing, which is less. That they failed is seen as well.
Where that follows from releases alone (a model that is not finite) the claim covers it, and where it follows from
records it does not: `tuning.statement` names all of them.

So it is a plain composition of a list that was fixed before the first release, and no filter or odometer is needed.
Only the choice of a configuration is adaptive. Scores read records that neither rounds nor statistics read; a record is
in one part, so that the dearer of both counts (`dpfl_plugin.privacy.scores`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.config.load import run_id
from dpfl_plugin.config.schema import Config
from dpfl_plugin.config.tune import Candidate, TuneFile
from dpfl_plugin.core.validation_scores import ValidationScore
from dpfl_plugin.data.base import Federation
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.privacy.calibration import least_noise, worst_epsilon
from dpfl_plugin.privacy.composition import Planned, Terms, compositions, undominated
from dpfl_plugin.privacy.costs import Pricing, RoundCost
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.runs.accounting import spec_of
from dpfl_plugin.runs.extra_plan import extra_plan, training_records
from dpfl_plugin.runs.forecast import Forecast, forecast
from dpfl_plugin.runs.models import validation_score
from dpfl_plugin.runs.records import federate

RUNS: Final = "runs"  # folder of the candidates' run folders, in that of the tuning


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise multipliers of each round, of each score and of the private statistics; None where none are released."""

    rounds: float
    scores: float
    statistics: float | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Rounds [first, last) that so many candidates make, and then one score each."""

    first: int
    last: int
    candidates: int


@dataclass(frozen=True, slots=True)
class Noisiest:
    """The silo that most of the noise in a score is of.

    Attributes:
        silo: its number; records: that it counts for a score; share: of the noise's variance, in (0, 1].
    """

    silo: int
    records: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a tuning costs.

    Attributes:
        places: in order; the last one is what only the winner does.
        noise: of all candidates.
        score: what a candidate's score is the mean of; score_std: standard deviation of the noise in it.
        noisiest: whose noise that is, most of all.
        epsilon: of everything; of_tuning: of all but the last place; of_rest: of the last place alone. At delta, for
            the server, of a silo in every round.
        without: noise multiplier of one run on the same budget without any tuning, on all records.
        planned: the compositions of everything, at the silos that it costs most.
        slots: everything that each silo releases.
    """

    places: tuple[Place, ...]
    noise: Noise
    score: ValidationScore
    score_std: float
    noisiest: Noisiest
    epsilon: float
    of_tuning: float
    of_rest: float
    delta: float
    without: float
    accountant: str
    planned: tuple[Terms, ...]
    slots: Mapping[int, tuple[Planned, ...]]

    @property
    def num_candidates(self) -> int:
        return self.places[0].candidates

    @property
    def rounds(self) -> int:
        """Rounds of all candidates together."""
        return sum((place.last - place.first) * place.candidates for place in self.places)

    @property
    def scores(self) -> int:
        """Scores of all candidates together, that each silo releases."""
        return num_scores(self.places)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        names = ("score_std", "epsilon", "of_tuning", "of_rest", "delta", "without", "accountant")
        return {
            "noise_multiplier": self.noise.rounds,
            "score_noise": self.noise.scores,
            "statistics_noise": self.noise.statistics,
            **{name: getattr(self, name) for name in names},
            "measure": self.score.measure,
            "bound": self.score.bound,
            "noisiest": asdict(self.noisiest),
            "num_candidates": self.num_candidates,
            "rounds": self.rounds,
            "scores": self.scores,
            "places": [asdict(place) for place in self.places],
        }


def num_scores(places: Iterable[Place]) -> int:
    """Of a silo: one of each candidate at each place."""
    return sum(place.candidates for place in places)


def places_of(file: TuneFile) -> tuple[Place, ...]:
    """What a tuning does, whoever wins."""
    assert file.config.rounds is not None
    left = (*file.spec.left(len(file.candidates)), 1)
    ends = (*file.rungs, file.config.rounds)
    return tuple(Place(*place) for place in zip((0, *ends[:-1]), ends, left, strict=True))


def configured(file: TuneFile, candidate: Candidate, noise: Noise | None, out: Path) -> Config:
    """The run of a candidate; noise: None where it is not known yet."""
    rounds = file.config.rounds
    scored: dict[str, Any] = {**file.spec.score, "share": file.spec.share, "at": [*file.rungs, rounds]}
    change: dict[str, Any] = {"private_evaluation": scored, "out": str(out / RUNS)}
    if noise is not None:
        change["privacy"] = {"noise_multiplier": noise.rounds}
        scored["noise_multiplier"] = noise.scores
        if noise.statistics is not None:
            change["private_statistics"] = {"noise_multiplier": noise.statistics}
    return file.configured(candidate, change).with_public_seed(file.config.public_seed)


def price(
    file: TuneFile,
    base: Path,
    out: Path,
    known: Noise | None = None,
    federation: Federation | None = None,
) -> Price:
    """What a tuning costs; its noise is the least with which everything fits ``privacy.epsilon``.

    Args:
        known: what it began with, which is not solved for again.

    Raises:
        ConfigError, DataError: the configuration or its records are wrong, or nothing fits the budget.
        UnsupportedError: candidates do not all release the same, or the outcome has no such measure.
    """
    federation = federate(file.config, base) if federation is None else federation
    score = _score(file, known, out, federation)
    places, privacy = places_of(file), file.config.privacy
    assert privacy.epsilon is not None
    first = forecast(configured(file, file.candidates[0], known, out), base, federation=federation)
    accountant = first.accountant
    score_noise = known.scores if known is not None else _least_of_scores(first, num_scores(places))
    costs = _costs_of_all(file, base, out, federation)
    ahead = first.changed(noise_multiplier=None)

    def slots(noise: float, some: tuple[Place, ...]) -> dict[int, tuple[Planned, ...]]:
        return _slots(ahead, costs, some, noise, score_noise)

    def composed(noise: float, some: tuple[Place, ...]) -> list[Terms]:
        kinds = dict(zip(ahead.num_records, slots(noise, some).values(), strict=True))
        return undominated([terms for planned in kinds.values() for terms in compositions(planned)])

    def epsilon(noise: float, some: tuple[Place, ...] = places) -> float:
        return worst_epsilon(accountant, composed(noise, some), privacy.delta)

    noise = known.rounds if known is not None else least_noise(epsilon, privacy.epsilon)
    share_std, noisiest = _score_noise(ahead, score_noise)
    return Price(
        places=places,
        noise=Noise(noise, score_noise, extra_plan(first.config, accountant).statistics),
        score=score,
        score_std=score.bound * share_std,
        noisiest=noisiest,
        epsilon=epsilon(noise),
        of_tuning=epsilon(noise, places[:-1]),
        of_rest=epsilon(noise, places[-1:]),
        delta=privacy.delta,
        without=forecast(file.config, base, federation=federation).noise(),
        accountant=accountant.name,
        planned=tuple(composed(noise, places)),
        slots=slots(noise, places),
    )


def _score(file: TuneFile, known: Noise | None, out: Path, federation: Federation) -> ValidationScore:
    """What scores are the mean of, which is the same for all candidates.

    Raises:
        UnsupportedError: the outcome, or a candidate's loss, has no such measure.
    """
    scores = {
        validation_score(configured(file, candidate, known, out), federation.outcome, federation.num_classes, "tune")
        for candidate in file.candidates
    }
    (score,) = scores
    assert score is not None
    return score


def _least_of_scores(ahead: Forecast, number: int) -> float:
    """The least noise multiplier with which all scores, which read other records than rounds, fit the budget."""
    privacy = ahead.config.privacy
    assert privacy.epsilon is not None

    def epsilon(noise: float) -> float:
        release = SampledGaussian(noise_multiplier=noise, sampler="full", rate=1.0, neighbouring="replace_one")
        return ahead.accountant.epsilon([Term(release=release, count=1, rounds=number)], privacy.delta)

    return least_noise(epsilon, privacy.epsilon)


def _score_noise(ahead: Forecast, score_noise: float) -> tuple[float, Noisiest]:
    """Standard deviation of the noise in a mean over silos of noisy shares, where all silos are there; and whose."""
    config, rules = ahead.config.with_score_noise(score_noise), ahead.rules(ahead.config, 1.0)
    scores = extra_plan(config, ahead.accountant).scores
    assert scores is not None
    std = scores.noise_multiplier * scores.sensitivity(rules.neighbouring)
    counts = [number - training_records(config, number) for number in ahead.num_records]
    variances = [(weight * std / count) ** 2 for weight, count in zip(ahead.setting.weights, counts, strict=True)]
    whole = math.fsum(variances)
    silo = max(range(len(counts)), key=lambda silo: variances[silo])
    return math.sqrt(whole), Noisiest(silo, counts[silo], variances[silo] / whole)


def _costs_of_all(file: TuneFile, base: Path, out: Path, federation: Federation) -> list[RoundCost]:
    """What each round costs, of any candidate, with noise multiplier 1.

    Raises:
        UnsupportedError: it is not the same for all; or rounds have no fixed length.
        ConfigError: two candidates are the same run.
    """
    assert file.config.rounds is not None
    known: dict[str, Candidate] = {}
    found: list[RoundCost] | None = None
    for candidate in file.candidates:
        config = configured(file, candidate, None, out)
        same = known.setdefault(run_id(config), candidate)
        if same is not candidate:
            raise ConfigError(f"{file.source}: tune: {candidate.label} is the same run as {same.label}. Leave one out.")
        ahead = forecast(config, base, federation=federation)
        costs = list(ahead.costs(file.config.rounds).values())
        if len(costs) < file.config.rounds or any(cost.most is not None for cost in costs):
            raise UnsupportedError(
                f"{file.source}: tune: rounds of {config.algorithm.name or config.algorithm.module} "
                f"({candidate.label}) have no fixed number or length, so that what is released is not known before. "
                "Fix algorithm.local_steps, or use another algorithm."
            )
        if found is not None and costs != found:
            raise UnsupportedError(
                f"{file.source}: tune: {candidate.label} releases other than {file.candidates[0].label} in its rounds. "
                "Which of them goes on would decide what is spent, and a composition that was chosen by what was "
                "released proves nothing. Let candidates differ in step sizes, clip_norm, l2 or the model, and find "
                "numbers of steps and batches on public data."
            )
        found = costs
    assert found is not None
    return found


def _slots(
    ahead: Forecast, costs: list[RoundCost], places: tuple[Place, ...], noise: float, score_noise: float
) -> dict[int, tuple[Planned, ...]]:
    """Everything that ``places`` release at each silo, which is in every round."""
    counted: Counter[RoundCost] = Counter()
    for place in places:
        for cost in costs[place.first : place.last]:
            counted[cost.scaled(noise)] += place.candidates
    config, rules = ahead.config, ahead.rules(ahead.config, noise)
    pricing = Pricing(spec_of(config, ahead.setting, ahead.num_records), rules, lost=False)
    planned = extra_plan(config.with_score_noise(score_noise), ahead.accountant)
    times = {"statistics": int(places[0].first == 0), "score": num_scores(places)}
    beside = [replace(planned.planned(kind, rules, 0)[0], count=times[kind]) for kind in planned.kinds if times[kind]]
    of_size: dict[int, tuple[Planned, ...]] = {}
    for silo, size in enumerate(ahead.num_records):
        if size not in of_size:
            rounds = [
                replace(one, count=one.count * number)
                for cost, number in counted.items()
                for one in pricing.planned(silo, cost)
            ]
            of_size[size] = (*rounds, *beside)
    return {silo: of_size[size] for silo, size in enumerate(ahead.num_records)}
