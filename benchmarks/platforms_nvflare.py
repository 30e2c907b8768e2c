"""`python -m benchmarks.platforms_nvflare [--runs 3]`: what NVFlare's adapter costs; writes a part of docs/nvflare.md.

The example project in NVFlare's simulator, a process for the server and for each of two silos, each of which trains a
small CNN once through 2,000 records of CIFAR's size, in batches of 32: as it was, and with the lines of this package.
Runs take turns. A round is timed by NVFlare's own log, from one task that its server gives out to the next.

Both trainings are timed without NVFlare, too, for one silo and in processor time, which other work on the machine moves
least: what a project's own steps take, and what gradients of single records, noise and charges of a private round take
(`benchmarks.in_process`). What is more in a round is that of NVFlare and of the adapter.

Needs `launchers/env nvflare`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import statistics
import subprocess
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Final

from benchmarks.machine import facts
from benchmarks.pages import ROOT, put
from benchmarks.table import table

SILOS: Final = 2
ROUNDS: Final = 8
STEPS: Final = 63  # of 32 records: once through 2,000
POLLS: Final = 0.3  # seconds between a site's questions, as `PrivateRecipe` has it
EXAMPLE: Final = ROOT / "examples" / "nvflare_existing_project"
# Resolved: NVFlare starts the interpreter by its path and cuts that at spaces, for which a link may stand.
BIN: Final = Path(os.environ.get("DPFL_NVFLARE") or ROOT / ".venv-nvflare").resolve() / "bin"
PLAIN, ASKING, PRIVATE = "as it was", f"as it was, but asking every {POLLS} s, as ours", "ours, private"
STEPS_ALONE, PRIVATE_ALONE = "processor alone: plain training", "processor alone: private gradients, noise and charges"
VARIANTS: Final = (PLAIN, ASKING, PRIVATE, STEPS_ALONE, PRIVATE_ALONE)
TASK: Final = f'''"""Made of the example's task.py."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NUM_SILOS = {SILOS}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        first, second = nn.Conv2d(3, 16, 5, 2), nn.Conv2d(16, 32, 3, 2)
        self.layers = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(32 * 6 * 6, 10))

    def forward(self, x):
        return self.layers(x)


def train_data(site):
    rng = torch.Generator().manual_seed(1)
    x, y = torch.randn(2000, 3, 32, 32, generator=rng), torch.randint(10, (2000,), generator=rng)
    return DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)


def accuracy(path):
    return float("nan")
'''
SETTINGS: Final = f"""{{
            "rounds": {ROUNDS},
            "algorithm": {{"name": "scaffold", "local_steps": {STEPS}, "local_lr": 0.1}},
            "privacy": {{"epsilon": 8.0, "delta": 1e-5, "record_rate": 0.016}},
        }}"""
ALONE: Final = """
import time

from task import Net, train_data

def stamp():
    print("stamp", time.process_time(), flush=True)
"""
PRIVATE_CODE: Final = """
from benchmarks.in_process import run

run(SETTINGS, Net(), {0: train_data("site-1")}, stamp)
"""
STEPS_CODE: Final = """
import torch
from client import batches

model, loader = Net(), batches(train_data("site-1"))
for _ in range(ROUNDS):
    stamp()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        x, y = next(loader)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
"""


def seconds(variant: str) -> list[float]:
    """Of all rounds but the first, in a run of its own.

    Raises:
        RuntimeError: the run failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        project, workspace = scratch / "project", scratch / "workspace"
        shutil.copytree(EXAMPLE / ("private" if variant in (PRIVATE, PRIVATE_ALONE) else "plain"), project)
        _prepare(project, variant)
        environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{project}{os.pathsep}{ROOT}",
            "HOME": str(scratch),
            "WORKSPACE": str(workspace),
            "SILOS": str(scratch / "silos"),
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            [str(BIN / "python"), "job.py"], cwd=project, env=environment, capture_output=True, text=True, check=False
        )
        if variant in (STEPS_ALONE, PRIVATE_ALONE):
            stamps = [float(one) for one in re.findall(r"^stamp (\S+)$", done.stdout, re.M)]
        else:
            stamps = [stamp for log in workspace.glob("*/server/log.txt") for stamp in _given_out(log.read_text())]
        if done.returncode or len(stamps) != ROUNDS:
            raise RuntimeError(f"{variant}: {len(stamps)} rounds\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return [after - before for before, after in itertools.pairwise(stamps[1:])]


def _given_out(log: str) -> list[float]:
    """When the server gave out tasks."""
    found = re.findall(r"^(\S+ \S+) - WFCommServer - .*scheduled task", log, re.M)
    return [datetime.strptime(one, "%Y-%m-%d %H:%M:%S,%f").timestamp() for one in found]


def _prepare(project: Path, variant: str) -> None:
    (project / "task.py").write_text(TASK)
    code = project / "job.py"
    changes = [(r"num_rounds=10", f"num_rounds={ROUNDS}")] if variant in (PLAIN, ASKING) else []
    if variant == ASKING:
        asking = f'    recipe._job.to_server({{"server": {{"task_request_interval": {POLLS}}}}})\n    for add in'
        changes.append((r"    for add in", asking))
    if variant == PRIVATE:
        changes.append((r"(?s)settings=\{.*\},\n    \)", f"settings={SETTINGS},\n    )"))
    text = code.read_text()
    for old, new in changes:
        text, found = re.subn(old, lambda _, new=new: new, text)
        assert found == 1, (old, found)
    if variant == PRIVATE_ALONE:
        text = f"{ALONE}{PRIVATE_CODE.replace('SETTINGS', SETTINGS)}"
    elif variant == STEPS_ALONE:
        text = f"{ALONE}{STEPS_CODE.replace('ROUNDS', str(ROUNDS)).replace('STEPS', str(STEPS))}"
    code.write_text(text)
    client = project / "client.py"
    if client.exists():
        client.write_text(client.read_text().replace("STEPS, LR = 10, 1.0", f"STEPS, LR = {STEPS}, 0.1"))


def rounds_table(runs: int) -> str:
    """Seconds of a round: medians over all rounds, and of ratios, run by run.

    "Beyond" is a private round as a multiple of a plain one in which the private training stands for the plain.
    """
    found: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for _ in range(runs):
        for variant in VARIANTS:
            found[variant].append(statistics.median(seconds(variant)))
            print(variant, found[variant][-1], flush=True)
    rows = []
    for variant in VARIANTS:
        ratio = statistics.median(one / base for one, base in zip(found[variant], found[ASKING], strict=True))
        beyond = ""
        if variant == PRIVATE:
            parts = zip(found[PRIVATE], found[ASKING], found[STEPS_ALONE], found[PRIVATE_ALONE], strict=True)
            beyond = f"{statistics.median(one / (base - steps + engine) for one, base, steps, engine in parts):.2f}"
        rows.append([variant, f"{statistics.median(found[variant]):.3f}", f"{ratio:.2f}", beyond])
    header = [
        f"a round of {SILOS} silos, CNN of 17,386 parameters",
        "median s",
        "times plain",
        "beyond gradients and noise",
    ]
    return table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each variant (default: 3)")
    runs = parser.parse_args().runs
    known = facts()
    about = f"{known['date']}, {known['processor']}, {known['cores this process may use']} cores, not idle"
    put("docs/nvflare.md", "rounds table", f"{rounds_table(runs)}\n\n{about}; runs of each: {runs}.")


if __name__ == "__main__":
    main()
