"""What a shared folder adds to a round of a large model: `python -m benchmarks.folder [--parameters N] [--write]`.

One silo and its server take turns in this process, on this machine's disk: over a shared folder, signed, then signed
and encrypted; and by the same Server and Silo whose messages stay in memory. Beside them, what the disk takes for the
bytes that the wire has to write and read: request and answer, each written once, synced and read once.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import nn

from benchmarks.machine import facts
from benchmarks.pages import show
from benchmarks.table import table
from dpfl_plugin.adapters import Agreement, Server, Silo, agree
from dpfl_plugin.adapters.folder.keys import SERVER, Members, new_key
from dpfl_plugin.adapters.folder.server import FolderServer
from dpfl_plugin.adapters.folder.silo import FolderSilo

OUTPUTS: Final = 1000
RECORDS: Final = 16
PAGE: Final = "docs/folder.md"


def federation(parameters: int, rounds: int) -> tuple[Agreement, nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """(agreement, model of about so many parameters, one silo's records)."""
    inputs = max(1, parameters // OUTPUTS - 1)
    model = nn.Linear(inputs, OUTPUTS)
    settings = {
        "rounds": rounds,
        "algorithm": {"name": "fedavg", "local_steps": 1, "local_lr": 0.1},
        "privacy": {"noise_multiplier": 10.0, "delta": 1e-5, "record_rate": 0.5},
    }
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(RECORDS, inputs, generator=generator)
    return agree(settings, num_silos=1, model=model), model, (x, torch.arange(RECORDS) % OUTPUTS)


def in_memory(path: Path, parameters: int, rounds: int) -> Iterator[tuple[float, int]]:
    """(seconds, bytes of request and answer) of each round, whose messages never are files."""
    agreement, model, records = federation(parameters, rounds)
    server = Server(agreement, copy.deepcopy(model), path / "server")
    with Silo(agreement, 0, model, records, path / "silo", surroundings="simulation") as silo:
        for _ in range(rounds):
            began = time.perf_counter()
            message = server.begin()
            assert message is not None
            answer = silo.answer(message)
            server.receive(0, answer)
            server.end()
            yield time.perf_counter() - began, len(message.to_bytes()) + len(answer.to_bytes())
    server.close()


def over_folder(path: Path, parameters: int, rounds: int, *, encrypt: bool) -> Iterator[tuple[float, int]]:
    """The same over a shared folder."""
    agreement, model, records = federation(parameters, rounds)
    keys = {name: new_key() for name in (SERVER, "silo")}
    listed = {"server": keys[SERVER].public.text, "silos": {"silo": keys["silo"].public.text}, "encrypt": encrypt}
    members, shared = Members.of(listed, "members"), path / "shared"
    own = path / "silo"
    silo = FolderSilo(shared, members, keys["silo"], agreement, model, records, own, surroundings="simulation")
    with FolderServer(shared, members, keys[SERVER], agreement, copy.deepcopy(model), path / "server") as server:
        server.step()
        for _ in range(rounds):
            began = time.perf_counter()
            silo.step()
            server.step()  # takes the answer, ends the round and asks for the next
            yield time.perf_counter() - began, 0


def on_disk(path: Path, num_bytes: int, rounds: int) -> Iterator[tuple[float, int]]:
    """What the disk takes for so many bytes: written, synced, read."""
    data = os.urandom(num_bytes)
    for number in range(rounds):
        began, place = time.perf_counter(), path / f"bytes-{number}"
        with place.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        assert len(place.read_bytes()) == num_bytes
        yield time.perf_counter() - began, num_bytes
        place.unlink()


def measure(parameters: int, rounds: int) -> list[list[str]]:
    """Rows of the table; the first round of each is not counted."""
    rows, plain, size = [], 0.0, 0
    ways: dict[str, Callable[[Path], Iterator[tuple[float, int]]]] = {
        "messages in memory": lambda path: in_memory(path, parameters, rounds + 1),
        "shared folder, signed": lambda path: over_folder(path, parameters, rounds + 1, encrypt=False),
        "shared folder, signed and encrypted": lambda path: over_folder(path, parameters, rounds + 1, encrypt=True),
        "the disk alone: as many bytes written, synced and read": lambda path: on_disk(path, size, rounds + 1),
    }
    for name, way in ways.items():
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # a disk, where /tmp may be memory
            made = list(way(Path(folder)))[1:]
        seconds = statistics.median(one for one, _ in made)
        plain, size = plain or seconds, size or made[0][1]
        more = "" if name.startswith("the disk") or seconds == plain else f"{seconds - plain:.2f}"
        rows.append([name, f"{seconds:.2f}", more])
    return [*rows, ["bytes of request and answer", f"{size:,}", ""]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.folder", description="A round over a shared folder.")
    parser.add_argument("--parameters", type=int, default=10_000_000, help="of the model (default: 10,000,000)")
    parser.add_argument("--rounds", type=int, default=5, help="of each way (default: 5)")
    parser.add_argument("--write", action="store_true", help=f"the table into {PAGE}")
    options = parser.parse_args(arguments)
    head = [f"{options.parameters:,} parameters, one silo", "median s a round", "s more"]
    shown, where = table(head, measure(options.parameters, options.rounds)), facts()
    cores = where["cores this process may use"]
    text = f"{shown}\n\n{where['date']}, {where['processor']}, {cores} cores; rounds of each: {options.rounds}."
    show(PAGE, "cost table", text, write=options.write)


if __name__ == "__main__":
    main()
