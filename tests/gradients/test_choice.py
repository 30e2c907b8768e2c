"""Which engine is chosen: always the same one, only one that is exact, and errors that say what to write instead."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from dpfl_plugin import registry
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.gradients import choice, costs, losses
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.choice import Terms, candidates, choose, made_up
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.trace import trace
from dpfl_plugin.gradients.vmap import Vmap
from dpfl_plugin.oracle import Draw, PrivateOracle
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import FixedSize, Poisson
from tests.gradients.test_bookkeeping import CLASSES, MODELS, Mixed

TERMS = Terms(chunk_bytes=2**20)


def trial(*shape):
    return torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))


# Every engine, against vmap, by way of the oracle


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn", "words", "lstm", "attention"])
@settings(max_examples=5, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    sampler=st.sampled_from([FixedSize(batch_size=1), Poisson(0.15), Poisson(0.9)]),
    clip_norm=st.sampled_from([0.01, 1.0, 1e5]),
    chunk_bytes=st.sampled_from([1, 30_000, 2**26]),
    seed=st.integers(0, 1000),
)
def test_all_that_support_a_model_answer_a_stack_of_silos_alike(name, sizes, sampler, clip_norm, chunk_bytes, seed):
    """Silos of different sizes, Poisson batches (empty ones among them), one record, any chunk; with the same noise."""
    model, shape = MODELS[name]()
    model, generator = model.double(), torch.Generator().manual_seed(seed)
    silos = [
        Records(
            torch.randn(size, *shape, generator=generator, dtype=torch.float64),
            torch.randint(0, CLASSES, (size,), generator=generator),
        )
        for size in sizes
    ]
    y = torch.randn(len(sizes), Layout.of(model).dimension, generator=generator, dtype=torch.float64)
    rules = PrivacyRules(
        unit="record",
        neighbouring=sampler.neighbouring,
        clip_norm=clip_norm,
        mechanism=Gaussian(0.5),
        sampler=sampler,
    )
    found = {}
    for kind in registry.names("engines"):
        make = registry.load("engines", kind)
        if make.unsupported(model, losses.cross_entropy) is None:
            engine = make(model, losses.cross_entropy, chunk_bytes)
            prepared = [engine.prepare(records) for records in silos]
            asked = PrivateOracle(rules, engine, prepared, range(len(sizes)), Draw(seed, 0), max_gradients=1)
            found[kind] = asked.gradient(y)
    assert {"vmap", "opacus", "bookkeeping"} <= set(found)
    for value in found.values():
        torch.testing.assert_close(value, found["vmap"], rtol=1e-9, atol=1e-9 * max(1.0, clip_norm))


# What is chosen


@pytest.mark.parametrize(
    "name", ["linear", "no bias", "mlp", "words", "conv2d", "conv2d groups, few positions", "cnn", "lstm", "attention"]
)
def test_the_choice_is_the_cheapest_of_those_that_support_the_model_and_no_clock_has_a_say(name, monkeypatch):
    for clock in ("time", "perf_counter", "monotonic", "process_time"):
        monkeypatch.setattr(f"time.{clock}", lambda: pytest.fail("a clock was asked"))
    model, shape = MODELS[name]()
    for batch_size in (1, 64, 1000):
        terms = Terms(chunk_bytes=2**20, batch_size=batch_size)
        found = candidates(model, losses.cross_entropy, terms, trial(*shape))
        fitting = [one for one in found if one.engine is not None]
        estimates = [one.microseconds for one in fitting]
        assert estimates == sorted(estimates) and {one.name for one in found} == set(registry.names("engines"))
        assert all((one.engine is None) == bool(one.reason) for one in found)
    engine, reason = choose("auto", model, losses.cross_entropy, terms, trial(*shape))
    assert engine.name == fitting[0].name
    assert f"{estimates[0]:,.0f} us for {batch_size} records" in reason


def test_closed_forms_and_book_keeping_are_estimated_below_what_forms_every_gradient():
    for name, expected in {
        "linear": "closed_form",
        "mlp": "dense",
        "cnn": "bookkeeping",
        "lstm": "bookkeeping",
    }.items():
        model, shape = MODELS[name]()
        traced = trace(model, losses.cross_entropy, trial(*shape))
        estimates = {kind: costs.microseconds(kind, traced, 64, "cpu") for kind in costs.WORK}
        assert estimates[expected] < min(estimates["vmap"], estimates["opacus"])
        assert all(costs.microseconds(kind, traced, 640, "cpu") > estimates[kind] for kind in costs.WORK)


def test_a_strangers_engine_without_estimate_comes_before_the_general_one(monkeypatch):
    class Strange(Vmap):
        name = "strange"

    known, load = registry.names, registry.load
    monkeypatch.setattr(registry, "names", lambda group: [*known(group), "strange"])
    monkeypatch.setattr(registry, "load", lambda group, name: Strange if name == "strange" else load(group, name))
    model = nn.Sequential(nn.Linear(6, 3), nn.PReLU(), nn.Linear(3, CLASSES))
    engine, reason = choose("auto", model, losses.cross_entropy, TERMS, trial(6))
    assert engine.name == "strange" and "no estimate" in reason
    assert choose("auto", MODELS["mlp"]()[0], losses.cross_entropy, TERMS, trial(6))[0].name == "dense"


@pytest.mark.parametrize("wrong", ["norm of the first", "padding", "sum of the first", "gamma"])
def test_an_engine_that_answers_silos_wrongly_together_is_found_out(monkeypatch, wrong):
    """Each of its silos is right by itself."""

    class Wrong(ClosedForm):
        def clipped_sums(self, y, batches, clip_norms, out, gamma=None):
            if wrong == "norm of the first" and clip_norms is not None:
                clip_norms = clip_norms[:1].expand_as(clip_norms)
            if wrong == "padding":
                batches = replace(batches, padding=torch.zeros_like(batches.padding))
            found = super().clipped_sums(y, batches, clip_norms, out, None if wrong == "gamma" else gamma)
            if wrong == "sum of the first":
                out[1:] = out[0]
            return found

    load = registry.load
    monkeypatch.setattr(registry, "load", lambda group, name: Wrong if name == "closed_form" else load(group, name))
    given = "closed_form", MODELS["linear"]()[0], losses.cross_entropy
    with pytest.raises(UnsupportedError, match="several silos at once"):
        choose(*given, replace(TERMS, lockstep=True, normalised=True), trial(6))
    assert choose(*given, TERMS, trial(6))[0].name == "closed_form"  # which is not asked for several


def test_an_engine_that_clips_what_it_says_that_it_scales_is_found_out(monkeypatch):
    """Where a run scales; one that says nothing is refused by its class attribute."""

    class Clips(Vmap):
        def clipped_sum(self, y, batch, clip_norm, out):
            return super().clipped_sum(y, batch, clip_norm + 0.0, out)

    load = registry.load
    monkeypatch.setattr(registry, "load", lambda group, name: Clips if name == "vmap" else load(group, name))
    given = "vmap", MODELS["mlp"]()[0], losses.cross_entropy
    with pytest.raises(UnsupportedError, match="clipped gradients on made-up records are not autograd's"):
        choose(*given, replace(TERMS, normalised=True), trial(6))
    assert choose(*given, TERMS, trial(6))[0].name == "vmap"


def test_an_engine_that_gives_one_records_gradient_to_another_is_found_out(monkeypatch):
    """Its sums are right, and so are those of single records: only what is clipped is not what it should be."""

    class Shifted(Vmap):
        def __init__(self, *args):
            super().__init__(*args)
            own = self._gradients

            def shifted(parameters, features, labels):
                found = own(parameters, features, labels)
                if len(labels) == 1:
                    return found
                return {name: (value + value.roll(1, 0)) / 2 for name, value in found.items()}

            self._gradients = shifted

    load = registry.load
    monkeypatch.setattr(registry, "load", lambda group, name: Shifted if name == "vmap" else load(group, name))
    with pytest.raises(UnsupportedError, match="clipped gradients on made-up records are not autograd's"):
        choose("vmap", MODELS["mlp"]()[0], losses.cross_entropy, TERMS, trial(6))


def test_a_record_that_takes_more_than_there_is_goes_to_an_engine_that_needs_less():
    model = nn.Sequential(nn.Linear(500, 300), nn.ReLU(), nn.PReLU(), nn.Linear(300, CLASSES))
    assert choose("auto", model, losses.cross_entropy, TERMS, trial(500))[0].name in ("vmap", "opacus")
    terms = Terms(chunk_bytes=2**20, most_bytes=2**20)
    with pytest.raises(
        UnsupportedError, match=r"vmap: one record takes 2 MiB, where runtime\.memory_budget leaves 1 MiB"
    ):
        choose("auto", model, losses.cross_entropy, terms, trial(500))
    plain = nn.Sequential(nn.Linear(500, 300), nn.GELU(), nn.Linear(300, CLASSES))
    assert choose("auto", plain, losses.cross_entropy, terms, trial(500))[0].name == "bookkeeping"


# What is refused, and what to do then


class Tied(nn.Module):
    """One matrix for words in and for words out."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(torch.tanh(self.table(x.abs().long() % 6)).mean(dim=1))


