"""The accountants' contract, and epsilons that others computed."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpfl_plugin import registry
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.privacy.accountants import PLD, RDP, Accountant, max_rounds
from dpfl_plugin.privacy.events import SampledGaussian, Sampler, Term

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


def test_reference_rdp(reference_folder: Path) -> None:
    checked = rows(
        reference_folder, "dp-accounting 0.6.0 RDP, Wang et al. Thm 27", "dp-accounting 0.6.0 RDP", "opacus-1.6.0 RDP"
    )
    assert {row["mechanism"][:7] for row in checked} == {"Gaussia", "Poisson"} and len(checked) > 25
    for row in checked:
        assert of(RDP(), row) == pytest.approx(float(row["epsilon"]), rel=1e-4, abs=1e-6), row


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
