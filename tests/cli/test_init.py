"""`dpfl init` and `dpfl quickstart`: what they write runs; nothing is overwritten."""

import json
import re
from importlib import resources
from pathlib import Path

import pandas
import pytest
import yaml

from dpfl_plugin.adapters.settings import check_settings
from dpfl_plugin.api.projects import RECORDS, SILOS, rendered
from dpfl_plugin.config.load import load
from tests.cli.command import dpfl, one_message, run

ROOT = Path(__file__).resolve().parents[2]
ROWS = "id,age,sugar,town,ill\n" + "".join(f"{i},{i % 7 / 7},{i % 5 / 5},here,{'yn'[i % 2]}\n" for i in range(40))


def written(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_project_from_nothing_runs(tmp_path):
    folder = tmp_path / "my project"
    done = dpfl("init", folder)
    assert done.code == 0, done.err
    files = rendered("my-project")
    assert set(written(folder)) == set(files) and len([path for path in files if path.endswith(".csv")]) == len(SILOS)
    for said in (*files, f"cd '{folder}'", "dpfl account run.yaml", "dpfl run run.yaml", "made up"):
        assert said in done.out
    assert not re.search("[{][{%]", "".join(files.values()))
    settings = yaml.safe_load(files["run.yaml"])
    check_settings(
        {key: settings[key] for key in settings if key not in ("data", "model")}, ""
    )  # a deployment takes it
    result = run(folder / "run.yaml")
    assert result["status"] == "done" and result["num_silos"] == len(SILOS)
    assert result["num_train_records"] + result["num_test_records"] == RECORDS * len(SILOS)
    assert result["epsilon"]["server"]["epsilon"] <= 4 and result["test_accuracy"]["last"] > 0.75


def test_the_notebook_is_one():
    """By the format's own rules, nbformat 4.5: what an editor needs to open it."""
    notebook = json.loads(rendered("hospital")["notebook.ipynb"])
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5) and isinstance(notebook["metadata"], dict)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"]) > 1
    for cell in notebook["cells"]:
        code = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert set(cell) == {"cell_type", "id", "metadata", "source"} | code
        assert re.fullmatch(r"[a-zA-Z0-9-_]{1,64}", cell["id"])
    code = "".join(line for cell in notebook["cells"] if cell["cell_type"] == "code" for line in cell["source"])
    assert 'dpfl.load("run.yaml").run()' in code
    compile(code, "notebook", "exec")


@pytest.mark.parametrize(
    ("given", "options", "silos"),
    [
        ("one", ["--label", "ill"], 5),
        ("one", ["--guess-label"], 5),
        ("one", ["--label", "ill", "--silo", "town"], 1),
        ("two", ["--label", "ill"], 2),
    ],
)
def test_a_project_around_files_that_are_there(tmp_path, given, options, silos):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    for path in ("one/a.csv", "two/a.csv", "two/b.csv"):
        (tmp_path / path).write_text(ROWS if "a" in path else ROWS.replace("here", "there").replace("0.2", "0.3"))
    done = dpfl("init", tmp_path / "project", "--data", tmp_path / given, *options)
    assert done.code == 0, done.err
    ((one,)) = load(tmp_path / "project" / "run.yaml").variants
    dataset = one.config.data.dataset.options
    words = [] if "--silo" in options else ["town"]
    assert dataset["label_column"] == "ill" and dataset["ignore_columns"] == [*words, "id"]
    assert ("guessed" in done.out) == ("--guess-label" in options) and ("simulation" in done.out) == (silos == 5)
    assert "made up" not in done.out and not (tmp_path / "project" / "data").exists()
    changes = [f"--set={key}" for key in ("rounds=2", "algorithm.local_steps=1", "privacy.clip_norm=0.5")]
    assert run(tmp_path / "project" / "run.yaml", *changes)["num_silos"] == silos


