"""Submission: whenever the submitter dies, and however Slurm answers, every task is submitted once."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.config.schema import SweepConfig
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.experiments import manifest, slurm, submission, supervisor
from dpfl_plugin.experiments.status import states
from dpfl_plugin.runs.run_status import write_task
from tests.cli.command import Done, dpfl
from tests.cli.sweeping import write
from tests.experiments.test_supervisor import wait_for

# A Slurm of files: sbatch adds "number name" to the file `queue`, which squeue shows while the file `answers` is there.
SBATCH = """
[ ! -e refuses ] || { cat refuses >&2; exit 1; }
cat > script
name=$(sed -n 's/^#SBATCH --job-name=//p' script)
echo $$ > at_work
while [ -e hold ]; do sleep 0.02; done
number=$(($(wc -l < queue) + 11))
echo "$number $name" >> queue
mv script "script-$number"
[ ! -e kills ] || { rm kills; kill -9 $PPID; }
[ ! -e garbles ] || { echo "sbatch: error: Socket timed out on send/recv operation" >&2; exit 1; }
echo $number
"""
SQUEUE = """
[ -e answers ] || exit 1
case "$*" in
*%F*) cat queue ;;
*) while read -r number name; do echo "${number}_0 PENDING"; echo "${number}_1 PENDING"; done < queue ;;
esac
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its folder; the sweep of two runs is beside it."""
    site = tmp_path / "site"
    site.mkdir()
    for name, text in {"sbatch": SBATCH, "squeue": SQUEUE, "sacct": "exit 1", "scontrol": "exit 1"}.items():
        (site / name).write_text(f'#!/bin/sh\ncd "{site}"\n{text}')
        (site / name).chmod(0o755)
    (site / "queue").touch()
    (site / "answers").touch()
    monkeypatch.setenv("PATH", f"{site}:/usr/bin:/bin")
    monkeypatch.setattr(submission, "LOOK_SECONDS", 0.02)
    write(tmp_path, {"seeds": 2})
    return site


def submit(site: Path, *args: object) -> Done:
    return dpfl("sweep", site.parent / "sweep.yaml", "--out", site.parent / "out", "--on", "slurm", *args)


class Submitter:
    """A process that submits the sweep; forked, as torch is imported here already."""

    def __init__(self, site: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which wait
            self.pid = os.fork()
        if self.pid == 0:
            code = 70
            try:
                code = submit(site).code
            finally:
                os._exit(code)

    def end(self) -> int:
        """Wait for it; its exit code, or minus the signal that killed it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def queued(site: Path) -> int:
    return len((site / "queue").read_text().splitlines())


def recorded(site: Path) -> list[str]:
    """The jobs in jobs.jsonl; no submission is left open."""
    (folder,) = manifest.sweeps_in(site.parent / "out")
    assert not submission.intent_of(folder).exists()
    return [job["job"] for job in submission.jobs_of(folder)]


def test_a_submitter_killed_behind_sbatch_forgets_no_job_and_submits_none_twice(site: Path) -> None:
    (site / "kills").touch()
    assert Submitter(site).end() == -signal.SIGKILL and queued(site) == 1
    assert "or was interrupted; the same command" in dpfl("status", site.parent / "out").err
    (site / "answers").unlink()
    asked = submit(site)
    assert asked.code == 1 and "neither squeue nor sacct" in asked.err and "Try again" in asked.err, asked.err
    (site / "answers").touch()
    again = submit(site)
    assert again.code == 0 and "had submitted job 11: it is recorded now" in again.err, again.err
    assert "2 runs are in the queue already" in again.err
    assert queued(site) == 1 and recorded(site) == ["11"]


def test_a_submitter_killed_before_slurm_has_the_job_submits_it_the_next_time(site: Path) -> None:
    (site / "hold").touch()
    first = Submitter(site)
    wait_for(lambda: (site / "at_work").exists())
    os.kill(first.pid, signal.SIGKILL)
    first.end()
    os.kill(int((site / "at_work").read_text()), signal.SIGKILL)
    (site / "hold").unlink()
    again = submit(site)
    assert again.code == 0 and "cut before Slurm had the job" in again.err and "submitted 2 runs as job 11" in again.err
    assert queued(site) == 1 and recorded(site) == ["11"]


def test_an_sbatch_that_outlives_its_submitter_is_waited_for(site: Path) -> None:
    (site / "hold").touch()
    first = Submitter(site)
    wait_for(lambda: (site / "at_work").exists())
    os.kill(first.pid, signal.SIGKILL)
    first.end()
    threading.Timer(0.5, (site / "hold").unlink).start()
    again = submit(site)
    assert again.code == 0 and "Waiting for it" in again.err and f"pid {first.pid}" in again.err, again.err
    assert queued(site) == 1 and recorded(site) == ["11"]


