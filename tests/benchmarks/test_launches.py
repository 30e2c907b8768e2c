"""No step starts more operations than is known: a GPU would be slower, and a table on the CPU would not show it."""

from __future__ import annotations

from benchmarks import launches
from benchmarks.pages import ROOT


def test_a_step_starts_as_many_operations_as_the_documentation_says() -> None:
    """Of every engine and workload, on a device of which nothing can be waited for. If fewer are started, or more are
    worth it: python -m benchmarks.launches --write."""
    assert launches.page() in (ROOT / "docs/engines.md").read_text()
