"""Code of a model or a loss that keeps something from one call to the next is refused before anything leaves."""

from __future__ import annotations

import copy
import ctypes
import functools
import mmap
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus.grad_sample import GradSampleModule
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.ao.quantization import MinMaxObserver
from torch.nn import functional
from torch.overrides import BaseTorchFunctionMode

from dpfl_plugin import Field, Fields, FieldsModel, PrivateOracle, registry
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import ChangedError, DpflError
from dpfl_plugin.gradients.base import Engine, Records
from dpfl_plugin.gradients.losses import cross_entropy
from dpfl_plugin.gradients.outcome_losses import Foreign, Squared
from dpfl_plugin.gradients.persons import MeanLoss
from dpfl_plugin.gradients.steady import Steady
from dpfl_plugin.gradients.whose import keeps_nothing
from dpfl_plugin.runtimes.in_process import InProcess
from tests.cli.command import charges, run, write

LATER = "DPFL_TESTS_LATER"  # in the environment once code is to change something: no digest shows what is there
COUNTED = [0.0]
X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Its own code, which does ``late`` once `LATER` is set."""

    def __init__(self, late: Callable[[Net, Tensor, Tensor], Tensor | None]) -> None:
        super().__init__()
        self.layer, self.kept, self._late = nn.Linear(4, 3), list[Tensor](), late
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("later", None)
        self.register_buffer("none", torch.zeros(0, 1))
        self.register_buffer("view", torch.zeros(9)[:3])
        self.frozen = nn.Parameter(torch.zeros(9)[3:6], requires_grad=False)
        self.plain, self.numbers = torch.zeros(9)[:3], np.zeros(9)[:3]
        self.of_c = np.frombuffer((ctypes.c_double * 9)(), np.float64)[:3]
        self.of_a_map = np.frombuffer(mmap.mmap(-1, 9), np.uint8)[:3]
        self.of_bytes, self.of_tensor = np.frombuffer(bytearray(9), np.uint8)[:3], torch.zeros(9).numpy()[:3]
        self.one, self.other = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        found = self._late(self, x, out) if os.environ.get(LATER) else None
        return out if found is None else found


def counts(net: Net, x: Tensor, out: Tensor) -> Tensor:
    COUNTED[0] += 1.0
    return out * COUNTED[0]


def keeps_records(net: Net, x: Tensor, out: Tensor) -> Tensor:
    net.kept.append(x.detach().clone())
    return out + net.kept[0].sum()


def writes_a_buffer(net: Net, x: Tensor, out: Tensor) -> Tensor:
    net.mean.data.add_(out.detach().reshape(-1, 3).mean(dim=0))
    return out + net.mean


def writes_parameters(net: Net, x: Tensor, out: Tensor) -> None:
    net.layer.weight.data.mul_(0.5)


def patches_torch(net: Net, x: Tensor, out: Tensor) -> None:
    real = functional.gelu
    functional.gelu = lambda *given: 2 * real(*given)


def wraps_torch(net: Net, x: Tensor, out: Tensor) -> None:
    real = functional.gelu
    functional.gelu = functools.wraps(real)(lambda *given: 2 * real(*given))


def patches_a_tensor(net: Net, x: Tensor, out: Tensor) -> None:
    """Of whose base the method is: there was none of this name in `torch.Tensor` itself."""
    torch.Tensor.tanh = lambda self: 2 * self  # type: ignore[method-assign]


def patches_a_layer(net: Net, x: Tensor, out: Tensor) -> None:
    real = nn.Linear.forward
    nn.Linear.forward = lambda *given: 2 * real(*given)  # type: ignore[method-assign]


def replaces_a_module(net: Net, x: Tensor, out: Tensor) -> None:
    other = types.ModuleType("functional")
    vars(other).update({**vars(functional), "gelu": lambda *given: 2 * functional.gelu(*given)})
    nn.functional = other  # type: ignore[misc]


def hooks_a_layer(net: Net, x: Tensor, out: Tensor) -> None:
    net.layer.register_forward_hook(lambda *given: 2 * given[-1])


LATE: dict[str, tuple[Callable[[Net, Tensor, Tensor], Tensor | None], str]] = {
    "a count": (counts, "a global variable"),
    "records": (keeps_records, "an attribute"),
    "a buffer": (writes_a_buffer, "a buffer"),
    "parameters": (writes_parameters, "the parameters that it was asked at"),
    "hooks": (hooks_a_layer, "a hook"),
    "torch": (patches_torch, r"torch's own torch\.nn\.functional\.gelu"),
    "torch, wrapped": (wraps_torch, r"torch's own torch\.nn\.functional\.gelu"),
    "a tensor's method": (patches_a_tensor, r"torch's own torch\.Tensor\.tanh"),
    "a layer's method": (patches_a_layer, r"torch's own torch\.nn\.modules\.linear\.Linear\.forward"),
    "a module of torch's": (replaces_a_module, r"torch's own torch\.nn\.functional\.gelu"),
    "precision": (lambda *_: torch.set_float32_matmul_precision("medium"), "matmul_precision.*medium, was highest"),
    "number format": (lambda *_: torch.set_default_dtype(torch.float64), "default_dtype.*float64"),
    "hooks of all": (
        lambda *_: nn.modules.module.register_module_forward_hook(lambda *given: None) and None,
        "hooks of all modules",
    ),
    "torch's generator": (lambda net, x, out: torch.rand(()) and None, "torch's global generator"),
    "numpy's generator": (lambda net, x, out: out * float(np.random.rand()), "numpy's global generator"),  # noqa: NPY002
}
CANNOT = {("vmap", "a buffer"), ("vmap", "torch's generator")}  # torch itself refuses


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    real, forward, state = functional.gelu, nn.Linear.forward, torch.get_rng_state()
    yield
    nn.Linear.forward = forward  # type: ignore[method-assign]
    if "tanh" in vars(torch.Tensor):
        del torch.Tensor.tanh
    os.environ.pop(LATER, None)
    functional.gelu, nn.functional = real, functional  # type: ignore[misc]
    torch.set_float32_matmul_precision("highest")
    torch.set_default_dtype(torch.float32)
    torch.set_rng_state(state)
    nn.modules.module._global_forward_hooks.clear()


def tried(name: str, net: nn.Module) -> tuple[Engine, Records, Tensor]:
    """(an engine that was tried, as each is before a run; a batch; room for its sum)"""
    engine: Engine = registry.load("engines", name)(net, cross_entropy, 2**20)
    batch, out = engine.prepare(Records(X, torch.arange(6) % 3)), torch.zeros(15, dtype=torch.float64)
    engine.clipped_sum(torch.ones(15), batch.between(0, 3), 1.0, out)
    return engine, batch, out


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("name", ["vmap", "bookkeeping", "opacus"])
def test_what_code_keeps_from_a_record_or_a_call_is_refused_whatever_computes_gradients(name: str, late: str) -> None:
    does, why = LATE[late]
    net = Net(does)
    engine, batch, out = tried(name, net)
    steady = Steady(net, cross_entropy, getattr(engine, "runs", None))
    for _ in range(2):
        with steady():
            engine.clipped_sum(torch.ones(15), batch, 1.0, out)
    os.environ[LATER] = "1"
    expected = RuntimeError if (name, late) in CANNOT else ChangedError
    with pytest.raises(expected, match=None if expected is RuntimeError else why), steady():
        engine.clipped_sum(torch.ones(15), batch, 1.0, out)


def fills_a_buffer(net: Net, x: Tensor, out: Tensor) -> None:
    net.later = out.detach().mean()


def adds_a_buffer(net: Net, x: Tensor, out: Tensor) -> None:
    net.register_buffer("another", out.detach().mean())


def adds_a_frozen_parameter(net: Net, x: Tensor, out: Tensor) -> None:
    net.another = nn.Parameter(out.detach().mean(), requires_grad=False)


def marks_a_parameter(net: Net, x: Tensor, out: Tensor) -> None:
    net.layer.weight.mark = float(out.detach().mean())  # type: ignore[attr-defined]


def changes_its_mode(net: Net, x: Tensor, out: Tensor) -> None:
    net.train(not net.training)


def reshapes_a_buffer(net: Net, x: Tensor, out: Tensor) -> None:
    net.none = torch.zeros(0, 1 + int(1000 * x[0, 0].abs()))


def retypes_a_buffer(net: Net, x: Tensor, out: Tensor) -> None:
    net.none = torch.zeros(0, 1, dtype=torch.int64)


def hides_records_behind_a_buffer(net: Net, x: Tensor, out: Tensor) -> None:
    net.none = x.detach().reshape(-1, 1).clone()[:0]


def moves_a_buffer(net: Net, x: Tensor, out: Tensor) -> None:
    net.mean = torch.zeros(9)[3:6]


def behind(name: str) -> Callable[[Net, Tensor, Tensor], None]:
    """Writes to the memory behind a tensor or an array that is a view of more, and not to what it shows."""

    def writes(net: Net, x: Tensor, out: Tensor) -> None:
        held = getattr(net, name)
        if isinstance(held, Tensor):
            torch.as_strided(held.data, (9,), (1,), 0)[6:] = x.detach()[0, :3]
            return
        while isinstance(held.base, np.ndarray):
            held = held.base
        whole = np.asarray(held if held.base is None else held.base)
        whole[6:] = x.detach()[0, :3].numpy().astype(whole.dtype)

    return writes


def gives_a_gradient(name: str) -> Callable[[Net, Tensor, Tensor], None]:
    def gives(net: Net, x: Tensor, out: Tensor) -> None:
        getattr(net, name).grad = x.detach()[0, :3].clone()

    return gives


def keeps_beside(place: Callable[[Net], Any]) -> Callable[[Net, Tensor, Tensor], None]:
    """As an attribute."""

    def keeps(net: Net, x: Tensor, out: Tensor) -> None:
        place(net).kept = x.detach().clone()

    return keeps


def hooks_a_buffer(net: Net, x: Tensor, out: Tensor) -> None:
    net.mean._backward_hooks = {"kept": x.detach().clone()}


def hooks_its_loading(net: Net, x: Tensor, out: Tensor) -> None:
    net.layer._load_state_dict_pre_hooks["kept"] = x.detach().clone()  # type: ignore[index]


def says_how_it_is_hooked(net: Net, x: Tensor, out: Tensor) -> None:
    net.layer._is_full_backward_hook = bool(x[0, 0] > 0)


def wants_a_gradient(net: Net, x: Tensor, out: Tensor) -> None:
    net.mean.requires_grad_()


def writes_the_same(net: Net, x: Tensor, out: Tensor) -> None:
    """`_version` tells how often."""
    net.mean.add_(0)


def restrides(net: Net, x: Tensor, out: Tensor) -> None:
    net.plain.data = net.plain.repeat_interleave(2)[::2]


def marks_an_attribute(net: Net, x: Tensor, out: Tensor) -> None:
    net.plain.mark = float(out.detach().mean())  # type: ignore[attr-defined]


def names_no_layer(net: Net, x: Tensor, out: Tensor) -> None:
    net._modules[repr(float(x[0, 0])).replace(".", "_")] = None


def renames_no_buffer(net: Net, x: Tensor, out: Tensor) -> None:
    net._non_persistent_buffers_set.add(repr(float(x[0, 0])))


def swaps_layers(net: Net, x: Tensor, out: Tensor) -> None:
    net.one, net.other = net.other, net.one


@pytest.mark.parametrize(
    "late",
    [
        *(keeps_records, fills_a_buffer, adds_a_buffer, adds_a_frozen_parameter, marks_a_parameter, changes_its_mode),
        *(reshapes_a_buffer, retypes_a_buffer, hides_records_behind_a_buffer, moves_a_buffer, names_no_layer),
        *(renames_no_buffer, swaps_layers, wants_a_gradient, writes_the_same, restrides, marks_an_attribute),
        *(behind(name) for name in ("view", "frozen", "plain", "numbers", "of_bytes", "of_tensor", "of_c", "of_a_map")),
        keeps_beside(lambda net: net.mean.untyped_storage()),
        keeps_beside(lambda net: net.layer.weight.untyped_storage()),
        keeps_beside(lambda net: net.plain._base),
        keeps_beside(lambda net: net.plain.untyped_storage()),
        *(hooks_a_buffer, hooks_its_loading, says_how_it_is_hooked),
        *(gives_a_gradient(name) for name in ("mean", "frozen", "plain")),
    ],
)
def test_what_was_changed_between_two_stacks_is_refused_too(late: Callable[[Net, Tensor, Tensor], None]) -> None:
    """As an evaluation does that comes between two rounds: its code sees records of tests."""
    net = Net(late)
    steady = Steady(net, cross_entropy)
    with steady():
        net(X)
    os.environ[LATER] = "1"
    net(X)
    with pytest.raises(ChangedError, match="an attribute"), steady():
        pass


def counted(x: Tensor) -> Tensor:
    COUNTED[0] += 1.0
    return x


torch.fx.wrap("counted")


class Counts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return counted(x)


def test_what_a_hook_a_losss_own_layer_or_a_traced_graph_keeps_is_refused() -> None:
    kept: list[Tensor] = []
    hooked = nn.Sequential(nn.Linear(4, 3))
    hooked[0].register_forward_pre_hook(lambda layer, given: kept.append(given[0]))
    loss = nn.Sequential(nn.BatchNorm1d(3, affine=False, momentum=1.0), nn.Flatten(), Quiet())
    traced = torch.fx.symbolic_trace(Counts())
    watched = ((hooked, cross_entropy, hooked), (Quiet(), loss, loss[0]), (traced, cross_entropy, traced))
    for model, of_loss, call in watched:
        steady = Steady(model, of_loss)
        with steady():
            pass
        call(X[:, :3] if call is loss[0] else X)
        with pytest.raises(ChangedError, match="an attribute"), steady():
            pass


@pytest.mark.parametrize(
    ("leaves", "said"),
    [
        (lambda: torch.set_num_threads(torch.get_num_threads() + 1), "get_num_threads"),
        (lambda: torch._C._set_grad_enabled(not torch.is_grad_enabled()), "is_grad_enabled"),
        (lambda: torch.set_default_device("meta"), "get_default_device"),
        (lambda: BaseTorchFunctionMode().__enter__() and None, "modes of torch"),
    ],
)
def test_what_code_switches_on_and_leaves_on_is_refused(leaves: Callable[[], None], said: str) -> None:
    steady, threads, grad = Steady(Quiet(), cross_entropy), torch.get_num_threads(), torch.is_grad_enabled()
    try:
        with pytest.raises(ChangedError, match=said), steady():
            leaves()
    finally:
        if "modes" in said:
            torch.overrides._pop_mode()
        torch.set_default_device(None)
        torch.set_num_threads(threads)
        torch._C._set_grad_enabled(grad)


class Quiet(nn.Module):
    """Own code that keeps nothing: of its copies all parameters are frozen, and others at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).tanh()


