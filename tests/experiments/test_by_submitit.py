"""Slurm by submitit, as far as it needs no Slurm."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from dpfl_plugin.errors import ConfigError, DpflError
from dpfl_plugin.experiments import by_submitit, slurm
from tests.config.test_sweep import runs


@pytest.mark.parametrize(
    ("text", "count"),
    [("30", 30), ("30:00", 30), ("30:01", 31), ("1:30:00", 90), ("2-12", 3600), ("2-12:30", 3630), ("0-0:0:5", 1)],
)
def test_time_limits(text: str, count: int) -> None:
    assert slurm.minutes(text) == count


def test_a_task_that_fails_is_one_that_raises() -> None:
    by_submitit.Task([sys.executable, "-c", "pass"])()
    with pytest.raises(DpflError, match="exit code 3"):
        by_submitit.Task([sys.executable, "-c", "import sys; sys.exit(3)"])()


def test_without_it_or_without_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    from dpfl_plugin.experiments import manifest

    sweep = manifest.plan(runs(tmp_path, {"seeds": 2}), tmp_path / "sweep.yaml", tmp_path)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "submitit", None)
        with pytest.raises(ConfigError, match="not installed"):
            by_submitit.submit(sweep, [0], "run.1", {}, manifest.Options())
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="Use --on local"):
        by_submitit.submit(sweep, [0], "run.1", {}, manifest.Options())


def test_a_signal_before_or_as_the_run_begins_reaches_the_run_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """submitit calls `checkpoint` in its handler of a signal, which may come at any time."""
    pytest.importorskip("submitit")
    spawn, heard, ended = os.posix_spawn, list[int](), list[int]()

    def interrupted(*args: object, **options: object) -> int:
        pid = spawn(*args, **options)  # type: ignore[arg-type]
        signal.raise_signal(signal.SIGUSR2)
        return pid

    def queue_again(number: int, frame: object) -> None:
        assert task.checkpoint().function.command == task.command
        with pytest.raises(ChildProcessError):
            os.waitpid(task._pid, os.WNOHANG)
        ended.append(task._pid)

    before = {name: signal.signal(name, lambda number, frame: heard.append(number)) for name in (signal.SIGUSR1,)}
    before[signal.SIGUSR2] = signal.signal(signal.SIGUSR2, queue_again)
    try:
        task = by_submitit.Task([sys.executable, "-c", "import time; time.sleep(600)"])
        task.checkpoint()
        monkeypatch.setattr(os, "posix_spawn", interrupted)
        task()
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
    assert not heard and ended == [task._pid] and task._pid
