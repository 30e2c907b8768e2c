"""Modules that hand their input to one part of theirs and return what that gives, as projects wrap their layers.

`class Net(nn.Module)` with `self.layers = nn.Sequential(...)` and `return self.layers(x)` computes what its layers do.
What is known of these is known of it. Told by its code alone: a trial on made-up records does not show every branch.
"""

from __future__ import annotations

import inspect
import types
from typing import Any, Final

from torch import nn


def _forward(self: Any, x: Any) -> Any:
    return self.part(x)


_HANDS_ON: Final = _forward.__code__
_NOT_PLAIN: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_MODULE: Final = ("__call__", "__getattr__", "_call_impl", "_wrapped_call_impl")


def unwrapped(module: nn.Module) -> nn.Module:
    """The part that computes what ``module`` does, as deep as it may be; the module itself where it does more."""
    while (part := _part(module)) is not None:
        module = part
    return module


def _part(module: nn.Module) -> nn.Module | None:
    kind = type(module)
    if kind.__module__.partition(".")[0] == "torch" or len(module._modules) != 1:
        return None
    ((name, part),) = module._modules.items()
    forward = kind.__dict__.get("forward")
    own = module._parameters or module._buffers or any(getattr(module, hooks) for hooks in _HOOKS)
    replaced = "forward" in vars(module) or hasattr(kind, name)
    plain = kind.__getattribute__ is object.__getattribute__ and all(
        getattr(kind, method) is getattr(nn.Module, method) for method in _OF_MODULE
    )
    if part is None or own or replaced or not plain or not isinstance(forward, types.FunctionType):
        return None
    code = forward.__code__
    arguments = code.co_argcount, code.co_kwonlyargcount, code.co_flags & _NOT_PLAIN
    same = code.co_code == _HANDS_ON.co_code and code.co_names == (name,) and arguments == (2, 0, 0)
    return part if same else None
