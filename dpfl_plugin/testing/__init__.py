"""Contract tests for plugins: `AlgorithmContract`, for whoever writes an algorithm. See docs/plugins.md.

Nothing here imports pytest: the classes are collected by it, and work without it.
"""

from dpfl_plugin.testing.contract import AlgorithmContract
from dpfl_plugin.testing.watch import ContractError

__all__ = ["AlgorithmContract", "ContractError"]
