"""A function of tensors that is recorded once for each shape of its inputs, and replayed with other numbers.

A step is many small operations, and on a GPU starting them may take longer than they do. A CUDA graph is started as
one. It repeats what was recorded on the same memory, so only tensors change between replays: a number that was Python's
when it was recorded is the same for ever. That is why no noise is drawn or added in what is recorded, and why clipping
norms that may change come in as tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

Outputs = tuple[Tensor, ...]
Record = Callable[[Callable[[], Outputs], torch.device], tuple[Callable[[], object], Outputs]]
"""(function, its device) -> (what does all of it again, the outputs, which that overwrites)."""

SHAPES: Final = 8  # that are recorded: each keeps its memory
WARM_UPS: Final = 3  # before a recording: libraries allocate what they need when they are first used


class Replayed:
    """``function``, recorded at the first call with inputs of some shapes, replayed at the next.

    Inputs of more than `SHAPES` different shapes are not recorded any more: there the function is called.

    Args:
        function: of tensors alone, without side effects; what it reads beside its inputs stays where it is.
    """

    def __init__(self, function: Callable[..., Outputs], record: Record) -> None:
        self._function, self._record = function, record
        self._known: dict[tuple[object, ...], tuple[Outputs, Callable[[], object], Outputs]] = {}

    def __call__(self, *inputs: Tensor) -> Outputs:
        """What the function gives, in tensors that no later call overwrites."""
        key = tuple((one.shape, one.dtype, one.device) for one in inputs)
        if key not in self._known:
            if len(self._known) >= SHAPES:
                return self._function(*inputs)
            kept = tuple(one.clone(memory_format=torch.contiguous_format) for one in inputs)
            self._known[key] = kept, *self._record(lambda: self._function(*kept), inputs[0].device)
        kept, again, outputs = self._known[key]
        for place, given in zip(kept, inputs, strict=True):
            place.copy_(given)
        again()
        return tuple(one.clone() for one in outputs)


def cuda_graph(function: Callable[[], Outputs], device: torch.device) -> tuple[Callable[[], object], Outputs]:
    """`Record` by a CUDA graph. On a stream of its own: by it libraries know the memory that they work in, and that of
    one graph must not become another's."""
    with torch.cuda.device(device):
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                function()
        torch.cuda.current_stream().wait_stream(side)
        # Meanwhile another thread may draw noise, and allocate memory for it.
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            outputs = function()
    return graph.replay, outputs
