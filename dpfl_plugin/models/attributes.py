"""What decides what a model computes besides its parameters and buffers: attributes of its layers, of any depth.

A name for noise has to tell apart whatever may compute something else. So attributes are described by their values,
functions by their code, what they hold and the global variables that they read, private ones too; and what cannot be
described is in doubt, and said.
"""

from __future__ import annotations

import abc
import argparse
import array
import collections
import dataclasses
import enum
import functools
import hashlib
import json
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dpfl_plugin import loaded
from dpfl_plugin.core.requests import request_digest
from dpfl_plugin.models.global_names import names_in
from dpfl_plugin.models.memory import Memory, beside

MOST: Final = 1_000_000  # values that are looked at: far more than a model has, and an end for what has none
_TORCHS_OWN: Final = frozenset(vars(nn.Module()))  # parameters, buffers, layers and hooks, which are looked at as such
_OF_RECURRENT: Final = frozenset({"_flat_weights", "_flat_weight_refs"})  # the parameters once more
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, range, slice, type(...), type(NotImplemented))
_OF_TORCH: Final = (torch.dtype, torch.layout, torch.memory_format)
_FieldOfTuple: Final = type(vars(collections.namedtuple("_", "one"))["one"])
_TENSORS: Final = (Tensor, nn.Parameter)
_DECORATORS: Final = ("torch.autograd.grad_mode", "torch.utils._contextlib")  # no_grad and the like
_BASES: Final = (object, Protocol, Generic, abc.ABC)  # of classes whose objects are no more than their attributes


@dataclass(frozen=True, slots=True)
class Attributes:
    """What `describe` found.

    Attributes:
        facts: plain JSON values, the same in every process that makes the same.
        doubts: what they do not show, in words.
        code: the functions and classes that were found, whose source counts as well.
    """

    facts: list[Any]
    doubts: tuple[str, ...]
    code: tuple[Any, ...]


def describe(what: Mapping[str, object], memory: Memory | None = None) -> Attributes:
    """Each of ``what`` by its values.

    Args:
        what: {its name, for messages: a model, a loss, or another object}. Of models the parameters and buffers are
            left out.
        memory: look as well at what lies behind tensors and arrays, and is kept beside them: in this process alone,
            since another may have other things there.
    """
    found = _Describer(what.values(), memory)
    facts = [[name, found.of(value, name)] for name, value in what.items()]
    if any(getattr(nn.modules.module, f"_global{hooks}", None) for hooks in _HOOKS):
        found.doubts.add("hooks are registered for all of torch's modules")
    return Attributes([facts, sorted(found.kinds.items())], tuple(sorted(found.doubts)), tuple(found.code.values()))


