"""Whatever decides what a model computes, besides parameters and buffers, tells it from another, or is in doubt."""

from __future__ import annotations

import argparse
import array
import collections
import dataclasses
import enum
import functools
import hashlib
import json
import logging
import math
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpfl_plugin.gradients import losses
from dpfl_plugin.models.attributes import describe
from dpfl_plugin.models.cnn import cnn
from dpfl_plugin.models.linear import logistic, softmax
from dpfl_plugin.models.mlp import mlp


class Net(nn.Module):
    def __init__(self, **held: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        for name, value in held.items():
            setattr(self, name, value)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    scale: float = 1.0


class Pair(NamedTuple):
    one: float


class Plain:
    def __init__(self, scale: float) -> None:
        self._scale = scale


def scaled(by: float) -> Callable[[Any], Any]:
    def apply(x: Any, more: float = by) -> Any:
        return x * by * more

    return apply


def closed(by: float) -> Callable[[Any], Any]:
    return lambda x: x * by


def hidden(by: float) -> nn.Module:
    """A layer of a list, which torch does not know of."""
    layer = nn.Linear(1, 1)
    nn.init.constant_(layer.weight, by), nn.init.zeros_(layer.bias)
    return layer


def looped(by: float) -> dict[str, Any]:
    found: dict[str, Any] = {"scale": by}
    return {**found, "me": [found]} if by else found


# Of a number: two of them are two models, and twice the same number is one.
HELD: dict[str, Callable[[float], Any]] = {
    "number": lambda by: by,
    "tensor": torch.tensor,
    "tensor of integers": lambda by: torch.tensor([int(by * 2)]),
    "array": lambda by: np.array([[by]]),
    "scalar of numpy": np.float32,
    "list": lambda by: [1, [by]],
    "dict": lambda by: {"scale": {"of": by}},
    "keys": lambda by: {by: 1},
    "order": lambda by: dict(sorted({"a": 1, "b": 1}.items(), reverse=by > 1)),
    "counter": lambda by: collections.OrderedDict(a=by),
    "set": lambda by: {"a", "b", by},
    "bytes": lambda by: str(by).encode(),
    "slice": lambda by: slice(int(2 * by)),
    "enum": lambda by: Colour.RED if by > 1 else Colour.BLUE,
    "dataclass": Options,
    "named tuple": Pair,
    "namespace": lambda by: types.SimpleNamespace(scale=by),
    "object": Plain,
    "partial": lambda by: functools.partial(F.leaky_relu, negative_slope=by),
    "closure": closed,
    "default": lambda by: scaled(by),
    "method": lambda by: types.MethodType(closed(by), Colour.RED),
    "code": lambda by: (lambda x: x + 1) if by > 1 else (lambda x: x + 2),
    "function": lambda by: F.relu if by > 1 else F.gelu,
    "builtin": lambda by: torch.sin if by > 1 else torch.cos,
    "class": lambda by: nn.ReLU if by > 1 else nn.Tanh,
    "class of its own": lambda by: type("Made", (), {"__module__": __name__, "scale": by}),
    "dtype": lambda by: torch.float32 if by > 1 else torch.float64,
    "hidden layer": lambda by: [hidden(by)],
    "itself": looped,
}


@pytest.mark.parametrize("name", ["scale", "_scale"])
@pytest.mark.parametrize("what", HELD)
def test_another_value_of_an_attribute_is_another_model(what: str, name: str) -> None:
    torch.manual_seed(0)
    one, same, other = (describe({"the model": Net(**{name: HELD[what](by)})}) for by in (1.5, 1.5, 1.0))
    assert one.facts == same.facts and one.facts != other.facts
    assert not one.doubts and not other.doubts
    json.dumps(one.facts)


def test_what_users_classes_hold_counts() -> None:
    """As where a variable of the environment is read where the class is made."""

    def made(by: float) -> nn.Module:
        kind: Callable[[], nn.Module] = type("Net", (Net,), {"__module__": __name__, "scale": by, "f": closed(by)})
        return kind()

    facts = [describe({"the model": made(by)}).facts for by in (1.0, 1.0, 2.0)]
    assert facts[0] == facts[1] != facts[2]


SCALE: Any = 1.0
LOG = logging.getLogger(__name__)


def reads(x: Any) -> Any:
    return x * SCALE


def reads_within(x: Any) -> Any:
    return (lambda y: y * SCALE)(x)


class Reads(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * SCALE


def logs(x: Any) -> Any:
    LOG.info("%s", x)
    return x


def calls(x: Any) -> Any:
    return reads(x)


def takes(x: Any) -> Any:
    return x * attributes_here.SCALE


def of_torch(x: Any) -> Any:
    return F.leaky_relu(x)


attributes_here = sys.modules[__name__]


def called(one: Any) -> str:
    return str(getattr(one, "__name__", type(one).__name__))


@pytest.mark.parametrize("what", [reads, reads_within, Reads(), calls, takes], ids=called)
@pytest.mark.parametrize(
    "value", [2.0, torch.tensor(2.0), types.SimpleNamespace(by=2.0), argparse.Namespace(by=2.0)], ids=called
)
def test_a_global_variable_that_is_read_counts(what: Any, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a program trains in a loop, with another value each time: neither source nor closure differ."""
    before = describe({"it": what})
    monkeypatch.setitem(globals(), "SCALE", value)
    after, again = describe({"it": what}), describe({"it": what})
    assert before.facts != after.facts == again.facts and not after.doubts
    json.dumps(after.facts)


def test_what_a_program_puts_into_a_library_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = describe({"it": of_torch})
    monkeypatch.setattr(F, "leaky_relu", closed(0.3))
    assert describe({"it": of_torch}).facts != before.facts


def test_a_global_variable_that_no_digest_shows_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SCALE", np.random.default_rng(0))
    (doubt,) = describe({"it": reads}).doubts
    assert "global variable" in doubt and "SCALE" in doubt
    assert not describe({"it": of_torch}).doubts, "that does not read it"


@pytest.mark.parametrize("where", ["model", "inner", "parameter", "everywhere"])
def test_hooks_are_in_doubt(where: str) -> None:
    model = Net()
    assert not describe({"the model": model}).doubts
    match where:
        case "model":
            handle = model.register_forward_hook(lambda *given: None)
        case "inner":
            handle = model.linear.register_forward_pre_hook(lambda *given: None)
        case "parameter":
            handle = model.linear.weight.register_hook(lambda gradient: gradient)
        case "everywhere":
            handle = nn.modules.module.register_module_forward_hook(lambda *given: None)
    try:
        doubts = describe({"the model": model}).doubts
    finally:
        handle.remove()
    assert len(doubts) == 1 and "hooks" in doubts[0]


class Fails:
    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise RuntimeError("never")


NO_DIGEST: dict[str, Callable[[], object]] = {
    "generator": torch.Generator,
    "generator of numpy": lambda: np.random.default_rng(0),
    "sparse": lambda: torch.ones(2, 2).to_sparse(),
    "without data": lambda: torch.empty(2, device="meta"),
    "objects": lambda: np.array([object()]),
    "iterator": lambda: iter([1]),
    "module": lambda: math,
    "fails": Fails,
}


@pytest.mark.parametrize("what", NO_DIGEST)
def test_what_no_digest_shows_is_in_doubt(what: str) -> None:
    value = NO_DIGEST[what]()
    for held in (value, [value], {"it": value}):
        doubts = describe({"the model": Net(_held=held)}).doubts
        assert len(doubts) == 1 and "the model" in doubts[0] and "_held" in doubts[0]


def test_what_has_no_end_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpfl_plugin.models.attributes.MOST", 100)
    assert describe({"the model": Net(held=[[] for _ in range(200)])}).doubts
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert describe({"the model": Net(held=deep)}).doubts


MODELS: dict[str, Callable[[], object]] = {
    "softmax": lambda: softmax((4,), 3),
    "logistic": lambda: logistic((4,), 2),
    "mlp": lambda: mlp((4,), 3),
    "cnn": lambda: cnn((1, 8, 8), 3),
    "recurrent": lambda: nn.Sequential(nn.Embedding(3, 2), nn.LSTM(2, 2), nn.GRUCell(2, 2)),
    "transformer": lambda: nn.TransformerEncoderLayer(2, 1, 2, 0.0, activation=F.gelu),
    "attention": lambda: nn.MultiheadAttention(2, 1),
    "norms": lambda: nn.Sequential(nn.LayerNorm(2), nn.GroupNorm(1, 2), nn.RMSNorm(2)),
    "others": lambda: nn.ModuleList([nn.ConvTranspose2d(1, 1, 2), nn.LPPool2d(2, 2), nn.Upsample(2), nn.Softmax(1)]),
    "parametrised": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
    "cross_entropy": lambda: losses.cross_entropy,
    "torch's loss": lambda: F.cross_entropy,
    "a loss as a layer": lambda: nn.CrossEntropyLoss(reduction="none"),
    "logs": lambda: logs,
    "a loss with options": lambda: functools.partial(F.cross_entropy, reduction="none", label_smoothing=0.1),
}


@pytest.mark.parametrize("name", MODELS)
def test_usual_models_and_losses_are_in_no_doubt(name: str) -> None:
    torch.manual_seed(0)
    first, second = (describe({"it": MODELS[name]()}) for _ in range(2))
    assert not first.doubts and first.facts == second.facts


def all_held() -> str:
    torch.manual_seed(0)
    facts = [describe({"it": Net(held=make(1.5))}).facts for make in HELD.values()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def test_every_process_describes_alike() -> None:
    """Neither addresses nor the order of sets, which Python draws anew for each process, are in it."""
    folder = str(Path(__file__).resolve().parents[2])
    text = "from tests.models import test_attributes as it\nprint(it.all_held())"
    other = {"PYTHONHASHSEED": "1", "PYTHONPATH": folder}
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=folder, env=other, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == all_held()


def test_classes_of_one_name_do_not_hide_each_other() -> None:
    def made(factor: float) -> type[nn.Module]:
        class Scaled(nn.Module):
            scale = factor

        return Scaled

    first, second = made(1.0), made(2.0)
    model = nn.Sequential(first(), second(), first())
    before = describe({"the model": model}).facts
    second.scale = 3.0  # type: ignore[attr-defined]
    assert describe({"the model": model}).facts != before
    second.scale = 2.0  # type: ignore[attr-defined]
    assert describe({"the model": model}).facts == before


@pytest.mark.parametrize("kept", [bytearray(b"12"), array.array("d", [1.0, 2.0])])
def test_bytes_that_change_in_place_count(kept: Any) -> None:
    before = describe({"the model": kept})
    kept[1] = 5
    assert describe({"the model": kept}).facts != before.facts and not before.doubts
