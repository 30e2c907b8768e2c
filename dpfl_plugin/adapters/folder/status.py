"""How a federation in a folder stands, for people: what each member wrote of itself, unsigned; nothing goes by it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.adapters.folder.keys import SERVER
from dpfl_plugin.adapters.folder.place import Place
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runs.folder import to_json

FILE: Final = "status.json"
MOST_BYTES: Final = 2**20


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
    if not isinstance(server, dict) or not isinstance(server.get("silos"), list):
        raise ConfigError(f"{folder}: no status of a server is there (server/{FILE}). Has dpfl server been started?")
    silos = {}
    for name in map(str, server["silos"]):
        said = _read(Place(folder, name)) if "/" not in name and name not in (".", "..") else None
        silos[name] = said if isinstance(said, dict) else {}
    return {"server": server, "silos": silos}


def begun_before_the_server(folder: Path) -> dict[str, dict[str, Any]]:
    """What silos wrote of themselves in a folder where no server has begun; nothing where none did."""
    if is_shared_folder(folder) or not folder.is_dir():
        return {}
    said = {path.name: _read(Place(folder, path.name)) for path in sorted(folder.iterdir())}
    return {name: facts for name, facts in said.items() if isinstance(facts, dict) and "doing" in facts}


def _read(place: Place) -> Any:
    """None where nothing is there that can be read."""
    try:
        handle = os.open(place.path / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        try:
            return json.loads(file.read(MOST_BYTES))
        except (ValueError, RecursionError):
            return None
