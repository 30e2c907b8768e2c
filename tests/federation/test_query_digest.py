"""Noise is bound to what a round is asked at: another request never has the noise of this one, the same one always."""

from __future__ import annotations

import time
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from dpfl_plugin.federation.query_digest import asked_at

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.algorithms.scaffold import Scaffold
from dpfl_plugin.core.requests import request_digest
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.clipping import Adaptive
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.samplers import FixedSize
from tests.quadratics import Lab, rules, silo

D = 400
CHANGES = ("model", "control", "local_lr", "silo_share", "phase")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The names of all streams, in the order in which they are asked for."""
    found: list[bytes] = []
    real = Draw.key

    def key(self: Draw, purpose: str, silo: int, step: int) -> bytes:
        found.append(real(self, purpose, silo, step))
        return found[-1]

    monkeypatch.setattr(Draw, "key", key)
    return found


def lab(**more: Any) -> Lab:
    silos = [silo([1.0] * D, [float(i)] * D, copies=4) for i in range(2)]
    made_by = rules(5.0, 1.0, FixedSize(batch_size=2), **more)
    return Lab(Scaffold(local_steps=2, local_lr=0.1), silos, made_by, [0.5] * D)


def asked(made: Lab, changed: str = "") -> tuple[Vectors, list[Charge]]:
    """(uploads, charges) of round 3 at silo 1, with something changed."""
    down, plan = made.algorithm.download(made.server), made.plan()
    down = {name: value.clone() for name, value in down.items()}
    match changed:
        case "model" | "control":
            down[changed][7] += 1e-12
        case "local_lr":
            plan = replace(plan, local_lr=0.2)
        case "silo_share":
            plan = replace(plan, silo_share=0.5)
        case "phase":
            plan = replace(plan, phase="warm-up")
        case "share":
            plan = replace(plan, share=(0.0, 0.5))
        case "state":
            made.host.states["control"][1, 3] += 1e-12
        case "state of another":
            made.host.states["control"][0, 3] += 1e-12
        case "participants":
            plan = replace(plan, participants=(1,), weights=(1.0,))
        case "clip norm":
            made.host.states["oracle.clip_norm"][1] *= 1.5
    return made.host.run([1], down, plan, Draw(7, 3, run="run"))


@pytest.mark.parametrize("changed", [*CHANGES, "share", "state"])
def test_another_request_has_other_noise(drawn: list[bytes], changed: str) -> None:
    """The smallest change anywhere: no stream is drawn twice, and the difference of two answers has twice the noise."""
    up, charges = asked(lab())
    first = set(drawn)
    drawn.clear()
    other, more = asked(lab(), changed)
    assert first.isdisjoint(drawn)
    # A variance of d = 400 normals is off by 5 of its standard deviations with probability 6e-7.
    one, both = (float(value.double().var()) for value in (up["model"], up["model"] - other["model"]))
    assert abs(both / (2 * one) - 1) < 5 * (2 / D) ** 0.5 * 2 or changed in ("local_lr", "share")
    if changed != "state":  # of which the ledger has no name: what is read back is proven whole
        assert {c.noise_id for c in charges}.isdisjoint(c.noise_id for c in more)


@pytest.mark.parametrize("changed", ["", "state of another", "participants"])
def test_the_same_request_has_the_same_bits_and_the_same_name(changed: str) -> None:
    """Whoever else takes part, and in whatever state: a silo's answer does not depend on its stack."""
    up, charges = asked(lab())
    again, same = asked(lab(), changed)
    assert torch.equal(up["model"], again["model"]) and charges == same


def test_an_adapted_clipping_norm_is_a_state(drawn: list[bytes]) -> None:
    clipping = Adaptive()
    asked(lab(clipping=clipping))
    first = set(drawn)
    drawn.clear()
    asked(lab(clipping=clipping), "clip norm")
    assert first.isdisjoint(drawn)


def test_stacks_have_the_noise_of_single_silos() -> None:
    made, alone = lab(), lab()
    down, plan, draw = made.algorithm.download(made.server), made.plan(), Draw(7, 3, run="run")
    up, _ = made.host.run([0, 1], down, plan, draw)
    rows = [alone.host.run([i], down, plan, draw)[0]["model"] for i in (0, 1)]
    assert torch.equal(up["model"], torch.cat(rows))


def test_every_bit_and_every_name_is_in_the_digest() -> None:
    x = torch.linspace(-1, 1, 9)
    base = {"model": x, "control": x}
    flipped = x.clone()
    flipped.view(torch.int32)[8] ^= 1
    others: list[tuple[Vectors, list[object]]] = [
        ({"model": flipped, "control": x}, [1]),
        ({"model": x, "control": flipped}, [1]),
        ({"model": x}, [1]),
        ({"model": x, "controls": x}, [1]),
        ({"model": x.double(), "control": x}, [1]),
        ({"model": x.view(3, 3), "control": x}, [1]),
        ({"model": -x * 0, "control": x}, [1]),
        (base, [2]),
        (base, []),
    ]
    found = [request_digest(vectors, facts) for vectors, facts in [(base, [1]), *others]]
    assert len(set(found)) == len(found) and all(len(one) == 16 for one in found)
    assert request_digest(dict(reversed(base.items())), [1]) == found[0], "the order of names is no matter"
    assert request_digest({"model": x.repeat(2, 1).t()[:, 0], "control": x}, [1]) == found[0], "nor is how it lies"
    for dtype in (torch.bfloat16, torch.bool, torch.int64):
        assert len(request_digest({"model": torch.ones(3, dtype=dtype)})) == 16


def test_what_it_costs() -> None:
    """A pass over d numbers: far from what a round of d parameters takes; generous, for busy machines."""
    vectors = {"model": torch.randn(1_000_000)}
    began = time.perf_counter()
    request_digest(vectors)
    assert time.perf_counter() - began < 0.2


def test_fedavg_without_states_is_bound_to_its_download(drawn: list[bytes]) -> None:
    silos = [silo([1.0] * D, [0.0] * D)]
    made = Lab(FedAvg(local_steps=1, local_lr=0.1), silos, rules(5.0, 1.0), [0.5] * D)
    plan = made.plan()
    for start in (0.5, 0.6):
        made.host.run([0], {"model": torch.full((D,), start, dtype=torch.float64)}, plan, Draw(7, 3))
    assert len(drawn) == len(set(drawn))


def test_all_that_a_plan_tells_a_silo_is_in_the_digest() -> None:
    """But for what no silo needs, nor is told on a platform. A new field has to find its place."""
    other: dict[str, Any] = {
        "local_steps": 9,
        "local_lr": 9.0,
        "num_gradients": 9,
        "share": (0.1, 0.9),
        "phase": "other",
        "smoothing": ("moreau", 1.0),
        "task": "score",
        "silo_share": 0.5,
    }
    plan, draw = RoundPlan(local_steps=1, local_lr=1.0, num_gradients=1), Draw(7, 3)
    untold = {"participants", "weights", "most_gradients", "participation"}
    assert {field.name for field in fields(RoundPlan)} == {*other, *untold}
    found = [asked_at(draw, {}, replace(plan, **{name: value})).asked for name, value in other.items()]
    assert len({asked_at(draw, {}, plan).asked, *found}) == 1 + len(other)
    assert asked_at(draw, {}, replace(plan, participants=(1,), weights=(1.0,))).asked == asked_at(draw, {}, plan).asked
