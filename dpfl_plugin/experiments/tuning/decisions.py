"""Who goes on from a rung: decided once, by scores, and on disk before the next place on the plan begins.

Whatever ends a tuning, and whatever becomes of a candidate later, nothing is decided anew: a candidate that was left
behind stays there, and one that fails later keeps the place that its scores gave it before. A candidate that fails
before it releases a score ranks last at that rung. So that a candidate failed is seen, beside scores. It may depend on
records, and no epsilon covers it: `tuning.statement` says which did.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.config.schema import Config
from dpfl_plugin.config.tune import Candidate
from dpfl_plugin.errors import DataError
from dpfl_plugin.runs.folder import RunFolder, locked, to_json

DECISIONS: Final = "decisions.json"
SCHEMA: Final = 1
LOCK: Final = ".lock"


@dataclass(frozen=True, slots=True)
class Standing:
    """A candidate and what it released so far.

    Attributes:
        scores: (round, mean over silos of noisy shares of right answers).
        noise_std: standard deviation of the noise in each.
        status: of its run; None before it began.
        rounds: that it made; paused: whether it stands there because a rung is there.
    """

    candidate: Candidate
    config: Config
    scores: tuple[tuple[int, float], ...] = ()
    noise_std: float | None = None
    status: str | None = None
    reason: str = ""
    rounds: int = 0
    paused: bool = False

    def score(self, after: int) -> float:
        """After so many rounds; -inf where it made none: it failed, or a crash lost it and the budget has no room."""
        return dict(self.scores).get(after, -math.inf)

    def failed_before_score(self, after: int) -> bool:
        """Whether it failed before it released its score after so many rounds, and no later."""
        return self.status == "failed" and self.rounds <= after and self.score(after) == -math.inf

    def reached(self, until: int | None) -> bool:
        """Whether nothing is left to do of it up to there."""
        ended = self.status in ("done", "budget_exhausted", "failed")
        return ended or (until is not None and self.paused and self.rounds >= until)


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided at a rung; candidates are named by their index.

    Attributes:
        after: how many rounds; ranking: who was compared, the best first; failed: who of them failed before it released
            a score; goes_on: who does, none of those that failed.
    """

    after: int
    ranking: tuple[int, ...]
    failed: tuple[int, ...]
    goes_on: tuple[int, ...]

    @property
    def left_behind(self) -> tuple[int, ...]:
        """The best first."""
        return tuple(one for one in self.ranking if one not in self.goes_on)


def decide(compared: Sequence[Standing], after: int, places: int) -> Decision:
    """Who goes on: by score; of equals the first; without a score last, and behind all whoever failed.

    Args:
        places: how many go on at most.
    """
    ranked = sorted(compared, key=lambda one: (-one.score(after), one.failed_before_score(after)))
    failed = tuple(one.candidate.index for one in ranked if one.failed_before_score(after))
    ranking = tuple(one.candidate.index for one in ranked)
    return Decision(after, ranking, failed, tuple(one for one in ranking if one not in failed)[:places])


def read(out: Path, tuning: str) -> dict[int, Decision]:
    """What was decided in the folder of a tuning, by round; of one that an earlier version began, nothing yet.

    Args:
        tuning: its id.

    Raises:
        DataError: the file cannot be read, or is another tuning's.
    """
    path = out / DECISIONS
    try:
        found = json.loads(path.read_text())
        if (found["schema"], found["tuning"]) != (SCHEMA, tuning):
            raise ValueError("it is of another tuning")
        decisions = [
            Decision(int(one["after"]), *(tuple(map(int, one[key])) for key in ("ranking", "failed", "goes_on")))
            for one in found["decisions"]
        ]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error}. Restore it from a copy, or use another folder.") from error
    return {one.after: one for one in decisions}


def keep(folder: RunFolder, tuning: str, decision: Decision, compared: Sequence[Standing]) -> Decision:
    """Have a decision on disk; returns the one that stands, which another process may have made meanwhile.

    Raises:
        DataError: as `read`. BusyError: another process is writing.
    """
    taken = f"{folder.path}: another process ({{holder}}) is deciding here. Begin again."
    with locked(folder.path / LOCK, taken, other="out"):
        known = read(folder.path, tuning)
        if decision.after not in known:
            path = folder.path / DECISIONS
            before = json.loads(path.read_text())["decisions"] if known else []
            content = {"schema": SCHEMA, "tuning": tuning, "decisions": [*before, _as_dict(decision, compared)]}
            folder.write(path, to_json(content))
        return known.get(decision.after, decision)


def _as_dict(decision: Decision, compared: Sequence[Standing]) -> dict[str, Any]:
    """With the scores that it was made from, for people."""
    scores = {one.candidate.label: one.score(decision.after) for one in compared}  # -inf becomes null
    return {
        "after": decision.after,
        "ranking": list(decision.ranking),
        "failed": list(decision.failed),
        "goes_on": list(decision.goes_on),
        "scores": scores,
    }
