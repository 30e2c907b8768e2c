"""What networks of Linear layers compute between their products of matrices, element by element, compiled by numba.

Matrices are (units, records) in float32: a loop over one unit's records runs along memory, a vector register at a time.
The arithmetic is IEEE's, with fused multiply-adds: what is not a number stays so, and shows in its record's norm.
Squares are added up in float64, where no square of a float32 number vanishes or overflows.

Importing this needs numba, and compiles what is not in numba's cache yet: see `fused`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import llvmlite
import numba
import numpy as np
from numba import boolean, float32, float64, int64, void
from numpy.typing import NDArray

from dpfl_plugin.core import balls, kept_loops
from dpfl_plugin.core.balls import MOST_RATIO

VERSION: Final = f"numba {numba.__version__}, llvmlite {llvmlite.__version__}"
RELU, TANH, SIGMOID, ELU = range(4)
LONGEST: Final = float(np.finfo(np.float32).max)  # norm; square of a layer's inputs, as in `base.squared_inputs`

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]
_MATRIX, _VECTOR, _LABELS = float32[:, ::1], float32[::1], int64[::1]
_SQUARES, _SQUARE = float64[:, ::1], float64[::1]
_LOSS = boolean(_MATRIX, _VECTOR, _LABELS, _SQUARE)

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_LOG2E = np.float32(math.log2(math.e))
_LN2_HIGH = np.float32(0.693359375)  # of 9 bits: k times it is exact
_LN2_LOW = np.float32(math.log(2) - 0.693359375)
_ROUND = np.float32(1.5 * 2**23)  # added to a small number, it leaves the nearest integer in the lowest bits
_LEAST = np.float32(-87.0)  # exp of less is no normal number any more: 0
# (exp(r) - 1 - r) / r^2 for |r| < log(2) / 2, interpolated in Chebyshev points: exp(r) to 1e-8 of itself.
_C2, _C3, _C4, _C5, _C6 = (np.float32(c) for c in (0.5, 0.16666576, 0.041666463, 0.0083632357, 0.0013933734))

if numba.config.DISABLE_JIT:
    raise ImportError("NUMBA_DISABLE_JIT is set: uncompiled, these loops would take a thousand times as long.")


def _compiled(signature: Any, *fastmath: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compiled at once, from numba's cache where that has it; without the cache where it cannot be read or written."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        options = {"error_model": "numpy", "fastmath": {"contract", *fastmath}}
        kept_loops.bind(function, balls)
        try:
            compiled: Callable[..., Any] = numba.njit(signature, cache=True, **options)(function)
        except Exception:
            compiled = numba.njit(signature, **options)(function)
        return compiled

    return decorate


@numba.njit(inline="always", error_model="numpy", fastmath={"contract"})
def _exp(x: Any) -> Any:
    """exp(x) for x <= 0, to 2e-7 of itself; NaN for NaN."""
    z = x if x > _LEAST else _LEAST
    shifted = np.float32(z * _LOG2E + _ROUND)
    k = shifted - _ROUND
    r = (z - k * _LN2_HIGH) - k * _LN2_LOW
    p = (((_C6 * r + _C5) * r + _C4) * r + _C3) * r + _C2
    power = np.int32((shifted.view(np.int32) << 23) + 0x3F800000).view(np.float32)
    found = (p * r * r + r + _ONE) * power
    return found if x > _LEAST else (_ZERO if x == x else x)


@_compiled(_LOSS)
def cross_entropy(z: Floats, bias: Floats, labels: Integers, squares: Doubles) -> bool:
    """Turn ``z`` (c, b), outputs before ``bias`` (c,) is added, into softmax(z + bias) - e_label, of ``squares`` (b,).

    Returns:
        Whether all labels are in [0, c); else nothing is done.
    """
    c, b = z.shape
    for j in range(b):
        if labels[j] < 0 or labels[j] >= c:
            return False
    most, total = np.full(b, np.float32(-np.inf)), np.zeros(b)
    for k in range(c):
        for j in range(b):
            v = z[k, j] + bias[k]
            z[k, j] = v
            most[j] = v if v > most[j] else most[j]
    for k in range(c):
        for j in range(b):
            e = _exp(z[k, j] - most[j])
            z[k, j] = e
            total[j] += e
    for j in range(b):
        most[j] = _ONE / np.float32(total[j])
        squares[j] = 0.0
    for k in range(c):
        for j in range(b):
            z[k, j] *= most[j]
    for j in range(b):
        z[labels[j], j] -= _ONE
    for k in range(c):
        for j in range(b):
            v = np.float64(z[k, j])
            squares[j] += v * v
    return True


@_compiled(_LOSS)
def logistic(z: Floats, bias: Floats, labels: Integers, squares: Doubles) -> bool:
    """Turn ``z`` (1, b) into sigmoid(z + bias) - label, of ``squares`` (b,)."""
    for j in range(z.shape[1]):
        v = z[0, j] + bias[0]
        e = _exp(-v if v > _ZERO else v)
        p = (_ONE if v > _ZERO else e) / (_ONE + e) - np.float32(labels[j])
        z[0, j] = p
        squares[j] = np.float64(p) * np.float64(p)
    return True


@_compiled(_LOSS)
def hinge(z: Floats, bias: Floats, labels: Integers, squares: Doubles) -> bool:
    """Turn ``z`` (1, b) into the hinge's derivative by z + bias, of ``squares`` (b,)."""
    for j in range(z.shape[1]):
        sign = np.float32(2 * labels[j] - 1)
        p = -sign if sign * (z[0, j] + bias[0]) < _ONE else _ZERO
        z[0, j] = p
        squares[j] = np.float64(p) * np.float64(p)
    return True


