"""Tables read, checked and encoded by a schema: everything that is wrong with all of them is told at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.data.cells import Findings, of_limits
from dpfl_plugin.data.encode import Encoder
from dpfl_plugin.data.error_collector import AS_IT_IS, NAMELESS, SAVE_AS_UTF_8, ErrorCollector, rename
from dpfl_plugin.data.schema import WHERE, TableSchema
from dpfl_plugin.data.table import Table
from dpfl_plugin.data.table_reader import TableReader, TextFormat, open_table, sentence
from dpfl_plugin.errors import ConfigError, DataError, closest, nearest

MOST_COLUMNS: Final = 30
MANY_OUTSIDE: Final = 0.2  # of a column's cells: another unit, rather than a few slips
DECIMALS: Final = ("data.dataset.decimal: '.' says that they are decimals", "astype(float) says that they are decimals")
"""Of files, and of frames, whose numbers are text."""


@dataclass(frozen=True, slots=True)
class Read:
    """What became of one table.

    Attributes:
        encoded: None where it is wrong; wrong: in what, in words. findings: of its cells. unused: columns that the
            schema does not name, and ignores. lines: of the records. note: what to say of how it was
            opened.
    """

    path: Path
    encoded: Table | None = None
    wrong: str | None = None
    findings: Findings = field(default_factory=lambda: Findings(ErrorCollector(Path())))
    unused: tuple[str, ...] = ()
    unlabelled_for: tuple[str, ...] = ()
    lines: Any = None
    note: str = ""

    @property
    def table(self) -> Table:
        """Of a table that is right."""
        assert self.encoded is not None
        return self.encoded

    @property
    def outside(self) -> tuple[str, ...]:
        """Columns of which many cells are outside the range, and were clipped or censored."""
        clipped = self.findings.clipped.items()
        return tuple(name for name, cells in clipped if cells > MANY_OUTSIDE * len(self.table.labels))


def read(path: Path, schema: TableSchema, form: TextFormat, *, new_records: bool = False) -> Read:
    """One file.

    Args:
        new_records: of records that a model is asked about: labels may be missing, silos and persons are not read, and
            columns that the schema does not name are ignored.
    """
    try:
        reader = open_table(path, form, list(schema.used))
    except DataError as error:
        return Read(path, wrong=_as_it_is(error, new_records=new_records))
    with closing(reader):
        return read_table(reader, path, schema, form.decimal, new_records=new_records)


def read_table(
    reader: TableReader, path: Path, schema: TableSchema, decimal: str | None = None, *, new_records: bool = False
) -> Read:
    """One table; arguments as those of `read`."""
    wanted = _wanted(schema, reader.header, new_records=new_records)
    strangers = _strangers(schema, reader.header)
    ignored = new_records or schema.other_columns == "ignore"
    may_be_empty = (
        {name for name, column in schema.columns.items() if column.missing != "refuse"} if new_records else None
    )
    wrong = _wrong_header(reader, wanted, () if ignored else strangers, may_be_empty)
    if wrong:
        first = "line 1" if reader.unit == "line" else "header"
        where = f"{path}, {first}" if reader.header else str(path)
        return Read(path, wrong=_listed(where, wrong))
    findings = Findings(ErrorCollector(path, reader.unit), of_frame=reader.of_frame)
    encoder = Encoder(schema, findings, decimal, with_labels=not new_records)
    try:
        for piece in reader.rows(list(wanted), findings.errors):
            encoder.add(piece)
        findings.errors.move(reader.lines)
        text = findings.errors.text()
        if text is not None:
            return Read(path, wrong=text)
        encoded = encoder.result()
        lines = reader.lines(list(range(encoder.count))) if new_records else None
    except DataError as error:
        return Read(path, wrong=_as_it_is(error, new_records=new_records))
    gone = [name for name in schema.label.named if name not in reader.header]
    return Read(
        path,
        encoded,
        None,
        findings,
        tuple(strangers),
        tuple(gone if len(gone) < len(schema.label.named) else ()),
        lines,
        reader.note,
    )


def _as_it_is(error: DataError, *, new_records: bool) -> str:
    """The message; of records that a model is asked about, whose encoding its configuration has, no other one."""
    return str(error).replace(AS_IT_IS, SAVE_AS_UTF_8) if new_records else str(error)


def read_all(paths: Sequence[Path], schema: TableSchema, form: TextFormat) -> list[Read]:
    """All files.

    Raises:
        DataError: some are wrong; the message has all that is wrong with each, by line and column.
    """
    results = [read(path, schema, form) for path in paths]
    check(results)
    return results


def check(results: Sequence[Read]) -> None:
    """Raise DataError with all that is wrong with these tables."""
    wrong = [result.wrong for result in results if result.wrong is not None]
    if wrong:
        verb = "is" if len(wrong) == 1 else "are"
        count = f"{len(wrong)} of {len(results)} tables {verb} wrong.\n" if len(results) > 1 else ""
        raise DataError(count + "\n".join(wrong))


def _wanted(schema: TableSchema, header: Sequence[str], *, new_records: bool) -> dict[str, str]:
    """{column to be read: the key that names it}"""
    if not new_records:
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
    header, wrong, new_records = reader.header, list[str](), may_be_empty is not None
    if not header:
        return ["is empty: its first line must name the columns, and records follow it."]
    free = [name for name in header if name not in wanted]
    missing = {name: key for name, key in wanted.items() if name not in header}
    if len(missing) == len(wanted) and not (new_records and any(closest(name, free) for name in missing)):
        fix = (
            "Its first line must have these names, divided as in the files of the training."
            if new_records
            else "If the file has no line of names, give them: data.dataset.header: [...]; if it is divided otherwise, "
            "data.dataset.delimiter."
        )
        fix = f"{sentence(reader.note)}." if reader.note else fix
        return [f"names none of the schema's columns ({_shown(list(wanted))}), but {_shown(header)}. {fix}"]
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


def notes(results: Sequence[Read], schema: TableSchema) -> tuple[str, ...]:
    """What the owner of the records should look at; it tells of records."""
    count = sum(len(result.table.labels) for result in results)
    messages = [
        f"labels are not compared: there is no column {', '.join(map(repr, result.unlabelled_for))}"
        for result in results
        if result.unlabelled_for
    ]
    for name, cells in _total(result.findings.unlabelled for result in results).items():
        messages.append(
            f"column {name!r}: {cells} of {count} records have no label: they count as records, and nothing is learnt "
            "from them"
        )
    for name, cells in _total(result.findings.clipped for result in results).items():
        of_label = name not in schema.columns
        low, high = (f"{end:.15g}" for end in schema.label.range or ()) if of_label else schema.columns[name].ends
        censored = of_label and schema.label.outcome == "survival"
        become = f"censored at {high}" if censored else f"clipped to {low} or {high}"
        key = "label" if of_label else f"columns.{name}"
        messages.append(f"column {name!r}: {cells} of {count} cells are outside {WHERE}.{key}.range, and {become}")
    messages += [f"{result.path}: {result.note}" for result in results if result.note]
    limits: dict[str, Counter[str]] = {}
    for result in results:
        for name, cells_of in result.findings.limits.items():
            limits.setdefault(name, Counter()).update(cells_of)
    messages += [of_limits(name, cells_of, count) for name, cells_of in limits.items()]
    by_points = {
        name: f"{text}; {DECIMALS[result.findings.of_frame]}"
        for result in reversed(results)
        for name, points in result.findings.points.items()
        if (text := points.message)
    }
    messages += [f"column {name!r}: {text}" for name, text in by_points.items()]
    for what, total in (
        ("with no value", _total(result.findings.missing for result in results)),
        ("counted as other", _total(result.findings.other for result in results)),
    ):
        if listed := ", ".join(f"{name} {cells}" for name, cells in total.items() if cells):
            messages.append(f"cells {what}, of {count}: {listed}")
    return tuple(messages)


def _total(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    return sum((Counter(count) for count in counts), Counter[str]())


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
