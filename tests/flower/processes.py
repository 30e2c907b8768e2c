"""Flower's processes, started by a test and ended with it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("DPFL_FLOWER") or ROOT / ".venv-flower") / "bin"
SUPERLINK_LATE = "Failed to start local SuperLink"
PATIENCE = 540.0  # for what takes a minute on a quiet machine
OFF = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "OMP_NUM_THREADS": "1",
}
needs_flower = pytest.mark.skipif(
    not (BIN / "flwr").exists(), reason="Flower has no environment here: make it with launchers/env flower"
)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


class Flower:
    """One FLWR_HOME with what runs in it.

    Args:
        more: environment variables for all of its processes.
    """

    def __init__(self, folder: Path, **more: str) -> None:
        self.folder, self.home = folder, folder / "home"
        self.home.mkdir()
        ports = {
            name: str(free_port()) for name in ("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", "FLWR_LOCAL_CONTROL_API_PORT")
        }
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, **OFF, **ports, "FLWR_HOME": str(self.home), "PATH": path, **more}
        self.environment.pop("PYTHONPATH", None)
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"log-{name}").open("ab") as log:
            one = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(one)
        return one

    def kill(self, one: subprocess.Popen[bytes]) -> None:
        """And what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)
        one.wait()

    def run(self, app: Path, *more: str) -> str:
        """`flwr run` to its end; what it printed.

        It waits 15 s for the SuperLink that it starts, which a busy machine may not have up by then: asked again, it
        finds it.
        """
        for _ in range(3):
            one = self.start("run", "flwr", "run", str(app), *more, "--stream")
            self.wait_for(lambda one=one: one.poll() is not None)
            if one.returncode == 0 or SUPERLINK_LATE not in self.said("run"):
                break
        assert one.returncode == 0, self.said()
        return self.said("run")

    def wait_for(self, condition) -> None:  # type: ignore[no-untyped-def]
        until = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < until, self.said()
            time.sleep(0.1)

    def said(self, name: str = "*") -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob(f"log-{name}")))

    def end(self) -> None:
        for one in self.started:
            self.kill(one)
        # What `flwr run` leaves running: told by this home, which no other process has.
        mark = f"FLWR_HOME={self.home}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError):
                if mark in (process / "environ").read_bytes().split(b"\0") and int(process.name) != os.getpid():
                    os.kill(int(process.name), signal.SIGKILL)
