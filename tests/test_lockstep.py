"""Silos that are answered together get what each gets alone, with the same noise, counts and charges; and noise that is
computed on the device is each silo's own."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpfl_plugin.core.counter_words import SeededWords
from dpfl_plugin.core.device_noise import normals
from dpfl_plugin.core.grid import Grid
from dpfl_plugin.core.streams import stream_key
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Records, layers
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.dense import Dense
from dpfl_plugin.gradients.stacked import Pool
from dpfl_plugin.gradients.vmap import Vmap
from dpfl_plugin.oracle import Draw, PrivateOracle, together
from dpfl_plugin.privacy.clipping import Adaptive, AutoS, Clipping, Flat, Median, PerLayer
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.samplers import FixedSize, FullBatch, Poisson, Sampler
from dpfl_plugin.privacy.schedules import Geometric
from tests.on_device import noise_drawn_on
from tests.quadratics import rules

IDS, SIZES = (5, 2, 9, 4), (12, 8, 30, 12)
C = 0.4
MODELS = {
    "closed_form": (ClosedForm, nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()),
    "dense": (Dense, nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()),
}
SAMPLERS: dict[str, Sampler] = {
    "fixed": FixedSize(0.25),
    "poisson": Poisson(0.2),
    "next to none": Poisson(0.02),
    "full": FullBatch(),
}
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
        ],
    ),
]
CLIPPINGS: dict[str, Clipping] = {
    "flat": Flat(),
    "per_layer": PerLayer(),
    "adaptive": Adaptive(),
    "auto_s": AutoS(gamma=0.1),
}


def records() -> list[Records]:
    generator = torch.Generator().manual_seed(0)
    return [
        Records(
            torch.randn(size, 4, generator=generator, dtype=torch.float64),
            torch.randint(0, 3, (size,), generator=generator),
        )
        for size in SIZES
    ]


def oracle(
    kind: str, made_by: Any, *, lockstep: bool, draw: Draw | None = None, device: str = "cpu", **given: Any
) -> PrivateOracle:
    make, model = MODELS[kind]
    engine = make(copy.deepcopy(model).to(device), losses.cross_entropy, 2**20)  # type: ignore[call-arg]
    held_there = [Records(one.features.to(device), one.labels.to(device)) for one in records()]
    prepared = {silo: engine.prepare(one) for silo, one in zip(IDS, held_there, strict=True)}
    pool = Pool(prepared) if lockstep else None
    held = list((pool.records if pool else prepared).values())
    options = {"max_gradients": 3, "layers": layers(Layout.of(model)), **given}
    return PrivateOracle(made_by, engine, held, IDS, draw or Draw(1, 2), pool=pool, **options)


def start(kind: str) -> Tensor:
    d = Layout.of(MODELS[kind][1]).dimension
    return torch.randn(len(IDS), d, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def walk(asked: PrivateOracle, y: Tensor, steps: int = 3) -> list[Tensor]:
    """Gradients at points that depend on those before, of each silo by itself; on the CPU."""
    found = []
    for _ in range(steps):
        found.append(asked.gradient(y))
        y = y - 0.1 * found[-1]
    return [one.cpu() for one in found]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("noise", ["host", "device"])
@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("kind", MODELS)
def test_together_as_one_after_another(kind: str, sampler: str, clipping: str, noise: Any, device: str) -> None:
    """On any device, against the CPU. Values up to rounding; clipping norms and charges the same. Poisson batches
    differ in size, some are empty."""
    made_by = rules(1.5, C, SAMPLERS[sampler], clipping=CLIPPINGS[clipping], schedule=Geometric(beta=0.8, by="step"))
    given = {"clip_norms": [0.1, 0.4, 1.6, 6.4]} if CLIPPINGS[clipping].adapts else {}
    alone = oracle(kind, made_by, lockstep=False, **given)
    as_one = oracle(kind, made_by, lockstep=True, device=device, **given)
    with noise_drawn_on(noise):
        for expected, found in zip(walk(alone, start(kind)), walk(as_one, start(kind).to(device)), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    assert as_one.clip_norms == pytest.approx(alone.clip_norms, rel=1e-12)
    assert as_one.charges() == alone.charges()
    assert len(set(as_one.clip_norms)) == (4 if given else 1)


@pytest.mark.parametrize("kind", MODELS)
def test_a_share_of_each_silo_and_no_clipping(kind: str) -> None:
    for made_by, share in ((rules(0.0), (0.0, 1.0)), (rules(1.0, C, FixedSize(0.5)), (0.25, 0.75))):
        alone, as_one = (oracle(kind, made_by, lockstep=lockstep, share=share) for lockstep in (False, True))
        torch.testing.assert_close(as_one.gradient(start(kind)), alone.gradient(start(kind)), rtol=1e-9, atol=1e-11)
        assert as_one.charges() == alone.charges()


def counting(kind: str, made_by: Any, monkeypatch: pytest.MonkeyPatch, **given: Any) -> list[int]:
    """How many silos the engine was asked for at a time."""
    asked, seen = oracle(kind, made_by, lockstep=True, **given), []
    engine: Any = asked._engine
    whole, one = engine.clipped_sums, engine.clipped_sum

    def together_there(y: Tensor, *rest: Any, **how: Any) -> Any:
        seen.append(len(y))
        return whole(y, *rest, **how)

    monkeypatch.setattr(engine, "clipped_sums", together_there)
    monkeypatch.setattr(engine, "clipped_sum", lambda *rest: (seen.append(1), one(*rest))[1])
    asked.gradient(start(kind))
    return seen


@pytest.mark.parametrize("kind", MODELS)
def test_one_call_for_a_stack(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for releases of silos, and for clipping norms that are read from the batch: those are one at a time."""
    assert counting(kind, rules(1.0, C), monkeypatch) == [4]
    assert counting(kind, rules(1.0, C, clipping=Adaptive()), monkeypatch) == [4]
    assert counting(kind, rules(1.0, C, clipping=AutoS()), monkeypatch) == [4]
    assert counting(kind, rules(1.0, C, unit="silo"), monkeypatch) == [1] * 4
    assert counting(kind, rules(1.0, C, clipping=Median()), monkeypatch) == [1] * 8
    assert not together(Vmap(MODELS[kind][1], losses.cross_entropy, 2**20), rules(1.0, C))


