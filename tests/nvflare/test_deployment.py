"""The adapter in a deployment with TLS: certificates, limits, a job that is aborted, and processes that are killed."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from dpfl_plugin.privacy.ledger import Ledger
from tests.nvflare.processes import ROOT, Deployment, children, needs_nvflare

pytestmark = [pytest.mark.nvflare, pytest.mark.slow, needs_nvflare]
APP = ROOT / "tests" / "nvflare" / "app"
ROUNDS = 14
SETTINGS = {
    "rounds": ROUNDS,
    "algorithm": {"name": "scaffold", "local_steps": 3, "local_lr": 0.5},
    "privacy": {"noise_multiplier": 1.5, "delta": 1e-5, "record_rate": 0.25},
}


def summary(folder):
    path = folder / "server" / "summary.json"
    return json.loads(path.read_text()) if path.exists() else {"rounds": 0, "status": "running"}


def charges(folder, silo):
    """What a silo's ledger holds, and what that of its data's lifetime does."""
    (own,) = (folder / f"owner-{silo}").glob(f"silo-{silo}-*")
    return [
        list(Ledger.open(path, append=False)) for path in (own / "ledger.jsonl", own.parent / "data.lifetime.jsonl")
    ]


def test_a_deployment_whose_job_is_aborted_and_whose_processes_are_killed(tmp_path):
    """Each time the job is submitted again. Site 3 allows less than the job asks for.

    Aborted is one by its user; then a site's process of the job is killed, then the site's own, then the whole server.
    """
    folder, made = tmp_path / "kept", Deployment(tmp_path)
    participants = ("localhost", "site-1", "site-2", "site-3")
    for name in participants:
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

    def submit(name, *more):
        kit, program = made.kits / "lead@org.org", APP / "submit.py"
        return made.start(name, str(program), str(kit), json.dumps(SETTINGS), str(folder), *more)

    def ended_or(one, condition):
        made.wait_for(lambda: condition() or one.poll() is not None)

    try:
        made.call("nvflare", "poc", "start")
        ended_or(submit("aborted", "2"), lambda: False)
        assert "ended: FINISHED:ABORTED" in made.said("aborted"), made.said()
        again = "What was charged stays charged; submitted again with the same settings it goes on"
        assert f"rounds. {again}" in made.said("localhost") and f"site-1: the job was aborted. {again}" in made.said(
            "site-1"
        )
        at_abort, at = [charges(tmp_path, silo) for silo in range(2)], summary(folder)["rounds"]
        second = submit("second")
        ended_or(second, lambda: summary(folder)["rounds"] >= at + 2)
        for worker in children(made.parent("site-1")):
            os.kill(worker, signal.SIGKILL)
        ended_or(second, lambda: False)
        at = summary(folder)["rounds"]
        third = submit("third")
        ended_or(third, lambda: summary(folder)["rounds"] >= at + 2)
        workers = children(made.parent("site-1"))
        made.kill("site-1", whole=False)
        made.wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))  # none trains unseen
        assert summary(folder)["rounds"] < ROUNDS, made.said()
        made.kill("localhost", whole=True)
        third.kill()
        third.wait()
        ended_or(submit("fourth"), lambda: False)
        made.stop(*participants)
    finally:
        made.end()
    said = summary(folder)
    assert (said["status"], said["rounds"]) == ("done", ROUNDS), made.said()
    for silo in range(2):
        own, lifetime = charges(tmp_path, silo)
        assert set(lifetime) == set(own)
        # A process that is killed between its charge and its answer is charged again for another answer.
        assert ROUNDS <= len(own) <= ROUNDS + 4
        for kept, now in zip(at_abort[silo], (own, lifetime), strict=True):
            assert kept and now[: len(kept)] == kept
    assert "site-3 (silo 2) takes no part" in made.said("site-3"), made.said("site-3")
    assert "silo 2 takes no part" in made.said("localhost") and not list(
        (tmp_path / "owner-2").glob("silo-*/ledger.jsonl")
    )
