"""What is known of an outcome without features, from counts: a record counts once, for the code of its label.

Codes are classes and levels themselves; of a regression 32 equal parts of its range, and of counts those of counts for
an exposure of 1; of survival the bin in which somebody was last seen, twice: for those who were censored, and for those
who had the event then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.late import torch

if TYPE_CHECKING:
    from torch import Tensor

PARTS: Final = 32  # of a regression's range
COUNTED: Final = ("classes", "ordinal", "regression", "counts", "survival")
IN_PARTS: Final = ("regression", "counts")


def num_codes(outcome: Outcome, num_classes: int) -> int:
    """How many codes labels have."""
    return {"regression": PARTS, "counts": PARTS, "survival": 2 * len(outcome.edges)}.get(outcome.kind, num_classes)


def codes_of(outcome: Outcome, labels: Tensor) -> Tensor:
    """(n,) int64 code of each of the ``labels`` (n, ...); negative where there is none."""
    if outcome.has_classes:
        return labels
    there = ~labels.isnan().reshape(len(labels), -1).any(dim=1)
    if outcome.kind in IN_PARTS:
        low, high = outcome.range or (0.0, 1.0)
        values = labels.double() if labels.dim() == 1 else labels[:, 0].double() / labels[:, 1].double()
        codes = ((values - low) / (high - low) * PARTS).nan_to_num().long().clamp(0, PARTS - 1)
    else:
        times = labels[:, 0].contiguous().nan_to_num()
        edges = torch.tensor(outcome.edges, dtype=times.dtype, device=times.device)
        codes = torch.searchsorted(edges, times).clamp(max=len(edges) - 1) + len(edges) * (labels[:, 1] > 0)
    return torch.where(there, codes, torch.full_like(codes, -1))


def mean_of(shares: Sequence[float]) -> float:
    """From the shares of parts of a range: -1 to 1 as that."""
    return min(max(sum(share * (2 * (part + 0.5) / PARTS - 1) for part, share in enumerate(shares)), -1.0), 1.0)


def hazards_of(outcome: Outcome, shares: Sequence[float]) -> list[float]:
    """Of survival, from the shares of its codes: the probability of an event in each bin, if there was none before.

    Whoever is censored in a bin counts for half of it. Not 0 and not 1, so that its logarithms are numbers.
    """
    bins, hazards = len(outcome.edges), []
    left = sum(shares)
    for number in range(bins):
        censored, events = shares[number], shares[bins + number]
        hazards.append(min(max(events / max(left - censored / 2, 1e-12), 1e-6), 1 - 1e-6))
        left -= censored + events
    return hazards
