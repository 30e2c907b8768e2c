"""A first draft of a schema, from the values of tables: a place to begin for whoever may look at them.

Looking at values is not private. Ranges are rounded outwards, which hides nothing: the draft says of itself that it is
one, until whoever knows categories and ranges without looking has put them in their place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from dpfl_plugin.data.cells import empty_records
from dpfl_plugin.data.draft_dates import DAY_FIRST, MONTH_FIRST, in_doubt
from dpfl_plugin.data.draft_marks import NOT_USED, Marks, marks_of
from dpfl_plugin.data.draft_notes import MOST_VALUES, Places, kinds_of, notes
from dpfl_plugin.data.federation import alone
from dpfl_plugin.data.flaws import LEAST_RECORDS, NAMELESS, SHOWN, Flaws, no_header
from dpfl_plugin.data.identifiers import are_identifiers
from dpfl_plugin.data.names import column_list
from dpfl_plugin.data.names import of_files as silo_names
from dpfl_plugin.data.pieces import Pieces, TextFormat, frame_pieces, open_table, sentence
from dpfl_plugin.data.schema import Column
from dpfl_plugin.data.seen import Seen, Sorted, best, is_date, is_number, nearly_all, numbers_of, outwards
from dpfl_plugin.errors import ConfigError, DataError, nearest

MOST_LEVELS: Final = 10  # whole numbers of which so few are different are a category
MOST_CLASSES: Final = 20
DATES: Final = (None, "%d.%m.%Y", DAY_FIRST, MONTH_FIRST)
KINDS: Final = (is_number, *map(is_date, DATES))
MOST_BINS: Final = 8  # of time; each has a baseline hazard of its own, for which noise is paid
EVENTS_OF_BIN: Final = 20  # in the mean, or bins are fewer
LEAST_SHARED: Final = 4  # records with the same word, in the mean, of a category with more than MOST_LEVELS
EMPTY: Final = "is empty: its first line must name the columns, and records follow it."


@dataclass(frozen=True, slots=True)
class Draft:
    """A schema as plain values, and how the files are written; told: what to look at; fewest: how many
    records the smallest silo has, None where there are no silos."""

    schema: dict[str, Any]
    form: TextFormat
    told: tuple[str, ...]
    fewest: int | None = None


@dataclass(frozen=True, slots=True)
class Roles:
    """Columns that are no features: the label, or time and event of survival; whose silo and whose record it is.

    Raises:
        ConfigError: there is neither a label nor a time and an event, or both.
    """

    label: str | None = None
    silo: str | None = None
    person: str | None = None
    time: str | None = None
    event: str | None = None

    def __post_init__(self) -> None:
        if (self.time is None) != (self.event is None):
            given, other = ("time", "event") if self.event is None else ("event", "time")
            raise ConfigError(
                f"{given} is for survival, and {other} is missing: a time, and whether the event was then."
            )
        if (self.label is None) == (self.time is None):
            raise ConfigError(
                "label is missing: which column is to be predicted? For survival: time and event."
                if self.label is None
                else "label and time are both given: survival is predicted from time and event alone."
            )

    @property
    def columns(self) -> dict[str, str]:
        """{role: column}"""
        return {key: name for key in self.__slots__ if (name := getattr(self, key)) is not None}


def of_files(paths: Sequence[Path], form: TextFormat, roles: Roles) -> Draft:
    """Of all files together.

    Raises:
        DataError: one cannot be read, or they have other columns than the first. ConfigError: there is no such column.
    """
    known = list(roles.columns.values())
    return _drafted([open_table(path, form, known) for path in paths], [str(path) for path in paths], form, roles)


def of_tables(named: Mapping[str, Any], roles: Roles, form: TextFormat) -> Draft:
    """Of data frames of pandas, and files, by the names that messages give to frames; errors as `of_files`."""
    files = {name: Path(one).expanduser() for name, one in named.items() if isinstance(one, str | Path)}
    known = list(roles.columns.values())
    tables = [
        open_table(files[name], form, known) if name in files else frame_pieces(one) for name, one in named.items()
    ]
    return _drafted(tables, [str(files.get(name, name)) for name in named], form, roles)


def _check_header(pieces: Pieces, name: str, roles: Roles) -> None:
    header, note, of_frame = pieces.header, pieces.note, pieces.of_frame
    if not header:
        raise DataError(f"{name} {EMPTY}")
    wanted = " and ".join(map(repr, roles.columns.values()))
    if all(_is_number(word) for word in header):
        raise DataError(no_header(name, wanted, of_frame=of_frame))
    for key, column in roles.columns.items():
        if column not in header:
            shown = column_list(header[:30])
            raise ConfigError(
                f"{key}={column!r}{nearest(column, header)}: {name} has no such column. Columns: {shown}."
                + (f" {sentence(note)}, and sheet here." if note else "")
            )
    if "" in header:
        raise DataError(f"{name}, header: column {header.index('') + 1} has no name. {NAMELESS} Name or remove it.")
    twice = sorted({word for word in header if header.count(word) > 1})
    if twice:
        raise DataError(f"{name}, header: two columns have the name {', '.join(map(repr, twice))}. Rename one.")


def _read(tables: Sequence[Pieces], names: Sequence[str]) -> dict[str, Seen]:
    """{name: column}, of all tables together."""
    header = tables[0].header
    seen = {name: Seen(name) for name in header}
    for place, (pieces, name) in enumerate(zip(tables, names, strict=True)):
        if not pieces.header:
            raise DataError(f"{name} {EMPTY}")
        if set(pieces.header) != set(header):
            raise DataError(_other_columns(name, pieces.header, names[0], header))
        flaws = Flaws(Path(name), pieces.unit)
        with closing(pieces):
            count = 0
            for part in pieces.rows(header, flaws):
                size = len(part[header[0]])
                flaws.add_empty((np.flatnonzero(empty_records(part.values(), size)) + count).tolist())
                count += size
                for column, cells in part.items():
                    seen[column].parts.append((place, cells))
        flaws.move(pieces.lines)
        flaws.check()
        if not count:
            raise DataError(f"{name} holds a header and no records.")
    return seen


def _other_columns(name: str, header: Sequence[str], first: str, of_first: Sequence[str]) -> str:
    """What to say of a table with other columns than the first."""
    only = {name: sorted({*header} - {*of_first}), first: sorted({*of_first} - {*header})}
    where = "; ".join(f"in {one} only: {column_list(columns)}" for one, columns in only.items() if columns)
    return f"{name} has other columns than {first}: {where}. All need the same: rename, add or remove columns."


def _drafted(tables: Sequence[Pieces], names: Sequence[str], form: TextFormat, roles: Roles) -> Draft:
    _check_header(tables[0], names[0], roles)
    seen = _read(tables, names)
    measured = {name: one for name, one in seen.items() if name not in (roles.silo, roles.person)}
    written = marks_of(measured, [name for name in (roles.label, roles.time, roles.event) if name is not None])
    seen |= written.plain
    written = replace(written, left_out={**written.left_out, **in_doubt(measured, written.left_out)})
    for name in (roles.label, roles.time, roles.event):
        if name is not None and name in written.left_out:
            raise DataError(written.left_out[name].replace(NOT_USED, "cannot be predicted"))
    form = replace(form, decimal=written.decimal)
    columns = {
        name: {"type": "ignored"} if name in written.left_out else _column(one, written)
        for name, one in seen.items()
        if name not in roles.columns.values()
    }
    if all(entry["type"] in ("identifier", "ignored") for entry in columns.values()):
        used = ", ".join(roles.columns.values())
        why = "".join(f" It has columns {told}" for told in kinds_of(columns, seen, written))
        why += "".join(f" {told}" for told in written.left_out.values())
        raise DataError(f"{names[0]}: no column is left to learn from besides {used}.{why}")
    label, told = _outcome(seen, roles, written)
    named = {key: name for key, name in roles.columns.items() if key in ("silo", "person")}
    schema = {"drafted": True, "label": label, **named, "columns": columns}
    silos = _silos(seen, roles, names)
    fewest = min(Counter(silos).values(), default=None)
    told += notes(label, columns, seen, written, Places(tables, names), person=roles.person)
    return Draft(schema, form, (*told, *alone(silos), *_sheets(tables, names)), fewest)


def _sheets(tables: Sequence[Pieces], names: Sequence[str]) -> list[str]:
    """What to say of workbooks of which one sheet is read of several."""
    by_note: dict[str, list[str]] = {}
    for pieces, name in zip(tables, names, strict=True):
        if pieces.note:
            by_note.setdefault(pieces.note, []).append(name)
    return [f"{', '.join(where)}: {note}." for note, where in by_note.items()]


def _silos(seen: Mapping[str, Seen], roles: Roles, names: Sequence[str]) -> list[str]:
    """Whose each record is: by their column, or else the files; [] of one file, whose records are dealt out."""
    if roles.silo is not None:
        words: list[str] = seen[roles.silo].words.to_pylist()
        return words
    if len(names) == 1:
        return []
    silos, any_column = silo_names([Path(name) for name in names]), next(iter(seen.values()))
    return [silos[place] for place, part in any_column.parts for _ in range(len(part))]


def _outcome(seen: Mapping[str, Seen], roles: Roles, written: Marks) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(the schema's label, what to say of it)"""
    decimal = written.decimal
    if roles.label is not None:
        found = _label(seen[roles.label], decimal)
        listed = found["classes"] if "classes" in found else found["range"]
        told = [f"label: {roles.label}, {found['outcome']} [{', '.join(map(str, listed))}]."]
        if found["outcome"] == "classes" and len(listed) > 2 and all(isinstance(name, int) for name in listed):
            told.append(
                f"Classes have no order. If {roles.label} has one: outcome: ordinal; if it counts something: outcome: "
                "counts, with a range that begins at 0 in place of classes."
            )
        if found["outcome"] == "classes" and len(listed) == 2:
            other, positive = listed
            told.append(
                f"{positive} is the positive class of auc, f1 and the like, as the second of two; "
                f"classes: [{positive}, {other}] would make it {other}."
            )
        low = found.get("range", [-1])[0]
        if low >= 0 and _column(seen[roles.label], written)["type"] == "integer":
            told.append(f"If {roles.label} counts something: outcome: counts, with a range that begins at 0.")
        return found, tuple(told)
    assert roles.time is not None and roles.event is not None
    times = pc.unique(seen[roles.time].words).to_pylist()
    numbers = numbers_of(times, decimal)
    if numbers is None or not len(numbers) or numbers.min() < 0 or numbers.max() == 0:
        odd = [word for word in times if (one := numbers_of([word], decimal)) is None or one.min() < 0]
        holds = (
            f"holds {', '.join(map(repr, odd[:5]))}{', ...' * (len(odd) > 5)}, which are"
            if odd and len(odd) < len(times)
            else "holds"
        )
        raise DataError(
            f"column {roles.time!r} {holds} no times: numbers from 0 on, in days, months or years. Mend these "
            "records, leave them out, or name another column."
        )
    words = sorted(pc.unique(seen[roles.event].words).to_pylist())
    if len(words) != 2:
        shown = ", ".join(map(repr, words[:10])) or "no value"
        raise DataError(f"column {roles.event!r} holds {shown}: it must have two words, for no event and for one.")
    no, yes = words
    every, happened = numbers_of(seen[roles.time].words.to_pylist(), decimal), seen[roles.event].words.to_pylist()
    assert every is not None
    aligned = len(every) == len(happened) == seen[roles.time].count  # no cell is empty
    events = every[np.array(happened) == yes] if aligned else every
    bins = _bins(events, float(numbers.max()))
    found = {"outcome": "survival", "time": roles.time, "event": roles.event, "range": [0, bins[-1]], "bins": bins}
    found |= {} if words == ["0", "1"] else {"event_values": [_plain(word) for word in words]}
    return found, (
        f"label: survival, {roles.time} from 0 to {bins[-1]}; {roles.event}: {yes!r} is an event, {no!r} is none.",
        f"Survival is predicted at the ends of bins, {roles.time} {', '.join(map(str, bins))}: each has about as many "
        "events. Choose times that matter to you; nothing is predicted beyond the last one.",
    )


