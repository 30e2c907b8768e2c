"""A column as who drafts a schema sees it: what its words are, and the few that are something else, by their lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpfl_plugin.data.cells import Cells, Found
from dpfl_plugin.data.flaws import SHOWN, Flaws, is_decimal_comma, with_point
from dpfl_plugin.data.pieces import Pieces
from dpfl_plugin.data.schema import MISSING, Column

STRAYS: Final = 20  # at most 1 in so many words may be something else: more are no slips, but a column of another kind
SPELLED: Final = frozenset(
    ("-", "--", "---", "n/a", "na", "n.a.", "none", "null", "nil", "nan", "missing", "unknown", "not available")
)
"""Words for no value, in any capitals, besides those that every schema takes for it (`MISSING`), among numbers."""
RECURS: Final = 3  # cells with one word, which then is no slip: in any language "unknown", if no other word recurs


@dataclass(slots=True)
class Seen:
    """One column: its cells, as words or typed, in pieces, each with the place of its table among all."""

    name: str
    parts: list[tuple[int, pa.Array]] = field(default_factory=list)

    @property
    def words(self) -> pa.Array:
        """Words that are values, as often as they occur."""
        return _values(self.name, [part for _, part in self.parts])

    @property
    def texts(self) -> pa.Array:
        """Those of ``words`` that were written as text; numbers of Parquet files or frames have no marks."""
        return _values(self.name, [part for _, part in self.parts if is_text(part.type)])

    @property
    def count(self) -> int:
        return sum(len(part) for _, part in self.parts)

    @property
    def is_time(self) -> bool:
        return any(pa.types.is_date(part.type) or pa.types.is_timestamp(part.type) for _, part in self.parts)

    def first(self, words: Collection[str], tables: Sequence[Pieces], names: Sequence[str]) -> list[str]:
        """Where the first few cells with one of these ``words`` are, and what they hold."""
        found: list[str] = []
        before = [0] * len(tables)
        for table, part in self.parts:
            if len(found) == SHOWN:
                break
            text = _words(self.name, part)
            rows = pc.indices_nonzero(pc.is_in(text, value_set=pa.array(sorted(words), pa.string()))).to_pylist()
            rows = rows[: SHOWN - len(found)]
            at = tables[table].lines([row + before[table] for row in rows]) if rows else {}
            where = f"{names[table]}, {tables[table].unit}"
            found += [f"{where} {at[row + before[table]]}: {text[row].as_py()!r}" for row in rows]
            before[table] += len(part)
        return found


def is_text(kind: pa.DataType) -> bool:
    return any(one(kind) for one in (pa.types.is_string, pa.types.is_large_string, pa.types.is_dictionary))


def _values(name: str, parts: Sequence[pa.Array]) -> pa.Array:
    texts = [_words(name, part) for part in parts]
    kept = [text.filter(pc.is_valid(text)) for text in texts]
    return pa.chunked_array(kept, pa.string()).combine_chunks()


def _words(name: str, part: pa.Array) -> pa.Array:
    """[n], null where there is no value."""
    text, nothing = Cells(name, "", part, 0, Found(Flaws(Path())), frozenset(MISSING)).words()
    return pc.if_else(pa.array(nothing), pa.scalar(None, pa.string()), text)


@dataclass(frozen=True, slots=True)
class Sorted:
    """The different words of a column of which nearly all are of one kind.

    Attributes:
        fit: of that kind, and count: in how many cells. nothing: that stand for no value. strays: something else.
        recurring: the one of ``nothing`` that is taken for it since it recurs, as no other word does.
    """

    fit: list[str]
    count: int
    nothing: list[str]
    strays: list[str]
    num_strays: int
    recurring: str | None = None


def nearly_all(words: pa.Array, fits: Callable[[str], bool]) -> Sorted | None:
    """The words, if nearly all of those that are values fit (`STRAYS`)."""
    return _nearly_all(_counted(words), fits)


def _counted(words: pa.Array) -> list[tuple[str, int]]:
    found = pc.value_counts(words)
    return list(zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True))


def _nearly_all(counted: Sequence[tuple[str, int]], fits: Callable[[str], bool]) -> Sorted | None:
    most = sum(often for _, often in counted)
    fit, nothing, count = [], [], 0
    strays: dict[str, int] = {}
    astray = often_most = 0  # in cells
    for word, often in counted:
        if fits(word):
            fit.append(word)
            count += often
        elif word.casefold() in SPELLED:
            nothing.append(word)
        else:
            strays[word] = often
            astray, often_most = astray + often, max(often_most, often)
            if STRAYS * (astray - often_most) > most:  # most columns of words end here, soon
                return None
    if (recurring := _recurring(strays)) is not None:
        nothing.append(recurring)
        astray -= strays.pop(recurring)
    if not fit or STRAYS * astray > count + astray:
        return None
    return Sorted(sorted(fit), count, sorted(nothing), sorted(strays), astray, recurring)


def _recurring(strays: Mapping[str, int]) -> str | None:
    """The only word that recurs, if there is one; with a digit, as "<5", it is a value."""
    often = [word for word, count in strays.items() if count >= RECURS]
    return often[0] if len(often) == 1 and not any(map(str.isdigit, often[0])) else None


def best(words: pa.Array, kinds: Iterable[Callable[[str], bool]]) -> tuple[int, Sorted] | None:
    """(the place of the kind, the words by it): that of which the fewest words are strays; the first of several."""
    counted = _counted(words)
    found: list[tuple[int, Sorted]] = []
    for place, fits in enumerate(kinds):
        if (one := _nearly_all(counted, fits)) is not None:
            found.append((place, one))
            if not one.strays:
                break
    return min(found, key=lambda one: one[1].num_strays, default=None)


def is_number(word: str) -> bool:
    """Whether it is a finite number, with whichever mark."""
    if "_" in word:  # which Python takes for a mark of thousands
        return False
    try:
        return math.isfinite(float(word))
    except ValueError:
        return is_decimal_comma(word) and math.isfinite(float(with_point(word)))


def numbers_of(words: Sequence[str], decimal: str) -> np.ndarray[Any, Any] | None:
    """``words`` as numbers, if all are; a mark that the file has elsewhere is for the check to refuse, by its line."""
    try:
        found = np.array([float(with_point(word) if is_decimal_comma(word) else word) for word in words])
    except ValueError:
        return None
    return found if np.isfinite(found).all() else None


def marks(column: Seen) -> tuple[list[str], list[str]]:
    """(cells with a decimal comma, cells with a point); none of a column of words."""
    words = column.words
    if not pc.any(pc.match_substring(words, ",")).as_py() or (found := nearly_all(words, is_number)) is None:
        return [], []
    numbers = words.filter(pc.is_in(words, value_set=pa.array(found.fit, pa.string()))).to_pylist()
    commas = list(filter(is_decimal_comma, numbers))
    return commas, [word for word in numbers if commas and "." in word and not is_decimal_comma(word)]


def is_date(form: str | None) -> Callable[[str], bool]:
    """Whether a word is a date as ``form``."""
    column = Column(type="date", range=("1900-01-01", "2100-01-01"), format=form)

    def fits(word: str) -> bool:
        try:
            column.days(word)
        except (ValueError, OverflowError):
            return False
        return True

    return fits


def outwards(numbers: np.ndarray[Any, Any]) -> tuple[float, float]:
    """A range of round numbers that holds all."""
    low, high = float(numbers.min()), float(numbers.max())
    step = 10.0 ** math.floor(math.log10(high - low))
    return tuple(_round(end(bound / step) * step) for end, bound in ((math.floor, low), (math.ceil, high)))  # type: ignore[return-value]


def _round(value: float) -> float:
    short = float(f"{value:.12g}")
    return int(short) if short.is_integer() else short


def told_of(name: str, found: Sorted, what: str, where: Sequence[str]) -> tuple[str, ...]:
    """What to say of the words of ``found`` that are none of the kind; ``where``: of the first strays."""
    told = []
    if found.nothing:
        shown = ", ".join(map(repr, found.nothing))
        verb = "stands" if len(found.nothing) == 1 else "stand"
        told.append(f"{name}: {shown} {verb} for no value in this draft: if not so, correct its missing_values.")
    if found.strays:
        listed = ", ".join(map(repr, found.strays[:SHOWN])) + ", ..." * (len(found.strays) > SHOWN)
        cells = "1 cell is" if found.num_strays == 1 else f"{found.num_strays} cells are"
        more = ", ..." if found.num_strays > len(where) else ""
        told.append(
            f"{name}: {cells} not {what} ({'; '.join(where)}{more}); dpfl check refuses that. Correct the file, or, "
            f"where it is no value, list it in missing_values: [{listed}] of the column, with missing: indicator."
        )
    return tuple(told)
