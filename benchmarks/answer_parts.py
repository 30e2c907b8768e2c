"""`python -m benchmarks.answer_parts [--write]`: where the time of a private round goes; a part of docs/adapters.md.

Workloads of `benchmarks.platforms`, and a linear model, without any platform: a server and its silos, each opened for
every message as the adapters open it, with files on the disk. Callables that a round goes through are wrapped: each
counts its time without that of wrapped ones inside it, so that the parts add up to the round. Processor time, which
depends little on what else the machine does; waiting for the disk is what the calls that wait took, less their
processor time, in the thread that trains: what is written while it does is waited for at its end.

Beside it what the project's own training takes, one pass through the same records by plain SGD; and how long a plain
round of a platform has to be, with all that it waits for, to take 1.3 times as long when it is private.
"""

from __future__ import annotations

import argparse
import copy
import functools
import os
import statistics
import tempfile
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.machine import facts
from benchmarks.pages import show
from benchmarks.table import table
from dpfl_plugin.adapters import Server, agree, frozen, kept, records, silo
from dpfl_plugin.adapters.agreement import Agreement
from dpfl_plugin.adapters.message import Message
from dpfl_plugin.adapters.standing import Standing
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.owners import lifetime
from dpfl_plugin.owners.limits import Limits
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.mechanisms import Gaussian

WAITING: Final = "waiting for the disk"
REST: Final = "all else of the silo"
SERVER: Final = "the server, for each silo"
PLAIN: Final = "plain training"
TRAINING, NOISE = "gradients of single records, clipped", "noise"
PARTS: Final[dict[str, list[tuple[Any, str]]]] = {
    TRAINING: [(SiloGroup, "run")],
    NOISE: [(Gaussian, "__call__")],
    "records: read, compared to the byte": [(records, "all_records"), (kept.Hashed, "same")],
    "model: copied, and compared by what decides": [
        (frozen.Frozen, "__init__"),
        (silo.Silo, "_decided_with"),
        (Agreement, "check"),
    ],
    "engine and configuration, from the last message": [(silo.Silo, "_prepare")],
    "ledgers: read, checked, locked": [(silo, "begun"), (lifetime, "opened"), (Ledger, "open")],
    "epsilon and its statement": [
        (Standing, "begin"),
        (Standing, "cover"),
        (Standing, "renew"),
        (Standing, "__init__"),
    ],
    "account and slots: may it be charged": [(silo, "make_account"), (silo, "spent"), (silo, "plan_of")],
    "charges": [(silo.Silo, "_charge")],
    "state and answer: read, written": [(silo, "load"), (silo, "save"), (Message, "digest")],
}
ALL: Final = "all of it, processor"
LONGER: Final = "plain round of which the addition is 0.3"
WAITS: Final = ((os, "fsync"), (os, "replace"), (threading.Thread, "join"))


@dataclass(frozen=True, slots=True)
class Load:
    """A workload: a model, and the records of its silos."""

    name: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    num_silos: int
    num_records: int
    steps: int
    rate: float
    limited: bool  # whether owners have set limits, as in a deployment


def _small() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def _linear() -> nn.Module:
    return nn.Linear(100, 2)


def _cnn() -> nn.Module:
    first, second = nn.Conv2d(3, 16, 5, 2), nn.Conv2d(16, 32, 3, 2)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(32 * 6 * 6, 10))


LOADS: Final = (
    Load("small model", _small, (64,), 5, 287, 10, 0.2, False),
    Load("linear", _linear, (100,), 2, 2000, 63, 0.016, True),
    Load("CNN", _cnn, (3, 32, 32), 2, 2000, 63, 0.016, True),
)


