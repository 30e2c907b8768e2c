"""Long benchmarks write into pages at their end: the place has to be there before they begin."""

import ast
from pathlib import Path

import pytest

from benchmarks import pages
from benchmarks.pages import ROOT, put


def parts() -> list[tuple[str, str, str]]:
    """(module, page, part) of every `put` in the benchmarks that names both."""
    found = []
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in ("put", "pages.put"):
                page, part = (one.value if isinstance(one, ast.Constant) else None for one in call.args[:2])
                if page and part:
                    found.append((path.stem, page, part))
    return found


def test_benchmarks_that_write_pages_are_found():
    assert {("engine_choice", "docs/engines.md", "engine tables"), ("noise", "docs/privacy.md", "secure noise")} <= set(
        parts()
    )


@pytest.mark.parametrize(("module", "page", "part"), parts())
def test_the_place_that_a_benchmark_writes_to_is_there_and_nothing_else_is_changed(
    module: str, page: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    copy, before = tmp_path / page, (ROOT / page).read_text()
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(before)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    put(page, part, "new")
    head, rest = before.split(f"<!-- {part}: begin -->")
    _, tail = rest.split(f"<!-- {part}: end -->")
    assert copy.read_text() == f"{head}<!-- {part}: begin -->\nnew\n<!-- {part}: end -->{tail}"
