"""Epsilons that others computed, and what sets one accountant apart; their contract is in test_accountant_contract."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.privacy import pld
from dpfl_plugin.privacy.accountants import PLD, PRV, RDP, Accountant, Gaussian
from dpfl_plugin.privacy.calibration import max_rounds
from dpfl_plugin.privacy.events import SampledGaussian, Sampler, Term
from dpfl_plugin.privacy.paper import Paper

BOTH = pytest.mark.parametrize("accountant", [PLD(), RDP()], ids=lambda a: a.name)
SAMPLERS: tuple[Sampler, ...] = ("fixed", "poisson", "full")


def term(
    sampler: Sampler, rate: float, sigma: float, rounds: int = 1, count: int = 1, participation: float = 1.0
) -> Term:
    neighbouring = "add_or_remove" if sampler == "poisson" else "replace_one"
    one = SampledGaussian(noise_multiplier=sigma, sampler=sampler, rate=rate, neighbouring=neighbouring)
    return Term(release=one, count=count, rounds=rounds, participation=participation)


# Independent values


def rows(folder: Path, *accountants: str) -> list[dict[str, str]]:
    with (folder / "epsilons.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["accountant"] in accountants]


def of(accountant: Accountant, row: dict[str, str]) -> float:
    samplers: dict[str, Sampler] = {"Gaussian on": "fixed", "Poisson-sam": "poisson", "Gaussian": "full"}
    one = term(samplers[row["mechanism"][:11]], float(row["q"]), float(row["sigma"]), int(row["steps"]))
    return accountant.epsilon([one], float(row["delta"]))


def test_reference_pld(reference_folder: Path) -> None:
    """The reference's fixed grid of 1e-5 overstates epsilon where a step's loss is of that size: hence .002."""
    checked = rows(reference_folder, "WOR PLD upper bound", "dp-accounting 0.6.0 PLD", "exact (Balle-Wang)")
    assert len(checked) > 20
    for row in checked:
        assert of(PLD(), row) == pytest.approx(float(row["epsilon"]), rel=5e-3, abs=2e-3), row
    for row in rows(reference_folder, "WOR PLD, independent FFT (estimate)"):
        assert of(PLD(), row) == pytest.approx(float(row["epsilon"]), rel=5e-4), row
    for row in rows(reference_folder, "prv-accountant-0.2.0 lower"):
        assert of(PLD(), row) >= float(row["epsilon"]), row


def test_reference_lower_bounds(reference_folder: Path) -> None:
    lower = rows(reference_folder, "lower bound (attained pair)")
    assert len(lower) > 15
    for row in lower:
        bound = float(row["epsilon"])
        # of the lower bounds, too, the grid takes its share where steps are small: .02 of q / sigma = 3e-4
        grid_error = 1.2e-3 if float(row["q"]) / float(row["sigma"]) < 1.3e-3 else 0.0
        assert bound - grid_error <= of(PLD(), row) <= 1.12 * bound, row


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_reference_rdp(reference_folder: Path, every: int) -> None:
    checked = rows(
        reference_folder, "dp-accounting 0.6.0 RDP, Wang et al. Thm 27", "dp-accounting 0.6.0 RDP", "opacus-1.6.0 RDP"
    )
    assert {row["mechanism"][:7] for row in checked} == {"Gaussia", "Poisson"} and len(checked) > 25
    for row in checked[::every]:
        assert of(RDP(), row) == pytest.approx(float(row["epsilon"]), rel=1e-4, abs=1e-6), row


def test_reference_gaussian(reference_folder: Path) -> None:
    checked = rows(reference_folder, "exact (Balle-Wang)")
    assert len(checked) == 8
    for row in checked:
        assert of(Gaussian(), row) == of(PLD(), row) == pytest.approx(float(row["epsilon"]), abs=1e-6), row


def test_reference_prv(reference_folder: Path) -> None:
    checked = rows(reference_folder, "opacus-1.6.0 PRV(upper, eps_error=.01)")
    assert len(checked) == 4
    for row in checked:
        assert of(PRV(), row) == pytest.approx(float(row["epsilon"]), abs=2e-6), row
    for row in rows(reference_folder, "prv-accountant-0.2.0 upper"):
        assert of(PRV(), row) == pytest.approx(float(row["epsilon"]), abs=1e-5), row


def test_reference_paper(reference_folder: Path) -> None:
    checked = rows(reference_folder, "Noble et al. Lemma B.7, Mironov conversion")
    assert len(checked) == 23
    for row in checked:
        assert of(Paper(), row) == pytest.approx(float(row["epsilon"]), rel=1e-6), row


# Each against the others


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("participation", [1.0, 0.2])
def test_pld_is_tighter_than_rdp(sampler: Sampler, participation: float) -> None:
    for sigma in (2.0, 20.0):
        one = [term(sampler, 1.0 if sampler == "full" else 0.1, sigma, 100, 3, participation)]
        assert 0 < PLD().epsilon(one, 1e-5) < RDP().epsilon(one, 1e-5)


def test_gaussians_compose_exactly() -> None:
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    together = PLD().epsilon([term("full", 1.0, 3.0, 4), term("full", 1.0, 5.0, 2, count=3)], 1e-5)
    assert together == pytest.approx(get_epsilon_gaussian((4 / 9 + 6 / 25) ** -0.5, 1e-5), rel=1e-12)
    on_the_grid = PLD().epsilon([term("full", 1.0, 3.0, 4, participation=1 - 1e-13)], 1e-5)
    assert on_the_grid == pytest.approx(get_epsilon_gaussian(3.0 / 2, 1e-5), rel=5e-4)


def test_rdp_mixture_is_the_moment_of_a_coin() -> None:
    """E e^{(a-1) L} = 1 - p + p e^{(a-1) R}; one Gaussian round has R = a / (2 sigma^2)."""
    from dp_accounting.rdp import compute_epsilon
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

    p, sigma = 0.2, 2.0
    a = np.array(DEFAULT_RDP_ORDERS)
    with np.errstate(over="ignore"):
        moments = np.log1p(p * np.expm1(np.minimum((a - 1) * a / (2 * sigma**2), 700.0))) / (a - 1)
    expected = compute_epsilon(a[a < 64], moments[a < 64], 1e-5)[0]
    assert RDP().epsilon([term("full", 1.0, sigma, participation=p)], 1e-5) == pytest.approx(expected, rel=1e-9)


LONG = [term("poisson", 0.2, 60.0, 400, 50)]
UNLIKE = [term("poisson", 0.01, 0.8, 100), term("poisson", 0.05, 5.0, 300), term("poisson", 0.05, 4.0, 30)]
SHORT = [term("poisson", 0.1, 8.0, 5), term("poisson", 1.0, 20.0, 30)]


@pytest.mark.parametrize(
    ("composition", "eps_error"),
    [(LONG, 0.1), (LONG, 0.01), (UNLIKE, 0.1), (UNLIKE, 0.01), (SHORT, 0.01), (SHORT, 0.001)],
)
def test_prv_lies_where_it_says(composition: list[Term], eps_error: float) -> None:
    """Above the exact value, by at most 2.2 eps_error; PLD is at most 5e-4 above that, too."""
    found, tight = PRV(eps_error=eps_error).epsilon(composition, 2.5e-6), PLD().epsilon(composition, 2.5e-6)
    assert tight / (1 + 5e-4) <= found <= tight + 2.2 * eps_error


@pytest.mark.slow
def test_prv_of_the_smallest_delta() -> None:
    for composition in ([term("poisson", 0.001, 1.0, 100_000)], [term("poisson", 0.2, 60.0, 20_000)]):
        assert 0 < PRV().epsilon(composition, 1e-9) - PLD().epsilon(composition, 1e-9) < 0.022
    with pytest.raises(UnsupportedError, match=r"delta=9e-10.*Use pld"):
        PRV().epsilon([term("poisson", 0.2, 60.0)], 9e-10)


def test_prv_refuses_grids_that_do_not_fit() -> None:
    for eps_error, sigma, number in ((1e-4, 1.0, 100_000), (0.01, 0.02, 1), (0.01, 0.5, 10**6)):
        with pytest.raises(UnsupportedError, match="grid points"):
            PRV(eps_error=eps_error).epsilon([term("poisson", 0.2, sigma, number)], 1e-5)
    for bad in (0.0, -1.0, 2.0, math.nan):
        with pytest.raises(ConfigError, match="eps_error"):
            PRV(eps_error=bad)


def test_rdp_takes_rounding_for_no_evidence_of_privacy() -> None:
    """dp_accounting's divergence of this release is -3e-25, which it takes for an epsilon of 0 at any delta."""
    assert RDP().epsilon([term("poisson", 1e-12, 1000.0)], 1e-25) > 0