@_compiled(void(float32[:, :], _MATRIX))
def transpose(rows: Floats, z: Floats) -> None:
    """Write ``rows`` (b, o) to ``z`` (o, b)."""
    o, b = z.shape
    for k in range(o):
        for j in range(b):
            z[k, j] = rows[j, k]


@_compiled(void(int64, _MATRIX, _VECTOR, _SQUARE))
def forward(kind: int, z: Floats, bias: Floats, squares: Doubles) -> None:
    """``squares`` (b,) of a hidden layer's activations ``z`` (h, b): for RELU after turning z into relu(z + bias)."""
    h, b = z.shape
    squares[:] = 0.0
    for i in range(h):
        if kind == RELU:
            for j in range(b):
                v = z[i, j] + bias[i]
                z[i, j] = _ZERO if v <= _ZERO else v  # NaN stays
        for j in range(b):
            w = np.float64(z[i, j])
            squares[j] += w * w


@_compiled(void(int64, _MATRIX, _MATRIX, _SQUARE))
def backward(kind: int, g: Floats, a: Floats, squares: Doubles) -> None:
    """Turn ``g`` (h, b), derivatives by activations ``a`` (h, b), into those by their inputs, of ``squares`` (b,)."""
    h, b = g.shape
    squares[:] = 0.0
    for i in range(h):
        if kind == RELU:
            for j in range(b):
                g[i, j] = _ZERO if a[i, j] <= _ZERO else g[i, j]
        elif kind == TANH:
            for j in range(b):
                g[i, j] *= _ONE - a[i, j] * a[i, j]
        elif kind == SIGMOID:
            for j in range(b):
                g[i, j] *= (_ONE - a[i, j]) * a[i, j]
        else:
            for j in range(b):
                g[i, j] *= a[i, j] + _ONE if a[i, j] <= _ZERO else _ONE
        for j in range(b):
            w = np.float64(g[i, j])
            squares[j] += w * w


