"""The command line in this process, and small configurations for it."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from dpfl_plugin.cli.main import main
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.measurements import join_lines

# 4 silos of 30 records, of which 24 are for training.
BASE: dict[str, Any] = {
    "seed": 3,
    "rounds": 6,
    "data": {
        "dataset": {"name": "synthetic", "num_features": 4, "num_classes": 3, "records_per_silo": 30},
        "num_silos": 4,
    },
    "algorithm": {"name": "scaffold", "local_steps": 2, "local_lr": 0.5},
    "privacy": {"clip_norm": 1.0, "noise_multiplier": 4.0, "record_rate": 0.5},
}
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out, parse_constant=_not_json)


def _not_json(token: str) -> None:
    raise AssertionError(f"{token} is not JSON")


def dpfl(*args: object) -> Done:
    """Run ``dpfl ARGS`` here; what `main` does not turn into an exit code is raised."""
    out, err = io.StringIO(), io.StringIO()
    return Done(_main(args, out, err), out.getvalue(), err.getvalue())


def _main(args: tuple[object, ...], out: io.StringIO, err: io.StringIO) -> int:
    with (
        mock.patch.object(sys, "argv", ["dpfl", *map(str, args)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
    return 0


def write(folder: Path, changes: dict[str, Any] | None = None, name: str = "config.yaml") -> Path:
    """`BASE` with changes merged into it, as a file; a value of None removes a key."""
    path = folder / name
    path.write_text(yaml.dump(merged(BASE, changes or {}), Dumper=DUMPER, sort_keys=False))
    return path


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(base)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def run(config: Path, *args: object, code: int = 0) -> dict[str, Any]:
    """The result of ``dpfl run CONFIG``, which ends with ``code``; its folders are beside the configuration."""
    done = dpfl("run", config, "--out", config.parent / "runs", "--json", *args)
    assert done.code == code, done.err
    result: dict[str, Any] = done.json
    return result


def metrics(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The evaluations of a run, without times; with what silo ranks noted."""
    folder = RunFolder(Path(result["folder"]))
    lines = join_lines(folder.read_metrics(), folder.silo_ranks)
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def charges(folder: Path | str) -> set[Charge]:
    """What a run's ledger holds."""
    return set(Ledger.open(Path(folder) / "ledger.jsonl", append=False))


def one_message(done: Done, *parts: str, code: int = 2) -> None:
    """The command failed with one message that says each of ``parts``, and printed no result."""
    assert done.code == code, done.err
    assert "Traceback" not in done.err and not done.out
    assert done.err.count("dpfl: ") == 1, done.err
    for part in parts:
        assert part in done.err, done.err
