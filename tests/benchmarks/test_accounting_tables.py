"""The tables of epsilons in the documents are what the code computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import accountants
from benchmarks.report import TEMPLATE


def test_every_contender_knows_its_batches() -> None:
    for name, sampler in accountants.CONTENDERS:
        found = accountants._measured(name, sampler, "W3, server")
        assert found is not None and 0 < found["epsilon"] < 50, name
    assert accountants._measured("gaussian", "fixed", "W3, server") is None


def test_the_report_keeps_the_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{accountants.BEGIN}\nold\n{accountants.END}\nafter\n")
    assert accountants.kept(page) == f"{accountants.BEGIN}\nold\n{accountants.END}"
    assert accountants.kept(tmp_path / "none.md") == f"{accountants.BEGIN}\n{accountants.END}"
    assert "{accountants}" in TEMPLATE
    monkeypatch.setattr(accountants, "section", lambda: "new")
    accountants.main(["--out", str(page)])
    assert page.read_text() == f"before\n{accountants.BEGIN}\nnew\n{accountants.END}\nafter\n"
