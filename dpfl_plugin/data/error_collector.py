"""What is wrong with a CSV file: all places of it at once, and files of another kind by what they are."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dpfl_plugin.errors import DataError, closest

FRAME: Final = Path("the data frame")
"""What stands in messages for a file's path."""
NAME_THEM: Final = "frame.columns = [f'x{n}' for n in frame.columns] names them"
MOST_TOLD: Final = 20
SHOWN: Final = 3  # places of one column that are alike; where there are more of them they are one line
MOST_NUMBERS: Final = 20  # as many different numbers may be classes that nobody named
LEAST_RECORDS: Final = 20  # of which all values are different by chance rarely
NAMELESS: Final = (
    "Is it a row number (pandas writes one; index=False leaves it out), or a delimiter at the end of the line?"
)
REMOVE: Final = ("remove it", "remove them")  # of empty lines
AS_IT_IS: Final = " Read it as it is: data.dataset.encoding: windows-1252."
SAVE_AS_UTF_8: Final = (
    ' Save it as UTF-8: `iconv -f WINDOWS-1252 -t UTF-8 FILE > COPY`, or in a spreadsheet program as "CSV UTF-8".'
)
_DECIMAL_COMMA: Final = re.compile(r"[-+]?\d{1,3}(\.\d{3})*,\d+([eE][-+]?\d+)?|[-+]?\d+,\d+([eE][-+]?\d+)?")


class NotUtf8Error(DataError):
    """A text is in another encoding, and nothing said in which."""


@dataclass(slots=True)
class _Alike:
    """Places of one column, or whole lines, that are wrong in the same way.

    Attributes:
        many: what is wrong, of several; fix: what to do. first: (line, what is wrong with it, the cell), of the first.
    """

    many: str
    fix: str
    count: int = 0
    first: list[tuple[int, str, str]] = field(default_factory=list)


@dataclass(slots=True)
class ErrorCollector:
    """Places of a file that are wrong, in the order in which they are found.

    Attributes:
        unit: what its lines are called. cells: (record, column) of cells of which nothing else is to be said.
    """

    path: Path
    unit: str = "line"
    cells: set[tuple[int, str]] = field(default_factory=set)
    places: dict[tuple[str | None, str], _Alike] = field(default_factory=dict)

    def add(self, line: int, column: str | None, what: str, many: str, fix: str = "", cell: str = "") -> None:
        """One more, in a column or in all of a line; ``what`` follows the place, ``many`` says it of several."""
        alike = self.places.setdefault((column, many), _Alike(many, fix))
        alike.count += 1
        if len(alike.first) < SHOWN:
            alike.first.append((line, f"{what}{fix and ' ' + fix}", cell))

    def add_all(
        self, count: int, first: Sequence[tuple[int, str, str]], column: str | None, many: str, fix: str
    ) -> None:
        """``count`` more that are alike, as `add` notes one; ``first``: (line, what is wrong, the cell)."""
        alike = self.places.setdefault((column, many), _Alike(many, fix))
        alike.count += count
        for line, what, cell in first[: SHOWN - len(alike.first)]:
            alike.first.append((line, f"{what}{fix and ' ' + fix}", cell))

    def add_empty(self, records: Sequence[int], where: str = "") -> None:
        """Lines of which no cell is filled, or none ``where`` it is read: one place each, and not one a column."""
        singular, all_of_them = (f"empty{where}: {fix}" for fix in REMOVE)
        shown = [(record, f" is {singular}.", "") for record in records[:SHOWN]]
        if len(records):
            self.add_all(len(records), shown, None, f"are {all_of_them}", "")

    def move(self, lines: Callable[[list[int]], Mapping[int, int]]) -> None:
        """Where places were noted as numbers of records: make them lines, by what ``lines`` says of these records."""
        records = sorted({record for alike in self.places.values() for record, _, _ in alike.first})
        line_of = lines(records) if records else {}
        for alike in self.places.values():
            alike.first = [(line_of[record], what, cell) for record, what, cell in alike.first]

    def check(self, of_cells: str = "") -> None:
        """Raise DataError with all that was found, if anything was; ``of_cells``: a way out, where cells are wrong."""
        if (text := self.text()) is not None:
            in_cells = any(column is not None for column, _ in self.places)
            raise DataError(f"{text}\n{of_cells}" if of_cells and in_cells else text)

    def text(self) -> str | None:
        """All that was found, if anything was."""
        count = sum(alike.count for alike in self.places.values())
        if not count:
            return None
        items = sorted(item for (column, _), alike in self.places.items() for item in _items(column, alike, self.unit))
        if count == 1:
            return f"{self.path}, {items[0][1]}"
        left = count - sum(places for _, _, places in items[:MOST_TOLD])
        more = f"\n  and {left} more" if left else ""
        lines = "\n  ".join(text for _, text, _ in items[:MOST_TOLD])
        return f"{self.path}: {count} places are wrong:\n  {lines}{more}"


