"""`dpfl run --ledger FILE`: one budget for several runs, and what happens to FILE when things go wrong."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dpfl_plugin.core.rounding import odds, places
from dpfl_plugin.errors import SiloError
from dpfl_plugin.privacy.composition import Planned
from dpfl_plugin.privacy.events import Charge, SampledGaussian
from dpfl_plugin.privacy.filters import COPIES, planned_epsilon
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.shared_ledger import plans_in, runs_in, unused
from dpfl_plugin.runtimes.in_process import InProcess
from tests.cli.command import charges, dpfl, one_message, run
from tests.cli.command import write as written

FIXTURES = Path(__file__).parent / "fixtures"
BUDGET: dict[str, Any] = {"rounds": None, "privacy": {"epsilon": 2.0, "noise_multiplier": 8.0}}
SILO = {
    "algorithm": {"name": "fedavg"},
    "privacy": {"unit": "silo", "sampler": "full", "record_rate": None, "noise_multiplier": 20.0},
}


@pytest.fixture(autouse=True)
def draws_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise is fresh, as it has to be in a shared ledger; who takes part is what each test says."""
    monkeypatch.setattr("dpfl_plugin.runs.prepare.fresh_coins", lambda: "")


def write(folder: Path, changes: dict[str, Any] | None = None, name: str = "config.yaml") -> Path:
    changes = changes or {}
    return written(folder, {**changes, "privacy": {"randomness": "fresh", **changes.get("privacy", {})}}, name)


def held(path: Path) -> set[Charge]:
    return set(Ledger.open(path, append=False))


def totals(result: dict[str, Any]) -> tuple[float, float]:
    """Epsilon towards the server: of the run alone, and with the others."""
    return result["epsilon"]["server"]["epsilon"], result["adaptive_total"]["epsilon"]


class Crash(BaseException):
    """Ends a run as nothing in the package expects."""


def crash(config: Path, number: int, *args: object) -> None:
    """End a run in its round ``number``, after what it charged is on disk."""
    rounds, real = 0, InProcess.run_round

    def run_round(self: InProcess, *given: Any) -> Any:
        nonlocal rounds
        rounds += 1
        result = real(self, *given)
        if rounds == number:
            raise Crash
        return result

    with mock.patch.object(InProcess, "run_round", run_round), pytest.raises(Crash):
        dpfl("run", config, "--out", config.parent / "runs", *args)


def folder_of(config: Path) -> Path:
    (ledger,) = (config.parent / "runs").glob("*/*/ledger.jsonl")
    return ledger.parent


# Budgets


def test_a_budget_is_each_runs_own(tmp_path: Path) -> None:
    """What other runs spent shows in the total alone, also where noise is solved for."""
    config, ledger = write(tmp_path, BUDGET), tmp_path / "all.jsonl"
    solved = ["--set", "privacy.noise_multiplier=null", "--set", "rounds=10"]
    runs = [run(config, "--ledger", ledger, "--set", f"algorithm.local_lr=0.{n}", *more)
            for n, more in enumerate(([], [], solved, solved), 1)]  # fmt: skip
    assert runs[0]["rounds"] == runs[1]["rounds"] > 12
    assert runs[2]["noise_multiplier"] == runs[3]["noise_multiplier"]
    assert all(1.9 < totals(result)[0] <= 2.0 for result in runs)
    said = [totals(result)[1] for result in runs]
    assert said == sorted(said) and said[0] > 2.0 and said[-1] > 3.5
    page = (Path(runs[-1]["folder"]) / "privacy.md").read_text()
    assert f"both factors are at most {odds(said[-1])}" in page or odds(said[-1]) in page
    shown = dpfl("run", config, "--out", tmp_path / "runs", "--ledger", ledger, "--set", "algorithm.local_lr=0.2")
    assert (
        f"shared ledger, when this run ended: epsilon {places(said[1], 3)}" in shown.out
        and "chosen by looking at" in shown.out
    )


def test_a_third_party_is_promised_a_mixture_whatever_other_runs_did(tmp_path: Path) -> None:
    config, ledger = write(tmp_path, {"silo_rate": 0.5}), tmp_path / "all.jsonl"
    run(config, "--ledger", ledger, "--set", "rounds=null", "--set", "privacy.epsilon=1")
    views = run(config, "--ledger", ledger, "--set", "rounds=30")["epsilon"]
    assert views["third_party"]["epsilon"] < 0.8 * views["server"]["worst_case_epsilon"]


