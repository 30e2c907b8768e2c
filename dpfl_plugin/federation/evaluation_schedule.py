"""After which rounds a run is evaluated: by counting work, so that the choice is the same on every machine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.core.shares import share_bounds
from dpfl_plugin.privacy.rules import PrivacyRules

EVALUATIONS: Final = 100  # about so many in a run, unless that is too much work, or the configuration says otherwise
MOST_IN_TAIL: Final = 50
SHARE: Final = 0.1  # of a run's work, at most, for evaluations that nobody asked for
# Multiply-adds of one pass forward: as many as parameters for each record, and for each call what it costs however few
# its records. A pass forward and backward is three passes.
CALL: Final = 300_000
LITTLE: Final = 100_000_000  # so much work in all, about a tenth of a second, is always done


@dataclass(frozen=True, slots=True)
class EvaluationSchedule:
    """Every so often, and in the last 10 % of rounds, whose mean is the number to report.

    Attributes:
        every: rounds between evaluations.
        last: the round that the run is expected to end with.
        in_tail: the most in the last 10 % of rounds, evenly spaced; the last round is always one.
        first: also after the first round, where curves begin.
        made: whether there are any, also where a run ends before its last round.
        may_end: whether a training loss that is not finite, which no epsilon covers, ends the run, as failed.
    """

    every: int
    last: int
    in_tail: int = MOST_IN_TAIL
    first: bool = False
    made: bool = True
    may_end: bool = True

    def due(self, rounds: int) -> bool:
        """Whether the model is evaluated after so many rounds."""
        if not self.made:
            return False
        tail = math.ceil(self.last / 10)
        in_tail = rounds > self.last - tail and (self.last - rounds) % math.ceil(tail / self.in_tail) == 0
        return rounds % self.every == 0 or in_tail or (self.first and rounds == 1)


def affordable(rounds: int, round_work: float, evaluation_work: float) -> EvaluationSchedule:
    """As many evaluations as are a tenth of the run's work, or little work; `EVALUATIONS` and the tail at most.

    Args:
        rounds: expected; round_work, evaluation_work: of one, in the same unit.
    """
    training = rounds * round_work
    budget = max(training * SHARE / (1 - SHARE), LITTLE)
    most = max(1, math.floor(budget / evaluation_work))
    if most >= rounds:
        return EvaluationSchedule(max(1, rounds // EVALUATIONS), rounds, first=True)
    in_tail = max(1, min(MOST_IN_TAIL, math.ceil(rounds / 10), most // 2))
    rest = most - in_tail
    every = max(1, rounds // EVALUATIONS, math.ceil(rounds / rest) if rest else rounds)
    # The first round's is among them: where every so often makes all of the rest, the last one is in the tail, too.
    return EvaluationSchedule(every, rounds, in_tail, first=rest > 0)


def evaluation_work(num_train: Iterable[int], num_test: Iterable[int], dimension: int, dissimilarity: bool) -> float:
    """Multiply-adds of an evaluation of all silos: a pass forward over all records; with gradients, theirs as well."""
    passes = 4 if dissimilarity else 1
    train, test = list(num_train), list(num_test)
    return float(dimension * (passes * sum(train) + sum(test)) + CALL * (1 + passes) * len(train))


def round_work(
    plans: Sequence[RoundPlan], rules: PrivacyRules, num_train: Sequence[int], participants: int, dimension: int
) -> float:
    """Multiply-adds of a round, the mean over ``plans``: private gradients, each a pass forward and backward."""
    work = 0.0
    for plan in plans:
        silos = len(num_train) if plan.participation == "all" else participants
        records = 0.0
        for count, alike in Counter(num_train).items():
            first, last = share_bounds(plan.share, count)
            records += alike * rules.sampler.divisor(last - first)
        mean_batch = records / len(num_train)
        work += 3 * silos * plan.num_gradients * (dimension * mean_batch + CALL)
    return work / len(plans)
