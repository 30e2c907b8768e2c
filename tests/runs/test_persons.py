"""`unit: person` in runs: what a file may say, what is stated, and what is released besides the rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dpfl_plugin import Federation
from dpfl_plugin.config.load import configure, run_id
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.outcomes import CLASSES
from dpfl_plugin.core.validation_scores import DEFAULT_SCORE
from dpfl_plugin.errors import ConfigError, DataError
from dpfl_plugin.federation.validation import summed
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.privacy.scores import STEP
from dpfl_plugin.runs.build import build
from tests.cli.command import BASE, charges, dpfl, merged, run

PERSON = {"unit": "person", "max_records_per_person": 3}
COLUMNS = {"name": "csv", "files": "*.csv", "person_column": "patient", "classes": ["no", "yes"]}


def configured(values: dict[str, Any]) -> Config:
    return configure(values, source="test")


def tables(folder: Path, *, shared: bool = False) -> None:
    """Three hospitals, of 12 patients with 1 to 5 visits each; ``shared``: two have a patient in common."""
    rng = np.random.default_rng(0)
    for hospital in range(3):
        rows = []
        for patient in range(12):
            name = "visitor" if shared and hospital < 2 and patient == 0 else f"{hospital}-{patient}"
            for _ in range(patient % 5 + 1):
                a, b = rng.standard_normal(2)
                rows.append(f"{name},{a:.4f},{b:.4f},{'yes' if a + b > 0 else 'no'}")
        lines = ["patient,a,b,label", *rng.permutation(rows)]
        (folder / f"h{hospital}.csv").write_text("\n".join(lines) + "\n")


def config(folder: Path, **changes: Any) -> Path:
    data = {"dataset": COLUMNS, "partition": "natural"}
    values = merged({**BASE, "data": data, "privacy": {**BASE["privacy"], **PERSON}}, changes)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def test_a_run_counts_persons_and_says_so(tmp_path: Path) -> None:
    tables(tmp_path)
    found = run(config(tmp_path, privacy={"record_rate": 0.4}))
    folder = Path(found["folder"])
    (release,) = {charge.release for charge in charges(folder)}
    assert release.unit == "person" and release.rate == 3 / 9  # 9 of 12 persons are trained on
    said, page = json.loads((folder / "ledger.json").read_text()), (folder / "privacy.md").read_text()
    assert said["protects"] == {**PERSON, "neighbouring": "replace_one", "shared_persons": "refuse"}
    assert [silo["num_records"] for silo in said["silos"]] == [9, 9, 9]
    for words in (
        "At most 3 records of a person",
        "No person has records at two",
        "clip(mean gradient of a person, C)",
    ):
        assert words in page
    assert "| silo | persons |" in page and "patient" not in page.replace("`patient`", "")


def test_silos_of_different_sizes_are_told_by_their_persons(tmp_path: Path) -> None:
    tables(tmp_path)
    header, *rows = (tmp_path / "h1.csv").read_text().splitlines()
    few = [row for row in rows if int(row.split(",")[0].partition("-")[2]) < 5]
    (tmp_path / "h1.csv").write_text("\n".join([header, *few]) + "\n")
    done = dpfl("run", config(tmp_path, privacy={"record_rate": 0.5}, rounds=1), "--out", tmp_path / "runs")
    assert "silos have 4 to 9 training persons and count alike" in done.err and "by their persons." in done.err


def test_a_person_at_two_silos_is_refused_or_stated(tmp_path: Path) -> None:
    tables(tmp_path, shared=True)
    refused = dpfl("run", config(tmp_path))
    assert refused.code == 2 and "one person has records at more than one silo" in refused.err
    assert not list(tmp_path.rglob("ledger.jsonl"))
    path = config(tmp_path, privacy={"shared_persons": "per_silo"})
    page = (Path(run(path)["folder"]) / "privacy.md").read_text()
    assert "**A person with records at several silos is protected at each of them separately**" in page


SMOOTHED = {"name": "convolution_mb_sgd", "diameter": 1.0, "smoothing_radius": 0.1, "lipschitz": 1.0, "v": 1.0}
SMOOTHED |= {"local_steps": None, "local_lr": None}  # of the file's algorithm
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no most": ({"privacy": {"max_records_per_person": None}}, "max_records_per_person is missing"),
    "nobody": ({"data": {"dataset": {"person_column": None, "ignore_columns": ["patient"]}}}, "person_column"),
    "no column": ({"data": {"dataset": {"person_column": "patients"}}}, "did you mean 'patient'"),
    "smoothed": ({"algorithm": SMOOTHED}, "gradients of smoothed losses"),
    "engine": ({"engine": "closed_form"}, "it has no gradients of persons"),
    "relation": ({"privacy": {"neighbouring": "add_or_remove"}}, "at person level"),
    "lockstep": ({"runtime": {"lockstep": True}}, "lockstep"),
}


@pytest.mark.parametrize(("changes", "says"), REFUSED.values(), ids=REFUSED)
def test_refused_before_anything_is_released(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    tables(tmp_path)
    done = dpfl("run", config(tmp_path, **changes))
    assert done.code == 2 and says in done.err
    assert not list(tmp_path.rglob("ledger.jsonl"))


def test_runs_that_protect_records_keep_their_names() -> None:
    """The keys of persons are in no digest of theirs, and in no file of theirs."""
    values = {"rounds": 2, "algorithm": "fedsgd", "privacy": {"noise_multiplier": 1.0}}
    one = configured(values)
    assert not {"max_records_per_person", "shared_persons"} & set(one.privacy.model_dump())
    person = configured({**values, "privacy": {"noise_multiplier": 1.0, **PERSON}})
    other = configured({**values, "privacy": {"noise_multiplier": 1.0, **PERSON, "max_records_per_person": 4}})
    assert len({run_id(one), run_id(person), run_id(other)}) == 3


@settings(max_examples=40, deadline=None)
@given(data=st.data(), count=st.integers(1, 12), k=st.integers(1, 7))
def test_a_person_adds_at_most_one_to_a_score(data: Any, count: int, k: int) -> None:
    """In whole steps, so that sums are exact; all its records replaced, and any number of them."""
    rows = st.lists(st.integers(0, 1), min_size=k, max_size=k)
    labels = torch.tensor(data.draw(st.lists(rows, min_size=count, max_size=count)))
    real = torch.tensor(data.draw(st.lists(st.integers(1, k), min_size=count, max_size=count)))
    labels[torch.arange(k) >= real.unsqueeze(1)] = -1

    def always_one(features: Tensor) -> Tensor:
        return torch.tensor([[0.0, 1.0]]).expand(len(features), 2)

    def score(labels: Tensor) -> float:
        persons = Records(torch.zeros(*labels.shape, 2), labels)
        return float(summed(always_one, persons, CLASSES, DEFAULT_SCORE, persons=True))

    whole = score(labels)
    shares = [float((row == 1).sum()) / float((row >= 0).sum()) for row in labels]
    assert abs(whole - sum(shares)) <= count * STEP and whole / STEP == round(whole / STEP)
    other = labels.clone()
    other[0] = torch.tensor([1 - int(labels[0, 0])] + [-1] * (k - 1))
    assert abs(score(other) - whole) <= 1.0


def test_frames_arrays_and_files_say_whose_records_they_are(tmp_path: Path) -> None:
    """The same persons and the same noise by each way in."""
    tables(tmp_path)
    frame = pandas.concat([pandas.read_csv(tmp_path / f"h{i}.csv").assign(hospital=f"h{i}") for i in range(3)])
    ways = {"frame": Federation.from_frame(frame, silo="hospital", person="patient", classes=["no", "yes"])}
    parts = {
        name: (rows[["a", "b"]].to_numpy("float32"), rows["label"].to_numpy(str), rows["patient"].to_numpy(str))
        for name, rows in frame.groupby("hospital")
    }
    ways["arrays"] = Federation.from_arrays(parts, classes=["no", "yes"])
    np.savez(
        tmp_path / "h.npz",
        **{
            "x": frame[["a", "b"]].to_numpy("float32"),
            "y": frame["label"].to_numpy(str),
            "silo": frame["hospital"].to_numpy(str),
            "person": frame["patient"].to_numpy(str),
        },
    )
    blocks = {name: way.data for name, way in ways.items()}
    arrays = {"name": "npz", "files": str(tmp_path / "h.npz"), "classes": ["no", "yes"]}
    blocks["npz"] = {"dataset": arrays, "partition": "natural"}
    blocks["csv"] = {"dataset": COLUMNS, "partition": "natural"}
    privacy = {"noise_multiplier": 1.0, **PERSON}
    rest = {"rounds": 2, "seed": 3, "algorithm": {"name": "fedsgd", "local_lr": 0.1}, "privacy": privacy}
    found = {name: build(configured({**rest, "data": block}), tmp_path).data_sha256 for name, block in blocks.items()}
    assert len(set(found.values())) == 1, found


def test_persons_without_a_name_are_refused(tmp_path: Path) -> None:
    tables(tmp_path)
    (tmp_path / "h1.csv").write_text("patient,a,b,label\np,1,2,no\n,3,4,yes\n")
    done = dpfl("run", config(tmp_path))
    assert done.code == 2 and "h1.csv, line 3, column 'patient' is empty" in done.err
    x, y = np.ones((4, 2), np.float32), np.arange(4) % 2
    with pytest.raises(DataError, match="person"):
        Federation.from_arrays({"a": (x, y, np.array(["p", "", "q", "r"])), "b": (x + 1, y, np.arange(4))})
    with pytest.raises(DataError, match="does not say whose records"):
        Federation.from_arrays({"a": (x, y, np.arange(4)), "b": (x + 1, y)})
    with pytest.raises(ConfigError, match="features, labels, persons"):
        Federation.from_arrays({"a": (x, y, y, y)})
