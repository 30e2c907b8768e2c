"""The engine of Opacus' hooks: against vmap, and what it has to refuse."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch import nn

from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Records, layers
from dpfl_plugin.gradients.choice import Terms, choose
from dpfl_plugin.gradients.opacus import Opacus
from dpfl_plugin.gradients.vmap import Vmap
from tests.gradients.test_bookkeeping import BOUNDS, CLASSES, MODELS, assert_same, made

# Opacus adds up a Conv layer's groups by the channels of all, and an Embedding's padding row like any other.
NOT_EXACT = {"padded words"}


@pytest.mark.parametrize("name", [name for name in MODELS if name not in NOT_EXACT])
@settings(max_examples=6, deadline=None)
@given(count=st.integers(0, 6), bound=st.sampled_from(BOUNDS), per_layer=st.booleans(), seed=st.integers(0, 1000))
def test_opacus_is_vmap(name, count, bound, per_layer, seed):
    model, batch, y = made(name, count, seed)
    assert Opacus.unsupported(model, losses.cross_entropy) is None
    number = len(layers(Layout.of(model)))
    clip_norm = tuple(bound * (1 + l) for l in range(number)) if per_layer and math.isfinite(bound) else bound
    engine = Opacus(model, losses.cross_entropy, 2**20)
    assert_same(engine, Vmap(model, losses.cross_entropy, 2**20), y, batch, clip_norm)


def trial(*shape):
    return torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))


def test_what_the_hooks_get_wrong_is_found_by_trying_them():
    model, shape = MODELS["padded words"]()
    with pytest.raises(UnsupportedError, match="are not autograd's"):
        choose("opacus", model, losses.cross_entropy, Terms(chunk_bytes=2**20), trial(*shape))


def test_the_model_itself_is_left_as_it_was():
    model, batch, y = made("lstm", 4, 0)
    before = {name: value.clone() for name, value in model.named_parameters()}
    engine = Opacus(model, losses.cross_entropy, 2**20)
    engine.clipped_sum(y, batch, 0.5, torch.empty_like(y, dtype=torch.float64))
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name]) and value.grad is None and not hasattr(value, "grad_sample")
    assert not any(module._forward_hooks for module in model.modules())


class PositionsFirst(nn.Module):
    """Attention in torch's old order, positions before records: the hooks take positions for records."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = DPMultiheadAttention(6, 2), nn.Linear(6, CLASSES)

    def forward(self, x):
        x = x.transpose(0, 1)
        return self.head(self.mix(x, x, x, need_weights=False)[0].mean(dim=0))


@pytest.mark.parametrize("positions", [2, 3, 5])
def test_gradients_of_positions_are_not_taken_for_those_of_records(positions):
    """Also where there are as many positions as records: sums are right then, and the norms of no record are."""
    model = PositionsFirst()
    for engine in ("opacus", "bookkeeping"):
        with pytest.raises(UnsupportedError, match=r"batch_first=True|are not autograd's|fails on made-up"):
            choose(engine, model, losses.cross_entropy, Terms(chunk_bytes=2**20), trial(positions, 6))
    assert choose("auto", model, losses.cross_entropy, Terms(chunk_bytes=2**20), trial(positions, 6))[0].name == "vmap"


class Own(nn.Module):
    def __init__(self, layer) -> None:
        super().__init__()
        self.inner, self.head = layer, nn.Linear(4, CLASSES)

    def forward(self, x):
        found = self.inner(x, x, x) if isinstance(self.inner, nn.MultiheadAttention) else self.inner(x)
        return self.head(found[0].mean(dim=1))


@pytest.mark.parametrize(
    ("layer", "name", "auto"),
    [
        (lambda: nn.LSTM(4, 4, batch_first=True), "DPLSTM", "vmap"),
        (lambda: nn.MultiheadAttention(4, 2, batch_first=True), "DPMultiheadAttention", "vmap"),
        (lambda: nn.GRU(4, 4, batch_first=True), "DPGRU", None),
        (lambda: nn.RNN(4, 4, batch_first=True), "DPRNN", None),
    ],
    ids=["lstm", "attention", "gru", "rnn"],
)
def test_layers_of_one_operation_go_to_vmap_or_the_error_says_what_to_write(layer, name, auto):
    model = Own(layer())
    with pytest.raises(UnsupportedError, match=rf"inner: {type(model.inner).__name__} .*opacus\.layers\.{name}"):
        choose("opacus", model, losses.cross_entropy, Terms(chunk_bytes=2**20), trial(5, 4))
    if auto is not None:
        engine, reason = choose("auto", model, losses.cross_entropy, Terms(chunk_bytes=2**20), trial(5, 4))
        assert engine.name == auto and f"Write opacus.layers.{name}" in reason
        return
    with pytest.raises(UnsupportedError, match=rf"(?s)no engine supports .*\ninner: .*opacus\.layers\.{name}"):
        choose("auto", model, losses.cross_entropy, Terms(chunk_bytes=2**20), trial(5, 4))


def test_a_replacement_has_the_parameters_names_and_computes_the_same():
    ours, torchs = DPLSTM(4, 4, batch_first=True), nn.LSTM(4, 4, batch_first=True)
    ours.load_state_dict(torchs.state_dict())
    torch.testing.assert_close(ours(trial(5, 4))[0], torchs(trial(5, 4))[0])


class InPlace(nn.Module):
    """Writes into a tensor of its own making, which vmap cannot, and has a layer that book-keeping does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.norm, self.head = nn.Linear(4, 4), nn.InstanceNorm1d(2, affine=True), nn.Linear(8, CLASSES)

    def forward(self, x):
        found = torch.zeros(len(x), 2, 4)
        for position in range(2):
            found[:, position] = self.each(x[:, position])
        return self.head(self.norm(found).flatten(1))


def test_auto_takes_opacus_where_nothing_else_can():
    engine, reason = choose("auto", InPlace(), losses.cross_entropy, Terms(chunk_bytes=2**20), trial(2, 4))
    assert engine.name == "opacus" and "not closed_form, dense, shared_score, bookkeeping" in reason


def test_parameters_that_the_loss_does_not_depend_on_have_no_gradient():
    model = Own(DPLSTM(4, 4, batch_first=True))
    model.unused = nn.Linear(2, 2)
    y = Layout.of(model).flatten(dict(model.named_parameters()))
    out = torch.full_like(y, math.nan, dtype=torch.float64)
    batch = Records(trial(5, 4), torch.tensor([0, 1, 2]))
    norms = Opacus(model, losses.cross_entropy, 2**20).clipped_sum(y, batch, 0.5, out)
    assert torch.isfinite(norms).all() and float(out[-6:].abs().sum()) == 0 and float(out.norm()) > 0.1
