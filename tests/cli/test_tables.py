"""Tables with a schema by all doors: init drafts, check tells, run trains, predict holds new records to it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
import yaml

import dpfl_plugin as dpfl
from dpfl_plugin.adapters.folder.project import for_server
from dpfl_plugin.config.load import configure, load, run_id
from dpfl_plugin.data.base import digest
from dpfl_plugin.data.schema import DRAFTED, TableSchema
from dpfl_plugin.errors import ConfigError, DataError
from tests.adapters.federation import SimulatedSilo, block
from tests.adapters.shared_folder import keys_of, members_of
from tests.cli.command import BASE, one_message, write
from tests.cli.command import dpfl as command

PUBLIC_SCHEMA = "The categories and ranges of the schema are public"
SCHEMA: dict[str, Any] = {
    "label": {"column": "ill", "classes": ["no", "yes"]},
    "silo": "clinic",
    "columns": {
        "age": {"type": "number", "range": [20, 90], "missing": "indicator"},
        "stage": {"type": "category", "values": ["I", "II", "III"]},
    },
}


def frame(count: int = 80) -> pandas.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.integers(20, 95, count).astype(float)
    return pandas.DataFrame(
        {
            "clinic": np.where(np.arange(count) % 2, "north", "south"),
            "age": np.where(rng.random(count) < 0.1, np.nan, age),
            "stage": rng.choice(["I", "II", "III"], count),
            "ill": np.where(age > 55, "yes", "no"),
        }
    )


def config(folder: Path, described: Any = SCHEMA, **dataset: Any) -> Path:
    frame().to_csv(folder / "all.csv", index=False)
    data = {"dataset": {"name": "table", "files": "all.csv", **dataset}, "partition": "natural"}
    data |= {"schema": described} if described else {}
    (folder / "config.yaml").write_text(yaml.safe_dump({**BASE, "rounds": 2, "data": data}))
    return folder / "config.yaml"


def test_the_schema_of_data_is_the_option_of_its_data_set(tmp_path: Path) -> None:
    """One run by either, whose folder keeps it; and another schema is another run."""
    ids = []
    for name, where in {"data": config, "option": lambda path: config(path, None, schema=SCHEMA)}.items():
        (tmp_path / name).mkdir()
        (variant,) = load(where(tmp_path / name)).variants
        assert variant.config.data.dataset.options["schema"] == SCHEMA
        ids.append(run_id(variant.config))
    (tmp_path / "other").mkdir()
    (other,) = load(config(tmp_path / "other", {**SCHEMA, "other_columns": "ignore"})).variants
    assert ids[0] == ids[1] != run_id(other.config)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"dataset": {"name": "csv", "files": "a.csv"}, "schema": SCHEMA}, "schema is for tables.*csv does not"),
        ({"dataset": {"name": "table", "files": "a", "schema": SCHEMA}, "schema": SCHEMA}, "given twice"),
        ({"dataset": "digits", "schema": SCHEMA}, "digits does not"),
    ],
)
def test_a_schema_where_it_has_no_meaning_is_refused(tmp_path: Path, data: Any, message: str) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**BASE, "data": data}))
    with pytest.raises(ConfigError, match=message):
        load(tmp_path / "config.yaml")


def test_a_frame_is_the_records_of_its_file(tmp_path: Path) -> None:
    """By from_table, of one frame and of one for each silo, as by `data.schema`."""
    from dpfl_plugin.runs.records import federate

    (variant,) = load(config(tmp_path)).variants
    by_file = federate(variant.config, tmp_path)
    expected = [digest(silo) for silo in by_file.silos]
    whole = dpfl.Federation.from_table(frame(), SCHEMA)
    parts = {name: part.drop(columns="clinic") for name, part in frame().groupby("clinic")}
    each = dpfl.Federation.from_table(parts, {key: value for key, value in SCHEMA.items() if key != "silo"})
    for federation in (whole, each):
        given = variant.config.model_copy(update={"data": type(variant.config.data)(**federation.data)})
        found = federate(given, tmp_path)
        assert sorted(digest(silo) for silo in found.silos) == sorted(expected)
        assert set(found.names.values()) == set(by_file.names.values())
    lone, private = {key: value for key, value in SCHEMA.items() if key != "silo"}, dpfl.Privacy(noise_multiplier=4.0)
    of_persons = dpfl.Privacy(noise_multiplier=4.0, unit="person", max_records_per_person=2)
    numbers = frame().dropna()[["age", "ill"]]
    for federation, privacy, message in (
        (
            dpfl.Federation.from_table(frame(), lone | {"other_columns": "ignore"}),
            private,
            "silo in the schema, or .*from_table",
        ),
        (
            dpfl.Federation.from_frame(numbers, label="ill"),
            private,
            r"silo_column \(from_frame: silo\), or .*from_frame",
        ),
        (
            dpfl.Federation.from_table(parts, lone, partition="iid"),
            private,
            "partition: natural, which takes the silos",
        ),
        (whole, of_persons, "Name the column as person in the schema, or use unit: record"),
    ):
        with pytest.raises(ConfigError, match=message):
            dpfl.train(
                federation,
                model="softmax",
                algorithm=dpfl.algorithms.MBSGD(lr=1.0),
                privacy=privacy,
                rounds=1,
                out=tmp_path,
            )
    with pytest.raises(DataError, match=r"row 3, column 'stage': 'IV' is not one of.*columns\.stage\.values"):
        dpfl.Federation.from_table(frame().assign(stage=["I"] * 3 + ["IV"] + ["I"] * 76), SCHEMA)
    with pytest.raises(ConfigError, match="each frame is a silo already"):
        dpfl.Federation.from_table(parts, SCHEMA)


def test_check_says_whether_a_run_could_begin_and_leaves_nothing(tmp_path: Path) -> None:
    path = config(tmp_path)
    before = sorted(tmp_path.iterdir())
    done = command("check", path)
    assert done.code == 0, done.err
    assert "2 silos with 32 training records each, 64 in all" in done.out and "clipped to 20 or 90" in done.out
    assert done.out.endswith("Nothing was trained, released or written.\n")
    assert command("check", path, "--json").json["num_records"] == [32, 32]
    text = (tmp_path / "all.csv").read_text().replace("south,", "south,x", 1)
    (tmp_path / "one.csv").write_text(text)
    assert command("check", path, "--file", tmp_path / "all.csv").out.count("80 records, all right") == 1
    both = command("check", path, "--file", tmp_path / "all.csv", "--file", tmp_path / "one.csv")
    assert both.code == 2 and re.search(
        r"(?s)1 of 2 tables is wrong.*one\.csv, line 2, column 'age': 'x.*' is not", both.err
    )
    (tmp_path / "one.csv").unlink()
    assert sorted(tmp_path.iterdir()) == before
    without = write(tmp_path, {})
    one_message(command("check", without, "--file", tmp_path / "all.csv"), "has no data.schema")


def test_python_drafts_one_schema_for_all_silos_and_says_that_it_looked(tmp_path: Path) -> None:
    """Frames and files by silos' names, as `Federation.from_table` takes them, are the frame of all records."""
    whole = frame().drop(columns="clinic")
    whole[40:].to_csv(tmp_path / "south.csv", index=False)
    for silos in ({"north": whole[:40], "south": whole[40:]}, {"north": whole[:40], "south": tmp_path / "south.csv"}):
        with pytest.warns(UserWarning, match="looking at the values, which is not private"):
            found = dpfl.draft_schema(silos, label="ill")
        with pytest.warns(UserWarning, match="not private"):
            assert found == dpfl.draft_schema(whole, label="ill")
    for data, message in (
        ({"north": [1, 2]}, r"silo north is of type list: data must be a file, several"),
        ({}, "data={} must be a file, several"),
        (3, "data='int' must be a file, several"),
        ({"north": tmp_path / "south.csv", "south": whole.assign(more=1)}, "silo south has other columns than .*more"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            dpfl.draft_schema(data, label="ill")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="each of data is a silo already"):
        dpfl.draft_schema({"north": whole}, label="ill", silo="age")


def test_a_draft_runs_and_predicts_by_its_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame().assign(number=range(1, 81), seen="2020-01-31").to_csv("all.csv", index=False)
    done = command("init", "project", "--from", "all.csv", "--label", "ill", "--silo", "clinic")
    assert done.code == 0, done.err
    assert "looking at the values, which is not private" in " ".join(done.out.split())
    person = command("init", "persons", "--from", "all.csv", "--label", "ill", "--person", "number")
    assert "privacy.unit: person" in " ".join(person.out.split()) and "unit: person" not in done.out
    text = (tmp_path / "project" / "run.yaml").read_text()
    assert "which is not private" in text
    assert yaml.safe_load(text)["data"]["schema"] == {
        "drafted": True,
        "label": {"column": "ill", "outcome": "classes", "classes": ["no", "yes"]},
        "silo": "clinic",
        "columns": {
            "age": {"type": "integer", "range": [20, 100], "missing": "indicator"},
            "stage": {"type": "category", "values": ["I", "II", "III"]},
            "number": {"type": "identifier"},
            "seen": {"type": "ignored"},
        },
    }
    assert command("check", "project/run.yaml").code == 0
    run = command("run", "project/run.yaml", "--out", "runs", "--set", "rounds=2", "--json")
    assert run.code == 0, run.err
    (folder,) = (tmp_path / "runs").glob("*/*")
    frame(6).drop(columns=["ill", "clinic"]).to_parquet("new.parquet")
    made = command("predict", folder, "new.parquet")
    assert made.code == 0 and len(made.out.splitlines()) == 7, made.err
    frame(6).assign(stage="IV").to_csv("new.csv", index=False)
    one_message(command("predict", folder, "new.csv"), "column 'stage': 6 cells are not one of I, II, III")


@pytest.mark.parametrize("drafted", [None, False, True])
def test_a_drafted_schema_is_a_gap_and_another_an_assumption(tmp_path: Path, drafted: bool | None) -> None:
    file = config(tmp_path, SCHEMA if drafted is None else {**SCHEMA, "drafted": drafted})
    checked = command("check", file)
    done = command("run", file, "--out", tmp_path / "runs", "--json")
    assert checked.code == done.code == 0, checked.err + done.err
    said = json.loads((Path(done.json["folder"]) / "ledger.json").read_text())
    told = " ".join((checked.out + checked.err).split())
    for place in (told, done.json["notes"], said["caveats"]):
        assert (DRAFTED in place) == bool(drafted)
    assert (PUBLIC_SCHEMA in " ".join(said["assumptions"])) == (not drafted)
    assert not any("features by the schema" in text for text in said["caveats"])  # which is no gap


@pytest.mark.parametrize("drafted", [False, True])
def test_a_site_is_told_what_its_schema_was_made_of(tmp_path: Path, drafted: bool) -> None:
    """What owners agreed to is the same by either: how records are read is in none of its digests."""
    project, without = (
        for_server(
            configure(
                {**block(), "data": {"dataset": {"name": "table", "files": "all.csv"}, "schema": one}}, source="test"
            ),
            tmp_path,
            members_of(keys_of("a", "b")),
        )
        for one in ({**SCHEMA, "drafted": drafted}, SCHEMA)
    )
    assert project.agreement.run == without.agreement.run
    x, y = torch.zeros(20, len(TableSchema.parse(SCHEMA).features)), torch.arange(20) % 2
    with SimulatedSilo(project.agreement, 0, project.model, (x, y), tmp_path / "own") as silo:
        silo.write_statement()
    said = json.loads((tmp_path / "own" / "ledger.json").read_text())
    assert (DRAFTED in said["caveats"]) == drafted and (PUBLIC_SCHEMA in " ".join(said["assumptions"])) == (not drafted)


def test_numbers_of_records_are_left_out_of_csv_files_of_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what they are called, or because measurements would recur; others are told of."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    columns = {
        "income": rng.choice(80_000, 120, replace=False),
        "row": np.arange(120),
        "file": np.concatenate([np.arange(60), 1000 + np.arange(60)]),
        "customer_id": rng.choice(10**6, 120, replace=False),
        "late_payments": np.arange(120) % 5,
    }
    pandas.DataFrame(columns).assign(ill=np.arange(120) % 2).to_csv("all.csv", index=False)
    plain = command("init", "plain", "--data", "all.csv", "--label", "ill")
    dataset = yaml.safe_load(Path("plain/run.yaml").read_text())["data"]["dataset"]
    assert dataset["ignore_columns"] == ["row", "file", "customer_id"], plain.err
    assert "another whole number in every record: income." in plain.out


