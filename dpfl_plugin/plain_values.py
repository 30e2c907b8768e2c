"""Values of a configuration are what they look like: text is no number, and true is not 1.

Pydantic would read ``"5"`` as 5 and ``true`` as 1. Whoever wrote these meant something else, or may have.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterator
from typing import Any, Final

from pydantic_core import PydanticCustomError

_NUMBERS: Final = frozenset({int, float})
_PLAIN: Final = frozenset({int, float, bool, type(None), list, tuple})
_TRUTH: Final = frozenset({"0", "1", "f", "false", "n", "no", "off", "on", "t", "true", "y", "yes"})


def check(annotation: Any, value: Any) -> None:
    """Refuse a value that would only be taken for one of the annotated type.

    A whole number where a float belongs is fine, as is ``inf``, which YAML has as text.

    Raises:
        PydanticCustomError: the value is text, or true or false, where a number belongs, or a number or text where true
            or false does; what pydantic refuses by itself is left to it.
    """
    kinds = set(_kinds(annotation))
    if not kinds <= _PLAIN:
        return
    if isinstance(value, list | tuple):
        _check_items(annotation, value)
    elif isinstance(value, str):
        if kinds & _NUMBERS and _is_number(value):
            raise PydanticCustomError("not_plain", f"must be {_what(kinds)}, not text: write it without quotes")
        if bool in kinds and not kinds & _NUMBERS and value.strip().lower() in _TRUTH:
            raise PydanticCustomError("not_plain", "must be true or false, not text: write it without quotes")
    elif isinstance(value, bool):
        if kinds & _NUMBERS and bool not in kinds:
            raise PydanticCustomError("not_plain", f"must be {_what(kinds)}, not true or false")
    elif isinstance(value, int | float) and bool in kinds and not kinds & _NUMBERS:
        raise PydanticCustomError("not_plain", "must be true or false, not a number")


def _check_items(annotation: Any, values: list[Any] | tuple[Any, ...]) -> None:
    for kind in _options(annotation):
        if typing.get_origin(kind) in (list, tuple):
            items = [one for one in typing.get_args(kind) if one is not Ellipsis]
            for place, value in enumerate(values):
                check(items[min(place, len(items) - 1)], value)


def _what(kinds: set[Any]) -> str:
    return "a number" if float in kinds else "a whole number"


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _options(annotation: Any) -> Iterator[Any]:
    """The types of a union, of an annotation without what annotates it."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from _options(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for one in typing.get_args(annotation):
            yield from _options(one)
    else:
        yield annotation


def _kinds(annotation: Any) -> Iterator[Any]:
    """Classes that a value may be of."""
    for one in _options(annotation):
        origin = typing.get_origin(one)
        if origin is typing.Literal:
            yield from (type(value) for value in typing.get_args(one))
        else:
            yield origin or one
