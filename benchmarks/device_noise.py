"""What exact noise costs where it is drawn on the device of the gradients: `python -m benchmarks.device_noise`.

    python -m benchmarks.device_noise [--device cpu] [--workload W4] [--turns 9] [--write]

A number: nanoseconds, and bytes that torch's operations read and write, of the words that a normal is made of, and of
all of it; beside AES' words, which the host draws where the gradients are on it.

A step of one silo: its gradients alone (no noise), rounded to the grid and added to noise that is there already, with
noise drawn ahead by a thread of its own, and with noise drawn in the step, in interleaved turns. On a CPU all times are
of the processor: those of a step are of the thread that computes gradients, and where a second core is free, the slower
of the two threads is what a step takes.
`--write` puts the tables into docs/engines.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import machine
from benchmarks.contenders import Ours, ours
from benchmarks.engines import one_silo
from benchmarks.gpu import finish
from benchmarks.pages import show
from benchmarks.table import table
from benchmarks.workloads import WORKLOADS, Workload
from dpfl_plugin.core import device_noise
from dpfl_plugin.core.counter_words import CounterWords, FreshWords, SeededWords
from dpfl_plugin.core.fresh import FreshGenerator
from dpfl_plugin.privacy import noise

NUMBERS: Final = 2**20
STD: Final = 2.0**21  # steps of the grid: sigma = 1 and d = 2^20
STEPS: Final = 50  # a round of most workloads


class Traffic(TorchDispatchMode):
    """Operations, and the bytes that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [value for value in tree_leaves((args, kwargs, result)) if isinstance(value, Tensor)]
            self.bytes += sum(value.numel() * value.element_size() for value in tensors)
            self.count += 1
        return result


class DrawnWhenAsked:
    """In place of the thread: what would be drawn ahead is drawn where it is waited for."""

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.result = lambda timeout=None: function(*args)  # type: ignore[method-assign]
        return future


def seconds(work: Callable[[], object], device: str) -> float:
    clock = clock_of(device)
    finish(device)
    began = clock()
    work()
    finish(device)
    return clock() - began


def numbers(device: str, turns: int) -> str:
    place, there = [(0, 0)], torch.device(device)
    aes = FreshGenerator()
    seeded = SeededWords(lambda row, step: bytes(range(32)))
    pairs = device_noise.PAIRS.get(there.type, device_noise.MOST_PAIRS_AT_ONCE)

    def words(of: CounterWords) -> Callable[[], object]:
        return lambda: [of.words(place, first, first + pairs, there) for first in range(0, NUMBERS // 2, pairs)]

    def integers(of: CounterWords) -> Callable[[], object]:
        return lambda: device_noise.rounded(of, place, device_noise.normals(of, place, NUMBERS, there), [STD])

    ways: dict[str, Callable[[], object]] = {
        "words of AES, on the host": lambda: [aes.words(pairs * 2) for _ in range(0, NUMBERS // 2, pairs)],
        "words of ChaCha20": words(FreshWords()),
        "words of Philox": words(seeded),
        "noise of ChaCha20": integers(FreshWords()),
        "noise of Philox": integers(seeded),
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(turns):
        for way, work in ways.items():
            found[way].append(seconds(work, device))
    rows = []
    for way, work in ways.items():
        with Traffic() as traffic:
            work()
        chunks = max(1, NUMBERS // 2 // pairs)
        moved = [f"{traffic.bytes / NUMBERS:,.0f}", f"{traffic.count / chunks:,.0f}"] if traffic.count else ["8", ""]
        rows.append([way, f"{statistics.median(found[way]) / NUMBERS * 1e9:.1f}", *moved])
    return table(["a number", "ns", "bytes read and written", f"operations for {2 * pairs:,} numbers"], rows)


def clock_of(device: str) -> Callable[[], float]:
    """Of the processor, in this thread, where it computes: other programs disturb it less."""
    return time.thread_time if device == "cpu" else time.perf_counter


def turn(contender: Ours, load: Workload, number: int, drawing: object, *, free: bool) -> tuple[float, float]:
    """Seconds of a round, and of the processor for its noise.

    Args:
        drawing: stands for the thread that draws. free: the noise is ones, which are there at once.
    """
    of_noise: list[float] = []
    draw = device_noise.DeviceNoise._draw

    def timed(*args: Any) -> Any:
        began = time.thread_time()
        drawn = draw(*args)
        of_noise.append(time.thread_time() - began)
        return drawn

    def ones(made: device_noise.DeviceNoise, first: int, last: int, _: object) -> Any:
        assert made._stds is not None
        stds = [tuple(made._stds(step)) for step in range(first, last)]
        return torch.ones(last - first, made._rows, made._count, dtype=torch.float64, device=made._device), stds, None

    with (
        mock.patch.object(noise, "drawn_on_device", return_value=True),
        mock.patch.object(device_noise, "_thread", drawing),
        mock.patch.object(device_noise.DeviceNoise, "_draw", ones if free else timed),
    ):
        took = seconds(lambda: contender.round(load.plan(number), load.draw(number)), load.device)
        return took, sum(of_noise)


def steps(loads: dict[str, Workload], turns: int) -> str:
    rows = []
    for name, load in loads.items():
        load = one_silo(load, STEPS)
        silos, kind = load.silos(), next(iter(ours(load).values()))
        alone = Ours("gradients", kind, replace(load, noise_multiplier=0.0), silos, fresh=True)
        noisy = Ours("noise", kind, load, silos, fresh=True)
        thread = device_noise._thread
        ways = {
            "alone": (alone, thread, False),
            "rounded": (noisy, thread, True),
            "ahead": (noisy, thread, False),
            "in the step": (noisy, DrawnWhenAsked(), False),
        }
        times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for number in range(turns + 1):
            for way, (contender, drawing, free) in ways.items():
                took = turn(contender, load, number, drawing, free=free)
                if number:  # the first one warms up
                    times[way].append(took)
        rounds = {way: [took for took, _ in turns] for way, turns in times.items()}
        row = [name, f"{noisy.model().numel():,}", f"{statistics.median(rounds['alone']) / STEPS * 1e6:,.0f}"]
        ratios = [ratio(rounds[way], rounds["alone"]) for way in ("rounded", "ahead", "in the step")]
        rows.append([*row, *ratios, ratio([of_noise for _, of_noise in times["ahead"]], rounds["alone"])])
    head = ["a step of", "numbers", "gradients alone, us", "noise that is there, times", "noise drawn ahead, times"]
    return table([*head, "noise drawn in the step, times", "the thread that draws ahead, times"], rows)


def ratio(one: Sequence[float], other: Sequence[float]) -> str:
    ratios = sorted(a / b for a, b in zip(one, other, strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_noise", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", help="a torch device (default: cpu)")
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="default: all; may be repeated")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/engines.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    loads = {name: replace(WORKLOADS[name], device=options.device) for name in options.workload or WORKLOADS}
    facts = "; ".join(f"{key}: {value}" for key, value in {**machine.facts(), "device": options.device}.items())
    text = "\n\n".join([facts, numbers(options.device, options.turns), steps(loads, options.turns)])
    show("docs/engines.md", "device noise", text, write=options.write)


if __name__ == "__main__":
    main()