def test_a_column_that_recurs_as_patients_do_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not used, whether it holds numbers or words; in Python, too, in its words."""
    monkeypatch.chdir(tmp_path)
    whole = frame(160).assign(person=[row // 2 for row in range(160)], **{"Pat Nr": [f"P{r // 2}" for r in range(160)]})
    whole.drop(columns="clinic").to_csv("all.csv", index=False)
    done = command("init", "study", "--from", "all.csv", "--label", "ill")
    assert "column 'person' looks like whose record it is: its values recur. If so, name it as the person (person=" in (
        done.out
    ), done.err
    hints = [line for line in done.out.splitlines() if "looks like whose record it is" in line]
    assert [line.partition(" (")[2].partition(")")[0] for line in hints] == ["person='person'", "person='Pat Nr'"]
    assert all(line.endswith("It is not used.") for line in hints)
    (hint,) = (
        note
        for note in dpfl.init("own", data="all.csv", label="ill", schema=True).notes
        if "'Pat Nr'" in note and "looks like" in note
    )
    assert "(person='Pat Nr')" in hint
    with pytest.warns(UserWarning, match="not private"):
        dpfl.draft_schema("all.csv", label="ill")
    said = capsys.readouterr().err
    assert f"dpfl: {hint}\n" in said and "dpfl: yes is the positive class" in said
    known = command("init", "known", "--from", "all.csv", "--label", "ill", "--person", "Pat Nr").out
    assert "'person' looks like whose record it is: its values recur. It is not used." in known


def test_a_column_of_numbers_or_dates_stays_one_where_a_few_cells_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are named by their lines, and `dpfl check` refuses them; words for no value become missing values."""
    monkeypatch.chdir(tmp_path)
    columns: dict[str, tuple[list[Any], dict[int, Any]]] = {
        "pressure": ([90 + row % 60 for row in range(200)], {3: "high", 5: "n/a", 70: "-", 71: "None", 72: "none"}),
        "weight": ([f"{40 + row % 70},5" for row in range(200)], {0: "heavy", 150: "light"}),
        "seen": ([f"{1 + row % 28:02d}.{1 + row % 12:02d}.2021" for row in range(200)], {120: "2020-02-01"}),
        "many": ([90 + row % 60 for row in range(200)], {row: f"word {row}" for row in range(11)}),
        "stage": ([row % 4 for row in range(200)], {8: "3a"}),
        "vessels": ([row % 4 for row in range(200)], {8: "-"}),
        "sugar": ([f"{4 + row % 60},5" for row in range(200)], {8: "x", **dict.fromkeys(range(20, 80, 2), "n.b.")}),
        "grade": ([row % 4 for row in range(200)], dict.fromkeys(range(20, 80, 2), "n.b.")),
        "titre": ([row % 40 for row in range(200)], dict.fromkeys(range(8), "<5")),
    }
    table = pandas.DataFrame({"ill": [row % 2 for row in range(200)]})
    for name, (cells, others) in columns.items():
        table[name] = [others.get(row, cell) for row, cell in enumerate(cells)]
    for number, part in enumerate((table[:100], table[100:])):
        part.to_csv(f"site{number}.csv", index=False, sep=";")
    done = command("init", "study", "--from", "site*.csv", "--label", "ill")
    data = yaml.safe_load((tmp_path / "study" / "run.yaml").read_text())["data"]
    assert data["dataset"]["decimal"] == ","
    assert data["schema"]["columns"] == {
        "pressure": {"type": "integer", "range": [90, 150], "missing": "indicator", "missing_values": ["-", "none"]},
        "weight": {"type": "number", "range": [40, 110]},
        "seen": {"type": "date", "range": ["2021-01-01", "2022-01-01"], "format": "%d.%m.%Y"},
        "many": {"type": "ignored"},
        "stage": {"type": "category", "values": [0, 1, 2, 3, "3a"]},
        "vessels": {"type": "category", "values": [0, 1, 2, 3], "missing": "category", "missing_values": ["-"]},
        "sugar": {"type": "number", "range": [0, 70], "missing": "indicator", "missing_values": ["n.b."]},
        "grade": {"type": "category", "values": [0, 1, 2, 3, "n.b."]},
        "titre": {"type": "integer", "range": [0, 40]},
    }
    checked = command("check", "study/run.yaml").err
    for line, place, cell in (
        ("pressure: 1 cell is not a number", "site0.csv, line 5", "high"),
        ("weight: 2 cells are not numbers", "site0.csv, line 2", "heavy"),
        ("weight: 2 cells are not numbers", "site1.csv, line 52", "light"),
        ("seen: 1 cell is not a date as %d.%m.%Y", "site1.csv, line 22", "2020-02-01"),
        ("sugar: 1 cell is not a number", "site0.csv, line 10", "x"),
    ):
        (told,) = (one for one in done.out.splitlines() if one.startswith(line))
        assert f"{place}: {cell!r}" in told and cell in told.partition("missing_values: [")[2], told
        path, _, where = place.partition(", ")
        assert re.search(rf"(?s){path}.*{where}, column '{line.partition(':')[0]}': '{cell}' is not", checked), checked
    assert "'-', 'none' stand for no value in this draft" in done.out and "4 places are wrong" not in checked
    assert "sugar: 'n.b.' stands for no value in this draft: if not so, correct" in done.out
    assert "not used: many: more than 50 different words." in done.out