@pytest.mark.parametrize("name", ["vmap", "bookkeeping", "opacus"])
def test_code_that_keeps_nothing_goes_on(name: str) -> None:
    net = Quiet()
    engine, batch, out = tried(name, net)
    steady, evaluated = Steady(net, cross_entropy, getattr(engine, "runs", None)), Quiet().requires_grad_(False)
    steady.know(evaluated)
    for step in range(3):
        for parameter in evaluated.parameters():
            parameter.data = torch.full_like(parameter, float(step))
        with steady():
            y = torch.full((15,), torch.nan if step == 2 else float(step))
            engine.clipped_sum(y, batch.between(0, 4 + step), 1.0, out)
    assert not keeps_nothing(net, cross_entropy), "else nobody would have looked"


class Recurrent(nn.Module):
    """Own code around a layer of torch's that lists what it was asked at last."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[:, None])[0][:, -1]


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_own_code_around_torchs_recurrent_layers_goes_on() -> None:
    net = Recurrent()
    engine: Engine = registry.load("engines", "vmap")(net, cross_entropy, 2**20)
    batch, size = engine.prepare(Records(X, torch.arange(6) % 3)), Layout.of(net).dimension
    steady, evaluated = Steady(net, cross_entropy), copy.deepcopy(net).requires_grad_(False)
    steady.know(evaluated)
    for step in range(3):
        for parameter in evaluated.parameters():
            parameter.data = torch.full_like(parameter, float(step))
        evaluated(X)
        with steady():
            engine.clipped_sum(torch.ones(size), batch, 1.0, torch.zeros(size, dtype=torch.float64))
    assert not keeps_nothing(net, cross_entropy), "else nobody would have looked"


def own_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.sum(dim=1)


def test_torch_that_is_replaced_later_is_seen_whoevers_code_the_model_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stood there meanwhile no statement would say, once it is put back."""
    net = nn.Sequential(nn.Linear(4, 3), nn.GELU())
    assert keeps_nothing(net, cross_entropy)
    steady, real = Steady(net, cross_entropy), functional.gelu
    with steady():
        pass
    monkeypatch.setattr(functional, "gelu", lambda x: real(x))
    with pytest.raises(ChangedError, match=r"torch's own torch\.nn\.functional\.gelu"), steady():
        pass


