"""The keys of a configuration as keyword arguments: for editors, type checkers and `help`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dpfl_plugin.config.blocks import Block
from dpfl_plugin.config.privacy import PrivacyConfig
from dpfl_plugin.config.schema import Config, DataConfig

Plugin = str | Mapping[str, Any]
"""A plugin's name, or a block: its name and options."""


class PrivacyKeys(TypedDict, total=False):
    """Those of `privacy`."""

    unit: Literal["record", "person", "silo"]
    max_records_per_person: int | None
    shared_persons: Literal["refuse", "per_silo"]
    neighbouring: Literal["replace_one", "add_or_remove"] | None
    mechanism: Plugin
    clip_norm: float
    clip: Plugin
    noise_multiplier: float | None
    schedule: Plugin
    sampler: Literal["fixed", "poisson", "full", "with_replacement", "cyclic"]
    bands: int | None
    record_rate: float | None
    batch_size: int | None
    epsilon: float | None
    delta: float
    ledger: str | None
    ledger_epsilon: float | None
    budget_view: Literal["server", "third_party"]
    accountant: Plugin
    randomness: Literal["fresh", "seeded"] | None


class DataKeys(TypedDict, total=False):
    """Those of `data` besides the data set."""

    partition: Plugin
    num_silos: int | None
    max_records_per_silo: int | None
    test: Literal["split", "own"]
    test_fraction: float
    preprocess: list[Any]
    folder: str | None
    memory_map: str | None


class RunKeys(TypedDict, total=False):
    """Those at the top level that `dpfl.train` does not list itself."""

    name: str
    description: str
    silo_rate: float
    max_participations: int | None
    silo_weights: str | Mapping[str, float]
    loss: str | Callable[..., Any]
    class_weights: str | Mapping[str, float] | None
    l2: float
    silos: Mapping[str, Mapping[str, Any]]
    engine: str
    augmentation: Mapping[str, Any] | None
    evaluation: Mapping[str, Any]
    early_stopping: Mapping[str, Any] | None
    private_evaluation: Mapping[str, Any] | None
    personalise: Mapping[str, Any] | None
    private_statistics: Mapping[str, Any] | None
    checkpoint: Mapping[str, Any]
    runtime: Mapping[str, Any]
    trackers: list[Any]


_MODELS: dict[type, type[BaseModel]] = {PrivacyKeys: PrivacyConfig, DataKeys: DataConfig, RunKeys: Config}
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def shows(keys: type) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorate a function of ``**keys: Unpack[...]``: its signature and docstring list the keys at run time, too."""
    fields, hints = _MODELS[keys].model_fields, get_type_hints(keys)
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_plain(fields[name].default), annotation=hint)
        for name, hint in hints.items()
    ]
    listed = "\n".join(f"    {name}: {_description(fields[name])}" for name in hints)

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        signature = inspect.signature(function)
        *own, _ = signature.parameters.values()
        function.__signature__ = signature.replace(parameters=[*own, *parameters])  # type: ignore[attr-defined]
        function.__doc__ = f"{inspect.getdoc(function) or ''}\n\nKeys:\n{listed}"
        return function

    return decorate


def _description(field: FieldInfo) -> str:
    first, *_ = (inspect.getdoc(field.annotation) or "").split("\n\n")
    return field.description or " ".join(first.split())


def _plain(default: Any) -> Any:
    return default.name if isinstance(default, Block) else {} if isinstance(default, BaseModel) else default
