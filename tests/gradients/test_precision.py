"""What one record adds to a sum is at most C, to the last bit, in every engine and precision; and what is refused."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Records, layers
from dpfl_plugin.gradients.bookkeeping import BookKeeping
from dpfl_plugin.gradients.choice import Terms, choose
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.dense import Dense
from dpfl_plugin.gradients.opacus import Opacus
from dpfl_plugin.gradients.precision import check_products
from dpfl_plugin.gradients.stacked import Pool
from dpfl_plugin.gradients.vmap import Vmap
from dpfl_plugin.oracle import Draw, PrivateOracle
from tests.gradients.test_bookkeeping import CLASSES, MODELS
from tests.quadratics import rules

REDUCIBLE = [BookKeeping, Opacus, Vmap]
FAILS = {(Vmap, "bf16", "attention")}


def summed(*layers_of):
    """(model, its parameters, records of it) in float32."""
    generator, model = torch.Generator().manual_seed(0), nn.Sequential(*layers_of)
    records = torch.randn(30, 20, generator=generator), torch.randint(0, 3, (30,), generator=generator)
    return model, torch.randn(Layout.of(model).dimension, generator=generator), records


SUMMED = {True: summed(nn.Linear(20, 3)), False: summed(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 3))}  # if one layer


def one_record(name, scale, seed):
    """(model, its parameters, a record of it) in float32."""
    generator = torch.Generator().manual_seed(seed)
    model, shape = MODELS[name]()
    model = model.float()
    batch = Records(scale * torch.randn(1, *shape, generator=generator), torch.tensor([seed % CLASSES]))
    return model, torch.randn(Layout.of(model).dimension, generator=generator), batch


def added(engine, y, batch, clip_norm):
    """What the record adds, in float64."""
    out = torch.full_like(y, math.nan, dtype=torch.float64)
    with torch.no_grad():
        engine.clipped_sum(y, engine.prepare(batch), clip_norm, out)
    return out.double()


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("kind", REDUCIBLE, ids=lambda kind: kind.name)
@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from([name for name in MODELS if name != "padded words"]),
    scale=st.sampled_from([1e-3, 1.0, 30.0, 1e4]),
    clip_norm=st.floats(1e-4, 1e2),
    seed=st.integers(0, 10**6),
)
def test_a_record_adds_no_more_than_the_clip_norm(kind, precision, name, scale, clip_norm, seed):
    assume((kind, precision, name) not in FAILS)
    model, y, batch = one_record(name, scale, seed)
    engine = kind(model, losses.cross_entropy, 2**20, precision)
    assert float(added(engine, y, batch, clip_norm).norm()) <= clip_norm
    bounds = tuple(clip_norm * (1 + l) for l in range(len(layers(Layout.of(model)))))
    parts = added(engine, y, batch, bounds).split(list(layers(Layout.of(model)).values()))
    assert all(float(part.norm()) <= bound for part, bound in zip(parts, bounds, strict=True))


@pytest.mark.parametrize(("kind", "name"), [(ClosedForm, "linear"), (Dense, "mlp"), (Dense, "no bias")])
@settings(max_examples=60, deadline=None)
@given(scale=st.floats(1e-4, 1e6), clip_norm=st.floats(1e-4, 1e2), seed=st.integers(0, 10**6))
def test_closed_forms_add_no_more_than_the_clip_norm(kind, name, scale, clip_norm, seed):
    model, y, batch = one_record(name, scale, seed)
    assert float(added(kind(model, losses.cross_entropy, 2**20), y, batch, clip_norm).norm()) <= clip_norm


@pytest.mark.parametrize("width", [10**3, 10**5])
@pytest.mark.parametrize("value", [None, 0.3, 0.7])
@pytest.mark.parametrize("kind", [ClosedForm, Dense, BookKeeping, Opacus, Vmap], ids=lambda kind: kind.name)
def test_long_gradients_are_clipped_to_the_last_bit(kind, width, value):
    """Constant ones, and one large entry among equal ones, are the worst for sums in floating point that we know."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(width, 2, bias=False))
    x = torch.randn(1, width, generator=torch.Generator().manual_seed(0))
    if value is not None:
        x = torch.full((1, width), value)
    if value == 0.7:
        x[0, 0] = 200.0
    engine, y = kind(model, losses.cross_entropy, 2**30), torch.zeros(2 * width)
    length = float(added(engine, y, Records(x, torch.tensor([0])), 0.5).norm())
    assert 0.5 * (1 - 2e-5) < length <= 0.5


