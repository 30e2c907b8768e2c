"""Runs in NVFlare's own environment (see test_nvflare.py): what NVFlare's logs get, and that they stay at a site."""

import json
import logging

import pytest
from inside import PAYLOAD, SITES, Loop, heard, project, sites
from nvflare.app_common.logging.job_log_streamer import JobLogStreamer

from dpfl_plugin.adapters import nvflare
from dpfl_plugin.adapters.owner import say_once

RECORD = "J. Doe, HIV+"


@pytest.fixture
def failing(monkeypatch):
    """The records of site-2 have a cell that is no number."""
    plain = project.records
    monkeypatch.setattr(project, "records", lambda site: float(RECORD) if site == "site-2" else plain(site))


def test_text_that_quotes_a_record_goes_to_the_owner_and_to_nobody_else(tmp_path, failing, caplog):
    sent, made = [], sites(tmp_path)
    loop = Loop(made, tmp_path, change=lambda site, result: sent.append(result) or result)
    assert loop.run().server.rounds == 4
    file = made[1].folder / "owner" / "site-2.log"
    (said,) = {line for line in heard(caplog).splitlines() if line.startswith("dpfl: site-2")}
    assert said.startswith("dpfl: site-2: ValueError (logs_inside.py, line ") and f"is in {file}, for the" in said
    assert RECORD not in caplog.text and RECORD.encode() not in b"".join(one[PAYLOAD] for one in sent)
    assert file.read_text().count(f"could not convert string to float: '{RECORD}'\nTraceback") == 4
    assert [path.stat().st_mode & 0o777 for path in (file, file.parent)] == [0o600, 0o700]


def test_in_a_simulation_the_log_has_it_all(tmp_path, failing, caplog, monkeypatch):
    monkeypatch.setattr(nvflare, "surroundings", lambda: "simulation")
    made = sites(tmp_path)
    for site in made:
        (site.local / "resources.json").unlink()
    assert Loop(made, tmp_path).run().server.rounds == 4
    assert f"dpfl: site-2: could not convert string to float: '{RECORD}'\nTraceback" in caplog.text
    assert not list(tmp_path.rglob("site-2.log"))


def test_no_log_says_how_many_records_a_site_has(tmp_path, caplog):
    say_once.cache_clear()
    caplog.set_level(logging.DEBUG)
    Loop(sites(tmp_path), tmp_path).run()
    assert "silo 1: noise multiplier 1.5" in caplog.messages
    assert not [line for line in caplog.messages if "record" in line.replace("unit record", "")]


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ({"records": "project:records"}, "no limits are set for these data on this machine"),
        ({"limits": "LIMITS"}, "records is missing. What a job says of records has no effect here"),
        ({"limits": "LIMITS", "records": "project:records", "recrods": "x"}, "recrods is not a known key"),
        ({"limits": "LIMITS", "records": 3}, "records=3 must be where the site's records come from"),
    ],
)
def test_a_site_says_what_is_wrong_with_its_own_file(tmp_path, monkeypatch, caplog, says, why):
    """In its owner's folder, or beside that of simulations as long as none is known."""
    monkeypatch.setenv("HOME", str(tmp_path))
    made = sites(tmp_path)
    made[1].says(**{key: str(tmp_path / "site-2" / "limits.yaml") if key == "limits" else v for key, v in says.items()})
    found = Loop(made, tmp_path).run()
    (file,) = tmp_path.rglob("site-2.log")
    assert why in file.read_text() and f"is in {file}, for the owner" in heard(caplog)
    assert file.parent in (made[1].folder / "owner", tmp_path / ".dpfl" / "nvflare")
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert found.server.rounds == 4 and set(found.server.summary()["silos"]) >= {"0", "2"}
    assert not list(made[1].folder.glob("owner/silo-*"))


@pytest.mark.parametrize("resources", [None, {}, {"allow_log_streaming": True}], ids=["none", "default", "allowed"])
def test_a_site_whose_log_may_be_sent_to_the_server_takes_no_part(tmp_path, monkeypatch, resources):
    monkeypatch.setattr(project, "records", lambda site: pytest.fail("read"))
    made = sites(tmp_path)
    for site in made:
        path = site.local / "resources.json"
        path.unlink() if resources is None else path.write_text(json.dumps(resources))
    found = Loop(made, tmp_path).run().server
    assert found.status == "refused" and "NVFlare may send the site's log to the server" in found.reason
    for site in made:
        assert 'Set "allow_log_streaming": false in the site\'s local/resources.json, and restart' in site.log()
        assert not list(site.folder.glob("owner/silo-*"))


def test_a_site_that_has_not_read_its_setting_yet_takes_no_part(tmp_path, monkeypatch):
    """Its process leaves streamers in jobs, or adds one, and sends a job's error_log.txt when that is over."""
    monkeypatch.setattr(project, "records", lambda site: pytest.fail("read"))
    made = sites(tmp_path)
    for site in made:
        site.components = {"auto_log_streamer": JobLogStreamer("error_log.txt")}
    found = Loop(made, tmp_path).run().server
    assert found.status == "refused" and "the job has NVFlare's JobLogStreamer" in found.reason
    assert all("and restart the site" in site.log() for site in made) and len(made) == len(SITES)
