"""DP-FedEXP: the server's step, recomputed from what silos sent (Takakura, Liew, Hasegawa 2025, arXiv:2504.09850)."""

import math
from types import SimpleNamespace

import pytest
import torch

from dpfl_plugin.algorithms.base import RoundPlan, in_sums
from dpfl_plugin.algorithms.fedavg import FedAvg, FedSGD
from dpfl_plugin.algorithms.fedavg_sync import FedAvgSync
from dpfl_plugin.algorithms.fedprox import FedProx
from dpfl_plugin.algorithms.mb_sgd import MBSGD
from dpfl_plugin.algorithms.scaffold import Scaffold
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError, UnsupportedError
from tests.quadratics import Lab, rules, silo

# Silos that disagree: their updates are long, and the mean of these is short.
APART = [silo([1.0, 1.0], [9.0, 1.0]), silo([1.0, 1.0], [-9.0, 1.0]), silo([1.0, 1.0], [0.5, -2.0])]
SIGMA, C, K, ETA = 0.3, 2.0, 3, 0.1
# Of noise: at silo level one release of sensitivity 2 C; at record level K of them, times eta_l, over one record each.
VARIANCES = {"silo": (2 * C * SIGMA) ** 2, "record": K * (ETA * 2 * C * SIGMA) ** 2}


def lab(unit, sigma=SIGMA, clip_norm=C, **options):
    algorithm = FedAvg(**{"local_steps": K, "local_lr": ETA, **options})
    return Lab(algorithm, APART, rules(sigma, clip_norm, unit=unit), [5.0, 5.0])


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
@pytest.mark.parametrize("unit", VARIANCES)
def test_the_step_is_the_papers_and_a_function_of_what_was_released(unit, server_lr):
    found = lab(unit, server_optimizer="fedexp", server_lr=server_lr)
    steps = []
    for _ in range(12):
        before = found.server["model"]
        found.step()
        uploads = found.uploads[-1]["model"]
        d = uploads.shape[1]
        square = sum(float(row.square().sum()) - d * VARIANCES[unit] for row in uploads) / len(uploads)
        mean = uploads.mean(dim=0)
        steps.append(max(1.0, square / float(mean.square().sum())))
        torch.testing.assert_close(found.server["model"], before + server_lr * steps[-1] * mean)
    assert max(steps) > 1.5  # silos disagree
    assert min(steps) >= 1.0


@pytest.mark.parametrize("unit", VARIANCES)
def test_it_releases_and_costs_what_fedavg_does(unit):
    """The first round starts at the same model: the same updates, bit by bit; and every round the same charges."""
    plain, extrapolated = lab(unit), lab(unit, server_optimizer="fedexp")
    for _ in range(3):
        plain.step()
        extrapolated.step()
    assert torch.equal(plain.uploads[0]["model"], extrapolated.uploads[0]["model"])
    assert [charge.release for charge in plain.ledger] == [charge.release for charge in extrapolated.ledger]


def test_without_noise_nothing_is_taken_off():
    found = lab("record", 0.0, math.inf, server_optimizer="fedexp")
    found.step()
    uploads = found.uploads[0]
    torch.testing.assert_close(uploads["square"], uploads["model"].square().sum(dim=1, keepdim=True))


def test_noise_alone_has_no_squared_norm_in_the_mean():
    """Releases of zeros in 400 numbers: the mean of 200 corrected squares is 0 to 6 of its standard deviations, far
    below what the noise itself has (false alarms: 2e-9)."""
    d, rounds = 400, 200
    still = [silo([0.0] * d, [0.0] * d)]
    found = Lab(FedAvg(local_steps=2, local_lr=ETA, server_optimizer="fedexp"), still, rules(SIGMA, C), [0.0] * d)
    for _ in range(rounds):
        found.step()
    variance = 2 * (ETA * 2 * C * SIGMA) ** 2
    mean = sum(float(up["square"]) for up in found.uploads) / rounds
    assert abs(mean) < 6 * variance * math.sqrt(2 * d / rounds) < 0.05 * d * variance


