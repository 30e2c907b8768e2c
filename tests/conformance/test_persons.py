"""Neighbours that differ in all records of one person: releases differ by at most Delta, and by all of it at worst.

From the data set on: dealt out, split, cut to k records of a person, drawn, clipped, charged.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfl_plugin import registry
from dpfl_plugin.data import partition
from dpfl_plugin.data.base import Dataset, Federation, Integers
from dpfl_plugin.data.federation import FederationSpec, build_federation
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.losses import cross_entropy
from dpfl_plugin.gradients.persons import MeanLoss, Persons
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from tests.conformance.cases import (
    RUNTIMES,
    SAMPLERS,
    C,
    Kept,
    Probe,
    Transcript,
    claimed_sensitivity,
    model,
)
from tests.data.coupling import coupled

F, K, SILOS, PERSONS, STEPS = 4, 3, 2, 30, 8
HUGE = np.array([3e5, -1e5, 2e5, 7e5], dtype=np.float32)
ENGINES = [name for name in registry.names("engines") if getattr(registry.load("engines", name), "persons", False)]
COUNTS = np.arange(PERSONS) % 5 + 1  # records of each person: some have more than K
CHANGED, SOMEBODY = 17, 1000


def data(records: np.ndarray | None) -> Dataset:
    """With ``records`` (n, F) of label 0 of somebody else in place of one person's; None: with its own."""
    rng, places = np.random.default_rng(0), np.arange(COUNTS.sum())
    whose = np.repeat(np.arange(PERSONS), COUNTS)
    x, y = rng.standard_normal((len(whose), F)).astype(np.float32), whose % 3
    if records is not None:
        first = int(np.argmax(whose == CHANGED))  # where somebody else comes first, too
        before, after = (np.flatnonzero((whose != CHANGED) & side) for side in (places < first, places > first))
        x = np.concatenate([x[before], records.astype(np.float32), x[after]])
        y = np.concatenate([y[before], np.zeros(len(records), np.int64), y[after]])
        whose = np.concatenate([whose[before], np.full(len(records), SOMEBODY), whose[after]])
    return Dataset(x, y, 3, persons=whose)


def federation(given: Dataset) -> Federation:
    def plugin(source: DataSource) -> Dataset:
        return given

    return build_federation(
        FederationSpec(
            dataset=plugin,
            dataset_options={},
            partitioner=partition.iid,
            partition_options={},
            num_silos=SILOS,
            seed=1,
            max_records_per_person=K,
        )
    )


def released(given: Dataset, engine: str, sampler: str, runtime: str) -> tuple[Transcript, list[Integers]]:
    """Two rounds without noise; and whose rows each silo has."""
    net = model(F, dtype=torch.float64)
    fed = federation(given)
    train = {
        i: Records(torch.from_numpy(s.train_x).double(), torch.from_numpy(s.train_y)) for i, s in fed.by_id().items()
    }
    sink, seen, probe = Kept(), [], Probe(STEPS, "person")
    host = SiloGroup(
        model=net,
        loss=cross_entropy,
        algorithm=probe,
        rules=PrivacyRules(
            unit="person",
            neighbouring=SAMPLERS[sampler].neighbouring,
            clip_norm=C,
            mechanism=Gaussian(0.0),
            sampler=SAMPLERS[sampler],
        ),
        engine=registry.load("engines", engine)(Persons(net), MeanLoss(cross_entropy), 2**30),
        train=train,
        test={},
        states={},
    )
    made = RUNTIMES[runtime](host, sink, [lambda round, ids, up: seen.append(up)])
    down = {"model": torch.zeros(3 * F, dtype=torch.float64)}
    plan = replace(probe.round_plan(), participants=(0, 1), weights=(0.5, 0.5), silo_share=1.0)
    for round in range(2):
        made.run_round(down, plan, Draw(seed=0, round=round))
        made.commit()
    values = torch.stack([torch.stack([up[str(step)] for step in range(STEPS)]) for up in seen])
    rows = [silo.persons for silo in fed.silos if silo.persons is not None]
    return Transcript(values.numpy(), tuple(sink.charges)), rows