class _Describer:
    def __init__(self, roots: Iterable[object], memory: Memory | None) -> None:
        self._memory = memory
        self.doubts: set[str] = set()
        self.code: dict[int, Any] = {}
        self.kinds: dict[str, Any] = {}  # of users' classes: what they hold; of global variables: their values
        self._classes: dict[str, list[type]] = {}  # by their names, which several may share
        self._modules: set[tuple[str, frozenset[str]]] = set()  # that were looked at, for which names
        self._layers = {
            id(layer): path
            for root in roots
            if isinstance(root, nn.Module)
            for path, layer in root.named_modules(remove_duplicate=True)
        }
        self._path: list[int] = []  # of what is being looked at
        self._seen = 0

    def of(self, value: Any, where: str) -> Any:
        """``value`` as plain JSON values."""
        if type(value) in _PLAIN:
            return [type(value).__name__, repr(value)]
        if id(value) in self._path:
            return ["above", len(self._path) - self._path.index(id(value))]
        self._seen += 1
        self._path.append(id(value))
        try:
            if self._seen > MOST:
                return self._doubt(where, "holds too much to be looked at")
            return self._of(value, where)
        except Exception as error:  # a stranger's object may do anything when it is looked at
            return self._doubt(where, f"cannot be looked at ({type(error).__name__})")
        finally:
            self._path.pop()

    def _doubt(self, where: str, why: str) -> list[Any]:
        self.doubts.add(f"{where} {why}")
        return ["?"]

    def _of(self, value: Any, where: str) -> Any:
        match value:
            case nn.Module():
                return self._module(value, where)
            case Tensor():
                return self._tensor(value, where)
            case np.ndarray() | np.generic():
                if value.dtype.hasobject or (type(value) is not np.ndarray and not isinstance(value, np.generic)):
                    return self._doubt(where, "is an array of objects, whose values no digest shows")
                data = np.ascontiguousarray(value).tobytes()
                return [repr(value.dtype), list(value.shape), hashlib.sha256(data).hexdigest(), *self._array(value)]
            case bytearray() | array.array():
                return [type(value).__name__, hashlib.sha256(value).hexdigest()]
            case torch.device():
                return ["device", value.type]  # its number is a matter of placement
            case enum.Enum():
                return [self._kind(type(value), where), value.name, self.of(value.value, where)]
            case re.Pattern():
                return ["pattern", self.of(value.pattern, where), value.flags]
            case dict() | types.MappingProxyType():
                items = [[self.of(k, where), self.of(v, f"{where}[{k!r:.40}]")] for k, v in value.items()]
                return [self._kind(type(value), where), items, self._more(value, where)]
            case list() | tuple() | collections.deque():
                items = [self.of(one, f"{where}[{number}]") for number, one in enumerate(value)]
                return [self._kind(type(value), where), items, self._more(value, where)]
            case set() | frozenset():
                items = sorted((self.of(one, where) for one in value), key=json.dumps)
                return [self._kind(type(value), where), items, self._more(value, where)]
        if type(value).__module__.partition(".")[0] == "pathlib":
            return ["path", str(value)]
        if isinstance(value, _OF_TORCH):
            return [type(value).__name__, str(value)]
        if isinstance(value, type):
            return ["class", self._kind(value, where)]
        code = self._code(value, where)
        return self._object(value, where) if code is None else code

    def _module(self, module: nn.Module, where: str) -> Any:
        known = self._layers.get(id(module))
        if known is not None and len(self._path) > 1:
            return ["layer", known]  # described in its place
        if known is not None:
            return [
                [path, self._layer(layer, f"{where}'s layer {path or 'itself'}")]
                for path, layer in module.named_modules()
            ]
        held: dict[str, Tensor | None] = {**module._parameters, **module._buffers}
        tensors = [[name, self.of(value, f"{where}.{name}")] for name, value in held.items()]
        layers = [[name, self.of(layer, f"{where}.{name}")] for name, layer in module._modules.items()]
        return [self._layer(module, where), tensors, layers]

    def _layer(self, layer: nn.Module, where: str) -> Any:
        if any(getattr(layer, hooks, None) for hooks in _HOOKS):
            self._doubt(where, "has hooks, and what they do is not known")
        tensors = (*layer._parameters.values(), *layer._buffers.values())
        if any(getattr(tensor, "_backward_hooks", None) for tensor in tensors if tensor is not None):
            self._doubt(where, "has hooks at its parameters, and what they do is not known")
        known = _TORCHS_OWN | _OF_RECURRENT if isinstance(layer, nn.RNNBase) else _TORCHS_OWN
        own = {key: value for key, value in vars(layer).items() if key not in known}
        return [self._kind(type(layer), where), self._named(own, where)]

    def _named(self, values: Mapping[str, Any], where: str) -> list[Any]:
        return [[key, self.of(value, f"{where}, attribute {key},")] for key, value in sorted(values.items())]

    def _tensor(self, value: Tensor, where: str) -> Any:
        plain = value.layout == torch.strided and not (value.is_quantized or value.is_meta)
        behind = [] if self._memory is None else self._beside(value, where)
        if type(value) not in _TENSORS or not plain or getattr(value, "_backward_hooks", None):
            return [*self._doubt(where, "is not a plain tensor, and no digest shows its values"), *behind]
        return ["tensor", value.requires_grad, request_digest({"": value}).hex(), *behind]

    def _array(self, value: Any) -> list[Any]:
        if self._memory is None or not isinstance(value, np.ndarray | np.void):
            return []
        return self._memory.of_array(value)

    def _beside(self, value: Tensor, where: str) -> list[Any]:
        assert self._memory is not None
        return [self._memory.of(value), *self._named(beside(value), where)]

    def _more(self, value: Any, where: str) -> list[Any]:
        """Attributes that a user's kind of container may have."""
        return self._named(getattr(value, "__dict__", None) or {}, where)

    def _object(self, value: Any, where: str) -> Any:
        """An object that is no more than its attributes, since all of its classes are written in Python."""
        kind = type(value)
        if not all(
            base in _BASES or _is_users(base) or _is_ours(base) or base.__module__ in _DECORATORS
            for base in kind.__mro__
        ):
            if (kind.__module__, kind.__qualname__) == ("logging", "Logger"):
                return ["logger", value.name]  # what it writes is in no release
            if kind in (types.SimpleNamespace, argparse.Namespace):
                return [self._kind(kind, where), self._named(vars(value), where)]
            return self._doubt(where, f"is a {kind.__module__}.{kind.__qualname__}, which no digest shows")
        held = dict(getattr(value, "__dict__", {}))
        for base in kind.__mro__:
            slots = vars(base).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else tuple(slots):
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    held[name] = getattr(value, name)
        return [self._kind(kind, where), self._named(held, where)]

    def _kind(self, kind: type, where: str) -> str:
        """The name of a class; what users' classes hold is noted beside."""
        name = f"{kind.__module__}.{kind.__qualname__}"
        self.code[id(kind)] = kind
        for base in filter(_is_users, kind.__mro__):
            called = f"{base.__module__}.{base.__qualname__}"
            same = self._classes.setdefault(called, [])
            if not any(base is one for one in same):
                same.append(base)
                called += f", number {len(same)}" if len(same) > 1 else ""
                self.kinds[called] = None  # in work
                self.kinds[called] = [[key, self.of(value, f"{called}.{key}")] for key, value in sorted(_held_by(base))]
        if kind.__module__ not in sys.modules:
            self._doubt(where, f"is of a class {name} of no module that could be looked at")
        return name

    def _code(self, value: Any, where: str) -> Any:
        """A function, or what is made of one; None for anything else."""
        match value:
            case types.FunctionType():
                return self._function(value, where)
            case types.MethodType():
                return ["method", self.of(value.__func__, where), self.of(value.__self__, where)]
            case functools.partial():
                parts = self.of(value.args, where), self.of(value.keywords, where), self._more(value, where)
                return ["partial", self.of(value.func, where), *parts]
            case staticmethod() | classmethod():
                return [type(value).__name__, self.of(value.__func__, where)]
            case property():
                return ["property", *(self.of(one, where) for one in (value.fget, value.fset, value.fdel))]
            case functools.cached_property():
                return ["property", self.of(value.func, where)]
            case types.CodeType():
                return [value.co_code.hex(), list(value.co_names), *(self.of(one, where) for one in value.co_consts)]
            case types.BuiltinFunctionType():
                of = value.__self__
                self_ = None if of is None or isinstance(of, types.ModuleType) else self.of(of, where)
                return ["builtin", str(value.__module__), value.__qualname__, self_]
            case np.ufunc() if getattr(np, str(getattr(value, "__name__", "")), None) is value:
                return ["ufunc", str(value)]
        return None

    def _function(self, function: types.FunctionType, where: str) -> Any:
        name = ["function", str(function.__module__), function.__qualname__]
        self.code[id(function)] = function
        module = sys.modules.get(str(function.__module__))
        found: Any = module
        for part in function.__qualname__.split("."):
            found = getattr(found, part, None)
        if found is function and not _is_of_users(module):
            return name
        self._note_globals(function)
        cells = [_content(cell) for cell in function.__closure__ or ()]
        values = function.__code__, function.__defaults__, function.__kwdefaults__, cells, vars(function)
        return [*name, *(self.of(value, where) for value in values)]

    def _note_globals(self, function: types.FunctionType) -> None:
        """Note beside what a user's function finds in its module whenever it is called."""
        held = function.__globals__
        called = str(held.get("__name__"))
        if called in sys.modules and not _is_of_users(sys.modules[called]):
            return
        of_module, anywhere = names_in(function.__code__)
        for name in sorted(of_module & held.keys()):
            self._note(f"{called}:{name}", held[name], anywhere)

    def _note(self, called: str, value: Any, names: frozenset[str]) -> None:
        """A global variable; of a module, what it has under one of ``names``."""
        if isinstance(value, types.ModuleType):
            self._note_module(value, names)
        elif called not in self.kinds:
            self.kinds[called] = None  # in work
            self.kinds[called] = self.of(value, f"global variable {called}")

    def _note_module(self, module: types.ModuleType, names: frozenset[str]) -> None:
        """Of one that is not a user's, which its version stands for, only what a user may have put there."""
        if (module.__name__, names) in self._modules:
            return
        self._modules.add((module.__name__, names))
        held, is_users = vars(module), _is_of_users(module)
        for name in sorted(names & held.keys()):
            value = held[name]
            if is_users or isinstance(value, (types.ModuleType, *_PLAIN)) or _is_users_function(value):
                self._note(f"{module.__name__}:{name}", value, names)


