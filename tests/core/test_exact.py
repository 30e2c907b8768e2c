import math
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.core.exact import floor_share


@pytest.mark.parametrize(
    ("rate", "count", "floor"), [(0.29, 100, 29), (0.2, 35, 7), (0.57, 100, 57), (1.0, 3, 3), (0.3, 3, 0)]
)
def test_floor_of_the_decimal_that_was_written(rate, count, floor):
    assert floor_share(rate, count) == floor


def test_binary_floats_would_lose_one():
    assert math.floor(0.29 * 100) == 28


@settings(deadline=None)
@given(st.integers(1, 10**4), st.integers(0, 10**6))
def test_floor_of_any_four_digit_decimal(ten_thousandths, count):
    assert floor_share(ten_thousandths / 10**4, count) == int(Decimal(ten_thousandths) * count / 10**4)
