"""A local step on a GPU, against Opacus on the same GPU; and how many silos make it busy.

    python -m benchmarks.gpu [--device cuda] [--workload W1] [--turns 7] [--json]

The contenders and turns of `benchmarks.engines`, on any torch device: `--device cpu` runs it where there is no GPU.
Records and states are on the device all the time. Every turn ends when the device has done all that it was asked.

Silos packed: a round of so many silos that are advanced as one stack (`runtime.stack`), in silo-steps a second. The
share of the ceiling is the arithmetic of a mean gradient, at the rate of a large product of matrices, over the time of
a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from benchmarks import machine
from benchmarks.contenders import OURS, Contender, Ours, contenders, ours
from benchmarks.engines import STEPS, arithmetic, one_silo
from benchmarks.table import table
from benchmarks.workloads import WORKLOADS, Workload, describe

PACKED: Final = (1, 8, 64, 512)
RECORDS: Final = 2  # batches that a packed silo holds: they all have to fit the device
ROOFLINE: Final = {"cpu": 1024, "cuda": 8192}


@dataclass(frozen=True, slots=True)
class OnDevice:
    """Seconds of a step by contender and turn; silo-steps a second by silos packed; operations a second."""

    seconds: dict[str, list[float]]
    packed: dict[int, float]
    rate: float


def finish(device: str) -> None:
    """Wait for what the device was asked to do."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def gemm_rate(device: str) -> float:
    """Floating-point operations a second of a large product of matrices, the best of three."""
    size = ROOFLINE["cuda" if device.startswith("cuda") else "cpu"]
    a, b = torch.ones(size, size, device=device), torch.ones(size, size, device=device)
    best = 0.0
    for _ in range(3):
        finish(device)
        began = time.perf_counter()
        torch.mm(a, b)
        finish(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


def _turn(entrant: Contender, load: Workload, number: int) -> float:
    plan, draw = load.plan(number), load.draw(number)
    finish(load.device)
    began = time.perf_counter()
    entrant.round(plan, draw)
    finish(load.device)
    return time.perf_counter() - began


def steps(load: Workload, turns: int, count: int) -> dict[str, list[float]]:
    """Seconds of a step in interleaved turns of ``count`` steps of one silo, by contender."""
    load = one_silo(load, count)
    entrants = contenders(load, load.silos())
    for entrant in entrants:
        _turn(entrant, load, 0)
    seconds: dict[str, list[float]] = {entrant.name: [] for entrant in entrants}
    for number in range(1, turns + 1):
        first = number % len(entrants)
        for entrant in (*entrants[first:], *entrants[:first]):
            seconds[entrant.name].append(_turn(entrant, load, number) / count)
    return seconds


def packed(load: Workload, silos: int, turns: int, count: int) -> float:
    """Silo-steps a second of a round in which so many silos are one stack."""
    load = replace(
        load,
        num_silos=silos,
        num_participants=silos,
        num_records=min(load.num_records, RECORDS * load.batch_size),
        local_steps=count,
    )
    kind = next(iter(ours(load).values()))
    entrant = Ours(OURS, kind, load, load.silos(), stack=silos)
    _turn(entrant, load, 0)
    return silos * count / statistics.median(_turn(entrant, load, number) for number in range(1, turns + 1))


def measure(load: Workload, turns: int, count: int, sizes: Sequence[int] = PACKED) -> OnDevice:
    by_size = {size: packed(load, size, turns, max(1, count // size)) for size in sizes}
    return OnDevice(steps(load, turns, count), by_size, gemm_rate(load.device))


def steps_table(load: Workload, found: OnDevice) -> str:
    least, rows = arithmetic(replace(load, device="cpu")) / found.rate, []
    for name, seconds in found.seconds.items():
        ratios = sorted(a / b for a, b in zip(seconds, found.seconds[OURS], strict=True))
        median = statistics.median(seconds)
        row = [name, f"{median * 1e6:,.0f}", f"{statistics.median(ratios):.2f}", f"{ratios[0]:.2f} to {ratios[-1]:.2f}"]
        rows.append([*row, f"{least / median:.1%}"])
    return table(["gradients by", "median us", "times ours", "spread", "of the ceiling"], rows)


def packed_table(load: Workload, found: OnDevice) -> str:
    least = arithmetic(replace(load, device="cpu")) / found.rate
    rows = [[str(size), f"{rate:,.0f}", f"{least * rate:.1%}"] for size, rate in found.packed.items()]
    return table(["silos packed", "silo-steps a second", "of the ceiling"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="a torch device (default: cuda)")
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="default: all; may be repeated")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--packed", type=int, nargs="+", default=PACKED, help=f"silos in a stack (default: {PACKED})")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("no GPU that torch can use: nothing was measured. `--device cpu` runs the same program on the CPU.")
    torch.set_num_threads(1)
    loads = {name: replace(WORKLOADS[name], device=options.device) for name in options.workload or WORKLOADS}
    found = {name: measure(load, options.turns, STEPS[name], options.packed) for name, load in loads.items()}
    if options.json:
        medians = {
            name: {who: statistics.median(seconds) * 1e6 for who, seconds in one.seconds.items()}
            for name, one in found.items()
        }
        packs = {name: {str(size): rate for size, rate in one.packed.items()} for name, one in found.items()}
        print(json.dumps({"device": options.device, "microseconds": medians, "silo_steps_per_second": packs}))
        return
    device = torch.cuda.get_device_name(options.device) if options.device.startswith("cuda") else options.device
    print("; ".join(f"{key}: {value}" for key, value in {**machine.facts(), "device": device}.items()), "\n")
    for name, load in loads.items():
        print(f"{name}: {describe(load)}\n")
        print(f"{steps_table(load, found[name])}\n\n{packed_table(load, found[name])}\n")


if __name__ == "__main__":
    main()