def test_noise_beyond_what_doubles_bear_is_not_credited() -> None:
    for accountant, most in ((PLD(), 1e7), (RDP(), 1e7), (Gaussian(), 1e7), (PRV(), 1e4)):
        limit = accountant.epsilon([term("full", 1.0, most)], 1e-9)
        assert accountant.epsilon([term("full", 1.0, 100 * most)], 1e-9) == limit > 0
    for accountant in (PLD(), RDP()):
        limit = accountant.epsilon([term("poisson", 0.5, 1e4)], 1e-9)
        assert accountant.epsilon([term("poisson", 0.5, 1e6)], 1e-9) == limit > 0


# Very many noise multipliers


@pytest.mark.parametrize("sampler", ["fixed", "poisson"])
def test_very_many_noise_multipliers_are_bounded_from_above(sampler: Sampler) -> None:
    """Against the same releases with none rounded, and with all rounded down by as much as is said."""
    noise = [12.0 * 0.997**i for i in range(100)]
    terms = [term(sampler, 0.2, sigma, rounds=10) for sigma in noise]
    rounded = PLD().epsilon(terms, 1e-5)
    exact = pld.epsilon(terms, 1e-5)
    least = pld.epsilon([term(sampler, 0.2, sigma * (1 - 0.0054), rounds=10) for sigma in noise], 1e-5)
    assert exact * (1 + 1e-3) < rounded < least


