"""Random words by their place, on any torch device: any of them is computed by itself, in any order and all at once.

A place is a stream (row, step), and a pair within it. A pair has four words of 32 bits, which make two 64-bit uniform
numbers; and, for the few that these do not decide, 384 bits more (`device_noise`).

`SeededWords` are those of Philox4x32-10, the same for the same seed. `FreshWords` are the key stream of ChaCha20 under
a key from the operating system: the same for nobody.

The host computes them by numpy and by OpenSSL. A GPU computes them by a kernel each, which torch compiles from C++ when
it is first used, and which is compared with the host then: in torch's own operations words would take hundreds of them,
and a step longer to start these than to compute its gradients. Where it cannot be compiled, the host's are copied.
"""

from __future__ import annotations

import functools
import hashlib
import os
import struct
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

import numpy as np

from dpfl_plugin.core.devices import to_device, to_host
from dpfl_plugin.core.streams import Stream
from dpfl_plugin.late import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
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
        if device.type == "cuda" and agree(self.example, device):
            return self.by_kernel(places, first, last, device)
        return [to_device(word, device) for word in self.by_host(places, first, last)]

    def by_kernel(self, places: Sequence[Place], first: int, last: int, device: torch.device) -> Sequence[Tensor]: ...

    def by_host(self, places: Sequence[Place], first: int, last: int) -> Sequence[Tensor]: ...

    def uniforms(self, place: Place, pair: int) -> tuple[int, int]:
        """256 bits of each of a pair's uniform numbers, the first 64 of which `words` has."""
        ...

    @classmethod
    def example(cls) -> CounterWords:
        """Words of this kind that nobody uses."""
        ...


@functools.cache
def _kernel(code: str, *scalars: str) -> Callable[..., Sequence[Tensor]]:
    """The function of ``code`` on CUDA tensors that broadcast, element by element: int64 of its four outputs.

    Args:
        scalars: its parameters that are numbers, given by name; the tensors come before them, the outputs behind.
    """
    make: Any = torch.cuda.jiterator._create_multi_output_jit_fn
    made: Callable[..., Sequence[Tensor]] = make(code, num_outputs=4, **dict.fromkeys(scalars, 0))
    return made


@functools.cache
def agree(example: Callable[[], CounterWords], device: torch.device) -> bool:
    """Whether a device's kernel computes the host's words: of an example, once a process."""
    words, places, first = example(), [(0, 2**31 - 1), (3, 70)], 2**31 - 4
    for some, last in ((places, first + 1003), (places[:1], first + 1)):
        expected = torch.stack([*words.by_host(some, first, last)])
        try:
            found = to_host(torch.stack([*words.by_kernel(some, first, last, device)]))
        except Exception as error:  # whatever is wrong with the compiler: the host draws the same
            return _not_used(device, str(error))
        if not torch.equal(found, expected):
            return _not_used(device, "its words are not the host's")
    return True


def _not_used(device: torch.device, why: str) -> bool:
    warnings.warn(f"noise for {device} is drawn on the host, which is slower: a kernel failed: {why}", stacklevel=2)
    return False


# Seeded

PHILOX_ROUNDS: Final = 10
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)  # Random123, philox.h: PHILOX_M4x32_0 and _1
WEYL: Final = (0x9E3779B9, 0xBB67AE85)  # PHILOX_W32_0 and _1
_MORE_WORDS: Final = 3  # of 64 bits


