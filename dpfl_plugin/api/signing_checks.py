"""Whether a statement that is to be signed is what the ledger and the configuration beside it prove.

Numbers are computed anew. Words are those that were written: their checksum is in `details.json`. Whoever edits all
files of a folder alike is not found out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from dpfl_plugin import registry
from dpfl_plugin.api.accounts import rows_of
from dpfl_plugin.api.numbers import named_accountant
from dpfl_plugin.config.load import load, run_id
from dpfl_plugin.config.privacy import OF_PERSONS
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError, DataError, LedgerError
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.claims.server import taken_part
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.views import server_view
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.ledgers import read_whole
from dpfl_plugin.runs.plugins import build_plugin

VIEWS: Final = {"server": "server", "third_party": "third party"}  # of a statement, and of an account
AGAIN: Final = "It was edited, or not written anew: continue the run, or restore the folder from a copy."
SLACK: Final = 1e-9  # of an epsilon that is computed twice, relatively
OTHERS_SLACK: Final = 0.01  # of one that is compared with a part of it, composed by another grid


def check_stated(said: Mapping[str, Any], digest: str, files: RunFolder) -> bool:
    """What `ledger.json` says is what the files beside it prove, or more.

    Args:
        digest: of its bytes, sha256.

    Returns:
        whether its words were checked, too: those of earlier versions have no checksum elsewhere.

    Raises:
        LedgerError: it says less, or something else. ConfigError: nothing is guaranteed.
        DataError: it holds no numbers where numbers are needed, or its accountant is not here.
    """
    (rows,) = rows_of(files.path).values()
    ledger, _ = read_whole(files)
    config, by = load(files.config).variants[0].config, said["accountant"]["name"]
    accountant = next((one for one in map(named_accountant, registry.names("accountants")) if one.name == by), None)
    if accountant is None:
        raise DataError(f"{files.path}: no accountant {by!r} is here to check its statement.")
    if not accountant.sound:
        raise ConfigError(f"{files.path}: accountant {by} gives no bound ({accountant.caveat}): nobody should sign it.")
    proven = {one["view"]: one for one in rows if one["accountant"] == by}
    _check_facts(said, _facts(ledger, config, proven), files)
    _check_sites(said, ledger, files, hidden="outsider" in proven)
    _check_epsilons(said, {view: one["epsilon"] for view, one in proven.items()}, ledger, files)
    _check_each(said, ledger, accountant, config.privacy.delta, files)
    _check_others(said, ledger, config.privacy.delta, files)
    written = details_of(files).get("statement")
    if written is not None:
        _same("its checksum", digest, written, files, "details.json")
    return written is not None


def _facts(ledger: Ledger, config: Config, proven: Mapping[str, Any]) -> dict[str, Any]:
    """What the other files of a folder say of what ledger.json does, by the path of the key there."""
    releases = [ledger.tally.names.kinds[kind][1] for _, kind in ledger.tally.totals()]
    kinds = {key: {getattr(release, key) for release in releases} for key in ("unit", "neighbouring")}
    own, persons = "silo" in ledger.facts, config.privacy.unit == "person"
    return {
        "run.id": ledger.facts.get("run"),
        "accountant.name": build_plugin("accountants", config.privacy.accountant, where="privacy.accountant").name,
        "views.server.delta": config.privacy.delta,
        "views.server.neighbouring": proven["server"]["neighbouring"],
        "mechanism.randomness": config.privacy.randomness,
        "tuning": ledger.facts.get("tuning"),
        **{f"protects.{key}": next(iter(found)) for key, found in kinds.items() if len(found) == 1},
        **{f"protects.{key}": getattr(config.privacy, key) if persons else None for key in OF_PERSONS},
        # A silo's agreement is of a model, too, which is not here.
        **({} if own else {"run.id, of config.yaml": run_id(config)}),
    }


def _check_facts(said: Mapping[str, Any], facts: Mapping[str, Any], files: RunFolder) -> None:
    for key, held in facts.items():
        stated: Any = said
        for part in key.partition(",")[0].split("."):
            stated = stated.get(part)
        _same(key, stated, held, files, "the files beside it")


def _check_sites(said: Mapping[str, Any], ledger: Ledger, files: RunFolder, *, hidden: bool) -> None:
    """All sites are in the table, once, with their records; ``hidden``: whether something is claimed of an outsider."""
    num_records, own = ledger.facts.get("num_records"), ledger.facts.get("silo")
    if num_records is None:
        return  # of an earlier version, whose ledger does not know
    _same("run.num_silos", said["run"]["num_silos"], len(num_records), files, "ledger.jsonl")
    _same("silos is None", said["silos"] is None, hidden, files, "config.yaml")
    if said["silos"] is None:
        return
    sites = range(len(num_records)) if own is None else (own,)
    stated = [(one["silo"], one["num_records"]) for one in said["silos"]]
    _same("silos", stated, [(silo, num_records[silo]) for silo in sites], files, "ledger.jsonl")
    _, rounds = taken_part(ledger.tally)
    for one in said["silos"] if own is None else ():  # what a silo states by itself may count rounds in advance
        _same(f"rounds of silo {one['silo']}", one["rounds"], rounds[one["silo"]], files, "ledger.jsonl")


def _check_epsilons(said: Mapping[str, Any], proven: Mapping[str, Any], ledger: Ledger, files: RunFolder) -> None:
    if len(ledger) and proven["server"] is None:
        raise ConfigError(
            f"{files.path}: by its ledger and its configuration nothing is guaranteed, so there is nothing to sign."
        )
    for key, view in VIEWS.items():
        held = proven.get(view, proven["server"])  # where an old ledger knows of no other view
        _at_least(f"views.{key}.epsilon", said["views"][key]["epsilon"], held, files)


def _check_each(
    said: Mapping[str, Any], ledger: Ledger, accountant: Accountant, delta: float, files: RunFolder
) -> None:
    made: dict[int, list[tuple[int, int]]] = {}
    for (number, kind), count in ledger.tally.totals().items():
        made.setdefault(number, []).append((kind, count))
    known: dict[Any, float | None] = {}  # silos that made the same releases spent the same
    for silo in said["silos"] or ():
        number = silo["silo"]
        alike = tuple(sorted(made.get(number, ())))
        if alike not in known:
            own = ledger.tally.only(lambda entry, one=number: entry.silo == one)  # type: ignore[misc]
            known[alike] = server_view(own, accountant, delta).epsilon
        if silo["epsilon"] is not None:  # else the page says that it is at most the worst
            _at_least(f"epsilon of silo {number}", silo["epsilon"], known[alike], files)


def _check_others(said: Mapping[str, Any], ledger: Ledger, delta: float, files: RunFolder) -> None:
    """What is said of other runs in a shared ledger, which is not here: as it was written, and no less than a part."""
    shared, total = said["shared"], said["views"].get("total")
    _same("shared is None", shared is None, "shared" not in ledger.facts, files, "ledger.jsonl")
    if shared is None:
        return
    details = details_of(files)
    for key in shared:
        _same(f"shared.{key}", shared[key], (details.get("shared") or {}).get(key), files, "details.json")
    for key in VIEWS:
        part = said["views"][key]["epsilon"]
        _at_least(f"views.total.{key}.epsilon", total[key]["epsilon"], part, files, OTHERS_SLACK)
        _same(f"views.total.{key}.delta", total[key]["delta"], delta, files, "config.yaml")
    _at_least("views.total.server.epsilon", total["server"]["epsilon"], shared["held_epsilon"], files, OTHERS_SLACK)
    for silo in said["silos"] or ():
        if silo["total_epsilon"] is not None and silo["epsilon"] is not None:
            which = f"total_epsilon of silo {silo['silo']}"
            _at_least(which, silo["total_epsilon"], silo["epsilon"], files, OTHERS_SLACK)


def details_of(files: RunFolder) -> dict[str, Any]:
    """What is not to be published of a statement; `read_whole` has read it. Nothing of earlier versions."""
    found = json.loads(files.details.read_text()) if files.details.exists() else {}
    return found if isinstance(found, dict) else {}


def _same(key: str, stated: Any, held: Any, files: RunFolder, where: str) -> None:
    if stated != held:
        raise LedgerError(f"{files.statement}: {key} is {stated!r}, and by {where} {held!r}. {AGAIN}")


def _at_least(key: str, stated: Any, held: float | None, files: RunFolder, slack: float = SLACK) -> None:
    number = isinstance(stated, int | float) and math.isfinite(stated)
    if stated is not None and not number:
        raise DataError(f"{files.statement} is damaged ({key} is {stated!r}): restore it from a copy.")
    if (held or 0.0) > (stated or 0.0) * (1 + slack):
        raise LedgerError(
            f"{files.statement}: {key} is {stated or 0.0:.6g}, and ledger.jsonl holds releases of epsilon "
            f"{held:.6g}. {AGAIN}"
        )
