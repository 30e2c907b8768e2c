"""What is asked of Slurm, where there is one and where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpfl_plugin.experiments import slurm


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 3], "0-3"), ([5, 0, 1, 9, 8], "0-1,5,8-9")]
)
def test_spans(numbers: list[int], text: str) -> None:
    assert slurm.spans(numbers) == text


def test_without_slurm_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm.queue(["1"]) is None and slurm.accounting(["1"]) is None and slurm.largest_array() is None


def test_the_queue_by_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    tool(tmp_path, "squeue", 'echo "12_0 RUNNING"; echo "12_1 PENDING"; echo "13_0 RUNNING"')
    assert slurm.queue(["12"]) == {"12_0": "RUNNING", "12_1": "PENDING"}
    # A job that squeue has forgotten: it refuses the whole question.
    tool(tmp_path, "squeue", 'case "$*" in *--jobs*) exit 1;; esac; echo "12_1 PENDING"; echo "99_1 RUNNING"')
    assert slurm.queue(["11", "12"]) == {"12_1": "PENDING"}
    tool(tmp_path, "squeue", "exit 1")
    assert slurm.queue(["12"]) is None


def test_accounting_by_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    tool(tmp_path, "sacct", 'echo "12_0|OUT_OF_MEMORY"; echo "12_1|CANCELLED by 0"')
    assert slurm.accounting(["12"]) == {"12_0": "OUT_OF_MEMORY", "12_1": "CANCELLED by 0"}


def test_the_sites_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    tool(tmp_path, "scontrol", 'echo "MaxArraySize            = 1001"')
    assert slurm.largest_array() == 1001
