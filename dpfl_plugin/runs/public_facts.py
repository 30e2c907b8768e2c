"""Which facts of data sets are public: what the configuration has, and what data sets of this package say."""

from __future__ import annotations

from typing import Final

from dpfl_plugin import registry
from dpfl_plugin.config.schema import SCHEMA_KEY, Config
from dpfl_plugin.given import is_given

FILES: Final = ("csv", "npz")
"""Data sets whose classes are read from the records, where the configuration does not name them."""
CLASSES: Final = "classes"


def is_of_package(config: Config) -> bool:
    """Whether the data set's code is this package's.

    What that of others says of its records, names of columns and classes, caveats, the range of an outcome, it may have
    read from them.
    """
    name = config.data.dataset.name
    return name is not None and registry.path_of("datasets", name).startswith("dpfl_plugin.")


def is_named(config: Config) -> bool:
    """Whether the configuration itself has the names of the classes."""
    return has_schema(config) or _says(config, CLASSES)


def has_schema(config: Config) -> bool:
    """Whether the configuration has the schema of a table."""
    return _says(config, SCHEMA_KEY)


def _says(config: Config, key: str) -> bool:
    """An option of somebody's own data set may be called so, and be something else."""
    dataset = config.data.dataset
    ours = is_of_package(config) or is_given(dataset.module, "data")
    return ours and dataset.options.get(key) is not None


def names_its_classes(config: Config) -> bool:
    """Whether names of classes are public: the configuration has them, or they are of a data set of this package."""
    return is_named(config) or (is_of_package(config) and config.data.dataset.name not in FILES)
