"""Tables of a user's own with a schema: CSV, Parquet and xlsx files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from dpfl_plugin.core.text import counted
from dpfl_plugin.data import files as data_files
from dpfl_plugin.data.base import AS_READ, Dataset, Features, Integers
from dpfl_plugin.data.error_collector import FRAME
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.identifiers import KEEPS, are_persons, whose
from dpfl_plugin.data.labels import KnownLabels
from dpfl_plugin.data.schema import WHERE, TableSchema

if TYPE_CHECKING:
    from dpfl_plugin.data.reading import Read

NAME: Final = "table"


def table(
    source: DataSource,
    *,
    files: str | list[str],
    schema: dict[str, Any],
    test_files: str | list[str] | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    header: list[str] | None = None,
    sheet: str | None = None,
) -> Dataset:
    """Records from CSV (also .csv.gz), Parquet and xlsx files by a schema: one file for each silo, or a silo column.

    files, test_files: paths or glob patterns, as those of `csv`. schema: see `TableSchema`. delimiter: found by the
    names of columns where it is not given; decimal: "." or ",", "." if not given; encoding: UTF-8 if not given;
    header: names of the columns of files without them; sheet: of workbooks, the first if not given.

    Raises:
        DataError: a file is missing or not such a table; the message names all that is wrong with all files, by line,
            column and value, and the line of the schema that mends it.
        ConfigError: an option or the schema is wrong.
    """
    from dpfl_plugin.data import reading

    known = TableSchema.parse(schema)
    options = {"delimiter": delimiter, "decimal": decimal, "encoding": encoding, "header": header, "sheet": sheet}
    form = reading.format_of(options)
    if known.silo is not None:  # every file has to be read to know whose records are in it
        source = replace(source, ownership=None)
    paths, test_paths = source.paths(files, "files"), source.paths(test_files, "test_files") if test_files else []
    data_files.check_apart(paths)
    owned = source.ownership if len(paths) > 1 and len(test_paths) in (0, len(paths)) else None
    held = [i for i in range(len(paths)) if owned is None or owned.holds(i)]
    own_paths = [paths[i] for i in held]
    own_test_paths = [path for i, path in enumerate(test_paths) if owned is None or i in held]
    results = reading.read_all([*own_paths, *own_test_paths], known, form)
    train, test = results[: len(own_paths)], results[len(own_paths) :]
    part_of = None if owned is None else len(paths)
    return assembled(known, train, test, paths, held if len(paths) > 1 else None, part_of)


class NewRecords(NamedTuple):
    """Records that a model is asked about: features [n, d] by the names ``columns``; labels by the schema; lines [n];
    notes: what of them was changed; unused: columns that the schema does not name."""

    features: Features
    labels: KnownLabels
    lines: Integers
    notes: tuple[str, ...]
    columns: tuple[str, ...]
    unused: tuple[str, ...]


def new_records(path: Path, options: Mapping[str, Any]) -> NewRecords:
    """A file of records that a model is asked about; ``options``: of `table`, as the model was trained.

    Raises:
        DataError, ConfigError: as `table`.
    """
    from dpfl_plugin.data import reading

    schema = TableSchema.parse(options.get("schema"))
    return _new_records(reading.read(path, schema, reading.format_of(options), new_records=True), schema)


def new_records_of_frame(frame: Any, options: Mapping[str, Any]) -> NewRecords:
    """As `new_records`, of a data frame; ``lines`` are rows from 0."""
    from dpfl_plugin.data import reading, table_reader

    schema = TableSchema.parse(options.get("schema"))
    return _new_records(reading.read_table(table_reader.frame_reader(frame), FRAME, schema, new_records=True), schema)


def words(path: Path, name: str, options: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """(names of the columns, the cells of this one as text, none where it is not there), as `new_records` reads."""
    from dpfl_plugin.data import reading, table_reader

    schema = TableSchema.parse(options.get("schema"))
    table = table_reader.open_table(path, reading.format_of(options), list(schema.used))
    with closing(table):
        return table.header, table.words(name)


def _new_records(result: Read, schema: TableSchema) -> NewRecords:
    from dpfl_plugin.data import reading

    reading.check([result])
    table = result.table
    lines = np.array([result.lines[record] for record in range(len(table.labels))], dtype=np.int64)
    return NewRecords(
        table.features,
        KnownLabels(table.labels, table.has_label),
        lines,
        tuple(f"{note}." for note in reading.notes([result], schema)),
        schema.features,
        tuple(result.unused),
    )


def compared(paths: Sequence[Path], options: Mapping[str, Any]) -> tuple[str, ...]:
    """How these tables differ, or one of them from its schema; ``options``: of `table`."""
    from dpfl_plugin.data import reading
    from dpfl_plugin.data.site_comparison import compare_files

    return compare_files(paths, TableSchema.parse(options["schema"]), reading.format_of(options))


def assembled(
    schema: TableSchema,
    train: Sequence[Read],
    test: Sequence[Read],
    paths: list[Path],
    held: list[int] | None,
    part_of: int | None = None,
) -> Dataset:
    """The records of tables that are right.

    Args:
        paths: of all training tables; held: the places among them of ``train``, None for a single one, which is no
            silo; part_of: how many silos there are, where other processes hold some of them.
    """
    from dpfl_plugin.data import reading

    tables, test_tables = ([result.table for result in part] for part in (train, test))
    labelled = [each for each in tables if each.has_label.any()]  # of others nothing is used, so that all look the same
    data_files.check_contents([(each.path, each.features, each.labels) for each in labelled])
    data = data_files.assembled(
        tables,
        test_tables,
        paths,
        held,
        schema.label.known,
        schema.class_names,
        columns=schema.features,
        shape=(len(schema.features),),
        notes=() if part_of is not None else (*reading.notes([*train, *test], schema), *_whose(schema, train)),
        caveats=(_said(schema), *schema.caveats),
        part_of=part_of,
    )
    return replace(data, measured=schema.measured)


def _whose(schema: TableSchema, tables: Sequence[Read]) -> list[str]:
    """Notes on columns of whole numbers that seem to say whose record it is."""
    notes = []
    sites = np.repeat(np.arange(len(tables)), [len(result.table.features) for result in tables])
    for name, column in schema.columns.items():
        if column.type != "integer":
            continue
        low, high = column.bounds
        place = schema.features.index(name)
        values = np.concatenate([result.table.features[:, place].astype(np.float64) for result in tables])
        if are_persons(name, np.rint(low + (values + 1) / 2 * (high - low)), sites):
            named = "" if schema.person is not None else f"name it as {WHERE}.person, {KEEPS}; or "
            notes.append(whose(name, f"If so, {named}leave it out: {WHERE}.columns.{name}: {{type: ignored}}"))
    return notes


def _said(schema: TableSchema) -> str:
    """How the schema reads the records, for readers of results."""
    names = schema.features
    shown = ", ".join(names[:30]) + (", ..." if len(names) > 30 else "")
    outcome = schema.label.outcome
    listed = ", ".join(f"{name} -> {number}" for number, name in enumerate(schema.class_names[:20]))
    classes = f" ({listed}{', ...' if len(schema.class_names) > 20 else ''})" if listed else ""
    return f"{AS_READ}{counted(len(names), 'feature')} by the schema: {shown}; {outcome}{classes}"
