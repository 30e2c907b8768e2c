"""`dpfl sweep` on this machine, and `dpfl status`."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.api.sweep import COMPOSES
from dpfl_plugin.cli import status as status_command
from dpfl_plugin.config.sweep import expand
from dpfl_plugin.core.rounding import places
from dpfl_plugin.experiments import manifest
from dpfl_plugin.experiments.reports.groups import Summary
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.shared_ledger import runs_in
from tests.cli.command import Done, dpfl, one_message
from tests.cli.sweeping import began, check_same, deep_in_all, left, rows, write, write_long
from tests.experiments.test_supervisor import wait_for

SWEEP = {"list": [{"algorithm.name": "fedavg"}, {"algorithm.name": "scaffold"}], "seeds": 2}
PYTHON = shlex.quote(sys.executable)  # for scripts and launchers: the checkout's path may have spaces
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}


def sweep(path: Path, *args: object, out: str = "out") -> Done:
    return dpfl("sweep", path, "--out", path.parent / out, *args)


def status(path: Path, out: str = "out") -> dict[str, Any]:
    found: dict[str, Any] = dpfl("status", path.parent / out, "--json").json
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    path = write(tmp_path_factory.mktemp("sweep"), SWEEP)
    return path, sweep(path, "--jobs", 2)


def test_every_run_is_what_it_is_alone(finished: tuple[Path, Done], tmp_path: Path) -> None:
    path, done = finished
    assert done.code == 0 and COMPOSES in done.err
    found = left(path.parent / "out")
    assert set(found) == set(rows(path.parent / "out")) and len(found) == 4
    (folder,) = manifest.sweeps_in(path.parent / "out")
    row = manifest.read(folder).rows[3]
    alone = write(tmp_path, {"list": [row.changes]}, name="alone.yaml")
    assert sweep(alone).code == 0
    assert left(tmp_path / "out") == {row.id: found[row.id]}


def test_runs_that_share_a_ledger_take_turns(tmp_path: Path) -> None:
    path, ledger = (
        write(tmp_path, {"seeds": 2}, {"rounds": 2, "privacy": {"randomness": "fresh"}}),
        tmp_path / "all.jsonl",
    )
    done = sweep(path, "--jobs", 2, "--ledger", ledger)
    assert done.code == 0 and "one run uses it at a time" in done.err and COMPOSES not in done.err, done.err
    shared = Ledger.open(ledger, append=False)
    runs = runs_in(shared)
    assert len(runs) == 2 and all(run.early and run.ended for run in runs) and len(shared) == 2 * 2 * 4
    assert done.err.count("2 runs registered in") == 1 and "registered" not in sweep(path, "--ledger", ledger).err
    one_message(sweep(path), "began with ledger", str(ledger))
    assert sweep(path, "--ledger", ledger).code == 0


def test_the_folder_of_a_run_tells_which_of_the_sweep_it_is(finished: tuple[Path, Done]) -> None:
    out = finished[0].parent / "out"
    (folder,) = manifest.sweeps_in(out)
    labels = {row.id: row.label for row in manifest.read(folder).rows}
    told = {path.parent.name: json.loads(path.read_text())["label"] for path in out.rglob("environment.json")}
    assert told == labels and len(set(told.values())) == 4


def test_status_of_a_finished_sweep(finished: tuple[Path, Done]) -> None:
    found = status(finished[0])
    assert found["counts"] == {"running": 0, "failed": 0, "lost": 0, "pending": 0, "done": 4}
    assert all(0 < run["test_accuracy"] <= 1 and run["epsilon"] > 0 and run["round"] == 6 for run in found["runs"])
    done = dpfl("status", finished[0].parent / "out")
    assert "4 done" in done.out and "algorithm.name=scaffold seed=1" in done.out


def test_at_its_end_a_sweep_says_what_configurations_came_to(finished: tuple[Path, Done]) -> None:
    """Means over seeds of what its runs say of themselves."""
    path, done = finished
    runs = [json.loads(one.read_text()) for one in (path.parent / "out" / "runs").rglob("result.json")]
    for algorithm in ("fedavg", "scaffold"):
        own = [one for one in runs if one["algorithm"] == algorithm]
        scores = [one["test_accuracy"]["mean_last_10_percent"] for one in own]
        (line,) = (line for line in done.out.splitlines() if f"name={algorithm} " in f"{line} ")
        assert len(own) == 2 and f"accuracy {Summary.of(scores)}" in line and "seed" not in line
        assert places(max(one["epsilon"]["server"]["epsilon"] for one in own), 3) in line
    assert "with score and epsilon: dpfl status" in done.out and "dpfl status" not in done.err


def test_status_into_a_pipe_tells_each_change_and_whether_anything_is_at_work(
    finished: tuple[Path, Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, {"seeds": 2})
    waiting = manifest.plan(expand(path), path, tmp_path / "out")
    manifest.write(waiting)
    assert "2 pending\nnothing is working on them" in dpfl("status", tmp_path / "out").out
    looks = iter([tmp_path / "out", tmp_path / "out", finished[0].parent / "out"])
    look = status_command.status
    monkeypatch.setattr(status_command, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr(status_command, "status", lambda folder: look(next(looks)))
    lines = dpfl("status", tmp_path / "out", "--watch").out.splitlines()
    assert [line for line in lines if line.startswith(("2 runs", "4 runs"))] == [
        "2 runs: 2 pending; nothing is working on them; the command that began the sweep continues it",
        "4 runs: 4 done",
    ]


def test_finished_runs_are_never_run_again(finished: tuple[Path, Done], monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = finished
    before = {file: file.stat().st_mtime_ns for file in path.parent.rglob("*.json*") if "sweeps" not in str(file)}
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a run was begun"))
    done = sweep(path)
    assert done.code == 0 and "nothing is left to run" in done.err
    (folder,) = manifest.sweeps_in(path.parent / "out")
    assert dpfl("sweep-task", folder, 0, "--pack", 4).code == 0
    assert before == {file: file.stat().st_mtime_ns for file in before}


def test_another_sweep_in_the_same_folder_runs_what_is_new(finished: tuple[Path, Done], tmp_path: Path) -> None:
    path, _ = finished
    more = write(path.parent, {**SWEEP, "seeds": 3}, name="more.yaml")
    done = sweep(more)
    assert done.code == 0 and "6 runs: 4 done, 2 pending" in done.err
    assert len(manifest.sweeps_in(path.parent / "out")) == 2 and status(path)["counts"]["done"] == 6
    assert all(began(path.parent / "out", run) == [1] for run in rows(path.parent / "out"))


def test_a_dry_run_prints_and_writes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, SWEEP)
    done = sweep(path, "--dry-run", "--on", "slurm", "--at-once", 3, "--pack", 2)
    assert done.code == 0 and [*tmp_path.iterdir()] == [path]
    assert "#SBATCH --array=0-1%3" in done.out and "--pack 2" in done.out
    assert done.out.count("algorithm.name=fedavg") == 2


FAILING = {"module": "models_beside:make"}


def test_failures_are_listed_with_reasons_and_retried_when_told_to(tmp_path: Path) -> None:
    code = "def make(shape, classes, *, width=1):\n    raise RuntimeError('no such width')\n"
    (tmp_path / "models_beside.py").write_text(code)
    path = write(tmp_path, {"list": [{"model": FAILING}, {"seed": 5}]})
    first = sweep(path)
    assert first.code == 1 and "no such width" in first.err
    found = status(path)
    assert found["counts"]["failed"] == found["counts"]["done"] == 1
    assert "no such width" in found["runs"][0]["reason"]
    assert "no such width" in dpfl("status", tmp_path / "out").out
    again = sweep(path)
    assert again.code == 1 and "--retry" in again.err and "no such width" not in again.err
    working = "import torch\ndef make(shape, classes, *, width=1):\n    return torch.nn.Linear(4, classes)\n"
    (tmp_path / "models_beside.py").write_text(working)
    sys.modules.pop("models_beside", None)
    assert sweep(path, "--retry").code == 0 and status(path)["counts"]["done"] == 2


def test_a_run_that_diverges_fails_with_its_reason(tmp_path: Path) -> None:
    private = {"privacy": {"clip_norm": float("inf"), "noise_multiplier": 0}}
    path = write(tmp_path, {"seeds": 1}, {"l2": 1.0, "algorithm": {"local_lr": 1e30}, **private})
    done = sweep(path)
    assert done.code == 1 and "not finite" in status(path)["runs"][0]["reason"]
    assert COMPOSES not in done.err


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of `write_long`, undisturbed."""
    path = write_long(tmp_path_factory.mktemp("long"))
    assert sweep(path).code == 0
    return path.parent / "out"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_same_command_goes_on_to_the_same_bits(tmp_path: Path, long: Path, number: signal.Signals) -> None:
    path = write_long(tmp_path)
    command = [sys.executable, "-m", "dpfl_plugin", "sweep", str(path), "--out", str(tmp_path / "out"), "--jobs", "2"]
    slow = {**ENVIRONMENT, "GO_ON": str(tmp_path / "go on")}
    process = subprocess.Popen(command, env=slow, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: deep_in_all(tmp_path / "out"))
    assert process.poll() is None
    process.send_signal(number)
    _, said = process.communicate(timeout=300)
    assert process.returncode == (-9 if number == signal.SIGKILL else 4), said
    assert sweep(path, "--jobs", 2).code == 0
    check_same(tmp_path / "out", long)
    assert all(len(began(tmp_path / "out", run)) == 2 for run in rows(tmp_path / "out"))


