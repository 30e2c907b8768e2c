"""Whether features are so large that a model hardly learns from the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from torch import Tensor, nn

from dpfl_plugin.models.fields import FieldsModel

FAR: Final = 100.0
"""Whoever forgot to scale pixels of a byte, or incomes, is beyond it; ages in years are not."""


def far_features(held: Iterable[Tensor], columns: Sequence[str], module: nn.Module) -> str | None:
    """A note for who holds the records, where a feature to train on is further than `FAR` from 0; else None, as where
    the module looks numbers up: these are then no sizes.

    Args:
        held: (n, *shape), those of each silo. columns: names of the features [d], or none.
    """
    if any(isinstance(part, (nn.Embedding, nn.EmbeddingBag, FieldsModel)) for part in module.modules()):
        return None
    parts = [features for features in held if features.numel()]
    reach = max((_furthest(features.aminmax()) for features in parts), default=0.0)
    if reach <= FAR:
        return None
    where, shape = "", parts[0].shape[1:]
    if len(shape) == 1 and len(columns) == shape[0]:
        of_each = [max(_furthest(features[:, n].aminmax()) for features in parts) for n in range(shape[0])]
        where = f" (column {columns[of_each.index(max(of_each))]!r})"
    return (
        f"features reach {reach:.6g}{where}: clipped gradients then say next to nothing of smaller ones, and no step "
        "suits both. Unless the model scales them itself, bring them to about 1 by public constants: the ranges of a "
        "schema, or data.preprocess with scale, which treats all alike"
    )


def _furthest(ends: tuple[Tensor, Tensor]) -> float:
    low, high = map(float, ends)
    return max(-low, high)
