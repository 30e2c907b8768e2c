"""Every engine against autograd one example at a time, and the closed form against vmap."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Records, layers
from dpfl_plugin.gradients.bookkeeping import BookKeeping
from dpfl_plugin.gradients.choice import Terms, choose
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.opacus import Opacus
from dpfl_plugin.gradients.vmap import Vmap, _add_clipped, _norms
from dpfl_plugin.models.fixed import model_digest


def linear(features: int, outputs: int, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(features, outputs, bias=bias)).double()


def records(count: int, features: int, classes: int, seed: int = 0) -> Records:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator, dtype=torch.float64) * 2
    return Records(x, torch.randint(0, classes, (count,), generator=generator))


def one_by_one(model, loss, y, batch, clip_norm):
    """sum_j clip(grad f(y, d_j), C) by backward passes, straight from the definition."""
    layout = Layout.of(model)
    total = torch.zeros_like(y)
    for j in range(len(batch)):
        parameters = {name: value.clone().requires_grad_() for name, value in layout.unflatten(y).items()}
        outputs = torch.func.functional_call(model, parameters, (batch.features[j : j + 1],))
        loss(outputs, batch.labels[j : j + 1]).sum().backward()
        gradient = torch.cat([parameters[name].grad.flatten() for name in layout.names])
        total += gradient / max(1.0, float(gradient.norm()) / clip_norm)
    return total


def clipped_sum(engine, y, batch, clip_norm):
    out = torch.full_like(y, math.nan, dtype=torch.float64)  # an engine has to overwrite it
    engine.clipped_sum(y, engine.prepare(batch), clip_norm, out)
    return out


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(0, 9),
    features=st.integers(1, 6),
    classes=st.integers(2, 20),
    bias=st.booleans(),
    clip_norm=st.sampled_from([1e-3, 0.5, 2.0, 1e6, math.inf]),
    logistic=st.booleans(),
    seed=st.integers(0, 100),
)
def test_both_engines_are_the_definition(count, features, classes, bias, clip_norm, logistic, seed):
    classes = 2 if logistic else classes
    loss = losses.logistic if logistic else losses.cross_entropy
    model = linear(features, 1 if logistic else classes, bias)
    batch = records(count, features, classes, seed)
    y = torch.randn(Layout.of(model).dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = one_by_one(model, loss, y, batch, clip_norm)
    for engine in (ClosedForm(model, loss, 2**20), Vmap(model, loss, 2**20)):
        torch.testing.assert_close(clipped_sum(engine, y, batch, clip_norm), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("chunk_bytes", [1, 2000, 2**20])
def test_vmap_of_a_network_is_the_definition_whatever_the_chunk(chunk_bytes):
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 3 * 3, 3)
    ).double()
    generator = torch.Generator().manual_seed(1)
    batch = Records(torch.randn(6, 2, 5, 5, generator=generator, dtype=torch.float64), torch.tensor([0, 1, 2, 2, 1, 0]))
    y = torch.randn(Layout.of(model).dimension, generator=generator, dtype=torch.float64)
    result = clipped_sum(Vmap(model, losses.cross_entropy, chunk_bytes), y, batch, 0.7)
    torch.testing.assert_close(result, one_by_one(model, losses.cross_entropy, y, batch, 0.7), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clip_norm", [0.5, math.inf])
def test_fifty_steps_agree_to_one_in_a_million(dtype, clip_norm):
    model = linear(12, 10).to(dtype)
    batch = records(64, 12, 10)
    batch = Records(batch.features.to(dtype), batch.labels)
    ends = []
    for engine in (ClosedForm(model, losses.cross_entropy, 2**20), Vmap(model, losses.cross_entropy, 2**20)):
        y = torch.zeros(Layout.of(model).dimension, dtype=dtype)
        for _ in range(50):
            y = y - (0.5 / 64 * clipped_sum(engine, y, batch, clip_norm)).to(dtype)
        ends.append(y)
    assert (ends[0] - ends[1]).abs().max() < 1e-6 * ends[1].abs().max()


@pytest.mark.parametrize("make", [ClosedForm, Vmap])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 1e200])
def test_an_example_without_a_finite_gradient_adds_nothing(make, bad):
    """Else one record could turn the whole sum into NaN, whatever the clipping norm."""
    model = linear(3, 4)
    engine = make(model, losses.cross_entropy, 2**20)
    y = torch.randn(Layout.of(model).dimension, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    good = records(5, 3, 4)
    features = torch.cat([good.features, torch.tensor([[bad, 1.0, -bad]], dtype=torch.float64)])
    for label in range(4):  # of one of them a large record is certain, and has no gradient
        both = Records(features, torch.cat([good.labels, torch.tensor([label])]))
        result = clipped_sum(engine, y, both, 0.5)
        assert torch.isfinite(result).all()
        assert (result - clipped_sum(engine, y, good, 0.5)).norm() <= 0.5 * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(scale=st.floats(1e-6, 1e6), clip_norm=st.floats(1e-3, 1e3), seed=st.integers(0, 1000))
def test_one_example_adds_at_most_the_clip_norm(scale, clip_norm, seed):
    model = linear(4, 3)
    batch = records(1, 4, 3, seed)
    batch = Records(batch.features * scale, batch.labels)
    y = torch.randn(Layout.of(model).dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for engine in (ClosedForm(model, losses.cross_entropy, 2**20), Vmap(model, losses.cross_entropy, 2**20)):
        assert clipped_sum(engine, y, batch, clip_norm).norm() <= clip_norm * (1 + 1e-12)


def test_auto_takes_the_closed_form_where_it_holds_and_vmap_elsewhere():
    trial = records(3, 3, 2).features
    assert choose("auto", linear(3, 4), losses.cross_entropy, Terms(chunk_bytes=1), trial)[0].name == "closed_form"
    assert choose("auto", linear(3, 1), losses.logistic, Terms(chunk_bytes=1), trial)[0].name == "closed_form"
    own = nn.Sequential(nn.Linear(3, 3), nn.PReLU(), nn.Linear(3, 2)).double()
    assert choose("auto", own, losses.cross_entropy, Terms(chunk_bytes=1), trial)[0].name == "vmap"
    assert choose("vmap", linear(3, 4), losses.cross_entropy, Terms(chunk_bytes=1), trial)[0].name == "vmap"


def test_a_frozen_layer_or_a_loss_of_ones_own_goes_to_book_keeping():
    frozen = linear(3, 4)
    frozen[1].bias.requires_grad_(False)
    trial = records(3, 3, 2).features
    assert choose("auto", frozen, losses.cross_entropy, Terms(chunk_bytes=1), trial)[0].name == "bookkeeping"
    own = lambda outputs, labels: outputs.square().sum(dim=1)  # noqa: E731
    assert choose("auto", linear(3, 4), own, Terms(chunk_bytes=1), trial)[0].name == "bookkeeping"


@pytest.mark.parametrize(
    ("layer", "word"), [(nn.BatchNorm1d(3), "BatchNorm1d"), (nn.Dropout(0.1), "Dropout")], ids=["batch norm", "dropout"]
)
def test_layers_without_gradients_of_single_examples_are_refused(layer, word):
    model = nn.Sequential(nn.Linear(3, 3), layer, nn.Linear(3, 2))
    for name in ("auto", "vmap", "closed_form"):
        with pytest.raises(UnsupportedError, match=rf"^1: {word} .* (Use|Leave)"):
            choose(
                name,
                model,
                losses.cross_entropy,
                Terms(chunk_bytes=1),
                torch.randn(3, 3, generator=torch.Generator().manual_seed(0)),
            )
    assert word in (Vmap.unsupported(model, losses.cross_entropy) or "")


def backbone(kind: type[nn.Module] = nn.BatchNorm2d) -> nn.Module:
    """Trainable layers before and after a BatchNorm that was pretrained and is frozen."""
    torch.manual_seed(3)
    norm = kind(3).eval().requires_grad_(False)
    for name, value in norm.state_dict().items():
        if name != "num_batches_tracked":
            value.copy_(torch.rand(3) + 0.5)
    return nn.Sequential(nn.Conv2d(1, 3, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(3 * 4 * 4, 3)).double()


@pytest.mark.parametrize("made", [Vmap, BookKeeping, Opacus])
def test_a_frozen_batch_norm_is_a_fixed_function_of_each_record(made):
    """Sums are those of single records, and the statistics stay as they were, whoever calls train() in between."""
    model = backbone()
    generator = torch.Generator().manual_seed(1)
    x = 3 + 2 * torch.randn(5, 1, 6, 6, generator=generator, dtype=torch.float64)
    batch = Records(x, torch.randint(0, 3, (5,), generator=generator))
    before = {key: value.clone() for key, value in model.named_buffers()}
    engine = made(model, losses.cross_entropy, 2**20)
    y = torch.randn(Layout.of(model).dimension, generator=generator, dtype=torch.float64)
    for clip_norm in (0.5, math.inf):
        expected = one_by_one(model, losses.cross_entropy, y, batch, clip_norm)
        torch.testing.assert_close(clipped_sum(engine, y, batch, clip_norm), expected, rtol=1e-9, atol=1e-12)
    assert len(before) == 3 and all(torch.equal(before[key], value) for key, value in model.named_buffers())
    for module in vars(engine).values():  # an engine's own copy, too
        for key, value in module.named_buffers() if isinstance(module, nn.Module) else ():
            assert torch.equal(before[key], value)
    for name in ("auto", made.name):
        choose(name, model, losses.cross_entropy, Terms(chunk_bytes=2**20), x[:3])


def live(change):
    model = backbone()
    change(model[1])
    return model


@pytest.mark.parametrize(
    "change",
    [
        lambda norm: norm.train(),
        lambda norm: norm.weight.requires_grad_(),
        lambda norm: setattr(norm, "running_mean", None),
    ],
    ids=["in training", "trainable", "without statistics"],
)
@pytest.mark.parametrize("engine", [Vmap, BookKeeping, Opacus])
def test_a_live_batch_norm_stays_refused(engine, change):
    assert engine.unsupported(backbone(), losses.cross_entropy) is None
    assert "BatchNorm2d" in (engine.unsupported(live(change), losses.cross_entropy) or "")


def test_the_statistics_of_a_frozen_batch_norm_are_in_a_models_digest():
    one, other = backbone(), backbone()
    assert model_digest(one) == model_digest(other)
    other[1].running_var[0] += 1e-9
    assert model_digest(one) != model_digest(other)


def test_unknown_loss_names_the_known():
    with pytest.raises(ConfigError, match="did you mean 'cross_entropy'"):
        losses.find("cross_entrpy", 3)


@pytest.mark.parametrize("size", [10**3, 2**14, 2**16, 3 * 10**6])
def test_norms_of_long_gradients_do_not_come_out_small(size):
    gradients = torch.randn(3, size, generator=torch.Generator().manual_seed(0))
    gradients[1], gradients[2] = 0.3, 0.7
    gradients[2, 0] = 200.0  # so large that what is added to it one by one is rounded, always the same way
    exact = gradients.double().norm(dim=1)
    assert ((_norms(gradients).double() - exact).abs() < 1e-6 * exact).all()


# Norms and layers


def all_engines(model, loss=losses.cross_entropy):
    deep = sum(isinstance(module, nn.Linear) for module in model.modules()) > 1
    return [
        make(model, loss, chunk) for make, chunk in ((Vmap, 2**20), (Vmap, 1), *([] if deep else [(ClosedForm, 1)]))
    ]


DEEP = nn.Sequential(nn.Flatten(), nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4, bias=False)).double()


@pytest.mark.parametrize("model", [linear(3, 4), DEEP], ids=["linear", "deep"])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_engines_return_norms_before_clipping(model, count):
    batch = records(count, 3, 4)
    y = torch.randn(Layout.of(model).dimension, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sizes = list(layers(Layout.of(model)).values())
    alone = [one_by_one(model, losses.cross_entropy, y, batch.between(j, j + 1), math.inf) for j in range(count)]
    whole = torch.tensor([float(g.norm()) for g in alone]).double()
    parts = torch.tensor([[float(p.norm()) for p in g.split(sizes)] for g in alone]).double().reshape(count, len(sizes))
    for engine in all_engines(model):
        out = torch.full_like(y, math.nan, dtype=torch.float64)
        prepared = engine.prepare(batch)
        torch.testing.assert_close(engine.clipped_sum(y, prepared, 0.3, out), whole, rtol=1e-6, atol=1e-9)
        bounds = tuple(0.1 * (l + 1) for l in range(len(sizes)))
        torch.testing.assert_close(engine.clipped_sum(y, prepared, bounds, out), parts, rtol=1e-6, atol=1e-9)
        expected = torch.zeros_like(y)
        for gradient in alone:
            for total, part, bound in zip(expected.split(sizes), gradient.split(sizes), bounds, strict=True):
                total += part / max(1.0, float(part.norm()) / bound)
        torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-12)
        assert engine.clipped_sum(y, prepared, math.inf, out) is None


@pytest.mark.parametrize("model", [linear(3, 4), DEEP], ids=["linear", "deep"])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_the_norm_of_an_example_that_is_not_finite_is_infinite(model, bad):
    batch = records(3, 3, 4)
    batch.features[1] = torch.tensor([bad, 1.0, -bad], dtype=torch.float64)
    y = torch.randn(Layout.of(model).dimension, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bounds = (0.2,) * len(layers(Layout.of(model)))
    good = torch.tensor([0, 2])
    for engine in all_engines(model):
        expected, out = torch.empty_like(y, dtype=torch.float64), torch.empty_like(y, dtype=torch.float64)
        for clip in (0.5, bounds):
            found = engine.clipped_sum(y, engine.prepare(batch), clip, out)
            known = engine.clipped_sum(y, engine.prepare(batch.select(good)), clip, expected)
            finite = torch.isfinite(found).reshape(3, -1).all(dim=1)
            assert finite.tolist() == [True, False, True] and not torch.isnan(found).any()
            torch.testing.assert_close(found[good], known)
            torch.testing.assert_close(out, expected)


def test_an_example_that_is_not_finite_in_one_layer_adds_nothing_in_any():
    gradients = torch.tensor([[3.0, 0.0, 4.0], [math.inf, 1.0, 1.0], [1.0, math.nan, 1.0], [0.5, 0.0, 0.5]])
    out = torch.zeros(3)
    norms = _add_clipped(gradients, gradients.split([1, 2], dim=1), (1.0, 2.0), out.split([1, 2]), None)
    assert torch.stack(norms, dim=1).tolist() == [[3.0, 4.0], [math.inf] * 2, [math.inf] * 2, [0.5, 0.5]]
    torch.testing.assert_close(out, torch.tensor([1.5, 0.0, 2.5]), rtol=1e-5, atol=0)


def test_a_layer_is_a_module_that_owns_parameters():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))
            self.first = nn.Linear(3, 4)
            self.block = nn.Sequential(nn.GroupNorm(2, 4), nn.Linear(4, 4, bias=False))
            self.again = self.first
            self.block[0].bias.requires_grad_(False)

    model = Tied()
    found = layers(Layout.of(model))
    assert found == {"": 2, "first": 16, "block.0": 4, "block.1": 16}
    assert sum(found.values()) == Layout.of(model).dimension
