"""Book-keeping and dense engines against vmap, which is tested against the definition."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.layers import DPGRU, DPLSTM, DPRNN, DPMultiheadAttention
from torch import nn
from torch.nn import functional

from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Records, layers
from dpfl_plugin.gradients.bookkeeping import BookKeeping
from dpfl_plugin.gradients.choice import Terms, choose
from dpfl_plugin.gradients.dense import Dense
from dpfl_plugin.gradients.vmap import Vmap
from dpfl_plugin.models.cnn import cnn

CLASSES = 3
BOUNDS = [1e-3, 0.5, 1e6, math.inf]


class Words(nn.Module):
    """Features are word numbers: an Embedding, a Linear layer at each word, a mean."""

    def __init__(self, padding_idx: int | None = None) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 5, padding_idx=padding_idx)
        self.norm = nn.LayerNorm(5)
        self.each = nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.each(self.norm(self.table(x.abs().long() % 4))).mean(dim=1)


class Recurrent(nn.Module):
    """A layer of recurrent parts, called once for each word, and the mean of what it puts out."""

    def __init__(self, kind, **options) -> None:
        super().__init__()
        self.cells = kind(4, 3, batch_first=True, **options)
        self.head = nn.Linear(3 * (1 + options.get("bidirectional", False)), CLASSES)

    def forward(self, x):
        return self.head(self.cells(x)[0].mean(dim=1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Linear(6, 4)
        self.mix = DPMultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x):
        x = self.each(x)
        return self.head(self.norm(x + self.mix(x, x, x, need_weights=False)[0]).mean(dim=1))


class Residual(nn.Module):
    """Layers out of order, a sum around one of them, and a functional activation."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, CLASSES, bias=False)
        self.inner = nn.Linear(4, 4)
        self.first = nn.Linear(6, 4)

    def forward(self, x):
        x = functional.gelu(self.first(x))
        return self.head(x + functional.silu(self.inner(x)))


def convolution(kind, shape, **options):
    layer = kind(2, 4, **options)
    norm = nn.GroupNorm(2, 4)
    with torch.no_grad():
        width = layer(torch.zeros(1, 2, *shape)).flatten(1).shape[1]
    return nn.Sequential(layer, norm, nn.ReLU(), nn.Flatten(), nn.Linear(width, CLASSES)), (2, *shape)


def grown(kind, small, **options):
    """A convolution with few positions and many weights: its gradients are not formed."""
    layer = kind(8, 16, **options)
    with torch.no_grad():
        width = layer(torch.zeros(1, 8, *small)).flatten(1).shape[1]
    return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(width, CLASSES)), (8, *small)


MODELS = {
    "linear": lambda: (nn.Sequential(nn.Flatten(), nn.Linear(6, CLASSES)), (6,)),
    "mlp": lambda: (nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.ELU(), nn.Linear(4, CLASSES)), (6,)),
    "no bias": lambda: (
        nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, CLASSES, bias=False)),
        (6,),
    ),
    "residual": lambda: (Residual(), (6,)),
    "positions": lambda: (nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(20, CLASSES)), (4, 6)),
    "two axes": lambda: (nn.Sequential(nn.Linear(3, 2), nn.Flatten(), nn.Linear(12, CLASSES)), (2, 3, 3)),
    "words": lambda: (Words(), (7,)),
    "padded words": lambda: (Words(padding_idx=1), (7,)),
    "conv1d": lambda: convolution(nn.Conv1d, (9,), kernel_size=3, stride=2, padding=1),
    "conv2d": lambda: convolution(nn.Conv2d, (6, 5), kernel_size=(3, 2), stride=(1, 2), dilation=(2, 1)),
    "conv2d same": lambda: convolution(nn.Conv2d, (5, 4), kernel_size=(3, 5), padding="same", bias=False),
    "conv2d groups": lambda: convolution(nn.Conv2d, (5, 4), kernel_size=2, padding=(1, 0), groups=2),
    "conv3d": lambda: convolution(nn.Conv3d, (3, 4, 3), kernel_size=(2, 2, 3), padding=(0, 1, 1)),
    "conv2d, few positions": lambda: grown(nn.Conv2d, (3, 3), kernel_size=3),
    "conv2d groups, few positions": lambda: grown(nn.Conv2d, (4, 3), kernel_size=3, groups=4),
    "lstm": lambda: (Recurrent(DPLSTM), (5, 4)),
    "two-way gru": lambda: (Recurrent(DPGRU, num_layers=2, bidirectional=True), (4, 4)),
    "rnn": lambda: (Recurrent(DPRNN), (3, 4)),
    "attention": lambda: (Attention(), (5, 6)),
    "twice": lambda: (Twice(), (6,)),
    "cnn": lambda: (cnn((1, 8, 8), CLASSES, channels=(4, 8), hidden=5), (1, 8, 8)),
}


