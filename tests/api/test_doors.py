"""The command line and Python are two doors to one house: the same bits, folders, numbers and errors by either."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import dpfl_plugin as dpfl
from dpfl_plugin.api import signals
from dpfl_plugin.api.federation import KEYS
from dpfl_plugin.errors import ConfigError, DataError, DpflError
from tests.cli.command import BASE, merged, metrics, one_message, write
from tests.cli.command import dpfl as command

VARIANTS = {"fedavg": {"algorithm": {"name": "fedavg"}}, "scaffold": {}}
RUNS = {
    "simple": {},
    "solved noise, half of the silos": {
        "privacy": {"noise_multiplier": None, "epsilon": 3.0, "delta": 1e-3},
        "silo_rate": 0.5,
    },
    "a model and records in blocks": {
        "model": {"name": "mlp", "hidden": [5]},
        "data": {"partition": {"name": "dirichlet", "alpha": 5.0}},
        "algorithm": {"server_lr": 0.5},
    },
    "without noise": {"privacy": {"noise_multiplier": 0}},
}
# Of these a file says where and when the run was, and how long it took.
ELSEWHERE = {"environment.json", "log.txt", "result.json", "metrics.jsonl"}


def in_python(path: Path, changes: dict[str, Any]) -> dpfl.Run:
    return dpfl.load(path).run()


def by_train(path: Path, changes: dict[str, Any]) -> dpfl.Run:
    values = merged(BASE, {"out": "runs", "name": "config", **changes})
    data = values.pop("data")
    keys = {key: data[key] for key in KEYS if key in data}
    return dpfl.train(dpfl.Federation.load(data["dataset"], **keys), **values)


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("door", [in_python, by_train])
def test_one_configuration_is_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], door: Any
) -> None:
    """Model digest, metrics, ledger and config.yaml are those of `dpfl run`, to the byte; so are names of files."""
    folders = []
    for name in ("command", "python"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        path = write(tmp_path / name, {"out": "runs", "name": "config", **changes})
        if name == "command":
            done = command("run", path, "--json")
            assert done.code == 0, done.err
            folders.append((tmp_path / name / done.json["folder"], done.json))
        else:
            found = door(path, changes)
            folders.append((tmp_path / name / found.folder, found.result))
    (of_command, by_command), (of_python, by_python) = folders
    for key in ("id", "model_sha256", "test_accuracy", "epsilon", "status", "rounds"):
        assert by_command[key] == by_python[key], key
    names = {path.name for path in of_command.iterdir()}
    assert names == {path.name for path in of_python.iterdir()} >= {"config.yaml", "ledger.jsonl", "privacy.md"}
    same = {name for name in names - ELSEWHERE if (of_command / name).is_file()}
    assert same >= {"config.yaml", "ledger.jsonl", "ledger.json", "privacy.md"}
    for name in same:
        assert (of_command / name).read_bytes() == (of_python / name).read_bytes(), name
    assert metrics({"folder": str(of_command)}) == metrics({"folder": str(of_python)})


@pytest.mark.parametrize(
    ("changes", "words", "call"),
    [
        ({"rounds": 0}, ["run"], lambda path: dpfl.load(path).run()),
        ({"algorithm": {"name": "scafold"}}, ["run"], lambda path: dpfl.load(path).run()),
        ({"silo_rate": 0.01}, ["run"], lambda path: dpfl.load(path).run()),
        ({"data": {"dataset": {"name": "csv", "files": "none.csv"}}}, ["run"], lambda path: dpfl.load(path).run()),
        ({}, ["run", "--variant", "a"], lambda path: dpfl.load(path, variant="a").run()),
        ({}, ["run", "--ledger", "no/such/folder"], lambda path: dpfl.load(path).run(ledger="no/such/folder")),
        ({"variants": VARIANTS}, ["run", "--variant", "a"], lambda path: dpfl.load(path, variant="a")),
        ({}, ["plan"], dpfl.plan),
        ({}, ["plan", "--epsilon", "-1"], lambda path: dpfl.plan(path, epsilon=-1.0)),
        ({}, ["plan", "--epsilon", "1", "--view", "me"], lambda path: dpfl.plan(path, epsilon=1.0, view="me")),
        ({}, ["plan", "--solve", "all"], lambda path: dpfl.plan(path, solve="all")),
        (
            {"privacy": {"noise_multiplier": None, "epsilon": 3.0}},
            ["plan", "--solve", "rounds"],
            lambda path: dpfl.plan(path, solve="rounds"),
        ),
        ({}, ["audit", "--canaries", "0"], lambda path: dpfl.audit(path, canaries=0)),
        ({"data": {"dataset": {"name": "csv", "files": "none.csv"}}}, ["audit"], dpfl.audit),
        ({"data": {"dataset": {"name": "csv", "files": "none.csv"}}}, ["account"], dpfl.account),
        ({"privacy": {"accountant": "pdl"}}, ["account"], dpfl.account),
        ({}, ["attack", "--silo", "9"], lambda path: dpfl.attack(path, silo=9)),
        ({}, ["attack", "--silo", "-1"], lambda path: dpfl.attack(path, silo=-1)),
        ({}, ["attack", "--repeats", "0"], lambda path: dpfl.attack(path, repeats=0)),
        ({}, ["attack", "--rounds", "0"], lambda path: dpfl.attack(path, rounds=0)),
        ({"algorithm": {"name": "fedavg"}, "privacy": {"unit": "silo"}}, ["attack"], dpfl.attack),
        ({"data": {"dataset": {"name": "csv", "files": "none.csv"}}}, ["attack"], dpfl.attack),
        ({}, ["limits"], dpfl.limits),
    ],
)
def test_an_error_is_the_same_by_both_doors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: list[str], call: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, changes)
    with pytest.raises(DpflError) as raised:
        call(path)
    error = raised.value
    done = command(words[0], path, *words[1:])
    assert (done.code, done.err) == (error.exit_code, f"dpfl: {error}\n") and not done.out


def test_a_run_that_is_there_is_named_in_the_words_of_each_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, {"out": "runs"})
    with monkeypatch.context() as patched:
        patched.setattr(signals.Stop, "__call__", _after(2))
        with pytest.raises(KeyboardInterrupt):
            dpfl.load(path).run()
    with pytest.raises(ConfigError, match=r"Use resume=True to continue it, or another out to start over"):
        dpfl.load(path).run()
    assert "Use --resume to continue it, or another --out to start over" in command("run", path).err


def test_a_run_goes_on_by_its_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bits of the run that was never interrupted; by whichever name the folder is given."""
    path = write(tmp_path)
    whole = dpfl.load(path).with_(out=str(tmp_path / "whole")).run()
    with monkeypatch.context() as patched:
        patched.setattr(signals.Stop, "__call__", _after(3))
        with pytest.raises(KeyboardInterrupt):
            dpfl.load(path).with_(out=str(tmp_path / "runs")).run()
    (folder,) = tmp_path.glob("runs/*/*")
    assert 0 < dpfl.Run.open(folder).result["rounds"] < 6
    (tmp_path / "moved").mkdir()
    moved = folder.parent.rename(tmp_path / "moved" / folder.parent.name) / folder.name  # out is not part of a run
    monkeypatch.chdir(moved)
    found = dpfl.resume(".")
    assert found.status == "done" and found.result["rounds"] == whole.result["rounds"]
    assert found.result["model_sha256"] == whole.result["model_sha256"]
    assert (moved / "ledger.jsonl").read_bytes() == (whole.folder / "ledger.jsonl").read_bytes()
    assert dpfl.resume(moved).result == found.result  # finished: shown
    monkeypatch.chdir(tmp_path)
    renamed = moved.rename(moved.with_name("another"))
    with pytest.raises(ConfigError, match="give it its own name again"):
        dpfl.resume(renamed)
    with pytest.raises(DataError, match="no run began there"):
        dpfl.resume(tmp_path)  # where there is a configuration, and no run


