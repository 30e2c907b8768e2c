"""The files in which silo ranks keep what rank 0 must not have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpfl_plugin.errors import DataError
from dpfl_plugin.runs.measurements import Notes


@pytest.mark.parametrize("what", ["another's", "a link"])
def test_measurements_go_to_no_file_that_rank_0_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Rank 0 names the folder: whoever made the file reads what is written to it."""
    path, elsewhere = tmp_path / "rank-1.jsonl", tmp_path / "elsewhere"
    if what == "a link":
        path.symlink_to(elsewhere)
    else:
        path.touch(mode=0o666)
        owner = path.stat().st_uid
        monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises((DataError, OSError), match="rank-1"):
        Notes(path, own=True).add(1, 1, {0: (0.5, 0.25, None)})
    assert not elsewhere.exists() and not (what == "another's" and path.read_bytes())


def test_a_session_adds_to_the_measurements_of_the_one_before(tmp_path: Path) -> None:
    for after in (1, 2):
        Notes(tmp_path / "silos" / "rank-1.jsonl", own=True).add(after, after, {0: (0.5, 0.25, None)})
    assert len((tmp_path / "silos" / "rank-1.jsonl").read_text().splitlines()) == 2