def test_survival_of_several_files_is_drafted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a pattern; the last of two words is an event. Counts are told of, not guessed."""
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        followed = frame().assign(months=[7 * row % 45 for row in range(80)], end=["alive", "dead"] * 40)
        ages = [20 + (row + number) % 50 for row in range(80)]
        followed.drop(columns=["clinic"]).assign(age=ages).to_csv(f"site{number}.csv", index=False)
    done = command("init", "study", "--from", "site*.csv", "--time", "months", "--event", "end")
    assert "survival, months from 0 to 44; end: 'dead' is an event, 'alive' is none." in done.out, done.err
    data = yaml.safe_load((tmp_path / "study" / "run.yaml").read_text())["data"]
    assert data["dataset"]["files"] == str(tmp_path / "site*.csv") and data["partition"] == "natural"
    label = {
        "outcome": "survival",
        "time": "months",
        "event": "end",
        "range": [0, 44],
        "bins": [9, 20, 32, 44],
        "event_values": ["alive", "dead"],
    }
    assert data["schema"]["label"] == label and "months" not in data["schema"]["columns"]
    assert "2 silos" in command("check", "study/run.yaml", "--set", "model=linear").out
    counts = command("init", "counts", "--from", "site0.csv", "--label", "months")
    assert "If months counts something: outcome: counts" in counts.out
    frame().assign(stays=[row % 4 for row in range(80)]).to_csv("stays.csv", index=False)
    few = command("init", "few", "--from", "stays.csv", "--label", "stays").out
    assert "If stays has one: outcome: ordinal; if it counts something: outcome: counts" in few
    statistics = "private_statistics: {outcome: true}, algorithm.local_lr: "
    assert f"With outcome: ordinal train with model: linear, {statistics}" in few
    assert "With outcome: counts train with model: linear, algorithm.local_lr: " in few
    two = command("init", "words", "--from", "stays.csv", "--label", "ill").out
    assert "Classes have no order" not in two and "positive class" not in few
    _, positive = yaml.safe_load(Path("words/run.yaml").read_text())["data"]["schema"]["label"]["classes"]
    assert f"{positive} is the positive class of auc" in two
    assert "dpfl tune" in Path("words/run.yaml").read_text()


def test_drafted_survival_follows_kaplan_meier_up_to_the_last_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of people who leave between days 900 and 1,200, without noise; and `check` counts who is at risk in each bin."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 1000)
    dies, leaves = rng.exponential(3000 * np.exp(-x)), rng.uniform(900, 1200, 1000)
    days, died = np.ceil(np.minimum(dies, leaves)).astype(int), (dies <= leaves).astype(int)
    pandas.DataFrame({"x": x, "days": days, "died": died}).to_csv("all.csv", index=False)
    assert command("init", "study", "--from", "all.csv", "--time", "days", "--event", "died").code == 0
    without = ["--set", "privacy.epsilon=null", "--set", "privacy.noise_multiplier=0", "--set", "seed=0"]
    assert command("run", "study/run.yaml", *without, "--out", "runs").code == 0
    (run,) = Path("runs").glob("*/*/result.json")
    curves = dpfl.predict(run.parent, "all.csv").rows
    alive = {float(end): np.mean([row["survival"][end] for row in curves]) for end in curves[0]["survival"]}
    assert max(alive) == days.max() == 1200
    events, counts = np.unique(days[died == 1], return_counts=True)
    at_risk = np.array([(days >= day).sum() for day in events])
    for end, share in alive.items():
        kaplan_meier = np.prod(1 - (counts / at_risk)[events <= end])
        assert share == pytest.approx(kaplan_meier, abs=0.05)
    beyond = ["--set", "data.schema.label.range=[0, 1600]", "--set", "data.schema.label.bins=8"]
    told = command("check", "study/run.yaml", *beyond).out
    assert "nobody is at risk in the bins to 1400, 1600" in told and "End the label's range and bins at 1200" in told


def test_bins_are_drafted_though_many_events_are_at_time_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    times = {
        "x": range(200),
        "days": [row % 10 * (row % 2) for row in range(200)],
        "died": [1 - row % 3 // 2 for row in range(200)],
    }
    pandas.DataFrame(times).assign(x=lambda frame: frame["x"] % 7 + 0.5).to_csv("all.csv", index=False)
    assert command("init", "study", "--from", "all.csv", "--time", "days", "--event", "died").code == 0
    assert command("check", "study/run.yaml").code == 0


def test_a_time_beside_a_label_of_two_words_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name: as a feature it would give the label away."""
    monkeypatch.chdir(tmp_path)
    times = ["time", "Follow-up days", "survivalMonths"]
    others = {name: [row % 40 + 0.5 for row in range(80)] for name in ("timestamp", "weight")}
    followed = frame().assign(**{name: [row % 40 for row in range(80)] for name in times}, **others)
    followed.to_csv("followed.csv", index=False)
    told = command("init", "study", "--from", "followed.csv", "--label", "ill").out.splitlines()
    hints = [line for line in told if "this is survival" in line]
    for hint, name in zip(hints, ("time", "'Follow-up days'", "survivalMonths"), strict=True):
        assert hint.endswith(f"time={name.strip(chr(39))!r} event='ill'.")
    assert "this is survival" not in command("init", "stages", "--from", "followed.csv", "--label", "stage").out
    survival = command("init", "right", "--from", "followed.csv", "--time", "time", "--event", "ill")
    assert survival.code == 0 and "this is survival" not in survival.out


