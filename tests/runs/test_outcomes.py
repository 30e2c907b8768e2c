"""Outcomes that are not classes from records to predictions; and what is refused."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import dpfl_plugin as dpfl
from dpfl_plugin.api.predict import CONSTANTS
from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.data.labels import check_labels
from dpfl_plugin.data.outcome_option import labels_of, parse
from dpfl_plugin.data.table import Table
from dpfl_plugin.errors import ConfigError, DataError, DpflError, UnsupportedError
from tests.cli.command import Done, run
from tests.cli.command import dpfl as command

pytestmark = pytest.mark.usefixtures("measured")
RNG = np.random.default_rng(7)
N = 90
X = RNG.uniform(-1, 1, (N, 2)).astype(np.float32)
SCORE = X @ np.array([2.0, -1.0])
EDGES = [2.0, 5.0, 10.0]
LABELS: dict[str, np.ndarray] = {
    "regression": 50 + 15 * SCORE,
    "counts": np.stack([RNG.poisson(np.exp(SCORE)), RNG.uniform(0.5, 2, N)], axis=1),
    "ordinal": np.digitize(SCORE, [-1.0, 1.0]),
    "multi_label": np.stack([SCORE > 0, SCORE < 0.5], axis=1).astype(int),
    "survival": np.stack([RNG.exponential(4 * np.exp(-SCORE)), RNG.random(N) < 0.7], axis=1),
}
OUTCOMES: dict[str, dict[str, Any]] = {
    "regression": {"kind": "regression", "range": [0, 100]},
    "counts": {"kind": "counts", "range": [0, 30]},
    "ordinal": {"kind": "ordinal"},
    "multi_label": {"kind": "multi_label", "labels": ["up", "down"]},
    "survival": {"kind": "survival", "range": [0, 10], "bins": EDGES},
}
SCORES = {"regression": "rmse", "counts": "deviance", "ordinal": "mae", "multi_label": "brier", "survival": "deviance"}
PRIVATE = {"noise_multiplier": 1.0, "record_rate": 0.5, "clip_norm": 1.0}


def federation(kind: str, labels: np.ndarray | None = None, **keys: Any) -> dpfl.Federation:
    y = LABELS[kind] if labels is None else labels
    half = N // 2
    classes = {"classes": [0, 1, 2]} if kind == "ordinal" else {}
    return dpfl.Federation.from_arrays(
        {"a": (X[:half], y[:half]), "b": (X[half:], y[half:])}, outcome=OUTCOMES[kind], **classes, **keys
    )


def train(records: dpfl.Federation, out: Path, **changes: Any) -> dpfl.Run:
    given: dict[str, Any] = {
        "model": {"name": "linear"},
        "algorithm": dpfl.algorithms.Scaffold(local_steps=5, local_lr=0.5),
        "privacy": PRIVATE,
        "rounds": 8,
        "seed": 1,
        "out": out,
        **changes,
    }
    return dpfl.train(records, **given)


@pytest.mark.parametrize("kind", OUTCOMES)
def test_a_run_measures_its_outcome_beside_a_baseline(kind: str, tmp_path: Path) -> None:
    done = train(federation(kind), tmp_path, privacy={"noise_multiplier": 0, "clip_norm": 1.0}, rounds=20)
    score, measures = SCORES[kind], done.measures
    assert measures is not None and done.score_name == score == measures["ranked_by"]
    assert done.positive_class is None
    model, baseline = measures["pooled"]["model"], measures["pooled"]["baseline"]
    assert model[score] < baseline[score] and next(iter(model)) == score  # lower is better
    assert set(measures["silos"]) == {"0", "1"}
    sizes = [math.ceil(0.2 * N // 2)] * 2
    if kind == "regression":  # pooled over records, not over silos
        of_silos = [measures["silos"][silo]["model"]["rmse"] ** 2 for silo in ("0", "1")]
        assert model["rmse"] == pytest.approx(math.sqrt(np.average(of_silos, weights=sizes)))
    key = f"test_{score}"
    assert done.result["test_accuracy"]["last"] is None and done.result[key]["last"] == done.score
    assert done.lines[-1][key] == done.score and done.lines[-1]["test_accuracy"] is None
    assert done.result["engine"] == ("shared_score" if kind == "ordinal" else "closed_form")
    assert done.result["outcome"]["kind"] == kind and json.dumps(done.result, allow_nan=False)
    worst = done.result["silos"]["worst"]
    assert measures["silos"][str(worst)]["model"][score] == pytest.approx(done.result["silos"][key]["max"])


@pytest.mark.parametrize("kind", OUTCOMES)
def test_scores_are_of_the_outcome_and_end_a_run(kind: str, tmp_path: Path) -> None:
    """With little noise a private score is near the measure on test records; and a model that no longer gets better
    ends the run."""
    little = {"share": 0.5, "every": 10, "noise_multiplier": 1e-3}
    done = train(federation(kind), tmp_path, rounds=20, private_evaluation=little)
    private = done.result["private_evaluation"]
    (first, _), (last, after) = private["scores"]
    low, high = private["intervals"][1]
    assert (first, last) == (10, 20) and low < after < high and "private mean " in str(done)
    assert 0 < after < private["bound"] and private["noise_std"] < 1e-3 * private["bound"]
    gain = {"share": 0.5, "every": 2, "noise_multiplier": 1e-3, "patience": 2, "min_gain": private["bound"] / 2}
    stopped = train(federation(kind), tmp_path, rounds=20, early_stopping=gain)
    assert (stopped.result["cause"], stopped.result["rounds"]) == ("early_stopping", 6)
    early = stopped.result["early_stopping"]
    assert early["measure"] == private["measure"] and early["noise_std"] == private["noise_std"]
    assert "of records set apart, with noise of standard deviation" in str(stopped)


@pytest.mark.parametrize("kind", OUTCOMES)
def test_tuning_chooses_the_step_that_predicts_best(kind: str, tmp_path: Path) -> None:
    """Of a step that learns and two that hardly do; the noise is a hundredth of what there is between them."""
    tuned = federation(kind).tune(
        {"grid": {"algorithm.local_lr": [1e-4, 0.5, 1e-5]}, "rungs": [5], "eta": 3, "share": 0.5},
        model={"name": "linear"},
        algorithm=dpfl.algorithms.FedAvg(local_steps=5, local_lr=0.5),
        privacy=dpfl.Privacy(epsilon=1e4, delta=1e-3, clip_norm=1.0, sampler="full"),
        rounds=6,
        seed=1,
        out=tmp_path / "tuned",
        progress=False,
    )
    assert tuned.result["winner"]["label"] == "algorithm.local_lr=0.5"
    assert ("The smallest is the best" in tuned.statement) and tuned.result["bound"] > 0
    values = [candidate["scores"][0][1] for candidate in tuned.result["ranking"]]
    assert values[0] < min(values[1:]) - 10 * tuned.result["score_std"]


@pytest.mark.parametrize("kind", OUTCOMES)
def test_a_private_run_is_charged_and_predicts(kind: str, tmp_path: Path) -> None:
    done = train(federation(kind), tmp_path, rounds=3)
    assert 0 < done.epsilon < math.inf
    np.savez(tmp_path / "new.npz", x=X[:4])
    said = dpfl.predict(done, tmp_path / "new.npz")
    rows = said.rows
    assert len(rows) == 4
    assert said.measures is None and said.predictions.labelled == 0
    if kind == "survival":
        curve = list(rows[0]["survival"].values())
        assert list(rows[0]["survival"]) == ["2", "5", "10"] and 1 > curve[0] > curve[1] > curve[2] > 0
    elif kind == "ordinal":
        assert sum(rows[0]["probabilities"].values()) == pytest.approx(1) and rows[0]["predicted"] in (0, 1, 2)
    elif kind == "multi_label":
        assert set(rows[0]["predicted"]) <= {"up", "down"} == set(rows[0]["probabilities"])
    else:
        assert isinstance(rows[0]["predicted"], float)
        cells = [row["predicted"] for row in csv.DictReader(said.to_csv().splitlines())]
        assert [float(cell) for cell in cells] == pytest.approx([row["predicted"] for row in rows], rel=1e-6)
        assert all(len(cell.replace("-", "").replace(".", "").lstrip("0")) <= 7 for cell in cells)
    again = train(federation(kind), tmp_path / "again", rounds=3)
    assert again.result["model_sha256"] == done.result["model_sha256"]
    assert done.model(torch.from_numpy(X[:4])).shape == (
        4,
        {"ordinal": 2, "multi_label": 2, "survival": 3}.get(kind, 1),
    )


COLUMNS: dict[str, list[str]] = {"counts": ["y", "years"], "multi_label": ["up", "down"], "survival": ["time", "died"]}
SCHEMAS: dict[str, dict[str, Any]] = {
    "classes": {"column": "y", "classes": ["0", "1"]},
    "regression": {"outcome": "regression", "column": "y", "range": [0, 100]},
    "counts": {"outcome": "counts", "column": "y", "exposure": "years", "range": [0, 30]},
    "ordinal": {"outcome": "ordinal", "column": "y", "classes": ["0", "1", "2"]},
    "multi_label": {"outcome": "multi_label", "columns": ["up", "down"]},
    "survival": {"outcome": "survival", "time": "time", "event": "died", "range": [0, 10], "bins": EDGES},
}


FEATURES = {name: {"type": "number", "range": [-1, 1]} for name in ("a", "b")}


def labelled(kind: str, which: Any, without: tuple[int, ...] = ()) -> pandas.DataFrame:
    """Records by their columns, as a schema reads them; without label where it says so."""
    y = (SCORE > 0).astype(int) if kind == "classes" else LABELS[kind]
    names, x = COLUMNS.get(kind, ["y"]), X[which].astype(float)
    labels = pandas.DataFrame(y[which].reshape(len(x), -1), columns=names)
    whole = [name for name in names if (labels[name] % 1 == 0).all()]
    labels = labels.astype(dict.fromkeys(whole, "Int64"))
    labels.loc[list(without), :] = None
    return pandas.concat([pandas.DataFrame(x, columns=["a", "b"]), labels], axis=1)


def written(folder: Path, kind: str, how: str, which: Any, without: tuple[int, ...] = ()) -> Path:
    frame = labelled(kind, which, without)
    path = folder / f"{len(list(folder.iterdir()))}.{how}"
    if how == "csv":
        frame.to_csv(path, index=False)
        return path
    y = frame[COLUMNS.get(kind, ["y"])].to_numpy(float, na_value=math.nan)
    y = y.astype(int) if kind in ("classes", "ordinal") else y
    np.savez(path, x=X[which], y=y if y.shape[1] > 1 else y[:, 0])
    return path


def assert_alike(one: Any, other: Any) -> None:
    """But for the last bits: a row may round otherwise in products of 30 rows and of 27, or elsewhere in memory."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_alike(one[name], other[name])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for part, others in zip(one, other, strict=True):
            assert_alike(part, others)
    else:
        assert one == other or one == pytest.approx(other, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("how", ["csv", "npz"])
@pytest.mark.parametrize("kind", SCHEMAS)
def test_records_with_labels_are_measured_as_the_runs_own_test_records_are(kind: str, how: str, tmp_path: Path) -> None:
    """Those without a label are left out."""
    train_file, test_file = (written(tmp_path, kind, how, which) for which in (range(60), range(60, N)))
    options: dict[str, Any] = {"schema": {"label": SCHEMAS[kind], "columns": FEATURES}}
    if how == "npz":
        public = {"classes": [*map(int, SCHEMAS[kind]["classes"])]} if "classes" in SCHEMAS[kind] else {}
        options = public | ({"outcome": OUTCOMES[kind]} if kind != "classes" else {})
    files = {"files": str(train_file), "test_files": str(test_file)}
    name = "table" if how == "csv" else "npz"
    records = dpfl.Federation.load(name, **files, **options, num_silos=1, test="own")
    done = train(records, tmp_path / "runs", rounds=2, model="softmax" if kind == "classes" else "linear")
    assert done.measures is not None
    found = dpfl.predict(done, test_file)
    assert_alike(found.measures, done.measures["pooled"]["model"])
    assert found.predictions.labelled == N - 60
    assert found.accuracy == found.measures.get("accuracy")
    said, score = command("predict", done.folder, test_file).err, next(iter(found.measures))
    assert found.constant_measures is not None and "no epsilon covers them" in said
    one, other = (f"{table[score]:.4g}" for table in (found.measures, found.constant_measures))
    assert "30 of 30 records have a label:\n" in said, said
    assert f"The constant, fitted to these very labels, predicts {CONSTANTS[kind]} for every record." in said
    assert re.search(rf"\n  {score.replace('_', ' ')} +{re.escape(one)} +{re.escape(other)}\n", said), said
    if kind == "regression":
        assert found.constant_measures["r2"] == pytest.approx(0, abs=1e-6)
    if how == "npz" and kind in ("classes", "ordinal"):
        return  # whole numbers, of which none says that there is no label
    without = (0, 7, 29)
    rest = [60 + record for record in range(30) if record not in without]
    some = dpfl.predict(done, written(tmp_path, kind, how, range(60, N), without))
    alone = dpfl.predict(done, written(tmp_path, kind, how, rest))
    assert len(some.rows) == 30 and some.predictions.labelled == 27
    assert some.measures is not None and alone.measures is not None
    assert_alike(some.measures, alone.measures)


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("regression", "a,b,y\n0,0,50\n0,0,high\n", "line 3, column 'y': 'high' is not a number"),
        ("counts", "a,b,y,years\n0,0,1,1\n0,0,1.5,1\n", "line 3, column 'y': '1.5' is not a count"),
        ("counts", "a,b,y,years\n0,0,1,0\n0,0,,\n", "line 2, column 'years': an exposure of '0'"),
        ("multi_label", "a,b,up,down\n0,0,1,0\n0,0,2,0\n", "line 3, column 'up': '2' is neither '0' nor '1'"),
        ("survival", "a,b,time,died\n0,0,-1,0\n0,0,1,0\n", "line 2, column 'time': a time of '-1'"),
    ],
)
def test_a_wrong_label_of_records_to_predict_is_refused(kind: str, text: str, says: str, tmp_path: Path) -> None:
    """With its place, and that it may be left empty; columns that are not all there are said."""
    frame = labelled(kind, range(N))
    schema = {"label": SCHEMAS[kind], "columns": FEATURES}
    parts = {"a": frame[: N // 2], "b": frame[N // 2 :]}
    done = train(dpfl.Federation.from_table(parts, schema), tmp_path / "runs", rounds=1)
    (tmp_path / "new.csv").write_text(text)
    with pytest.raises(DataError) as refused:
        dpfl.predict(done, tmp_path / "new.csv")
    assert says in str(refused.value) and "or leave the cell empty: a label is not needed" in str(refused.value)
    first, *others = COLUMNS.get(kind, ["y"])
    found = dpfl.predict(done, frame[:5].drop(columns=first))
    assert found.measures is None and len(found.rows) == 5
    assert any(f"labels are not compared: there is no column '{first}'" in one for one in found.notes) == bool(others)
    otherwise = dpfl.predict(done, frame[:5].rename(columns={first: first.upper()})).notes
    assert any(f"column '{first.upper()}' is not read as a label: rename it to '{first}'" in one for one in otherwise)


@pytest.mark.parametrize("kind", [kind for kind in OUTCOMES if kind != "ordinal"])
def test_persons_with_one_record_each_are_records(kind: str, tmp_path: Path) -> None:
    """Whatever the outcome; and with several, all of them are what a baseline knows."""
    y, half = LABELS[kind], N // 2
    whole = {"noise_multiplier": 0, "clip_norm": 0.5, "sampler": "full"}

    def trained(name: str, persons: np.ndarray | None, **privacy: Any) -> dpfl.Run:
        parts = {"a": (X[:half], y[:half]), "b": (X[half:], y[half:])}
        if persons is not None:
            parts = {"a": (*parts["a"], persons[:half]), "b": (*parts["b"], persons[half:])}  # type: ignore[dict-item]
        records = dpfl.Federation.from_arrays(parts, outcome=OUTCOMES[kind])
        return train(records, tmp_path / name, privacy={**whole, **privacy}, rounds=3)

    alone = {"unit": "person", "max_records_per_person": 2}
    of_records, of_persons = trained("records", np.arange(N)), trained("persons", np.arange(N), **alone)
    assert of_persons.result["engine"] in ("bookkeeping", "vmap")
    one, other = (dict(run.model.named_parameters()) for run in (of_records, of_persons))
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)
    pairs = trained("pairs", np.arange(1, N + 1) // 2, **alone, noise_multiplier=1.0)
    assert 0 < pairs.epsilon < math.inf and "person" in pairs.statement
    assert pairs.result["num_train_records"] < 0.6 * N and pairs.measures is not None
    baseline = pairs.measures["pooled"]["baseline"][SCORES[kind]]
    assert baseline is not None and math.isfinite(baseline)


def test_labels_beyond_the_public_range_are_clipped_and_counted() -> None:
    """Else a single label would decide how large a gradient is before it is clipped, and what a baseline is."""

    def read(kind: str, labels: list[Any]) -> tuple[list[Any], list[str]]:
        known, names = parse(OUTCOMES[kind], None)
        table = Table(Path("t"), np.zeros((len(labels), 1), np.float32), np.array(labels, dtype=float), None, ())
        (found,), notes = labels_of([table], known, names)
        return found.tolist(), notes

    found, notes = read("regression", [1e6, -3, 100, 40])
    assert found == [100, 0, 100, 40] and "2 of 4 labels are outside" in notes[0]
    assert read("counts", [[31, 1], [30, 2]])[0] == [[30, 1], [30, 2]]
    found, notes = read("survival", [[11, 1], [10, 1], [12, 0]])
    assert found == [[10, 0], [10, 1], [10, 0]] and "censored" in notes[0]


def test_a_data_set_of_a_plugin_is_held_to_its_range() -> None:
    outcome = Outcome("regression", (0.0, 100.0))
    check_labels(np.array([0, 100], np.float32), outcome, 1, "theirs")
    with pytest.raises(DataError, match=r"theirs: the label of row 1 is 101\.0, outside the public range 0 to 100"):
        check_labels(np.array([0, 101], np.float32), outcome, 1, "theirs")


def with_label(kind: str, value: Any) -> np.ndarray:
    labels = LABELS[kind].astype(float)
    labels[50] = value
    return labels


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("regression", math.nan, r"silo b, record 5, label: nan is not finite"),
        ("regression", math.inf, r"inf is not finite"),
        ("counts", [-1, 1], r"silo b, record 5, label: -1 is not a count"),
        ("counts", [1.5, 1], r"1\.5 is not a count"),
        ("counts", [1, 0], r"0 is not an exposure"),
        ("multi_label", [0, 2], r"2 is neither 0 nor 1"),
        ("survival", [-1, 1], r"-1 is a time before the beginning"),
        ("survival", [math.nan, 1], r"nan is not finite"),
        ("survival", [1, 0.5], r"0\.5 is neither 1, for an event, nor 0"),
        ("ordinal", 3, r"labels must be one whole number"),
    ],
)
def test_labels_that_are_none_are_refused_with_their_place(kind: str, value: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        federation(kind, with_label(kind, value))


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ({"kind": "regression"}, "outcome: outcome: regression needs range"),
        ({"kind": "regresion", "range": [0, 1]}, "must be one of classes, ordinal"),
        ({"kind": "regression", "rnge": [0, 1]}, r"rnge is not a known key.*range"),
        ({"kind": "regression", "range": [1, 0]}, "must have its least value first"),
        ({"kind": "counts", "range": [1, 5]}, "must begin at 0"),
        ({"kind": "survival", "range": [0, 5], "bins": [1, 4]}, "the last at the range's end, 5"),
        ({"kind": "survival", "range": [0, 5], "bins": [3, 2, 5]}, "increasing"),
        ({"kind": "survival", "range": [0, 5], "bins": 0}, "one at least"),
        ({"kind": "regression", "range": [0, 5], "huber_delta": 0}, "must be positive"),
        ("multi_label", "labels must name the labels"),
        ("ordinal", "levels are public"),
        (3, "must be a mapping"),
    ],
)
def test_outcomes_that_are_none_are_refused(outcome: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        dpfl.Federation.from_arrays({"a": (X, LABELS["regression"])}, outcome=outcome)


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        (
            {"early_stopping": {"noise_multiplier": 1.0, "every": 1, "measure": "accuracy"}},
            "regression",
            "early_stopping.measure='accuracy' is not a score of an outcome of regression. Use mae.",
        ),
        ({"private_evaluation": {"noise_multiplier": 1.0, "measure": "auc"}}, "ordinal", "Use mae or accuracy"),
        ({"loss": "cox"}, "survival", "Cox's partial likelihood compares records"),
        ({"loss": "cross_entropy"}, "counts", "not for an outcome of counts"),
        ({"model": {"name": "logistic"}}, "regression", "is for 2 classes"),
    ],
)
def test_what_is_of_other_outcomes_is_refused(changes: Any, kind: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DpflError, match=said):
        train(federation(kind), tmp_path, **changes)


