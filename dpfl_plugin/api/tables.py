"""Tables and their schema in Python: draft one, check files by it, encode a data frame by it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.api.progress import say
from dpfl_plugin.core.text import Printed, counted
from dpfl_plugin.data.error_collector import AS_IT_IS, FRAME, NotUtf8Error
from dpfl_plugin.data.names import column_list
from dpfl_plugin.data.schema import TableSchema
from dpfl_plugin.data.table import is_frame
from dpfl_plugin.data.tables import compared
from dpfl_plugin.errors import ConfigError, DataError, require

if TYPE_CHECKING:
    import pandas

    from dpfl_plugin.api.experiment import Experiment
    from dpfl_plugin.data import draft
    from dpfl_plugin.data.reading import Read


NOTHING_DONE: Final = "Nothing was trained, released or written."
NOT_PRIVATE: Final = (
    "drafted by looking at the values, which is not private: put the categories and ranges that are known without "
    "looking in their place"
)
WHAT: Final = "be a file, several, a data frame, or a mapping {silo's name: data frame or file}"
FORMAT: Final = ("delimiter", "decimal", "encoding", "header", "sheet")
"""Options of the data set `table` that say how files are written."""


@dataclass(frozen=True, slots=True)
class CheckedTables(Printed):
    """Tables that are right; ``print`` says so as `dpfl check` does.

    Attributes:
        num_records: {file: how many}. features: the names of what a record becomes. notes: what the owner of the
            records should look at; it tells of records. outside: {file: columns of which more than a fifth of the
            cells are outside the range}.
    """

    num_records: dict[str, int]
    features: tuple[str, ...]
    notes: tuple[str, ...]
    outside: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            *(f"{path}: {count} records, {self._judged(path)}" for path, count in self.num_records.items()),
            f"{len(self.features)} features: {', '.join(self.features)}",
            *(f"records: {note}" for note in self.notes),
            NOTHING_DONE,
        ]
        return "\n".join(lines)

    __repr__ = __str__

    def _judged(self, path: str) -> str:
        columns = self.outside.get(path)
        return f"many outside the range of {column_list(columns)}: check unit and range" if columns else "all right"


class TableRecords(NamedTuple):
    """Records as numbers: features (n, d) float32 by the names ``columns``, labels (n,) by the schema's classes."""

    features: NDArray[np.float32]
    labels: NDArray[Any]
    columns: tuple[str, ...]


def check_tables(
    files: str | Path | Sequence[str | Path],
    schema: TableSchema | Mapping[str, Any],
    *,
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    header: Sequence[str] | None = None,
    sheet: str | None = None,
) -> CheckedTables:
    """Read files as a run would, by a schema; nothing is trained, released or written.

    Args:
        files: one, or several. Other arguments are those of the data set `table` (docs/configuration.md).

    Raises:
        DataError: all that is wrong with all files, by line, column and value. ConfigError: the schema is wrong.
    """
    options = {"delimiter": delimiter, "decimal": decimal, "encoding": encoding, "header": header, "sheet": sheet}
    known, found = _read(files, schema, options)
    from dpfl_plugin.data import reading

    notes = (*reading.notes(found, known), *compared([one.path for one in found], {**options, "schema": known}))
    return CheckedTables(
        {str(one.path): len(one.table.labels) for one in found},
        known.features,
        notes,
        {str(one.path): columns for one in found if (columns := one.outside)},
    )


def read_tables(
    files: str | Path | Sequence[str | Path],
    schema: TableSchema | Mapping[str, Any],
    *,
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    header: Sequence[str] | None = None,
    sheet: str | None = None,
) -> TableRecords:
    """Records of files as numbers, by a schema: what a silo on a platform trains on.

    Args: as `check_tables`.

    Raises:
        DataError, ConfigError: as `check_tables`.
    """
    options = {"delimiter": delimiter, "decimal": decimal, "encoding": encoding, "header": header, "sheet": sheet}
    known, found = _read(files, schema, options)
    for one in found:
        if unlabelled := int((~one.table.has_label).sum()):
            raise DataError(f"{one.path}: {counted(unlabelled, 'record')} without a label. Leave such records out.")
    features = np.concatenate([one.table.features for one in found])
    return TableRecords(features, np.concatenate([one.table.labels for one in found]), known.features)