def test_a_run_that_failed_as_a_silo_was_drawn_leaves_no_mixture(tmp_path: Path) -> None:
    """A silo that is broken ends it when it is drawn, so that who was drawn decided how long it was."""
    config, ledger, run_round = write(tmp_path, {"silo_rate": 0.25}), tmp_path / "all.jsonl", InProcess.run_round

    def breaks(self: InProcess, down: Any, plan: Any, draw: Any) -> Any:
        if 3 in plan.participants:
            raise SiloError("silo 3: its disk is broken")
        return run_round(self, down, plan, draw)

    long = ["--ledger", ledger, "--set", "rounds=40"]
    with mock.patch.object(InProcess, "run_round", breaks):
        failed = run(config, *long, code=1)
    views, folder = failed["epsilon"], failed["folder"]
    assert failed["status"] == "failed" and 1 < failed["rounds"] < 40
    assert views["third_party"]["epsilon"] == views["server"]["worst_case_epsilon"]
    assert "the run failed, which who was drawn may have decided" in views["third_party"]["basis"]
    rows = {row["view"]: row["epsilon"] for row in reversed(dpfl("account", folder, "--json").json)}
    assert rows["third party"] == views["third_party"]["epsilon"]
    whole = run(config, *long, "--resume")["epsilon"]
    assert whole["third_party"]["epsilon"] < 0.9 * whole["server"]["worst_case_epsilon"], "all rounds that were planned"


def shared_of(result: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads((Path(result["folder"]) / "details.json").read_text())["shared"])


def unnamed(charges: Iterable[Charge]) -> set[Charge]:
    """Without the mark of the records, which the noise's name has in a shared ledger."""
    return {replace(c, noise_id=re.sub(r"-[0-9a-f]{12}\.", ".", c.noise_id)) for c in charges}


def test_runs_of_one_configuration_are_two_runs(tmp_path: Path) -> None:
    """Nothing of the first comes again in the second, not even who takes part."""
    config, ledger = (
        write(tmp_path, {"privacy": {"randomness": "fresh"}, "checkpoint": {"every": 2}}),
        tmp_path / "all.jsonl",
    )
    crash(config, 4, "--ledger", ledger)
    result = run(config, "--resume", "--ledger", ledger)
    assert held(ledger) == charges(result["folder"]) and len(held(ledger)) == (4 + 4) * 4
    again = dpfl("run", config, "--out", tmp_path / "elsewhere", "--ledger", ledger, "--json").json
    assert held(ledger) == charges(result["folder"]) | charges(again["folder"])
    assert len(held(ledger)) == (4 + 4 + 6) * 4 and len(charges(again["folder"])) == 6 * 4
    assert len(shared_of(again)["runs"]) == 1 and not shared_of(result)["runs"]
    (row,) = dpfl("account", ledger, "--json").json["total at delta 1e-05"]
    assert row["epsilon"] == totals(again)[1] > totals(result)[1] > totals(again)[0]


# Resuming


def test_resuming_needs_the_ledger_that_it_began_with(tmp_path: Path) -> None:
    config, ledger = write(tmp_path, {"checkpoint": {"every": 2}}), tmp_path / "all.jsonl"
    run(config, "--ledger", ledger, "--set", "seed=7")
    shutil.rmtree(tmp_path / "runs")
    crash(config, 4, "--ledger", ledger)
    out = ["--out", tmp_path / "runs", "--resume"]
    one_message(dpfl("run", config, *out), "all.jsonl", "shares its budget", "ledger")
    run(config, "--ledger", tmp_path / "other.jsonl", "--set", "seed=8")
    done = dpfl("run", config, *out, "--ledger", tmp_path / "other.jsonl")
    one_message(done, "other.jsonl", "not the ledger all.jsonl", code=1)
    one_message(dpfl("run", config, *out, "--ledger", tmp_path / "new.jsonl"), "all.jsonl", code=1)
    result = run(config, "--resume", "--ledger", ledger)
    assert result["rounds"] == 6 and not result["notes"] and charges(result["folder"]) <= held(ledger)


