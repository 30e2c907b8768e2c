"""Wrong settings (`--set`), for every key that there is: one message, never a traceback."""

from __future__ import annotations

import contextlib
import copy
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from dpfl_plugin.config import load as loading
from dpfl_plugin.config import sweep as sweeping
from dpfl_plugin.config import tune as tuning
from dpfl_plugin.config.load import load
from dpfl_plugin.config.schema import Config, SweepConfig
from dpfl_plugin.config.tune_keys import TuneConfig
from dpfl_plugin.errors import ConfigError
from tests.cli.command import BASE, dpfl, merged, one_message, write

# A value for every block, so that each setting changes something that is there.
BLOCKS: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [3]},
    "data": {"partition": "iid", "preprocess": ["unit_norm"]},
    "privacy": {"mechanism": "gaussian", "clip": {"name": "flat"}, "schedule": "constant", "accountant": "pld"},
    "trackers": ["tensorboard"],
}
PLUGINS = ["data.dataset", "data.partition", "model", "algorithm"]
PLUGINS += ["privacy.mechanism", "privacy.clip", "privacy.schedule", "privacy.accountant"]
VARIANTS = {"variants": {"a": {"model": "softmax", "algorithm": {"name": "fedavg"}}, "b": {}}}
SWEEP = {"sweep": {"grid": {"algorithm.local_lr": [0.5, 1.0]}, "list": [{"rounds": 2}], "seeds": 1}}
TUNE = {"tune": {"grid": {"algorithm.local_lr": [0.5, 1.0]}, "rungs": [3]}, "privacy": {"epsilon": 4}}
# Words, numbers out of range, other types, names of plugins that are none, of the wrong group, or no words.
VALUES = ["no_such", "''", "null", "true", "-1", ".nan", "9" * 30, "[]", "[[1]]", "{}", "{a: 1}", "{? null : 1}"]
VALUES += ["{name: 1}", "{name: fedavg}", "{name: [{}]}", "{module: 1}", "[{name: x}]", "[{1: 2}]", "[{seed: {a: 1}}]"]
VALUES += ["{algorithm.name: [{}]}", "{data.name: [1]}", "{'': [1]}", "[{if: {a: 1}, grid: {b: [1]}}]"]


