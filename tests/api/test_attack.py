"""`dpfl.attack`: what `dpfl attack` does, as an object."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest

import dpfl_plugin as dpfl
from dpfl_plugin.api import attack as module
from dpfl_plugin.api import plots
from dpfl_plugin.errors import UnsupportedError
from tests.cli.command import dpfl as command
from tests.cli.command import write

VARIANTS = {"private": {}, "open": {"privacy": {"noise_multiplier": 0.0}}}


def test_an_attack_is_that_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path)
    found = dpfl.attack(path, silo=1, rounds=2, repeats=1)
    assert [one.name for one in tmp_path.iterdir()] == ["config.yaml"]  # without out nothing is written
    done = command("attack", path, "--silo", 1, "--rounds", 2, "--repeats", 1, "--json")
    assert json.loads(json.dumps(found.to_dict())) == done.json
    assert done.json == json.loads((tmp_path / "attack/run/attack.json").read_text())
    assert found.membership["with noise"].rounds == 2 and found.title == "run: scaffold, silo 1"
    assert len(plots.png(found.plot_inversion())) > 1000 and "AttackReport(" in repr(found) and len(repr(found)) < 200
    assert found._repr_html_() == f"<pre>{html.escape(str(found))}</pre>"
    assert all(part in str(found) for part in ("silo 1", "area under the ROC curve", *found.notes))


def test_files_are_written_where_out_says_and_progress_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "write_pictures", lambda folder, report: (folder / "drawn").touch())
    path = write(tmp_path, {"model": {"name": "softmax", "bias": False}})
    found = dpfl.attack(path, rounds=1, repeats=2, out=tmp_path / "found", progress=True)
    assert sorted(one.name for one in (tmp_path / "found").iterdir()) == ["attack.json", "drawn"]
    said = " ".join(capsys.readouterr().err.split())
    assert "membership: 4 runs (2 seeds, with noise and without noise)" in said and "3 more: about" in said
    assert found.inversion == {} and any("was not tried: model: it has no bias" in note for note in found.notes)
    with pytest.raises(UnsupportedError, match="inversion was not tried: model: it has no bias"):
        found.plot_inversion()


def test_a_variant_is_the_first_or_the_one_that_is_named(tmp_path: Path) -> None:
    experiment = dpfl.load(write(tmp_path, {"variants": VARIANTS, "rounds": 1}))
    assert dpfl.attack(experiment, repeats=1).variant == "private"
    quiet = dpfl.attack(experiment.variants["open"], repeats=1)
    assert quiet.variant == "open" and list(quiet.membership) == ["without noise"]
    assert "the configuration adds no noise: nothing bounds an attack." in quiet.notes
