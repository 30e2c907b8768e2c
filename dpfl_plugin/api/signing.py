"""A statement to be signed, made of a finished run's folder or of a silo's own, after its ledger was checked."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

from dpfl_plugin import __version__
from dpfl_plugin.api.runs import Run
from dpfl_plugin.api.signing_checks import check_stated, details_of
from dpfl_plugin.data.names import told_apart
from dpfl_plugin.errors import ConfigError, DataError, printable, require
from dpfl_plugin.privacy.signed_page import page
from dpfl_plugin.runs.csv_cells import no_formula
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.publishable import names_sum
from dpfl_plugin.tuning.winner import winner_of

_NUMBER: Final = re.compile("0|[1-9][0-9]{0,8}")
MEND: Final = "Restore it from a copy."
UNCHECKED_NAMES: Final = (
    "Names of sites are as result.json and silos.csv have them. The folder is of an earlier version, which kept no "
    "checksum of them: compare them with the number of records of each site, or give them yourself."
)
UNCHECKED: Final = (
    "The folder is of an earlier version, which kept no checksum of its statement: what is said here in words was not "
    "checked, but for the unit, the relation and the numbers."
)


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
        LedgerError: the ledger is damaged, or holds more than the folder's statement says; or the statement was edited.
    """
    folder = what.folder if isinstance(what, Run) else Path(what)
    files = RunFolder(folder)
    said, digest = _said(files)
    _check_guarantee(said, folder)
    if not check_stated(said, digest, files):
        said["warnings"] = [UNCHECKED, *said["warnings"]]
    found, checked = _names(files)
    if found.keys() - (names or {}).keys() and not checked:
        said["warnings"] = [UNCHECKED_NAMES, *said["warnings"]]
    known = found | told_apart(names or {})
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
            "nobody should sign for it. Run it again with --set privacy.randomness=fresh, or without a seed."
        )


def _names(files: RunFolder) -> tuple[dict[int, str], bool]:
    """(names of silos, whether they were checked), as the run's data named them; none where its result says none, as of
    ranks of MPI or of one silo. Details of earlier versions have no checksum of them.

    Raises:
        DataError: `silos.csv`, `result.json` and `details.json` differ: a site would sign what another one spent.
    """
    result, digest = _result(files), details_of(files).get("silo_names")
    said = result.get("silo_names")
    if said is None and (digest is None or not result):
        return {}, True
    if not isinstance(said, dict) or not all(map(_is_named, said.items())):
        raise DataError(f"{files.result} is damaged (silo_names is {said!r:.100}): restore it from a copy.")
    if digest not in (None, names_sum(said)):
        raise DataError(
            f"{files.result}: silo_names is not what the run wrote, by {files.details.name} beside it. {MEND}"
        )
    for silo, name in _in_table(files):
        named = no_formula(said.get(silo, ""))
        if name != named:
            raise DataError(
                f"{files.silos} calls silo {silo} {name!r}, and {files.result.name} beside it {named!r}: one of them "
                f"was edited. {MEND}"
            )
    return {int(silo): printable(name) for silo, name in said.items()}, digest is not None


def _is_named(item: tuple[str, object]) -> bool:
    silo, name = item
    return _NUMBER.fullmatch(silo) is not None and isinstance(name, str)


def _in_table(files: RunFolder) -> list[tuple[str, str]]:
    """(silo, what it is called) of each line of `silos.csv`."""
    try:
        with files.silos.open(newline="", encoding="utf-8-sig") as lines:
            return [(row["silo"], row.get("name") or "") for row in csv.DictReader(lines)]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise DataError(f"{files.silos} cannot be read ({error}). {MEND}") from error


def _result(files: RunFolder) -> dict[str, Any]:
    try:
        found = json.loads(files.result.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