def test_records_are_not_dealt_out_by_classes_that_there_are_not(tmp_path: Path) -> None:
    records = federation("regression", partition={"name": "dirichlet", "alpha": 1.0}, num_silos=2)
    with pytest.raises(UnsupportedError, match="dealt out by their classes"):
        train(records, tmp_path)


def table(tmp_path: Path, label: dict[str, Any]) -> Path:
    with open(tmp_path / "t.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["x", "z", "site", "time", "event"])
        writer.writerows(
            zip(*X.T.tolist(), ["ab"[i % 2] for i in range(N)], *LABELS["survival"].T.tolist(), strict=True)
        )
    scaled = {"type": "number", "range": [-1, 1]}
    schema = {"label": label, "silo": "site", "columns": {"x": scaled, "z": scaled}}
    config = {
        "seed": 1,
        "rounds": 2,
        "model": {"name": "linear"},
        "data": {"dataset": {"name": "table", "files": "t.csv", "schema": schema}, "partition": {"name": "natural"}},
        "algorithm": {"name": "scaffold", "local_steps": 2, "local_lr": 0.5},
        "privacy": PRIVATE,
        "out": str(tmp_path / "runs"),
    }
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config))  # which is YAML
    return path


def test_a_table_with_a_schema_is_trained_on_and_shown(tmp_path: Path) -> None:
    label = {"outcome": "survival", "time": "time", "event": "event", "event_values": ["0.0", "1.0"], "range": [0, 10]}
    path = table(tmp_path, {**label, "bins": 4})
    done: Done = command("run", path)
    assert done.code == 0, done.err
    assert "test deviance" in done.out and "each bin's share of events" in done.out
    result = run(path)
    assert result["outcome"]["edges"] == [2.5, 5.0, 7.5, 10.0] and result["engine"] == "closed_form"
    shown = command("report", tmp_path / "runs", "--out", tmp_path / "report")
    assert shown.code == 0, shown.err
    tables = [path.read_text() for path in (tmp_path / "report" / "tables").glob("*.csv")]
    assert any("test_deviance" in text and "test_accuracy" not in text for text in tables)
    assert command("audit", path).code != 0
    assert "an audit knows labels that are classes only" in command("audit", path).err


