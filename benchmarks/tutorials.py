"""`python -m benchmarks.tutorials`: the numbers in docs/tutorials that depend on noise; writes them into the pages."""

from __future__ import annotations

import argparse
import os
import re
import runpy
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.pages import ROOT, put
from benchmarks.quickstart import run

TUTORIALS: Final = ROOT / "docs" / "tutorials"
NOT_PRIVATE: Final = ["privacy.epsilon=null", "privacy.noise_multiplier=0", "privacy.clip_norm=inf"]
BUDGETS: Final = {**{f"{epsilon}": [f"privacy.epsilon={epsilon}"] for epsilon in (1, 2, 4, 8)}, "none": NOT_PRIVATE}
# The audit and the attack print more rows than the page explains: these are the ones it shows.
AUDIT_ROWS: Final = (
    "epsilon that the canaries",
    "epsilon estimated",
    "strength of the noise",
    "releases in the ledger",
)
ATTACK_ROWS: Final = (
    "no attack can",
    "what the server achieves",
    "membership: area",
    "inversion: correlation with the record, batch of 1",
)


def mean_and_spread(numbers: Sequence[float]) -> str:
    return f"{statistics.mean(numbers):.3f} ± {statistics.stdev(numbers):.3f}"


def accuracy(results: Sequence[dict[str, Any]]) -> str:
    return mean_and_spread([result["test_accuracy"]["mean_last_10_percent"] for result in results])


def hospitals(folder: Path) -> Path:
    """A copy of the example with its records, as the first tutorial makes it."""
    copy = folder / "my-hospitals"
    shutil.copytree(ROOT / "examples" / "hospitals", copy)
    before = Path.cwd()
    os.chdir(copy)
    try:
        runpy.run_path("make_silos.py")
    finally:
        os.chdir(before)
    return copy


def budgets(config: Path, seeds: int, out: Path) -> str:
    """What each budget costs in accuracy, in Markdown."""
    lines = ["| epsilon | noise multiplier | test accuracy, last 10 % of rounds |", "| --: | --: | --: |"]
    for budget, changes in BUDGETS.items():
        (results,) = run(config, seeds, out, changes).values()
        lines.append(f"| {budget} | {results[0]['noise_multiplier']:g} | {accuracy(results)} |")
    return "\n".join(lines)


def brake(folder: Path) -> Path:
    """The files of the tutorial on algorithms, taken from its page."""
    text = (TUTORIALS / "algorithm.md").read_text(encoding="utf-8")
    (config,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (folder / "brake.py").write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], encoding="utf-8")
    (folder / "brake.yaml").write_text(config, encoding="utf-8")
    return folder / "brake.yaml"


def comparison(config: Path, seeds: int, out: Path) -> str:
    """The tutorial's variants, and FedAvg with a step size that suits it, in Markdown."""
    found = run(config, seeds, out)
    found["FedAvg, `local_lr` 0.25"] = run(config, seeds, out, ["algorithm.local_lr=0.25"])["FedAvg"]
    lines = [
        "| run | test accuracy, last 10 % of rounds | worst silo | epsilon, server |",
        "| --- | --: | --: | --: |",
    ]
    for label, results in found.items():
        worst = mean_and_spread([result["silos"]["test_accuracy"]["min"] for result in results])
        epsilons = [result["epsilon"]["server"]["epsilon"] for result in results]
        epsilon = "none" if None in epsilons else f"{max(epsilons):.3g}"
        lines.append(f"| {label} | {accuracy(results)} | {worst} | {epsilon} |")
    return "\n".join(lines)


def session(folder: Path, words: Sequence[str], rows: Sequence[str] = (), end: str = "") -> str:
    """A command and what it prints, as a terminal shows it.

    With ``rows``, only the table rows that begin with one of them, and the line that begins with ``end``.
    """
    command = [sys.executable, "-m", "dpfl_plugin", *words]
    environment = {**os.environ, "COLUMNS": "110", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    lines = (done.stderr + done.stdout).splitlines()  # progress is on stderr, and comes first
    if rows:
        lines = [
            *selected(lines, rows),
            *(["..."] if end else []),
            *(line for line in lines if end and line.startswith(end)),
        ]
    shown = "\n".join(line.rstrip() for line in lines)
    return f"```console\n$ dpfl {' '.join(words)}\n{shown}\n```"


def selected(lines: Sequence[str], rows: Sequence[str]) -> list[str]:
    """The rows of a table with a cell that begins with one of ``rows``; it may go on in the lines below its row."""
    found, taking = [], False
    for line in lines:
        cells = [cell.strip() for cell in re.split("[│┃]", line)[1:-1]]
        if not cells:
            taking = False
            continue
        goes_on = taking and not any(cells[1:])
        taking = goes_on or any(cell.startswith(row) for cell in cells for row in rows)  # a header's may be the last
        if taking:
            found.append(line)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mine = hospitals(folder)
        check = session(mine, ["check", "hospitals.yaml", "--file", "silos/north.csv"])
        put("docs/tutorials/hospitals.md", "check", check)
        put("docs/tutorials/hospitals.md", "run", session(mine, ["run", "hospitals.yaml"]))
        put("docs/tutorials/epsilon.md", "budgets", budgets(mine / "hospitals.yaml", seeds, folder / "runs"))
        audit = session(mine, ["audit", "hospitals.yaml"], AUDIT_ROWS, "CONSISTENT")
        put("docs/tutorials/epsilon.md", "audit", audit)
        attack = session(mine, ["attack", "hospitals.yaml", "--repeats", "3"], ATTACK_ROWS)
        put("docs/tutorials/epsilon.md", "attack", attack)
        sys.path.insert(0, name)
        put("docs/tutorials/algorithm.md", "comparison", comparison(brake(folder), seeds, folder / "runs"))


if __name__ == "__main__":
    main()
