"""What a run's folder says of privacy twice, in `result.json` and in the statement beside it, has to agree.

A run writes both at once. Where they differ, one of them was edited, or is another run's, and neither is believed.
Whoever edits all files of a folder alike is not found out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.errors import DataError
from dpfl_plugin.runs.folder import RunFolder

UNCHECKED: Final = (
    "> **These words were not checked.** The folder has no checksum of them, as one of an earlier version, and they "
    "may have been edited since the run ended. What its ledger proves is said by `dpfl account FOLDER`.\n\n"
)
HIDES: Final = {"worst_case_epsilon", "worst_case_basis"}  # what a statement has in place of what it hides


def check_agrees(folder: RunFolder, result: Mapping[str, Any], stated: Mapping[str, Any] | None = None) -> None:
    """Check what a result says of epsilon, and of what it is the result of.

    Args:
        stated: what `ledger.json` holds, where it was read already. Without that file, as in folders of old versions,
            nothing is compared but `details.json`.

    Raises:
        DataError: the statement says something else, or cannot be read; names both files.
    """
    if stated is None and folder.statement.exists():
        stated = _read(folder.statement)
    detailed = folder.details.exists()
    if stated is not None:
        _compare(folder, folder.statement, result, stated, hides=detailed)
    # Of outsiders the statement hides what the silo that took part most often released: the details have it.
    if detailed and (stated is None or "outsider" in (stated.get("views") or {})):
        _compare(folder, folder.details, result, _read(folder.details), hides=False)


def check_words(folder: RunFolder, words: str) -> bool:
    """Check that these are the words of a statement that the run wrote, or wrote as void.

    Returns:
        whether that could be told: details of earlier versions, and folders without any, do not say.

    Raises:
        DataError: they are others; or details cannot be read.
    """
    wrote = _read(folder.details).get("words") if folder.details.exists() else None
    if wrote is None:
        return False
    if wrote != hashlib.sha256(words.encode()).hexdigest() and folder.result.exists():
        raise DataError(
            f"{folder.privacy} is not what the run wrote, by details.json beside it: it was edited, or is another "
            "run's. Restore it from a copy."
        )
    return True


def whoever_took_part(server: Mapping[str, Any]) -> dict[str, Any]:
    """The server's view without what the silo that took part most often released: its number tells how often."""
    return {
        **server,
        "epsilon": server["worst_case_epsilon"],
        "basis": server["worst_case_basis"],
        "worst_silo": None,
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}). Restore it from a copy.") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} is not what a run writes. Restore it from a copy.")
    return found


def _compare(
    folder: RunFolder, path: Path, result: Mapping[str, Any], stated: Mapping[str, Any], *, hides: bool
) -> None:
    """``hides``: whether what it hides of who took part is compared with another file."""
    for where, ours, theirs in _facts(result, stated, hides=hides, tunings=path == folder.statement):
        if (found := next(_differences(ours, theirs, where), None)) is not None:
            key, said, held = found
            raise DataError(
                f"{folder.result} says {key} = {_short(said)}, and {path.name} beside it {_short(held)}, although the "
                "run wrote both: one of them was edited, or is another run's. Restore it from a copy. What the ledger "
                f"proves: dpfl account {folder.path}"
            )


def _short(value: Any) -> str:
    return "nothing" if value is None else "more" if isinstance(value, dict) else repr(value)


def _facts(
    result: Mapping[str, Any], stated: Mapping[str, Any], *, hides: bool, tunings: bool
) -> Iterator[tuple[str, Any, Any]]:
    """(key of the result, what it says, what the statement says)"""
    run = stated.get("run") or {}
    for key in ("id", "status", "rounds"):
        if key in run:
            yield key, result.get(key), run[key]
    if tunings or "tuning" in stated:  # details of earlier versions do not have it
        yield "tuning", result.get("tuning"), stated.get("tuning")
    views, held = result.get("epsilon"), stated.get("views")
    if hides and isinstance(views, dict) and isinstance(held, dict) and "outsider" in held:
        server = views.get("server")
        if isinstance(server, dict) and server != held.get("server") and server.keys() >= HIDES:
            views = {**views, "server": whoever_took_part(server)}
    yield "epsilon", views, held


def _differences(ours: Any, theirs: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    """The paths at which two values differ, and what they are there."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in dict.fromkeys((*ours, *theirs)):
            yield from _differences(ours.get(key), theirs.get(key), f"{where}.{key}")
    elif ours != theirs:
        yield where, ours, theirs