def test_shared_parameters_go_to_vmap_and_others_name_them():
    model = Tied()
    assert Layout.of(model).names == ("table.weight",)
    found = {one.name: one for one in candidates(model, losses.cross_entropy, TERMS, 3 * trial(5))}
    assert "table and head share the parameter table.weight" in found["bookkeeping"].reason
    engine, _ = choose("auto", model, losses.cross_entropy, TERMS, 3 * trial(5))
    assert engine.name in ("vmap", "opacus")
    y, batch = torch.randn(24), Records(3 * trial(5), torch.tensor([0, 1, 5]))
    out, expected = torch.empty(24, dtype=torch.float64), torch.zeros(24, dtype=torch.float64)
    engine.clipped_sum(y, batch, 0.1, out)
    for row in range(3):  # by autograd, both uses of the matrix together
        weight = y.view(6, 4).clone().requires_grad_()
        words = batch.features[row : row + 1].abs().long() % 6
        outputs = functional.linear(torch.tanh(functional.embedding(words, weight)).mean(dim=1), weight)
        losses.cross_entropy(outputs, batch.labels[row : row + 1]).sum().backward()
        expected += weight.grad.flatten() * min(1.0, 0.1 / float(weight.grad.norm()))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-6)


def standardised(outputs, labels):
    each = losses.cross_entropy(outputs, labels)
    return each / each.sum()


