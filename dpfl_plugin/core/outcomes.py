"""What is to be predicted: the kind of a label and the public facts that a loss and a measure need of it.

Ranges, levels, names and time bins are public: they come from the configuration, never from records.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

OutcomeKind = Literal["classes", "ordinal", "regression", "counts", "multi_label", "survival"]
KINDS: Final[tuple[str, ...]] = get_args(OutcomeKind)
BINS: Final = 10
"""Of survival, where the configuration does not say."""
HUBER_SHARE: Final = 0.1
"""Of a regression's range: delta of the Huber loss, where the configuration does not say."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A kind of label.

    Attributes:
        kind: classes: int64 [n] in 0..K - 1. ordinal: the same, least first. regression: float32 [n] within ``range``.
            counts: float32 [n, 2], count and exposure. multi_label: float32 [n, k] of 0 and 1. survival: float32
            [n, 2], time and 1 for an event, 0 where it was censored then.
        range: the least and the largest label: of regression; of counts and of times from 0.
        edges: of survival, where the bins of time end; the last is the end of the range.
        huber_delta: of regression, in the label's unit: where the Huber loss becomes linear.
    """

    kind: OutcomeKind = "classes"
    range: tuple[float, float] | None = None
    edges: tuple[float, ...] = ()
    huber_delta: float | None = None

    @property
    def has_classes(self) -> bool:
        """Whether labels are numbers of classes."""
        return self.kind in ("classes", "ordinal")

    @property
    def score(self) -> str:
        """The measure that runs are ranked by: always defined, at silos of a single record, too."""
        return _SCORES[self.kind]

    @property
    def higher_is_better(self) -> bool:
        return higher_is_better(self.score)

    @property
    def half_range(self) -> float:
        """Of a regression: labels are scaled from their range to [-1, 1] for its loss."""
        assert self.range is not None
        return (self.range[1] - self.range[0]) / 2

    @property
    def middle(self) -> float:
        assert self.range is not None
        return (self.range[1] + self.range[0]) / 2

    def num_outputs(self, names: int) -> int:
        """How many outputs a model has, for an outcome of so many classes or labels."""
        return {"regression": 1, "counts": 1, "survival": len(self.edges)}.get(self.kind, names)

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Outcome:
        """From `plain`."""
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
        return cls(**values)

    @classmethod
    def of_result(cls, result: Mapping[str, Any]) -> Outcome:
        """Of a run by its `result.json`; those of earlier versions had classes."""
        found = result.get("outcome")
        return cls() if found is None else cls.of(found)


CLASSES: Final = Outcome()
_SCORES: Final[dict[str, str]] = {
    "classes": "accuracy",
    "ordinal": "mae",
    "regression": "rmse",
    "counts": "deviance",
    "multi_label": "brier",
    "survival": "deviance",
}


ACCURACY: Final = "test_accuracy"
OF_SILOS: Final = ", mean of silos"
"""After the name of a measure that is not of all test records together."""
_LOWER: Final = frozenset(
    {"loss", "log_loss", "mae", "rmse", "deviance", "brier", "gradient_dissimilarity", "clipped_share"}
)


def higher_is_better(name: str) -> bool:
    """Whether a larger value of a measure, or of a metric of an evaluation (test_rmse, train_loss), is better; of a
    name that is not known it is taken to be."""
    return re.sub("^(test|train|personalised)_", "", name.removesuffix(OF_SILOS)) not in _LOWER


_BEST: Final = {"calibration_in_the_large": 0.0, "predicted_observed_ratio": 1.0}
"""Measures of which neither a larger nor a smaller value is better."""


def shortfall(name: str, value: float) -> float:
    """A number that is the smaller the better this value of a measure, or of a metric of an evaluation, is."""
    best = _BEST.get(name.removesuffix(OF_SILOS))
    if best is not None:
        return abs(value - best)
    return -value if higher_is_better(name) else value


_SHARES: Final = frozenset(
    {"accuracy", "balanced_accuracy", "subset_accuracy", "auc", "pr_auc", "f1", "sensitivity", "specificity"}
    | {"precision", "brier", "c_index"}
)


def measure_range(name: str) -> tuple[float | None, float | None]:
    """The least and the largest value that a measure or a metric of an evaluation can have; None for no bound."""
    base = re.sub("^(test|train|personalised)_", "", name.removesuffix(OF_SILOS))
    if base in _SHARES:
        return 0.0, 1.0
    if base in _BEST:
        return (-1.0, 1.0) if _BEST[base] == 0 else (0.0, None)
    return (0.0, None) if base in _LOWER else (None, None)


def score_key(line: Mapping[str, Any]) -> str:
    """The key of an evaluation, or a result, that runs are ranked by: test_accuracy, or say test_rmse."""
    others = (key for key in line if key.startswith("test_") and not key.endswith("_of_silos") and key != ACCURACY)
    return next(others, ACCURACY)


def bins_of(within: tuple[float, float], bins: int | list[float] | None) -> tuple[float, ...]:
    """Where bins of time end: so many of one length, or where a list says.

    Raises:
        ValueError: the list is not increasing within the range, or does not end with it.
    """
    end = within[1]
    if not isinstance(bins, list):
        count = BINS if bins is None else bins
        if count < 1:
            raise ValueError(f"bins={count}: there must be one at least")
        return tuple(end * (number + 1) / count for number in range(count))
    edges = tuple(map(float, bins))
    increasing = all(a < b for a, b in zip((0.0, *edges), edges, strict=False))
    if not edges or not increasing or edges[-1] != end or not math.isfinite(end):
        raise ValueError(
            f"bins={bins!r} must say where bins end: increasing, above 0, and the last at the range's end, {end:g}"
        )
    return edges
