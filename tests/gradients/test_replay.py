"""What is recorded once and replayed with other numbers gives what the function gives, and can be recorded at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpfl_plugin import registry
from dpfl_plugin.core.balls import Normalised
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.gradients import losses, replay
from dpfl_plugin.gradients.base import Records, layers
from dpfl_plugin.gradients.bookkeeping import BookKeeping
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.dense import Dense
from dpfl_plugin.gradients.replay import Replayed
from dpfl_plugin.gradients.stacked import Pool, Sums, SumsInTurn
from dpfl_plugin.gradients.vmap import Vmap
from tests.recording import Operations, Recorder, place

FEATURES, SILOS = 4, (7, 4, 9)
MODELS: dict[str, tuple[Any, Callable[[], nn.Module], Any]] = {
    "closed_form": (ClosedForm, lambda: nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 3)), losses.cross_entropy),
    "closed_form, hinge": (ClosedForm, lambda: nn.Linear(FEATURES, 1), losses.hinge),
    "closed_form, no bias": (ClosedForm, lambda: nn.Linear(FEATURES, 3, bias=False), losses.cross_entropy),
    "dense": (
        Dense,
        lambda: nn.Sequential(
            nn.Linear(FEATURES, 5, bias=False), nn.ReLU(), nn.Linear(5, 6), nn.ELU(), nn.Linear(6, 3)
        ),
        losses.cross_entropy,
    ),
    "dense, logistic": (
        Dense,
        lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, 1, bias=False)),
        losses.logistic,
    ),
}
KINDS = pytest.mark.parametrize("kind", MODELS)
ELSEWHERE = "meta"


def network() -> nn.Module:
    """Of all layers that `BookKeeping` has formulas for but tables; in float32 norms of both kinds."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)),
        *(nn.Conv2d(1, 4, 2, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2, stride=1), nn.Flatten(2)),
        *(nn.Linear(4, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.Flatten(), nn.Tanh(), nn.Linear(64, 3)),
    )


IN_TURN = {"bookkeeping": (BookKeeping, torch.float32), "vmap": (Vmap, torch.float64)}
BOUNDS: dict[str, Callable[[nn.Module], Any]] = {
    "flat": lambda model: 0.2,
    "auto_s": lambda model: Normalised(0.2, 0.1),
    "per_layer": lambda model: tuple(0.05 * (1 + n) for n in range(len(layers(Layout.of(model))))),
}
CLIPS = ("none", "flat", "per_layer")
CHUNKS = (1, 2000, 2**20)
# Every two of a kind, a clipping and a size of chunks: from one kind to the next the size is the next one.
EVERY_TWO = pytest.mark.parametrize(
    ("kind", "clip", "chunk_bytes"),
    [(kind, clip, CHUNKS[(i + j) % 3]) for i, kind in enumerate(MODELS) for j, clip in enumerate(CLIPS)],
)


def test_no_engine_that_says_so_is_forgotten_here() -> None:
    engines = {name: registry.load("engines", name) for name in registry.names("engines")}
    capturable = {name for name, engine in engines.items() if getattr(engine, "capturable", False)}
    together = {kind.partition(",")[0] for kind in MODELS}
    assert capturable == {*together, *IN_TURN}
    assert together == {name for name, engine in engines.items() if hasattr(engine, "clipped_sums")}


def made(kind: str, chunk_bytes: int = 2**20, device: str = "cpu") -> tuple[Sums, Pool, nn.Module]:
    make, model_of, loss = MODELS[kind]
    model = model_of().double()  # of which an engine only takes the layers' shapes
    engine = make(model, loss, chunk_bytes)
    generator, silos = torch.Generator().manual_seed(0), {}
    for number, size in enumerate(SILOS):
        features = torch.randn(size, FEATURES, generator=generator, dtype=torch.float64).to(device)
        labels = (torch.arange(size, device=device) + number) % (3 if loss is losses.cross_entropy else 2)
        silos[10 + number] = engine.prepare(Records(features, labels))
    pool = Pool(silos)
    return Sums(engine, pool), pool, model