def of_all(outputs, labels):
    return losses.cross_entropy(outputs, labels) * outputs.square().sum()


@pytest.mark.parametrize("loss", [standardised, of_all])
@pytest.mark.parametrize("engine", ["auto", "bookkeeping", "vmap"])
def test_a_loss_that_is_not_one_of_each_record_is_refused(loss, engine):
    with pytest.raises(UnsupportedError, match=r"depends on the other records .*reduction='none'"):
        choose(engine, MODELS["mlp"]()[0], loss, TERMS, trial(6))


def test_a_model_that_mixes_records_is_refused_by_name_or_by_trial():
    for layer, words in (
        (nn.BatchNorm1d(6), r"^0: BatchNorm1d mixes .* Use nn\.GroupNorm or nn\.LayerNorm"),
        (nn.BatchNorm1d(6, affine=False), r"^0: BatchNorm1d mixes"),
        (nn.Dropout(0.2), r"^0: Dropout draws .* Leave it out"),
    ):
        with pytest.raises(UnsupportedError, match=words):
            choose("auto", nn.Sequential(layer, nn.Linear(6, 3)), losses.cross_entropy, TERMS, trial(6))
    with pytest.raises(UnsupportedError, match="the model mixes the records of a batch"):
        choose("auto", Mixed(), losses.cross_entropy, TERMS, 3 * trial(4))
    with pytest.raises(UnsupportedError, match=r"^0: LSTM has dropout"):
        choose("auto", nn.Sequential(nn.LSTM(6, 6, 2, dropout=0.1)), losses.cross_entropy, TERMS, trial(4, 6))


class OnlyWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.head(self.table(x.long()).mean(dim=1))


