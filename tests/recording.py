"""What a CUDA graph does, on the CPU: a function's operations are recorded once, and done again on the same tensors.

As in a graph, numbers that were Python's stay what they were, and nothing that was computed before is there: each
replay begins with all that the function made itself overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from dpfl_plugin.gradients import base
from dpfl_plugin.gradients.replay import Outputs

WAIT = {  # for numbers of the device, or have shapes that depend on them
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "equal",
    "nonzero",
    "masked_select",
    "unique_dim",
    "_unique2",
    "bincount",
    "repeat_interleave",
}
EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
MOVE = {"lift_fresh", "_pin_memory"}  # what Python, or numpy, has made into a tensor


def tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def aliases(values: Any) -> Any:
    """Tensors of the same memory: a parameter may be given another (``.data``), and shapes may be changed in place."""
    return tree_map(lambda value: value.detach() if isinstance(value, Tensor) else value, values)


def place(value: Tensor) -> int:
    return value.untyped_storage()._cdata


class Operations(TorchDispatchMode):
    """What torch is asked for, in its order: (operation, arguments, result)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = aliases((args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, *given, aliases(result)))
        return result

    def uncapturable(self) -> list[str]:
        """Operations that wait for the device, have shapes that depend on numbers, or move tensors between devices."""
        found = []
        for func, args, kwargs, result in self.calls:
            name = func.overloadpacket.__name__
            by_mask = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
                one.dtype in (torch.bool, torch.uint8) for one in tensors(args[1])
            )
            devices = {one.device for one in tensors((args, kwargs, result))}
            if name in WAIT | MOVE or by_mask or len(devices) > 1:
                found.append(name)
        return found

    def kept(self) -> set[int]:
        """Where the tensors are that were there before."""
        made: set[int] = set()
        before: set[int] = set()
        for _, args, kwargs, result in self.calls:
            before |= {place(one) for one in tensors((args, kwargs))} - made
            made |= {place(one) for one in tensors(result)} - before
        return before

    def written(self) -> set[int]:
        """Where there are tensors that operations write to beside giving a result."""
        found = set()
        for func, args, kwargs, _ in self.calls:
            for number, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    given = args[number] if number < len(args) else kwargs.get(argument.name)
                    found |= {place(one) for one in tensors(given)}
        return found


class Recorder:
    """A `replay.Record` for the CPU.

    Attributes:
        recorded: what each recording is of; replays: how many there were of all of them.
    """

    def __init__(self) -> None:
        self.recorded: list[Operations] = []
        self.replays = 0

    def __call__(self, function: Callable[[], Outputs], device: torch.device) -> tuple[Callable[[], object], Outputs]:
        operations = Operations()
        with mock.patch.object(base, "ASKED", set()), operations:
            outputs = function()
        self.recorded.append(operations)
        assert not operations.uncapturable(), operations.uncapturable()
        before = operations.kept()
        assert not before & operations.written(), "what is recorded writes to tensors that were there before"
        fresh = [
            (call, [one for one in tensors(call[3]) if place(one) not in {place(a) for a in tensors(call[1:3])}])
            for call in operations.calls
        ]

        def again() -> None:
            self.replays += 1
            for _, made in fresh:
                for one in made:
                    one.fill_(float("nan") if one.is_floating_point() else 1)
            for (func, args, kwargs, _), made in fresh:
                if made and func.overloadpacket.__name__ in EMPTY:
                    continue
                args, kwargs = aliases((args, kwargs))
                result = tensors(func(*args, **kwargs))
                if made:
                    for old, new in zip(made, result, strict=True):
                        old.copy_(new)

        return again, outputs