@pytest.fixture(scope="module")
def two_of_a_kind(tmp_path_factory: pytest.TempPathFactory, measuring: Any) -> dict[str, dict[str, dpfl.Run]]:
    """A run that learns and one that does not, of numbers and of classes; the bad one comes first."""
    out = tmp_path_factory.mktemp("ranked")
    y = (SCORE > 0.8).astype(int)
    classes = dpfl.Federation.from_arrays({"a": (X[:45], y[:45]), "b": (X[45:], y[45:])}, classes=[0, 1])
    found: dict[str, dict[str, dpfl.Run]] = {}
    for kind, records in (("classes", classes), ("regression", federation("regression"))):
        for name, lr in (
            ("bad", 1e-300),
            ("good", 0.5),
        ):  # steps that are 0 in float32: no noise decides which is better
            options = {"algorithm": dpfl.algorithms.FedAvg(local_steps=5, local_lr=lr), "rounds": 12}
            privacy = {**PRIVATE, "noise_multiplier": 0.1}
            with measuring():
                found.setdefault(kind, {})[name] = train(records, out / kind / name, privacy=privacy, **options)
    return found


@pytest.mark.parametrize(
    ("kind", "metric"),
    [("regression", None), ("regression", "train_loss"), ("regression", "r2"), ("classes", None), ("classes", "auc")],
)
def test_reports_and_comparisons_rank_by_the_tasks_measure(
    two_of_a_kind: dict[str, dict[str, dpfl.Run]], kind: str, metric: str | None, tmp_path: Path
) -> None:
    runs = two_of_a_kind[kind]
    folders = sorted({run.folder.parents[1].parent for run in runs.values()})
    done = dpfl.report(folders, tmp_path, metrics=[metric] if metric else [], against=["rounds"])
    assert [row[0] for row in done.table.rows] == ["local_lr=0.5", "local_lr=1e-300"]
    page = (tmp_path / "index.html").read_text()
    (data,) = json.loads(page.split('id="data">')[1].split("</script>")[0])["sections"]
    assert data["points"] == (metric or {"regression": "test_rmse", "classes": "auc"}[kind])
    if metric != "train_loss":
        ranked = dpfl.compare(runs).ranked(metric)
        assert list(ranked) == ["good", "bad"]
        assert (metric or ranked["good"].score_name) in ranked.rows[0]


