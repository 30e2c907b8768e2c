"""The adapter in Flower's own environment: in its simulation engine, and in real processes."""

import json
import os
import re
import subprocess

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpfl_plugin.adapters import Server, agree
from dpfl_plugin.privacy.ledger import Ledger
from tests.adapters.federation import SimulatedSilo
from tests.adapters.reference import NOISY, check_noise
from tests.flower.processes import BIN, OFF, ROOT, Flower, free_port, listens, needs_flower

pytestmark = [pytest.mark.flower, pytest.mark.slow, needs_flower]
APP, EXAMPLE = ROOT / "tests" / "flower" / "app", ROOT / "examples" / "flower_existing_project"
SETTINGS = {
    "rounds": 4,
    "seed": 5,
    "algorithm": {"name": "scaffold", "local_steps": 3, "local_lr": 0.5},
    "privacy": {"noise_multiplier": 1.5, "delta": 1e-5, "record_rate": 0.25},
}


def test_where_flower_can_be_imported():
    """The adapter on Flower's own types, what Flower does without it, and the contract of adapters."""
    command = [str(BIN / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
    folder = ROOT / "tests" / "flower"
    environment = {**os.environ, **OFF, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, f"--rootdir={ROOT}", "inside.py", "theirs.py", "wire.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def write_data(folder, num_silos=3):
    """Silos of unequal sizes."""
    folder.mkdir()
    rng = np.random.default_rng(3)
    for silo in range(num_silos):
        size = 25 + 9 * silo
        x = rng.standard_normal((size, 4)) + silo
        np.savez(folder / f"{silo}.npz", x=x, y=rng.integers(0, 3, size))
    return folder


@pytest.fixture
def task(monkeypatch):
    """The project's module: its models, and how it reads records."""
    monkeypatch.syspath_prepend(str(APP))
    from silos import task

    return task


def plain_loop(task, data, folder, kind):
    """The same by a loop, in this process: what Flower's processes are to compute."""
    model = task.make_model(kind)
    agreement, draw = agree(SETTINGS, num_silos=3, model=model), task.draws(5, "same")
    server = Server(agreement, model)
    silos = [SimulatedSilo(agreement, i, model, task.load(data, i), folder / f"{i}", draw=draw) for i in range(3)]
    while (message := server.begin()) is not None:
        for silo in server.asked:
            assert server.receive(silo, silos[silo].answer(message)) is None
        server.end()
    for silo in silos:
        silo.close()
    return server.model


def final_model(folder):
    return load_file(folder / "server" / "checkpoint" / "state.safetensors")["server.model"]


def simulate(tmp_path, kind, draw="", **settings):
    """`flwr run` in the simulation engine: (what it said, its model (d,), the folder of the data)."""
    data, folder = write_data(tmp_path / "data"), tmp_path / "silos"
    flower = Flower(tmp_path, DPFL_TEST_MODEL=kind, DPFL_TEST_DRAW=draw)
    given = " ".join(f"{key}={value}" for key, value in settings.items())
    try:
        given = f"data='{data}' dpfl.folder='{folder}' {given}"
        said = flower.run(APP, "--federation-config", "num-supernodes=3", "--run-config", given)
    finally:
        flower.end()
    return said, final_model(folder), data


def privacy(values):
    return {f"dpfl.privacy.{key}": value for key, value in values.items()}


def test_flwr_run_in_the_simulation_engine_gives_the_result_of_a_plain_loop(tmp_path, task):
    said, found, data = simulate(tmp_path, "mlp", "same")
    assert "ended: done 4" in said
    torch.testing.assert_close(found, plain_loop(task, data, tmp_path / "loop", "mlp"), rtol=0, atol=1e-12)


@pytest.mark.statistical
def test_the_noise_in_flower_is_that_of_the_settings(tmp_path, task):
    """See `tests.adapters.reference.check_noise`."""
    one = {"num-server-rounds": 1, "dpfl.rounds": 1, "dpfl.algorithm.local_steps": 1, "evaluated": 0.0}
    _, found, data = simulate(tmp_path, "wide", **privacy(NOISY), **one)
    check_noise(found, task.make_model("wide"), [task.load(data, silo) for silo in range(3)])


def summary(folder):
    return json.loads((folder / "server" / "summary.json").read_text())


def rounds(folder):
    return summary(folder)["rounds"] if (folder / "server" / "summary.json").exists() else 0


def test_a_superlink_and_supernodes_one_of_which_is_killed_and_comes_back(tmp_path):
    data, folder, port = write_data(tmp_path / "data"), tmp_path / "silos", free_port()
    for silo in range(3):  # whose owners set
        limits = tmp_path / f"limits-{silo}.yaml"
        limits.write_text(
            f"folder: {tmp_path / f'owner-{silo}'}\nepsilon: 100\ndelta: 1e-3\nmin_records: 20\nnum_classes: 3\n"
        )
        limits.chmod(0o600)
    flower = Flower(tmp_path)
    (flower.home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )

    def node(silo):
        own = f"partition-id={silo} num-partitions=3 dpfl-limits='{tmp_path / f'limits-{silo}.yaml'}'"
        link = ["--insecure", "--superlink", f"127.0.0.1:{port}", "--port", str(free_port()), "--node-config", own]
        return flower.start(f"node-{silo}", "flower-supernode", *link)

    try:
        database = ["--database", str(tmp_path / "state.db")]
        flower.start("link", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port), *database)
        flower.wait_for(lambda: listens(port))
        nodes = [node(silo) for silo in range(3)]
        rounds_wanted = 5
        settings = f"data='{data}' nodes=1 patience=10.0 num-server-rounds={rounds_wanted} dpfl.rounds={rounds_wanted}"
        settings += " evaluated=0.0"  # each message starts a process
        running = flower.start(
            "run", "flwr", "run", str(APP), "here", "--run-config", f"{settings} dpfl.folder='{folder}'", "--stream"
        )
        flower.wait_for(lambda: rounds(folder) >= 1 or running.poll() is not None)
        flower.kill(nodes[1])
        at = rounds(folder)
        flower.wait_for(lambda: rounds(folder) >= at + 1 or running.poll() is not None)
        without = summary(folder)["silos"]["1"]["rounds"]
        nodes[1] = node(1)
        flower.wait_for(lambda: running.poll() is not None)
    finally:
        flower.end()
    said = summary(folder)
    assert (said["status"], said["rounds"]) == ("done", rounds_wanted), flower.said()
    assert said["silos"]["0"]["rounds"] == said["silos"]["2"]["rounds"] == rounds_wanted
    assert without < said["silos"]["1"]["rounds"] < rounds_wanted, flower.said()  # it came back, with its folder
    for silo in range(3):
        (own,) = (tmp_path / f"owner-{silo}").glob(f"silo-{silo}-*")
        charges = list(Ledger.open(own / "ledger.jsonl", append=False))
        assert set(Ledger.open(own.parent / "data.lifetime.jsonl", append=False)) == set(charges)
        assert f"silo {silo}: agreed epsilon" in flower.said(f"node-{silo}")
        assert {charge.silo for charge in charges} == {silo}
        assert len(charges) >= said["silos"][str(silo)]["rounds"]


def test_the_example_runs_offline_and_says_what_its_page_says(tmp_path):
    flower = Flower(tmp_path)
    try:
        folder = f"dpfl.folder='{tmp_path / 'silos'}'"
        said = flower.run(EXAMPLE / "private", "--federation-config", "num-supernodes=5", "--run-config", folder)
    finally:
        flower.end()
    (accuracy,) = re.findall(r"accuracy after 10 rounds: (\d\.\d+)", said)
    assert 0.4 < float(accuracy) < 0.95  # noise is fresh each time
    for silo in range(5):
        stated = json.loads((tmp_path / "silos" / f"silo-{silo}" / "ledger.json").read_text())
        assert 7.9 < stated["views"]["server"]["epsilon"] <= 8
        assert "Privacy statement" in (tmp_path / "silos" / f"silo-{silo}" / "privacy.md").read_text()
