"""Several silos at once get what each of them gets alone."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpfl_plugin.core.balls import Normalised
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Records, layers
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.dense import Dense
from dpfl_plugin.gradients.stacked import Pool, Stack
from dpfl_plugin.gradients.vmap import Vmap

FEATURES = 4


def network(outputs: int, bias: bool, hidden: list[int], activation: str) -> nn.Sequential:
    sizes, parts = [FEATURES, *hidden, outputs], []
    for number, (before, after) in enumerate(itertools.pairwise(sizes)):
        parts += [nn.Linear(before, after, bias=bias if number % 2 == 0 else not bias), getattr(nn, activation)()]
    return nn.Sequential(nn.Flatten(), *parts[:-1]).double()


def silos(sizes: list[int], classes: int, generator: torch.Generator) -> dict[int, Records]:
    """With ids that are not their places."""
    return {
        7 * number + 3: Records(
            torch.randn(size, FEATURES, generator=generator, dtype=torch.float64) * 2,
            torch.randint(0, classes, (size,), generator=generator),
        )
        for number, size in enumerate(sizes)
    }


def gathered(engine: Any, records: dict[int, Records], rows: list[np.ndarray]) -> Stack:
    pool = Pool({silo: engine.prepare(one) for silo, one in records.items()})
    return pool.gather(list(records), rows)


def there(clip_norms: list[Any]) -> Tensor | None:
    """As `MultiSiloEngine.clipped_sums` takes them: one, or one a layer, of each silo; None where they are inf."""
    if clip_norms[0] == math.inf:
        return None
    return torch.tensor([c if isinstance(c, tuple) else (c,) for c in clip_norms], dtype=torch.float64)


def by_itself(engine: Any, y: Tensor, batch: Records, clip_norm: Any) -> tuple[Tensor, Tensor | None]:
    out = torch.full_like(y, math.nan, dtype=torch.float64)
    return out, engine.clipped_sum(y, engine.prepare(batch), clip_norm, out)


def made(kind: str, classes: int, bias: bool, chunk_bytes: int, activation: str) -> tuple[nn.Module, Any, Any]:
    loss: Any = {1: losses.logistic}.get(classes, losses.cross_entropy)
    hidden = [] if kind == "closed_form" else [5, 3]
    model = network(classes, bias, hidden, activation)
    return model, loss, (ClosedForm if kind == "closed_form" else Dense)(model, loss, chunk_bytes)


KINDS = pytest.mark.parametrize("kind", ["closed_form", "dense"])


@KINDS
@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    classes=st.sampled_from([1, 2, 3, 17]),
    bias=st.booleans(),
    clip=st.sampled_from(["flat", "own", "per_layer", "scaled", "none"]),
    chunk_bytes=st.sampled_from([1, 2000, 5000, 2**20]),
    activation=st.sampled_from(["ReLU", "Tanh", "Sigmoid", "ELU"]),
    seed=st.integers(0, 1000),
)
def test_each_silo_gets_what_it_gets_alone(
    kind: str, sizes: list[int], classes: int, bias: bool, clip: str, chunk_bytes: int, activation: str, seed: int
) -> None:
    """Unequal batches, empty ones, one record; every silo with parameters and, for "own", a clipping norm of its own;
    against the engine's own answers and against vmap's."""
    generator = torch.Generator().manual_seed(seed)
    model, loss, engine = made(kind, classes, bias, chunk_bytes, activation)
    records = silos([size + 2 for size in sizes], max(2, classes), generator)
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, size + 2, size) for size in sizes]
    y = torch.randn(len(sizes), Layout.of(model).dimension, generator=generator, dtype=torch.float64)
    depth = len(layers(Layout.of(model)))
    clip_norms: list[Any] = {
        "flat": [0.3] * len(sizes),
        "own": [0.01 * 5.0**number for number in range(len(sizes))],
        "per_layer": [tuple(0.1 * (layer + 1) for layer in range(depth))] * len(sizes),
        "scaled": [Normalised(0.3, 0.2)] * len(sizes),
        "none": [math.inf] * len(sizes),
    }[clip]
    out = torch.full_like(y, math.nan, dtype=torch.float64)
    gamma = 0.2 if clip == "scaled" else None
    norms = engine.clipped_sums(y, gathered(engine, records, rows), there(clip_norms), out, gamma)
    for number, (one, chosen) in enumerate(zip(records.values(), rows, strict=True)):
        batch = one.select(torch.from_numpy(chosen))
        for other in (engine, Vmap(model, loss, 2**20)):
            expected, known = by_itself(other, y[number], batch, clip_norms[number])
            torch.testing.assert_close(out[number], expected, rtol=1e-9, atol=1e-12)
            if clip == "none":
                assert norms is None
            else:
                assert norms is not None and known is not None
                torch.testing.assert_close(
                    norms[number, : len(chosen)], known.view(len(chosen), norms.shape[2]), rtol=1e-6, atol=1e-9
                )
                assert torch.isinf(norms[number, len(chosen) :]).all(), "what fills up is within no clipping norm"


@KINDS
def test_what_fills_up_adds_exactly_nothing(kind: str) -> None:
    """At parameters where every record of zeros has a gradient, an empty batch beside a long one gives zeros, exactly;
    and as many records more at another silo change no bit of a short batch's sum that is computed by itself."""
    model, _, engine = made(kind, 3, True, 2**20, "Tanh")
    generator = torch.Generator().manual_seed(0)
    records = silos([6, 6], 3, generator)
    y = torch.randn(2, Layout.of(model).dimension, generator=generator, dtype=torch.float64)
    zeros = Records(torch.zeros(1, FEATURES, dtype=torch.float64), torch.zeros(1, dtype=torch.int64))
    assert float(by_itself(engine, y[0], zeros, 1e9)[0].norm()) > 0.1, "a record of zeros would show"
    for clip_norms in ([0.3] * 2, [math.inf] * 2, [1e9] * 2):
        out = torch.full_like(y, math.nan, dtype=torch.float64)
        engine.clipped_sums(y, gathered(engine, records, [np.arange(0), np.arange(6)]), there(clip_norms), out)
        assert torch.equal(out[0], torch.zeros_like(out[0])) and float(out[1].norm()) > 0


