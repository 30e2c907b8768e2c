"""What is printed of an upper bound is one."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.core.rounding import digits, places


@settings(deadline=None)
@given(st.floats(0, 1e6))
def test_never_below_and_never_far_above(bound: float) -> None:
    exact = Decimal(repr(bound))
    assert exact <= Decimal(places(bound, 3)) <= exact + Decimal("0.001")
    assert exact <= Decimal(digits(bound, 6)) <= exact * (1 + Decimal("1e-5"))


@pytest.mark.parametrize(("bound", "text"), [(1.42502, "1.426"), (2.0, "2.000"), (0.1, "0.100"), (4.9832, "4.984")])
def test_places(bound: float, text: str) -> None:
    assert places(bound, 3) == text
