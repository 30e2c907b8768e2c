"""A short soak; the long one is `python -m benchmarks.soak`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.soak import soak
from tests.slurm.conftest import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_a_sweep_of_which_something_is_killed_every_few_seconds(cluster: Cluster, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    tally = soak(tmp_path, 3, 4.0, random.Random(seed), cluster.environment)
    assert (tally.lost, tally.different, tally.charges_missing) == (0, 0, 0), (seed, tally)
    assert tally.kills.total() >= 1, seed
