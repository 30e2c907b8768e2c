"""What a run costs by its size: silos, local steps, records of a silo, parameters, rounds.

    python -m benchmarks.scale [--axis M] [--repeats 3] [--full] [--json] [--write]

Each point is a whole run of DP-SCAFFOLD (one thread, ledger and checkpoints on disk) in a process of its own, whose
profile and peak memory are taken; of repeats the fastest counts, since whatever else the machine does
only adds. What should grow in proportion has the exponent 1, and what should not grow at all 0. ``--full`` adds W1 with
10,000 silos of 4,000 records, 6.4 GB in mapped files. ``--write`` puts table and picture into docs/.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.table import table

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "benchmarks.md"
PICTURE: Final = ROOT / "docs" / "pictures" / "scale.png"
BEGIN, END = "<!-- scale: begin -->", "<!-- scale: end -->"
PARTICIPANTS: Final = 20


@dataclass(frozen=True, slots=True)
class Axis:
    """What is varied.

    Attributes:
        sizes: ascending; full: one more, on demand.
        rounds, evaluation: the exponents that their costs should have.
    """

    name: str
    what: str
    sizes: tuple[int, ...]
    rounds: int
    evaluation: int
    full: int | None = None


AXES: Final[dict[str, Axis]] = {
    axis.name: axis
    for axis in (
        Axis("M", "silos, 20 of them in a round", (100, 1_000, 10_000), rounds=0, evaluation=1, full=10_000),
        Axis("K", "local steps", (10, 100, 1_000), rounds=1, evaluation=0),
        Axis("R", "records of one silo, 1 % in a batch", (10_000, 100_000, 1_000_000), rounds=1, evaluation=1),
        Axis("d", "parameters", (100_000, 1_000_000, 10_000_000), rounds=1, evaluation=1),
        Axis("T", "rounds, with a third party's budget", (100, 1_000, 4_000), rounds=0, evaluation=0),
    )
}


def config(axis: str, size: int, *, full: bool = False) -> dict[str, Any]:
    """The configuration of one point."""
    data = {"num_features": 40, "num_classes": 10, "records_per_silo": 50}
    made: dict[str, Any] = {
        "rounds": 20,
        "silo_rate": 1.0,
        "data": {"dataset": {"name": "synthetic", **data}, "num_silos": 2, "partition": "natural"},
        "algorithm": {"name": "scaffold", "local_steps": 10, "local_lr": 0.1},
        "privacy": {"clip_norm": 1.0, "noise_multiplier": 20.0, "record_rate": 0.2},
        "evaluation": {"every": 10**9},
    }
    match axis:
        case "M":
            made["data"]["num_silos"], made["silo_rate"] = size, PARTICIPANTS / size
            if full:  # W1, of which a fifth are test records
                made["data"]["dataset"]["records_per_silo"], made["algorithm"]["local_steps"] = 5_000, 50
        case "K":
            made["algorithm"]["local_steps"], made["rounds"] = size, 5
        case "R":
            made["data"] |= {"num_silos": 1, "dataset": {"name": "synthetic", **data, "records_per_silo": size}}
            made["privacy"]["record_rate"] = 0.01
        case "d":
            shape = {"num_features": size // 100 - 1, "num_classes": 100, "records_per_silo": 20}
            made["data"]["dataset"] |= shape
            made |= {"rounds": 5, "algorithm": {**made["algorithm"], "local_steps": 3}}
        case "T":
            made |= {"rounds": size, "silo_rate": 0.5, "checkpoint": {"every": 10}}
            made["algorithm"]["local_steps"] = 1
            made["privacy"] |= {"epsilon": 1e3, "delta": 1e-5, "budget_view": "third_party"}
    return made


def one(axis: str, size: int, *, full: bool) -> dict[str, float]:
    """Run one point in this process: seconds to get ready, of a round, of an evaluation; peak MiB.

    What a round takes is the time of all parts but the evaluation.
    """
    from dpfl_plugin.config.schema import Config
    from dpfl_plugin.runs.run import run_config
    from dpfl_plugin.runtimes.in_process import InProcessBackend

    silent = _Silent()
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        made = {**config(axis, size, full=full), "out": folder}
        if full:
            made["data"]["memory_map"] = folder
        began = time.perf_counter()
        result = run_config(
            Config.model_validate(made),
            Path(folder),
            resume=False,
            backend=InProcessBackend(),
            reporter=silent,
            stop=lambda: False,
            profile=True,
        )
        parts = json.loads((Path(result["folder"]) / "profile.json").read_text())["process"]
    evaluation = parts.pop("evaluation")
    return {
        "setup": silent.started - began,
        "round": sum(parts.values()) / result["rounds"],
        "evaluation": evaluation / silent.evaluations,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


class _Silent:
    """A reporter that only looks at the time."""

    started = 0.0
    evaluations = 0

    def note(self, text: str) -> None: ...

    def detail(self, text: str) -> None: ...

    def start(self, rounds: int, done: int) -> None:
        self.started = time.perf_counter()

    def evaluated(self, line: dict[str, Any]) -> None:
        self.evaluations += 1

    def ticked(self, progress: Any) -> None: ...

    def end(self) -> None: ...


def measure(axis: str, size: int, repeats: int, *, full: bool = False) -> dict[str, float]:
    """The least of each number over ``repeats`` processes."""
    (ROOT / "build").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.scale", "--one", json.dumps([axis, size, full])]
    found = []
    for _ in range(repeats):
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        found.append(json.loads(done.stdout))
    return {key: min(one[key] for one in found) for key in found[0]}


Points = dict[int, dict[str, float]]


def exponent(points: Points, key: str) -> float:
    """By which power of the size a cost grew from the last but one size to the last."""
    (a, before), (b, after) = list(points.items())[-2:]
    return math.log(after[key] / before[key]) / math.log(b / a)


def axis_table(axis: Axis, points: Points) -> str:
    rows = [
        [
            f"{size:,}",
            f"{p['setup']:.2f}",
            f"{1e3 * p['round']:.1f}",
            f"{1e3 * p['evaluation']:.1f}",
            f"{p['mib']:,.0f}",
        ]
        for size, p in points.items()
    ]
    grown = [f"{exponent(points, key):.2f}" for key in ("setup", "round", "evaluation", "mib")]
    wanted = ["at most 1", str(axis.rounds), str(axis.evaluation), "at most 1"]
    header = [f"{axis.name}: {axis.what}", "ready, s", "a round, ms", "an evaluation, ms", "peak MiB"]
    return table(header, [*rows, ["exponent at the end", *grown], ["should be", *wanted]])


def draw(found: dict[str, Points], path: Path) -> None:
    """Cost of a round against size for each axis, beside what is proportional."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(found), figsize=(3.1 * len(found), 3.0), squeeze=False)
    for panel, (name, points) in zip(panels[0], found.items(), strict=True):
        sizes, costs = list(points), [1e3 * point["round"] for point in points.values()]
        panel.loglog(sizes, costs, "o-", label="a round")
        panel.loglog(sizes, [1e3 * point["evaluation"] for point in points.values()], "s-", label="an evaluation")
        panel.loglog(sizes, [costs[-1] * size / sizes[-1] for size in sizes], ":", color="grey", label="in proportion")
        panel.set_xlabel(f"{name}: {AXES[name].what.split(',')[0]}")
        panel.grid(visible=True, alpha=0.3)
    panels[0][0].set_ylabel("milliseconds")
    panels[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def section(found: dict[str, Points], full: dict[str, float] | None) -> str:
    lines = ["Written by `python -m benchmarks.scale --write`.", "", "![cost against size](pictures/scale.png)", ""]
    lines += [text for name, points in found.items() for text in (axis_table(AXES[name], points), "")]
    if full is not None:
        lines += [
            f"W1 with 10,000 silos of 4,000 records (6.4 GB in mapped files, `data.memory_map`): ready in "
            f"{full['setup']:.0f} s, {full['round']:.2f} s a round of 20 silos x 50 steps, an evaluation "
            f"{full['evaluation']:.1f} s. Peak {full['mib']:,.0f} MiB, pages of the files included, which the system "
            "drops when it needs the memory.",
            "",
        ]
    return "\n".join(lines).rstrip()


def kept(page: Path = PAGE) -> str:
    """The section as it was last written."""
    text = page.read_text()
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip() if BEGIN in text else "Not measured yet."


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__.splitlines()[0])
    parser.add_argument("--axis", action="append", choices=AXES, help="default: all; may be repeated")
    parser.add_argument("--repeats", type=int, default=3, help="processes for each point; the fastest counts")
    parser.add_argument("--full", action="store_true", help="also W1 with 10,000 silos: minutes, 13 GB of disk")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md and its picture")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        axis, size, full = json.loads(options.one)
        print(json.dumps(one(axis, size, full=full)))
        return
    chosen = options.axis or list(AXES)
    found = {name: {size: measure(name, size, options.repeats) for size in AXES[name].sizes} for name in chosen}
    full = measure("M", 10_000, 1, full=True) if options.full else None
    if options.json:
        print(json.dumps({**found, **({"full": full} if full else {})}))
    else:
        print(section(found, full))
    if options.write:
        draw(found, PICTURE)
        text = PAGE.read_text()
        head, tail = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
        PAGE.write_text(f"{head}\n{section(found, full)}\n{tail}")


if __name__ == "__main__":
    main()
