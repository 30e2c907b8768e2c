"""Kernels against numpy, whose numbers they have to draw bit for bit."""

import sys
import types

import numpy as np
import pytest
import torch

from dpfl_plugin.core import draws
from dpfl_plugin.core.streams import SecureStream, Stream, SumOfFour
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.samplers import FixedSize

numba = pytest.importorskip("numba", reason="kernels need numba: pip install 'dpfl-plugin[fast]'")

from dpfl_plugin.core import sfc64  # noqa: E402


@pytest.fixture(params=["numpy", "kernels"])
def way(request, monkeypatch):
    """Both ways of drawing: numpy alone, and kernels from the first number on."""
    made = draws.Kernels(worth=2**62 if request.param == "numpy" else 1)
    monkeypatch.setattr(draws, "kernels", made)
    assert made.of(generators(0)[0], 10**4) is (None if request.param == "numpy" else sfc64)
    return request.param


def generators(seed, half=False):
    """Two of the same state; with ``half`` a 32-bit half of a word is left over in each."""
    made = [np.random.Generator(np.random.SFC64(seed)) for _ in range(2)]
    for generator in made if half else ():
        generator.integers(2**32, dtype=np.uint32)
    return made


def state(generator):
    found = generator.bit_generator.state
    return (*found["state"]["state"].tolist(), found["has_uint32"], found["uinteger"])


def test_ten_million_normals_are_numpys():
    """Among them are some 2,600 from the tail."""
    numpys, ours = generators(1)
    expected, found = numpys.standard_normal(10**7), np.empty(10**7)
    draws._normals(sfc64, ours, found)
    assert np.array_equal(found, expected)
    assert state(ours) == state(numpys)
    assert (np.abs(found) > sfc64.R).sum() > 2000


@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("strip", range(256))
def test_normals_at_the_edge_of_every_strip_are_numpys(strip, sign):
    """A word at will: it is the sum of the state's first two and its counter. The rest decides on points at an edge."""
    sure = int(sfc64.SURE[strip])
    for bits in {0, 1, max(sure - 1, 0), sure, sure + 1, 2**52 - 1}:
        for rest in range(8):
            name = np.array([bits << 9 | sign << 8 | strip, 0, rest * 0x9E3779B97F4A7C15 % 2**64, 0], np.uint64)
            numpys, ours = Stream().seek(name), Stream().seek(name)
            assert np.array_equal(draws._normals(sfc64, ours, np.empty(1)), numpys.standard_normal(1))
            assert state(ours) == state(numpys)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    ("num_all", "size"), [(1, 1), (2, 1), (10, 10), (7, 3), (4000, 800), (4000, 801), (10_000, 64), (10_000, 10_000)]
)
def test_subsets_are_numpys(num_all, size, half):
    for seed in range(20):
        numpys, ours = generators(seed, half)
        found = draws._subset(sfc64, ours, num_all, np.empty(size, np.int64))
        assert np.array_equal(found, numpys.choice(num_all, size, replace=False, shuffle=False))
        assert state(ours) == state(numpys)


def test_a_word_that_would_favour_some_members_is_drawn_again():
    """Lemire's rejection: 2^32 is no multiple of 10,000. Both halves of the first word are 0, and too many."""
    name = np.array([0, 0, 0x1234567890ABCDEF, 0], np.uint64)
    numpys, ours = Stream().seek(name), Stream().seek(name)
    found = draws._subset(sfc64, ours, 10_000, np.empty(1, np.int64))
    assert np.array_equal(found, numpys.choice(10_000, 1, replace=False, shuffle=False))
    counter = state(ours)[3]
    assert state(ours) == state(numpys) and counter >= 2


@pytest.mark.parametrize("half", [False, True])
def test_what_is_drawn_next_goes_on_where_numpy_would(half, way):
    numpys, ours = generators(3, half)
    for count in (1000, 7, 300):
        assert np.array_equal(draws.normals(ours, count), numpys.standard_normal(count))
        assert np.array_equal(
            draws.subset(ours, 2 * count, count), numpys.choice(2 * count, count, replace=False, shuffle=False)
        )
        assert state(ours) == state(numpys)


