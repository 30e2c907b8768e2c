"""Statistics of columns that are released, and the scaling of records that follows from them.

A column's values are between -1 and 1, the ends of its public range. Each record adds to a sum of numbers, of each
column a part of L2 norm 1 at most (`contributions`):

* mean: (x, x^2 - 1) and 0, or (0, 0) and 1 where the value is missing. ||(x, x^2 - 1)||^2 = 1 - x^2 (1 - x^2) <= 1.
  For two values x, y at a distance d, |x + y| <= 2 - d, so that the parts are d sqrt(1 + (x + y)^2)
  <= d sqrt(1 + (2 - d)^2) <= 2 apart, for that grows with d up to d = 2. A missing value is sqrt(2) from any at most.
* quantiles: 1 in one of `BINS` bins, of equal width; nothing where the value is missing.
* counts: 1 for one of the categories; nothing where the value is missing.
* labels, and parts of a range of labels: 1 for the code of the record's label (`outcome_counts`); of which nothing
  follows that is done to features.

Two different bins or categories are sqrt(2) apart. A mean of such parts, as that of a person's records, is in their
convex hull, which has the same largest norm and the same diameter.

What is made of the noisy sums is post-processing: everybody may know the scaling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from dpfl_plugin.late import torch

if TYPE_CHECKING:
    from torch import Tensor


BINS: Final = 32
NORMAL: Final = 1.349  # interquartile range of a normal distribution, in standard deviations
LEAST: Final = 1e-3  # of a scale, in half ranges; a constant column becomes 0
FARTHEST: Final = 10.0  # what is farther from the centre, in scales, counts as that far

Statistic = Literal["mean", "quantiles", "counts", "labels", "parts"]
OF_LABELS: Final = ("labels", "parts")


@dataclass(frozen=True, slots=True)
class Measured:
    """A column, or the label, whose statistics are released.

    Attributes:
        name: of the column. first, width: which features are its values.
        missing: the place of the feature that is 1 where the value is missing; -1 for none.
        low, high: the public range that became -1 to 1. values: the categories.
    """

    name: str
    kind: Statistic
    first: int
    width: int = 1
    missing: int = -1
    low: float = -1.0
    high: float = 1.0
    values: tuple[str, ...] = ()

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Measured:
        """What JSON made of one."""
        return cls(**{**plain, "values": tuple(plain["values"])})

    @property
    def size(self) -> int:
        """Numbers that a record adds to."""
        if self.kind == "mean":
            return 2 + (self.missing >= 0)
        return BINS if self.kind == "quantiles" else len(self.values)


def contributions(features: Tensor, measured: Sequence[Measured], labels: Tensor | None = None) -> Tensor:
    """What each record adds to the sums: (n, D) float64, whatever the ``features`` (n, d) hold.

    Args:
        labels: (n,) codes of labels, where they are measured; negative where there is no record.
    """
    return torch.cat([_part(features, column, labels) for column in measured], dim=1)


def _part(features: Tensor, column: Measured, labels: Tensor | None) -> Tensor:
    if column.kind in OF_LABELS:
        assert labels is not None
        return _one_hot(labels.clamp(0, column.size - 1), column.size) * (labels >= 0).unsqueeze(1)
    if column.kind == "counts":
        codes, there = _categories(features, column)
        return _one_hot(codes, column.size) * there.unsqueeze(1)
    x = features[:, column.first].double().nan_to_num().clamp(-1.0, 1.0)
    there = torch.ones_like(x) if column.missing < 0 else (features[:, column.missing] <= 0.5).double()
    if column.kind == "quantiles":
        return _one_hot(((x + 1) * (BINS / 2)).long().clamp(0, BINS - 1), BINS) * there.unsqueeze(1)
    return torch.stack([x * there, (x.square() - 1) * there, 1 - there], dim=1)[:, : column.size]


def _one_hot(codes: Tensor, size: int) -> Tensor:
    return torch.nn.functional.one_hot(codes, size).double()


def _categories(features: Tensor, column: Measured) -> tuple[Tensor, Tensor]:
    """(category, whether there is one) of each record, as `dpfl_plugin.data.encode` writes them."""
    x = features[..., column.first : column.first + column.width]
    if column.width == 1:  # of two: 0, 1, and 1/2 where it is missing
        x = torch.cat([1 - x, x], dim=-1)
    return x.argmax(dim=-1), x.amax(dim=-1) > 0.75


@dataclass(frozen=True, slots=True)
class Scaling:
    """How records are scaled, and filled in, by released statistics.

    Attributes:
        centres, scales: of each measured column; of counts the number of the most frequent category, and 1.
        class_shares: {class: its share of the records}, in their order; {} where labels are not measured.
    """

    measured: tuple[Measured, ...]
    centres: tuple[float, ...]
    scales: tuple[float, ...]
    class_shares: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def class_weights(self) -> dict[str, float]:
        """Balanced ones, of each class in its loss: the inverse of its share.

        The largest is 1, so that no gradient becomes longer, and clipping cuts no more than without weights.
        """
        least = min(self.class_shares.values(), default=0.0)
        return {name: least / share for name, share in self.class_shares.items()}

    @classmethod
    def by(cls, measured: tuple[Measured, ...], sums: Tensor, count: float, noise: float) -> Scaling:
        """What follows from noisy ``sums`` (D,) over ``count`` records.

        Args:
            noise: standard deviation of the noise in each sum. A scale is at least the root of what it makes of a
                variance: what is smaller cannot be told from it.
        """
        parts = sums.double().split([column.size for column in measured])
        pairs = [(column, part.tolist()) for column, part in zip(measured, parts, strict=True)]
        columns = [(column, part) for column, part in pairs if column.kind not in OF_LABELS]
        shares = [_class_shares(column, part, noise) for column, part in pairs if column.kind in OF_LABELS]
        scalings = [_centre_and_scale(column, part, count, noise) for column, part in columns]
        centres, scales = (tuple(pair[place] for pair in scalings) for place in (0, 1))
        return cls(tuple(column for column, _ in columns), centres, scales, *shares)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Scaling:
        """What JSON made of `plain`."""
        measured = tuple(Measured.of(column) for column in plain["measured"])
        return cls(measured, tuple(plain["centres"]), tuple(plain["scales"]), plain.get("class_shares", {}))

    def plain(self) -> dict[str, Any]:
        """As plain values, the same when they come back from JSON."""
        measured = [{**asdict(column), "values": list(column.values)} for column in self.measured]
        shares = {"class_shares": dict(self.class_shares)} if self.class_shares else {}
        return {"measured": measured, "centres": list(self.centres), "scales": list(self.scales), **shares}

    def statistics(self) -> dict[str, dict[str, Any]]:
        """The statistics of each column, in its own unit; shares of the classes as one more."""
        statistics: dict[str, dict[str, Any]] = {"class_shares": dict(self.class_shares)} if self.class_shares else {}
        for column, centre, scale in zip(self.measured, self.centres, self.scales, strict=True):
            if column.kind == "counts":
                statistics[column.name] = {"most_frequent": column.values[int(centre)]}
                continue
            half = (column.high - column.low) / 2
            keys = ("mean", "std") if column.kind == "mean" else ("median", "interquartile_range")
            width = half * scale * (1 if column.kind == "mean" else NORMAL)
            statistics[column.name] = {keys[0]: column.low + half * (centre + 1), keys[1]: width}
        return statistics

    def __call__(self, features: Tensor) -> Tensor:
        """Scaled ``features`` (..., d); a missing value becomes the centre, which is 0, or the most frequent one."""
        out = features.clone()
        for column, centre, scale in zip(self.measured, self.centres, self.scales, strict=True):
            if column.kind == "counts":
                place = slice(column.first, column.first + column.width)
                there = _categories(features, column)[1].unsqueeze(-1)
                usual = [centre] if column.width == 1 else [float(code == centre) for code in range(column.width)]
                out[..., place] = torch.where(there, features[..., place], features.new_tensor(usual))
                continue
            x = ((features[..., column.first] - centre) / scale).clamp(-FARTHEST, FARTHEST)
            if column.missing >= 0:
                x = torch.where(features[..., column.missing] > 0.5, torch.zeros_like(x), x)
            out[..., column.first] = x
        return out


def _class_shares(column: Measured, counts: list[float], noise: float) -> dict[str, float]:
    """Of each code. A class counts at least what the noise could make of nothing, so that no share is 0; parts of a
    range count as they are, so that their mean has no bias."""
    least = counts if column.kind == "parts" else [max(1.0, noise, count) for count in counts]
    total = max(1.0, sum(least))
    return {name: count / total for name, count in zip(column.values, least, strict=True)}


def _centre_and_scale(column: Measured, sums: list[float], count: float, noise: float) -> tuple[float, float]:
    if column.kind == "counts":
        return float(sums.index(max(sums))), 1.0
    if column.kind == "quantiles":
        low, median, high = (2 * share_below(sums, share) - 1 for share in (0.25, 0.5, 0.75))
        return median, _between((high - low) / NORMAL, LEAST, 1.0)
    there = max(1.0, count - (sums[2] if len(sums) == 3 else 0.0))
    mean = _between(sums[0] / there, -1.0, 1.0)
    variance = sums[1] / there + 1 - mean**2
    return mean, math.sqrt(_between(variance, min(1.0, max(LEAST**2, noise / there)), 1.0))


def _between(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def share_below(counts: Sequence[float], share: float) -> float:
    """Where so much of noisy ``counts`` of bins is below, from 0 to 1, linearly within a bin."""
    below, most, total = [0.0], 0.0, 0.0
    for number in counts:
        total += number
        most = max(most, total)  # noise makes sums fall
        below.append(most)
    if most <= 0:  # noise alone: the range as it is
        return share
    place = next(bin for bin in range(len(counts)) if below[bin + 1] >= share * most)
    width = below[place + 1] - below[place]
    return (place + ((share * most - below[place]) / width if width > 0 else 0.5)) / len(counts)
