"""Whether a model's and a loss's own code leave alone what they compute with, as long as silos release.

What a record adds is its own, and the same whenever it is asked for, as long as code keeps nothing from one call to
the next. A model that keeps records, and adds them to later outputs, has one record move many gradients; a layer that
counts its calls computes something else after a resume, with the same noise. Trials before a run cannot find what
begins later (`independence`). So what code may keep anything in is looked at after each stack of silos, before anything
of it is charged or leaves: attributes, buffers, frozen parameters, hooks, global variables that the code reads,
settings of torch, generators that everybody draws from, and torch's own functions. Models and losses of this package
and of torch keep nothing: beside them only torch's functions are looked at. The parameters that it is asked at every
engine compares itself, whoever's code it is: torch's own Embedding writes to them, if it is told to.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from dpfl_plugin.errors import ChangedByEvaluationError, ChangedError
from dpfl_plugin.gradients.base import Loss
from dpfl_plugin.gradients.precision import products
from dpfl_plugin.gradients.whose import inner, is_own_value, keeps_nothing
from dpfl_plugin.models.attributes import describe
from dpfl_plugin.models.fixed import fixed_tensors
from dpfl_plugin.models.memory import Memory, beside

_OF_LAYERS: Final = vars(nn.Module()).keys() - {"_parameters", "_buffers", "_modules"}
"""Hooks of all kinds, and modes."""
_NAMESPACES: Final = (
    "torch",
    "torch.nn.functional",
    "torch.Tensor",
    "torch.linalg",
    "torch.special",
    "torch.nn.Module",
)

CHANGED: Final = (
    "the own code of the model or the loss, or of a callback, changed {} while silos computed, or since they computed "
    "last. What is kept from one call to the next makes gradients depend on records that came before, or noise that "
    "follows from a seed be added to other values than it is named for: no guarantee would hold. Nothing of these "
    "silos was charged or left in this round. Compute outputs from the input and the parameters alone "
    "(docs/engines.md)."
)
KEPT: Final = "an attribute, a buffer, a frozen parameter, a hook or a global variable that it reads"
EVALUATED: Final = (
    "the own code of the model or the loss changed while records were evaluated (log.txt says what). What is kept from "
    "one call to the next makes later gradients depend on records that came before, and could leave in the model's "
    "file. What was released until then is charged. Compute outputs from the input and the parameters alone "
    "(docs/engines.md)."
)
PARAMETERS: Final = "the parameters that it was asked at"


def check_parameters(before: Tensor, after: Tensor) -> None:
    """Raise ChangedError unless two vectors are the same to the bit, NaN included."""
    if not torch.equal(_bits(before), _bits(after)):
        raise ChangedError(CHANGED.format(PARAMETERS))


def _bits(value: Tensor) -> Tensor:
    return value.detach().contiguous().view(torch.int64 if value.element_size() == 8 else torch.int32)


class Steady:
    """Looks after a model, its copies and its loss.

    Args:
        model, loss: as they are before the first release; copy: the model that an engine runs, where it has its own.
    """

    def __init__(self, model: nn.Module, loss: Loss, copy: nn.Module | None = None) -> None:
        self._looks, self._loss = not keeps_nothing(model, loss), loss
        self._known: list[tuple[nn.Module, Any]] = []
        self._settings, self._functions = _settings() if self._looks else {}, _functions(model, loss)
        self._fixed = frozenset(fixed_tensors(model))  # copies may have all parameters frozen, and others each time
        self.know(model)
        self.know(copy)

    def know(self, model: nn.Module | None) -> None:
        """Look after this one, too: a copy that an engine, or an evaluation, runs; as it is now."""
        if self._looks and model is not None and all(model is not known for known, _ in self._known):
            self._known.append((model, self._facts(model)))

    def _facts(self, model: nn.Module) -> Any:
        memory = Memory()
        tensors = [[name, memory.of(value)] for name, value in fixed_tensors(model).items() if name in self._fixed]
        roots: dict[str, object] = {"the model": model, "the loss": self._loss}
        if isinstance(self._loss, nn.Module):
            held = {**dict(self._loss.named_parameters()), **dict(self._loss.named_buffers())}
            tensors += [[f"the loss: {name}", memory.of(value)] for name, value in held.items()]
        modules = {name: root for name, root in roots.items() if isinstance(root, nn.Module)}
        built = [_built(module) for module in modules.values()]
        put_in = {f"{name}: {where}": one for name, module in modules.items() for where, one in _put_in(module)}
        return [describe({**roots, **put_in}, memory).facts, tensors, built]

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Around what calls model and loss.

        Raises:
            ChangedError: something is not what it was.
        """
        if not self._looks:
            yield
            self._check_functions()
            return
        drawn, left = _generators(), _left_on()
        yield
        for name, value in _left_on().items():
            if value != left[name]:
                raise ChangedError(CHANGED.format(f"{name} ({value}, was {left[name]})"))
        for name, one in _generators().items():
            if one != drawn[name]:
                raise ChangedError(CHANGED.format(f"the state of {name}, of which it drew numbers,"))
        for key, value in _settings().items():
            if value != self._settings[key]:
                raise ChangedError(
                    CHANGED.format(f"a setting of this process ({key}: {value}, was {self._settings[key]})")
                )
        self._check_functions()
        for model, facts in self._known:
            if self._facts(model) != facts:
                raise ChangedError(CHANGED.format(KEPT))

    @contextlib.contextmanager
    def in_evaluation(self) -> Iterator[None]:
        """Around what calls model and loss without releasing anything.

        Raises:
            ChangedByEvaluationError: something is not what it was.
        """
        try:
            with self():
                yield
        except ChangedError as error:
            raise ChangedByEvaluationError(EVALUATED) from error

    def _check_functions(self) -> None:
        """Also where all code was torch's: it may have been replaced since, and put back before anybody says so."""
        for functions in self._functions:
            if (replaced := functions.replaced()) is not None:
                raise ChangedError(CHANGED.format(f"torch's own {replaced}"))


