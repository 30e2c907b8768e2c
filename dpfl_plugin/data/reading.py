"""Tables read, checked and encoded by a schema: everything that is wrong with all of them is told at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.data.cells import Found, of_limits
from dpfl_plugin.data.encode import Encoder
from dpfl_plugin.data.error_collector import AS_IT_IS, NAMELESS, SAVE_AS_UTF_8, ErrorCollector, rename
from dpfl_plugin.data.schema import WHERE, TableSchema
from dpfl_plugin.data.table import Table
from dpfl_plugin.data.table_reader import TableReader, TextFormat, open_table, sentence
from dpfl_plugin.errors import ConfigError, DataError, closest, nearest

MOST_COLUMNS: Final = 30
DECIMALS: Final = ("data.dataset.decimal: '.' says that they are decimals", "astype(float) says that they are decimals")
"""Of files, and of frames, whose numbers are text."""


@dataclass(frozen=True, slots=True)
class Read:
    """What became of one table.

    Attributes:
        encoded: None where it is wrong; wrong: in what, in words. found: what was found of its cells. unused: columns
            that the schema does not name, and ignores. lines: of the records, and unit: what they are called. note:
            what to say of how it was opened.
    """

    path: Path
    encoded: Table | None = None
    wrong: str | None = None
    found: Found = field(default_factory=lambda: Found(ErrorCollector(Path())))
    unused: tuple[str, ...] = ()
    unlabelled_for: tuple[str, ...] = ()
    lines: Any = None
    unit: str = "line"
    note: str = ""

    @property
    def table(self) -> Table:
        """Of a table that is right."""
        assert self.encoded is not None
        return self.encoded


def read(path: Path, schema: TableSchema, form: TextFormat, *, asked: bool = False) -> Read:
    """One file.

    Args:
        asked: of records that a model is asked about: labels may be missing, silos and persons are not read, and
            columns that the schema does not name are ignored.
    """
    try:
        reader = open_table(path, form, list(schema.used))
    except DataError as error:
        return Read(path, wrong=_as_it_is(error, asked=asked))
    with closing(reader):
        return read_table(reader, path, schema, form.decimal, asked=asked)


def read_table(
    reader: TableReader, path: Path, schema: TableSchema, decimal: str | None = None, *, asked: bool = False
) -> Read:
    """One table; arguments as those of `read`."""
    wanted = _wanted(schema, reader.header, asked=asked)
    strangers = _strangers(schema, reader.header)
    ignored = asked or schema.other_columns == "ignore"
    may_be_empty = {name for name, column in schema.columns.items() if column.missing != "refuse"} if asked else None
    wrong = _wrong_header(reader, wanted, () if ignored else strangers, may_be_empty)
    if wrong:
        first = "line 1" if reader.unit == "line" else "header"
        where = f"{path}, {first}" if reader.header else str(path)
        return Read(path, wrong=_listed(where, wrong))
    found = Found(ErrorCollector(path, reader.unit), of_frame=reader.of_frame)
    encoder = Encoder(schema, found, decimal, with_labels=not asked)
    try:
        for piece in reader.rows(list(wanted), found.errors):
            encoder.add(piece)
        found.errors.move(reader.lines)
        text = found.errors.text()
        if text is not None:
            return Read(path, wrong=text)
        encoded = encoder.result()
        lines = reader.lines(list(range(encoder.count))) if asked else None
    except DataError as error:
        return Read(path, wrong=_as_it_is(error, asked=asked))
    gone = [name for name in schema.label.named if name not in reader.header]
    return Read(
        path,
        encoded,
        None,
        found,
        tuple(strangers),
        tuple(gone if len(gone) < len(schema.label.named) else ()),
        lines,
        reader.unit,
        reader.note,
    )


def _as_it_is(error: DataError, *, asked: bool) -> str:
    """The message; of records that a model is asked about, whose encoding its configuration has, no other one."""
    return str(error).replace(AS_IT_IS, SAVE_AS_UTF_8) if asked else str(error)


def read_all(paths: Sequence[Path], schema: TableSchema, form: TextFormat) -> list[Read]:
    """All files.

    Raises:
        DataError: some are wrong; the message has all that is wrong with each, by line and column.
    """
    found = [read(path, schema, form) for path in paths]
    check(found)
    return found


def check(found: Sequence[Read]) -> None:
    """Raise DataError with all that is wrong with these tables."""
    wrong = [one.wrong for one in found if one.wrong is not None]
    if wrong:
        verb = "is" if len(wrong) == 1 else "are"
        count = f"{len(wrong)} of {len(found)} tables {verb} wrong.\n" if len(found) > 1 else ""
        raise DataError(count + "\n".join(wrong))


def _wanted(schema: TableSchema, header: Sequence[str], *, asked: bool) -> dict[str, str]:
    """{column to be read: the key that names it}"""
    if not asked:
        return schema.used
    features = {name: f"columns.{name}" for name, column in schema.columns.items() if column.features(name)}
    labels = {name: f"label.{key}" for name, key in schema.label.named.items()}
    return features | (labels if all(name in header for name in labels) else {})


def _strangers(schema: TableSchema, header: Sequence[str]) -> list[str]:
    known = {*schema.columns, *schema.used}
    return [name for name in header if name not in known]


def _wrong_header(
    reader: TableReader, wanted: Mapping[str, str], strangers: Iterable[str], may_be_empty: Collection[str] | None
) -> list[str]:
    """``may_be_empty``: columns, of records that a model is asked about; None of others."""
    header, wrong, asked = reader.header, list[str](), may_be_empty is not None
    if not header:
        return ["is empty: its first line must name the columns, and records follow it."]
    free = [name for name in header if name not in wanted]
    missing = {name: key for name, key in wanted.items() if name not in header}
    if len(missing) == len(wanted) and not (asked and any(closest(name, free) for name in missing)):
        mend = (
            "Its first line must have these names, divided as in the files of the training."
            if asked
            else "If the file has no line of names, give them: data.dataset.header: [...]; if it is divided otherwise, "
            "data.dataset.delimiter."
        )
        mend = f"{sentence(reader.note)}." if reader.note else mend
        return [f"names none of the schema's columns ({_shown(list(wanted))}), but {_shown(header)}. {mend}"]
    for name, key in missing.items():
        if may_be_empty is not None:
            empty = " It may be empty: the schema says what a missing value is." if name in may_be_empty else ""
            wrong.append(f"there is no column {name!r}, which the model was trained on. {rename(name, free)}{empty}")
            continue
        wrong.append(
            f"there is no column {name!r}{nearest(name, free)}, which {WHERE}.{key} names. Correct the name there, or "
            "add the column."
        )
    for name in wanted:
        if header.count(name) > 1:
            wrong.append(f"{header.count(name)} columns have the name {name!r}. Rename all but one.")
    for name in strangers:
        called = f"column {name!r}" if name else f"column {header.index(name) + 1}, which has no name,"
        entry = f"{WHERE}.columns.{name}: {{type: ignored}} leaves it out, " if name else f"{NAMELESS} "
        wrong.append(f"{called} is not in the schema. {entry}{WHERE}.other_columns: ignore leaves out all such.")
    return wrong


def _shown(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:MOST_COLUMNS])) + ", ..." * (len(names) > MOST_COLUMNS)


def _listed(where: str, wrong: Sequence[str]) -> str:
    if len(wrong) == 1:
        return f"{where}: {wrong[0]}"
    more = f"\n  and {len(wrong) - MOST_COLUMNS} more" if len(wrong) > MOST_COLUMNS else ""
    return f"{where}: {len(wrong)} columns are wrong:\n  " + "\n  ".join(wrong[:MOST_COLUMNS]) + more


def notes(found: Sequence[Read], schema: TableSchema) -> tuple[str, ...]:
    """What the owner of the records should look at; it tells of records."""
    count = sum(len(one.table.labels) for one in found)
    told = [
        f"labels are not compared: there is no column {', '.join(map(repr, one.unlabelled_for))}"
        for one in found
        if one.unlabelled_for
    ]
    for name, cells in _total(one.found.unlabelled for one in found).items():
        told.append(
            f"column {name!r}: {cells} of {count} records have no label: they count as records, and nothing is learnt "
            "from them"
        )
    for name, cells in _total(one.found.clipped for one in found).items():
        of_label = name not in schema.columns
        low, high = (f"{end:.15g}" for end in schema.label.range or ()) if of_label else schema.columns[name].ends
        censored = of_label and schema.label.outcome == "survival"
        become = f"censored at {high}" if censored else f"clipped to {low} or {high}"
        key = "label" if of_label else f"columns.{name}"
        told.append(f"column {name!r}: {cells} of {count} cells are outside {WHERE}.{key}.range, and {become}")
    told += [f"{one.path}: {one.note}" for one in found if one.note]
    limits: dict[str, Counter[str]] = {}
    for one in found:
        for name, cells_of in one.found.limits.items():
            limits.setdefault(name, Counter()).update(cells_of)
    told += [of_limits(name, cells_of, count) for name, cells_of in limits.items()]
    by_points = {
        name: f"{text}; {DECIMALS[one.found.of_frame]}"
        for one in reversed(found)
        for name, points in one.found.points.items()
        if (text := points.told)
    }
    told += [f"column {name!r}: {text}" for name, text in by_points.items()]
    for what, total in (
        ("with no value", _total(one.found.missing for one in found)),
        ("counted as other", _total(one.found.other for one in found)),
    ):
        if listed := ", ".join(f"{name} {cells}" for name, cells in total.items() if cells):
            told.append(f"cells {what}, of {count}: {listed}")
    return tuple(told)


def _total(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    return sum((Counter(one) for one in counts), Counter[str]())


def format_of(options: Mapping[str, Any]) -> TextFormat:
    """The options of the data set `table` that say how files are written.

    Raises:
        ConfigError: one of them is wrong.
    """
    header = options.get("header")
    if header is not None and len(set(header)) != len(header):
        raise ConfigError("data.dataset.header names a column twice.")
    return TextFormat(
        options.get("delimiter"),
        options.get("decimal"),
        options.get("encoding"),
        None if header is None else tuple(map(str, header)),
        options.get("sheet"),
    )
