"""The head of a model of ordinal labels: ordered thresholds for one score."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class Thresholds(nn.Module):
    """Scores (n, 1) or (n,) to cumulative logits (n, K - 1): z_j = theta_j - score, where P(label <= j) = sigmoid(z_j).

    theta_1 = first, theta_{j+1} = theta_j + softplus(steps_j): increasing, whatever noise does to the parameters. They
    begin where all levels have the same probability at a score of 0. A bias in the score moves all thresholds alike:
    it is not needed.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        at = [math.log((j + 1) / (num_classes - 1 - j)) for j in range(num_classes - 1)]
        steps = [math.log(math.expm1(b - a)) for a, b in itertools.pairwise(at)]
        self.first = nn.Parameter(torch.tensor(at[:1]))
        self.steps = nn.Parameter(torch.tensor(steps)) if steps else None

    def forward(self, scores: Tensor) -> Tensor:
        return self.thresholds() - scores.reshape(scores.shape[0], 1)

    def thresholds(self) -> Tensor:
        """(K - 1,)"""
        if self.steps is None:
            return self.first
        return torch.cat([self.first, self.first + functional.softplus(self.steps).cumsum(0)])
