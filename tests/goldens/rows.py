"""Golden files: what the code gave when they were written, one row a line, and what differs from that now."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
WRITE: Final = "python -m tests.goldens --write"
MOST_SHOWN: Final = 3  # differences, of each part of a row
MOST_LETTERS: Final = 120
LEAST: Final = 1e-6  # numbers that are smaller are compared as if they were this long
Row = dict[str, Any]


def read(name: str) -> dict[str, Row]:
    """The rows of ``NAME.json``; none where there is no such file yet."""
    path = HERE / f"{name}.json"
    rows: dict[str, Row] = json.loads(path.read_text()) if path.exists() else {}
    return rows


def write(name: str, rows: Mapping[str, Row]) -> None:
    lines = [f"{json.dumps(label)}: {json.dumps(row, separators=(',', ':'))}" for label, row in rows.items()]
    (HERE / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def difference(file: str, label: str, expected: Row | None, actual: Row) -> str | None:
    """Where a row is not what it was, and how to write it anew if that is meant; None where it is."""
    lines, expected = list[str](), expected or {}
    for part in {**expected, **actual}:
        found = list(_differences(expected.get(part, "absent"), actual.get(part, "absent"), (part,)))
        lines += [*found[:MOST_SHOWN], *[f"{part}: {len(found) - MOST_SHOWN} more"] * (len(found) > MOST_SHOWN)]
    if not lines:
        return None
    said = "\n  ".join(lines)
    return (
        f"{file}: {label} changed:\n  {said}\n"
        f"If this is meant, write it anew, in a commit of its own that says why:\n  {WRITE} {json.dumps(label)}"
    )


def _differences(expected: Any, actual: Any, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in {**expected, **actual}:
            yield from _differences(expected.get(key, "absent"), actual.get(key, "absent"), (*path, key))
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        scale = _scale(expected) if "model" in path else 0.0
        for index, pair in enumerate(zip(expected, actual, strict=True)):
            if not _close(*pair, _tolerance(path), scale):
                yield from _differences(*pair, (*path, str(index)))
    elif not _close(expected, actual, _tolerance(path)):
        yield f"{' > '.join(path)}: expected {_short(expected)}, got {_short(actual)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]} ..."


def _tolerance(path: tuple[str, ...]) -> float:
    """Relative. What follows from counts alone is the same everywhere; sums of gradients round by the processor."""
    return 1e-9 if any("epsilon" in part or "noise" in part for part in path) else 1e-6


def _close(expected: Any, actual: Any, tolerance: float, scale: float = 0.0) -> bool:
    if type(expected) is float and type(actual) is float:
        return abs(expected - actual) <= tolerance * max(abs(expected), scale, LEAST)
    return type(expected) is type(actual) and bool(expected == actual)


def _scale(values: list[Any]) -> float:
    """Of the numbers of one tensor: what is near 0 among them is as exact as the others."""
    numbers = [value for value in values if type(value) is float]
    return math.sqrt(math.fsum(value**2 for value in numbers) / len(numbers)) if numbers else 0.0