def _read(
    files: str | Path | Sequence[str | Path], schema: TableSchema | Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[TableSchema, list[Read]]:
    from dpfl_plugin.data import reading

    known = TableSchema.parse(schema)
    paths = [Path(one).expanduser() for one in ([files] if isinstance(files, str | Path) else files)]
    require(len(paths) > 0, "files", files, "name a file")
    return known, reading.read_all(paths, known, reading.format_of(options))


def check_tables_of(experiment: Experiment | str | Path, files: Sequence[str | Path]) -> CheckedTables:
    """Check files by the schema of a configuration, as `check_tables`: one silo's own, before it takes part.

    Raises:
        ConfigError: the configuration has no schema, or several. DataError: as `check_tables`.
    """
    from dpfl_plugin.api.experiment import experiment_of  # and so torch, which a draft does not need

    found = experiment_of(experiment)
    variants = [one.config.data.dataset.options for one in found.untuned.loaded().variants]
    if len({json.dumps(one, sort_keys=True, default=str) for one in variants}) > 1:
        raise ConfigError("the variants of this configuration describe their data differently: check one of them.")
    options = variants[0]
    if "schema" not in options:
        raise ConfigError(
            "this configuration has no data.schema, by which files could be checked. dpfl init --from FILE drafts one."
        )
    return check_tables(files, **{key: value for key, value in options.items() if key in ("schema", *FORMAT)})


def draft_schema(
    data: str | Path | Sequence[str | Path] | pandas.DataFrame | Mapping[str, pandas.DataFrame | str | Path],
    *,
    label: str | None = None,
    silo: str | None = None,
    person: str | None = None,
    time: str | None = None,
    event: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
) -> dict[str, Any]:
    """A first schema for files, or a data frame, as plain values, to be corrected.

    Looking at values is not private, and a warning says so: put the categories and ranges that are known without
    looking in their place, and then remove ``drafted``: until then checks, runs and statements say that epsilon does
    not cover them. What else to look at, such as cells that are no numbers, is said on stderr.

    Args:
        data: a file, several, or a data frame; or {silo's name: data frame or file}, all with the same columns.
        label, silo, person: columns: what to predict, whose silo and whose record it is.
        time, event: of survival, instead of a label: a time, and whether the event was then.
        encoding, sheet: of files, as `check_tables` takes them.

    Raises:
        DataError: a file cannot be read, or silos have different columns. ConfigError: there is no such column, or
            ``data`` is something else.
    """
    from dpfl_plugin.data import draft
    from dpfl_plugin.data.table_reader import TextFormat

    columns = {"label": label, "silo": silo, "person": person, "time": time, "event": event}
    if isinstance(data, str | Path):
        named: dict[str, Any] = {str(data): data}
    elif is_frame(data):
        named = {str(FRAME): data}
    elif isinstance(data, Mapping):
        if silo is not None:
            raise ConfigError(f"silo={silo!r}: each of data is a silo already. Leave one of the two out.")
        named = {f"silo {name}": one for name, one in data.items()}
    else:
        require(isinstance(data, Sequence), "data", type(data).__name__, WHAT)
        named = {f"data[{place}]": one for place, one in enumerate(data)}
    for where, one in named.items():
        if not isinstance(one, str | Path) and not is_frame(one):
            raise ConfigError(f"{where} is of type {type(one).__name__}: data must {WHAT}.")
    require(len(named) > 0, "data", data, WHAT)
    with _encoding_by("encoding='windows-1252'"):
        made = draft.of_tables(named, draft.Roles(**columns), TextFormat(encoding=encoding, sheet=sheet))
    warnings.warn(f"this schema was {NOT_PRIVATE}.", stacklevel=2)
    for line in made.notes:
        say(line)
    if made.form.decimal == ",":
        say("Give decimal=',' to check_tables and read_tables; pandas.read_csv takes it, too, before from_table.")
    return made.schema


def drafted(
    files: Sequence[str | Path], columns: Mapping[str, str | None], form: Mapping[str, str | None]
) -> draft.Draft:
    """A first schema for files, with how they are written, and what to look at; errors as `draft_schema`.

    Args:
        form: their encoding and sheet, see `TextFormat`.
    """
    from dpfl_plugin.data import draft
    from dpfl_plugin.data.table_reader import TextFormat

    if not files:
        raise ConfigError("data names no file.")
    with _encoding_by("--encoding windows-1252"):
        return draft.of_files(
            [Path(one).expanduser() for one in files],
            TextFormat(encoding=form["encoding"], sheet=form["sheet"]),
            draft.Roles(**columns),
        )


@contextmanager
def _encoding_by(option: str) -> Iterator[None]:
    """Name this option where a text is in another encoding."""
    try:
        yield
    except NotUtf8Error as error:
        raise DataError(str(error).replace(AS_IT_IS, f" Read it as it is: {option}.")) from error
