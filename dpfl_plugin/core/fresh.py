"""Random bits that nobody can repeat: so it does not matter in which order they are used."""

from __future__ import annotations

import os
from typing import Final, NoReturn

import numpy as np

from dpfl_plugin.core.rounded_normals import Integers, by_numpy

AT_ONCE: Final = 2**15
"""Numbers that are drawn at a time at most: of so many, what a call of numpy takes by itself is a small part."""


class FreshGenerator(np.random.Generator):
    """AES-128 in counter mode (NIST SP 800-38A) under a key of its own from the operating system, never shown.

    The noise of several sums is drawn at once. What is drawn is handed out once and then is nobody's: two sums that
    shared theirs would give it away in their difference.

    Args:
        sums: how many are expected to be noised, of one size and with one noise; more may be.
    """

    def __init__(self, sums: int = 1) -> None:
        from randomgen import AESCounter

        super().__init__(AESCounter(key=int.from_bytes(os.urandom(16), "little"), counter=0))
        self._sums = sums
        self._ahead: tuple[tuple[int, float] | None, list[Integers]] = None, []

    def rounded(self, count: int, std: float) -> Integers:
        """(count,) integers round(std * x), see `rounded_normals.by_numpy`; others at each call."""
        of, drawn = self._ahead
        if of != (count, std) or not drawn:
            # Where sums differ in size or noise all the same, what is drawn ahead would be in vain.
            wanted = self._sums if of in (None, (count, std)) else 1
            many = max(1, min(wanted, AT_ONCE // max(1, count)))
            drawn = list(by_numpy(many * count, std, self.bit_generator.random_raw).reshape(many, count))
            self._ahead = (count, std), drawn
        self._sums -= 1
        return drawn.pop()

    def __reduce__(self) -> NoReturn:
        raise TypeError("random bits that nobody can repeat cannot be copied: two holders would draw the same noise.")
