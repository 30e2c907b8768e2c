"""Whose code a model, a loss and torch itself are: this package's, torch's and Opacus', or somebody else's as well.

Code of the first kind keeps nothing from call to call; somebody else's is looked after (`steady`), and statements name
it. What is not recognised counts as somebody else's: objects of torch's that hold functions of users, callables of any
other kind, classes of containers or numbers of their own. Code counts by where it was written, not by what it says.
"""

from __future__ import annotations

import abc
import functools
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, Final, Generic, Protocol

import torch
from torch import Tensor, nn

from dpfl_plugin.gradients.base import Loss
from dpfl_plugin.gradients.outcome_losses import Foreign
from dpfl_plugin.gradients.persons import MeanLoss

_KEEP_NOTHING: Final = ("torch", "dpfl_plugin", "opacus")
# Not all of torch's: observers of quantisation keep what they saw, and a parametrised layer has a class of torch's over
# a user's.
_LAYERS: Final = ("torch.nn.modules.", "dpfl_plugin.", "opacus.")
_OBJECTS: Final = ("dpfl_plugin.", "opacus.")  # whose classes beside layers are known, with what their objects hold
_BASES: Final = (object, Generic, Protocol, abc.ABC)
# Of Python's: what stands in torch's namespaces and computes nothing that it was not given.
_OF_PYTHON: Final = frozenset(
    {"builtins", "typing", "typing_extensions", "functools", "dataclasses", "types", "abc", "_abc", "contextlib"}
    | {"collections", "enum", "_thread", "_frozen_importlib", "_frozen_importlib_external", "importlib._bootstrap"}
    | {"__future__", "logging", "re"}
)
_USED_BY_TORCH: Final = ("numpy", "typing_extensions", "pybind11_builtins", "collections", "importlib")
_ASKED: Final = (
    *("torch.nn.functional", "torch.linalg", "torch.special", "torch.autograd", "torch.autograd.graph"),
    *("torch.nn._reduction", "torch.nn.utils.stateless", "torch.overrides", "torch._functorch.functional_call"),
    *("torch._functorch.apis", "torch._functorch.eager_transforms", "torch._functorch.vmap"),
)
# Where torch gives none of its own operators a function of Python's.
_KERNELS: Final = frozenset({"", "CPU", "Autograd", "AutogradCPU", "AutogradCUDA"})
# What libraries add to torch's classes, by names that neither torch nor Python looks up.
_ADDED: Final = frozenset({"smart_apply"})  # by transformers, with the first model that it makes
HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis))
_OF_TORCH: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_CONTAINERS: Final = (list, tuple, set, frozenset, torch.Size)


def keeps_nothing(model: nn.Module, loss: Loss) -> bool:
    """Whether all code of a model and its loss is torch's, Opacus' or this package's, and nobody put anything in."""
    return _is_known_code(loss) and _layers_are_known(model) and not put_into_torch()


def inner(loss: Loss) -> Any:
    """The loss of one record, and the user's own, where this package's is around it. What any other keeps as ``loss``
    is not all of it."""
    while type(loss) in (MeanLoss, Foreign):
        loss = loss.loss  # type: ignore[attr-defined]
    return loss


@functools.lru_cache(maxsize=4096)  # thousands of values are looked at, of a few modules
def is_known(module: str) -> bool:
    """Whether code of this module keeps nothing."""
    return module.partition(".")[0] in _KEEP_NOTHING


def is_own_value(value: Any) -> bool:
    """Whether what stands in a namespace or a class of torch's is torch's own, or of Python's that it uses there."""
    kind = type(value)  # not isinstance: wrappers say that they are of the class of what they wrap
    if kind in (staticmethod, classmethod):
        return is_own_value(value.__func__)
    if kind is property:
        return all(map(is_own_value, (value.fget, value.fset, value.fdel)))
    if issubclass(kind, type | types.ModuleType):
        name = value.__module__ if issubclass(kind, type) else value.__name__
        return name.partition(".")[0] in (*_KEEP_NOTHING, *_USED_BY_TORCH) or name in sys.stdlib_module_names
    if issubclass(kind, types.GenericAlias):
        return True
    if callable(value):
        return _is_known_code(value, of_python=True)
    if hasattr(kind, "__get__"):
        return kind.__module__ == "builtins"
    return _is_of_python(kind.__module__) or is_known(kind.__module__)


