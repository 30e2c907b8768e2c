"""How a federation in a folder stands, for people: what each member wrote of itself, unsigned; nothing goes by it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.adapters.folder.keys import SERVER, is_name
from dpfl_plugin.adapters.folder.place import MOST_NAMES, Place
from dpfl_plugin.adapters.message import parsed
from dpfl_plugin.errors import ConfigError, MessageError
from dpfl_plugin.runs.folder import to_json

FILE: Final = "status.json"
MOST_BYTES: Final = 2**20
MOST_DEPTH: Final = 8  # of lists and mappings in each other


def write_status(place: Place, facts: Mapping[str, Any]) -> None:
    """Write it, unless it says so already: who synchronises a folder is not kept busy."""
    if _read(place) != json.loads(to_json(facts)):
        place.put(FILE, to_json(facts).encode())


def is_shared_folder(folder: Path) -> bool:
    """Whether a federation is, or was, at work there."""
    return (folder / SERVER / FILE).is_file()


def read_status(folder: Path) -> dict[str, Any]:
    """{"server": what it wrote of itself, "silos": {name: what it wrote of itself, or nothing}}.

    Raises:
        ConfigError: no server wrote there, or what it wrote cannot be read.
    """
    server = _read(Place(folder, SERVER))
    if server is None or not isinstance(server.get("silos"), list):
        raise ConfigError(
            f"{folder}: no status of a server is there (server/{FILE}), or it is damaged, or a link. Has dpfl server "
            "been started? It writes it anew."
        )
    names = filter(is_name, server["silos"][:MOST_NAMES])  # no other can be a silo's, or lead to its folder
    return {"server": server, "silos": {name: _read(Place(folder, name)) or {} for name in names}}


def begun_before_the_server(folder: Path) -> dict[str, dict[str, Any]]:
    """What silos wrote of themselves in a folder where no server has begun; nothing where none did."""
    if is_shared_folder(folder) or not folder.is_dir():
        return {}
    said = {path.name: _read(Place(folder, path.name)) for path in sorted(folder.iterdir()) if is_name(path.name)}
    return {name: facts for name, facts in said.items() if facts is not None and "doing" in facts}


def _read(place: Place) -> dict[str, Any] | None:
    """None where nothing is there that can be read, and shown: whoever may write to the folder may have written it."""
    try:
        text = place.text(FILE, MOST_BYTES)
        found = None if text is None else parsed(text)
    except (OSError, ConfigError, MessageError):
        return None
    return found if _is_shallow(found) else None


def _is_shallow(value: object, most: int = MOST_DEPTH) -> bool:
    """Whether nothing in it lies so deep that what shows it, level by level, comes to no end."""
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return most > 0 and all(_is_shallow(one, most - 1) for one in inner)
