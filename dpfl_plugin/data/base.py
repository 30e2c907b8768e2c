"""Records in memory: a data set as it was loaded, a silo, and a federation of silos; and what is public of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core.outcomes import CLASSES, Outcome
from dpfl_plugin.core.scaling import Measured
from dpfl_plugin.data.labels import Integers as Integers
from dpfl_plugin.data.labels import Labels as Labels
from dpfl_plugin.data.labels import LabelType, check_labels
from dpfl_plugin.errors import DataError

Features = NDArray[np.float32]


NOT_PUBLIC: Final = "not to be published"
"""What a caveat says that tells of records: it is left out of what may be published."""

AS_READ: Final = "the data as read: "
"""How a caveat begins that says how files were understood: a statement has it among its notes, as it is no gap."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set before it is dealt out to silos.

    features: [n, *shape]; labels: [n] in 0..num_classes - 1, or as ``outcome`` says; num_classes: of classes, or
    outputs of a model for another outcome (`Outcome.num_outputs`); groups: [n], the natural silo of each record, or
    None;
    test: the data set's own test part, whose groups mean the same silos; caveats: what a reader of the results,
    or of the privacy statement, has to know (see `NOT_PUBLIC`); part_of: how many silos there are, where the records
    are only those of the silos that this process holds (see `Ownership`), with a group for each; silo_names: of the
    groups 0, 1, ..., and columns: of flat features, where they have names; notes: what the owner of the records should
    look at before training, which may tell of single records; class_names: of the labels 0, 1, ..., if they have any;
    persons: [n], whose record each is, or None where that is not known: equal numbers are one person, in ``test``, too
    (`dpfl_plugin.data.persons.numbers`); measured: columns that are to be scaled or filled in by noisy statistics;
    label_type: what labels were that are called by class_names, where a program gave them; usable: [n], False where
    a record cannot be used (a value is missing, say), or None where all can. Such a record has a placeholder for its
    features (zeros, say) and label, the same for each, and is a record like any other but that it adds nothing to what
    is computed: whether it can be used is a matter of that record and the public schema alone.
    """

    features: Features
    labels: Labels
    num_classes: int
    groups: Integers | None = None
    test: Dataset | None = None
    caveats: tuple[str, ...] = ()
    part_of: int | None = None
    silo_names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    persons: Integers | None = None
    outcome: Outcome = CLASSES
    measured: tuple[Measured, ...] = ()
    label_type: LabelType = "text"
    usable: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a record of a federation is, before preprocessing: what new ones have to be, for its model.

    shape: of features; num_classes: of labels; columns: names of features, where they are flat and have any; classes:
    names of the labels 0, 1, ..., where they have any that are known; backbones: digests of the frozen modules that
    preprocessing puts records through (`dpfl_plugin.runs.backbone`); measured, label_type: as those of `Dataset`.
    """

    shape: tuple[int, ...]
    num_classes: int
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    backbones: tuple[str, ...] = ()
    measured: tuple[Measured, ...] = ()
    label_type: LabelType = "text"

    def plain(self) -> dict[str, Any]:
        """As JSON has it, so that a result is the same when it is read again; ``measured`` has a place of its own."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "measured"}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


@dataclass(frozen=True, slots=True)
class Ownership:
    """Which silos' records a process may read, where several processes hold a federation together.

    Attributes:
        holds: whether this process holds the silo of this id.
        agree: plain values, one from each process, in the same order everywhere; all processes have to call it.
    """

    holds: Callable[[int], bool]
    agree: Callable[[Any], list[Any]]


class Cut(NamedTuple):
    """Which of a silo's records are its training records: an interval of ranks (`dpfl_plugin.data.record_order`).

    mark: of all records of the silo; size: how many records, or persons, there are; [first, last): the ranks.
    """

    mark: str
    size: int
    first: int
    last: int


@dataclass(slots=True)
class Silo:
    """The records of one silo: train_x [n, *shape], train_y [n], test_x [t, *shape], test_y [t].

    Features are floats; int64 where a platform's project has a model that takes them so (an Embedding). persons [n],
    test_persons [t]: whose records they are, or None where that is not known. usable [n], test_usable [t]: False for
    records that add nothing to anything, as those of `Dataset`. cut: None where nothing was cut.

    Training records are in their order (`dpfl_plugin.data.record_order`), whatever the file's was: every cut of them is
    an interval of places. Where persons are protected, `dpfl_plugin.data.persons.grouped` makes of each person one row:
    train_x is [p, k, *shape], train_y [p, k] with -1 where a person has no further record, and persons [p].
    """

    train_x: Features
    train_y: Labels
    test_x: Features
    test_y: Labels
    persons: Integers | None = None
    test_persons: Integers | None = None
    usable: NDArray[np.bool_] | None = None
    test_usable: NDArray[np.bool_] | None = None
    cut: Cut | None = None

    @property
    def usable_train_x(self) -> Features:
        """Features of the training records that can be used."""
        return self.train_x if self.usable is None else self.train_x[self.usable]

    @property
    def usable_test(self) -> tuple[Features, Labels]:
        """(features, labels) of the test records that can be used."""
        rows = slice(None) if self.test_usable is None else self.test_usable
        return self.test_x[rows], self.test_y[rows]


@dataclass(slots=True)
class Federation:
    """The silos of an experiment; silo i is ``silos[i]``, unless ``ids`` says which of ``total`` silos these are.

    columns, notes: as those of `Dataset`; notes are for who holds the records, not to be published. names: of silos, by
    id, where the data have any (`dpfl_plugin.data.names`); nor are they. inputs: records before preprocessing.
    class_names: of the labels as they are now, where they have any.
    """

    silos: list[Silo]
    num_classes: int
    feature_shape: tuple[int, ...]
    caveats: list[str] = field(default_factory=list)
    name: str = ""
    ids: tuple[int, ...] | None = None
    total: int | None = None
    columns: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    names: Mapping[int, str] = field(default_factory=dict)
    inputs: Inputs | None = None
    class_names: tuple[str, ...] = ()
    outcome: Outcome = CLASSES

    @property
    def num_silos(self) -> int:
        return len(self.silos) if self.total is None else self.total

    def by_id(self) -> dict[int, Silo]:
        return dict(zip(range(len(self.silos)) if self.ids is None else self.ids, self.silos, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What is known of a federation without holding any of its records.

    Attributes:
        num_records, num_test_records: of each silo, in the order of their ids. Where persons are protected,
            num_records is of persons: how many records one has is private.
        digests: by what each silo's records are known again: sha256 of them where the records are, and what tells
            nothing of them where they are not (`dpfl_plugin.runs.record_marks`).
        inputs: records before preprocessing, where that is known; without names of classes where these were read from
            records that are elsewhere.
        cuts: of the silos, with marks that tell nothing where `digests` do not; empty where nothing was cut. key: the
            id of the key that made those marks: marks of different keys cannot be compared.
    """

    num_classes: int
    feature_shape: tuple[int, ...]
    caveats: tuple[str, ...]
    num_records: tuple[int, ...]
    num_test_records: tuple[int, ...]
    digests: tuple[str, ...]
    inputs: Inputs | None = None
    outcome: Outcome = CLASSES
    cuts: tuple[Cut, ...] = ()
    key: str = ""

    @property
    def cut_facts(self) -> dict[str, Any]:
        """What a ledger says of the cuts: two runs with equal marks have the same records at the same ranks."""
        return {"cuts": {"key": self.key, "silos": [list(cut) for cut in self.cuts]}} if self.cuts else {}

    @property
    def data_sha256(self) -> str:
        """By what all records are known again, from those of the silos, so that nobody has to hold them all."""
        return hashlib.sha256("".join(self.digests).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Holding:
    """A federation as one process sees it.

    Attributes:
        silos: by id, those whose records are here. digests: of them, see `digest`; what others get are marks.
        hosts: of the ranks that hold silos elsewhere.
        device: of this process, where it is not the configuration's. shared_gpus: which ranks share one, in words.
        notes: for who holds the records, see `Dataset`. names: of silos, by id; of all of them in one process, and none
            where a server holds no records: who holds them may not want to be named to it.
    """

    survey: Survey
    silos: Mapping[int, Silo]
    hosts: tuple[str, ...] = ()
    device: str | None = None
    shared_gpus: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    digests: Mapping[int, str] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)


