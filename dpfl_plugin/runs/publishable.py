"""Which part of a privacy statement may be published, and which stays with the experimenter.

`ledger.json` and `privacy.md` are to be shown to others. So they hold no digest of anything private, no name of noise,
nothing of other runs but what they cost, no text of an error at a silo, no name of a class that was read from the
records, no loss; and where something is claimed of an outsider who does not know who took part, nothing from which that
could be told: neither what a single silo released nor the most that one did. The rest is in `details.json` and
`result.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dpfl_plugin.data.base import NOT_PUBLIC
from dpfl_plugin.privacy.statement_page import markdown
from dpfl_plugin.runs.folder import RunFolder, to_json

DETAILS_SCHEMA: Final = 1
FAILED: Final = "an error, which result.json tells"


def published(said: dict[str, Any]) -> dict[str, Any]:
    """What `statement` says, without what is not to be published."""
    shown = {key: value for key, value in said.items() if key not in ("head", "shared", "lost")}
    for key in ("caveats", "notes"):
        shown[key] = [text for text in said[key] if NOT_PUBLIC not in text]
    if said["run"]["status"] == "failed":
        shown["run"] = {**said["run"], "reason": FAILED}
    shown["lost"] = [{key: value for key, value in loss.items() if key != "why"} for loss in said["lost"]]
    shown["shared"] = None if said["shared"] is None else _cost_of_others(said["shared"])
    if "outsider" in said["views"]:
        shown["silos"] = None
        shown["views"] = {**said["views"], "server": whoever_took_part(said["views"]["server"])}
    return shown


def whoever_took_part(server: Mapping[str, Any]) -> dict[str, Any]:
    """The server's view without what the silo that took part most often released: its number tells how often."""
    return {
        **server,
        "epsilon": server["worst_case_epsilon"],
        "basis": server["worst_case_basis"],
        "worst_silo": None,
    }


def _cost_of_others(shared: dict[str, Any]) -> dict[str, Any]:
    return {key: shared[key] for key in ("adaptive", "planned", "num_runs", "num_same_records")}


def details(said: dict[str, Any]) -> dict[str, Any]:
    """What `published` leaves out, and what shows later whether the ledger is whole."""
    keys = ("run", "views", "silos", "shared", "lost", "num_charges", "head")
    held = {**{key: said[key] for key in keys}, "tuning": said.get("tuning")}
    return {"schema": DETAILS_SCHEMA, "not_to_be_published": True, **held}


def write(folder: RunFolder, said: dict[str, Any]) -> None:
    """A run's statement: `details.json` first, by which `dpfl account` knows how much the ledger has to hold."""
    shown = published(said)
    folder.write(folder.details, to_json(details(said)))
    folder.write(folder.statement, to_json(shown))
    folder.write(folder.privacy, markdown(shown))
