"""States are named flat vectors: a model is one vector of shape (d,), silos' states are stacks (m, d)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfl_plugin.late import torch

if TYPE_CHECKING:
    from torch import Tensor


Vectors = dict[str, "torch.Tensor"]
"""What every wire, checkpoint and algorithm carries, by name: (d,) at the server, (m, d) for m silos."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each trainable parameter of a module lies in the flat vector, in the module's own order."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: torch.nn.Module) -> Layout:
        """The layout of the module's trainable parameters."""
        named = [(name, p.shape) for name, p in module.named_parameters() if p.requires_grad]
        return cls(tuple(name for name, _ in named), tuple(shape for _, shape in named))

    @property
    def sizes(self) -> list[int]:
        return [shape.numel() for shape in self.shapes]

    @property
    def dimension(self) -> int:
        """d, the number of trainable parameters."""
        return sum(self.sizes)

    def flatten(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """The parameters as one new vector (d,)."""
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.names])

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of ``vector`` (d,) by parameter name; writing to one writes to the vector."""
        parts = vector.split(self.sizes)
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}


def rows(vectors: Vectors, index: int) -> Vectors:
    """Silo ``index`` of a stack, as a stack of one: views of shape (1, d)."""
    return {name: value[index : index + 1] for name, value in vectors.items()}


def stack(parts: list[Vectors]) -> Vectors:
    """Stacks of silos joined in the given order."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]} if parts else {}


def columns(stacked: Vectors) -> Vectors:
    """A number for each silo, (m,), as (m, 1): rows are vectors wherever they travel."""
    return {name: value.unsqueeze(1) if value.dim() == 1 else value for name, value in stacked.items()}


def all_finite(vectors: Vectors) -> bool:
    """Whether no entry is NaN or infinite."""
    return all(bool(torch.isfinite(value).all()) for value in vectors.values() if value.is_floating_point())
