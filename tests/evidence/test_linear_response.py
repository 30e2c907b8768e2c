"""What uploads tell of releases, found by impulses: the combinations that the algorithms' own formulas give."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.algorithms.scaffold import Scaffold, ScaffoldWarm
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.evidence import linear_response
from dpfl_plugin.evidence.linear_response import SeenRound, responses
from tests.quadratics import rules

T, K, W = 6, 3, 8
SETTING = Setting(num_silos=2, num_participants=2, silo_rate=1.0, record_rate=None)


class Known:
    """An oracle with known releases, and the regulariser."""

    def __init__(self, releases, l2):
        self.num_silos, self._releases, self._step, self._l2 = releases.shape[1], releases, 0, l2

    def gradient(self, y):
        self._step += 1
        return self._releases[self._step - 1] + self._l2 * y

    def release(self, update):
        return update


def run(algorithm, *, l2=0.0, absent=()):
    """(rounds as seen, releases (T, steps, 2, W)) of silos 0 and 1; ``absent``: rounds without silo 1."""
    rng = torch.Generator().manual_seed(0)
    model = torch.randn(W, generator=rng, dtype=torch.float64)
    server, states = algorithm.init_server(model, SETTING), algorithm.init_silos(model, 2)
    seen, released = [], []
    for t in range(T):
        plan = algorithm.round_plan(server, t, SETTING, None)
        rows = [0] if t in absent else [0, 1]
        plan = replace(plan, participants=tuple(rows), weights=(1 / len(rows),) * len(rows))
        releases = torch.randn(plan.num_gradients, 2, W, generator=rng, dtype=torch.float64)
        down = algorithm.download(server)
        old = {name: value[rows] for name, value in states.items()}
        up, new = algorithm.local_update(down, old, Known(releases[:, rows], l2), plan)
        for name, value in new.items():
            states[name][rows] = value
        mean_up = {name: value.mean(dim=0) for name, value in up.items()}
        server = algorithm.aggregate(server, mean_up, plan)
        seen.append(SeenRound(plan, tuple(rows), down, up))
        released.append(releases.numpy())
    return seen, released


def means(released, silo):
    """(T, W) sums of a round's releases over sqrt(K): what has variance 1."""
    return np.stack([r[:, silo].sum(axis=0) / math.sqrt(len(r)) for r in released])


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(local_steps=K, local_lr=0.3),
        FedAvg(local_steps=K, local_lr=0.3, server_optimizer="adam"),
        Scaffold(local_steps=K, local_lr=0.3),
        ScaffoldWarm(local_steps=K, local_lr=0.3, warm_rounds=2),
    ],
    ids=["fedavg", "adam", "scaffold", "warm"],
)
def test_innovations_are_the_rounds_mean_gradients(algorithm):
    """Whatever is uploaded (SCAFFOLD: twice, and telescoping), the server learns each round's mean and no more."""
    seen, released = run(algorithm)
    found, calls = responses(algorithm, rules(), seen, 2)
    assert calls == [K] * T
    for silo, one in enumerate(found):
        assert [t for t, _ in one.names] == list(range(T))
        signs = np.sign(one.mean)[:, None]  # an update is minus the gradients
        np.testing.assert_allclose(signs * one.innovations(1.0), means(released, silo), atol=1e-9)
        np.testing.assert_allclose(np.abs(one.mean), math.sqrt(K), rtol=1e-9)


def test_option_one_tells_its_extra_gradient_apart():
    seen, released = run(algorithm := Scaffold(local_steps=K, local_lr=0.3, option="I"))
    found, calls = responses(algorithm, rules(), seen, 2)
    assert calls == [K + 1] * T and len(found[0].names) == 2 * T
    extra = [i for i, (_, name) in enumerate(found[0].names) if name == "control"]
    first = np.stack([r[0, 0] for r in released])
    np.testing.assert_allclose(np.abs(found[0].innovations(1.0)[extra]), np.abs(first), atol=1e-9)


def test_a_silo_that_misses_rounds_and_a_regulariser():
    algorithm = Scaffold(local_steps=K, local_lr=0.3)
    seen, released = run(algorithm, l2=0.2, absent=(1, 4))
    found, _ = responses(algorithm, rules(l2=0.2), seen, 2)
    assert [t for t, _ in found[1].names] == [0, 2, 3, 5]
    # Later steps shrink what earlier ones did: no plain mean, but the white combination that is uploaded.
    weights = np.array([(1 - 0.3 * 0.2) ** (K - 1 - k) for k in range(K)])
    expected = np.stack([np.tensordot(weights / np.linalg.norm(weights), r[:, 1], 1) for r in released])
    np.testing.assert_allclose(np.abs(found[1].innovations(1.0)), np.abs(expected[[0, 2, 3, 5]]), atol=1e-9)


def test_the_noise_that_was_claimed_divides():
    seen, _ = run(algorithm := FedAvg(local_steps=K, local_lr=0.3))
    found, _ = responses(algorithm, rules(), seen, 2)
    np.testing.assert_allclose(found[0].innovations(4.0), found[0].innovations(1.0) / 4)


def test_blocks_of_impulses_add_up(monkeypatch):
    seen, _ = run(algorithm := Scaffold(local_steps=K, local_lr=0.3))
    whole, _ = responses(algorithm, rules(), seen, 2)
    monkeypatch.setattr(linear_response, "BLOCK", 5)
    parts, _ = responses(algorithm, rules(), seen, 2)
    np.testing.assert_allclose(parts[1].factor, whole[1].factor, atol=1e-12)
    np.testing.assert_allclose(parts[1].mean, whole[1].mean, atol=1e-12)


@dataclass(frozen=True, kw_only=True)
class Normalised(FedAvg):
    """Sends a direction: no linear function of the gradients."""

    def local_update(self, down, silos, oracle, plan):
        up, silos = super().local_update(down, silos, oracle, plan)
        return {name: value / value.norm(dim=1, keepdim=True) for name, value in up.items()}, silos


def test_an_algorithm_that_is_not_linear_is_refused():
    seen, _ = run(algorithm := Normalised(local_steps=K, local_lr=0.3))
    with pytest.raises(UnsupportedError, match="linear"):
        responses(algorithm, rules(), seen, 2)


def test_too_many_releases_are_refused(monkeypatch):
    seen, _ = run(algorithm := FedAvg(local_steps=K, local_lr=0.3))
    monkeypatch.setattr(linear_response, "MOST_RELEASES", T * K - 1)
    with pytest.raises(ConfigError, match="--rounds"):
        responses(algorithm, rules(), seen, 2)
