"""The order of a silo's records, of which every cut is an interval of ranks.

Training and test records, the share that is set apart to be scored, disjoint shares, cycles, which records are kept
where there are more than a limit: all of them are cuts, made before the oracle. A cut by place in a file moves many
records where one is replaced: a sorted export shifts all records between two places. So the order is that of a keyed
hash of each record's content, and the ends of all intervals are public functions of the number n of records (or
persons) and the configuration.

**Definitions.** k is the silo's key, 32 bytes that nobody else has (`key_of`). A record's canonical bytes are its
features, its label, whose record it is, and whether it can be used: all that the oracle reads of it, each of a fixed
width, so that no two records have the same bytes. They are made of that record and the public schema alone; a class is
its name, not its number, which may follow from other records. F is BLAKE2b with a key, and H is HMAC-SHA256; both are
taken for pseudorandom functions (RFC 7693 defines the key of BLAKE2b for this use). Then

* r = F(H(k, "rows"), bytes), of 128 bits: it stands for the row. Identical rows have the same r and are numbered
  j = 0, 1, ...; which of them has which number is immaterial, as they are identical.
* mark = H(k, "mark", encoding, the sorted (r, j)), where ``encoding`` says what features and labels mean. The marks of
  two sets of records are equal if and only if the sets are (up to a collision, n^2 / 2^128).
* cut key c = H(k, "cut", mark), and u = F(c, r, j). The order is that of u.
* Where the data say whose record each is, persons are in the order of F(H(k, "id"), id), and the records of one person
  are in the order of u. A person with more records than a limit keeps the first of them.

**Claim.** Let D and D' differ in one record that is replaced, in every export that a ledger covers, in any order of
their rows, such that the pattern of equal marks among the exports is the same. There is a coupling of the orders of D
and D' under which, in all runs and exports, all ranks hold the same record but one, and that one is the same rank.
So every interval with public ends holds the same records, or differs in one.

**Proof.** For each mark the labels (r, j) are distinct, whatever the records are: so the u are independent and uniform
(c is a function of the mark that nobody can compute, and F is pseudorandom), and independent between different marks.
Their law does not depend on the content. Of D and D' all labels but one are the same: replacing a record takes away the
last of the rows that are identical to it, and adds one after those that are identical to the new one. Give the u of all
labels that remain the same values, and the new label's u that of the label that went. Exports with one mark have the
same labels under D, and by assumption under D' too, so they share their u in both. The ranks are functions of the u.
Composition is conditional on the u, and divergences are jointly convex, so what holds for each u holds on average.
Where persons are protected the same holds of persons: ids are distinct, and the new person's id gets the hash of the
one that went; which of its records are kept is a matter of that person alone. []

**Why not simpler.** A keyed permutation of places is one of the file's order, which shifts. Without j, identical rows
are all on one side of a cut, so that all records between may change side. With one key for all marks, of two exports
between which rows were edited ranks agree under D' and are independent under D, so that all shares between them move.
Strata by label have ends that depend on labels.

**If the key is known** the cut key of D' is another one than that of D, and nothing is claimed. So where a key is
public (it follows from a seed) the order is made without the mark: u = F(H(k, "content"), r, j). Nothing is secret
then, and the first m of an order differ in one record between D and D' (the m least of two sets that differ in one
element do), without any coupling. That is enough for one cut into two parts, and for no more.

**Not covered**: where n itself is secret.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core.streams import stream_key
from dpfl_plugin.data.base import Cut, Dataset, Integers, Silo

Digests = NDArray[np.uint64]
"""(n, 2), of 128 bits each."""

DIGEST_BYTES: Final = 16
AT_ONCE: Final = 2**24  # bytes of records that are copied at a time
ALL_SILOS: Final = -1  # in the place of a silo, of the order from which records are dealt to silos


@dataclass(frozen=True, slots=True)
class OrderKeys:
    """The keys of silos' orders.

    Attributes:
        seed: keys are derived from it where there is no secret; then they are public.
        secret: of all silos: of the order from which a simulation deals records to them, and of silos without
            a secret of their own. own: of the silos of this process.
    """

    seed: int
    secret: bytes | None = None
    own: bytes | None = None

    def order(self, silo: int, data: Dataset, rows: Integers, encoding: str = "") -> Order:
        """The order of these rows as the records of a silo, or as what is dealt to silos (`ALL_SILOS`)."""
        secret = self.secret if silo == ALL_SILOS else self.own or self.secret
        key = key_of(stream_key(self.seed, "split") if secret is None else secret, silo)
        return order_of(key, data, rows, encoding, public=secret is None)


@dataclass(frozen=True, slots=True)
class Order:
    """An order of records.

    Attributes:
        rows: (n,) where they are, by rank. mark: by which the same set of records is known again.
    """

    rows: Integers
    mark: str


def key_of(secret: bytes, silo: int) -> bytes:
    """The key of one silo's order."""
    return derived(secret, b"silo", silo.to_bytes(8, "little", signed=True))


def derived(key: bytes, label: bytes, *parts: bytes) -> bytes:
    """H(key, label, parts); each part has its length before it."""
    text = b"".join(len(part).to_bytes(8, "little") + part for part in (label, *parts))
    return hmac.digest(key, text, "sha256")