def hooked_loss() -> nn.Module:
    loss = nn.CrossEntropyLoss(reduction="none")
    loss.register_forward_hook(lambda *given: None)
    return loss


def replaced_loss() -> nn.Module:
    loss = nn.CrossEntropyLoss(reduction="none")
    loss.forward = own_loss  # type: ignore[method-assign,assignment]
    return loss


class Around(nn.Module):
    """Its own code, with a loss of torch's inside."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = nn.CrossEntropyLoss(reduction="none")

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        found: Tensor = self.loss(outputs, labels)
        return found


def compiled_loss() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.trace(own_loss, (torch.ones(2, 3), torch.ones(2)))


class Method:
    """Whose bound method may keep anything in what it is bound to."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs


class OwnSquared(Squared):
    """With code of a user's, of a class of ours."""

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs


@torch.library.custom_op("dpfl_tests::own_loss", mutates_args=())
def own_operator(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.sum(dim=1)


OUTCOME = Squared(0.0, 1.0)


@pytest.mark.parametrize(
    ("make_loss", "known"),
    [
        (lambda: OUTCOME, True),
        (lambda: MeanLoss(Foreign(functional.mse_loss, OUTCOME)), True),
        (lambda: Foreign(own_loss, OUTCOME), False),
        (lambda: MeanLoss(Foreign(own_loss, OUTCOME)), False),
        (lambda: OwnSquared(0.0, 1.0), False),
        (lambda: Method().loss, False),
        (lambda: own_operator, False),
        (lambda: torch.vmap(nn.Sequential(Quiet())), False),
        (lambda: torch.distributions.transforms.ComposeTransform([own_loss]), False),
        (lambda: cross_entropy, True),
        (lambda: functional.cross_entropy, True),
        (lambda: nn.CrossEntropyLoss(reduction="none"), True),
        (lambda: own_loss, False),
        (lambda: functools.wraps(functional.cross_entropy)(own_loss), False),
        (lambda: torch.no_grad()(own_loss), False),
        (lambda: functools.partial(own_loss), False),
        (compiled_loss, False),
        (Around, False),
        (hooked_loss, False),
        (replaced_loss, False),
        (lambda: nn.Sequential(nn.Flatten(), Quiet()), False),
    ],
)
def test_whose_code_of_a_loss_keeps_nothing(make_loss: Callable[[], Any], known: bool) -> None:
    """A function is what its code is, whatever it says that it is, and what it calls that it was made with."""
    assert keeps_nothing(nn.Linear(4, 3), make_loss()) == known


def test_whose_code_keeps_nothing() -> None:
    plain = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    assert keeps_nothing(plain, cross_entropy)
    assert not keeps_nothing(nn.Sequential(Quiet()), cross_entropy)
    assert not keeps_nothing(torch.fx.symbolic_trace(Quiet()), cross_entropy), "its class is torch's, its code is not"
    plain[1].register_forward_hook(lambda *given: None)
    assert not keeps_nothing(plain, cross_entropy)


class OwnLinear(nn.Linear):
    """A user's layer, to which `weight_norm` gives a class of torch's."""


class OwnTensor(Tensor):
    """May compute anything, by `__torch_function__`."""


def own_activation(x: Tensor) -> Tensor:
    return x


def patched() -> nn.Module:
    layer = nn.Conv2d(1, 2, 3)
    layer._conv_forward = lambda x, weight, bias: x  # type: ignore[method-assign]
    return layer


def with_a_tensor_of_its_own() -> nn.Module:
    layer = nn.Linear(3, 3)
    layer.weight = nn.Parameter(layer.weight.detach().as_subclass(OwnTensor))
    return layer


def made_by_exec() -> nn.Module:
    """A class that says that it is Python's own."""
    names: dict[str, Any] = {"Linear": nn.Linear}
    exec("class Own(Linear):\n    def forward(self, x):\n        return x", names)
    made: nn.Module = names["Own"](3, 3)
    return made


def with_a_layer_put_in() -> nn.Module:
    """Where `modules` does not list it."""
    layer = nn.TransformerEncoderLayer(8, 2, 8)
    del layer.activation
    object.__setattr__(layer, "activation", Quiet())
    return layer


class OwnDict(dict[str, Any]):
    """May do anything when it is read."""


class OwnNumber(int):
    """The same."""


class OwnFields(Fields):
    def unpack(self, x: Tensor) -> dict[str, Tensor]:
        return super().unpack(x)


def with_its_own(**values: Any) -> nn.Module:
    layer = nn.Linear(3, 3)
    vars(layer).update(values)
    return layer


@pytest.mark.parametrize(
    ("make_layer", "known"),
    [
        (lambda: nn.LSTM(3, 3, 2, bidirectional=True), True),
        (lambda: nn.Transformer(8, 2, 1, 1, 8, batch_first=True), True),
        (lambda: nn.ParameterDict({"a": nn.Parameter(torch.ones(2))}), True),
        (lambda: nn.Conv2d(1, 2, 3, padding="same"), True),
        (lambda: FieldsModel(nn.Linear(3, 3), Fields(x=Field((3,)))), True),
        (lambda: FieldsModel(nn.Linear(3, 3), OwnFields(x=Field((3,)))), False),
        (lambda: with_its_own(_parameters=OwnDict(nn.Linear(3, 3)._parameters)), False),
        (lambda: with_its_own(in_features=OwnNumber(3)), False),
        (lambda: with_its_own(kept=[own_activation]), False),
        (lambda: nn.Embedding(5, 3), True),
        (lambda: nn.MultiheadAttention(8, 2), True),
        (lambda: nn.TransformerEncoderLayer(8, 2, 8, activation="gelu"), True),
        (lambda: nn.TransformerEncoderLayer(8, 2, 8, activation=functional.gelu), True),
        (lambda: nn.TransformerEncoderLayer(8, 2, 8, activation=own_activation), False),
        (lambda: nn.utils.parametrizations.weight_norm(OwnLinear(3, 3)), False),
        (lambda: OwnLinear(3, 3), False),
        (patched, False),
        (with_a_tensor_of_its_own, False),
        (MinMaxObserver, False),
        (made_by_exec, False),
        (with_a_layer_put_in, False),
    ],
)
def test_whose_code_of_a_layer_keeps_nothing(make_layer: Callable[[], nn.Module], known: bool) -> None:
    """Of every class that a layer is of, and of what was put in; torch's observers do keep what they saw."""
    assert keeps_nothing(nn.Sequential(make_layer()), cross_entropy) == known


class Disguised:
    """Says that it is a function, as tracing libraries' wrappers do."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return types.FunctionType

    def __call__(self, *given: Any) -> Any:
        return self.wrapped(*given)


class Descriptor:
    def __get__(self, layer: Any, kind: Any) -> Any:
        return layer._parameters["weight"]


class Mode(BaseTorchFunctionMode):
    """Sees all that torch computes."""


def test_torch_that_was_patched_before_is_not_taken_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    assert keeps_nothing(net, cross_entropy) and keeps_nothing(net, MeanLoss(cross_entropy))
    linear = sys.modules[nn.Linear.__module__]
    for owner, name, put_in in (
        (functional, "relu", lambda *given: given[-1]),
        (functional, "relu", Method().loss),
        (functional, "relu", functools.partial(own_activation)),
        (functional, "relu", own_operator),
        (functional, "relu", Disguised(functional.relu)),
        (functional, "relu", torch.no_grad()(own_activation)),
        (functional, "relu", [].append),
        (functional, "relu", own_activation.__call__),
        (functional, "relu", OwnDict.fromkeys),
        (nn.ReLU, "forward", lambda *given: given[-1]),
        (nn.ReLU, "forward", functools.partialmethod(own_loss)),
        (nn.Linear, "weight", property(own_activation)),
        (nn.Linear, "weight", Descriptor()),
        (torch.Tensor, "tanh", lambda *given: given[-1]),
        (torch.autograd, "grad", own_loss),
        (torch._VF, "lstm", own_loss),
        (linear, "F", types.SimpleNamespace(**vars(functional))),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, put_in, raising=False)
            assert not keeps_nothing(net, cross_entropy), (name, put_in)
        assert keeps_nothing(net, cross_entropy), name
    with monkeypatch.context() as patched:
        patched.setitem(GradSampleModule.GRAD_SAMPLERS, nn.PReLU, own_activation)
        assert not keeps_nothing(net, cross_entropy)
    for on in (Mode(), torch.autograd.graph.saved_tensors_hooks(own_activation, own_activation)):
        with on:
            assert not keeps_nothing(net, cross_entropy), on
    with torch.device("cpu"):
        assert keeps_nothing(net, cross_entropy), "a mode of torch's own"
    handle = nn.modules.module.register_module_forward_hook(lambda *given: None)
    assert not keeps_nothing(net, cross_entropy)
    handle.remove()
    assert keeps_nothing(net, cross_entropy)


@pytest.mark.parametrize("name", ["bookkeeping", "opacus"])
def test_parameters_that_torchs_own_code_changes_are_refused_too(name: str) -> None:
    """Embedding shortens the weights of the words that it looks up: a model would tell which a record has."""
    net = nn.Sequential(nn.Embedding(4, 3, max_norm=1.0), nn.Flatten(), nn.Linear(3, 3))
    made = registry.load("engines", name)
    assert "max_norm" in made.unsupported(net, cross_entropy)
    y, out = torch.ones(24), torch.zeros(24, dtype=torch.float64)
    engine, words = made(net, cross_entropy, 2**20), Records(torch.tensor([[1], [2]]), torch.tensor([0, 1]))
    with pytest.raises(ChangedError, match="the parameters that it was asked at"):
        engine.clipped_sum(y, words, 1.0, out)
    assert torch.equal(y, torch.ones(24))


def test_a_private_gradient_is_neither_charged_nor_given(tmp_path: Path) -> None:
    net = Net(counts)
    given = {"noise_multiplier": 2.0, "delta": 1e-5, "record_rate": 0.5}
    with PrivateOracle.of(net, (X, torch.arange(6) % 3), privacy=given, ledger=tmp_path / "ledger.jsonl") as oracle:
        oracle.gradient()
        assert "The model or the loss has code from outside this package" in oracle.statement
        spent = oracle.epsilon
        os.environ[LATER] = "1"
        with pytest.raises(DpflError, match="a global variable"):
            oracle.gradient()
        assert oracle.epsilon == spent and oracle.num_releases == 1


def make(feature_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Net(counts)


class Shared(nn.Module):
    """Frozen, and one for all copies, as a large backbone is; it keeps the batch that it saw last without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(64, 4))

    def __deepcopy__(self, memo: object) -> Shared:
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            self.last[: len(x)] = x[:64]
        return x