def test_two_submitters_at_once_submit_once(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "hold").touch()
    first = Submitter(site)
    wait_for(lambda: (site / "at_work").exists())
    monkeypatch.setattr(submission, "WAIT_SECONDS", 0.0)
    refused = submit(site)
    assert refused.code == 2 and "is submitting this sweep" in refused.err and "the same command" in refused.err
    monkeypatch.setattr(submission, "WAIT_SECONDS", 60.0)
    threading.Timer(0.2, (site / "hold").unlink).start()
    assert "2 runs are in the queue already" in submit(site).err
    assert first.end() == 0 and queued(site) == 1 and recorded(site) == ["11"]


@pytest.mark.parametrize("answers", [True, False])
def test_an_sbatch_that_loses_its_connection_is_asked_after(site: Path, answers: bool) -> None:
    (site / "garbles").touch()
    if not answers:
        (site / "answers").unlink()
    done = submit(site)
    assert (done.code == 0 and "as job 11" in done.err) if answers else "asks for it before" in done.err, done.err
    (site / "answers").touch()
    assert submit(site).code == 0 and queued(site) == 1 and recorded(site) == ["11"]


def test_what_is_refused_leaves_nothing_open(site: Path) -> None:
    (site / "refuses").write_text("sbatch: error: invalid partition specified: nowhere")
    assert "sbatch refuses" in submit(site).err and recorded(site) == []
    (site / "refuses").unlink()
    (site / "answers").unlink()
    assert submit(site).code == 0 and recorded(site) == ["11"]
    silent = submit(site)
    assert silent.code == 1 and "squeue does not answer" in silent.err and "job 11" in silent.err and queued(site) == 1


def test_a_record_that_cannot_be_written_is_found_again(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(submission, "remember", full)
        done = submit(site)
        assert done.code == 1 and "job 11 was submitted" in done.err and "nothing is submitted twice" in done.err
    assert submit(site).code == 0 and queued(site) == 1 and recorded(site) == ["11"]


def test_accounting_knows_jobs_that_the_queue_has_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 9 run.bb\n")
    (tmp_path / "sacct").write_text(
        '#!/bin/sh\necho "$@" > asked\necho "7_[0-3]|run.aa"\n'.replace("asked", f"{tmp_path}/asked")
    )
    for name in ("squeue", "sacct"):
        (tmp_path / name).chmod(0o755)
    assert [slurm.job_named(name, time.time()) for name in ("run.aa", "run.bb", "run.cc")] == ["7", "9", ""]
    assert "-S 20" in (tmp_path / "asked").read_text()
    (tmp_path / "squeue").write_text("#!/bin/sh\nexit 1\n")
    assert [slurm.job_named(name, time.time()) for name in ("run.aa", "run.cc")] == ["7", None], "sacct may lag behind"


def asked(site: Path, job: int) -> set[str]:
    lines = (site / f"script-{job}").read_text().splitlines()
    return {line.removeprefix("#SBATCH --") for line in lines if line.startswith(("#SBATCH --mem", "#SBATCH --array"))}


def test_runs_that_ask_for_different_things_are_arrays_of_their_own(site: Path) -> None:
    entries = [{"algorithm.local_steps": 3, "slurm.mem": "8G"}, {"algorithm.local_steps": 4}]
    write(site.parent, {"list": entries, "seeds": 3, "slurm": {"mem": "2G"}})
    done = submit(site, "--pack", 2)
    assert done.code == 0 and "3 runs as job 11: 2 tasks" in done.err and "3 runs as job 12: 2 tasks" in done.err
    assert asked(site, 11) == {"mem=8G", "array=0-1"} and asked(site, 12) == {"mem=2G", "array=2-3"}
    (folder,) = manifest.sweeps_in(site.parent / "out")
    sweep = manifest.read(folder)
    assert [[row.index for row in sweep.rows_of(task, 2)] for task in range(5)] == [[0, 1], [2], [3, 4], [5], []]


def test_what_ran_out_of_memory_asks_for_more_the_next_time(site: Path) -> None:
    write(site.parent, {"seeds": 2, "slurm": {"mem": "1500M", "time": "0:10:00"}, "retry_mem_factor": 2})
    assert "sacct" not in submit(site).err
    (site / "queue").write_text("")
    assert "sacct, which alone says" in submit(site).err
    (site / "queue").write_text("")
    (site / "sacct").write_text("#!/bin/sh\necho '11_0|OUT_OF_MEMORY'; echo '11_1|TIMEOUT'; echo '11_[2-3]|PENDING'\n")
    for number in (1, 2):  # as the queue was emptied, a job's number may come again
        (site / f"script-1{number}").unlink(missing_ok=True)
    done = submit(site)
    assert done.code == 0 and "ask for --mem=3000M now" in done.err, done.err
    assert {"mem=3000M", "array=0"} <= asked(site, 11) and {"mem=1500M", "array=1"} <= asked(site, 12)


@pytest.mark.parametrize(
    ("options", "ended", "expected"),
    [
        ({"mem": "2G"}, {"OUT_OF_MEMORY": 2}, {"mem": "8192M"}),
        ({"mem-per-cpu": 100}, {"OUT_OF_MEMORY": 1}, {"mem-per-cpu": "200M"}),
        ({"mem": 0}, {"OUT_OF_MEMORY": 1}, {"mem": "0M"}),  # the whole node
        ({"time": "1:00:30"}, {"TIMEOUT": 1}, {"time": 92}),
        ({"time": "2-00", "mem": "1T"}, {"TIMEOUT": 1}, {"time": 4320, "mem": "1T"}),
        ({"mem": "2G"}, {"TIMEOUT": 1}, {"mem": "2G"}),
        ({"mem": "much"}, {"OUT_OF_MEMORY": 1}, "sweep.slurm.mem='much'"),
        ({"time": "UNLIMITED"}, {"TIMEOUT": 1}, "sweep.slurm.time='UNLIMITED'"),
    ],
)
def test_factors_of_what_ran_out(options: Any, ended: dict[str, int], expected: Any) -> None:
    said: list[str] = []
    spec = SweepConfig(retry_mem_factor=2, retry_time_factor=1.5)
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected):
            submission._more(options, Counter(ended), spec, said.append)
    else:
        assert submission._more(options, Counter(ended), spec, said.append) == expected
        without = [key for key, cause in (("mem", "OUT_OF_MEMORY"), ("time", "TIMEOUT")) if cause in ended]
        assert bool(said) == (options != expected or not any(key.startswith(tuple(without)) for key in options))


