"""The table of mutants in docs/mutants.md."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks.pages import ROOT, put
from tests.mutants.catalogue import MUTANTS
from tests.mutants.harness import Result

PAGE = "docs/mutants.md"


def write(results: Sequence[Result]) -> None:
    """Write the rows of these mutants into the page, beside those of the others that the catalogue has."""
    put(PAGE, "mutants", table(results, _part()))


def table(results: Sequence[Result], before: str = "") -> str:
    """In Markdown, in the order of the catalogue; rows of ``before`` for mutants that were not tried now."""
    rows = {name: row for row in before.splitlines() for name in re.findall(r"^\| `([^`]+)` ", row)}
    words = {mutant.name: mutant.bug for mutant in MUTANTS}
    rows |= {r.mutant: f"| `{r.mutant}` | {words[r.mutant]} | {_test(r.by)} | {r.seconds} |" for r in results}
    kept = [rows[name] for name in words if name in rows]
    return "\n".join(["| mutant | the bug | noticed by | seconds |", "| --- | --- | --- | ---: |", *kept])


def _test(nodeid: str) -> str:
    """tests/core/test_streams.py::test_x[a-b] -> `core/test_streams.py::test_x`."""
    return f"`{nodeid.partition('[')[0].removeprefix('tests/')}`"


def listed() -> list[tuple[str, str]]:
    """(name, bug) of each row of the page."""
    return re.findall(r"^\| `([^`]+)` \| (.*?) \| `", _part(), re.MULTILINE)


def _part() -> str:
    (part,) = re.findall("<!-- mutants: begin -->(.*)<!-- mutants: end -->", (ROOT / PAGE).read_text(), re.DOTALL)
    return str(part)
