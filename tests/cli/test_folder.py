"""`dpfl server`, `dpfl silo`, `dpfl keys` and `dpfl status` of a shared folder: as people and cron call them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs.folder import locked
from tests.adapters.named_code import PATH, recorded
from tests.cli.command import Done, dpfl, one_message, write

NAMES = ("north", "south")
CHANGES = {"rounds": 2, "data": {"num_silos": 2}}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keys, the list of members and a configuration, in the working folder."""
    monkeypatch.chdir(tmp_path)
    lines = {}
    for name in ("server", *NAMES):
        done = dpfl("keys", "new", name)
        assert done.code == 0 and "is secret" in done.err
        lines |= yaml.safe_load(done.out)
    (tmp_path / "members.yaml").write_text(
        yaml.safe_dump({"server": lines.pop("server"), "silos": lines}, sort_keys=False)
    )
    write(tmp_path, CHANGES)
    return tmp_path


def silo(name: str, *more: object) -> Done:
    return dpfl("silo", "shared", "config.yaml", "--key", f"{name}.key", "--simulation", "--once", *more)


def server(*more: object) -> Done:
    return dpfl("server", "shared", "config.yaml", "--key", "server.key", "--once", *more)


def test_by_cron_each_command_does_what_can_be_done_and_says_what_is_next(site: Path) -> None:
    assert silo("north").code == 6
    early = dpfl("status", "shared")
    assert (
        early.code == 0 and "waiting for the server, which has not begun" in early.out and "  north: waits" in early.out
    )
    assert list(json.loads(dpfl("status", "shared", "--json").out)["silos"]) == ["north"]
    asked = server()
    assert asked.code == 6 and "waiting for north, south: round 1, asked at 20" in asked.out
    assert silo("north").code == 6
    waits = dpfl("status", "shared")
    assert "waiting for north, south, since" in waits.out and "north: answered, round 1 answered last" in waits.out
    assert "config" not in waits.err and "  south: has not been started" in waits.out
    assert silo("south").code == 6 and server().code == 6
    assert silo("north").code == silo("south").code == 6
    done = server()
    assert done.code == 0 and "done after 2 rounds" in done.out and Path("run-server/model.safetensors").exists()
    for name in NAMES:
        over = silo(name)
        assert over.code == 0 and "the run is over, by its server: done after 2 rounds" in over.out
        ledger = Ledger.open(Path(f"run-{name}/ledger.jsonl"), append=False)
        assert sorted({charge.round for charge in ledger}) == [0, 1] and len({c.noise_id for c in ledger}) == 2
        assert Path(f"run-{name}/model.safetensors").exists() and Path(f"run-{name}/privacy.md").exists()
    again = server()
    assert again.code == 0 and "was over before" in again.out
    assert json.loads(dpfl("status", "shared", "--json").out)["server"]["status"] == "done"


def test_two_of_one_site_that_cron_lets_overlap_answer_once(site: Path) -> None:
    assert server().code == 6 and silo("north").code == 6
    answer = next(Path("shared/north").glob("answer-*"))
    answer.unlink()  # so that the second has something to do
    with locked(Path("run-north/.lock"), "{holder} is this silo"):
        busy = silo("north")
    assert busy.code == 6 and "waiting for one of this site's own, that began before" in busy.out
    assert not answer.exists() and len(Ledger.open(Path("run-north/ledger.jsonl"), append=False)) == 1
    assert silo("north").code == 6 and answer.exists()
    assert len(Ledger.open(Path("run-north/ledger.jsonl"), append=False)) == 1


def test_a_site_without_limits_refuses_and_says_so_at_both_ends(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(site))
    monkeypatch.delenv("DPFL_LIMITS", raising=False)
    assert server().code == 6
    for name in NAMES:
        done = dpfl("silo", "shared", "config.yaml", "--key", f"{name}.key", "--once")
        assert done.code == 3 and "no limits are set for these data on this machine" in done.err
    refused = server()
    assert refused.code == 3 and "refused after 0 rounds" in refused.out
    assert "the owner of the data has set no limits" in refused.out
    assert "north: refused (the owner of the data has set no limits)" in dpfl("status", "shared").out


