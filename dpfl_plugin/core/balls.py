"""Exact projections onto balls, and onto what two balls have in common; the ball in which floating point stays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.late import torch

if TYPE_CHECKING:
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


MARGIN: Final = 64
"""Of the clipping norm, in units of the number format's epsilon: 8e-6 of C in float32.

Squares are added up in float64, so that a norm is off by what it, the clipping factor and the scaled gradient are
rounded by: 4 half epsilons (the proof is in `gradients.blocks`). Room for 124 more is left for engines of others.
"""

LEAST_CLIP_NORM: Final = 2.0**-40
MOST_CLIP_NORM: Final = 2.0**40
"""Between these, what floating point loses below its smallest number, or beyond its largest, is nothing beside C."""
MOST_RATIO: Final = 2.0**120
"""Of a norm to what it is clipped to. The factor of a longer one could be below 2^-126, where float32 has few digits
left, and what it leaves could be longer than C by half: such a vector counts as not finite (`longest`)."""
LEAST_STABILITY: Final = 1e-9
MOST_STABILITY: Final = 1e9
"""Of the gamma of `Normalised`, as shares of C: its factors, C / gamma at most, are normal numbers of float32."""
_ROOM: Final = 2.0**10  # for bounds of layers, which are shares of C, and for those that are adapted


class Normalised(float):
    """A bound C that gradients are scaled to, C / (norm + gamma), whether they are longer or shorter than C.

    As a number it is C, which a vector scaled so is shorter than: norm C / (norm + gamma) < C.
    """

    gamma: float

    def __new__(cls, clip_norm: float, gamma: float) -> Normalised:
        bound = super().__new__(cls, clip_norm)
        bound.gamma = gamma
        return bound


def inner(clip_norm: float, dtype: torch.dtype) -> float:
    """What to clip to in floating point, so that no example adds more than ``clip_norm``.

    Raises:
        ConfigError: for so small or large a norm that is not proven.
    """
    least, most = LEAST_CLIP_NORM / _ROOM, MOST_CLIP_NORM * _ROOM
    if not least <= clip_norm <= most:
        raise ConfigError(
            f"a clipping norm of {clip_norm:g} is outside [{least:.0e}, {most:.0e}], where floating point is proven to "
            "keep it. Scale the loss, and privacy.clip_norm with it."
        )
    return clip_norm * (1 - MARGIN * torch.finfo(dtype).eps)


def longest(bound: float, dtype: torch.dtype) -> float:
    """The longest norm that counts as finite, of a vector in ``dtype`` that is clipped to ``bound``, as `inner` has it.

    A public number, the same for every way of clipping: whether a record counts is not up to the engine.
    """
    return min(torch.finfo(dtype).max, MOST_RATIO * bound)