def test_runs_of_different_outcomes_are_shown_and_not_ranked(two_of_a_kind: dict[str, dict[str, dpfl.Run]]) -> None:
    good = {kind: runs["good"] for kind, runs in two_of_a_kind.items()}
    both = dpfl.compare(good)
    assert both.rows[0]["rmse"] is None and both.rows[1]["accuracy"] is None
    assert len({len(line) for line in repr(both).splitlines()[:1]}) == 1 and "rmse" in repr(both)
    with pytest.raises(ConfigError, match="ranked by accuracy and rmse, which do not compare"):
        both.ranked()
    with pytest.raises(ConfigError, match="by='auk' must be a measure of these runs, one of accuracy, rmse"):
        both.ranked("auk")


def test_a_csv_file_without_a_schema_has_numbers_for_labels(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("site,x,y\n" + "".join(f"{'ab'[i % 2]},{X[i, 0]},{50 + 10 * X[i, 0]}\n" for i in range(40)))
    said = {"label_column": "y", "silo_column": "site", "outcome": OUTCOMES["regression"]}
    records = dpfl.Federation.load("csv", files=str(path), **said, partition={"name": "natural"})
    done = train(records, tmp_path / "out", rounds=2)
    assert done.score_name == "rmse" and done.result["inputs"]["num_classes"] == 1
    assert isinstance(dpfl.predict(done, path).rows[0]["predicted"], float)
    path.write_text(path.read_text().replace(f"{50 + 10 * X[3, 0]}", "much"))
    with pytest.raises(DataError, match=r"t\.csv, line 5, column 'y': 'much' is not a number"):
        train(records, tmp_path / "again", rounds=2)
    with pytest.raises(ConfigError, match="use a table with a schema"):
        train(dpfl.Federation.load("csv", files=str(path), **{**said, "outcome": OUTCOMES["survival"]}), tmp_path)


def test_classes_are_measured_beside_their_majority(tmp_path: Path) -> None:
    y = np.where(SCORE > 0.8, "high", "low")
    records = dpfl.Federation.from_arrays({"a": (X[:45], y[:45]), "b": (X[45:], y[45:])}, classes=["low", "high"])
    done = train(records, tmp_path, privacy={"noise_multiplier": 0, "clip_norm": math.inf}, rounds=20)
    assert done.measures is not None and done.positive_class == "high"
    model, baseline = (done.measures["pooled"][who] for who in ("model", "baseline"))
    assert model["auc"] > 0.95 and baseline["auc"] == 0.5 and model["brier"] < baseline["brier"]
    matrix = np.array(model["confusion_matrix"])
    assert np.trace(matrix) / matrix.sum() == pytest.approx(model["accuracy"])
    assert baseline["accuracy"] == max(matrix.sum(axis=1)) / matrix.sum()
    assert (
        model["sensitivity"] == matrix[1, 1] / matrix[1].sum()
        and model["precision"] == matrix[1, 1] / matrix[:, 1].sum()
    )
    assert done.measures["baseline_score"] == pytest.approx(baseline["accuracy"])  # silos are of one size
    assert sum(model["calibration_curve"]["records"]) == matrix.sum() and "log_loss" in model
    assert done.plot("roc").axes[0].get_title() == "run: test records"
    with pytest.raises(ConfigError, match=r"plot.'survival'. is of survival"):
        done.plot("survival")
