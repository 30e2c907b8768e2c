"""Plugins by entry points: ours and strangers' register in the same way.

A plugin is a callable. What the framework gives it is positional; what a user may set in the configuration
are its keyword-only parameters, with their types and defaults. A config block ``{name: dirichlet, alpha: 0.1}``
is checked against them, so that every option is known, typed and used.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import itertools
import re
import typing
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any, Final

import pydantic

from dpfl_plugin import own_folders, plain_values
from dpfl_plugin.errors import ConfigError, DpflError, PluginError, refusal, told
from dpfl_plugin.given import MissingError
from dpfl_plugin.synonyms import meant, meant_plugin

MISSING: Final = "is missing; it is required"
NO_OPTION: Final = "is not a known option"
GROUPS: Final = (
    "algorithms",
    "mechanisms",
    "clippings",
    "schedules",
    "accountants",
    "engines",
    "datasets",
    "models",
    "partitioners",
    "runtimes",
    "callbacks",
)


def _all_entry_points() -> metadata.EntryPoints:
    """Of what is installed: `metadata.entry_points` would look into users' folders, too. Of equal names the first.

    Names are read only of distributions with entry points: to read those of all takes a tenth of a second.
    """
    found: dict[str, tuple[metadata.EntryPoint, ...]] = {}
    for distribution in metadata.distributions(path=own_folders.installed()):
        if points := tuple(distribution.entry_points):
            found.setdefault(re.sub(r"[-_.]+", "-", str(distribution.name)).lower(), points)
    return metadata.EntryPoints(itertools.chain(*found.values()))


@functools.cache
def _entry_points() -> dict[str, dict[str, list[metadata.EntryPoint]]]:
    """By group and name. Once for all groups: it reads the metadata of everything that is installed."""
    found: dict[str, dict[str, list[metadata.EntryPoint]]] = {group: {} for group in GROUPS}
    for point in _all_entry_points():
        package, _, group = point.group.partition(".")
        if package == "dpfl_plugin" and group in found:
            same = found[group].setdefault(point.name, [])
            if point.value not in [other.value for other in same]:
                same.append(point)
    return found


def names(group: str) -> list[str]:
    """Names of the registered plugins of a group, sorted."""
    return sorted(_entry_points()[group])


def origin(group: str, name: str) -> str:
    """The distribution that registers a plugin, e.g. ``dpfl-plugin 0.1.0``."""
    dist = _entry_points()[group][name][0].dist
    return f"{dist.name} {dist.version}" if dist else "unknown"


def module_of(path: str) -> str:
    """The module that ``package.module:name`` names, whatever module the object itself says that it is of."""
    return path.partition(":")[0]


def names_callable(text: str) -> bool:
    """Whether it is of the form ``package.module:name``, as all that `load_object` imports; ``cuda:0`` is not."""
    module, colon, attribute = text.partition(":")
    is_module = bool(module) and not any(one.isspace() or one == "/" for one in module)
    return bool(colon) and is_module and all(part.isidentifier() for part in attribute.split("."))


def path_of(group: str, name: str) -> str:
    """Where a registered plugin is, as ``package.module:name``."""
    return _entry_points()[group][name][0].value


def load(group: str, name: str) -> Callable[..., Any]:
    """The plugin ``name`` of ``group``.

    Raises:
        PluginError: it is unknown, registered by two packages, or cannot be imported.
    """
    kind = group.rstrip("s")
    points = _entry_points()[group].get(name, [])
    if not points:
        near = meant_plugin(group, name, names(group)) or f". Known: {', '.join(names(group))}"
        raise PluginError(f"there is no {kind} {name!r}{near}.")
    if len(points) > 1:
        packages = ", ".join(f"{p.dist.name if p.dist else '?'} ({p.value})" for p in points)
        raise PluginError(f"{kind} {name!r} is registered by more than one package: {packages}. Uninstall all but one.")
    # Where it is from is looked up when it is to be told: that takes longer than all the rest.
    return _import(points[0].value, lambda: f"{kind} plugin {name!r} (from {origin(group, name)})")


def load_object(path: str, what: str) -> Callable[..., Any]:
    """The object at ``package.module:name``, for users' own code named in a configuration.

    Raises:
        PluginError: it cannot be imported, or its name is that of another file that was imported before.
    """
    if not names_callable(path):  # before its module is imported
        raise PluginError(f"{what}: {path!r} is not of the form package.module:name.")
    own_folders.search()
    found = _import(path, lambda: f"{what} {path!r}")
    if files := own_folders.another(module_of(path)):
        raise PluginError(
            f"{what} {path!r} is {files[1]}, but this process imported another file of that name before, {files[0]}, "
            "and Python imports a name once. Rename one of the two, or use a process for each."
        )
    return found


def _import(path: str, what: Callable[[], str]) -> Callable[..., Any]:
    module, _, attribute = path.partition(":")
    try:
        plugin = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except MissingError:
        raise
    except Exception as error:  # a stranger's code may fail in any way
        raise PluginError(f"{what()} cannot be loaded: {told(error)}.") from error
    if not callable(plugin):
        raise PluginError(f"{what()} is not callable.")
    return plugin


def options(plugin: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options of a plugin that a configuration may set: its keyword-only parameters.

    Raises:
        PluginError: it has no signature, as some callables that are not written in Python.
    """
    try:
        parameters = inspect.signature(plugin).parameters
    except ValueError as error:
        raise PluginError(f"{plugin!r} cannot be a plugin: {error}.") from error
    return {name: p for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def build(plugin: Callable[..., Any], given: Mapping[str, Any], *context: Any, where: str) -> Any:
    """Call ``plugin(*context, **given)`` after checking ``given`` against its keyword-only parameters.

    Raises:
        ConfigError: an option is unknown, missing, of the wrong type or out of range; names ``where.option``.
        PluginError: a plugin of a user's own raised something; says what, file and line.
    """
    checked = check_options(plugin, given, where=where)
    try:
        return call(plugin, *context, where=where, **checked)
    except PluginError:
        raise
    except ConfigError as error:
        if str(error).startswith(where):
            raise
        raise type(error)(f"{where}.{error}") from error


def call(plugin: Callable[..., Any], *context: Any, where: str, **options: Any) -> Any:
    """``plugin(*context, **options)``, where what users' own code raises is one message instead of a traceback.

    What our own plugins raise is a bug of ours, and lack of memory is nobody's: both pass as they are.

    Raises:
        PluginError: users' own code raised; the message says what, file and line.
    """
    try:
        return plugin(*context, **options)
    except (DpflError, MemoryError):
        raise
    except Exception as error:
        module = getattr(plugin, "__module__", None) or type(plugin).__module__
        if module.partition(".")[0] == "dpfl_plugin":
            raise
        name = f"{module}:{getattr(plugin, '__qualname__', type(plugin).__qualname__)}"
        raise PluginError(f"{where}: {name} failed: {told(error)}.") from error


def check_options(plugin: Callable[..., Any], given: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """``given`` with types converted and defaults filled in. Raises ConfigError as `build` does."""
    allowed = options(plugin)
    wrong = [_unknown(plugin, key, allowed, where) for key in given if key not in allowed]
    if wrong:  # and with it what is missing, which often is the same option by another name
        required = (name for name, option in allowed.items() if option.default is inspect.Parameter.empty)
        wrong += [f"{where}.{name} {MISSING}" for name in required if name not in given]
        unlike = any(one.endswith(NO_OPTION) for one in wrong)
        known = f" Known options: {', '.join(allowed) or 'none'}." if unlike else ""
        raise ConfigError(";\n  ".join(wrong) + "." + known)
    model = _model_of_ours(plugin) if _is_ours(plugin) else _model_of(plugin, where)
    try:
        return {name: getattr(values, f"option_{name}") for values in [model(**given)] for name in allowed}
    except pydantic.ValidationError as error:
        raise ConfigError(";\n  ".join(describe(problem, where) for problem in error.errors()) + ".") from error


def _unknown(plugin: Callable[..., Any], key: str, allowed: Mapping[str, Any], where: str) -> str:
    if why := refusal(plugin, key):
        return f"{where}.{key}: {why.removesuffix('.')}"
    return f"{where}.{key} {NO_OPTION}{meant(key, allowed, where)}"


def _model_of(plugin: Callable[..., Any], where: str) -> type[_Options]:
    """What checks the options of a plugin.

    Raises:
        PluginError: their types cannot be read.
    """
    allowed = options(plugin)
    try:
        hints = typing.get_type_hints(_annotated(plugin)) if allowed else {}
    except Exception as error:  # a stranger's annotations may name anything
        raise PluginError(f"{where}: the types of its options cannot be read: {error}.") from error
    # By alias: an option may be called as something that every model of pydantic has, e.g. schema.
    fields: dict[str, Any] = {
        f"option_{name}": (
            hints.get(name, Any),
            pydantic.Field(... if p.default is inspect.Parameter.empty else p.default, alias=name),
        )
        for name, p in allowed.items()
    }
    config = pydantic.ConfigDict(arbitrary_types_allowed=True, strict=False)
    model: type[_Options] = pydantic.create_model("Options", __config__=config, __base__=_Options, **fields)
    return model


@functools.lru_cache(maxsize=256)
def _model_of_ours(plugin: Callable[..., Any]) -> type[_Options]:
    """Kept: a run checks some 28 blocks for every silo that it opens, and making a model takes a millisecond."""
    return _model_of(plugin, getattr(plugin, "__qualname__", repr(plugin)))


def _is_ours(plugin: Callable[..., Any]) -> bool:
    """Whether nobody changes it while a process runs: strangers' functions may be given other defaults."""
    of_code = inspect.isroutine(plugin) or inspect.isclass(plugin)
    return of_code and str(getattr(plugin, "__module__", "")).startswith("dpfl_plugin.")


class _Options(pydantic.BaseModel):
    """Of which the options of every plugin are."""

    @pydantic.field_validator("*", mode="before", check_fields=False)
    @classmethod
    def _plain(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        assert info.field_name is not None
        plain_values.check(cls.model_fields[info.field_name].annotation, value)
        return value


def _annotated(plugin: Callable[..., Any]) -> Any:
    """Where the types of a plugin's parameters stand; a dataclass's inherited ones, each in its own module."""
    if inspect.isroutine(plugin) or (inspect.isclass(plugin) and dataclasses.is_dataclass(plugin)):
        return plugin
    if not inspect.isclass(plugin):  # an object that can be called
        return type(plugin).__call__
    return plugin.__init__


def describe(problem: Any, where: str = "") -> str:
    """One pydantic problem as "key=value: what is wrong"."""
    path = ".".join(str(part) for part in (where, *problem["loc"]) if part != "")
    if problem["type"] == "missing":
        return f"{path} {MISSING}"
    message = problem["msg"][0].lower() + problem["msg"][1:]
    return f"{path}={problem['input']!r}: {message.replace('input should be', 'must be', 1)}"
