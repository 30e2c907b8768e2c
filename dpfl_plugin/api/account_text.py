"""What accounts say of epsilon, in words: a table by accountant, and what its numbers are of. Torch is not needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from dpfl_plugin import terminal
from dpfl_plugin.api.spent import RECIPE, TUNED, Row, without_papers
from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.core.text import Printed

RECIPE_IN_SHORT: Final = (
    "Noble et al. 2022, third party. Not sound: it credits the other silos' noise, which is not proven for K > 1, "
    "amplifies by the sampling of silos as if of records, and takes control variates for free. It may still be "
    "the larger number, because Lemma B.7 is loose. See {more}."
)
SIDE_BY_SIDE: Final = (
    "Every number is an upper bound, unless marked as not proven: the smallest holds. How far each may be off: {more}; "
    "what each accountant knows: docs/privacy.md."
)

SEES: Final = {
    TUNED: "Whatever the server may see: ",
    "server": "Sees every message, and who took part: ",
    "server, worst case": "As the server, whoever is drawn: ",
    "third party": "Sees the global models only: ",
    "server, whatever decided on later runs": "Runs may have been chosen by what was seen of earlier ones: ",
    "server, runs that were planned together": "Whatever the server may see of these runs: ",
    "outsider": "As a third party, but knowing less: ",
}


class Rows(Printed, list[Row]):
    """A row for each view and accountant; ``print`` shows what `dpfl account` does.

    Attributes:
        label: of whom they are. of_papers: whether bounds and recipes of papers are shown, too.
    """

    def __init__(self, rows: Sequence[Row] = (), label: str = "", *, of_papers: bool = False) -> None:
        super().__init__(rows)
        self.label, self.of_papers = label, of_papers

    def __str__(self) -> str:
        return _text({self.label: self}, self.of_papers)


class Accounts(Printed, dict[str, Sequence[Row]]):
    """Rows by label; ``print`` shows what `dpfl account` does. Attributes as of `Rows`."""

    def __init__(self, rows: Mapping[str, Sequence[Row]] | None = None, *, of_papers: bool = False) -> None:
        super().__init__(rows or {})
        self.of_papers = of_papers

    def __str__(self) -> str:
        return _text(self, self.of_papers)


def _text(rows: Mapping[str, Sequence[Row]], of_papers: bool) -> str:
    text = terminal.printed(lambda console: show(console, rows, of_papers=of_papers, more="its key error"))
    hidden = not of_papers and leave_out_papers(rows) != rows
    return f"{text}\nIts rows have bounds and recipes of papers, too." if hidden else text


def leave_out_papers(rows: Mapping[str, Sequence[Row]]) -> dict[str, Sequence[Row]]:
    """The rows that are neither by a paper's bound nor by its recipe."""
    return {label: without_papers(views) for label, views in rows.items()}


def show(console: Console, rows: Mapping[str, Sequence[Row]], *, of_papers: bool, more: str = "--json") -> None:
    """Print a line for each run and view, a column for each accountant; then what the numbers are of.

    Args:
        of_papers: whether rows of papers are shown. more: where a reader finds what is not.
    """
    rows = rows if of_papers else leave_out_papers(rows)
    sound = [row for views in rows.values() for row in views if row["view"] != RECIPE]
    accountants = _smallest_first(sound)
    table = Table(box=None, pad_edge=False, title="epsilon, by accountant", title_justify="left")
    table.add_column("run", overflow="fold")
    table.add_column("view", no_wrap=True)
    for column in (*accountants, "delta"):
        table.add_column(column, justify="right", no_wrap=True)
    for label, views in rows.items():
        for name in dict.fromkeys(row["view"] for row in views):
            of = {row["accountant"]: row for row in views if row["view"] == name}
            if name == RECIPE:
                continue
            values = [_number(of[accountant]) if accountant in of else "-" for accountant in accountants]
            table.add_row(label, name, *values, digits(next(iter(of.values()))["delta"], 6))
    terminal.show_table(console, table)
    for title, lines in (
        ("views", _bases(rows)),
        ("not proven", {row["accountant"]: row["caveat"] for row in sound if not row["sound"]}),
        (RECIPE, _recipes(rows, more)),
    ):
        if lines:
            console.print(_explained(title, lines))
    if len(accountants) > 1:
        console.print(f"\n{SIDE_BY_SIDE.format(more=more)}")
    for row in sound:
        if "note" in row:
            console.print(row["note"])
            break


def _smallest_first(rows: Sequence[Row]) -> list[str]:
    """Accountants, by the first number that each has: the smallest holds."""
    first: dict[str, float] = {}
    for row in rows:
        first.setdefault(row["accountant"], math.inf if row["epsilon"] is None else row["epsilon"])
    return sorted(first, key=lambda name: first[name])


def _explained(title: str, lines: Mapping[str, str]) -> Table:
    grid = Table(box=None, pad_edge=False, show_header=False, title=f"\n{title}", title_justify="left")
    grid.add_column(no_wrap=True)
    grid.add_column()
    for term, text in lines.items():
        grid.add_row(f"  {term}", text)
    return grid


def _bases(rows: Mapping[str, Sequence[Row]]) -> dict[str, str]:
    """What each view is of; with the runs' names where it is not the same for all."""
    found: dict[str, dict[str, list[str]]] = {}
    for label, views in rows.items():
        for row in views:
            relation = str(row["neighbouring"] or "no").replace("_", "-")
            runs = found.setdefault(row["view"], {}).setdefault(f"{row['basis']}; {relation} neighbours", [])
            if row["view"] != RECIPE and label not in runs:
                runs.append(label)
    several = len(rows) > 1
    return {
        view: SEES[view]
        + "; or ".join(
            f"{basis} ({', '.join(runs)})" if several and len(bases) > 1 else basis for basis, runs in bases.items()
        )
        for view, bases in found.items()
        if view != RECIPE
    }


def _recipes(rows: Mapping[str, Sequence[Row]], more: str) -> dict[str, str]:
    values = {label: row["epsilon"] for label, views in rows.items() for row in views if row["view"] == RECIPE}
    lines = {label: places(epsilon, 4) for label, epsilon in values.items()}
    return {**lines, "why": RECIPE_IN_SHORT.format(more=more)} if lines else {}


def _number(row: Row) -> str:
    return "none" if row["epsilon"] is None else places(row["epsilon"], 4)
