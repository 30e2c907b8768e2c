"""A configuration, as `dpfl run` takes it, as what a server and its silos need: agreement, model, records.

The configuration is the same at every site; the records are not. A silo reads its own file (``file``), or, where the
configuration describes all silos, as in a simulation, its part of them. The server reads no records where the schema of
a table says what they are.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from dpfl_plugin.adapters.agreement import Agreement, agree
from dpfl_plugin.adapters.folder.keys import Members
from dpfl_plugin.config.load import given_values
from dpfl_plugin.config.schema import SCHEMA_KEY, Config
from dpfl_plugin.core.outcomes import CLASSES
from dpfl_plugin.data import base as data_base
from dpfl_plugin.data.base import Dataset, Federation, Ownership
from dpfl_plugin.data.federation import build_federation
from dpfl_plugin.data.preprocess import fitted_on_records, preprocess
from dpfl_plugin.data.schema import TableSchema
from dpfl_plugin.data.tables import NAME as TABLE
from dpfl_plugin.data.tables import compared
from dpfl_plugin.errors import ConfigError, DataError, UnsupportedError, require, said_of
from dpfl_plugin.models.build import build_model
from dpfl_plugin.runs.backbone import MORE_STEPS
from dpfl_plugin.runs.plugins import model_block
from dpfl_plugin.runs.records import spec_of, steps_of

WITHOUT_EFFECT: Final = ("evaluation", "checkpoint", "trackers")
"""Keys that say something of `dpfl run` alone, and change nothing of what is released."""
USED_HERE: Final = ("data", "model", "out")
COMMON_SEED: Final = 0  # of the initial model and of how records are dealt, where the configuration names none
MADE_UP: Final = 2  # records, by which a server finds what preprocessing makes of one


@dataclass(frozen=True, slots=True)
class Project:
    """What a configuration comes to.

    Attributes:
        model: as it begins. notes: lines for the log.
    """

    config: Config
    agreement: Agreement
    model: nn.Module
    notes: tuple[str, ...] = ()


def for_server(config: Config, base: Path, members: Members) -> Project:
    """What the server needs.

    Raises:
        ConfigError: the configuration is wrong, or has no meaning here; what records are is not known to the server.
    """
    check(config, members)
    config = config.with_public_seed(COMMON_SEED)
    if config.data.dataset.name == TABLE:
        return _project(config, members, _described(config, base))
    try:
        federation = build_federation(spec_of(config, base))
    except DataError as error:
        raise said_of(
            error,
            "the server has to know how many features and classes there are. A table with a schema says so "
            "(data.schema, docs/configuration.md); of any other data set the server reads the files, and: ",
        ) from error
    note = "the server reads the data set, to know what records are: it is public, or this is a simulation"
    return _project(config, members, federation, (note,))


def for_silo(
    config: Config, base: Path, members: Members, silo: int, file: Path | None
) -> tuple[Project, data_base.Silo]:
    """(what a silo needs, its records, of which those to train on are taken).

    Args:
        file: with this silo's records, and no other's; None where the configuration's data are those of all silos.

    Raises:
        ConfigError, DataError: as of a run.
    """
    check(config, members)
    config = config.with_public_seed(COMMON_SEED)
    federation = build_federation(
        spec_of(config, base) if file is None else _own_file(config, base, members, silo, file)
    )
    if file is None:
        require(
            federation.num_silos == len(members.silos),
            "data",
            f"{federation.num_silos} silos",
            f"be those of the {len(members.silos)} members, in their order",
            "Or name this site's own file (--file).",
        )
    mine = federation.by_id()[silo]
    if mine.persons is not None:
        raise UnsupportedError(
            "the data say whose record each is, and of persons with several records no epsilon here says anything. "
            "Where each person has one record leave data.schema.person out (type: identifier); else dpfl run protects "
            "persons."
        )
    dataset = config.data.dataset
    differ = compared([file], dataset.options) if file is not None and dataset.name == TABLE else ()
    notes = tuple(text.removesuffix(".") for text in (*federation.caveats, *federation.notes, *differ))
    return _project(config, members, federation, notes), mine


def check(config: Config, members: Members) -> None:
    """Raise what can be seen in a configuration by whoever has no records.

    Raises:
        UnsupportedError: records would be changed by what is read from all of them, at the silo and without noise.
        ConfigError: the number of silos is not that of the members.
    """
    fitted = fitted_on_records(steps_of(config))
    if fitted or any(step.name == "backbone" for step in config.data.preprocess):
        raise UnsupportedError(
            f"data.preprocess: {', '.join(fitted) or 'backbone'} is fitted to records, or sees all of them at once: no "
            "epsilon covers that, and a statement made here would not say so. Use ranges of a schema, fit: none, or "
            "features that were computed before."
        )
    num_silos = config.data.num_silos
    require(
        num_silos in (None, len(members.silos)),
        "data.num_silos",
        num_silos,
        f"be that of the silos among the members, {len(members.silos)}",
    )


def settings_of(config: Config) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(what `agree` takes of a configuration, lines on what has no effect here)."""
    values = given_values(config)
    none = [key for key in WITHOUT_EFFECT if values.pop(key, None) not in (None, [], {})]
    for key in USED_HERE:
        values.pop(key, None)
    if isinstance(privacy := values.get("privacy"), Mapping) and privacy.get("ledger") is not None:
        values["privacy"] = {key: value for key, value in privacy.items() if key != "ledger"}
        none.append("privacy.ledger")  # each site has its own
    if isinstance(runtime := values.get("runtime"), Mapping):
        values["runtime"] = {key: value for key, value in runtime.items() if key not in ("dtype", "kind")}
    said = (
        f"{', '.join(none)} of the configuration: without effect here, where the server evaluates no records and each "
        "site has a ledger of its own"
    )
    return values, (said,) if none else ()


