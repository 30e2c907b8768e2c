"""Microseconds of a local step of one silo, by how its gradient is computed.

    python -m benchmarks.engines [--workload W1] [--turns 7] [--json]

A step is all that a silo does: draw the batch, gather it, the clipped sum, noise, the drift step. A turn is the local
steps of a silo in a round, with what it does once a round. One torch thread; those that are compared take turns, in
an order that rotates, on the same batches, so that a machine which is busy for a while is busy for all of them.
Ratios are medians of the ratios turn by turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import machine
from benchmarks.contenders import OURS, Contender, OpacusGhost, OpacusHooks, PlainSGD, contenders
from benchmarks.table import table
from benchmarks.workloads import WORKLOADS, Workload, describe

ROOFLINE: Final = 1024  # rows and columns of the product whose rate is what the machine can do

# What we set out to reach: at least so many times as fast as each; of plain SGD, on W4, at most 2.1 times as slow.
TARGETS: Final[dict[str, dict[str, float]]] = {
    OpacusHooks.name: {"W1": 8, "W2": 60, "W3": 9, "W4": 2.2},
    OpacusGhost.name: {"W1": 8, "W2": 3, "W3": 4, "W4": 1.2},
    PlainSGD.name: {"W1": 1, "W2": 1, "W3": 1, "W4": 1 / 2.1},
}


@dataclass(frozen=True, slots=True)
class Steps:
    """Seconds of a step in each turn, by contender, and of the arithmetic alone at the rate of a matrix product."""

    seconds: dict[str, list[float]]
    arithmetic: list[float]

    def medians(self) -> dict[str, float]:
        """Microseconds of a step."""
        return {name: statistics.median(found) * 1e6 for name, found in self.seconds.items()}

    def ratios(self, name: str) -> list[float]:
        """How many times as long as ours it takes, turn by turn, ascending."""
        return sorted(theirs / ours for theirs, ours in zip(self.seconds[name], self.seconds[OURS], strict=True))

    def gaps(self) -> list[float]:
        """How many times as long as the arithmetic we take, turn by turn, ascending."""
        return sorted(ours / least for ours, least in zip(self.seconds[OURS], self.arithmetic, strict=True))


def one_silo(load: Workload, steps: int) -> Workload:
    """A round of it is so many steps of one silo."""
    return replace(load, num_silos=1, num_participants=1, local_steps=steps)


def arithmetic(load: Workload) -> int:
    """Floating-point operations of a step's products and convolutions, forward and backward, of a mean gradient."""
    module, batch = load.module(), load.silo(0).between(0, load.batch_size)
    with FlopCounterMode(display=False) as counter:
        functional.cross_entropy(module(batch.features), batch.labels).backward()
    return int(counter.get_total_flops())


def gemm_rate() -> float:
    """Floating-point operations a second of a large product of matrices."""
    a, b = torch.ones(ROOFLINE, ROOFLINE), torch.ones(ROOFLINE, ROOFLINE)
    began = time.perf_counter()
    for _ in range(3):
        torch.mm(a, b)
    return 3 * 2 * ROOFLINE**3 / (time.perf_counter() - began)


def measure(load: Workload, turns: int, steps: int) -> Steps:
    """Interleaved turns of ``steps`` steps each, after one that is not counted."""
    load = one_silo(load, steps)
    entrants = contenders(load, load.silos())
    flops = arithmetic(load)
    for entrant in entrants:
        _turn(entrant, load, 0)
    gemm_rate()
    seconds: dict[str, list[float]] = {entrant.name: [] for entrant in entrants}
    least = []
    for number in range(1, turns + 1):
        first = number % len(entrants)
        for entrant in (*entrants[first:], *entrants[:first]):
            seconds[entrant.name].append(_turn(entrant, load, number) / steps)
        least.append(flops / gemm_rate())
    return Steps(seconds, least)


