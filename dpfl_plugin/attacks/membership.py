"""Membership inference by the server: was this record trained on?

The attack knows candidates, of which a known share are members, and the silo's mean gradients of every round. In each,

    mean = 1/n sum_j w_j m_j u_j + sum of the other members' + noise,    u_j: candidate j's gradient, m_j: 0 or 1

with E w_j = 1. Sampling batches makes w_j vary. That is a linear model of m, seen through the uploads of all rounds:
its best linear unbiased predictor, and from it each candidate's log likelihood ratio, follow in closed form. A score
that looks at one record by itself, such as <mean, u_j>, is much weaker: what records have in common drowns it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from dpfl_plugin.attacks.transcript import Seen
from dpfl_plugin.core.balls import Normalised
from dpfl_plugin.core.shares import share_bounds
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.gradients.base import Engine, Loss, Records
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.runs.build import Parts

MOST_CANDIDATES = 500  # of members, and of non-members: the attack solves systems of this size in every round
MOST_BYTES = 2**27  # of candidates' gradients
POINTS = 32  # most steps of a local path at which each candidate's gradient is taken: drift spoils the model fast
# Parts of a record's contribution, and of its variance by sampling, that the model is never sure of.
_MODEL_ERROR, _SAMPLING_ERROR = 1e-5, 1e-3


@dataclass(frozen=True, slots=True)
class Candidates:
    """Records that the server knows and asks about; the first ``num_members`` are members."""

    records: Records
    num_members: int

    def __len__(self) -> int:
        return len(self.records)


def candidates(train: Records, test: Records, dimension: int) -> Candidates:
    """Members and non-members of a silo: all, or evenly spaced ones if that were too many."""
    most = min(MOST_CANDIDATES, max(2, MOST_BYTES // (8 * dimension)))
    kept = [_spaced(part.only_usable(), most) for part in (train, test)]
    records = Records(*(torch.cat(pair) for pair in zip(*((r.features, r.labels) for r in kept), strict=True)))
    return Candidates(records, len(kept[0]))


def _spaced(records: Records, most: int) -> Records:
    if len(records) <= most:
        return records
    return records.select(torch.linspace(0, len(records) - 1, most).long().to(records.labels.device))


@dataclass(slots=True)
class _Pool:
    """Stands in for the oracle of the silo: its gradients are the candidates' mean plus a shift; keeps where it was."""

    engine: Engine
    records: Records
    rules: PrivacyRules
    shift: Tensor
    num_silos: int = 1
    path: list[Tensor] = field(default_factory=list)
    means: list[Tensor] = field(default_factory=list)

    def gradient(self, y: Tensor) -> Tensor:
        total = torch.empty_like(y[0], dtype=torch.float64)
        bound = self.rules.clipping.whole(self.rules.clip_norm)
        self.engine.clipped_sum(y[0].contiguous(), self.records, bound, total)
        mean = (total / len(self.records)).to(y.dtype)
        self.path.append(y[0].clone())  # the algorithm may change its own in place
        self.means.append(mean)
        return (mean + self.shift + self.rules.l2 * y[0]).unsqueeze(0)

    def release(self, update: Tensor) -> Tensor:
        return update

    def squared_norm(self, update: Tensor, scale: float) -> Tensor:
        return update.square().sum(dim=1, keepdim=True)


