"""Where silos are in their cycles of batches, and what the noise of their next steps is correlated with.

It is kept from round to round as a silo's own state, and is in checkpoints. Cycles are for seeded runs only, whose
noise anybody with the seed can compute, so the sums x of the last steps, which no noise covers, are kept as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.late import torch
from dpfl_plugin.privacy.correlation import Chain
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import Cyclic

if TYPE_CHECKING:
    from torch import Tensor

STEP: Final = "oracle.step"
DECODED: Final = "oracle.decoded"
SUMS: Final = "oracle.sums"
OF_CYCLES: Final[tuple[str, ...]] = (STEP, DECODED, SUMS)


def first_states(sampler: Cyclic, num_silos: int, dimension: int) -> Vectors:
    """Of silos that made no step: {name: (m, width)}, on the host."""
    width = (sampler.correlation.bands - 1) * dimension
    states = {STEP: torch.zeros(num_silos, 1, dtype=torch.int64)}
    if width:
        states[DECODED] = torch.zeros(num_silos, width, dtype=torch.float64)
        states[SUMS] = torch.zeros(num_silos, width, dtype=torch.float64)
    return states


def check_round(share: tuple[float, float], smoothing: object) -> None:
    """Raise UnsupportedError for a round of which a cycle knows nothing."""
    if share != (0.0, 1.0) or smoothing is not None:
        what = "reads a part of the records only" if smoothing is None else "smooths its losses"
        raise UnsupportedError(
            f"privacy.sampler='cyclic': the algorithm {what}, and batches in a cycle are proven for gradients of all "
            "records in turn. Use sampler: fixed."
        )


class Cycles:
    """The cycles of m silos in one round.

    Args:
        sizes: how many records each has. states: of these silos, see `first_states`.

    Attributes:
        chains: what makes each silo's releases.
    """

    def __init__(
        self,
        rules: PrivacyRules,
        sizes: Sequence[int],
        states: Vectors,
    ) -> None:
        sampler = rules.sampler
        assert isinstance(sampler, Cyclic)
        self._sampler, self._sizes = sampler, sizes
        self._first = [int(step) for step in states[STEP][:, 0]]
        found = sampler.correlation
        self.chains = [
            Chain(
                found, rules.noise_multiplier, list(self._of(row, SUMS, states)), list(self._of(row, DECODED, states))
            )
            for row in range(len(sizes))
        ]

    def batches(self, steps: range) -> list[list[NDArray[np.int64] | None]]:
        """Of each silo the indices of the records of each of the round's ``steps``."""
        return [
            [self._sampler.batch(size, first + step) for step in steps]
            for first, size in zip(self._first, self._sizes, strict=True)
        ]

    def states(self) -> Vectors:
        """Of these silos, after the releases that their chains made."""
        steps = [first + chain.steps for first, chain in zip(self._first, self.chains, strict=True)]
        states = {STEP: torch.tensor(steps, dtype=torch.int64).unsqueeze(1)}
        if self._sampler.correlation.bands > 1:
            states[DECODED] = torch.stack([torch.cat(chain.decoded) for chain in self.chains])
            states[SUMS] = torch.stack([torch.cat(chain.sums) for chain in self.chains])
        return states

    def _of(self, row: int, name: str, states: Vectors) -> Tensor:
        """(b - 1, d)"""
        if name not in states:
            return torch.empty(0, 0)
        return states[name][row].cpu().view(self._sampler.correlation.bands - 1, -1)
