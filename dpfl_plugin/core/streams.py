"""One random stream per (seed, purpose, round, silo, step), and nothing else: equal seeds give equal streams.

Results then depend neither on the order in which silos run, nor on the rank or the stack that runs them,
and two silos never share noise. The key is hashed to 256 bits: `torch.Generator.manual_seed` keeps only 32
of them on the CPU, so that a long run would meet two streams with the same seed.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from typing import Final, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core.fresh import FreshGenerator
from dpfl_plugin.core.sfc64_state import OpenSFC64

# Numbers are part of every recorded result: append, never renumber.
PURPOSES: Final[dict[str, int]] = {
    "noise": 1,  # privacy noise of a silo
    "batch": 2,  # which records of a silo are in a batch
    "participants": 3,  # which silos take part in a round
    "plan": 4,  # the server's own coins (e.g. the number of local steps)
    "partition": 5,  # which record goes to which silo
    "split": 6,  # the order of a silo's records, of which cuts are intervals
    "data": 7,  # synthetic data
    "model": 8,  # initial parameters
    "algorithm": 9,  # an algorithm's own coins at a silo; never privacy noise
    "bits": 10,  # privacy noise of a silo's count of gradients within its clipping norm
    "audit": 11,  # an audit's secret bits, and where its canaries are
    "attack": 12,  # what a demonstration of an attack draws: which records it shows, resamples of its scores
    "score": 14,  # privacy noise of a silo's validation score
    "trial": 15,  # parameters at which models and losses are tried on made-up records
    "statistics": 17,  # privacy noise of a silo's statistics of columns
    "description": 21,  # privacy noise of a silo's counts of variables
    "views": 20,  # how the views of a batch's images differ from these
}


def stream_key(
    seed: int,
    purpose: str,
    round: int = 0,
    silo: int = 0,
    step: int = 0,
    secret: str = "",
) -> bytes:
    """The 32-byte key of a stream.

    Args:
        secret: at most 64 bytes; who does not know it cannot compute the stream from the rest.
    """
    fields = struct.pack("<6q", seed, PURPOSES[purpose], round, silo, step, 0)
    return hashlib.blake2b(fields, digest_size=32, person=b"dpfl.stream.v1", key=secret.encode()).digest()


Words = NDArray[np.uint64]
"""A key as four words (4,)."""


def words(keys: Sequence[bytes]) -> list[Words]:
    """Keys as a `Source` takes them soonest, for those who know several in advance."""
    return list(np.frombuffer(b"".join(keys), dtype="<u8").astype(np.uint64).reshape(-1, 4))


class Source(Protocol):
    """Where random bits come from: `Stream`, which repeats itself, or `FreshStream`, which nobody can repeat."""

    def seek(self, key: bytes | Words) -> np.random.Generator:
        """The generator for the stream named by ``key``."""
        ...


class Stream:
    """A numpy generator that can be moved to any stream; moving costs .3 us, building one 20."""

    def __init__(self) -> None:
        self._bits = OpenSFC64()
        self.generator = np.random.Generator(self._bits)

    def seek(self, key: bytes | Words) -> np.random.Generator:
        """The generator at the start of the stream named by ``key``."""
        words = np.frombuffer(key, "<u8") if isinstance(key, bytes) else key
        self._bits.move(words)
        return self.generator


def stream(seed: int, purpose: str, round: int = 0, silo: int = 0, step: int = 0) -> np.random.Generator:
    """A generator of its own for one purpose, round, silo and step."""
    return Stream().seek(stream_key(seed, purpose, round, silo, step))


class FreshStream:
    """Random bits of a `FreshGenerator`, which has a key of its own from the operating system.

    The key is drawn when the object is made, is never shown, and is gone with the object: the bits cannot be had
    again, by whoever knows the run's seed or by the run itself. It cannot be copied or sent to another process, and a
    forked process draws a key of its own: two holders of one key would draw the same noise.

    Args:
        sums: how many are expected to be noised, see there.
    """

    def __init__(self, sums: int = 1) -> None:
        self._process, self._sums, self._generator = os.getpid(), sums, FreshGenerator(sums)

    def seek(self, key: bytes | Words) -> np.random.Generator:
        """The generator, wherever it is: each draw is fresh, so a name for it means nothing."""
        if self._process != os.getpid():
            self._process, self._generator = os.getpid(), FreshGenerator(self._sums)
        return self._generator

    def __reduce__(self) -> NoReturn:
        raise TypeError("a FreshStream cannot be copied: two of one key would draw the same noise. Make another one.")
