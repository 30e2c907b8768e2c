"""Files of a run: whole or not there, and JSON by the standard."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.errors import BusyError, ConfigError, LedgerBusyError
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs import folder as folder_module
from dpfl_plugin.runs import ledgers
from dpfl_plugin.runs.folder import RunFolder, to_json, write_atomic
from dpfl_plugin.runs.ledgers import Wait, locked_shared, open_shared


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, "first")

    def fails(*args: Any) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="no"):
        write_atomic(path, "second")
    assert path.read_text() == "first"


def test_json_has_no_nan() -> None:
    values = {"a": math.nan, "b": [math.inf, 1.5, (-math.inf,)], 3: "x"}
    assert json.loads(to_json(values)) == {"a": None, "b": [None, 1.5, [None]], "3": "x"}


PLAIN = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=50, deadline=None)
@given(st.recursive(PLAIN, lambda of: st.lists(of) | st.dictionaries(st.text(), of)))
def test_json_is_what_the_standard_library_writes(value: Any) -> None:
    assert to_json(value) == json.dumps(value, indent=2) and to_json(value, None) == json.dumps(value)


def test_what_json_has_no_word_for_is_refused() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        to_json({"a": [object()]})


def test_metrics(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_metrics() == []
    for number in (1, 2, 3):
        folder.add_metrics({"round": number, "train_loss": math.nan})
    assert [line["round"] for line in folder.read_metrics()] == [1, 2, 3]
    with folder.metrics.open("a") as file:
        file.write('{"round": 4, "tr')
    assert [line["round"] for line in folder.keep_metrics(2)] == [1, 2]
    assert [line["round"] for line in folder.read_metrics()] == [1, 2]
    folder.add_metrics({"round": 3})
    assert [line["round"] for line in folder.read_metrics()] == [1, 2, 3]


@pytest.mark.parametrize("error", [OSError(errno.ENOSYS, "Function not implemented"), None], ids=["none", "to all"])
def test_where_locks_do_not_work_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError | None
) -> None:
    """Some network file systems have none, others grant them to all who ask: a ledger would get two writers."""

    def flock(file: object, how: int) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(fcntl, "flock", flock)
    folder, shared = RunFolder(tmp_path / "run"), tmp_path / "all.jsonl"
    with (
        pytest.raises(ConfigError, match=r"run: file locks do not work .* another out, on a file system") as told,
        folder.locked(),
    ):
        pytest.fail("begun")
    assert not isinstance(told.value, BusyError)
    with pytest.raises(ConfigError, match="file locks do not work"), locked_shared(shared):
        pytest.fail("begun")


@pytest.mark.parametrize("option", ["localflock", "local_lock=all", "flock"])
def test_a_shared_ledger_stays_on_one_machine_where_locks_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """Two nodes would both be granted the lock, and write their charges over each other's."""
    device, path, mounts = os.stat(tmp_path).st_dev, tmp_path / "all.jsonl", tmp_path / "mountinfo"
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts.write_text(f"22 1 0:0 / / rw - ext4 x rw\n36 22 {number} / /scratch rw,noatime - lustre x:/y rw,{option}\n")
    monkeypatch.setattr(folder_module, "MOUNTS", mounts)
    for _ in range(2):  # this machine alone
        with locked_shared(path), open_shared(path):
            pass
    (tmp_path / "all.jsonl.lock").write_text("pid 7 on elsewhere")
    refused = pytest.raises(ConfigError, match=f"pid 7 on elsewhere, .* one machine alone .mount option {option}")
    with contextlib.nullcontext() if option == "flock" else refused, locked_shared(path):
        assert option == "flock"


def test_a_folder_is_locked_for_others(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    with first.locked(), pytest.raises(ConfigError, match=rf"another process \(pid {os.getpid()} on "), second.locked():
        pass
    with second.locked():
        pass


def test_a_wait_for_a_ledger_is_said_once_it_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, said, asked = tmp_path / "all.jsonl", [], []  # type: tuple[Path, list[str], list[float]]
    clock = SimpleNamespace(monotonic=lambda: len(asked), sleep=lambda seconds: None)  # a second for each look
    monkeypatch.setattr(ledgers, "time", clock)

    def stop() -> bool:
        asked.append(0.0)
        return len(asked) == 70

    with locked_shared(path), pytest.raises(LedgerBusyError), locked_shared(path, Wait(math.inf, said.append, stop)):
        pass
    assert [text.rpartition("; ")[2] for text in said] == ["5 s so far.", "65 s so far."]


def test_a_ledger_is_begun_where_a_link_leads(tmp_path: Path) -> None:
    """Two runs by the two names would have a budget each."""
    path, link = tmp_path / "all.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(path)
    for empty in (False, True):  # as a crash, or touch, leaves it
        path.touch() if empty else None
        with locked_shared(link), open_shared(link) as ledger:
            ledger.begin_run({"noise": "x"})
        assert link.is_symlink() and len(Ledger.open(path, append=False).runs) == 1
        path.unlink()
