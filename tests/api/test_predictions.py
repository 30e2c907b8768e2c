"""`dpfl.predict` on what a program has: a data frame or an array says what its file says."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

import dpfl_plugin as dpfl
from dpfl_plugin.errors import ConfigError, DataError
from tests.cli.test_tables import SCHEMA
from tests.cli.test_tables import frame as tabled

RNG = np.random.default_rng(3)
N = 60
X = RNG.normal(size=(N, 2)).astype(np.float32)
Y = np.where(X[:, 0] > 0, "ill", "healthy")
SITES = np.array(["east", "west"])[np.arange(N) % 2]
FRAME = pandas.DataFrame({"age": X[:, 0], "dose": X[:, 1], "old": X[:, 1] > 0.5, "state": Y, "site": SITES})
SETTING: dict[str, Any] = {
    "algorithm": dpfl.algorithms.FedAvg(local_steps=2, local_lr=0.5),
    "privacy": {"noise_multiplier": 1.0},
    "rounds": 2,
    "progress": False,
}


def trained(kind: str, folder: Path) -> dpfl.Run:
    if kind == "frame":
        records = dpfl.Federation.from_frame(FRAME, silo="site", label="state", classes=["healthy", "ill"])
    elif kind == "table":
        records = dpfl.Federation.from_table(tabled(), SCHEMA)
    else:
        parts = {site: (X[site == SITES], Y[site == SITES]) for site in ("east", "west")}
        records = dpfl.Federation.from_arrays(parts, classes=["healthy", "ill"])
    return dpfl.train(records, out=folder / "runs", **SETTING)


def test_a_data_frames_label_and_silo_are_known_by_their_names_to_predictions(tmp_path: Path) -> None:
    records = dpfl.Federation.from_frame(
        FRAME.assign(number=range(N)), silo="site", label="state", ignore_columns=["number"], classes=["healthy", "ill"]
    )
    run = dpfl.train(records, out=tmp_path / "runs", **SETTING)
    FRAME.assign(old=FRAME["old"].astype(int)).to_csv(tmp_path / "new.csv", index=False)
    for new in (FRAME.assign(number=range(N)), tmp_path / "new.csv"):
        found = dpfl.predict(run, new)
        right = np.mean(np.array(found.labels) == Y)
        assert found.predictions.labelled == N and found.accuracy == pytest.approx(right)
        assert not any("not used" in note for note in found.notes)
    with pytest.raises(DataError, match="row 0, column 'state': 'sick' is not one of the run's classes healthy, ill"):
        dpfl.predict(run, FRAME.assign(state="sick"))


@pytest.mark.usefixtures("measured")
def test_of_two_classes_a_run_and_its_predictions_show_auc_and_all_notes(tmp_path: Path) -> None:
    run = trained("frame", tmp_path)
    measures = run.measures["pooled"]["model"]
    auc = f"AUC {measures['auc']:.4f} (baseline 0.5000, positive class ill)"
    assert auc in repr(run) and auc in str(run) and html.escape(auc) in run._repr_html_()
    compared = dpfl.compare([run])
    assert compared.rows[0]["auc"] == measures["auc"] and f"{measures['auc']:.4f}" in repr(compared)
    notes = ["a note of the run", "secure noise: privacy.randomness=fresh"]  # as of `dpfl run`
    told = dpfl.Run(run.folder, {**run.result, "notes": notes})
    for line in (
        "The baseline is without features: ",
        " The positive class is ill.",
        f"silos: worst {run.result['silos']['test_accuracy']['min']:.3f}",
        "note: a note of the run",
        "note: secure noise: privacy.randomness=fresh",
    ):
        assert line in str(told) and html.escape(line) in told._repr_html_(), line
    found = dpfl.predict(run, FRAME.assign(unknown=1))
    drawn = [each.get_label() for each in found.plot("roc").axes[0].lines]
    assert f"AUC {found.measures['auc']:.3f}" in drawn
    with pytest.raises(ConfigError, match="survival"):
        found.plot("survival")
    noted = "note: not used, as the model was not trained on it: column 'unknown'."
    for line in (noted, *found.statement, f"{N} of {N} records have a label:", "... and 50 more"):
        assert line in str(found) and html.escape(line) in found._repr_html_(), line


def test_a_single_frame_that_has_a_name_is_a_silo(tmp_path: Path) -> None:
    """As a single array is."""
    schema = {key: value for key, value in SCHEMA.items() if key != "silo"} | {"other_columns": "ignore"}
    run = dpfl.train(dpfl.Federation.from_table({"east": tabled()}, schema), out=tmp_path / "runs", **SETTING)
    assert run.result["num_silos"] == 1 and run.result["num_train_records"] > 40


@pytest.mark.parametrize("kind", ["frame", "table", "arrays"])
def test_what_a_program_has_is_predicted_as_its_file_is(tmp_path: Path, kind: str) -> None:
    run = trained(kind, tmp_path)
    if kind == "arrays":
        given: list[Any] = [X, torch.from_numpy(X)]
        np.savez(tmp_path / "new.npz", x=X)
        file = tmp_path / "new.npz"
    else:
        new = FRAME[["dose", "old", "age"]] if kind == "frame" else tabled()
        given = [new] if kind == "table" else [new, np.column_stack([X, X[:, 1] > 0.5])]
        file = tmp_path / "new.csv"
        (new.assign(old=new["old"].astype(int)) if kind == "frame" else new).to_csv(file, index=False)
    of_file = dpfl.predict(run, file)
    for one in given:
        found = dpfl.predict(run, one)
        assert found.labels == of_file.labels and found.predictions.labelled == of_file.predictions.labelled
        assert np.array_equal(found.predictions.probabilities, of_file.predictions.probabilities)
        assert [row["record"] for row in found.rows] == list(range(len(of_file.rows)))
    if kind == "arrays":
        with pytest.raises(ConfigError, match="these records are none"):
            dpfl.predict(run, X, id_column="age")
    else:  # the same from a file and from a frame
        numbers = [f"p{record}" for record in range(len(new))]
        numbered = new.assign(number=numbers, **({"old": new["old"].astype(int)} if kind == "frame" else {}))
        numbered.to_csv(tmp_path / "numbered.csv", index=False)
        for where in (numbered, tmp_path / "numbered.csv"):
            rows = dpfl.predict(run, where, id_column="number").rows
            assert [row["number"] for row in rows] == numbers and next(iter(rows[0])) == "number"
    table = found.table
    assert list(table["predicted"]) == found.labels and len(table.columns) == 2 + len(found.classes)
    last = found.classes[-1]
    assert table[f"p({last})"].tolist() == [row["probabilities"][last] for row in found.rows]


@pytest.mark.parametrize(
    ("kind", "new", "says"),
    [
        ("frame", FRAME[["age", "old"]], "^the data frame: there is no column 'dose', which the model was trained on"),
        (
            "frame",
            FRAME.assign(dose="much"),
            "the data frame: 60 places .*column 'dose': 60 cells are not numbers .row 0 'much'",
        ),
        ("frame", X, r"^the array has shape \(60, 2\); the model was trained on \[n, 3\]"),
        ("table", tabled().assign(stage="V"), "the data frame.*column 'stage': 80 cells are not one of I, II, III"),
        ("table", X, "trained on tables with a schema: give a data frame or a file"),
        ("arrays", FRAME, "trained on arrays, whose columns have no names: give an array"),
        ("arrays", X * np.nan, "the array.*nan"),
        ("arrays", X[:0], r"^the array has shape \(0, 2\)"),
    ],
)
def test_records_of_another_kind_are_refused(
    tmp_path_factory: pytest.TempPathFactory, kind: str, new: Any, says: str
) -> None:
    run = RUNS.get(kind) or RUNS.setdefault(kind, trained(kind, tmp_path_factory.mktemp(kind)))
    with pytest.raises(DataError, match=f"(?s){says}"):
        dpfl.predict(run, new)


RUNS: dict[str, dpfl.Run] = {}


def by_frame(x: Any, y: Any) -> dpfl.Federation:
    frame = pandas.DataFrame({"site": ["a", "b"] * (len(x) // 2), "u": x[:, 0], "v": x[:, 1], "y": y})
    return dpfl.Federation.from_frame(frame, silo="site", label="y")


def by_table(x: Any, y: Any) -> dpfl.Federation:
    frame = pandas.DataFrame({"site": ["a", "b"] * (len(x) // 2), "u": x[:, 0], "y": y})
    column = {"u": {"type": "number", "range": [-3, 3]}}
    classes = [str(one) for one in sorted(set(y.tolist()))]
    return dpfl.Federation.from_table(
        frame, {"silo": "site", "label": {"column": "y", "classes": classes}, "columns": column}
    )


def by_arrays(x: Any, y: Any, **keys: Any) -> dpfl.Federation:
    return dpfl.Federation.from_arrays({"a": (x[::2], y[::2]), "b": (x[1::2], y[1::2])}, **keys)


def by_data_sets(x: Any, y: Any) -> dpfl.Federation:
    both = TensorDataset(torch.from_numpy(x).float(), torch.from_numpy(y))
    return dpfl.Federation.from_datasets({"a": Subset(both, range(20)), "b": Subset(both, range(20, 40))})


@pytest.mark.parametrize(
    ("make", "of", "kind"),
    [
        (lambda x, y: by_arrays(x, y, classes=[0, 1]), lambda y: y, int),
        (lambda x, y: by_arrays(x, y, classes=["0", "1"]), lambda y: y, int),
        (by_arrays, lambda y: y + 7, int),
        (by_arrays, lambda y: y == 1, bool),
        (by_arrays, lambda y: y.astype(str), str),
        (by_data_sets, lambda y: y, int),
        (by_frame, lambda y: y - 1, int),
        (by_frame, lambda y: y == 1, bool),
        (by_frame, lambda y: y * 1.0, float),
        (by_frame, lambda y: np.array(["no", "yes"])[y], str),
        (by_table, lambda y: y, int),
    ],
)
def test_labels_are_what_the_program_gave(
    tmp_path: Path, make: Callable[[Any, Any], dpfl.Federation], of: Callable[[Any], Any], kind: type
) -> None:
    """So that they can be compared with the program's own; also where the run is opened again."""
    x = np.random.default_rng(0).normal(size=(40, 2))
    y = of((x[:, 0] > 0).astype(int))
    run = dpfl.train(make(x, y), out=tmp_path, **SETTING)
    new: Any = x if make not in (by_frame, by_table) else pandas.DataFrame({"u": x[:, 0], "v": x[:, 1]})
    for opened in (run, dpfl.Run.open(run.folder), run.folder):
        found = dpfl.predict(opened, new)
        assert {type(label) for label in found.labels} == {kind}
        assert found.labels == [sorted(set(y.tolist()))[number] for number in found.predictions.predicted]
        assert found.table.predicted.tolist() == found.labels


@pytest.mark.parametrize(
    ("of", "classes"),
    [
        (lambda y: y + 1.0, [1, 2]),
        (lambda y: y + 1.0, [1.0, 2.0]),
        (lambda y: y * 1.5 + 1, [1.0, 2.5]),
        (lambda y: y == 1, [False, True]),
        (lambda y: pandas.Series(y == 1, dtype=object), [False, True]),
    ],
)
def test_named_classes_are_compared_with_labels_of_the_columns_type(
    tmp_path: Path, of: Any, classes: list[Any]
) -> None:
    """In training and where the model is measured; predictions are what the column holds."""
    frame = pandas.DataFrame({"u": np.random.default_rng(0).normal(size=40)})
    frame["label"] = of((frame.u > 0).astype(int).to_numpy())
    run = dpfl.train(
        dpfl.Federation.from_frame(frame, classes=classes, partition="iid", num_silos=2), out=tmp_path, **SETTING
    )
    found = dpfl.predict(run, frame)
    assert {type(label) for label in found.labels} == {type(frame.label.tolist()[0])}
    right = [one == other for one, other in zip(found.labels, frame.label, strict=True)]
    assert found.accuracy == pytest.approx(np.mean(right))