@pytest.mark.parametrize("key", ["algorithm.module", "model.module", "data.dataset.module", "loss"])
def test_code_of_a_configuration_runs_at_a_site_only_if_its_owner_lists_it(
    site: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """The file may be anybody's, though it is at the site."""
    limits = site / "limits.yaml"
    limits.write_text(f"folder: {site}/owner\nepsilon: 1000\ndelta: 1e-4\nsend: [fitted]\nmin_records: 20\n")
    limits.chmod(0o600)
    monkeypatch.setenv("DPFL_LIMITS", str(limits))
    assert server().code == 6
    command = ("silo", "shared", "config.yaml", "--key", "north.key", "--once", "--set", f"{key}={PATH}")
    with recorded() as calls:
        done = dpfl(*command)
        assert done.code == 3 and f"{key} (tempfile:mkdtemp)" in done.err and not calls
        assert "north: refused (not within this owner's limits)" in dpfl("status", "shared").out
        if key != "loss":
            limits.write_text(limits.read_text() + f"code: ['{PATH}']\n")
            done = dpfl(*command)
            assert "it was called" in done.out and calls


def test_a_site_within_limits_whose_records_cannot_be_read_answers_at_once(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence would tell the server as much, later; and why is said at the site alone."""
    limits = site / "limits.yaml"
    limits.write_text(f"folder: {site}/owner\nepsilon: 1000\ndelta: 1e-4\nmin_records: 20\n")
    limits.chmod(0o600)
    monkeypatch.setenv("DPFL_LIMITS", str(limits))
    assert server().code == 6
    done = dpfl("silo", "shared", "config.yaml", "--key", "north.key", "--once", "--set", "data.test_fraction=0.999")
    assert done.code == 2 and "The server is told when it asks" in done.out + done.err
    assert "north: failed (its own log says why)" in dpfl("status", "shared").out
    assert "north: answered" in dpfl("status", "shared").out or any(Path("shared/north").glob("answer-*"))


def test_wrong_keys_and_lists_are_one_message(site: Path) -> None:
    one_message(dpfl("silo", "shared", "config.yaml", "--key", "server.key", "--once"), "is the server's key")
    one_message(dpfl("server", "shared", "config.yaml", "--key", "north.key", "--once"), "is the key of north")
    one_message(dpfl("keys", "new", "north"), "north.key is there")
    one_message(dpfl("keys", "new", "../north"), "must be of a-z")
    dpfl("keys", "new", "east")
    one_message(dpfl("silo", "shared", "config.yaml", "--key", "east.key", "--once"), "of no member that is listed")
    shown = dpfl("keys", "show", "members.yaml")
    assert shown.code == 0 and shown.out.count("fingerprint") == 3
    assert dpfl("keys", "show", "north.key").out in shown.out


@pytest.mark.slow
def test_processes_that_are_killed_at_any_time_and_started_again_end_as_agreed(site: Path) -> None:
    """Of the server and of silos, at moments that nobody chose; each may cost a silo one more release, and no charge
    is lost."""
    write(site, {**CHANGES, "rounds": 12, "privacy": {"noise_multiplier": 20.0}})
    commands = {"server": ["server", "shared", "config.yaml", "--key", "server.key"]}
    commands |= {one: ["silo", "shared", "config.yaml", "--key", f"{one}.key", "--simulation"] for one in NAMES}

    def start(name: str) -> subprocess.Popen[bytes]:
        with (site / f"log-{name}").open("ab") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "dpfl_plugin", *commands[name]]
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def rounds() -> int:
        path = site / "run-server" / "summary.json"
        return int(json.loads(path.read_text())["rounds"]) if path.exists() else 0

    running = {name: start(name) for name in commands}
    try:
        until = time.monotonic() + 300
        for name, after in (("north", 2), ("server", 4), ("south", 6), ("north", 8), ("server", 9)):
            while rounds() < after:
                assert time.monotonic() < until, "\n".join(path.read_text() for path in site.glob("log-*"))
                time.sleep(0.02)
            running[name].kill()
            running[name].wait()
            running[name] = start(name)
        codes = {name: one.wait(timeout=300) for name, one in running.items()}
    finally:
        for one in running.values():
            one.kill()
            one.wait()
    assert codes == dict.fromkeys(commands, 0), "\n".join(path.read_text() for path in site.glob("log-*"))
    for name in NAMES:
        charges = list(Ledger.open(site / f"run-{name}" / "ledger.jsonl", append=False))
        made = len({charge.noise_id for charge in charges})
        assert {charge.round for charge in charges} == set(range(12)) and 12 <= made <= 17
