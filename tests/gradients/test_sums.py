"""No record moves a sum by more than is charged, rounding included: worst cases; the proof's numbers."""

from __future__ import annotations

import contextlib
import itertools
import math
import typing
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from dpfl_plugin import registry
from dpfl_plugin.core import balls
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.gradients import blocks, bookkeeping, fused, losses, worst
from dpfl_plugin.gradients.base import Records, in_chunks
from dpfl_plugin.gradients.bookkeeping import BookKeeping
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.dense import Dense
from dpfl_plugin.gradients.outcome_losses import MultiLabel
from dpfl_plugin.gradients.shared_score import SharedScore
from dpfl_plugin.gradients.stacked import Pool
from dpfl_plugin.gradients.vmap import Vmap
from dpfl_plugin.models.score_heads import ScoreHead
from dpfl_plugin.testing import EngineContract
from tests.gradients.test_bookkeeping import MODELS

CUDA = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"))
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
MOST = 1 + blocks.SUM_SLACK
CHECKS = sorted(name for name in vars(EngineContract) if name.startswith("test_"))


class Together:
    """An engine that answers the batch by `clipped_sums`, beside a longer one."""

    name = "together"

    def __init__(self, engine):
        self.engine, self.prepare = engine, engine.prepare

    def clipped_sum(self, y, batch, clip_norm, out):
        pool = Pool({0: batch})
        stack = pool.gather([0, 0], [np.arange(len(batch)), np.arange(len(batch)).repeat(2)])
        sums = y.new_full((2, len(y)), math.nan, dtype=torch.float64)
        c = y.new_tensor([[clip_norm], [1.0]], dtype=torch.float64)
        self.engine.clipped_sums(y.expand(2, -1), stack, c, sums)
        out.copy_(sums[0])


class There:
    """An engine on a device, of batches and sums on the CPU."""

    def __init__(self, make, device):
        with torch.device(device):
            self.engine = make()
        self.name, self.device = self.engine.name, device

    def prepare(self, batch):
        return self.engine.prepare(Records(batch.features.to(self.device), batch.labels.to(self.device)))

    def clipped_sum(self, y, batch, clip_norm, out):
        there = out.to(self.device)
        self.engine.clipped_sum(y.to(self.device), batch, clip_norm, there)
        out.copy_(there)


class InTurn:
    """An engine whose batches are too large for its memory."""

    name = "in turn"

    def __init__(self, engine):
        self.engine, self.prepare = engine, engine.prepare

    def clipped_sum(self, y, batch, clip_norm, out):
        return in_chunks(self.engine.clipped_sum, 777, y, batch, clip_norm, out)


