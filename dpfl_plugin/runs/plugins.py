"""The plugins that a configuration names, made with their options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from dpfl_plugin import registry
from dpfl_plugin.algorithms.base import Algorithm
from dpfl_plugin.config.blocks import Block
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import PluginError
from dpfl_plugin.privacy.accountants import Accountant


def is_ours(plugin: object) -> bool:
    made = plugin if inspect.isroutine(plugin) else type(plugin)
    return plugin is None or str(getattr(made, "__module__", "")).partition(".")[0] == "dpfl_plugin"


def make_algorithm(config: Config, where: str = "algorithm") -> Algorithm:
    algorithm: Algorithm = build_plugin("algorithms", config.algorithm, where=where)
    methods = ("init_server", "init_silos", "round_plan", "download", "local_update", "aggregate", "notes")
    missing = [name for name in methods if not callable(getattr(algorithm, name, None))]
    if missing:
        raise PluginError(
            f"{where}: {type(algorithm).__name__} has no {', '.join(missing)}; see Algorithm in "
            "dpfl_plugin/algorithms/base.py."
        )
    return algorithm


def make_accountant(config: Config) -> Accountant:
    accountant: Accountant = build_plugin("accountants", config.privacy.accountant, where="privacy.accountant")
    return accountant


def build_plugin(group: str, block: Block, *context: object, where: str):  # type: ignore[no-untyped-def]
    """The plugin that a block names, called with its options."""
    return registry.build(plugin_of(group, block, where), block.options, *context, where=where)


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