def put_into_torch() -> dict[str, Any]:
    """What somebody else put into torch before, by where: a function of theirs in the place of one of torch's, hooks on
    all layers, what is asked about all that is computed; and into Opacus, for a layer's gradients. Empty if nothing."""
    found = {f"{_called(place)}.{name}": value for place in _places() for name, value in _others(place)}
    if (opacus := sys.modules.get("opacus.grad_sample.grad_sample_module")) is not None:
        samplers = opacus.GradSampleModule.GRAD_SAMPLERS
        found |= {f"opacus: {kind.__name__}": one for kind, one in samplers.items() if not _is_known_code(one)}
    for name, hooks in vars(nn.modules.module).items():
        if name.startswith("_global_") and hooks:
            found[f"torch.nn.modules.module.{name}"] = hooks
    for mode in _modes():
        if not is_known(type(mode).__module__):
            found[f"mode: {type(mode).__module__}.{type(mode).__qualname__}"] = mode
    if (hooks := _saved_by()) is not None:
        found["torch.autograd.graph.saved_tensors_hooks"] = hooks
    return found | dict.fromkeys(_operators_replaced())


def _others(place: Any) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in list(vars(place).items()) if not is_own_value(value))


def _called(place: Any) -> str:
    return str(place.__name__ if isinstance(place, types.ModuleType) else f"{place.__module__}.{place.__qualname__}")


def _modes() -> list[object]:
    functions = torch.overrides._get_current_function_mode_stack()
    return [*functions, *torch.utils._python_dispatch._get_current_dispatch_mode_stack()]


def _places() -> list[Any]:
    """Classes and modules of torch's that are looked up when something is computed or derived."""
    asked = (torch.Tensor, torch._VF, torch._C._nn, torch.func)
    return [torch, *asked, *(sys.modules[name] for name in _ASKED if name in sys.modules)]


def _operators_replaced() -> list[str]:
    """Operators of torch's that `torch.library` was told to compute by another function."""
    told = getattr(torch.library, "_impls", ())
    return sorted(name for name in told if name.split("/")[0] == "aten" and name.split("/")[-1] in _KERNELS)


def _saved_by() -> Any:
    """The hooks that keep what backward passes need (`torch.autograd.graph.saved_tensors_hooks`); None without."""
    asked = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return None if asked is None else asked(True)


def _layers_are_known(module: nn.Module) -> bool:
    layers = _layers(module)
    return all(map(_is_known_layer, layers)) and all(map(_is_its_own, _modules_of(layers)))


def _layers(module: nn.Module) -> list[nn.Module]:
    """All of them, found by none of their own methods: one of them may have been given another."""
    found, waiting = dict[int, nn.Module](), [module]
    while waiting:
        layer = waiting.pop()
        if id(layer) not in found:
            found[id(layer)] = layer
            waiting += [one for one in vars(layer).get("_modules", {}).values() if one is not None]
    return list(found.values())


def _modules_of(layers: Iterable[object]) -> set[str]:
    return {one.__module__ for layer in layers for one in _classes(type(layer))}


def _is_known_layer(layer: nn.Module) -> bool:
    """Whether all its classes are, by what they say and by the code of their methods, and nothing of somebody else's
    was put in: a function, such as an activation or a method of this one layer; a layer that is none of its layers; a
    hook; a tensor, a container or any other object of a class of its own."""
    held = vars(layer)
    modules = held.get("_modules", {})
    return (
        all(map(_is_known_class, _classes(type(layer))))
        and not any(getattr(layer, hooks, None) for hooks in HOOKS)
        and type(modules) in (dict, OrderedDict)
        and not any(issubclass(type(value), nn.Module) for value in held.values())
        and all(_is_known_thing(value) for name, value in held.items() if name != "_modules")
    )


def _classes(kind: type) -> list[type]:
    return [one for one in kind.__mro__ if one not in _BASES]


def _is_known_class(kind: type, of: tuple[str, ...] = _LAYERS) -> bool:
    methods = (value for name, value in vars(kind).items() if name not in _ADDED)
    return kind.__module__.startswith(of) and all(map(is_own_value, methods))


def _is_its_own(module: str) -> bool:
    """Whether a module of layers, which torch and this package have many of, names what it did, and torch by itself."""
    found = vars(sys.modules[module])
    own = {"torch": torch, "F": nn.functional, "_VF": torch._VF}
    return all(found[name] is one for name, one in own.items() if name in found) and all(
        _is_made_of_known(value, ()) if type(value) in (dict, OrderedDict, *_CONTAINERS) else is_own_value(value)
        for name, value in list(found.items())
        if not name.startswith("__")
    )


def _is_known_thing(value: Any, within: tuple[int, ...] = ()) -> bool:
    """Whether what a layer, a loss or a function was given is plain, or known with all that it holds."""
    kind = type(value)
    if kind in _PLAIN or id(value) in within:
        return True
    within = (*within, id(value))
    if kind in (dict, OrderedDict):
        return all(_is_known_thing(part, within) for item in value.items() for part in item)
    if kind in _CONTAINERS:
        return all(_is_known_thing(part, within) for part in value)
    if issubclass(kind, Tensor):
        return is_known(kind.__module__)
    if issubclass(kind, type):
        return is_own_value(value)
    return _is_known_code(value, within) if callable(value) else _is_known_object(value, within)


