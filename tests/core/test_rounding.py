"""What is printed of an upper bound is one."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.core.rounding import digits, digits_down, odds, places
from dpfl_plugin.evidence import audit_report
from dpfl_plugin.experiments.reports import page
from dpfl_plugin.privacy.audit import Interval


@settings(deadline=None)
@given(st.floats(0, 1e6) | st.floats(0, 1e300).map(np.float64))
def test_never_below_and_never_far_above(bound: float) -> None:
    exact = Decimal(repr(float(bound)))
    with localcontext(prec=400):
        assert exact <= Decimal(places(bound, 3)) <= exact + Decimal("0.001")
    assert exact <= Decimal(digits(bound, 6)) <= exact * (1 + Decimal("1e-5"))
    assert exact >= Decimal(digits_down(bound, 6)) >= exact * (1 - Decimal("1e-5"))


@pytest.mark.parametrize(
    ("bound", "text"), [(1.42502, "1.426"), (2.0, "2.000"), (0.1, "0.100"), (4.9832, "4.984"), (0.0123, "0.013")]
)
def test_places(bound: float, text: str) -> None:
    assert places(bound, 3) == text


def test_digits_are_written_as_people_write_them() -> None:
    assert [digits(bound, 4) for bound in (3.0, 1e-5, 3.14149, 0.0)] == ["3", "1e-05", "3.142", "0"]
    assert [digits_down(bound, 4) for bound in (3.0, 3.14159)] == ["3", "3.141"]
    assert digits(float("inf"), 4) == places(float("inf"), 3) == "inf"


@pytest.mark.parametrize("bound", [1e-6, 1.234e-6, 9.99e-4, 0.00501])
def test_a_small_bound_keeps_its_size(bound: float) -> None:
    assert bound <= float(places(bound, 3)) <= 1.1 * bound
    assert places(0.0, 3) == "0.000"


@pytest.mark.parametrize(
    ("epsilon", "text"),
    [
        (0, "about 1.00 times"),
        (0.05, "about 1.06 times"),
        (2, "about 7.39 times"),
        (3.948, "about 52 times"),
        (6, "about 410 times"),
        (8, "about 3,000 times"),
        (13.79, "about 980,000 times"),
        (20, "about a million times, or more"),
    ],
)
def test_odds(epsilon: float, text: str) -> None:
    assert odds(epsilon) == text


def test_bounds_in_hovers_and_in_intervals_are_rounded_away_from_what_they_bound() -> None:
    assert page._numbers(np.array([1.234511, math.inf]), "epsilon_server") == [1.2346, None]
    assert page._numbers(np.array([1.234511]), "test_accuracy") == [1.2345]
    assert audit_report._interval(Interval(low=1.239, estimate=1.5, high=2.341), 2) == "1.50 (1.23 to 2.35)"
