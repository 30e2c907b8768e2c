"""Seconds of a round of DP-SCAFFOLD, by how its gradients are computed.

    python -m benchmarks.rounds [--workload W1] [--rounds 7] [--every] [--profile] [--json]

One torch thread; the contenders take turns round by round, in an order that rotates, so that a machine that is busy
for a while is busy for all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from benchmarks import machine, profile
from benchmarks.contenders import OURS, contenders
from benchmarks.table import table
from benchmarks.workloads import WORKLOADS, Workload, describe

Times = dict[str, list[float]]
"""Seconds of each round, by contender."""


def measure(load: Workload, rounds: int, *, every: bool = False) -> Times:
    """Time ``rounds`` interleaved rounds, after one of two local steps that is not counted."""
    entrants = contenders(load, load.silos(), every=every)
    warm_up = replace(load.plan(0), local_steps=2, num_gradients=2)
    for entrant in entrants:
        entrant.round(warm_up, load.draw(0))
    times: Times = {entrant.name: [] for entrant in entrants}
    for number in range(1, rounds + 1):
        plan, draw = load.plan(number), load.draw(number)
        turn = number % len(entrants)
        for entrant in (*entrants[turn:], *entrants[:turn]):
            began = time.perf_counter()
            entrant.round(plan, draw)
            times[entrant.name].append(time.perf_counter() - began)
    return times


def medians(times: Times) -> dict[str, float]:
    """Seconds of a round, by contender."""
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def times_table(load: Workload, times: Times) -> str:
    """Median, minimum and maximum; the ratio to ours is the median of the ratios round by round."""
    rows = []
    for name, seconds in times.items():
        median = statistics.median(seconds)
        ratio = statistics.median(theirs / ours for theirs, ours in zip(seconds, times[OURS], strict=True))
        numbers = [f"{value:.4f}" for value in (median, min(seconds), max(seconds))]
        rows.append([name, *numbers, f"{ratio:.2f}", f"{median / load.silo_steps * 1e6:,.0f}"])
    return table(["gradients by", "median s", "min s", "max s", "times ours", "us per silo-step"], rows)


def profile_table(load: Workload, found: profile.Profile) -> str:
    """Parts of our round, largest first."""
    parts = sorted(found.parts.items(), key=lambda item: -item[1])
    total = sum(found.parts.values())
    rows = [[part, f"{s / total:.1%}", f"{s / load.silo_steps * 1e6:.1f}"] for part, s in parts]
    return table(["part of our round", "share", "us per silo-step"], rows)


def profile_note(load: Workload, found: profile.Profile) -> str:
    wrapped, plain = (seconds / load.silo_steps * 1e6 for seconds in (found.wrapped, found.plain))
    return f"Measuring the parts made a silo-step take {wrapped:.0f} us instead of {plain:.0f}."


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rounds", description=__doc__.splitlines()[0])
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="default: all; may be repeated")
    parser.add_argument("--rounds", type=int, default=7, help="of each contender (default: 7)")
    parser.add_argument("--every", action="store_true", help="also the slow ones: our other engines, Opacus' hooks")
    parser.add_argument("--profile", action="store_true", help="where the time of our round goes, instead")
    parser.add_argument("--json", action="store_true", help="median seconds of a round as JSON")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    chosen = {name: WORKLOADS[name] for name in options.workload or WORKLOADS}
    if options.profile:
        results = {name: profile.measure(load, options.rounds) for name, load in chosen.items()}
        if options.json:
            print(json.dumps({name: found.parts for name, found in results.items()}))
            return
        for name, found in results.items():
            print(f"{name}: {describe(chosen[name])}\n")
            print(f"{profile_table(chosen[name], found)}\n\n{profile_note(chosen[name], found)}\n")
        return
    times = {name: measure(load, options.rounds, every=options.every) for name, load in chosen.items()}
    if options.json:
        print(json.dumps({name: medians(times[name]) for name in chosen}))
        return
    print("; ".join(f"{key}: {value}" for key, value in machine.facts().items()), "\n")
    for name, load in chosen.items():
        print(f"{name}: {describe(load)}\n\n{times_table(load, times[name])}\n")


if __name__ == "__main__":
    main()
