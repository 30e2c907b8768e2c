"""The folder of a sweep: what is to run, as text that people and programs can read.

    DIR/sweeps/<digest>/manifest.jsonl    a line for each run
                        base.yaml         the configuration that every line changes
                        sweep.json        where the base came from, and how to run it
                        jobs.jsonl        what was handed to Slurm
    DIR/runs/<name>/<id>/                 the run folders

Several sweeps may share DIR: a run that is in two of them has one folder, and runs once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import dpfl_plugin
from dpfl_plugin.config.load import read_yaml
from dpfl_plugin.config.schema import SweepConfig
from dpfl_plugin.config.sweep import Expansion, Row
from dpfl_plugin.config.yaml_text import dump
from dpfl_plugin.errors import ConfigError, DataError, is_full
from dpfl_plugin.file_permissions import private_folder
from dpfl_plugin.runs.folder import RunFolder, read_object, to_json, write_atomic

SCHEMA: Final = 1
Backend = Literal["local", "slurm", "submitit"]
Request = dict[str, str | int | bool]
"""What a task asks Slurm for: options of sbatch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to run a sweep.

    Attributes:
        jobs: runs at the same time, on this machine or in each task of Slurm; pack: runs in a task; at_once: tasks.
        progress: whether to show a bar; None: in a terminal and in Jupyter.
    """

    on: Backend = "local"
    jobs: int = 1
    at_once: int | None = None
    pack: int = 1
    progress: bool | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """A planned sweep.

    Attributes:
        folder: DIR/sweeps/<digest>.
        source: the file that it was made from; paths in the configuration are relative to its folder.
        base: what every row changes.
        ledger: that all runs share, if they do.
        variants, compare: as `Expansion` has them.
    """

    folder: Path
    source: Path
    base: dict[str, Any]
    spec: SweepConfig
    rows: tuple[Row, ...]
    ledger: Path | None = None
    variants: dict[str, str] = field(default_factory=dict)
    compare: tuple[tuple[str, str], ...] = ()

    @property
    def runs(self) -> Path:
        return self.folder.parents[1] / "runs"

    def folder_of(self, row: Row) -> RunFolder:
        return RunFolder(self.runs / row.name / row.id)

    def chunks(self, pack: int) -> list[tuple[Row, ...]]:
        """The rows of each task: ``pack`` successive ones of the manifest that ask Slurm for the same."""
        alike: dict[str, list[Row]] = {}
        for row in self.rows:
            alike.setdefault(json.dumps(row.slurm, sort_keys=True), []).append(row)
        return [tuple(rows[i : i + pack]) for rows in alike.values() for i in range(0, len(rows), pack)]

    def tasks(self, rows: Sequence[Row], pack: int) -> list[int]:
        """The tasks that hold these rows."""
        indices = {row.index for row in rows}
        return [task for task, chunk in enumerate(self.chunks(pack)) if any(row.index in indices for row in chunk)]

    def rows_of(self, task: int, pack: int) -> tuple[Row, ...]:
        """The rows of a task; none if there is no such task."""
        chunks = self.chunks(pack)
        return chunks[task] if 0 <= task < len(chunks) else ()


def plan(expansion: Expansion, source: Path, out: Path, ledger: Path | None = None) -> Sweep:
    """The sweep in the folder ``out``; nothing is written."""
    digest = hashlib.sha256((_lines(expansion.rows) + _base(expansion.base)).encode()).hexdigest()[:12]
    folder = out.resolve() / "sweeps" / digest
    shared = None if ledger is None else ledger.absolute()
    variants, compare = expansion.variants, expansion.compare
    return Sweep(folder, source.resolve(), expansion.base, expansion.spec, expansion.rows, shared, variants, compare)


def check_ledger(sweep: Sweep) -> None:
    """Check that a sweep goes on with the shared ledger, or without one, as it began.

    Raises:
        ConfigError: it does not.
    """
    try:
        facts = json.loads((sweep.folder / "sweep.json").read_text())
        before = None if facts.get("ledger") is None else Path(facts["ledger"])
    except (OSError, ValueError, TypeError, AttributeError):  # none yet, or damaged: each run of it looks for itself
        return
    if before != sweep.ledger:
        began = "without a ledger" if before is None else f"with ledger {before}"
        raise ConfigError(
            f"{sweep.folder}: this sweep began {began}: continue that way, or start over with another out."
        )


def write(sweep: Sweep) -> None:
    """Write a sweep's files; the manifest last, so that where there is one the rest is there, too.

    Raises:
        ConfigError: the folder cannot be written to.
    """
    try:
        private_folder(sweep.folder)
        write_atomic(sweep.folder / "base.yaml", _base(sweep.base))
        facts = {
            "schema": SCHEMA,
            "dpfl_plugin": dpfl_plugin.__version__,
            "source": str(sweep.source),
            "ledger": None if sweep.ledger is None else str(sweep.ledger),
            "sweep": sweep.spec.model_dump(mode="json", by_alias=True),
            **({"variants": sweep.variants, "compare": sweep.compare} if sweep.variants else {}),
        }
        write_atomic(sweep.folder / "sweep.json", to_json(facts))
        write_atomic(sweep.folder / "manifest.jsonl", _lines(sweep.rows))
    except OSError as error:
        if is_full(error):
            raise
        raise ConfigError(f"{sweep.folder}: cannot be written to ({error.strerror}). Use another out.") from error


def read(folder: Path) -> Sweep:
    """The sweep in DIR/sweeps/<digest>.

    Raises:
        DataError: files are missing or damaged, or of another version; names the file.
    """
    try:
        text = {name: (folder / name).read_text() for name in ("manifest.jsonl", "base.yaml")}
        digest = hashlib.sha256("".join(text.values()).encode()).hexdigest()[: len(folder.resolve().name)]
        if digest != folder.resolve().name:
            raise DataError(
                f"{folder}: manifest.jsonl or base.yaml is not what dpfl sweep wrote there: lines are missing, or were "
                "changed. Write them again with the same dpfl sweep command."
            )
        facts = json.loads((folder / "sweep.json").read_text())
        if facts["schema"] != SCHEMA:
            raise DataError(f"{folder}: a sweep of schema {facts['schema']}; this version reads {SCHEMA}.")
        rows = tuple(Row(**json.loads(line)) for line in text["manifest.jsonl"].splitlines())
        spec = SweepConfig.model_validate(facts["sweep"])
        ledger = None if facts.get("ledger") is None else Path(facts["ledger"])  # there was none once
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{folder}: holds no readable sweep ({error}). Plan it again with dpfl sweep.") from error
    variants, compare = facts.get("variants", {}), tuple((first, second) for first, second in facts.get("compare", ()))
    source, base = Path(facts["source"]), read_yaml(folder / "base.yaml")
    return Sweep(folder.resolve(), source, base, spec, rows, ledger, variants, compare)


def variants_in(out: Path) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Of the sweeps that share ``out``: the label of each run's variant, by its id, and pairs of labels to compare."""
    variants: dict[str, str] = {}
    compare: list[tuple[str, str]] = []
    for path in sorted(out.glob("sweeps/*/sweep.json")):
        facts = read_object(path) or {}
        variants |= facts.get("variants", {})
        compare += [(first, second) for first, second in facts.get("compare", [])]
    return variants, list(dict.fromkeys(compare))


def sweeps_in(out: Path) -> list[Path]:
    """Folders of the sweeps that share ``out``, oldest first.

    Raises:
        ConfigError: there is none.
    """
    folders = [path.parent for path in out.glob("sweeps/*/manifest.jsonl")]
    if not folders:
        raise ConfigError(
            f"{out}: holds no sweep (sweeps/*/manifest.jsonl) and no run, and no dpfl server or silo has begun there. "
            "Give the folder of dpfl sweep --out or of dpfl run --out, or the one that sites share."
        )
    return sorted(folders, key=lambda folder: (folder / "manifest.jsonl").stat().st_mtime)


def _lines(rows: Sequence[Row]) -> str:
    # Not to_json: an infinity that a run is given has to come back as one.
    # Options of a run's own are left out where there are none, so that a sweep without any is the one it always was.
    facts = ({key: value for key, value in asdict(row).items() if key != "slurm" or value} for row in rows)
    return "".join(json.dumps(row) + "\n" for row in facts)


def _base(base: dict[str, Any]) -> str:
    return dump(base)
