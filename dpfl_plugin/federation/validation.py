"""What silos add up on the records that are set apart to be scored: how well each is predicted, or a histogram.

A record adds a number in [0, 1] (`core.validation_scores`), or 1 to one number of a histogram; a person adds the mean
of what its records add, in whole steps of `STEP`, 1 at most in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.core.validation_scores import ValidationScore
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.losses import cross_entropy, logistic, predict
from dpfl_plugin.gradients.outcome_losses import Hazards
from dpfl_plugin.gradients.persons import by_person, has_label
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


@torch.no_grad()
def summed(
    model: Model, records: Records, outcome: Outcome, score: ValidationScore, *, persons: bool = False
) -> Tensor:
    """What is released of ``records`` once it has noise, float64: (1,) what they add; with ``score.bins`` (2 bins,), of
    two classes, how many records of the first have a score in each bin of `edges`, and then of the second.

    Args:
        persons: records are persons, each with its own.
    """
    total = torch.zeros(2 * score.bins or 1, dtype=torch.float64)
    first = 0
    for outputs, labels in outputs_of(by_person(model) if persons else model, records):
        rows = labels if persons else labels.unsqueeze(1)
        real, known = has_label(rows), rows if rows.is_floating_point() else rows.clamp(min=0)
        if records.usable is not None:  # at their places, so that the shapes of products are the same without them
            real = real & records.usable[first : first + len(rows)].unsqueeze(1)
        first += len(rows)
        flat, of_flat = outputs.flatten(0, 1) if persons else outputs, known.flatten(0, 1)
        cell, added = torch.zeros_like(real, dtype=torch.int64), real.double()
        if score.bins:
            cell = (_bins(flat, score.bins) + score.bins * of_flat).view(real.shape)
        else:
            added *= gains(score, outcome, flat, of_flat).view(real.shape)
        shares = torch.zeros(len(rows), len(total), dtype=torch.float64, device=rows.device)
        shares.scatter_add_(1, cell, added / real.sum(dim=1, keepdim=True).clamp(min=1))
        total += ((shares / STEP).floor_().sum(dim=0) * STEP).cpu()
    return total


def gains(score: ValidationScore, outcome: Outcome, outputs: Tensor, labels: Tensor) -> Tensor:
    """(n,) float64 in [0, 1]: 1 - min(loss, bound) / bound of each record, 0 where the loss is no number."""
    losses = _LOSSES[score.measure](outcome, outputs, labels).double()
    return (1 - losses / score.bound).nan_to_num(nan=0.0).clamp(0.0, 1.0)


def _wrong(outcome: Outcome, outputs: Tensor, labels: Tensor) -> Tensor:
    return _predicted(outputs, outcome) != labels


def _log_loss(outcome: Outcome, outputs: Tensor, labels: Tensor) -> Tensor:
    scores = outputs.double().reshape(len(outputs), -1)
    return logistic(scores, labels) if scores.shape[1] == 1 else cross_entropy(scores, labels)


def _absolute_error(outcome: Outcome, outputs: Tensor, labels: Tensor) -> Tensor:
    if outcome.kind == "ordinal":
        return (_predicted(outputs, outcome) - labels).abs()
    return (outcome.middle + outcome.half_range * outputs.double().reshape(len(outputs)) - labels).abs()


def _deviance(outcome: Outcome, outputs: Tensor, labels: Tensor) -> Tensor:
    if outcome.kind == "survival":
        return 2 * Hazards(outcome.edges)(outputs.double(), labels)
    score, (counts, exposures) = outputs.double().reshape(len(outputs)), labels.double().unbind(1)
    return 2 * (torch.xlogy(counts, counts / exposures) - counts * score - counts + exposures * score.exp())


def _brier(outcome: Outcome, outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.double().reshape(labels.shape).sigmoid() - labels).square().mean(dim=1)


_LOSSES: Final[Mapping[str, Callable[[Outcome, Tensor, Tensor], Tensor]]] = {
    "accuracy": _wrong,
    "log_loss": _log_loss,
    "mae": _absolute_error,
    "deviance": _deviance,
    "brier": _brier,
}
"""{measure: the loss of each record, (n,), in its own unit}"""


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
