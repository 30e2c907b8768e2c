"""The adapter in NVFlare's own environment: against a loop, and in its simulator."""

import json
import subprocess

import pytest
import torch
from safetensors.torch import load_file

from dpfl_plugin.adapters import Server, agree
from dpfl_plugin.privacy.ledger import Ledger
from tests.adapters.federation import SimulatedSilo
from tests.nvflare.processes import BIN, ROOT, environment, needs_nvflare

pytestmark = [pytest.mark.nvflare, pytest.mark.slow, needs_nvflare]
APP, EXAMPLE = ROOT / "tests" / "nvflare" / "app", ROOT / "examples" / "nvflare_existing_project"
SETTINGS = {
    "rounds": 3,
    "algorithm": {"name": "scaffold", "local_steps": 3, "local_lr": 0.5},
    "privacy": {"noise_multiplier": 1.5, "delta": 1e-5, "record_rate": 0.25},
}


def run(folder, *command, cwd):
    done = subprocess.run(
        [str(BIN / "python"), *command],
        cwd=cwd,
        env=environment(folder, ROOT),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def test_where_nvflare_can_be_imported(tmp_path):
    """The adapter on NVFlare's own types, and the contract of adapters."""
    options = ["-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default", f"--rootdir={ROOT}"]
    run(tmp_path, "-m", "pytest", *options, "inside.py", "logs_inside.py", "wire_inside.py", cwd=APP.parent)


def test_the_example_is_a_job(tmp_path):
    """What its recipe makes of it, and that this package's code is not in it."""
    run(tmp_path, "job.py", "--export", "--export-dir", str(tmp_path / "made"), cwd=EXAMPLE / "private")
    (client,) = (tmp_path / "made").rglob("config_fed_client.json")
    (executor,) = json.loads(client.read_text())["executors"]
    assert executor["executor"]["path"] == "dpfl_plugin.adapters.nvflare.PrivateExecutor"
    assert {path.name for path in (tmp_path / "made").rglob("*.py")} == {"task.py"}


def load_project(monkeypatch):
    monkeypatch.syspath_prepend(str(APP))
    import project

    return project


def charges(folder):
    return list(Ledger.open(folder / "ledger.jsonl", append=False))


def final_model(folder):
    return load_file(folder / "server" / "checkpoint" / "state.safetensors")["server.model"]


def test_a_job_in_the_simulator_gives_the_result_of_a_plain_loop(tmp_path, monkeypatch):
    folder, workspace = tmp_path / "kept", tmp_path / "workspace"
    said = run(tmp_path, "job.py", json.dumps(SETTINGS), str(folder), str(workspace), cwd=APP)
    assert "dpfl: round 3 of 3: epsilon at most" in said
    assert "dpfl: the run is over: done after 3 rounds" in said
    project = load_project(monkeypatch)
    model = project.Net(5)
    agreement = agree(SETTINGS, num_silos=3, model=model)
    server = Server(agreement, model)
    silos = []
    for silo in range(3):
        records, own = project.records(f"site-{silo + 1}"), tmp_path / f"loop-{silo}"
        silos.append(SimulatedSilo(agreement, silo, model, records, own, draw=project.draw))
    while (message := server.begin()) is not None:
        for silo in server.asked:
            assert server.receive(silo, silos[silo].answer(message)) is None
        server.end()
    for silo in silos:
        silo.close()
    torch.testing.assert_close(final_model(folder), server.model, rtol=0, atol=1e-12)
    (kept,) = workspace.rglob("FL_global_model.pt")
    found = torch.cat([value.flatten() for value in torch.load(kept)["model"].values()])
    assert torch.equal(found, final_model(folder))
    for silo in range(3):
        assert charges(folder / f"silo-{silo}") == charges(tmp_path / f"loop-{silo}")