def test_subsets_of_many_are_numpys(way):
    numpys, ours = generators(4)
    assert np.array_equal(
        draws.subset(ours, 50_000, 20_000), numpys.choice(50_000, 20_000, replace=False, shuffle=False)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("count", [3, 5000])
def test_noise_is_drawn_in_float64_and_rounded_once(dtype, count, way):
    numpys, ours = generators(5)
    value = torch.linspace(-1, 1, count).to(dtype)
    expected = value.add(torch.from_numpy(numpys.standard_normal(count)).to(dtype), alpha=0.7 * 1.3)
    Gaussian(1.3)(value, 0.7, ours)
    assert torch.equal(value, expected)


def test_a_batch_is_the_subset_that_numpy_draws(way):
    for count in (40, 4000):
        numpys, ours = generators(6)
        found = FixedSize(batch_size=count // 5).draw(count, ours)
        assert np.array_equal(found, numpys.choice(count, count // 5, replace=False, shuffle=False))


def test_kernels_draw_from_sfc64_alone(monkeypatch):
    """A secure normal is a sum of four; from another generator's state a kernel would draw rubbish."""
    known = draws.Kernels(worth=1)
    assert known.of(generators(0)[0], 10**4) is sfc64
    for other in (
        SecureStream().seek(b""),
        SumOfFour(np.random.SFC64(1)),
        np.random.Generator(np.random.PCG64(1)),
    ):
        assert known.of(other, 10**4) is None
    monkeypatch.setattr(draws, "kernels", known)
    one, other = (SumOfFour(np.random.SFC64(1)) for _ in range(2))
    assert np.array_equal(draws.normals(one, 5000), other.standard_normal(5000))


def test_they_are_loaded_once_it_is_worth_it(monkeypatch):
    loads = []
    monkeypatch.setattr(draws, "load", lambda: loads.append(1) or sfc64)
    rng, made = generators(0)[0], draws.Kernels(worth=3000)
    assert [made.of(rng, 1000) is sfc64 for _ in range(5)] == [False, False, True, True, True]
    assert made.of(rng, draws.FEW - 1) is None
    assert loads == [1]


class Wrong(types.ModuleType):
    """Kernels with a fault, which is put in the place of one of them."""

    def __init__(self, **faults):
        super().__init__("wrong")
        self.normals, self.subset, self.add_normals = sfc64.normals, sfc64.subset, sfc64.add_normals
        self.__dict__.update(faults)


def cut_off(state, out):
    sfc64.normals(state, out)
    np.clip(out, -sfc64.R, sfc64.R, out=out)


def last_bit(state, out):
    sfc64.normals(state, out)
    out[777] = np.nextafter(out[777], out.dtype.type(9))


def not_moved_on(state, out):
    sfc64.normals(state.copy(), out)


def in_order(state, half, num_all, out):
    sfc64.subset(state, half, num_all, out)
    out.sort()


def half_forgotten(state, half, num_all, out):
    sfc64.subset(state, half, num_all, out)
    half[:] = 0


NORMALS, SUBSETS = (cut_off, last_bit, not_moved_on), (in_order, half_forgotten)
FAULTS = [{"normals": fault} for fault in NORMALS] + [{"subset": fault} for fault in SUBSETS]


@pytest.mark.parametrize("faults", FAULTS, ids=[fault.__name__ for fault in NORMALS + SUBSETS])
def test_kernels_that_differ_from_numpy_are_not_used(faults, monkeypatch):
    wrong = Wrong(**faults)
    assert draws.equals_numpy(sfc64)
    assert not draws.equals_numpy(wrong)
    monkeypatch.setattr("dpfl_plugin.core.sfc64", wrong)
    monkeypatch.setitem(sys.modules, "dpfl_plugin.core.sfc64", wrong)
    assert draws.load() is None


def added_twice_rounded(state, scale, value):
    """Rounded after the product, too, as without a fused multiply-add."""
    drawn = np.empty(len(value), np.float32)
    sfc64.normals(state, drawn)
    value += scale * drawn


def added_less(state, scale, value):
    sfc64.add_normals(state, scale * np.float32(1 - 2**-24), value)


def added_and_not_moved_on(state, scale, value):
    sfc64.add_normals(state.copy(), scale, value)


@pytest.mark.parametrize("fault", [added_twice_rounded, added_less, added_and_not_moved_on])
def test_a_kernel_that_adds_otherwise_than_torch_is_not_used(fault, monkeypatch):
    """Its draws are."""
    monkeypatch.setattr(draws, "load", lambda: Wrong(add_normals=fault))
    made = draws.Kernels(worth=1)
    assert made.of(generators(0)[0], 10**4) is not None
    assert not made.adds
    monkeypatch.setattr(draws, "kernels", made)
    value, expected = torch.ones(5000), torch.ones(5000)
    ours, numpys = generators(5)
    draws.add_normals(value, 0.3, ours)
    expected.add_(torch.from_numpy(numpys.standard_normal(5000).astype(np.float32)), alpha=0.3)
    assert torch.equal(value, expected)


@pytest.mark.parametrize("count", [10, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_added_to_the_bit_as_torch_adds_it(way, count, dtype):
    ours, numpys = generators(6)
    for strided in (False, True):
        value = torch.linspace(-2, 2, 2 * count, dtype=dtype)[:: 1 + strided][:count]
        expected = value.clone()
        for scale in (0.3, 1e-6, 40.0):  # one release after another
            drawn = torch.from_numpy(numpys.standard_normal(count)).to(dtype)
            draws.add_normals(value, scale, ours)
            assert torch.equal(value, expected.add_(drawn, alpha=scale))
    assert state(ours) == state(numpys)


def test_without_numba_numpy_draws(monkeypatch):
    monkeypatch.delattr("dpfl_plugin.core.sfc64")
    monkeypatch.delitem(sys.modules, "dpfl_plugin.core.sfc64")
    monkeypatch.setitem(sys.modules, "numba", None)
    assert draws.load() is None
    monkeypatch.setattr(draws, "kernels", draws.Kernels(worth=1))
    ours, numpys = generators(7)
    assert np.array_equal(draws.normals(ours, 5000), numpys.standard_normal(5000))


def test_where_nothing_can_be_kept_they_are_compiled_anew(monkeypatch):
    """As numba says in a read-only installation without a home."""
    made = []

    def njit(function=None, *, cache=False):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        made.append(function)
        return function

    monkeypatch.setattr(numba, "njit", njit)
    assert sfc64.compiled(abs) is abs
    assert made == [abs]
