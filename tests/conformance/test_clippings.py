"""Every registered clipping: what it has noised, in units of the noise, moves by at most 1 / z of the charge.

However a strategy splits a release (a sum, counts, layers), all of it together is then one Gaussian release of noise
multiplier z; one that cannot promise this has to be charged as no noise at all.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from dpfl_plugin import registry
from dpfl_plugin.core.grid import SUM_SLACK
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.samplers import Sampler
from tests.conformance.cases import C, Case, N, cases, run, zero_records

Z, F, CHANGED = 1.7, 4, 5
CASES = [
    replace(case, clipping=clipping, runtime="in_process, stack 1")
    for case in cases()
    for clipping in registry.names("clippings")
    if not case.fresh
]


@dataclass(frozen=True)
class Recorder:
    """Adds nothing, and keeps what it was given to noise, in units of the noise's standard deviation."""

    noise_multiplier: float = Z
    kept: list[torch.Tensor] = field(default_factory=list)

    event = Gaussian.event

    def __call__(
        self, total: torch.Tensor, sensitivity: float, rng: object, out: torch.Tensor, factor: float = 1.0
    ) -> None:
        self.kept.append(total.clone().flatten() / (sensitivity * factor * self.noise_multiplier))
        out.copy_(total)


@dataclass(frozen=True)
class Without:
    """A sampler that leaves a record out: it counts as zero."""

    record: int
    sampler: Sampler

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)

    def draw(self, num_records: int, rng: np.random.Generator) -> Any:
        index = self.sampler.draw(num_records, rng)
        assert index is not None
        return index[index != self.record]


def noised(case: Case, records: Records, seed: int, without: int | None = None) -> tuple[torch.Tensor, float]:
    """All that the first release of a run noises, as one vector; and the noise multiplier that it is charged with.

    Raises:
        UnsupportedError: the clipping is not for this privacy unit.
    """
    recorder, rules = Recorder(), case.rules(Z)
    sampler: Any = rules.sampler if without is None else Without(without, rules.sampler)
    rules = replace(rules, mechanism=recorder, sampler=sampler)
    made = run(case, [records], sigma=Z, steps=1, seed=seed, rules=rules)
    return torch.cat(recorder.kept), made.event.noise_multiplier


def with_record(record: torch.Tensor) -> Records:
    base = zero_records(F)
    features = torch.randn(N, F, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    features[CHANGED] = record
    return Records(features, base.labels)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_that_is_noised_moves_by_at_most_one_over_z(case: Case) -> None:
    """The worst pair is opposite, one just within C and the other far beyond; at silo level all records change."""
    inside, beyond = torch.zeros(2, F, dtype=torch.float64)
    inside[0], beyond[0] = C * (1 - 1e-9) * math.sqrt(3 / 2), -1e6
    far = []
    for seed in range(60):  # of which some batches hold the record
        if seed > 11 and max(far) > 0:
            break
        try:
            if case.unit == "silo":
                scales = (1e6, -1e6) if case.neighbouring == "replace_one" else (1e6, 0.0)
                base = with_record(inside)
                pair = [noised(case, Records(base.features * scale, base.labels), seed) for scale in scales]
            elif case.neighbouring == "replace_one":
                pair = [noised(case, with_record(record), seed) for record in (inside, beyond)]
            else:
                pair = [noised(case, with_record(beyond), seed, without) for without in (None, CHANGED)]
        except UnsupportedError:
            assert case.unit == "silo" and case.clipping in ("adaptive", "auto_s", "median")
            return
        (one, charged), (other, _) = pair
        if charged == 0:
            assert case.clipping == "median", "charged as no noise at all: nothing is promised"
            return
        assert charged == Z
        far.append(float((one - other).norm()))
    assert max(far) <= 1 / Z * (1 + SUM_SLACK)
    assert max(far) >= 1 / Z * (1 - 1e-3)