def test_a_file_among_others_that_is_empty_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame().to_csv("first.csv", index=False)
    Path("second.csv").write_text("")
    done = command("init", "study", "--from", "*.csv", "--label", "ill")
    assert done.code == 2 and "second.csv is empty: its first line must name the columns" in done.err, done.err
    frame().rename(columns={"age": "years"}).to_csv("second.csv", index=False)
    done = command("init", "study", "--from", "*.csv", "--label", "ill")
    assert "other columns than first.csv: in second.csv only: years; in first.csv only: age. All need" in done.err, (
        done.err
    )
    Path("second.csv").write_bytes("âge,ill\n20,no\n".encode("latin-1"))
    done = command("init", "study", "--from", "*.csv", "--label", "ill")
    assert (
        "second.csv is not text in UTF-8" in done.err
        and "--encoding windows-1252" in done.err
        and "data.dataset" not in done.err
    ), done.err


def in_clinics(folder: Path, clinics: np.ndarray, by: str) -> list[str]:
    """Write records of clinics, each its file and all in one; what `dpfl init` is told of them."""
    whole = frame().assign(age=[20 + row * row % 37 for row in range(80)], clinic=clinics).drop(columns="stage")
    for name, part in whole.groupby("clinic"):
        part.drop(columns="clinic").to_csv(folder / f"{name}.csv", index=False)
    (folder / "one").mkdir()
    whole.to_csv(folder / "one/all.csv", index=False)
    given = {"files": ["--from", "*.csv"], "column": ["--from", "one/all.csv", "--silo", "clinic"]}
    return given.get(by, ["--data", "."])


