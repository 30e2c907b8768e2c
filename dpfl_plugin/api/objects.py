"""What YAML cannot say, a model or a loss that a program made, as blocks of a configuration (`dpfl_plugin.given`).

They are named by a digest of what they compute (`models.object_digest`): an object that changed is another one, whose
run has a folder of its own.
"""

from __future__ import annotations

import copy
import datetime
import hashlib
import inspect
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import nn

from dpfl_plugin import given, registry
from dpfl_plugin.errors import ConfigError, PluginError
from dpfl_plugin.models.build import check_layers
from dpfl_plugin.models.object_digest import object_digest

MAIN: Final = "__main__"


class _Model:
    """Copies of a model, so that the program's own stays as it is."""

    def __init__(self, module: nn.Module) -> None:
        self._module = copy.deepcopy(module).cpu()

    def __call__(self, feature_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        return copy.deepcopy(self._module)


class _Factory:
    """A model that a function makes, of features' shape and the number of classes, or of nothing."""

    def __init__(self, factory: Callable[..., Any]) -> None:
        self._factory, self._plain = factory, _takes_nothing(factory)

    def __call__(self, feature_shape: tuple[int, ...], num_classes: int) -> Any:
        return self._factory() if self._plain else self._factory(feature_shape, num_classes)


class _Algorithm:
    def __init__(self, algorithm: Any) -> None:
        self._algorithm = algorithm

    def __call__(self) -> Any:
        return self._algorithm


def model_block(model: Any) -> tuple[Any, object]:
    """(what a configuration calls a model, what has to be held until the run is over).

    Args:
        model: an ``nn.Module``, a function or class that makes one, a plugin's name, or a block as in a file.

    Raises:
        ConfigError: it is something else; UnsupportedError: it mixes records, or is random.
    """
    if isinstance(model, str | Mapping):
        return plain(model), None
    if isinstance(model, nn.Module):
        check_layers(model, type(model).__name__)
        return _held("model", model, _Model(model))
    if callable(model):
        path = _importable(model)
        if path is not None and not _takes_nothing(model):
            return {"module": path}, None
        return _held("model", model, _Factory(model))
    raise ConfigError(
        f"model={model!r} is a {type(model).__name__}: give an nn.Module, a function that makes one, or a plugin's "
        f"name ({', '.join(registry.names('models'))})."
    )


class _Backbone:
    """Copies of a frozen module, for `dpfl_plugin.runs.backbone`."""

    def __init__(self, module: nn.Module) -> None:
        self._module = copy.deepcopy(module).cpu()

    def __call__(self, feature_shape: tuple[int, ...]) -> nn.Module:
        return copy.deepcopy(self._module)


def backbone_factory(module: Any) -> tuple[str, object]:
    """(where a configuration finds a frozen module, what has to be held until the run is over).

    Args:
        module: an ``nn.Module``, or the path of a factory, package.module:name.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(module, str):
        return module, None
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"module={module!r} is a {type(module).__name__}: give an nn.Module, or package.module:name of a factory."
        )
    plugin = _Backbone(module)
    return given.hold("backbone", _digest_of(module), plugin), plugin


def loss_name(loss: Any) -> tuple[str, object]:
    """As `model_block`, for a loss: a name, or a function (outputs, labels) -> one value for each record."""
    if isinstance(loss, str):
        return loss, None
    if not callable(loss):
        raise ConfigError(f"loss={loss!r} must be a name or a function (outputs, labels) -> one value for each record.")
    path = _importable(loss)
    if path is not None:
        return path, None
    # As it is: a loss is one of a run's plugins itself, so that its module counts, and its errors are told as such.
    return given.hold("loss", _digest_of(loss), loss), loss


def algorithm_block(algorithm: Any) -> tuple[Any, object]:
    """As `model_block`, for an algorithm: a name, a block, or an instance, whose fields are its plugin's options."""
    if isinstance(algorithm, str | Mapping):
        return plain(algorithm), None
    kind = type(algorithm)
    if isinstance(algorithm, type):
        raise ConfigError(
            f"algorithm={algorithm.__name__} is a class: give an instance with its options, e.g. "
            f"{algorithm.__name__}(local_steps=20, local_lr=1.0)."
        )
    name = next((n for n in registry.names("algorithms") if registry.load("algorithms", n) is kind), None)
    path = f"{kind.__module__}:{kind.__qualname__}" if name is None else None
    if name is not None or (path is not None and _importable(kind) == path):
        try:
            options = {
                key: getattr(algorithm, key)
                for key, option in registry.options(kind).items()
                if getattr(algorithm, key) != option.default
            }
            _check_positional(algorithm)
        except AttributeError as error:
            raise PluginError(
                f"algorithm: {kind.__name__} does not keep its option {error.name} as an attribute of that name, so "
                "that no configuration could name it. Keep it, or give a block: {'module': 'package.module:name', ...}."
            ) from error
        return {**({"module": path} if name is None else {"name": name}), **plain(options)}, None
    if not callable(getattr(algorithm, "local_update", None)):
        raise ConfigError(
            f"algorithm={algorithm!r} is a {kind.__name__}, not an algorithm: give a name "
            f"({', '.join(registry.names('algorithms'))}), or an instance, dpfl.algorithms.Scaffold(...)."
        )
    return _held("algorithm", algorithm, _Algorithm(algorithm))


def _check_positional(algorithm: Any) -> None:
    """Raise PluginError for an argument that no configuration names, and that is not what it is by default: the run's
    algorithm would be another one than the one that was given."""
    kind = type(algorithm)
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and getattr(algorithm, name) != parameter.default:
            raise PluginError(
                f"algorithm: {kind.__name__} takes {name} by its place, too, so that no configuration names it, and "
                f"the run would not have {name}={getattr(algorithm, name)!r}. Make it keyword-only: "
                "@dataclass(kw_only=True), or a * before it."
            )


def plain(value: Any) -> Any:
    """A value of a program as YAML has it: of numpy's numbers, paths, dates and tuples what a file would hold.

    Raises:
        ConfigError: no file could hold it.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(item) for item in value]
    raise ConfigError(f"{value!r} is a {type(value).__name__}, which a configuration cannot hold: give plain values.")


def digest(*parts: bytes) -> str:
    """sha256 in hex, of parts whose borders count."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.hexdigest()


def _held(kind: str, value: object, plugin: Any) -> tuple[Any, object]:
    return {"module": given.hold(kind, _digest_of(value), plugin)}, plugin


def _digest_of(value: object) -> str:
    """Of what an object computes; where no digest shows all of that, a number that nothing but this very object has."""
    return object_digest(value) or _undigested.setdefault(id(value), (secrets.token_hex(8), value))[0]


_undigested: dict[int, tuple[str, object]] = {}  # with the object, whose number is not given to another one then


def _takes_nothing(factory: Callable[..., Any]) -> bool:
    """Whether it is called without the shape of features and the number of classes."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"model={factory!r} cannot be called as a factory: {error}.") from error
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = any(item.kind in kinds and item.default is inspect.Parameter.empty for item in parameters)
    return not needed and all(item.kind is not inspect.Parameter.VAR_POSITIONAL for item in parameters)


def _importable(value: Any) -> str | None:
    """``package.module:name`` of what another process would find there; None for what only this program has."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == MAIN or "<" in name:
        return None
    importable: Any = sys.modules.get(module)
    if getattr(importable, "__file__", None) is None:
        return None
    for part in name.split("."):
        importable = getattr(importable, part, None)
    return f"{module}:{name}" if importable is value else None
