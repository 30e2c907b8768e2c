"""The grid of a release: steps and sensitivities."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpfl_plugin.core.grid import SUM_SLACK, Grid, has_room
from dpfl_plugin.core.rounded_normals import LARGEST

SENSITIVITIES = st.floats(1e-30, 1e30)
DIMENSIONS = st.integers(1, 10**10)


@given(sensitivity=SENSITIVITIES, dimension=DIMENSIONS)
def test_steps_are_powers_of_two_that_cost_little(sensitivity, dimension):
    grid = Grid.of(sensitivity, dimension)
    assert math.frexp(grid.step)[0] == 0.5
    share = math.sqrt(dimension) * grid.step / sensitivity
    assert share * (1 + 1e-15) >= 2**-11 and share <= 2**-10 * (1 + 1e-15)
    assert 1 + SUM_SLACK + share <= grid.sensitivity / sensitivity < 1 + 2**-9 + 1e-11


@given(sensitivity=st.floats(0.01, 100), dimension=st.integers(1, 300), seed=st.integers(0, 2**30))
def test_two_sums_that_differ_by_the_sensitivity_stay_within_it_on_the_grid(sensitivity, dimension, seed):
    """The worst that rounding can do is a step in every coordinate: it is tried, at the middles between steps."""
    grid, generator = Grid.of(sensitivity, dimension), torch.Generator().manual_seed(seed)
    one = (torch.randint(-999, 999, (dimension,), generator=generator) + 0.4999) * grid.step
    apart = torch.randn(dimension, dtype=torch.float64, generator=generator).abs()
    other = one + apart * (sensitivity * (1 + SUM_SLACK) / apart.norm())
    moved = ((other / grid.step).round() - (one / grid.step).round()).norm() * grid.step
    assert float(moved) <= grid.sensitivity


@pytest.mark.parametrize("sensitivity", [0.0, -1.0, math.nan, math.inf, 1e-300])
def test_sensitivities_that_are_refused(sensitivity):
    with pytest.raises(ValueError, match="sensitivity="):
        Grid.of(sensitivity, 10)


@given(st.floats(2.0**-40, 2.0**40), st.integers(1, 2**60), st.integers(1, 2**50))
def test_a_sum_that_has_room_is_within_the_integers_of_the_noise(sensitivity, records, dimension):
    """Each coordinate of it, were it as long as the whole sum and each record as long as the sensitivity."""
    if has_room(records, dimension):
        assert records * (1 + SUM_SLACK) * sensitivity / Grid.of(sensitivity, dimension).step <= LARGEST
    assert has_room(10**8, 10**6) and not has_room(2**40, 1) and not has_room(2**20, 2**40)
