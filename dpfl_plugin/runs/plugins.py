"""The plugins that a configuration names, made with their options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from dpfl_plugin import registry
from dpfl_plugin.algorithms.base import Algorithm
from dpfl_plugin.config.blocks import Block
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import PluginError
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.mechanisms import Mechanism
from dpfl_plugin.privacy.schedules import Schedule


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
