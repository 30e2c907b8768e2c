"""Tables in terminals of any width: no word is cut."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH: Final = 100  # where there is no terminal to fit into
_FRAMES = str.maketrans(dict.fromkeys("│┃║|", " "))


def show_table(console: Console, table: Table) -> None:
    """Print a table of strings; where columns would be so narrow that words are cut, row by row instead."""
    if _is_whole(console, table):
        console.print(table)
        return
    cells = [[_plain(console, cell) for cell in column.cells] for column in table.columns]
    headers = [" ".join(_plain(console, column.header).split()) for column in table.columns]
    if table.title:
        console.print(_plain(console, table.title), style="italic", markup=False, soft_wrap=True)
    for first, *others in zip(*cells, strict=True):
        heading = f"{headers[0]}: {first or '-'}" if headers[0] else first or "-"
        console.print(heading, style="bold", markup=False, soft_wrap=True)
        for header, cell in zip(headers[1:], others, strict=True):
            if cell:
                console.print(f"  {header}: {cell}" if header else f"  {cell}", markup=False, soft_wrap=True)


def printed(say: Callable[[Console], None], width: int = WIDTH) -> str:
    """What ``say`` prints, as text: without colours, and without spaces at the ends of lines."""
    text = io.StringIO()
    # In Jupyter a console shows what it is given, whatever its file, unless it is told that this is not Jupyter.
    say(Console(file=text, width=width, color_system=None, highlight=False, force_jupyter=False))
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").split("\n"))


def _is_whole(console: Console, table: Table) -> bool:
    """Whether every word of every cell is in one line of the table as it would be printed."""
    text = io.StringIO()
    Console(file=text, width=console.width, color_system=None, highlight=False, force_jupyter=False).print(table)
    printed = set(text.getvalue().translate(_FRAMES).split())
    told = [item for column in table.columns for item in (column.header, *column.cells)]
    return all(word in printed for item in told for word in _plain(console, item).translate(_FRAMES).split())


def _plain(console: Console, cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else console.render_str(str(cell)).plain
