"""The keys of `tune:` in a configuration."""

from __future__ import annotations

import math
from typing import Any, Final

from pydantic import Field

from dpfl_plugin.config.blocks import Strict
from dpfl_plugin.config.scores import BOUND, MEASURE, SumMeasure

MOST_CANDIDATES: Final = 1000


class TuneConfig(Strict):
    """Candidates, and when they are compared: all that they release is charged to privacy.epsilon."""

    grid: dict[str, list[Any]] = Field(default={}, description="key.path: list of values")
    random: dict[str, tuple[float, float]] = Field(
        default={}, description="key.path: [low, high], drawn log-uniformly; needs candidates"
    )
    candidates: int | None = Field(
        default=None, ge=2, le=MOST_CANDIDATES, description="so many draws; left out: all combinations of grid"
    )
    seed: int = Field(default=0, ge=0, description="of the draws of candidates; it is public")
    rungs: list[int] = Field(min_length=1, description="rounds after which candidates are compared, ascending")
    eta: int = Field(
        default=3, ge=2, description="one in so many candidates goes on from a rung; from the last one does"
    )
    share: float = Field(
        default=0.1, gt=0, lt=1, description="of a silo's training records, scored and never trained on"
    )
    measure: SumMeasure | None = Field(default=None, description=MEASURE)
    bound: float | None = Field(default=None, gt=0, lt=math.inf, description=BOUND)

    @property
    def score(self) -> dict[str, Any]:
        """``measure`` and ``bound``, where they are given."""
        return {key: value for key in ("measure", "bound") if (value := getattr(self, key)) is not None}

    def left(self, candidates: int) -> tuple[int, ...]:
        """How many candidates each rung compares."""
        return tuple(max(1, -(-candidates // self.eta**rung)) for rung in range(len(self.rungs)))
