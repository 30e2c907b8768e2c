"""Heads of models with one score: ordered thresholds for levels, a baseline hazard for each bin of time.

A head turns scores s (n,) into outputs (n, c), with a few parameters of its own. What it adds to the gradient of a
record follows from the derivative of the loss by its outputs: `gradients.shared_score` asks for that, so that no
gradient of a single record is formed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

LARGEST_LOG_RATE = 15.0
"""Log-odds go on in a straight line beyond this log rate of events in a bin: the hazard is 1 by then, in any number
format, and a step that was too large is taken back."""


class ScoreHead(nn.Module):
    """Scores (n, 1) or (n,) to outputs (n, c)."""

    def forward(self, scores: Tensor) -> Tensor:
        return self.outputs(scores.reshape(scores.shape[0]), list(self.parameters()))

    def outputs(self, scores: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """(n, c) of scores (n,), at these parameters instead of the head's own."""
        raise NotImplementedError

    def beginning(self, shares: Sequence[float]) -> dict[str, Tensor]:
        """Parameters, by name, with which a score of 0 says these ``shares`` of levels, or hazards of bins."""
        raise NotImplementedError

    def derivatives(
        self, scores: Tensor, parameters: Sequence[Tensor], residuals: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Of each record's loss, by its score (n,) and by each of the parameters (n, q).

        Args:
            residuals: (n, c) the derivative of the loss by the outputs.
        """
        raise NotImplementedError


class Thresholds(ScoreHead):
    """Cumulative logits (n, K - 1): z_j = theta_j - score, where P(label <= j) = sigmoid(z_j).

    theta_1 = first, theta_{j+1} = theta_j + softplus(steps_j): increasing, whatever noise does to the parameters. They
    begin where all levels have the same probability at a score of 0. A bias in the score moves all thresholds alike:
    it is not needed.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        begun = self.beginning([1 / num_classes] * num_classes)
        self.first = nn.Parameter(begun["first"])
        self.steps = nn.Parameter(begun["steps"]) if "steps" in begun else None

    def beginning(self, shares: Sequence[float]) -> dict[str, Tensor]:
        below = list(itertools.accumulate(shares))
        at = [math.log(share / (below[-1] - share)) for share in below[:-1]]
        steps = [math.log(math.expm1(b - a)) for a, b in itertools.pairwise(at)]
        return {"first": torch.tensor(at[:1])} | ({"steps": torch.tensor(steps)} if steps else {})

    def outputs(self, scores: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        return _increasing(*parameters) - scores.unsqueeze(1)

    def derivatives(
        self, scores: Tensor, parameters: Sequence[Tensor], residuals: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        # A step moves all thresholds behind it: sums from each on to the last.
        from_here_on = residuals.flip(1).cumsum(1).flip(1)
        steps = [from_here_on[:, 1:] * parameter.sigmoid() for parameter in parameters[1:]]
        return -from_here_on[:, 0], [from_here_on[:, :1], *steps]

    def thresholds(self) -> Tensor:
        """(K - 1,)"""
        return _increasing(*self.parameters())


def _increasing(first: Tensor, steps: Tensor | None = None) -> Tensor:
    return first if steps is None else torch.cat([first, first + functional.softplus(steps).cumsum(0)])


class BaselineHazards(ScoreHead):
    """Log-odds (n, B) of an event in each bin of time, if there was none before, by the grouped Cox model.

    The hazard is h_b = 1 - exp(-exp(theta_b + score)) (Prentice & Gloeckler 1978, Biometrics 34, 57-67): that of
    proportional hazards of which only bins of time are seen, so that a coefficient of the score is the logarithm of a
    hazard ratio. theta_b is the logarithm of the rate of events in bin b at a score of 0. At the start half of all
    people have had an event at the end of the last bin. A bias in the score moves all of them alike: it is not needed.
    """

    def __init__(self, num_bins: int) -> None:
        super().__init__()
        self.log_rates = nn.Parameter(torch.full((num_bins,), math.log(math.log(2) / num_bins)))

    def beginning(self, shares: Sequence[float]) -> dict[str, Tensor]:
        return {"log_rates": torch.tensor([math.log(-math.log1p(-hazard)) for hazard in shares])}

    def outputs(self, scores: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        log_rates = parameters[0] + scores.unsqueeze(1)
        capped = log_rates.clamp(max=LARGEST_LOG_RATE)
        rates = capped.exp()
        few, many = rates.clamp(torch.finfo(rates.dtype).tiny, 1.0), rates.clamp(min=1.0)
        # ln(h / (1 - h)) = ln(exp(rate) - 1), in two forms that lose no digits, of few events and of many.
        log_odds = torch.where(
            rates < 1, capped + torch.log(torch.expm1(few) / few), many + torch.log(-torch.expm1(-many))
        )
        return log_odds + math.exp(LARGEST_LOG_RATE) * (log_rates - LARGEST_LOG_RATE).clamp(min=0.0)

    def derivatives(
        self, scores: Tensor, parameters: Sequence[Tensor], residuals: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        rates = (parameters[0] + scores.unsqueeze(1)).clamp(max=LARGEST_LOG_RATE).exp()
        rates = rates.clamp(min=torch.finfo(rates.dtype).tiny)
        by_rates = residuals * (rates / -torch.expm1(-rates))
        return by_rates.sum(dim=1), [by_rates]