def hold(federation: Federation) -> Holding:
    """All of a federation whose records are all here."""
    facts, silos = survey(federation), dict(enumerate(federation.silos))
    digests = dict(enumerate(facts.digests))
    return Holding(facts, silos, notes=tuple(federation.notes), digests=digests, names=federation.names)


def survey(federation: Federation) -> Survey:
    """What is public of a federation whose records are all here."""
    silos = federation.silos
    return Survey(
        num_classes=federation.num_classes,
        feature_shape=federation.feature_shape,
        caveats=tuple(federation.caveats),
        num_records=tuple(len(silo.train_y) for silo in silos),
        num_test_records=tuple(len(silo.test_y) for silo in silos),
        digests=tuple(digest(silo) for silo in silos),
        inputs=federation.inputs,
        outcome=federation.outcome,
        cuts=tuple(silo.cut for silo in silos if silo.cut is not None),
    )


def digest(silo: Silo) -> str:
    """sha256 over a silo's records, in order; whoever guesses them can confirm the guess."""
    both, unknown = (silo.persons, silo.test_persons), np.zeros(0, np.int64)
    of_persons = [] if all(part is None for part in both) else [unknown if part is None else part for part in both]
    usable = [part for part in (silo.usable, silo.test_usable) if part is not None]
    return _sha256(silo.train_x, silo.train_y, silo.test_x, silo.test_y, *of_persons, *usable)


