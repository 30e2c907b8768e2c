"""The example notebook, as Jupyter runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.sweeping import write as write_sweep

for needed in ("nbclient", "ipykernel"):
    pytest.importorskip(needed)
NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_federation.ipynb"
# In a process of its own: the Jupyter client leaves sockets open. By this Python, whatever kernels are registered.
EXECUTE = """
import sys, nbclient, nbformat
from jupyter_client.manager import AsyncKernelManager

notebook = nbformat.read(sys.argv[1], as_version=4)
manager = AsyncKernelManager()
manager.kernel_spec.argv[:] = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
nbclient.NotebookClient(notebook, km=manager, timeout=300, resources={"metadata": {"path": "."}}).execute()
nbformat.write(notebook, "executed.ipynb")
"""


# What other cells compute leaves threads that a fork lacks.
SWEEP = (
    """
import torch

torch.set_num_threads(2)
(torch.randn(1000, 1000) @ torch.randn(1000, 1000)).sum()
""",
    """
import dpfl_plugin as dpfl

results = dpfl.sweep("sweep.yaml", jobs=2)
results
""",
)


def executed(notebook: Path, folder: Path) -> list[dict[str, Any]]:
    """The outputs of a notebook's cells."""
    own = {key: str(folder / key) for key in ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")}
    command = [sys.executable, "-c", EXECUTE, str(notebook)]
    done = subprocess.run(command, cwd=folder, env=os.environ | own, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    cells = json.loads((folder / "executed.ipynb").read_text())["cells"]
    return [output for cell in cells for output in cell.get("outputs", ())]


def pages_of(outputs: list[dict[str, Any]]) -> list[str]:
    return ["".join(output["data"]["text/html"]) for output in outputs if "text/html" in output.get("data", {})]


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_it_promises(tmp_path):
    assert not any(cell.get("outputs") for cell in json.loads(NOTEBOOK.read_text())["cells"]), "commit no outputs"
    outputs = executed(NOTEBOOK, tmp_path)
    logs = [path.read_text() for path in tmp_path.glob("runs/run/*/log.txt")]
    assert len(logs) == 2 and all("randomness fresh" in log for log in logs), logs
    said = json.dumps(outputs)
    for part in ("noise_multiplier ", "randomness fresh", "Privacy statement", "epsilon_server", "(0): Linear"):
        assert part in said, part
    pages = pages_of(outputs)
    assert sum("data:image/png;base64" in page for page in pages) == 2
    assert any("<td>scaffold</td>" in page and "<td>fedavg</td>" in page for page in pages)


@pytest.mark.slow
def test_a_sweep_runs_and_shows_itself_in_a_notebook(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"grid": {"l2": [0.0, 0.1]}}, {"rounds": 2})
    cells = [{"cell_type": "code", "source": code, "metadata": {}, "outputs": []} for code in SWEEP]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    (tmp_path / "sweep.ipynb").write_text(json.dumps(notebook))
    bar, page = pages_of(executed(tmp_path / "sweep.ipynb", tmp_path))
    assert "2/2 runs" in bar and page.count("<td>done</td>") == 2 and "data:image/png;base64" in page