def _is_users_function(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and _is_of_users(sys.modules.get(str(value.__module__)))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was put in
        return NotImplemented


def _held_by(kind: type) -> Iterator[tuple[str, Any]]:
    """What a class holds and its source may not show: values, and functions with what they hold."""
    if issubclass(kind, enum.Enum):
        yield "members", {name: member.value for name, member in kind.__members__.items()}
        return
    for key, value in vars(kind).items():
        dunder = key.startswith("__") and key.endswith("__")
        slot = isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType | _FieldOfTuple)
        code = getattr(value, "__code__", None)
        made = dataclasses.is_dataclass(kind) and getattr(code, "co_filename", "") == "<string>"
        if key != "_abc_impl" and not slot and not made and (not dunder or isinstance(value, types.FunctionType)):
            yield key, value


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "dpfl_plugin"


def _is_users(kind: type) -> bool:
    return _is_of_users(sys.modules.get(kind.__module__))


def _is_of_users(module: types.ModuleType | None) -> bool:
    """Whether a module is neither of Python, nor installed, nor this package's."""
    path = getattr(module, "__file__", None)
    if module is None or module.__name__.partition(".")[0] == "dpfl_plugin":
        return False
    return module.__name__ == "__main__" if path is None else loaded.origin_of(path) == "user"
