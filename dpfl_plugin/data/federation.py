"""From a data set's name to silos in memory: load, partition, split, preprocess."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from dpfl_plugin import registry
from dpfl_plugin.core.exact import floor_share
from dpfl_plugin.core.streams import stream
from dpfl_plugin.data import persons as whose
from dpfl_plugin.data.base import (
    Cut,
    Dataset,
    Features,
    Federation,
    Inputs,
    Integers,
    Labels,
    Ownership,
    Silo,
    validate,
)
from dpfl_plugin.data.error_collector import SHOWN
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.memmap_store import Scratch
from dpfl_plugin.data.names import called, tidy, told_apart
from dpfl_plugin.data.partition import iid, natural, quantity_skew
from dpfl_plugin.data.preprocess import Step, pooled
from dpfl_plugin.data.preprocess import preprocess as apply_steps
from dpfl_plugin.data.record_order import ALL_SILOS, Order, OrderKeys
from dpfl_plugin.errors import ConfigError, DataError, PluginError, UnsupportedError, require

FEWER = "Use fewer silos, a larger alpha, or a larger min_records."
ALONE = "Give it more records, or leave it out, as data.partition: {name: natural, min_records: 10} does."
MOST_NAMED = 20
KEPT_TOGETHER = (
    "the data say whose record each is, and a person's records are all to train on, or all to test on. What is hidden "
    "of a single record is what it says, not whose it is: privacy.unit: person hides all that a person contributes"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationSpec:
    """What an experiment's silos are made of; the same values give the same silos.

    test: "split" makes the first ceil(test_fraction * n) of a silo's n records, in their order
    (`dpfl_plugin.data.record_order`), test records, and leaves the data set's own test part unused; "own" takes that
    part, by natural silo where silos are natural ones, else dealt out at random in equal shares. max_records_per_silo:
    keep the first so many of a silo's records, before the split.
    folder: of data files; base: the configuration file's folder, where relative paths start. preprocess: see
    `dpfl_plugin.data.preprocess`; more_steps: of other rooms. ownership: keep only the silos of this process; where
    every silo has a file of its own and no step is fitted on all silos together, the others' files are not even opened.
    memory_map: a folder, in whose files records lie instead of in memory.

    Where the data say whose records they are, partitions deal out persons with all that they have, by the label of
    their first record, and a share of the persons is held out. max_records_per_person: make each person one row, see
    `dpfl_plugin.data.persons.grouped`; shared_persons: whether one may be at several silos. keys: of the silos' orders;
    None for those of the seed.

    Raises:
        ConfigError: a number is out of its range.
    """

    dataset: Callable[..., Any]
    dataset_options: Mapping[str, Any]
    partitioner: Callable[..., Any]
    partition_options: Mapping[str, Any]
    num_silos: int | None
    seed: int
    test: Literal["split", "own"] = "split"
    test_fraction: float = 0.2
    preprocess: Sequence[str | Mapping[str, Any]] = ()
    more_steps: Mapping[str, Step] | None = None
    max_records_per_silo: int | None = None
    folder: Path | None = None
    base: Path = Path()
    name: str = ""
    ownership: Ownership | None = None
    memory_map: Path | None = None
    max_records_per_person: int | None = None
    shared_persons: Literal["refuse", "per_silo"] = "refuse"
    keys: OrderKeys | None = None

    def __post_init__(self) -> None:
        require(self.test in ("split", "own"), "data.test", self.test, "be 'split' or 'own'")
        between = "be between 0 and 1, both excluded"
        require(0 < self.test_fraction < 1, "data.test_fraction", self.test_fraction, between)
        limit = self.max_records_per_silo
        require(limit is None or limit >= 2, "data.max_records_per_silo", limit, "be 2 or more")

    @property
    def called(self) -> str:
        return self.name or getattr(self.dataset, "__name__", "data set")

    def order(self, silo: int, data: Dataset, rows: Integers) -> Order:
        """The order of these rows of a data set, as the records of a silo."""
        keys, schema = self.keys or OrderKeys(self.seed), self.dataset_options.get("schema")
        return keys.order(silo, data, rows, json.dumps(schema, sort_keys=True, default=str))

    @property
    def reads_own_files(self) -> bool:
        """Whether a process needs no more than the files of its own silos."""
        as_they_are = self.partitioner is natural and not self.partition_options and self.num_silos is None
        return as_they_are and not pooled(self.preprocess)


def build_federation(spec: FederationSpec) -> Federation:
    """The silos of an experiment, or of this process.

    Raises:
        ConfigError: an option is unknown, wrong, or impossible with this data set.
        DataError: a file is missing or damaged, or a silo has too few records.
    """
    scratch = Scratch(spec.memory_map)
    data = _loaded(spec, scratch)
    rows, names = _dealt(spec, data)
    shape, total = data.features.shape[1:], data.part_of or len(rows)
    if not rows:  # there are more processes than silos
        return Federation([], data.num_classes, shape, [], spec.called, (), total, outcome=data.outcome)
    _check_persons(spec, data)
    silos = (_own_test if spec.test == "own" else _split)(spec, data, rows, names, scratch)
    caveat, note = _chosen(data, names)
    kept_together = [KEPT_TOGETHER] if data.persons is not None and spec.max_records_per_person is None else []
    federation = Federation(
        silos,
        data.num_classes,
        shape,
        [*data.caveats, *caveat, *kept_together],
        spec.called,
        tuple(rows),
        total,
        data.columns,
        [*data.notes, *note],
        names,
        Inputs(shape, data.num_classes, data.columns, data.class_names, (), data.measured, data.label_type),
        data.class_names,
        data.outcome,
    )
    apply_steps(federation, spec.preprocess, spec.base, spec.more_steps)
    if spec.max_records_per_person is not None:
        _protect_persons(federation, spec.max_records_per_person, spec.shared_persons, scratch)
    return federation if spec.ownership is None else _only(federation, spec.ownership)


def _loaded(spec: FederationSpec, scratch: Scratch) -> Dataset:
    """The records of all silos; of this process's, where it can do without the others."""
    ownership = spec.ownership if spec.reads_own_files else None
    source = DataSource(spec.folder, spec.seed, spec.num_silos, spec.base, ownership, scratch)
    data = _call(spec.dataset, spec.dataset_options, source, where="data.dataset")
    if not isinstance(data, Dataset):
        raise PluginError(
            f"data set {spec.called!r}: the plugin returned a {type(data).__name__}, not a "
            "dpfl_plugin.data.base.Dataset."
        )
    return data


