"""What engines say that a record takes, against what is allocated: tensors of torch, and arrays of numpy.

Batches are so long that nothing else counts.
"""

from __future__ import annotations

import copy
import math
import tracemalloc
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Records, layers
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.dense import Dense
from dpfl_plugin.gradients.stacked import Pool

COUNT = 60_000  # less than a chunk
MODELS = {
    "one output": nn.Linear(1, 1),
    "no bias": nn.Linear(1, 1, bias=False),
    "ten outputs": nn.Linear(1, 10),
    "seventeen": nn.Linear(1, 17),
    "narrow": nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)),
    "deep": nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1)),
    "wide": nn.Sequential(nn.Linear(1, 20), nn.ELU(), nn.Linear(20, 10)),
    "wide, then one": nn.Sequential(nn.Linear(1, 20), nn.ELU(), nn.Linear(20, 1)),
}
LOSSES = {name: [losses.logistic, losses.hinge] for name in MODELS} | {
    name: [losses.cross_entropy] for name in ("ten outputs", "seventeen", "wide")
}


class Allocations(TorchDispatchMode):
    """Bytes of the tensors that torch's operations make, and the most of them that there were at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.most, self._sizes = 0, 0, {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        given = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
        for storage in (tensor.untyped_storage() for tensor in _tensors(out)):
            key = storage._cdata
            if key not in given and key not in self._sizes:
                self._sizes[key] = storage.nbytes()
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self._freed, key)
        return out

    def _freed(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


def _tensors(values: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def allocated(work: Callable[[], object]) -> int:
    """Bytes of torch and of numpy at the most, each of a call of its own."""
    with torch.no_grad(), Allocations() as of_torch:
        work()
    tracemalloc.start()
    try:
        with torch.no_grad():
            work()
        return of_torch.most + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("dtype", "bound", "together"),  # every two of them
    [
        (torch.float32, "flat", False),
        (torch.float32, "by layer", True),
        (torch.float32, "none", True),
        (torch.float64, "flat", True),
        (torch.float64, "by layer", False),
        (torch.float64, "none", False),
    ],
)
@pytest.mark.parametrize(("name", "loss"), [(name, loss) for name, some in LOSSES.items() for loss in some])
def test_a_record_takes_no_more_than_its_engine_says(name, loss, dtype, bound, together):
    model = copy.deepcopy(MODELS[name]).to(dtype)
    layout, generator = Layout.of(model), torch.Generator().manual_seed(0)
    y, num_layers = layout.flatten(dict(model.named_parameters())), len(layers(layout))
    c = {"flat": 0.1, "by layer": (0.1,) * num_layers, "none": math.inf}[bound]

    def engine():
        """A new one, which keeps nothing yet."""
        return (ClosedForm if num_layers == 1 else Dense)(model, loss, 2**40)

    records = engine().prepare(
        Records(
            torch.randn(COUNT, 1, generator=generator, dtype=dtype),
            torch.randint(0, 2, (COUNT,), generator=generator),
        )
    )
    if together:
        batches = Pool({0: records}).gather([0], [np.arange(COUNT)])
        norms = None if bound == "none" else torch.tensor(c, dtype=torch.float64).reshape(1, -1)
        found = allocated(
            lambda: engine().clipped_sums(y[None], batches, norms, torch.empty_like(y, dtype=torch.float64)[None])
        )
    else:
        found = allocated(lambda: engine().clipped_sum(y, records, c, torch.empty_like(y, dtype=torch.float64)))
    rest = 50_000  # of which there is no more with more records
    assert COUNT * y.element_size() < found < COUNT * engine().record_bytes(y, records) + rest
