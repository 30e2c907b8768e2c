"""Silos' names: shown to who holds the records, and in nothing that may be published."""

import csv
import json
from pathlib import Path

import pytest

from dpfl_plugin.data.names import called, column_list, listed, of_files, tidy, told_apart
from tests.cli.command import dpfl, one_message, write

NAMES = {"=south": 30, "mercy": 40, "north": 20}  # in the order of their numbers
RUN = {
    "rounds": 3,
    "data": None,
    "silo_rate": 0.67,
    "privacy": {"record_rate": None, "batch_size": 8},
    "algorithm": {"name": "fedavg", "local_steps": 1},
}


def configuration(folder: Path, *, column: bool) -> Path:
    """Hospitals in files of their own, or in a column of one file."""
    rows = {name: [f"{i % 7},{i % 3},{i % 2}" for i in range(n)] for name, n in NAMES.items()}
    if column:
        lines = [f"{row},{name}" for name, own in rows.items() for row in own]
        (folder / "all.csv").write_text("u,v,label,hospital\n" + "\n".join(lines) + "\n")
    else:
        for name, own in rows.items():
            (folder / f"{name}.csv").write_text("u,v,label\n" + "\n".join(own) + "\n")
    dataset = {"name": "csv", "files": "*.csv", "classes": [0, 1]} | ({"silo_column": "hospital"} if column else {})
    path = write(folder, RUN)
    path.write_text(path.read_text() + f"data: {json.dumps({'dataset': dataset, 'partition': 'natural'})}\n")
    return path


@pytest.mark.parametrize("column", [False, True])
def test_names_are_where_the_records_are_and_in_nothing_published(tmp_path: Path, column: bool) -> None:
    path = configuration(tmp_path, column=column)
    done = dpfl("run", path, "--out", tmp_path / "runs")
    assert done.code == 0, done.err
    (folder,) = (file.parent for file in tmp_path.glob("runs/*/*/result.json"))
    result = json.loads((folder / "result.json").read_text())
    assert result["silo_names"] == {str(number): name for number, name in enumerate(NAMES)}

    with (folder / "silos.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # A spreadsheet must not compute what somebody named a silo.
    assert [(row["silo"], row["name"]) for row in rows] == [("0", "'=south"), ("1", "mercy"), ("2", "north")]
    worst = min(rows, key=lambda row: float(row["test_accuracy"]))
    assert result["silos"]["worst"] == int(worst["silo"])
    number = int(worst["silo"])
    assert f"worst {float(worst['test_accuracy']):.3f} at silo {number} ({list(NAMES)[number]})," in done.out

    spent = {silo["silo"]: silo["epsilon"] for silo in json.loads((folder / "details.json").read_text())["silos"]}
    dearest = max(spent, key=lambda silo: spent[silo])
    assert len(set(spent.values())) > 1 and result["dearest_silo"] == dearest
    assert f"the epsilon is that of silo {dearest} ({list(NAMES)[dearest]}), which spent most" in done.out

    for published in ("privacy.md", "ledger.json"):
        text = (folder / published).read_text()
        assert not [name for name in NAMES if name in text], "whose records they are is not for everybody"


def test_which_silos_were_chosen_is_not_published(tmp_path: Path) -> None:
    path = configuration(tmp_path, column=False)
    done = dpfl("run", path, "--out", tmp_path / "runs", "--set", "data.num_silos=2")
    assert done.code == 0, done.err
    assert "2 of the 3 silos of the data are used: " in done.err
    for published in ("privacy.md", "ledger.json"):
        (text,) = (file.read_text() for file in tmp_path.glob(f"runs/*/*/{published}"))
        assert "2 of the 3 silos of the data are used" in text and not [name for name in NAMES if name in text]


def test_errors_and_audits_name_silos(tmp_path: Path) -> None:
    path = configuration(tmp_path, column=True)
    one_message(dpfl("run", path, "--set", "privacy.batch_size=20"), "silo 2 (north)", "batch_size")
    found = dpfl("audit", path, "--rounds", 1, "--set", "silo_rate=1")
    assert found.code == 0, found.err
    assert "in 3 silos (0 (=south), 1 (mercy), 2 (north))" in " ".join(found.out.split())


def test_how_silos_are_named() -> None:
    paths = [Path(path) for path in ("a/x.csv", "b/x.csv", "c/y.csv.gz", "c/z")]
    assert of_files(paths) == ("a/x.csv", "b/x.csv", "y", "z")
    long = {0: "n" * 50 + "é", 1: "n" * 50 + "b", 2: "n" * 50, 3: "b"}
    assert told_apart(long) == long
    odd = told_apart({0: "a\n", 1: "a\r", 2: "a\\n", 3: "é"})
    assert len(set(odd.values())) == 4 and all(name.isprintable() for name in odd.values())
    assert told_apart({0: "é", 1: "é"}) == {0: "é", 1: "é"}, "who gives two silos one name has it so"
    assert told_apart({0: "n" * 50, 1: "b"}) == {0: tidy("n" * 50), 1: "b"}
    assert tidy("a\n\x1b[2Jb") == "a\ufffd\ufffd[2Jb" and len(tidy("n" * 100)) == 40
    assert called(3, {}) == "silo 3" and called(3, {3: "x"}) == "silo 3 (x)" and called(3, {3: "3"}) == "silo 3"
    assert listed(range(10), {1: "x"}) == "0, 1 (x), 2, 3, 4, 5, 6, 7 and 2 more"


def test_a_columns_name_of_several_words_is_in_quotes() -> None:
    assert column_list(["age", "ST depression, mm", "größe"]) == "age, 'ST depression, mm', größe"


def test_a_silo_is_attacked_by_its_name(tmp_path: Path) -> None:
    path = configuration(tmp_path, column=False)
    for silo in ("mercy", "silo 1 (mercy)", "1"):
        done = dpfl("attack", path, "--silo", silo, "--repeats", 1, "--rounds", 1, "--out", tmp_path / "out", "--json")
        assert (done.json["silo"], done.json["silo_name"]) == (1, "mercy"), done.err
    refused = dpfl("attack", path, "--silo", "mercury", "--repeats", 1, "--out", tmp_path / "none")
    one_message(refused, "silo='mercury' must be the number or the name of a silo", "0 (=south), 1 (mercy), 2 (north)")
    assert not (tmp_path / "none").exists()
