"""What the code gives is what it gave when `python -m tests.goldens --write` was last run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.goldens import rows, runs
from tests.goldens.files import FILES, stage

ROWS = [
    pytest.param(file, name, marks=[] if name in module.EVERYDAY else [pytest.mark.slow], id=f"{file}: {name}")
    for file, module in FILES.items()
    for name in module.NAMES
]


@pytest.fixture(scope="module")
def stages() -> Iterator[Callable[[str], Any]]:
    """The stage of a file, one at a time: each is the working folder."""
    with contextlib.ExitStack() as stack:
        open_stages: dict[str, Any] = {}

        def enter(file: str) -> Any:
            if file not in open_stages:
                stack.close()
                open_stages.clear()
                open_stages[file] = stack.enter_context(stage(file))
            return open_stages[file]

        yield enter


@pytest.mark.parametrize(("file", "name"), ROWS)
def test_a_row_is_what_it_was(file: str, name: str, stages: Callable[[str], Any]) -> None:
    made = FILES[file].row(name, stages(file))
    if difference := rows.difference(file, name, rows.read(file).get(name), made):
        pytest.fail(difference, pytrace=False)


@pytest.mark.parametrize("file", FILES)
def test_there_is_a_row_for_each_name_and_no_other(file: str) -> None:
    assert tuple(rows.read(file)) == tuple(FILES[file].NAMES)


@pytest.mark.parametrize("name", [name for name in runs.NAMES if name.endswith(" ranks")])
def test_ranks_draw_and_train_as_one_process_does(name: str) -> None:
    kept = rows.read("runs")
    alone = kept[name.rpartition(", ")[0]]
    assert kept[name] == alone
    assert alone["draws"] and alone["model"]


def test_what_is_frozen_exactly_and_what_up_to_rounding() -> None:
    kept = {"draws": {"step 0": "1 2"}, "model": {"w": [1.0, 1e-9]}, "epsilon": 2.0, "code": 3}

    def differs(**changes: Any) -> bool:
        return rows.difference("file", "row", kept, {**kept, **changes}) is not None

    assert not differs() and not differs(model={"w": [1 + 5e-7, 2e-9]}, epsilon=2 + 1e-9)
    assert differs(model={"w": [1 + 2e-6, 1e-9]}) and differs(epsilon=2 + 1e-8)
    assert differs(draws={"step 0": "1 3"}) and differs(code=3.0) and differs(more=1)
