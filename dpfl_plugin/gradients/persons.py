"""Gradients of persons: an example is a person's records, and its loss their mean.

Features are (b, k, *shape) and labels (b, k, ...); where a person has fewer than k records, classes are negative and
labels of other outcomes NaN (`dpfl_plugin.data.persons`). The gradient of the mean of losses is the mean of the
records' gradients: it is what an engine clips, and its norm is what one person can add. To an engine that knows
sequences, a person's records are positions.

A person's part of a sum depends on that person alone, padding included: the number of records weighs the losses before
any derivative is taken, and k is public. So persons are to `blocks` what records are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from dpfl_plugin.gradients.base import Loss
from dpfl_plugin.gradients.outcome_losses import labels_like


class Persons(nn.Module):
    """A model of records, for persons: (b, k, *shape) -> (b, k, *outputs).

    Its parameters are those of the model, in their order.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, features: Tensor) -> Tensor:
        return by_person(self.net)(features)


def by_person(net: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A model of records, for the records of persons: (b, k, *shape) -> (b, k, *outputs)."""

    def run(features: Tensor) -> Tensor:
        outputs = net(features.flatten(0, 1))
        return outputs.reshape(*features.shape[:2], *outputs.shape[1:])

    return run


def has_label(labels: Tensor) -> Tensor:
    """(b, k) where persons with ``labels`` (b, k, ...) have a record."""
    if not labels.is_floating_point():
        return labels >= 0
    return ~labels.isnan().reshape(*labels.shape[:2], -1).any(dim=2)


class MeanLoss:
    """A loss of records, for persons: outputs (b, k, ...), labels (b, k, ...) -> (b,) the mean over those with a
    label."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        real = has_label(labels)
        # Where there is no record, features are those of the first, and so is the label: nothing new is computed.
        filled = torch.where(real.view(*real.shape, *[1] * (labels.dim() - 2)), labels, labels[:, :1])
        values = self.loss(outputs.flatten(0, 1), filled.flatten(0, 1)).reshape(real.shape)
        weights = real.to(values.dtype) / real.sum(dim=1, keepdim=True)
        mean: Tensor = (values * weights).sum(dim=1)
        return mean


def no_labels(model: nn.Module, features: Tensor, loss: Loss) -> Tensor:
    """Labels of one kind for the examples ``features`` (b, ...): of classes 0, (b,), or (b, k) for a model of
    `Persons`; of other outcomes made up, (b, ...) or (b, k, ...)."""
    of_persons = isinstance(model, Persons)
    net, one = (model.net, features[0, :1]) if isinstance(model, Persons) else (model, features[:1])
    with torch.no_grad():
        label = labels_like(loss.loss if isinstance(loss, MeanLoss) else loss, net(one))
    shape = features.shape[: 2 if of_persons else 1]
    return label.view(*[1] * len(shape), *label.shape[1:]).expand(*shape, *label.shape[1:]).contiguous()


def some_labels(model: nn.Module, features: Tensor, known: Tensor) -> Tensor:
    """Labels of the ``known`` ones (c, ...) in turn; of persons with 1, 2, ..., k records, so that padding is tried,
    too."""
    shape = features.shape[: 2 if isinstance(model, Persons) else 1]
    turns = torch.arange(shape.numel(), device=known.device) % len(known)
    labels = known[turns].view(*shape, *known.shape[1:])
    if not isinstance(model, Persons):
        return labels
    count, k = labels.shape[:2]
    places = torch.arange(k, device=labels.device)
    labels[places > (torch.arange(count, device=labels.device) % k).unsqueeze(1)] = (
        math.nan if labels.is_floating_point() else -1
    )
    return labels


def marks(labels: Tensor) -> Tensor:
    """(b,) the class of each example: of a person that of the first record, which nobody is without."""
    return labels if labels.dim() == 1 else labels[:, 0]