def in_turn(kind: str, bound: str, chunk_bytes: int = 2**20, device: str = "cpu") -> tuple[SumsInTurn, Pool, Tensor]:
    """Sums of silos one after another, the pool, and parameters of each silo (m, d)."""
    make, dtype = IN_TURN[kind]
    model = network().to(device, dtype)
    engine, silos, generator = make(model, losses.cross_entropy, chunk_bytes), {}, torch.Generator().manual_seed(0)
    for number, size in enumerate(SILOS):
        features = torch.randn(size, FEATURES, generator=generator, dtype=dtype).to(device)
        silos[10 + number] = Records(features, (torch.arange(size) + number).remainder(3).to(device))
    pool = Pool(silos)
    y = torch.randn(len(SILOS), Layout.of(model).dimension, generator=generator, dtype=dtype)
    return SumsInTurn(engine, pool, BOUNDS[bound](model)), pool, y.to(device)


def of_pool(pool: Pool) -> set[int]:
    return {place(one) for one in (pool._features, pool._labels, pool._constants, pool._usable) if one is not None}


def clip_norms(clip: str, model: nn.Module, scale: float = 1.0, device: str = "cpu") -> tuple[Tensor, ...]:
    """A last argument of `Sums`, or none: of each silo its own."""
    if clip == "none":
        return ()
    columns = 1 if clip == "flat" else len(layers(Layout.of(model)))
    base = torch.arange(1, 1 + len(SILOS) * columns, dtype=torch.float64, device=device)
    return (scale * 0.05 * base.view(len(SILOS), columns),)


def inputs(pool: Pool, model: nn.Module, clip: str, seed: int, width: int = 8) -> tuple[Tensor, ...]:
    """Of a step, by number: parameters, batches of changing lengths, clipping norms."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    y = torch.randn(len(SILOS), Layout.of(model).dimension, generator=generator, dtype=torch.float64)
    rows = [rng.permutation(size)[: rng.integers(0, min(size, width) + 1)] for size in SILOS]
    return y, pool.index(list(pool.records), rows, width), *clip_norms(clip, model, 0.3 + seed)


@EVERY_TWO
def test_nothing_waits_for_a_gpu_or_is_moved_to_it(kind: str, clip: str, chunk_bytes: int) -> None:
    """On a device without numbers: whatever needs one, or has a shape that depends on one, raises or is seen; as is
    what mixes devices, or reads tensors beside the inputs and the pool's."""
    sums, pool, model = made(kind, chunk_bytes, device=ELSEWHERE)
    y = torch.empty(len(SILOS), Layout.of(model).dimension, dtype=torch.float64, device=ELSEWHERE)
    index = torch.empty(len(SILOS), 6, dtype=torch.int64, device=ELSEWHERE)
    bounds = clip_norms(clip, model, device=ELSEWHERE)
    with Operations() as seen:
        out, *norms = sums(y, index, *bounds)
    assert out.shape == y.shape and out.device.type == ELSEWHERE and len(norms) == (clip != "none")
    assert not seen.uncapturable() and len(seen.calls) > 10
    assert seen.kept() == of_pool(pool) | {place(one) for one in (y, index, *bounds)}


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("kind", IN_TURN)
def test_sums_in_turn_neither_wait_for_a_gpu_nor_are_moved_to_it(
    kind: str, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)  # which does not know this device
    sums, pool, y = in_turn(kind, bound, device=ELSEWHERE)
    index = torch.empty(len(SILOS), 6, dtype=torch.int64, device=ELSEWHERE)
    sums(y, index)  # as a warm-up does: what a record needs in memory is worked out once
    with Operations() as seen:
        (out,) = sums(y, index)
    assert out.shape == y.shape and not seen.uncapturable() and len(seen.calls) > 10
    assert seen.kept() == of_pool(pool) | {place(one) for one in (y, index)}


