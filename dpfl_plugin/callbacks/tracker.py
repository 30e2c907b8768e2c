"""What trackers have in common: flat names, the state by which a resumed run goes on, packages that may be missing."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.callbacks.base import Callback, RoundInfo, RunInfo
from dpfl_plugin.errors import ConfigError

STATE: Final = "trackers.json"  # in the run's folder
STATEMENT: Final = ("privacy.md", "ledger.json")


class Tracker(Callback):
    """A callback that hands scalars, the configuration and the result to a program that keeps them.

    Attributes:
        name: in messages.
    """

    name = "tracker"

    def goes_to(self, run: RunInfo) -> str:
        """Where what it is told goes, and what of it leaves this machine: said before anything does."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what is open; called however a session ends, with a result or without."""


def needed(module: str, extra: str) -> Any:
    """The module of a tracker's package.

    Raises:
        ConfigError: it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"the tracker {extra} cannot be used: {error}. Install what it needs: pip install 'dpfl-plugin[{extra}]'."
        ) from error


def scalars(round: RoundInfo) -> dict[str, float]:
    """What of a round is drawn over rounds, by name; nothing of one that was not evaluated."""
    if round.metrics is None:
        return {}
    spent = {f"epsilon/{view}": value for view, value in (round.epsilon or {}).items() if value is not None}
    return {**round.metrics, **spent, "seconds": round.seconds}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str | int | float | bool]:
    """Nested values by dotted names; what is null is left out, and lists are text."""
    found: dict[str, str | int | float | bool] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}.")
        elif isinstance(value, str | int | float | bool):
            found[name] = value
        elif value:
            found[name] = json.dumps(value)
    return found


def finals(result: Mapping[str, Any]) -> dict[str, float]:
    """The numbers that a result is compared by; ``epsilon_total``: of all runs in a shared ledger."""
    found = {"rounds": result.get("rounds")}
    for key in dict.fromkeys(("test_accuracy", "train_loss", *(key for key in result if key.startswith("test_")))):
        found[key] = (result.get(key) or {}).get("last")
    epsilon = result.get("epsilon") or {}
    for view in ("server", "third_party"):
        found[f"epsilon/{view}"] = (epsilon.get(view) or {}).get("epsilon")
    found["epsilon_total"] = (result.get("adaptive_total") or {}).get("epsilon")
    return {key: float(value) for key, value in found.items() if value is not None}


def statement_files(folder: Path | None) -> list[Path]:
    """The files of a run's statement, which may be published."""
    return [] if folder is None else [folder / name for name in STATEMENT if (folder / name).exists()]


class Remembered:
    """What a tracker remembers of a run in its folder, so that a resumed run goes on in the same place.

    A run without a folder is remembered for as long as the process lasts.
    """

    def __init__(self, run: RunInfo, name: str) -> None:
        self._path, self._name = None if run.folder is None else run.folder / STATE, name
        self.facts: dict[str, Any] = dict(self._all().get(name, {}))

    def _all(self) -> dict[str, Any]:
        found: Any = {}
        if self._path is not None:
            with contextlib.suppress(OSError, ValueError):
                found = json.loads(self._path.read_text())
        return found if isinstance(found, dict) else {}

    def keep(self, **facts: Any) -> None:
        """Add to what is remembered."""
        self.facts |= facts
        if self._path is None:
            return
        together = {**self._all(), self._name: self.facts}
        aside = self._path.with_name(f".{self._path.name}.new")
        with open(aside, "w") as file:
            json.dump(together, file)
        aside.replace(self._path)

    def is_new(self, step: int) -> bool:
        """Whether a step was not taken before; from now on it was.

        Rounds after the last checkpoint are run again after a crash. What was drawn of them cannot be taken back.
        """
        if step <= int(self.facts.get("step", 0)):
            return False
        self.keep(step=step)
        return True
