"""While a run goes on, nothing in its folder states less than its ledger proves."""

import json
from pathlib import Path

import pytest

from dpfl_plugin.config.load import configure
from dpfl_plugin.errors import LedgerError
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.views import server_view
from dpfl_plugin.runs.folder import folder_of
from dpfl_plugin.runs.hooks import Silent
from dpfl_plugin.runs.ledgers import read_whole
from dpfl_plugin.runs.run import run_config
from dpfl_plugin.runtimes.in_process import InProcessBackend
from tests.adapters.federation import DATA, block
from tests.cli.command import dpfl

ROUNDS = 12


class Killed(BaseException):
    pass


def session(config, stop=lambda: False, resume=False, ledger=None):
    backend = InProcessBackend()
    return run_config(config, Path(), resume=resume, backend=backend, reporter=Silent(), stop=stop, ledger=ledger)


def after(rounds, action):
    """A ``stop`` that is asked before every round; the action is taken after so many."""
    asked = iter(range(10**6))
    return lambda: action() if next(asked) >= rounds else False


def die():
    raise Killed


def statements(files):
    """Every epsilon that the folder states but for the ledger, and the evaluations, which are of a round."""
    found = []
    if files.statement.exists():
        said = json.loads(files.statement.read_text())
        found += [said["views"][view]["epsilon"] for view in ("server", "third_party") if "views" in said]
    if files.result.exists():
        found += [
            json.loads(files.result.read_text())["epsilon"][view]["epsilon"] for view in ("server", "third_party")
        ]
    if files.privacy.exists():
        rows = [
            line
            for line in files.privacy.read_text().splitlines()
            if line.startswith("| server, for the rounds that took place")
        ]
        found += [float(row.split("|")[2]) for row in rows]
    return found


def spent(files):
    return server_view(Ledger.open(files.ledger, append=False), PLD(), 1e-5).epsilon


@pytest.mark.parametrize("shared", [False, True])
def test_a_run_that_goes_on_and_is_killed_states_nothing_less_than_its_ledger(tmp_path, shared):
    config = configure({**block(rounds=ROUNDS), "data": DATA, "out": str(tmp_path / "runs")}, source="test")
    files, ledger = folder_of(config), tmp_path / "all.jsonl" if shared else None
    assert session(config, after(4, lambda: True), ledger=ledger)["status"] == "interrupted"
    before = spent(files)
    assert statements(files) and min(statements(files)) >= before * (1 - 1e-9)
    with pytest.raises(Killed):
        session(config, lambda: spent(files) > before and die(), resume=True, ledger=ledger)
    assert not [epsilon for epsilon in statements(files) if epsilon < spent(files)]
    text = files.privacy.read_text()
    assert text.startswith("# Privacy statement: void") and "dpfl account" in text
    assert json.loads(files.statement.read_text())["guarantee"].startswith("void")
    rows = json.loads(dpfl("account", str(files.path), "--json").out)
    assert max(row["epsilon"] or 0 for row in rows if row["view"] == "server") >= spent(files) * (1 - 1e-9)
    assert session(config, resume=True, ledger=ledger)["status"] == "done"
    assert statements(files) and min(statements(files)) >= spent(files) * (1 - 1e-9)


def test_a_void_statement_still_shows_that_the_ledgers_end_is_missing(tmp_path):
    config = configure({**block(rounds=ROUNDS), "data": DATA, "out": str(tmp_path)}, source="test")
    files = folder_of(config)
    session(config, after(4, lambda: True))
    with pytest.raises(Killed):
        session(config, after(0, die), resume=True)
    for path in files.checkpoint.rglob("*"):
        if path.is_file():
            path.unlink()
    for path in files.checkpoint.glob("*"):
        path.rmdir()
    lines = files.ledger.read_bytes().splitlines(keepends=True)
    files.ledger.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(LedgerError, match=r"ledger\.json"):
        read_whole(files)


def test_a_session_that_cannot_even_begin_leaves_what_was_stated(tmp_path, monkeypatch):
    config = configure({**block(rounds=ROUNDS), "data": DATA, "out": str(tmp_path)}, source="test")
    files = folder_of(config)
    session(config, after(4, lambda: True))
    said = files.privacy.read_text(), files.result.read_text()
    monkeypatch.setattr(InProcessBackend, "hold", lambda *args, **more: die())
    with pytest.raises(Killed):
        session(config, resume=True)
    assert (files.privacy.read_text(), files.result.read_text()) == said