@KINDS
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 1e200])
@pytest.mark.parametrize("several", [False, True])
def test_a_record_that_is_not_finite_adds_nothing_to_its_silo_and_touches_no_other(
    kind: str, bad: float, several: bool
) -> None:
    model, _, engine = made(kind, 3, True, 2**20, "Tanh")
    generator = torch.Generator().manual_seed(0)
    records = silos([3, 5, 4], 3, generator)
    good = {silo: Records(one.features.clone(), one.labels) for silo, one in records.items()}
    list(records.values())[1].features[2] = torch.tensor([bad, 1.0, -bad, 0.0], dtype=torch.float64)
    y = torch.randn(3, Layout.of(model).dimension, generator=generator, dtype=torch.float64)
    depth = len(layers(Layout.of(model)))
    clip_norm: Any = (0.2,) * depth if several else 0.5
    rows = [np.arange(3), np.arange(5), np.arange(4)]
    out, without = torch.full_like(y, math.nan, dtype=torch.float64), torch.full_like(y, math.nan, dtype=torch.float64)
    norms = engine.clipped_sums(y, gathered(engine, records, rows), there([clip_norm] * 3), out)
    rest = [np.arange(3), np.array([0, 1, 3, 4]), np.arange(4)]
    engine.clipped_sums(y, gathered(engine, good, rest), there([clip_norm] * 3), without)
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out[[0, 2]], without[[0, 2]], rtol=1e-12, atol=1e-14)
    most = math.hypot(*clip_norm) if isinstance(clip_norm, tuple) else clip_norm
    assert float((out[1] - without[1]).norm()) <= (most if bad == 1e200 else 1e-12)
    if bad != 1e200:  # whose gradient may be finite
        assert torch.isinf(norms[1, 2]).all() and torch.isfinite(norms[1, [0, 1, 3, 4]]).all()