def _dealt(spec: FederationSpec, data: Dataset) -> tuple[dict[int, Integers], dict[int, str]]:
    """The rows of each silo, and what silos are called; both empty in a process that holds none."""
    if data.part_of is None:
        validate(data, spec.called)
        parts = _parts(spec, data)
        rows = dict(enumerate(parts))
        names = _names(data, rows) if spec.partitioner is natural else {}
        _check_partition(parts, names, len(data.labels), spec.num_silos)
        return rows, names
    # The silos of this process, whose files alone were read: each as it is in the whole federation.
    assert data.groups is not None
    rows = {int(silo): np.flatnonzero(data.groups == silo) for silo in np.unique(data.groups)}
    if not rows:
        return {}, {}
    validate(data, spec.called)
    names = _names(data, rows)
    _check_sizes(rows, names)
    return rows, names


def _parts(spec: FederationSpec, data: Dataset) -> list[Integers]:
    """The rows of each silo; persons, where they are known, are dealt out with all that they have.

    Records are dealt out by their places in their order, not in the file.
    """
    _check_partitioner(spec, data)
    rng, rows = stream(spec.seed, "partition"), np.arange(len(data.labels))
    if spec.partitioner is not natural:  # which goes by what a record says of itself
        rows = spec.order(ALL_SILOS, data, rows).rows
    if data.persons is None:
        groups = None if data.groups is None else data.groups[rows]
        return [rows[part] for part in _partitioned(spec, data, data.labels[rows], rng, groups)]
    units = whose.units(data, rows, by_silo=spec.partitioner is natural)
    first = np.array([rows[0] for rows in units])
    groups = None if data.groups is None else data.groups[first]
    dealt = _partitioned(spec, data, data.labels[first], rng, groups)
    if len(dealt) and sum(map(len, dealt)):
        _check_used(dealt, len(units))
    return [np.concatenate([np.zeros(0, np.int64), *(units[unit] for unit in part)]) for part in dealt]


def _partitioned(
    spec: FederationSpec, data: Dataset, labels: Labels, rng: np.random.Generator, groups: Integers | None
) -> list[Integers]:
    try:
        return cast(
            list[Integers],
            _call(
                spec.partitioner, spec.partition_options, labels, spec.num_silos, rng, groups, where="data.partition"
            ),
        )
    except ConfigError as error:
        if str(error).startswith("data.num_silos is missing"):
            raise ConfigError(f"{error} {_say_silos(spec, data)}") from error
        raise