@pytest.mark.parametrize("by", ["files", "column", "numbers"])
def test_a_silo_of_one_record_is_told_of_in_the_words_of_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.chdir(tmp_path)
    clinics = np.array(["north"] * 40 + ["west"] * 39 + ["south"])
    given = in_clinics(tmp_path, clinics, by)
    done = command("init", "study", *given, "--label", "ill")
    assert done.code == 0, done.err
    one = "has 1 record; it needs one to train on and one to test at least. Give it more records, or leave it out"
    assert f"\nsilo south {one}" in done.out and done.out.count("has 1 record") == 1
    assert f"(south) {one}" in command("check", "study/run.yaml").err
    Path("south.csv").write_text("age,ill\n")
    if by != "column":
        done = command("init", "empty", *given, "--label", "ill")
        one_message(done, "south.csv holds a header and no records")


@pytest.mark.parametrize("by", ["files", "column", "numbers"])
def test_a_draft_for_small_silos_runs_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """A fixed share of the three records that one of them trains on might be none: all of them are used."""
    monkeypatch.chdir(tmp_path)
    clinics = np.array(["north"] * 40 + ["west"] * 36 + ["south"] * 4)
    given = in_clinics(tmp_path, clinics, by)
    assert command("init", "study", *given, "--label", "ill").code == 0
    drafted = yaml.safe_load(Path("study/run.yaml").read_text())
    assert drafted["privacy"]["sampler"] == "full" and drafted["silo_weights"] == "records"
    checked = command("check", "study/run.yaml")
    assert checked.code == 0 and "3 silos with 3 to 32 training records" in checked.out, checked.err
    assert command("init", "large", "--from", "one/all.csv", "--label", "ill").code == 0
    assert "silo_weights" not in yaml.safe_load(Path("large/run.yaml").read_text()), "its silos are of one size"


