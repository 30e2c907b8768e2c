"""From a data set's name to silos in memory: load, partition, split, preprocess."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dpfl_plugin import registry
from dpfl_plugin.core.exact import floor_share
from dpfl_plugin.core.streams import stream
from dpfl_plugin.data.base import Dataset, Features, Federation, Inputs, Integers, Ownership, Silo, validate
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.names import called, tidy
from dpfl_plugin.data.partition import natural
from dpfl_plugin.data.preprocess import pooled
from dpfl_plugin.data.preprocess import preprocess as apply_steps
from dpfl_plugin.data.scratch import Scratch
from dpfl_plugin.errors import ConfigError, DataError, PluginError, require

FEWER = "Use fewer silos, a larger alpha, or a larger min_records."
ALONE = "Give it more records, or leave it out, as data.partition: {name: natural, min_records: 10} does."
MOST_NAMED = 20
WHOLE_TEST_PART = -1  # the place, beyond all silos, of the stream that deals out a data set's own test part


def build_federation(
    *,
    dataset: Callable[..., Any],
    dataset_options: Mapping[str, Any],
    partitioner: Callable[..., Any],
    partition_options: Mapping[str, Any],
    num_silos: int | None,
    seed: int,
    test: Literal["split", "own"] = "split",
    test_fraction: float = 0.2,
    preprocess: Sequence[str | Mapping[str, Any]] = (),
    max_records_per_silo: int | None = None,
    folder: Path | None = None,
    base: Path | None = None,
    name: str = "",
    ownership: Ownership | None = None,
    memory_map: Path | None = None,
) -> Federation:
    """The silos of an experiment; the same arguments give the same silos.

    test: "split" makes ceil(test_fraction * n) of a silo's n records test records, at random, and leaves the data
    set's own test part unused; "own" takes that part, by natural silo where silos are natural ones, else dealt out
    at random in equal shares. max_records_per_silo: keep that many of a silo's records, at random, before the split.
    folder: of data files; base: the configuration file's folder, where relative paths start. preprocess: see
    `dpfl_plugin.data.preprocess`. ownership: keep only the silos of this process; where every silo has a file of its
    own and no step is fitted on all silos together, the others' files are not even opened. memory_map: a folder, in
    whose files records lie instead of in memory.

    Raises:
        ConfigError: an option is unknown, wrong, or impossible with this data set.
        DataError: a file is missing or damaged, or a silo has too few records.
    """
    require(test in ("split", "own"), "data.test", test, "be 'split' or 'own'")
    require(0 < test_fraction < 1, "data.test_fraction", test_fraction, "be between 0 and 1, both excluded")
    limit = max_records_per_silo
    require(limit is None or limit >= 2, "data.max_records_per_silo", limit, "be 2 or more")
    name = name or getattr(dataset, "__name__", "data set")
    base = base or Path()
    alone = partitioner is natural and not partition_options and num_silos is None and not pooled(preprocess)
    scratch = Scratch(memory_map)
    source = DataSource(folder, seed, num_silos, base, ownership if alone else None, scratch)
    data = _call(dataset, dataset_options, source, where="data.dataset")
    if not isinstance(data, Dataset):
        raise PluginError(
            f"data set {name!r}: the plugin returned a {type(data).__name__}, not a dpfl_plugin.data.base.Dataset."
        )
    if data.part_of is None:
        validate(data, name)
        rng, where = stream(seed, "partition"), "data.partition"
        parts = _call(partitioner, partition_options, data.labels, num_silos, rng, data.groups, where=where)
        rows = dict(enumerate(parts))
        names = _names(data, rows) if partitioner is natural else {}
        _check_partition(parts, names, len(data.labels), num_silos)
    else:  # the silos of this process, whose files alone were read: each as it is in the whole federation
        assert data.groups is not None
        rows = {int(silo): np.flatnonzero(data.groups == silo) for silo in np.unique(data.groups)}
        if not rows:  # there are more processes than silos
            return Federation([], data.num_classes, data.features.shape[1:], [], name, (), data.part_of)
        validate(data, name)
        names = _names(data, rows)
        _check_sizes(rows, names)
    own = test == "own"
    silos = (
        _own_test(data, rows, names, seed, limit, scratch)
        if own
        else _split(data, rows, names, seed, test_fraction, limit, scratch)
    )
    shape, total = data.features.shape[1:], data.part_of or len(silos)
    caveat, note = _chosen(data, names)
    federation = Federation(
        silos,
        data.num_classes,
        shape,
        [*data.caveats, *caveat],
        name,
        tuple(rows),
        total,
        data.columns,
        [*data.notes, *note],
        names,
        Inputs(shape, data.num_classes, data.columns, data.class_names),
        data.class_names,
    )
    apply_steps(federation, preprocess, base)
    return federation if ownership is None else _only(federation, ownership)


def _only(federation: Federation, ownership: Ownership) -> Federation:
    """The silos of one process."""
    kept = {silo: records for silo, records in federation.by_id().items() if ownership.mine(silo)}
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
    used = np.concatenate(list(rows))
    if used.min() < 0 or used.max() >= n or np.bincount(used, minlength=n).max() > 1:
        raise PluginError("data.partition: the partitioner used a record twice, or one that does not exist.")


def _names(data: Dataset, rows: Mapping[int, Integers]) -> dict[int, str]:
    """What natural silos are called by the data, by id."""
    if data.groups is None or not data.silo_names:
        return {}
    return {i: tidy(data.silo_names[int(data.groups[silo[0]])]) for i, silo in rows.items()}


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
            raise DataError(
                f"{called(i, names)} has {len(silo)} record{'s' * (len(silo) != 1)}; it needs one to train on and one "
                f"to test at least. {_mend(i, names)}"
            )


def _mend(silo: int, names: Mapping[int, str]) -> str:
    return ALONE if silo in names else FEWER


def _split(
    data: Dataset,
    rows: Mapping[int, Integers],
    names: Mapping[int, str],
    seed: int,
    test_fraction: float,
    limit: int | None,
    scratch: Scratch,
) -> list[Silo]:
    silos = []
    for i, silo in rows.items():
        kept = silo[stream(seed, "split", silo=i).permutation(len(silo))][:limit]
        num_test = -floor_share(-test_fraction, len(kept))  # the ceiling, so that training gets floor((1 - f) n)
        if num_test >= len(kept):
            raise DataError(
                f"{called(i, names)}: test_fraction={test_fraction} of its {len(kept)} records leaves none to train "
                f"on. {_mend(i, names)}"
            )
        # Sorted: neighbours in memory stay neighbours, and gathering is faster.
        held_out, train = np.sort(kept[:num_test]), np.sort(kept[num_test:])
        silos.append(Silo(*_take(data, train, scratch), *_take(data, held_out, scratch)))
    return silos


def _take(data: Dataset, rows: Integers, scratch: Scratch) -> tuple[Features, Integers]:
    # In C order whatever the plugin's was: preprocessing works on views of whole records.
    return scratch.rows(data.features, rows), data.labels[rows]


def _own_test(
    data: Dataset,
    rows: Mapping[int, Integers],
    names: Mapping[int, str],
    seed: int,
    limit: int | None,
    scratch: Scratch,
) -> list[Silo]:
    if data.test is None:
        raise ConfigError("data.test='own': this data set has no test part of its own. Use test: split.")
    test_rows = _deal_out_test(data, data.test, list(rows.values()), seed)
    silos = []
    for (i, silo), held_out in zip(rows.items(), test_rows, strict=True):
        if not len(held_out):
            raise DataError(
                f"{called(i, names)} has no record in the data set's own test part. Use test: split, or fewer silos."
            )
        train = np.sort(silo[stream(seed, "split", silo=i).permutation(len(silo))][:limit])
        silos.append(Silo(*_take(data, train, scratch), *_take(data.test, held_out, scratch)))
    return silos


def _deal_out_test(data: Dataset, test: Dataset, rows: Sequence[Integers], seed: int) -> list[Integers]:
    if data.groups is not None and test.groups is not None:
        natural = [np.unique(data.groups[silo]) for silo in rows]
        if all(len(groups) == 1 for groups in natural):
            return [np.flatnonzero(test.groups == groups[0]) for groups in natural]
    order = stream(seed, "split", silo=WHOLE_TEST_PART).permutation(len(test.labels))
    return [np.sort(part) for part in np.array_split(order, len(rows))]
