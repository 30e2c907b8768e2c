"""`dpfl check`: whether a run could begin, and what is wrong with its tables."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from dpfl_plugin.api.checks import NOTHING_DONE, check
from dpfl_plugin.api.experiment import Experiment
from dpfl_plugin.api.tables import CheckedTables, check_tables_of
from dpfl_plugin.runs.folder import to_json


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
        for line in [*([f"{label}:"] if label else []), *one.lines]:
            print(line)
    print(NOTHING_DONE)


def _document(one: Any) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in dataclasses.asdict(one).items()}


def _show_tables(found: CheckedTables, *, as_json: bool) -> None:
    if as_json:
        print(to_json(dataclasses.asdict(found)))
        return
    for line in found.lines:
        print(line)
    print(NOTHING_DONE)