def _say_silos(spec: FederationSpec, data: Dataset) -> str:
    """How to say how many silos there are, or which."""
    if data.groups is not None:
        return "Set it, or use partition: natural, which takes the silos of the data."
    by_schema = "schema" in spec.dataset_options
    if not by_schema and "silo_column" not in registry.options(spec.dataset):
        return "Set it."
    column, door = ("silo in the schema", "table") if by_schema else ("silo_column (from_frame: silo)", "frame")
    return (
        f"Set it, or name the column of silos as {column}, or give each silo a file{' or data frame' * by_schema} of "
        f"its own, with partition: natural, which from_{door} then chooses by itself."
    )


def _check_partitioner(spec: FederationSpec, data: Dataset) -> None:
    """Raise UnsupportedError where records would be dealt out by classes that there are not."""
    if data.outcome.has_classes or spec.partitioner in (natural, iid, quantity_skew):
        return
    raise UnsupportedError(
        f"data.partition: records are dealt out by their classes, and an outcome of {data.outcome.kind} has none. Use "
        "natural, iid or quantity_skew."
    )


def _check_persons(spec: FederationSpec, data: Dataset) -> None:
    limit = spec.max_records_per_silo
    if data.persons is None:
        if spec.max_records_per_person is not None:
            by_schema = "schema" in spec.dataset_options
            where = "as person in the schema" if by_schema else "in data.dataset (person_column; from_frame: person)"
            raise ConfigError(
                f"privacy.unit='person': the data do not say whose records they are. Name the column {where}, or use "
                "unit: record."
            )
        return
    if limit is not None:
        raise UnsupportedError(
            f"data.max_records_per_silo={limit}: these data say whose records they are, and a limit would take some of "
            "a person's and depend on how many others have. Use max_records_per_person with privacy.unit: person, or "
            "leave the persons out."
        )
    if spec.test == "own":
        whose.check_own_test(data)


def _protect_persons(federation: Federation, most: int, shared: str, scratch: Scratch) -> None:
    """Make each person one row of its silo's training records, and say what is protected of one at several silos."""
    if shared == "refuse":
        if len(federation.silos) < federation.num_silos:
            raise UnsupportedError(
                "privacy.unit='person': each process reads its own silos only, and nobody can see whether a person is "
                "at several of them. Set privacy.shared_persons: per_silo, which protects a person's records at each "
                "silo by itself and says so, or run in one process."
            )
        whose.check_apart(federation)
    whose.grouped(federation, most, scratch)


def _only(federation: Federation, ownership: Ownership) -> Federation:
    """The silos of one process."""
    kept = {silo: records for silo, records in federation.by_id().items() if ownership.holds(silo)}
    federation.ids, federation.silos = tuple(kept), list(kept.values())
    return federation


def _call(plugin: Callable[..., Any], given: Mapping[str, Any], *context: Any, where: str) -> Any:
    """As `registry.build`, but num_silos is the federation's option, not the plugin's."""
    options = registry.check_options(plugin, given, where=where)
    try:
        return registry.call(plugin, *context, where=where, **options)
    except ConfigError as error:
        if str(error).startswith("data."):
            raise
        key = "data" if str(error).startswith("num_silos") else where
        raise type(error)(f"{key}.{error}") from error


def _check_partition(rows: Sequence[Integers], names: Mapping[int, str], n: int, num_silos: int | None) -> None:
    if not len(rows) or (num_silos is not None and len(rows) != num_silos):
        raise PluginError(f"data.partition: the partitioner made {len(rows)} silos where {num_silos} were asked for.")
    _check_sizes(dict(enumerate(rows)), names)
    _check_used(rows, n)


def _check_used(rows: Sequence[Integers], n: int) -> None:
    used = np.concatenate(list(rows))
    if used.min() < 0 or used.max() >= n or np.bincount(used, minlength=n).max() > 1:
        raise PluginError("data.partition: the partitioner used a record twice, or one that does not exist.")


def _names(data: Dataset, rows: Mapping[int, Integers]) -> dict[int, str]:
    """What natural silos are called by the data, by id."""
    if data.groups is None or not data.silo_names:
        return {}
    return told_apart({i: data.silo_names[int(data.groups[silo[0]])] for i, silo in rows.items()})


def _chosen(data: Dataset, names: Mapping[int, str]) -> tuple[list[str], list[str]]:
    """That there are fewer silos than the data have; and, for who holds the records, which they are."""
    if data.part_of is not None or not 0 < len(names) < len(data.silo_names):
        return [], []
    what = f"{len(names)} of the {len(data.silo_names)} silos of the data are used"
    listed = ", ".join(list(names.values())[:MOST_NAMED]) + ", ..." * (len(names) > MOST_NAMED)
    return [what], [f"{what}: {listed}"]


