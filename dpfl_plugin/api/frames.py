"""Data frames with a schema as the records of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpfl_plugin.api.federation import Given
from dpfl_plugin.api.objects import digest
from dpfl_plugin.data.base import Dataset
from dpfl_plugin.data.error_collector import FRAME
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.labels import LabelType, type_of
from dpfl_plugin.data.reading import Read, check, read_table
from dpfl_plugin.data.schema import TableSchema
from dpfl_plugin.data.table import is_frame
from dpfl_plugin.data.table_reader import frame_reader
from dpfl_plugin.data.tables import assembled
from dpfl_plugin.errors import ConfigError


class GivenBySchema(Given):
    """Data frames that a schema describes, encoded, in a data set plugin's place; its option is another one.

    Args:
        names: of silos, where each frame is one.
    """

    def __init__(self, found: list[Read], names: tuple[str, ...] = (), label_type: LabelType = "text") -> None:
        super().__init__({str(one.path): one.table for one in found}, label_type)
        self._found, self._names = found, names

    def __call__(  # type: ignore[override]  # options are what its configuration has, checked by its signature
        self, source: DataSource, *, schema: dict[str, Any]
    ) -> Dataset:
        paths = [one.path for one in self._found]
        held = None if paths == [FRAME] else list(range(len(paths)))  # a frame without a name is no silo
        made = assembled(TableSchema.parse(schema), self._found, [], paths, held)
        made = replace(made, label_type=self.label_type)
        return replace(made, silo_names=self._names) if self._names else made

    @property
    def digest(self) -> str:
        known = [one.table.has_label.tobytes() for one in self._found if not one.table.has_label.all()]
        return digest(super().digest.encode(), *known)


def encoded(data: Any, schema: TableSchema) -> GivenBySchema:
    """A data frame, or {silo's name: data frame}.

    Raises:
        DataError: all that is wrong with all of them, by row (from 0), column and value.
        ConfigError: it is not a data frame.
    """
    named = {f"silo {name}": frame for name, frame in data.items()} if _is_mapping(data) else {str(FRAME): data}
    for where, frame in named.items():
        if not is_frame(frame):
            raise ConfigError(f"{where}: from_table needs a pandas DataFrame, not a {type(frame).__name__}.")
    if not named:
        raise ConfigError("from_table needs a data frame, or a mapping {silo's name: data frame} of at least one silo.")
    if _is_mapping(data) and schema.silo is not None:
        raise ConfigError(f"schema.silo={schema.silo!r}: each frame is a silo already. Leave one of the two out.")
    found = [read_table(frame_reader(frame), Path(where), schema) for where, frame in named.items()]
    check(found)
    names = tuple(map(str, data)) if _is_mapping(data) else ()
    return GivenBySchema(found, names, _label_type(list(named.values()), schema))


def _label_type(frames: Sequence[Any], schema: TableSchema) -> LabelType:
    """Classes that the schema makes of cells are called by its words; others are the cells."""
    label = schema.label
    cells = label.column if label.known.has_classes and label.class_values is None else None
    return "text" if cells is None else type_of(frame[cells] for frame in frames)


def _is_mapping(data: Any) -> bool:
    return isinstance(data, Mapping)
