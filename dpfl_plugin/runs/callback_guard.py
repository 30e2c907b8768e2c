"""Whether a callback leaves alone what decides the rounds to come.

A callback is not part of what names a run's noise: with and without it a run is the same. That holds as long as it only
looks on. One that sets an attribute of the loss, say, would have the same noise added to other gradients than a run
without it, and the difference of the two uploads would be that of the gradients, without any noise.

With secure noise there are no two such uploads. But what is proven of a sum's rounding is of torch as it was told to
compute when the run began.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch

from dpfl_plugin.callbacks.base import Callback
from dpfl_plugin.errors import TrainingError
from dpfl_plugin.models.attributes import describe
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runs.environment import flags

OURS: Final = "dpfl_plugin."
TOLD: Final = (
    "a callback changed a setting of torch, by which products or sums may be rounded otherwise than noise makes up "
    "for. Have callbacks look on only, or set it before the run"
)
CHANGED: Final = (
    "a callback changed what the run computes: an attribute or a global variable of the model, the loss, the "
    "algorithm or the mechanism, or a setting of torch. Noise that follows from the seed would be added to other "
    "gradients than it is named for. Have callbacks look on only; what is to change with the rounds belongs into the "
    "algorithm, or into privacy.schedule"
)


class TouchedError(TrainingError):
    """A callback changed what a run computes."""


def decides(parts: Parts) -> Callable[[], object]:
    """What tells, whenever it is asked, all that a callback might have changed; equal if nothing was."""

    def looked_at() -> object:
        tensors = [*parts.module.parameters(), *parts.module.buffers()]
        return (
            describe({"the model": parts.module, "the loss": parts.loss}).facts,
            parts.options.facts,
            [(id(tensor), tensor._version) for tensor in tensors],
            settings(),
        )

    return looked_at


def settings() -> object:
    """In place of `decides`, where noise is nobody's to compute: what no code may change while silos release."""
    return flags(), torch.get_num_threads()


def nothing() -> object:
    """In place of `decides`, where nobody might change anything."""
    return None


def may_touch(callbacks: Sequence[Callback]) -> bool:
    """Whether some of them are not this package's own."""
    return any(not type(one).__module__.startswith(OURS) for one in callbacks)


@contextlib.contextmanager
def untouched(look: Callable[[], object]) -> Iterator[None]:
    """Call callbacks within it.

    Raises:
        TouchedError: what ``look`` tells is not what it was.
    """
    before = look()
    yield
    if look() != before:
        raise TouchedError(TOLD if look is settings else CHANGED)