@KINDS
def test_parameters_that_are_not_finite_spoil_their_own_silo_only(kind: str) -> None:
    model, _, engine = made(kind, 3, True, 2**20, "ReLU")
    generator = torch.Generator().manual_seed(0)
    records, rows = silos([4, 5, 2], 3, generator), [np.arange(4), np.arange(5), np.arange(2)]
    y = torch.randn(3, Layout.of(model).dimension, generator=generator, dtype=torch.float64)
    expected, out = torch.empty_like(y, dtype=torch.float64), torch.empty_like(y, dtype=torch.float64)
    engine.clipped_sums(y, gathered(engine, records, rows), there([0.5] * 3), expected)
    y[1, -1] = math.inf
    for clip_norms in ([0.5] * 3, [math.inf] * 3):
        engine.clipped_sums(y, gathered(engine, records, rows), there(clip_norms), out)
        if clip_norms[0] == 0.5:
            assert torch.equal(out[1], torch.zeros_like(out[1])), "no record of it has a finite gradient"
            torch.testing.assert_close(out[[0, 2]], expected[[0, 2]], rtol=1e-12, atol=1e-14)
        assert torch.isfinite(out[[0, 2]]).all()


@KINDS
@settings(max_examples=40, deadline=None)
@given(
    scale=st.floats(1e-6, 1e6),
    clip_norms=st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3),
    gamma=st.one_of(st.none(), st.floats(-9, 3)),
    double=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_one_record_adds_at_most_its_silos_clip_norm(
    kind: str, scale: float, clip_norms: list[float], gamma: float | None, double: bool, seed: int
) -> None:
    """Clipped, or scaled with a gamma that is a power of ten; in float32, too: the contribution is added up in float64,
    and has no room beyond C."""
    model, _, engine = made(kind, 3, True, 2**20, "Tanh")
    dtype = torch.float64 if double else torch.float32
    generator = torch.Generator().manual_seed(seed)
    records = {
        silo: Records((one.features * scale).to(dtype), one.labels)
        for silo, one in silos([1, 1, 1], 3, generator).items()
    }
    y = torch.randn(3, Layout.of(model).dimension, generator=generator, dtype=torch.float64).to(dtype)
    out = torch.full_like(y, math.nan, dtype=torch.float64)
    stack, how = gathered(engine, records, [np.arange(1)] * 3), None if gamma is None else 10.0**gamma
    engine.clipped_sums(y, stack, there(clip_norms), out, how)
    for row, clip_norm in zip(out, clip_norms, strict=True):
        assert float(row.double().norm()) <= clip_norm


@KINDS
def test_classes_that_only_fill_up_have_no_part_however_small_the_outputs(kind: str) -> None:
    """Far below any bias that is large enough for usual outputs; one by one by torch's operations, and together."""
    model, loss, engine = made(kind, 3, False, 2**20, "Tanh")
    model, engine._fused = model.float(), None
    generator = torch.Generator().manual_seed(0)
    (records,) = silos([5], 3, generator).values()
    records = Records(records.features.float() + 5, records.labels)
    y = -1e6 * torch.rand(Layout.of(model).dimension, generator=generator)
    expected, _ = by_itself(Vmap(model, loss, 2**20), y, records, 0.5)
    stack = gathered(engine, {0: records, 1: records}, [np.arange(5)] * 2)
    out = torch.full((2, len(y)), math.nan, dtype=torch.float64)
    engine.clipped_sums(y.expand(2, -1), stack, there([0.5] * 2), out)
    for found in (by_itself(engine, y, records, 0.5)[0], *out):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_pool_keeps_every_record_and_gathers_what_is_asked() -> None:
    generator = torch.Generator().manual_seed(0)
    records = silos([3, 1, 4], 3, generator)
    pool = Pool(records)
    for silo, one in records.items():
        assert torch.equal(pool.records[silo].features, one.features) and pool.records[silo].constants is None
        assert torch.equal(pool.records[silo].labels, one.labels)
    ids = [17, 3]
    found = pool.gather(ids, [np.array([3, 0, 0]), np.array([2])])
    assert found.features.shape == (2, 3, FEATURES) and found.constants is None
    assert torch.equal(found.features[0], records[17].features[[3, 0, 0]])
    assert torch.equal(found.features[1, 0], records[3].features[2])
    assert torch.equal(found.features[1, 1:], torch.zeros(2, FEATURES, dtype=torch.float64))
    assert found.padding.tolist() == [[False] * 3, [False, True, True]]
    assert not pool.gather(ids, [np.arange(1), np.arange(1)]).padding.any()
    wide = pool.take(pool.index(ids, [np.array([3, 0, 0]), np.array([2])], 5))
    assert torch.equal(wide.features[:, :3], found.features) and wide.padding[:, 3:].all() and wide.longest == 5