def test_in_one_epoch_as_in_its_steps():
    given = {"local_lr": ETA, "server_optimizer": "fedexp"}
    sgd = Lab(FedSGD(form="single", **given), APART, rules(SIGMA, C), [5.0, 5.0])
    avg = Lab(FedAvg(local_steps=1, **given), APART, rules(SIGMA, C), [5.0, 5.0])
    for _ in range(3):
        sgd.step()
        avg.step()
    assert torch.equal(sgd.server["model"], avg.server["model"])


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (Scaffold, {"local_steps": 1, "local_lr": 0.1}),
        (FedProx, {"local_steps": 1, "local_lr": 0.1, "mu": 0.1}),
        (MBSGD, {"lr": 0.1}),
    ],
)
def test_where_the_noise_of_an_update_has_another_form_it_is_refused(make, options):
    with pytest.raises(ConfigError, match=r"server_optimizer='fedexp'"):
        make(**options, server_optimizer="fedexp")


class Leaky(FedAvg):
    """Sends the squared norm of an update that was not released."""

    def local_update(self, down, silos, oracle, plan) -> tuple[Vectors, Vectors]:
        x = down["model"].expand(oracle.num_silos, -1)
        update = -oracle.gradient(x)
        released = oracle.release(update)
        return {"model": released, "square": oracle.squared_norm(update, 1.0)}, {}


class Own(Leaky):
    """Sends a number of its own making."""

    def local_update(self, down, silos, oracle, plan) -> tuple[Vectors, Vectors]:
        x = down["model"].expand(oracle.num_silos, -1)
        update = -oracle.gradient(x)
        return {"model": oracle.release(update), "square": update.square().sum(dim=1, keepdim=True)}, {}


@pytest.mark.parametrize("make", [Leaky, Own])
def test_the_squared_norm_of_what_was_not_released_does_not_leave_a_silo(make):
    found = Lab(make(local_steps=1, local_lr=1.0), APART, rules(SIGMA, C, unit="silo"), [5.0, 5.0])
    with pytest.raises(UnsupportedError, match="without releasing it"):
        found.step()


class _Released:
    """An oracle whose release cannot be taken for anything else."""

    num_silos = 2

    def gradient(self, y):
        return torch.ones_like(y)

    def release(self, update):
        self.released = torch.rand_like(update)
        return self.released.clone()

    def squared_norm(self, update, scale):
        return update.square().sum(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("algorithm", "says"),
    [
        (FedAvg(local_steps=2, local_lr=0.1), True),
        (FedAvg(local_steps=2, local_lr=0.1, server_optimizer="adam", average="tail"), True),
        (FedSGD(local_lr=0.1), True),
        (FedProx(local_steps=2, local_lr=0.1, mu=0.1), True),
        (FedAvgSync(local_steps=2, local_lr=0.1, gradient_clip=1.0), True),
        (MBSGD(lr=0.1), True),
        (FedAvg(local_steps=2, local_lr=0.1, server_optimizer="fedexp"), False),
        (Scaffold(local_steps=2, local_lr=0.1), False),
    ],
    ids=lambda one: getattr(one, "server_optimizer", "") + type(one).__name__,
)
def test_who_says_that_only_sums_of_releases_are_seen_sends_what_was_released_and_nothing_else(algorithm, says):
    """The squared norms of fedexp have the noise of one silo each: no outsider may be promised that of all."""
    assert in_sums(algorithm) == says
    oracle, model, plan = _Released(), torch.zeros(3), RoundPlan(local_steps=2, local_lr=0.1, num_gradients=2)
    down = dict.fromkeys(("model", "control", "setting", "round"), model)
    if isinstance(algorithm, FedAvgSync):
        down = {**down, "setting": torch.zeros(8)}
    uploads, states = algorithm.local_update(down, algorithm.init_silos(model, 2), oracle, plan)
    alone = not states and [*map(torch.equal, uploads.values(), [oracle.released])] == [True] == [True] * len(uploads)
    assert alone == says


def test_an_algorithm_that_says_nothing_is_not_believed_to_send_releases_alone():
    assert not in_sums(SimpleNamespace(init_silos=lambda model, num_silos: {}))


def test_what_an_algorithm_says_of_its_uploads_is_not_believed_of_another_that_is_made_of_it():
    class Remembers(FedAvg):
        def local_update(self, down, silos, oracle, plan):
            return super().local_update(down, silos, oracle, plan)

    class SendsSquares(FedAvg):
        def squares(self, update, oracle, plan):
            return {"square": oracle.squared_norm(update, plan.local_lr)}

    class Renamed(FedAvg):
        """No code of its own."""

    for made in (Remembers, SendsSquares):
        assert not in_sums(made(local_steps=2, local_lr=0.1)), made
    assert in_sums(Renamed(local_steps=2, local_lr=0.1))
