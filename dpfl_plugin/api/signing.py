"""A statement to be signed, made of a finished run's folder or of a silo's own, after its ledger was checked."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

from dpfl_plugin import __version__, registry
from dpfl_plugin.api.accounts import rows_of
from dpfl_plugin.api.numbers import named_accountant
from dpfl_plugin.api.runs import Run
from dpfl_plugin.config.load import load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.data.names import tidy
from dpfl_plugin.errors import ConfigError, DataError, LedgerError, require
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.signed_page import page
from dpfl_plugin.privacy.views import server_view
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.ledgers import read_whole

VIEWS: Final = {"server": "server", "third_party": "third party"}  # of a statement, and of an account
AGAIN: Final = "It was edited, or not written anew: continue the run, or restore the folder from a copy."
SLACK: Final = 1e-9  # of an epsilon that is computed twice, relatively


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
    _check_spent(said, files)
    known = _names(files.silos) | {silo: tidy(name) for silo, name in (names or {}).items()}
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
    if not said["mechanism"]["secure"]:
        raise ConfigError(
            f"{folder}: the run was a simulation, whose noise follows from its seed: nobody should sign for it. Run it "
            "with --set privacy.secure=true."
        )


def _check_spent(said: dict[str, Any], files: RunFolder) -> None:
    """What the page shows of ledger.json is what the ledger beside it proves, or more.

    Raises:
        LedgerError: it is less, or of something else.
    """
    (rows,) = rows_of(files.path).values()
    ledger, details = read_whole(files)
    config, by = load(files.config).variants[0].config, said["accountant"]["name"]
    accountant = next((one for one in map(named_accountant, registry.names("accountants")) if one.name == by), None)
    if accountant is None:
        raise DataError(f"{files.path}: no accountant {by!r} is here to check its statement.")
    _check_facts(said, _facts(ledger, config, details), files.statement)
    proven = {one["view"]: one["epsilon"] for one in rows if one["accountant"] == by}
    bounds = {f"views.{key}.epsilon": (said["views"][key]["epsilon"], proven.get(view)) for key, view in VIEWS.items()}
    made: dict[int, list[tuple[int, int]]] = {}
    for (number, kind), count in ledger.tally.totals().items():
        made.setdefault(number, []).append((kind, count))
    known: dict[Any, float | None] = {}  # silos that made the same releases spent the same
    for silo in said["silos"] or ():
        number = silo["silo"]
        alike = tuple(sorted(made.get(number, ())))
        if alike not in known:
            own = ledger.tally.only(lambda entry, one=number: entry.silo == one)  # type: ignore[misc]
            known[alike] = server_view(own, accountant, config.privacy.delta).epsilon
        if silo["epsilon"] is not None:  # else the page says that it is at most the worst
            bounds[f"epsilon of silo {number}"] = silo["epsilon"], known[alike]
    for key, (stated, held) in bounds.items():
        if (held or 0.0) > (stated or 0.0) * (1 + SLACK):
            raise LedgerError(
                f"{files.statement}: {key} is {stated or 0.0:.6g}, and ledger.jsonl holds releases of epsilon "
                f"{held:.6g}. {AGAIN}"
            )


def _facts(ledger: Ledger, config: Config, details: dict[str, Any] | None) -> dict[str, Any]:
    """What the other files of a folder say of what ledger.json does, by the path of the key there."""
    releases = [ledger.tally.names.kinds[kind][1] for _, kind in ledger.tally.totals()]
    kinds = {key: {getattr(release, key) for release in releases} for key in ("unit", "neighbouring")}
    return {
        "run.id": ledger.facts.get("run"),
        "views.server.delta": config.privacy.delta,
        "mechanism.secure": config.privacy.secure,
        "tuning": ledger.facts.get("tuning"),
        "shared": bool((details or {}).get("shared")),
        **{f"protects.{key}": next(iter(found)) for key, found in kinds.items() if len(found) == 1},
    }


def _check_facts(said: dict[str, Any], facts: dict[str, Any], path: Path) -> None:
    for key, held in facts.items():
        stated: Any = said
        for part in key.split("."):
            stated = stated.get(part)
        stated = stated is not None if key == "shared" else stated
        if stated != held:
            raise LedgerError(f"{path}: {key} is {stated!r}, and by the files beside it {held!r}. {AGAIN}")


def _names(path: Path) -> dict[int, str]:
    """Of silos, as the run's data named them; none where the folder does not say."""
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        return {int(row["silo"]): tidy(row["name"]) for row in rows if row.get("name")}
    except (OSError, ValueError, KeyError, csv.Error):
        return {}
