"""`dpfl predict`: what it says is what the model computes of records that were preprocessed as in training."""

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from dpfl_plugin.api.predict import _plainly
from dpfl_plugin.api.runs import Run
from tests.cli.command import BASE, Done, dpfl, one_message, run, write

CSV = {
    "rounds": 3,
    "data": {
        "dataset": {"name": "csv", "files": "train.csv", "ignore_columns": ["id"], "classes": ["no", "yes"]},
        "num_silos": 2,
        "preprocess": ["unit_norm"],
    },
}


def is_larger(row: dict[str, float]) -> bool:
    return row["a"] > row["b"]


def differs_in_sign(row: dict[str, float]) -> bool:
    """Which no linear model tells."""
    return row["a"] * row["b"] < 0


def table(
    seed: int,
    count: int,
    columns: tuple[str, ...] = ("a", "b"),
    label: str = "label",
    rule: Callable[[dict[str, float]], bool] = is_larger,
) -> str:
    rng = np.random.default_rng(seed)
    rows = [dict(zip(("a", "b", "c"), rng.normal(size=3).round(3), strict=True)) for _ in range(count)]
    text = ["id," + ",".join(columns) + (f",{label}" if label else "")]
    for number, row in enumerate(rows):
        cells = [
            number,
            *(row[column] for column in columns),
            *(["yes" if rule(row) else "no"] * bool(label)),
        ]
        text.append(",".join(map(str, cells)))
    return "\n".join(text) + "\n"


