"""`python -m benchmarks.quickstart`: the quickstart over seeds; writes the tables of docs/start.md, and the picture.

`--picture` draws the picture of the tables as they are, and runs nothing.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from typer.testing import CliRunner

from benchmarks.pages import ROOT, put
from dpfl_plugin.api import quickstart
from dpfl_plugin.cli.main import app
from dpfl_plugin.config.load import load

# Those of `dpfl quickstart` and others, none of which step sizes, clipping and rounds were chosen on.
SEEDS = {quickstart.HOSPITALS: [*range(5), *range(1000, 1015)], quickstart.TWO_LABELS: range(8)}

PAGE: Final = "docs/start.md"
PICTURE: Final = ROOT / "docs" / "pictures" / "quickstart.png"


def run(config: Path, seeds: int, out: Path, changes: Sequence[str] = ()) -> dict[str, list[dict]]:
    """{variant: one result for each seed}, with ``changes`` of the configuration as ``--set`` takes them."""
    import json

    results: dict[str, list[dict]] = {}
    for seed in range(seeds):
        arguments = ["run", str(config), "--out", str(out), "--set", f"seed={seed}", "--json"]
        for change in changes:
            arguments += ["--set", change]
        answer = CliRunner().invoke(app, arguments)
        if answer.exit_code:
            raise SystemExit(f"seed {seed}: {answer.output}")
        found = json.loads(answer.stdout)
        if "schema" in found:  # a file without variants: its one result
            found = {found["name"]: found}
        for label, result in found.items():
            results.setdefault(label, []).append(result)
    return results


def table(results: dict[str, list[dict]]) -> str:
    """Mean and standard deviation over seeds, in Markdown."""
    lines = ["| run | test accuracy, last 10 % of rounds | epsilon, server | delta |", "| --- | --- | --- | --- |"]
    for label, runs in results.items():
        accuracy = [run["test_accuracy"]["mean_last_10_percent"] for run in runs]
        epsilons = [run["epsilon"]["server"]["epsilon"] for run in runs]
        epsilon = "none" if None in epsilons else f"{max(epsilons):.2f}"
        delta = runs[0]["epsilon"]["server"]["delta"]
        spread = f"{statistics.mean(accuracy):.3f} ± {statistics.stdev(accuracy):.3f}"
        lines.append(f"| {label} | {spread} | {epsilon} | {delta:g} |")
    return "\n".join(lines)


def shown(part: quickstart.Part) -> str:
    """A part of the quickstart and what it says of itself, in Markdown."""
    header, *rows = quickstart.rows(part)
    lines = [f"| {' | '.join(header)} |", f"| --- {'| --: ' * (len(header) - 1)}|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", *(f"* {line}" for line in quickstart.remarks(part))])


def kept(name: str) -> quickstart.Part:
    """A part with means, standard deviations and epsilons of its table in docs/start.md, for the picture."""
    plan = load(ROOT / "configs" / f"{name}.yaml")
    text = (ROOT / PAGE).read_text().split(f"<!-- {name} table: begin -->")[1].split("\n\n")[0]
    header, _, *lines = ([cell.strip() for cell in line.strip("| ").split("|")] for line in text.strip().splitlines())
    found = {cells[0]: dict(zip(header, cells, strict=True)) for cells in lines}
    part = quickstart.Part(name, plan.variants[0].config.description, {}, (), (0, 0, 0))
    for one in plan.variants:
        cells = found[one.label]
        row = part.rows[one.label] = quickstart.Row()
        measure = row.auc if "AUC" in cells else row.accuracy
        mean, deviation = (float(number) for number in cells.get("AUC", cells["accuracy"]).split(" ± "))
        measure += _with(mean, deviation, len(SEEDS[name]))
        row.own = [(0.0, 0.0)] * bool(cells.get("own (shared)"))
        row.epsilon = None if cells["epsilon"] == "none" else float(cells["epsilon"])
    return part


def _with(mean: float, deviation: float, count: int) -> list[float]:
    """So many numbers, an even count, of this mean and standard deviation."""
    away = deviation * ((count - 1) / count) ** 0.5
    return [mean + away, mean - away] * (count // 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", action="store_true", help="draw the picture of the tables as they are")
    if parser.parse_args().picture:
        return quickstart.draw(PICTURE, [kept(name) for name in SEEDS])
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        for name, seeds in SEEDS.items():
            config = ROOT / "configs" / f"{name}.yaml"
            parts.append(quickstart.measured(config, seeds, [f"out={folder}"], tell=print))
            put(PAGE, f"{name} table", shown(parts[-1]))
    return quickstart.draw(PICTURE, parts)


if __name__ == "__main__":
    main()
