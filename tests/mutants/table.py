"""The table of mutants in docs/mutants.md."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks.pages import ROOT, put
from tests.mutants.catalogue import MUTANTS
from tests.mutants.harness import Result

PAGE = "docs/mutants.md"


def write(results: Sequence[Result]) -> None:
    """Write the table of all mutants into the page."""
    put(PAGE, "mutants", table(results))


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
    (part,) = re.findall("<!-- mutants: begin -->(.*)<!-- mutants: end -->", (ROOT / PAGE).read_text(), re.DOTALL)
    return re.findall(r"^\| `([^`]+)` \| (.*?) \| `", part, re.MULTILINE)
