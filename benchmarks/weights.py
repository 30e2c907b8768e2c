"""`python -m benchmarks.weights`: how silos are weighed, on the four hospitals; a table of docs/configuration.md."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import yaml

from benchmarks.pages import ROOT, put
from benchmarks.table import table
from dpfl_plugin.api import quickstart

PAGE, PART, SEEDS = "docs/configuration.md", "weights table", 5
LABELS = ("DP-MB-SGD", "DP-FedAvg", "DP-SCAFFOLD")
WEIGHTS = ("equal", "records", "noise")


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    rows: dict[str, list[str]] = {label: [label] for label in LABELS}
    values = yaml.safe_load((ROOT / "configs" / f"{quickstart.HOSPITALS}.yaml").read_text())
    values["variants"] = {label: values["variants"][label] for label in LABELS}
    del values["compare"]
    for weights in WEIGHTS:
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "hospitals.yaml"
            config.write_text(yaml.safe_dump({**values, "silo_weights": weights, "out": folder}))
            part = quickstart.measured(config, range(SEEDS), tell=print)
        for label in LABELS:
            row = part.rows[label]
            rows[label] += [spread(row.auc), spread(row.accuracy)]
    titles = [f"{weights}: {measure}" for weights in WEIGHTS for measure in ("AUC", "accuracy")]
    put(PAGE, PART, table(["algorithm", *titles], list(rows.values())))


if __name__ == "__main__":
    main()
