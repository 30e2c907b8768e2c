"""What lies in the folder where `dpfl` is called is not run because of its name, unless the configuration names it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpfl_plugin.runs.csv_cells import csv_text
from tests.cli.command import write

ROOT = Path(__file__).parents[2]
TOUCH = "import pathlib\npathlib.Path({!r}).touch()\n"
MINE = """
import torch
import yaml  # the installed one

def net(feature_shape, num_classes):
    return torch.nn.Linear(feature_shape[0], num_classes)
"""
STRANGERS = ("yaml", "typer", "rich", "torch", "numpy", "matplotlib", "scipy", "strange_backend", "sitecustomise")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With files of strangers, of which each leaves a mark when it is run."""
    mark = str(tmp_path / "marks")
    for name in STRANGERS:
        (tmp_path / f"{name}.py").write_text(TOUCH.format(f"{mark}-{name}"))
    info = tmp_path / "strange-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange\nVersion: 1.0\n")
    groups = ("torch.backends", "matplotlib.backend", "dpfl_plugin.algorithms")
    (info / "entry_points.txt").write_text("".join(f"[{group}]\nscaffold = strange_backend:x\n" for group in groups))
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


WAYS = {
    "python -m": [sys.executable, "-m", "dpfl_plugin"],
    "console": [str(Path(sys.executable).with_name("dpfl"))],
    "mpi4py": [sys.executable, "-P", "-m", "mpi4py", "-m", "dpfl_plugin"],
}


SLOW = [pytest.param(way, marks=pytest.mark.slow) for way in ("console", "mpi4py")]


@pytest.mark.parametrize("way", ["python -m", *SLOW])  # the first begins where all others are told not to look
def test_the_working_folder_is_searched_last_and_for_what_is_named_only(folder: Path, way: str) -> None:
    if way == "mpi4py":
        pytest.importorskip("mpi4py")
    path = write(folder, {"rounds": 1, "model": {"module": "mine:net"}, "algorithm": {"name": "scaffold"}})
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    if "PYTHONPATH" in os.environ:  # of a checkout that is not the installed one
        environment["PYTHONPATH"] = str(ROOT)
    command = [*WAYS[way], "run", path.name, "--out", "runs"] if way != "mpi4py" else [*WAYS[way], "list", "algorithms"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not sorted(entry.name for entry in folder.glob("marks-*"))
    assert way == "mpi4py" or len(list(folder.glob("runs/*/*/result.json"))) == 1


def test_cells_that_a_spreadsheet_would_compute_are_text(tmp_path: Path) -> None:
    formulas = ["=1+1", "+cmd|' /C x'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1"]
    rows = [{"name": formula, "=header": 1, "value": -1.5e-7, "text": "-3.25", "inf": "-inf"} for formula in formulas]
    header, *lines = csv_text(rows).replace("\r", "<CR>").split("\n")[:-1]
    assert header.split(",")[:2] == ["name", "'=header"]
    for formula, line in zip(formulas, lines, strict=True):
        assert line.lstrip('"').startswith("'" + formula[0].replace("\r", "<CR>"))
        assert line.endswith(",1,-1.5e-07,-3.25,-inf")  # numbers, and text that is one, stay numbers
