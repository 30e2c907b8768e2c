"""`dpfl check`: whether a run could begin, and what is wrong with its tables."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from dpfl_plugin.api.checks import Checked, check
from dpfl_plugin.api.experiment import Experiment
from dpfl_plugin.api.tables import CheckedTables, check_tables_of
from dpfl_plugin.runs.folder import to_json

NOTHING_DONE = "Nothing was trained, released or written."


def check_file(config: Path, settings: list[str], files: list[Path], variant: str | None, *, as_json: bool) -> None:
    """Print what a run would be, or that tables are right.

    Raises:
        ConfigError, DataError: what a run would raise before its first round; all that is wrong with all tables.
    """
    experiment = Experiment(config, tuple(settings), variant=variant)
    if files:
        _show_tables(check_tables_of(experiment, files), as_json=as_json)
        return
    found = check(experiment)
    checked = found if isinstance(found, dict) else {"": found}
    if as_json:
        documents = {label: _document(one) for label, one in checked.items()}
        print(to_json(documents if isinstance(found, dict) else documents[""]))
        return
    for label, one in checked.items():
        _show(label, one)
    print(NOTHING_DONE)


def _document(one: Any) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in dataclasses.asdict(one).items()}


def _show(label: str, one: Checked) -> None:
    if label:
        print(f"{label}:")
    counts = one.num_records
    each = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    print(f"{len(counts)} silos with {each} training {one.unit} each, {sum(counts)} in all")
    print(f"{one.rounds} rounds, noise multiplier {one.noise_multiplier:.4g}")
    for line in one.silos:
        print(line)
    print(f"engine: {one.engine}")
    print(f"memory: {one.memory}")
    for line in one.notes:
        print(f"records: {line}")
    for line in one.warnings:
        print(f"note: {line}")


def _show_tables(found: CheckedTables, *, as_json: bool) -> None:
    if as_json:
        print(to_json(dataclasses.asdict(found)))
        return
    for path, count in found.num_records.items():
        print(f"{path}: {count} records, all right")
    print(f"{len(found.features)} features: {', '.join(found.features)}")
    for line in found.notes:
        print(f"records: {line}")
    print(NOTHING_DONE)