def test_a_run_does_not_go_on_with_an_older_copy_of_its_ledger(tmp_path: Path) -> None:
    config, ledger = write(tmp_path, {"checkpoint": {"every": 1}}), tmp_path / "all.jsonl"
    crash(config, 2, "--ledger", ledger)
    copy = ledger.read_bytes()
    other = ("--ledger", ledger, "--set", "seed=7", "--out", tmp_path / "other")
    assert dpfl("run", config, *other).code == 0
    crash(config, 2, "--ledger", ledger, "--resume")
    whole = ledger.read_bytes()
    ledger.write_bytes(copy)
    resumed = ("run", config, "--out", tmp_path / "runs", "--resume", "--ledger", ledger)
    one_message(dpfl(*resumed), "all.jsonl", "its end is missing", code=1)
    assert ledger.read_bytes() == copy
    ledger.write_bytes(whole)
    assert dpfl(*resumed).code == 0


def test_the_same_configuration_again_is_another_release(tmp_path: Path) -> None:
    """On the same records and on others: noise is fresh."""
    dataset = {"name": "csv", "files": "records.csv", "classes": [0, 1]}
    dataset |= dict.fromkeys(("num_features", "num_classes", "records_per_silo"))
    config, ledger = write(tmp_path, {"data": {"dataset": dataset}}), tmp_path / "all.jsonl"
    rows = [f"{i},{i % 7},{i % 2}" for i in range(60)]
    counts = []
    for number, changed in enumerate((rows, rows, [rows[0], "70,0,1", *rows[2:]])):
        (tmp_path / "records.csv").write_text("\n".join(["a,b,label", *changed]))
        result = run(config, "--ledger", ledger, "--out", tmp_path / str(number))
        counts.append(len(held(ledger)))
    assert counts == [24, 48, 72]
    assert [run["same_records"] for run in shared_of(result)["runs"]] == [False, False]


def test_a_run_that_began_without_is_not_taken_for_one_that_is_in_it(tmp_path: Path) -> None:
    config, ledger = write(tmp_path, {"checkpoint": {"every": 2}}), tmp_path / "all.jsonl"
    crash(config, 4)
    done = dpfl("run", config, "--out", tmp_path / "runs", "--resume", "--ledger", ledger)
    one_message(done, "began without ledger", "another out")
    run(config, "--resume")
    done = dpfl("run", config, "--out", tmp_path / "runs", "--ledger", ledger)  # finished, and not in it
    one_message(done, "began without ledger")
    assert not ledger.exists()


def test_a_finished_run_is_shown_with_or_without_its_ledger(tmp_path: Path) -> None:
    config, ledger = write(tmp_path), tmp_path / "all.jsonl"
    first = run(config, "--ledger", ledger)
    assert run(config) == first == run(config, "--ledger", ledger)
    ledger.unlink()
    one_message(dpfl("run", config, "--out", tmp_path / "runs", "--ledger", ledger), "all.jsonl", code=1)


