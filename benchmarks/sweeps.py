"""`python -m benchmarks.sweeps`: the time to plan a sweep of 10,000 runs, and to look at it; writes docs/slurm.md.

Processor time, so that what else the machine does counts less: neither waits for anything but files.
"""

from __future__ import annotations

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
from dpfl_plugin.sweeps import manifest, state

GRID: dict[str, list[Any]] = {
    "algorithm.local_lr": [i / 100 for i in range(1, 101)],
    "privacy.noise_multiplier": [*range(2, 12)],
}
RUNS = 10_000


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
            state.write_task(run, "done", **facts)
            epsilon = {"server": {"epsilon": 1.0}}
            result = {"status": "done", "reason": "", "rounds": 150, "seconds": 9.0, "epsilon": epsilon}
            run.result.write_text(json.dumps({**result, "test_accuracy": {"mean_last_10_percent": 0.5}}))
        elif share < 0.6:
            state.write_task(run, "running", **facts)
            run.metrics.write_text('{"round": 10, "seconds": 1.0}\n' * 10)
        else:
            state.write_task(run, "failed", reason="the global model is not finite", **facts)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        config, out = Path(folder) / "sweep.yaml", Path(folder) / "out"
        config.write_text(yaml.safe_dump({**BASE, "sweep": {"grid": GRID, "seeds": 10}}))
        planned = min(timed("sweep", config, "--out", out, "--dry-run") for _ in range(3))
        from dpfl_plugin.config.sweep import expand

        manifest.write(manifest.plan(expand(config), config, out))
        pretend(out)
        looked = min(timed("status", out) for _ in range(3))
    head = "| runs | planned in (processor time) | `dpfl status` |\n| --- | --- | --- |\n"
    text = head + f"| {RUNS:,} | {planned:.1f} s | {looked:.1f} s |"
    print(text)
    put("docs/slurm.md", "scale", text)


if __name__ == "__main__":
    main()
