"""Noise that is computed on the device: the published numbers, no stream like another, standard normals."""

from __future__ import annotations

import copy
import ctypes
import itertools
import math
import pickle
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from dpfl_plugin.core import counter_words, device_noise
from dpfl_plugin.core.counter_words import CounterWords, FreshWords, SeededWords, philox
from dpfl_plugin.core.device_noise import DeviceNoise
from dpfl_plugin.core.streams import stream_key

ALPHA = 1e-7  # false alarm of each statistical assertion; streams are fixed, so it can only fail once
CUDA = torch.cuda.is_available()
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="torch sees no CUDA device")]),
]
LOW = 2**32 - 1
# Random123 1.14, tests/kat_vectors: counter, key, output of philox4x32 with 10 rounds.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
# RFC 8439: key, counter, nonce, key stream.
CHACHA20 = [
    (
        bytes(range(32)),
        1,
        bytes.fromhex("000000090000004a00000000"),
        "10f1e7e4d13b5915500fdd1fa32071c4 c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2 b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    (
        bytes(32),
        0,
        bytes(12),
        "76b8e0ada0f13d90405d6ae55386bd28 bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a37 6a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        bytes(32),
        1,
        bytes(12),
        "9f07e7be5551387a98ba977c732d080d cb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d5 31ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        bytes(31) + b"\1",
        1,
        bytes(12),
        "3aeb5224ecf849929b9d828db1ced4dd 832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd 4e273644c8b36125a64addeb006c13a0",
    ),
    (
        b"\0\xff" + bytes(30),
        2,
        bytes(12),
        "72d54dfbf12ec44b362692df94137f32 8fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c09 24a66c54d545ec1b7374f4872e99f096",
    ),
    (
        bytes(32),
        0,
        bytes(11) + b"\2",
        "c2c64d378cd536374ae204b9ef933fcd 1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f7 5f8fc299e8148362fa198a39531bed6d",
    ),
]
Kernel = Callable[..., Callable[..., Sequence[Tensor]]]
word = st.one_of(st.integers(0, LOW), st.sampled_from([0, 1, 2**16 - 1, 2**16, 2**31 - 1, 2**31, LOW]))


def words(text: str) -> list[NDArray[np.uint64]]:
    return [np.array([int(part, 16)], dtype=np.uint64) for part in text.split()]


