"""Where silos are in their cycles of batches, and what the noise of their next steps is correlated with.

It is kept from round to round as a silo's own state, which whoever writes checkpoints holds too: rank 0 of an MPI job.
The sums x of the last steps must not be seen by it. They are kept *masked*: to their 64-bit words are added, modulo
2^64, as many words of a stream whose name nobody else can know, for the digest of the silo's records is in it, as in
the name of its noise. The stream is also named by what was released, x^: other sums have another mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core.requests import request_digest
from dpfl_plugin.core.streams import Stream
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import LedgerError, UnsupportedError
from dpfl_plugin.late import torch
from dpfl_plugin.privacy.correlation import Chain
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import Cyclic

if TYPE_CHECKING:
    from torch import Tensor

STEP: Final = "oracle.step"
DECODED: Final = "oracle.decoded"
MASKED: Final = "oracle.masked"
OF_CYCLES: Final[tuple[str, ...]] = (STEP, DECODED, MASKED)

Name = Callable[[str, int, bytes], bytes]
"""(purpose, silo, what it is bound to) -> the name of a stream that is the same in all rounds."""


def first_states(sampler: Cyclic, num_silos: int, dimension: int) -> Vectors:
    """Of silos that made no step: {name: (m, width)}, in double precision or whole numbers, on the host."""
    width = (sampler.correlation.bands - 1) * dimension
    states = {STEP: torch.zeros(num_silos, 1, dtype=torch.int64)}
    if width:
        states[DECODED] = torch.zeros(num_silos, width, dtype=torch.float64)
        states[MASKED] = torch.zeros(num_silos, width, dtype=torch.int64)
    return states


def check_round(share: tuple[float, float], smoothing: object) -> None:
    """Raise UnsupportedError for a round of which a cycle knows nothing."""
    if share != (0.0, 1.0) or smoothing is not None:
        what = "reads a part of the records only" if smoothing is None else "smooths its losses"
        raise UnsupportedError(
            f"privacy.sampler='cyclic': the algorithm {what}, and batches in a cycle are proven for gradients of all "
            "records in turn. Use sampler: fixed."
        )


class OneNoise:
    """Refuses to charge a round of a cycle that was charged before with other noise.

    A round whose noise is the same gives the same bits, and is the same release. With other noise the sums of before
    the round, which its releases depend on, would be in both, as would its own: more than is charged for.
    """

    def __init__(self, charged: Iterable[Charge]) -> None:
        self._of_round: dict[int, str] = {}
        self.check(charged)

    def check(self, charges: Iterable[Charge]) -> None:
        """Take note of charges.

        Raises:
            LedgerError: such a round is among them; nothing may leave.
        """
        for one in charges:
            if self._of_round.setdefault(one.round, one.noise_id) != one.noise_id:
                raise LedgerError(
                    f"round {one.round + 1} is in the ledger with other noise, as after a change of the machine or of "
                    "the software in the midst of a run. Correlated noise (privacy.sampler: cyclic) has to be the same "
                    "again, and nothing was released. Go on where the run began, or begin another one with another "
                    "out; what the ledger holds stays spent."
                )


class Cycles:
    """The cycles of m silos in one round.

    Args:
        silos: their ids. sizes: how many records each has. states: of these silos, see `first_states`.
        name: of streams.

    Attributes:
        chains: what makes each silo's releases.
    """

    def __init__(
        self,
        rules: PrivacyRules,
        silos: Sequence[int],
        sizes: Sequence[int],
        states: Vectors,
        name: Name,
    ) -> None:
        sampler = rules.sampler
        assert isinstance(sampler, Cyclic)
        self._sampler, self._silos, self._name, self._stream = sampler, silos, name, Stream()
        self._first = [int(step) for step in states[STEP][:, 0]]
        self._orders = [
            sampler.draw(size, self._stream.seek(name("deal", silo, b"")))
            for silo, size in zip(silos, sizes, strict=True)
        ]
        found = sampler.correlation
        self.chains = [
            Chain(found, rules.noise_multiplier, self._sums(row, states), list(self._decoded(row, states)))
            for row in range(len(silos))
        ]

    def batches(self, steps: range) -> list[list[NDArray[np.int64] | None]]:
        """Of each silo the indices of the records of each of the round's ``steps``."""
        return [
            [self._sampler.batch(order, first + step) for step in steps]
            for first, order in zip(self._first, self._orders, strict=True)
        ]

    def states(self) -> Vectors:
        """Of these silos, after the releases that their chains made."""
        steps = [first + chain.steps for first, chain in zip(self._first, self.chains, strict=True)]
        states = {STEP: torch.tensor(steps, dtype=torch.int64).unsqueeze(1)}
        if self._sampler.correlation.bands > 1:
            states[DECODED] = torch.stack([torch.cat(chain.decoded) for chain in self.chains])
            states[MASKED] = torch.empty_like(states[DECODED], dtype=torch.int64)
            for row, chain in enumerate(self.chains):
                words = torch.cat(chain.sums).numpy().view(np.uint64) + self._mask(row, states)
                states[MASKED][row] = torch.from_numpy(words.view(np.int64))
        return states

    def _decoded(self, row: int, states: Vectors) -> Tensor:
        """(b - 1, d)"""
        if DECODED not in states:
            return torch.empty(0, 0)
        return states[DECODED][row].cpu().view(self._sampler.correlation.bands - 1, -1)

    def _sums(self, row: int, states: Vectors) -> list[Tensor]:
        if DECODED not in states:
            return []
        if self._first[row] == 0:
            return list(torch.zeros_like(self._decoded(row, states)))
        words = states[MASKED][row].cpu().numpy().view(np.uint64) - self._mask(row, states)
        return list(torch.from_numpy(words.view(np.float64)).view(self._sampler.correlation.bands - 1, -1))

    def _mask(self, row: int, states: Vectors) -> NDArray[np.uint64]:
        """((b - 1) d,) of a silo's state."""
        known = {name: states[name][row] for name in (STEP, DECODED)}
        rng = self._stream.seek(self._name("mask", self._silos[row], request_digest(known)))
        return np.asarray(rng.bit_generator.random_raw(states[DECODED].shape[1]), dtype=np.uint64)