def made(name, count, seed):
    generator = torch.Generator().manual_seed(seed)
    model, shape = MODELS[name]()
    model = model.double()
    features = 2 * torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    y = torch.randn(Layout.of(model).dimension, generator=generator, dtype=torch.float64)
    return model, Records(features, labels), y


def both(engine, reference, y, batch, clip_norm):
    """((sum, norms), (sum, norms)) of the two engines."""
    results = []
    for e in (engine, reference):
        out = torch.full_like(y, math.nan, dtype=torch.float64)
        with torch.no_grad():
            norms = e.clipped_sum(y, e.prepare(batch), clip_norm, out)
        results.append((out, norms))
    return results


def assert_same(engine, reference, y, batch, clip_norm):
    (out, norms), (expected, known) = both(engine, reference, y, batch, clip_norm)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-10)
    assert (norms is None) == (known is None)
    if norms is not None:
        torch.testing.assert_close(norms, known, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=12, deadline=None)
@given(count=st.integers(0, 6), bound=st.sampled_from(BOUNDS), per_layer=st.booleans(), seed=st.integers(0, 1000))
def test_book_keeping_is_vmap(name, count, bound, per_layer, seed):
    model, batch, y = made(name, count, seed)
    assert BookKeeping.unsupported(model, losses.cross_entropy) is None
    number = len(layers(Layout.of(model)))
    clip_norm = tuple(bound * (1 + l) for l in range(number)) if per_layer and math.isfinite(bound) else bound
    engine = BookKeeping(model, losses.cross_entropy, 2**20)
    assert_same(engine, Vmap(model, losses.cross_entropy, 2**20), y, batch, clip_norm)


