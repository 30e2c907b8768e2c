"""What every silo releases beside the rounds of its algorithm: statistics of columns at first, validation scores, and a
model of its own at the end.

All of it is planned before the run and at every silo. Budgets and calibration reserve the whole plan from the first
round on, so that a run which spends its budget on rounds has what its last release costs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from dpfl_plugin.privacy.composition import Planned, ReleasesBySilo, Share, shares_by_interval
from dpfl_plugin.privacy.events import Charge, ChargeKind, Term
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.scores import Scores

ExtraKind = Literal["statistics", "score", "personalise"]
WHOLE: Final[Share] = (0.0, 1.0)
NOT_RUN: Final = "not-run"  # how the noise_id of what is charged and was not released begins


@dataclass(frozen=True, slots=True)
class ExtraPlan:
    """The plan of a run.

    Attributes:
        last: the round number of the models of the silos' own: T.
        scores: how scores are released; None for none. num_scores: how many each silo makes.
        local_steps: private gradients of a silo's own model; 0 for none.
        statistics: noise multiplier of each silo's statistics of columns; None for none.
    """

    last: int
    scores: Scores | None = None
    num_scores: int = 0
    local_steps: int = 0
    statistics: float | None = None

    def __bool__(self) -> bool:
        return bool(self.kinds)

    @property
    def training(self) -> Share:
        """The part of each silo's records that gradients may read."""
        return WHOLE if self.scores is None else self.scores.training

    def guessed_kind(self, round: int, share: Share) -> ChargeKind:
        """What a charge was for, of a ledger of an earlier version, whose lines do not say it."""
        if self.scores is not None and share == self.scores.share:
            return "score"
        return "personalise" if self.local_steps and round >= self.last else "round"

    def planned(self, kind: ExtraKind, rules: PrivacyRules, num_records: int) -> tuple[Planned, int]:
        """(one charge, how many of them) at a silo."""
        if kind == "statistics":
            assert self.statistics is not None
            noisy = Gaussian(self.statistics).event("full", 1.0, rules.neighbouring, rules.unit)
            return Planned(noisy, 1, self.training), 1
        if kind == "score":
            assert self.scores is not None
            return Planned(self.scores.release(rules.neighbouring, rules.unit), 1, self.scores.share), self.num_scores
        levels = rules.noise_levels(self.last, self.local_steps)
        ((release, count),) = rules.pattern(num_records, self.training, levels)  # one: noise that changes is refused
        return Planned(release, count, self.training), 1

    @property
    def kinds(self) -> tuple[ExtraKind, ...]:
        planned: dict[ExtraKind, bool] = {
            "statistics": self.statistics is not None,
            "score": self.scores is not None,
            "personalise": self.local_steps > 0,
        }
        return tuple(kind for kind, is_planned in planned.items() if is_planned)


class ExtraReleases:
    """What silos released beside the rounds of a run, together with what is planned of it.

    Args:
        num_records: of each silo.
    """

    def __init__(self, plan: ExtraPlan, rules: PrivacyRules, num_records: tuple[int, ...]) -> None:
        self.plan, self._rules, self._num_records = plan, rules, num_records
        # round -> name of noise -> silos, of each kind of release.
        self._made: dict[ExtraKind, defaultdict[int, defaultdict[str, set[int]]]]
        self._made = {kind: defaultdict(lambda: defaultdict(set)) for kind in plan.kinds}
        self._least: dict[ExtraKind, float] = {}  # noise multiplier that a charge beside the rounds had

    def note(self, kind: ExtraKind, charge: Charge, silos: Iterable[int]) -> None:
        """Count a charge of this kind of each of ``silos``; one that is known already counts once."""
        self._made[kind][charge.round][charge.noise_id].update(silos)
        noise = charge.release.noise_multiplier
        self._least[kind] = min(noise, self._least.get(kind, noise))

    def was_released(self, kind: ExtraKind, silo: int, round: int, noise_id: str) -> bool:
        """Whether a release beside the rounds was charged."""
        made = self._made[kind]
        return round in made and silo in made[round].get(noise_id, ())

    def releases(self, *, ahead: bool, following: tuple[ExtraKind, int, str] | None = None) -> ReleasesBySilo:
        """What each silo released beside the rounds; with ``ahead``, and will have by the end.

        Every silo counts as if it had made all of them; one that was made again with fresh noise counts again, whoever
        made it, since which silos were lost meanwhile may depend on records.

        Args:
            following: what all silos are about to release, after which round, and the name of its noise.
        """
        counts: dict[ExtraKind, int] = {}
        for kind, made in self._made.items():
            releases = sum(map(len, made.values()))
            if following is not None and following[0] == kind and following[1] in made:
                releases += following[2] not in made[following[1]]
            planned = self.plan.planned(kind, self._rules, min(self._num_records))[1]
            counts[kind] = planned + releases - len(made) if ahead else releases
        of_size = {n: self._of_size(counts, n) for n in set(self._num_records)}
        return {silo: of_size[n] for silo, n in enumerate(self._num_records) if of_size[n]}

    def _of_size(self, counts: Mapping[ExtraKind, int], num_records: int) -> tuple[Planned, ...]:
        found = []
        for kind, count in counts.items():
            one, _ = self.plan.planned(kind, self._rules, num_records)
            # Noise that was solved for may be found a hair different on another machine: what was charged counts.
            noise = min(one.release.noise_multiplier, self._least.get(kind, math.inf))
            release = replace(one.release, noise_multiplier=noise)
            found += [replace(one, release=release, count=one.count * count)] if count else []
        return tuple(found)

    def scores_not_made(self, rounds: Iterable[int], noise_id: str) -> list[Charge]:
        """Charges of scores that were planned after so many ``rounds`` each, as if all silos had made them."""
        one, _ = self.plan.planned("score", self._rules, 1)
        return [
            Charge(round=t, silo=silo, release=one.release, count=1, share=one.share, noise_id=noise_id, kind="score")
            for t in rounds
            for silo in range(len(self._num_records))
        ]


def extra_terms(extra: ReleasesBySilo, silo: int, share: Share = WHOLE) -> list[list[Term]]:
    """What to compose with a silo's releases that read ``share``, in each elementary interval that it covers.

    At least one composition, which may be empty.
    """
    planned = extra.get(silo, ())
    if not planned:
        return [[]]
    intervals = shares_by_interval([share, *(one.share for one in planned)], planned[0].release.unit)
    return [
        [Term(release=one.release, count=one.count, rounds=1) for one in planned if one.share in covering]
        for covering in intervals
        if share in covering
    ]