def _turn(entrant: Contender, load: Workload, number: int) -> float:
    plan, draw = load.plan(number), load.draw(number)
    began = time.perf_counter()
    entrant.round(plan, draw)
    return time.perf_counter() - began


def peak_mib(load: Workload, name: str, steps: int) -> float:
    """MiB by which steps raise the peak memory of this process, which has done nothing else; its records apart."""
    load = one_silo(load, steps)
    silos = load.silos()
    (entrant,) = (one for one in contenders(load, silos) if one.name == name)
    load.module()(silos[0].features[:1])
    before = _peak_kib()
    entrant.round(load.plan(0), load.draw(0))
    return (_peak_kib() - before) / 1024


def _peak_kib() -> int:
    """Not getrusage's: that of a new process begins with the memory of the one that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def peaks(workload: str, names: Sequence[str]) -> dict[str, float]:
    """`peak_mib` of each, in processes of their own."""
    found = {}
    for name in names:
        command = [sys.executable, "-m", "benchmarks.engines", "--workload", workload, "--peak", name]
        root = Path(__file__).resolve().parents[1]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
        found[name] = float(done.stdout)
    return found


def steps_table(found: Steps, memory: dict[str, float] | None = None) -> str:
    """A row for each that was compared: median, spread, ratio to ours with its spread."""
    rows = []
    for name, seconds in found.seconds.items():
        ratios = found.ratios(name)
        row = [name, *(f"{value * 1e6:,.0f}" for value in (statistics.median(seconds), min(seconds), max(seconds)))]
        row += [f"{statistics.median(ratios):.2f}", f"{ratios[0]:.2f} to {ratios[-1]:.2f}"]
        rows.append([*row, f"{memory[name]:,.0f}"] if memory else row)
    least = [value * 1e6 for value in found.arithmetic]
    gap = statistics.median(1 / ratio for ratio in found.gaps())
    row = ["arithmetic alone, at the rate of a large product", f"{statistics.median(least):,.0f}"]
    row += [f"{min(least):,.0f}", f"{max(least):,.0f}", f"{gap:.2f}", ""]
    header = ["gradients by", "median us", "min us", "max us", "times ours", "spread"]
    return table([*header, "MiB"] if memory else header, [*rows, [*row, ""] if memory else row])


def targets_table(found: dict[str, Steps]) -> str:
    """What was to be reached, and what was."""
    rows = []
    for name, wanted in TARGETS.items():
        for workload, least in wanted.items():
            if workload in found:
                ratios = found[workload].ratios(name)
                ratio = statistics.median(ratios)
                row = [f"{workload} against {name}", f"{least:.2f}", f"{ratio:.2f}"]
                rows.append([*row, f"{ratios[0]:.2f} to {ratios[-1]:.2f}", "yes" if ratio >= least else "no"])
    return table(["times as fast", "wanted", "found", "spread", "reached"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__.splitlines()[0])
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="default: all; may be repeated")
    parser.add_argument("--turns", type=int, default=7, help="of each contender (default: 7)")
    parser.add_argument("--memory", action="store_true", help="also peak memory, each in a process of its own")
    parser.add_argument("--json", action="store_true", help="median microseconds of a silo-step as JSON")
    parser.add_argument("--peak", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    names = options.workload or list(WORKLOADS)
    if options.peak:
        print(peak_mib(WORKLOADS[names[0]], options.peak, 2))
        return
    found = {name: measure(WORKLOADS[name], options.turns, WORKLOADS[name].local_steps) for name in names}
    if options.json:
        print(json.dumps({name: steps.medians() for name, steps in found.items()}))
        return
    print("; ".join(f"{key}: {value}" for key, value in machine.facts().items()), "\n")
    for name, steps in found.items():
        memory = peaks(name, list(steps.seconds)) if options.memory else None
        print(f"{name}: {describe(WORKLOADS[name])}\n\n{steps_table(steps, memory)}\n")
    print(targets_table(found))


if __name__ == "__main__":
    main()
