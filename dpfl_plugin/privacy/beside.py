"""What every silo releases beside the rounds of its algorithm: validation scores, and a model of its own at the end.

All of it is planned before the run and at every silo. Budgets and calibration reserve the whole plan from the first
round on, so that a run which spends its budget on rounds has what its last release costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from dpfl_plugin.privacy.composition import Planned, Share
from dpfl_plugin.privacy.events import ChargeKind
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.scores import Scores

Kind = Literal["score", "personalise"]
WHOLE: Final[Share] = (0.0, 1.0)
NOT_RUN: Final = "not-run"  # noise_id of what is charged and was not released


@dataclass(frozen=True, slots=True)
class Beside:
    """The plan of a run.

    Attributes:
        last: the round number of the models of the silos' own: T.
        scores: how scores are released; None for none. num_scores: how many each silo makes.
        local_steps: private gradients of a silo's own model; 0 for none.
    """

    last: int
    scores: Scores | None = None
    num_scores: int = 0
    local_steps: int = 0

    def __bool__(self) -> bool:
        return bool(self.scores or self.local_steps)

    @property
    def training(self) -> Share:
        """The part of each silo's records that gradients may read."""
        return WHOLE if self.scores is None else self.scores.training

    def guessed_kind(self, round: int, share: Share) -> ChargeKind:
        """What a charge was for, of a ledger of an earlier version, whose lines do not say it."""
        if self.scores is not None and share == self.scores.share:
            return "score"
        return "personalise" if self.local_steps and round >= self.last else "round"

    def planned(self, kind: Kind, rules: PrivacyRules, num_records: int) -> tuple[Planned, int]:
        """(one charge, how many of them) at a silo."""
        if kind == "score":
            assert self.scores is not None
            return Planned(self.scores.release(rules.neighbouring), 1, self.scores.share), self.num_scores
        levels = rules.noise_levels(self.last, self.local_steps)
        ((release, count),) = rules.pattern(num_records, self.training, levels)  # one: noise that changes is refused
        return Planned(release, count, self.training), 1

    @property
    def kinds(self) -> tuple[Kind, ...]:
        kinds: tuple[Kind, ...] = ("score",) if self.scores else ()
        return (*kinds, "personalise") if self.local_steps else kinds