def trained(
    folder: Path,
    changes: dict | None = None,
    no: str = "no",
    rule: Callable[[dict[str, float]], bool] = is_larger,
) -> Path:
    """The folder of a finished run."""
    (folder / "train.csv").write_text(table(1, 80, rule=rule).replace(",no\n", f",{no}\n"))
    changes = changes or {}
    config = {**BASE, **CSV, **changes, "data": {**CSV["data"], **changes.get("data", {})}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return Path(run(folder / "config.yaml")["folder"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("run"))


def rows(done: Done) -> list[dict[str, str]]:
    assert done.code == 0, done.err
    return list(csv.DictReader(io.StringIO(done.out)))


def test_the_model_is_applied_to_what_preprocessing_makes_of_the_records(folder: Path, tmp_path: Path) -> None:
    """By hand: softmax of W x / |x| + b."""
    (tmp_path / "new.csv").write_text(table(2, 30))
    found = rows(dpfl("predict", folder, tmp_path / "new.csv"))
    x = np.genfromtxt(io.StringIO(table(2, 30)), delimiter=",", skip_header=1, usecols=(1, 2))
    model = load_file(folder / "model.safetensors")
    scores = x / np.linalg.norm(x, axis=1, keepdims=True) @ model["1.weight"].T + model["1.bias"]
    expected = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    said = np.array([[float(row["p(no)"]), float(row["p(yes)"])] for row in found])
    assert np.abs(said - expected).max() < 1e-4
    assert [row["predicted"] for row in found] == ["yes" if p[1] > p[0] else "no" for p in expected]
    assert [int(row["line"]) for row in found] == list(range(2, 32))


def test_a_class_whose_name_is_a_formula_is_none_in_a_spreadsheet(tmp_path: Path) -> None:
    """A run of somebody else's configuration names the classes."""
    formula, little = "=1+1", {**BASE["privacy"], "noise_multiplier": 0.1}  # so that both are predicted
    named = {"dataset": {**CSV["data"]["dataset"], "classes": [formula, "yes"]}}
    folder = trained(tmp_path, {"data": named, "privacy": little}, formula)
    (tmp_path / "new.csv").write_text(table(2, 30, label=""))
    done = dpfl("predict", folder, tmp_path / "new.csv")
    assert {row["predicted"] for row in rows(done)} == {f"'{formula}", "yes"}
    assert list(rows(done)[0]) == ["line", "predicted", f"p({formula})", "p(yes)"]


def test_columns_go_by_their_names_and_a_label_is_not_needed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(table(2, 30))
    (tmp_path / "other.csv").write_text(table(2, 30, ("b", "c", "a"), label=""))
    done = dpfl("predict", folder, tmp_path / "other.csv")
    assert rows(done) == rows(dpfl("predict", folder, tmp_path / "new.csv"))
    assert "not trained on it: column 'c'." in done.err and "accuracy" not in done.err


def test_a_patients_number_is_carried(folder: Path, tmp_path: Path) -> None:
    text = table(2, 4).replace("\n0,", "\np7,").replace("\n2,", "\n,").replace("\n3,", "\n1,")
    (tmp_path / "new.csv").write_text(text)
    plain = rows(dpfl("predict", folder, tmp_path / "new.csv"))
    done = dpfl("predict", folder, tmp_path / "new.csv", "--id", "id")
    found = rows(done)
    assert list(found[0]) == ["id", *plain[0]] and [row.pop("id") for row in found] == ["p7", "1", "", "1"]
    assert found == plain
    (tmp_path / "named.csv").write_text(text.replace("id,", "number,", 1))  # training's file has none of this name
    assert "column 'number'" in dpfl("predict", folder, tmp_path / "named.csv").err
    assert "not used" not in dpfl("predict", folder, tmp_path / "named.csv", "--id", "number").err
    assert "1 of 4 cells are empty" in done.err and "the same value in several records" in done.err
    (tmp_path / "line.csv").write_text(text.replace("id,", "line,", 1))
    for name, column, message in (
        ("new.csv", "ID", "new.csv has no column 'ID' (did you mean 'id'?)"),
        ("line.csv", "line", "a column 'line' of their own"),
    ):
        one_message(dpfl("predict", folder, tmp_path / name, "--id", column), message)


@pytest.mark.parametrize(("given", "shown"), [(1.98698e-08, "0.00000001987"), (0.123456, "0.1235"), (0.99999, "1")])
def test_a_probability_is_shown_plainly(given: float, shown: str) -> None:
    assert _plainly(given, 4) == shown


def test_it_says_what_epsilon_covers_and_leaves_files_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(table(2, 30))
    out = tmp_path / "out.json"
    done = dpfl("predict", folder, tmp_path / "new.csv", "--json", "--out", out)
    assert done.code == 0 and not done.out
    found, result = json.loads(out.read_text()), json.loads((folder / "result.json").read_text())
    assert found["epsilon"] == result["epsilon"] and found["run"] == result["id"] and len(found["predictions"]) == 30
    epsilon = f"epsilon {result['epsilon']['server']['epsilon']:.3f}"[:11]
    for said in (
        epsilon,
        "is covered by that epsilon",
        "is not covered by any epsilon",
        "follows from its seed",
        str(out),
    ):
        assert said in done.err
    correct = [one["predicted"] for one in found["predictions"]]
    labels = [line.split(",")[-1] for line in table(2, 30).splitlines()[1:]]
    assert found["accuracy"] == np.mean([one == label for one, label in zip(correct, labels, strict=True)])
    one_message(dpfl("predict", folder, tmp_path / "new.csv", "--out", out), "was left as it is")
    assert json.loads(out.read_text()) == found


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            table(2, 3).replace(",a,", ",A,", 1),
            [
                "new.csv, line 1",
                "no column 'a'",
                "Columns: id, A, b, label",
                "Rename the column 'A' of this file to 'a'",
            ],
        ),
        ("a,b\n1,2\n3,high\n", ["new.csv, line 3, column 'b': 'high' is not a number", "as the training records"]),
        ("a,b\n1,2\n,4\n", ["new.csv, line 3, column 'a' is empty"]),
        ("a,b\n1,2,3\n", ["new.csv, line 2: 3 columns"]),
        ("a,b,label\n1,2,maybe\n", ["line 2, column 'label': 'maybe' is not one of the run's classes no, yes"]),
        ("a,b\n", ["a header and no records"]),
        ("a,b,a\n1,2,3\n", ["two columns have the name 'a'"]),
        ("a;b\n1;2\n", ["no column 'a', 'b'", "Save it with ',' instead of ';'"]),
        (None, ["is not a file", "new.csv"]),
    ],
)
def test_records_of_another_kind_are_refused(folder: Path, tmp_path: Path, text: str | None, parts: list[str]) -> None:
    if text is not None:
        (tmp_path / "new.csv").write_text(text)
    one_message(dpfl("predict", folder, tmp_path / "new.csv"), *parts)


@pytest.mark.usefixtures("measured")
def test_run_and_predict_warn_of_probabilities_that_mean_nothing(tmp_path: Path) -> None:
    """Steps far too large: a model that is sure, and wrong of many a record, whatever its noise is."""
    changes = {"algorithm": {"name": "scaffold", "local_steps": 10, "local_lr": 200.0}}
    folder = trained(tmp_path, changes, rule=differs_in_sign)
    warning = "worse than that of a baseline without features"
    done = dpfl("run", tmp_path / "config.yaml", "--out", tmp_path / "again")
    assert "warning: the model's log loss " in done.out and warning in done.out
    assert "(algorithm.local_lr=20)" in done.out
    assert warning in dpfl("predict", folder, tmp_path / "train.csv").err
    assert warning in Run.open(folder)._repr_html_()