@pytest.mark.parametrize("kind", REDUCIBLE, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", ["mlp", "cnn", "words", "lstm", "attention"])
def test_reduced_passes_are_near_full_ones_and_not_them(kind, name):
    """A gradient in bfloat16 is off by some 2^-8; one that is not off at all was not reduced."""
    if (kind, "bf16", name) in FAILS:
        pytest.skip("torch's vmap does not batch this product in bfloat16; a run is told so when its engine is tried")
    model, y, batch = one_record(name, 1.0, 5)
    y = 0.3 * y
    full = added(kind(model, losses.cross_entropy, 2**20), y, batch, math.inf)
    reduced = added(kind(model, losses.cross_entropy, 2**20, "bf16"), y, batch, math.inf)
    assert 1e-5 * full.norm() < (reduced - full).norm() < 0.1 * full.norm()


def test_no_sum_is_reduced():
    """A sum of 4,000 like records: in bfloat16, it would stop growing at 256 of them."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    y = Layout.of(model).flatten(dict(model.named_parameters()))
    x = torch.randn(1, 4, generator=torch.Generator().manual_seed(0))
    for kind in REDUCIBLE:
        engine = kind(model, losses.cross_entropy, 2**26, "bf16")
        one = added(engine, y, Records(x, torch.tensor([0])), 1.0)
        many = added(engine, y, Records(x.expand(4000, 4), torch.zeros(4000, dtype=torch.int64)), 1.0)
        torch.testing.assert_close(many, 4000 * one, rtol=1e-4, atol=1e-4)


class Tokens(nn.Module):
    """Takes word numbers, and nothing but integers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(4, 5), nn.Linear(5, CLASSES)

    def forward(self, x):
        assert x.dtype == torch.int64
        return self.head(self.table(x).mean(dim=1))


@pytest.mark.parametrize("name", ["auto", *(kind.name for kind in REDUCIBLE)])
def test_word_numbers_are_integers_in_every_precision(name):
    """What is reduced is what follows from the parameters; and the bound is kept."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Tokens()
    words, labels = torch.arange(12).reshape(2, 6) % 4, torch.tensor([0, 2])
    y = Layout.of(model).flatten(dict(model.named_parameters()))
    full, reduced = (
        choose(name, model, losses.cross_entropy, Terms(chunk_bytes=2**20, precision=precision), words)[0]
        for precision in ("float32", "bf16")
    )
    sums = [added(engine, y, Records(words, labels), math.inf) for engine in (full, reduced)]
    assert 1e-5 * sums[0].norm() < (sums[1] - sums[0]).norm() < 0.1 * sums[0].norm()
    for row in range(len(words)):
        record = Records(words[row : row + 1], labels[row : row + 1])
        assert float(added(reduced, y, record, math.inf).norm()) > 1e-3
        assert float(added(reduced, y, record, 1e-3).norm()) <= 1e-3


def trial(*shape):
    return torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))


def test_engines_that_multiply_reduced_numbers_into_their_sums_are_not_chosen():
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    terms = Terms(chunk_bytes=2**20, precision="bf16")
    assert choose("auto", model, losses.cross_entropy, terms, trial(6))[0].name == "bookkeeping"
    with pytest.raises(UnsupportedError, match=r"'closed_form' cannot be used: it computes in full precision only"):
        choose("closed_form", model, losses.cross_entropy, terms, trial(6))


def test_tf32_is_for_cuda_and_reduced_passes_are_for_float32():
    model = nn.Sequential(nn.Linear(6, 3))
    with pytest.raises(UnsupportedError, match="CUDA devices"):
        choose("auto", model, losses.cross_entropy, Terms(chunk_bytes=1, precision="tf32"), trial(6))
    terms = Terms(chunk_bytes=1, precision="bf16")
    with pytest.raises(UnsupportedError, match=r"dtype: float32, and the model is in float64. Use"):
        choose("auto", model.double(), losses.cross_entropy, terms, trial(6).double())


@pytest.mark.parametrize(
    ("part", "value"),
    [
        (None, "high"),
        (torch.backends.mkldnn, "bf16"),
        (torch.backends.mkldnn.matmul, "bf16"),
        (torch.backends.mkldnn.conv, "bf16"),
    ],
    ids=["torch", "mkldnn", "products", "convolutions"],
)
def test_a_torch_whose_products_are_all_reduced_is_refused(part, value):
    model = nn.Sequential(nn.Linear(6, 3))
    before = torch.get_float32_matmul_precision() if part is None else part.fp32_precision
    tell = torch.set_float32_matmul_precision if part is None else functools.partial(setattr, part, "fp32_precision")
    tell(value)
    try:
        with pytest.raises(UnsupportedError, match=r"more than clip_norm.*runtime\.precision"):
            choose("auto", model, losses.cross_entropy, Terms(chunk_bytes=1), trial(6))
    finally:
        tell(before)
    choose("auto", model, losses.cross_entropy, Terms(chunk_bytes=1), trial(6))


@pytest.mark.parametrize("kind", [BookKeeping, ClosedForm, Dense, Opacus, Vmap], ids=lambda kind: kind.name)
@pytest.mark.parametrize("together", [False, True])
def test_sums_are_no_others_within_an_autocast_of_a_caller(kind, together):
    model, y, (x, labels) = SUMMED[kind is ClosedForm]
    engine = kind(model, losses.cross_entropy, 2**20)
    if together and not hasattr(engine, "clipped_sums"):
        pytest.skip("it answers one silo at a time")
    pool = Pool({silo: engine.prepare(Records(x + silo, labels)) for silo in (0, 1)})

    def released():
        silos = [pool.records[silo] for silo in (0, 1)]
        asked = {"max_gradients": 1, "pool": pool if together else None}
        oracle = PrivateOracle(rules(clip_norm=0.05), engine, silos, [0, 1], Draw(0, 0), **asked)
        return oracle.gradient(y.expand(2, -1).contiguous())

    expected = released()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(released(), expected)


@pytest.mark.parametrize("linear", [False, True])
def test_an_engine_is_the_same_within_an_autocast_of_a_caller(linear):
    model, _, (x, _) = SUMMED[linear]
    chosen, why = choose("auto", model, losses.cross_entropy, Terms(chunk_bytes=2**20), x[:3])
    with torch.autocast("cpu", torch.bfloat16):
        found, said = choose("auto", model, losses.cross_entropy, Terms(chunk_bytes=2**20), x[:3])
    assert (type(found), said) == (type(chosen), why)


def test_products_that_are_reduced_after_the_engine_was_chosen_are_refused():
    model, _, (x, labels) = SUMMED[True]
    engine = ClosedForm(model, losses.cross_entropy, 2**20)
    silos = [engine.prepare(Records(x, labels))]
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(UnsupportedError, match=r"more than clip_norm"):
            PrivateOracle(rules(), engine, silos, [0], Draw(0, 0), max_gradients=1)
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("name", ["NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION", "HIPBLASLT_ALLOW_TF32"])
def test_libraries_that_are_told_to_reduce_products_are_refused_on_gpus(name, monkeypatch):
    for value in ("1", "0"):
        monkeypatch.setenv(name, value)
        check_products(torch.device("cpu"))  # where they have no say
        with pytest.raises(UnsupportedError, match=f"{name} is '1'") if value == "1" else contextlib.nullcontext():
            check_products(torch.device("cuda:3"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_what_a_library_is_told_on_cuda_is_not_what_torch_says():
    """Why it is refused: torch says "highest", and products are off as in TF32, a thousand times more than float32."""
    code = "import torch; a = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)); b = a.cuda() @ a.cuda()"
    code += "; print(torch.get_float32_matmul_precision(), float((b.cpu() - a.double() @ a.double()).abs().max()))"
    found = {}
    for value in ("0", "1"):
        made = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "NVIDIA_TF32_OVERRIDE": value},
            capture_output=True,
            text=True,
            check=True,
        )
        said, off = made.stdout.split()
        assert said == "highest"
        found[value] = float(off)
    assert found["0"] < 1e-4 < 1e-3 < found["1"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("kind", REDUCIBLE, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", ["mlp", "cnn", "words", "attention"])
def test_on_cuda_a_record_adds_no_more_than_the_clip_norm(kind, precision, name):
    for seed in range(20):
        model, y, batch = one_record(name, 10.0, seed)
        engine = kind(model.cuda(), losses.cross_entropy, 2**20, precision)
        on_device = Records(batch.features.cuda(), batch.labels.cuda())
        assert float(added(engine, y.cuda(), on_device, 0.1).norm()) <= 0.1
    assert not torch.backends.cuda.matmul.allow_tf32
