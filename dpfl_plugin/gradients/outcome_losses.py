"""Losses of outcomes that are not classes, one value for each example; and what engines need of them.

Each knows its derivative by the model's outputs, so that linear and dense models have their gradients in closed form,
and made-up labels, by which engines are tried. Labels are as `Outcome` says.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dpfl_plugin.gradients.base import Loss


class OutcomeLoss:
    """A loss of labels that are not classes. Hashable and frozen: what it computes is told by its attributes."""

    __slots__ = ()

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(n,) of outputs (n, c), or (n,) where there is one, and labels (n, ...)."""
        raise NotImplementedError

    def examples(self, num_outputs: int) -> Tensor:
        """Labels that are made up, all different, (e, ...)."""
        raise NotImplementedError


class ClosedLoss(OutcomeLoss):
    """One whose derivative is known."""

    __slots__ = ()

    def residuals(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(n, c) the derivative of each example's loss by its ``outputs`` (n, c), which may be overwritten."""
        raise NotImplementedError


def examples_of(loss: Loss, num_outputs: int) -> Tensor | None:
    """Made-up labels (e, ...) that a loss takes; None where they are classes."""
    return loss.examples(num_outputs) if isinstance(loss, OutcomeLoss) else None


def labels_like(loss: Loss, outputs: Tensor) -> Tensor:
    """Labels (n, ...) of one kind for ``outputs`` (n, c) or (n,): of classes 0."""
    made_up = examples_of(loss, 1 if outputs.dim() == 1 else int(outputs.shape[1]))
    if made_up is None:
        return torch.zeros(len(outputs), dtype=torch.int64, device=outputs.device)
    return made_up[:1].expand(len(outputs), *made_up.shape[1:]).contiguous().to(outputs.device)


def _single(outputs: Tensor) -> Tensor:
    """(n,) of the one output."""
    return outputs.reshape(outputs.shape[0])


@dataclass(frozen=True, slots=True)
class Squared(ClosedLoss):
    """(z - t)^2 / 2, where t is the label, scaled from its public range to [-1, 1]; outputs (n, 1), labels (n,)."""

    middle: float
    half: float

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return (_single(outputs) - self.scaled(labels, outputs)).square() / 2

    def scaled(self, labels: Tensor, like: Tensor) -> Tensor:
        return (labels.to(like.dtype) - self.middle) / self.half

    def residuals(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs.sub_(self.scaled(labels, outputs).unsqueeze(1))

    def examples(self, num_outputs: int) -> Tensor:
        return self.middle + self.half * torch.tensor([-1.0, -0.5, 0.0, 0.25, 1.0])


@dataclass(frozen=True, slots=True)
class Huber(Squared):
    """r^2 / 2 for |r| <= d and d (|r| - d / 2) beyond (Huber 1964), of r = z - t as in `Squared`; ``delta``: d, in
    units of half the range."""

    delta: float

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        aim = Squared.scaled(self, labels, outputs)
        return functional.huber_loss(_single(outputs), aim, reduction="none", delta=self.delta)

    def residuals(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return Squared.residuals(self, outputs, labels).clamp_(-self.delta, self.delta)


@dataclass(frozen=True, slots=True)
class Poisson(ClosedLoss):
    """e exp(z) - y (z + ln e), the negative log-likelihood of count y with exposure e and rate exp(z), without ln y!;
    outputs (n, 1), labels (n, 2): y and e."""

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        score, (counts, exposures) = _single(outputs), labels.to(outputs.dtype).unbind(1)
        return exposures * score.exp() - counts * (score + exposures.log())

    def residuals(self, outputs: Tensor, labels: Tensor) -> Tensor:
        counts, exposures = labels.to(outputs.dtype).split(1, dim=1)
        return outputs.exp_().mul_(exposures).sub_(counts)

    def examples(self, num_outputs: int) -> Tensor:
        return torch.tensor([[0.0, 1.0], [1.0, 1.0], [1.0, 2.0], [3.0, 0.5], [2.0, 1.0]])


@dataclass(frozen=True, slots=True)
class MultiLabel(ClosedLoss):
    """sum_k ln(1 + exp(-s_k z_k)), s_k = 1 where label k holds and -1 where not; outputs and labels (n, k)."""

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        scores = outputs.reshape(labels.shape)
        return functional.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="none").sum(1)

    def residuals(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs.sigmoid_().sub_(labels.to(outputs.dtype))

    def examples(self, num_outputs: int) -> Tensor:
        if num_outputs == 1:
            return torch.tensor([[0.0], [1.0]])
        some = torch.zeros(4, num_outputs)
        some[1, 0] = some[2, -1] = 1.0
        some[3] = 1.0
        return some


@dataclass(frozen=True, slots=True)
class Hazards(ClosedLoss):
    """Discrete-time hazards: the negative log-likelihood of a record's person-periods.

    With edges 0 < t_1 < ... < t_B, bin b is (t_{b-1}, t_b] (the first with 0), and h_b = sigmoid(z_b) is the
    probability of an event in it, if there was none before. A record with an event in bin b adds
    -ln h_b - sum_{a < b} ln(1 - h_a); one that is censored adds -w_a ln(1 - h_a) for each bin, w_a the share of it that
    the record was there for (Singer & Willett 1993; Tutz & Schmid 2016, Sec. 3.4, where w_a is 1 or 0, so that who is
    censored within a bin leaves it, and hazards are too large). With a constant rate of events within the bin, as
    1 - h = exp(-rate), (1 - h)^w is the probability of no event in that share of it. Records stay independent. Outputs
    (n, B), labels (n, 2): time, and 1 for an event.
    """

    edges: tuple[float, ...]

    def at_risk(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(n, B) each: the share of each bin that a record counts for, and in which bin it has its event (bool)."""
        lower, upper = _bounds(self.edges, labels.device)
        time, event = labels[:, :1].to(lower.dtype), labels[:, 1:] > 0
        begun = (time > lower) | ((time == 0) & (lower == 0))
        shares = ((time - lower) / (upper - lower)).clamp(0.0, 1.0)
        return torch.where(event, begun.to(shares.dtype), shares), event & begun & (time <= upper)

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        shares, events = self.at_risk(labels)
        scores = outputs.reshape(shares.shape)
        losses = functional.binary_cross_entropy_with_logits(scores, events.to(scores.dtype), reduction="none")
        return torch.where(shares > 0, shares * losses, torch.zeros_like(losses)).sum(dim=1)

    def residuals(self, outputs: Tensor, labels: Tensor) -> Tensor:
        shares, events = self.at_risk(labels)
        return outputs.sigmoid_().sub_(events.to(outputs.dtype)).mul_(shares.to(outputs.dtype))

    def examples(self, num_outputs: int) -> Tensor:
        first, last = self.edges[0], self.edges[-1]
        times = [(first, 1.0), (last, 1.0), (last, 0.0), (first / 2, 1.0), (first, 0.0)]
        return torch.tensor(times[: 3 if len(self.edges) == 1 else None])


@dataclass(frozen=True, slots=True)
class Cumulative(ClosedLoss):
    """-ln P(label), where P(label <= j) = sigmoid(z_j): cumulative logits (McCullagh 1980); labels (n,) int64.

    Outputs (n, K - 1), increasing in j: a model of one output behind `dpfl_plugin.models.Thresholds`.
    """

    num_classes: int

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return -log_probabilities(outputs).gather(1, labels.unsqueeze(1))[:, 0]

    def residuals(self, outputs: Tensor, labels: Tensor) -> Tensor:
        at_most, above = functional.logsigmoid(outputs), functional.logsigmoid(-outputs)
        between = torch.log(-torch.expm1(outputs[:, :-1] - outputs[:, 1:]))  # see `log_probabilities`
        by_upper, by_lower = above.clone(), at_most.clone()  # logarithms of the derivatives, where z is a level's end
        by_upper[:, 1:] -= above[:, :-1] + between
        by_lower[:, :-1] -= at_most[:, 1:] + between
        level, last = labels.unsqueeze(1), outputs.shape[1]
        is_upper = torch.arange(last, device=outputs.device) == level
        is_lower = torch.arange(1, last + 1, device=outputs.device) == level
        derivatives = torch.where(is_upper, -by_upper.exp(), 0.0)
        return torch.where(is_lower, by_lower.exp(), derivatives)

    def examples(self, num_outputs: int) -> Tensor:
        return torch.arange(self.num_classes)


@dataclass(frozen=True, slots=True)
class Foreign(OutcomeLoss):
    """A loss of a user's own, for labels such as ``like`` takes."""

    loss: Loss
    like: OutcomeLoss

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.loss(outputs, labels)

    def examples(self, num_outputs: int) -> Tensor:
        return self.like.examples(num_outputs)


def log_probabilities(outputs: Tensor) -> Tensor:
    """(n, K) ln P(label = k) by cumulative logits (n, K - 1).

    sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - e^(b - a)).
    """
    outputs = outputs.reshape(outputs.shape[0], -1)
    at_most, above = functional.logsigmoid(outputs), functional.logsigmoid(-outputs)
    between = torch.log(-torch.expm1(outputs[:, :-1] - outputs[:, 1:]))
    middle = at_most[:, 1:] + above[:, :-1] + between
    return torch.cat([at_most[:, :1], middle, above[:, -1:]], dim=1)


@functools.lru_cache(maxsize=64)
def _bounds(edges: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """(lower, upper) (B,) each, in the number format of labels."""
    upper = torch.tensor(edges, dtype=torch.float32)
    lower = torch.cat([torch.tensor([0.0]), upper[:-1]])
    return lower.to(device), upper.to(device)