@pytest.mark.parametrize("step", ["standardise", {"name": "standardise", "fit": "silo"}, {"name": "pca", "dims": 1}])
def test_what_was_fitted_to_private_records_is_refused(tmp_path: Path, step: object) -> None:
    folder = trained(tmp_path, {"data": {"preprocess": [step]}})
    one_message(dpfl("predict", folder, tmp_path / "train.csv"), "fitted to the run's private training records")


def test_the_runs_own_test_part_gets_the_accuracy_that_the_run_had(tmp_path: Path) -> None:
    """With every step that takes nothing from the records, one after another; by file, for arrays."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(140, 2, 3)), rng.integers(0, 4, 140)
    x[np.arange(140), y % 2, 0] += 3
    np.savez(tmp_path / "train.npz", x=x[:80], y=y[:80])
    np.savez(tmp_path / "test.npz", x=x[80:], y=y[80:])
    np.savez(tmp_path / "public.npz", x=rng.normal(size=(50, 2, 3)))
    steps = [
        {"name": "scale", "factor": 2.0, "offset": 1.0},
        {"name": "standardise", "fit": "none", "mean": 0.5, "std": 1.5},
        {"name": "pca", "dims": 4, "fit": "public.npz"},
        "unit_norm",
        "parity",
    ]
    files = {"name": "npz", "files": "train.npz", "test_files": "test.npz"}
    privacy = {"clip_norm": 1.0, "noise_multiplier": 0.3, "record_rate": 0.5}
    data = {"dataset": files, "test": "own", "preprocess": steps}
    folder = trained(tmp_path, {"data": data, "model": "logistic", "rounds": 20, "privacy": privacy})
    result = json.loads((folder / "result.json").read_text())
    done = dpfl("predict", folder, tmp_path / "test.npz", "--json")
    assert done.code == 0, done.err
    assert done.json["accuracy"] == pytest.approx(result["test_accuracy"]["last"]) and done.json["accuracy"] > 0.7
    assert done.json["classes"] == ["even", "odd"] and set(done.json["predictions"][0]) == {
        "record",
        "predicted",
        "probabilities",
    }
    one_message(dpfl("predict", folder, tmp_path / "train.csv"), "trained on arrays")
    np.savez(tmp_path / "wrong.npz", x=x.reshape(140, 3, 2))
    one_message(dpfl("predict", folder, tmp_path / "wrong.npz"), "shape (3, 2)", "[n, 2, 3]")


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("config.yaml", None, ["is not the folder of a run"]),
        ("result.json", None, ["not finished", "--resume"]),
        ("model.safetensors", None, ["is missing"]),
        ("config.yaml", "replace:unit_norm:parity", ["is not what this run was made with"]),
        ("result.json", 'replace:"inputs":"other"', ["does not say what the records were"]),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(tmp_path: Path, name: str, text: str | None, parts: list[str]) -> None:
    whole = trained(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    if text is None:
        (copy / name).unlink()
    else:
        _, old, new = text.split(":")
        (copy / name).write_text((copy / name).read_text().replace(old, new))
    one_message(dpfl("predict", copy, tmp_path / "train.csv"), *parts)


def test_a_data_set_by_its_name_needs_a_test_part(tmp_path: Path) -> None:
    config = write(tmp_path, {"rounds": 1})
    folder = run(config)["folder"]
    one_message(dpfl("predict", folder, "synthetic"), "no test part of its own")
    one_message(dpfl("predict", folder, "mnist"), "nor the run's data set (synthetic)")


def test_a_data_set_by_its_name_gives_its_test_part(tmp_path: Path, data_folder: Path) -> None:
    """Of one silo, so that its accuracy is that of the whole test part."""
    data = {"dataset": {"name": "mushrooms"}, "num_silos": 1, "test": "own", "folder": str(data_folder)}
    folder = trained(tmp_path, {"data": data, "rounds": 2})
    done = dpfl("predict", folder, "mushrooms", "--json")
    assert done.code == 0, done.err
    result = json.loads((folder / "result.json").read_text())
    assert done.json["accuracy"] == pytest.approx(result["test_accuracy"]["last"]) and done.json["classes"] == [
        "0",
        "1",
    ]
    assert len(done.json["predictions"]) == result["num_test_records"] == 1611


def test_a_run_whose_silos_have_budgets_of_their_own_predicts_as_any_other(tmp_path: Path) -> None:
    """With the model of all silos, and the epsilon of the worst."""
    done = trained(tmp_path, {"silos": {"1": {"noise_multiplier": 2}}})
    (tmp_path / "new.csv").write_text(table(2, 5))
    found = dpfl("predict", done, tmp_path / "new.csv", "--json")
    epsilons = json.loads((done / "ledger.json").read_text())["silos"]
    assert found.code == 0 and len(found.json["predictions"]) == 5
    assert found.json["epsilon"]["server"]["epsilon"] == max(one["epsilon"] for one in epsilons)
