"""Kernels against what is drawn without them, bit for bit."""

import hashlib
import inspect
import os
import pickle
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from dpfl_plugin.core import draws, rounded_normals, sfc64_state, ziggurat
from dpfl_plugin.core.counter_words import SeededWords
from dpfl_plugin.core.device_noise import DeviceNoise
from dpfl_plugin.core.grid import Grid
from dpfl_plugin.core.sfc64_state import OpenSFC64
from dpfl_plugin.core.streams import FreshStream, Stream
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.samplers import FixedSize

numba = pytest.importorskip("numba", reason="kernels need numba: pip install 'dpfl-plugin[fast]'")

from dpfl_plugin.core import sfc64  # noqa: E402


@pytest.fixture(params=["numpy", "kernels"])
def way(request, monkeypatch):
    """Both ways of drawing: numpy alone, and kernels from the first number on."""
    made = draws.Kernels(worth=2**62 if request.param == "numpy" else 1)
    monkeypatch.setattr(draws, "kernels", made)
    assert made.of(10**4) is (None if request.param == "numpy" else sfc64)
    return request.param


def generators(seed, half=False):
    """Two of the same state, numpy's and ours; with ``half`` a 32-bit half of a word is left over in each."""
    made = [np.random.Generator(bits(seed)) for bits in (np.random.SFC64, OpenSFC64)]
    for generator in made if half else ():
        generator.integers(2**32, dtype=np.uint32)
    return made


def state(generator):
    found = generator.bit_generator.state
    return (*found["state"]["state"].tolist(), found["has_uint32"], found["uinteger"])


STEP = 2.0**-10


def noisy(rng, total, std, dtype, add=None):
    """``total`` on the grid, with its noise: by ``add``, which uses compiled loops, or without them."""
    if add is not None:
        out = np.empty(len(total), dtype)
        add(sfc64, rng, total, STEP, std, out)
        return out
    noise = rounded_normals.by_numpy(len(total), std, rng.bit_generator.random_raw)
    return ((rounded_normals.nearest(total, STEP) + noise) * STEP).astype(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("std", "count"), [(0.3, 400_000), (1e4, 400_000), (2.0**33, 400_000), (2.0**45, 3000)])