# The most that there can be: opposite gradients far beyond C, of several records, more than are kept, and of one.
ALIKE = {"one": HUGE[None], "many": np.tile(HUGE, (5, 1))}
OTHERS = {"opposite": -np.tile(HUGE, (2, 1)), "its own": None, "none": np.zeros((4, F), np.float32)}


# Each engine with each sampler; from one to the next the runtime is the next one.
CASES = [
    pytest.param(engine, sampler, [*RUNTIMES][place % len(RUNTIMES)], id=f"{engine}-{sampler}")
    for place, (engine, sampler) in enumerate(itertools.product(ENGINES, ("fixed", "poisson", "full")))
]


@pytest.mark.parametrize(("engine", "sampler", "runtime"), CASES)
def test_all_records_of_a_person_change_a_release_by_at_most_delta(engine: str, sampler: str, runtime: str) -> None:
    records = {
        name: one
        for name, one in {**ALIKE, **OTHERS}.items()
        if sampler != "poisson" or name in (*ALIKE, "none")  # zero gradients are what counting as zero means
    }
    makers = (functools.partial(released, data(one), engine, sampler, runtime) for one in records.values())
    made = dict(zip(records, coupled(*makers), strict=True))
    for first, second in itertools.product(ALIKE, [name for name in OTHERS if name in made]):
        (one, rows), (other, rows_other) = made[first], made[second]
        for here, there in zip(rows, rows_other, strict=True):
            assert np.array_equal(here, np.where(there == CHANGED, SOMEBODY, there))
        mine = next(i for i, persons in enumerate(rows) if SOMEBODY in persons)
        assert np.array_equal(one.values[:, :, 1 - mine], other.values[:, :, 1 - mine])
        (event,) = {charge.release for charge in one.charges if charge.silo == mine}
        assert event.unit == "person" and one.charges == other.charges
        delta = claimed_sensitivity(event, num_records=len(rows[mine]))
        far = np.linalg.norm(one.values[:, :, mine] - other.values[:, :, mine], axis=-1)
        assert (far <= delta * (1 + 1e-9)).all()
        drawn = far > 0
        assert drawn.all() if sampler == "full" else 0 < drawn.mean() < 1
        if second == "opposite" or sampler == "poisson":
            assert np.all(far[drawn] >= delta * (1 - 1e-9)), (first, second)


def test_a_person_is_drawn_with_all_its_records_and_divided_by_persons() -> None:
    """Batches are of persons: of a silo with p of them floor(rate p), and so many a sum is divided by."""
    given = data(None)
    fed = federation(given)
    transcript, rows = released(given, "vmap", "full", "in_process, stack 1")
    for i, silo in fed.by_id().items():
        total = np.zeros((3, F))
        for x, y in zip(silo.train_x.astype(np.float64), silo.train_y, strict=True):
            residuals = 1 / 3 - np.eye(3)[y[y >= 0]]
            mean = np.mean([np.outer(r, one) for r, one in zip(residuals, x[y >= 0], strict=True)], axis=0)
            total += mean / max(1.0, float(np.linalg.norm(mean)) / C)
        np.testing.assert_allclose(transcript.values[0, 0, i], (total / len(rows[i])).ravel(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("sampler", "neighbouring"), [("fixed", "add_or_remove"), ("poisson", "replace_one")])
def test_relations_that_are_not_proven_are_refused(sampler: str, neighbouring: str) -> None:
    with pytest.raises(UnsupportedError, match="at person level"):
        PrivacyRules(
            unit="person",
            neighbouring=neighbouring,  # type: ignore[arg-type]
            clip_norm=C,
            mechanism=Gaussian(1.0),
            sampler=SAMPLERS[sampler],
        )
