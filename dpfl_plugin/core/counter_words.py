"""Random words by their place, in integer tensors on any torch device: any of them is computed by itself, in any order
and all at once.

A place is a stream (row, step), and a pair within it. A pair has four words of 32 bits, which make two 64-bit uniform
numbers; and, for the few that these do not decide, 384 bits more (`device_noise`).

`SeededWords` are those of Philox4x32-10, the same for the same seed. `FreshWords` are the key stream of ChaCha20 under
a key from the operating system: the same for nobody.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

import numpy as np

from dpfl_plugin.core.devices import to_device
from dpfl_plugin.core.streams import Stream
from dpfl_plugin.late import torch

if TYPE_CHECKING:
    from torch import Tensor

Place = tuple[int, int]
"""(row, step): names a stream."""

MOST_PAIRS: Final = 2**32  # of a stream
LOW: Final = 2**32 - 1


class CounterWords(Protocol):
    """Words by their place."""

    def words(self, places: Sequence[Place], first: int, last: int, device: torch.device) -> Sequence[Tensor]:
        """Four tensors (m, last - first) int64 of numbers in [0, 2^32): the words of pairs ``first`` to ``last`` of m
        streams. ``first`` is a multiple of 4."""
        ...

    def uniforms(self, place: Place, pair: int) -> tuple[int, int]:
        """256 bits of each of a pair's uniform numbers, the first 64 of which `words` has."""
        ...


# Seeded

PHILOX_ROUNDS: Final = 10
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)  # Random123, philox.h: PHILOX_M4x32_0 and _1
WEYL: Final = (0x9E3779B9, 0xBB67AE85)  # PHILOX_W32_0 and _1
_MORE_WORDS: Final = 3  # of 64 bits


def philox(counter: Sequence[Tensor], key: Sequence[Tensor]) -> list[Tensor]:
    """Philox4x32-10: four words of output for each counter and key.

    Args:
        counter: four words, key: two, int64 tensors of numbers in [0, 2^32) that broadcast against each other.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(PHILOX_ROUNDS):
        high0, low0 = _product(c0, MULTIPLIERS[0])
        high1, low1 = _product(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) & LOW, (k1 + WEYL[1]) & LOW
    return [c0, c1, c2, c3]


def _product(a: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """High and low word of a * multiplier, for a < 2^32 <= 2 * multiplier.

    Nothing exceeds 63 bits on the way: with multiplier = 2^31 + rest and a * rest = p, the product is
    (p // 2^31 + a) * 2^31 + p % 2^31.
    """
    p = a * (multiplier - 2**31)
    upper = (p >> 31).add_(a)
    low = p.bitwise_and_(2**31 - 1).bitwise_or_((upper & 1).bitwise_left_shift_(31))
    return upper.bitwise_right_shift_(1), low


class SeededWords:
    """Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3).

    It maps a key of 64 bits and a counter of 128 to a block of 128: a pair. Of the 256-bit key that names a stream
    (`streams.stream_key`), 160 bits are used: 64 as Philox' key and 96 as the upper words of the counter; the lowest
    word counts pairs. Two streams of other 160 bits have no block's input in common. That two of 2^40 streams agree in
    them, keys being hashes, has probability 2^-81.

    Args:
        key: the 32-byte name of the stream of a row and step.
    """

    def __init__(self, key: Callable[[int, int], bytes]) -> None:
        self.key = key

    def words(self, places: Sequence[Place], first: int, last: int, device: torch.device) -> Sequence[Tensor]:
        keys = b"".join(self.key(*place) for place in places)
        # Of 32 bytes: words 0 and 1 are Philox' key, 2 to 4 the upper words of its counter.
        names = np.frombuffer(keys, dtype="<u4").reshape(len(places), 8)[:, :5].astype(np.int64)
        named = to_device(torch.from_numpy(names.T.copy()), device).unsqueeze(2)  # (5, m, 1)
        pair = torch.arange(first, last, device=device).expand(len(places), -1)
        return philox((pair, *named[2:]), (named[0], named[1]))

    def uniforms(self, place: Place, pair: int) -> tuple[int, int]:
        w0, w1, w2, w3 = (int(word) for word in self.words([place], pair, pair + 1, torch.device("cpu")))
        name = self.key(*place) + pair.to_bytes(8, "little")
        name = hashlib.blake2b(name, digest_size=32, person=b"dpfl.device.more").digest()
        more = Stream().seek(name).bit_generator.random_raw
        u, v = ((high << 32 | low, *more(_MORE_WORDS).tolist()) for high, low in ((w0, w1), (w2, w3)))
        return _joined(u, 64), _joined(v, 64)


def _joined(words: Sequence[int], bits: int) -> int:
    """One number of words, the first the highest."""
    number = 0
    for word in words:
        number = number << bits | word
    return number


# Fresh

_CONSTANT: Final = np.frombuffer(b"expand 32-byte k", "<i4")
_ROTATIONS: Final = (16, 12, 8, 7)
_FIRST, _MORE = 0, 1  # what a nonce begins with


def chacha20(key: bytes, counter: Tensor, nonce: Sequence[Tensor]) -> Tensor:
    """The key stream of ChaCha20 (RFC 8439, section 2.3): (16, m, n) int32 words of blocks.

    Words are added modulo 2^32: torch's integers wrap around, on every device.

    Args:
        key: 32 bytes. counter: (n,), nonce: three of (m,); int32.
    """
    shape = len(nonce[0]), len(counter)
    start = to_device(torch.from_numpy(np.concatenate([_CONSTANT, np.frombuffer(key, "<i4")])), counter.device)
    d0 = torch.stack([counter.expand(shape), *(word.unsqueeze(1).expand(shape) for word in nonce)])
    rows = [*start.view(3, 4, 1, 1), d0]
    a, b, c, d = (row.expand(4, *shape).clone() for row in rows)
    for _ in range(10):
        a, b, c, d = _quarters(a, b, c, d)
        a, b, c, d = _quarters(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.cat([mixed.add_(row) for mixed, row in zip((a, b, c, d), rows, strict=True)])


def _quarters(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four quarter rounds at once, of the columns of (4, 4)."""
    for first, second in (_ROTATIONS[:2], _ROTATIONS[2:]):
        a += b
        d = _rotated(d.bitwise_xor_(a), first)
        c += d
        b = _rotated(b.bitwise_xor_(c), second)
    return a, b, c, d


