"""Clipping: how an example is kept from adding more than a bound to what is released, and who chooses the bound.

A strategy only computes numbers. The oracle clips, noises and charges, the same for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpfl_plugin.core.balls import (
    LEAST_CLIP_NORM,
    LEAST_STABILITY,
    MOST_CLIP_NORM,
    MOST_STABILITY,
    Normalised,
    inner,
    longest,
)
from dpfl_plugin.errors import ConfigError, require
from dpfl_plugin.late import torch
from dpfl_plugin.privacy.events import Unit

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Clipping:
    """What a strategy may decide, and what it decides if it says nothing: one public C for the whole gradient.

    Attributes:
        adapts: every silo has its own C, renewed after each release from a noised count (`bit_weight`, `adapted`).
        measures: C is computed from a batch's norms without noise (`measured`): no guarantee can hold, and a release is
            charged as noise multiplier 0.
        normalises: gradients are scaled to C (`whole`) instead of clipped.
        statement: for the privacy statement, in words.
    """

    adapts: ClassVar[bool] = False
    measures: ClassVar[bool] = False
    normalises: ClassVar[bool] = False

    @property
    def statement(self) -> str:
        return "every example's gradient, or at silo level every update, is clipped to L2 norm clip_norm"

    def check(self, unit: Unit, clip_norm: float, noise_multiplier: float) -> None:
        """Raise ConfigError unless releases can be made in this way at this unit."""

    def whole(self, clip_norm: float) -> float:
        """C, as engines take it for gradients that are not cut into layers."""
        return clip_norm

    def bounds(self, clip_norm: float, layers: Mapping[str, int]) -> float | tuple[float, ...]:
        """C; or a bound for each layer, with squares that add up to C^2: then C bounds the whole vector, too.

        Args:
            layers: the model's, {name: number of parameters}.
        """
        return self.whole(clip_norm)

    def measured(self, norms: Tensor) -> float:
        """C of a batch with these norms (b,), inf for examples whose gradient is not finite."""
        raise NotImplementedError

    def bit_weight(self, noise_multiplier: float, batch_size: float, sensitivity: float) -> float:
        """w in (0, 1): of the squared sensitivity of a release, w^2 is the count's and 1 - w^2 the gradient's.

        Args:
            sensitivity: of the count.
        """
        raise NotImplementedError

    def adapted(self, norm: float, fraction: float, clip_norm: float) -> float:
        """A silo's next C, from its C now, ``norm``, and the noised fraction of gradients within it."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Flat(Clipping):
    """Each example's gradient (or, at silo level, the update) to L2 norm C = clip_norm."""


@dataclass(frozen=True, kw_only=True)
class AutoS(Clipping):
    """Each example's gradient g scaled to C g / (||g|| + gamma), whatever its length. Bu, Wang, Zha, Karypis 2022.

    arXiv:2206.07136v3, sec. 4: AUTO-S; with a gamma next to 0 the normalised gradient C g / ||g|| (AUTO-V). C then only
    scales the step size: nothing of it has to be tuned. An example adds less than C, so that sensitivity, noise and
    price are those of flat clipping:

        || C g / (||g|| + gamma) || = C ||g|| / (||g|| + gamma) < C.

    In floating point the factor is made with a C that is a hair smaller (`core.balls.inner`), of the norm of the very
    numbers that it scales; it is at most the C / ||g|| that the proof for flat clipping is of (`gradients.blocks`, 1.),
    and at most C / gamma, a normal number.

    Attributes:
        gamma: 0.01 in the paper; shorter gradients keep some of their length.
    """

    normalises: ClassVar[bool] = True

    gamma: float = 0.01

    def __post_init__(self) -> None:
        require(0 < self.gamma < math.inf, "gamma", self.gamma, "be positive and finite")

    @property
    def statement(self) -> str:
        return (
            "every example's gradient is divided by its L2 norm plus "
            f"{self.gamma:g}, and multiplied by clip_norm, below which its norm is then"
        )

    def check(self, unit: Unit, clip_norm: float, noise_multiplier: float) -> None:
        require(clip_norm < math.inf, "privacy.clip_norm", clip_norm, "be finite with clip: auto_s, which scales to it")
        least, most = LEAST_STABILITY * clip_norm, MOST_STABILITY * clip_norm
        must = f"be in [{least:g}, {most:g}], {LEAST_STABILITY:g} to {MOST_STABILITY:g} times privacy.clip_norm"
        require(least <= self.gamma <= most, "privacy.clip.gamma", self.gamma, must)

    def whole(self, clip_norm: float) -> float:
        return Normalised(clip_norm, self.gamma)


