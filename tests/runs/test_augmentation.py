"""`augmentation` in runs: what is charged and stated, and that a run goes on with the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dpfl_plugin.config.load import configure, run_id
from tests.cli.command import BASE, charges, dpfl, merged, metrics, run
from tests.cli.test_resume import crash, same

VIEWS = {"views": 3, "flip": True, "crop": 1}
IMAGES = {"dataset": {"name": "npz", "files": "images.npz"}, "partition": "natural"}


def config(folder: Path, **changes: Any) -> Path:
    """3 silos of 20 images of 5 x 4 pixels."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 1, 5, 4)).astype(np.float32)
    np.savez(folder / "images.npz", x=x, y=(x[:, 0, 0, 0] > 0).astype(np.int64), silo=np.arange(60) % 3)
    base = {**BASE, "rounds": 3, "data": IMAGES, "model": {"name": "mlp", "hidden": [4]}, "augmentation": VIEWS}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(merged(base, changes), sort_keys=False))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(config(tmp_path_factory.mktemp("whole")))


def test_views_cost_what_records_cost_and_are_stated(whole: dict[str, Any], tmp_path: Path) -> None:
    plain = run(config(tmp_path, augmentation=None))
    releases = [{(c.round, c.silo, c.release) for c in charges(found["folder"])} for found in (whole, plain)]
    assert releases[0] == releases[1] and {release.unit for _, _, release in releases[0]} == {"record"}
    assert whole["epsilon"] == plain["epsilon"] and whole["model_sha256"] != plain["model_sha256"]
    page = (Path(whole["folder"]) / "privacy.md").read_text()
    assert "clip(mean gradient of 3 views of a record, C)" in page
    said = json.loads((Path(whole["folder"]) / "ledger.json").read_text())
    assert said["protects"]["unit"] == "record"


@pytest.mark.parametrize("number", [1, 2])
def test_crashed_and_resumed_with_the_same_bits(tmp_path: Path, whole: dict[str, Any], number: int) -> None:
    path = config(tmp_path)
    crash(path, number)
    same(run(path, "--resume"), whole)


@pytest.mark.parametrize(
    "changes",
    [
        {"runtime": {"stack": 2}},
        {"evaluation": {"dissimilarity": True}},  # of records as they are; nothing that is measured changes a run
    ],
    ids=["stack", "dissimilarity"],
)
def test_how_it_is_computed_changes_no_bit(tmp_path: Path, whole: dict[str, Any], changes: dict[str, Any]) -> None:
    other = run(config(tmp_path, **changes))
    assert other["model_sha256"] == whole["model_sha256"]
    for mine, theirs in zip(metrics(other), metrics(whole), strict=True):
        assert theirs.items() <= {**theirs, **mine}.items()


def test_other_views_are_another_run(tmp_path: Path) -> None:
    values = yaml.safe_load(config(tmp_path).read_text())
    names = [
        run_id(configure({**values, **changes}, source="test"))
        for changes in ({}, {"augmentation": {**VIEWS, "views": 4}}, {"augmentation": None})
    ]
    assert len(set(names)) == 3
    without = configure({key: value for key, value in values.items() if key != "augmentation"}, source="test")
    assert run_id(without) == names[2] and "augmentation" not in without.model_dump()


SMOOTHED = {"name": "convolution_mb_sgd", "diameter": 1.0, "smoothing_radius": 0.1, "lipschitz": 1.0, "v": 1.0}
SMOOTHED |= {"local_steps": None, "local_lr": None}  # of the file's algorithm
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "table": (
        {"data": {"dataset": BASE["data"]["dataset"] | {"files": None}, "num_silos": 4, "partition": None}},
        "features of shape (4,) are no images",
    ),
    "columns": ({"data": {"preprocess": [{"name": "pca", "dims": 3}]}}, "are no images"),
    "nothing": ({"augmentation": {"flip": False, "crop": 0}}, "3 views that differ in nothing"),
    "too far": ({"augmentation": {"crop": 4}}, "augmentation.crop=4 moves images of 5 x 4"),
    "smoothed": ({"algorithm": SMOOTHED}, "gradients of smoothed losses"),
    "engine": ({"engine": "dense"}, "or of views of records (augmentation)"),
}


@pytest.mark.parametrize(("changes", "says"), REFUSED.values(), ids=REFUSED)
def test_refused_before_anything_is_released(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    done = dpfl("run", config(tmp_path, **changes))
    assert done.code == 2 and says in done.err, done.err
    assert not list(tmp_path.rglob("ledger.jsonl"))
