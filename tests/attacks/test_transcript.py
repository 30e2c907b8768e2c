"""What the server reads off the uploads is what the silo's oracle released."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.attacks.transcript import Listener, listen
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.oracle import PrivateOracle
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs.build import build
from tests.attacks.simulated import HERE, config

ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedavg": {"algorithm": {"name": "fedavg"}},
    "momentum": {"algorithm": {"name": "fedavg", "server_optimizer": "momentum"}},
    "fedsgd": {"algorithm": {"name": "fedsgd", "local_steps": None}},
    "scaffold": {},
    "sampled": {"silo_rate": 0.7, "rounds": 6},
    "option I": {"algorithm": {"option": "I"}},
    "warm": {"algorithm": {"name": "scaffold_warm", "warm_rounds": 2}},
    "l2": {"l2": 0.1},
}


@pytest.mark.parametrize("change", ALGORITHMS.values(), ids=ALGORITHMS)
def test_the_mean_of_the_released_gradients(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = config({"rounds": 4, "runtime": {"dtype": "float64"}}, change)
    parts = build(wanted, HERE)
    released: dict[int, list[torch.Tensor]] = {}
    ask = PrivateOracle.gradient

    def recording(oracle: PrivateOracle, y: torch.Tensor) -> torch.Tensor:
        answer = ask(oracle, y)
        if oracle._ids == (1,):
            released.setdefault(oracle._draw.round, []).append((answer - wanted.l2 * y)[0])
        return answer

    monkeypatch.setattr(PrivateOracle, "gradient", recording)
    ledger = Ledger()
    heard = list(listen(wanted, parts, 1, ledger, "test"))
    assert [seen.round for seen in heard] == sorted(released) and len(heard) >= 2
    for seen in heard:
        expected = seen.weights @ torch.stack(released[seen.round])
        torch.testing.assert_close(seen.mean, expected, rtol=1e-6, atol=1e-9)
        assert float(seen.weights.sum()) == pytest.approx(1)
        assert wanted.l2 or seen.weights.tolist() == pytest.approx([1 / len(seen.weights)] * len(seen.weights))
    assert {charge.silo for charge in ledger} == {0, 1, 2}


def test_the_silos_state_is_no_secret() -> None:
    wanted = config({"rounds": 3, "runtime": {"dtype": "float64"}})
    parts = build(wanted, HERE)
    before = torch.zeros_like(parts.model)
    for seen in listen(wanted, parts, 2, Ledger(), "test"):
        held = parts.host.states["control"][2].clone()  # after the round
        # Option II: c_i is the mean of the round's gradients.
        torch.testing.assert_close(seen.mean, held, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(seen.state["control"][0], before, rtol=1e-6, atol=1e-9)
        before = held


def test_it_ends_where_the_budget_ends() -> None:
    wanted = config({"rounds": None, "privacy": {"epsilon": 5.0}})
    parts = build(wanted, HERE)
    ledger = Ledger()
    heard = list(listen(wanted, parts, 0, ledger, "test"))
    assert 1 <= len(heard) < 50
    mine = [charge for charge in ledger if charge.silo == 0]
    assert len(mine) == len(heard)


@dataclass(frozen=True, kw_only=True)
class SignSGD(FedAvg):
    """Sends signs, from which no gradient can be solved for."""

    def local_update(self, down, silos, oracle, plan):  # type: ignore[no-untyped-def]
        up, silos = super().local_update(down, silos, oracle, plan)
        return {"model": torch.sign(up["model"])}, silos


def test_uploads_that_are_not_affine_in_the_gradients_are_refused() -> None:
    algorithm = SignSGD(local_steps=1, local_lr=1.0)
    setting = Setting(num_silos=1, num_participants=1, silo_rate=1.0, record_rate=1.0)
    model = torch.zeros(4)
    plan = replace(algorithm.round_plan({}, 0, setting, None), participants=(0,), weights=(1.0,))  # type: ignore[arg-type]
    listener = Listener(algorithm, setting, model, 0.0)
    with pytest.raises(UnsupportedError, match="affine"):
        listener.hear(0, {"model": model}, plan, {"model": torch.tensor([[0.3, -0.1, 2.0, 1.0]])})
