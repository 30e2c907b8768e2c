"""Ctrl-C while libraries are loaded: one line, exit code 4, and nothing written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import dpfl, write


@pytest.mark.parametrize("imported", ["dpfl_plugin.interrupts", "typer", "torch.types"])
def test_an_interruption_while_a_run_starts_is_one_line(tmp_path: Path, imported: str) -> None:
    command = [sys.executable, "-P", "-X", "importtime", "-m", "dpfl_plugin", "run", str(write(tmp_path))]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path / "runs")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # what runs in the background ignores it
    ) as process:
        assert process.stderr is not None and process.stdout is not None
        for line in process.stderr:  # Python tells each import as it ends
            if line.rpartition("|")[2].strip() == imported:
                break
        process.send_signal(signal.SIGINT)
        said = [line for line in process.stderr if line.strip() and not line.startswith("import time:")]
        assert process.wait() == 7
        assert said == ["dpfl: interrupted while it was starting: nothing was run, and nothing is lost.\n"]
        assert not process.stdout.read() and not (tmp_path / "runs").exists()


def test_after_the_start_ctrl_c_is_what_it_was(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert dpfl("run", write(tmp_path, {"rounds": 1}), "--out", tmp_path / "runs").code == 0
    assert signal.getsignal(signal.SIGINT) is before
