"""What the adapters of platforms share: settings as a platform has them, and versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from dpfl_plugin.errors import ConfigError, UnsupportedError


def check_version(package: str, tested: Sequence[str]) -> None:
    """Raise UnsupportedError unless the platform is of a version that this package's tests run on.

    Args:
        tested: beginnings of version numbers.
    """
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError as error:
        raise UnsupportedError(f"{package} is not installed. docs/adapters.md says how to install it.") from error
    if not any(found == version or found.startswith(f"{version}.") for version in tested):
        raise UnsupportedError(
            f"{package} {found} is not known here: this adapter was tested with {', '.join(tested)}. Install that "
            "version, or a version of dpfl-plugin that knows yours."
        )


def nested(flat: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """{"dpfl.privacy.delta": x, ...} as {"privacy": {"delta": x}}, of the keys that begin with ``prefix`` and a dot."""
    found: dict[str, Any] = {}
    for key, value in flat.items():
        first, *path = key.split(".")
        if first != prefix or not path:
            continue
        place = found
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value
    return found


def folder_from(value: Any, source: str, default: str) -> Path:
    """The folder that settings name; platforms start processes in folders of their own, so it must be absolute.

    Raises:
        ConfigError: it is not.
    """
    folder = Path(str(value or default)).expanduser()
    if not folder.is_absolute():
        raise ConfigError(f"{source}={value!r} must be an absolute path, or begin with ~.")
    return folder
