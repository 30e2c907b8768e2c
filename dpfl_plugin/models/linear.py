"""Linear models."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from dpfl_plugin.core.outcome_counts import hazards_of, mean_of
from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.models.score_heads import BaselineHazards, ScoreHead


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


def predicting(module: nn.Module, outcome: Outcome, shares: Sequence[float]) -> torch.Tensor:
    """(d,) the trainable parameters of a model whose last layer begins with what ``shares`` of the outcome's codes
    (`dpfl_plugin.core.outcome_counts`) predict without features.

    Raises:
        UnsupportedError: it has no head for the outcome, and does not end with a linear layer that has a trainable bias
            and as many outputs as that needs.
    """
    layout, names = Layout.of(module), {layer: name for name, layer in module.named_modules()}
    vector = layout.flatten(dict(module.named_parameters()))
    parameters = layout.unflatten(vector)
    last = next((layer for layer in reversed([*module.modules()]) if isinstance(layer, nn.Linear | ScoreHead)), None)
    if isinstance(last, ScoreHead):
        begun = last.beginning(shares if outcome.has_classes else hazards_of(outcome, shares))
        for key, value in begun.items():
            parameters[f"{names[last]}.{key}".lstrip(".")].copy_(value)
        return vector
    key = "" if last is None else f"{names[last]}.bias".lstrip(".")
    begins = _outputs(outcome, shares)
    if last is not None and outcome.kind == "classes" and len(shares) == 2 and last.out_features == 1:
        begins = begins[1:] - begins[:1]
    if last is None or key not in parameters or last.out_features != len(begins):
        raise UnsupportedError(
            "private_statistics.outcome: the model does not end with a linear layer that has a bias and as many "
            "outputs as the outcome needs. Leave outcome out, or use softmax, logistic, linear, grouped_cox or mlp."
        )
    parameters[key].copy_(begins)
    return vector


def _outputs(outcome: Outcome, shares: Sequence[float]) -> torch.Tensor:
    """What a model without features puts out."""
    if outcome.kind == "regression":
        return torch.tensor([mean_of(shares)], dtype=torch.float64)
    if outcome.kind == "counts":
        assert outcome.range is not None
        high = outcome.range[1]
        rate = high / 2 * (mean_of(shares) + 1)
        return torch.tensor([rate], dtype=torch.float64).clamp(min=high / 2 / len(shares)).log()
    if outcome.kind == "survival":
        return torch.tensor(hazards_of(outcome, shares), dtype=torch.float64).logit()
    logs = torch.tensor(shares, dtype=torch.float64).log()
    return logs - logs.mean()


def _zero_linear(num_inputs: int, num_outputs: int, bias: bool) -> nn.Linear:
    layer = nn.Linear(num_inputs, num_outputs, bias=bias)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer
