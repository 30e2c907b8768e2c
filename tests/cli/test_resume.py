"""Interrupted and killed runs go on as if nothing had happened, and nothing is charged twice or forgotten."""

from __future__ import annotations

import fcntl
import json
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from dpfl_plugin.federation.round_loop import RoundLoop
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.runs import prepare
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runtimes.in_process import InProcess
from tests.cli.command import charges, dpfl, metrics, one_message, run, write

ROOT = Path(__file__).parents[2]
# A budget that lasts for a dozen rounds, silos with states, two of four in a round, a warm-up.
CHANGES: dict[str, Any] = {
    "rounds": None,
    "silo_rate": 0.5,
    "algorithm": {"name": "scaffold_warm", "option": "I", "server_optimizer": "adam", "server_lr": 0.1},
    "privacy": {"epsilon": 3.0},
    "checkpoint": {"every": 2},
}


def folder_of(config: Path) -> Path:
    (ledger,) = (config.parent / "runs").glob("*/*/ledger.jsonl")
    return ledger.parent


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Two runs gave the same, their times apart."""
    differs = {"seconds", "finished", "folder", "notes"}
    assert {k: v for k, v in one.items() if k not in differs} == {k: v for k, v in other.items() if k not in differs}
    assert metrics(one) == metrics(other)
    assert charges(one["folder"]) == charges(other["folder"])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    result = run(write(tmp_path_factory.mktemp("undisturbed"), CHANGES))
    assert 10 < result["rounds"] < 20 and result["status"] == "done"
    return result


class Crash(BaseException):
    """Ends a run as nothing in the package expects."""


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A run that ended in its 8th round, after some of it was charged, with the last checkpoint after round 6."""
    return crash(write(tmp_path, CHANGES), 8)


def test_a_runs_own_file_goes_on_with_it_wherever_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says of its folder is relative to where it was begun: elsewhere the run would begin anew, uncounted."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
    config = write(here, {"rounds": 4, "checkpoint": {"every": 1}})
    monkeypatch.chdir(here)
    crash(Path(config.name), 3)
    folder = folder_of(config)
    assert yaml.safe_load((folder / "config.yaml").read_text())["out"] == "runs"
    monkeypatch.chdir(elsewhere)
    done = dpfl("run", folder / "config.yaml", "--resume")
    assert done.code == 0 and "resumed after round 2" in done.err, done.err
    assert (folder / "result.json").exists() and not list(elsewhere.iterdir())
    moved = folder.parents[2].rename(tmp_path / "moved") / "runs" / folder.parent.name / folder.name
    again = dpfl("run", moved / "config.yaml")
    assert again.code == 0 and "not run again" in again.err and not list(elsewhere.iterdir()), again.err
    done = dpfl("run", moved / "config.yaml", "--resume", "--out", "new")
    assert "nothing to go on from: the run begins" in done.err


def test_who_changed_the_configuration_is_told_of_the_run_that_does_not_go_on(tmp_path: Path) -> None:
    config = crash(write(tmp_path, {"rounds": 4, "checkpoint": {"every": 1}}), 3)
    begun, out = folder_of(config), ("--out", tmp_path / "runs", "--resume")
    changed = dpfl("run", config, *out, "--set", "privacy.noise_multiplier=5")
    assert changed.code == 0 and f"of another configuration (config.yaml there): {begun}. Give" in changed.err
    assert "adds to what this run releases" in changed.err
    assert dpfl("run", config, *out).code == 0
    other = dpfl("run", config, *out, "--set", "privacy.noise_multiplier=6")
    assert other.code == 0 and "nothing to go on from" in other.err and "not finished" not in other.err


def crash(config: Path, number: int, *args: object) -> Path:
    rounds = 0
    real = InProcess.run_round

    def run_round(self: InProcess, *given: Any) -> Any:
        nonlocal rounds
        rounds += 1
        result = real(self, *given)
        if rounds == number:
            raise Crash
        return result

    with mock.patch.object(InProcess, "run_round", run_round), pytest.raises(Crash):
        dpfl("run", config, "--out", config.parent / "runs", *args)
    return config


