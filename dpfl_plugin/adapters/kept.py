"""What a silo's process keeps from one message to the next: what is dear to make, and follows from its arguments.

A platform opens a silo for every message, and closes it after the answer. The folder, its lock, the ledgers, the state
and the owner's limits are opened, read and checked then, each time: two processes may take turns at a silo, and an
owner's word counts from the next message on. Engine, noise and loss follow from the configuration, the model and the
records. They are used again where these are the same:

* the records: they are read at every message, and compared to the byte with those that were hashed. Nothing is taken on
  trust: no object's identity, and no counter of its changes.
* the model and the loss: by the attributes and the classes of layers (`dpfl_plugin.models.fixed.attributes`), by the
  values of what does not train, and by the very function. What cannot be pickled is made anew each time.
* the configuration as the silo sees it, and the noise that its ledger says it began with.

Of what was made for one silo another one has nothing, but for the word that an engine passed its trial
(`gradients.choice`): it has an engine of its own, which need not be tried again.

They are taken out while a silo is open, and only one that closes in order puts them back: what an error left
half-done is never used again.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import nn

from dpfl_plugin.config.schema import Config
from dpfl_plugin.data.base import Integers, Silo, digest
from dpfl_plugin.data.record_order import ordered
from dpfl_plugin.federation.silo_group import begun
from dpfl_plugin.gradients.base import Loss
from dpfl_plugin.gradients.choice import PassedTrials
from dpfl_plugin.models.fixed import attributes
from dpfl_plugin.runs.build import Parts

MOST_BYTES: Final = 2**28  # of records that are kept beside those of the last silo: a simulation's process has many
AT_ONCE: Final = 2**20  # values that are compared at a time


@dataclass(frozen=True, slots=True)
class Hashed:
    """A silo's records, in their order, which nothing changes, and what they are known by.

    Attributes:
        digest: see `data.base.digest`. rows: where they were, of those that were given; None for the same order.
    """

    records: Silo
    digest: str
    rows: Integers | None

    def same(self, others: Silo) -> bool:
        """Whether those are these, to the byte, in the order in which these were given."""
        mine, rows = self.records, slice(None) if self.rows is None else self.rows
        if len(mine.train_y) != len(others.train_y):
            return False
        return _same(mine.train_x, others.train_x[rows]) and _same(mine.train_y, others.train_y[rows])


def hashed(records: Silo, key: bytes | None = None) -> Hashed:
    """Of records that this process has for itself, in the order by ``key``; None: as they are, for who repeats a
    simulation."""
    if key is None:
        return Hashed(records, digest(records), None)
    mine, rows = ordered(records, key)
    return Hashed(mine, digest(mine), rows)


def _same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    # As whole numbers: a NaN is itself then, and -0.0 is not 0.0.
    x, y = (one.reshape(-1).view(f"u{one.dtype.itemsize}") for one in (a, b))
    return all(np.array_equal(x[i : i + AT_ONCE], y[i : i + AT_ONCE]) for i in range(0, len(x), AT_ONCE))


@dataclass(frozen=True, slots=True)
class Decided:
    """All that decides what `Made.parts` are, beside the records."""

    config: Config
    structure: str
    fixed: str
    attributes: tuple[bytes, tuple[type, ...]] | None
    loss: Loss | None
    least_records: int | None

    @classmethod
    def by(cls, config: Config, structure: str, fixed: str, model: nn.Module, loss: Loss | None) -> Decided:
        """
        Args:
            structure, fixed: of the model, see `models.fixed`.
        """
        return cls(config, structure, fixed, attributes(model), loss, config.least_records)

    def same(self, other: Decided) -> bool:
        """Whether the same comes of both; False where that cannot be told."""
        return (
            self.attributes is not None
            and (self.structure, self.fixed, self.attributes) == (other.structure, other.fixed, other.attributes)
            and self.loss is other.loss
            and (self.config, self.least_records) == (other.config, other.least_records)
        )


@dataclass(frozen=True, slots=True)
class Made:
    """What was made for a silo, and of what."""

    hashed: Hashed
    decided: Decided
    parts: Parts
    config_text: str

    def serves(self, hashed: Hashed, decided: Decided, began: Mapping[str, Any] | None) -> bool:
        """Whether it would be made alike.

        Args:
            began: what the silo's ledger says that it began with; None if it begins.
        """
        return (
            began is not None
            and began["noise_multiplier"] == self.parts.noise_multiplier
            and hashed is self.hashed
            and decided.same(self.decided)
        )

    @property
    def num_bytes(self) -> int:
        """Of the records, which the engine has once more."""
        return 2 * (self.hashed.records.train_x.nbytes + self.hashed.records.train_y.nbytes)

    def again(self) -> Parts:
        """The parts, with the states that silos begin with."""
        parts = self.parts
        parts.host.states = begun(parts.algorithm.init_silos(parts.model, 1), parts.rules, 1, parts.layout.dimension)
        return parts


class Kept:
    """What one process keeps of the silos that it answers for, by their folders.

    Of the silo that closed last it is kept whatever its size; of others as long as their records together have no more
    than ``most_bytes``. Safe for threads.

    Attributes:
        passed: trials of engines, which all silos share.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._made, self._lock = most_bytes, OrderedDict[Path, Made](), threading.Lock()
        self.passed: PassedTrials = {}
        self._bytes = 0

    def take(self, folder: Path) -> Made | None:
        """What was put there, which then is nobody else's."""
        with self._lock:
            made = self._made.pop(folder.resolve(), None)
            self._bytes -= 0 if made is None else made.num_bytes
            return made

    def put(self, folder: Path, made: Made) -> None:
        place = folder.resolve()
        with self._lock:
            if place in self._made:
                self._bytes -= self._made.pop(place).num_bytes
            self._made[place] = made
            self._bytes += made.num_bytes
            while len(self._made) > 1 and self._bytes - made.num_bytes > self._most:
                self._bytes -= self._made.popitem(last=False)[1].num_bytes

    def __len__(self) -> int:
        return len(self._made)


@functools.cache
def kept_here() -> Kept:
    """That of this process, for adapters: a function, since Ray sends what a client app names along with it."""
    return Kept()