@_compiled(int64(_VECTOR, _SQUARES, _SQUARES, _SQUARE, _SQUARE, float64, _MATRIX, _SQUARES))
def factors(
    constants: Floats,
    of_inputs: Doubles,
    of_outputs: Doubles,
    ones: Doubles,
    bounds: Doubles,
    gamma: float,
    norms: Floats,
    found: Doubles,
) -> int:
    """min(1, C / norm) of each record's gradient, or of each layer's part of it; 0 where its norm does not
    count as finite.

    Args:
        constants: (b,) squared norms of the first layer's inputs; of_inputs: (L, b) those of the other layers', from
            row 1 on, inf beyond `LONGEST`; of_outputs: (L, b) of the derivatives by the outputs; ones: (L,) 1 for
            layers with a bias.
        bounds: (1,) C, or (L,), a bound for each layer.
        gamma: positive where factors are C / (norm + gamma), those of `Normalised`; 0 where they only clip.
        norms: (n, b), n the length of ``bounds``, are written; so are ``found``, (n, b), the factors.

    Returns:
        The number of records with a norm that does not count as finite: all of their norms are inf, their factors 0.
    """
    (num_layers, b), n = of_outputs.shape, len(bounds)
    for row in range(n):
        found[row, :] = 0.0
    for layer in range(num_layers):
        row = layer if n > 1 else 0
        for j in range(b):
            of_input = np.float64(constants[j]) if layer == 0 else of_inputs[layer, j]
            of_input = of_input if of_input < LONGEST else np.float64(np.inf)
            found[row, j] += of_outputs[layer, j] * (of_input + ones[layer])
    for row in range(n):
        longest = min(LONGEST, MOST_RATIO * bounds[row])  # as `balls.longest`
        for j in range(b):
            norm = math.sqrt(found[row, j])
            norms[row, j] = norm if norm <= longest else np.inf  # also where it is NaN
            if gamma > 0.0:
                found[row, j] = bounds[row] / (norm + gamma)
            else:
                found[row, j] = bounds[row] / norm if norm > bounds[row] else 1.0
    num_bad = 0
    for j in range(b):
        bad = False
        for row in range(n):
            bad = bad or not norms[row, j] < np.inf
        if bad:
            num_bad += 1
            for row in range(n):
                norms[row, j], found[row, j] = np.inf, 0.0
    return num_bad


@_compiled(void(_MATRIX, _SQUARE, int64, _SQUARE), "reassoc")
def scale(g: Floats, found: Doubles, length: int, sums: Doubles) -> None:
    """Multiply each record's column of ``g`` (o, b) by its factor in ``found`` (b,), to 0 where that is 0, even inf;
    add up the rows by blocks of ``length`` columns, and write what they are together to ``sums`` (o,)."""
    o, b = g.shape
    for k in range(o):
        row, of_row = g[k], np.float64(0.0)
        for first in range(0, b, length):
            part, by = row[first : first + length], found[first : first + length]
            total = np.float64(0.0)
            for j in range(len(part)):
                v = np.float32(part[j] * by[j]) if by[j] > 0.0 else _ZERO
                part[j] = v
                total += v
            of_row += total
        sums[k] = of_row


@_compiled(void(_MATRIX, _SQUARE, boolean))
def add_blocks(found: Floats, sums: Doubles, fresh: bool) -> None:
    """Add the blocks' sums ``found`` (n, d) to ``sums`` (d,), or to zero if it is ``fresh``; two at a time."""
    n, d = found.shape
    begun = 0
    if fresh and n == 1:
        sums[:] = 0.0
    elif fresh:
        begun = 2
        for j in range(d):
            sums[j] = np.float64(found[0, j]) + np.float64(found[1, j])
    for k in range(begun, n - 1, 2):
        for j in range(d):
            sums[j] += np.float64(found[k, j]) + np.float64(found[k + 1, j])
    if n % 2:
        for j in range(d):
            sums[j] += np.float64(found[n - 1, j])