def _after(times: int) -> Any:
    asked = [0]

    def stop(self: object) -> bool:
        asked[0] += 1
        return asked[0] > times

    return stop


def test_accounts_plans_predictions_and_reports_are_those_of_the_commands(tmp_path: Path) -> None:
    changes = {"out": str(tmp_path / "runs"), "rounds": 3, "privacy": {"randomness": "fresh"}}
    path, shared = write(tmp_path, changes), tmp_path / "shared.jsonl"
    run = dpfl.load(path).run(ledger=shared)
    for what, given in ((path, dpfl.load(path)), (run.folder, run), (shared, str(shared))):
        assert dpfl.account(given) == command("account", what, "--json").json
    answer = dpfl.plan(dpfl.load(path), epsilon=2.0, delta=1e-4, view="third_party")
    words = ("--epsilon", 2.0, "--delta", 1e-4, "--view", "third_party", "--json")
    assert answer == command("plan", path, *words).json and answer["value"] > 0
    two = write(tmp_path, {"variants": VARIANTS}, "two.yaml")
    assert dpfl.plan(two, epsilon=2.0) == command("plan", two, "--epsilon", 2.0, "--json").json
    made = [dpfl.write_report(tmp_path / "runs", tmp_path / "one", html=False, where={"seed": 3})]
    said = command("report", tmp_path / "runs", "--out", tmp_path / "other", "--no-html", "--where", "seed=3")
    assert said.code == 0 and made[0].table.rows[0][0] in said.out
    for name in ("summary.csv", "summary.md", "summary.tex", "runs.csv"):
        assert (tmp_path / "one/tables" / name).read_bytes() == (tmp_path / "other/tables" / name).read_bytes()


def test_an_audit_is_that_of_the_command(tmp_path: Path) -> None:
    path = write(tmp_path, {"rounds": 2, "out": str(tmp_path / "runs")})
    found = dataclasses.asdict(dpfl.audit(path, canaries=40, silos=2, seed=7))
    said = command("audit", path, "--canaries", 40, "--silos", 2, "--seed", 7, "--json").json
    for key in ("epsilon", "epsilon_bound", "releases", "made", "charged", "influence", "violations"):
        assert json.loads(json.dumps(found[key])) == said[key], key
    run = dpfl.load(path).run()
    for given in (run, run.folder):  # whose configuration is the file's
        assert dpfl.audit(given, canaries=40, silos=2, seed=7).epsilon == found["epsilon"]
    one_message(
        command("audit", run.folder), f"the folder of a run, whose configuration is {run.folder / 'config.yaml'}"
    )


