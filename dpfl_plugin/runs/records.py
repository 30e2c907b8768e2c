"""The records of a run's silos, by its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.data import base as base_data
from dpfl_plugin.data.base import Federation, Holding, Ownership
from dpfl_plugin.data.federation import FederationSpec, build_federation
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.names import called
from dpfl_plugin.data.record_order import OrderKeys
from dpfl_plugin.data.tables import NAME as TABLE
from dpfl_plugin.data.tables import compared
from dpfl_plugin.models.build import build_model
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.runs.backbone import MORE_STEPS
from dpfl_plugin.runs.extra_plan import check_extra_releases, training_records
from dpfl_plugin.runs.models import check_begins
from dpfl_plugin.runs.plugins import model_block, plugin_of
from dpfl_plugin.runs.privacy_rules import check_batch


def hold_all(config: Config, base: Path, keys: OrderKeys | None = None) -> Holding:
    """The whole federation in this process; ``keys``: see `keys_of`."""
    return base_data.hold(federate(config, base, keys=keys))


def keys_of(config: Config, secret: bytes, own: bytes | None = None) -> OrderKeys | None:
    """The keys of silos' orders: secret where noise is fresh, else those of the seed (None)."""
    return OrderKeys(config.public_seed, secret, own) if config.fresh else None


def steps_of(config: Config) -> list[dict[str, Any]]:
    """The steps of preprocessing, as `data.preprocess` takes them."""
    return [{"name": step.name, **step.options} for step in config.data.preprocess]


def dimension(config: Config, federation: Federation) -> int:
    """d, the number of the model's parameters. Raises as `build_model` and `check_begins`."""
    shape, num_classes, outcome = federation.feature_shape, federation.num_classes, federation.outcome
    module = build_model(model_block(config.model), shape, num_classes, config.public_seed, outcome)
    check_begins(config, module, outcome, num_classes)
    return Layout.of(module).dimension


def federate(
    config: Config, base: Path, ownership: Ownership | None = None, keys: OrderKeys | None = None
) -> Federation:
    """The silos' records; with ``ownership`` those of this process.

    Without ``keys`` (`keys_of`) a fresh run's records are cut otherwise than in the run, into as many.
    """
    return build_federation(replace(spec_of(config, base, ownership), keys=keys))


def spec_of(config: Config, base: Path, ownership: Ownership | None = None) -> FederationSpec:
    """What the silos' records are made of."""
    data = config.data
    dataset, partition = plugin_of("datasets", data.dataset, "data.dataset"), data.partition
    return FederationSpec(
        dataset=dataset,
        dataset_options=data.dataset.options,
        partitioner=plugin_of("partitioners", partition, "data.partition"),
        partition_options=partition.options,
        num_silos=data.num_silos,
        seed=config.public_seed,
        test=data.test,
        test_fraction=data.test_fraction,
        preprocess=steps_of(config),
        more_steps=MORE_STEPS,
        max_records_per_silo=data.max_records_per_silo,
        folder=Path(data.folder) if data.folder else None,
        base=base,
        name=data.dataset.name or str(data.dataset.module),
        ownership=ownership,
        memory_map=base / Path(data.memory_map).expanduser() if data.memory_map else None,
        max_records_per_person=config.privacy.max_records_per_person,
        shared_persons=config.privacy.shared_persons,
    )


def compared_sites(config: Config, base: Path) -> tuple[str, ...]:
    """How the sites' tables differ, of tables with a schema; for the eyes of who holds them all, and not to be kept."""
    options = config.data.dataset.options
    if config.data.dataset.name != TABLE:
        return ()
    source = DataSource(Path(config.data.folder) if config.data.folder else None, base=base)
    return compared(source.paths(options["files"], "files"), options)


def check_records(config: Config, rules: PrivacyRules, num_records: Sequence[int], names: Mapping[int, str]) -> None:
    """Raise unless every silo has what a batch needs, and what is set apart."""
    check_extra_releases(config, num_records, names)
    for silo, count in enumerate(num_records):
        check_batch(rules.of(silo), called(silo, names), training_records(config, count))
