"""A statement to be signed, made of a finished run's folder or of a silo's own, after its ledger was checked."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final

from dpfl_plugin import __version__, registry
from dpfl_plugin.api.account import account
from dpfl_plugin.api.runs import Run
from dpfl_plugin.config.load import base_of, load
from dpfl_plugin.config.schema import SCHEMA_KEY
from dpfl_plugin.core.text import Page
from dpfl_plugin.data.names import told_apart
from dpfl_plugin.data.schema import Column, Label, TableSchema
from dpfl_plugin.errors import ConfigError, DataError, LedgerError, printable, require
from dpfl_plugin.experiments.tuning.statement import winner_of
from dpfl_plugin.privacy.accountants import named_accountant
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.ledger_file import is_begun
from dpfl_plugin.privacy.shared_ledger import runs_in
from dpfl_plugin.privacy.statement_pages import page_to_sign, total_of
from dpfl_plugin.runs.checkpoint import load_facts
from dpfl_plugin.runs.folder import TUNING, RunFolder, write_new
from dpfl_plugin.runs.ledgers import read_shared
from dpfl_plugin.runs.public_facts import has_schema, names_its_classes
from dpfl_plugin.runs.statement import shared_with_others

READ: Final = {
    *("run", "guarantee", "views", "silos", "protects", "mechanism", "warnings", "caveats", "assumptions", "shared"),
    "accountant",
}  # keys of a statement
VIEWS: Final = {"server": "server", "third_party": "third party"}  # names in a statement, and in an account
SLACK: Final = 1e-9  # relative difference of an epsilon that is computed twice


@dataclass(frozen=True, slots=True)
class Statement(Page):
    """A page to sign, in Markdown: ``print`` gives its text, a notebook shows it as it will be read.

    Attributes:
        run: the id of the run. epsilon, delta: what is guaranteed towards the server, with all that belongs together.
        text: the page. file: where it was written; None where it was not.
    """

    run: str
    epsilon: float | None
    delta: float
    text: str = field(repr=False)
    file: Path | None = None

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "file": None if self.file is None else str(self.file)}


def statement(
    run: Run | str | Path,
    *,
    names: Mapping[int, str] | None = None,
    study: str = "",
    purpose: str = "",
    recipients: str = "",
    out: str | Path | None = None,
) -> Statement:
    """Make a page for those who answer for the records: whose they are, by name, what is guaranteed, and what not.

    The ledger is read and checked, and epsilon computed anew from it, as `dpfl.account` does; the page says so. Of a
    run whose configuration names a ledger (privacy.ledger), the page lists the runs that this ledger holds now, and
    states what all of them come to.

    Args:
        run: a run, or the folder of one, or of a silo on a platform.
        names: of sites, by silo; of those left out the names that the run's data gave them, where its folder has any.
        study: what the page is headed by; the run's name if left out.
        purpose, recipients: what the study is for, and who receives the model and the results; left out, the page has
            lines to fill in.
        out: a new file for the page; None: none is written.

    Returns:
        the page. It names sites: it is for their owners, and not among what a run publishes.

    Raises:
        ConfigError: nothing is guaranteed of the run, or its noise follows from a seed; a name is of no silo; ``out``
            exists or cannot be written.
        DataError: the folder has no statement, or one that cannot be read.
        LedgerError: the ledger is damaged, or holds more than the folder's statement says.
    """
    folder = run.folder if isinstance(run, Run) else Path(run)
    files = RunFolder(folder)
    document, digest = _read(files)
    _check_guarantee(document, folder)
    _check_epsilons(document, files)
    shared = _shared_now(files)
    if shared is not None:
        document["shared"] = shared
    known = _names(files) | told_apart(names or {})
    listed = document["silos"]
    silos = {silo["silo"] for silo in listed} if listed else set(range(document["run"]["num_silos"]))
    for silo in names or {}:
        require(silo in silos, "names", silo, f"be a silo of {folder}: {', '.join(map(str, sorted(silos)[:20]))}")
    text = page_to_sign(
        document,
        known,
        study=study,
        purpose=purpose,
        recipients=recipients,
        **_variables(files),
        other_runs=_other_runs(files) if shared is None else shared["runs"],
        is_current=shared is not None,
        made=date.today().isoformat(),
        version=__version__,
        digest=digest,
    )
    total = total_of(document, document["views"]["server"])
    file = None if out is None else Path(out)
    if file is not None:
        write_new(file, text)
    return Statement(document["run"]["id"], total["epsilon"], total["delta"], text, file)


def _read(files: RunFolder) -> tuple[dict[str, Any], str]:
    try:
        text = files.statement.read_bytes()
        document = json.loads(text)
        if missing := READ - document.keys():
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    except OSError as error:
        if (winner := winner_of(files.path)) is not None:
            raise DataError(
                f"{files.path} is the folder of a tuning, and each candidate is a run with a folder of its own. Give "
                f"that of the winner, whose statement is of all candidates together: "
                f"{shlex.join(['dpfl', 'statement', str(winner)])}"
            ) from error
        raise DataError(
            f"{files.statement} cannot be read: {error.strerror}. It is in the folder of a run that ended, or of a "
            "silo."
        ) from error
    except (ValueError, AttributeError) as error:
        raise DataError(f"{files.statement} is damaged ({error}): restore it from a copy.") from error
    return document, hashlib.sha256(text).hexdigest()


def _check_guarantee(document: dict[str, Any], folder: Path) -> None:
    if document["guarantee"].startswith("none"):
        why = document["guarantee"].removeprefix("none: ")
        raise ConfigError(f"{folder}: nothing is guaranteed ({why}), so there is nothing to sign.")
    if document["mechanism"].get("randomness") != "fresh":
        raise ConfigError(
            f"{folder}: privacy.randomness: seeded: the run was a simulation, whose noise follows from its seed: "
            "nobody should sign for it. Run it again with privacy.randomness=fresh, or without a seed."
        )


def _check_epsilons(document: dict[str, Any], files: RunFolder) -> None:
    """Compute the epsilons of a statement anew from the ledger beside it.

    Raises:
        LedgerError: the ledger holds more. ConfigError: nothing is guaranteed. DataError: the accountant is missing.
    """
    rows = account(files.path).rows
    by = document["accountant"]["name"]
    accountant = next((item for item in map(named_accountant, registry.names("accountants")) if item.name == by), None)
    if accountant is None:
        raise DataError(f"{files.path}: the accountant {by!r} of its statement is not installed.")
    if not accountant.sound:
        raise ConfigError(f"{files.path}: accountant {by} gives no bound ({accountant.caveat}): nobody should sign it.")
    proven = {row.view: row.epsilon for row in rows if row.accountant == by}
    if proven["server"] is None:
        raise ConfigError(
            f"{files.path}: by its ledger and its configuration nothing is guaranteed, so there is nothing to sign."
        )
    for key, view in VIEWS.items():
        stated, actual = document["views"][key]["epsilon"], proven.get(view, proven["server"])
        if (math.inf if actual is None else actual) > (stated or 0.0) * (1 + SLACK):
            raise LedgerError(
                f"{files.statement}: views.{key}.epsilon is {stated or 0.0:.6g}, but the releases in ledger.jsonl cost "
                f"{actual}. Resume the run, or restore the folder from a copy."
            )


def _variables(files: RunFolder) -> dict[str, Any]:
    """What a run's model predicts, and from which variables, as far as its folder says."""
    if not files.config.exists():
        return {"outcome": "", "variables": []}
    config = load(files.config).variants[0].config
    options = config.data.dataset.options
    if has_schema(config):
        schema = TableSchema.parse(options[SCHEMA_KEY])
        return {"outcome": _outcome(schema.label), "variables": [(n, _holds(c)) for n, c in schema.columns.items()]}
    inputs = _json(files.result).get("inputs") or {}
    columns = inputs.get("columns") or [f"an array of shape {tuple(inputs['shape'])}"] if inputs else []
    classes = inputs.get("classes", []) if names_its_classes(config) else []
    label = str(options.get("label_column", ""))
    return {"outcome": ": ".join(filter(None, (label, ", ".join(classes)))), "variables": [(n, "") for n in columns]}


