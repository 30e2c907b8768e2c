"""Linear models."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.models.score_heads import BaselineHazards


def softmax(feature_shape: tuple[int, ...], num_classes: int, *, bias: bool = True) -> nn.Module:
    """Multinomial logistic regression: one score for each class, [n, *feature_shape] -> [n, num_classes].

    All parameters start at 0: the loss is convex, so nothing is gained by a random start, and F(x^0) is
    log(num_classes) in every run, whatever the seed.
    """
    return nn.Sequential(nn.Flatten(), _zero_linear(math.prod(feature_shape), num_classes, bias))


def linear(feature_shape: tuple[int, ...], num_classes: int, *, bias: bool = True) -> nn.Module:
    """One linear layer, [n, *feature_shape] -> [n, num_classes], for any outcome: as many outputs as that needs (1 for
    regression and counts, one for each label or bin of time, one score for ordinal labels). All parameters start at 0.
    """
    return softmax(feature_shape, num_classes, bias=bias)


def logistic(feature_shape: tuple[int, ...], num_classes: int, *, bias: bool = True) -> nn.Module:
    """Logistic regression: the log-odds of label 1, [n, *feature_shape] -> [n, 1]; starts at 0 as `softmax` does.

    Raises:
        ConfigError: there are not two classes.
    """
    if num_classes != 2:
        raise ConfigError(
            f"name='logistic' is for 2 classes and the data has {num_classes}, or as many outputs. Use softmax for "
            "classes, linear for any other outcome."
        )
    return nn.Sequential(nn.Flatten(), _zero_linear(math.prod(feature_shape), 1, bias))


def grouped_cox(feature_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Proportional hazards in bins of time: a coefficient for each feature, shared by all bins, and a baseline hazard
    for each of the ``num_classes`` bins; [n, *feature_shape] -> log-odds of an event [n, num_classes].

    Coefficients are logarithms of hazard ratios (`BaselineHazards`); they start at 0.
    """
    score = _zero_linear(math.prod(feature_shape), 1, bias=False)
    return nn.Sequential(nn.Flatten(), score, BaselineHazards(num_classes))


def predicting(module: nn.Module, shares: Sequence[float]) -> torch.Tensor:
    """(d,) the trainable parameters of a model whose last layer begins with a bias that says ``shares`` of the classes.

    Raises:
        UnsupportedError: its last linear layer has no trainable bias, or not an output for each class.
    """
    layout, names = Layout.of(module), {layer: name for name, layer in module.named_modules()}
    last = next((layer for layer in reversed([*module.modules()]) if isinstance(layer, nn.Linear)), None)
    key = "" if last is None else f"{names[last]}.bias".lstrip(".")
    outputs = (1,) if len(shares) == 2 else ()
    if last is None or key not in layout.names or last.out_features not in (*outputs, len(shares)):
        raise UnsupportedError(
            "private_statistics.classes: the model does not end with a linear layer that has a bias and an output for "
            "each class. Leave classes out, or use softmax, logistic or mlp."
        )
    logs = torch.tensor(shares, dtype=torch.float64).log()
    vector = layout.flatten(dict(module.named_parameters()))
    layout.unflatten(vector)[key].copy_(logs[1:] - logs[:1] if last.out_features == 1 else logs - logs.mean())
    return vector


def _zero_linear(num_inputs: int, num_outputs: int, bias: bool) -> nn.Linear:
    layer = nn.Linear(num_inputs, num_outputs, bias=bias)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer
