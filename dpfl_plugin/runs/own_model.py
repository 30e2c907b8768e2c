"""What a statement says where the model or the loss is users' own code."""

from __future__ import annotations

from typing import Final

from torch import nn

from dpfl_plugin.gradients.base import Loss
from dpfl_plugin.gradients.whose import keeps_nothing

OWN_MODEL: Final = (
    "The model or the loss has code from outside this package. Epsilon holds if it computes each record's output from "
    "that record and the parameters alone, and keeps nothing from call to call. It was tried on made-up records, and "
    "looked at after every round for what it keeps in attributes, buffers and hooks, and, unless it was installed as a "
    "package, in classes and global variables; whatever else it may do is taken on trust."
)


def of_model(module: nn.Module, loss: Loss) -> tuple[str, ...]:
    """What is taken on trust of them; empty where all code is torch's or this package's."""
    return () if keeps_nothing(module, loss) else (OWN_MODEL,)