def test_what_is_asked_wrongly_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, {"seeds": 3})
    monkeypatch.setenv("PATH", str(tmp_path))
    one_message_in(sweep(path, "--on", "slurm"), "there is no sbatch here", "--on local", "dev-cluster")
    one_message(dpfl("status", tmp_path), "holds no sweep")
    (folder,) = manifest.sweeps_in(tmp_path / "out")
    one_message(dpfl("sweep-task", folder, 3), "there is no task 3")
    (folder / "sweep.json").write_text("{}")
    one_message(dpfl("status", tmp_path / "out"), "holds no readable sweep", "dpfl sweep")


def one_message_in(done: Done, *parts: str) -> None:
    assert done.code == 2 and "Traceback" not in done.err
    assert all(part in done.err for part in parts), done.err


@pytest.mark.slow
def test_ranks_are_started_by_the_launcher(tmp_path: Path) -> None:
    launcher = tmp_path / "my launchers" / "start"
    launcher.parent.mkdir()
    launcher.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/given\nshift 6; exec {PYTHON} "$@"\n')
    launcher.chmod(0o755)
    path = write(tmp_path, {"seeds": 1, "ranks": 3, "launcher": f"'{launcher}' -n {{ranks}}"})
    (tmp_path / "given").touch()
    done = sweep(path, out="the out")
    given = (tmp_path / "given").read_text().splitlines()
    assert given[:8] == ["-n", "3", sys.executable, "-P", "-m", "mpi4py", "-m", "dpfl_plugin"], given
    assert Path(given[9]).parents[1] == tmp_path / "the out", "one word"
    assert done.code == 0 and status(path, "the out")["counts"]["done"] == 1, done.err


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"algorithm.local_lr": 1e39}, "not finite", marks=pytest.mark.slow),
        ({"data.dataset": {"name": "csv", "files": ["/nowhere.csv"], "label_column": "y"}}, "/nowhere.csv"),
    ],
)
def test_ranks_that_fail_say_why_whatever_the_launcher_ends_with(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    launcher = tmp_path / "start"
    launcher.write_text(f'#!/bin/sh\necho x >> {tmp_path}/begun\nshift 6; {PYTHON} "$@"; exit 1\n')
    launcher.chmod(0o755)
    path = write(tmp_path, {"list": [changes], "ranks": 3, "launcher": f"{launcher} -n {{ranks}}"})
    assert sweep(path).code == 1
    assert reason in status(path)["runs"][0]["reason"]
    assert len((tmp_path / "begun").read_text().split()) == 1


def test_a_launcher_that_is_missing_is_the_reason(tmp_path: Path) -> None:
    path = write(tmp_path, {"seeds": 1, "ranks": 3, "launcher": "no-such-mpirun -n {ranks}"})
    assert sweep(path).code == 1
    reason = status(path)["runs"][0]["reason"]
    assert "sweep.launcher: no-such-mpirun cannot be started" in reason and "a path with spaces needs quotes" in reason


@pytest.mark.parametrize(("launcher", "told"), [("'/my tools/mpirun -n 3", "close each quote"), (" ", "no program")])
def test_a_launcher_that_is_no_command_is_refused_before_anything_runs(
    tmp_path: Path, launcher: str, told: str
) -> None:
    path = write(tmp_path, {"seeds": 1, "ranks": 3, "launcher": launcher})
    one_message_in(sweep(path), "sweep.launcher", told)
    assert not (tmp_path / "out").exists()


IMPORTS = """
import sys
from pathlib import Path
from dpfl_plugin.config.sweep import expand
from dpfl_plugin.experiments import manifest, supervisor

path = Path(sys.argv[1])
planned = manifest.plan(expand(path), path, path.parent / "out")
manifest.write(planned)
begin = supervisor.begin(planned)
before = set(sys.modules)
print(begin(planned.rows[0], lambda: False))
print(*{name.partition(".")[0] for name in set(sys.modules) - before})
"""


@pytest.mark.slow
def test_a_run_imports_no_library_that_its_process_was_not_forked_with(tmp_path: Path) -> None:
    """Half a second for each run of a sweep, otherwise."""
    path = write(tmp_path, {"seeds": 1})
    done = subprocess.run([sys.executable, "-c", IMPORTS, path], capture_output=True, text=True, check=True)
    result, libraries = done.stdout.splitlines()
    own = {"dpfl_plugin", "encodings"}  # one of Python's own, as jinja2 reads templates
    assert result == "(0, '')" and set(libraries.split()) <= own