def _is_known_object(value: Any, within: tuple[int, ...]) -> bool:
    """Whether it is a number format or the like of torch's, or of a class of this package's or Opacus' that is no
    layer, with all that it holds."""
    if type(value) in _OF_TORCH:
        return True
    classes = _classes(type(value))
    names = {name for one in classes for name in _slots(one)} | set(getattr(value, "__dict__", ()))
    held = (getattr(value, name, None) for name in names)
    known = all(_is_known_class(one, _OBJECTS) and _is_its_own(one.__module__) for one in classes)
    return known and all(_is_known_thing(one, within) for one in held)


def _slots(kind: type) -> tuple[str, ...]:
    found = vars(kind).get("__slots__", ())
    return (found,) if isinstance(found, str) else tuple(found)


def _is_known_code(code: Any, within: tuple[int, ...] = (), *, of_python: bool = False) -> bool:
    """Whether something that is called is known, and with it whatever it was made with.

    Args:
        of_python: Python's own counts as well, as far as what it was made with is known.
    """
    kind, within = type(code), (*within, id(code))
    if issubclass(kind, nn.Module):
        return _layers_are_known(code)
    if kind is types.FunctionType:
        known = is_known(_written_in(code)) or (of_python and _is_of_python(_written_in(code)))
        return known and all(_is_made_of_known(one, within) for one in _made_with(code))
    if kind is types.MethodType:
        return _is_known_code(code.__func__, within) and _is_known_thing(code.__self__, within)
    if issubclass(kind, type):
        return is_known(code.__module__)
    if kind is types.BuiltinFunctionType:
        return _is_known_builtin(code, of_python=of_python)
    if kind is types.MethodWrapperType:  # such as the __call__ of any function
        return _is_known_thing(code.__self__, within)
    if kind in (types.MethodDescriptorType, types.WrapperDescriptorType, weakref.ref):
        return True
    if kind is torch._ops.OpOverloadPacket:
        return bool(code._qualified_op_name.startswith("aten::"))
    if kind is functools._lru_cache_wrapper:
        return _is_known_code(code.__wrapped__, within, of_python=of_python)
    if kind is functools.partial:
        given = (code.args, code.keywords, vars(code))
        return _is_known_code(code.func, within, of_python=of_python) and _is_known_thing(given, within)
    if of_python and kind.__module__ in ("typing", "typing_extensions"):
        return True
    return _is_known_object(code, within)


def _is_known_builtin(code: types.BuiltinFunctionType, *, of_python: bool) -> bool:
    """Of C or C++: by its module, or by the class, module or object that it is bound to."""
    known, of = is_known(str(code.__module__)), code.__self__
    if of is None or _is_of_pybind(type(of)):
        return known or (of_python and code.__module__ in sys.stdlib_module_names)
    if not (known or of_python):
        return False
    return is_own_value(of) if issubclass(type(of), type | types.ModuleType) else is_known(type(of).__module__)


def _made_with(function: types.FunctionType) -> list[Any]:
    if not (function.__closure__ or function.__defaults__ or function.__kwdefaults__ or vars(function)):
        return []
    cells = [cell.cell_contents for cell in function.__closure__ or () if not _is_empty(cell)]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [one for one in (*cells, *defaults, getattr(function, "__wrapped__", None)) if one is not function]


def _is_made_of_known(value: Any, within: tuple[int, ...]) -> bool:
    """As `_is_known_thing`, of what a function of torch's or ours has: only what can be called counts, in whatever it
    is; what it was given beside that, it uses as its own code says."""
    if id(value) in within:
        return True
    kind = type(value)
    if kind in (dict, OrderedDict):
        return all(_is_made_of_known(one, (*within, id(value))) for one in value.values())
    if kind in _CONTAINERS:
        return all(_is_made_of_known(one, (*within, id(value))) for one in value)
    if issubclass(kind, type):  # a class of Python's or torch's, as an annotation or to compare with
        return is_own_value(value)
    return not callable(value) or _is_known_code(value, within, of_python=True)


def _is_empty(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is cell
    except ValueError:
        return True


def _is_of_pybind(kind: type) -> bool:
    """Of what keeps a function of C++, of which Python is told nothing."""
    return kind.__name__ == "PyCapsule" or kind.__module__.startswith("pybind11")


def _is_of_python(module: str) -> bool:
    return module in _OF_PYTHON


def _written_in(function: types.FunctionType) -> str:
    """The module of its code, whatever it says: `functools.wraps` has a function say that it is what it wraps, and a
    function may have been given other code, or names of its own making; "" then."""
    names, code = function.__globals__, function.__code__
    name = str(names.get("__name__", ""))
    of_file = code.co_filename == names.get("__file__") or code.co_filename.startswith("<frozen ")
    made = code.co_filename == "<string>" and code.co_name.startswith("__")  # by dataclasses
    module = sys.modules.get(name)
    return name if (of_file or made) and module is not None and vars(module) is names else ""
