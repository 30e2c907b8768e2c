"""One contract for all accountants, registered by us or by others.

A plugin's tests may subclass `AccountantContract` and give it an ``accountant`` fixture.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
from scipy.special import log_ndtr

from dpfl_plugin import registry
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.privacy.accountants import PLD, Accountant
from dpfl_plugin.privacy.events import SampledGaussian, Sampler, Term

DELTA = 1e-5
PLD_ERROR = 5e-4  # relative, as PLD states it: what is sound lies above the exact value, so at most this below PLD


def term(
    sampler: Sampler, rate: float, sigma: float, rounds: int = 1, count: int = 1, participation: float = 1.0
) -> Term:
    neighbouring = "add_or_remove" if sampler == "poisson" else "replace_one"
    one = SampledGaussian(noise_multiplier=sigma, sampler=sampler, rate=rate, neighbouring=neighbouring)
    return Term(release=one, count=count, rounds=rounds, participation=participation)


KINDS = {
    "full": term("full", 1.0, 8.0, rounds=6, count=5),
    "fixed": term("fixed", 0.1, 8.0, rounds=6, count=5),
    "poisson": term("poisson", 0.1, 8.0, rounds=6, count=5),
    "full, some rounds": term("full", 1.0, 8.0, rounds=6, count=5, participation=0.3),
    "fixed, some rounds": term("fixed", 0.1, 8.0, rounds=6, count=5, participation=0.3),
    "poisson, some rounds": term("poisson", 0.1, 8.0, rounds=6, count=5, participation=0.3),
}
OF_RELEASE = ("noise_multiplier", "rate", "sampler", "neighbouring", "unit")


def changed(one: Term, **values: Any) -> Term:
    release = {key: value for key, value in values.items() if key in OF_RELEASE}
    rest = {key: value for key, value in values.items() if key not in OF_RELEASE}
    return replace(one, release=replace(one.release, **release), **rest)


@functools.cache
def by_pld(composition: tuple[Term, ...], delta: float) -> float:
    """What every other accountant is compared with."""
    return PLD().epsilon(composition, delta)


@functools.cache
def known(accountant: Accountant) -> dict[str, Term]:
    """The kinds of releases that the accountant has a bound for."""
    found = {}
    for kind, one in KINDS.items():
        try:
            accountant.epsilon([one], DELTA)
        except UnsupportedError:
            continue
        found[kind] = one
    assert found, f"{accountant.name} refuses everything"
    return found


@functools.cache
def exact_gaussian(mu: float, delta: float) -> float:
    """Epsilon of N(mu, 1) against N(0, 1), by bisection. Balle, Wang 2018, Thm 8."""
    low, high = 0.0, 10 * mu + mu * mu
    for _ in range(100):
        e = (low + high) / 2
        upper, lower = log_ndtr(mu / 2 - e / mu), e + log_ndtr(-mu / 2 - e / mu)
        low, high = (e, high) if upper + math.log1p(-math.exp(lower - upper)) > math.log(delta) else (low, e)
    return high


class AccountantContract:
    """What every accountant keeps."""

    def test_describes_itself(self, accountant: Accountant) -> None:
        assert accountant.name and accountant.error and "\n" not in accountant.caveat + accountant.error
        assert isinstance(accountant.sound, bool) and (accountant.sound or accountant.caveat)

    def test_no_releases_cost_nothing(self, accountant: Accountant) -> None:
        assert accountant.epsilon([], DELTA) == 0.0
        for one in known(accountant).values():
            for nothing in ({"rounds": 0}, {"count": 0}, {"participation": 0.0}):
                assert accountant.epsilon([changed(one, noise_multiplier=0.0, **nothing)], DELTA) == 0.0

    def test_no_noise_is_no_guarantee(self, accountant: Accountant) -> None:
        for one in known(accountant).values():
            assert accountant.epsilon([changed(one, noise_multiplier=0.0), one], DELTA) == math.inf

    @pytest.mark.parametrize(
        ("what", "values"),
        {
            "rounds": (0, 1, 3, 10, 40),
            "count": (0, 1, 3, 10, 40),
            "rate": (0.02, 0.05, 0.1, 0.3),  # near 1 some bounds are looser than without sampling
            "noise_multiplier": (40.0, 12.0, 8.0, 5.0, 2.0),
            "participation": (0.0, 0.1, 0.4, 0.9),
            "delta": (1e-4, 1e-5, 1e-6, 1e-8),
        }.items(),
    )
    def test_rises(self, accountant: Accountant, what: str, values: Sequence[float]) -> None:
        for kind, one in known(accountant).items():
            if (what == "rate" and kind.startswith("full")) or (what == "participation" and "some" not in kind):
                continue
            if what == "delta":
                curve = [accountant.epsilon([one], delta) for delta in values]
            else:
                curve = [accountant.epsilon([changed(one, **{what: value})], DELTA) for value in values]
            assert all(low < high for low, high in itertools.pairwise(curve)), (kind, curve)

    def test_some_rounds_cost_less_than_all(self, accountant: Accountant) -> None:
        for kind, one in known(accountant).items():
            if "some" in kind:
                certain = accountant.epsilon([changed(one, participation=1.0)], DELTA)
                assert accountant.epsilon([one], DELTA) < certain
                almost = accountant.epsilon([changed(one, participation=1 - 1e-13)], DELTA)
                assert almost == pytest.approx(certain, rel=PLD_ERROR)

    def test_steps_are_rounds(self, accountant: Accountant) -> None:
        """K steps in one certain round are K rounds of one step; how a composition is written does not matter."""
        for kind, one in known(accountant).items():
            whole = accountant.epsilon([one], DELTA)
            assert accountant.epsilon([changed(one, rounds=2), changed(one, rounds=4)], DELTA) == whole, kind
            if one.participation == 1:
                assert accountant.epsilon([changed(one, count=30, rounds=1)], DELTA) == whole, kind
                assert accountant.epsilon([changed(one, count=1, rounds=30)], DELTA) == whole, kind

    def test_two_noise_levels(self, accountant: Accountant) -> None:
        """At least each part; at most both, each at half of delta (basic composition; Dwork et al. 2010, Thm III.1)."""
        for kind, one in known(accountant).items():
            other = changed(one, noise_multiplier=5.0, rounds=3)
            both = accountant.epsilon([one, other], DELTA)
            assert both == accountant.epsilon([other, one], DELTA), kind
            assert both > max(accountant.epsilon([part], DELTA) for part in (one, other)), kind
            assert both <= sum(accountant.epsilon([part], DELTA / 2) for part in (one, other)), kind

    def test_curves_are_the_single_values(self, accountant: Accountant) -> None:
        rounds = [0, 1, 2, 10, 11]
        for kind, one in known(accountant).items():
            single = [accountant.epsilon([changed(one, rounds=n)], DELTA) for n in rounds]
            assert accountant.epsilons(changed(one, rounds=1), rounds, DELTA) == single, kind

    @pytest.mark.parametrize(("sigma", "number", "delta"), [(0.7, 1, 1e-6), (8, 30, 1e-5), (60, 20000, 1e-8)])
    def test_never_below_the_exact_gaussian(
        self, accountant: Accountant, sigma: float, number: int, delta: float
    ) -> None:
        if not accountant.sound:
            pytest.skip(f"{accountant.name} says that it is not sound")
        exact = exact_gaussian(math.sqrt(number) / sigma, delta)
        found = accountant.epsilon([term("full", 1.0, sigma, number)], delta)
        assert exact * (1 - 1e-9) <= found
        half = [term("full", 1.0, sigma * math.sqrt(2), number), term("full", 1.0, sigma, number // 2)]
        if number % 2 == 0:
            assert exact * (1 - 1e-9) <= accountant.epsilon(half, delta)

    @pytest.mark.parametrize(
        ("rate", "sigma", "rounds", "delta"),
        [(0.2, 60.0, 400, 2.5e-6), (0.01, 0.8, 30, 1e-5), (0.3, 1.5, 2, 1e-7), (0.05, 300.0, 4, 1e-6)],
    )
    def test_never_below_pld(
        self, accountant: Accountant, rate: float, sigma: float, rounds: int, delta: float
    ) -> None:
        """PLD is checked against exact integrals of its own; see test_pld."""
        if not accountant.sound:
            pytest.skip(f"{accountant.name} says that it is not sound")
        for kind, one in known(accountant).items():
            case = changed(one, noise_multiplier=sigma, rounds=rounds)
            if not kind.startswith("full"):
                case = changed(case, rate=rate)
            for composition in ([case], [case, changed(case, noise_multiplier=1.5 * sigma)]):
                tight = by_pld(tuple(composition), delta)
                assert accountant.epsilon(composition, delta) >= tight * (1 - PLD_ERROR), (kind, composition)

    def test_refuses_what_it_does_not_know(self, accountant: Accountant) -> None:
        unknown = [one for kind, one in KINDS.items() if kind not in known(accountant)]
        unknown += [
            changed(KINDS["fixed"], neighbouring="add_or_remove"),
            changed(KINDS["poisson"], neighbouring="replace_one"),
            changed(KINDS["fixed"], sampler="shuffled"),
            changed(KINDS["full"], neighbouring="zero_out"),
        ]
        for one in unknown:
            for sigma in (8.25, 0.0):
                with pytest.raises(UnsupportedError) as caught:
                    accountant.epsilon([changed(one, noise_multiplier=sigma)], DELTA)
                message = str(caught.value)
                for part in (accountant.name, f"sampler={one.release.sampler}", f"noise_multiplier={sigma:g}"):
                    assert part in message
                assert f"rate={one.release.rate:g}" in message and one.release.neighbouring in message

    @pytest.mark.parametrize("other", [{"neighbouring": "add_or_remove"}, {"unit": "silo"}])
    def test_mixed_meanings_are_refused(self, accountant: Accountant, other: dict[str, str]) -> None:
        one = KINDS["full"]
        with pytest.raises(ConfigError, match="neighbouring"):
            accountant.epsilon([one, changed(one, **other)], DELTA)

    @pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 1.5, math.nan])
    def test_impossible_deltas_are_refused(self, accountant: Accountant, delta: float) -> None:
        for composition in ([], [KINDS["full"]], [changed(KINDS["full"], noise_multiplier=0.0)]):
            with pytest.raises(ConfigError, match="delta"):
                accountant.epsilon(composition, delta)

    @pytest.mark.parametrize(
        "bad",
        [
            {"rate": 0.0},
            {"rate": 1.2},
            {"rate": math.nan},
            {"noise_multiplier": -1.0},
            {"noise_multiplier": math.nan},
            {"noise_multiplier": math.inf},
            {"rounds": -1},
            {"count": 1.5},
            {"participation": 1.1},
        ],
    )
    def test_impossible_numbers_are_refused(self, accountant: Accountant, bad: dict[str, Any]) -> None:
        for one in known(accountant).values():
            with pytest.raises(ConfigError):
                accountant.epsilon([changed(one, **bad)], DELTA)

    def test_extreme_noise_is_no_accident(self, accountant: Accountant) -> None:
        """Numbers that would overflow or cancel give a bound or a refusal, in order, and no warning."""
        for kind, one in known(accountant).items():
            curve = []
            for sigma in (1e300, 1e9, 1e4, 1e3, 1.0, 0.05, 1e-3, 1e-200, 5e-324):
                try:
                    curve.append(accountant.epsilon([changed(one, noise_multiplier=sigma)], DELTA))
                except UnsupportedError:
                    continue
            assert curve == sorted(curve) and curve[-1] == math.inf and len(curve) > 6, (kind, curve)


COARSE: dict[str, dict[str, Any]] = {"prv": {"eps_error": 0.1}}  # the contract holds at any: its grids are short so


class TestRegistered(AccountantContract):
    @pytest.fixture(params=registry.names("accountants"))
    def accountant(self, request: pytest.FixtureRequest) -> Accountant:
        options = COARSE.get(request.param, {})
        made: Accountant = registry.build(registry.load("accountants", request.param), options, where="accountant")
        assert made.name.lower() == request.param
        return made


@pytest.mark.parametrize(
    ("name", "kinds"),
    {
        "pld": set(KINDS),
        "rdp": set(KINDS),
        "prv": {"full", "poisson"},
        "gaussian": {"full"},
        "paper": {"full", "fixed", "full, some rounds", "fixed, some rounds"},
    }.items(),
)
def test_what_ours_know(name: str, kinds: set[str]) -> None:
    accountant = registry.build(registry.load("accountants", name), {}, where="accountant")
    assert set(known(accountant)) == kinds and accountant.sound and bool(accountant.caveat) == (name != "pld")


# The contract's power: each of these breaks it in one way


@dataclass(frozen=True)
class Broken:
    """PLD, but for what a subclass does to it."""

    name: ClassVar[str] = "Broken"
    sound: ClassVar[bool] = True
    caveat: ClassVar[str] = ""
    error: ClassVar[str] = "none"

    def epsilon(self, composition: Sequence[Term], delta: float) -> float:
        return PLD().epsilon(composition, delta)

    def epsilons(self, per_round: Term, rounds: Sequence[int], delta: float) -> list[float]:
        return [self.epsilon([changed(per_round, rounds=n)], delta) for n in rounds]


class HalfOf(Broken):
    def epsilon(self, composition: Sequence[Term], delta: float) -> float:
        return super().epsilon(composition, delta) / 2


class LastTermOnly(Broken):
    def epsilon(self, composition: Sequence[Term], delta: float) -> float:
        return super().epsilon(composition[-1:], delta)


class ForgetsCount(Broken):
    def epsilon(self, composition: Sequence[Term], delta: float) -> float:
        return super().epsilon([changed(t, count=min(t.count, 1)) for t in composition], delta)


class ForgetsDelta(Broken):
    def epsilon(self, composition: Sequence[Term], delta: float) -> float:
        return super().epsilon(composition, DELTA if 0 < delta < 1 else delta)


class Amplifies(Broken):
    """l epsilon: what Noble et al. do with silos."""

    def epsilon(self, composition: Sequence[Term], delta: float) -> float:
        certain = super().epsilon([changed(t, participation=float(t.participation > 0)) for t in composition], delta)
        return certain * min((t.participation for t in composition), default=0.0)


class TakesAnySampler(Broken):
    def epsilon(self, composition: Sequence[Term], delta: float) -> float:
        return super().epsilon([changed(t, sampler="full", rate=1.0) for t in composition], delta)


class NoNoiseIsALot(Broken):
    def epsilon(self, composition: Sequence[Term], delta: float) -> float:
        return min(super().epsilon(composition, delta), 1e6)


class OtherCurve(Broken):
    def epsilons(self, per_round: Term, rounds: Sequence[int], delta: float) -> list[float]:
        return [self.epsilon([changed(per_round, rounds=n + 1)], delta) for n in rounds]


@pytest.mark.parametrize(
    ("broken", "test", "arguments"),
    [
        (HalfOf(), "test_never_below_the_exact_gaussian", (8, 30, 1e-5)),
        (HalfOf(), "test_never_below_pld", (0.2, 60.0, 400, 2.5e-6)),
        (LastTermOnly(), "test_two_noise_levels", ()),
        (LastTermOnly(), "test_never_below_pld", (0.2, 60.0, 400, 2.5e-6)),
        (ForgetsCount(), "test_steps_are_rounds", ()),
        (ForgetsCount(), "test_rises", ("count", (0, 1, 3))),
        (ForgetsDelta(), "test_rises", ("delta", (1e-4, 1e-5))),
        (Amplifies(), "test_never_below_pld", (0.2, 60.0, 400, 2.5e-6)),
        (TakesAnySampler(), "test_refuses_what_it_does_not_know", ()),
        (NoNoiseIsALot(), "test_no_noise_is_no_guarantee", ()),
        (OtherCurve(), "test_curves_are_the_single_values", ()),
    ],
)
def test_the_contract_notices(broken: Accountant, test: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(AccountantContract(), test)(broken, *arguments)