def philox(counter: Sequence[NDArray[Any]], key: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Philox4x32-10: four words of output for each counter and key.

    Args:
        counter: four words, key: two, uint64 arrays of numbers in [0, 2^32) that broadcast against each other.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(PHILOX_ROUNDS):
        p, q = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = q >> 32 ^ c1 ^ k0, q & LOW, p >> 32 ^ c3 ^ k1, p & LOW
        k0, k1 = k0 + WEYL[0] & LOW, k1 + WEYL[1] & LOW
    return [c0, c1, c2, c3]


PHILOX: Final = f"""
template <typename T>
void philox(T c0, T c1, T c2, T c3, T k0, T k1, T& w0, T& w1, T& w2, T& w3) {{
    unsigned int a = c0, b = c1, c = c2, d = c3, x = k0, y = k1;
    for (int round = 0; round < {PHILOX_ROUNDS}; ++round) {{
        unsigned long long p = {MULTIPLIERS[0]}ull * a, q = {MULTIPLIERS[1]}ull * c;
        a = (unsigned int)(q >> 32) ^ b ^ x;
        b = (unsigned int)q;
        c = (unsigned int)(p >> 32) ^ d ^ y;
        d = (unsigned int)p;
        x += {WEYL[0]}u;
        y += {WEYL[1]}u;
    }}
    w0 = a; w1 = b; w2 = c; w3 = d;
}}
"""


class SeededWords(CounterWords):
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

    def by_kernel(self, places: Sequence[Place], first: int, last: int, device: torch.device) -> Sequence[Tensor]:
        k0, k1, *upper = to_device(torch.from_numpy(self._names(places)), device)
        return _kernel(PHILOX)(torch.arange(first, last, device=device), *upper, k0, k1)

    def by_host(self, places: Sequence[Place], first: int, last: int) -> Sequence[Tensor]:
        k0, k1, *upper = self._names(places).view(np.uint64)
        drawn = philox((np.arange(first, last, dtype=np.uint64), *upper), (k0, k1))
        return [torch.from_numpy(word.view(np.int64)) for word in drawn]

    def _names(self, places: Sequence[Place]) -> NDArray[np.int64]:
        """(5, m, 1): of 32 bytes, words 0 and 1 are Philox' key, 2 to 4 the upper words of its counter."""
        keys = b"".join(self.key(*place) for place in places)
        words = np.frombuffer(keys, dtype="<u4").reshape(len(places), 8)[:, :5]
        return words.T.astype(np.int64)[:, :, None]

    @classmethod
    def example(cls) -> SeededWords:
        return cls(lambda row, step: hashlib.sha256(struct.pack("<2q", row, step)).digest())

    def uniforms(self, place: Place, pair: int) -> tuple[int, int]:
        w0, w1, w2, w3 = (int(word) for word in self.by_host([place], pair, pair + 1))
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

_FIRST, _MORE = 0, 1  # what a nonce begins with
_KEY: Final = tuple(f"k{n}" for n in range(8))

CHACHA20: Final = """
template <typename T>
void chacha20(T pair, T row, T step, T what, T k0, T k1, T k2, T k3, T k4, T k5, T k6, T k7,
              T& w0, T& w1, T& w2, T& w3) {
    typedef unsigned int word;
    const word start[16] = {
        0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u,
        (word)k0, (word)k1, (word)k2, (word)k3, (word)k4, (word)k5, (word)k6, (word)k7,
        (word)(pair / 4), (word)what, (word)row, (word)step,
    };
    word x[16];
    for (int n = 0; n < 16; ++n) x[n] = start[n];
    auto rotated = [](word v, int bits) { return v << bits | v >> (32 - bits); };
    auto quarter = [&](word& a, word& b, word& c, word& d) {
        a += b; d = rotated(d ^ a, 16);
        c += d; b = rotated(b ^ c, 12);
        a += b; d = rotated(d ^ a, 8);
        c += d; b = rotated(b ^ c, 7);
    };
    #pragma unroll 1
    for (int round = 0; round < 10; ++round) {
        quarter(x[0], x[4], x[8], x[12]);
        quarter(x[1], x[5], x[9], x[13]);
        quarter(x[2], x[6], x[10], x[14]);
        quarter(x[3], x[7], x[11], x[15]);
        quarter(x[0], x[5], x[10], x[15]);
        quarter(x[1], x[6], x[11], x[12]);
        quarter(x[2], x[7], x[8], x[13]);
        quarter(x[3], x[4], x[9], x[14]);
    }
    for (int n = 0; n < 4; ++n)
        if (n == pair % 4) {
            w0 = x[n] + start[n];
            w1 = x[n + 4] + start[n + 4];
            w2 = x[n + 8] + start[n + 8];
            w3 = x[n + 12] + start[n + 12];
        }
}
"""
"""A pair's words of the key stream of ChaCha20 (RFC 8439, section 2.3): of a block's 4 rows and 4 columns, a column."""


class FreshWords(CounterWords):
    """The key stream of ChaCha20 (RFC 8439), under a key of 256 bits from the operating system.

    A block's nonce is its stream and what it is for, its counter its place in the stream: no block is used for two
    things. The key is drawn when the object is made, is never shown, and is gone with the object. Two objects share
    nothing: so one is for one computation of silos' answers, and each place of it is to be used once.
    """

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def by_kernel(self, places: Sequence[Place], first: int, last: int, device: torch.device) -> Sequence[Tensor]:
        rows, steps = to_device(torch.tensor(places), device).unsqueeze(2).unbind(1)
        key = dict(zip(_KEY, struct.unpack("<8I", self._key), strict=True))
        pair = torch.arange(first, last, device=device)
        return _kernel(CHACHA20, "what", *_KEY)(pair, rows, steps, what=_FIRST, **key)

    def by_host(self, places: Sequence[Place], first: int, last: int) -> Sequence[Tensor]:
        start, count = first // 4, (last + 3) // 4 - first // 4
        streams = b"".join(self._blocks(_FIRST, place, start, count) for place in places)
        drawn = np.frombuffer(streams, "<u4").reshape(len(places), count, 4, 4).transpose(2, 0, 1, 3).astype(np.int64)
        return torch.from_numpy(drawn).flatten(2)[:, :, : last - first].unbind(0)

    @classmethod
    def example(cls) -> FreshWords:
        return cls()

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
