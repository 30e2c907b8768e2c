"""Random bits that nobody can repeat: so it does not matter in which order they are used."""

from __future__ import annotations

import os
from typing import Any, Final, NoReturn, cast

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from dpfl_plugin.core.rounded_normals import Integers, by_numpy
from dpfl_plugin.core.ziggurat import Words

AT_ONCE: Final = 2**15
"""Numbers that are drawn at a time at most: of so many, what a call of numpy takes by itself is a small part."""

BLOCK: Final = 2**12
"""Words that are encrypted at a time at least: a call of OpenSSL takes as long as a thousand."""


class FreshGenerator(np.random.Generator):
    """The key stream of AES-128 in counter mode (NIST SP 800-38A), under a key from the operating system.

    Privacy noise and batches, all that a guarantee rests on, are made of its words: by `words`, which
    `dpfl_plugin.core.draws` uses. numpy's own methods (views of images, smoothing) draw from SFC64, seeded by the
    operating system as well, which is no generator for cryptography.

    The noise of several sums is drawn at once. What is drawn is handed out once and then is nobody's: two sums that
    shared theirs would give it away in their difference.

    Args:
        sums: how many are expected to be noised, of one size and with one noise; more may be.
    """

    def __init__(self, sums: int = 1) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        super().__init__(np.random.SFC64(cast(Any, _SystemSeed())))
        self._encryptor = Cipher(algorithms.AES(os.urandom(16)), modes.CTR(bytes(16))).encryptor()
        self._left, self._sums = np.empty(0, np.uint64), sums
        self._ahead: tuple[tuple[int, float] | None, list[Integers]] = None, []

    def words(self, count: int) -> Words:
        """The next (count,) words."""
        if count >= BLOCK:
            return self._encrypted(count)
        if self._left.size < count:
            self._left = self._encrypted(BLOCK)
        found, self._left = self._left[:count], self._left[count:]
        return found

    def _encrypted(self, count: int) -> Words:
        found = np.empty(count + 2, np.uint64)  # cryptography asks for room for a block more
        self._encryptor.update_into(bytes(8 * count), found.data.cast("B"))
        return found[:count]

    def rounded(self, count: int, std: float) -> Integers:
        """(count,) integers round(std * x), see `rounded_normals.by_numpy`; others at each call."""
        of, drawn = self._ahead
        if of != (count, std) or not drawn:
            # Where sums differ in size or noise all the same, what is drawn ahead would be in vain.
            wanted = self._sums if of in (None, (count, std)) else 1
            many = max(1, min(wanted, AT_ONCE // max(1, count)))
            drawn = list(by_numpy(many * count, std, self.words).reshape(many, count))
            self._ahead = (count, std), drawn
        self._sums -= 1
        return drawn.pop()

    def __reduce__(self) -> NoReturn:
        raise TypeError("random bits that nobody can repeat cannot be copied: two holders would draw the same noise.")


class _SystemSeed(ISeedSequence):
    """Seeds a generator of numpy's by bits of the operating system."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return np.frombuffer(os.urandom(n_words * np.dtype(dtype).itemsize), dtype)
