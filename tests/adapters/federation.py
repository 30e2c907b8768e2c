"""A small federation, run in one process and by a plain loop over the seam of the adapters."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from dpfl_plugin.adapters import Agreement, Message, Server, Silo, agree
from dpfl_plugin.config.load import configure
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs.build import build
from dpfl_plugin.runs.checkpoint import load_facts
from dpfl_plugin.runs.folder import folder_of
from dpfl_plugin.runs.hooks import Silent
from dpfl_plugin.runs.run import run_config
from dpfl_plugin.runtimes.in_process import InProcessBackend

DATA = {
    "dataset": {
        "name": "synthetic",
        "alpha": 1,
        "beta": 1,
        "records_per_silo": 40,
        "num_features": 4,
        "num_classes": 3,
    },
    "num_silos": 4,
    "partition": "natural",
}
SCAFFOLD = {"name": "scaffold", "local_steps": 3, "local_lr": 0.5}
PUBLIC: dict[str, Any] = {"min_records": 20, "num_classes": 3}  # of the records of these tests, for owners' limits
NOISY = {"noise_multiplier": 1.5, "delta": 1e-5, "record_rate": 0.25}


def block(**changes: Any) -> dict[str, Any]:
    """What a platform's settings say of this package."""
    return {"rounds": 4, "algorithm": SCAFFOLD, "privacy": NOISY, **changes}


def in_process(folder: Path, values: Mapping[str, Any], dtype: str, data: Mapping[str, Any] = DATA):  # type: ignore[no-untyped-def]
    """(its parts, its model (d,), its charges, its random bits, its result) of a run in one process."""
    everything = {"seed": 0, **values, "data": data, "runtime": {"dtype": dtype}, "out": str(folder)}
    config = configure(everything, source="test")
    result = run_config(
        config, Path(), resume=False, backend=InProcessBackend(), reporter=Silent(), stop=lambda: False, ledger=None
    )
    parts = build(config, Path())
    files = folder_of(config)
    model = parts.layout.flatten(load_file(files.model))
    facts = load_facts(files.checkpoint)
    assert facts is not None
    return parts, model, set(Ledger.open(files.ledger, append=False)), draws(config.seed, facts["run_name"]), result


def draws(seed: int, name: str) -> Callable[[int], Draw]:
    return lambda round: Draw(seed, round, name)


SimulatedSilo = functools.partial(Silo, surroundings="simulation")  # whose owner sets no limits


@dataclass
class Loop:
    """A server and its silos, and the plainest of all platforms: a loop."""

    agreement: Agreement
    server: Server
    silos: dict[int, Silo]
    folder: Path

    def round(self, lose: Callable[[int, Message], Message | None] = lambda silo, up: up) -> bool | None:
        """One round; None if there is none. ``lose`` may change what a silo sent, or lose it."""
        message = self.server.begin()
        if message is None:
            return None
        for silo in self.server.asked:
            sent = Message.from_bytes(self.silos[silo].answer(over_the_wire(message)).to_bytes())
            came = lose(silo, sent)
            if came is not None:
                self.server.receive(silo, came)
        return self.server.end()

    def run(self) -> Tensor:
        while self.round() is not None:
            pass
        return self.server.model

    def charges(self) -> set[Charge]:
        return {charge for silo in self.silos.values() for charge in silo._ledger}


def over_the_wire(message: Message) -> Message:
    return Message.from_bytes(message.to_bytes())


@contextlib.contextmanager
def loop(folder: Path, values: Mapping[str, Any], module: torch.nn.Module, records: Mapping[int, Any], draw=None):  # type: ignore[no-untyped-def]
    agreement = agree(values, num_silos=len(records), model=module)
    with contextlib.ExitStack() as stack:
        silos = {
            i: stack.enter_context(
                SimulatedSilo(agreement, i, copy.deepcopy(module), one, folder / f"silo-{i}", draw=draw)
            )
            for i, one in records.items()
        }
        made = Loop(agreement, Server(agreement, module, folder / "server"), silos, folder)
        stack.callback(lambda: made.server.close())  # the one that it has then
        yield made


def records_of(parts) -> dict[int, tuple[Tensor, Tensor]]:  # type: ignore[no-untyped-def]
    return {i: (one.features, one.labels) for i, one in parts.train.items()}
