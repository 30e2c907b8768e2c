"""Batch scripts: what is printed is what is run, and how they stop and go on."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.config.schema import SweepConfig
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.experiments import scripts
from dpfl_plugin.experiments.manifest import Options, Sweep
from tests.experiments.test_supervisor import wait_for

ROOT = Path(__file__).parents[2]


def sweep_script(
    folder: str = "/shared/s w", request: dict[str, Any] | None = None, spec: Any = None, **options: Any
) -> str:
    sweep = Sweep(Path(folder), Path("sweep.yaml"), {}, SweepConfig(**(spec or {})), ())
    return scripts.sweep_script(sweep, [0, 1, 2, 3, 7], "run", request or {}, Options(**options))


@pytest.mark.parametrize("name", scripts.rendered())
def test_the_scripts_of_the_project_are_those_that_are_made(name: str) -> None:
    path = ROOT / "slurm" / name
    assert path.read_text() == scripts.rendered()[name], "run: python slurm/generate.py"
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", path], check=True)


def test_one_array_with_what_was_asked_for() -> None:
    text = sweep_script(
        request={"time": "1:00:00", "exclusive": True, "x": False},
        spec={"ranks": 5, "setup": ["module a"]},
        **{"at_once": 3, "pack": 4, "jobs": 2},
    )
    header = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert set(header) == {
        *("job-name=run", "array=0-3,7%3", "output='/shared/s w/log/%A_%a.txt'", "open-mode=append", "requeue"),
        *("signal=B:USR1@120", "ntasks=5", "cpus-per-task=2", "time=1:00:00", "exclusive"),
    }
    assert text.index("module a") < text.index("command=")
    assert "sweep-task '/shared/s w' \"$SLURM_ARRAY_TASK_ID\" --pack 4 --jobs 2" in text


def test_what_sbatch_is_told_is_quoted_and_percents_of_the_folder_stand_for_themselves() -> None:
    """sbatch splits its lines at spaces, and ends them at #."""
    text = sweep_script(folder="/s/50% of #1", request={"comment": "it's ours", "constraint": "[a|b]*2"})
    told = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    words = [shlex.split(line.removeprefix("#SBATCH "), comments=True) for line in told]
    assert all(len(one) == 1 for one in words), words
    assert {"--output=/s/50%% of #1/log/%A_%a.txt", "--comment=it's ours", "--constraint=[a|b]*2"} <= {
        one[0] for one in words
    }
    with pytest.raises(ConfigError, match="control character"):
        sweep_script(folder="/two\nlines")


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("folder", ["plain", "a b", "it's", 'a "b"', "$HOME}", "`x`", "\\"])
def test_any_path_of_the_interpreter_is_one_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, given: bool
) -> None:
    python = tmp_path / folder / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > began\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", "/no/such/python" if given else str(python))
    (tmp_path / "script").write_text(sweep_script())
    environment = {"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": "3"} | (
        {"DPFL_PYTHON": str(python)} if given else {}
    )
    subprocess.run(["bash", "script"], cwd=tmp_path, env=environment, check=True)
    words = (tmp_path / "began").read_text().splitlines()
    assert words[:6] == ["-P", "-m", "dpfl_plugin", "sweep-task", "/shared/s w", "3"]


def test_ranks_that_fail_end_their_step() -> None:
    text = scripts.rendered()["many_nodes.sbatch"]
    assert "srun --kill-on-bad-exit=1" in text and "-m mpi4py -m dpfl_plugin run" in text


