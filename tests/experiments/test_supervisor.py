"""Several runs on one machine: what becomes of each, however its process ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.config.sweep import Row
from dpfl_plugin.errors import MAKE_ROOM, BusyError, ConfigError, DataError, system_says
from dpfl_plugin.experiments import supervisor
from dpfl_plugin.experiments.status import SweepStatus, states
from dpfl_plugin.experiments.supervisor import (
    BUSY,
    DONE,
    FAILED,
    FULL,
    INTERRUPTED,
    LOST,
    TRIES,
    Begin,
    Stop,
    Supervisor,
)
from dpfl_plugin.runs.folder import RunFolder, to_json
from dpfl_plugin.runs.run_status import STALE_SECONDS, status_of, task_file, write_task

ROWS = [Row(i, f"{i:012x}", "run", f"seed={i}", 3, {}) for i in range(6)]


class Bench:
    """A supervisor whose runs are functions; each notes that it began."""

    def __init__(self, out: Path) -> None:
        self.out, self.said, self.stop = out, [], Stop()  # type: tuple[Path, list[str], Stop]

    def folder(self, row: Row) -> RunFolder:
        return RunFolder(self.out / row.id)

    def run(self, do: Begin, jobs: int = 2, rows: list[Row] = ROWS, *, launched: bool = False, gpus: Any = ()) -> int:
        def begin(row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
            with open(self.out / "begun", "a") as file:
                file.write(f"{row.index}\n")
            code, reason = do(row, stop)
            if code == DONE:
                finish(self.folder(row))
            return code, reason

        with self.stop.listening():
            return Supervisor(begin, self.folder, jobs, self.stop, self.said.append, launched=launched, gpus=gpus).run(
                rows
            )

    def begun(self) -> list[int]:
        return [int(line) for line in (self.out / "begun").read_text().splitlines()]

    def states(self) -> list[str]:
        return [known.status for known in states(self.folder(row) for row in ROWS)]


def finish(folder: RunFolder, rounds: int = 3, reason: str = "") -> None:
    result = {"status": "done", "reason": reason, "rounds": rounds, "seconds": 1.0, "test_accuracy": {}, "epsilon": {}}
    result["test_accuracy"], result["epsilon"] = {"mean_last_10_percent": 0.5}, {"server": {"epsilon": 1.0}}
    folder.path.mkdir(exist_ok=True)
    folder.result.write_text(json.dumps(result))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_every_run_is_run_once(bench: Bench) -> None:
    assert bench.run(lambda row, stop: (DONE, "")) == DONE
    assert sorted(bench.begun()) == [0, 1, 2, 3, 4, 5] and set(bench.states()) == {"done"}
    assert bench.run(lambda row, stop: (DONE, "")) == DONE
    assert len(bench.begun()) == 6  # none again


def test_a_run_that_ended_before_its_last_round_is_done_with_its_reason(bench: Bench) -> None:
    def stopped(row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
        finish(bench.folder(row), 1, "stopped by callback Limit: slow")
        return FAILED, ""  # whatever its process ends with

    assert bench.run(stopped, rows=ROWS[:1]) == DONE
    assert bench.said == ["0: done after 1 of 3 rounds: stopped by callback Limit: slow  seed=0"]
    status = SweepStatus(tuple(ROWS[:1]), tuple(states([bench.folder(ROWS[0])])))
    assert "epsilon 1.000 after 1 of 3 rounds: stopped by callback Limit: slow" in str(status)


def test_no_more_at_a_time_than_jobs(bench: Bench) -> None:
    def do(row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
        mark = bench.out / f"live-{row.index}"
        mark.touch()
        if row.index < 2:  # these two wait for each other
            wait_for(lambda: {0, 1} <= set(bench.begun()))
        (bench.out / f"seen-{row.index}").write_text(str(len(list(bench.out.glob("live-*")))))
        time.sleep(0.15)  # the longer, the surer is a third one seen
        mark.unlink()
        return DONE, ""

    assert bench.run(do, jobs=2) == DONE
    assert max(int(path.read_text()) for path in bench.out.glob("seen-*")) == 2


@pytest.mark.parametrize("gpus", [(), ("3", "GPU-a")])
def test_runs_at_the_same_time_have_a_gpu_each(
    bench: Bench, gpus: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-a")

    def do(row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
        (bench.out / f"gpu-{row.index}").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
        if row.index < 2:  # these two at the same time
            wait_for(lambda: {0, 1} <= set(bench.begun()))
        return DONE, ""

    assert bench.run(do, jobs=2, gpus=gpus) == DONE
    seen = [(bench.out / f"gpu-{row.index}").read_text() for row in ROWS]
    assert set(seen[:2]) == set(gpus or ["3,GPU-a"]) and set(seen) == set(seen[:2])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3,GPU-a"


def raises(error: BaseException) -> Begin:
    def do(row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
        if row.index == 1:
            raise error
        return DONE, ""

    return do


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConfigError("seed=1: is unlucky."), "seed=1: is unlucky."),
        (OSError(13, "Permission denied", "/a/b"), "[Errno 13] Permission denied: '/a/b'"),
        (ZeroDivisionError("by nought"), "ZeroDivisionError: by nought"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_a_run_that_raises_fails_with_its_reason_and_alone(bench: Bench, error: BaseException, reason: str) -> None:
    assert bench.run(raises(error)) == FAILED
    assert bench.states() == ["done", "failed", "done", "done", "done", "done"]
    assert status_of(bench.folder(ROWS[1])).reason == reason
    assert any("FAILED" in line and reason in line for line in bench.said)
    assert bench.run(lambda row, stop: (DONE, "")) == FAILED  # left alone
    assert bench.begun().count(1) == 1
    write_task(bench.folder(ROWS[1]), "pending")  # --retry
    assert bench.run(lambda row, stop: (DONE, "")) == DONE


@pytest.mark.parametrize("launched", [True, False])
def test_a_full_disk_stops_the_sweep_once_and_the_next_call_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, launched: bool
) -> None:
    def do(row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
        if row.index < 2:
            return DONE, ""
        wait_for(lambda: {2, 3} <= set(bench.begun()))
        full = OSError(28, "No space left", "/a/b")
        if not launched:
            raise DataError("the table cannot be copied.") from full
        monkeypatch.setattr(RunFolder, "write", raises_full)
        with contextlib.suppress(OSError):
            write_task(bench.folder(row), "ended", code=FULL, reason=system_says(full))
        return 1, ""

    def raises_full(*_: object) -> None:
        raise OSError(28, "No space left", "/a/b")

    assert bench.run(do, launched=launched) == FAILED and len(bench.begun()) == 4
    assert bench.states() == ["done", "done", *["pending"] * 4]
    assert len([text for text in bench.said if "The sweep stops" in text]) == 1
    reasons = {status_of(bench.folder(row)).reason for row in ROWS[2:4]}
    assert reasons == {
        f"/a/b: cannot be written (No space left). {MAKE_ROOM}" if launched else "the table cannot be copied."
    }
    assert not any("FAILED" in text for text in bench.said)
    assert bench.run(lambda row, stop: (DONE, ""), launched=launched) == DONE


def test_a_run_that_is_killed_is_tried_again_but_not_for_ever(bench: Bench) -> None:
    def do(row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
        if row.index == 0 or (row.index == 1 and bench.begun().count(1) < TRIES):
            os.kill(os.getpid(), signal.SIGKILL)
        return DONE, ""

    assert bench.run(do, jobs=1) == FAILED
    assert bench.begun().count(0) == TRIES == bench.begun().count(1)
    assert bench.states() == ["failed", "done", "done", "done", "done", "done"]
    assert "killed by SIGKILL" in status_of(bench.folder(ROWS[0])).reason
    again = [text for text in bench.said if "tried again" in text]
    assert again == [f"{i}: killed by SIGKILL; it is tried again  seed={i}" for i in (0, 1, 0, 1)]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers that were killed are started again without a pause."""
    monkeypatch.setattr(supervisor, "AGAIN_SECONDS", (0.0,))


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("code", [1, 4, 75, 128 + signal.SIGKILL, 255])
def test_a_launcher_that_ends_without_a_word_of_its_run_counts_as_killed(bench: Bench, code: int) -> None:
    """Whatever its exit code: one of the ranks, the launcher, or Slurm's step was killed."""

    def do(row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
        died = row.index == 0 or (row.index == 1 and bench.begun().count(1) < TRIES)
        return (code, "") if died else (DONE, "")

    assert bench.run(do, jobs=1, launched=True) == FAILED
    assert bench.begun().count(0) == TRIES == bench.begun().count(1)
    assert bench.states() == ["failed", "done", "done", "done", "done", "done"]
    reason = status_of(bench.folder(ROWS[0])).reason
    assert ("SIGKILL" if code == 128 + signal.SIGKILL else f"exit code {code}") in reason and "3 tries" in reason


@pytest.mark.usefixtures("at_once")
def test_what_a_launched_run_says_counts_and_not_its_launchers_exit_code(bench: Bench) -> None:
    def do(row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
        begun = bench.begun().count(row.index)
        if row.index == 0:
            write_task(bench.folder(row), "ended", code=FAILED, reason="not finite")
        elif row.index == 1 and begun <= TRIES:  # more often than anything may be killed
            write_task(bench.folder(row), "ended", code=INTERRUPTED, reason="asked to stop")
        elif row.index == 2 and begun == 1:
            write_task(bench.folder(row), "ended", code=BUSY, reason="another process is at it")
        elif row.index == 3 or (row.index == 4 and begun == 1):
            write_task(bench.folder(row), "ended", code=LOST, reason="silo rank 2: was killed.")
        else:
            return DONE, ""
        return 143, ""

    assert bench.run(do, jobs=1, launched=True) == FAILED
    assert bench.states() == ["failed", "done", "done", "failed", "done", "done"]
    reasons = [status_of(bench.folder(ROWS[index])).reason for index in (0, 3)]
    assert reasons == ["not finite", f"silo rank 2: was killed, in {TRIES} tries; see the log"]
    assert [bench.begun().count(index) for index in range(6)] == [1, TRIES + 1, 2, TRIES, 2, 1]


@pytest.mark.usefixtures("at_once")
def test_what_a_launched_run_said_before_counts_no_more(bench: Bench) -> None:
    write_task(bench.folder(ROWS[0]), "ended", code=FAILED, reason="long ago")
    assert bench.run(lambda row, stop: (1, ""), rows=ROWS[:1], launched=True) == FAILED
    assert bench.begun().count(0) == TRIES
    assert "long ago" not in status_of(bench.folder(ROWS[0])).reason


@pytest.mark.usefixtures("at_once")
def test_a_sweep_that_an_earlier_version_began_goes_on(bench: Bench) -> None:
    """Its runs over MPI noted their end in a file of its own; its tasks have the number of the run's process."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    for row, task in zip(
        ROWS,
        [
            {"state": "running", "host": os.uname().nodename, "pid": pid, "tries": 1},
            {"state": "stopped", "host": os.uname().nodename},
            {"state": "failed", "host": os.uname().nodename, "reason": "not finite"},
            {"state": "pending"},
        ],
        strict=False,
    ):
        bench.folder(row).make()
        task_file(bench.folder(row)).write_text(json.dumps({"time": 1.0, **task}))
        (bench.folder(row).path / "end.json").write_text('{"code": 1, "reason": "of an earlier try"}')
    assert bench.states() == ["lost", "pending", "failed", "pending", "pending", "pending"]
    assert bench.run(lambda row, stop: (DONE, ""), launched=True) == FAILED
    assert bench.states() == ["done", "done", "failed", "done", "done", "done"]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_passes_that_on_and_starts_no_more(bench: Bench, number: signal.Signals) -> None:
    def do(row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
        if row.index == 1:
            os.kill(os.getppid(), number)
        until = time.monotonic() + 120
        while not stop() and time.monotonic() < until:
            time.sleep(0.01)
        return (INTERRUPTED, "") if stop() else (FAILED, "was never told")

    assert bench.run(do) == INTERRUPTED
    assert sorted(bench.begun()) == [0, 1] and bench.states() == ["pending"] * 6
    bench.stop = Stop()
    assert bench.run(lambda row, stop: (DONE, "")) == DONE


def test_a_signal_to_a_run_alone_does_not_end_the_others(bench: Bench) -> None:
    def do(row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
        if row.index == 2 and bench.begun().count(2) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            return (INTERRUPTED, "") if stop() else (FAILED, "")
        return DONE, ""

    assert bench.run(do) == DONE and bench.begun().count(2) == 2


def test_signals_that_come_twice_harm_no_run(bench: Bench) -> None:
    def do(row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
            os.kill(os.getpid(), number)  # as a batch system that signals every process, beside the supervisor
        return DONE, ""

    assert bench.run(do) == DONE


def test_a_run_that_another_process_is_at_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpfl_plugin.experiments.supervisor.BUSY_SECONDS", 0.05)
    ready, done = os.pipe()
    pid = os.fork()
    if pid == 0:
        with bench.folder(ROWS[0]).locked():
            os.write(done, b"1")
            while len(bench.begun() if (bench.out / "begun").exists() else []) < 5:
                time.sleep(0.01)
            finish(bench.folder(ROWS[0]))  # the other one does it
        os._exit(0)
    os.read(ready, 1)
    assert bench.run(lambda row, stop: (DONE, "")) == DONE
    os.waitpid(pid, 0)
    assert 0 not in bench.begun() and set(bench.states()) == {"done"}
    (waits,) = [text for text in bench.said if "another process" in text]  # once, however often it looked
    assert waits.startswith(f"0: {bench.folder(ROWS[0]).path}: another process (pid {pid} on ") and "waits" in waits


@pytest.fixture
def no_hang() -> Iterator[None]:
    """A test that waits for something that never comes fails."""

    def fail(number: int, frame: Any) -> None:
        raise AssertionError("waited in vain")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("no_hang")
def test_a_run_that_another_process_let_go_of_unfinished_is_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "BUSY_SECONDS", 2.0)  # longer than the others take
    ready, done = os.pipe()
    pid = os.fork()
    if pid == 0:
        with bench.folder(ROWS[0]).locked():
            os.write(done, b"1")
            wait_for(lambda: (bench.out / "begun").exists() and len(bench.begun()) == 5)
        os._exit(0)
    os.read(ready, 1)
    assert bench.run(lambda row, stop: (DONE, "")) == DONE
    os.waitpid(pid, 0)
    assert bench.begun()[-1] == 0 and set(bench.states()) == {"done"}


@pytest.mark.usefixtures("no_hang")
def test_a_launcher_that_was_killed_is_started_again_after_a_pause(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "AGAIN_SECONDS", (4 * supervisor.POLL_SECONDS,))

    def do(row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
        return (1, "") if row.index == 0 and bench.begun().count(0) < TRIES else (DONE, "")

    assert bench.run(do, jobs=1, launched=True) == DONE
    assert bench.begun().count(0) == TRIES and set(bench.states()) == {"done"}


def test_two_that_begin_the_same_run_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpfl_plugin.experiments.supervisor.BUSY_SECONDS", 0.05)

    def do(row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
        if bench.begun().count(row.index) == 1:
            raise BusyError("another process")  # took the lock between look and start
        return DONE, ""

    assert bench.run(do) == DONE and BUSY not in (DONE, FAILED, INTERRUPTED)
    assert all(bench.begun().count(row.index) == 2 for row in ROWS)


def test_a_launcher_that_was_killed_is_not_started_again_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an allocation that is gone launchers fail at once, until this process is ended, too."""
    monkeypatch.setattr(supervisor, "AGAIN_SECONDS", (3600.0,))

    def do(row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
        if row.index == len(ROWS) - 1:
            os.kill(os.getppid(), signal.SIGTERM)  # all have failed once
        return 1, ""

    assert bench.run(do, jobs=1, launched=True) == INTERRUPTED
    assert sorted(bench.begun()) == [row.index for row in ROWS]
    assert set(bench.states()) == {"pending"}


@pytest.mark.parametrize("with_parent", [True, False])
def test_a_task_whose_batch_script_is_gone_stops(with_parent: bool) -> None:
    end, told = os.pipe()
    parent = os.fork()
    if parent == 0:
        ready, begun = os.pipe()
        if os.fork() == 0:
            stop, first = Stop(with_parent=with_parent), os.getppid()
            before = stop.asked
            os.write(begun, b"x")
            wait_for(lambda: os.getppid() != first)
            os.write(told, f"{before} {stop.asked}".encode())
            os._exit(0)
        os.read(ready, 1)
        os._exit(0)
    os.waitpid(parent, 0)
    assert os.read(end, 100).decode() == f"False {with_parent}"


def test_an_orphan_is_told_to_stop(bench: Bench) -> None:
    told = bench.out / "told"

    def do(row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
        until = time.monotonic() + 120
        while not stop() and time.monotonic() < until:
            time.sleep(0.01)
        told.write_text(str(stop()))
        return INTERRUPTED, ""

    pid = os.fork()
    if pid == 0:
        bench.run(do, rows=ROWS[:1])
        os._exit(0)
    wait_for(lambda: (bench.out / "begun").exists())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    wait_for(lambda: told.exists() and bool(told.read_text()))
    assert told.read_text() == "True"


def test_beats_tell_a_run_that_is_alive_from_one_that_is_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(supervisor, "BEAT_SECONDS", 0.05)
    folder = bench.folder(ROWS[0])

    def do(row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
        wait_for(lambda: task_file(folder).exists())
        first = task_file(folder).stat().st_mtime_ns
        wait_for(lambda: task_file(folder).stat().st_mtime_ns > first)
        now = time.time()
        old, new = (status_of(folder, now + late).status for late in (20 * STALE_SECONDS, 0))
        return DONE if (old, new) == ("lost", "running") else FAILED, f"{old} {new}"

    assert bench.run(do, rows=ROWS[:1]) == DONE, bench.said


def test_a_process_of_this_machine_that_is_gone_is_lost_at_once(bench: Bench) -> None:
    folder = bench.folder(ROWS[0])
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    facts: dict[str, Any] = {"host": os.uname().nodename, "pid": pid, "job": "7_0"}
    write_task(folder, "running", **facts)
    known = status_of(folder)
    assert known.status == "lost" and "7_0" in known.reason
    write_task(folder, "running", **{**facts, "host": "elsewhere"})
    assert status_of(folder).status == "running"


def test_a_run_that_is_gone_on_with_by_itself_is_running(bench: Bench) -> None:
    folder = bench.folder(ROWS[0])
    with folder.locked():  # as the supervisor does, which lives, before it starts a run
        write_task(folder, "stopped")
        os.utime(task_file(folder), (time.time() + 1,) * 2)
        assert status_of(folder).status == "interrupted"
        os.utime(task_file(folder), (1.0, 1.0))
        assert status_of(folder).status == "running"
        write_task(folder, "running", pid=2**22 + 1, host=os.uname().nodename)  # of a supervisor that was killed
        os.utime(task_file(folder), (1.0, 1.0))
        assert status_of(folder).status == "running"
    os.utime(task_file(folder), (time.time() + 1,) * 2)
    assert status_of(folder).status == "lost"
    folder.write(folder.result, to_json({"status": "interrupted", "reason": ""}))  # by the process that went on
    os.utime(folder.result, (time.time() + 2,) * 2)
    assert status_of(folder).status == "interrupted"


def wait_for(what: Callable[[], bool], seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)