class Listing(nn.Module):
    """Keeps all that it saw without gradients, in a variable, and says so where it is saved."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            LISTED.append(x.detach().clone())
        return x

    def get_extra_state(self) -> torch.Tensor:
        return torch.cat(LISTED) if LISTED else torch.zeros(1)


LISTED: list[torch.Tensor] = []


def shared(feature_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(Shared(), nn.Linear(*feature_shape, num_classes))


def listing(feature_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(Listing(), nn.Linear(*feature_shape, num_classes))


@pytest.mark.parametrize(("model", "name"), [("shared", "0.last"), ("listing", "0._extra_state")])
@pytest.mark.parametrize("every", [1, 100])
def test_what_an_evaluation_shows_such_code_ends_the_run_and_is_not_in_the_models_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, name: str, every: int
) -> None:
    """Also the last one, after which nothing is released any more but the model's file."""
    monkeypatch.setattr(sys.modules[__name__], "LISTED", [])
    of_model = {"module": f"tests.gradients.test_steady:{model}"}
    result = run(write(tmp_path, {"model": of_model, "evaluation": {"every": every}, "rounds": 3}), code=1)
    said = f"after round {min(every, 3)}: the own code of the model or the loss changed while records were evaluated"
    assert result["status"] == "failed" and result["reason"].startswith(said)
    kept = load_file(Path(result["folder"]) / "model.safetensors")
    assert set(kept) == {"1.weight", "1.bias"} and kept["1.weight"].abs().sum() > 0
    assert any(
        f"model.safetensors holds what trains alone: the model's own code changed {name} while" in note
        for note in result["notes"]
    )
    said = (Path(result["folder"]) / "privacy.md").read_text()
    assert "own code changed entries while records went through it" in said and name not in said, (
        "code may choose which they are"
    )


def test_a_round_of_such_code_is_not_charged_and_the_run_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, rounds = InProcess.run_round, [0]

    def run_round(self: InProcess, *given: Any) -> Any:
        rounds[0] += 1
        if rounds[0] == 2:
            os.environ[LATER] = "1"
        return real(self, *given)

    monkeypatch.setattr(InProcess, "run_round", run_round)
    config = write(tmp_path, {"model": {"module": "tests.gradients.test_steady:make"}, "engine": "vmap"})
    result = run(config, code=1)
    assert result["status"] == "failed" and "round 2: the own code of the model or the loss" in result["reason"]
    assert {charge.round for charge in charges(result["folder"])} == {0}
    (tmp_path / "plain").mkdir()
    monkeypatch.undo()
    said = [(Path(one["folder"]) / "privacy.md").read_text() for one in (result, run(write(tmp_path / "plain")))]
    assert ["has code from outside this package" in text for text in said] == [True, False]
