"""Cuts before the oracle, one configuration after another; see `tests.privacy.cuts`."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dpfl_plugin.data import heart_disease
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.shared_ledger import runs_in
from tests.cli.command import run
from tests.privacy import cuts


@pytest.mark.parametrize("name", cuts.CASES)
def test_one_rank_differs_between_neighbouring_exports(name: str) -> None:
    cuts.check(cuts.CASES[name])


HOSPITALS: dict[str, Any] = {
    "name": "hospitals",
    "rounds": 2,
    "data": {"dataset": {"name": "heart_disease", "missing": "drop"}, "partition": "natural"},
    "model": "softmax",
    "algorithm": {"name": "fedavg", "local_steps": 2, "local_lr": 0.1},
    "privacy": {"noise_multiplier": 5.0, "record_rate": 0.2},
}


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.dump({**HOSPITALS, **changes}))
    return path


def test_a_silo_without_usable_records_answers_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is charged as any other, and the run ends as if it had some."""
    read = heart_disease._read

    def missing(hospital: str) -> Any:
        table = read(hospital)
        return np.full_like(table, np.nan) if hospital == "va" else table

    monkeypatch.setattr(heart_disease, "_read", missing)
    result = run(write(tmp_path, seed=0))
    assert result["status"] == "done"
    with Ledger.open(Path(result["folder"]) / "ledger.jsonl", append=False) as ledger:
        assert {charge.silo for charge in ledger} == {0, 1, 2, 3}


@pytest.mark.usefixtures("measured")
def test_measures_are_of_test_records_that_can_be_used(tmp_path: Path) -> None:
    """So are the numbers beside them; a statement tells the public numbers, which no value of a record changes."""
    result = run(write(tmp_path, seed=0))
    folder = Path(result["folder"])
    sizes = [int(row["num_test"]) for row in csv.DictReader((folder / "silos.csv").read_text().splitlines())]
    stated = [silo["num_test_records"] for silo in json.loads((folder / "ledger.json").read_text())["silos"]]
    confusion = np.array(result["measures"]["pooled"]["model"]["confusion_matrix"])
    assert confusion.sum() == result["num_test_records"] == sum(sizes)
    assert stated == [math.ceil(0.2 * number) for number in (303, 294, 123, 200)]
    assert sum(sizes) < sum(stated)


def test_runs_of_a_ledger_share_a_cut_without_a_seed(tmp_path: Path) -> None:
    """Their marks say so, whatever the order of the file; a record that was changed makes other ones."""
    rows = [f"{age},{age % 7},{age % 2}" for age in range(20, 90)]
    ledger = tmp_path / "shared.jsonl"
    data = {"dataset": {"name": "csv", "files": ["a.csv", "b.csv"], "classes": [0, 1]}, "partition": "natural"}
    data["preprocess"] = [{"name": "scale", "factor": 0.1}]
    seen = []
    for number, order in enumerate((rows, rows[::-1], ["99,1,1", *rows[1:]])):
        for name in ("a", "b"):
            (tmp_path / f"{name}.csv").write_text(
                "\n".join(["age,x,label", *(order if name == "a" else rows[::2]), ""])
            )
        run(write(tmp_path, name=f"run-{number}", data=data), "--ledger", ledger)
        facts = runs_in(Ledger.open(ledger, append=False))[-1].facts
        seen.append((facts["data_sha256"], facts["cuts"]))
    assert seen[0] == seen[1] != seen[2]
    (one, other), (changed, same) = (found["silos"] for _, found in (seen[0], seen[2]))
    assert one[1:] == [70, 14, 70] == changed[1:] and one[0] != changed[0] and other == same