class Attack:
    """The server's attack on one silo of a run."""

    def __init__(self, parts: Parts, silo: int) -> None:
        self._parts, self._num_records = parts, len(parts.train[silo])
        self.candidates = candidates(parts.train[silo], parts.test[silo], parts.layout.dimension)
        self._pool = parts.engine.prepare(self.candidates.records)
        self._gradients = _example_gradients(parts.module, parts.loss, parts.layout)
        size = len(self.candidates)
        self._share = self.candidates.num_members / size
        self._precision = torch.zeros(size, size, dtype=torch.float64)
        self._evidence = torch.zeros(size, dtype=torch.float64)

    def scores(self, transcript: Iterable[Seen]) -> Tensor:
        """Each candidate's log likelihood ratio of being a member, (N,), after all rounds."""
        for seen in transcript:
            self._add(seen)
        return log_likelihood_ratios(self._precision, self._evidence, self._share)

    def _add(self, seen: Seen) -> None:
        """Fold in a round: GLS with the covariance of noise and sampling, in the N dimensions of the candidates."""
        gradients = self.contributions(seen)
        residual = seen.mean - gradients.mean(dim=0)
        # Products in the run's own precision: its rounding is far below what the model is unsure of.
        gram = (gradients @ gradients.t()).double().cpu() / self._num_records**2
        aligned = (gradients @ residual).double().cpu() / self._num_records
        noise, sampling = self._variances(seen)
        scale = float(gram.diagonal().mean())
        floor = noise + (_MODEL_ERROR + _SAMPLING_ERROR * sampling) * scale
        covariance = sampling * gram + floor * torch.eye(len(gram), dtype=torch.float64)
        # U (noise I + sampling U^T U)^-1 = (noise I + sampling U U^T)^-1 U
        solved = torch.linalg.solve(covariance, torch.cat([gram, aligned.unsqueeze(1)], dim=1))
        self._precision += solved[:, :-1]
        self._evidence += solved[:, -1]

    def _variances(self, seen: Seen) -> tuple[float, float]:
        """(variance of the mean's noise in each coordinate; of a candidate's part in it, in units of 1/n^2)."""
        rules, total = self._parts.rules, float(seen.weights.square().sum())
        factors = seen.weights.new_tensor(rules.factors(seen.round, seen.plan.num_gradients))
        first, last = share_bounds(seen.plan.share, self._num_records)
        divisor, rate = rules.sampler.divisor(last - first), rules.sampler.rate(last - first)
        sigma = rules.mechanism.event("full", 1.0, rules.neighbouring, rules.unit).noise_multiplier
        std = 0.0 if sigma == 0 else rules.sampler.sensitivity * rules.clip_norm * sigma / divisor
        others = (self._num_records - self.candidates.num_members) / len(self.candidates)
        return std**2 * float((seen.weights * factors).square().sum()), self._share * total * (1 - rate) / rate + others

    def contributions(self, seen: Seen) -> Tensor:
        """(N, d) gradients of the candidates, clipped to C as a whole, averaged over the path of the local steps.

        The path is replayed with the candidates' mean gradient in place of the silo's, shifted so that it ends where
        the silo's ended.
        """
        parts, plan = self._parts, seen.plan
        weights, shift = seen.weights.to(seen.mean), torch.zeros_like(seen.mean)
        for _ in range(2):
            pool = _Pool(parts.engine, self._pool, parts.rules, shift)
            parts.algorithm.local_update(seen.down, seen.state, pool, plan)
            shift = seen.mean - weights @ torch.stack(pool.means)
        total = shift.new_zeros(len(self.candidates), shift.numel())
        for steps in torch.arange(len(pool.path)).tensor_split(min(POINTS, len(pool.path))):
            here = pool.path[int(steps[len(steps) // 2])]
            total.add_(self._clipped(here), alpha=float(weights[steps].sum()))
        return total

    def _clipped(self, y: Tensor) -> Tensor:
        gradients: Tensor = self._gradients(y, self.candidates.records)
        rules = self._parts.rules
        bound = rules.clipping.whole(rules.clip_norm)
        if isinstance(bound, Normalised):
            gradients *= (bound / (gradients.norm(dim=1) + bound.gamma)).unsqueeze(1)
        elif not math.isinf(bound):
            gradients *= (bound / gradients.norm(dim=1).clamp(min=bound)).unsqueeze(1)
        return gradients


def log_likelihood_ratios(precision: Tensor, evidence: Tensor, share: float) -> Tensor:
    """(N,) log p(seen | m_j = 1) - log p(seen | m_j = 0), where the others are Gaussian with a Bernoulli's moments.

    Args:
        precision (N, N), evidence (N,): of the likelihood exp(-(m - share)^T precision (m - share)/2 + evidence^T (m -
            share)).
        share: of members among the candidates.
    """
    prior = 1 / (share * (1 - share))
    identity = torch.eye(len(evidence), dtype=torch.float64)
    posterior: Tensor = torch.linalg.inv((precision + precision.t()) / 2 + prior * identity)
    marginal = posterior.diagonal()
    return (posterior @ evidence) / marginal + (share - 0.5) * (1 / marginal - prior)


def _example_gradients(model: torch.nn.Module, loss: Loss, layout: Layout) -> Callable[[Tensor, Records], Tensor]:
    """(y (d,), records) -> (n, d), each example's gradient, for any model."""

    def loss_of_one(parameters: dict[str, Tensor], features: Tensor, label: Tensor) -> Tensor:
        return loss(functional_call(model, parameters, (features.unsqueeze(0),)), label.unsqueeze(0))[0]

    gradients = vmap(grad(loss_of_one), in_dims=(None, 0, 0))

    def of(y: Tensor, records: Records) -> Tensor:
        by_name = gradients(layout.unflatten(y), records.features, records.labels)
        return torch.cat([by_name[name].flatten(1) for name in layout.names], dim=1)

    return of
