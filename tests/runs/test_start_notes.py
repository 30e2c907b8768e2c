"""Who forgot to bring features to one size is told before training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from dpfl_plugin.config.load import load
from dpfl_plugin.runs import start_notes
from dpfl_plugin.runs.build import build
from dpfl_plugin.runs.start_notes import FAR, LARGE, feature_scale_check, site_notes
from tests.cli.command import dpfl, write

COLUMNS = ("income", "age")


def features(*rows: tuple[float, float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float32).reshape(-1, 2)


@pytest.mark.parametrize("value", [2 * FAR, -2 * FAR])
def test_the_feature_that_reaches_furthest_is_named(value: float) -> None:
    held = [features((1, 90), (2, -FAR)), features(), features((value, 3))]
    note = feature_scale_check(held, COLUMNS, nn.Linear(2, 2))
    assert note is not None and note.startswith("features reach 200 (column 'income'): ")
    assert "column" not in (feature_scale_check(held, (), nn.Linear(2, 2)) or "column")
    assert feature_scale_check(held[:2], COLUMNS, nn.Linear(2, 2)) is None  # ages are of a usual size
    assert feature_scale_check([], (), nn.Linear(2, 2)) is None


def test_numbers_of_words_are_no_sizes() -> None:
    assert feature_scale_check([features((5000, 3))], (), nn.Sequential(nn.Embedding(6000, 4), nn.Flatten())) is None


def test_a_run_says_it_before_its_rounds(tmp_path: Path) -> None:
    for first, name in enumerate("ab"):
        rows = "".join(f"{900 * (n % 7) + first},{n % 3 % 2}\n" for n in range(60))
        (tmp_path / f"{name}.csv").write_text("income,label\n" + rows)
    path = write(tmp_path, {"data": None, "rounds": 1})
    for steps, told in ("", True), ("  preprocess: [{name: scale, factor: 0.0001}]\n", False):
        data = f"data:\n  dataset: {{name: csv, files: ['*.csv'], classes: [0, 1]}}\n  partition: natural\n{steps}"
        one = path.with_name("one.yaml")
        one.write_text(path.read_text() + data)
        done = dpfl("run", one, "--out", tmp_path / "runs")
        assert done.code == 0, done.err
        assert ("records: features reach 5401 (column 'income'): " in done.err) == told


def test_a_run_says_how_sites_differ_and_keeps_it_out_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for unit, name in ((1, "a"), (18, "b")):
        rows = "".join(f"{(90 + n) / unit:.1f},{n % 2}\n" for n in range(60))
        (tmp_path / f"{name}.csv").write_text("glucose,label\n" + rows)
    columns = {"glucose": {"type": "number", "range": [0, 200]}}
    schema = {"label": {"column": "label", "classes": [0, 1]}, "columns": columns}
    path = write(tmp_path, {"data": None, "rounds": 1})
    data = {"dataset": {"name": "table", "files": "*.csv"}, "schema": schema, "partition": "natural"}
    path.write_text(path.read_text() + f"data: {data}\n")
    done = dpfl("run", path, "--out", tmp_path / "runs")
    assert done.code == 0, done.err
    assert done.err.count("records: column 'glucose' differs: a: mostly 9") == 1
    files = [file for file in (tmp_path / "runs").rglob("*") if file.is_file()]
    assert files and not any(b"differs: a" in file.read_bytes() for file in files)

    config = load(path).variants[0].config
    parts = build(config, tmp_path)
    (note,) = site_notes(config, tmp_path, parts)
    assert f"records: {note}." in done.err
    assert site_notes(config, tmp_path, replace(parts, train={0: parts.train[0]})) == ()  # others have the rest
    monkeypatch.setattr(start_notes, "MOST_COMPARED", 95)
    assert site_notes(config, tmp_path, parts) == (LARGE,)
