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
def parsed(path: Path) -> list[ast.AST]:
    """All nodes of a file that have a name and a body."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]


def sizes(kind: str) -> dict[str, int]:
    """{"FILE" or "FILE::NAME": its lines}."""
    found: dict[str, int] = {}
    wanted = {"class": (ast.ClassDef,), "function": (ast.FunctionDef, ast.AsyncFunctionDef)}.get(kind)
    for path in sorted(PACKAGE.rglob("*.py")):
        text, name = path.read_text(), path.relative_to(PACKAGE).as_posix()
        if wanted is None:
            found[name] = len(text.splitlines())
            continue
        for node in parsed(path):
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
