"""How columns are listed; and what silos are called: by their numbers, and by names that the data give, where any.

A name may say whose records they are (a hospital), so it goes where the records are shown to be known already: to the
screen and into files of whoever holds them, never into what is published or sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from dpfl_plugin.errors import printable

LONGEST: Final = 40
MOST: Final = 8


def of_files(paths: Sequence[Path]) -> tuple[str, ...]:
    """A name for each file: without suffix, and with its folder where two would have the same."""
    bare = [path.name.removesuffix(".gz").rpartition(".")[0] or path.name for path in paths]
    often = Counter(bare)
    return tuple(
        name if often[name] == 1 else f"{path.parent.name}/{path.name}" for name, path in zip(bare, paths, strict=True)
    )


def tidy(name: str) -> str:
    """A name of the data as it can be printed in a line: no control characters, and not beyond `LONGEST`."""
    plain = printable(name)
    return plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 3]}..."


def told_apart(names: Mapping[int, str]) -> dict[int, str]:
    """Names of the data, by silo, so that nobody takes one for another: as `tidy` has them; in full, those that it
    would make alike; and all with escapes, where that does not do."""
    often = Counter(map(tidy, names.values()))
    apart = {silo: tidy(name) if often[tidy(name)] == 1 else printable(name) for silo, name in names.items()}
    if len(set(apart.values())) == len(set(names.values())):
        return apart
    return {silo: name.encode("unicode_escape").decode() for silo, name in names.items()}


def called(silo: int, names: Mapping[int, str]) -> str:
    """E.g. "silo 3 (mercy)", or "silo 3" where it has no name, or is called 3 itself."""
    name = names.get(silo, str(silo))
    return f"silo {silo}" if name == str(silo) else f"silo {silo} ({name})"


def number_of(silo: int | str, names: Mapping[int, str], count: int) -> int | str:
    """The number of a silo that is given by it, by its name, or by both as `called` has them; else what was given."""
    word = str(silo)
    if word.isdecimal() and int(word) < count:
        return int(word)
    numbers = {alias: number for number, name in names.items() for alias in (name, called(number, names))}
    return numbers.get(word, silo)


def listed(silos: Iterable[int], names: Mapping[int, str]) -> str:
    """E.g. "0 (mercy), 3 (north)"."""
    ids = sorted(silos)
    shown = [called(silo, names).removeprefix("silo ") for silo in ids[:MOST]]
    return ", ".join(shown) + (f" and {len(ids) - MOST} more" if len(ids) > MOST else "")


def column_list(names: Iterable[str]) -> str:
    """E.g. "age, 'ST depression, mm'": in quotes where a name could be taken for two, or for a part of the sentence."""
    return ", ".join(name if name.isidentifier() else repr(name) for name in names)
