"""Plugins: found, refused with their name, and their options checked against their signatures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from dpfl_plugin import registry
from dpfl_plugin.errors import ConfigError, PluginError

Point = Callable[..., None]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A function that registers further algorithms: (name, value, distribution)."""
    real, more = registry._all_entry_points(), []

    class FromElsewhere(metadata.EntryPoint):
        dist = SimpleNamespace(name="elsewhere", version="7.0")

    def entry_points() -> metadata.EntryPoints:
        return metadata.EntryPoints([*real, *more])

    def add(name: str, value: str) -> None:
        more.append(FromElsewhere(name, value, "dpfl_plugin.algorithms"))
        registry._entry_points.cache_clear()

    monkeypatch.setattr(registry, "_all_entry_points", entry_points)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "stranger.py").write_text("def good(*, rate: float): return rate\nnumber = 3\n")
    (tmp_path / "burning.py").write_text("raise RuntimeError('on fire')")
    for module in ("stranger", "burning"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    yield add
    registry._entry_points.cache_clear()


def test_a_strangers_plugin(register: Point) -> None:
    register("theirs", "stranger:good")
    assert "theirs" in registry.names("algorithms") and registry.origin("algorithms", "theirs") == "elsewhere 7.0"
    plugin = registry.load("algorithms", "theirs")
    assert registry.build(plugin, {"rate": 1}, where="algorithm") == 1.0


def test_an_unknown_plugin() -> None:
    with pytest.raises(PluginError, match=r"no algorithm 'scafold' \(did you mean 'scaffold'\?\)\.$"):
        registry.load("algorithms", "scafold")
    with pytest.raises(PluginError, match=r"no model 'lstm'\. Known: .*softmax"):  # which is not near
        registry.load("models", "lstm")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("burning:algorithm", r"'theirs' \(from elsewhere 7.0\) cannot be loaded: RuntimeError: on fire"),
        ("no_such_package:algorithm", r"'theirs' .* ModuleNotFoundError: No module named 'no_such_package'"),
        ("stranger:bad", r"'theirs' .* AttributeError: .*'bad'"),
        ("stranger:number", r"'theirs' .* is not callable"),
    ],
)
def test_a_broken_plugin_breaks_when_it_is_selected(register: Point, value: str, message: str) -> None:
    register("theirs", value)
    assert callable(registry.load("algorithms", "fedavg"))
    with pytest.raises(PluginError, match=message):
        registry.load("algorithms", "theirs")


def test_a_name_that_two_packages_register(register: Point) -> None:
    register("fedavg", "stranger:good")
    with pytest.raises(
        PluginError, match=r"'fedavg' is registered by more than one.*dpfl-plugin.*elsewhere.*Uninstall"
    ):
        registry.load("algorithms", "fedavg")


def test_the_same_plugin_registered_twice_is_one(register: Point) -> None:
    """As when a package is installed, and found in the working folder too."""
    register("fedavg", "dpfl_plugin.algorithms.fedavg:FedAvg")
    assert registry.load("algorithms", "fedavg").__name__ == "FedAvg"


@pytest.mark.parametrize("path", ["", "os", "os:", ":getcwd", "os:path:join"])
def test_paths_of_own_code(path: str) -> None:
    with pytest.raises(PluginError, match=r"model: .* is not of the form package\.module:name"):
        registry.load_object(path, "model")


def plugin(
    context: str, *, count: int, rate: float = 0.5, mode: Literal["a", "b"] = "a", sizes: list[int] | None = None
) -> tuple[Any, ...]:
    if count == 13:
        raise ConfigError("count=13 must be lucky.")
    return context, count, rate, mode, sizes


def build(**given: Any) -> Any:
    return registry.build(plugin, given, "context", where="block")


def test_options() -> None:
    assert build(count=2) == ("context", 2, 0.5, "a", None)
    assert build(count=2.0, rate=1, mode="b", sizes=[1, 2]) == ("context", 2, 1.0, "b", [1, 2])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"block\.count is missing"),
        ({"count": "many"}, r"block\.count='many': .*integer"),
        ({"count": 1.5}, r"block\.count=1\.5: .*integer"),
        ({"count": None}, r"block\.count=None"),
        ({"count": 1, "rate": "x"}, r"block\.rate='x': .*number"),
        ({"count": 1, "mode": "c"}, r"block\.mode='c': .*'a' or 'b'"),
        ({"count": 1, "sizes": [1, "x"]}, r"block\.sizes\.1='x'"),
        ({"count": "x", "rate": "y"}, r"block\.count='x'.*;\n  block\.rate='y'"),
        ({"count": 1, "rat": 1}, r"block\.rat is not a .* \(did you mean 'rate'\?\)\.$"),
        ({"count": 1, "context": 1}, r"block\.context is not a known option"),
        # All of it at once.
        (
            {"rat": 1, "coun": 2},
            r"^block\.rat .* \(did you mean 'rate'\?\);\n  block\.coun .* \(did you mean 'count'\?\);\n"
            r"  block\.count is missing; it is required\.$",
        ),
        ({"count": 13}, r"block\.count=13 must be lucky"),
    ],
)
def test_wrong_options(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(**given)


def test_callables_that_cannot_be_plugins() -> None:
    def unknown_type(*, rate: NoSuchType) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(PluginError, match="cannot be a plugin"):
        registry.build(max, {}, where="model")
    with pytest.raises(PluginError, match=r"model: the types of its options cannot be read: .*NoSuchType"):
        registry.build(unknown_type, {"rate": 1}, where="model")
