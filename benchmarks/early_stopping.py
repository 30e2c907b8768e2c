"""`python -m benchmarks.early_stopping`: what a private stop and own models bring; the table in docs/evaluation.md."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.pages import ROOT, put
from benchmarks.quickstart import run
from benchmarks.table import table

CONFIG = ROOT / "configs" / "early_stopping.yaml"
PAGE, PART = "docs/evaluation.md", "early stopping table"


def rows(results: dict[str, list[dict]]) -> list[list[str]]:
    """A row for each variant: means over seeds, and the standard deviation of accuracies."""
    return [
        [
            label,
            f"{statistics.mean(run['rounds'] for run in runs):.0f}",
            _spread([run["silos"]["test_accuracy"]["mean"] for run in runs]),
            _spread([run["silos"]["test_accuracy"]["min"] for run in runs]),
            _spread([run["silos"]["personalised_accuracy"]["mean"] for run in runs])
            if "personalised_accuracy" in runs[0]["silos"]
            else "",
            f"{statistics.mean(run['noise_multiplier'] for run in runs):.2f}",
            f"{max(run['epsilon']['server']['epsilon'] for run in runs):.2f}",
        ]
        for label, runs in results.items()
    ]


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    with tempfile.TemporaryDirectory() as folder:
        results = run(CONFIG, parser.parse_args().seeds, Path(folder))
    columns = ["run", "rounds run", "mean of silos", "worst silo", "own models, mean", "noise multiplier", "epsilon"]
    put(PAGE, PART, table(columns, rows(results)))


if __name__ == "__main__":
    main()
