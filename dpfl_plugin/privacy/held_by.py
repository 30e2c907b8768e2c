"""Who held the records while a run went on, and what a statement says of that: the same releases tell an owner of
records less where all the records lay with somebody else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

HeldBy = Literal["process", "ranks", "simulation", "site"]
"""process: one process held those of all silos. ranks: those of an MPI job. site: each silo its own, on a platform;
simulation: on a platform, too, where whoever ran it had the records of all."""

HOLDER: Final = "whoever ran this, who had the records of all silos"
_NOT_AGAINST: Final = "The guarantee is for what was published afterwards, not against that person."
_CAVEATS: Final[Mapping[HeldBy, str]] = {
    "process": "This was one process on one machine: whoever ran it held the records of all silos. " + _NOT_AGAINST,
    "ranks": "This was one MPI job: whoever started its ranks could read the records that they read. The guarantee is "
    "for what left the silos' ranks, not against that person.",
    "simulation": "This was a simulation: whoever ran it had the records of all silos. " + _NOT_AGAINST,
}
_FIRST: Final[Mapping[HeldBy, str]] = {
    "process": "This was one process on one machine: **whoever ran it held the records of all {sites}**. "
    + _NOT_AGAINST,
    "ranks": "This was one MPI job: its rank 0, the server, held no records; whoever started the ranks of the {sites} "
    "could read those that they read.",
    "simulation": "This was a simulation: **whoever ran it had the records of all {sites}**. " + _NOT_AGAINST,
}
_LEFT: Final = "{what} were releases with noise, each of them in the ledger before it left, and what is listed below "
_LEFT_WHAT: Final[Mapping[HeldBy, str]] = {"ranks": "What left a silo's rank", "site": "What left a site"}


def of_run(*sessions: HeldBy | None) -> HeldBy | None:
    """Of all sessions of a run, the last one last: once one process had held all records, it had."""
    return "process" if "process" in sessions else sessions[-1]


def of_holders(held_by: HeldBy | None) -> tuple[str, ...]:
    """What is not covered, as records were with somebody else than those whose they are."""
    return tuple(text for who, text in _CAVEATS.items() if who == held_by)


def together(said: Mapping[str, Any]) -> bool:
    """Whether somebody who ran it had all the records, so that none of them left anybody."""
    return said.get("held_by") in ("process", "simulation")


def first(said: Mapping[str, Any], sites: str) -> str:
    """What to say at once, where the records were not with those whose they are; ``sites``: the page's word."""
    return _FIRST.get(said.get("held_by", ""), "").format(sites=sites)


def what_left(said: Mapping[str, Any]) -> str:
    """What left those who held the records; where one held all of them, nothing did."""
    held_by: HeldBy | None = said.get("held_by")
    if held_by is not None and held_by in _LEFT_WHAT:
        return _LEFT.format(what=_LEFT_WHAT[held_by]) + "as not covered."
    handed_on = "Noise was added to every release, and the release charged to the ledger, before it was handed on."
    return handed_on if held_by else f"{handed_on} Where the records were held meanwhile is not recorded here."
