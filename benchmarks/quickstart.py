"""`python -m benchmarks.quickstart`: the quickstart over seeds; writes the table in README.md."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from typer.testing import CliRunner

from benchmarks.pages import ROOT, put
from dpfl_plugin.cli.main import app


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = table(run(ROOT / "configs" / "quickstart.yaml", arguments.seeds, Path(folder)))
    print(text)
    put("README.md", "quickstart table", text)


if __name__ == "__main__":
    main()