# Signals


@pytest.mark.parametrize(
    ("number", "calls"), [(signal.SIGINT, 1), (signal.SIGTERM, 2), (signal.SIGUSR1, 7), (signal.SIGINT, 11)]
)
def test_interrupted_and_resumed(
    tmp_path: Path, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch, number: int, calls: int
) -> None:
    """The signal comes while the silos of a stack are at work, and their round is finished; a round has two stacks."""
    config, seen, real = write(tmp_path, CHANGES), 0, SiloGroup.run

    def work(self: SiloGroup, *args: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == calls:
            signal.raise_signal(number)
        return real(self, *args)

    monkeypatch.setattr(SiloGroup, "run", work)
    done = dpfl("run", config, "--out", tmp_path / "runs", "--json")
    assert done.code == 4 and f"dpfl run {config} --out {config.parent / 'runs'} --json --resume" in done.err
    assert done.json["status"] == "interrupted" and done.json["rounds"] == (calls + 1) // 2
    assert json.loads((folder_of(config) / "result.json").read_text()) == done.json
    assert len(list((folder_of(config) / "checkpoint").iterdir())) == 1
    same(run(config, "--resume"), undisturbed)


def test_interrupted_while_data_are_loaded(
    tmp_path: Path, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, config = prepare.build, write(tmp_path, CHANGES)

    def build(*args: Any, **more: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return real(*args, **more)

    monkeypatch.setattr(prepare, "build", build)
    result = run(config, code=7)
    assert (result["rounds"], result["epsilon"]["server"]["epsilon"]) == (0, 0)
    assert result["test_accuracy"] == {"last": None, "mean_last_10_percent": None}
    monkeypatch.setattr(prepare, "build", real)
    same(run(config, "--resume"), undisturbed)


def test_averages_and_steps_of_the_server_go_on_as_they_were(tmp_path: Path) -> None:
    """In the middle of a tail: the mean, the number of rounds in it and the extrapolated model are the checkpoint's."""
    options = {"name": "fedavg", "server_optimizer": "fedexp", "average": "tail", "tail_share": 0.75}
    changes = {"algorithm": options, "rounds": 8, "privacy": {"clip": "auto_s"}, "checkpoint": {"every": 2}}
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
    whole = run(write(tmp_path / "one", changes))
    same(run(crash(write(tmp_path / "other", changes), 6), "--resume"), whole)


def test_interrupted_between_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write(tmp_path, {"rounds": 2, "variants": {"a": {}, "b": {"seed": 5}, "c": {"seed": 6}}})
    real = RunFolder.read_metrics

    def read_metrics(self: RunFolder) -> Any:
        monkeypatch.setattr(RunFolder, "read_metrics", real)
        signal.raise_signal(signal.SIGTERM)
        return real(self)

    monkeypatch.setattr("dpfl_plugin.api.runs.RunFolder.read_metrics", read_metrics)
    results = run(config, code=7)
    assert [result["status"] for result in results.values()] in (["done", "interrupted"], ["interrupted"])
    monkeypatch.setattr(RunFolder, "read_metrics", real)
    assert [result["status"] for result in run(config, "--resume").values()] == ["done"] * 3


def test_the_signal_handlers_are_put_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    run(write(tmp_path))
    assert signal.getsignal(signal.SIGTERM) == before


def killer(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.killer"],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=1800,
        check=True,
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


# In turn: asked politely, twice so, killed; each of them can be resumed.
SIGNALS: list[list[list[Any]]] = [
    [[60, "SIGTERM"]],
    [[60, "SIGINT"]],
    [[60, "SIGINT"], [60, "SIGINT"]],
    [[60, "SIGKILL"]],
]
EVERY = (1, 3)  # rounds between checkpoints of runs that are killed again and again


@pytest.fixture(scope="module")
def signalled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What processes said that got signals, all of one parent, which takes seconds to begin."""
    jobs: dict[str, list[dict[str, Any]]] = {"once": []}
    folder = tmp_path_factory.mktemp("signalled")
    config = write(folder, CHANGES)
    for number, signals in enumerate(SIGNALS):
        for resume, sent in (([], signals), (["--resume"], [])):
            out = str(folder / str(number))
            jobs["once"].append({"argv": ["run", str(config), "--json", "--out", out, *resume], "signals": sent})
    for every in EVERY:
        folder = tmp_path_factory.mktemp(f"every-{every}")
        config = write(folder, {**CHANGES, "checkpoint": {"every": every}})
        rng = random.Random(every)
        argv = ["run", str(config), "--json", "--out", str(folder / "runs"), "--resume"]
        places = [[[rng.randint(1, 90), "SIGKILL"]] for _ in range(14)]
        jobs[f"every {every}"] = [{"argv": argv, "signals": signals} for signals in [*places, []]]
    results = iter(killer([job for some in jobs.values() for job in some]))
    return {name: [next(results) | {"signals": job["signals"]} for job in some] for name, some in jobs.items()}


def test_real_signals_to_real_processes(signalled: dict[str, list[dict[str, Any]]]) -> None:
    """One asks politely, a second one ends the process at once; so does SIGKILL, and each of them can be resumed."""
    results = signalled["once"]
    assert [result["status"] for result in results] == [7, 0, 7, 0, -signal.SIGINT, 0, -signal.SIGKILL, 0]
    assert all("Traceback" not in result["err"] for result in results)
    assert len({json.loads(result["out"])["model_sha256"] for result in results[1::2]}) == 1


@pytest.mark.parametrize("every", EVERY)
def test_killed_again_and_again(
    signalled: dict[str, list[dict[str, Any]]], undisturbed: dict[str, Any], every: int
) -> None:
    """SIGKILL at drawn file operations, ten times and more; the places are printed when it fails."""
    results = signalled[f"every {every}"]
    print([(result["signals"], result["status"]) for result in results])
    assert results[-1]["status"] == 0, results[-1]["err"]
    assert {result["status"] for result in results} <= {-signal.SIGKILL, 0}
    assert sum(result["status"] == -signal.SIGKILL for result in results) >= 8
    same(json.loads(results[-1]["out"]), undisturbed)


@pytest.mark.slow
def test_killed_at_every_place_of_the_end(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    """From the last rounds to the last file: whatever was being written, the run can be resumed and ends the same."""
    config = write(tmp_path, CHANGES)
    argv = ["run", str(config), "--json", "--out"]
    jobs = []
    for place in [*range(1, 24), *range(24, 648, 48)]:
        out = str(tmp_path / str(place))
        jobs.append({"argv": [*argv, out], "signals": [[place, "SIGKILL"]]})
        jobs.append({"argv": [*argv, out, "--resume"], "signals": []})
    results = killer(jobs)
    killed = [result["status"] for result in results[::2]]
    assert killed.count(-signal.SIGKILL) > 28 and killed[-1] == 0, "places beyond the end of the run"
    for result in results[1::2]:
        assert result["status"] == 0, result["err"]
        same(json.loads(result["out"]), undisturbed)


# Crashes


def test_crashed_and_resumed(crashed: Path, undisturbed: dict[str, Any]) -> None:
    assert not (folder_of(crashed) / "result.json").exists()
    before = charges(folder_of(crashed))
    assert {charge.round for charge in before} == set(range(8))
    same(run(crashed, "--resume"), undisturbed)


@pytest.mark.parametrize("randomness", ["seeded", "fresh"])
def test_what_is_computed_again_is_said_and_whether_it_is_charged_again(tmp_path: Path, randomness: str) -> None:
    config = crash(write(tmp_path, CHANGES | {"privacy": {"epsilon": 3.0, "randomness": randomness}}), 8)
    done = dpfl("run", config, "--out", tmp_path / "runs", "--json", "--resume")
    assert done.code == 0 and "resumed after round 6" in done.err, done.err
    (said,) = (line for line in done.err.splitlines() if "2 rounds" in line)
    how = {"seeded": "with the same noise, and counts once", "fresh": "with fresh noise, and charged again"}
    assert how[randomness] in said, said


@pytest.mark.parametrize("rounds", [3, 7, 9])
def test_crashed_twice(tmp_path: Path, undisturbed: dict[str, Any], rounds: int) -> None:
    """The second time in the middle of repeating what was released, or after it."""
    config = crash(write(tmp_path, {**CHANGES, "checkpoint": {"every": 5}}), 9)
    crash(config, {3: 1, 7: 2, 9: 4}[rounds], "--resume")
    same(run(config, "--resume"), undisturbed)


def test_an_unfinished_run_is_not_overwritten(crashed: Path) -> None:
    files = {path: path.read_bytes() for path in folder_of(crashed).rglob("*") if path.is_file()}
    one_message(dpfl("run", crashed, "--out", crashed.parent / "runs"), "unfinished run", "Use resume", "another out")
    assert {path: path.read_bytes() for path in folder_of(crashed).rglob("*") if path.is_file()} == files


def test_two_processes_in_one_folder(crashed: Path) -> None:
    with open(folder_of(crashed) / ".lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        one_message(dpfl("run", crashed, "--out", crashed.parent / "runs", "--resume"), "another process", "pid")
    run(crashed, "--resume")


def test_finished_by_another_process_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While this one loaded its data: no error, and no second run."""
    config, real = write(tmp_path), prepare.build
    other: list[dict[str, Any]] = []

    def build(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(prepare, "build", real)
        other.append(run(config))
        return real(*args, **more)

    monkeypatch.setattr(prepare, "build", build)
    assert run(config) == other[0]


def test_changed_data_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "records.csv"
    table.write_text("a,b,label\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(60)))
    dataset = {"name": "csv", "files": "records.csv", "classes": [0, 1]}
    for key in ("num_features", "num_classes", "records_per_silo"):
        dataset[key] = None
    config = crash(write(tmp_path, {"data": {"dataset": dataset}, "checkpoint": {"every": 1}}), 3)
    text, ledger = table.read_text(), (folder_of(config) / "ledger.jsonl").read_bytes()
    table.write_text(text.replace("\n5,", "\n6,"))
    one_message(dpfl("run", config, "--out", tmp_path / "runs", "--resume"), "records", "Restore the data files")
    assert (folder_of(config) / "ledger.jsonl").read_bytes() == ledger
    table.write_text(text)
    run(config, "--resume")


def _folder(path: Path, name: str) -> str:
    (path / name).mkdir()
    return name


# Damage


def test_torn_last_lines_are_survived(crashed: Path, undisturbed: dict[str, Any]) -> None:
    folder = folder_of(crashed)
    for name in ("metrics.jsonl", "ledger.jsonl"):
        path = folder / name
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2])
    result = run(crashed, "--resume")
    same(result, undisturbed)
    assert any("cut off" in note for note in result["notes"])


def test_a_metrics_file_of_zeros_is_survived(crashed: Path, undisturbed: dict[str, Any]) -> None:
    """As after a power cut on some file systems; the evaluations are made again from the checkpoint on."""
    path = folder_of(crashed) / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b"\0\0\xff\0")
    same(run(crashed, "--resume"), undisturbed)


def damage(folder: Path, how: str) -> None:
    path = folder / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    match how:
        case "changed":
            lines[3] = lines[3].replace(b'"count":', b'"count":1', 1)
        case "missing":
            del lines[3]
        case "end missing":
            lines = lines[:6]
        case "torn":
            lines[6:] = [lines[6][:9]]
    path.write_bytes(b"".join(lines))
    if how == "gone":
        path.unlink()


@pytest.mark.parametrize(
    ("how", "part"),
    [
        ("changed", "line 4"),
        ("missing", "line 4"),
        ("end missing", "holds 5 charges"),
        ("torn", "holds 5 charges"),
        ("gone", "holds 0 charges"),
    ],
)
def test_a_damaged_ledger_is_refused(crashed: Path, how: str, part: str) -> None:
    folder = folder_of(crashed)
    damage(folder, how)
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    done = dpfl("run", crashed, "--out", crashed.parent / "runs", "--resume")
    one_message(done, "ledger.jsonl", part, "Restore", code=1)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"} == files


def test_a_damaged_checkpoint_is_refused(crashed: Path) -> None:
    server = folder_of(crashed) / "checkpoint" / "state.safetensors"
    server.write_bytes(server.read_bytes()[:40])
    one_message(dpfl("run", crashed, "--out", crashed.parent / "runs", "--resume"), "state.safetensors", "checkpoint")


def test_one_flipped_bit_of_a_checkpoint_is_refused(crashed: Path, undisturbed: dict[str, Any]) -> None:
    """It would release rounds once more, at other values, under names that are charged already."""
    server = folder_of(crashed) / "checkpoint" / "state.safetensors"
    whole, before = server.read_bytes(), charges(folder_of(crashed))
    server.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    done = dpfl("run", crashed, "--out", crashed.parent / "runs", "--resume")
    one_message(done, "its tensors are not what was written", "Keep the ledger", code=2)
    assert charges(folder_of(crashed)) == before
    server.write_bytes(whole)
    same(run(crashed, "--resume"), undisturbed)


def test_a_run_that_is_stopped_before_it_repeats_a_score_states_it(tmp_path: Path) -> None:
    evaluation = {"every": 2, "share": 0.25, "noise_multiplier": 1.0}
    config = write(tmp_path, {"rounds": 4, "checkpoint": {"every": 1}, "private_evaluation": evaluation})
    crash(config, 3)  # the third of what is run by silos: the score after two rounds
    assert {charge.kind for charge in charges(folder_of(config))} == {"round", "score"}
    real = RoundLoop.run

    def stopped(self: RoundLoop, progress: Any) -> Any:
        return real(replace(self, stop=lambda: True), progress)

    with mock.patch.object(RoundLoop, "run", stopped):
        server = run(config, "--resume", code=7)["epsilon"]["server"]
    assert server["worst_case_epsilon"] >= server["epsilon"] > 4.0, "the score alone costs 4.377"


def test_a_ledger_without_its_first_line_was_never_used(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    config = crash(write(tmp_path, CHANGES), 1)
    folder = folder_of(config)
    shutil.rmtree(folder / "checkpoint")
    (folder / "ledger.jsonl").write_bytes(b'{"facts":')
    same(run(config, "--resume"), undisturbed)


def test_fresh_noise_is_charged_again_when_rounds_are_run_again(tmp_path: Path) -> None:
    """Nobody can repeat it: what was released before a crash and is not in the checkpoint was released twice."""
    config = crash(write(tmp_path, {**CHANGES, "privacy": {"epsilon": 3.0, "randomness": "fresh"}}), 8)
    before = charges(folder_of(config))
    result = run(config, "--resume")
    after = charges(folder_of(config))
    again = {(c.round, c.silo) for c in before} & {(c.round, c.silo) for c in after - before}
    assert before <= after and {round for round, _ in again} == {6, 7}
    assert result["epsilon"]["server"]["epsilon"] <= 3.0


def test_fresh_runs_of_one_seed_are_two_releases(tmp_path: Path) -> None:
    """The same configuration in two folders: other noise, other names in the ledger, and no trace of a key."""
    one, other = (run(write(tmp_path / _folder(tmp_path, name), {"privacy": {"randomness": "fresh"}})) for name in "ab")
    assert one["model_sha256"] != other["model_sha256"] and one["id"] == other["id"]
    assert not {c.noise_id for c in charges(one["folder"])} & {c.noise_id for c in charges(other["folder"])}
    statement = json.loads((Path(one["folder"]) / "ledger.json").read_text())
    assert any("AES in counter mode" in text for text in statement["assumptions"])
    assert "the noise can be computed" not in str(statement) and "SFC64" not in str(statement)