# Noise on the device


def noise_of(made_by: Any, *, lockstep: bool, draw: Draw, steps: int = 3, **given: Any) -> list[Tensor]:
    silent = dataclasses.replace(made_by, mechanism=Gaussian(0.0))
    pairs = [oracle("dense", one, lockstep=lockstep, draw=draw, **given) for one in (made_by, silent)]
    y = start("dense")
    with noise_drawn_on("device"):
        return [pairs[0].gradient(y) - pairs[1].gradient(y) for _ in range(steps)]


def close_to_noise(found: Tensor, key: bytes, sigma: float, sensitivity: float) -> None:
    """Whether it is a stream's normals times sigma and the grid's sensitivity, but for rounding."""
    grid = Grid.of(sensitivity, len(found))
    words = SeededWords(lambda row, step: key)
    expected = normals(words, [(0, 0)], len(found), torch.device("cpu"))[0] * sigma * grid.sensitivity
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1.01 * grid.step)


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_device_noise_is_that_of_each_silos_stream(sampler: str, lockstep: bool) -> None:
    """sigma_g * Delta times the normals that the stream's name gives; of every step and silo its own."""
    by, sigma, draw = SAMPLERS[sampler], 2.5, Draw(7, 3, "run")
    found = noise_of(rules(sigma, C, by), lockstep=lockstep, draw=draw)
    for step, noise in enumerate(found):
        for row, silo in enumerate(IDS):
            key = stream_key(7, "noise", 3, silo, step)
            close_to_noise(noise[row] * by.divisor(SIZES[row]), key, sigma, by.sensitivity * C)
    for other in (Draw(8, 3, "run"), Draw(7, 4, "run")):
        (first,) = noise_of(rules(sigma, C, by), lockstep=lockstep, draw=other, steps=1)
        assert (first - found[0]).abs().min() > 1e-9


