"""What a result says of privacy is believed where the statement beside it says the same: a run writes both at once."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from dpfl_plugin.runs.said_twice import UNCHECKED

import dpfl_plugin as dpfl
from dpfl_plugin.api.exports import export
from dpfl_plugin.errors import DataError
from dpfl_plugin.published.numbers import read_run
from dpfl_plugin.report.runs import scan
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.trained import Trained
from dpfl_plugin.sweeps import single, state
from tests.test_callbacks import SECURE_DRAWN, session
from tests.tuning.test_decisions import PRIVACY, tune

Values = dict[str, Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, in the ``out`` above it."""
    return Path(session(tmp_path_factory.mktemp("finished"))["folder"])


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose statement is of outsiders who do not know who took part."""
    return Path(session(tmp_path_factory.mktemp("drawn"), **SECURE_DRAWN)["folder"])


def copied(folder: Path, to: Path) -> RunFolder:
    return RunFolder(shutil.copytree(folder, to / folder.parent.name / folder.name))


def change(path: Path, key: str, value: Any) -> None:
    """Change a value of a JSON file by its dotted key; None removes it."""
    whole = json.loads(path.read_text())
    *parents, last = key.split(".")
    block = whole
    for parent in parents:
        block = block[parent]
    block.pop(last) if value is None else block.update({last: value})
    path.write_text(json.dumps(whole))


def reported(files: RunFolder) -> None:
    runs, problems = scan([files.path])
    if problems:
        assert not runs
        raise DataError(problems[0].reason)


def in_a_sweep(files: RunFolder) -> None:
    found = state.state_of(files, None, 0.0)
    if found.status == "failed":
        assert found.epsilon is None and not state.finished(files)
        raise DataError(found.reason)


def by_itself(files: RunFolder) -> None:
    found = single.run_of(files, 0.0)
    if found.status == "failed":
        raise DataError(found.reason)


READERS: Final[dict[str, Callable[[RunFolder], object]]] = {
    "report": reported,
    "Run.open": lambda files: dpfl.compare([dpfl.Run.open(files.path)]),
    "predict": lambda files: dpfl.predict(files.path, np.zeros((1, 4), np.float32)),
    "export": lambda files: export(files.path, files.path.parents[2] / "exported"),
    "trained": lambda files: Trained.at(files.path),
    "shown again": lambda files: session(files.path.parents[1]),
    "status of a sweep": in_a_sweep,
    "status": by_itself,
    "papers": read_run,
}
EDITS: Final[dict[str, tuple[str, Any]]] = {
    "server": ("epsilon.server.epsilon", 0.01),
    "third party": ("epsilon.third_party.epsilon", 0.01),
    "worst case": ("epsilon.server.worst_case_epsilon", 0.01),
    "delta": ("epsilon.server.delta", 1e-12),
    "unit": ("epsilon.server.unit", "silo"),
    "accountant": ("epsilon.third_party.accountant", "exact"),
    "tuning": ("tuning", {"epsilon": 0.01, "delta": 1e-5}),
    "status": ("status", "budget_exhausted"),
    "another run": ("id", "0123456789ab"),
}
ALL: Final = [("server", reader) for reader in READERS] + [(edit, "Run.open") for edit in EDITS if edit != "server"]


@pytest.mark.parametrize("reader", READERS)
def test_what_a_run_left_is_read(finished: Path, tmp_path: Path, reader: str) -> None:
    READERS[reader](copied(finished, tmp_path / "out"))


@pytest.mark.parametrize(("edit", "reader"), ALL)
def test_no_reader_believes_a_result_that_its_statement_contradicts(
    finished: Path, tmp_path: Path, edit: str, reader: str
) -> None:
    files, (key, value) = copied(finished, tmp_path / "out"), EDITS[edit]
    change(files.result, key, value)
    with pytest.raises(DataError) as raised:
        READERS[reader](files)
    said = str(raised.value)
    assert f"{files.result} says {key} = " in said and "ledger.json beside it" in said
    assert f"dpfl account {files.path}" in said
    assert isinstance(value, dict) or repr(value) in said
    assert not (tmp_path / "exported").exists()


def test_a_candidates_result_has_the_guarantee_of_its_tuning(finished: Path, tmp_path: Path) -> None:
    files = copied(finished, tmp_path)
    for path in (files.result, files.statement):
        change(path, "tuning", {"epsilon": 9.0, "delta": 1e-5})
    assert dpfl.Run.open(files.path).epsilon == 9.0
    change(files.result, "tuning.epsilon", 0.01)
    for reader in ("report", "Run.open", "status"):
        with pytest.raises(DataError, match=r"says tuning\.epsilon = 0\.01, and ledger\.json beside it 9\.0"):
            READERS[reader](files)
    change(files.result, "tuning", None)
    with pytest.raises(DataError, match=r"says tuning = nothing, and ledger\.json beside it more"):
        dpfl.Run.open(files.path)


def test_what_a_statement_hides_of_who_took_part_is_in_the_details(drawn: Path, tmp_path: Path) -> None:
    files = copied(drawn, tmp_path)
    run = dpfl.Run.open(files.path)
    assert "outsider" in run.result["epsilon"]
    assert run.epsilon < json.loads(files.statement.read_text())["views"]["server"]["epsilon"]
    change(files.result, "epsilon.server.epsilon", 0.01)
    with pytest.raises(DataError, match=r"epsilon = 0\.01, and details\.json beside it"):
        dpfl.Run.open(files.path)
    files.details.rename(files.path / "aside")  # and then only what the statement says is believed
    with pytest.raises(DataError, match=r"epsilon = 0\.01, and ledger\.json beside it"):
        dpfl.Run.open(files.path)
    (files.path / "aside").rename(files.details)
    change(files.result, "epsilon.server.epsilon", run.epsilon)
    change(files.result, "epsilon.outsider.epsilon", 0.01)
    with pytest.raises(DataError, match=r"says epsilon\.outsider\.epsilon = 0\.01, and ledger\.json beside it"):
        dpfl.Run.open(files.path)


def test_an_interrupted_run_and_a_void_statement(tmp_path: Path, finished: Path) -> None:
    asked: list[int] = []
    paused = RunFolder(Path(session(tmp_path, stop=lambda: asked.append(1) or len(asked) > 2)["folder"]))
    assert dpfl.Run.open(paused.path).status == "interrupted"
    change(paused.result, "epsilon.server.epsilon", 0.01)
    for reader in ("report", "Run.open"):
        with pytest.raises(DataError, match=r"says epsilon\.server\.epsilon"):
            READERS[reader](paused)
    files = copied(finished, tmp_path / "void")
    files.statement.write_text('{"schema": 1, "guarantee": "void: the run went on"}')
    with pytest.raises(DataError, match=r"says epsilon = more, and ledger\.json beside it nothing"):
        dpfl.Run.open(files.path)
    files.statement.write_text("{")
    with pytest.raises(DataError, match=r"ledger\.json cannot be read"):
        dpfl.Run.open(files.path)


def test_a_folder_without_a_statement_is_read_as_before(finished: Path, tmp_path: Path) -> None:
    """As one of an old version, or a copy of the result alone; what else is there of the same facts is compared."""
    files = copied(finished, tmp_path)
    files.statement.unlink()
    assert dpfl.Run.open(files.path).status == "done"
    change(files.result, "epsilon.server.epsilon", 0.01)
    with pytest.raises(DataError, match=r"details\.json beside it"):
        dpfl.Run.open(files.path)
    change(files.result, "epsilon.server.epsilon", dpfl.Run.open(finished).epsilon)
    change(files.result, "tuning", {"epsilon": 0.01, "delta": 1e-5})
    for reader in ("Run.open", "status", "predict"):
        with pytest.raises(DataError, match=r"says tuning = more, and details\.json beside it nothing"):
            READERS[reader](files)
    files.details.unlink()
    assert dpfl.Run.open(files.path).epsilon == 0.01


def test_the_status_of_a_run_that_was_interrupted_has_what_it_released_and_not_what_was_evaluated_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    how: dict[str, Any] = {"rounds": 40, "evaluation": {"every": 10}, "checkpoint": {"every": 1}}
    result = session(tmp_path, stop=lambda: asked.append(1) or len(asked) > 60, **how)
    files, spent = RunFolder(Path(result["folder"])), result["epsilon"]["server"]["epsilon"]
    (files.path / ".lock").write_text("")  # nobody is at work there
    found = single.run_of(files, 0.0)
    assert (found.status, found.round) == ("interrupted", result["rounds"]) and result["rounds"] % 10 > 0
    assert files.read_metrics() and files.read_metrics()[-1]["epsilon"]["server"] < spent == found.epsilon
    for one in (files.result, files.statement, files.details, files.privacy):
        one.unlink()  # a kill leaves none
    found = single.run_of(files, 0.0)
    assert (found.round, found.epsilon) == (result["rounds"], None)
    shutil.rmtree(files.checkpoint)  # of a run that has none between its evaluations
    last = files.read_metrics()[-1]
    found = single.run_of(files, 0.0)
    assert (found.round, found.epsilon) == (last["round"], None)
    (files.path / ".lock").write_text("pid 1 on another-machine")
    at_work = single.run_of(files, time.time())
    assert (at_work.status, at_work.epsilon) == ("running", None)
    (files.path / ".lock").write_text("")
    lines = files.ledger.read_bytes().splitlines(keepends=True)
    before = [line for line in lines if json.loads(line).get("round", 0) < last["round"]]
    files.ledger.write_bytes(b"".join(before) + lines[-1][:20])  # of one that is killed while it charges the next
    monkeypatch.setattr(single, "TAIL", 7)
    found = single.run_of(files, 0.0)
    assert (found.round, found.epsilon) == (last["round"], last["epsilon"]["server"])


def test_a_candidate_at_work_shows_no_epsilon_of_its_own(tmp_path: Path) -> None:
    """As the winner in its last rounds, which are evaluated: it has the guarantee of all candidates."""
    winner = RunFolder(tune(tmp_path).winner.folder)
    assert single.run_of(winner, 0.0).epsilon == PRIVACY["epsilon"]
    for one in (winner.result, winner.statement, winner.details, winner.privacy, tmp_path / "result.json"):
        one.unlink()
    assert 0 < winner.read_metrics()[-1]["epsilon"]["server"] < PRIVACY["epsilon"]
    assert single.run_of(winner, 0.0).epsilon is None


def test_words_that_the_run_did_not_write_are_not_passed_on(finished: Path, drawn: Path, tmp_path: Path) -> None:
    files = copied(finished, tmp_path / "out")
    words = files.privacy.read_text()
    assert dpfl.Run.open(files.path).statement == words
    for others in (words.replace("1.49", "0.01"), (drawn / "privacy.md").read_text()):
        assert others != words
        files.privacy.write_text(others)
        with pytest.raises(DataError, match=r"privacy\.md is not what the run wrote, by details\.json"):
            READERS["export"](files)
    assert not (tmp_path / "exported").exists()
    change(files.details, "words", None)  # as an earlier version wrote them
    assert dpfl.Run.open(files.path).statement == UNCHECKED + others
    files.details.unlink()
    assert dpfl.Run.open(files.path).statement == UNCHECKED + others
