"""A federation over a shared folder in one process: its server and silos take steps in turn."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dpfl_plugin.adapters import Agreement, agree
from dpfl_plugin.adapters.folder.keys import SERVER, Members, SecretKey, new_key
from dpfl_plugin.adapters.folder.server import FolderServer
from dpfl_plugin.adapters.folder.server import Waits as ServerWaits
from dpfl_plugin.adapters.folder.silo import FolderSilo, Over, Waits
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger

NAMES = ("north", "south", "east", "west")


def keys_of(*names: str) -> dict[str, SecretKey]:
    return {name: new_key() for name in (SERVER, *names)}


def members_of(keys: dict[str, SecretKey], **more: Any) -> Members:
    silos = {name: key.public.text for name, key in keys.items() if name != SERVER}
    return Members.of({"server": keys[SERVER].public.text, "silos": silos, **more}, "members.yaml")


@dataclass
class Sites:
    """Each site of a federation, with what it has for itself below ``path``.

    Attributes:
        away: silos that do nothing.
    """

    path: Path
    agreement: Agreement
    model: torch.nn.Module
    records: dict[int, Any]
    keys: dict[str, SecretKey]
    members: Members
    draw: Any = None
    patience: float | None = None
    now: float = 1e9
    away: set[str] = field(default_factory=set)
    server: FolderServer = None  # type: ignore[assignment]
    silos: dict[str, FolderSilo] = field(default_factory=dict)

    @property
    def shared(self) -> Path:
        return self.path / "shared"

    def start_server(self, **more: Any) -> None:
        if self.server is not None:
            self.server.close()
        model, own = copy.deepcopy(self.model), self.path / "own-server"
        self.server = FolderServer(
            self.shared,
            self.members,
            self.keys[SERVER],
            self.agreement,
            model,
            own,
            patience=self.patience,
            clock=lambda: self.now,
            **more,
        )

    def start(self, name: str, **more: Any) -> FolderSilo:
        given = {"surroundings": "simulation", "own": self.path / f"own-{name}", "draw": self.draw, **more}
        model, records = copy.deepcopy(self.model), self.records[self.members.silos.index(name)]
        self.silos[name] = FolderSilo(
            self.shared,
            self.members,
            self.keys[name],
            given.pop("agreement", self.agreement),
            model,
            records,
            clock=lambda: self.now,
            **given,
        )
        return self.silos[name]

    def start_all(self) -> None:
        self.start_server()
        for name in self.members.silos:
            self.start(name)

    def turn(self) -> ServerWaits | None:
        """The server's step, and then every silo's that is there; what the server waited for."""
        waits = self.server.step()
        for name, silo in self.silos.items():
            if name not in self.away:
                silo.step()
        return waits

    def run(self) -> torch.Tensor:
        while self.turn() is not None:
            pass
        return self.server.server.model

    def file_of(self, name: str) -> Path:
        (found,) = (self.shared / name).glob("answer-*.dpfl")
        return found

    def charges(self, name: str) -> list[Charge]:
        path = self.path / f"own-{name}" / "ledger.jsonl"
        return list(Ledger.open(path, append=False)) if path.exists() else []


@contextlib.contextmanager
def sites(
    path: Path, values: dict[str, Any], model: torch.nn.Module, records: dict[int, Any], **more: Any
) -> Iterator[Sites]:
    names = NAMES[: len(records)]
    keys = keys_of(*names)
    members = members_of(keys, **{key: more.pop(key) for key in ("encrypt",) if key in more})
    made = Sites(path, agree(values, num_silos=len(records), model=model), model, records, keys, members, **more)
    made.start_all()
    try:
        yield made
    finally:
        made.server.close()


__all__ = ["NAMES", "Over", "Sites", "Waits", "keys_of", "members_of", "sites"]