WAITING: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "if": lambda x: 1 if x.sum() > 0 else 0,
    "tolist": lambda x: x.tolist(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "new_tensor": lambda x: x * x.new_tensor([1.0, 2.0]),
    "tensor": lambda x: x * torch.tensor([1.0, 2.0]).to(x.device),
    "cpu": lambda x: x.cpu(),
    "mixed": lambda x: x + torch.zeros(2),
}


@pytest.mark.parametrize("how", WAITING)
def test_what_waits_would_be_noticed(how: str) -> None:
    x, noticed = torch.empty(2, device=ELSEWHERE), False
    with Operations() as seen:
        try:
            WAITING[how](x)
        except (RuntimeError, NotImplementedError):
            noticed = True
    assert noticed or seen.uncapturable() or seen.kept() != {place(x)}
    with Operations() as seen:
        (x * 2).softmax(0).masked_fill_(x > 0, 1.0)
    assert not seen.uncapturable() and seen.kept() == {place(x)}


@EVERY_TWO
def test_replays_give_what_the_function_gives(kind: str, clip: str, chunk_bytes: int) -> None:
    """The same bits at other parameters, batches and clipping norms, empty batches and such as only fill up among them,
    with calls of other shapes between; of what it reads beside its inputs, all is the pool's."""
    sums, pool, model = made(kind, chunk_bytes)
    record = Recorder()
    replayed = Replayed(sums, record)
    before = []
    for seed in range(6):
        given = inputs(pool, model, clip, seed)
        found, expected = replayed(*given), sums(*given)
        assert len(found) == len(expected) == (1 if clip == "none" else 2)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        before.append((found, expected))
        sums(*inputs(pool, model, clip, seed, width=3 + seed))
    assert len(record.recorded) == 1 and record.replays == 6
    for found, expected in before:
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), "no later call overwrites it"
    of_inputs = {place(one) for one in next(iter(replayed._known.values()))[0]}
    assert record.recorded[0].kept() == of_pool(pool) | of_inputs


@pytest.mark.parametrize("chunk_bytes", [1, 2**20])
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("kind", IN_TURN)
def test_replayed_sums_in_turn_are_those_of_each_silos_own_records(kind: str, bound: str, chunk_bytes: int) -> None:
    """The same bits as of the function that was recorded, whether parameters are finite or not; and, up to rounding,
    those of the records without what fills batches up."""
    sums, pool, y = in_turn(kind, bound, chunk_bytes)
    record, ids = Recorder(), list(pool.records)
    replayed = Replayed(sums, record)
    rng = np.random.default_rng(1)
    for turn in range(5):
        given = (y * (1 + turn)).index_fill_(0, torch.tensor(turn % 2), math.inf if turn > 2 else 0.5)
        rows = [rng.permutation(size)[: rng.integers(turn > 0, size + 1)] for size in SILOS]
        (found,), (expected,) = (answer(given, pool.index(ids, rows, 9)) for answer in (replayed, sums))
        assert torch.equal(found, expected) and torch.isfinite(found).all()
        if turn > 2:
            assert not found[turn % 2].any(), "what is not finite adds nothing"
        for silo, index, one, total in zip(ids, rows, given, found, strict=True):
            alone = torch.empty_like(total)
            sums._engine.clipped_sum(one, pool.records[silo].select(torch.from_numpy(index)), sums._clip_norm, alone)
            torch.testing.assert_close(total, alone, rtol=1e-4, atol=1e-5)
    assert len(record.recorded) == 1 and record.replays == 5


