"""What every test may use. Data that are not in the repository are looked for, never downloaded."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main

from dpfl_plugin import own_folders
from dpfl_plugin.api import plots
from dpfl_plugin.experiments.reports import report as reports
from dpfl_plugin.federation import silo_group

# What draws, by module: the curves of runs, and the plots of reports.
DRAW = {plots: ("curves",), reports: ("plot", "plot_tradeoff")}
BESIDE = Path(__file__).resolve().parents[2] / "shared"


# On these, what fails may be the machine: a daemon that was slow, a port that was taken.
REAL = ("slurm", "flower", "fedml", "nvflare", "mpi", "browser")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on real launchers, clusters and browsers are tried a second time; the summary counts them as rerun."""
    for item in items:
        if _is_real(item):
            item.add_marker(pytest.mark.flaky(reruns=1))
    # A stable sort, so that neighbours stay neighbours.
    items.sort(key=_turn)


def _is_real(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in REAL)


def _turn(item: pytest.Item) -> int:
    """When a test has its turn. Those that wait much, and take long, begin first, in one process beside which others
    compute; at the end, nobody could use that time."""
    if item.get_closest_marker("slurm"):
        return 0
    if _is_real(item):
        return 1
    return 2


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tests run in parallel processes; more threads than cores only slow them down."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _folders_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds modules in the folders of configurations that other tests wrote."""
    for name in ("_working", "_folders", "_added"):
        monkeypatch.setattr(own_folders, name, [])
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture(scope="session", autouse=True)
def _undrawn() -> Iterator[dict[tuple[Any, str], Any]]:
    """A picture takes several times as long as a small run: none is drawn, whether a command asks for it or Python.

    Returns what draws, by place.
    """
    draw = {(where, name): getattr(where, name) for where, names in DRAW.items() for name in names}
    with pytest.MonkeyPatch.context() as patch:
        for where, name in draw:
            patch.setattr(where, name, lambda *args: [])
        yield draw


@pytest.fixture
def pictures(_undrawn: dict[tuple[Any, str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that want curves drawn."""
    for (where, name), function in _undrawn.items():
        monkeypatch.setattr(where, name, function)


@pytest.fixture(scope="session", autouse=True)
def measuring() -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Tables of all measures, two for each silo, take longer than all else that a small run does: there are none, as
    where records are elsewhere. The measure that outcomes are ranked by is taken after each round all the same.

    Returns a context in which there are some.
    """
    made = silo_group.measures

    @contextlib.contextmanager
    def switched_on() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(silo_group, "measures", made)
            yield

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(silo_group, "measures", lambda *given: None)
        yield switched_on


@pytest.fixture
def measured(measuring: Callable[[], contextlib.AbstractContextManager[None]]) -> Iterator[None]:
    """For tests that look at measures."""
    with measuring():
        yield


@pytest.fixture(scope="session", autouse=True)
def _commands_made_once() -> Iterator[None]:
    """From the signatures of their functions, as in a process of `dpfl`, which carries out one command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of the real data sets: $DPFL_DATA, or ../shared/data beside the repository."""
    return _folder("DPFL_DATA", BESIDE / "data")


@pytest.fixture(scope="session")
def reference_folder() -> Path:
    """The folder of independently computed values: $DPFL_REFERENCE, or ../shared/reference beside the repository."""
    return _folder("DPFL_REFERENCE", BESIDE / "reference")


def _folder(variable: str, default: Path) -> Path:
    folder = Path(os.environ.get(variable) or default)
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there; set {variable} to the folder that has these files")
    return folder
