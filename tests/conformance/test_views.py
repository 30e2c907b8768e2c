"""Augmentation: the mean gradient of a record's views is clipped once, by every engine that has views.

A record moves a release by what it would move it without views, and by all of that at worst; whatever the runtime, the
same bits.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpfl_plugin import registry
from dpfl_plugin.core.streams import PURPOSES
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.core.views import Augmentation
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.losses import cross_entropy
from dpfl_plugin.gradients.persons import MeanLoss, Persons
from dpfl_plugin.gradients.views import several, single
from dpfl_plugin.oracle import Draw, together
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from tests.conformance.cases import (
    RUNTIMES,
    SAMPLERS,
    C,
    Kept,
    N,
    Probe,
    Transcript,
    claimed_sensitivity,
    model,
)

ENGINES = [name for name in registry.names("engines") if getattr(registry.load("engines", name), "persons", False)]
VIEWS = Augmentation(views=3, flip=True, crop=2)
SHAPE, STEPS, SILOS, CHANGED = (1, 5, 4), 8, 3, (1, 7)  # the silo and the place of the record that is changed
HUGE = torch.from_numpy(1e5 * np.random.default_rng(5).random(SHAPE))


def images(count: int, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> Records:
    rng = np.random.default_rng(seed)
    return Records(torch.from_numpy(rng.standard_normal((count, *shape))), torch.arange(count) % 3)


def moved(image: Tensor, down: int, right: int, crop: int) -> Tensor:
    """By padding and cutting, as images are augmented elsewhere; (c, h, w)."""
    padded = nn.functional.pad(image.unsqueeze(0), (crop,) * 4, mode="reflect")[0]
    h, w = image.shape[1:]
    return padded[:, crop + down : crop + down + h, crop + right : crop + right + w]


@settings(max_examples=10, deadline=None)
@given(
    views=st.integers(1, 4),
    crop=st.integers(0, 3),
    flip=st.booleans(),
    shape=st.tuples(st.integers(1, 3), st.integers(4, 6), st.integers(4, 6)),
    seed=st.integers(0, 99),
)
def test_each_view_is_its_own_image_moved_and_mirrored(
    views: int, crop: int, flip: bool, shape: tuple[int, int, int], seed: int
) -> None:
    """And depends on no other record of the batch, nor on how many there are."""
    if not flip and not crop:
        return
    augmentation, batch = Augmentation(views, flip, crop), images(5, shape, seed)
    found = augmentation.of(batch.features, np.random.default_rng(seed))
    for image, made in zip(batch.features, found, strict=True):
        sides = range(-crop, crop + 1)
        could_be = [moved(image, down, right, crop) for down, right in itertools.product(sides, sides)]
        could_be += [one.flip(2) for one in could_be] if flip else []
        assert all(any(view.equal(one) for one in could_be) for view in made)
    other = torch.cat([batch.features[:2], torch.full_like(batch.features[:1], math.inf)])
    assert augmentation.of(other, np.random.default_rng(seed))[:2].equal(found[:2])


def test_every_view_that_there_can_be_comes_up_as_often_as_the_others() -> None:
    """18 views, 1/18 of 9,000 each: 500, give or take 22; one of them is off by 7 deviations with chance < 1e-10."""
    image = torch.arange(16.0).view(1, 1, 4, 4)
    found = Augmentation(views=9000, flip=True, crop=1).of(image, np.random.default_rng(0))[0]
    kinds, counts = np.unique(found.flatten(1).numpy(), axis=0, return_counts=True)
    assert len(kinds) == 18 and np.abs(counts - 500).max() < 7 * 22


@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=4, deadline=None)
@given(count=st.integers(1, 6), share=st.sampled_from([0.3, 1.0, math.inf]), seed=st.integers(0, 99))
def test_an_engine_clips_the_mean_gradient_of_a_records_views(name: str, count: int, share: float, seed: int) -> None:
    """Against autograd, view by view and record by record; whatever the memory."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 9, 3)).double()
    parameters, rows = list(net.parameters()), []
    batch = several(VIEWS, images(count, (2, 5, 5), seed), np.random.default_rng(seed))
    for views, labels in zip(batch.features, batch.labels, strict=True):
        own = []
        for view, label in zip(views, labels, strict=True):
            value = cross_entropy(net(view.unsqueeze(0)), label.unsqueeze(0))[0]
            own.append(torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters)]))
        rows.append(torch.stack(own).mean(dim=0))
    norms = torch.stack(rows).norm(dim=1)
    clip_norm = share * float(norms.median())
    sought = (torch.stack(rows) / (norms / clip_norm).clamp(min=1).unsqueeze(1)).sum(dim=0)
    y = Layout.of(net).flatten(dict(net.named_parameters())).detach()
    for chunk_bytes in (2**30, 1):
        engine, out = registry.load("engines", name)(Persons(net), MeanLoss(cross_entropy), chunk_bytes), y.clone()
        with torch.no_grad():
            engine.clipped_sum(y, batch, clip_norm, out)
        assert float((out - sought).norm()) <= 1e-5 * float(norms.clamp(max=clip_norm).sum())