def _project(config: Config, members: Members, found: Federation, notes: tuple[str, ...] = ()) -> Project:
    if found.outcome != CLASSES:
        raise UnsupportedError(
            f"data.schema.label: an outcome of {found.outcome.kind}: platforms carry classes only. dpfl run has other "
            "outcomes, also on MPI ranks."
        )
    if found.inputs is not None and found.inputs.measured:
        raise UnsupportedError(
            "data.schema: scale: mean or quantiles, and missing: most_frequent need private statistics, which no "
            "platform carries. Use ranges, or dpfl run."
        )
    model = build_model(model_block(config.model), found.feature_shape, found.num_classes, config.public_seed)
    model = model.to(getattr(torch, config.runtime.dtype))
    values, without = settings_of(config)
    if members.num_records is not None:
        values["num_records"] = members.num_records
    agreement = agree(values, num_silos=len(members.silos), model=model, source="configuration")
    if (schema := config.data.dataset.options.get(SCHEMA_KEY)) is not None:
        agreement = replace(agreement, by_schema=TableSchema.parse(schema))
    return Project(config, agreement, model, (*without, *notes))


def _described(config: Config, base: Path) -> Federation:
    """A federation of made-up records, as the schema says that records are."""
    schema = TableSchema.parse(config.data.dataset.options.get("schema"))
    x = np.ones((MADE_UP, len(schema.features)), np.float32)
    y = np.zeros(MADE_UP, np.int64)
    silo, shape, outcome = data_base.Silo(x, y, x, y), x.shape[1:], schema.label.known
    inputs = data_base.Inputs(shape, len(schema.class_names), measured=schema.measured)
    made = Federation([silo], len(schema.class_names), shape, outcome=outcome, inputs=inputs)
    preprocess(made, steps_of(config), base, MORE_STEPS)
    return made


def _own_file(config: Config, base: Path, members: Members, silo: int, file: Path) -> Any:
    """One silo of several, all of whose records are in a file of its own."""
    options = config.data.dataset.options
    if "files" not in options:
        raise ConfigError(
            f"--file: the data set {config.data.dataset.name} reads no files of one site (files:). Leave it out, or "
            "use table, csv or npz."
        )
    if not file.is_file():
        raise DataError(f"{file}: there is no such file of records.")
    spec = spec_of(config, base, Ownership(lambda one: one == silo, lambda value: [value]))
    plugin = spec.dataset
    if not spec.reads_own_files:
        raise ConfigError(
            "--file: a site's own file is one silo as it is: data.partition must be natural, without options, and "
            "data.num_silos left out."
        )

    @functools.wraps(plugin)
    def alone(source: Any, **given: Any) -> Dataset:
        data: Dataset = plugin(replace(source, ownership=None), **given)
        if data.groups is not None and len(np.unique(data.groups)) > 1:
            raise DataError(f"{file}: it holds records of several silos. Give each site a file of its own.")
        return replace(data, groups=np.full(len(data.labels), silo, np.int64), part_of=len(members.silos))

    return replace(spec, dataset=alone, dataset_options={**options, "files": str(file.resolve())})
