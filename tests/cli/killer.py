"""Runs `dpfl` in processes of their own that get signals at exact places; torch is imported once, for all of them.

Reads a JSON list of jobs from stdin: {"argv": [...], "signals": [[place, name], ...]}. A place is the number of a file
operation below the folder that follows --out (opening, renaming, deleting, fsync), counted from 1. Writes to stdout a
JSON list of {"status": exit code or minus the signal, "out": ..., "err": ...}.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import tempfile
from typing import Any

import dpfl_plugin.cli.run
from dpfl_plugin.cli.main import main

EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}


def send_signals(folder: str, wanted: list[tuple[int, str]]) -> None:
    count = 0
    at_place: dict[int, list[int]] = {}
    for place, name in wanted:
        at_place.setdefault(place, []).append(getattr(signal, name))

    def step() -> None:
        nonlocal count
        count += 1
        for number in at_place.get(count, []):
            os.kill(os.getpid(), number)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in EVENTS and args and str(args[0]).startswith(folder):
            step()

    real = os.fsync

    def fsync(handle: int) -> None:
        step()
        real(handle)
        step()

    os.fsync = fsync
    sys.addaudithook(hook)


def child(job: dict[str, Any], out: int, err: int) -> None:
    os.dup2(out, 1)
    os.dup2(err, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    argv = job["argv"]
    send_signals(argv[argv.index("--out") + 1], job["signals"])
    sys.argv = ["dpfl", *argv]
    main()


def ran(job: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                child(job, out.fileno(), err.fileno())
            except SystemExit as end:
                code = int(end.code or 0)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        texts = {}
        for name, file in (("out", out), ("err", err)):
            file.seek(0)
            texts[name] = file.read().decode()
    return {"status": os.waitstatus_to_exitcode(status), **texts}


def warm_up(job: dict[str, Any]) -> None:
    """Run a job here once: the processes to come inherit what it imported and computed."""
    argv = list(job["argv"])
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(SystemExit),
    ):
        argv[argv.index("--out") + 1] = folder
        sys.argv = ["dpfl", *argv]
        main()


if __name__ == "__main__":
    dpfl_plugin.cli.run.curves = lambda *args: None  # type: ignore[assignment]
    jobs = json.load(sys.stdin)
    warm_up(jobs[0])
    print(json.dumps([ran(job) for job in jobs]))
