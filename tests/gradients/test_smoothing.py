"""Smoothed losses: the Moreau envelope against a minimisation, convolution by statistics; the hinge loss itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import Tensor, nn

from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.gradients import losses, smoothing
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.smoothing import Convolution, Moreau, uniform_in_ball
from dpfl_plugin.gradients.vmap import Vmap

ALPHA = 1e-7


def model(num_features: int = 3, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(num_features, 1, bias=bias)).double()


def records(count: int, num_features: int = 3, seed: int = 0) -> Records:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, num_features, generator=generator, dtype=torch.float64)
    return Records(x, torch.randint(0, 2, (count,), generator=generator))


def point(d: int, seed: int = 1) -> Tensor:
    return torch.randn(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def total(engine: Vmap | ClosedForm, y: Tensor, batch: Records, clip_norm: float = math.inf) -> Tensor:
    out = torch.empty_like(y, dtype=torch.float64)
    engine.clipped_sum(y, engine.prepare(batch), clip_norm, out)
    return out


# Hinge


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("clip_norm", [math.inf, 0.7])
def test_the_closed_form_of_the_hinge_is_its_subgradient(bias: bool, clip_norm: float) -> None:
    net, batch = model(bias=bias), records(40)
    y = 0.3 * point(3 + bias)
    fast, slow = ClosedForm(net, losses.hinge, 2**20), Vmap(net, losses.hinge, 2**20)
    assert ClosedForm.unsupported(net, losses.hinge) is None
    torch.testing.assert_close(total(fast, y, batch, clip_norm), total(slow, y, batch, clip_norm))
    assert total(fast, y, batch).norm() > 0.1


def test_hinge_values() -> None:
    scores, labels = torch.tensor([2.0, 0.5, -1.0, 0.5]), torch.tensor([1, 1, 1, 0])
    assert losses.hinge(scores, labels).tolist() == [0.0, 0.5, 2.0, 1.5]
    assert losses.find("hinge", 1) is losses.hinge


def test_a_record_that_is_not_finite_adds_nothing_under_the_hinge() -> None:
    batch, y = records(5), 0.1 * point(4)
    batch.features[2, 1] = math.inf
    good = batch.select(torch.tensor([0, 1, 3, 4]))
    for engine in (ClosedForm(model(), losses.hinge, 2**20), Vmap(model(), losses.hinge, 2**20)):
        torch.testing.assert_close(total(engine, y, batch, 0.5), total(engine, y, good, 0.5))


# Moreau envelope


def envelope(y: np.ndarray, x: np.ndarray, label: int, beta: float) -> float:
    """min_v max(0, 1 - l <v, x>) + beta/2 ||y - v||^2, as a quadratic programme in (v, slack) by SLSQP."""
    sign, d = 2 * label - 1, len(y)
    start = np.append(y, max(0.0, 1 - sign * y @ x))
    found = optimize.minimize(
        lambda z: z[d] + beta / 2 * ((y - z[:d]) ** 2).sum(),
        start,
        jac=lambda z: np.append(beta * (z[:d] - y), 1.0),
        constraints=[
            {"type": "ineq", "fun": lambda z: z[d], "jac": lambda z: np.eye(d + 1)[d]},
            {"type": "ineq", "fun": lambda z: z[d] - 1 + sign * z[:d] @ x, "jac": lambda z: np.append(sign * x, 1.0)},
        ],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 300},
    )
    return float(found.fun)


@pytest.mark.parametrize("beta", [0.3, 5.0])
def test_the_gradient_of_the_envelope_is_that_of_a_minimisation(beta: float) -> None:
    """Central differences of the envelope's value; records on the flat, the bent and the straight part."""
    engine, batch = Moreau(model(), losses.hinge, beta), records(12)
    y, step = 2.0 * point(4), 1e-4
    parts = set()
    for j in range(12):
        one = batch.select(torch.tensor([j]))
        x = np.append(one.features[0].numpy(), 1.0)
        label = int(one.labels[0])
        expected = []
        for axis in np.eye(4):
            up, down = (envelope(y.numpy() + k * step * axis, x, label, beta) for k in (1, -1))
            expected.append((up - down) / (2 * step))
        found = total(engine, y, one)
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-4, rtol=0)
        slope = float(found.norm()) / np.linalg.norm(x)
        parts.add("flat" if slope == 0 else "straight" if slope > 1 - 1e-9 else "bent")
    assert {"flat", "straight" if beta == 5.0 else "bent"} <= parts


def test_the_envelopes_gradient_is_beta_lipschitz_and_tends_to_the_subgradient() -> None:
    """Lemma E.1 (1), and beta -> infinity."""
    batch = records(30)
    for beta in (0.5, 4.0):
        engine = Moreau(model(), losses.hinge, beta)
        for seed in range(30):
            one, y = batch.select(torch.tensor([seed])), point(4, seed)
            near = y + 0.1 * point(4, seed + 100)
            assert (total(engine, y, one) - total(engine, near, one)).norm() <= beta * (y - near).norm() * (1 + 1e-9)
    y = point(4)
    sharp, plain = Moreau(model(), losses.hinge, 1e9), Vmap(model(), losses.hinge, 2**20)
    torch.testing.assert_close(total(sharp, y, batch), total(plain, y, batch))


def test_clipping_is_each_records_own() -> None:
    engine, batch, y = Moreau(model(), losses.hinge, 2.0), records(10), 0.2 * point(4)
    single = [total(engine, y, batch.select(torch.tensor([j]))) for j in range(10)]
    expected = sum(g / max(1.0, float(g.norm()) / 0.6) for g in single)
    torch.testing.assert_close(total(engine, y, batch, 0.6), expected)