def test_plugins_and_engines_are_those_of_the_command(tmp_path: Path) -> None:
    said = command("list", "--json").json
    for group, found in dpfl.plugins().items():
        assert [(one.name, one.summary, list(one.options), one.origin) for one in found] == [
            (one["name"], one["summary"], one["options"], one["from"]) for one in said[group]
        ]
    assert dpfl.plugins("engines") == dpfl.plugins()["engines"]
    path = write(tmp_path, {"model": {"name": "mlp", "hidden": [3]}})
    found, said = dpfl.engines(path), command("list", "engines", "--for", path, "--json").json
    assert found.chosen == "dense" and found.refusal is None
    assert (found.batch_size, found.dimension, found.participants) == tuple(
        said[key] for key in ("batch_size", "dimension", "participants")
    )
    for one, line in zip(found.engines, said["engines"], strict=True):
        mine = dataclasses.asdict(one)
        assert (mine.pop("measured_us") is None) == (line.pop("measured_us") is None) and mine == line


def test_an_engine_that_a_run_would_refuse_is_refused_in_the_same_words(tmp_path: Path) -> None:
    path = write(tmp_path, {"model": {"name": "mlp", "hidden": [3]}, "engine": "closed_form"})
    found, done = dpfl.engines(path), command("list", "engines", "--for", path)
    assert found.chosen is None and len(found.engines) > 2
    assert done.code == 2 and done.err == f"dpfl: {found.refusal}\n" and "closed_form" in done.out
    with pytest.raises(DpflError) as raised:
        dpfl.load(path).run()
    assert str(raised.value) == str(found.refusal)


def test_a_profile_is_that_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, {"rounds": 2, "out": str(tmp_path / "runs")})
    found = dpfl.load(path).run(profile=True)
    assert found.profile is not None and found.profile["rounds"] == 2
    done = command("run", path, "--profile")
    assert f"{found.profile['process']['noise']:.3f}" in done.out and "where the time of 2 rounds went" in done.out
    capsys.readouterr()
    plain = dpfl.load(path).with_(seed=9)
    assert plain.run().profile is None and plain.run(profile=True).profile is None
    assert "finished before, without profile=True: no times were taken" in capsys.readouterr().err
    (found.folder / "profile.json").write_text("{")
    with pytest.raises(DataError, match=r"profile\.json cannot be read"):
        _ = found.profile


def test_predictions_are_those_of_the_command(tmp_path: Path) -> None:
    rows = "\n".join(f"{x / 7:.3f},{(x * 5) % 9},{'yes' if x % 2 else 'no'}" for x in range(60))
    (tmp_path / "train.csv").write_text(f"a,b,label\n{rows}\n")
    (tmp_path / "new.csv").write_text("a,b,label\n0.1,2,yes\n3.5,1,\n")
    dataset = {"name": "csv", "files": "train.csv", "classes": ["no", "yes"]}
    config = {**BASE, "rounds": 2, "out": str(tmp_path / "runs"), "data": {"dataset": dataset, "num_silos": 2}}
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config))  # which is YAML
    run = dpfl.load(path).run()
    made = dpfl.predict(run, tmp_path / "new.csv")
    said = command("predict", run.folder, tmp_path / "new.csv", "--json").json
    assert (list(made.rows), list(made.statement), made.accuracy) == (
        said["predictions"],
        said["statement"],
        said["accuracy"],
    )
    assert [row["line"] for row in made.rows] == [2, 3] and made.found.labelled == 1
    assert made.labels == [row["predicted"] for row in said["predictions"]] and set(made.labels) <= {"no", "yes"}


def test_a_check_says_what_a_run_would_be_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    budget = {"noise_multiplier": None, "epsilon": 3.0, "delta": 1e-3}
    path = write(tmp_path, {"privacy": budget, "out": "runs"})
    before = sorted(tmp_path.rglob("*"))
    found = dpfl.check(path)
    assert sorted(tmp_path.rglob("*")) == before
    run = dpfl.load(path).run()
    ledger = dpfl.Ledger.open(run.folder)
    assert found.folder == run.folder and found.rounds == run.result["rounds"] == 6
    assert found.noise_multiplier == ledger.facts["noise_multiplier"]
    assert list(found.num_records) == ledger.facts["num_records"] and found.engine and found.memory
    again = dpfl.check(path)  # also where the run is there by now
    assert dataclasses.replace(again, memory=found.memory) == found
    both = dpfl.check(write(tmp_path, {"variants": VARIANTS}, "two.yaml"))
    assert list(both) == list(VARIANTS)
    with pytest.raises(ConfigError, match=r"two\.yaml \(variant fedavg\): .*silo_rate"):
        dpfl.check(write(tmp_path, {"variants": VARIANTS, "silo_rate": 0.01}, "two.yaml"))
