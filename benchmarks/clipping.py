"""`python -m benchmarks.clipping`: the ways to clip, over seeds; writes the table in docs/privacy.md."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.pages import ROOT, put
from benchmarks.quickstart import run
from benchmarks.table import table


def rows(results: dict[str, list[dict]]) -> list[list[str]]:
    """Mean and standard deviation of the accuracy, epsilon, and the median time, by run."""
    lines = []
    for label, runs in results.items():
        accuracy = [run["test_accuracy"]["mean_last_10_percent"] for run in runs]
        epsilons = [run["epsilon"]["server"]["epsilon"] for run in runs]
        epsilon = "none" if None in epsilons else f"{max(epsilons):.2f}"
        spread = f"{statistics.mean(accuracy):.3f} ± {statistics.stdev(accuracy):.3f}"
        lines.append([label, spread, epsilon, f"{statistics.median(run['seconds'] for run in runs):.1f}"])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clipping", description="The ways to clip, over seeds.")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = run(ROOT / "configs" / "clipping.yaml", arguments.seeds, Path(folder))
    text = table(["run", "test accuracy, last 10 % of rounds", "epsilon, server", "seconds"], rows(results))
    print(text)
    put("docs/privacy.md", "clipping table", f"{arguments.seeds} seeds:\n\n{text}")


if __name__ == "__main__":
    main()
