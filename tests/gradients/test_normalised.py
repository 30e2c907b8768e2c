"""AUTO-S: every engine scales each gradient by C / (||g|| + gamma), and none adds more than C. Bu et al. 2022."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpfl_plugin.core.balls import LEAST_STABILITY, MOST_STABILITY, Normalised
from dpfl_plugin.core.grid import SUM_SLACK
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.gradients import losses, worst
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.bookkeeping import BookKeeping
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.dense import Dense
from dpfl_plugin.gradients.opacus import Opacus
from dpfl_plugin.gradients.vmap import Vmap
from dpfl_plugin.oracle import together
from dpfl_plugin.privacy.clipping import AutoS
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import FullBatch
from dpfl_plugin.runs.engines import check_engine
from tests.gradients.test_engines import records

ENGINES = (ClosedForm, Dense, Vmap, BookKeeping, Opacus)


def model_for(engine, features, outputs):
    hidden = [] if engine is ClosedForm else [nn.Linear(features, features), nn.Tanh()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(features, outputs))


def gradients_of(model, y, batch):
    """(b, d) by backward passes, one record at a time."""
    layout, rows = Layout.of(model), []
    for j in range(len(batch)):
        parameters = {name: value.clone().requires_grad_() for name, value in layout.unflatten(y).items()}
        outputs = torch.func.functional_call(model, parameters, (batch.features[j : j + 1],))
        losses.cross_entropy(outputs, batch.labels[j : j + 1]).sum().backward()
        rows.append(torch.cat([parameters[name].grad.flatten() for name in layout.names]))
    return torch.stack(rows)


def sum_by(engine, y, batch, bound):
    out = torch.full_like(y, math.nan, dtype=torch.float64)
    return engine.clipped_sum(y, engine.prepare(batch), bound, out), out


@pytest.mark.parametrize("chunk_bytes", [1, 2**20])
@pytest.mark.parametrize("make", ENGINES)
def test_every_engine_is_the_definition(make, chunk_bytes):
    """Of short and of long gradients; the norms that are returned are those before scaling."""
    model = model_for(make, 5, 3).double()
    y = torch.randn(Layout.of(model).dimension, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    batch = records(8, 5, 3)
    batch = Records(batch.features * torch.logspace(-4, 2, 8, dtype=torch.float64).unsqueeze(1), batch.labels)
    rows = gradients_of(model, y, batch)
    norms = rows.norm(dim=1)
    for gamma in (1e-6, 0.01, 10.0):
        found, out = sum_by(make(model, losses.cross_entropy, chunk_bytes), y, batch, Normalised(0.7, gamma))
        torch.testing.assert_close(found, norms, rtol=1e-9, atol=0)
        expected = (rows * (0.7 / (norms + gamma)).unsqueeze(1)).sum(dim=0)
        torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("make", [ClosedForm, Dense])
def test_compiled_loops_are_the_reference(make):
    """In float32, against vmap on the same records: many of them, so that there are several blocks."""
    model = model_for(make, 5, 3)
    y = torch.randn(Layout.of(model).dimension, generator=torch.Generator().manual_seed(1))
    batch = records(200, 5, 3)
    batch = Records((batch.features * torch.logspace(-4, 2, 200).unsqueeze(1)).float(), batch.labels)
    engine = make(model, losses.cross_entropy, 2**20)
    assert engine.kernels is None or engine._fused.takes(y, engine.prepare(batch))
    for gamma in (1e-6, 0.01, 10.0):
        norms, out = sum_by(engine, y, batch, Normalised(0.7, gamma))
        sought, expected = sum_by(Vmap(model, losses.cross_entropy, 2**20), y, batch, Normalised(0.7, gamma))
        torch.testing.assert_close(norms, sought, rtol=1e-4, atol=1e-30)
        assert float((out - expected).norm()) <= 1e-4 * float((0.7 * sought / (sought + gamma)).sum())


@settings(max_examples=30, deadline=None)
@given(
    scale=st.floats(-30, 30),
    c=st.floats(-6, 6),
    gamma=st.floats(-9, 9),
    make=st.sampled_from([ClosedForm, Dense, Vmap, BookKeeping]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 1000),
)
def test_one_example_adds_at_most_c_after_rounding(scale, c, gamma, make, dtype, seed):
    """Whatever its length, gamma and C, which are powers of ten; in the number format of the run."""
    bound = Normalised(10.0**c, 10.0 ** (c + gamma))
    model = model_for(make, 4, 3).to(dtype)
    y = torch.randn(Layout.of(model).dimension, generator=torch.Generator().manual_seed(seed)).to(dtype)
    batch = records(1, 4, 3, seed)
    batch = Records((batch.features * 10.0**scale).to(dtype), batch.labels)
    _, out = sum_by(make(model, losses.cross_entropy, 2**20), y, batch, bound)
    assert float(torch.linalg.vector_norm(out)) <= float(bound)


@pytest.mark.parametrize("make", ENGINES)
def test_rounding_carries_none_beyond_c(make):
    """With a gamma next to nothing only the hair by which C is made shorter is left: else half of all would pass it."""
    model = model_for(make, 4, 3)
    engine = make(model, losses.cross_entropy, 2**20)
    y = torch.randn(Layout.of(model).dimension, generator=torch.Generator().manual_seed(3))
    some = records(16, 4, 3)
    some = Records(some.features.float(), some.labels)
    for c in (0.1, 0.3, 0.7):
        for row in range(len(some)):
            _, out = sum_by(engine, y, some.between(row, row + 1), Normalised(c, 1e-9 * c))
            assert c * (1 - 1e-4) < float(torch.linalg.vector_norm(out)) <= c


@pytest.mark.parametrize("make", ENGINES)
def test_no_record_moves_a_sum_by_more_than_is_charged(make):
    """The worst batches for rounding that are known, at a gamma that is next to nothing."""
    engine = make(worst.model(), losses.logistic, 2**20)
    found, how = worst.farthest(engine, (300,), Normalised(1.0, 1e-9), climbs=2)
    assert found <= 1 + SUM_SLACK, how


@pytest.mark.parametrize("make", ENGINES)
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_what_is_not_finite_adds_nothing_and_zeros_stay_zero(make, bad):
    model = model_for(make, 3, 4)
    engine = make(model, losses.cross_entropy, 2**20)
    y = torch.randn(Layout.of(model).dimension, generator=torch.Generator().manual_seed(0))
    good = records(5, 3, 4)
    good = Records(good.features.float(), good.labels)
    both = Records(torch.cat([good.features, torch.full((1, 3), bad)]), torch.cat([good.labels, torch.tensor([1])]))
    bound = Normalised(0.5, 0.01)
    torch.testing.assert_close(sum_by(engine, y, both, bound)[1], sum_by(engine, y, good, bound)[1])
    still = torch.zeros_like(y)  # of one hidden unit's weights there is no gradient
    assert torch.isfinite(sum_by(engine, still, good, bound)[1]).all()


FLAT = PrivacyRules(
    unit="record", neighbouring="replace_one", l2=0.0, clip_norm=0.5, mechanism=Gaussian(1.0), sampler=FullBatch()
)
RULES = replace(FLAT, clipping=AutoS())


def test_a_release_is_charged_as_that_of_flat_clipping():
    assert RULES.release(1.0) == FLAT.release(1.0)


def test_what_is_not_sound_or_has_no_meaning_is_refused():
    with pytest.raises(ConfigError, match=r"gamma=0 must be positive"):
        AutoS(gamma=0)
    with pytest.raises(ConfigError, match=r"privacy.clip.gamma=1e-11 must be in"):
        replace(RULES, clipping=AutoS(gamma=1e-11))
    with pytest.raises(ConfigError, match=r"privacy.clip_norm=inf must be finite with clip: auto_s"):
        replace(RULES, clip_norm=math.inf, mechanism=Gaussian(0.0))
    least, most = 4 * LEAST_STABILITY, 4 * MOST_STABILITY
    for gamma in (least, most):
        assert replace(RULES, clip_norm=4.0, clipping=AutoS(gamma=gamma)).clipping.whole(4.0).gamma == gamma
    for gamma in (0.9 * least, 1.1 * most):
        with pytest.raises(ConfigError, match=r"privacy\.clip\.gamma"):
            replace(RULES, clip_norm=4.0, clipping=AutoS(gamma=gamma))


def test_only_engines_that_can_are_asked():
    class Clips(Vmap):
        name = "clips"
        normalises = False

    model = model_for(Vmap, 3, 2)
    y, trial = torch.zeros(Layout.of(model).dimension), torch.zeros(2, 3)
    with pytest.raises(UnsupportedError, match="engine: clips only clips"):
        check_engine(Clips(model, losses.cross_entropy, 2**20), RULES, model, losses.cross_entropy, y, trial)
    assert together(Dense, RULES)
    for cannot in ({"normalises": False}, {"clipped_sums": None}):
        assert not together(type("Cannot", (Dense,), cannot), RULES), cannot

    class ByLayer(AutoS):
        """A stack has one gamma: layers may not have their own."""

        def bounds(self, clip_norm, layers):
            return tuple(Normalised(clip_norm / len(layers), gamma) for gamma, _ in enumerate(layers, 1))

    assert not together(Dense, replace(FLAT, clipping=ByLayer()))
