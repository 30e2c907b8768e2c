"""What results print in Python is what the command prints, and a notebook shows it; their values are plain."""

from __future__ import annotations

import copy
import html
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import dpfl_plugin as dpfl
from tests.cli.command import dpfl as command
from tests.cli.command import write

VARIANTS = {"fedavg": {"algorithm": {"name": "fedavg"}}, "scaffold": {}}
RESULTS = {
    "check": ({}, dpfl.check, ["check"]),
    "check, of variants": ({"variants": VARIANTS}, dpfl.check, ["check"]),
    "engines": ({}, dpfl.engines, ["list", "engines", "--for"]),
    "price of a tuning": (
        {
            "rounds": 2,
            "privacy": {"clip_norm": 1.0, "noise_multiplier": None, "epsilon": 4.0, "delta": 1e-3, "record_rate": 0.2},
            "tune": {"grid": {"algorithm.local_lr": [0.1, 0.5]}, "rungs": [1], "eta": 2, "share": 0.2},
        },
        dpfl.plan_tuning,
        ["tune", "--plan"],
    ),
}


def words(text: str) -> list[str]:
    """Of each line, without the numbers: times and memory are those of the moment."""
    lines = [" ".join(re.sub(r"[\d.,]+", "#", line).split()) for line in text.split("\n")]
    return [line for line in lines if line]


@pytest.mark.parametrize(("changes", "call", "said"), RESULTS.values(), ids=RESULTS)
def test_it_prints_what_the_command_prints(tmp_path: Path, changes: dict[str, Any], call: Any, said: Any) -> None:
    path = write(tmp_path, changes)
    found, done = call(path), command(*said, path)
    assert done.code == 0 and " ".join(words(str(found))) == " ".join(words(done.out))
    assert found._repr_html_() == f"<pre>{html.escape(str(found))}</pre>"
    assert str(copy.deepcopy(found)) == str(pickle.loads(pickle.dumps(found))) == str(found)


def test_a_project_is_printed_as_its_command_prints_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "yours"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".gitignore").write_text("own\n")
    project = dpfl.init("mine")
    told = command("init", "yours")
    assert told.code == 0, told.err
    assert f"{project}\n" == told.out.replace("yours", "mine") and repr(project) == str(project)
    assert 'dpfl.load("run.yaml").run()' in str(project)
    assert html.escape(str(project)) in project._repr_html_()