@dataclass(frozen=True, kw_only=True)
class PerLayer(Clipping):
    """Each layer l of a gradient (or update) to its own C_l, with sqrt(sum_l C_l^2) = C = clip_norm.

    A layer is a module that owns parameters: its weight and bias together. The whole clipped vector has norm at most
    C, so its sensitivity, its noise and its price are those of flat clipping. McMahan et al. 2018, arXiv:1710.06963v3,
    sec. 2.3. With one layer it is flat clipping.

    Attributes:
        shares: weight of each layer, in the model's order: C_l is in proportion to it; default: all equal.
    """

    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        fine = self.shares is None or all(0 < share < math.inf for share in self.shares)
        require(fine, "shares", self.shares, "be positive and finite")

    @property
    def statement(self) -> str:
        return (
            "every layer of an example's gradient, or at silo level of an update, is clipped to a bound of its own; "
            "the root of the sum of their squares, the bound of the whole, is clip_norm"
        )

    def bounds(self, clip_norm: float, layers: Mapping[str, int]) -> float | tuple[float, ...]:
        if math.isinf(clip_norm):
            return clip_norm
        shares = self.shares or (1.0,) * len(layers)
        if len(shares) != len(layers):
            named = ", ".join(f"{name or '(the model itself)'} ({size})" for name, size in layers.items())
            raise ConfigError(
                f"privacy.clip.shares={list(shares)} must have one number for each of {len(layers)} layers: {named}."
            )
        whole = math.hypot(*shares)
        return tuple(clip_norm * share / whole for share in shares)


# By how much the noise on a gradient may grow for the sake of the count: z_g / z.
_GROWTH = 1.01
_LARGEST_WEIGHT = math.sqrt(1 - _GROWTH**-2)
# Noise on the fraction that is small enough: a twentieth, as Andrew et al. have it (sec. 3.1, sigma_b = m/20).
_FRACTION_STD = 1 / 20
# A silo's C stays within clip_norm / _RANGE and clip_norm * _RANGE, so that noise alone cannot carry it away.
_RANGE = 1e3
# Of log C_i: from anywhere in its range a step of 14 reaches the end, and e^700 is still a float.
_LARGEST_STEP = 700.0


