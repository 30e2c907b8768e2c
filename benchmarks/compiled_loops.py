"""What compiled loops take to load, and what they save of a step: `python -m benchmarks.compiled_loops [--write]`.

Processor time on one core: a clipped sum with the loops and without, of models and batches as in small runs. Writes
the table in docs/engines.md, by which `STEPS_TO_COMPILE` in `dpfl_plugin/runs/engines.py` was chosen.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from typing import Any, Final

import torch
from torch import nn

from benchmarks.pages import show
from benchmarks.table import table
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.dense import Dense

CLASSES: Final = 10
BATCHES: Final = (8, 64, 512)
STEPS: Final = 300
FEATURES: Final = (40, 784)


def step(kind: Any, model: nn.Module, features: int, batch: int, *, compiled: bool) -> float:
    """Microseconds of a clipped sum; the least of five times `STEPS`."""
    engine = kind(model, losses.cross_entropy, 2**26, compiled=compiled)
    records = engine.prepare(Records(torch.randn(batch, features), torch.randint(0, CLASSES, (batch,))))
    y = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    out, took = torch.empty(y.numel(), dtype=torch.float64), []
    for _ in range(5):
        began = time.process_time()
        for _ in range(STEPS):
            engine.clipped_sum(y, records, 1.0, out)
        took.append((time.process_time() - began) / STEPS)
    return 1e6 * min(took)


def load_seconds() -> float:
    """Processor seconds that importing the loops adds to what a run imports anyway."""

    def seconds(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    run = "import dpfl_plugin.runs.run, scipy.optimize"
    loops = f"{run}; from dpfl_plugin.gradients import fused; fused.kernels()"
    return statistics.median(seconds(loops) - seconds(run) for _ in range(5))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compiled_loops", description=__doc__)
    parser.add_argument("--write", action="store_true", help="to docs/engines.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for features in FEATURES:
        linear = nn.Linear(features, CLASSES)
        hidden = nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, CLASSES))
        for name, kind, model in (("one layer", ClosedForm, linear), ("64 hidden units", Dense, hidden)):
            for batch in BATCHES:
                plain, fast = (step(kind, model, features, batch, compiled=which) for which in (False, True))
                times = [f"{microseconds:.0f}" for microseconds in (plain, fast, plain - fast)]
                rows.append([f"{name}, {features} features", str(batch), *times])
    text = table(["model", "batch", "torch, us", "compiled, us", "saved, us"], rows)
    text += f"\n\nLoading them takes {load_seconds():.2f} s."
    show("docs/engines.md", "compiled loops", text, write=options.write)


if __name__ == "__main__":
    main()
