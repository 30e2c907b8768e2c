"""Gradients of persons: the mean over a person's records, clipped once, by every engine that has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpfl_plugin import registry
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.gradients import choice
from dpfl_plugin.gradients.base import Loss, Records
from dpfl_plugin.gradients.bookkeeping import BookKeeping
from dpfl_plugin.gradients.choice import Terms
from dpfl_plugin.gradients.losses import cross_entropy
from dpfl_plugin.gradients.outcome_losses import Hazards, Huber, MultiLabel, OutcomeLoss, Poisson, Squared
from dpfl_plugin.gradients.persons import MeanLoss, Persons
from dpfl_plugin.gradients.vmap import Vmap

CLASSES = 3


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(7, 4), nn.Linear(4, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.table(words.long()).mean(dim=1))
        return outputs


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 9, CLASSES)
    )


def sequences() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 6, CLASSES))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "softmax": (lambda: nn.Linear(5, CLASSES), (5,)),
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, CLASSES)), (5,)),
    "images": (images, (2, 5, 5)),
    "sequences": (sequences, (4, 5)),
    "words": (Words, (6,)),
}
ENGINES = {"bookkeeping": BookKeeping, "vmap": Vmap}


def batch(name: str, counts: list[int], k: int, seed: int = 0) -> Records:
    """Persons with these numbers of records."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(counts), k, *MODELS[name][1])
    x = torch.randint(0, 7, shape, generator=generator).float() if name == "words" else None
    x = torch.randn(shape, generator=generator) if x is None else x
    y = torch.randint(0, CLASSES, shape[:2], generator=generator)
    for row, count in enumerate(counts):
        x[row, count:], y[row, count:] = x[row, 0], -1
    return Records(x, y)


def model(name: str) -> nn.Module:
    torch.manual_seed(1)
    return MODELS[name][0]()


def expected(net: nn.Module, persons: Records, clip_norm: float, loss: Loss = cross_entropy) -> tuple[Tensor, Tensor]:
    """(the clipped sum, norms) from the definition, record by record and person by person."""
    parameters, rows = list(net.parameters()), []
    real = (
        persons.labels >= 0
        if loss is cross_entropy
        else persons.labels.reshape(len(persons), len(persons.labels[0]), -1).isfinite().all(dim=2)
    )
    for x, y, mine in zip(persons.features, persons.labels, real, strict=True):
        own = []
        for record, label in zip(x[mine], y[mine], strict=True):
            value = loss(net(record.unsqueeze(0)), label.unsqueeze(0))[0]
            own.append(torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters)]).double())
        rows.append(torch.stack(own).mean(dim=0))
    norms = torch.stack(rows).norm(dim=1)
    return (torch.stack(rows) / (norms / clip_norm).clamp(min=1).unsqueeze(1)).sum(dim=0), norms


def clipped(engine: Any, net: nn.Module, persons: Records, clip_norm: float | tuple[float, ...]) -> tuple[Tensor, Any]:
    y = Layout.of(net).flatten(dict(net.named_parameters())).detach()
    out = torch.full_like(y, math.nan, dtype=torch.float64)
    with torch.no_grad():
        norms = engine.clipped_sum(y, persons, clip_norm, out)
    return out, norms


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=6, deadline=None)
@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=5), share=st.sampled_from([0.3, 1.0, math.inf]))
def test_the_mean_gradient_of_a_person_is_clipped(name: str, engine: Any, counts: list[int], share: float) -> None:
    """Whatever the model's layers, the number of persons, and that of each person's records."""
    net, persons = model(name), batch(name, counts, 4)
    clip_norm = math.inf if share == math.inf else share * float(expected(net, persons, math.inf)[1].median())
    sought, norms = expected(net, persons, clip_norm)
    for chunk_bytes in (2**30, 1):
        found, told = clipped(engine(Persons(net), MeanLoss(cross_entropy), chunk_bytes), net, persons, clip_norm)
        assert float((found - sought).norm()) <= 1e-5 * float(norms.clamp(max=clip_norm).sum())
        if told is not None:
            assert torch.allclose(told.double(), norms, rtol=1e-4)


