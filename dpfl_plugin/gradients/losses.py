"""Losses, one value for each example."""

from __future__ import annotations

from typing import Final

from torch import Tensor
from torch.nn import functional

from dpfl_plugin import registry
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.gradients.base import Loss


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


def find(name: str, num_outputs: int) -> Loss:
    """The loss ``name``: "auto" (logistic for one output, else cross_entropy), a name above, or package.module:name.

    Raises:
        ConfigError: there is no such loss, or it is not for so many outputs.
    """
    if name == "auto":
        return logistic if num_outputs == 1 else cross_entropy
    if ":" in name:
        return registry.load_object(name, "loss")
    if name not in LOSSES:
        known = ", ".join(["auto", *LOSSES])
        raise ConfigError(f"loss={name!r} is unknown{registry.nearest(name, LOSSES)}. Known: {known}.")
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


def predict(outputs: Tensor) -> Tensor:
    """Classes (n,): the largest output, or whether the only one is positive."""
    if outputs.dim() == 1 or outputs.shape[1] == 1:
        return (outputs.reshape(outputs.shape[0]) > 0).long()
    return outputs.argmax(dim=1)
