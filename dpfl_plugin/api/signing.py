"""A statement to be signed, made of a finished run's folder or of a silo's own, after its ledger was checked."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

from dpfl_plugin import __version__, registry
from dpfl_plugin.api.accounts import rows_of
from dpfl_plugin.api.numbers import named_accountant
from dpfl_plugin.api.runs import Run
from dpfl_plugin.data.names import told_apart
from dpfl_plugin.errors import ConfigError, DataError, LedgerError, printable, require
from dpfl_plugin.privacy.signed_page import page
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.tuning.winner import winner_of

VIEWS: Final = {"server": "server", "third_party": "third party"}  # names in a statement, and in an account
SLACK: Final = 1e-9  # relative difference of an epsilon that is computed twice


def statement_to_sign(what: Run | str | Path, *, names: Mapping[int, str] | None = None, study: str = "") -> str:
    """A page for those who answer for the records: whose they are, by name, what is guaranteed, in words, and what not.

    The ledger is read and checked, and epsilon computed anew from it, as `dpfl.account` does; the page says so.

    Args:
        what: a run, or the folder of one, or of a silo on a platform.
        names: of sites, by silo; of those left out the names that the run's data gave them, where its folder has any.
        study: what the page is headed by; the run's name if left out.

    Returns:
        the page, in Markdown. It names sites: it is for their owners, and not among what a run publishes.

    Raises:
        ConfigError: nothing is guaranteed of the run, or its noise follows from a seed; a name is of no silo.
        DataError: the folder has no statement, or one that cannot be read.
        LedgerError: the ledger is damaged, or holds more than the folder's statement says.
    """
    folder = what.folder if isinstance(what, Run) else Path(what)
    files = RunFolder(folder)
    said, digest = _said(files)
    _check_guarantee(said, folder)
    _check_epsilons(said, files)
    known = _names(files) | told_apart(names or {})
    silos = {one["silo"] for one in said["silos"]} if said["silos"] else set(range(said["run"]["num_silos"]))
    for silo in names or {}:
        require(silo in silos, "names", silo, f"be a silo of {folder}: {', '.join(map(str, sorted(silos)[:20]))}")
    made = date.today().isoformat()
    return page(said, names=known, study=study, made=made, version=__version__, digest=digest)


def _said(files: RunFolder) -> tuple[dict[str, Any], str]:
    try:
        text = files.statement.read_bytes()
        said = json.loads(text)
        if not {"run", "guarantee", "views", "silos", "protects", "mechanism"} <= said.keys():
            raise ValueError("keys are missing")
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
    return said, hashlib.sha256(text).hexdigest()


def _check_guarantee(said: dict[str, Any], folder: Path) -> None:
    if said["guarantee"].startswith("none"):
        why = said["guarantee"].removeprefix("none: ")
        raise ConfigError(f"{folder}: nothing is guaranteed ({why}), so there is nothing to sign.")
    if said["mechanism"].get("randomness") != "fresh":
        raise ConfigError(
            f"{folder}: privacy.randomness: seeded: the run was a simulation, whose noise follows from its seed: "
            "nobody should sign for it. Run it again with privacy.randomness=fresh, or without a seed."
        )


def _check_epsilons(said: dict[str, Any], files: RunFolder) -> None:
    """Compute the epsilons of a statement anew from the ledger beside it.

    Raises:
        LedgerError: the ledger holds more. ConfigError: nothing is guaranteed. DataError: the accountant is missing.
    """
    (rows,) = rows_of(files.path).values()
    by = said["accountant"]["name"]
    accountant = next((item for item in map(named_accountant, registry.names("accountants")) if item.name == by), None)
    if accountant is None:
        raise DataError(f"{files.path}: the accountant {by!r} of its statement is not installed.")
    if not accountant.sound:
        raise ConfigError(f"{files.path}: accountant {by} gives no bound ({accountant.caveat}): nobody should sign it.")
    proven = {row["view"]: row["epsilon"] for row in rows if row["accountant"] == by}
    if proven["server"] is None:
        raise ConfigError(
            f"{files.path}: by its ledger and its configuration nothing is guaranteed, so there is nothing to sign."
        )
    for key, view in VIEWS.items():
        stated, actual = said["views"][key]["epsilon"], proven.get(view, proven["server"])
        if (math.inf if actual is None else actual) > (stated or 0.0) * (1 + SLACK):
            raise LedgerError(
                f"{files.statement}: views.{key}.epsilon is {stated or 0.0:.6g}, but the releases in ledger.jsonl cost "
                f"{actual}. Continue the run (--resume), or restore the folder from a copy."
            )


def _names(files: RunFolder) -> dict[int, str]:
    """Names of silos, as the run's data gave them; none of MPI ranks or of one silo."""
    return {int(silo): printable(name) for silo, name in _result(files).get("silo_names", {}).items()}


def _result(files: RunFolder) -> dict[str, Any]:
    try:
        found = json.loads(files.result.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