OUTCOMES: dict[str, tuple[OutcomeLoss, int]] = {
    "regression": (Squared(50.0, 50.0), 1),
    "huber": (Huber(50.0, 50.0, 0.3), 1),
    "counts": (Poisson(), 1),
    "labels": (MultiLabel(), 3),
    "survival": (Hazards((1.0, 2.5, 4.0)), 3),
}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("outcome", OUTCOMES)
@settings(max_examples=4, deadline=None)
@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=5), share=st.sampled_from([0.3, math.inf]))
def test_persons_have_any_outcome(outcome: str, engine: Any, counts: list[int], share: float) -> None:
    """Labels that are negative are some; what is no record has none."""
    loss, outputs = OUTCOMES[outcome]
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, outputs))
    made_up = loss.examples(outputs)
    if outcome in ("regression", "huber"):
        made_up = made_up - 70
    x = batch("softmax", counts, 4).features
    y = made_up[torch.arange(4 * len(counts)) % len(made_up)].view(len(counts), 4, *made_up.shape[1:])
    for row, count in enumerate(counts):
        y[row, count:] = math.nan
    persons = Records(x, y)
    clip_norm = math.inf if share == math.inf else share * float(expected(net, persons, math.inf, loss)[1].median())
    sought, norms = expected(net, persons, clip_norm, loss)
    for chunk_bytes in (2**30, 1):
        found, told = clipped(engine(Persons(net), MeanLoss(loss), chunk_bytes), net, persons, clip_norm)
        assert float((found - sought).norm()) <= 1e-5 * float(norms.clamp(max=clip_norm).sum())
        if told is not None:
            assert torch.allclose(told.double(), norms, rtol=1e-4)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("name", MODELS)
def test_one_person_moves_a_sum_by_no_more_than_the_clipping_norm(name: str, engine: Any) -> None:
    """However many records it has, however large they are; replaced by another person, twice as far. And no other
    person's part changes by a bit."""
    net, clip_norm, k = model(name), 0.01, 6
    made = engine(Persons(net), MeanLoss(cross_entropy), 2**30)
    one, other = batch(name, [6, 3, 1, 6], k), batch(name, [1, 6, 4, 2], k, seed=9)
    large = 1.0 if name == "words" else 50.0
    sums = []
    for row in range(4):
        x, y = one.features.clone(), one.labels.clone()
        x[row], y[row] = large * other.features[row], other.labels[row]
        for pair in (one, Records(x, y)):
            sums.append(clipped(made, net, pair, clip_norm)[0])
        whole, moved = sums[-2:]
        assert 0 < float((whole - moved).norm()) <= 2 * clip_norm * (1 + 2**-9)
        less = clipped(made, net, one.select(torch.tensor([i for i in range(4) if i != row])), clip_norm)[0]
        assert 0.99 * clip_norm < float((whole - less).norm()) <= clip_norm * (1 + 2**-9)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_person_with_a_record_that_is_not_finite_counts_as_zero(engine: Any) -> None:
    """All of the person, and nobody else."""
    net, persons = model("mlp"), batch("mlp", [3, 2, 4], 4)
    made = engine(Persons(net), MeanLoss(cross_entropy), 2**30)
    without = clipped(made, net, persons.select(torch.tensor([0, 2])), 0.1)[0]
    persons.features[1, 1] = math.inf
    found, norms = clipped(made, net, persons, 0.1)
    assert float((found - without).norm()) <= 1e-6 and bool(torch.isinf(norms[1]))


def test_bounds_by_layer() -> None:
    net, persons = model("mlp"), batch("mlp", [3, 1, 4], 4)
    found, norms = clipped(BookKeeping(Persons(net), MeanLoss(cross_entropy), 2**30), net, persons, (0.1, 0.2))
    other, others = clipped(Vmap(Persons(net), MeanLoss(cross_entropy), 2**30), net, persons, (0.1, 0.2))
    assert torch.allclose(found, other, atol=1e-6) and torch.allclose(norms, others, rtol=1e-4)


def test_engines_that_know_no_persons_are_refused_by_name() -> None:
    net = model("softmax")
    persons, loss, trial = Persons(net), MeanLoss(cross_entropy), torch.zeros(2, 4, 5)
    terms = choice.Terms(chunk_bytes=2**30)
    features = choice.made_up(persons, (4, 5), trial)
    for name in registry.names("engines"):
        if name in ENGINES:
            assert choice.choose(name, persons, loss, terms, features)[0].name == name
        else:
            with pytest.raises(UnsupportedError, match=f"engine='{name}' cannot be used: it has no gradients of pers"):
                choice.choose(name, persons, loss, terms, features)
    assert choice.choose("auto", persons, loss, terms, features)[0].name in ENGINES


def test_an_engine_that_clips_records_is_found_out() -> None:
    """The trial on made-up persons, some of which have fewer records than others, tells it."""

    class OfRecords(Vmap):
        persons = True

        def clipped_sum(self, y: Tensor, batch: Records, clip_norm: Any, out: Tensor) -> Tensor | None:
            flat = Records(batch.features.flatten(0, 1).unsqueeze(1), batch.labels.clamp(min=0).flatten().unsqueeze(1))
            return super().clipped_sum(y, flat, clip_norm, out)

    net = model("softmax")
    persons, loss = Persons(net), MeanLoss(cross_entropy)
    features = choice.made_up(persons, (4, 5), torch.zeros(2, 4, 5))
    expected_ = choice._Expected.of(persons, loss, features, choice.Terms(chunk_bytes=2**30))
    wrong = OfRecords(persons, loss, 2**30)
    assert "are not autograd's" in str(choice._tried(wrong, expected_, Terms(chunk_bytes=2**20)))