def order_of(key: bytes, data: Dataset, rows: Integers, encoding: str = "", *, public: bool = False) -> Order:
    """The order of the records at ``rows`` of a data set; of persons, one person after another.

    Args:
        public: whether the key may be known to others, who then know the order: enough for one cut into two parts.
    """
    digests = row_digests(derived(key, b"rows"), data, rows)
    ascending, number = _numbered(digests)
    mark = derived(key, b"mark", encoding_of(data, encoding).encode(), digests[ascending].tobytes())
    cut = derived(key, b"content") if public else derived(key, b"cut", mark)
    u = _uniform(cut, np.concatenate([_as_bytes(digests.astype(">u8")), _as_bytes(number.astype(">i8"))], axis=1))
    if data.persons is None:
        return Order(rows[_ascending(u)], mark.hex())
    return Order(rows[_by_person(derived(key, b"id"), data.persons[rows], u)], mark.hex())


def ordered(silo: Silo, key: bytes) -> tuple[Silo, Integers]:
    """(a silo that has training records only, in their order; where these were)."""
    data = Dataset(silo.train_x, silo.train_y, 0, usable=silo.usable)
    order = order_of(key, data, np.arange(len(silo.train_y)))
    rows, size = order.rows, len(order.rows)
    x, y, usable = silo.train_x[rows], silo.train_y[rows], None if silo.usable is None else silo.usable[rows]
    return replace(silo, train_x=x, train_y=y, usable=usable, cut=Cut(order.mark, size, 0, size)), rows


def encoding_of(data: Dataset, schema: str) -> str:
    """What makes equal bytes mean the same: columns, shapes and the outcome, and the schema that encoded cells."""
    shape, kinds = data.features.shape[1:], (data.features.dtype.str, data.labels.dtype.str, data.labels.shape[1:])
    return repr((data.columns, shape, kinds, data.outcome.plain(), schema))


def row_digests(key: bytes, data: Dataset, rows: Integers) -> Digests:
    """r of each of ``rows``."""
    size = max(1, AT_ONCE // max(1, data.features[:1].nbytes))
    parts = [_each(key, _canonical(data, rows[at : at + size])) for at in range(0, len(rows), size)]
    return _digests(b"".join(parts))


def _digests(text: bytes) -> Digests:
    return np.frombuffer(text, dtype=">u8").reshape(-1, 2).astype(np.uint64)


def _canonical(data: Dataset, rows: Integers) -> NDArray[np.uint8]:
    """(some, width) bytes of records."""
    labels = data.labels[rows]
    if data.outcome.has_classes and labels.ndim == 1 and data.class_names:
        labels = _of_names(data.class_names)[labels]
    parts: list[NDArray[Any]] = [data.features[rows], labels]
    parts.append(np.ones(len(rows), np.uint8) if data.usable is None else data.usable[rows].astype(np.uint8))
    if data.persons is not None:
        parts.append(data.persons[rows])
    return np.concatenate([_as_bytes(part) for part in parts], axis=1)


def _of_names(names: Sequence[str]) -> NDArray[np.uint8]:
    digests = [hashlib.blake2b(name.encode(), digest_size=DIGEST_BYTES).digest() for name in names]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(len(names), DIGEST_BYTES)


def _as_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    flat = np.ascontiguousarray(values).reshape(len(values), -1)
    return flat.view(np.uint8).reshape(len(values), -1)


def _each(key: bytes, rows: NDArray[np.uint8]) -> bytes:
    """F(key, row) of each row, one after another."""
    keyed, (text, width) = hashlib.blake2b(digest_size=DIGEST_BYTES, key=key), (rows.tobytes(), rows.shape[1])
    start, digests = keyed.copy, []
    for first in range(0, len(text), width):  # a million times: nothing else in it
        made = start()
        made.update(text[first : first + width])
        digests.append(made.digest())
    return b"".join(digests)


def _numbered(digests: Digests) -> tuple[Integers, Integers]:
    """(places in ascending order, the number j of each place among those that are equal)."""
    ascending = _ascending(digests)
    ordered = digests[ascending]
    new = np.ones(len(digests), dtype=bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    places = np.arange(len(digests))
    number = np.empty(len(digests), dtype=np.int64)
    number[ascending] = places - np.maximum.accumulate(np.where(new, places, 0))
    return ascending, number


def _uniform(key: bytes, labels: NDArray[np.uint8]) -> Digests:
    """F(key, label) of distinct labels, one in each row: independent and uniform."""
    return _digests(_each(key, labels))


def _by_person(key: bytes, persons: Integers, u: Digests) -> Integers:
    each, which = np.unique(persons, return_inverse=True)
    rank = np.empty(len(each), dtype=np.int64)
    rank[_ascending(_uniform(key, _as_bytes(each.astype(">i8"))))] = np.arange(len(each))
    return np.lexsort((u[:, 1], u[:, 0], rank[which]))


def _ascending(digests: Digests) -> Integers:
    return np.lexsort((digests[:, 1], digests[:, 0]))
