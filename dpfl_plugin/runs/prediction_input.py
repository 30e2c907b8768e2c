"""New records for a finished run's model, from files, data frames and arrays, with their labels and ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin import registry
from dpfl_plugin.data import outcome_option, tables
from dpfl_plugin.data.base import Dataset, Features, Integers, validate
from dpfl_plugin.data.error_collector import FRAME
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.files import numeric_features, read_npz
from dpfl_plugin.data.labels import KnownLabels, numbers_of, plain_names, shape_of, unlabelled
from dpfl_plugin.data.schema import TableSchema
from dpfl_plugin.data.table import Columns, Table, is_frame
from dpfl_plugin.errors import ConfigError, DataError, nearest
from dpfl_plugin.runs.finished_run import FILES, FinishedRun
from dpfl_plugin.runs.public_facts import has_schema

RESERVED: Final = ("line", "record", "predicted", "probabilities", "survival")
"""Columns that predictions have by themselves."""


@dataclass(frozen=True, slots=True)
class PredictionInput:
    """New records to predict.

    Attributes:
        features: [n, *shape], before preprocessing.
        labels: [n, ...] of the run's outcome; of classes, those before preprocessing. None if none can be compared.
        lines: [n], where they are in their file, for tables.
        notes: what of them was changed.
        unused: columns that the model was not trained on.
    """

    features: Features
    labels: KnownLabels | None = None
    lines: Integers | None = None
    notes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


def read(trained: FinishedRun, data: str) -> PredictionInput:
    """The records in a CSV or NPZ file, or the test part of the run's own data set by its name.

    Raises:
        DataError: the file is missing, or its records are not of the kind that the model was trained on; the message
            names file, line and column.
        ConfigError: ``data`` is neither a file nor the run's data set, or the data set has no test part.
    """
    path, dataset = Path(data), trained.config.data.dataset
    if not path.is_file():
        if data == dataset.name and data not in FILES:
            return _test_part(trained, data)
        by_name = "" if dataset.name in (*FILES, None) else f", nor the run's data set ({dataset.name})"
        raise ConfigError(f"data={data!r} is not a file{by_name}; looked for {path.absolute()}.")
    if has_schema(trained.config):
        return _by_schema(trained, tables.new_records(path, dataset.options))
    named = dataset.name == "csv" or (dataset.name is None and trained.inputs.columns)  # or of a program's data frame
    return _table(trained, path) if named else _arrays(trained, path)


def read_frame(trained: FinishedRun, frame: Any) -> PredictionInput:
    """The records in a data frame, by the names of its columns.

    Raises:
        DataError: they are not of the kind that the model was trained on; the message names row (from 0) and column.
    """
    if has_schema(trained.config):
        found = _by_schema(trained, tables.new_records_of_frame(frame, trained.config.data.dataset.options))
    elif trained.inputs.columns:
        from dpfl_plugin.data.table_reader import frame_reader

        found = _of_table(trained, *_columns(trained).parse_new(FRAME, frame_reader(frame), trained.inputs.columns))
    else:
        raise DataError("the run was trained on arrays, whose columns have no names: give an array, not a data frame.")
    return replace(found, lines=None)  # a row is counted as a record is, from 0


def read_array(trained: FinishedRun, given: Any) -> PredictionInput:
    """The records in an array or a tensor, [n, *shape] as before preprocessing.

    Raises:
        DataError: it is of another shape, or holds something else than finite numbers.
    """
    x, where = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given), Path("the array")
    if has_schema(trained.config):
        raise DataError("the run was trained on tables with a schema: give a data frame or a file, not an array.")
    if x.shape[1:] != trained.inputs.shape or not len(x):
        raise DataError(f"{where} has shape {x.shape}; the model was trained on [n, {_sizes(trained.inputs.shape)}].")
    return PredictionInput(numeric_features(x, where))


def ids_of(trained: FinishedRun, data: Any, name: str) -> list[str]:
    """The id column [n] of the records that `read` or `read_frame` read, as text.

    Raises:
        ConfigError: it is not there, or the records are no table.
    """
    options = trained.config.data.dataset.options if has_schema(trained.config) else {}
    named = bool(options or trained.inputs.columns)
    if not named or not (is_frame(data) or (isinstance(data, str | Path) and Path(data).is_file())):
        raise ConfigError(f"a column to carry, {name!r}, is of a table: these records are none.")
    return _column_cells(data, name, _columns(trained), options)


def written_otherwise(trained: FinishedRun, records: PredictionInput) -> list[str]:
    """What to say of columns that would be labels, but for capitals, where no label was found."""
    if records.labels is not None and records.labels.known.any():
        return []
    by_schema, options = has_schema(trained.config), trained.config.data.dataset.options
    labels = TableSchema.parse(options["schema"]).label.named if by_schema else [_columns(trained).label]
    return [
        f"column {unused!r} is not read as a label: rename it to {label!r}, as in training, to measure the model on it."
        for label in labels
        for unused in records.unused
        if unused.lower() == label.lower()
    ]


def _by_schema(trained: FinishedRun, found: tables.NewRecords) -> PredictionInput:
    """Records of a table that a schema describes: what it refuses in training is refused here, too."""
    if found.columns != trained.inputs.columns:
        raise DataError(f"{trained.folder.config}: data.schema makes other features than the run was trained on.")
    return PredictionInput(found.features, found.labels, found.lines, found.notes, found.unused)


def _table(trained: FinishedRun, path: Path) -> PredictionInput:
    return _of_table(trained, *_columns(trained).read_new(path, trained.inputs.columns))


def _columns(trained: FinishedRun) -> Columns:
    options = trained.config.data.dataset.options
    return Columns(
        options.get("label_column", "label"),
        options.get("silo_column"),
        tuple(options.get("ignore_columns") or ()),
        options.get("delimiter", ","),
        options.get("person_column"),
    )


def _of_table(trained: FinishedRun, table: Table, unused: tuple[str, ...]) -> PredictionInput:
    lines = None if table.lines is None else np.array([*table.lines(list(range(len(table.labels)))).values()], np.int64)
    notes = tuple(f"{note}." for _, note in table.notes)
    return PredictionInput(table.features, _labels(trained, table), lines, notes, unused)


def _labels(trained: FinishedRun, table: Table) -> KnownLabels | None:
    """Of words; "" for none."""
    if not trained.outcome.has_classes:
        return _of_outcome(trained, table, table.labels != "")
    names = table.labels.tolist()
    if not trained.labels:
        return None
    number = numbers_of(trained.labels, names) | {"": 0}
    for record, name in enumerate(names):
        if name not in number:
            raise DataError(
                f"{table.place(record)}: {name!r} is not one of the run's classes "
                f"{', '.join(trained.labels[:20])}. Correct it, or leave the cell empty: a label is not needed."
            )
    return KnownLabels(np.array([number[name] for name in names], dtype=np.int64), table.labels != "")


def _of_outcome(trained: FinishedRun, table: Table, known: NDArray[np.bool_]) -> KnownLabels:
    """Of an outcome without classes."""
    found = unlabelled(trained.outcome, trained.inputs.num_classes, len(known))
    if not known.any():
        return found
    given = table._replace(features=table.features[known], labels=table.labels[known], lines=_lines_of(table, known))
    (labels,), _ = outcome_option.labels_of([given], trained.outcome, trained.labels)
    found.values[known] = labels
    return KnownLabels(found.values, known)


def _lines_of(table: Table, known: NDArray[np.bool_]) -> Callable[[list[int]], Mapping[int, int]] | None:
    """Where the ``known`` records are, by their number among these."""
    lines, places = table.lines, np.flatnonzero(known).tolist()
    if lines is None:
        return None
    return lambda records: {record: lines([places[record]])[places[record]] for record in records}


def _arrays(trained: FinishedRun, path: Path) -> PredictionInput:
    if path.suffix != ".npz":
        raise DataError(f"{path}: the run was trained on arrays, not on a table. Give an .npz file with an array x.")
    arrays, shape = read_npz(path), trained.inputs.shape
    x = arrays.get("x", arrays.get("features"))
    if x is None or x.shape[1:] != shape:
        found = f"holds {', '.join(arrays) or 'nothing'}" if x is None else f"has records of shape {x.shape[1:]}"
        raise DataError(f"{path} {found}; the model was trained on an array x (or features) [n, {_sizes(shape)}].")
    if not len(x):
        raise DataError(f"{path} holds no records: x has shape {x.shape}.")
    return PredictionInput(numeric_features(x, path), _array_labels(trained, arrays, len(x), path))


def _sizes(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


def _array_labels(
    trained: FinishedRun, arrays: Mapping[str, NDArray[Any]], count: int, path: Path
) -> KnownLabels | None:
    y = arrays.get("y", arrays.get("labels"))
    if y is None:
        return None
    if not trained.outcome.has_classes:
        numbers = {record: record for record in range(count)}
        table = Table(path, np.zeros((count, 1), np.float32), y, None, (), lambda _: numbers, unit="record")
        return _of_outcome(trained, table, _without_nan(trained, y, count, path))
    y = plain_names(y, count, f"{path}: y")
    table = Table(path, np.zeros((count, 1), np.float32), y.astype(str), None, ())
    return _labels(trained, table)


def _without_nan(trained: FinishedRun, y: NDArray[Any], count: int, path: Path) -> NDArray[np.bool_]:
    """[n], of labels of an outcome without classes: which are given."""
    shape, kind = (count, *shape_of(trained.outcome, trained.inputs.num_classes)), trained.outcome.kind
    of_counts = kind == "counts" and y.shape == (count,)  # without exposures
    if y.dtype.kind not in "fiub" or not (y.shape == shape or of_counts):
        raise DataError(f"{path}: y must be the labels of {kind}, numbers {shape}, got {y.dtype} {y.shape}.")
    return np.array([not np.isnan(label).any() for label in y.astype(np.float64)], dtype=bool)


def _test_part(trained: FinishedRun, name: str) -> PredictionInput:
    data = trained.config.data
    source = DataSource(
        Path(data.folder) if data.folder else None, trained.config.public_seed, data.num_silos, trained.base
    )
    loaded = registry.call(registry.load("datasets", name), source, where="data.dataset", **data.dataset.options)
    assert isinstance(loaded, Dataset)  # or the run would not be there
    if loaded.test is None:
        raise ConfigError(
            f"data={name!r}: this data set has no test part of its own; its records are those that the run was "
            "trained and tested on, of which result.json tells. Give other records, in a file."
        )
    validate(loaded, name)
    usable = slice(None) if loaded.test.usable is None else loaded.test.usable
    features, labels = loaded.test.features[usable], loaded.test.labels[usable]
    return PredictionInput(features, KnownLabels(labels, np.ones(len(labels), bool)))


def _column_cells(data: Any, name: str, columns: Columns, options: Mapping[str, Any]) -> list[str]:
    """The cells [n] of the column ``name``, as text; "" where one is empty.

    Args:
        data: the path of a table, or a data frame. columns: how tables without a schema are read. options: of the data
            set, for those with one.

    Raises:
        ConfigError: there is no such column, or predictions have one of this name themselves.
    """
    if name in RESERVED:
        raise ConfigError(f"predictions have a column {name!r} of their own: rename that of the records, to have both.")
    if is_frame(data):
        from dpfl_plugin.data.table_reader import frame_reader

        reader = frame_reader(data)
        where, header, cells = FRAME, reader.header, reader.words(name)
    elif "schema" in options:
        where, (header, cells) = Path(data), tables.words(Path(data), name, options)
    else:
        where, (header, cells) = Path(data), columns.words(Path(data), name)
    if name not in header:
        raise ConfigError(
            f"{where} has no column {name!r}{nearest(name, header)}, which predictions are to carry. Columns: "
            f"{', '.join(header[:30])}."
        )
    return cells


def id_notes(name: str, cells: Sequence[str]) -> list[str]:
    """Notes where an id column does not tell the records apart."""
    filled = [cell for cell in cells if cell]
    empty = len(cells) - len(filled)
    notes = [f"column {name!r}: {empty} of {len(cells)} cells are empty."] if empty else []
    if len(set(filled)) < len(filled):
        notes.append(f"column {name!r} has the same value in several records: tell them apart by the line.")
    return notes
