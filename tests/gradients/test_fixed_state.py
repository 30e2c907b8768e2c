"""A model whose buffers, modes or frozen parameters change while silos compute is refused before anything leaves."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpfl_plugin import PrivateOracle, registry
from dpfl_plugin.errors import ChangedError
from dpfl_plugin.gradients.base import Engine, Records
from dpfl_plugin.gradients.fixed_state import FixedState
from dpfl_plugin.gradients.losses import cross_entropy
from dpfl_plugin.runtimes.in_process import InProcess
from tests.cli.command import charges, run, write

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Calls ``change`` in each forward pass once ``active`` is set."""

    active = False
    mean: Tensor
    count: Tensor

    def __init__(self, change: Callable[[Net, Tensor], None] | None = None) -> None:
        super().__init__()
        self.layer, self.norm, self.change = nn.Linear(4, 3), nn.LayerNorm(3).requires_grad_(False), change
        self.register_buffer("mean", torch.tensor([0.0, torch.nan, -torch.inf]))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if Net.active and self.change is not None:
            self.change(self, x)
        out: Tensor = self.norm(self.layer(x))
        return out


@pytest.fixture
def active(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(Net, "active", True)


def counts(net: Net, x: Tensor) -> None:
    net.count += 1


def writes_a_buffer(net: Net, x: Tensor) -> None:
    net.mean.data[0] += 1.0


def replaces_a_buffer(net: Net, x: Tensor) -> None:
    net.count = torch.zeros(2)


def writes_a_frozen_parameter(net: Net, x: Tensor) -> None:
    net.norm.bias.add_(1.0)


def replaces_a_frozen_parameter(net: Net, x: Tensor) -> None:
    net.norm.weight = nn.Parameter(net.norm.weight.clone(), requires_grad=False)


def changes_its_mode(net: Net, x: Tensor) -> None:
    net.norm.train(not net.norm.training)


CHANGES: dict[Callable[[Net, Tensor], None], str] = {
    counts: "the buffer count",
    writes_a_buffer: "the buffer mean",
    replaces_a_buffer: "the buffer count",
    writes_a_frozen_parameter: r"the frozen parameter norm\.bias",
    replaces_a_frozen_parameter: r"the frozen parameter norm\.weight",
    changes_its_mode: "the training mode",
}


def trained(name: str, net: nn.Module) -> tuple[Engine, Records, Tensor]:
    """(an engine, a batch, room for its sum)"""
    engine: Engine = registry.load("engines", name)(net, cross_entropy, 2**20)
    return engine, engine.prepare(Records(X, torch.arange(6) % 3)), torch.zeros(15, dtype=torch.float64)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["bookkeeping", "opacus"])  # vmap itself refuses to write to what is not its own
def test_a_change_by_any_engine_is_refused(
    name: str, change: Callable[[Net, Tensor], None], active: Callable[[], None]
) -> None:
    net = Net(change)
    engine, batch, out = trained(name, net)
    state = FixedState(net, cross_entropy, getattr(engine, "runs", None))
    for step in range(3):
        engine.clipped_sum(torch.full((15,), float(step)), batch, 1.0, out)
        state.check()
    active()
    with torch.no_grad():
        engine.clipped_sum(torch.ones(15), batch, 1.0, out)
    with pytest.raises(ChangedError, match=f"^{CHANGES[change]}"):
        state.check()


def test_a_change_by_an_evaluation_or_of_a_losss_buffer_is_refused_in_the_next_round(
    active: Callable[[], None],
) -> None:
    net, evaluated = Net(counts), Net(counts).requires_grad_(False)
    state = FixedState(net, cross_entropy)
    state.watch(evaluated)
    for step in range(3):
        evaluated.layer.weight.data = torch.full((3, 4), float(step))
        evaluated(X)
        state.check()
    active()
    evaluated(X)
    with pytest.raises(ChangedError, match="the buffer count"):
        state.check()
    loss = nn.Sequential(nn.BatchNorm1d(4), nn.Flatten())
    state = FixedState(nn.Linear(4, 4), loss)
    loss(X)
    with pytest.raises(ChangedError, match=r"the buffer 0\.running_mean"):
        state.check()


def test_frozen_parameters_cost_nothing() -> None:
    """By their version counters: 40 MB would take milliseconds to read."""
    net = nn.Sequential(nn.Linear(10, 1_000_000).requires_grad_(False), nn.Linear(2, 2))
    state = FixedState(net, cross_entropy)
    seconds = []
    for _ in range(20):
        begin = time.perf_counter()
        state.check()
        seconds.append(time.perf_counter() - begin)
    assert min(seconds) < 1e-3


def test_a_private_gradient_is_neither_charged_nor_given(tmp_path: Path, active: Callable[[], None]) -> None:
    net = Net(counts)
    given = {"noise_multiplier": 2.0, "delta": 1e-5, "record_rate": 0.5}
    records = (X, torch.arange(6) % 3)
    with PrivateOracle.of(net, records, privacy=given, ledger=None, engine="opacus") as oracle:
        oracle.gradient()
        assert "The user's own code is trusted" in oracle.statement
        spent = oracle.epsilon
        active()
        with pytest.raises(ChangedError, match="the buffer count"):
            oracle.gradient()
        assert oracle.epsilon == spent and oracle.num_releases == 1


def make(feature_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Net(counts)


def test_a_round_is_not_charged_and_the_run_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, active: Callable[[], None]
) -> None:
    real, rounds = InProcess.run_round, [0]

    def run_round(self: InProcess, *given: Any) -> Any:
        rounds[0] += 1
        if rounds[0] == 2:
            active()
        return real(self, *given)

    monkeypatch.setattr(InProcess, "run_round", run_round)
    model = {"module": "tests.gradients.test_fixed_state:make"}
    result = run(write(tmp_path, {"model": model, "engine": "opacus", "evaluation": {"every": 100}}), code=1)
    assert result["status"] == "failed" and result["reason"].startswith("round 2: the buffer count changed")
    assert {charge.round for charge in charges(result["folder"])} == {0}
