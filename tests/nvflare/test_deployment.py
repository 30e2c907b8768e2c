"""The adapter in a deployment with TLS: limits, logs, a job that is aborted, and processes that are killed."""

import json
import os
import shutil
import signal
import zipfile
from pathlib import Path

import pytest

from dpfl_plugin.privacy.ledger import Ledger
from tests.nvflare.processes import ROOT, Deployment, children, needs_nvflare

pytestmark = [pytest.mark.nvflare, pytest.mark.slow, needs_nvflare]
APP = ROOT / "tests" / "nvflare" / "app"
SITES = ("site-1", "site-2", "site-3")
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


def back(made):
    """Whether the server that was started last knows all sites: a job is of those that are there when it begins."""
    since = made.said("localhost").rpartition("Server started")[2]
    return all(f"client: {site} " in since or f"client {site}@" in since for site in SITES)


def deployed(folder, epsilons=(100, 100, 100), records=("project:records",) * 3):
    """Kits as provisioned, with what administrators and owners add to them, but for the logs that stay at sites."""
    made = Deployment(folder)
    for name in ("localhost", *SITES):
        kind = "PrivateController" if name == "localhost" else "PrivateExecutor"
        made.allow(name, f"dpfl_plugin.adapters.nvflare.{kind}", "project.Net")
        custom = made.kits / name / "local" / "custom"
        custom.mkdir(exist_ok=True)
        shutil.copy(APP / "project.py", custom)
    for silo, site in enumerate(SITES):
        limits = folder / f"limits-{silo}.yaml"
        facts = "min_records: 20\nnum_classes: 3\n"
        limits.write_text(f"folder: {folder / f'owner-{silo}'}\nepsilon: {epsilons[silo]}\ndelta: 1e-4\n{facts}")
        limits.chmod(0o600)
        own = made.kits / site / "local" / "dpfl.json"
        own.write_text(json.dumps({"limits": str(limits), "records": records[silo]}))
    return made


def submitted(made, name, folder, *more):
    kit, program = made.kits / "lead@org.org", APP / "submit.py"
    return made.start(name, str(program), str(kit), json.dumps(SETTINGS), str(folder), *more)


def test_a_deployment_whose_job_is_aborted_and_whose_processes_are_killed(tmp_path):
    """Each time the job is submitted again. Site 3 allows less than the job asks for.

    Aborted is one by its user; then a site's process of the job is killed, then the site's own, then the whole server.
    """
    folder, made = tmp_path / "kept", deployed(tmp_path, epsilons=(100, 100, 3))
    for site in SITES:
        made.keep_log(site)

    def submit(name, *more):
        return submitted(made, name, folder, *more)

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
        made.wait_for(lambda: back(made))
        ended_or(submit("fourth"), lambda: False)
        made.stop("localhost", *SITES)
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


RECORD = "J. Doe, HIV+"
SENT = {"site-1/log.txt", "ERRORLOG_site-1"}  # by the job, and by the site's own process


def at_the_server(made, *words):
    """Names of files of the server's machine that hold one of the words; of those in a job's archive, theirs there."""
    found = set()
    for folder in (made.kits / "localhost", made.folder / "of-localhost"):
        for path in filter(Path.is_file, folder.rglob("*")):
            held = {path.name: path.read_bytes()}
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    held |= {name: archive.read(name) for name in archive.namelist()}
            found |= {name for name, data in held.items() if any(word.encode() in data for word in words)}
    return found


def test_a_sites_log_stays_at_the_site_or_no_record_is_read(tmp_path):
    """As NVFlare provisions, whoever submits has log.txt sent: refused, as it is until sites have read their setting.

    From then on the same job trains, without site 1, whose records cannot be read.
    """
    made = deployed(tmp_path, records=("mine:records", *("project:records",) * 2))
    mine = f"def records(site):\n    open({str(tmp_path / 'read')!r}, 'w')\n    return [float({RECORD!r})]\n"
    (made.kits / "site-1" / "local" / "custom" / "mine.py").write_text(mine)
    reasons = []
    try:
        made.call("nvflare", "poc", "start")
        for name in ("provisioned", "set"):
            one = submitted(made, name, tmp_path / name, "log.txt")
            made.wait_for(lambda one=one: one.poll() is not None)
            reasons.append(summary(tmp_path / name)["reason"])
            if name == "provisioned":
                made.wait_for(lambda: at_the_server(made, "site-1 (silo 0) takes no part") >= SENT)
                for site in SITES:
                    made.keep_log(site)
        assert not (tmp_path / "read").exists() and not list(tmp_path.glob("owner-*/silo-*")), made.said()
        for site in SITES:
            made.kill(site, whole=True)
        one = submitted(made, "trains", tmp_path / "trains", "log.txt")
        made.wait_for(lambda: one.poll() is not None)
        made.stop("localhost", *SITES)
    finally:
        made.end()
    assert "NVFlare may send the site's log to the server" in reasons[0], made.said()
    assert "the job has NVFlare's JobLogStreamer" in reasons[1], made.said()
    said = summary(tmp_path / "trains")
    assert (said["status"], said["rounds"]) == ("done", ROUNDS) and (tmp_path / "read").exists(), made.said()
    assert "site-1: ValueError (mine.py, line 3)" in made.said("site-1") and RECORD not in made.said()
    assert "silo 1: noise multiplier 1.5" in made.said("site-2") and "training records" not in made.said()
    assert not at_the_server(made, RECORD, "ValueError (mine.py", "noise multiplier 1.5")
    assert RECORD in (tmp_path / "owner-0" / "site-1.log").read_text()
