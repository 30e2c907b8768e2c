"""What a run draws, and by whom it is drawn: seen where `core` draws it, whatever is between there and the command."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from dpfl_plugin.core import device_noise, draws, streams
from dpfl_plugin.core.rounded_normals import nearest
from dpfl_plugin.privacy import samplers
from dpfl_plugin.runtimes.in_process import InProcess
from dpfl_plugin.runtimes.mpi.server import MpiRuntime

SHOWN: Final = 3  # of the numbers of a draw: for readers; the digest has all
ALL_SHOWN: Final = 12
Name = tuple[int, int, str, int]
"""(round, silo, purpose, step)"""


@dataclass
class Seen:
    """The draws of a run.

    Attributes:
        draws: integers, by the name of the stream that they are made of: noise in steps of the grid, without what it is
            added to; and indices of records.
        rounds: what each round asks for, and of whom, in order.
    """

    draws: defaultdict[Name, list[int]] = field(default_factory=lambda: defaultdict(list))
    rounds: list[list[Any]] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """The same for any order in which silos are computed. A line of draws has those of all steps of a silo."""
        return {
            "rounds": self.rounds,
            "draws": {
                f"round {round} silo {silo} {purpose} step {step}": _shown(self.draws[round, silo, purpose, step])
                for round, silo, purpose, step in sorted(self.draws)
            },
        }


def _shown(values: list[int]) -> str:
    if len(values) <= ALL_SHOWN and all(abs(value) < 1000 for value in values):
        return " ".join(map(str, values))
    digest = hashlib.sha256(repr(values).encode()).hexdigest()[:12]
    return " ".join([*map(str, values[:SHOWN]), f"... {len(values)} in all, {digest}"])


class _Streams:
    """Which stream is the one that a generator is at."""

    def __init__(self) -> None:
        self.names: dict[bytes, Name] = {}
        self._at: dict[int, Name] = {}
        self._kept: list[object] = []  # so that no other generator gets an id that is known

    def named(self, original: Callable[..., bytes]) -> Callable[..., bytes]:
        signature = inspect.signature(original)

        def stream_key(*args: Any, **given: Any) -> bytes:
            key = original(*args, **given)
            bound = signature.bind(*args, **given)
            bound.apply_defaults()
            found = bound.arguments
            self.names[key] = found["round"], found["silo"], found["purpose"], found["step"]
            return key

        return stream_key

    def moved(self, original: Callable[..., np.random.Generator]) -> Callable[..., np.random.Generator]:
        def seek(source: Any, key: Any) -> np.random.Generator:
            rng = original(source, key)
            name = self.names.get(key if isinstance(key, bytes) else key.astype("<u8").tobytes())
            if name is not None:
                self._at[id(rng)] = name
                self._kept.append(rng)
            return rng

        return seek

    def at(self, rng: np.random.Generator) -> Name:
        return self._at[id(rng)]


def _patched_everywhere(stack: contextlib.ExitStack, name: str, original: Any, replacement: Any) -> None:
    for module in [*sys.modules.values()]:
        if getattr(module, "__name__", "").startswith("dpfl_plugin") and getattr(module, name, None) is original:
            stack.enter_context(mock.patch.object(module, name, replacement))


@contextlib.contextmanager
def observed() -> Iterator[Seen]:
    """Records what is drawn meanwhile, in this process."""
    seen, at = Seen(), _Streams()
    add_rounded = draws.add_rounded

    def host_noise(total: Tensor, grid: float, std: float, rng: np.random.Generator, out: Tensor) -> None:
        values = nearest(total.cpu().numpy().copy(), grid)  # before the sum, which may be written to its place
        exact = torch.empty(total.shape, dtype=torch.float64)
        add_rounded(total, grid, std, rng, exact)
        seen.draws[at.at(rng)] += [int(step) for step in np.rint(exact.numpy() / grid) - values]
        out.copy_(exact)

    def there(words: Any, places: Any, *rest: Any) -> Tensor:
        found = rounded(words, places, *rest)
        for place, row in zip(places, found.tolist(), strict=True):
            seen.draws[at.names[words.key(*place)]] += map(int, row)
        return found

    rounded = device_noise.rounded

    def drawn(original: Callable[..., Any]) -> Callable[..., Any]:
        def draw(sampler: Any, num_records: int, rng: np.random.Generator) -> Any:
            index = original(sampler, num_records, rng)
            if index is not None:
                seen.draws[at.at(rng)] += map(int, index)
            return index

        return draw

    def ran(original: Callable[..., Any]) -> Callable[..., Any]:
        def run_round(runtime: Any, down: Any, plan: Any, draw: Any) -> Any:
            seen.rounds.append([plan.task, *plan.participants, f"{plan.num_gradients} gradients"])
            return original(runtime, down, plan, draw)

        return run_round

    with contextlib.ExitStack() as stack:
        _patched_everywhere(stack, "stream_key", streams.stream_key, at.named(streams.stream_key))
        patches: list[tuple[Any, str, Any]] = [
            (streams.Stream, "seek", at.moved(streams.Stream.seek)),
            (draws, "add_rounded", host_noise),
            (device_noise, "rounded", there),
            (InProcess, "run_round", ran(InProcess.run_round)),
            (MpiRuntime, "run_round", ran(MpiRuntime.run_round)),
        ]
        for sampler in (samplers.FixedSize, samplers.WithReplacement, samplers.Poisson, samplers.Cyclic):
            patches.append((sampler, "draw", drawn(sampler.draw)))
        for where, name, replacement in patches:
            stack.enter_context(mock.patch.object(where, name, replacement))
        yield seen
