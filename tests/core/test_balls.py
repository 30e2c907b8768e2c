"""Projections: the defining properties of a nearest point of a convex set."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.core.balls import Ball, project, project_both


def vector(seed: int, d: int = 4, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_point_outside_goes_to_the_surface_along_the_line_to_the_center() -> None:
    nearest = project(torch.tensor([4.0, 5.0]), Ball(torch.tensor([1.0, 1.0]), 1.0))
    torch.testing.assert_close(nearest, torch.tensor([1.6, 1.8]))


def test_points_inside_and_without_bounds_stay_bit_by_bit() -> None:
    w = vector(0)
    assert project(w, Ball(torch.zeros_like(w), 100.0)) is w
    assert project(w, Ball(torch.zeros_like(w), math.inf)) is w


def test_where_both_bounds_hold_with_equality() -> None:
    """Circles of radius 5 around (0, 0) and (6, 0) meet at (3, +-4), the point nearest to (3, 100)."""
    one, other = Ball(torch.tensor([0.0, 0.0]), 5.0), Ball(torch.tensor([6.0, 0.0]), 5.0)
    torch.testing.assert_close(project_both(torch.tensor([3.0, 100.0]), one, other), torch.tensor([3.0, 4.0]))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.1, 3), st.floats(0.1, 3), st.floats(0.0, 0.99), st.floats(0.1, 10))
def test_the_nearest_point_of_both_balls(seed: int, r: float, s: float, near: float, scale: float) -> None:
    """In both, idempotent, and <w - p, z - p> <= 0 for every z in both, which only the nearest point p satisfies."""
    center = vector(seed + 1)
    axis = vector(seed + 2)
    one, other = Ball(center, r), Ball(center + axis / axis.norm() * near * (r + s), s)
    w = vector(seed, scale=scale)
    p = project_both(w, one, other)
    for ball in (one, other):
        assert (p - ball.center).norm() <= ball.radius * (1 + 1e-9)
    torch.testing.assert_close(project_both(p, one, other), p, atol=1e-6, rtol=0)
    for k in range(5):  # points of both, by projecting onto one and the other in turns
        z = vector(seed + 10 + k, scale=scale)
        for _ in range(300):
            z, before = project(project(z, one), other), z
            if (z - before).norm() < 1e-12:
                break
        if (z - one.center).norm() <= r * (1 + 1e-9):
            assert torch.dot(w - p, z - p) <= 1e-6 * max(1.0, float((w - p).norm()))


@pytest.mark.parametrize("d", [1, 2, 50])
def test_norms_in_any_dimension(d: int) -> None:
    w, center = vector(1, d, 10.0), vector(2, d)
    p = project(w, Ball(center, 0.5))
    assert float((p - center).norm()) == pytest.approx(0.5)
    torch.testing.assert_close(project(p, Ball(center, 0.5)), p)
