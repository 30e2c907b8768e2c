"""Tables are printed whole, however narrow the terminal is."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from dpfl_plugin import terminal


@pytest.mark.parametrize("width", [200, 80, 40])
def test_no_word_is_cut(width: int) -> None:
    headers = ["run", "test accuracy\nlast 10 %", "epsilon\nthird party", "neighbours"]
    table = Table(title="quickstart")
    for header in headers:
        table.add_column(header)
    rows = [["DP-FedAvg [a]".replace("[", r"\["), "0.8034", "no guarantee", "replace-one"]] * 2
    for row in rows:
        table.add_row(*row)
    text = io.StringIO()
    terminal.show_table(Console(file=text, width=width, color_system=None), table)
    words = set(text.getvalue().replace("│", " ").replace("┃", " ").replace(":", " ").split())
    for cell in (*headers, "DP-FedAvg [a]", *rows[0][1:], "quickstart"):
        assert set(cell.split()) <= words, text.getvalue()
    assert ("│" in text.getvalue()) == (width >= 80)
