"""The winner of a tuning that is done, for whoever is given the tuning's folder where a run's is meant."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Final

from dpfl_plugin.errors import ConfigError

RESULT: Final = "result.json"


def winner_of(folder: Path) -> Path | None:
    """The winner's folder of a tuning that is done, also where that was moved; None of any other folder."""
    try:
        winner = Path(json.loads((folder / RESULT).read_text())["winner"]["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return next((one for one in (winner, *folder.glob(f"**/{winner.name}")) if one.is_dir()), winner)


def check_run(folder: Path, command: str, *words: str) -> None:
    """Refuse a tuning's folder: the message has the command for its winner.

    Args:
        command: of `dpfl`; words: what follows the folder.

    Raises:
        ConfigError: the folder is a tuning's.
    """
    if (winner := winner_of(folder)) is not None:
        raise ConfigError(
            f"{folder} is the folder of a tuning, and each candidate is a run with a folder of its own. Give that of "
            f"the winner: {shlex.join(['dpfl', command, str(winner), *words])}"
        )
