"""Run folders as `dpfl run` leaves them, written without running anything."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import yaml

from dpfl_plugin.experiments.reports.runs import Run, read, scan
from dpfl_plugin.experiments.reports.section import Section, section_of

CONFIG: dict[str, Any] = {
    "name": "made",
    "rounds": 10,
    "data": {"dataset": {"name": "digits"}, "folder": None, "preprocess": [{"name": "unit_norm"}]},
    "algorithm": {"name": "scaffold", "local_lr": 1.0},
    "privacy": {"noise_multiplier": 4.0, "clip_norm": 1.0},
    "checkpoint": {"every": None},
    "out": "runs",
}


def config(changes: dict[str, Any] | None = None, seed: int = 0) -> dict[str, Any]:
    """`CONFIG` with changed values by dotted keys."""
    values = {**copy.deepcopy(CONFIG), "seed": seed}
    for key, value in (changes or {}).items():
        *parents, last = key.split(".")
        block = values
        for parent in parents:
            block = block[parent]
        block[last] = value
    return values


def evaluation(round: int, accuracy: float | None, epsilon: float | None, step: float = 1.0) -> dict[str, Any]:
    return {
        "round": round,
        "phase": "train",
        "train_loss": None if accuracy is None else 1 - accuracy,
        "test_accuracy": accuracy,
        "epsilon": {"server": epsilon, "third_party": epsilon},
        "seconds": step * round,
        "bytes_up": 10 * round,
        "bytes_down": 30 * round,
    }


def made(
    folder: Path,
    *,
    seed: int = 0,
    changes: dict[str, Any] | None = None,
    accuracies: list[float | None] | None = None,
    epsilon: float | None = 2.0004,
    status: str | None = "done",
    reason: str = "",
    cause: str = "rounds",
    step: float = 1.0,
) -> Path:
    """A run of a round for each accuracy, evaluated after each; no result.json if ``status`` is None."""
    accuracies = accuracies if accuracies is not None else [0.1 * i for i in range(1, 11)]
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config(changes, seed)))
    count = len(accuracies)
    spent = [None if epsilon is None else epsilon * i / count for i in range(1, count + 1)]
    lines = [evaluation(i + 1, a, e, step) for i, (a, e) in enumerate(zip(accuracies, spent, strict=True))]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "ledger.jsonl").write_text('{"facts":{},"check":"00"}\n{"count":1,"check":"aa"}\n')
    if status is not None:
        result(folder, accuracies, epsilon, status, reason)
        change(folder / "result.json", cause=cause)
    return folder


def some(folder: Path, *settings: dict[str, Any]) -> list[Run]:
    """A run for each of ``settings``, which are arguments of `made`."""
    return [read(made(folder / str(i), **setting)) for i, setting in enumerate(settings)]


def result(folder: Path, accuracies: list[float | None], epsilon: float | None, status: str, reason: str) -> None:
    view = {"epsilon": epsilon, "delta": 1e-5, "unit": "record", "neighbouring": "replace_one", "accountant": "PLD"}
    tail = accuracies[len(accuracies) - math.ceil(len(accuracies) / 10) :]
    mean = None if None in tail or not tail else math.fsum(tail) / len(tail)  # type: ignore[arg-type]
    values = {
        "schema": 1,
        "status": status,
        "reason": reason,
        "id": folder.name,
        "rounds": len(accuracies),
        "test_accuracy": {"mean_last_10_percent": mean},
        "train_loss": {"mean_last_10_percent": None if mean is None else 1 - mean},
        "epsilon": {"server": view, "third_party": view},
    }
    (folder / "result.json").write_text(json.dumps(values))
    said = {
        "guarantee": "differential privacy, as stated in views" if epsilon is not None else "none: no noise was added",
        "accountant": {"caveat": ""},
        "run": {key: values[key] for key in ("id", "status", "rounds")},
        "views": values["epsilon"],
        "head": "aa",
    }
    (folder / "ledger.json").write_text(json.dumps(said))


def section(folder: Path, *metrics: str) -> Section:
    """Of all runs in a folder, on one data set."""
    return section_of("", scan([folder])[0], None, metrics, None, None, None)


def change(path: Path, **values: Any) -> None:
    """Change values of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
