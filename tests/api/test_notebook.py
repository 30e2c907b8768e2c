"""The example notebook, as Jupyter runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

for needed in ("nbclient", "ipykernel", "pandas"):
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


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_it_promises(tmp_path):
    assert not any(cell.get("outputs") for cell in json.loads(NOTEBOOK.read_text())["cells"]), "commit no outputs"
    own = {key: str(tmp_path / key) for key in ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")}
    command = [sys.executable, "-c", EXECUTE, str(NOTEBOOK)]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | own, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    executed = json.loads((tmp_path / "executed.ipynb").read_text())
    outputs = [one for cell in executed["cells"] for one in cell.get("outputs", ())]
    logs = [path.read_text() for path in tmp_path.glob("runs/run/*/log.txt")]
    assert len(logs) == 2 and all("randomness fresh" in log for log in logs), logs
    said = json.dumps(outputs)
    for part in ("noise_multiplier ", "randomness fresh", "Privacy statement", "epsilon_server", "(0): Linear"):
        assert part in said, part
    pages = ["".join(one["data"]["text/html"]) for one in outputs if "text/html" in one.get("data", {})]
    assert sum("data:image/png;base64" in page for page in pages) == 2
    assert any("<td>scaffold</td>" in page and "<td>fedavg</td>" in page for page in pages)
