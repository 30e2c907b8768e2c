"""NVFlare's processes, started by a test and ended with it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Resolved: NVFlare starts the interpreter by its path and cuts that at spaces, for which a link may stand.
BIN = Path(os.environ.get("DPFL_NVFLARE") or ROOT / ".venv-nvflare").resolve() / "bin"
needs_nvflare = pytest.mark.skipif(
    not (BIN / "nvflare").exists(), reason="NVFlare has no environment here: make it with launchers/env nvflare"
)


def environment(folder: Path, *paths: Path) -> dict[str, str]:
    """For NVFlare's processes: nothing of this user's, and the project's modules at every site."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    own = {"HOME": str(home), "NVFLARE_POC_WORKSPACE": str(folder / "poc"), "OMP_NUM_THREADS": "1"}
    own["WORKSPACE"] = str(folder / "workspace-of-example")
    path = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(map(str, paths))}
    return {**os.environ, **own, **path}


PROJECT = """
api_version: 3
name: tests
participants:
  - {{name: localhost, type: server, org: org, fed_learn_port: {port}, admin_port: {port}}}
  - {{name: site-1, type: client, org: org}}
  - {{name: site-2, type: client, org: org}}
  - {{name: site-3, type: client, org: org}}
  - {{name: lead@org.org, type: admin, org: org, role: project_admin}}
builders:
  - {{path: nvflare.lighter.impl.workspace.WorkspaceBuilder}}
  - {{path: nvflare.lighter.impl.static_file.StaticFileBuilder, args: {{config_folder: config, scheme: grpc}}}}
  - {{path: nvflare.lighter.impl.cert.CertBuilder}}
  - {{path: nvflare.lighter.impl.signature.SignatureBuilder}}
"""
PATIENCE = 300.0  # for what takes half a minute on a quiet machine


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


class Deployment:
    """A server and three sites with startup kits: TLS, each with a certificate, started as their kits do.

    By `nvflare poc`, which provisions as `nvflare provision` does, and runs `startup/start.sh` of each kit: this begins
    a participant's process again within 5 s of its end.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.environment = folder, environment(folder)
        self.port = free_port()
        (folder / "project.yml").write_text(PROJECT.format(port=self.port))
        self.call("nvflare", "poc", "prepare", "-i", "project.yml")
        self.kits = folder / "poc" / "tests" / "prod_00"

    def allow(self, name: str, *classes: str) -> None:
        """What a participant's administrator does once."""
        local = self.kits / name / "local"
        # By default two deployments on a machine share folders in /tmp.
        text = (local / "resources.json.default").read_text().replace("/tmp/nvflare", str(self.folder / f"of-{name}"))
        values = json.loads(text)
        values["class_allow_list"] += classes
        (local / "resources.json").write_text(json.dumps(values))

    def keep_log(self, name: str) -> None:
        """What a site's administrator does once more: its process knows of it from its next start on."""
        path = self.kits / name / "local" / "resources.json"
        values = json.loads(path.read_text())
        assert values["allow_log_streaming"] is True, "as NVFlare provisions"
        path.write_text(json.dumps({**values, "allow_log_streaming": False}))

    def call(self, *command: str) -> str:
        done = self._run(*command)
        assert done.returncode == 0, done.stdout + self.said()
        return done.stdout

    def stop(self, *names: str) -> None:
        """`nvflare poc stop` by names: without them it first aborts jobs, and ends where a killed server left one."""
        done = self._run("nvflare", "poc", "stop", *(word for name in names for word in ("-p", name)))
        late = done.returncode == 2 and "did not complete before the timeout" in done.stdout
        assert done.returncode == 0 or late, done.stdout + self.said()
        self.wait_for(lambda: not any(self.parent(name) for name in names))  # each kit's script leaves no note then

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"log-{name}").open("ab") as log:
            return subprocess.Popen(
                [str(BIN / "python"), *command], cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )

    def parent(self, name: str) -> int:
        """The process that is there between jobs."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int((self.kits / name / "pid.fl").read_text())
        return 0

    def kill(self, name: str, *, whole: bool) -> None:
        """A participant's process, with ``whole`` those of its jobs, too; back when its kit began it again."""
        before = self.parent(name)
        for process in [before, *(children(before) if whole else ())]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.wait_for(lambda: self.parent(name) not in (0, before))
        if name == "localhost":
            self.wait_for(lambda: listens(self.port))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < until, self.said()
            time.sleep(0.1)

    def said(self, name: str = "*") -> str:
        logs = [
            *self.folder.glob(f"log-{name}"),
            *self.kits.glob(f"{name}/*/log.txt"),
            *self.kits.glob(f"{name}/poc_console.log"),
        ]
        return "\n".join(f"== {path}\n{path.read_text(errors='replace')}" for path in sorted(logs))

    def end(self) -> None:
        """Whatever was started, told by its home."""
        mark = f"HOME={self.environment['HOME']}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)


def children(pid: int) -> list[int]:
    """Those of a process, and theirs."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found += [int(path.parent.name), *children(int(path.parent.name))]
    return found
