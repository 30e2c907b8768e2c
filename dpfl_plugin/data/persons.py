"""Whose records they are: persons kept together by partitions and splits, and made rows of their own to be protected.

A person's records at a silo are one *row* of at most k = ``max_records_per_person`` records. Neighbours differ in one
row, in all of it: who the person is, which records it has, and how many. So nothing here may depend on another person's
records: persons are in the order of a keyed hash of their ids, and of a person with more than k records the first in
the records' order are kept (`dpfl_plugin.data.record_order`). In the order of their names, or of the file, somebody
else in one person's place would move all persons between the two, and with them the cut between training and tests.

The unit, and the mean gradient of a person's records as what is clipped: Charles et al. 2024, "Fine-Tuning Large
Language Models with User-Level Differential Privacy", arXiv:2407.07737, user-level sampling (ULS), Alg. 2.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Final

import numpy as np

from dpfl_plugin.data.base import Dataset, Federation, Integers, Silo
from dpfl_plugin.data.memmap_store import Scratch
from dpfl_plugin.errors import ConfigError, DataError, UnsupportedError, require

NO_RECORD: Final = -1
"""The class at a place of a person's row where there is no record, NaN the label of another outcome: no label of a
record is either (`dpfl_plugin.data.labels`). Features there are those of the first record."""
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,1000}(?:\.[0-9]{0,1000})?(?:[eE][+-]?[0-9]{1,2})?")


def numbers(names: Iterable[object]) -> Integers:
    """A number [n] for each person's name: the same in every file and process; 63 bits of its hash.

    A whole number is one person however it is written: 17, 17.0, 0017, " 17" or 1.7e+01. So files write it that pandas,
    R (1e+05), numpy or a spreadsheet has gone over, and a person that was taken for two would be at two silos and
    nobody would see it. Where two names should ever meet in one number they are protected together, which is more than
    was asked.
    """
    known: dict[str, int] = {}
    return np.array([known.setdefault(name, _number(name)) for name in map(_word, names)], dtype=np.int64)


def _word(name: object) -> str:
    word = (name.decode(errors="replace") if isinstance(name, bytes) else str(name)).strip()
    if _NUMBER.fullmatch(word) is None:
        return word
    number = Decimal(word)
    return str(int(number)) if number == number.to_integral_value() else word


def _number(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8, person=b"dpfl.person").digest(), "little") >> 1


def first_seen(persons: Integers) -> tuple[Integers, Integers]:
    """(the numbers in the order in which they come first, the place [n] of each record's person among them)."""
    each, first, which = np.unique(persons, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return each[order], place[which]


def units(data: Dataset, rows: Integers, *, by_silo: bool) -> list[Integers]:
    """The rows of each person's records, in the order in which persons come first among ``rows``.

    by_silo: a person at several natural silos is one at each.
    """
    assert data.persons is not None
    _, place = first_seen(data.persons[rows])
    if data.groups is not None and by_silo:
        silos, silo = np.unique(data.groups[rows], return_inverse=True)
        _, place = first_seen(place * len(silos) + silo)
    return [rows[some] for some in _rows(place)]


def _rows(place: Integers) -> list[Integers]:
    """The records of each person, by its place."""
    order = np.argsort(place, kind="stable")
    return np.split(order, np.cumsum(np.bincount(place))[:-1])


def check_own_test(data: Dataset) -> None:
    """Raise DataError where a data set's own test part may hold records of persons of its training part."""
    if data.persons is None or data.test is None:
        return
    if data.test.persons is None:
        raise DataError(
            "data.test='own': the training part says whose records they are, and the test part does not: a person "
            "might be in both. Name the persons of the test part, too, or use test: split."
        )
    both = len(np.intersect1d(data.persons, data.test.persons))
    if both:
        raise DataError(
            f"data.test='own': {both} person{'s are' if both > 1 else ' is'} in the training and in the test part. "
            "Keep all records of a person in one of them, or use test: split."
        )


def check_apart(federation: Federation) -> None:
    """Raise DataError where a person has records at several silos: what protects it at each does not at all of them."""
    seen: dict[int, int] = {}
    several = set[int]()
    example: tuple[int, int] | None = None
    for silo, records in federation.by_id().items():
        parts = [part for part in (records.persons, records.test_persons) if part is not None]
        for person in np.unique(np.concatenate(parts)).tolist():
            if seen.setdefault(person, silo) != silo:
                several.add(person)
                example = example or (seen[person], silo)
    if example is not None:
        first, second = (f"silo {silo}" for silo in example)
        count = f"{len(several)} persons have" if len(several) > 1 else "one person has"
        raise UnsupportedError(
            f"privacy.unit='person': {count} records at more than one silo (one of them at {first} and {second}): the "
            "guarantee of one silo does not hold for what several release. Bring each person's records to one silo, or "
            "set privacy.shared_persons: per_silo, which protects a person's records at each silo by itself and says "
            "so. Numbers that mean other persons at other silos need a prefix of their silo."
        )


def grouped(federation: Federation, most: int, scratch: Scratch) -> None:
    """Make of every silo's training records a row for each person, in place.

    A person has its first ``most`` records, of those that can be used; without any it is a row that cannot be used.

    Args:
        most: k, records that are kept of a person, the first in their order where there are more.

    Raises:
        ConfigError: ``most`` is below 1, or the data do not say whose records they are.
    """
    require(most >= 1, "privacy.max_records_per_person", most, "be 1 or more")
    if federation.silos and any(silo.persons is None for silo in federation.silos):
        raise ConfigError("privacy.unit='person': the data do not say whose records they are.")
    for silo in federation.silos:
        _group(silo, most, scratch)


def _group(silo: Silo, most: int, scratch: Scratch) -> None:
    assert silo.persons is not None
    persons, place = first_seen(silo.persons)
    x = scratch.empty((len(persons), most, *silo.train_x.shape[1:]), silo.train_x.dtype)
    nobody = NO_RECORD if silo.train_y.dtype == np.int64 else np.nan
    y = np.full((len(persons), most, *silo.train_y.shape[1:]), nobody, dtype=silo.train_y.dtype)
    usable = np.ones(len(persons), dtype=bool)
    for row, records in enumerate(_rows(place)):
        if silo.usable is not None:
            usable[row] = silo.usable[records].any()
            records = records[silo.usable[records]] if usable[row] else records[:1]
        records = records[:most]
        # A place without a record repeats the first one: what is finite stays finite, and its weight is 0.
        x[row, : len(records)], x[row, len(records) :] = silo.train_x[records], silo.train_x[records[0]]
        y[row, : len(records)] = silo.train_y[records]
    silo.train_x, silo.train_y, silo.persons = x, y, persons
    silo.usable = None if silo.usable is None else usable