def test_a_model_of_word_numbers_is_tried_on_words():
    """Normal numbers are negative at times, which no table has a row for."""
    model = OnlyWords()
    features = made_up(model, (5,), torch.zeros(1))
    assert set(features.unique().tolist()) == {0.0, 1.0} and features.shape == (3, 5)
    assert choose("auto", model, losses.cross_entropy, TERMS, features)[0].name == "bookkeeping"
    assert made_up(nn.Linear(5, 2).double(), (5,), torch.zeros(1).double()).dtype == torch.float64
    with pytest.raises(UnsupportedError, match=r"fails on made-up records of shape \(3, 5\): RuntimeError"):
        made_up(nn.Linear(4, 2), (5,), torch.zeros(1))


@pytest.mark.slow
def test_a_model_of_millions_of_parameters_finds_its_engine():
    """What engines are compared with needs norms that are right: torch's, in float32, are short by 1e-3 here."""
    model = nn.Linear(1_000_000, 10, bias=False)
    features = made_up(model, (1_000_000,), torch.zeros(1))
    assert choose("auto", model, losses.cross_entropy, TERMS, features)[0].name == "closed_form"


# Trials that a process need not repeat


class Scaled(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.layer, self.scale, self.activation = nn.Linear(4, 3), scale, functional.relu
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, x):
        return self.activation(self.layer(x)) * self.scale + self.shift


Another = type("Scaled", (Scaled,), {"__module__": __name__, "__qualname__": "Another"})


def halved(outputs, labels):
    return functional.cross_entropy(outputs, labels, reduction="none") / 2


def frozen(model):
    model.layer.bias.requires_grad_(False)
    return model


OTHERS = {
    "an attribute": {"model": Scaled(2.0)},
    "what trains": {"model": frozen(Scaled())},
    "its class": {"model": Another()},
    "its type": {"model": Scaled().double(), "trial": trial(4).double()},
    "the loss": {"loss": halved},
    "how many records": {"trial": torch.zeros(4, 4)},
    "the batch": {"terms": replace(TERMS, batch_size=65)},
    "the engine": {"name": "vmap"},
}


@pytest.fixture
def tried(monkeypatch):
    """Whenever an engine is tried, or records are tried for independence."""
    found, real, expected = [], choice._tried, choice._Expected.of
    monkeypatch.setattr(choice, "_tried", lambda *args: (found.append("tried"), real(*args))[1])
    monkeypatch.setattr(choice._Expected, "of", lambda *args: (found.append("records"), expected(*args))[1])
    return found


def chosen(passed, name="bookkeeping", model=None, loss=losses.cross_entropy, terms=TERMS, **more):
    return choose(name, model or Scaled(), loss, terms, more.get("trial", trial(4)), passed)[0]


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_trial_is_not_repeated_unless_model_loss_or_terms_differ(tried, other):
    passed = {}
    made = chosen(passed)
    assert tried == ["records", "tried"]
    again = chosen(passed)
    assert tried == ["records", "tried"] and again is not made
    y, batch, found = torch.linspace(-1, 1, 15), Records(trial(4), torch.tensor([0, 2, 1])), []
    for engine in (made, again):
        found.append(torch.empty(15, dtype=torch.float64))
        engine.clipped_sum(y, batch, 0.5, found[-1])
    assert torch.equal(*found)
    tried.clear()
    chosen(passed, **other)
    assert tried == ["records", "tried"]


def test_without_a_cache_and_for_models_that_cannot_be_pickled_a_trial_is_repeated(tried):
    hooked = Scaled()
    hooked.layer.register_forward_hook(lambda *_: None)
    for passed, model in ((None, Scaled()), ({}, hooked)):
        for _ in range(2):
            tried.clear()
            chosen(passed, "vmap", model)
            assert tried == ["records", "tried"]


def test_failed_trials_are_repeated_and_memory_is_looked_at_each_time():
    class Mixing(Scaled):
        def forward(self, x):
            return super().forward(x - x.mean(dim=0))

    passed = {}
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="mixes the records"):
            chosen(passed, model=Mixing())
    chosen(passed)
    with pytest.raises(UnsupportedError, match=r"where runtime\.memory_budget leaves"):
        chosen(passed, terms=replace(TERMS, most_bytes=8.0))
