"""Clipped sums by compiled loops: the same as by torch, as safe, and not needed."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.gradients import fused, losses
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.dense import Dense
from dpfl_plugin.gradients.vmap import Vmap

pytestmark = pytest.mark.skipif(fused.kernels() is None, reason="needs numba: pip install 'dpfl-plugin[fast]'")

EPS = torch.finfo(torch.float32).eps
ACTIVATIONS = [nn.ReLU, nn.Tanh, nn.Sigmoid, nn.ELU]
COMPILED = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "torch"])


def network(widths, activations, biases, inputs, outputs):
    """Linear layers one after another, in float32."""
    sizes, parts = [inputs, *widths, outputs], [nn.Flatten()]
    for layer in range(len(sizes) - 1):
        parts += [nn.Linear(sizes[layer], sizes[layer + 1], bias=biases[layer]), activations[layer]()]
    return nn.Sequential(*parts[:-1])


def made(kind, model, loss=losses.cross_entropy, *, compiled=True, chunk_bytes=2**24):
    """An engine; without compiled loops as if numba were missing."""
    with contextlib.nullcontext() if compiled else mock.patch.object(fused, "kernels", return_value=None):
        engine = kind(model, loss, chunk_bytes)
    assert (engine.kernels is not None) == compiled
    return engine


def clipped(engine, y, batch, clip_norm):
    """(sum, norms) of a batch as it is."""
    out = torch.full_like(y, math.nan, dtype=torch.float64)
    with torch.no_grad():
        norms = engine.clipped_sum(y, engine.prepare(batch), clip_norm, out)
    return out, norms


def drawn(model, count, seed, *, inputs=5, outputs=3, scale=1.0):
    """(parameters, records) in float32."""
    generator = torch.Generator().manual_seed(seed)
    features = scale * torch.randn(count, inputs, generator=generator)
    labels = torch.randint(0, max(2, outputs), (count,), generator=generator)
    return torch.randn(Layout.of(model).dimension, generator=generator), Records(features, labels)


KINDS = [ClosedForm, Dense]
MLP = network([7, 4], ACTIVATIONS, [True] * 3, 5, 3)


def model_of(kind):
    return nn.Sequential(nn.Linear(5, 3)) if kind is ClosedForm else MLP


@settings(max_examples=150, deadline=None)
@given(
    widths=st.lists(st.integers(1, 40), min_size=0, max_size=3),
    activations=st.lists(st.sampled_from(ACTIVATIONS), min_size=4, max_size=4),
    biases=st.lists(st.booleans(), min_size=4, max_size=4),
    loss=st.sampled_from(list(losses.LOSSES.values())),
    classes=st.integers(2, 50),
    count=st.sampled_from([0, 1, 2, 15, 16, 17, 70]),
    scale=st.sampled_from([1e-3, 1.0, 4.0]),
    bound=st.sampled_from([1e-4, 0.5, 1e4, math.inf]),
    per_layer=st.booleans(),
    chunk_bytes=st.sampled_from([1, 5000, 2**24]),
    seed=st.integers(0, 1000),
)
@example(
    widths=[14, 17, 18],
    activations=[nn.Tanh, nn.ReLU, nn.ReLU, nn.ReLU],
    biases=[False, False, True, False],
    loss=losses.cross_entropy,
    classes=2,
    count=1,
    scale=1.0,
    bound=1e-4,
    per_layer=False,
    chunk_bytes=1,
    seed=0,
)
def test_compiled_sums_are_those_of_torch_and_of_every_gradient_in_float64(
    widths, activations, biases, loss, classes, count, scale, bound, per_layer, chunk_bytes, seed
):
    outputs = classes if loss is losses.cross_entropy else 1
    model = network(widths, activations, biases, 5, outputs)
    y, batch = drawn(model, count, seed, outputs=outputs, scale=scale)
    clip_norm = (bound,) * (len(widths) + 1) if per_layer and bound < math.inf else bound
    wide = Records(batch.features.double(), batch.labels)
    expected, known = clipped(Vmap(model.double(), loss, 2**20), y.double(), wide, clip_norm)
    model.float()
    for kind in (Dense, ClosedForm) if not widths else (Dense,):
        out, norms = clipped(made(kind, model, loss, chunk_bytes=chunk_bytes), y, batch, clip_norm)
        by_torch, also = clipped(made(kind, model, loss, compiled=False), y, batch, clip_norm)
        assert (norms is None) == (known is None) == (also is None)
        # Of what the records could add; in float32, p is off by some epsilon, however small 1 - p is, and that is
        # scaled with the gradient where that is clipped.
        most = 0.0 if known is None else float(known.clamp(max=bound).sum())
        scaled = count if known is None or per_layer else float((bound / known).clamp(max=1.0).sum())
        tolerance = 2e-4 * (expected.norm() + most) + scaled * 1e-5 * max(1.0, scale)
        assert (out.double() - expected).norm() <= tolerance
        assert (out - by_torch).norm() <= tolerance
        if norms is not None:
            torch.testing.assert_close(norms.double(), known, rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(norms, also, rtol=1e-3, atol=1e-4)
            assert norms.shape == also.shape and norms.dtype == also.dtype


@COMPILED
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80, deadline=None)
@given(
    scale=st.sampled_from([1e-18, 1e-6, 1.0, 1e3, 1e9, 1e18]),
    steep=st.sampled_from([1e-3, 1.0, 30.0, 1e3]),
    clip_norm=st.floats(1e-6, 1e3),
    seed=st.integers(0, 10**6),
)
def test_no_record_adds_more_than_the_clip_norm(kind, compiled, scale, steep, clip_norm, seed):
    model = model_of(kind)
    y, batch = drawn(model, 1, seed, scale=scale)
    engine = made(kind, model, compiled=compiled)
    out, norms = clipped(engine, steep * y, batch, clip_norm)
    assert float(out.double().norm()) <= clip_norm
    assert torch.isfinite(norms).all() or not out.any()
    bounds = (clip_norm,) * (1 if kind is ClosedForm else 3)
    out, _ = clipped(engine, steep * y, batch, bounds)
    sizes = [20] if kind is ClosedForm else [42, 32, 15]
    for part in out.split([18] if kind is ClosedForm else sizes):
        assert float(part.double().norm()) <= clip_norm


@pytest.mark.parametrize("kind", KINDS)
def test_norms_just_beyond_the_clip_norm_are_clipped_below_it(kind):
    """2,000 records whose gradients are longer than C by 0 to 100 epsilon: what is added is never longer."""
    model = model_of(kind)
    y, batch = drawn(model, 1, 4)
    (length,) = clipped(made(kind, model), y, batch, 1.0)[1].double()
    engine, longest = made(kind, model), 0.0
    prepared = engine.prepare(batch)
    for step in range(2000):
        clip_norm = float(length) / (1 + step / 20 * EPS)
        out = torch.empty_like(y, dtype=torch.float64)
        engine.clipped_sum(y, prepared, clip_norm, out)
        longest = max(longest, float(out.double().norm()) / clip_norm)
    assert 1 - 1e-4 < longest <= 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 3e38])
@pytest.mark.parametrize("rows", [[2], [0, 2, 6], list(range(7))])
def test_a_record_without_a_finite_gradient_adds_nothing(kind, bad, rows):
    model = model_of(kind)
    y, batch = drawn(model, 7, 1)
    batch.features[rows, 3] = bad
    good = torch.tensor([row for row in range(7) if row not in rows], dtype=torch.int64)
    engine = made(kind, model)
    for clip_norm in (0.5, (0.5,) if kind is ClosedForm else (0.1, 0.2, 0.3)):
        out, norms = clipped(engine, y, batch, clip_norm)
        expected, known = clipped(engine, y, batch.select(good), clip_norm)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-7)
        assert torch.isinf(norms[rows]).all()
        torch.testing.assert_close(norms[good], known)
    out, norms = clipped(engine, y, batch, math.inf)
    assert norms is None and (bad == 3e38 or not torch.isfinite(out).all())


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 3, 20, 36, -4, -1])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_broken_parameters_give_a_finite_sum(activation, place, bad):
    model = network([4], [activation] * 2, [True, True], 5, 3)
    y, batch = drawn(model, 6, 1)
    y[place] = bad
    out, norms = clipped(made(Dense, model), y, batch, 0.5)
    _, also = clipped(made(Dense, model, compiled=False), y, batch, 0.5)
    assert torch.isfinite(out).all() and out.norm() <= 3.0
    assert bad == -math.inf or torch.equal(torch.isinf(norms), torch.isinf(also))


def test_the_exponential_is_exact_to_rounding():
    """A million arguments, and those where it ends."""
    z = torch.cat([-torch.rand(2**20, generator=torch.Generator().manual_seed(0)) * 87, torch.tensor([0.0, -86.999])])
    bias, labels = np.zeros(2, np.float32), np.zeros(len(z), np.int64)
    outputs = np.stack([np.zeros(len(z), np.float32), z.numpy()])
    exact = np.exp(z.double().numpy())
    assert fused.kernels().cross_entropy(outputs, bias, labels, np.empty(len(z)))
    np.testing.assert_allclose(outputs[1], exact / (1 + exact), rtol=4e-7)
    least = np.array([[0.0] * 4, [-88.0, -1e4, -3e38, -np.inf]], np.float32)
    assert fused.kernels().cross_entropy(least, bias, labels[:4], np.empty(4))
    assert not least.any()


@pytest.mark.parametrize("kind", KINDS)
def test_bits_are_the_same_whatever_was_computed_before_and_wherever_vectors_lie(kind):
    model = model_of(kind)
    y, batch = drawn(model, 90, 0)
    fresh = [clipped(made(kind, model), y, batch.between(0, count), 0.1) for count in (7, 90, 1)]
    engine = made(kind, model)
    for count, shift in ((90, 1), (7, 2), (1, 0), (90, 3), (1, 5), (7, 1)):
        shifted = torch.empty(len(y) + shift)[shift:].copy_(y)
        out, norms = clipped(engine, shifted, batch.between(0, count), 0.1)
        expected, known = fresh[(7, 90, 1).index(count)]
        assert torch.equal(out, expected) and torch.equal(norms, known)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_those_given_wherever_they_lie(kind):
    """Large ones are read and sums written in place: at the beginning of a cache line, elsewhere, changed in place."""
    wide = {
        ClosedForm: network([], ACTIVATIONS, [True], 600, 40),
        Dense: network([40], ACTIVATIONS, [True] * 2, 600, 3),
    }
    y, batch = drawn(wide[kind], 20, 0, inputs=600)
    assert len(y) >= fused.VIEWS_PAY
    fresh = {factor: clipped(made(kind, wide[kind]), factor * y, batch, 0.1) for factor in (1, 2, 4)}
    assert not torch.equal(fresh[1][0], fresh[2][0])
    engine, records = made(kind, wide[kind]), made(kind, wide[kind]).prepare(batch)
    line = fused.CACHE_LINE // 4
    places = [torch.empty(len(y) + line)[shift : shift + len(y)] for shift in (0, 0, 1, line)]
    places += [matrix[row] for matrix in [torch.empty(2, len(y) + -len(y) % line)[:, : len(y)]] for row in (0, 1)]
    outs = [torch.empty(len(y) + line, dtype=torch.float64)[shift : shift + len(y)] for shift in (0, 3, line)]
    for turn, factor in enumerate((1, 2, 4, 1, 2) * 4):
        place, out = places[turn % len(places)], outs[turn % len(outs)]
        for scale in {factor, 1, 4}:  # the same place, other numbers
            place.copy_(scale * y)
            norms = engine.clipped_sum(place, records, 0.1, out.fill_(math.nan))
            assert torch.equal(out, fresh[scale][0]) and torch.equal(norms, fresh[scale][1])
            assert torch.equal(place, scale * y)


def test_norms_are_the_callers():
    model = model_of(Dense)
    engine, (y, batch) = made(Dense, model), drawn(model, 6, 0)
    _, norms = clipped(engine, y, batch, 0.1)
    before = norms.clone()
    clipped(engine, 2 * y, batch, 0.1)
    assert torch.equal(norms, before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("label", [-1, 3, 2**40])
def test_a_label_that_is_no_class_is_refused(kind, label):
    model = model_of(kind)
    y, batch = drawn(model, 6, 0)
    batch.labels[4] = label
    with pytest.raises(IndexError, match="not in 0 to 2"):
        clipped(made(kind, model), y, batch, 0.1)


def test_other_numbers_go_to_torch():
    model = network([4], ACTIVATIONS, [True, True], 5, 3)
    assert made(Dense, model)._fused is not None
    assert Dense(model.double(), losses.cross_entropy, 2**20).kernels is None
    y, batch = drawn(model, 6, 0)
    engine = made(Dense, model.float())
    with mock.patch.object(fused.Fused, "clipped_sum", side_effect=AssertionError):
        out, _ = clipped(engine, y.double(), Records(batch.features.double(), batch.labels), 0.1)
    assert out.dtype == torch.float64


# Where numba is missing, or its cache is


SCRIPT = """
import json, sys
{before}
import torch
from torch import nn
from dpfl_plugin.gradients import fused, losses
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.dense import Dense
from dpfl_plugin.gradients.vmap import Vmap
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
imported = sys.modules.get("numba") is not None
engine, y = Dense(model, losses.cross_entropy, 2**20), torch.randn(66)
out = torch.empty(66, dtype=torch.float64)
engine.clipped_sum(y, engine.prepare(Records(torch.randn(4, 5), torch.arange(4) % 3)), 0.1, out)
print(json.dumps([engine.kernels, imported, out.tolist()]))
"""


def apart(before="", **environment):
    """(kernels, whether numba was imported before there was an engine, sum) of a process of its own."""
    command = [sys.executable, "-W", "error", "-c", SCRIPT.format(before=before)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=True)
    return json.loads(done.stdout)


def test_without_numba_torch_does_it_all():
    plain = apart("sys.modules['numba'] = None")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    engine, y = Dense(model, losses.cross_entropy, 2**20), torch.randn(66)
    out = torch.empty(66, dtype=torch.float64)
    engine.clipped_sum(y, engine.prepare(Records(torch.randn(4, 5), torch.arange(4) % 3)), 0.1, out)
    assert (engine.kernels, plain[:2]) == (fused.version(), [None, False])
    np.testing.assert_allclose(out, plain[2], rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_numba_is_imported_by_an_engine_alone_and_may_be_told_not_to_compile():
    assert apart()[:2] == [fused.version(), False]
    assert apart(NUMBA_DISABLE_JIT="1") == apart("sys.modules['numba'] = None")


@pytest.mark.slow
def test_a_cache_that_cannot_be_used_is_done_without(tmp_path):
    full = (
        "from numba.core import caching\ndef full(*_):\n    raise OSError(28, 'No space left on device')\n"
        "caching.IndexDataCacheFile.save = full"
    )
    found = [
        apart(NUMBA_CACHE_DIR=str(tmp_path / "cache")),
        apart(full, NUMBA_CACHE_DIR=str(tmp_path / "empty")),
    ]
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert files and not [path for path in (tmp_path / "empty").rglob("*") if path.is_file()]
    for path in files:
        path.write_bytes(path.read_bytes()[:40])
    found.append(apart(NUMBA_CACHE_DIR=str(tmp_path / "cache")))
    assert all((kernels, total) == (fused.version(), found[0][2]) for kernels, _, total in found)