def _check_sizes(rows: Mapping[int, Integers], names: Mapping[int, str]) -> None:
    for i, silo in rows.items():
        if len(silo) < 2:
            raise DataError(f"{too_few(called(i, names), len(silo))} {_mend(i, names)}")


def too_few(who: str, count: int) -> str:
    """Of a silo, by its name in a sentence."""
    return f"{who} has {count} record{'s' * (count != 1)}; it needs one to train on and one to test at least."


def alone(names: Iterable[str]) -> list[str]:
    """What to say of natural silos, where ``names`` has that of each record, with one record: a run refuses them."""
    few = [tidy(name) for name, count in Counter(names).items() if count == 1]
    messages = [f"{too_few(f'silo {name}', 1)} {ALONE}" for name in few[:SHOWN]]
    left = len(few) - len(messages)
    return [*messages, f"{left} more silo{'s have' if left > 1 else ' has'} 1 record."] if left else messages


def _mend(silo: int, names: Mapping[int, str]) -> str:
    return ALONE if silo in names else FEWER


def _split(
    spec: FederationSpec, data: Dataset, rows: Mapping[int, Integers], names: Mapping[int, str], scratch: Scratch
) -> list[Silo]:
    test_fraction, silos = spec.test_fraction, []
    for i, silo in rows.items():
        order = spec.order(i, data, silo)
        if data.persons is None:
            kept = order.rows[: spec.max_records_per_silo]
            size, units, held_out = len(order.rows), len(kept), _share(test_fraction, len(kept))
            num_test = held_out
        else:  # whose persons are kept together, one after another
            kept, each = order.rows, whose.first_seen(data.persons[order.rows])[1]
            size = units = int(each[-1]) + 1
            held_out = _share(test_fraction, units)
            num_test = int(np.searchsorted(each, held_out))
        if held_out >= units:
            what = f"{units} records" if data.persons is None else "persons"
            raise DataError(
                f"{called(i, names)}: test_fraction={test_fraction} of its {what} leaves none to train on. "
                f"{_mend(i, names)}"
            )
        cut = Cut(order.mark, size, held_out, units)
        silos.append(_silo(data, kept[num_test:], data, kept[:num_test], scratch, cut))
    return silos


def _share(fraction: float, count: int) -> int:
    """How many are held out: the ceiling, so that training gets floor((1 - f) n)."""
    return -floor_share(-fraction, count)


def _silo(data: Dataset, train: Integers, test: Dataset, held_out: Integers, scratch: Scratch, cut: Cut) -> Silo:
    parts = (data, train), (test, held_out)
    of_train, of_test = (None if part.persons is None else part.persons[rows] for part, rows in parts)
    masks = (None if part.usable is None else part.usable[rows] for part, rows in parts)
    usable, test_usable = (None if mask is None or mask.all() else mask for mask in masks)  # on any number of processes
    train_x, train_y = _take(data, train, scratch)
    return Silo(train_x, train_y, *_take(test, held_out, scratch), of_train, of_test, usable, test_usable, cut)


def _take(data: Dataset, rows: Integers, scratch: Scratch) -> tuple[Features, Labels]:
    # In C order whatever the plugin's was: preprocessing works on views of whole records.
    return scratch.rows(data.features, rows), data.labels[rows]


def _own_test(
    spec: FederationSpec, data: Dataset, rows: Mapping[int, Integers], names: Mapping[int, str], scratch: Scratch
) -> list[Silo]:
    if data.test is None:
        raise ConfigError("data.test='own': this data set has no test part of its own. Use test: split.")
    test_rows = _deal_out_test(spec, data, data.test, list(rows.values()))
    silos = []
    for (i, silo), held_out in zip(rows.items(), test_rows, strict=True):
        if not len(held_out):
            raise DataError(
                f"{called(i, names)} has no record in the data set's own test part. Use test: split, or fewer silos."
            )
        order = spec.order(i, data, silo)
        train = order.rows[: spec.max_records_per_silo]
        persons = None if data.persons is None else data.persons[train]
        size, units = (len(order.rows), len(train)) if persons is None else (len(np.unique(persons)),) * 2
        silos.append(_silo(data, train, data.test, held_out, scratch, Cut(order.mark, size, 0, units)))
    return silos


def _deal_out_test(spec: FederationSpec, data: Dataset, test: Dataset, rows: Sequence[Integers]) -> list[Integers]:
    if data.groups is not None and test.groups is not None:
        natural = [np.unique(data.groups[silo]) for silo in rows]
        if all(len(groups) == 1 for groups in natural):
            return [np.flatnonzero(test.groups == groups[0]) for groups in natural]
    return np.array_split(spec.order(ALL_SILOS, test, np.arange(len(test.labels))).rows, len(rows))
