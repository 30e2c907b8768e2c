"""Ctrl-C while libraries are loaded: one line, the exit code of an interruption, and nothing written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import dpfl, write
from tests.cli.sweeping import write as write_sweep
from tests.cli.test_tune import TUNE


@pytest.mark.parametrize(
    ("command", "imported", "code"),
    [
        ("run", "dpfl_plugin.interrupts", 7),
        ("run", "typer", 7),
        ("run", "torch.types", 7),
        ("sweep", "dpfl_plugin.interrupts", 4),
        ("sweep", "dpfl_plugin.experiments.manifest", 4),
        ("tune", "typer", 4),
        ("tune", "torch.types", 4),
    ],
)
def test_an_interruption_while_a_command_starts_is_one_line(
    tmp_path: Path, command: str, imported: str, code: int
) -> None:
    words = [sys.executable, "-P", "-X", "importtime", "-m", "dpfl_plugin", command, str(write(tmp_path))]
    with subprocess.Popen(
        [*words, "--out", str(tmp_path / "runs")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # what runs in the background ignores it
    ) as process:
        assert process.stderr is not None and process.stdout is not None
        for line in process.stderr:  # Python tells each import as it ends
            if line.rpartition("|")[2].strip() == imported:
                break
        process.send_signal(signal.SIGINT)
        said = [line for line in process.stderr if line.strip() and not line.startswith("import time:")]
        assert process.wait() == code
        assert said == ["dpfl: interrupted while it was starting: nothing was run, and nothing is lost.\n"]
        assert not process.stdout.read() and not (tmp_path / "runs").exists()


def test_after_the_start_ctrl_c_is_what_it_was(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert dpfl("run", write(tmp_path, {"rounds": 1}), "--out", tmp_path / "runs").code == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interruption_between_start_and_first_round_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpfl_plugin.api.sweep._register", interrupt)
    done = dpfl("sweep", write_sweep(tmp_path, {"seeds": 1}), "--out", tmp_path / "sweep")
    assert done.code == 4 and "everything that began is saved. The same command continues" in done.err
    monkeypatch.setattr("dpfl_plugin.experiments.tuning.successive_halving.write_plan", interrupt)
    done = dpfl("tune", write(tmp_path, TUNE), "--out", tmp_path / "tuning")
    assert done.code == 4 and "The same call or command continues" in done.err
