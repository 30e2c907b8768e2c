"""The table of mutants in docs/privacy.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.catalogue import MUTANTS
from tests.mutants.harness import Result

PAGE = Path(__file__).resolve().parents[2] / "docs" / "privacy.md"
BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"


def write(results: Sequence[Result]) -> None:
    """Write the table of all mutants into the page."""
    text = PAGE.read_text()
    assert BEGIN in text and END in text, f"{PAGE} has no place for the table"
    before, after = text[: text.index(BEGIN)], text[text.index(END) :]
    PAGE.write_text(f"{before}{BEGIN}\n{table(results)}\n{after}")


def table(results: Sequence[Result]) -> str:
    """In Markdown, in the order of the catalogue."""
    words = {mutant.name: mutant.bug for mutant in MUTANTS}
    rows = [f"| `{r.mutant}` | {words[r.mutant]} | {_test(r.by)} | {r.seconds} |" for r in results]
    return "\n".join(["| mutant | the bug | noticed by | seconds |", "| --- | --- | --- | ---: |", *rows])


def _test(nodeid: str) -> str:
    """tests/core/test_streams.py::test_x[a-b] -> `core/test_streams.py::test_x`."""
    return f"`{nodeid.partition('[')[0].removeprefix('tests/')}`"


def listed() -> list[tuple[str, str]]:
    """(name, bug) of each row of the page."""
    text = PAGE.read_text()
    rows = re.findall(r"^\| `([^`]+)` \| (.*?) \| `", text[text.index(BEGIN) : text.index(END)], re.MULTILINE)
    return [(name, bug) for name, bug in rows]
