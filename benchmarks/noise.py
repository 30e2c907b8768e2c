"""What fresh noise costs: `python -m benchmarks.noise`; writes a table in docs/privacy.md.

Rounds with and without it take turns on one torch thread, so that a machine that is busy is busy for both; times are
those of the processor.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

import torch

from benchmarks.contenders import Ours
from benchmarks.pages import put
from benchmarks.table import table
from benchmarks.workloads import WORKLOADS
from dpfl_plugin.core import draws
from dpfl_plugin.core.streams import FreshStream, Stream
from dpfl_plugin.gradients.closed_form import ClosedForm

NUMBERS: Final = 200_000
TURNS: Final = 15


def seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def normals() -> list[list[str]]:
    """Nanoseconds of a number on the grid with its noise: of the run's streams, and of AES; with and without numba."""
    generators = {"seeded": Stream().seek(bytes(32)), "fresh": FreshStream().seek(b"")}
    ways = {"": draws.Kernels(worth=1), ", without numba": draws.Kernels(worth=2**62)}
    if ways[""].of(NUMBERS) is None:
        raise SystemExit("this compares with numba's loops, which are not to be had: pip install 'dpfl-plugin[fast]'")
    total, out = torch.zeros(NUMBERS, dtype=torch.float64), torch.empty(NUMBERS)
    found: dict[tuple[str, str], list[float]] = {(way, name): [] for way in ways for name in generators}
    for _ in range(TURNS):
        for (way, name), times in found.items():
            draws.kernels, generator = ways[way], generators[name]
            times.append(seconds(lambda g=generator: draws.add_rounded(total, 2.0**-20, 2.0**22, g, out)))  # type: ignore[misc]
    draws.kernels = ways[""]
    rows = []
    for way in ways:
        nano = [f"{statistics.median(found[way, name]) / NUMBERS * 1e9:.1f} ns" for name in generators]
        ratios = (s / p for s, p in zip(found[way, "fresh"], found[way, "seeded"], strict=True))
        rows.append([f"a number with its noise{way}", *nano, f"{statistics.median(ratios):.2f}"])
    return rows


def a_round(name: str) -> list[str]:
    """Seconds of a round of DP-SCAFFOLD."""
    load = WORKLOADS[name]
    silos = load.silos()
    contenders = {fresh: Ours(name, ClosedForm, load, silos, fresh=fresh) for fresh in (False, True)}
    found: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(TURNS + 1):
        for fresh, contender in contenders.items():
            took = seconds(lambda c=contender, t=turn: c.round(load.plan(t), load.draw(t)))  # type: ignore[misc]
            if turn:  # the first one warms up
                found[fresh].append(took)
    ratio = statistics.median(s / p for s, p in zip(found[True], found[False], strict=True))
    medians = [f"{statistics.median(found[fresh]):.3f} s" for fresh in (False, True)]
    return [f"a round of {name}", *medians, f"{ratio:.2f}"]


def main() -> None:
    torch.set_num_threads(1)
    rows = [*normals(), *(a_round(name) for name in ("W1", "W2"))]
    text = table(["", "seeded", "fresh", "times"], rows)
    print(text)
    put("docs/privacy.md", "fresh noise", text)


if __name__ == "__main__":
    main()