@pytest.mark.parametrize(("option", "name"), [("--sheet", "records"), ("--encoding", "latin-1")])
def test_tables_that_are_not_read_as_they_are_say_which_option_reads_them(tmp_path, option, name):
    frame = pandas.DataFrame(
        {"gr\N{LATIN SMALL LETTER O WITH DIAERESIS}sse": [150 + row % 37 for row in range(60)], "ill": [0, 1] * 30}
    )
    path = tmp_path / ("a.xlsx" if option == "--sheet" else "a.csv")
    if option == "--sheet":
        with pandas.ExcelWriter(path) as book:
            pandas.DataFrame({"Read this": ["first"]}).to_excel(book, sheet_name="notes", index=False)
            frame.to_excel(book, sheet_name=name, index=False)
    else:
        frame.to_csv(path, index=False, encoding=name)
    options = ["--from", path, "--label", "ill"]
    one_message(dpfl("init", tmp_path / "new", *options), option.strip("-"))
    assert not (tmp_path / "new").exists()
    assert dpfl("init", tmp_path / "new", *options, option, name).code == 0
    assert dpfl("check", tmp_path / "new" / "run.yaml").code == 0
    one_message(dpfl("init", tmp_path / "other", "--data", path, "--label", "ill", option, name), option.strip("-"))


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--label", "ill"], ["label has no meaning without data"]),
        (["--data", "{0}/rows.csv"], ["label is missing", "id, age, sugar, town, ill", "guess_label"]),
        (["--data", "{0}/rows.csv", "--label", "il"], ["label='il' (did you mean 'ill'?)", "rows.csv"]),
        (["--data", "{0}/rows.csv", "--label", "ill", "--silo", "city"], ["silo='city'"]),
        (["--data", "{0}/none.csv", "--label", "ill"], ["none.csv", "there is no such file"]),
        (["--data", "{0}/empty", "--label", "ill"], ["no file named *.csv"]),
        (["--data", "{0}/hole.csv", "--label", "ill"], ["hole.csv, line 3, column 'age' is empty"]),
        (["--data", "{0}/words.csv", "--label", "ill"], ["no column is left"]),
    ],
)
def test_what_cannot_be_is_told_and_nothing_is_written(tmp_path, options, parts):
    (tmp_path / "empty").mkdir()
    (tmp_path / "rows.csv").write_text(ROWS)
    (tmp_path / "hole.csv").write_text(ROWS.replace(f"1,{1 / 7},", "1,,"))
    (tmp_path / "words.csv").write_text("id,ill\n" + "".join(f"{i},{'yn'[i % 2]}\n" for i in range(40)))
    one_message(dpfl("init", tmp_path / "project", *(option.format(tmp_path) for option in options)), *parts)
    assert not (tmp_path / "project").exists()


@pytest.mark.parametrize("there", ["run.yaml", "notebook.ipynb", "data/mine.csv"])
def test_nothing_is_overwritten(tmp_path, there):
    (tmp_path / there).parent.mkdir(exist_ok=True)
    (tmp_path / there).write_text("mine")
    one_message(dpfl("init", tmp_path), there.removesuffix("/mine.csv"), "nothing was written")
    assert written(tmp_path) == {there: b"mine"}


def test_a_place_that_cannot_be_written_is_told_before_anything_is_computed(tmp_path):
    """Where there is no run and there are no data: they are not looked for. /proc takes no files, root's neither."""
    for words in (
        ("init", "/proc/x/project", "--from", tmp_path / "none.csv", "--label", "ill"),
        ("export", tmp_path / "none", "/proc/x"),
        ("predict", tmp_path / "none", "none.csv", "--out", "/proc/x.csv"),
    ):
        one_message(dpfl(*words), "/proc/x", "cannot be written: No such file or directory. ", "other")
    (tmp_path / "file").write_text("")
    one_message(dpfl("export", tmp_path / "none", tmp_path / "file" / "x"), "cannot be written: ")
    one_message(dpfl("export", tmp_path / "none", tmp_path / "made" / "x"), "not the folder of a run")
    one_message(
        dpfl("predict", tmp_path / "none", "none.csv", "--out", tmp_path / "made.csv"), "not the folder of a run"
    )
    assert set(written(tmp_path)) == {"file"} and not (tmp_path / "made").exists()


