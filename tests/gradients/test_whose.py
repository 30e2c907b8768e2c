"""Whose code a model, a loss and torch are, where somebody put their own in a place that nobody asks by its name."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpfl_plugin.gradients.losses import cross_entropy
from dpfl_plugin.gradients.whose import keeps_nothing


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.TransformerEncoderLayer(3, 1, batch_first=True), nn.RNN(3, 3))


def own(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given, **named: function(*given, **named)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch._C._nn", "cross_entropy_loss"),
        ("torch.nn._reduction", "get_enum"),
        ("torch.nn.modules.transformer", "_get_seq_len"),
        ("torch.nn.utils.stateless", "_functional_call"),
        ("torch.overrides", "handle_torch_function"),
        ("torch.autograd.graph", "_engine_run_backward"),
        ("torch._functorch.vmap", "_flat_vmap"),
        ("dpfl_plugin.gradients.losses", "cross_entropy"),
    ],
)
def test_a_function_of_a_users_that_torch_calls_inside_is_seen(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    assert keeps_nothing(plain(), cross_entropy)
    place = sys.modules.get(module, torch._C._nn)
    monkeypatch.setattr(place, name, own(getattr(place, name)))
    assert not keeps_nothing(plain(), vars(sys.modules["dpfl_plugin.gradients.losses"])["cross_entropy"])


def test_a_module_that_says_it_is_torchs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    other = types.ModuleType("torch.nn.functional")
    vars(other).update(vars(functional), linear=own(functional.linear))
    monkeypatch.setattr("torch.nn.modules.linear.F", other)
    assert not keeps_nothing(plain(), cross_entropy)


def test_a_function_in_a_table_of_torchs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    table = nn.modules.rnn._rnn_impls
    monkeypatch.setitem(table, "RNN_TANH", own(table["RNN_TANH"]))
    assert not keeps_nothing(plain(), cross_entropy)


def test_other_code_in_a_function_of_torchs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, input: Tensor) -> Tensor:
        return input

    monkeypatch.setattr(nn.Linear.forward, "__code__", forward.__code__)
    assert not keeps_nothing(plain(), cross_entropy)


def test_a_function_whose_names_say_that_it_is_torchs_is_seen() -> None:
    names: dict[str, Any] = {"__name__": "torch.nn.functional"}
    exec("def own(x):\n    return x", names)
    model = plain()
    model[1].forward = names["own"]  # type: ignore[index]
    assert not keeps_nothing(model, cross_entropy)


@pytest.mark.parametrize("name", ["modules", "named_modules"])
def test_a_layer_is_found_whatever_a_model_says_of_its_layers(name: str) -> None:
    model = plain()
    model[0].register_forward_hook(lambda *given: None)  # type: ignore[index]
    setattr(model, name, lambda *given, **named: iter(()))
    assert not keeps_nothing(model, cross_entropy)


def test_an_operator_of_torchs_that_a_library_computes_is_seen() -> None:
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("celu", lambda x, alpha=1.0: x, "AutogradCPU")
        assert not keeps_nothing(plain(), cross_entropy)
    finally:
        library._destroy()
    assert keeps_nothing(plain(), cross_entropy)


def test_a_loss_of_torchs_with_options_is_torchs() -> None:
    assert keeps_nothing(plain(), functools.partial(functional.cross_entropy, reduction="none"))
    assert not keeps_nothing(plain(), functools.partial(own(functional.cross_entropy), reduction="none"))
    assert not keeps_nothing(plain(), functools.partial(functional.cross_entropy, weight=own(functional.relu)))
