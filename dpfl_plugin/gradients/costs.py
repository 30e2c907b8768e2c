"""What a clipped sum over a batch takes, by engine: a static model, so that a choice by it is always the same.

Each engine is counted in multiply-adds, bytes moved and operations of torch; the rates below turn these into
microseconds. They are those of one core of a common server and of a data-centre GPU; what counts is their ratios.
`python -m benchmarks.engine_choice` measures how often the engine of least estimated cost is the fastest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dpfl_plugin.gradients.bookkeeping import ghost
from dpfl_plugin.gradients.closed_form import LANES
from dpfl_plugin.gradients.trace import Matrix, Trace


@dataclass(frozen=True, slots=True)
class Rates:
    """Of a kind of device: multiply-adds and bytes per microsecond, microseconds per operation of torch."""

    products: float
    bytes: float
    operation: float


RATES: Final = {"cpu": Rates(25e3, 4e3, 5.0), "cuda": Rates(5e6, 1e6, 8.0)}
Work = tuple[float, float, float]
"""(multiply-adds, bytes, operations) of a batch."""


def microseconds(engine: str, trace: Trace, batch_size: int, device: str) -> float | None:
    """The estimate for a clipped sum over ``batch_size`` records; None for an engine that has no cost model."""
    if engine not in WORK:
        return None
    products, moved, operations = WORK[engine](trace, batch_size)
    rates = RATES.get(device, RATES["cuda"])
    return products / rates.products + moved / rates.bytes + operations * rates.operation


def _closed_form(trace: Trace, b: int) -> Work:
    (matrix,) = trace.matrices[:1] or (Matrix(1, trace.num_features, 1, 1, 1),)
    outputs = -(-matrix.outputs // LANES) * LANES
    return 2.0 * b * matrix.inputs * outputs, 8.0 * b * outputs * trace.itemsize, 14


def _dense(trace: Trace, b: int) -> Work:
    products, _, _ = _closed_form(trace, b)
    # Forward, backward to the inputs of all layers but the first, and the sum.
    first = trace.matrices[0].inputs * trace.matrices[0].outputs if trace.matrices else 0
    moved = 8.0 * b * sum(matrix.outputs for matrix in trace.matrices) * trace.itemsize
    return max(products, b * (3 * trace.products - first)), moved, 12.0 + 12 * len(trace.matrices)


def _shared_score(trace: Trace, b: int) -> Work:
    return 3.0 * b * trace.num_features, 20.0 * b * (trace.dimension - trace.num_features) * trace.itemsize, 45


def _bookkeeping(trace: Trace, b: int) -> Work:
    products, moved = 3 * trace.products, 3.0 * trace.kept  # forward, backward by the inputs, sum
    for m in trace.matrices:
        patches = m.groups * m.positions * m.inputs
        if m.positions == 1:
            moved += m.groups * (m.inputs + m.outputs)
        elif ghost(m.positions, m.inputs, m.outputs, trace.itemsize):
            # In float64, at half the rate, and copies: norms, and the sum.
            products += 4 * m.groups * m.positions**2 * (m.inputs + m.outputs)
            products += m.groups * m.positions * m.inputs * m.outputs
            moved += 3 * patches + 6 * m.groups * m.positions**2
        else:
            moved += 3 * patches + 3 * m.groups * m.inputs * m.outputs
    return b * products, b * moved * trace.itemsize, 3.0 * trace.operations + 45 * trace.num_layers


def _opacus(trace: Trace, b: int) -> Work:
    # Autograd's own gradients of the parameters, beside those of the single examples; a layer's are added up by call.
    rows = 6.0 * trace.dimension + 3 * sum(m.calls * m.groups * m.inputs * m.outputs for m in trace.matrices)
    patches = sum(m.groups * m.positions * m.inputs for m in trace.matrices if m.positions > m.calls)
    calls = sum(m.calls for m in trace.matrices) + trace.num_layers
    moved = rows + 3 * patches + 3 * trace.kept
    # 200 more, for an import that takes seconds.
    operations = 3.0 * trace.operations + 60 * calls + 200
    return b * (4 * trace.products + trace.dimension), b * moved * trace.itemsize, operations


def _vmap(trace: Trace, b: int) -> Work:
    rows = 6.0 * trace.dimension + 2 * sum((m.calls - 1) * m.groups * m.inputs * m.outputs for m in trace.matrices)
    products = 3 * trace.products + trace.dimension
    return b * products, b * (rows + 5 * trace.kept) * trace.itemsize, 15.0 * trace.operations + 150


WORK: Final[dict[str, Callable[[Trace, int], Work]]] = {
    "closed_form": _closed_form,
    "dense": _dense,
    "shared_score": _shared_score,
    "bookkeeping": _bookkeeping,
    "opacus": _opacus,
    "vmap": _vmap,
}