@settings(max_examples=60, deadline=None)
@given(
    widths=st.lists(st.integers(1, 6), min_size=0, max_size=3),
    activations=st.lists(st.sampled_from([nn.ReLU, nn.Tanh, nn.Sigmoid, nn.ELU]), min_size=3, max_size=3),
    biases=st.lists(st.booleans(), min_size=4, max_size=4),
    loss=st.sampled_from(list(losses.LOSSES.values())),
    classes=st.integers(2, 18),
    count=st.integers(0, 6),
    bound=st.sampled_from(BOUNDS),
    per_layer=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_dense_is_vmap(widths, activations, biases, loss, classes, count, bound, per_layer, seed):
    outputs = classes if loss is losses.cross_entropy else 1
    sizes, parts = [5, *widths, outputs], [nn.Flatten()]
    for layer in range(len(sizes) - 1):
        parts += [nn.Linear(sizes[layer], sizes[layer + 1], bias=biases[layer]), activations[min(layer, 2)]()]
    model = nn.Sequential(*parts[:-1]).double()
    assert Dense.unsupported(model, loss) is None
    generator = torch.Generator().manual_seed(seed)
    features = 2 * torch.randn(count, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, max(2, outputs), (count,), generator=generator)
    y = torch.randn(Layout.of(model).dimension, generator=generator, dtype=torch.float64)
    clip_norm = (bound,) * (len(sizes) - 1) if per_layer and math.isfinite(bound) else bound
    for reference in (Vmap(model, loss, 2**20), BookKeeping(model, loss, 2**20)):
        assert_same(Dense(model, loss, 2**20), reference, y, Records(features, labels), clip_norm)


@pytest.mark.parametrize("name", ["cnn", "words", "conv2d groups"])
@pytest.mark.parametrize("chunk_bytes", [1, 20_000])
def test_the_sum_is_the_same_whatever_the_chunk(name, chunk_bytes):
    model, batch, y = made(name, 7, 0)
    small, large = (BookKeeping(model, losses.cross_entropy, size) for size in (chunk_bytes, 2**30))
    calls = []
    small._model.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    for clip_norm in (0.5, math.inf):
        assert_same(small, large, y, batch, clip_norm)
    assert max(calls) < 7 and sum(calls) >= 14


ENGINES = [BookKeeping, Dense]


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("bad", [math.inf, math.nan, 1e200])
def test_an_example_without_a_finite_gradient_adds_nothing_and_has_an_infinite_norm(kind, bad):
    model, batch, y = made("mlp", 5, 3)
    batch.features[2, 0] = bad
    engine, good = kind(model, losses.cross_entropy, 2**20), torch.tensor([0, 1, 3, 4])
    for clip_norm in (0.5, (0.1, 0.2, 0.3)):
        out, expected = torch.empty_like(y, dtype=torch.float64), torch.empty_like(y, dtype=torch.float64)
        norms = engine.clipped_sum(y, engine.prepare(batch), clip_norm, out)
        known = engine.clipped_sum(y, engine.prepare(batch.select(good)), clip_norm, expected)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(norms[good], known)
        # 1e200 saturates the activations: its gradient by the first layer is 0 or not finite, never in between
        assert bad == 1e200 or torch.isinf(norms[2]).all()


@pytest.mark.parametrize("kind", ENGINES)
@settings(max_examples=40, deadline=None)
@given(scale=st.floats(1e-6, 1e6), clip_norm=st.floats(1e-3, 1e3), seed=st.integers(0, 1000))
def test_one_example_adds_at_most_the_clip_norm(kind, scale, clip_norm, seed):
    model, batch, y = made("mlp", 1, seed)
    engine, out = kind(model, losses.cross_entropy, 2**20), torch.empty_like(y, dtype=torch.float64)
    engine.clipped_sum(y, engine.prepare(Records(batch.features * scale, batch.labels)), clip_norm, out)
    assert out.norm() <= clip_norm * (1 + 1e-12)


def test_frozen_parameters_have_no_part():
    model, batch, _ = made("cnn", 4, 0)
    model[0].weight.requires_grad_(False)
    model[4].bias.requires_grad_(False)
    y = torch.randn(Layout.of(model).dimension, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    engine = BookKeeping(model, losses.cross_entropy, 2**20)
    assert_same(engine, Vmap(model, losses.cross_entropy, 2**20), y, batch, 0.5)


def test_the_model_itself_is_left_as_it_was():
    model, batch, y = made("cnn", 4, 0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    engine = BookKeeping(model, losses.cross_entropy, 2**20)
    engine.clipped_sum(y, batch, 0.5, torch.empty_like(y, dtype=torch.float64))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


# What it refuses


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.b(self.a(self.a(x)))


class TwiceNormalised(Twice):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        return self.b(self.norm(self.a(self.norm(x))))


class Beside(Twice):
    """Uses a layer's parameters without calling it."""

    def forward(self, x):
        return self.b(functional.linear(x, self.a.weight, self.a.bias))


class Also(Twice):
    """Calls a layer, and uses its weight once more: half of the gradient is not where book-keeping looks."""

    def forward(self, x):
        return self.b(self.a(x) @ self.a.weight)


class Overwrites(Twice):
    """What a layer after the first puts out; of the first one torch itself refuses that."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Linear(6, 6)

    def forward(self, x):
        return self.b(self.c(self.a(x)).relu_())


class OverwritesFirst(Twice):
    def forward(self, x):
        return self.b(self.a(x).relu_())


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (TwiceNormalised, "more than once"),
        (Beside, "is not called"),
        (Overwrites, "overwritten"),
        (OverwritesFirst, "in-place"),
        (Also, "not autograd's"),
    ],
)
def test_a_model_that_uses_a_layer_in_another_way_goes_to_vmap(model, words):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made, trial = model(), torch.randn(2, 6)
    assert choose("auto", made, losses.cross_entropy, Terms(chunk_bytes=2**20), trial)[0].name == "vmap"
    with pytest.raises(UnsupportedError, match=words):
        choose("bookkeeping", made, losses.cross_entropy, Terms(chunk_bytes=2**20), trial)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.Linear(6, 6), None),
        (nn.ReLU(inplace=True), "overwrites its input"),
        (nn.PReLU(), "PReLU has parameters of its own"),
        (nn.BatchNorm1d(6), "BatchNorm1d has parameters of its own"),
        (nn.BatchNorm1d(6, affine=False), "mixes the records"),
        (nn.Dropout(0.5), "global generator"),
        (nn.Embedding(6, 6, max_norm=1.0), "max_norm"),
        (nn.Conv1d(6, 6, 3, padding=1, padding_mode="circular"), "circular"),
    ],
)
def test_layers_that_it_does_not_know_are_named(layer, words):
    reason = BookKeeping.unsupported(nn.Sequential(nn.Linear(6, 6), layer), losses.cross_entropy)
    assert reason is None if words is None else words in reason and "1: " in reason


def test_dense_refuses_what_only_looks_like_a_chain():
    first, second = nn.Linear(6, 6), nn.Linear(6, CLASSES)
    tied = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    tied[2].weight = tied[0].weight
    frozen = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    frozen[0].bias.requires_grad_(False)
    others = [
        nn.Sequential(first, nn.ReLU(), first, nn.ReLU(), second),
        nn.Sequential(first, second),
        nn.Sequential(first, nn.ReLU()),
        nn.Sequential(first, nn.GELU(), second),
        nn.Sequential(first, nn.ELU(alpha=0.5), second),
        nn.Sequential(first, nn.Tanh(), nn.Flatten(), second),
        Residual(),
        tied,
        frozen,
    ]
    for model in others:
        assert "not Linear layers one after another" in (Dense.unsupported(model, losses.cross_entropy) or "")
    activation = nn.ReLU()
    fine = nn.Sequential(nn.Sequential(first, activation), nn.Sequential(nn.Linear(6, 6), activation, second))
    assert Dense.unsupported(fine, losses.cross_entropy) is None
    assert "the loss" in (Dense.unsupported(fine, losses.hinge) or "")


def fresh(name):
    model, shape = MODELS[name]()
    return (
        model,
        losses.cross_entropy,
        Terms(chunk_bytes=2**20),
        torch.randn(3, *shape, generator=torch.Generator().manual_seed(0)),
    )


def test_auto_takes_the_fastest_that_fits():
    chosen = {name: choose("auto", *fresh(name))[0].name for name in ("linear", "mlp", "cnn", "words")}
    assert chosen == {"linear": "closed_form", "mlp": "dense", "cnn": "bookkeeping", "words": "bookkeeping"}


class Mixed(nn.Module):
    """Takes the batch's mean away: one record's output depends on the others."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        x = torch.tanh(self.inner(x))
        return self.head(x - x.mean(dim=0))


@pytest.mark.parametrize("engine", ["auto", "bookkeeping", "vmap"])
def test_a_model_that_mixes_records_is_refused(engine):
    """Its gradient of the sum is right, but replacing one record changes what all of them add."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of the layers, too: records that come out alike hide what is mixed
        mixed, fine = Mixed(), Residual()
        trial = 3 * torch.randn(2, 6)
    with pytest.raises(UnsupportedError):
        choose(engine, mixed, losses.cross_entropy, Terms(chunk_bytes=2**20), trial[:, :4])
    assert choose("auto", fine, losses.cross_entropy, Terms(chunk_bytes=2**20), trial)[0].name == "bookkeeping"


class Mean(nn.Module):
    """A Linear layer at each of several positions, and their mean: all positions have the same derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Linear(64, 64, bias=False)

    def forward(self, x):
        return self.each(x).mean(dim=1)


@pytest.mark.parametrize("positions", [2, 24])
@pytest.mark.parametrize("length", [1e3, 1e8, 1e20])
def test_positions_that_cancel_do_not_hide_a_gradient_from_clipping(positions, length):
    """With inputs v and d - v the gradient is that of d: some 1e-4 of what is added up, or nothing of it.

    Of nothing, rounding leaves a square of 0 or below, and a sum of 1e-16 of what is added up.
    """
    torch.manual_seed(0)
    model = Mean()
    y = Layout.of(model).flatten(dict(model.named_parameters())).detach()
    engine, clip_norm, longest = BookKeeping(model, losses.cross_entropy, 2**24), 0.5, 0.0
    half = positions // 2
    for _ in range(10):
        v = torch.randn(half, 64) * length * torch.logspace(0, -5, half).unsqueeze(1)
        for rest in (torch.randn(half, 64) * length * 3e-4, torch.zeros(half, 64)):
            record = Records(torch.cat([v, rest - v]).unsqueeze(0), torch.zeros(1, dtype=torch.int64))
            out = torch.empty_like(y, dtype=torch.float64)
            engine.clipped_sum(y, record, clip_norm, out)
            longest = max(longest, float(out.norm()))
    assert 0.1 * clip_norm < longest <= clip_norm


def test_positions_that_cancel_add_up_to_what_is_left_of_them():
    """In a float32 product the sum would be off by 1e-7 of what cancels, and with it what is clipped.

    The bound is beyond all norms. The probabilities are 0 and 1 in float32 and in float64, so that both have the same
    derivatives.
    """
    torch.manual_seed(0)
    v, rest = torch.randn(60, 2, 64) * 1e8, torch.randn(60, 2, 64) * 1e5
    records = Records(torch.cat([v, rest - v], dim=1), torch.zeros(60, dtype=torch.int64))
    model, found = Mean(), []
    y = Layout.of(model).flatten(dict(model.named_parameters())).detach() * 1e4
    with torch.no_grad():
        found.append(torch.empty_like(y, dtype=torch.float64))
        BookKeeping(model, losses.cross_entropy, 2**24).clipped_sum(y, records, 1e15, found[0])
        found.append(torch.empty_like(y, dtype=torch.float64))
        wide = Records(records.features.double(), records.labels)
        Vmap(model.double(), losses.cross_entropy, 2**24).clipped_sum(y.double(), wide, 1e15, found[1])
    assert float((found[0] - found[1]).norm()) < 1e-9 * float(found[1].norm())


@pytest.mark.parametrize("kind", ["closed_form", "dense", "bookkeeping"])
def test_squares_that_vanish_do_not_hide_a_gradient_from_clipping(kind):
    """A derivative of 1e-23, whose square is 0 in float32, times an input of 1e18 is a gradient of 1e-5."""
    model = nn.Sequential(nn.Linear(20, CLASSES))
    y = torch.zeros(sum(p.numel() for p in model.parameters()))
    y[-CLASSES:] = torch.tensor([53.0, 0.0, 0.0])  # the others' probabilities are exp(-53)
    engine, _ = choose(kind, model, losses.cross_entropy, Terms(chunk_bytes=2**20), torch.ones(3, 20))
    batch = engine.prepare(Records(torch.full((1, 20), 3e18), torch.zeros(1, dtype=torch.int64)))
    unclipped, clipped, clip_norm = (
        torch.empty_like(y, dtype=torch.float64),
        torch.empty_like(y, dtype=torch.float64),
        1e-6,
    )
    engine.clipped_sum(y, batch, math.inf, unclipped)
    engine.clipped_sum(y, batch, clip_norm, clipped)
    assert float(unclipped.double().norm()) > 10 * clip_norm
    assert float(clipped.double().norm()) <= clip_norm
