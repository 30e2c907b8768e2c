"""A project's own module around layers is known for what they are, where its code says no more than that."""

import functools

import pytest
import torch
from torch import nn

from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.choice import Terms, choose
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.dense import Dense
from dpfl_plugin.gradients.wrapped import unwrapped


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


class Net(nn.Module):
    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = layers() if inner is None else inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As projects write it."""
        return self.layers(x)


class Renamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Net()

    def forward(self, images):
        return self.body(images)


class Scaled(Net):
    def forward(self, x):
        return self.layers(x) * 2


class Branch(Net):
    """Of which no trial on a few made-up records need tell."""

    def forward(self, x):
        if x.abs().max() > 10_000:
            return -self.layers(x)
        return self.layers(x)


class Keyword(Net):
    def forward(self, x, *more):
        return self.layers(x)


class Another(Net):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(6, 3)


class Own(Net):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


class Called(Net):
    def __call__(self, x):
        return super().__call__(x) + 1


class Property(nn.Module):
    def __init__(self):
        super().__init__()
        self._modules["layers"] = layers()

    @property
    def layers(self):
        return functools.partial(torch.add, 1)

    def forward(self, x):
        return self.layers(x)


def hooked() -> nn.Module:
    made = Net()
    made.register_forward_hook(lambda module, inputs, output: output + 1)
    return made


def patched() -> nn.Module:
    made = Net()
    made.forward = lambda x: -made.layers(x)  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize("make", [Net, Renamed, lambda: Net(nn.Sequential(Net(), nn.Identity()))])
def test_what_only_hands_its_input_on_is_its_part(make):
    model = make()
    inner = unwrapped(model)
    assert type(inner) is nn.Sequential
    x = torch.randn(4, 6)
    assert torch.equal(inner(x), model(x))


@pytest.mark.parametrize("make", [Scaled, Branch, Keyword, Another, Own, Called, Property, hooked, patched])
def test_what_does_more_is_itself(make):
    model = make()
    assert unwrapped(model) is model
    assert Dense.unsupported(model, losses.cross_entropy) is not None


def test_a_wrapped_model_has_the_engine_of_its_layers():
    trial = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    terms = Terms(chunk_bytes=2**20)
    for model, expected in ((Net(), Dense), (Renamed(), Dense), (Net(nn.Linear(6, 3)), ClosedForm)):
        engine, _ = choose("auto", model, losses.cross_entropy, terms, trial)
        assert type(engine) is expected
    assert choose("auto", Branch(), losses.cross_entropy, terms, trial)[0].name == "bookkeeping"