# A stand-in for dpfl: says that it began, then ends as it is told, or with 4 once it got USR1.
STANDS_IN = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *a: (time.sleep(0.2), os._exit(int(os.environ["INTERRUPTED"]))))
open("began", "w").write(str(os.getppid()))
time.sleep(float(os.environ["SECONDS_TO_WORK"]))
sys.exit(int(os.environ["ENDS_WITH"]))
"""


@pytest.fixture
def batch(tmp_path: Path) -> dict[str, str]:
    """The environment of a task, with a python that stands in and an scontrol that notes what it is told."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python").write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {tmp_path}/program.py\n")
    (tools / "scontrol").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/told\n${{ANSWERS:-:}}\n')
    (tmp_path / "program.py").write_text(STANDS_IN)
    for tool in tools.iterdir():
        tool.chmod(0o755)
    # The task that was started last has the number of the whole array.
    array = {"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "2"}
    slurm = {**array, "DPFL_PYTHON": str(tools / "python")}
    return {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "SECONDS_TO_WORK": "600",
        "ENDS_WITH": "0",
        "INTERRUPTED": "4",
        **slurm,
    }


def run(
    folder: Path, environment: dict[str, str], *signals: signal.Signals, setup: Sequence[str] = ()
) -> tuple[int, str]:
    """Exit code of the script, and what scontrol was told."""
    (folder / "script").write_text(sweep_script(spec={"setup": list(setup)}))
    process = subprocess.Popen(["bash", "script"], cwd=folder, env=environment)
    if signals:
        wait_for(lambda: (folder / "began").exists() and bool((folder / "began").read_text()))
    for number in signals:
        process.send_signal(number)
    code = process.wait(timeout=300)
    told = folder / "told"
    return code, told.read_text().strip() if told.exists() else ""


@pytest.mark.parametrize("code", [0, 1, 2, 4, 7])
def test_the_exit_code_is_that_of_the_run(tmp_path: Path, batch: dict[str, str], code: int) -> None:
    assert run(tmp_path, {**batch, "SECONDS_TO_WORK": "0", "ENDS_WITH": str(code)}) == (code, "")


@pytest.mark.parametrize("times", [1, 3])
def test_before_the_time_limit_it_is_saved_and_queued_again(tmp_path: Path, batch: dict[str, str], times: int) -> None:
    assert run(tmp_path, batch, *[signal.SIGUSR1] * times) == (0, "requeue 17_2")


def test_ended_by_slurm_it_is_saved_and_left_to_slurm(tmp_path: Path, batch: dict[str, str]) -> None:
    assert run(tmp_path, batch, signal.SIGTERM) == (4, "")


def test_a_job_that_is_no_array_is_queued_again_by_its_number(tmp_path: Path, batch: dict[str, str]) -> None:
    alone = {key: value for key, value in batch.items() if not key.startswith("SLURM_ARRAY")}
    assert run(tmp_path, {**alone, "SLURM_ARRAY_TASK_ID": ""}, signal.SIGUSR1) == (0, "requeue 17")


@pytest.mark.parametrize(
    ("answers", "code"), [("exit 1", 4), ("echo Invalid job id specified; exit 1", 4), ("kill -s TERM $$", 0)]
)
def test_a_job_that_cannot_be_queued_again_fails(
    tmp_path: Path, batch: dict[str, str], answers: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where Slurm ends scontrol with the job that it queues again, that is no failure."""
    answer = tmp_path / "answer"
    answer.write_text(answers)
    assert run(tmp_path, {**batch, "ANSWERS": f". {answer}"}, signal.SIGUSR1) == (code, "requeue 17_2")
    shown = capfd.readouterr().err
    assert ("could not be queued again" in shown) == (code != 0) and ("(Invalid job id" in shown) == (
        "Invalid" in answers
    )


@pytest.mark.parametrize(
    ("interrupted", "restarts", "code"), [("7", "", 0), ("7", "2", 0), ("7", "3", 7), ("4", "9", 0)]
)
def test_a_job_that_finishes_no_round_is_queued_again_a_few_times(
    tmp_path: Path, batch: dict[str, str], interrupted: str, restarts: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    environment = {**batch, "INTERRUPTED": interrupted, "SLURM_RESTART_COUNT": restarts}
    assert run(tmp_path, environment, signal.SIGUSR1) == (code, "" if code else "requeue 17_2")
    assert ("no round was finished" in capfd.readouterr().err) == (code != 0)


def test_a_job_that_is_cancelled_while_it_saves_is_not_queued_again(tmp_path: Path, batch: dict[str, str]) -> None:
    assert run(tmp_path, batch, signal.SIGUSR1, signal.SIGTERM) == (4, "")


@pytest.mark.parametrize(("name", "code", "told"), [("USR1", 0, "requeue 17_2"), ("TERM", 7, "")])
def test_a_signal_before_the_run_has_begun_is_not_lost(
    tmp_path: Path, batch: dict[str, str], name: str, code: int, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, batch, setup=[f"kill -s {name} $$"]) == (code, told)
    assert not (tmp_path / "began").exists() and f"told to stop by {name}" in capfd.readouterr().err


def test_a_signal_before_the_script_knows_its_run_is_not_lost(tmp_path: Path, batch: dict[str, str]) -> None:
    """Between the fork and the line that notes its number: bash calls a DEBUG trap just there."""
    there = """trap 'case $BASH_COMMAND in child=*) kill -s USR1 $$ ;; esac' DEBUG"""
    assert run(tmp_path, batch, setup=[there]) == (0, "requeue 17_2")