@dataclass(frozen=True, kw_only=True)
class Adaptive(Clipping):
    """C_i of each silo follows a quantile of its gradients' norms, by noised counts that are part of the charge.

    Andrew, Thakkar, McMahan, Ramaswamy 2021, arXiv:1905.03871v5, Alg. 1, at each silo by itself, since the server is
    not trusted. A release adds up, over one batch B, the gradients clipped to C_i and the bits b_j = [||g_j|| <= C_i]:

        S = sum_B clip(g_j, C_i)              + Delta_g z_g N(0, I)
        n = sum_B (b_j - 1/2)                 + Delta_b z_b N(0, 1)
        C_i <- C_i exp(-lr (n / b + 1/2 - quantile))

    with b the batch size or, where it varies, its expectation.

    Privacy. Delta_g is 2 C_i where a record is replaced and C_i where it counts as zero or not. A centred bit is 1/2 or
    -1/2: replacing a record changes the sum by at most Delta_b = 1, and one that counts as zero changes it by exactly
    Delta_b = 1/2. (Without centring it would be 1 in both cases.) So for neighbours that differ in a record of B, the
    vector (S / (Delta_g z_g), n / (Delta_b z_b)), whose noise is N(0, I), moves by at most sqrt(z_g^-2 + z_b^-2). With
    z_g = (z^-2 - z_b^-2)^(-1/2) that is 1/z: the pair is one Gaussian release of noise multiplier z over one batch,
    and is charged as that. C_i is a function of pairs released before, so the composition is adaptive, as accountants
    allow. The noise of a release tells C_i, which is a function of them, too.

    By default z_b is what makes the standard deviation of n / b 1/20, but no less than makes z_g 1 % larger than z:
    a large batch has a sharp count for next to nothing, a small one a blurred count at a known price. The blur does
    not bias log C_i, and ``lr`` averages over it.

    Attributes:
        quantile: share of the gradients that shall be within C_i.
        lr: step size of log C_i.
        bit_noise_multiplier: z_b; must be above the noise multiplier z.
    """

    adapts: ClassVar[bool] = True

    quantile: float = 0.5
    lr: float = 0.2
    bit_noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        require(0 < self.quantile < 1, "quantile", self.quantile, "be in (0, 1)")
        require(0 < self.lr < math.inf, "lr", self.lr, "be positive and finite")
        z_b = self.bit_noise_multiplier
        require(z_b is None or 0 < z_b < math.inf, "bit_noise_multiplier", z_b, "be positive and finite")

    @property
    def statement(self) -> str:
        return (
            "every silo has a clipping norm of its own, which starts at clip_norm and follows the "
            f"{self.quantile:g} quantile of its gradients' norms by noised counts; each count is released jointly with "
            "a gradient, and the charge covers both; the clipping norm shows in the noise, which is covered"
        )

    def check(self, unit: Unit, clip_norm: float, noise_multiplier: float) -> None:
        require(
            clip_norm < math.inf, "privacy.clip_norm", clip_norm, "be finite with clip: adaptive, which starts there"
        )
        z_b = self.bit_noise_multiplier
        require(
            z_b is None or z_b > noise_multiplier,
            "privacy.clip.bit_noise_multiplier",
            z_b,
            f"be above privacy.noise_multiplier={noise_multiplier:g}: both releases together cost what it says",
            f"Use {1 / _LARGEST_WEIGHT * noise_multiplier:.3g} or more, or leave it out.",
        )

    def bit_weight(self, noise_multiplier: float, batch_size: float, sensitivity: float) -> float:
        """w = z / z_b, so that z_g = z / sqrt(1 - w^2)."""
        if self.bit_noise_multiplier is not None and noise_multiplier > 0:
            return noise_multiplier / self.bit_noise_multiplier
        if noise_multiplier == 0:  # there is no noise to share out
            return _LARGEST_WEIGHT
        return min(_LARGEST_WEIGHT, noise_multiplier * sensitivity / (_FRACTION_STD * batch_size))

    def adapted(self, norm: float, fraction: float, clip_norm: float) -> float:
        # Much noise on the count of a small batch may ask for more than a float holds.
        moved = norm * math.exp(min(-self.lr * (fraction - self.quantile), _LARGEST_STEP))
        return min(max(moved, clip_norm / _RANGE), clip_norm * _RANGE)


@dataclass(frozen=True, kw_only=True)
class Median(Clipping):
    """C is the median of a batch's unclipped norms, at each silo and step; to repeat papers: NO guarantee holds.

    Noble et al. 2022, sec. 5.1, among others. The median is read from private gradients without noise, and it shows in
    what is released, so a release is charged as one that no noise covers: every accountant answers infinity. The noise
    is added as if C were public. ``clip_norm`` is ignored. Takes two passes over a batch.
    """

    measures: ClassVar[bool] = True

    @property
    def statement(self) -> str:
        return "clip: median takes its clipping norm (instead of clip_norm) from private gradients without noise"

    def measured(self, norms: Tensor) -> float:
        """The median of those that are finite; where there are none, or it is 0, next to nothing, but positive."""
        finite = norms[torch.isfinite(norms)]
        median = float(torch.quantile(finite, 0.5)) if len(finite) else 0.0
        return min(max(median, LEAST_CLIP_NORM), MOST_CLIP_NORM)


def clip_update(update: Tensor, bounds: float | tuple[float, ...], sizes: Sequence[int]) -> None:
    """Clip each part of ``update`` (d,) to a hair inside its bound, in place; if one does not count as finite
    (`longest`), all become zero.

    Args:
        bounds: for the whole of it, or for each of the consecutive parts of these ``sizes``.
    """
    several = isinstance(bounds, tuple)
    parts = update.split(list(sizes)) if several else (update,)
    limits = bounds if isinstance(bounds, tuple) else (bounds,)
    norms = [float(torch.linalg.vector_norm(part, dtype=torch.float64)) for part in parts]
    insides = [inner(bound, update.dtype) for bound in limits]
    if not all(norm <= longest(bound, update.dtype) for norm, bound in zip(norms, insides, strict=True)):
        # A silo whose update is not finite sends noise alone, so that its failure does not show.
        update.zero_()
        return
    for part, norm, bound in zip(parts, norms, insides, strict=True):
        part.div_(max(1.0, norm / bound))