def test_what_has_no_known_envelope_is_refused() -> None:
    two = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    for net, loss in (
        (model(), losses.logistic),
        (two, losses.hinge),
        (nn.Sequential(model(), nn.ReLU()), losses.hinge),
    ):
        with pytest.raises(UnsupportedError, match="loss: hinge"):
            smoothing.engine(("moreau", 1.0), net, loss)
    with pytest.raises(ConfigError, match="convolution or moreau"):
        smoothing.engine(("median", 1.0), model(), losses.hinge)
    for kind in ("moreau", "convolution"):
        with pytest.raises(ConfigError, match="positive"):
            smoothing.engine((kind, 0.0), model(), losses.hinge)
    with pytest.raises(UnsupportedError, match="convolution smoothing cannot be used"):
        smoothing.engine(("convolution", 1.0), nn.Sequential(model(), nn.Dropout(0.5)), losses.hinge)


# Convolution


@pytest.mark.statistical
@pytest.mark.parametrize("d", [1, 3, 20])
def test_points_are_uniform_in_the_ball(d: int) -> None:
    """||v||^d is uniform on [0, 1], and every direction is as likely: <v, e> has the law of its mirror image.

    False alarm 1e-7 each, 6 tests; d + 1 in place of d + 2 normals, which is uniform in no ball, would be noticed.
    """
    rng = np.random.default_rng()
    v = uniform_in_ball(20_000, d, rng)
    radii = torch.linalg.vector_norm(v, dim=1).numpy()
    assert stats.kstest(radii**d, "uniform").pvalue > ALPHA
    assert stats.ks_2samp(v[:10_000, 0].numpy(), -v[10_000:, 0].numpy()).pvalue > ALPHA
    other = torch.from_numpy(rng.standard_normal((20_000, d + 1)))
    wrong = torch.linalg.vector_norm(other[:, :d] / other.norm(dim=1, keepdim=True), dim=1).numpy()
    assert stats.kstest(wrong**d, "uniform").pvalue < ALPHA


def test_points_are_the_same_however_many_are_drawn_at_a_time() -> None:
    whole = uniform_in_ball(10, 4, np.random.default_rng(3))
    rng = np.random.default_rng(3)
    assert torch.equal(whole, torch.cat([uniform_in_ball(count, 4, rng) for count in (1, 6, 3)]))


@pytest.mark.statistical
def test_convolution_is_unbiased() -> None:
    """Lemma D.2 (4): the mean over v is the gradient of E f(y + v); for the hinge of a linear score in closed form.

    <v, x> / (s ||x||) is a coordinate of a uniform point of the ball in d dimensions: (z + 1) / 2 has the law
    Beta((d + 1) / 2, (d + 1) / 2), so that E grad f = -l x P(l <y, x> + <v, x> < 1). The count of points below is
    binomial: a two-sided test at 1e-7 for each of 5 records. A radius that is 10 % too large would be noticed.
    """
    s, draws, d = 0.8, 20_000, 4
    batch, y = records(5, seed=4), 0.3 * point(4)
    noticed = []
    for j in range(5):
        one = batch.select(torch.tensor([j] * draws))
        engine = Convolution(model(), losses.hinge, s)
        engine.rng = np.random.default_rng()
        x = np.append(one.features[0].numpy(), 1.0)
        sign = 2 * int(one.labels[0]) - 1
        found = total(engine, y, one).numpy()
        below = round(float(found[3] / -sign))  # the bias' derivative is -l where the margin is missed
        np.testing.assert_allclose(found, -sign * x * below, atol=1e-6)
        for radius, test in ((s, True), (1.3 * s, False)):
            z = (1 - sign * (y.numpy() @ x)) / (radius * np.linalg.norm(x))
            chance = stats.beta.cdf((z + 1) / 2, (d + 1) / 2, (d + 1) / 2)
            p = stats.binomtest(below, draws, float(np.clip(chance, 0, 1))).pvalue
            if test:
                assert p > ALPHA
            else:
                noticed.append(p < ALPHA)
    assert any(noticed)


@pytest.mark.statistical
def test_every_record_has_a_point_of_its_own() -> None:
    """Theorem D.4: the variance of the mean of K records falls as 1 / K; one point for all would leave it as it is.

    At the kink each record's gradient is -l x or 0 with probability 1/2: the sum of 400 has the variance 100 ||x||^2,
    with one common point 40,000. 200 sums: a chi-square test at 1e-7.
    """
    x = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64).expand(400, 3)
    batch = Records(x, torch.ones(400, dtype=torch.int64))
    engine = Convolution(model(bias=False), losses.hinge, 0.5)
    y = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    sums = []
    for _ in range(200):
        engine.rng = np.random.default_rng()
        sums.append(-float(total(engine, y, batch)[0]))
    statistic = float(np.sum((np.array(sums) - 200) ** 2) / 100)
    assert stats.chi2(200).ppf(ALPHA) < statistic < stats.chi2(200).isf(ALPHA)


def test_convolution_of_any_model_clips_each_record() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    layout, batch = Layout.of(net), records(20)
    engine = Convolution(net, losses.cross_entropy, 0.1)
    y = layout.flatten(dict(net.named_parameters()))
    engine.rng = np.random.default_rng(0)
    assert total(engine, y, batch, 0.01).norm() <= 20 * 0.01
    plain = total(Vmap(net, losses.cross_entropy, 2**20), y, batch)
    tiny = Convolution(net, losses.cross_entropy, 1e-9)
    torch.testing.assert_close(total(tiny, y, batch), plain, atol=1e-6, rtol=1e-6)