def _outcome(label: Label) -> str:
    names = ", ".join(label.named)
    if label.classes is not None:
        return f"{names}: {', '.join(label.classes)}"
    if label.range is None:
        return names
    return f"{names}: {label.outcome}, {label.range[0]:g} to {label.range[1]:g} {label.unit or ''}".rstrip()


def _holds(column: Column) -> str:
    if column.type in ("identifier", "ignored"):
        return "not used"
    if column.listed:
        return f"{column.type}: {', '.join(column.listed)}{', others' * column.other}"
    return f"{column.type}, {' to '.join(column.ends)} {column.unit or ''}".rstrip()


def _shared_now(files: RunFolder) -> dict[str, Any] | None:
    """What the ledger that the run's configuration names holds now; None where it names none.

    Raises:
        LedgerError: that ledger is damaged, or does not hold what the run knows of it.
    """
    if not files.config.exists() or not (facts := load_facts(files.checkpoint)) or "shared_head" not in facts:
        return None
    config = load(files.config).variants[0].config
    if config.privacy.ledger is None:
        return None
    tuning = files.tuning()
    if tuning is None and _began_with(files) != Path(config.privacy.ledger).name:
        return None  # --ledger named another
    name = str(facts["run_name"] if tuning is None else _json(tuning / TUNING).get("name"))
    path = base_of(files.config) / config.privacy.ledger
    shared = read_shared(path) if is_begun(path) else None
    there = shared is not None and name in [run.name for run in runs_in(shared)]
    if shared is None or not there or not (tuning or shared.holds(facts["shared_head"])):
        raise LedgerError(
            f"{path}: is missing, or is not the ledger that {files.path} shares with others, or its end is missing. "
            "Without it no total can be stated. Restore the file from a copy."
        )
    return shared_with_others(shared, name, config.privacy.delta)


def _began_with(files: RunFolder) -> str | None:
    """The name of the shared ledger that a run began with."""
    return (Ledger.open(files.ledger, append=False).facts.get("shared") or {}).get("file")


def _other_runs(files: RunFolder) -> list[dict[str, Any]]:
    """Those in the ledger that the run shared with them."""
    return list((_json(files.details).get("shared") or {}).get("runs", []))


def _names(files: RunFolder) -> dict[int, str]:
    """Names of silos, as the run's data gave them; none of MPI ranks or of one silo."""
    return {int(silo): printable(name) for silo, name in _json(files.result).get("silo_names", {}).items()}


def _json(path: Path) -> dict[str, Any]:
    """A file of the run's folder; nothing where it is missing."""
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