class Same(ScoreHead):
    """Whose parameter does nothing."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def outputs(self, scores, parameters):
        return scores.unsqueeze(1)

    def derivatives(self, scores, parameters, residuals):
        return residuals[:, 0], [torch.zeros_like(residuals)]


class BehindAScore:
    """`SharedScore` as an engine of `worst.model`, with its loss by another name."""

    name = "shared_score"

    def __init__(self, model, loss, chunk_bytes):
        self.engine = SharedScore(nn.Sequential(*model, Same()), MultiLabel(), chunk_bytes)

    @staticmethod
    def unsupported(model, loss):
        return None

    def prepare(self, batch):
        return self.engine.prepare(replace(batch, labels=batch.labels.unsqueeze(1)))

    def clipped_sum(self, y, batch, clip_norm, out):
        whole = torch.empty(len(out) + 1, dtype=out.dtype, device=out.device)
        self.engine.clipped_sum(torch.cat([y, y.new_zeros(1)]), batch, clip_norm, whole)
        out.copy_(whole[:-1])


def without_kernels():
    return mock.patch.object(fused, "kernels", return_value=None)


def by(kind, loss=losses.logistic):
    return kind(worst.model(), loss, 2**26)


def by_torch(kind):
    with without_kernels():
        return by(kind)


ENGINES = {
    **{name: lambda name=name: by(registry.load("engines", name)) for name in registry.names("engines")},
    "shared_score": lambda: by(BehindAScore),
    "closed_form, torch": lambda: by_torch(ClosedForm),
    "dense, torch": lambda: by_torch(Dense),
    "closed_form, together": lambda: Together(by(ClosedForm)),
    "dense, together": lambda: Together(by(Dense)),
    "closed_form, in turn": lambda: InTurn(by(ClosedForm)),
    "vmap, little memory": lambda: Vmap(worst.model(), losses.logistic, 100_000),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", registry.names("engines"))
def test_every_engine_keeps_the_contract(name, check):
    made = EngineContract()
    made.engine = BehindAScore if name == "shared_score" else registry.load("engines", name)
    getattr(made, check)()


@DEVICES
@pytest.mark.parametrize("name", ENGINES)
def test_no_record_moves_a_sum_by_more_than_is_charged(name, device):
    engine = There(ENGINES[name], device)
    far, how = worst.farthest(engine, (1000,), climbs=4 if name.startswith("vmap") else 20)
    assert 1 - 2e-5 < far <= MOST, how


def with_and_without(count, share, sign, place):
    """(gradients of a batch, of one without its record at ``place``, whose place its last one takes, of one in which
    all behind it move up): each block of `blocks.LONGEST` is a worst batch by itself, in which all round one way."""
    one = worst.worst_batches(blocks.LONGEST, 1.0, 1, share, 0.49)
    one[0] *= -1
    whole = one.repeat(count // len(one) + 2)[len(one) - 1 :][:count]  # behind the first each block begins anew
    whole[place] = sign
    moved = torch.cat([whole[:place], whole[place + 1 :]])
    swapped = moved.clone() if place == count - 1 else torch.cat([whole[:place], whole[-1:], whole[place + 1 : -1]])
    return whole, swapped, moved


@pytest.mark.parametrize(
    "name", ["closed_form", "closed_form, torch", "closed_form, in turn", "dense", "shared_score", "bookkeeping"]
)
@pytest.mark.parametrize("count", [2, 61, 62, 63, 64, 123, 124, 125, 126, 186, 187, 1000, 5000, 20_000])
def test_a_batch_without_a_record_is_no_further_than_is_charged(name, count):
    """Amplification compares it with the batch that has the record, in the order of samplers: the proof, 7."""
    engine, farthest = ENGINES[name](), 0.0
    for share, sign in itertools.product((0.3, 0.5, 0.7), (1.0, -1.0)):
        for place in sorted({0, 1, count // 2, count - 2, count - 1, min(61, count - 1), min(62, count - 1)}):
            whole, swapped, _ = with_and_without(count, share, sign, place)
            far = worst.moved(engine, worst.records_of(whole), worst.records_of(swapped), 1.0)
            farthest = max(farthest, far)
    assert 1 - 2e-5 < farthest <= MOST


def test_in_the_order_of_a_file_a_batch_without_a_record_would_be_further():
    for count, least in ((5000, 1.002), (20_000, 1.009)):
        whole, _, moved = with_and_without(count, 0.7, 1.0, 0)
        assert worst.moved(ENGINES["closed_form"](), worst.records_of(whole), worst.records_of(moved), 1.0) > least


@pytest.mark.parametrize(("b", "i", "o"), [(800, 40, 10), (100, 784, 47), (64, 30, 128), (300, 60, 2)])
def test_a_row_of_a_product_depends_on_no_place_and_no_number_of_rows(b, i, o):
    """What the proof, 7., asks of torch's products on this machine."""
    generator = torch.Generator().manual_seed(0)
    w, x = torch.randn(o, i, generator=generator), torch.randn(b, i, generator=generator)
    expected = x @ w.t()
    for rows in (b - 1, b - 2, b - 7, b // 2):
        assert torch.equal(x[:rows] @ w.t(), expected[:rows])
        assert torch.equal(x[b - rows :] @ w.t(), expected[b - rows :])


@pytest.mark.parametrize("name", ["closed_form", "closed_form, torch", "dense", "shared_score", "bookkeeping", "vmap"])
def test_one_block_for_all_would_be_noticed(name):
    """The attack itself: a record among 20,000 moves the sum far beyond 2 C where they are added up in float32."""
    one = lambda count: blocks.Blocks(max(1, count), int(count > 0), 0)  # noqa: E731
    with contextlib.ExitStack() as stack:
        for module in (blocks, fused, bookkeeping):
            stack.enter_context(mock.patch.object(module, "blocks_of", one))
        stack.enter_context(mock.patch.object(blocks, "slack", return_value=0.0))  # else it would be refused
        far, _ = worst.farthest(ENGINES[name](), (20_000,), climbs=0)
    assert far > 1.003


@DEVICES
@pytest.mark.parametrize("name", ["closed_form", "closed_form, torch", "dense", "shared_score", "bookkeeping", "vmap"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, 3e38])
def test_a_replaced_record_changes_its_own_block_alone(name, bad, device):
    """Where all but its block is zero, the sum is that block's: other blocks' bits cancel in the difference.

    In float32 they would not, but in one coordinate by chance; there are 16.
    """
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(1000, worst.FEATURES, generator=generator)
    whole = Records(features, torch.randint(2, (1000,), generator=generator))
    length = blocks.blocks_of(1000).length
    sums = []
    for place in (None, 5):
        batch = Records(whole.features.clone(), whole.labels)
        if place is not None:
            batch.features[place] = bad
        for beyond in (False, True):
            part = Records(batch.features.clone(), batch.labels)
            if not beyond:
                part.features[length:] = 0.0
            engine, out = There(ENGINES[name], device), torch.empty(worst.FEATURES, dtype=torch.float64)
            with torch.no_grad():
                engine.clipped_sum(torch.zeros(worst.FEATURES), engine.prepare(part), 0.3, out)
            sums.append(out)
    # In float64 each difference is what the other blocks add: the same but for the last place of a float64 sum.
    torch.testing.assert_close(sums[1] - sums[0], sums[3] - sums[2], rtol=0, atol=1e-12)
    assert float((sums[2] - sums[0]).norm()) > 0.1


@pytest.mark.parametrize(
    ("b", "i", "o", "threads"),
    [(800, 40, 10, 1), (400, 784, 47, 2), (160, 60, 200, 1), (160, 60, 200, 2), (64, 4096, 128, 1), (7, 5, 3, 1)],
)
@DEVICES
def test_a_row_of_a_product_depends_on_that_row_alone(b, i, o, threads, device):
    """What the proof asks of torch's products on this machine, forward and backward, whatever the other rows are."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        generator = torch.Generator().manual_seed(0)
        w, x = (torch.randn(rows, i, generator=generator).to(device) for rows in (o, b))
        for product in (lambda x: x @ w.t(), lambda x: (w @ x.t()).t(), lambda x: torch.addmm(w[:, 0], x, w.t())):
            expected = product(x)
            for scale in (1.0, 1e30, 0.0, 1e-40, math.nan, math.inf):
                others = (torch.randn(b, i, generator=generator) * scale).to(device)
                for row in (0, b // 2, b - 1):
                    given = others.clone()
                    given[row] = x[row]
                    assert torch.equal(product(given)[row], expected[row])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["words", "positions", "conv2d, few positions", "lstm", "attention", "cnn"])
@pytest.mark.parametrize("kind", [BookKeeping, Vmap], ids=lambda kind: kind.name)
@DEVICES
def test_models_whose_records_are_sums_themselves(kind, name, device):
    """Worst records of a search from random ones uphill: opposite copies of a record, among others of all sizes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made, shape = MODELS[name]()
    model, generator = made.float(), torch.Generator().manual_seed(0)
    y = Layout.of(model).flatten(dict(model.named_parameters())).detach()
    engine = There(lambda: kind(model.to(device), losses.cross_entropy, 2**26), device)
    x = torch.randn(200, *shape, generator=generator) * 10.0 ** torch.randint(-2, 3, (200, *[1] * len(shape)))
    labels, farthest = torch.randint(0, 3, (200,), generator=generator), 0.0

    def total(x, labels):
        out = torch.empty_like(y, dtype=torch.float64)
        with torch.no_grad():
            engine.clipped_sum(y, engine.prepare(Records(x, labels)), 0.1, out)
        return out

    for turn in range(12):
        other, label = x.clone(), labels.clone()
        other[0] *= -(3.0**turn)
        label[0] = (label[0] + 1 + turn) % 3
        whole, replaced = total(x, labels), total(other, label)
        other[0] = math.nan
        nothing = replaced if name == "words" else total(other, label)  # words are numbers: none of them is NaN
        farthest = max(farthest, float((whole - replaced).norm()) / 0.2, float((whole - nothing).norm()) / 0.2)
        if name != "words":
            assert float((whole - nothing).norm()) <= 0.1 * MOST
        x[1:] = x[1:].flip(0)
    assert 0 < farthest <= MOST


@pytest.mark.parametrize("name", ["conv2d groups, few positions", "lstm"])
@pytest.mark.parametrize("clip_norm", [0.05, 1e9])  # beyond all norms
def test_gradients_that_are_not_formed_are_those_in_float64(name, clip_norm):
    """Norms from products of positions are for float32 models, with sums in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made, shape = MODELS[name]()
    model, generator, found = made.float(), torch.Generator().manual_seed(1), []
    y, x = Layout.of(model).flatten(dict(model.named_parameters())).detach(), torch.randn(100, *shape)
    labels = torch.randint(0, 3, (100,), generator=generator)
    engine = BookKeeping(model, losses.cross_entropy, 2**26)
    with mock.patch.object(bookkeeping, "_ghost", wraps=bookkeeping._ghost) as formed, torch.no_grad():
        found.append(torch.empty_like(y, dtype=torch.float64))
        engine.clipped_sum(y, Records(x, labels), clip_norm, found[-1])
        assert formed.called or name == "lstm"
        found.append(torch.empty_like(y, dtype=torch.float64))
        Vmap(model.double(), losses.cross_entropy, 2**26).clipped_sum(
            y.double(), Records(x.double(), labels), clip_norm, found[-1]
        )
    torch.testing.assert_close(*found, rtol=1e-3, atol=2e-5 * float(found[1].norm()))


# The proof's numbers


def test_what_is_proven_is_within_what_is_charged():
    for count in (1, 62, 63, 88, 89, 118, 124, 125, 160, 400, 800, 60_000, 2**16, 2**16 + 1, 100_000, 2**20, 2**24):
        for dtype in (torch.float32, torch.float64):
            slacks = [
                blocks.slack(count, dtype=dtype, neighbouring=how) for how in typing.get_args(blocks.Neighbouring)
            ]
            assert 0 < slacks[0] <= slacks[1] <= slacks[2] <= blocks.SUM_SLACK
    u = 2.0**-24
    assert blocks.slack(160, neighbouring="replace_one") >= 62 * u * 62  # gamma_B B, B = 62
    assert blocks.slack(160, neighbouring="zeroed") >= 62 * u * 123
    assert blocks.slack(160) >= 62 * u * 248


def test_blocks_are_short_and_of_the_number_of_records_alone():
    for count in range(1, 2000):
        found = blocks.blocks_of(count)
        assert found.full * found.length + found.rest == count and found.length <= blocks.LONGEST
        assert found.rest < found.length and found.count == -(-count // blocks.LONGEST)
        filled = blocks.filled(count)
        assert filled == count or blocks.blocks_of(filled).rest == 0
        assert count <= filled <= 1.1 * count + 1
    assert blocks.blocks_of(0).count == 0


@pytest.mark.parametrize("most", [1, 40, 61, 62, 63, 100, 124, 125, 300, 1000, 10**6])
def test_beyond_two_blocks_a_place_is_in_the_same_block_in_longer_batches(most):
    def starts(count):
        chunks = blocks.pieces(count, blocks.chunk_of(count, most))
        assert [first for first, _ in chunks] == [0, *(last for _, last in chunks[:-1])] and chunks[-1][1] == count
        cut = [(first, last - first, blocks.blocks_of(last - first)) for first, last in chunks]
        return {first + at for first, length, found in cut for at in range(0, length, found.length)}

    for count in range(blocks.HALVED, 1500):
        assert starts(count) == {start for start in starts(count + 1) if start < count}


@pytest.mark.parametrize("count", [0, 1, 62, 63, 100, 267])  # of 63 the second block is shorter, of 267 the fifth
def test_what_is_added_up_by_blocks_is_the_sum(count):
    rows, factors = torch.randn(2, count, 3), torch.rand(count)
    for add, expected in (
        (lambda out: blocks.add_up(rows, out), rows.double().sum(dim=1)),
        (lambda out: blocks.add_rows(factors, rows[0], out[0]), (factors.double().unsqueeze(1) * rows[0]).sum(dim=0)),
    ):
        out = torch.ones(2, 3, dtype=torch.float64)
        add(out)
        torch.testing.assert_close(
            out[: len(expected) if expected.dim() > 1 else 1], 1 + expected.view(-1, 3), rtol=0, atol=1e-4
        )


def test_what_is_not_proven_is_refused():
    with pytest.raises(UnsupportedError, match="batch of 4,194,304 records, 1 at a time, is too large"):
        blocks.chunk_of(2**22, 0)
    assert blocks.chunk_of(2**22, 2**30) == blocks.AT_A_TIME // blocks.LONGEST * blocks.LONGEST
    engine, out = by(ClosedForm), torch.empty(worst.FEATURES, dtype=torch.float64)
    batch = engine.prepare(worst.records_of(torch.ones(3, dtype=torch.float64)))
    for clip_norm in (1e-30, 1e30):
        with pytest.raises(ConfigError, match="clipping norm of 1e"):
            engine.clipped_sum(torch.zeros(worst.FEATURES), batch, clip_norm, out)
    assert balls.inner(balls.LEAST_CLIP_NORM, torch.float32) > 0


def test_a_sum_in_another_format_is_refused():
    for kind in (ClosedForm, Dense, BookKeeping, Vmap):
        engine = by(kind)
        with pytest.raises(AssertionError):
            engine.clipped_sum(torch.zeros(16), engine.prepare(worst.records_of(torch.ones(3))), 1.0, torch.empty(16))


def test_an_engine_that_adds_up_in_float32_breaks_the_contract():
    class Plain(Vmap):
        def clipped_sum(self, y, batch, clip_norm, out):
            g = (torch.sigmoid(batch.features @ y) - batch.labels).unsqueeze(1) * batch.features
            g *= (clip_norm / g.norm(dim=1).clamp(min=clip_norm)).unsqueeze(1)
            out.copy_(torch.zeros(1, len(y)).addmm_(torch.ones(1, len(g)), g.nan_to_num(0.0))[0])

    made = EngineContract()
    made.engine = Plain
    with pytest.raises(AssertionError, match="of the sensitivity"):
        made.test_no_record_moves_a_sum_by_more_than_is_charged()


def test_gradients_of_the_worst_batches_are_what_they_say():
    gradients = worst.worst_batches(400, 1.0, 1, 0.5)
    batch = worst.records_of(gradients)
    out = torch.empty(worst.FEATURES, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(worst.FEATURES, 1, bias=False)).double()
    wide = Records(batch.features.double(), batch.labels)
    Vmap(model, losses.logistic, 2**20).clipped_sum(torch.zeros(16).double(), wide, 1.0, out)
    assert float(out[worst.PLACE]) == pytest.approx(float(gradients.sum()), rel=1e-6)
