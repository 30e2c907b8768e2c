"""What one record takes in a model: operations, products, memory; by running the model once on made-up records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.gradients.base import Loss
from dpfl_plugin.gradients.persons import Persons, no_labels


@dataclass(frozen=True, slots=True)
class Matrix:
    """A layer whose gradient is a sum over T positions of outer products, of i inputs and o outputs; for each group.

    ``calls`` says how often the model calls it for a record; ``positions`` are those of all calls.
    """

    positions: int
    inputs: int
    outputs: int
    groups: int
    calls: int


@dataclass(frozen=True, slots=True)
class Trace:
    """One record's share of a forward pass.

    Attributes:
        dimension: d, the number of parameters.
        num_features: of a record.
        products: multiplications in ``matrices``.
        operations: functions of torch that are called, for a batch of any size.
        num_layers: modules that own parameters.
        kept: numbers that autograd keeps for the backward pass, parameters not among them.
        itemsize: bytes of a number.
        matrices: the layers in which nearly all products are.
    """

    dimension: int
    num_features: int
    products: float
    operations: int
    num_layers: int
    kept: int
    itemsize: int
    matrices: tuple[Matrix, ...]


class _Count(TorchFunctionMode):
    """Counts the functions of torch that are called. (A dispatch mode would count all, and import torch's compiler.)"""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return func(*args, **(kwargs or {}))


def trace(model: nn.Module, loss: Loss, features: Tensor) -> Trace:
    """The trace of ``model`` on made-up ``features`` (n, *feature_shape)."""
    count, labels = len(features), no_labels(model, features, loss)
    rows = int(features.shape[1]) if isinstance(model, Persons) else 1
    seen: dict[int, list[Tensor]] = {}
    owners = [module for module in model.modules() if any(p.requires_grad for p in module.parameters(recurse=False))]
    hooks = [
        module.register_forward_hook(lambda module, inputs, output: seen.setdefault(id(module), []).append(output))
        for module in owners
    ]
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    sizes: dict[int, int] = {}

    def keep(value: Tensor) -> Tensor:
        if value.untyped_storage().data_ptr() not in own:
            sizes[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value

    counted = _Count()
    try:
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
            with counted:
                total = loss(model(features), labels).sum()
            del total
    finally:
        for hook in hooks:
            hook.remove()
    matrices = [matrix for module in owners if (matrix := _matrix(module, seen.get(id(module), ()), rows))]
    itemsize = next(model.parameters()).element_size()
    return Trace(
        dimension=Layout.of(model).dimension,
        num_features=features[0].numel(),
        products=float(sum(m.groups * m.positions * m.inputs * m.outputs for m in matrices)),
        operations=counted.operations,
        num_layers=len(owners),
        kept=math.ceil(sum(sizes.values()) / itemsize / count),
        itemsize=itemsize,
        matrices=tuple(matrices),
    )


def _matrix(module: nn.Module, outputs: Any, rows: int) -> Matrix | None:
    """``rows``: of what the layer puts out, those of one example."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() < 2 or not outputs or isinstance(module, nn.Embedding):
        return None
    if not all(isinstance(output, Tensor) for output in outputs):
        return None
    groups = cast(int, getattr(module, "groups", 1))
    positions = rows * sum(output[0].numel() for output in outputs) // weight.shape[0]
    return Matrix(positions, math.prod(weight.shape[1:]), weight.shape[0] // groups, groups, len(outputs))
