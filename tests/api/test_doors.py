"""The command line and Python are two doors to one house: the same bits, folders, numbers and errors by either."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import dpfl_plugin as dpfl
from dpfl_plugin import interrupts
from dpfl_plugin.api.federation import KEYS
from dpfl_plugin.errors import ConfigError, DataError, DpflError
from tests.cli.command import BASE, merged, metrics, one_message, write
from tests.cli.command import dpfl as command
from tests.cli.sweeping import write as write_sweep

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


def test_a_run_that_is_there_is_named_at_each_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, {"out": "runs"})
    with monkeypatch.context() as patched:
        patched.setattr(interrupts.Stop, "__call__", _after(2))
        with pytest.raises(KeyboardInterrupt):
            dpfl.load(path).run()
    with pytest.raises(ConfigError, match=r"Use resume to continue it, or another out to start over"):
        dpfl.load(path).run()
    assert "Use resume to continue it, or another out to start over" in command("run", path).err


def test_a_run_goes_on_by_its_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bits of the run that was never interrupted; by whichever name the folder is given."""
    path = write(tmp_path)
    whole = dpfl.load(path).with_(out=str(tmp_path / "whole")).run()
    with monkeypatch.context() as patched:
        patched.setattr(interrupts.Stop, "__call__", _after(3))
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
    assert command("resume", moved, "--json").json == found.result
    monkeypatch.chdir(tmp_path)
    renamed = moved.rename(moved.with_name("another"))
    with pytest.raises(ConfigError, match="give it its own name again"):
        dpfl.resume(renamed)
    with pytest.raises(DataError, match="no run began there"):
        dpfl.resume(tmp_path)  # where there is a configuration, and no run


@pytest.mark.parametrize("changes", [{}, {"variants": VARIANTS, "compare": [["fedavg", "scaffold"]]}])
def test_a_command_prints_what_python_returns(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = write(tmp_path, {"rounds": 2, "out": str(tmp_path / "runs"), **changes})
    shown = dpfl.load(path).run()
    assert command("run", path).out == f"{shown}\n" and command("run", path, "--json").json == shown.to_dict()


def test_a_sweep_is_that_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_sweep(tmp_path, {"list": [{"l2": 0.1}, {"l2": 0.2}], "seeds": 2}, {"rounds": 1})
    plan = dpfl.sweep(path, out=tmp_path / "out", dry_run=True)
    assert str(plan).count("l2=0.1") == 2 and not (tmp_path / "out").exists()
    result = dpfl.sweep(path, out=tmp_path / "out", jobs=2)
    assert result.status.counts["done"] == 4 and result.exit_code == 0 and "l2=0.2" in str(result)
    assert command("sweep", path, "--out", tmp_path / "out").out == f"{result}\n"
    assert command("status", tmp_path / "out", "--json").json == json.loads(json.dumps(result.to_dict()))
    with pytest.raises(ConfigError, match="on='here' must be one of local, slurm, submitit"):
        dpfl.sweep(path, on="here")


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
        assert dpfl.account(given).to_dict() == command("account", what, "--json").json
    answer = dpfl.plan(dpfl.load(path), epsilon=2.0, delta=1e-4, view="third_party")
    words = ("--epsilon", 2.0, "--delta", 1e-4, "--view", "third_party", "--json")
    assert answer.to_dict() == command("plan", path, *words).json
    made = [dpfl.report(tmp_path / "runs", tmp_path / "one", html=False, where={"seed": 3})]
    said = command("report", tmp_path / "runs", "--out", tmp_path / "other", "--no-html", "--where", "seed=3")
    assert said.code == 0 and made[0].table.rows[0][0] in said.out
    for name in ("summary.csv", "summary.md", "summary.tex", "runs.csv"):
        assert (tmp_path / "one/tables" / name).read_bytes() == (tmp_path / "other/tables" / name).read_bytes()
    later = dpfl.load(path).with_(seed=4).run(ledger=shared)
    assert "shared ledger, when this run ended" in str(dpfl.compare([later, run]))


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
    installed = dpfl.plugins()
    assert installed.to_dict() == dpfl.plugins().to_dict() and command("list").out == f"{installed}\n"
    assert dpfl.plugins("engines").groups == {"engines": installed.groups["engines"]}
    path = write(tmp_path, {"model": {"name": "mlp", "hidden": [3]}})
    costs, said = dpfl.engines(path), command("list", "engines", "--for", path, "--json").json
    assert costs.chosen == "dense" and costs.refusal is None
    in_python = costs.to_dict()
    for item in (*in_python["engines"], *said["engines"]):
        item["measured_us"] = item["measured_us"] is not None
    assert in_python == said


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
    assert "finished before, without a profile: no times were taken" in capsys.readouterr().err
    (found.folder / "profile.json").write_text("{")
    with pytest.raises(DataError, match=r"profile\.json cannot be read"):
        _ = found.profile


def test_a_check_says_what_a_run_would_be_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    budget = {"noise_multiplier": None, "epsilon": 3.0, "delta": 1e-3}
    path = write(tmp_path, {"privacy": budget, "out": "runs"})
    before = sorted(tmp_path.rglob("*"))
    found = dpfl.check(path).run
    assert sorted(tmp_path.rglob("*")) == before
    run = dpfl.load(path).run()
    ledger = dpfl.Ledger.open(run.folder)
    assert found.folder == run.folder and found.rounds == run.result["rounds"] == 6
    assert found.noise_multiplier == ledger.facts["noise_multiplier"]
    assert list(found.num_records) == ledger.facts["num_records"] and found.engine and found.memory
    again = dpfl.check(path).run  # also where the run is there by now
    assert dataclasses.replace(again, memory=found.memory) == found
    both = dpfl.check(write(tmp_path, {"variants": VARIANTS}, "two.yaml"))
    assert [item.run for item in both.runs] == list(both.to_dict()) == list(VARIANTS)
    with pytest.raises(ConfigError, match=r"two\.yaml \(variant fedavg\): .*silo_rate"):
        dpfl.check(write(tmp_path, {"variants": VARIANTS, "silo_rate": 0.01}, "two.yaml"))
