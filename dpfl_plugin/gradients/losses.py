"""Losses, one value for each example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from dpfl_plugin import registry
from dpfl_plugin.core.outcomes import CLASSES, HUBER_SHARE, Outcome
from dpfl_plugin.errors import ConfigError, nearest
from dpfl_plugin.gradients.base import Loss
from dpfl_plugin.gradients.outcome_losses import (
    ClosedLoss,
    Cumulative,
    Foreign,
    Hazards,
    Huber,
    MultiLabel,
    OutcomeLoss,
    Poisson,
    Squared,
)


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """-log softmax(outputs)[label]; outputs (n, num_classes)."""
    # Over rows of few columns torch's log_softmax takes 8 times as long as over columns of many rows.
    return -outputs.t().log_softmax(0).gather(0, labels.unsqueeze(0))[0]


def logistic(outputs: Tensor, labels: Tensor) -> Tensor:
    """log(1 + exp(-z)) for label 1 and log(1 + exp(z)) for label 0; outputs (n, 1) or (n,)."""
    scores = outputs.reshape(outputs.shape[0])
    return functional.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="none")


def hinge(outputs: Tensor, labels: Tensor) -> Tensor:
    """max(0, 1 - z) for label 1 and max(0, 1 + z) for label 0; outputs (n, 1) or (n,). Its subgradient at 0 is 0."""
    scores = outputs.reshape(outputs.shape[0])
    return functional.relu(1 - (2 * labels.to(scores.dtype) - 1) * scores)


LOSSES: Final[dict[str, Loss]] = {"cross_entropy": cross_entropy, "logistic": logistic, "hinge": hinge}


OF_OUTCOMES: Final = {
    "ordinal": ("cumulative",),
    "regression": ("squared", "huber"),
    "counts": ("poisson",),
    "multi_label": ("multi_label",),
    "survival": ("hazards",),
}
"""{kind of outcome: its losses}; loss: auto is the first."""


def of_outcome(name: str, outcome: Outcome, num_classes: int) -> Loss:
    """The loss ``name`` for labels that are not classes, or package.module:name; ``num_classes``: of ordinal labels.

    Raises:
        ConfigError: there is no such loss, or it is for other labels.
    """
    known = OF_OUTCOMES[outcome.kind]
    if ":" in name:
        return given(registry.load_object(name, "loss"), outcome, num_classes)
    if name not in ("auto", *known):
        why = "Cox's partial likelihood compares records with each other, so that no gradient belongs to one record. "
        raise ConfigError(
            f"loss={name!r} is not for an outcome of {outcome.kind}. {why if name == 'cox' else ''}"
            f"Use auto{''.join(f' or {one}' for one in known)}, or package.module:function."
        )
    return _of_outcome(known[0] if name == "auto" else name, outcome, num_classes)


def given(loss: Loss, outcome: Outcome, num_classes: int) -> Loss:
    """A loss that a program gives, for labels of this outcome."""
    if outcome.kind == "classes" or isinstance(loss, OutcomeLoss):
        return loss
    return Foreign(loss, _of_outcome(OF_OUTCOMES[outcome.kind][0], outcome, num_classes))


def _of_outcome(name: str, outcome: Outcome, num_classes: int) -> OutcomeLoss:
    if name in ("squared", "huber"):
        middle, half = outcome.middle, outcome.half_range
        delta = 2 * HUBER_SHARE if outcome.huber_delta is None else outcome.huber_delta / half
        return Squared(middle, half) if name == "squared" else Huber(middle, half, delta)
    if name == "hazards":
        return Hazards(outcome.edges)
    if name == "cumulative":
        return Cumulative(num_classes)
    return Poisson() if name == "poisson" else MultiLabel()


def find(name: str, num_outputs: int, outcome: Outcome = CLASSES, num_classes: int = 0) -> Loss:
    """The loss ``name``: "auto" (logistic for one output, else cross_entropy; or the outcome's own), a name above, or
    package.module:name.

    Raises:
        ConfigError: there is no such loss, or it is not for so many outputs, or not for this outcome.
    """
    if outcome.kind != "classes":
        return of_outcome(name, outcome, num_classes)
    of_others = [kind for kind, names in OF_OUTCOMES.items() if name in names]
    if of_others:
        raise ConfigError(
            f"loss={name!r} is for an outcome of {of_others[0]}, and labels are classes: say what they are in the data "
            "(docs/outcomes.md)."
        )
    if name == "auto":
        return logistic if num_outputs == 1 else cross_entropy
    if ":" in name:
        return registry.load_object(name, "loss")
    if name not in LOSSES:
        known = ", ".join(["auto", *LOSSES])
        raise ConfigError(f"loss={name!r} is unknown{nearest(name, LOSSES)}. Known: {known}.")
    if name == "cross_entropy" and num_outputs == 1:
        raise ConfigError(
            "loss='cross_entropy' is for a model with one output for each class; this one has 1 output. Use loss: "
            "logistic."
        )
    if name != "cross_entropy" and num_outputs > 1:
        raise ConfigError(
            f"loss={name!r} is for 2 classes and a model with one output (model: logistic); this one has {num_outputs} "
            "outputs. Use such a model, or loss: cross_entropy."
        )
    return LOSSES[name]


@dataclass(frozen=True, slots=True, eq=False)
class Weighted(OutcomeLoss):
    """A loss of classes or levels, times the weight of each example's class.

    A record's gradient is clipped after it is weighted, so no weight changes what one record can add to a sum.

    Attributes:
        weights: (K,) float64, where models are; written to before the first round where they are ``balanced``:
            made of released shares.
    """

    loss: Loss
    weights: Tensor
    balanced: bool = False

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        values = self.loss(outputs, labels)
        return values * self.weights.to(values.dtype)[labels]

    def examples(self, num_outputs: int) -> Tensor:
        return torch.arange(len(self.weights))


def unweighted(loss: Loss) -> Loss:
    return loss.loss if isinstance(loss, Weighted) else loss


def residuals(outputs: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """(b, c): derivative of each example's loss by its ``outputs`` (b, c), which may be overwritten."""
    if isinstance(loss, Weighted):
        weights = loss.weights.to(outputs.dtype)[labels]
        return residuals(outputs, labels, loss.loss) * weights.unsqueeze(1)
    if loss is logistic:
        return outputs.sigmoid_().sub_(labels.unsqueeze(1))
    if loss is hinge:
        signs = 2 * labels.unsqueeze(1).to(outputs.dtype) - 1
        return (signs * outputs < 1) * -signs
    if isinstance(loss, ClosedLoss):
        return loss.residuals(outputs, labels)
    found = torch.softmax(outputs, dim=1)
    minus_one = found.new_full((1, 1), -1.0).expand(len(labels), 1)
    return found.scatter_add_(1, labels.unsqueeze(1), minus_one)


def predict(outputs: Tensor) -> Tensor:
    """Classes (n,): the largest output, or whether the only one is positive."""
    if outputs.dim() == 1 or outputs.shape[1] == 1:
        return (outputs.reshape(outputs.shape[0]) > 0).long()
    return outputs.argmax(dim=1)
