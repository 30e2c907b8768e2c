"""Files, classes and functions of the package stay small enough to be read at once."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

import dpfl_plugin

PACKAGE = Path(dpfl_plugin.__file__).parent
MOST = {"file": 500, "class": 300, "function": 60}  # lines


@functools.cache
def named(path: Path) -> list[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Classes and functions of a file, wherever their statements are."""
    found, left = [], [*ast.parse(path.read_text()).body]
    while left:
        node = left.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node)
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, name, ())
    return found


def sizes(kind: str) -> dict[str, int]:
    """{"FILE" or "FILE::NAME": its lines}."""
    found: dict[str, int] = {}
    wanted = {"class": (ast.ClassDef,), "function": (ast.FunctionDef, ast.AsyncFunctionDef)}.get(kind)
    for path in sorted(PACKAGE.rglob("*.py")):
        text, name = path.read_text(), path.relative_to(PACKAGE).as_posix()
        if wanted is None:
            found[name] = len(text.splitlines())
            continue
        for node in named(path):
            if isinstance(node, wanted):
                assert node.end_lineno is not None
                found[f"{name}::{node.name}"] = node.end_lineno - node.lineno + 1
    return found


@pytest.mark.parametrize("kind", MOST)
def test_nothing_is_too_large(kind: str) -> None:
    found = sizes(kind)
    assert len(found) > 100
    large = {name: lines for name, lines in found.items() if lines > MOST[kind]}
    assert not large, f"more than {MOST[kind]} lines of a {kind}: give a part of it a name and a place"