def _sha256(*arrays: NDArray[Any]) -> str:
    hasher = hashlib.sha256()
    for array in arrays:
        hasher.update(repr((array.shape, str(array.dtype))).encode())
        hasher.update(np.ascontiguousarray(array).data)
    return hasher.hexdigest()


def validate(dataset: Dataset, source: str) -> None:
    """Check a data set that was loaded from ``source``, its test part included.

    Raises:
        DataError: it is empty, the lengths or types disagree, a feature is not finite or a label is out of range;
            the message names the source, the row (counted from 0) and the value.
    """
    x, y, groups, persons = dataset.features, dataset.labels, dataset.groups, dataset.persons
    right = np.int64 if dataset.outcome.has_classes else np.float32
    if x.dtype != np.float32 or y.dtype != right or (groups is not None and groups.dtype != np.int64):
        raise DataError(
            f"{source}: features must be float32, labels {np.dtype(right)} and groups int64; got {x.dtype} and "
            f"{y.dtype}."
        )
    if x.ndim < 2 or x.shape[0] == 0 or 0 in x.shape:
        raise DataError(f"{source} holds no records: the features have shape {x.shape}, not [records, features].")
    if y.shape[:1] != (len(x),) or (groups is not None and groups.shape != (len(x),)):
        raise DataError(f"{source}: {len(x)} rows of features, but labels or groups of another length.")
    if persons is not None and (persons.dtype != np.int64 or persons.shape != (len(x),)):
        raise DataError(
            f"{source}: persons must be int64, one for each of {len(x)} records; got {persons.dtype} {persons.shape}."
        )
    if dataset.usable is not None and (dataset.usable.dtype != np.bool_ or dataset.usable.shape != (len(x),)):
        raise DataError(f"{source}: usable must be bool, one for each of {len(x)} records.")
    if dataset.outcome.has_classes and dataset.num_classes < 2:
        raise DataError(f"{source} has {dataset.num_classes} class; a classifier needs at least 2.")
    _check_finite(x, source)
    check_labels(y, dataset.outcome, dataset.num_classes, source)
    if dataset.test is not None:
        if dataset.test.features.shape[1:] != x.shape[1:] or dataset.test.num_classes != dataset.num_classes:
            raise DataError(f"{source}: the test part has other features or classes than the training part.")
        if dataset.test.outcome != dataset.outcome:
            raise DataError(f"{source}: the test part has another outcome than the training part.")
        validate(dataset.test, f"{source} (test part)")


def _check_finite(x: Features, source: str) -> None:
    step = max(1, 2**22 // x[0].size)  # in pieces: a mask of the whole would be a quarter of the data again
    for start in range(0, len(x), step):
        finite = np.isfinite(x[start : start + step])
        if not finite.all():
            row, *column = (int(index) for index in np.argwhere(~finite)[0])
            value = x[(start + row, *column)]
            raise DataError(
                f"{source}: feature {tuple(column)} of row {start + row} is {value}. "
                "Remove the record or fill the value in."
            )