def _built(module: nn.Module) -> list[Any]:
    """What a module is built of: a parameter, a buffer, a layer or a mode that code gives it later has a place here."""
    return [
        [
            path,
            [layer.training, sorted(layer._non_persistent_buffers_set)],
            [[name, id(one)] for name, one in layer._modules.items()],
            *([[name, one is None] for name, one in held.items()] for held in _held(layer)),
            [name for name, one in layer._buffers.items() if one is not None and one.requires_grad],
        ]
        for path, layer in module.named_modules()
    ]


def _held(layer: nn.Module) -> tuple[Mapping[str, Tensor | None], ...]:
    return layer._parameters, layer._buffers


def _put_in(module: nn.Module) -> Iterator[tuple[str, object]]:
    """(where, what) of hooks, but for this package's own, of what is kept beside parameters and buffers, and of what a
    graph calls that torch.fx made of a user's code."""
    for path, layer in module.named_modules():
        for node in layer.graph.nodes if isinstance(layer, torch.fx.GraphModule) else ():
            if node.op == "call_function":
                yield f"{path}.{node.name}", node.target
        for name in sorted(_OF_LAYERS & vars(layer).keys()):
            kept = vars(layer)[name]
            for number, (key, hook) in enumerate(kept.items() if isinstance(kept, dict) else [(None, kept)]):
                ours = str(getattr(hook, "__module__", "")).startswith("dpfl_plugin.")
                yield f"{path}{name}[{number}]", None if ours else (key, hook)
        for name, tensor in (item for held in _held(layer) for item in held.items()):
            if tensor is not None and (found := beside(tensor)):
                yield f"{path}.{name}", found
        # Torch's recurrent layers list their parameters, as they were last asked at, once more.
        weights, names = (vars(layer).get(f"_flat_weights{of}", ()) for of in ("", "_names"))
        yield f"{path}._flat_weights", list(weights)[len(names) :]


def _left_on() -> dict[str, object]:
    """What code may switch on in a call and leave so; between calls it is the caller's matter."""
    stacks = (getattr(torch._C, f"_len_torch_{kind}_stack", lambda: 0)() for kind in ("function", "dispatch"))
    return {
        "torch.get_num_threads()": torch.get_num_threads(),
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.get_default_device()": str(torch.get_default_device()),
        "the number of modes of torch that are on": list(stacks),
    }


def _settings() -> dict[str, Any]:
    hooks = [
        (name, len(hooks))
        for name, hooks in sorted(vars(nn.modules.module).items())
        if name.startswith("_global_") and isinstance(hooks, dict)
    ]
    return {
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
        "torch.is_autocast_enabled('cpu')": torch.is_autocast_enabled("cpu"),
        "hooks of all modules": hooks,
        **products(),
    }


def _generators() -> dict[str, bytes]:
    """Of torch and numpy. Platforms draw how long they wait of Python's, at any time, in threads of their own."""
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002, it is the global one that is looked at
    return {
        "torch's global generator": torch.random.get_rng_state().numpy().tobytes(),
        "numpy's global generator": repr((kind, rest)).encode() + np.asarray(keys).tobytes(),
    }


class _Functions:
    """Those of a module or a class of torch's, as they are now.

    Args:
        place: its dotted name. base: of a class, how many of its bases to go back: in the place of a base's method
            another is put by a name that the class did not have.
    """

    def __init__(self, place: str, base: int = 0) -> None:
        self._place, self._base = place, base
        now, owner = self._now(), self._owner()
        classes = owner.__mro__[base:] if isinstance(owner, type) else [owner]
        callables = {
            name: value
            for one in classes
            for name, value in vars(one).items()
            if callable(value) or isinstance(value, property | staticmethod | classmethod)
        }
        self._names, self._known = tuple(callables), tuple(map(now.get, callables))

    def _owner(self) -> Any:
        """Looked up each time: the module itself may be replaced."""
        owner: Any = torch
        for part in self._place.split(".")[1:]:
            owner = getattr(owner, part)
        return owner

    def _now(self) -> Mapping[str, Any]:
        owner = self._owner()
        return vars(owner.__mro__[self._base] if isinstance(owner, type) else owner)

    def replaced(self) -> str | None:
        """The name of one in whose place there is now another's; None if there is none."""
        now = self._now()
        if all(map(operator.is_, map(now.get, self._names), self._known)):  # thousands, in a tenth of a ms
            return None
        for name, known in zip(self._names, self._known, strict=True):
            function = now.get(name, known)
            if function is not known and not is_own_value(function):
                return f"{self._place}.{name}"
        return None


def _functions(model: nn.Module, loss: Loss) -> list[_Functions]:
    """Of `_NAMESPACES`, and of torch's own classes of layers, whose `forward` is called."""
    of_loss = inner(loss)
    layers = [*model.modules(), *(of_loss.modules() if isinstance(of_loss, nn.Module) else ())]
    classes = {one for layer in layers for one in type(layer).__mro__ if one.__module__.startswith("torch.nn.modules.")}
    places = [*_NAMESPACES, *sorted(f"{one.__module__}.{one.__qualname__}" for one in classes - {nn.Module})]
    found = [_Functions(place) for place in places]
    bases = range(1, len(torch.Tensor.__mro__) - 1)  # but object's; those of layers are looked at by themselves
    return [*found, *(_Functions("torch.Tensor", base) for base in bases)]