@pytest.fixture(scope="module")
def by_host() -> Iterator[Kernel]:
    """`counter_words._kernel`, compiled for the host: what a GPU computes, where there is none."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler, c++")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "words.cpp"), Path(folder, "words.so")
        calls = []
        for code, name, inputs in ((counter_words.PHILOX, "philox", 6), (counter_words.CHACHA20, "chacha20", 12)):
            values = ", ".join([*(f"in[{n}]" for n in range(inputs)), *(f"out[{n}]" for n in range(4))])
            calls.append(f'{code}extern "C" void {name}_(long long* in, long long* out) {{ {name}({values}); }}')
        source.write_text("\n".join(calls))
        subprocess.run([compiler, "-std=c++14", "-O1", "-shared", "-fPIC", "-w", source, "-o", library], check=True)
        loaded = ctypes.CDLL(str(library))

        def kernel(code: str, *names: str) -> Callable[..., list[Tensor]]:
            function = loaded.philox_ if code is counter_words.PHILOX else loaded.chacha20_

            def call(*tensors: Tensor, **numbers: int) -> list[Tensor]:
                inputs = torch.broadcast_tensors(*tensors, *(torch.tensor(numbers[name]) for name in names))
                rows = torch.stack(inputs, -1).flatten(0, -2).contiguous()
                found = torch.empty(len(rows), 4, dtype=torch.int64)
                for row, out in zip(rows, found, strict=True):
                    function(ctypes.c_void_p(row.data_ptr()), ctypes.c_void_p(out.data_ptr()))
                return list(found.view(*inputs[0].shape, 4).unbind(-1))

            return call

        yield kernel


def seeded(keys: list[bytes]) -> SeededWords:
    """Those of streams of these names, at the first step."""
    return SeededWords(lambda row, step: keys[row])


def normals(keys: list[bytes], count: int, device: str = "cpu") -> Tensor:
    places = [(row, 0) for row in range(len(keys))]
    return device_noise.normals(seeded(keys), places, count, torch.device(device))


def integers(keys: list[bytes], count: int, stds: list[float], device: str = "cpu") -> Tensor:
    places = [(row, 0) for row in range(len(keys))]
    return device_noise.rounded(seeded(keys), places, normals(keys, count, device), stds)


def exact(key: bytes, index: int, std: float) -> int:
    return device_noise.exact(seeded([key]), (0, 0), index, std)


def draws(keys: list[bytes], count: int) -> NDArray[np.float64]:
    """Normals; 0 where they are left to the exact way, which is once in 2^19."""
    return np.nan_to_num(normals(keys, count).numpy())


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_known_answers(by_host: Kernel, counter: str, key: str, output: str) -> None:
    inputs = [torch.from_numpy(word.view(np.int64)) for word in words(counter) + words(key)]
    for found in (philox(words(counter), words(key)), by_host(counter_words.PHILOX)(*inputs)):
        assert " ".join(f"{int(value[0]):08x}" for value in found) == output


@pytest.fixture(scope="module")
def Philox() -> Any:
    return pytest.importorskip("randomgen", reason="a reference, which not every environment has").Philox


@settings(max_examples=60, deadline=None)
@given(counter=st.tuples(word, word, word, word), key=st.tuples(word, word))
def test_the_integers_of_another_implementation(Philox: Any, counter: tuple[int, ...], key: tuple[int, ...]) -> None:
    """randomgen counts once before its first block."""
    whole = sum(value << 32 * place for place, value in enumerate(counter))
    before = (whole - 1) % 2**128
    other = Philox(counter=before, key=key[0] + (key[1] << 32), number=4, width=32)
    found = philox(*([np.array([value], dtype=np.uint64) for value in part] for part in (counter, key)))
    assert [int(value[0]) for value in found] == other.random_raw(4).tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_normals_are_those_of_the_definition(Philox: Any, device: str) -> None:
    """In numpy, from randomgen's integers; the device's ln, cos and sin may differ by a few units in the last place."""
    key = stream_key(7, "noise", 1, 2, 3)
    name = [int(value) for value in np.frombuffer(key, "<u4")]
    counter = sum(value << 32 * (place + 1) for place, value in enumerate(name[2:5]))
    # A block, of a block number that is its lowest word, begins one before it in randomgen's count.
    other = Philox(counter=(counter - 1) % 2**128, key=name[0] + (name[1] << 32), number=4, width=32)
    raw = other.random_raw(4 * 500).astype(np.float64).reshape(500, 4)
    u, v = (raw[:, 1] + 0.5) / 2.0**64 + raw[:, 0] / 2.0**32, raw[:, 3] / 2.0**64 + raw[:, 2] / 2.0**32
    r = np.sqrt(-2 * np.where(u < 0.5, np.log(u), np.log1p(-(1 - u))))
    expected = np.stack([r * np.cos(2 * np.pi * v), r * np.sin(2 * np.pi * v)], axis=1).ravel()
    found = normals([key], 999, device).cpu().numpy()[0]
    np.testing.assert_allclose(found, expected[:999], rtol=0, atol=1e-14)


@settings(max_examples=40, deadline=None)
@given(count=st.integers(0, 70), pairs=st.integers(1, 40), silos=st.integers(1, 5))
def test_a_stream_is_the_same_alone_and_among_others(count: int, pairs: int, silos: int) -> None:
    keys = [stream_key(1, "noise", silo=silo) for silo in range(silos)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(device_noise.PAIRS, "cpu", pairs)
        together = normals(keys, count)
    assert together.shape == (silos, count)
    for row, key in enumerate(keys):
        assert torch.equal(together[row], normals([key], count)[0])
        assert torch.equal(together[row], normals([key], count + 3)[0, :count])


def test_every_part_of_a_name_counts() -> None:
    """Seed, purpose, round, silo and step: no two streams share a number, whatever the place."""
    names = list(itertools.product((0, 1), ("noise", "batch"), (0, 1), (0, 1), (0, 1)))
    found = draws([stream_key(*name) for name in names], 50)
    assert len(np.unique(found)) == found.size


def test_every_one_of_160_bits_of_a_key_counts() -> None:
    key = stream_key(7, "noise")
    found = [draws([key], 40)]
    for bit in range(160):
        other = bytearray(key)
        other[bit // 8] ^= 1 << bit % 8
        found.append(draws([bytes(other)], 40))
    assert len(np.unique(np.stack(found))) == 161 * 40


def test_a_stream_ends() -> None:
    with pytest.raises(ValueError, match="it has 8589934592"):
        normals([stream_key(0, "noise")], 2**33 + 1)


@pytest.mark.parametrize("device", DEVICES)
def test_radii_that_64_bits_do_not_tell_are_left_to_the_exact_way(device: str) -> None:
    """u below 2^-19, or within 2^-32 of 1; all others, the ends included, are within a 2^-48th of themselves."""
    high = [0, 2**13 - 1, 2**13, 2**31 - 1, 2**31, LOW - 1, LOW]
    for low in (0, 1, LOW):
        given = [torch.tensor(words, device=device) for words in (high, [low] * len(high))]
        for n, found in zip(high, device_noise._radius(*given).tolist(), strict=True):
            if 2**13 <= n < LOW:
                with mpmath.workdps(40):
                    u = (mpmath.mpf(n * 2**32 + low) + 0.5) / 2**64
                    assert abs(found / mpmath.sqrt(-2 * mpmath.log(u)) - 1) < 2**-48
            else:
                assert math.isnan(found)


def exactly(key: bytes, index: int, u_bits: int, v_bits: int) -> mpmath.mpf:
    """The normal of a block whose uniforms go on with these 64 bits."""
    name = [np.array([word], dtype=np.uint64) for word in np.frombuffer(key, "<u4")[:5]]
    w = [int(word[0]) for word in philox([np.array([index // 2], dtype=np.uint64), *name[2:]], name[:2])]
    u = (mpmath.mpf(w[0] << 96 | w[1] << 64 | u_bits) + 0.5) / 2**128
    v = (mpmath.mpf(w[2] << 96 | w[3] << 64 | v_bits) + 0.5) / 2**128
    turn = mpmath.sin if index % 2 else mpmath.cos
    return mpmath.sqrt(-2 * mpmath.log(u)) * turn(2 * mpmath.pi * v)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_normals_are_as_near_to_the_exact_ones_as_is_said(device: str) -> None:
    """Whatever bits follow, to a sixteenth of `NEAR`: the rest of it is room for other devices."""
    key = stream_key(2, "noise")
    found = normals([key], 1000, device).tolist()[0]
    with mpmath.workdps(60):
        off = [abs(x - exactly(key, n, bits, bits)) for n, x in enumerate(found) for bits in (0, 2**64 - 1)]
    assert max(off) < device_noise.NEAR / (4 if device == "cuda" else 16)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("std", [0.4, 2.0**20, 2.0**38])
def test_integers_are_rounded_normals(device: str, std: float) -> None:
    """All of them as the exact way has them, which a number in 60 takes at the largest deviation."""
    keys = [stream_key(3, "noise", silo=silo) for silo in range(2)]
    found = integers(keys, 150, [std, 2 * std], device)
    for row, key in enumerate(keys):
        assert found[row].tolist() == [exact(key, n, (row + 1) * std) for n in range(150)]


def test_what_lies_near_the_middle_of_two_integers_is_decided_by_more_bits() -> None:
    """At deviations that put a number there as well as floats can; half of them would be rounded the wrong way."""
    key = stream_key(6, "noise")
    for index, x in enumerate(normals([key], 40).tolist()[0]):
        std = (math.floor(2.0**36 * abs(x)) + 0.5) / abs(x)
        assert integers([key], 40, [std])[0, index].item() == exact(key, index, std)


def test_the_exact_way_goes_on_with_bits_of_its_own() -> None:
    """At 2^120 steps a deviation it shows: the bits that follow are the same each time, and for each number others."""
    keys = [stream_key(4, "noise", silo=silo) for silo in range(2)]
    found = {(key, n): exact(key, n, 2.0**120) for key in keys for n in range(6)}
    again = {(key, n): exact(key, n, 2.0**120) for key in keys for n in range(6)}
    assert found == again
    with mpmath.workdps(80):
        rests = [value - exactly(key, n, 0, 0) * 2**120 for (key, n), value in found.items()]
        assert len({mpmath.nstr(rest, 10) for rest in rests}) == len(rests)
        assert all(
            abs(rest) < 2**61 for rest in rests
        )  # of the first 64 bits they leave 2^-64, times 2 pi r or 1 / (u r)


def test_logarithms_sines_and_cosines_have_their_digits() -> None:
    most = 2**257
    for u in (1, 3, 2**93 + 1, 2**193 - 1, most // 8, most // 3, most * 3 // 4, most - 2**190 - 1, most - 1):
        with mpmath.workdps(120):
            angle = 2 * mpmath.pi * u / most
            expected = [mpmath.cos(angle), mpmath.sin(angle), -mpmath.log(mpmath.mpf(u) / most)]
            found = [*device_noise._cos_and_sin(u), device_noise._minus_ln(u)]
            off = [abs(mpmath.mpf(value) / 2**272 - x) for value, x in zip(found, expected, strict=True)]
            assert max(off) < mpmath.mpf(2) ** -256


@pytest.mark.parametrize("device", DEVICES)
def test_sums_on_the_device_are_rounded_to_the_grid_first(device: str) -> None:
    totals = torch.tensor([[0.26, math.nan, 1e300], [-0.26, -math.inf, 7.0]], dtype=torch.float64, device=device)
    keys, stds = [stream_key(5, "noise", silo=silo) for silo in range(2)], [9.0, 99.0]
    made, out = noise(seeded(keys), stds, count=3, steps=1, device=device), torch.empty_like(totals)
    made.add_rounded(totals, 0, slice(0, 2), [0.25, 0.5], stds, out)
    drawn = integers(keys, 3, stds)
    assert (out.cpu() / torch.tensor([[0.25], [0.5]]) - drawn).tolist() == [[1, 0, 2.0**51], [-1, -(2.0**51), 14]]


@pytest.mark.parametrize("std", [0.0, math.nan, 2.0**41])
def test_deviations_that_are_refused(std: float) -> None:
    with pytest.raises(ValueError, match=r"at most 2\^40"):
        integers([stream_key(0, "noise")], 1, [std])


def far(z: NDArray[np.float64]) -> bool:
    """Something that a test of standard normals would notice, at false alarm below 5 ALPHA."""
    size = z.size
    tails = [stats.binomtest(int((z > b).sum()), size, stats.norm.sf(b)).pvalue for b in (3.0, 4.0)]
    tails += [stats.binomtest(int((z < -b).sum()), size, stats.norm.sf(b)).pvalue for b in (3.0, 4.0)]
    return bool(min(stats.kstest(z, "norm").pvalue, *tails) < ALPHA)


@pytest.mark.statistical
@pytest.mark.parametrize("layout", ["one stream", "many streams"])
def test_standard_normals(layout: str) -> None:
    """A million of one stream, and the first ten of many: a radius is not taken for an angle, nor cos for sin."""
    if layout == "one stream":
        z = draws([stream_key(3, "noise")], 1_000_000)[0]
    else:
        z = draws([stream_key(3, "noise", 0, silo, step) for silo in range(200) for step in range(500)], 10).ravel()
    assert not far(z)
    for wrong in (1.02 * z, z + 0.02, np.clip(z, -3.8, 3.8), np.where(np.arange(z.size) % 50 == 0, 0.0, z)):
        assert far(wrong), "power"


@pytest.mark.statistical
def test_neither_pairs_of_a_block_nor_neighbouring_streams_correlate() -> None:
    """Normals and their squares, |r| < 5.4 / sqrt(n); a correlation of 0.03 in 100,000 pairs would show."""
    n = 100_000
    bound = stats.norm.isf(ALPHA / 2) / math.sqrt(n)
    pair = draws([stream_key(5, "noise")], 2 * n)[0].reshape(n, 2)
    by_silo = draws([stream_key(5, "noise", silo=silo) for silo in (1, 2)], n)
    by_step = draws([stream_key(5, "noise", step=step) for step in (1, 2)], n)
    for one, other in (pair.T, by_silo, by_step, (pair[:-1, 1], pair[1:, 0])):
        assert abs(np.corrcoef(one, other)[0, 1]) < bound
        assert abs(np.corrcoef(one**2, other**2)[0, 1]) < bound * 1.1  # heavier tails: a little wider
        assert abs(np.corrcoef(one, other + 0.03 * one)[0, 1]) > bound, "power"


# Ahead of the steps


def noise(
    words: CounterWords, stds: list[float], *, count: int, steps: int, device: str = "cpu", known: bool = True
) -> DeviceNoise:
    how = {"rows": len(stds), "count": count, "steps": steps, "device": torch.device(device)}
    return DeviceNoise(words, **how, stds=(lambda step: stds) if known else None)  # type: ignore[arg-type]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("steps", [1, 4, 7])
@pytest.mark.parametrize("ahead_bytes", [1, 3 * 5 * 8 * 2, 2**20])
def test_what_is_drawn_ahead_is_what_each_step_would_draw(
    known: bool, steps: int, ahead_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is drawn at a time, and whether a step asks for all rows or one after another."""
    monkeypatch.setattr(device_noise, "AHEAD_BYTES", ahead_bytes)
    stds, words = [1e3, 2e9, 0.3], SeededWords(lambda row, step: stream_key(1, "noise", silo=row, step=step))
    made = noise(words, stds, count=5, steps=steps, known=known)
    for step in range(steps):
        places = [(row, step) for row in range(3)]
        rows = [slice(0, 3)] if step % 2 else [slice(0, 1), slice(1, 3)]
        found = torch.cat([made.integers(step, part, stds[part]) for part in rows])
        values = device_noise.normals(words, places, 5, torch.device("cpu"))
        assert torch.equal(found, device_noise.rounded(words, places, values, stds))


