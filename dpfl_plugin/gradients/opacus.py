"""Per-example gradients by the hooks of Opacus (Yousefpour et al. 2021, arXiv:2109.12298; its GradSampleModule).

A backward pass for the whole batch; each layer's hook then forms the gradients of single examples from what the layer
was given and the derivative by what it put out. Clipping is not Opacus' own: the gradients are scaled and added up by
the code that `vmap` uses, from the very numbers whose norms were taken.
"""

from __future__ import annotations

import copy
import warnings
from typing import Final

import torch
from torch import Tensor, nn

from dpfl_plugin.gradients.base import Loss
from dpfl_plugin.gradients.precision import Precision, full, passes
from dpfl_plugin.gradients.vmap import Vmap
from dpfl_plugin.models.fixed import frozen_norm

REPLACEMENTS: Final[dict[type[nn.Module], str]] = {
    nn.LSTM: "DPLSTM",
    nn.GRU: "DPGRU",
    nn.RNN: "DPRNN",
    nn.MultiheadAttention: "DPMultiheadAttention",
}
"""Layers that torch computes as one operation, and what Opacus has in their place: the same mathematics from parts."""


class Opacus(Vmap):
    """Instantiates each example's gradient by Opacus' hooks: for its DPLSTM, DPGRU, DPRNN and DPMultiheadAttention."""

    name = "opacus"
    capturable = False
    persons = False  # its hooks take the layers' first dimension for the examples

    def __init__(self, model: nn.Module, loss: Loss, chunk_bytes: int, precision: Precision = "float32") -> None:
        from opacus.grad_sample import GradSampleModule  # takes seconds: only where it is used

        super().__init__(model, loss, chunk_bytes, precision)
        own = copy.deepcopy(model).train()  # its own, since hooks are attached; they look at layers in training only
        for layer, copied in zip(model.modules(), own.modules(), strict=True):
            if frozen_norm(layer):  # in training it would mix records, and change
                copied.eval()
        self.runs = own
        parameters = {name: p for name, p in own.named_parameters() if p.requires_grad}
        hooked = GradSampleModule(own, batch_first=True, loss_reduction="sum")

        def gradients(values: dict[str, Tensor], features: Tensor, labels: Tensor) -> dict[str, Tensor]:
            for name, parameter in parameters.items():
                parameter.data = values[name]
                parameter.grad_sample = None  # type: ignore[attr-defined]
            with torch.enable_grad(), warnings.catch_warnings():
                # The first layer's input has no derivative, which is as it should be.
                warnings.filterwarnings("ignore", "Full backward hook is firing when gradients are computed")
                with passes(precision, features.device):
                    outputs = hooked(features)
                loss(full(outputs, values), labels).sum().backward()
            found = {name: _rows(parameter, len(labels)).to(values[name]) for name, parameter in parameters.items()}
            for parameter in parameters.values():
                parameter.grad = parameter.grad_sample = None  # type: ignore[attr-defined]
            return found

        self._gradients = gradients

    @staticmethod
    def unsupported(model: nn.Module, loss: Loss) -> str | None:
        """Layers that only look like what the hooks know are found when the engine is tried: see `choice`."""
        for name, module in model.named_modules():
            if type(module) in REPLACEMENTS:
                return (
                    f"{name or 'the model'}: {type(module).__name__} is one operation to torch, whose parts no hook "
                    f"sees. {replacement(module)}"
                )
            trainable = any(p.requires_grad for p in module.parameters(recurse=False))
            if trainable and list(module.buffers(recurse=False)):
                return f"{name or 'the model'}: {type(module).__name__} has parameters and buffers"
        return Vmap.unsupported(model, loss)

    def on(self, model: nn.Module) -> None:
        """None: its hooks are on a copy."""


def replacement(module: nn.Module) -> str:
    """What to write in place of a layer that Opacus has another form of."""
    name = REPLACEMENTS[type(module)]
    return (
        f"Write opacus.layers.{name} in its place, with the same arguments"
        f"{' and batch_first=True' if name == 'DPMultiheadAttention' else ''}: it computes the same."
    )


def _rows(parameter: nn.Parameter, count: int) -> Tensor:
    """(count, *shape) the gradients of a parameter; zeros of one that the loss does not depend on."""
    found: Tensor | list[Tensor] | None = parameter.grad_sample  # type: ignore[attr-defined]
    if found is None:
        return parameter.data.new_zeros(count, *parameter.shape)
    if not isinstance(found, Tensor) or found.shape != (count, *parameter.shape):
        shape = tuple(found.shape) if isinstance(found, Tensor) else "a list"
        raise RuntimeError(
            f"Opacus gives gradients of shape {shape} for a parameter of shape {tuple(parameter.shape)} and {count} "
            "records: some layer takes the records along another dimension than the first (batch_first=True fixes it)"
        )
    return found
