"""The in-process runtime: charged and on disk before anything is handed on; an abandoned round changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dpfl_plugin.algorithms.scaffold import Scaffold
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.runtimes.in_process import InProcess
from tests.quadratics import Lab, rules, silo


class Sink:
    def __init__(self, log: list[str]) -> None:
        self._log = log

    def append(self, charges: Sequence[Charge]) -> None:
        self._log.append(f"charged {sorted(charge.silo for charge in charges)}")

    def sync(self) -> None:
        self._log.append("synced")


def lab() -> Lab:
    silos = [silo([1.0, 2.0], [float(i), 1.0]) for i in range(4)]
    return Lab(Scaffold(local_steps=2, local_lr=0.1), silos, rules(sigma=1.0, clip_norm=1.0), [0.0, 0.0])


def test_charges_are_on_disk_before_anything_is_handed_on() -> None:
    here, log = lab(), []
    runtime = InProcess(here.host, Sink(log), stack_size=3, observers=[lambda *seen: log.append("observed")])
    runtime.run_round(here.algorithm.download(here.server), here.plan(), Draw(0, 0))
    assert log == ["charged [0, 1, 2]", "charged [3]", "synced", "observed"]


def test_an_abandoned_round_leaves_no_states() -> None:
    here = lab()
    runtime, down = InProcess(here.host, Sink([])), here.algorithm.download(here.server)
    runtime.run_round(down, here.plan([0, 1]), Draw(0, 0))  # not committed: as when the model was not finite
    assert not runtime.states()["control"].any()
    runtime.run_round(down, here.plan([2, 3]), Draw(0, 1))
    runtime.commit()
    changed = runtime.states()["control"].abs().sum(dim=1) > 0
    assert torch.equal(changed, torch.tensor([False, False, True, True]))