def test_noise_is_handed_out_once_and_as_it_was_drawn() -> None:
    made = noise(FreshWords(), [4.0, 5.0], count=6, steps=2)
    made.integers(0, slice(1, 2), [5.0])
    for step, rows, stds in ((0, slice(1, 2), [5.0]), (0, slice(0, 1), [4.0])):
        with pytest.raises(ValueError, match="handed out once"):
            made.integers(step, rows, stds)
    with pytest.raises(ValueError, match="other deviations"):
        made.integers(1, slice(0, 1), [4.5])
    for step in (2, 3):  # again: the last noise is not handed out instead
        with pytest.raises(ValueError, match="more than 2 steps"):
            made.integers(step, slice(0, 1), [4.0])


def test_after_an_error_while_noise_is_drawn_none_is_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = device_noise.normals

    def short(words: CounterWords, places: list[tuple[int, int]], *args: object) -> Tensor:
        if any(step >= 3 for _, step in places):
            raise torch.OutOfMemoryError("no memory")
        return real(words, places, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(device_noise, "normals", short)
    monkeypatch.setattr(device_noise, "AHEAD_BYTES", 3 * 6 * 8)
    made = noise(FreshWords(), [4.0], count=6, steps=9)
    for step in range(3):
        made.integers(step, slice(0, 1), [4.0])
    for step in range(3, 7):
        with pytest.raises(torch.OutOfMemoryError):
            made.integers(step, slice(0, 1), [4.0])


# Fresh


def chacha20(kernel: Kernel, key: bytes, counters: Tensor, nonce: bytes) -> bytes:
    """The key stream of blocks, of each of which four pairs have the columns."""
    names = [f"k{n}" for n in range(8)]
    numbers = dict(zip(["what", *names], struct.unpack("<I", nonce[:4]) + struct.unpack("<8I", key), strict=True))
    places = [torch.tensor([[word]], device=counters.device) for word in struct.unpack("<2I", nonce[4:])]
    pairs = (4 * counters.unsqueeze(1) + torch.arange(4, device=counters.device)).flatten()
    found = kernel(counter_words.CHACHA20, *numbers)(pairs, *places, **numbers)
    blocks = torch.stack([*found]).view(4, len(counters), 4).transpose(0, 1)
    return blocks.cpu().numpy().astype("<u4").tobytes()


@pytest.mark.parametrize("device", DEVICES)
def test_chacha20_has_the_published_key_streams(device: str, request: pytest.FixtureRequest) -> None:
    """RFC 8439: section 2.3.2, and appendix A.1."""
    kernel = counter_words._kernel if device == "cuda" else request.getfixturevalue("by_host")
    for key, counter, nonce, expected in CHACHA20:
        found = chacha20(kernel, key, torch.tensor([counter], device=device), nonce)
        assert found.hex() == expected.replace(" ", "")


@settings(max_examples=30, deadline=None)
@given(key=st.binary(min_size=32, max_size=32), counter=st.integers(0, 2**31 - 8), place=st.tuples(word, word, word))
def test_chacha20_is_that_of_openssl(by_host: Kernel, key: bytes, counter: int, place: tuple[int, int, int]) -> None:
    nonce = struct.pack("<3I", *place)
    openssl = Cipher(algorithms.ChaCha20(key, struct.pack("<I", counter) + nonce), mode=None).encryptor()
    assert chacha20(by_host, key, torch.arange(counter, counter + 5), nonce) == openssl.update(bytes(5 * 64))


@pytest.mark.parametrize("device", DEVICES)
@given(first=st.integers(0, 9).map(lambda n: 4 * n), count=st.integers(1, 11))
@settings(max_examples=20, deadline=None)
def test_the_bits_that_decide_begin_with_those_that_did_not(device: str, first: int, count: int) -> None:
    words, places = FreshWords(), [(0, 0), (3, 70)]
    for drawn in (words, SeededWords(lambda row, step: stream_key(1, "noise", silo=row, step=step))):
        found = [word.cpu() for word in drawn.words(places, first, first + count, torch.device(device))]
        for row, place in enumerate(places):
            for pair in range(count):
                w0, w1, w2, w3 = (int(word[row, pair]) for word in found)
                u, v = drawn.uniforms(place, first + pair)
                assert (u >> 192, v >> 192) == (w0 << 32 | w1, w2 << 32 | w3)
                assert max(u, v) < 2**256


def test_no_block_of_a_key_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits that decide come from blocks that no words come from; and of 2 x 3 streams no two share one."""
    blocks: list[tuple[int, ...]] = []

    class Seen(FreshWords):
        def _blocks(self, what: int, place: tuple[int, int], first: int, count: int) -> bytes:
            blocks.extend((number, what, *place) for number in range(first, first + count))
            return super()._blocks(what, place, first, count)

    monkeypatch.setitem(device_noise.PAIRS, "cpu", 8)
    words, places = Seen(), [(row, step) for step in range(3) for row in range(2)]
    device_noise.normals(words, places, 101, torch.device("cpu"))
    assert len(set(blocks)) == len(blocks) == 6 * 13
    # `uniforms` reads the words of a pair again, and one block more.
    blocks.clear()
    for place in places:
        for pair in range(51):
            words.uniforms(place, pair)
    more = [block for block in blocks if block[1] == 1]
    assert len(set(more)) == len(more) == 6 * 51 and not {block[1] for block in blocks} - {0, 1}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [FreshWords, SeededWords])
def test_a_kernel_and_the_host_draw_the_same_words(
    kind: Any, device: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they do not, or there is no kernel, it is not used."""
    if device == "cpu":
        monkeypatch.setattr(counter_words, "_kernel", request.getfixturevalue("by_host"))
    agree, kernel = counter_words.agree.__wrapped__, counter_words._kernel
    assert agree(kind.example, torch.device(device))
    words, places = kind.example(), [(0, 2**31 - 1), (3, 70), (2**31 - 1, 0)]
    for first, last in ((0, 1), (0, 4099), (2**32 - 12, 2**32)):
        found = torch.stack([*words.by_kernel(places, first, last, torch.device(device))]).cpu()
        assert torch.equal(found, torch.stack([*words.by_host(places, first, last)]))

    def wrong(*args: str) -> Callable[..., list[Tensor]]:
        return lambda *inputs, **numbers: [word.roll(1, -1) for word in kernel(*args)(*inputs, **numbers)]

    for other in (wrong, None):
        monkeypatch.setattr(counter_words, "_kernel", other)
        with pytest.warns(UserWarning, match="drawn on the host, which is slower"):
            assert not agree(kind.example, torch.device(device))


def test_fresh_words_are_nobodys_else() -> None:
    """Two objects have keys of their own, which neither pickle nor copy takes along."""
    place, cpu = [(0, 0)], torch.device("cpu")
    one, other = (torch.stack([*FreshWords().words(place, 0, 64, cpu)]) for _ in range(2))
    assert len(torch.cat([one.flatten(), other.flatten()]).unique()) > 500  # of 512; false alarm below 1e-60
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied"):
            copied(FreshWords())


@pytest.mark.statistical
@pytest.mark.parametrize("std", [40.0, 2.0**21])
def test_fresh_integers_have_the_law_of_rounded_normals(std: float) -> None:
    """200,000 of 4 streams, in bins of a tenth of a deviation; false alarm 1e-7. A deviation 2 % too large shows."""
    edges = np.concatenate([[-math.inf], np.round(np.arange(-30, 31) * std / 10) - 0.5, [math.inf]])
    expected = 200_000 * np.diff(stats.norm.cdf(edges / std))
    drawn = noise(FreshWords(), [std] * 4, count=50_000, steps=1).integers(0, slice(0, 4), [std] * 4).numpy()
    p_values = [stats.chisquare(np.histogram(by * drawn, edges)[0], expected).pvalue for by in (1.0, 1.02)]
    assert p_values[0] > ALPHA > p_values[1]