@KINDS
@pytest.mark.parametrize("bad", [math.inf, math.nan, 1e300])
@pytest.mark.parametrize("first", ["finite", "not finite"])
def test_what_is_not_finite_is_left_out_whatever_was_recorded(kind: str, bad: float, first: str) -> None:
    """Parameters that make every gradient of the second silo infinite, recorded or replayed: it gets exactly nothing,
    and the others what they get beside a sound one."""
    sums, pool, model = made(kind)
    y, index, *clip = inputs(pool, model, "flat", 3)
    spoilt = y.clone()
    spoilt[1] = bad
    replayed = Replayed(sums, Recorder())
    order = (y, spoilt, y, spoilt) if first == "finite" else (spoilt, y, spoilt)
    for given in order:
        out, norms = replayed(given, index, *clip)
        expected, known = sums(given, index, *clip)
        assert torch.equal(out, expected) and torch.equal(norms, known) and torch.isfinite(out).all()
        if given is spoilt:
            sound = sums(y, index, *clip)[0]
            torch.testing.assert_close(out[[0, 2]], sound[[0, 2]], rtol=1e-12, atol=1e-14)
            if not math.isfinite(bad):
                assert not out[1].any(), "nothing, exactly"
                assert "hinge" in kind or torch.isinf(norms[1]).all()  # whose derivative is 0 or 1 at any output


def test_each_shape_is_recorded_once_and_no_more_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "SHAPES", 2)
    sums, pool, model = made("closed_form")
    record = Recorder()
    replayed = Replayed(sums, record)
    for width in (8, 5, 8, 3, 5, 3):
        given = inputs(pool, model, "flat", width, width=width)
        assert all(torch.equal(a, b) for a, b in zip(replayed(*given), sums(*given), strict=True))
    assert len(record.recorded) == 2 and record.replays == 4


def test_python_state_in_what_is_recorded_would_be_noticed() -> None:
    """The recorder keeps what a graph keeps: a counter, a number read from a tensor before, a stale sum."""
    steps = iter(range(1, 100))

    def counts(x: Tensor) -> tuple[Tensor, ...]:
        return (x * next(steps),)

    replayed = Replayed(counts, Recorder())
    assert [replayed(torch.ones(1))[0].item() for _ in range(3)] == [1.0, 1.0, 1.0]
    total = torch.zeros(1)
    with pytest.raises(AssertionError, match="writes to tensors that were there before"):
        Replayed(lambda x: (total.add_(x).clone(),), Recorder())(torch.ones(1))
    for waits in (lambda x: (x * float(x.sum()),), lambda x: (x[x > 0],), lambda x: (x * torch.tensor([2.0]),)):
        with pytest.raises(AssertionError):
            Replayed(waits, Recorder())(torch.ones(1))

    def uninitialised(x: Tensor) -> tuple[Tensor, ...]:
        return (torch.empty_like(x).mul_(0.0).add_(x),)

    assert torch.isnan(Replayed(uninitialised, Recorder())(torch.ones(1))[0]).all()


CUDA = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


@KINDS
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=CUDA)])
def test_a_cuda_graph_gives_what_the_function_gives(kind: str, clip: str, device: str) -> None:
    on_cpu, pool, model = made(kind)
    sums, _, _ = made(kind, device=device)
    replayed = Replayed(sums, replay.cuda_graph)
    for seed in range(6):
        given = inputs(pool, model, clip, seed)
        moved = tuple(one.to(device) for one in given)
        found = replayed(*moved)
        assert all(torch.equal(a, b) for a, b in zip(found, sums(*moved), strict=True))
        for a, b in zip(found, on_cpu(*given), strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-9, atol=1e-11)
        sums(*(one.to(device) for one in inputs(pool, model, clip, seed, width=3 + seed)))


@pytest.mark.parametrize("kind", IN_TURN)
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=CUDA)])
def test_a_cuda_graph_gives_what_sums_in_turn_give(kind: str, device: str) -> None:
    sums, pool, y = in_turn(kind, "flat", device=device)
    replayed, ids = Replayed(sums, replay.cuda_graph), list(pool.records)
    for turn in range(4):
        index = pool.index(ids, [np.arange(turn, size) for size in SILOS], 9)
        for a, b in zip(replayed(y * (1 + turn), index), sums(y * (1 + turn), index), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
