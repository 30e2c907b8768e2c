"""The plugins that a configuration names: make them with their options, and name those whose code fails."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from dpfl_plugin import registry
from dpfl_plugin.algorithms.base import Algorithm
from dpfl_plugin.config.blocks import Block
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import DpflError, PluginError
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.mechanisms import Mechanism
from dpfl_plugin.privacy.schedules import Schedule

OWN_CODE: Final = ("dpfl_plugin", "torch")  # an exception there is a bug of ours, or of what a plugin called


def is_ours(plugin: object) -> bool:
    made = plugin if inspect.isroutine(plugin) else type(plugin)
    return plugin is None or str(getattr(made, "__module__", "")).partition(".")[0] == "dpfl_plugin"


def make_algorithm(config: Config, where: str = "algorithm") -> Algorithm:
    algorithm: Algorithm = build_plugin("algorithms", config.algorithm, where=where)
    return algorithm


def make_accountant(config: Config) -> Accountant:
    accountant: Accountant = build_plugin("accountants", config.privacy.accountant, where="privacy.accountant")
    return accountant


PROTOCOLS: Final[dict[str, type]] = {
    "algorithms": Algorithm,
    "mechanisms": Mechanism,
    "schedules": Schedule,
    "accountants": Accountant,
}


def build_plugin(group: str, block: Block, *context: object, where: str):  # type: ignore[no-untyped-def]
    """The plugin that a block names, called with its options.

    Raises:
        ConfigError: an option is wrong, see `registry.build`.
        PluginError: what it makes lacks a member of its protocol.
    """
    made = registry.build(plugin_of(group, block, where), block.options, *context, where=where)
    protocol = PROTOCOLS.get(group, object)
    missing = [name for name in vars(protocol) if not name.startswith("_") and not hasattr(made, name)]
    if missing:
        path = protocol.__module__.replace(".", "/")
        raise PluginError(
            f"{where}: {type(made).__name__} has no {', '.join(missing)}; see {protocol.__name__} in {path}.py."
        )
    return made


def algorithm_options(config: Config) -> list[str]:
    """The options that a configuration's algorithm has."""
    return list(registry.options(plugin_of("algorithms", config.algorithm, "algorithm")))


def plugin_of(group: str, block: Block, where: str) -> Callable[..., Any]:
    if block.name is None:
        return registry.load_object(str(block.module), where)
    return registry.load(group, block.name)


def model_block(block: Block) -> dict[str, Any]:
    """A configuration's model as `build_model` takes it."""
    chosen = {"name": block.name} if block.module is None else {"module": block.module}
    return {**chosen, **block.options}


class PluginFrame(NamedTuple):
    """The plugin whose code an exception came through, as package.module:name, and the place in it."""

    name: str
    file: str
    line: int | None


def plugin_frame(error: BaseException, plugins: Iterable[object]) -> PluginFrame | None:
    """Where in the code of plugins of other packages an exception was raised; None if it was not.

    Args:
        plugins: functions, or instances of classes.
    """
    files: dict[str | None, list[Any]] = {}
    for plugin in plugins:
        named = plugin if inspect.isfunction(plugin) else type(plugin)
        module = inspect.getmodule(named)
        if module is not None and module.__name__.partition(".")[0] not in OWN_CODE:
            files.setdefault(getattr(module, "__file__", None), []).append(named)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in files:
            of_file = files[frame.filename]
            named = next((plugin for plugin in of_file if plugin.__name__ == frame.name), of_file[0])
            return PluginFrame(f"{named.__module__}:{named.__qualname__}", frame.filename, frame.lineno)
    return None


def plugin_fault(error: Exception, plugins: Iterable[object]) -> str | None:
    """Say which plugin of another package raised what, and where; None if none did.

    Args:
        plugins: see `plugin_frame`.
    """
    frame = None if isinstance(error, DpflError) else plugin_frame(error, plugins)
    if frame is None:
        return None
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    return f"plugin {frame.name} ({frame.file}, line {frame.line}) raised {what}"


def traceback_of(error: Exception) -> str:
    """The traceback, for a run's log."""
    return "".join(traceback.format_exception(error))
