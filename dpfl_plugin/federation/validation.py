"""What silos count on the records that are set apart to be scored: right answers, or a histogram of scores by class.

A record adds 1 to one number; a person adds the shares of its records, in whole steps of `STEP`, 1 at most in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.losses import predict
from dpfl_plugin.gradients.persons import by_person
from dpfl_plugin.privacy.scores import STEP

# Records in one forward pass of an evaluation, at most: of large ones so few on a processor that what convolutions make
# of them, many times as much, stays near it. That takes a third less time, and memory that no budget has to foresee.
EVALUATION_CHUNK: Final = 8192
FEWEST: Final = 16
NUMBERS: Final = 2**18

Model = Callable[[Tensor], Tensor]


def outputs_of(model: Model, records: Records) -> Iterator[tuple[Tensor, Tensor]]:
    """(outputs, labels) of chunks of records, or of persons with theirs."""
    size = EVALUATION_CHUNK // max(1, records.labels[:1].numel())
    if records.features.device.type == "cpu":
        size = min(size, max(FEWEST, NUMBERS // max(1, records.features[:1].numel())))
    size = max(1, size)
    for first in range(0, len(records), size):
        chunk = records.between(first, min(first + size, len(records)))
        yield model(chunk.features), chunk.labels


def num_correct(model: Model, records: Records, outcome: Outcome) -> int:
    """How many classes, or levels, are predicted correctly."""
    found = outputs_of(model, records)
    return sum(int((_predicted(outputs, outcome) == labels).sum()) for outputs, labels in found)


def counted(model: Model, records: Records, outcome: Outcome, *, bins: int = 0, persons: bool = False) -> Tensor:
    """What is released of ``records`` once it has noise, float64.

    Args:
        bins: 0: (1,) how many are predicted correctly. Else (2 bins,): of two classes, how many records of the first
            have a score in each bin of `edges`, and then of the second.
        persons: records are persons, each with its own.
    """
    if not persons and not bins:
        return torch.tensor([float(num_correct(model, records, outcome))], dtype=torch.float64)
    total = torch.zeros(2 * bins or 1, dtype=torch.float64)
    for outputs, labels in outputs_of(by_person(model) if persons else model, records):
        rows = labels if persons else labels.unsqueeze(1)
        flat = outputs.flatten(0, 1) if persons else outputs
        real = rows >= 0
        if bins:
            cell = _bins(flat, bins).view(rows.shape) + bins * rows.clamp(min=0)
            weight = real
        else:
            cell = torch.zeros_like(rows)
            weight = _predicted(flat, outcome).view(rows.shape) == rows  # nothing predicts padding
        shares = torch.zeros(len(rows), len(total), dtype=torch.float64, device=rows.device)
        shares.scatter_add_(1, cell, weight.double() / real.sum(dim=1, keepdim=True))
        total += ((shares / STEP).floor_().sum(dim=0) * STEP).cpu()
    return total


def edges(bins: int) -> Tensor:
    """(bins - 1,) where bins of scores end: a fixed grid, whatever the records are. A score is the log-odds of the
    second class, or whatever else is above 0 where that is predicted; in terms of its sigmoid, bins have one length."""
    return torch.logit(torch.arange(1, bins, dtype=torch.float64) / bins)


def _bins(outputs: Tensor, bins: int) -> Tensor:
    """(n,) in which bin the scores of the second of two classes are; an edge is of the bin below it, so that with an
    even number of bins the upper half are those of which the second class is predicted."""
    z = outputs.reshape(len(outputs), -1).double()
    score = z[:, 0] if z.shape[1] == 1 else z[:, 1] - z[:, 0]
    return torch.bucketize(score, edges(bins).to(score.device))


def _predicted(outputs: Tensor, outcome: Outcome) -> Tensor:
    """(n,) classes, or levels."""
    if outcome.kind == "ordinal":  # the median level: so many cumulative probabilities are less than a half
        return (outputs.reshape(len(outputs), -1) < 0).sum(dim=1)
    return predict(outputs)
