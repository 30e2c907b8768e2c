"""The golden files, and how their rows are made: the same by tests and by `python -m tests.goldens`."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from unittest import mock

import torch

from dpfl_plugin.api import plots
from dpfl_plugin.federation import measuring, silo_group
from dpfl_plugin.owners import limits
from tests.goldens import commands, compositions, runs
from tests.goldens.rows import Row

FILES: Final[dict[str, ModuleType]] = {"runs": runs, "compositions": compositions, "commands": commands}


def _no_measures(*given: Any) -> None:
    """Which take longer than all else that a small run does."""


@contextlib.contextmanager
def stage(file: str) -> Iterator[Any]:
    """What rows of a file are made in: a working folder of their own, without this machine's limits and pictures."""
    logging.getLogger("absl").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    before = Path.cwd()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        mock.patch.object(silo_group, "measures", measuring.measures if file == "commands" else _no_measures),
        mock.patch.object(plots, "curves", return_value=[]),
        mock.patch.object(limits, "PLACES", ()),
        mock.patch.dict(os.environ),
    ):
        os.environ.pop("DPFL_LIMITS", None)
        os.chdir(folder)
        try:
            yield FILES[file].Stage(Path(folder).resolve())
        finally:
            os.chdir(before)


def made(file: str, names: Iterable[str]) -> Iterator[tuple[str, Row]]:
    with stage(file) as here:
        for name in names:
            yield name, FILES[file].row(name, here)
