"""Fully connected networks."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

from torch import nn

from dpfl_plugin.errors import require

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU}


def mlp(
    feature_shape: tuple[int, ...],
    num_classes: int,
    *,
    hidden: tuple[int, ...] = (200,),
    activation: Literal["relu", "tanh", "elu"] = "relu",
) -> nn.Module:
    """Hidden layers of the given widths, [n, *feature_shape] -> [n, num_classes]; PyTorch's initialisation.

    With 60 features by PCA and hidden=(200,): the network of Noble et al. 2022, arXiv:2111.09278v3, App. D.1.
    """
    require(len(hidden) > 0 and min(hidden) >= 1, "hidden", hidden, "be one or more widths of 1 or more")
    widths = (math.prod(feature_shape), *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for num_inputs, num_outputs in pairwise(widths):
        layers += [nn.Linear(num_inputs, num_outputs), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))
