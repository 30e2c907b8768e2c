"""Compare what a model computes with besides its trainable parameters, once per round.

A model that keeps something of the records that it saw makes later gradients depend on earlier records. Trials before a
run (`independence`) cannot find what begins later. So modes, buffers (by value) and frozen parameters (by identity and
version counter, at no cost for large ones) are compared after each round, before anything of it is charged or leaves.
Nothing else of users' code is checked: it is trusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from dpfl_plugin.errors import ChangedError
from dpfl_plugin.gradients.base import Loss

CHANGED: Final = (
    "{} changed while silos computed, or since they computed last. What code keeps from one call to the next makes "
    "gradients depend on records that came before, so no guarantee would hold. Nothing of this round was charged or "
    "left the silos. Compute outputs from the input and the parameters alone (docs/engines.md)."
)


class FixedState:
    """The fixed state of a model, its copies and its loss, as it is when each of them is first watched.

    Args:
        model: the model that is trained; ``copy``: the one that an engine runs, where it has its own.
    """

    def __init__(self, model: nn.Module, loss: Loss, copy: nn.Module | None = None) -> None:
        # In copies that engines and evaluations run, trainable parameters may be frozen, and others at each call.
        self._frozen = frozenset(name for name, value in model.named_parameters() if not value.requires_grad)
        self._snapshots: list[_Snapshot] = []
        self.watch(model)
        self.watch(copy)
        if isinstance(loss, nn.Module):
            self._snapshots.append(_Snapshot.of(loss, frozenset(dict(loss.named_parameters()))))

    def watch(self, model: nn.Module | None) -> None:
        """Compare this copy of the model as well, from now on."""
        if model is not None and all(model is not known.module for known in self._snapshots):
            self._snapshots.append(_Snapshot.of(model, self._frozen))

    def check(self) -> None:
        """
        Raises:
            ChangedError: something changed.
        """
        for snapshot in self._snapshots:
            if (what := snapshot.changed()) is not None:
                raise ChangedError(CHANGED.format(what))


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """
    Attributes:
        buffers: copies. frozen: the parameters themselves, with their version counters.
    """

    module: nn.Module
    modes: list[bool]
    buffers: dict[str, Tensor]
    frozen: dict[str, tuple[Tensor, int]]

    @classmethod
    def of(cls, module: nn.Module, frozen: frozenset[str]) -> _Snapshot:
        buffers = {name: value.detach().clone() for name, value in module.named_buffers()}
        versions: dict[str, tuple[Tensor, int]] = {}
        versions |= {name: (value, _version(value)) for name, value in module.named_parameters() if name in frozen}
        return cls(module, [layer.training for layer in module.modules()], buffers, versions)

    def changed(self) -> str | None:
        """What changed, in words."""
        if [layer.training for layer in self.module.modules()] != self.modes:
            return "the training mode of a layer"
        buffers = dict(self.module.named_buffers()) if self.buffers else {}
        for name, value in self.buffers.items():
            if name not in buffers or not _same(buffers[name], value):
                return f"the buffer {name}"
        parameters = dict(self.module.named_parameters()) if self.frozen else {}
        for name, (value, version) in self.frozen.items():
            if parameters.get(name) is not value or _version(value) != version:
                return f"the frozen parameter {name}"
        return None


def _version(value: Tensor) -> int:
    return 0 if value.is_inference() else value._version


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal, NaN included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or (a.is_floating_point() and torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True))
