"""Losses of outcomes that are not classes: their derivatives, their definitions, and engines that use them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.choice import Terms, choose
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.dense import Dense
from dpfl_plugin.gradients.outcome_losses import (
    ClosedLoss,
    Cumulative,
    Hazards,
    Huber,
    MultiLabel,
    OutcomeLoss,
    Poisson,
    Squared,
    log_probabilities,
)
from dpfl_plugin.gradients.shared_score import SharedScore
from dpfl_plugin.gradients.stacked import Pool
from dpfl_plugin.gradients.vmap import Vmap
from dpfl_plugin.models.score_heads import BaselineHazards, ScoreHead, Thresholds

N = 40
EDGES = (1.0, 2.5, 4.0)


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniform(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def times() -> Tensor:
    """Events and censorings within bins, and at their very ends."""
    at = torch.tensor([0.0, *EDGES, 0.5, 1.5, 3.0, 3.9])
    time = at[(uniform(N) * len(at)).long()]
    return torch.stack([time, (uniform(N, seed=2) > 0.4).float()], dim=1)


CLASSES = (uniform(N) * 3).long()
WEIGHTS = torch.tensor([0.1, 30.0, 1.0], dtype=torch.float64)
# (loss, outputs, labels of N records)
CASES: list[tuple[OutcomeLoss, int, Tensor]] = [
    (Squared(50.0, 50.0), 1, uniform(N) * 100),
    (Huber(50.0, 50.0, 0.3), 1, uniform(N) * 100),
    (Poisson(), 1, torch.stack([(uniform(N) * 5).floor(), 0.1 + uniform(N, seed=2)], dim=1)),
    (MultiLabel(), 3, (uniform(N, 3) > 0.5).float()),
    (MultiLabel(), 1, (uniform(N, 1) > 0.5).float()),
    (Hazards(EDGES), 3, times()),
    (Hazards((4.0,)), 1, times()),
    (losses.Weighted(losses.cross_entropy, WEIGHTS), 3, CLASSES),
    (losses.Weighted(losses.logistic, WEIGHTS), 1, CLASSES.clamp(max=1)),
    (losses.Weighted(losses.hinge, WEIGHTS), 1, CLASSES.clamp(max=1)),
]
LEVELS: list[tuple[OutcomeLoss, int, Tensor]] = [(Cumulative(k), k - 1, torch.arange(N) % k) for k in (2, 4)]


@pytest.mark.parametrize(("loss", "outputs", "labels"), CASES + LEVELS, ids=lambda value: type(value).__name__)
def test_residuals_are_the_derivatives(loss: OutcomeLoss, outputs: int, labels: Tensor) -> None:
    z = normals(N, outputs)
    z = (z.sort(dim=1).values if isinstance(loss, Cumulative) else z).requires_grad_()
    loss(z, labels).sum().backward()
    torch.testing.assert_close(losses.residuals(z.detach().clone(), labels, loss), z.grad)


@pytest.mark.parametrize(("loss", "outputs", "labels"), CASES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("hidden", [0, 5])
@pytest.mark.parametrize("clip_norm", [0.5, math.inf])
def test_fast_engines_sum_what_vmap_sums(
    loss: OutcomeLoss, outputs: int, labels: Tensor, hidden: int, clip_norm: float
) -> None:
    kind: Any = Dense if hidden else ClosedForm
    layers = [nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, outputs)] if hidden else [nn.Linear(4, outputs)]
    model = nn.Sequential(*layers).double()
    y = normals(sum(p.numel() for p in model.parameters()), seed=3)
    batch = Records(normals(N, 4), labels)
    fast, slow = kind(model, loss, 2**24), Vmap(model, loss, 2**24)
    found, expected = (torch.full_like(y, math.nan) for _ in range(2))
    with torch.no_grad():
        fast.clipped_sum(y, fast.prepare(batch), clip_norm, found)
    slow.clipped_sum(y, slow.prepare(batch), clip_norm, expected)
    torch.testing.assert_close(found, expected)
    # The same of several silos at once, one of which has fewer records.
    pool = Pool({0: fast.prepare(batch)})
    rows = [torch.arange(N).numpy(), torch.arange(3).numpy()]
    together = torch.full((2, len(y)), math.nan, dtype=torch.float64)
    clip_norms = None if clip_norm == math.inf else torch.full((2, 1), clip_norm, dtype=torch.float64)
    with torch.no_grad():
        fast.clipped_sums(y.expand(2, -1), pool.gather([0, 0], rows), clip_norms, together)
        fast.clipped_sum(y, fast.prepare(batch.between(0, 3)), clip_norm, found)
    torch.testing.assert_close(together, torch.stack([expected, found]))


@pytest.mark.parametrize("kind", [ClosedForm, SharedScore, Vmap])
def test_whatever_the_weights_a_record_adds_no_more_than_the_clipping_norm(kind: Any) -> None:
    """A gradient is clipped after it is weighted: with weights of 1e6 or 1e-6, one record moves a sum by C at most."""
    levels = kind is SharedScore
    base: Any = Cumulative(3) if levels else losses.cross_entropy
    layers = [nn.Linear(4, 1), Thresholds(3)] if levels else [nn.Linear(4, 3)]
    model = nn.Sequential(*layers).double()
    loss = losses.Weighted(base, torch.tensor([1e6, 1.0, 1e-6], dtype=torch.float64))
    engine, y = kind(model, loss, 2**24), normals(sum(p.numel() for p in model.parameters()), seed=3)
    batch = engine.prepare(Records(10 * normals(N, 4), CLASSES))
    moved = []
    for record in range(N):
        out = torch.zeros_like(y)
        engine.clipped_sum(y, batch.between(record, record + 1), 0.5, out)
        moved.append(float(out.norm()))
    assert 0.499 < max(moved) <= 0.5 * (1 + 1e-9) and min(moved) < 1e-3


def test_hazards_are_the_likelihood_of_person_periods() -> None:
    z, labels = normals(N, 3), times()
    expected = []
    for scores, (time, event) in zip(torch.sigmoid(z).tolist(), labels.tolist(), strict=True):
        total = 0.0
        for hazard, (begin, end) in zip(scores, itertools.pairwise((0.0, *EDGES)), strict=True):
            if event and time <= end:
                total -= math.log(hazard)
                break
            share = 1.0 if event or time >= end else (time - begin) / (end - begin)
            total -= share * math.log1p(-hazard)
            if share < 1:
                break  # the end of this bin was not seen
        expected.append(total)
    torch.testing.assert_close(Hazards(EDGES)(z, labels), torch.tensor(expected, dtype=torch.float64))


def test_poisson_with_exposure_is_poisson_of_the_product() -> None:
    z, labels = normals(N, 1), CASES[2][2].double()
    counts, exposures = labels.unbind(1)
    expected = -torch.distributions.Poisson(exposures * z[:, 0].exp()).log_prob(counts) - (counts + 1).lgamma()
    torch.testing.assert_close(Poisson()(z, labels), expected)


def test_levels_are_differences_of_cumulative_logits() -> None:
    head = Thresholds(4).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(normals(*parameter.shape, seed=5) * 3)
    scores = normals(N, 1)
    logits = head(scores)
    assert bool((logits.diff(dim=1) > 0).all())  # whatever the parameters are
    zero, one = torch.zeros(N, 1, dtype=torch.float64), torch.ones(N, 1, dtype=torch.float64)
    expected = torch.cat([zero, logits.sigmoid(), one], dim=1).diff(dim=1)
    torch.testing.assert_close(log_probabilities(logits).exp(), expected)
    labels = torch.arange(N) % 4
    torch.testing.assert_close(Cumulative(4)(logits, labels), -expected.log().gather(1, labels[:, None])[:, 0])
    torch.testing.assert_close(Thresholds(4)(torch.zeros(1, 1)).sigmoid(), torch.tensor([[0.25, 0.5, 0.75]]))


OUTCOMES = {
    "regression": Outcome("regression", (0.0, 10.0)),
    "counts": Outcome("counts", (0.0, 9.0)),
    "multi_label": Outcome("multi_label"),
    "survival": Outcome("survival", (0.0, 4.0), EDGES),
}


@pytest.mark.parametrize("kind", OUTCOMES)
def test_linear_models_use_the_closed_form(kind: str) -> None:
    outcome = OUTCOMES[kind]
    outputs = outcome.num_outputs(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, outputs))
    loss = losses.find("auto", outputs, outcome)
    engine, _ = choose("auto", model, loss, Terms(chunk_bytes=2**20), torch.zeros(2, 4))
    assert engine.name == "closed_form"


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("clip_norm", [0.5, (0.3, 0.4), math.inf])
@pytest.mark.parametrize(
    ("head", "loss", "labels"),
    [
        (Thresholds(4), Cumulative(4), torch.arange(N) % 4),
        (Thresholds(2), Cumulative(2), torch.arange(N) % 2),
        (BaselineHazards(3), Hazards(EDGES), times()),
        (BaselineHazards(1), Hazards((4.0,)), times()),
    ],
    ids=["four levels", "two levels", "three bins", "one bin"],
)
def test_a_shared_score_sums_what_vmap_sums(
    head: ScoreHead, loss: ClosedLoss, labels: Tensor, clip_norm: float | tuple[float, ...], bias: bool
) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 1, bias=bias), head).double()
    y = normals(sum(p.numel() for p in model.parameters()), seed=3)
    batch = Records(normals(N, 4) * 3, labels)
    fast, slow = SharedScore(model, loss, 2**24), Vmap(model, loss, 2**24)
    found, expected = (torch.full_like(y, math.nan) for _ in range(2))
    with torch.no_grad():
        norms = fast.clipped_sum(y, fast.prepare(batch), clip_norm, found)
    torch.testing.assert_close(norms, slow.clipped_sum(y, slow.prepare(batch), clip_norm, expected))
    torch.testing.assert_close(found, expected)
    engine, reason = choose("auto", model.float(), loss, Terms(chunk_bytes=2**20), torch.zeros(2, 4))
    assert engine.name == "shared_score", reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_baseline_hazards_are_finite_for_any_score_and_their_derivatives_autograds(dtype: torch.dtype) -> None:
    head = BaselineHazards(2).to(dtype)
    scores = torch.tensor([-1e4, -300.0, -104.0, -20.0, -1.0, 0.0, 0.3, 2.0, 14.9, 15.1, 80.0, 1e4], dtype=dtype)
    for time, event in ((1.0, 1.0), (4.0, 1.0), (4.0, 0.0), (0.5, 0.0)):
        labels, leaf = torch.tensor([[time, event]]).expand(len(scores), 2), scores.clone().requires_grad_()
        losses_ = Hazards((1.0, 4.0))(head(leaf), labels)
        (expected,) = torch.autograd.grad(losses_.sum(), leaf)
        with torch.no_grad():
            residuals = Hazards((1.0, 4.0)).residuals(head(scores), labels)
            found, rows = head.derivatives(scores, list(head.parameters()), residuals)
        assert bool(losses_.isfinite().all()) and bool(expected.isfinite().all())
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(rows[0].sum(dim=1), expected, rtol=1e-4, atol=1e-6)
    rates = (head.log_rates + scores.unsqueeze(1)).clamp(max=3.0).exp()
    hazards = head(scores.clamp(max=3.0 - float(head.log_rates[0].detach()))).sigmoid()
    torch.testing.assert_close(hazards, -torch.expm1(-rates), rtol=1e-5, atol=1e-6)


def test_a_square_that_vanishes_counts_in_a_shared_scores_norm() -> None:
    """In float64, of a score's derivative so small that only very large features make something of it."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), BaselineHazards(1)).double()
    bound, x = 2.0**-40, 2.0**511.9
    engine = SharedScore(model, Hazards((4.0,)), 2**24)
    batch = engine.prepare(Records(torch.tensor([[x]], dtype=torch.float64), torch.tensor([[4.0, 0.0]])))
    for score in torch.arange(-380.0, -360.0, 0.5, dtype=torch.float64):
        y, out = torch.tensor([score / x, 0.0], dtype=torch.float64), torch.empty(2, dtype=torch.float64)
        with torch.no_grad():
            engine.clipped_sum(y, batch, bound, out)
        assert float(out.norm()) <= bound * (1 + 2**-19), score


