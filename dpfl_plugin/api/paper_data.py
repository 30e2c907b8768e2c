"""Data sets of a paper's runs: whether they can be read is told before the first run, once, and not by every run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dpfl_plugin import registry
from dpfl_plugin.config.schema import Config
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.errors import DataError, Worded
from dpfl_plugin.runs.folder import to_json


def check_readable(needed: Iterable[tuple[Config, Path]]) -> None:
    """Read every data set of runs once.

    Args:
        needed: configurations of runs, and where their paths start.

    Raises:
        DataError: files are missing and could not be fetched, or are damaged; one message of all.
    """
    found: dict[str, DataError | None] = {}
    for config, base in needed:
        data = config.data
        key = to_json([data.dataset.model_dump(mode="json"), data.folder], None)
        if data.dataset.name is None or key in found:  # a module of the user's own is each run's to load
            continue
        source = DataSource(Path(data.folder) if data.folder else None, config.public_seed, data.num_silos, base)
        plugin = registry.load("datasets", data.dataset.name)
        try:
            registry.call(plugin, source, where="data.dataset", **data.dataset.options)
            found[key] = None
        except DataError as error:
            found[key] = error
    errors = [error for error in found.values() if error is not None]
    if errors:
        said = " ".join(getattr(error, "missing", "") or str(error) for error in errors)
        here = "If you have them, name their folder: {data=FOLDER}, or DPFL_DATA."
        raise DataError(Worded(f"nothing was run: data files are missing or damaged. {here} {said}"))
