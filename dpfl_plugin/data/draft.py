"""A first draft of a schema, from the values of tables: a place to begin for whoever may look at them.

Looking at values is not private. Ranges are rounded outwards, which hides nothing: the draft says of itself that it is
one, until whoever knows categories and ranges without looking has put them in their place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from dpfl_plugin.data.column_profile import (
    ColumnProfile,
    Sites,
    is_number,
    nearly_all,
    numbers_of,
    outwards,
    read_columns,
    sites_of,
)
from dpfl_plugin.data.draft_columns import (
    Drafted,
    alike,
    draft_column,
    events,
    kinds_of,
    plain_value,
    slip_notes,
    spelt,
    times,
)
from dpfl_plugin.data.draft_marks import NOT_USED, marks_of
from dpfl_plugin.data.error_collector import NAMELESS, SHOWN, no_header
from dpfl_plugin.data.federation import alone
from dpfl_plugin.data.isolated_values import isolated
from dpfl_plugin.data.names import column_list
from dpfl_plugin.data.site_dates import doubts
from dpfl_plugin.data.table_reader import TableReader, TextFormat, frame_reader, open_table, sentence
from dpfl_plugin.errors import ConfigError, DataError, nearest

MOST_CLASSES: Final = 20
MOST_BINS: Final = 8  # of time; each has a baseline hazard of its own, for which noise is paid
EVENTS_OF_BIN: Final = 20  # in the mean, or bins are fewer
EMPTY: Final = "is empty: its first line must name the columns, and records follow it."


@dataclass(frozen=True, slots=True)
class Draft:
    """A schema as plain values, and how the files are written; notes: what to look at; sizes: records
    of each silo, of all together where there are no silos; rarest: the share of the rarer of two classes."""

    schema: dict[str, Any]
    form: TextFormat
    notes: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    rarest: float | None = None


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
        open_table(files[name], form, known) if name in files else frame_reader(one) for name, one in named.items()
    ]
    return _drafted(tables, [str(files.get(name, name)) for name in named], form, roles)


def _check_header(reader: TableReader, name: str, roles: Roles) -> None:
    header, note, of_frame = reader.header, reader.note, reader.of_frame
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


def _read(tables: Sequence[TableReader], names: Sequence[str]) -> dict[str, ColumnProfile]:
    """{name: column}, of all tables together."""
    header = tables[0].header
    for reader, name in zip(tables, names, strict=True):
        if not reader.header:
            raise DataError(f"{name} {EMPTY}")
        if set(reader.header) != set(header):
            raise DataError(_other_columns(name, reader.header, names[0], header))
    return read_columns(tables, names, {name: ColumnProfile(name) for name in header})


def _other_columns(name: str, header: Sequence[str], first: str, of_first: Sequence[str]) -> str:
    """What to say of a table with other columns than the first."""
    only = {name: sorted({*header} - {*of_first}), first: sorted({*of_first} - {*header})}
    where = "; ".join(f"in {one} only: {column_list(columns)}" for one, columns in only.items() if columns)
    return f"{name} has other columns than {first}: {where}. All need the same: rename, add or remove columns."


def _drafted(tables: Sequence[TableReader], names: Sequence[str], form: TextFormat, roles: Roles) -> Draft:
    _check_header(tables[0], names[0], roles)
    profiles = _read(tables, names)
    sites, dealt = sites_of(tables, names, profiles, roles.silo), len(names) == 1 and roles.silo is None
    unread = {
        name: f"{name} {NOT_USED}: its cells are {kind}." for name, one in profiles.items() if (kind := one.unread)
    }
    measured = {name: one for name, one in profiles.items() if name not in (roles.silo, roles.person, *unread)}
    written = marks_of(measured, [name for name in (roles.label, roles.time, roles.event) if name is not None])
    profiles |= written.plain
    left_out, dates = doubts(measured, written.left_out, sites)
    left_out = {**unread, **written.left_out, **left_out}
    for name in roles.columns.values():
        if name in left_out:
            raise DataError(left_out[name].replace(NOT_USED, "cannot be predicted"))
    form = replace(form, decimal=written.decimal)
    columns = {
        name: Drafted({"type": "ignored"}) if name in left_out else draft_column(one, sites, written, roles.person)
        for name, one in profiles.items()
        if name not in roles.columns.values()
    }
    entries = {name: one.entry for name, one in columns.items()}
    of_columns = [line for one in columns.values() for line in one.notes]
    if all(entry["type"] in ("identifier", "ignored") for entry in entries.values()):
        used = ", ".join(roles.columns.values())
        why = [*kinds_of(columns), *left_out.values(), *of_columns]
        raise DataError(" ".join([f"{names[0]}: no column is left to learn from besides {used}.", *why]))
    label, notes = _outcome(profiles, roles, sites)
    named = {key: name for key, name in roles.columns.items() if key in ("silo", "person")}
    schema = {"drafted": True, "label": label, **named, "columns": entries}
    classes = label.get("classes", ())
    notes += [*alike(label.get("column"), classes), *(times(label["column"], columns) if len(classes) == 2 else ())]
    notes += events(label["column"], columns) if label["outcome"] == "regression" else ()
    notes += [*kinds_of(columns), *written.notes, *dates, *left_out.values(), *of_columns]
    count = len(sites.of_record)
    sizes = [count] if dealt else np.bincount(sites.of_record).tolist()
    rarest = min(profiles[label["column"]].counts.values()) / count if len(classes) == 2 else None
    notes += [*(() if dealt else alone(sites.names[place] for place in sites.of_record)), *_sheets(tables, names)]
    return Draft(schema, form, tuple(notes), tuple(sizes), rarest)


def _sheets(tables: Sequence[TableReader], names: Sequence[str]) -> list[str]:
    """What to say of workbooks of which one sheet is read of several."""
    by_note: dict[str, list[str]] = {}
    for reader, name in zip(tables, names, strict=True):
        if reader.note:
            by_note.setdefault(reader.note, []).append(name)
    return [f"{', '.join(where)}: {note}." for note, where in by_note.items()]


def _outcome(profiles: Mapping[str, ColumnProfile], roles: Roles, sites: Sites) -> tuple[dict[str, Any], list[str]]:
    """(the schema's label, what to say of it)"""
    if roles.label is not None:
        found, far = _label(profiles[roles.label], sites)
        listed = found["classes"] if "classes" in found else found["range"]
        notes = [f"label: {roles.label}, {found['outcome']} [{', '.join(map(str, listed))}]."]
        if found["outcome"] == "classes" and len(listed) > 2 and all(isinstance(name, int) for name in listed):
            notes.append(
                f"Classes have no order. If {roles.label} has one: outcome: ordinal; if it counts something: outcome: "
                "counts, with a range that begins at 0 in place of classes."
            )
        if found["outcome"] == "classes" and len(listed) == 2:
            other, positive = listed
            notes.append(
                f"{positive} is the positive class of auc, f1 and the like, as the second of two; "
                f"classes: [{positive}, {other}] would make it {other}."
            )
        numbers = numbers_of(list(profiles[roles.label].counts))
        if found["outcome"] == "regression" and numbers is not None and (numbers == np.floor(np.abs(numbers))).all():
            notes.append(f"If {roles.label} counts something: outcome: counts, with a range that begins at 0.")
        return found, notes + far
    assert roles.time is not None and roles.event is not None
    words = list(profiles[roles.time].counts)
    numbers = numbers_of(words)
    if numbers is None or not len(numbers) or numbers.min() < 0 or numbers.max() == 0:
        odd = [word for word in words if (one := numbers_of([word])) is None or one.min() < 0]
        holds = (
            f"holds {', '.join(map(repr, odd[:5]))}{', ...' * (len(odd) > 5)}, which are"
            if odd and len(odd) < len(words)
            else "holds"
        )
        raise DataError(
            f"column {roles.time!r} {holds} no times: numbers from 0 on, in days, months or years. Mend these "
            "records, leave them out, or name another column."
        )
    words = sorted(profiles[roles.event].counts)
    if len(words) != 2:
        shown = ", ".join(map(repr, words[:10])) or "no value"
        raise DataError(f"column {roles.event!r} holds {shown}: it must have two words, for no event and for one.")
    no, yes = words
    every, happened = profiles[roles.time].cells, profiles[roles.event].cells
    with_event = every.filter(pc.fill_null(pc.equal(happened, yes), fill_value=False)).drop_null().to_pylist()
    events = numbers_of(with_event)
    assert events is not None
    bins = _bins(events, float(numbers.max()))
    found = {"outcome": "survival", "time": roles.time, "event": roles.event, "range": [0, bins[-1]], "bins": bins}
    found |= {} if words == ["0", "1"] else {"event_values": [plain_value(word) for word in words]}
    return found, [
        f"label: survival, {roles.time} from 0 to {bins[-1]}; {roles.event}: {yes!r} is an event, {no!r} is none.",
        f"Survival is predicted at the ends of bins, {roles.time} {', '.join(map(str, bins))}: each has about as many "
        "events. Choose times that matter to you; nothing is predicted beyond the last one.",
    ]


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


def _label(column: ColumnProfile, sites: Sites) -> tuple[dict[str, Any], list[str]]:
    """(the schema's label, what to say of numbers that are far from the others)"""
    different, name = sorted(column.counts), column.name
    if len(different) < 2:
        raise DataError(f"column {name!r} holds {different or 'no value'}: nothing is to be predicted there.")
    numbers = numbers_of(different)
    whole = numbers is not None and bool((numbers == np.floor(numbers)).all())
    if numbers is None or (whole and len(np.unique(numbers)) <= MOST_CLASSES):
        if len(different) > MOST_CLASSES:
            if (found := nearly_all(column.counts, is_number)) is not None:
                shown = ", ".join(map(repr, (found.nothing + found.strays)[:SHOWN]))
                raise DataError(
                    f"column {name!r} is to be predicted and holds numbers, but also {shown}. Correct these "
                    "cells, or leave the records out."
                )
            raise DataError(f"column {name!r} holds {len(different)} different words: is this what is to be predicted?")
        classes = different if numbers is None else spelt(dict(zip(different, numbers.tolist(), strict=True)))
        return {"column": name, "outcome": "classes", "classes": [plain_value(name) for name in classes]}, []
    each, place = np.unique(numbers, return_inverse=True)
    far = {*itertools.chain(*isolated(each, np.bincount(place, [column.counts[word] for word in different])))}
    words = [word for word, number in zip(different, numbers.tolist(), strict=True) if number in far]
    rest = each[~np.isin(each, list(far))]
    notes = slip_notes(column, words, rest, sites, "Correct these cells, leave the records out, or widen the range.")
    return {"column": name, "outcome": "regression", "range": list(outwards(rest))}, notes
