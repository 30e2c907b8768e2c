"""What conforms on the CPU conforms on a GPU, silo by silo and in lockstep, with noise from either place.

In lockstep, with device noise and with sums that are replayed on the CPU, too, so that all of it is known to conform
before there is a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.conformance import test_batches, test_noise, test_sensitivity
from tests.conformance.cases import ENGINES, SAMPLERS, Case

CUDA = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"))
TOGETHER = ("closed_form", "dense")
Check = Callable[[Case], None]


def _checks(case: Case) -> list[Check]:
    found: list[Check] = [
        test_noise.test_noise_is_what_the_ledger_claims_and_normal,
        test_noise.test_noise_does_not_depend_on_the_records,
        test_noise.test_no_two_releases_share_noise,
        test_noise.test_a_canary_is_no_longer_than_its_bound,
        test_noise.test_a_charge_for_each_release,
    ]
    if case.unit == "silo":
        return [
            *found,
            test_sensitivity.test_a_silos_data_set_changes_its_release_by_at_most_delta_and_the_worst_by_delta,
        ]
    found.append(test_sensitivity.test_one_record_changes_a_release_by_at_most_delta_and_the_worst_by_delta)
    if case.sampler == "full":
        return found
    return [
        *found,
        test_batches.test_batches_have_the_size_that_is_accounted_for,
        test_batches.test_every_record_and_every_pair_is_drawn_as_often,
        test_batches.test_every_release_has_a_batch_of_its_own,
    ]


def _case(engine: str, sampler: str, **more: Any) -> Case:
    unit = more.pop("unit", "record")
    neighbouring = SAMPLERS[sampler].neighbouring
    return Case(
        mechanism="gaussian",
        engine=engine,
        runtime="in_process, stack 3",
        sampler=sampler,
        unit=unit,
        neighbouring=neighbouring,
        **more,
    )


def _cases() -> list[Any]:
    on_cpu = [
        _case(engine, sampler, lockstep=True, noise=noise)
        for engine in TOGETHER
        for sampler in ("fixed", "poisson", "full")
        for noise in ("host", "device")
    ]
    on_cpu += [
        _case(engine, sampler, lockstep=True, graphs=True, noise=noise)
        for engine in TOGETHER
        for sampler, noise in (("fixed", "device"), ("poisson", "host"))
    ]
    on_cpu += [_case("bookkeeping", "fixed", graphs=True), _case("vmap", "poisson", graphs=True)]
    on_cpu += [_case("vmap", "fixed", noise="device"), _case("vmap", "fixed", noise="device", unit="silo")]
    on_gpu = [
        _case(engine, sampler, device="cuda", lockstep=engine in TOGETHER, noise=noise)
        for engine in ENGINES
        for sampler in ("fixed", "poisson", "full")
        for noise in ("host", "device")
    ]
    on_gpu += [
        _case(engine, sampler, device="cuda", lockstep=engine in TOGETHER, graphs=True, noise=noise)
        for engine in (*TOGETHER, "bookkeeping", "vmap")
        for sampler in ("fixed", "poisson", "full")
        for noise in ("host", "device")
    ]
    on_gpu += [_case("vmap", "fixed", device="cuda", noise=noise, unit="silo") for noise in ("host", "device")]
    return [*on_cpu, *(pytest.param(case, marks=CUDA) for case in on_gpu)]


@pytest.mark.statistical
@pytest.mark.parametrize("case", _cases(), ids=str)
def test_conforms(case: Case) -> None:
    for check in _checks(case):
        check(case)
