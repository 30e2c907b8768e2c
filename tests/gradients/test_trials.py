"""What passed a trial is not tried again, unless anything differs that decides how the trial ends."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.gradients import choice, losses
from dpfl_plugin.gradients.choice import choose
from dpfl_plugin.gradients.trials import MOST, Terms, Trials

TERMS = Terms(chunk_bytes=2**20)


class Scaled(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.scale = nn.Linear(4, 3), scale
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, x):
        return self.layer(x) * self.scale + self.shift


def alike():
    """A class of its own, of which no value tells that it is another."""

    class Net(Scaled):
        pass

    return Net


One, Another = alike(), alike()


def halved(outputs, labels):
    return functional.cross_entropy(outputs, labels, reduction="none") / 2


def changed(change):
    model = Scaled()
    with torch.no_grad():
        change(model)
    return model


def features(*shape, count=3):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))


OTHERS = {
    "a parameter's last bit": {"model": changed(lambda m: m.layer.bias.copy_(m.layer.bias.nextafter(m.shift)))},
    "a buffer": {"model": changed(lambda m: m.shift.add_(1.0))},
    "an attribute": {"model": Scaled(2.0)},
    "what trains": {"model": changed(lambda m: m.layer.bias.requires_grad_(False))},
    "its mode": {"model": changed(lambda m: m.eval())},
    "its class": {"model": One()},
    "a class that says the same": {"model": Another(), "before": One()},
    "its type": {"model": Scaled().double(), "trial": features(4).double()},
    "the loss": {"loss": halved},
    "the features": {"trial": features(4) + 1},
    "how many records": {"trial": features(4, count=4)},
    "the batch": {"terms": replace(TERMS, batch_size=65)},
    "the chunk": {"terms": replace(TERMS, chunk_bytes=2**21)},
    "lockstep": {"terms": replace(TERMS, lockstep=True)},
    "the engine": {"name": "vmap"},
}


@pytest.fixture
def tried(monkeypatch):
    """Whenever an engine is tried, or records are looked at for being mixed."""
    found, real, expected = [], choice._tried, choice._Expected.of
    monkeypatch.setattr(choice, "_tried", lambda *args: (found.append("tried"), real(*args))[1])
    monkeypatch.setattr(choice._Expected, "of", lambda *args: (found.append("records"), expected(*args))[1])
    return found


def chosen(trials, name="bookkeeping", model=None, loss=losses.cross_entropy, terms=TERMS, trial=None):
    trial = features(4) if trial is None else trial
    return choose(name, Scaled() if model is None else model, loss, terms, trial, trials)[0]


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_whatever_decides_a_trial_has_it_made_again(tried, other):
    trials = Trials()
    first = {"model": other["before"]} if "before" in other else {}
    made = chosen(trials, **first)
    tried.clear()
    again = chosen(trials, **first)
    assert tried == [] and again is not made, "an engine of its own, which is not tried"
    chosen(trials, **{key: value for key, value in other.items() if key != "before"})
    assert tried[:2] == ["records", "tried"]


def test_where_none_is_kept_all_is_tried_and_what_cannot_be_described_always(tried):
    hooked = Scaled()
    hooked.layer.register_forward_hook(lambda *_: None)
    for trials, model in ((None, Scaled()), (Trials(), hooked)):
        for _ in range(2):
            tried.clear()
            chosen(trials, "vmap", model)
            assert tried == ["records", "tried"]


def test_what_failed_is_refused_again_and_so_is_what_has_no_memory_any_more():
    class Mixing(Scaled):
        def forward(self, x):
            return super().forward(x - x.mean(dim=0))

    trials = Trials()
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="mixes the records"):
            chosen(trials, model=Mixing())
    assert len(trials) == 0
    chosen(trials)
    with pytest.raises(UnsupportedError, match=r"where runtime\.memory_budget leaves"):
        chosen(trials, terms=replace(TERMS, most_bytes=8.0))


def test_they_are_bounded_and_the_sums_of_an_engine_that_was_not_tried_are_those_of_one_that_was():
    trials = Trials()
    for number in range(MOST + 5):
        chosen(trials, model=Scaled(1.0 + number))
    assert len(trials) == MOST
    y, batch = torch.linspace(-1, 1, 15), choice.Records(features(4), torch.tensor([0, 2, 1]))
    found = []
    for kept in (trials, trials, None):
        found.append(torch.empty(15, dtype=torch.float64))
        with torch.no_grad():
            chosen(kept).clipped_sum(y, batch, 0.5, found[-1])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
