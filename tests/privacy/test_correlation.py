"""Noise that is correlated over cycles of batches: its theorem by brute force, its arithmetic by fractions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from torch import Tensor

from dpfl_plugin.core import draws
from dpfl_plugin.core.grid import Grid
from dpfl_plugin.core.streams import stream
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.privacy import correlation as module
from dpfl_plugin.privacy import mechanisms
from dpfl_plugin.privacy.accountants import PLD, PRV, RDP, Accountant, Gaussian, in_passes
from dpfl_plugin.privacy.correlation import Chain, Correlation, correlation, relative_error
from dpfl_plugin.privacy.cycles import STEP, Cycles, first_states
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import Cyclic, make

D = 37


def matrix(coefficients: Sequence[float], steps: int) -> np.ndarray[Any, Any]:
    """C: lower triangular, Toeplitz."""
    found = np.zeros((steps, steps))
    for k, c in enumerate(coefficients[:steps]):
        found += c * np.eye(steps, k=-k)
    return found


def sensitivity(coefficients: Sequence[float], steps: int, apart: int) -> float:
    """Of all steps together, squared, where one record moves those it takes part in by 1 at most, in any directions of
    a line: the largest over all records and all signs (the norm is convex, so its largest is at a corner)."""
    C, worst = matrix(coefficients, steps), 0.0
    for first in range(min(apart, steps)):
        columns = C[:, first::apart]
        for signs in itertools.product((-1.0, 1.0), repeat=columns.shape[1]):
            worst = max(worst, float(np.sum((columns @ np.array(signs)) ** 2)))
    return worst


@pytest.mark.parametrize(("batches", "bands"), [(2, 1), (2, 2), (3, 2), (3, 3), (5, 4)])
def test_a_record_moves_all_releases_by_what_is_charged(batches: int, bands: int) -> None:
    found = correlation(bands, batches)
    for steps in range(1, 3 * batches + 2):
        passes = -(-steps // batches)
        charged = passes * found.norm**2
        exact = sensitivity(found.coefficients, steps, batches)
        assert exact <= charged * (1 + 1e-9)
        if steps >= (passes - 1) * batches + bands:  # no row is cut off
            assert exact == pytest.approx(charged, rel=1e-9)


@pytest.mark.parametrize(("batches", "bands"), [(2, 3), (3, 5)])
def test_more_bands_than_batches_are_refused_for_good_reason(batches: int, bands: int) -> None:
    found = correlation(bands, bands)  # what it would be
    assert sensitivity(found.coefficients, 4 * batches, batches) > 1.2 * 4 * found.norm**2
    with pytest.raises(ConfigError, match=f"1 to {batches}, the number of batches"):
        correlation(bands, batches)
    with pytest.raises(ConfigError, match=r"privacy\.bands"):
        make("cyclic", 1 / batches, None, bands)


def released(n: int, batches: int = 10, sigma: float = 3.0, **more: Any) -> Term:
    release = SampledGaussian(
        noise_multiplier=sigma, sampler="cyclic", rate=1 / batches, neighbouring="replace_one", **more
    )
    return Term(release=release, count=1, rounds=n)


@pytest.mark.parametrize("n", [1, 9, 10, 11, 30, 31])
@pytest.mark.parametrize("accountant", [PLD(), Gaussian()])
def test_releases_cost_the_passes_that_they_began(n: int, accountant: Accountant) -> None:
    passes = math.ceil(n / 10)
    expected = get_epsilon_gaussian(3.0 / math.sqrt(passes), 1e-5)
    assert accountant.epsilon([released(n)], 1e-5) == pytest.approx(expected, rel=1e-6)
    # However the rounds are cut: in a ledger there are charges of several steps each.
    parts = [released(4)] * (n // 4) + [released(n % 4)]
    assert accountant.epsilon(parts, 1e-5) == accountant.epsilon([released(n)], 1e-5)
    assert RDP().epsilon([released(n)], 1e-5) >= expected
    assert PRV().epsilon([released(n)], 1e-5) >= expected * (1 - 1e-6)


def test_what_no_bound_is_known_of_is_refused() -> None:
    certain = released(20)
    drawn = Term(release=certain.release, count=2, rounds=3, participation=0.5)
    for terms in ([certain, released(20, sigma=4.0)], [certain, released(20, batches=5)], [drawn]):
        with pytest.raises(UnsupportedError, match="cyclic batches"):
            PLD().epsilon(terms, 1e-5)
    for wrong in ({"unit": "person"}, {"unit": "silo"}):
        with pytest.raises(UnsupportedError, match="sampler=cyclic"):
            PLD().epsilon([released(20, **wrong)], 1e-5)
    with pytest.raises(UnsupportedError, match="sampler=cyclic"):
        PLD().epsilon(
            [
                Term(
                    release=SampledGaussian(
                        noise_multiplier=3.0, sampler="cyclic", rate=0.3, neighbouring="replace_one"
                    ),
                    count=1,
                    rounds=9,
                )
            ],
            1e-5,
        )
    assert PLD().epsilon([released(20, sigma=0.0)], 1e-5) == math.inf
    assert in_passes([]) == ()


# Coefficients


@pytest.mark.parametrize(("batches", "passes"), [(b, p) for b in (2, 5, 10, 25, 50) for p in (2, 5, 20, 100)])
def test_coefficients_are_nearly_best_for_any_number_of_passes(
    batches: int, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = relative_error(correlation(batches, batches), passes * batches)
    monkeypatch.setattr(module, "PASSES", passes)
    best = relative_error(correlation.__wrapped__(batches, batches), passes * batches)
    assert best <= usual <= best * (1.11 if passes == 2 else 1.05)
    assert usual < 0.95


def test_errors_are_those_of_the_matrices() -> None:
    """Mean squared error of prefix sums, by inverting C; noise of the same privacy on each."""
    found, steps = correlation(4, 5), 13
    prefix = np.tril(np.ones((steps, steps)))
    error = np.sum((prefix @ np.linalg.inv(matrix(found.coefficients, steps))) ** 2) * found.norm**2
    assert relative_error(found, steps) == pytest.approx(math.sqrt(error / np.sum(prefix**2)), rel=1e-9)
    assert correlation(1, 7) == Correlation((1024,)) and relative_error(correlation(1, 7), 30) == 1.0
    assert all(0 < weight <= 1024 for weight in found.weights) and found.weights[0] == 1024


# Arithmetic


def sums(steps: int, d: int = D) -> Tensor:
    return torch.from_numpy(stream(5, "data").normal(size=(steps, d)) * 3)


def chain(found: Correlation, sigma: float, d: int = D) -> Chain:
    zeros = list(torch.zeros(found.bands - 1, d, dtype=torch.float64))
    return Chain(found, sigma, zeros, zeros)


def test_releases_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """What noise is added to is sum_k c_k x_{t-k} without any rounding, with x on the grid; and what is decoded is a
    function of what was released, whatever else there is."""
    found, seen = correlation(4, 5), []
    real = draws.add_rounded

    def add_rounded(total: Tensor, grid: float, std: float, rng: Any, out: Tensor) -> None:
        real(total, grid, std, rng, out)
        seen.append((total.clone(), grid, std, out.clone()))

    monkeypatch.setattr(draws, "add_rounded", add_rounded)
    given, outs, links = sums(12), [], chain(found, 2.0)
    for t, x in enumerate(given):
        outs.append(torch.empty(D, dtype=torch.float64))
        links(x, 0.5, stream(1, "noise", step=t), outs[-1])
    grid = Grid.of(0.5, D)
    whole = [[round(Fraction(float(v)) / Fraction(grid.step)) for v in x] for x in given]
    decoded: list[Tensor] = []
    for t, (total, fine, std, noisy) in enumerate(seen):
        assert fine == grid.step / 1024
        assert std == pytest.approx(2.0 * found.norm * grid.sensitivity / fine, rel=1e-12)
        for i in range(D):
            exact = sum(found.weights[k] * whole[t - k][i] for k in range(min(t + 1, found.bands)))
            assert Fraction(float(total[i])) == exact * Fraction(fine)
            assert (Fraction(float(noisy[i])) / Fraction(fine)).denominator == 1
        for k in range(1, min(t + 1, found.bands)):
            noisy.sub_(decoded[t - k], alpha=found.coefficients[k])
        decoded.append(noisy)
        assert torch.equal(noisy, outs[t])


def test_the_law_of_the_noise() -> None:
    """x^ - x is C^-1 z with z of standard deviation sigma ||c|| Delta'. 2e5 numbers: 3 % are 19 standard errors."""
    found, d, steps = correlation(3, 3), 50_000, 4
    links, noise = chain(found, 1.5, d), []
    given = sums(steps, d)
    for t, x in enumerate(given):
        out = torch.empty(d, dtype=torch.float64)
        links(x, 2.0, stream(2, "noise", step=t), out)
        noise.append((out - x).numpy())
    z = matrix(found.coefficients, steps) @ np.array(noise)
    std = 1.5 * found.norm * Grid.of(2.0, d).sensitivity
    assert np.abs(z.std(axis=1) / std - 1).max() < 0.03
    off = np.corrcoef(z) - np.eye(steps)
    assert np.abs(off).max() < 0.03  # 6.7 standard errors
    assert np.corrcoef(noise)[1, 0] < -0.2  # which is what it is for