@dataclass(slots=True)
class Clock:
    """Seconds by part."""

    seconds: defaultdict[str, float] = field(default_factory=functools.partial(defaultdict, float))
    _within: list[float] = field(default_factory=list)

    def timed(self, part: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self.of(part):
                return real(*args, **kwargs)

        return wrapped

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Count processor time as that of ``part``, but for what other parts count inside it."""
        self._within.append(0.0)
        began = time.process_time()
        try:
            yield
        finally:
            took = time.process_time() - began
            self.seconds[part] += took - self._within.pop()
            if self._within:
                self._within[-1] += took

    def waiting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Count what a call of the main thread takes beyond its processor time."""

        @functools.wraps(real)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            began, worked = time.perf_counter(), time.thread_time()
            found = real(*args, **kwargs)
            waited = time.perf_counter() - began - (time.thread_time() - worked)
            self.seconds[WAITING] += waited if threading.current_thread() is threading.main_thread() else 0.0
            return found

        return wrapped


def measure(load: Load, rounds: int, folder: Path) -> tuple[list[Clock], list[float]]:
    """(the parts of each answer, seconds of plain training), but for those of the first two rounds."""
    torch.manual_seed(0)
    model, generator = load.model(), torch.Generator().manual_seed(1)

    def some() -> TensorDataset:
        x = torch.randn(load.num_records, *load.shape, generator=generator)
        return TensorDataset(x, torch.randint(2, (load.num_records,), generator=generator))

    loaders = [DataLoader(some(), batch_size=32, shuffle=True) for _ in range(load.num_silos)]
    algorithm = {"name": "scaffold", "local_steps": load.steps, "local_lr": 1.0}
    privacy = {"epsilon": 8.0, "delta": 1e-4, "record_rate": load.rate}
    values = {"rounds": rounds, "algorithm": algorithm, "privacy": privacy}
    agreement, cache = agree(values, num_silos=load.num_silos, model=model), kept.Kept()
    clocks: list[Clock] = []
    plain: list[float] = []
    with Server(agreement, copy.deepcopy(model), folder / "server") as server:
        for round in range(rounds):
            with _wrapped(clock := Clock()), clock.of(SERVER):
                message = server.begin(range(load.num_silos))
            assert message is not None
            shared, of_round = clock, []
            for i, loader in enumerate(loaders):
                with _wrapped(clock := Clock()), clock.of(REST):
                    answer = _answer(load, agreement, i, model, loader, folder, cache, message)
                with _wrapped(clock), clock.of(SERVER):
                    server.receive(i, Message.from_tensors(answer.to_tensors()))
                of_round.append(clock)
                plain.append(_plain(model, loader))
            with _wrapped(shared), shared.of(SERVER):
                assert server.end()
            for clock in of_round:  # the server's, in equal shares
                for part, seconds in shared.seconds.items():
                    clock.seconds[part] += seconds / load.num_silos
            clocks += of_round if round > 1 else []
    return clocks, plain[2 * load.num_silos :]


def _answer(
    load: Load,
    agreement: Agreement,
    id: int,
    model: nn.Module,
    data: Any,
    folder: Path,
    cache: kept.Kept,
    asked: Message,
) -> Message:
    facts = {"min_records": len(data[1]), "num_classes": int(data[1].max()) + 1}
    limits = Limits(folder=folder / f"owner-{id}", epsilon=100.0, delta=1e-3, **facts) if load.limited else None
    surroundings: Any = "deployment" if load.limited else "simulation"
    place = None if load.limited else folder / f"silo-{id}"
    with silo.Silo(agreement, id, model, data, place, limits=limits, surroundings=surroundings, kept=cache) as one:
        answer = one.answer(asked)
        one.write_frozen_to(model)
    return answer


@contextmanager
def _wrapped(clock: Clock) -> Iterator[None]:
    with ExitStack() as stack:
        for part, callables in PARTS.items():
            for owner, name in callables:
                real = vars(owner)[name]
                if isinstance(real, classmethod):
                    new: Any = classmethod(clock.timed(part, real.__func__))
                else:
                    new = clock.timed(part, real)
                stack.enter_context(mock.patch.object(owner, name, new))
        for owner, name in WAITS:
            stack.enter_context(mock.patch.object(owner, name, clock.waiting(getattr(owner, name))))
        yield


def _plain(model: nn.Module, loader: Any) -> float:
    """Processor seconds of one pass through the records by SGD, as the example's trainer makes it."""
    model = copy.deepcopy(model)
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()
    began = time.process_time()
    for x, y in loader:
        _step(model, optimizer, loss, x, y)
    return time.process_time() - began


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: nn.Module, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()


def parts_table(rounds: int) -> str:
    torch.set_num_threads(1)
    columns: list[dict[str, float]] = []
    for load in LOADS:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            clocks, plain = measure(load, rounds, Path(folder))
        names = [TRAINING, NOISE, *[part for part in PARTS if part not in (TRAINING, NOISE)], REST, SERVER]
        found = {name: statistics.median(clock.seconds[name] for clock in clocks) for name in names}
        of_plain = statistics.median(plain)
        columns.append(
            {
                PLAIN: of_plain,
                **found,
                ALL: sum(found.values()),
                f"{WAITING}, beside it": statistics.median(clock.seconds[WAITING] for clock in clocks),
                LONGER: (sum(found.values()) - of_plain) / 0.3,
            }
        )
    rows = [[name, *[cell for column in columns for cell in _cells(column, name)]] for name in columns[0]]
    heads = [head for load in LOADS for head in (f"{load.name}, ms", "of plain")]
    known = facts()
    about = f"{known['date']}, {known['processor']}, one thread, not idle; medians of all answers but of the first two"
    return f"{table(['for each silo and round', *heads], rows)}\n\n{about} rounds of {rounds}."


def _cells(column: dict[str, float], name: str) -> tuple[str, str]:
    return f"{1e3 * column[name]:.2f}", f"{column[name] / column[PLAIN]:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--write", action="store_true", help="into docs/adapters.md")
    arguments = parser.parse_args()
    text = parts_table(arguments.rounds)
    show("docs/adapters.md", "parts table", text, write=arguments.write)


if __name__ == "__main__":
    main()