def test_few_noise_multipliers_and_those_without_sampling_stay_exact() -> None:
    few = [term("fixed", 0.2, 12.0 * 0.997**i) for i in range(64)]
    assert PLD().epsilon(few, 1e-5) == pld.epsilon(few, 1e-5)
    noise = [12.0 * 0.997**i for i in range(1000)]
    together = math.fsum(sigma**-2 for sigma in noise) ** -0.5
    many = Gaussian().epsilon([term("full", 1.0, sigma) for sigma in noise], 1e-5)
    assert many == pytest.approx(Gaussian().epsilon([term("full", 1.0, together)], 1e-5), rel=1e-9)


# max_rounds


@BOTH
@pytest.mark.parametrize("limit", [1, 17, 200, 10**6])
def test_max_rounds_is_the_last_that_fits(accountant: Accountant, limit: int) -> None:
    one, spent = term("fixed", 0.2, 60.0, count=50), [term("fixed", 0.1, 30.0, 10)]
    rounds = max_rounds(accountant, one, spent, 1.3, 1e-5, limit)
    fits = accountant.epsilon([*spent, replace(one, rounds=rounds)], 1e-5) <= 1.3
    assert fits and 0 < rounds <= limit
    if rounds < limit:
        assert accountant.epsilon([*spent, replace(one, rounds=rounds + 1)], 1e-5) > 1.3


@BOTH
def test_max_rounds_at_the_ends(accountant: Accountant) -> None:
    one = term("fixed", 0.2, 60.0, count=50)
    assert max_rounds(accountant, one, [one], 1e-9, 1e-5, 100) == 0
    assert max_rounds(accountant, one, [], math.inf, 1e-5, 100) == 100
    assert max_rounds(accountant, one, [], 1.0, 1e-5, 0) == 0
    assert max_rounds(accountant, replace(one, count=0), [], 0.0, 1e-5, 9) == 9
    assert max_rounds(accountant, term("full", 1.0, 0.0), [], 100.0, 1e-5, 9) == 0
    for bad in (-1.0, math.nan):
        with pytest.raises(ConfigError, match="epsilon"):
            max_rounds(accountant, one, [], bad, 1e-5, 9)
