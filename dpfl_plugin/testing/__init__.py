"""Contract tests for plugins: `AlgorithmContract` and `EngineContract`, for authors of plugins. See docs/plugins.md.

Nothing here imports pytest: the classes are collected by it, and work without it.
"""

from dpfl_plugin.testing.contract import AlgorithmContract
from dpfl_plugin.testing.contract_monitor import ContractError, difference
from dpfl_plugin.testing.engines import EngineContract

__all__ = ["AlgorithmContract", "ContractError", "EngineContract", "difference"]
