"""The adapter in a deployment with TLS: a server and sites with certificates, limits, and processes that are killed."""

import json
import os
import shutil
import signal

import pytest

from dpfl_plugin.privacy.ledger import Ledger
from tests.nvflare.processes import ROOT, Deployment, children, needs_nvflare

pytestmark = [pytest.mark.nvflare, pytest.mark.slow, needs_nvflare]
APP = ROOT / "tests" / "nvflare" / "app"
ROUNDS = 20
SETTINGS = {
    "rounds": ROUNDS,
    "algorithm": {"name": "scaffold", "local_steps": 3, "local_lr": 0.5},
    "privacy": {"noise_multiplier": 1.5, "delta": 1e-5, "record_rate": 0.25},
}


def summary(folder):
    path = folder / "server" / "summary.json"
    return json.loads(path.read_text()) if path.exists() else {"rounds": 0, "status": "running"}


def test_a_deployment_whose_processes_are_killed_and_started_again(tmp_path):
    """First a site's process of the job is killed, then the server. Site 3 allows less than the job asks for."""
    folder, made = tmp_path / "kept", Deployment(tmp_path)
    for name in ("localhost", "site-1", "site-2", "site-3"):
        kind = "PrivateController" if name == "localhost" else "PrivateExecutor"
        made.allow(name, f"dpfl_plugin.adapters.nvflare.{kind}", "project.Net")
        custom = made.kits / name / "local" / "custom"
        custom.mkdir(exist_ok=True)
        shutil.copy(APP / "project.py", custom)
    for silo in range(3):
        limits = tmp_path / f"limits-{silo}.yaml"
        limits.write_text(f"folder: {tmp_path / f'owner-{silo}'}\nepsilon: {3 if silo == 2 else 100}\ndelta: 1e-4\n")
        limits.chmod(0o600)
        own = made.kits / f"site-{silo + 1}" / "local" / "dpfl.json"
        own.write_text(json.dumps({"limits": str(limits), "records": "project:records"}))

    def submit(name):
        kit, program = made.kits / "lead@org.org", APP / "submit.py"
        return made.start(name, str(program), str(kit), json.dumps(SETTINGS), str(folder))

    def ended_or(one, condition):
        made.wait_for(lambda: condition() or one.poll() is not None)

    try:
        for name in ("localhost", "site-1", "site-2", "site-3"):
            made.join(name)
        made.wait_for(lambda: all(f"client site-{i}" in made.said("localhost").lower() for i in (1, 2, 3)))
        first = submit("first")
        ended_or(first, lambda: summary(folder)["rounds"] >= 2)
        for worker in children(made.started["site-1"].pid):
            os.kill(worker, signal.SIGKILL)
        ended_or(first, lambda: False)
        at = summary(folder)["rounds"]
        second = submit("second")
        ended_or(second, lambda: summary(folder)["rounds"] >= at + 2)
        made.kill("localhost")
        made.kill("second")
        made.join("localhost")
        third = submit("third")
        ended_or(third, lambda: False)
    finally:
        made.end()
    said = summary(folder)
    assert (said["status"], said["rounds"]) == ("done", ROUNDS), made.said()
    for silo in range(2):
        (own,) = (tmp_path / f"owner-{silo}").glob(f"silo-{silo}-*")
        charges = list(Ledger.open(own / "ledger.jsonl", append=False))
        assert set(Ledger.open(own.parent / "data.lifetime.jsonl", append=False)) == set(charges)
        # A process that is killed between its charge and its answer is charged again for another answer.
        assert ROUNDS <= len(charges) <= ROUNDS + 2
    assert "site-3 (silo 2) takes no part" in made.said("site-3"), made.said("site-3")
    assert "silo 2 takes no part" in made.said("localhost") and not list(
        (tmp_path / "owner-2").glob("silo-*/ledger.jsonl")
    )
