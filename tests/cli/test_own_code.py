"""Users' own code: seeded runs repeat with any of it, and no old result is shown for an edited file."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.experiments.reports.runs import scan
from tests.cli.command import charges, dpfl, one_message, run, write
from tests.cli.test_resume import CHANGES, crash

CODE: dict[str, Any] = {"rounds": 2, "model": {"name": None, "module": "mine.net:make"}}
NET = """
import pickle
import torch
import helper

def make(feature_shape, num_classes):
    layer = getattr(torch.nn, "Lin" + "ear")(feature_shape[0], num_classes)
    layer.weight.data = pickle.loads(pickle.dumps(layer.weight.data)) * helper.FACTOR
    return layer
"""


@pytest.fixture
def code(tmp_path: Path) -> Iterator[Path]:
    """Modules beside the configuration, which `run` of this file finds and loads anew each time."""
    edit(tmp_path / "mine/net.py", NET)
    edit(tmp_path / "helper.py", "FACTOR = 1.0\n")
    yield tmp_path
    forget()


def forget() -> None:
    """Know of the modules and of their folder what another process does: nothing."""
    sys.path[:] = [path for path in sys.path if not Path(path, "helper.py").exists()]
    for name in list(sys.modules):
        if name.partition(".")[0] in ("mine", "helper"):
            del sys.modules[name]
    importlib.invalidate_caches()


def edit(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    forget()


@pytest.mark.usefixtures("code")
def test_a_seeded_run_repeats_with_any_code(tmp_path: Path) -> None:
    config, found = write(tmp_path, CODE), []
    for name in "ab":
        forget()
        found.append(run(config, "--out", tmp_path / name))
    assert found[0]["model_sha256"] == found[1]["model_sha256"]
    assert charges(found[0]["folder"]) == charges(found[1]["folder"])


def test_an_old_result_is_not_shown_for_edited_code(tmp_path: Path, code: Path) -> None:
    """Of the file that the configuration names, and of no other."""
    config = write(tmp_path, CODE)
    result = run(config)
    edit(code / "helper.py", "FACTOR = 2.0\n")
    assert run(config)["model_sha256"] == result["model_sha256"]
    edit(code / "mine/net.py", NET.replace("Lin", "Bil"))
    for words in (("run", config, "--out", tmp_path / "runs"), ("predict", result["folder"], "new.csv")):
        one_message(dpfl(*words), "made with other code: mine.net has changed", "put the old one back")
    edit(code / "mine/net.py", NET)
    assert run(config)["model_sha256"] == result["model_sha256"]
    shutil.rmtree(code / "mine")
    forget()
    assert run(config)["id"] == result["id"], "what is gone cannot be compared"


def test_a_run_that_goes_on_with_edited_code_says_so(tmp_path: Path, code: Path) -> None:
    config = crash(write(tmp_path, {**CHANGES, **CODE, "rounds": 6}), 4)
    edit(code / "mine/net.py", NET + "# edited\n")
    done = dpfl("run", config, "--out", tmp_path / "runs", "--resume")
    assert done.code == 0 and "changed since this run began: mine.net" in done.err


def test_a_sweep_and_a_report_name_the_rows_of_other_code(tmp_path: Path, code: Path) -> None:
    config, sweep = write(tmp_path, {**CODE, "sweep": {"seeds": 1}}), ["--out", tmp_path / "sweeps"]
    assert dpfl("sweep", config, *sweep).code == 0
    edit(code / "mine/net.py", NET + "# edited\n")
    done = dpfl("sweep", config, *sweep)
    assert done.code == 0 and "0: made with another version of mine.net than there is now  seed=0" in done.err
    assert dpfl("sweep", write(tmp_path, {**CODE, "sweep": {"seeds": 2}}), *sweep).code == 0
    runs, problems = scan([tmp_path / "sweeps"])
    assert not problems
    said = {one.seed: one.reason for one in runs}
    assert "made with another version of mine.net than the newest run here" in said[0] and not said[1]
