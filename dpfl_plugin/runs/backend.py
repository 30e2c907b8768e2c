"""Where the silos of a run live: what a runtime has to offer."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from dpfl_plugin.config.schema import Config
from dpfl_plugin.data.base import Holding
from dpfl_plugin.federation.runtime import ChargeSink, Runtime
from dpfl_plugin.runs.build import Parts


class Backend(Protocol):
    """Where silos live: a plugin of the group `runtimes`, made without arguments."""

    def hold(self, config: Config, base: Path, key: Path) -> Holding:
        """Have the records loaded; those that this process holds, and what is public of all.

        Args:
            key: the file of the silos' key, by which records are marked (`marks`). Nothing is written to it.

        Raises:
            ConfigError, DataError: something in the configuration or in the data files is wrong.
        """
        ...

    def begin(self) -> None:
        """The run begins: have the silos' key on disk."""
        ...

    def runtime(self, parts: Parts, charges: ChargeSink, config: Config) -> Runtime: ...