def models_in(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for argument in typing.get_args(kind):
        yield from models_in(argument)


def keys_of(model: type[BaseModel], *path: str) -> Iterator[str]:
    """Every key, those of blocks and silos too."""
    for name, field in model.model_fields.items():
        here = (*path, field.alias or name)
        yield ".".join(here)
        below = (*here, "0") if typing.get_origin(field.annotation) is dict else here  # settings of a silo
        for inner in models_in(field.annotation):
            yield from keys_of(inner, *below)


KEYS = list(dict.fromkeys(keys_of(Config)))
ELSEWHERE = ["no_such", "name.name", "data.name", "data.schema", "data.dataset.name.name", "compare", "sweep", "tune"]
ELSEWHERE += ["variants", "variants.a", "variants.name", "variants.a.algorithm.name", "variants.c.d"]
FILES: dict[str, tuple[Any, dict[str, Any], Callable[[Path, list[str]], object], list[str]]] = {
    "run": (loading, VARIANTS, loading.load, [*KEYS, *ELSEWHERE]),
    "sweep": (sweeping, SWEEP, sweeping.expand, [*keys_of(SweepConfig, "sweep"), "sweep.grid.algorithm", *ELSEWHERE]),
    "tune": (tuning, TUNE, tuning.read_tune, [*keys_of(TuneConfig, "tune"), *ELSEWHERE]),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("value", VALUES)
def test_any_value_of_any_key_is_read_or_refused_in_one_message(
    kind: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, changes, read, keys = FILES[kind]
    path, values = Path("config.yaml"), merged(merged(BASE, BLOCKS), changes)
    monkeypatch.setattr(module, "read_yaml", lambda path: copy.deepcopy(values))  # YAML takes most of the time
    for key in keys:
        with contextlib.suppress(ConfigError):
            read(path, [f"{key}={value}"])


def bounds_of(model: type[BaseModel], *path: str) -> Iterator[tuple[str, float]]:
    """(key, a number just outside) of each bound of each key."""
    for name, field in model.model_fields.items():
        here, kind = (*path, field.alias or name), field.annotation
        step = 1 if int in (kind, *typing.get_args(kind)) else 1e-9
        for bound in field.metadata:
            for side, outside in (("ge", -step), ("gt", 0), ("le", step), ("lt", 0)):
                if hasattr(bound, side):
                    yield ".".join(here), getattr(bound, side) + outside
        for inner in models_in(kind) if typing.get_origin(kind) is not dict else ():
            yield from bounds_of(inner, *here)


@pytest.mark.parametrize(("key", "outside"), list(bounds_of(Config)))
def test_a_number_beyond_a_bound_is_named(key: str, outside: float) -> None:
    change: Any = outside
    for part in reversed(key.split(".")):
        change = {part: change}
    with pytest.raises(ConfigError, match=rf"\b{key}=.* must be "):
        loading.configure(BASE, change, source="test")


@pytest.mark.parametrize("parent", ["", *KEYS])
def test_a_key_that_does_not_exist_is_named(tmp_path: Path, parent: str) -> None:
    """Below a mapping, a value or nothing. Options of plugins are looked at when these are made."""
    path = write(tmp_path, BLOCKS)
    if parent in PLUGINS:
        one_message(dpfl("check", path, "--set", f"{parent}.no_such=1"), f"{parent}.no_such is not a known option")
    elif parent not in ("silo_weights", "class_weights"):
        with pytest.raises(ConfigError, match=rf"(?s)^{path}: {parent.partition('.')[0]}.*no_such"):
            load(path, [f"{parent}.no_such=1".lstrip(".")])


@pytest.mark.parametrize("key", [*PLUGINS, "engine", "loss"])
@pytest.mark.parametrize("value", ["no_such", "''"])
def test_a_plugin_that_does_not_exist_is_named(tmp_path: Path, key: str, value: str) -> None:
    path = write(tmp_path, BLOCKS)
    for block in [key, f"{key}.name", f"{key}.module"] if key in PLUGINS else [key]:
        one_message(dpfl("check", path, "--set", f"{block}={value}"), repr(value.strip("'")))


@pytest.mark.parametrize("key", PLUGINS)
def test_code_that_is_no_plugin_is_one_message(tmp_path: Path, key: str) -> None:
    path = write(tmp_path, BLOCKS)
    for module in ("os:path", "os:no_such", "no_such:name", "json:dumps", "collections:UserList"):
        one_message(dpfl("check", path, "--set", f"{key}.module={module}"), key)


# A block, what a file has there, and how it is read.
NULLS: dict[str, tuple[Any, Callable[[Path, list[str]], object]]] = {
    "data.partition": ({"name": "dirichlet", "alpha": 0.1}, load),
    "data.preprocess": (["unit_norm"], load),
    "data.schema": ({"label": "ill"}, load),
    "model": ({"name": "mlp", "hidden": [3]}, load),
    "model.hidden": ([3], load),
    "privacy.clip": ("per_layer", load),
    "privacy.accountant": ({"name": "rdp"}, load),
    "silos": ({"0": {"clip_norm": 2.0}}, load),
    "evaluation": ({"every": 2}, load),
    "early_stopping": ({"every": 2}, load),
    "checkpoint": ({"every": 2}, load),
    "runtime": ({"threads": 2}, load),
    "trackers": (["tensorboard"], load),
    "sweep": (SWEEP["sweep"], load),
    "tune": (TUNE["tune"], load),
    "variants": (VARIANTS["variants"], load),
    "variants.b": ({"seed": 4}, load),
    "sweep.list": ([{"rounds": 2}], sweeping.expand),
    "tune.random": ({"algorithm.local_lr": [0.1, 1.0]}, tuning.read_tune),
}


# What the file needs besides.
AROUND: dict[str, dict[str, Any]] = {
    "model.hidden": {"model": {"name": "mlp"}},
    "variants.b": {"variants": {"a": {}}},
    "sweep.list": {"sweep": {"seeds": 2}},
    "tune.random": merged(TUNE, {"tune": {"candidates": None}, "privacy": {"epsilon": 4}}),
}


@pytest.mark.parametrize("key", NULLS)
def test_null_removes_a_block(key: str, tmp_path: Path) -> None:
    block, read = NULLS[key]
    for part in reversed(key.split(".")):
        block = {part: block}
    around = merged({"privacy": {"noise_multiplier": None}} if read is tuning.read_tune else {}, AROUND.get(key, {}))
    without = read(write(tmp_path, around), [])
    if key not in ("model.hidden", "variants.b"):  # a plugin's option may mean something by null
        assert read(write(tmp_path, around), [f"{key}=null"]) == without
    assert read(write(tmp_path, merged(around, block)), [f"{key}=null"]) == without