def released(
    image: Tensor | None, engine: str, sampler: str, runtime: str, unit: Any = "record", **named: Any
) -> Transcript:
    """Two rounds without noise; with ``image``, of label 0, in the place of one record."""
    net = model(math.prod(SHAPE), dtype=torch.float64)
    silos = {i: images(N, seed=i) for i in range(SILOS)}
    if image is not None:
        mine, place = CHANGED
        silos[mine].features[place], silos[mine].labels[place] = image, 0
    probe, sink, seen = Probe(STEPS, unit), Kept(), []
    host = SiloGroup(
        model=net,
        loss=cross_entropy,
        algorithm=probe,
        rules=PrivacyRules(
            unit=unit,
            neighbouring=SAMPLERS[sampler].neighbouring,
            clip_norm=C,
            mechanism=Gaussian(0.0),
            sampler=SAMPLERS[sampler],
            augmentation=VIEWS,
            **named,
        ),
        engine=registry.load("engines", engine)(Persons(net), MeanLoss(cross_entropy), 2**22),
        train=silos,
        test={},
        states={},
        lockstep=True,  # which views have to leave alone
    )
    made = RUNTIMES[runtime](host, sink, [lambda round, ids, up: seen.append(up)])
    everybody = tuple(range(SILOS))
    plan = replace(probe.round_plan(), participants=everybody, weights=(1 / SILOS,) * SILOS, silo_share=1.0)
    for round in range(2):
        made.run_round({"model": torch.zeros(3 * math.prod(SHAPE), dtype=torch.float64)}, plan, Draw(0, round))
        made.commit()
    steps = 1 if unit == "silo" else STEPS
    values = torch.stack([torch.stack([up[str(step)] for step in range(steps)]) for up in seen])
    return Transcript(values.numpy(), tuple(sink.charges))


CASES = [
    pytest.param(engine, sampler, [*RUNTIMES][place % len(RUNTIMES)], id=f"{engine}-{sampler}")
    for place, (engine, sampler) in enumerate(itertools.product(ENGINES, ("fixed", "poisson", "full")))
]


@pytest.mark.parametrize(("engine", "sampler", "runtime"), CASES)
def test_a_record_moves_a_release_by_delta_at_most_whatever_its_views(engine: str, sampler: str, runtime: str) -> None:
    others = {"opposite": -HUGE, "none": torch.zeros(SHAPE), "its own": None, "not finite": HUGE * math.inf}
    if sampler == "poisson":  # zero gradients are what counting as zero means
        others = {name: others[name] for name in ("none", "not finite")}
    one = released(HUGE, engine, sampler, runtime)
    delta = claimed_sensitivity(one.event)
    for name, image in others.items():
        other = released(image, engine, sampler, runtime)
        assert one.charges == other.charges and one.event.unit == "record"
        far = np.linalg.norm(one.values - other.values, axis=-1)
        mine = far[:, :, CHANGED[0]]
        assert not np.delete(far, CHANGED[0], axis=2).any()
        assert (mine <= delta * (1 + 1e-9)).all()
        drawn = mine > 0
        assert drawn.all() if sampler == "full" else 0 < drawn.mean() < 1
        if name == "opposite" or sampler == "poisson":
            assert (mine[drawn] >= delta * (1 - 1e-9)).all(), name


@pytest.mark.parametrize("engine", ENGINES)
def test_every_runtime_gives_the_same_bits(engine: str) -> None:
    first, *others = [released(HUGE, engine, "fixed", runtime).values for runtime in RUNTIMES]
    assert all(np.array_equal(first, other) for other in others)


def test_views_are_new_at_each_step_and_share_no_stream_with_noise_or_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """All records are in every batch, at the same parameters: only views differ."""
    made, key = [], Draw.key
    monkeypatch.setattr(Draw, "key", lambda self, *name: made.append((name, key(self, *name))) or made[-1][1])
    values = released(None, ENGINES[0], "full", "in_process, stack 1").values
    rows = values.reshape(2 * STEPS * SILOS, -1)
    assert len(np.unique(rows, axis=0)) == len(rows)
    keys = {purpose: {found for (what, *_), found in made if what == purpose} for purpose in PURPOSES}
    assert len(keys["views"]) == 2 * STEPS * SILOS
    assert not keys["views"] & set().union(*(keys[purpose] for purpose in PURPOSES if purpose != "views"))


def test_silos_with_views_are_answered_one_by_one() -> None:
    """By an engine that could answer them together, too: that would be of records as they are."""
    rules = PrivacyRules(
        unit="record", neighbouring="replace_one", clip_norm=C, mechanism=Gaussian(1.0), sampler=SAMPLERS["fixed"]
    )
    dense = registry.load("engines", "dense")
    assert together(dense, rules) and not together(dense, replace(rules, augmentation=VIEWS))


def test_a_record_alone_is_its_only_view() -> None:
    batch = images(3)
    alone = single(batch)
    assert alone.features.shape == (3, 1, *SHAPE) and alone.features[:, 0].equal(batch.features)
    assert alone.labels.equal(batch.labels.unsqueeze(1))


@pytest.mark.parametrize("shape", [(784,), (28, 28), (32, 32, 3), (1, 2, 9)])
def test_what_is_no_image_has_no_views(shape: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedError, match=r"augmentation(: features of shape|\.crop=2 moves)"):
        VIEWS.check(shape)
    VIEWS.check((3, 32, 32))
    with pytest.raises(UnsupportedError, match="features of shape"):
        VIEWS.check((3, 32, 32), real=False)


def test_what_nothing_is_proven_of_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="differ in nothing"):
        Augmentation(views=4)
    with pytest.raises(ConfigError, match=r"augmentation\.views=0"):
        Augmentation(views=0, flip=True)
    with pytest.raises(UnsupportedError, match="precomputes"):
        several(VIEWS, replace(images(2), constants=torch.zeros(2)), np.random.default_rng(0))