def test_a_gitignore_that_is_there_stays(tmp_path):
    (tmp_path / ".gitignore").write_text("mine\n")
    done = dpfl("init", tmp_path)
    assert done.code == 0 and (tmp_path / ".gitignore").read_text() == "mine\n"
    for line in ("*.csv", "/runs/", "*.jsonl"):
        assert f"  {line}\n" in done.out


def test_the_quickstart_that_ships_is_that_of_the_repository(tmp_path):
    """Else: cp configs/hospitals.yaml configs/two_labels.yaml dpfl_plugin/templates/quickstart/"""
    shipped = resources.files("dpfl_plugin") / "templates" / "quickstart"
    names = {path.name for path in shipped.iterdir()}
    assert names == {"hospitals.yaml", "two_labels.yaml"}
    copied = dpfl("quickstart", "--copy", tmp_path / "mine")
    assert copied.code == 0 and f"Next: dpfl run {tmp_path / 'mine' / 'hospitals.yaml'}\n" in copied.out
    spaced = dpfl("quickstart", "--copy", tmp_path / "my own")
    assert f"Next: dpfl run '{tmp_path / 'my own' / 'hospitals.yaml'}'\n" in spaced.out  # as a shell takes it
    for name in names:
        text = (shipped / name).read_bytes()
        assert text == (ROOT / "configs" / name).read_bytes() == (tmp_path / "mine" / name).read_bytes()
    one_message(dpfl("quickstart", "--copy", tmp_path / "mine"), "was left as it is")
    one_message(dpfl("quickstart", "--copy", tmp_path, "--set", "rounds=1"), "--copy runs nothing")
    one_message(dpfl("quickstart", "--copy", tmp_path, "--seeds", "2"), "--copy runs nothing")


def test_the_quickstart_runs_and_can_be_run_again(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("dpfl_plugin.api.quickstart.draw", lambda path, parts: drawn.append((path, parts)))
    options = ["--out", tmp_path / "runs", "--seeds", "1", "--set", "rounds=1"]
    first = dpfl("quickstart", *options)
    assert first.code == 0, first.err
    for said in (
        "DP-SCAFFOLD",
        "Budapest alone",
        "FLamby",
        "dpfl init",
        "606 records to train on, 314 to test on",
        "epsilon at delta 0.0001\n",
    ):
        assert said in first.out
    ids = {path.parent.name for path in tmp_path.glob("runs/*/*/result.json")}
    again = dpfl("quickstart", *options, "--json")
    assert again.code == 0 and set(again.json) == {"hospitals", "two_labels"}
    assert again.err == first.err and len(again.err.splitlines()) == 2  # a line for each file and seed
    for name, part in again.json.items():
        assert set(part["runs"]) == {variant.label for variant in load(ROOT / f"configs/{name}.yaml").variants}
    assert {path.parent.name for path in tmp_path.glob("runs/*/*/result.json")} == ids  # nothing was run again
    assert [path for path, _ in drawn] == 2 * [tmp_path / "runs" / "quickstart.png"]


def test_a_step_that_is_too_small_is_told_of(tmp_path, measured):
    """By what the run evaluated: a model that says one class of all, where classes are unequal."""
    assert dpfl("init", tmp_path / "project").code == 0
    path = tmp_path / "project" / "run.yaml"
    words = ("run", path, "--out", tmp_path / "runs")
    assert "too small" not in dpfl(*words).out
    for file in (tmp_path / "project" / "data").glob("*.csv"):
        header, *rows = file.read_text().splitlines()
        few = [row for n, row in enumerate(rows) if row.endswith("healthy") or n % 6 == 0]
        file.write_text("\n".join([header, *few]) + "\n")
    done = dpfl(*words, "--set", "algorithm.local_lr=0.0001")
    said = " ".join(done.out.split())
    assert "note: the model says the same class of every test record, and the score was that of a constant" in said
    assert "Try algorithm.local_lr=0.0003" in said
