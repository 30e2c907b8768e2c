"""A digest of what an object computes: a model, a loss or an algorithm that a Python program made.

It tells an object that was changed from the one that it was, so that no old result is shown for the new one. It guards
against accidents, not against code that hides what it does.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

KNOWN = ("torch", "builtins", "dpfl_plugin")


def object_digest(*values: object) -> str | None:
    """sha256 in hex of code, parameters, buffers and plain attributes; None where something else is in them."""
    found = hashlib.sha256()
    try:
        for value in values:
            found.update(repr(_facts(value, ())).encode())
    except _UnknownError:
        return None
    return found.hexdigest()


class _UnknownError(Exception):
    """Something that no digest shows."""


def _facts(value: Any, within: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | torch.dtype | torch.device):
        return value
    if id(value) in within:
        return "itself"
    within = (*within, id(value))
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return [str(value.dtype), tuple(value.shape), value.requires_grad, hashlib.sha256(plain.data).hexdigest()]
    if isinstance(value, Mapping):
        return [[_facts(key, within), _facts(item, within)] for key, item in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return [_facts(item, within) for item in items]
    if isinstance(value, functools.partial):
        return [_facts(value.func, within), _facts(value.args, within), _facts(value.keywords, within)]
    if isinstance(value, MethodType):
        return [_facts(value.__func__, within), _facts(value.__self__, within)]
    if isinstance(value, type):
        return _of_class(value)
    if isinstance(value, FunctionType):
        if value.__module__.partition(".")[0] in KNOWN:
            return [value.__module__, value.__qualname__]
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [_code(value.__code__), _facts(value.__defaults__, within), _facts(cells, within)]
    if inspect.isbuiltin(value) or type(value).__module__ == "torch._ops":
        return repr(type(value)) + str(getattr(value, "__qualname__", value))
    if hasattr(value, "__dict__"):
        return [_of_class(type(value)), _facts(_attributes(value), within)]
    raise _UnknownError


def _attributes(value: Any) -> dict[str, Any]:
    """Of a module without the registries of hooks, which torch numbers as it goes."""
    found = dict(vars(value))
    if isinstance(value, torch.nn.Module):
        found = {key: one for key, one in found.items() if not key.endswith("_hooks") and "_hooks_" not in key}
    return found


def _of_class(kind: type) -> Any:
    """Its name, and the code of what is neither torch's nor this package's."""
    own = [base for base in kind.__mro__ if base.__module__.partition(".")[0] not in KNOWN]
    names = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
    return [
        names,
        [[name, _code(inner)] for base in own for name, inner in sorted(_functions(base).items())],
    ]


def _functions(kind: type) -> dict[str, CodeType]:
    found = {}
    for name, item in vars(kind).items():
        item = item.fget if isinstance(item, property) else getattr(item, "__func__", item)
        if isinstance(item, FunctionType):
            found[name] = item.__code__
    return found


def _code(code: CodeType) -> Any:
    constants = [_code(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return [code.co_code.hex(), code.co_names, code.co_varnames, constants]