def test_the_compiled_noise_is_that_of_numpy(std, count, dtype):
    """Two million numbers in all: with tails, and at the largest deviation with one in four that words leave open."""
    total = np.random.default_rng(0).standard_normal(count)
    total[[3, count // 2]] = np.nan, np.inf
    numpys, ours = generators(1)
    expected = noisy(numpys, total, std, dtype)
    assert np.array_equal(noisy(ours, total, std, dtype, draws._add_rounded), expected)
    assert state(ours) == state(numpys)
    for given in generators(1):  # words that numpy draws
        assert np.array_equal(noisy(given, total, std, dtype, draws._add_rounded_of), expected)
        assert state(given) == state(numpys)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [0, 1])
def test_the_compiled_noise_at_the_edge_of_every_strip(sign):
    """A word at will: it is the sum of the state's first two and its counter. The rest decides on points at an edge."""
    total = np.zeros(1)
    for strip in range(256):
        sure = int(rounded_normals.INNER[strip])
        for bits in {0, 1, max(sure - 1, 0), sure, sure + 1, 2**52 - 1}:
            for rest in range(3):
                name = np.array([bits << 9 | sign << 8 | strip, 0, rest * 0x9E3779B97F4A7C15 % 2**64, 0], np.uint64)
                numpys, *ours = (Stream().seek(name) for _ in range(3))
                expected = noisy(numpys, total, 2.0**20, np.float64)
                for rng, add in zip(ours, (draws._add_rounded, draws._add_rounded_of), strict=True):
                    assert np.array_equal(noisy(rng, total, 2.0**20, np.float64, add), expected)
                    assert state(rng) == state(numpys)


def test_noise_that_leaves_too_much_undecided_is_thrown_away(monkeypatch):
    """No kernel that is right does: what it would leave without noise must not leave."""
    monkeypatch.setattr(draws, "KEPT_LEAST", 0)
    monkeypatch.setattr(draws, "MOST_USUAL_STD", 2.0**45)
    for add in (draws._add_rounded, draws._add_rounded_of):
        out, rng = np.ones(200_000, np.float32), generators(2)[1]
        with pytest.raises(RuntimeError, match="undecided"):
            add(sfc64, rng, np.ones(200_000), STEP, 2.0**45, out)
        assert not out.any()


def test_threads_have_memory_of_their_own_to_draw_in():
    """Else one could leave another with less than its kernel writes to, or have it work on words of both."""
    with ThreadPoolExecutor(1) as other:
        theirs = other.submit(draws._workspace, 100).result()
        mine = draws._workspace(5000)
        again = other.submit(draws._workspace, 10).result()
    assert all(one is another for one, another in zip(theirs, again, strict=True))
    assert not any(np.shares_memory(one, another) for one in mine for another in theirs)
    assert all(len(one) >= 5000 for one in draws._workspace(5000))


def on_the_device(total, std, out):
    words = SeededWords(lambda row, step: bytes(range(32)))
    made = DeviceNoise(words, rows=1, count=len(total), steps=1, device=torch.device("cpu"))
    made.add_rounded(total.unsqueeze(0), 0, slice(0, 1), [STEP], [std], out.unsqueeze(0))


WAYS = {
    "numpy": lambda total, std, out: out.copy_(
        torch.from_numpy(noisy(generators(9)[0], total.numpy(), std, np.float64))
    ),
    "kernels": lambda total, std, out: draws._add_rounded(
        sfc64, generators(9)[1], total.numpy(), STEP, std, out.numpy()
    ),
    "kernels, words of another generator": lambda total, std, out: draws._add_rounded_of(
        sfc64, generators(9)[0], total.numpy(), STEP, std, out.numpy()
    ),
    "device": on_the_device,
}


@pytest.mark.parametrize("way_of", WAYS.values(), ids=WAYS)
def test_what_rounds_to_zero_leaves_no_sign(way_of):
    """What leaves is a function of the whole steps: sums of -1e-9, -0.0 and 1e-9 are zero of them, and so the same."""
    found = []
    for value in (-1e-9, -0.0, 0.0, 1e-9):
        out = torch.empty(3000, dtype=torch.float64)
        way_of(torch.full((3000,), value, dtype=torch.float64), 3.0, out)
        assert (out == 0).sum() > 200
        found.append(out.numpy().tobytes())
    assert len(set(found)) == 1


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
        out, total = torch.empty(count), torch.zeros(count, dtype=torch.float64)
        draws.add_rounded(total, STEP, 99.0, ours, out)
        assert np.array_equal(out.numpy(), noisy(numpys, total.numpy(), 99.0, np.float32))
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
@pytest.mark.parametrize("stride", [1, 2])
def test_noise_is_exact_and_rounded_once(dtype, count, stride, way, monkeypatch):
    """What is released is the nearest step plus whole steps, rounded to the type in the end. Kernels draw it for
    whatever they cannot write to themselves, too: types that they do not know, rows with gaps, memory of a GPU."""
    numpys, ours = generators(5)
    total = torch.linspace(-1, 1, count, dtype=torch.float64)
    out, grid = torch.empty(count, stride, dtype=dtype)[:, 0], Grid.of(0.7, count)
    noise = rounded_normals.by_numpy(count, 2 * 1.3 * grid.sensitivity / grid.step, numpys.bit_generator.random_raw)
    if way == "kernels" and count >= draws.FEW:
        monkeypatch.delattr(rounded_normals, "by_numpy")
    Gaussian(1.3)(total, 0.7, ours, out, 2.0)
    exact = torch.from_numpy((np.rint(total.numpy() / grid.step) + noise) * grid.step)
    assert torch.equal(out, exact.to(dtype))


def test_a_batch_is_the_subset_that_numpy_draws(way):
    for count in (40, 4000):
        numpys, ours = generators(6)
        found = FixedSize(batch_size=count // 5).draw(count, ours)
        subset = numpys.choice(count, count // 5, replace=False, shuffle=False)
        assert np.array_equal(found, numpys.permutation(subset))


def test_kernels_move_no_other_generator_on(way):
    """From another generator's state a kernel would draw rubbish: it is given the words that numpy draws."""
    secure = FreshStream().seek(b"")
    assert not draws._is_ours(secure) and not draws._is_ours(np.random.Generator(secure.bit_generator))
    for bits in (np.random.PCG64, np.random.SFC64, np.random.Philox):
        one, other = (np.random.Generator(bits(1)) for _ in range(2))
        out, total = torch.empty(5000), torch.ones(5000, dtype=torch.float64)
        draws.add_rounded(total, STEP, 99.0, one, out)
        assert np.array_equal(out.numpy(), noisy(other, total.numpy(), 99.0, np.float32))
        assert np.array_equal(draws.subset(one, 4000, 80), other.choice(4000, 80, replace=False, shuffle=False))


def test_a_state_that_numpy_keeps_otherwise_is_left_to_numpy(monkeypatch):
    assert OpenSFC64(0).is_open, "this numpy keeps SFC64's state otherwise: kernels are of no use with it"
    key = np.arange(1, 5, dtype=np.uint64)
    drawn = [Stream().seek(key).random(100)]
    monkeypatch.setattr(sfc64_state, "_is_as_known", lambda: False)
    stream = Stream()
    stream.seek(key).integers(2**32, dtype=np.uint32)  # leaves half a word, which no other stream may begin with
    drawn.append(stream.seek(key).random(100))
    assert np.array_equal(*drawn)
    assert not draws._is_ours(stream.generator)


def test_a_copied_generator_goes_on_by_itself():
    """Two of one memory would draw each other's numbers."""
    ours = OpenSFC64(3)
    np.random.Generator(ours).integers(2**32, dtype=np.uint32)  # half a word is left over
    copied = pickle.loads(pickle.dumps(ours))
    before = ours.words.copy()
    drawn = [np.random.Generator(copied).integers(2**32, size=9, dtype=np.uint32)]
    assert np.array_equal(ours.words, before)
    drawn.append(np.random.Generator(ours).integers(2**32, size=9, dtype=np.uint32))
    assert np.array_equal(*drawn)


def test_they_are_loaded_once_it_is_worth_it(monkeypatch):
    loads = []
    monkeypatch.setattr(draws, "load", lambda: loads.append(1) or sfc64)
    made = draws.Kernels(worth=3000)
    assert [made.of(1000) is sfc64 for _ in range(5)] == [False, False, True, True, True]
    assert made.of(draws.FEW - 1) is None
    assert loads == [1]


class Wrong(types.ModuleType):
    """Kernels with a fault, which is put in the place of one of them."""

    def __init__(self, **faults):
        super().__init__("wrong")
        for name in ("add_rounded", "add_rounded_of", "at_edges_of", "subset"):
            setattr(self, name, getattr(sfc64, name))
        self.__dict__.update(faults)


def cut_off(state, total, grid, std, out, *rest):
    count = sfc64.add_rounded(state, total, grid, std, out, *rest)
    np.clip(out, total - 3.6 * std * grid, total + 3.6 * std * grid, out=out)
    return count


def one_step_off(state, total, grid, std, out, *rest):
    count = sfc64.add_rounded(state, total, grid, std, out, *rest)
    out[777] += max(grid, np.spacing(out[777]))
    return count


def not_moved_on(state, *rest):
    return sfc64.add_rounded(state.copy(), *rest)


def in_order(state, half, num_all, out):
    sfc64.subset(state, half, num_all, out)
    out.sort()


def half_forgotten(state, half, num_all, out):
    sfc64.subset(state, half, num_all, out)
    half[:] = 0


def edges_left_out(drawn, *rest):
    return 0, rest[-1]


def signed_zeros(state, total, grid, std, out, *rest):
    count = sfc64.add_rounded(state, total, grid, std, out, *rest)
    np.copyto(out, -0.0, where=(out == 0) & (total < 0))
    return count


FAULTS = {
    "add_rounded": (cut_off, one_step_off, not_moved_on, signed_zeros),
    "at_edges_of": (edges_left_out,),
    "subset": (in_order, half_forgotten),
}


@pytest.mark.parametrize(
    "faults", [pytest.param({name: one}, id=one.__name__) for name, all_ in FAULTS.items() for one in all_]
)
def test_kernels_that_differ_from_numpy_are_not_used(faults, monkeypatch):
    wrong = Wrong(**faults)
    assert draws.equals_numpy(sfc64)
    assert not draws.equals_numpy(wrong)
    monkeypatch.setattr("dpfl_plugin.core.sfc64", wrong)
    monkeypatch.setitem(sys.modules, "dpfl_plugin.core.sfc64", wrong)
    assert draws.load() is None


def test_without_numba_numpy_draws(monkeypatch):
    monkeypatch.delattr("dpfl_plugin.core.sfc64")
    monkeypatch.delitem(sys.modules, "dpfl_plugin.core.sfc64")
    monkeypatch.setitem(sys.modules, "numba", None)
    assert draws.load() is None
    monkeypatch.setattr(draws, "kernels", draws.Kernels(worth=1))
    numpys, ours = generators(7)
    out, total = torch.empty(5000), torch.ones(5000, dtype=torch.float64)
    draws.add_rounded(total, STEP, 99.0, ours, out)
    assert np.array_equal(out.numpy(), noisy(numpys, total.numpy(), 99.0, np.float32))


def test_where_nothing_can_be_kept_they_are_compiled_anew(monkeypatch):
    """As numba says in a read-only installation without a home."""
    made = []

    def njit(function=None, *, cache=False):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        made.append(function)
        return function

    def one():
        return 1

    monkeypatch.setattr(numba, "njit", njit)
    assert sfc64.compiled(one) is one
    assert made == [one]


LOOPS = """
import numba, other, sys
from dpfl_plugin.core import kept_loops

def run():
    return other.twice()

kept_loops.bind(run, other)
run = numba.njit(run, cache=True)
print(run(), sum(run.stats.cache_hits.values()))
"""


@pytest.mark.slow
def test_a_loop_that_is_kept_on_disk_is_of_the_sources_that_there_are(tmp_path):
    """numba looks at the file of the loop alone: a constant of another file that was mended would never be used."""
    (tmp_path / "loops.py").write_text(LOOPS)

    def loops(number):
        source = f"import numba\n\n@numba.njit(inline='always')\ndef twice():\n    return 2 * {number}\n"
        (tmp_path / "other.py").write_text(source)
        more = {"NUMBA_CACHE_DIR": str(tmp_path / "kept"), "PYTHONDONTWRITEBYTECODE": "1"}
        ran, env = [sys.executable, str(tmp_path / "loops.py")], {**os.environ, **more}
        return subprocess.run(ran, env=env, capture_output=True, text=True, check=True).stdout.split()

    assert [loops(1), loops(1), loops(3)] == [["2", "0"], ["2", "1"], ["6", "0"]]


def test_kernels_are_bound_to_what_is_compiled_into_them():
    sources = [inspect.getsource(module).encode() for module in (rounded_normals, ziggurat)]
    digest = hashlib.sha256(b"".join(hashlib.sha256(source).digest() for source in sources)).hexdigest()
    for kernel in (sfc64.add_rounded, sfc64.add_rounded_of, sfc64.at_edges_of, sfc64._at_edges, sfc64._by_words):
        assert kernel.py_func.__qualname__ == f"{kernel.py_func.__name__}_{digest[:16]}"
