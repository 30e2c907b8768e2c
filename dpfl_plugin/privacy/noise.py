"""The noise of a round: each silo's, of each step, from a stream of its own name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from dpfl_plugin.core.device_noise import DeviceNormals
from dpfl_plugin.core.streams import Source, Words
from dpfl_plugin.privacy.correlation import Chain
from dpfl_plugin.privacy.mechanisms import OnDevice
from dpfl_plugin.privacy.rules import PrivacyRules

Scale = tuple[float, float]
"""(L2 sensitivity of a value, what the noise on it is multiplied by)."""


class SiloNoise:
    """Adds noise to the sums of m silos.

    Args:
        rules_of: the rules of each silo, by row; rules: what they have in common.
        silos: their ids, by row. key: (purpose, silo, step) -> the name of a stream.
        stream: draws; another name is set before each draw.
        ahead: for how many steps `names` are; num_steps: how many there may be in the round.

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
    ) -> None:
        self._rules, self._rules_of, self._silos, self._key = rules, rules_of, silos, key
        self._stream, self._ahead, self._num_steps = stream, ahead, num_steps
        self.names: list[list[Words]] = []
        self.sizes = [0.0] * len(self._silos)
        self.chains = chains
        self._normals: DeviceNormals | None = None

    def add(self, totals: Tensor, scales: Sequence[Scale], first: int, step: int, out: Tensor) -> None:
        """Write ``totals`` (n, d) float64 to ``out`` (n, d), with the noise of this step of each of n silos, those from
        row ``first`` on."""
        rules = self._rules
        if rules.noise == "device":
            normals = self._device_normals(out).at(step).rows(slice(first, first + len(scales)))
            sensitivities, factors = zip(*scales, strict=True)
            for n, (sensitivity, factor) in enumerate(scales):
                self.sizes[first + n] += (sensitivity * factor) ** 2
            cast(OnDevice, rules.mechanism).add(totals, sensitivities, normals, out, factors)
            return
        # There and back at once: each transfer waits for the device.
        values, noisy = totals.cpu(), out if out.is_cpu else torch.empty(out.shape, dtype=out.dtype)
        for n, scale in enumerate(scales):
            self.add_of(first + n, step, values[n], scale, noisy[n])
        if noisy is not out:
            out.copy_(noisy)

    def add_of(self, row: int, step: int, total: Tensor, scale: Scale, out: Tensor) -> None:
        """Write ``total`` (d,) float64 to ``out`` (d,), with the noise of this step of one silo."""
        if self._rules.noise == "device":
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
        if self._rules.unit == "silo":
            return self._key("noise", self._silos[row], step)
        return self.names[row][step % self._ahead]

    def _device_normals(self, like: Tensor) -> DeviceNormals:
        if self._normals is None:
            self._normals = DeviceNormals(
                lambda row, step: self._key("noise", self._silos[row], step),
                rows=len(self._silos),
                count=like.shape[-1],
                steps=self._num_steps,
                device=like.device,
            )
        return self._normals