def _rotated(x: Tensor, bits: int) -> Tensor:
    """To the left; the shift to the right keeps the sign, which is cut off."""
    return x.bitwise_right_shift(32 - bits).bitwise_and_(2**bits - 1).add_(x, alpha=2**bits)


class FreshWords:
    """The key stream of ChaCha20 (RFC 8439), under a key of 256 bits from the operating system.

    A block's nonce is its stream and what it is for, its counter its place in the stream: no block is used for two
    things. The key is drawn when the object is made, is never shown, and is gone with the object. Two objects share
    nothing: so one is for one computation of silos' answers, and each place of it is to be used once.
    """

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def words(self, places: Sequence[Place], first: int, last: int, device: torch.device) -> Sequence[Tensor]:
        blocks = self._by_openssl if device.type == "cpu" else self._by_tensors  # the former a tenth of the time
        return blocks(places, first // 4, (last + 3) // 4, device).flatten(2)[:, :, : last - first].unbind(0)

    def _by_tensors(self, places: Sequence[Place], first: int, last: int, device: torch.device) -> Tensor:
        """(4, m, last - first, 4): of a block's 4 rows and 4 columns of words, a column is a pair."""
        nonce = torch.tensor([(_FIRST, *place) for place in places], dtype=torch.int32)
        counter = torch.arange(first, last, dtype=torch.int32, device=device)
        drawn = chacha20(self._key, counter, to_device(nonce, device).unbind(1))
        return drawn.view(4, 4, *drawn.shape[1:]).permute(0, 2, 3, 1).long().bitwise_and_(LOW)

    def _by_openssl(self, places: Sequence[Place], first: int, last: int, _: torch.device) -> Tensor:
        """As `_by_tensors`, on the host."""
        streams = b"".join(self._blocks(_FIRST, place, first, last - first) for place in places)
        drawn = np.frombuffer(streams, "<u4").reshape(len(places), last - first, 4, 4)
        return torch.from_numpy(drawn.transpose(2, 0, 1, 3).astype(np.int64))

    def uniforms(self, place: Place, pair: int) -> tuple[int, int]:
        first = self._block(_FIRST, place, pair // 4)[pair % 4 :: 4]
        more = self._block(_MORE, place, pair)
        return _joined(first[:2] + more[:6], 32), _joined(first[2:] + more[6:12], 32)

    def _block(self, what: int, place: Place, counter: int) -> list[int]:
        """16 words."""
        return list(struct.unpack("<16I", self._blocks(what, place, counter, 1)))

    def _blocks(self, what: int, place: Place, first: int, count: int) -> bytes:
        """Of 64 bytes each, by OpenSSL."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        nonce = struct.pack("<4I", first, what, *place)  # OpenSSL has the counter before it
        encryptor = Cipher(algorithms.ChaCha20(self._key, nonce), mode=None).encryptor()
        return encryptor.update(bytes(64 * count))

    def __reduce__(self) -> NoReturn:
        raise TypeError("random bits that nobody can repeat cannot be copied: two holders would draw the same noise.")
