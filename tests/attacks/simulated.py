"""Small runs to attack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpfl_plugin.config.schema import Config
from tests.cli.command import merged

# 3 silos of 60 images, of which 30 are for training: fewer than a model of 650 parameters can remember.
DIGITS: dict[str, Any] = {
    "seed": 0,
    "rounds": 8,
    "data": {"num_silos": 3, "max_records_per_silo": 60, "test_fraction": 0.5, "preprocess": ["unit_norm"]},
    "algorithm": {"name": "scaffold", "local_steps": 4, "local_lr": 1.0},
    "privacy": {"clip_norm": 0.5, "noise_multiplier": 2.0, "record_rate": 0.5, "delta": 1e-3},
}
QUIET = {"privacy": {"clip_norm": float("inf"), "noise_multiplier": 0.0}}
HERE = Path()


def config(*changes: dict[str, Any]) -> Config:
    """`DIGITS` with changes."""
    values = DIGITS
    for change in changes:
        values = merged(values, change)
    return Config(**values)