def test_a_run_that_is_queued_again_too_often_has_failed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(site.parent, {"seeds": 2, "max_requeues": 1})
    assert submit(site).code == 0
    (folder,) = manifest.sweeps_in(site.parent / "out")
    sweep = manifest.read(folder)
    begun, waits = map(sweep.folder_of, sweep.rows)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "11")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    for restarts, status in [(0, "pending"), (1, "pending"), (1, "pending"), (2, "failed")]:
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
        supervisor._fail_those_requeued(sweep, sweep.rows)
        known, other = states([begun, waits])
        assert known.status == status and other.status == "pending"
        if status == "pending":
            write_task(begun, "stopped", job="11_0")
    assert "again 2 times in job 11_0, more than sweep.max_requeues=1" in known.reason
    (site / "queue").write_text("")
    assert submit(site, "--retry").code == 0
    write_task(begun, "stopped", job="11_0")
    supervisor._fail_those_requeued(sweep, sweep.rows)
    assert states([begun])[0].status == "pending", "counted anew"


@pytest.mark.parametrize(
    ("time", "refused"), [("0:02:00", True), (2, True), ("00:03:00", False), ("UNLIMITED", False), ("1-0", False)]
)
def test_a_time_limit_leaves_time_before_the_signal(site: Path, time: str | int, refused: bool) -> None:
    """A task whose signal comes as it starts would be queued again and again."""
    write(site.parent, {"seeds": 1, "slurm": {"time": time}})
    done = submit(site)
    assert done.code == (2 if refused else 0) and ("must be at least 3 minutes" in done.err) == refused


@pytest.mark.parametrize("where", ["out", "option"])
def test_a_line_end_is_refused_with_its_place(site: Path, where: str) -> None:
    write(site.parent, {"seeds": 1, "slurm": {"comment": "two\nlines"} if where == "option" else {}})
    out = site.parent / ("two\nlines" if where == "out" else "out 'of' \"all\"")
    done = dpfl("sweep", site.parent / "sweep.yaml", "--out", out, "--on", "slurm")
    assert done.code == 2 and ("--out: the folder" if where == "out" else "sweep.slurm.comment: ") in done.err
    assert queued(site) == 0 and not [*out.rglob("submitting.json")]
