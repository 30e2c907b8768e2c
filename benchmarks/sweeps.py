"""`python -m benchmarks.sweeps`: what a sweep adds to its runs, and how long 10,000 take to plan and to look at.

Processor time, so that what else the machine does counts less: nothing here waits for anything but files. Writes the
tables in docs/slurm.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.pages import put
from benchmarks.soak import BASE
from dpfl_plugin.experiments import manifest
from dpfl_plugin.runs.run_status import write_task

GRID: dict[str, list[Any]] = {
    "algorithm.local_lr": [i / 100 for i in range(1, 101)],
    "privacy.noise_multiplier": [*range(2, 12)],
}
RUNS = 10_000
SHORT = 20  # runs of one round


def timed(*words: object) -> float:
    """Seconds of the processor that a `dpfl` command takes, from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "dpfl_plugin", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def pretend(out: Path) -> None:
    """Half of the runs are done, a tenth are running, a hundredth have failed: files as runs leave them."""
    (folder,) = manifest.sweeps_in(out)
    sweep = manifest.read(folder)
    for row in sweep.rows[: int(0.61 * RUNS)]:
        run, share = sweep.folder_of(row), row.index / RUNS
        run.path.mkdir(parents=True)
        facts = {"host": "elsewhere", "pid": 1, "job": "1_0"}
        if share < 0.5:
            write_task(run, "done", **facts)
            epsilon = {"server": {"epsilon": 1.0}}
            result = {"status": "done", "reason": "", "rounds": 150, "seconds": 9.0, "epsilon": epsilon}
            run.result.write_text(json.dumps({**result, "test_accuracy": {"mean_last_10_percent": 0.5}}))
        elif share < 0.6:
            write_task(run, "running", **facts)
            run.metrics.write_text('{"round": 10, "seconds": 1.0}\n' * 10)
        else:
            write_task(run, "failed", reason="the global model is not finite", **facts)


def each(folder: Path) -> float:
    """Seconds of the processor for each further run of a sweep: one round and all that the sweep adds to it."""
    found = []
    for count in (1, 1 + SHORT):
        config = folder / f"{count}.yaml"
        config.write_text(yaml.safe_dump({**BASE, "rounds": 1, "sweep": {"seeds": count}}))
        found.append(min(timed("sweep", config, "--out", folder / f"{count}-{i}", "--jobs", "1") for i in range(3)))
    return (found[1] - found[0]) / SHORT


def main() -> None:
    argparse.ArgumentParser(prog="python -m benchmarks.sweeps", description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        added = each(Path(folder))
        config, out = Path(folder) / "sweep.yaml", Path(folder) / "out"
        config.write_text(yaml.safe_dump({**BASE, "sweep": {"grid": GRID, "seeds": 10}}))
        planned = min(timed("sweep", config, "--out", out, "--dry-run") for _ in range(3))
        from dpfl_plugin.config.sweep import expand

        manifest.write(manifest.plan(expand(config), config, out))
        pretend(out)
        looked = min(timed("status", out) for _ in range(3))
    head = "| what | processor time |\n| --- | --- |\n"
    text = head + (
        f"| {RUNS:,} runs planned and checked | {planned:.1f} s |\n"
        f"| `dpfl status` of {RUNS:,} runs | {looked:.1f} s |\n"
        f"| each further run of a sweep, a run of one round included | {added:.2f} s |"
    )
    print(text)
    put("docs/slurm.md", "scale", text)


if __name__ == "__main__":
    main()