def test_without_noise_nothing_changes() -> None:
    out = torch.empty(D)
    chain(correlation(3, 3), 0.0)(sums(1)[0], 1.0, stream(0, "noise"), out)
    assert torch.equal(out, sums(1)[0].float())


def test_too_much_noise_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="bands: 1"):
        chain(correlation(3, 3), 1e9)(sums(1)[0], 1.0, stream(0, "noise"), torch.empty(D))


# Cycles


def rules(bands: int | None = None) -> PrivacyRules:
    return PrivacyRules(
        unit="record",
        neighbouring="replace_one",
        clip_norm=1.0,
        mechanism=mechanisms.Gaussian(2.0),
        sampler=Cyclic(0.25, bands),
    )


def test_batches_are_intervals_of_the_order_of_records() -> None:
    """Each record in one batch, of as many as the others but for one, every pass in the same order; the silo's own step
    goes on from round to round."""
    states = first_states(rules().sampler, 2, D)  # type: ignore[arg-type]
    at_first = Cycles(rules(), [22, 30], states)
    for size, batches in zip((22, 30), at_first.batches(range(8)), strict=True):
        assert np.concatenate(batches[:4]).tolist() == list(range(size))
        assert {len(batch) for batch in batches} <= {size // 4, size // 4 + 1}
        assert all(np.array_equal(batches[t], batches[t + 4]) for t in range(4))
    later = Cycles(rules(), [30], {n: v[1:] for n, v in states.items()} | {STEP: torch.tensor([[7]])})
    assert np.array_equal(later.batches(range(2))[0][1], at_first.batches(range(8))[1][0])


def advance(cycles: Cycles, first: int, given: Tensor) -> list[Tensor]:
    outs = []
    for t, x in enumerate(given):
        for row, link in enumerate(cycles.chains):
            outs.append(torch.empty(D))
            link(x * (row + 1), 2.0, stream(9, "noise", silo=row, step=first + t), outs[-1])
    return outs


@pytest.mark.parametrize("bands", [1, 2, 4])
def test_rounds_go_on_where_the_last_one_ended(bands: int) -> None:
    given = sums(11)
    begun = first_states(rules(bands).sampler, 2, D)  # type: ignore[arg-type]

    def cycles(states: Any) -> Cycles:
        return Cycles(rules(bands), [22, 30], states)

    whole = advance(cycles(begun), 0, given)
    states, parts = begun, []
    for first, last in ((0, 1), (1, 3), (3, 8), (8, 11)):
        at = cycles(states)
        parts += advance(at, first, given[first:last])
        states = at.states()
        assert states[STEP].tolist() == [[last], [last]]
        assert {n: (v.shape, v.dtype) for n, v in states.items()} == {n: (v.shape, v.dtype) for n, v in begun.items()}
    assert len(whole) == len(parts) and all(map(torch.equal, whole, parts))


@pytest.mark.parametrize("rate", [0.3, 0.4, 0.7, 1.0, 0.09, 0.24])
def test_a_rate_is_one_over_a_number_of_batches(rate: float) -> None:
    with pytest.raises(ConfigError, match="1 over a whole number of batches"):
        make("cyclic", rate, None)


@pytest.mark.parametrize(("rate", "batches"), [(0.5, 2), (1 / 3, 3), (0.3333, 3), (0.1, 10), (1 / 7, 7), (0.002, 500)])
def test_batches_of_a_rate(rate: float, batches: int) -> None:
    sampler = Cyclic(rate, bands=1)
    assert (sampler.batches, sampler.rate(1000), sampler.divisor(1000)) == (batches, 1 / batches, 1000 / batches)
    with pytest.raises(ConfigError, match="a record of every silo"):
        sampler.divisor(batches - 1)
