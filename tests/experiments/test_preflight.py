"""What is wrong with the last run of a sweep is said before the first one begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dpfl_plugin.api.sweep import Preflight
from dpfl_plugin.config.sweep import expand
from dpfl_plugin.errors import ConfigError
from tests.cli.command import BASE, dpfl, one_message

SCHEMA = {
    "label": {"outcome": "counts", "column": "stay", "range": [0, 20]},
    "columns": {"age": {"type": "number", "range": [18, 100]}},
}
TABLE = {"data": {"dataset": {"name": "table", "files": "*.csv"}, "schema": SCHEMA, "partition": "natural"}}
CSV = {"data": {"dataset": {"name": "csv", "files": "*.csv"}, "partition": "natural"}}

WRONG: list[tuple[dict[str, Any], str, list[Any], str]] = [
    ({}, "data.preprocess", [["unit_norm"], [{"name": "hogg"}]], "data.preprocess[0].name='hogg' is unknown (did you"),
    ({}, "data.preprocess", [["unit_norm", {"name": "hog", "cellz": 2}]], "data.preprocess[1].cellz is not a known"),
    ({}, "algorithm.local_lr", [0.5, -0.5], "algorithm.local_lr=-0.5 must be positive"),
    ({}, "algorithm", [{"name": "mr_mtl", "mean_weight": -1}], "algorithm.mean_weight=-1.0 must be"),
    ({}, "privacy.schedule", ["constant", {"name": "geometric", "beta": -1}], "privacy.schedule.beta=-1.0 must be"),
    ({}, "privacy.clip", ["flat", {"name": "adaptive", "quantile": 3}], "privacy.clip.quantile=3.0 must be"),
    (TABLE, "data.schema.label.range", [[0, 20], [20, 0]], "data.schema.label: range=[20.0, 0.0] must have"),
    (TABLE, "data.schema.columns.age.type", ["integer", "figure"], "data.schema.columns.age.type='figure'"),
    (CSV, "data.dataset.outcome", [None, {"kind": "survival"}], "data.dataset.outcome"),
]


def write(folder: Path, changes: dict[str, Any], key: str, values: list[Any]) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({**BASE, **changes, "sweep": {"grid": {key: values}}}, sort_keys=False))
    return path


@pytest.mark.parametrize(("changes", "key", "values", "message"), WRONG, ids=[case[-1] for case in WRONG])
def test_a_value_that_no_run_can_have_names_its_run(
    tmp_path: Path, changes: dict[str, Any], key: str, values: list[Any], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        expand(write(tmp_path, changes, key, values), (), Preflight().check)
    assert f"sweep.yaml (run {key}=" in str(error.value) and message in str(error.value)
    if len(values) > 1:  # the others are right
        rows = expand(write(tmp_path, changes, key, values[:-1]), (), Preflight().check).rows
        assert len(rows) == len(values) - 1


def test_the_command_refuses_before_it_writes(tmp_path: Path) -> None:
    path = write(tmp_path, {}, "data.preprocess", [["unit_norm"], ["unit_nrm"]])
    one_message(dpfl("sweep", path, "--out", tmp_path / "out"), "did you mean 'unit_norm'?")
    assert not (tmp_path / "out").exists()


def test_seeded_runs_of_one_ledger_are_refused_before_the_first(tmp_path: Path) -> None:
    path = write(tmp_path, {}, "seed", [0, 1])
    one_message(dpfl("sweep", path, "--out", tmp_path / "out", "--ledger", tmp_path / "all.jsonl"), "randomness: fresh")
    assert not (tmp_path / "out").exists()


def test_users_own_modules_are_left_to_the_runs(tmp_path: Path) -> None:
    path = write(tmp_path, {"algorithm": {}}, "algorithm.module", ["that_is_nowhere:make"])
    assert len(expand(path, (), Preflight().check).rows) == 1
