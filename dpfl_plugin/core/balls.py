"""Exact projections onto balls, and onto what two balls have in common."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Ball(NamedTuple):
    """{w: ||w - center|| <= radius}; a radius of inf is the whole space."""

    center: Tensor
    radius: float


def project(w: Tensor, ball: Ball) -> Tensor:
    """The point of ``ball`` nearest to ``w`` (d,)."""
    norm = _norm(w - ball.center)
    return w if norm <= ball.radius else ball.center + (w - ball.center) * (ball.radius / norm)


def project_both(w: Tensor, one: Ball, other: Ball) -> Tensor:
    """The point nearest to ``w`` (d,) that is in both balls, which must have one in common.

    If the projection onto one ball is in the other, it is that. Else both bounds are met with equality: the nearest
    point is on the sphere in which the surfaces meet, around a point of the line between the centers.
    """
    for first, second in ((one, other), (other, one)):
        nearest = project(w, first)
        rounding = 8 * torch.finfo(w.dtype).eps * (_norm(nearest) + second.radius)
        if _norm(nearest - second.center) <= second.radius + rounding:
            return nearest
    between = other.center - one.center
    distance = _norm(between)
    axis = between / distance
    height = (distance**2 + one.radius**2 - other.radius**2) / (2 * distance)  # from one's center, along the axis
    middle = one.center + height * axis
    radius = math.sqrt(max(0.0, one.radius**2 - height**2))
    across = w - middle
    across = across - torch.dot(across, axis) * axis
    return middle + across * (radius / max(_norm(across), torch.finfo(w.dtype).tiny))


def _norm(w: Tensor) -> float:
    return float(torch.linalg.vector_norm(w, dtype=torch.float64))
