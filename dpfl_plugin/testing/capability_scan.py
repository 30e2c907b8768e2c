"""What an algorithm's code can reach by name: closures, globals, class attributes, fields. Read, never called."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

_RECORDS = tuple(
    f"dpfl_plugin.{room}" for room in ("data", "gradients", "oracle", "federation", "runs", "owners", "evidence")
)
_DEPTH = 4  # of containers in containers


def forbidden(algorithm: object) -> Iterator[str]:
    """Each thing that could hold records and that the algorithm's own code names, as "where: what"."""
    cls = type(algorithm)
    seen: set[int] = set()
    for name, value in vars(algorithm).items():
        yield from _value(f"its field {name}", value, cls, seen)
    for base in cls.__mro__:
        if _own(base, cls):
            yield from _class(base, cls, seen)


def _own(thing: Any, cls: type) -> bool:
    """Whether ``thing`` is of the package that defines the algorithm."""
    package = cls.__module__.partition(".")[0]
    return str(getattr(thing, "__module__", "")).partition(".")[0] == package


def _class(base: type, cls: type, seen: set[int]) -> Iterator[str]:
    if id(base) in seen:
        return
    seen.add(id(base))
    for name, value in vars(base).items():
        if not name.startswith("__") or isinstance(value, types.FunctionType):
            yield from _value(f"{base.__name__}.{name}", value, cls, seen)


def _function(function: types.FunctionType, cls: type, seen: set[int]) -> Iterator[str]:
    if id(function) in seen:
        return
    seen.add(id(function))
    where = function.__qualname__
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            value = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        yield from _value(f"{name}, in the closure of {where}", value, cls, seen)
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield from _value(f"the global {name}, in {where}", function.__globals__[name], cls, seen)
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield from _value(f"a default of {where}", value, cls, seen)


def _names(code: types.CodeType) -> set[str]:
    """Globals that a function may name, and those of the functions inside of it."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)


def _value(where: str, value: Any, cls: type, seen: set[int], depth: int = 0) -> Iterator[str]:
    module = value.__name__ if isinstance(value, types.ModuleType) else str(getattr(value, "__module__", ""))
    if module.startswith(_RECORDS):
        yield f"{where}: of {module}, which handles records"
    elif isinstance(value, torch.Tensor | np.ndarray):
        if value.size > 1 if isinstance(value, np.ndarray) else value.numel() > 1:
            yield f"{where}: {type(value).__name__} of shape {tuple(value.shape)}"
    elif isinstance(value, property):
        yield from _value(where, value.fget, cls, seen)
    elif isinstance(value, staticmethod | classmethod):
        yield from _value(where, value.__func__, cls, seen)
    elif isinstance(value, types.FunctionType):
        if _own(value, cls):
            yield from _function(value, cls, seen)
    elif isinstance(value, type):
        if _own(value, cls):
            yield from _class(value, cls, seen)
    elif isinstance(value, Mapping) and depth < _DEPTH:
        for key, item in value.items():
            yield from _value(f"{where}[{key!r}]", item, cls, seen, depth + 1)
    elif isinstance(value, list | tuple | set | frozenset) and depth < _DEPTH:
        for item in value:
            yield from _value(where, item, cls, seen, depth + 1)