def _items(column: str | None, alike: _Alike, unit: str) -> list[tuple[int, str, int]]:
    """(the first line, text, how many places it tells of): each by itself, or many that are alike together."""
    if alike.count <= SHOWN:
        where = "" if column is None else f", column {column!r}"
        return [(line, f"{unit} {line}{where}{what}", 1) for line, what, _ in alike.first]
    cells = ", ".join(f"{unit} {line}{cell and ' ' + cell}" for line, _, cell in alike.first)
    what = f"{alike.count} {unit}s" if column is None else f"column {column!r}: {alike.count} cells"
    return [(alike.first[0][0], f"{what} {alike.many} ({cells}, ...).{alike.fix and ' ' + alike.fix}", alike.count)]


def rename(name: str, header: Sequence[str]) -> str:
    """How to fix that a file for a finished model lacks the column ``name``: the model cannot be changed."""
    other = closest(name, header)
    return "Add it." if other is None else f"Rename the column {other!r} of this file to {name!r}, or add it."


def is_decimal_comma(text: str) -> bool:
    """Whether it is a number as 1,5 or 1.234,5."""
    return _DECIMAL_COMMA.fullmatch(text.strip()) is not None


def with_point(text: str) -> str:
    """A number with a decimal comma as it has to be written."""
    return text.strip().replace(".", "").replace(",", ".")


def utf_16(start: bytes) -> str | None:
    """The encoding of a text in UTF-16, by its mark or by the zeros between its first letters; None of others."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    even, odd = start[: len(start) // 2 * 2 : 2], start[1::2]
    if len(odd) > 1:
        for letters, zeros, name in ((even, odd, "utf-16-le"), (odd, even, "utf-16-be")):
            if all(letters) and not any(zeros):
                return name
    return None


def not_utf8(path: Path, error: UnicodeDecodeError) -> DataError:
    """What to say of a file whose text is in another encoding."""
    byte = error.object[error.start]
    if b"\0" in error.object:
        return DataError(f"{path} is not a CSV file: it holds bytes that are not text. Convert it to CSV in UTF-8.")
    return NotUtf8Error(
        f"{path} is not text in UTF-8: it has the byte 0x{byte:02x}, as files in Latin-1 or Windows-1252 do "
        f"({bytes([byte]).decode('latin-1')!r} there).{AS_IT_IS}"
    )


def check_names(path: Path, header: list[str], ignored: tuple[str, ...]) -> None:
    """Raise DataError for columns without a name that are not ignored."""
    nameless = [place + 1 for place, name in enumerate(header) if not name]
    if nameless and "" not in ignored:
        which = f"column {nameless[0]} has" if len(nameless) == 1 else f"columns {', '.join(map(str, nameless))} have"
        raise DataError(
            f'{path}, line 1: {which} no name. {NAMELESS} Name it, remove it, or leave it out by ignore_columns: [""].'
        )


def no_header(where: object, wanted: str, *, of_frame: bool) -> str:
    """What to say of a table whose columns have no names."""
    if of_frame:
        return f"{where} has numbers for names of columns: {NAME_THEM}."
    return f"{where} has no header: its first line must name the columns, {wanted} among them."


def quantity(path: Path, column: str, labels: list[str]) -> str | None:
    """What to say of labels that are numbers as of a quantity; None where they may be classes."""
    try:
        numbers = [float(label) for label in labels]
    except ValueError:
        return None
    whole = all(number.is_integer() for number in numbers)
    if len(numbers) <= MOST_NUMBERS and whole:
        return None
    shown = ", ".join(labels if len(labels) <= 4 else [*labels[:3], "...", labels[-1]])
    if path == FRAME:
        outcome, key, quoted = "outcome={'kind': 'regression', 'range': (LOW, HIGH)}", "classes=[{}]", labels
    else:  # where YAML has words and whole numbers for classes
        outcome, key = "outcome: {kind: regression, range: [LOW, HIGH]}", "classes: [{}]"
        quoted = [label if label.isdecimal() else f'"{label}"' for label in labels]
    named = ", ".join(quoted if len(quoted) <= 4 else [*quoted[:3], "..."])
    return (
        f"{path}: the labels in column {column!r} are {'' if whole else 'fractional '}numbers, {len(labels)} different "
        f"ones ({shown}): a quantity, or classes? To predict a quantity, give its public range: {outcome}, or kind "
        f"counts for counts (docs/outcomes.md). If they are classes, name all of them: {key.format(named)}."
    )
