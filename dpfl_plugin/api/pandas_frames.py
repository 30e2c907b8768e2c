"""Data frames of what results hold as plain values: pandas is not needed for anything else."""

from __future__ import annotations

import types

from dpfl_plugin.errors import ConfigError


def pandas_for(name: str, plain: str) -> types.ModuleType:
    """pandas, for the attribute ``name``; ``plain`` has the same without it.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ConfigError(f"{name} needs pandas: pip install pandas. The same as plain values: {plain}.") from error
    found: types.ModuleType = pandas
    return found
