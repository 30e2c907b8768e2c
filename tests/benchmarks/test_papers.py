"""The pages of published experiments are what the kept numbers say; the numbers are of what is configured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import papers
from dpfl_plugin.published import catalog, chang2022, index, noble2022_privacy, numbers


def test_the_pages_are_current() -> None:
    """Else: python -m benchmarks.papers"""
    found = index.pages()
    assert {path.name: path.read_text() for path in papers.PAGES.glob("*.md")} == found


def test_the_kept_numbers_are_of_the_configured_runs() -> None:
    """Else run that figure again (dpfl papers), and keep it (python -m benchmarks.papers --keep DIR)."""
    for paper in catalog.papers():
        for item in paper.items:
            found = numbers.kept(paper.name, item)
            if found is not None and item.computed is None:
                whole = replace(found.extent, seeds=())
                expansions = [part.expansion(whole) for part in item.ran(whole)]
                assert found.runs == numbers.runs_digest(expansions), f"{paper.name} {item.name}"


@pytest.mark.parametrize(
    ("paper", "item", "table"),
    [("noble2022", "table-epsilons", noble2022_privacy.epsilons), ("chang2022", "table-rounds", chang2022.last_rounds)],
)
def test_the_published_epsilons_and_rounds_are_current(paper: str, item: str, table: object) -> None:
    """Else: dpfl papers PAPER --table N, and keep it."""
    found = numbers.kept(paper, catalog.find(paper).by_name[item])
    assert found is not None and found.table is not None and callable(table)
    assert [list(found.table[0]), *map(list, found.table[1])] == [list(table()[0]), *map(list, table()[1])]