def _bins(events: np.ndarray[Any, Any], last: float) -> list[float]:
    """Where bins of time end: between them about as many events each, and the last where follow-up ends.

    Of three digits, rounded upwards, so that they are easy to read.
    """
    count = max(1, min(MOST_BINS, len(events) // EVENTS_OF_BIN))
    ends = [*np.quantile(events, np.arange(1, count) / count, method="inverted_cdf"), last] if len(events) else [last]
    rounded = [_up(end) for end in ends]
    return sorted({end for end in rounded[:-1] if 0 < end < rounded[-1]} | {rounded[-1]})


def _up(value: float) -> float:
    """The next number of three digits."""
    step = 10.0 ** (math.floor(math.log10(value)) - 2) if value > 0 else 1.0
    short = float(f"{math.ceil(round(value / step, 6)) * step:.12g}")
    return int(short) if short.is_integer() else short


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _column(column: Seen, written: Marks) -> dict[str, Any]:
    words, decimal = column.words, written.decimal
    different = sorted(pc.unique(words).to_pylist())
    lacking = len(words) < column.count
    if len(different) < 2:
        return {"type": "ignored"}
    if column.is_time:
        return _date(different, None, lacking=lacking)
    found = best(words, KINDS)
    mark = written.thousands.get(column.name)
    entry = None if found is None else _of_kind(column.name, *found, decimal, lacking=lacking, listed=mark is None)
    if entry is not None:
        return entry | ({} if mark is None or entry["type"] == "identifier" else {"thousands": mark})
    if len(different) == len(words) >= LEAST_RECORDS:
        return {"type": "identifier"}
    if len(different) > MOST_VALUES or _names_somebody(len(different), len(words)):
        return {"type": "ignored"}
    return _category(different, lacking=lacking)


def _of_kind(
    name: str, place: int, found: Sorted, decimal: str, *, lacking: bool, listed: bool
) -> dict[str, Any] | None:
    """Of a column nearly all of whose words are numbers or dates; None where all of its words are better listed, which
    ``listed`` says that they may be."""
    lacking = lacking or bool(found.nothing)
    named: dict[str, Any] = {"missing_values": found.nothing} if found.nothing else {}
    if place:
        return _date(found.fit, DATES[place - 1], lacking=lacking) | named if len(found.fit) > 1 else None
    numbers = numbers_of(found.fit, decimal)
    assert numbers is not None
    different = np.unique(numbers)
    whole = bool((different == np.floor(different)).all())
    if whole and len(found.fit) == found.count and are_identifiers(name, different):
        return {"type": "identifier"}
    few = listed and whole and len(different) <= MOST_LEVELS
    if len(different) < 2 or (few and (found.strays or found.recurring)):
        return None
    if few:
        return _category([f"{number:g}" for number in different], lacking=lacking) | named
    entry = {"type": "integer" if whole else "number", "range": list(outwards(numbers))}
    return entry | ({"missing": "indicator"} if lacking else {}) | named


def _names_somebody(different: int, cells: int) -> bool:
    """Whether so few cells share a word that the words are probably names or numbers of persons, not categories."""
    return different > MOST_LEVELS and cells < different * LEAST_SHARED


def _category(values: list[str], *, lacking: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "category", "values": [_plain(value) for value in values]}
    return entry | ({"missing": "category"} if lacking else {})


def _plain(value: str) -> int | str:
    """A whole number as YAML has it; other words as they are, which YAML quotes where it would read something else."""
    return int(value) if value.isdigit() and str(int(value)) == value else value


def _date(words: Sequence[str], form: str | None, *, lacking: bool) -> dict[str, Any]:
    """From the first of January of the first year to that after the last."""
    column = Column(type="date", range=("1900-01-01", "2100-01-01"), format=form)
    years = [1970 + math.floor(column.days(word) / 365.2425) for word in words]
    entry: dict[str, Any] = {"type": "date", "range": [f"{min(years):04d}-01-01", f"{max(years) + 2:04d}-01-01"]}
    entry |= {} if form is None else {"format": form}
    return entry | ({"missing": "indicator"} if lacking else {})


def _label(column: Seen, decimal: str) -> dict[str, Any]:
    different = sorted(pc.unique(column.words).to_pylist())
    if len(different) < 2:
        raise DataError(f"column {column.name!r} holds {different or 'no value'}: nothing is to be predicted there.")
    numbers = numbers_of(different, decimal)
    whole = numbers is not None and bool((numbers == np.floor(numbers)).all())
    if numbers is None or (whole and len(np.unique(numbers)) <= MOST_CLASSES):
        if len(different) > MOST_CLASSES:
            if (found := nearly_all(column.words, is_number)) is not None:
                shown = ", ".join(map(repr, (found.nothing + found.strays)[:SHOWN]))
                raise DataError(
                    f"column {column.name!r} is to be predicted and holds numbers, but also {shown}. Correct these "
                    "cells, or leave the records out."
                )
            raise DataError(
                f"column {column.name!r} holds {len(different)} different words: is this what is to be predicted?"
            )
        classes = different if numbers is None else [f"{number:g}" for number in np.unique(numbers)]
        return {"column": column.name, "outcome": "classes", "classes": [_plain(name) for name in classes]}
    return {"column": column.name, "outcome": "regression", "range": list(outwards(numbers))}
