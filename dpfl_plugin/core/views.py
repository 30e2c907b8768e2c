"""Augmented views of images: random crops and reflections, made of a record and of random bits alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core.devices import to_device
from dpfl_plugin.errors import UnsupportedError, require
from dpfl_plugin.late import torch

if TYPE_CHECKING:
    from torch import Tensor

MOST_CHANNELS: Final = 4
"""Of what counts as an image, (channels, height, width): of one with its channels last another axis would be turned."""


@dataclass(frozen=True, slots=True)
class Augmentation:
    """How many views there are of each record, and what they may differ in.

    Attributes:
        views: k of each record.
        flip: whether a view is its record's mirror image, left to right, with probability 1/2.
        crop: by up to so many pixels a view is moved, up or down and left or right, each with equal probability; where
            nothing is left the border is reflected.
    """

    views: int
    flip: bool = False
    crop: int = 0

    def __post_init__(self) -> None:
        require(self.views >= 1, "augmentation.views", self.views, "be 1 or more")
        require(self.crop >= 0, "augmentation.crop", self.crop, "be 0 or more")
        if not self.flip and not self.crop:
            raise UnsupportedError(
                f"augmentation: {self.views} views that differ in nothing have the gradient of the record itself. Set "
                "crop or flip, or leave augmentation out."
            )

    def check(self, shape: tuple[int, ...], *, real: bool = True) -> None:
        """Raise UnsupportedError unless records of ``shape`` are images; ``real``: of numbers that are not words."""
        if not real or len(shape) != 3 or shape[0] > MOST_CHANNELS:
            raise UnsupportedError(
                f"augmentation: features of shape {shape} are no images (channels, height, width) with 1 to "
                f"{MOST_CHANNELS} channels. Set the data set's flatten: false and leave out steps of data.preprocess "
                "that make columns of images, or leave augmentation out."
            )
        if self.crop >= min(shape[1:]):
            raise UnsupportedError(
                f"augmentation.crop={self.crop} moves images of {shape[1]} x {shape[2]} pixels by all that they have. "
                "Lower it."
            )

    def of(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """(b, k, c, h, w): the views of ``images`` (b, c, h, w). Nothing is computed with pixels, they are moved.

        The views of an image are a function of that image, its place and ``rng``: of no other image, nor of how many
        there are.
        """
        b, c, h, w = images.shape
        k, steps = self.views, 2 * self.crop + 1
        drawn = rng.random((b, k, 3))
        down, right = (np.minimum(np.floor(drawn[..., axis] * steps), steps - 1) - self.crop for axis in range(2))
        columns = _reflected(right.astype(np.int64), w)
        if self.flip:
            columns = np.where(drawn[..., 2:] < 0.5, columns[..., ::-1], columns)
        rows = _reflected(down.astype(np.int64), h)
        places = torch.from_numpy((rows[..., :, None] * w + columns[..., None, :]).reshape(b, k, 1, h * w))
        pixels = images.reshape(b, 1, c, h * w).expand(b, k, c, h * w)
        return pixels.gather(3, to_device(places, images.device).expand(b, k, c, h * w)).view(b, k, c, h, w)

    def bytes_of(self, shape: tuple[int, ...], itemsize: int) -> int:
        """What the views of one record of ``shape`` take, while they are made."""
        pixels = shape[1] * shape[2]
        return self.views * (shape[0] * pixels * itemsize + 2 * pixels * 8)


def _reflected(moved: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """(b, k, size) from which of ``size`` places each one comes, where all are moved by ``moved`` (b, k) < size."""
    places = np.abs(np.arange(size) + moved[..., None])
    found: NDArray[np.int64] = np.where(places < size, places, 2 * (size - 1) - places)
    return found
