"""Runs `dpfl` in processes of their own that get signals at exact places; torch is imported once, for all of them.

Reads a JSON list of jobs from stdin: {"argv": [...], "signals": [[place, name], ...]}. A place is the number of a file
operation below the folder that follows --out (opening, renaming, deleting, fsync), counted from 1. Writes to stdout a
JSON list of {"status": exit code or minus the signal, "out": ..., "err": ...}.

A job may also have "watch": true, to be told what left the silos: "left": [[round, silo, noise_id, digest of the
upload], ...] and "ledgers": {path: content}; "after": [uploads, seconds], for SIGKILL so many seconds after so many
uploads left, whatever the process is at.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.csv  # noqa: F401, once for all that read tables
import typer.main

from dpfl_plugin.cli.main import main
from dpfl_plugin.runtimes.in_process import InProcess
from tests.mpi.unmeasured import switch_off

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


def tell_what_leaves(file: int) -> None:
    """Write a line for each upload when the runtime hands it on: at once, so that no signal can take it back."""
    make, run_round, noise = InProcess.__init__, InProcess.run_round, ""

    def init(self: InProcess, *args: Any, **options: Any) -> None:
        make(self, *args, **{**options, "observers": [left]})

    def remember(self: InProcess, down: Any, plan: Any, draw: Any) -> Any:
        nonlocal noise
        noise = draw.noise_id
        return run_round(self, down, plan, draw)

    def left(round: int, silos: Any, up: Any) -> None:
        for row, silo in enumerate(silos if up else ()):  # nothing leaves where records are scaled
            bits = b"".join(up[name][row].numpy().tobytes() for name in sorted(up))
            os.write(file, json.dumps([round, silo, noise, hashlib.sha256(bits).hexdigest()[:16]]).encode() + b"\n")

    InProcess.__init__ = init  # type: ignore[method-assign]
    InProcess.run_round = remember  # type: ignore[method-assign]


def child(job: dict[str, Any], out: int, err: int, left: int) -> None:
    os.dup2(out, 1)
    os.dup2(err, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    argv = job["argv"]
    if job.get("watch"):
        tell_what_leaves(left)
    send_signals(argv[argv.index("--out") + 1], job["signals"])
    sys.argv = ["dpfl", *argv]
    main()


def wait_for(pid: int, file: int, uploads: int) -> None:
    """Return once so many lines are in the file, or the process ended."""
    ended = os.WEXITED | os.WNOWAIT | os.WNOHANG
    while os.pread(file, 2**20, 0).count(b"\n") < uploads and os.waitid(os.P_PID, pid, ended) is None:
        time.sleep(0.0005)


def ran(job: dict[str, Any]) -> dict[str, Any]:
    folder = Path(job["argv"][job["argv"].index("--out") + 1])
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as left:
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                child(job, out.fileno(), err.fileno(), left.fileno())
            except SystemExit as end:
                code = int(end.code or 0)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        if "after" in job:
            wait_for(pid, left.fileno(), job["after"][0])
            time.sleep(job["after"][1])
            os.kill(pid, signal.SIGKILL)  # not waited for yet, so that the id is still its own
        _, status = os.waitpid(pid, 0)
        texts = {}
        for name, file in (("out", out), ("err", err), ("left", left)):
            file.seek(0)
            texts[name] = file.read().decode()
    result: dict[str, Any] = {"status": os.waitstatus_to_exitcode(status), **texts}
    if job.get("watch"):
        result["left"] = [json.loads(line) for line in texts["left"].splitlines()]
        result["ledgers"] = {
            str(path): path.read_text() for path in folder.rglob("*.jsonl") if "metrics" not in path.name
        }
    return result


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
    switch_off()
    typer.main.get_command = functools.cache(typer.main.get_command)
    jobs = json.load(sys.stdin)
    warm_up(jobs[0])
    print(json.dumps([ran(job) for job in jobs]))