class Wrong(Squared):
    """Whose derivative is not that of its values."""

    def residuals(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return 2 * Squared.residuals(self, outputs, labels)


def test_a_derivative_that_is_wrong_is_found_before_the_run() -> None:
    model = nn.Sequential(nn.Linear(4, 1))
    engine, reason = choose("auto", model, Wrong(0.0, 1.0), Terms(chunk_bytes=2**20), torch.zeros(2, 4))
    assert engine.name not in ("closed_form", "dense"), reason


def partial_likelihood(outputs: Tensor, labels: Tensor) -> Tensor:
    """As Cox's: who is at risk is seen by the times of the others."""
    scores, at_risk = outputs[:, 0], labels[:, :1].t() >= labels[:, :1]
    return -labels[:, 1] * (scores - scores.where(at_risk, -math.inf).logsumexp(dim=1))


def centred(outputs: Tensor, labels: Tensor) -> Tensor:
    """Which depends on other records only where their labels differ."""
    return outputs[:, 0] * (labels[:, 0] - labels[:, 0].mean())


@pytest.mark.parametrize("own", [partial_likelihood, centred])
def test_losses_that_mix_records_are_refused(own: Any) -> None:
    loss = losses.given(own, OUTCOMES["survival"], 3)
    with pytest.raises(UnsupportedError, match="depends on the other records"):
        choose("auto", nn.Sequential(nn.Linear(4, 3)), loss, Terms(chunk_bytes=2**20), torch.zeros(2, 4))


def test_losses_are_for_their_outcome() -> None:
    with pytest.raises(ConfigError, match="Cox's partial likelihood compares records"):
        losses.find("cox", 3, OUTCOMES["survival"])
    with pytest.raises(ConfigError, match="not for an outcome of counts"):
        losses.find("squared", 1, OUTCOMES["counts"])
    with pytest.raises(ConfigError, match="labels are classes"):
        losses.find("poisson", 3)
    assert losses.find("huber", 1, Outcome("regression", (0.0, 10.0), huber_delta=2.0)) == Huber(5.0, 5.0, 0.4)
    own = losses.given(lambda outputs, labels: outputs[:, 0] * labels, OUTCOMES["regression"], 1)
    assert isinstance(own, OutcomeLoss) and own.examples(1).dtype is torch.float32
