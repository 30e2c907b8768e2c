"""The noise of a round: each silo's, of each step, drawn on the host from a stream of its own name, or on the device
where the gradients are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from dpfl_plugin.core.counter_words import FreshWords, SeededWords
from dpfl_plugin.core.device_noise import DeviceNoise
from dpfl_plugin.core.streams import Source, Words
from dpfl_plugin.privacy.correlation import Chain
from dpfl_plugin.privacy.mechanisms import OnDevice, can_draw_on_device
from dpfl_plugin.privacy.rules import PrivacyRules

Scale = tuple[float, float]
"""(L2 sensitivity of a value, what the noise on it is multiplied by)."""


def drawn_on_device(device: torch.device) -> bool:
    """Whether noise is drawn where a value is. A processor draws it sooner in the way of `core.draws`."""
    return device.type != "cpu"


class SiloNoise:
    """Adds noise to the sums of m silos.

    Correlated noise, that of a mechanism that cannot draw on a device (`mechanisms.OnDevice`), and that of silos of
    which some have none is drawn on the host wherever the sums are.

    Args:
        rules_of: the rules of each silo, by row; rules: what they have in common.
        silos: their ids, by row. key: (purpose, silo, step) -> the name of a stream.
        stream: draws on the host; another name is set before each draw.
        ahead: for how many steps `names` are; num_steps: how many there may be in the round.
        scales: step -> the scale of each row, where they are known ahead.

    Attributes:
        names: of the streams of the steps that are looked ahead, by row.
        sizes: of each row, (sensitivity times factor)^2 of all noise so far, added up: times the squared noise
            multiplier it is the variance of the sum of that noise.
        chains: what makes the releases of each silo, by row, where noise is correlated from step to step.
    """

    def __init__(
        self,
        rules: PrivacyRules,
        rules_of: Sequence[PrivacyRules],
        silos: Sequence[int],
        key: Callable[[str, int, int], bytes],
        stream: Source,
        ahead: int,
        num_steps: int,
        chains: Sequence[Chain] = (),
        scales: Callable[[int], Sequence[Scale]] | None = None,
    ) -> None:
        self._rules, self._rules_of, self._silos, self._key = rules, rules_of, silos, key
        self._stream, self._ahead, self._num_steps, self._scales = stream, ahead, num_steps, scales
        self.names: list[list[Words]] = []
        self.sizes = [0.0] * len(self._silos)
        self.chains = chains
        self._device_noise: DeviceNoise | None = None
        self._on_device = False

    def begin(self, like: Tensor) -> None:
        """Begin to draw the noise on values of the shape (m, d) of ``like``, if it is drawn on their device."""
        different = [self._rules, *self._rules.silos.values()]  # of all silos: who is in a stack changes no bit
        noisy = {own.mechanism.event("full", 1.0, own.neighbouring, own.unit).noise_multiplier > 0 for own in different}
        able = all(can_draw_on_device(own.mechanism) for own in different)
        on_device = drawn_on_device(like.device) and not self.chains and able and len(noisy) == 1
        if on_device and noisy == {True}:
            # Nothing of it refers to self: its memory, and its key, are gone with the round.
            d, scales, rules_of, silos, key = like.shape[1], self._scales, self._rules_of, self._silos, self._key
            self._device_noise = DeviceNoise(
                FreshWords() if self._rules.fresh else SeededWords(lambda row, step: key("noise", silos[row], step)),
                rows=len(silos),
                count=d,
                steps=self._num_steps,
                device=like.device,
                stds=None if scales is None else lambda step: _in_steps(rules_of, scales(step), d)[1],
            )
        self._on_device = on_device  # last: a step without noise must not follow from an error here

    def add(self, totals: Tensor, scales: Sequence[Scale], first: int, step: int, out: Tensor) -> None:
        """Write ``totals`` (n, d) float64 to ``out`` (n, d), with the noise of this step of each of n silos, those from
        row ``first`` on."""
        if self._on_device:
            rows = slice(first, first + len(scales))
            for n, (sensitivity, factor) in enumerate(scales):
                self.sizes[first + n] += (sensitivity * factor) ** 2
            if self._device_noise is None:
                out.copy_(totals)
                return
            grids, stds = _in_steps(self._rules_of[rows], scales, totals.shape[1])
            self._device_noise.add_rounded(totals, step, rows, grids, stds, out)
            return
        # There and back at once: each transfer waits for the device.
        values, noisy = totals.cpu(), out if out.is_cpu else torch.empty(out.shape, dtype=out.dtype)
        for n, scale in enumerate(scales):
            self.add_of(first + n, step, values[n], scale, noisy[n])
        if noisy is not out:
            out.copy_(noisy)

    def add_of(self, row: int, step: int, total: Tensor, scale: Scale, out: Tensor) -> None:
        """Write ``total`` (d,) float64 to ``out`` (d,), with the noise of this step of one silo."""
        if self._on_device:
            self.add(total.unsqueeze(0), [scale], row, step, out.unsqueeze(0))
            return
        sensitivity, factor = scale
        self.sizes[row] += (sensitivity * factor) ** 2
        name = self._name(row, step)
        if self.chains:
            self.chains[row](total, sensitivity, self._stream.seek(name), out)
            return
        self._rules_of[row].mechanism(total, sensitivity, self._stream.seek(name), out, factor)

    def _name(self, row: int, step: int) -> bytes | Words:
        return self._name_of(row, step) if self._rules.unit == "silo" else self.names[row][step % self._ahead]

    def _name_of(self, row: int, step: int) -> bytes:
        return self._key("noise", self._silos[row], step)


def _in_steps(
    rules_of: Sequence[PrivacyRules], scales: Sequence[Scale], dimension: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(Each row's grid, the standard deviation of its noise in steps of it)."""
    rows = zip(rules_of, scales, strict=True)
    pairs = (cast(OnDevice, own.mechanism).in_steps(scale[0], dimension, scale[1]) for own, scale in rows)
    grids, stds = zip(*pairs, strict=True)
    return grids, stds