@pytest.mark.parametrize("behind", ["own", "shared"])
def test_charges_that_only_one_ledger_has_are_added_to_the_other(tmp_path: Path, behind: str) -> None:
    """As after a crash between the two: here the last round's lines are cut from one of them."""
    config, ledger = write(tmp_path, {"checkpoint": {"every": 2}}), tmp_path / "all.jsonl"
    crash(config, 4, "--ledger", ledger)
    path = ledger if behind == "shared" else folder_of(config) / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-4]))
    assert {charge.round for charge in held(path)} == {0, 1, 2}
    with pytest.MonkeyPatch.context() as patch:  # both are whole again before the first round runs
        patch.setattr(InProcess, "run_round", lambda *args: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            dpfl("run", config, "--out", tmp_path / "runs", "--resume", "--ledger", ledger)
    assert held(ledger) == charges(folder_of(config)) and {c.round for c in held(path)} == {0, 1, 2, 3}
    result = run(config, "--resume", "--ledger", ledger)
    assert charges(result["folder"]) == held(ledger)
    assert any("only the shared ledger held" in note for note in result["notes"]) == (behind == "own")


def test_fresh_noise_is_charged_again_in_both(tmp_path: Path) -> None:
    config, ledger = write(tmp_path, {"checkpoint": {"every": 2}}), tmp_path / "all.jsonl"
    crash(config, 4, "--ledger", ledger)
    before = held(ledger)
    result = run(config, "--resume", "--ledger", ledger)
    assert held(ledger) == charges(result["folder"]) and before < held(ledger)
    again = {(c.round, c.silo) for c in before} & {(c.round, c.silo) for c in held(ledger) - before}
    assert {round for round, _ in again} == {2, 3}


@pytest.mark.parametrize("first", ["shared", "own"])
def test_nothing_leaves_until_both_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    """The disk fails under one of the two in the third round: no mean of that round comes back."""
    config, ledger, rounds, real = write(tmp_path), tmp_path / "all.jsonl", 0, InProcess.run_round
    fsync = os.fsync

    def fail(handle: int) -> None:
        name = os.readlink(f"/proc/self/fd/{handle}")
        if rounds == 2 and name.endswith("all.jsonl" if first == "shared" else "ledger.jsonl"):
            raise OSError(28, "No space left on device")
        fsync(handle)

    def run_round(self: InProcess, *args: Any) -> Any:
        nonlocal rounds
        result = real(self, *args)
        rounds += 1
        return result

    monkeypatch.setattr(InProcess, "run_round", run_round)
    monkeypatch.setattr(os, "fsync", fail)
    one_message(
        dpfl("run", config, "--out", tmp_path / "runs", "--ledger", ledger), "nothing that it covers may leave", code=1
    )
    assert rounds == 2


# What is refused


def test_two_runs_at_once(tmp_path: Path) -> None:
    config, ledger = write(tmp_path), tmp_path / "all.jsonl"
    with open(tmp_path / "all.jsonl.lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("pid 7 on there")
        lock.flush()
        command = ["run", config, "--set", "rounds=1", "--out", tmp_path / "runs", "--ledger", ledger, "--ledger-wait"]
        one_message(dpfl(*command, 0), "all.jsonl", "another run (pid 7 on there)", "--ledger-wait SECONDS", code=5)
        done = dpfl(*command, 0.3)
        assert done.code == 5 and "so far" not in done.err and "Waited 0 s for it" in done.err, done.err
        assert not (tmp_path / "runs").exists() and not ledger.exists()
        threading.Timer(0.5, fcntl.flock, (lock, fcntl.LOCK_UN)).start()
        done = dpfl(*command, 60)
    assert done.code == 0 and "pid 7 on there" not in done.err and ledger.exists(), done.err
    one_message(dpfl("run", config, "--ledger-wait", 1), "no meaning without --ledger or privacy.ledger")


def test_it_is_locked_for_the_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, ledger, real = write(tmp_path, {"rounds": 2}), tmp_path / "all.jsonl", InProcess.run_round
    tried = []

    def run_round(self: InProcess, *args: Any) -> Any:
        with open(tmp_path / "all.jsonl.lock", "a+") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        tried.append(1)
        return real(self, *args)

    monkeypatch.setattr(InProcess, "run_round", run_round)
    run(config, "--ledger", ledger)
    assert len(tried) == 2


@pytest.mark.parametrize("changes", [{"privacy": {"sampler": "poisson"}}, SILO], ids=["relation", "unit"])
def test_other_meanings_are_refused_before_anything_runs(tmp_path: Path, changes: dict[str, Any]) -> None:
    ledger = tmp_path / "all.jsonl"
    run(write(tmp_path, {"name": "first"}), "--ledger", ledger)
    before = ledger.read_bytes()
    config = write(tmp_path, changes, "second.yaml")
    done = dpfl("run", config, "--out", tmp_path / "second", "--ledger", ledger)
    one_message(done, str(ledger), "'first'", "replace_one of a record", "no single epsilon")
    assert ledger.read_bytes() == before and not (tmp_path / "second").exists()


def test_silos_on_other_records_and_runs_without_noise_are_refused(tmp_path: Path) -> None:
    config, ledger = write(tmp_path, SILO), tmp_path / "all.jsonl"
    run(config, "--ledger", ledger)
    run(config, "--ledger", ledger, "--set", "algorithm.local_lr=0.1")
    out = ["--out", tmp_path / "second"]
    one_message(dpfl("run", config, *out, "--ledger", ledger, "--set", "seed=9"), "unit: silo", "other records")
    for noise, why in ((0, "no noise covers"), (0.005, "noise_multiplier 0.005 is below 0.01: epsilon is too large")):
        bare = dpfl("run", config, *out, "--ledger", ledger, "--set", f"privacy.noise_multiplier={noise}")
        one_message(bare, why, "ledger")
    median = write(tmp_path, {"privacy": {"clip": "median"}}, "median.yaml")
    one_message(dpfl("run", median, *out, "--ledger", tmp_path / "new.jsonl"), "no noise covers", "ledger")
    assert not (tmp_path / "second").exists()


def test_files_that_are_no_shared_ledger(tmp_path: Path) -> None:
    config = write(tmp_path)
    own = Path(run(config)["folder"]) / "ledger.jsonl"
    again = ["--out", tmp_path / "again", "--ledger-wait", 0, "--ledger"]
    one_message(dpfl("run", config, *again, own), str(own), "the ledger of one run")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "all.jsonl")
    with open(tmp_path / "all.jsonl.lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        one_message(dpfl("run", config, *again, tmp_path / "link.jsonl"), "another run", code=5)
    one_message(dpfl("run", config, *again, tmp_path), str(tmp_path), "must be a file")
    one_message(dpfl("run", config, *again, tmp_path / "no" / "all.jsonl"), "folder that exists")
    one_message(dpfl("run", config, *again, "/proc/all.jsonl"), "/proc")
    one_message(dpfl("account", own), str(own), "the ledger of one run")
    assert not (tmp_path / "again").exists()


def damaged(tmp_path: Path) -> tuple[Path, Path]:
    config, ledger = write(tmp_path), tmp_path / "all.jsonl"
    run(config, "--ledger", ledger)
    lines = ledger.read_bytes().splitlines(keepends=True)
    lines[7] = lines[7].replace(b'"count":2', b'"count":1')
    ledger.write_bytes(b"".join(lines))
    return config, ledger


def test_a_damaged_ledger_is_refused_with_what_is_still_proven(tmp_path: Path) -> None:
    config, ledger = damaged(tmp_path)
    before = ledger.read_bytes()
    parts = [str(ledger), "line 8", "Lines 1 to 7 are intact and prove 5 charges up to round 1", "Restore"]
    done = dpfl("run", config, "--out", tmp_path / "second", "--ledger", ledger, "--set", "seed=5")
    one_message(done, *parts, code=1)
    one_message(dpfl("account", ledger), *parts, code=1)
    one_message(dpfl("run", config, "--out", tmp_path / "runs", "--ledger", ledger), *parts, code=1)
    assert ledger.read_bytes() == before and not (tmp_path / "second").exists()


def test_a_torn_last_line_and_a_torn_first_line(tmp_path: Path) -> None:
    config, ledger = write(tmp_path), tmp_path / "all.jsonl"
    ledger.write_bytes(b'{"facts":{"sha')  # a crash while it was made: nothing was charged
    first = run(config, "--ledger", ledger)
    known, size = held(ledger), ledger.stat().st_size
    ledger.write_bytes(ledger.read_bytes() + b'{"count":3,"rel')
    result = run(config, "--ledger", ledger, "--set", "seed=4")
    assert held(ledger) == known | charges(result["folder"]) and known == charges(first["folder"])
    assert (tmp_path / "all.jsonl.torn-1").read_bytes() == b'{"count":3,"rel' and size > 0


@pytest.mark.parametrize("content", [b"notes of mine", b'{"facts":7}', b"\0", b'{"facts":{"a":1}}\nmine\n'])
def test_a_file_that_is_no_ledger_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    config, file = write(tmp_path), tmp_path / "notes.txt"
    file.write_bytes(content)
    one_message(dpfl("run", config, "--out", tmp_path / "runs", "--ledger", file), str(file), code=1)
    assert file.read_bytes() == content and not list((tmp_path / "runs").glob("*/*/ledger.jsonl"))


def test_a_runs_own_ledger_that_is_none_is_left_as_it_is(tmp_path: Path) -> None:
    config = write(tmp_path)
    ledger = Path(run(config)["folder"]) / "ledger.jsonl"
    shutil.rmtree(ledger.parent)
    ledger.parent.mkdir()
    again = ("run", config, "--out", tmp_path / "runs", "--resume")
    ledger.write_bytes(b"notes of mine")
    one_message(dpfl(*again), str(ledger), "is not a ledger", "nothing in it was changed", code=1)
    assert ledger.read_bytes() == b"notes of mine"
    ledger.write_bytes(b'{"fa')  # a crash while it was made
    assert dpfl(*again).code == 0 and len(held(ledger)) > 0


def test_a_ledger_has_to_be_a_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    one_message(
        dpfl("run", write(tmp_path), "--out", tmp_path / "runs", "--ledger", tmp_path / "pipe"), "must be a file"
    )


# Totals that hold whatever decided on later runs


RELEASE = SampledGaussian(noise_multiplier=6.0, sampler="fixed", rate=0.5, neighbouring="replace_one")
PLAIN = {"rounds": 4, "privacy": {"noise_multiplier": 6.0, "delta": 1e-5}}


def test_runs_register_what_they_may_release_before_they_release_anything(tmp_path: Path) -> None:
    config, ledger = write(tmp_path, PLAIN), tmp_path / "all.jsonl"
    with mock.patch.object(InProcess, "run_round", side_effect=KeyboardInterrupt):
        dpfl("run", config, "--out", tmp_path / "runs", "--ledger", ledger)
    (plan,) = plans_in(Ledger.open(ledger, append=False))
    assert len(held(ledger)) == 0 and set(plan.silos) == {0, 1, 2, 3}
    result = run(config, "--ledger", ledger, "--resume")
    assert plans_in(Ledger.open(ledger, append=False)) == [plan]  # and no more was released
    assert totals(result)[1] > totals(result)[0] > 0


def test_a_ledger_without_a_limit_has_thresholds_that_never_fall(tmp_path: Path) -> None:
    config, ledger, said = write(tmp_path, PLAIN), tmp_path / "all.jsonl", []
    for number in range(3):
        result = run(config, "--ledger", ledger, "--set", f"algorithm.local_lr=0.{number + 1}")
        said.append(result["adaptive_total"]["epsilon"])
        assert "smallest of the thresholds" in result["adaptive_total"]["why"]
    thresholds = Ledger.open(ledger, append=False).facts["odometer"]["thresholds"]
    assert said == [thresholds[COPIES.index(copies)] for copies in (1, 2, 3.2)] == sorted(said)
    done = dpfl("account", ledger, "--json").json["total at delta 1e-05"]
    assert [row["epsilon"] for row in done if row["accountant"] == "filter"] == said[-1:]
    page = (Path(result["folder"]) / "privacy.md").read_text()
    assert "All runs, even if some were chosen by looking at others: epsilon" in page


def test_a_limit_is_fixed_with_the_ledger_and_kept(tmp_path: Path) -> None:
    """Two runs of epsilon .92 fit 1.4; a budget of privacy.epsilon is then each run's own."""
    config, ledger = write(tmp_path, PLAIN), tmp_path / "all.jsonl"
    first = run(config, "--ledger", ledger, "--set", "privacy.ledger_epsilon=1.4")
    assert first["adaptive_total"] == {
        **{"epsilon": 1.4, "delta": 1e-5},
        "why": "the limit with which the ledger was begun; one more run of about epsilon 0.981 would fit",
    }
    one_message(dpfl("run", config, "--out", tmp_path / "r", "--set", "privacy.ledger_epsilon=2"), "give ledger")
    other = dpfl("run", config, "--out", tmp_path / "r", "--ledger", ledger, "--set", "privacy.ledger_epsilon=2")
    one_message(other, "begun with the limit 1.4 at delta 1e-05")
    budget = ("--set", "privacy.epsilon=0.93", "--set", "algorithm.local_lr=0.2")
    second = run(config, "--ledger", ledger, *budget)
    assert second["status"] == "done" and second["rounds"] == 4
    third = dpfl("run", config, "--out", tmp_path / "r", "--ledger", ledger, "--set", "algorithm.local_lr=0.3")
    assert third.code == 3 and "the ledger's limit is 1.4" in third.err
    assert len(runs_in(Ledger.open(ledger, append=False))) == 2  # nothing of it was registered


def test_one_run_may_use_up_a_limit_and_none_is_run_again_beyond_it(tmp_path: Path) -> None:
    """A round that a crash lost takes a slot of its own, which the limit does not afford: the run ends sooner."""
    config, ledger = write(tmp_path, PLAIN), tmp_path / "all.jsonl"
    limit = ("--ledger", ledger, "--set", "privacy.ledger_epsilon=0.925")
    crash(config, 2, *limit)
    result = dpfl("run", config, "--out", tmp_path / "runs", *limit, "--resume", "--json").json
    assert (result["status"], result["rounds"]) == ("budget_exhausted", 3)
    assert "limit of the shared ledger" in result["reason"] and result["adaptive_total"]["epsilon"] == 0.925


def test_slots_that_a_run_left_serve_later_ones(tmp_path: Path) -> None:
    """Of drawn silos each uses some of its slots: a second run takes the rest, and registers less."""
    config, ledger = write(tmp_path, {**PLAIN, "rounds": 8, "silo_rate": 0.5}), tmp_path / "all.jsonl"
    run(config, "--ledger", ledger)
    first, (plan,) = Ledger.open(ledger, append=False), plans_in(Ledger.open(ledger, append=False))
    (one,) = plan.silos[0]
    more_noise = [replace(one, release=replace(one.release, noise_multiplier=9.0))]
    assert unused(first, "other", {0: [one]}) == [] != unused(first, plan.records, {0: more_noise})
    assert unused(first, plan.records, {0: [replace(one, release=replace(one.release, noise_multiplier=5.0))]}) == []
    second = run(config, "--ledger", ledger, "--set", "algorithm.local_lr=0.2", "--set", "rounds=6")
    later = Ledger.open(ledger, append=False)
    _, registered = plans_in(later)
    used = first.tally.totals()
    for silo, planned in registered.silos.items():
        left = one.count - sum(count for (of, _), count in used.items() if of == silo)
        assert sum(each.count for each in planned) == 6 * 2 - left
    made = Counter(charge.silo for charge in charges(second["folder"]))
    assert sum(made.values()) == 6 * 2 and runs_in(later)[1].reuses
    assert plans_in(later)[0] == plan, "nothing returns to the filter"


def test_variants_are_registered_before_the_first_begins(tmp_path: Path) -> None:
    """Together they have the epsilon of their joint plan, whatever is seen of the first before the last begins."""
    variants = {name: {"algorithm": {"local_lr": lr}} for name, lr in (("one", 0.1), ("two", 0.2), ("three", 0.3))}
    config, ledger = write(tmp_path, {**PLAIN, "seed": None, "variants": variants}), tmp_path / "all.jsonl"
    arguments = ("run", config, "--out", tmp_path / "runs", "--ledger", ledger, "--json")
    with mock.patch.object(InProcess, "run_round", side_effect=KeyboardInterrupt):
        dpfl(*arguments)
    before = runs_in(Ledger.open(ledger, append=False))
    assert (
        len(before) == 3 and all(run.early for run in before) and [run.begun for run in before] == [True, False, False]
    )
    results = dpfl(*arguments, "--resume").json
    after = runs_in(Ledger.open(ledger, append=False))
    assert [run.name for run in after] == [run.name for run in before] and all(run.ended for run in after)
    (plan,) = plans_in(Ledger.open(ledger, append=False))
    assert sum(one.count for one in plan.silos[0]) == 3 * 8
    total = results["three"]["planned_total"]
    assert total == {"epsilon": planned_epsilon([plan], 1e-5), "delta": 1e-5, "num_runs": 3}
    alone = run(config, "--ledger", ledger, "--variant", "one", "--set", "algorithm.local_steps=1")
    assert alone["planned_total"] == total and alone["adaptive_total"]["epsilon"] > total["epsilon"]
    other = {**variants, "two": {"privacy": {"ledger_epsilon": 9.0}}}
    apart = write(tmp_path, {**PLAIN, "seed": None, "variants": other}, "apart.yaml")
    refused = dpfl("run", apart, "--out", tmp_path / "other", "--ledger", tmp_path / "limited.jsonl")
    one_message(refused, "privacy.ledger_epsilon and privacy.delta differ")
    limited = ("--set", "privacy.ledger_epsilon=1.2", "--ledger", tmp_path / "limited.jsonl")
    one_message(dpfl("run", config, "--out", tmp_path / "other", *limited), "the ledger's limit is 1.2", code=3)
    assert not (tmp_path / "limited.jsonl").exists()


def test_a_run_that_was_registered_with_another_plan_registers_its_own(tmp_path: Path) -> None:
    config, ledger = write(tmp_path, {**PLAIN, "variants": {"a": {}, "b": {"rounds": 3}}}), tmp_path / "all.jsonl"
    with mock.patch.object(InProcess, "run_round", side_effect=KeyboardInterrupt):
        dpfl("run", config, "--out", tmp_path / "runs", "--ledger", ledger)
    _, second = runs_in(Ledger.open(ledger, append=False))
    with mock.patch("dpfl_plugin.runs.prepare.registered_plan", return_value=(Planned(RELEASE, 99),)):
        dpfl("run", config, "--out", tmp_path / "runs", "--ledger", ledger, "--variant", "b")
    _, known, begun = runs_in(Ledger.open(ledger, append=False))
    assert known == second and not known.begun and begun.begun and begun.slots[0].total() == 99


def test_rounds_that_are_run_again_are_registered_first_each_as_a_plan(tmp_path: Path) -> None:
    """In the order of the ledger: what a limit was asked for is what it counts later."""
    config, ledger = write(tmp_path, PLAIN), tmp_path / "all.jsonl"
    limit = ("--ledger", ledger, "--set", "privacy.ledger_epsilon=4")
    for number in (2, 2):
        crash(config, number, *limit, *(["--resume"] if ledger.exists() else []))
    run(config, "--ledger", ledger, "--set", "algorithm.local_lr=0.3")
    result = run(config, *limit, "--resume")
    shared = Ledger.open(ledger, append=False)
    plans = plans_in(shared)
    assert [[one.count for one in plan.silos[0]] for plan in plans] == [[8], [8], [2], [2]]
    assert sum(shared.tally_of_run(runs_in(shared)[0].name).totals().values()) == 4 * (8 + 2 + 2)
    assert result["adaptive_total"]["epsilon"] == 4.0


def test_a_limit_that_may_have_ended_a_run_by_who_was_drawn_leaves_no_mixture(tmp_path: Path) -> None:
    config, ledger = write(tmp_path, {**PLAIN, "silo_rate": 0.5}), tmp_path / "all.jsonl"
    limit = ("--ledger", ledger, "--set", "privacy.ledger_epsilon=0.925")
    crash(config, 2, *limit)
    crash(config, 1, *limit, "--resume")
    result = run(config, *limit, "--resume", code=3)
    views = result["epsilon"]
    assert result["rounds"] < 4 and views["third_party"]["epsilon"] == views["server"]["worst_case_epsilon"]
    (row,) = (row for row in dpfl("account", result["folder"], "--json").json
              if (row["view"], row["accountant"]) == ("third party", "PLD"))  # fmt: skip
    assert row["epsilon"] == views["third_party"]["epsilon"]


# Reading it


def test_account_of_a_shared_ledger(tmp_path: Path) -> None:
    config, ledger = write(tmp_path), tmp_path / "all.jsonl"
    runs = [run(config, "--ledger", ledger, "--set", change) for change in ("seed=1", "seed=2", "rounds=4")]
    done = dpfl("account", ledger, "--json")
    *each, total = (rows[0] for rows in done.json.values())
    assert [row["epsilon"] for row in each] == [totals(result)[0] for result in runs]
    assert (total["epsilon"], total["delta"], total["accountant"]) == (totals(runs[-1])[1], 1e-5, "filter")
    assert list(done.json)[-1] == "total at delta 1e-05" and "run, " in next(iter(done.json))
    shown = dpfl("account", ledger)
    assert shown.code == 0 and shown.out.count("server") >= 4 and "total" in shown.out
    one_message(dpfl("account", ledger, "--set", "rounds=3"), "is a ledger: no setting changes")


def test_what_an_earlier_version_wrote_counts(tmp_path: Path) -> None:
    """A shared ledger of a seeded run and a fresh one, which named noise in other ways; and the latter's own."""
    ledger = Path(shutil.copy(FIXTURES / "earlier_shared.jsonl", tmp_path / "all.jsonl"))
    before = held(ledger)
    assert len(before) == 16 and held(FIXTURES / "earlier_run.jsonl") < before
    (row,) = dpfl("account", ledger, "--json").json["total at delta 0.001"]
    assert row["epsilon"] is None and "begun without a limit or thresholds" in row["basis"]
    result = run(write(tmp_path, {"rounds": 2, "privacy": {"epsilon": 6.0, "delta": 1e-3}}), "--ledger", ledger)
    assert before < held(ledger) and len(held(ledger)) == 24 and totals(result)[1] is None