def test_a_drafted_model_of_a_rare_outcome_predicts_its_risk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: None
) -> None:
    """11 % events and 20 columns of two values: on average within a quarter of what is observed, with and without
    noise. Seeded, so that it is the same each time; clipping at 1 predicts a third of it."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (2000, 20))
    ill = rng.random(2000) < 1 / (1 + np.exp(3.1 - 0.8 * (x[:, 0] + x[:, 1])))
    table = pandas.DataFrame(x, columns=[f"x{column}" for column in range(20)])
    table.assign(ill=np.where(ill, "yes", "no"), site=rng.choice(["a", "b", "c"], 2000)).to_csv("all.csv", index=False)
    assert "One class is rare" in command("init", "study", "--from", "all.csv", "--label", "ill", "--silo", "site").out
    drafted = yaml.safe_load(Path("study/run.yaml").read_text())
    assert drafted["private_statistics"] == {"outcome": True}
    without = ("privacy.epsilon=null", "privacy.noise_multiplier=0", "private_statistics.noise_multiplier=0")
    for changes in (("privacy.epsilon=8",), without):
        done = command("run", "study/run.yaml", "--json", *(f"--set={change}" for change in ("seed=1", *changes)))
        model = done.json["measures"]["pooled"]["model"]
        assert 0.75 < model["predicted_observed_ratio"] < 1.25, (changes, model["predicted_observed_ratio"])
        assert model["auc"] > 0.55 and done.json["measures"]["clipped_share"] < 0.02
    cut = ("privacy.epsilon=8", "privacy.clip_norm=1", "private_statistics=null", "seed=1")
    done = command("run", "study/run.yaml", *(f"--set={change}" for change in cut))
    assert "privacy.clip_norm=1 cuts the gradients of" in done.out


def test_what_init_cannot_draft_is_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frame().to_csv("all.csv", index=False)
    frame().to_csv("index.csv")
    frame()[["ill"]].to_csv("one.csv", index=False)
    for name, text in {
        "empty": "",
        "header": "age,ill\n",
        "twice": "age,age,ill\n1,2,no\n",
        "last": "age,ill\n1,no\n,\n",
    }.items():
        Path(f"{name}.csv").write_text(text)
    odd = {3: "high", 4: "low"}
    frame().assign(dose=[odd.get(row, row + 0.5) for row in range(80)]).to_csv("dose.csv", index=False)
    for arguments, message in (
        (["--from", "dose.csv", "--label", "dose"], "is to be predicted and holds numbers, but also 'high', 'low'."),
        (["--from", "all.csv"], "predicted? For survival: time and event"),
        (["--from", "all.csv", "--time", "age"], "time is for survival, and event is missing"),
        (["--from", "all.csv", "--time", "age", "--event", "ill", "--label", "ill"], "both given"),
        (["--from", "all.csv", "--time", "stage", "--event", "ill"], "column 'stage' holds no times"),
        (["--from", "dose.csv", "--time", "dose", "--event", "ill"], "'dose' holds 'high', 'low', which are no times"),
        (["--from", "all.csv", "--time", "age", "--event", "stage"], "column 'stage' holds 'I', 'II', 'III': it must"),
        (["--data", "all.csv", "--label", "ill", "--time", "age"], "--time has no meaning without --from"),
        (["--from", "no*.csv", "--label", "ill"], "no such file or folder"),
        (["--from", "empty.csv", "--label", "ill"], "empty.csv is empty"),
        (["--from", "header.csv", "--label", "ill"], "a header and no records"),
        (["--from", "index.csv", "--label", "ill"], "column 1 has no name. Is it a row number"),
        (["--from", "twice.csv", "--label", "ill"], "two columns have the name 'age'"),
        (["--from", "last.csv", "--label", "ill"], "last.csv, line 3 is empty: remove it."),
        (["--from", "one.csv", "--label", "ill"], "no column is left to learn from besides ill"),
        (["--from", "all.csv", "--label", "il"], "did you mean 'ill'"),
        (["--from", "none.csv", "--label", "ill"], "'none.csv': there is no such file"),
        (["--from", "all.csv", "--data", "all.csv", "--label", "ill"], "both given"),
        (["--data", "all.csv", "--label", "ill", "--person", "clinic"], "--person has no meaning without --from"),
    ):
        one_message(command("init", "project", *arguments), message)
    assert not (tmp_path / "project").exists()