def test_device_noise_of_an_adaptive_clipping_norm_follows_it() -> None:
    """Each silo's in proportion to its own C_i, for the sum's part of the joint release; the count's is drawn on the
    host, from a stream of its own."""
    clip_norms, sigma = [0.1, 0.4, 1.6, 6.4], 2.0
    made_by = rules(sigma, C, clipping=Adaptive())
    for lockstep in (False, True):
        (found,) = noise_of(made_by, lockstep=lockstep, draw=Draw(1, 2), steps=1, clip_norms=clip_norms)
        for row, silo in enumerate(IDS):
            w = made_by.clipping.bit_weight(sigma, SIZES[row], 1.0)
            key = stream_key(1, "noise", 2, silo, 0)
            close_to_noise(found[row] * SIZES[row], key, sigma / math.sqrt(1 - w**2), 2 * clip_norms[row])


def test_device_noise_on_a_silos_update() -> None:
    made_by = rules(2.0, C, unit="silo")
    update = torch.zeros_like(start("dense"))
    with noise_drawn_on("device"):
        found = oracle("dense", made_by, lockstep=False, draw=Draw(1, 2)).release(update)
    for row, silo in enumerate(IDS):
        close_to_noise(found[row], stream_key(1, "noise", 2, silo, 0), 2.0, 2 * C)


class OnHostOnly:
    noise_multiplier = 1.0

    def event(self, *asked: Any) -> Any:
        return Gaussian(1.0).event(*asked)

    def __call__(self, *asked: Any) -> None:
        Gaussian(1.0)(*asked)


def test_device_noise_of_silos_is_in_proportion_to_their_own_settings() -> None:
    own = {IDS[1]: rules(8.0, C), IDS[2]: rules(2.0, 4 * C)}
    made_by = dataclasses.replace(rules(2.0, C), silos=own)
    with noise_drawn_on("device"):
        found = oracle("dense", made_by, lockstep=False, draw=Draw(1, 2)).gradient(start("dense"))
        silent = {silo: dataclasses.replace(one, mechanism=Gaussian(0.0)) for silo, one in own.items()}
        silent_too = dataclasses.replace(made_by, mechanism=Gaussian(0.0), silos=silent)
        found -= oracle("dense", silent_too, lockstep=False, draw=Draw(1, 2)).gradient(start("dense"))
    for row, silo in enumerate(IDS):
        of = own.get(silo, made_by)
        key = stream_key(1, "noise", 2, silo, 0)
        close_to_noise(found[row] * SIZES[row], key, of.noise_multiplier, 2 * of.clip_norm)


class Louder(Gaussian):
    """What it adds is not what its parent's steps say."""

    def __call__(self, *asked: Any) -> None:
        Gaussian(1.0)(*asked)


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("mechanism", [OnHostOnly(), Louder(0.5)], ids=["no steps", "the steps of its parent"])
def test_a_mechanism_without_steps_of_its_own_draws_on_the_host(mechanism: Any, lockstep: bool) -> None:
    found = []
    for place, how in (("device", mechanism), ("host", Gaussian(1.0))):
        asked = oracle("dense", dataclasses.replace(rules(1.0, C), mechanism=how), lockstep=lockstep)
        with noise_drawn_on(place):
            found.append(asked.gradient(start("dense")))
    assert torch.equal(*found)


def test_an_answer_that_is_computed_again_has_other_noise_on_the_device() -> None:
    """Of one round, seed and name; and the noise of two steps is not the same, either."""
    update, made_by = torch.zeros_like(start("dense")), rules(2.0, C, unit="silo", fresh=True)
    with noise_drawn_on("device"):
        one, other = (oracle("dense", made_by, lockstep=False, draw=Draw(1, 2)).release(update) for _ in range(2))
    rows = torch.corrcoef(torch.cat([one, other]))
    assert (one != other).all() and rows.fill_diagonal_(0.0).abs().max() < 0.9
