"""Views: who composes what, and which silo is worst."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from dpfl_plugin.errors import ConfigError, LedgerError, UnsupportedError
from dpfl_plugin.privacy.accountants import PLD, RDP
from dpfl_plugin.privacy.composition import Planned, Spending, shares_by_interval, silo_compositions, undominated
from dpfl_plugin.privacy.costs import RoundCost
from dpfl_plugin.privacy.events import Charge, SampledGaussian, Term
from dpfl_plugin.privacy.participation import Participation
from dpfl_plugin.privacy.pld import normalise
from dpfl_plugin.privacy.tally import Tally
from dpfl_plugin.privacy.views import (
    Releases,
    ViewEpsilon,
    check_charges,
    outsider_view,
    server_view,
    third_party_composed,
    worst_case_composed,
    worst_case_terms,
)

DELTA = 1e-5
A = SampledGaussian(noise_multiplier=20.0, sampler="fixed", rate=0.1, neighbouring="replace_one")
B = replace(A, noise_multiplier=5.0)
SILO = SampledGaussian(noise_multiplier=10.0, sampler="full", rate=1.0, neighbouring="replace_one", unit="silo")
POISSON = replace(A, sampler="poisson", neighbouring="add_or_remove")
FIRST, SECOND = (0.0, 0.5), (0.5, 1.0)


def charge(
    round: int, silo: int = 0, release: SampledGaussian = A, count: int = 5, share: tuple[float, float] = (0.0, 1.0),
    noise_id: str = "s",
) -> Charge:  # fmt: skip
    return Charge(round=round, silo=silo, release=release, count=count, share=share, noise_id=noise_id)


def costs(rounds: int, p: float = 1.0) -> dict[int, RoundCost]:
    """Of rounds that are told apart by their noise, which `pattern` does not look at."""
    return {t: RoundCost(((float(t), 1),), (0.0, 1.0), Participation("without_replacement", p)) for t in range(rounds)}


def pattern(silo: int, cost: RoundCost) -> Iterable[Planned]:
    return [Planned(A, 5)]


def of_round(cost: RoundCost) -> int:
    return int(cost.levels[0][0])


def epsilon(*terms: tuple[SampledGaussian, int] | tuple[SampledGaussian, int, int, float]) -> float:
    return PLD().epsilon([Term(release=t[0], count=t[1], rounds=t[2] if t[2:] else 1,
                               participation=t[3] if t[3:] else 1.0) for t in terms], DELTA)  # fmt: skip


# Composition of one silo


def test_a_silos_releases_are_composed() -> None:
    charges = [charge(0), charge(1), charge(2, release=B, count=2), charge(0, silo=3)]
    compositions = silo_compositions(charges)
    assert set(compositions) == {0, 3}
    assert compositions[0] == (normalise([Term(release=A, count=10, rounds=1), Term(release=B, count=2, rounds=1)]),)
    assert compositions[3] == (normalise([Term(release=A, count=5, rounds=1)]),)


def test_disjoint_shares_compose_in_parallel() -> None:
    """The worst share counts, not the sum."""
    both = server_view([charge(0, share=FIRST, count=50), charge(1, share=SECOND, release=B)], PLD(), DELTA)
    assert both.epsilon == max(epsilon((A, 50)), epsilon((B, 5)))
    same = server_view([charge(t, share=FIRST) for t in (0, 1)], PLD(), DELTA)
    assert same.epsilon == epsilon((A, 10))


def test_overlapping_shares_are_composed_together() -> None:
    overlapping = server_view([charge(0, share=(0.0, 0.51)), charge(1, share=SECOND)], PLD(), DELTA)
    assert overlapping.epsilon == epsilon((A, 10))
    whole = server_view([charge(0, share=FIRST), charge(1, share=SECOND), charge(2)], PLD(), DELTA)
    assert whole.epsilon == epsilon((A, 10))  # a record is in one half


def test_a_release_on_all_records_beside_disjoint_parts_is_composed_with_one_of_them() -> None:
    """A record is in one part: 10 releases of all records and 10 of each half come to 20, not to 30."""
    charges = [charge(0, count=10), charge(1, share=FIRST, count=10), charge(2, share=SECOND, count=10)]
    assert server_view(charges, PLD(), DELTA).epsilon == epsilon((A, 20))
    chain = [charge(t, share=share) for t, share in enumerate([(0.0, 0.4), (0.3, 0.7), (0.6, 1.0)])]
    assert server_view(chain, PLD(), DELTA).epsilon == epsilon((A, 10))
    mixture = third_party_composed(
        costs(3, 0.5), {}, lambda silo, cost: [Planned(A, 10, ((0.0, 1.0), FIRST, SECOND)[of_round(cost)])], silos=[0]
    )
    assert mixture.stated(PLD(), DELTA).epsilon == epsilon((A, 10, 2, 0.5))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), min_size=1, max_size=8),
    st.integers(18, 60),
    st.floats(0.5, 1.0),
)
def test_each_rank_is_charged_for_the_shares_that_read_it(
    starts: list[tuple[int, int]], num_records: int, training: float
) -> None:
    """The interval's shares hold all that read a rank; without rounding, they are those that read some rank."""
    shares = [(a / 18 * training, (a + n) / 18 * training) for a, n in starts]
    intervals = shares_by_interval(shares, "record")
    bounds = {share: [round(end * num_records) for end in share] for share in shares}
    for rank in range(num_records):
        reading = {share for share, (first, last) in bounds.items() if first <= rank < last}
        assert any(reading <= covering for covering in intervals)
    for covering in intervals:
        place = max(first for first, _ in covering), min(last for _, last in covering)
        assert covering == {share for share in shares if share[0] <= place[0] < place[1] <= share[1]}
    assert not any(one < other for one in intervals for other in intervals)
    assert shares_by_interval(shares, "silo") == (frozenset(shares),)


def test_replacing_a_silo_changes_every_share() -> None:
    charges = [charge(0, share=FIRST, release=SILO, count=1), charge(1, share=SECOND, release=SILO, count=1)]
    assert server_view(charges, PLD(), DELTA).epsilon == epsilon((SILO, 2))


def test_parts_of_records_under_add_or_remove_compose_in_parallel() -> None:
    """A record is there or counts as zero: it has its place in one part, and moves no other record to another."""
    parts = [charge(0, release=POISSON, share=FIRST, count=4), charge(1, release=POISSON, share=SECOND, count=3)]
    assert server_view(parts, PLD(), DELTA).epsilon == epsilon((POISSON, 4))


def test_replayed_bits_count_once_and_fresh_bits_again() -> None:
    assert server_view([charge(0), charge(0)], PLD(), DELTA).epsilon == epsilon((A, 5))
    assert server_view([charge(0), charge(0, count=8)], PLD(), DELTA).epsilon == epsilon((A, 8))
    assert server_view([charge(0), charge(0, noise_id="t")], PLD(), DELTA).epsilon == epsilon((A, 10))


def test_planned_releases_are_added_without_being_spent() -> None:
    spending = Spending([charge(0)])
    (planned,) = spending.compositions(0, [Planned(A, 3), Planned(A, 4)])
    assert planned == normalise([Term(release=A, count=12, rounds=1)])
    assert spending.compositions(0) == (normalise([Term(release=A, count=5, rounds=1)]),)
    assert spending.compositions(7) == ()


# The server's view


def test_the_worst_silo_is_named() -> None:
    charges = [charge(0, s) for s in range(4)] + [charge(1, 2), charge(1, 3, release=replace(A, rate=0.05))]
    view = server_view(charges, PLD(), DELTA)
    assert (view.view, view.worst_silo, view.delta, view.accountant) == ("server", 2, DELTA, "PLD")
    assert (view.neighbouring, view.unit) == ("replace_one", "record")
    assert view.epsilon == epsilon((A, 10)) == max(view.per_silo.values())
    assert view.per_silo[0] == view.per_silo[1] == epsilon((A, 5))
    assert view.per_silo[3] == epsilon((A, 5), (replace(A, rate=0.05), 5))


def test_no_noise_in_one_silo_is_no_guarantee() -> None:
    view = server_view([charge(0), charge(0, 1, release=replace(A, noise_multiplier=0.0), count=1)], PLD(), DELTA)
    assert view.epsilon == math.inf and view.worst_silo == 1


def test_no_charges_are_no_cost() -> None:
    view = server_view([], PLD(), DELTA)
    assert view.epsilon == 0.0 and view.worst_silo is None and view.neighbouring is None


def test_mixed_meanings_are_refused_even_between_silos() -> None:
    for other in (POISSON, SILO):
        for silo in (0, 1):
            with pytest.raises(ConfigError, match=r"neighbouring|unit"):
                server_view([charge(0), charge(1, silo, release=other)], PLD(), DELTA)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.sampled_from([0.05, 0.1, 0.3]), st.sampled_from([5.0, 20.0]), st.integers(1, 9)
        ),
        min_size=1,
        max_size=12,
    )
)
def test_pruning_never_drops_the_worst(made: list[tuple[int, float, float, int]]) -> None:
    charges = [
        charge(t, silo, release=replace(A, rate=q, noise_multiplier=sigma), count=count)
        for t, (silo, q, sigma, count) in enumerate(made)
    ]
    truth = max(RDP().epsilon(terms, DELTA) for groups in silo_compositions(charges).values() for terms in groups)
    assert server_view(charges, RDP(), DELTA).epsilon == pytest.approx(truth, rel=1e-12)


def test_pruning_is_by_every_number_of_a_term() -> None:
    def terms(sigma: float, rate: float, rounds: int, count: int, p: float) -> tuple[Term, ...]:
        one = replace(A, noise_multiplier=sigma, rate=rate)
        return normalise([Term(release=one, count=count, rounds=rounds, participation=p)])

    worst = terms(5.0, 0.2, 9, 4, 0.5)
    below = [
        (6.0, 0.2, 9, 4, 0.5),
        (5.0, 0.1, 9, 4, 0.5),
        (5.0, 0.2, 8, 4, 0.5),
        (5.0, 0.2, 9, 3, 0.5),
        (5.0, 0.2, 9, 4, 0.4),
    ]
    above = [  # each better in the rate alone, so that it is smaller in size, and worse in one other number
        (4.0, 0.1, 9, 4, 0.5),
        (5.0, 0.1, 10, 4, 0.5),
        (5.0, 0.1, 9, 5, 0.5),
        (5.0, 0.1, 9, 4, 0.6),
        (6.0, 0.3, 9, 4, 0.5),
    ]
    assert undominated([worst, *(terms(*b) for b in below)]) == [worst]
    for other in above:
        assert set(undominated([worst, terms(*other)])) == {worst, terms(*other)}


def test_ten_thousand_silos_of_their_own_sizes_are_quick() -> None:
    charges = [charge(t, s, release=replace(A, rate=20 / (200 + s))) for s in range(10_000) for t in range(2)]
    start = time.process_time()
    assert server_view(charges, PLD(), DELTA).worst_silo == 0
    assert time.process_time() - start < 100  # a quadratic algorithm would take more, a slow machine does not


# Worst case and third party


def views(
    charges: list[Charge], rounds: int, p: float, shape: Releases = pattern, silos: Iterable[int] = (0,)
) -> tuple[float, float, float]:
    given_ = costs(rounds, p), Tally(charges).again(), shape
    return (
        server_view(charges, PLD(), DELTA).epsilon,
        worst_case_composed(*given_, silos=list(silos)).stated(PLD(), DELTA).epsilon,
        third_party_composed(*given_, silos=list(silos)).stated(PLD(), DELTA).epsilon,
    )


def test_third_party_is_the_mixture_and_the_worst_case_all_rounds() -> None:
    realised, worst, third = views([charge(t) for t in (0, 5, 6)], 30, 0.2)
    assert realised == epsilon((A, 15))
    assert worst == epsilon((A, 150))
    assert third == epsilon((A, 5, 30, 0.2))
    assert third < worst


def test_certain_participation_makes_all_views_one() -> None:
    realised, worst, third = views([charge(t) for t in range(30)], 30, 1.0)
    assert realised == worst == third


@pytest.mark.parametrize("p", [0.0, 0.01, 0.5, 0.999999])
def test_third_party_never_exceeds_the_worst_case(p: float) -> None:
    _, worst, third = views([], 40, p)
    assert third <= worst


def test_a_silo_that_was_never_picked_has_an_ex_ante_epsilon() -> None:
    def by_size(silo: int, cost: RoundCost) -> list[Planned]:
        return [Planned(replace(A, rate=0.3 if silo == 7 else 0.1), 5)]

    view = third_party_composed(costs(10, 0.1), {}, by_size, silos=[0, 7]).stated(PLD(), DELTA)
    assert view.worst_silo == 7 and view.view == "third_party"
    assert view.per_silo[0] == epsilon((A, 5, 10, 0.1)) < view.per_silo[7]


def test_rounds_with_different_probabilities() -> None:
    of_rounds = costs(3, 0.1) | costs(1)
    view = third_party_composed(of_rounds, {}, pattern, silos=[0]).stated(PLD(), DELTA)
    assert view.epsilon == epsilon((A, 5, 1, 1.0), (A, 5, 2, 0.1))


def test_a_round_released_twice_counts_twice_and_as_certain() -> None:
    charges = [charge(3), charge(3, noise_id="again")]
    realised, worst, third = views(charges, 10, 0.1)
    assert realised == epsilon((A, 10))
    assert worst == epsilon((A, 55))
    assert third == epsilon((A, 10, 1, 1.0), (A, 5, 9, 0.1))


def test_disjoint_shares_in_the_other_views() -> None:
    def phases(silo: int, cost: RoundCost) -> list[Planned]:
        return [Planned(A, 5, FIRST if of_round(cost) < 10 else SECOND)]

    _, worst, third = views([], 30, 0.2, phases)
    assert worst == epsilon((A, 100))
    assert third == epsilon((A, 5, 20, 0.2))


def test_a_round_on_two_shares_and_one_with_two_releases() -> None:
    both = lambda silo, round: [Planned(A, 5, FIRST), Planned(B, 2, SECOND)]  # noqa: E731
    assert views([], 9, 0.2, both)[2] == max(epsilon((A, 5, 9, 0.2)), epsilon((B, 2, 9, 0.2)))
    twice = lambda silo, cost: [Planned(A, 5), Planned(A, 2)]  # noqa: E731
    assert views([], 9, 0.2, twice)[2] == epsilon((A, 7, 9, 0.2))
    mixed = lambda silo, cost: [Planned(A, 5), Planned(B, 2)]  # noqa: E731
    assert views([], 9, 1.0, mixed)[2] == epsilon((A, 45), (B, 18))
    with pytest.raises(UnsupportedError, match="different releases"):
        views([], 9, 0.2, mixed)


def test_a_cap_on_participation() -> None:
    def worst(cap: int, attempts: Mapping[int, int] = MappingProxyType({})) -> ViewEpsilon:
        return worst_case_composed(costs(30), attempts, pattern, silos=[0], cap=cap).stated(PLD(), DELTA)

    assert worst(4).epsilon == epsilon((A, 20)) and "4 rounds, the cap" in worst(4).basis
    assert worst(99).epsilon == epsilon((A, 150))
    # A silo that was in both attempts has used up two rounds of its cap.
    assert worst(4, {0: 2}).epsilon == epsilon((A, 20))
    assert worst(31, {0: 2}).epsilon == epsilon((A, 155)) and "each of the 30 rounds" in worst(31, {0: 2}).basis


def test_a_cap_takes_the_dearest_rounds() -> None:
    """The worst choice of 4 rounds is found, or overstated; never less."""
    plans: dict[tuple[Planned, ...], int]
    plans = {(Planned(A, 5),): 3, (Planned(A, 7),): 2, (Planned(A, 1), Planned(A, 1)): 9}
    (dearest,) = worst_case_terms(plans, 4)
    assert PLD().epsilon(dearest, DELTA) == epsilon((A, 2 * 7 + 2 * 5))
    (less_noise,) = worst_case_terms({(Planned(A, 5),): 15, (Planned(B, 5),): 3, (Planned(B, 5), Planned(A, 1)): 2}, 6)
    assert PLD().epsilon(less_noise, DELTA) == epsilon((A, 7), (B, 25))
    mixed = {(Planned(A, 9),): 15, (Planned(A, 2),): 15, (Planned(B, 5),): 15}  # less noise, but fewer releases
    (bound,) = worst_case_terms(mixed, 4)
    assert PLD().epsilon(bound, DELTA) == epsilon((A, 36), (B, 20)) > max(epsilon((A, 36)), epsilon((B, 20)))
    phases = {(Planned(A, 5, FIRST),): 3, (Planned(A, 5, SECOND),): 15}
    assert set(worst_case_terms(phases, 4)) == {_one(A, 15), _one(A, 20)}
    assert worst_case_terms(plans, 0) == () and worst_case_terms({}, 4) == ()
    with pytest.raises(ConfigError, match="cap=-1"):
        worst_case_terms(plans, -1)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), min_size=1, max_size=2), min_size=1, max_size=6),
    st.integers(0, 6),
)
def test_no_choice_of_rounds_within_the_cap_costs_more(rounds: list[list[tuple[bool, int]]], cap: int) -> None:
    """Every choice of at most ``cap`` rounds makes no more releases with at most any noise."""
    made = [tuple(Planned(A if first else B, count) for first, count in one) for one in rounds]
    bound = [t for terms in worst_case_terms(Counter(made), cap) for t in terms]
    for chosen in itertools.combinations(made, min(cap, len(made))):
        for noise in (A.noise_multiplier, B.noise_multiplier):
            most = sum(t.count * t.rounds for t in bound if t.release.noise_multiplier <= noise)
            assert sum(p.count for plan in chosen for p in plan if p.release.noise_multiplier <= noise) <= most


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.sampled_from([1.0, 2.0, 3.0, 5.0, 8.0]), max_size=6), min_size=1, max_size=4))
def test_the_envelope_dominates_every_silo_and_is_no_more_than_need_be(noises: list[list[float]]) -> None:
    """In the order of growing noise, its k-th release has the least noise of all silos' k-th ones."""
    made = [
        charge(round, silo=silo, count=1, release=replace(A, noise_multiplier=noise))
        for silo, own in enumerate(noises)
        for round, noise in enumerate(own)
    ]
    envelope = Spending(made).envelope(range(len(noises)))
    found = sorted(p.release.noise_multiplier for p in envelope for _ in range(p.count))
    ranks = itertools.zip_longest(*map(sorted, noises), fillvalue=math.inf)
    assert found == [min(rank) for rank in ranks]
    assert {replace(p.release, noise_multiplier=1.0) for p in envelope} <= {replace(A, noise_multiplier=1.0)}


def test_an_envelope_keeps_shares_and_rates_apart() -> None:
    """A release of another share, or at another rate, is neither dominated nor replaced by one of this."""
    other = replace(A, rate=0.2)
    made = [charge(0, silo=0, share=FIRST), charge(0, silo=1, share=SECOND), charge(0, silo=2, release=other)]
    found = {(p.share, p.release, p.count) for p in Spending(made).envelope(range(3))}
    assert found == {(c.share, c.release, c.count) for c in made}


def _one(release: SampledGaussian, count: int) -> tuple[Term, ...]:
    return normalise([Term(release=release, count=count, rounds=1)])


def test_charges_outside_the_pattern_are_refused() -> None:
    for bad in (charge(99), charge(0, count=6), charge(0, release=B), charge(0, share=FIRST)):
        with pytest.raises(LedgerError):
            check_charges(Tally([charge(1), bad]), costs(10), pattern)
    check_charges(Tally([charge(9)]), costs(10), pattern)


def test_fewer_releases_at_a_larger_rate_can_be_the_worst():
    """A composition is not dominated by one of more releases that sees fewer of the records."""
    many, few = (replace(A, noise_multiplier=5.0, rate=rate) for rate in (0.1, 0.8))
    charges = [charge(0, silo=0, release=many, count=100), charge(0, silo=1, release=few, count=10)]
    view = server_view(charges, PLD(), DELTA)
    alone = [server_view([one], PLD(), DELTA).epsilon for one in charges]
    assert alone[1] > 1.5 * alone[0]
    assert (view.worst_silo, view.epsilon) == (1, alone[1])


# Someone who does not know who took part


def outsider(rounds: dict[int, tuple[int, int]], *charges: Charge, release: SampledGaussian = SILO) -> float:
    return outsider_view(charges, PLD(), DELTA, release=release, rounds=rounds).epsilon


def sums(sigma: float, rate: float) -> SampledGaussian:
    return replace(SILO, noise_multiplier=sigma, rate=rate, sampler="fixed" if rate < 1 else "full")


def test_an_outsider_sees_sums_over_a_sample_of_silos() -> None:
    rounds = dict.fromkeys(range(8), (9, 90))
    assert outsider(rounds) == pytest.approx(epsilon((sums(30.0, 0.1), 8)), rel=1e-12)
    assert outsider(dict.fromkeys(range(8), (90, 90))) == pytest.approx(
        epsilon((sums(10.0 * math.sqrt(90), 1.0), 8)), rel=1e-12
    )
    assert outsider({}) == 0


def test_an_outsider_never_learns_more_than_a_third_party() -> None:
    """Who knows all single uploads and who sent them knows the sums."""
    charges = [charge(round, release=SILO, count=1) for round in range(8)]
    third = third_party_composed(costs(8, 0.1), {}, lambda silo, cost: [Planned(SILO, 1)], silos=[0])
    assert outsider(dict.fromkeys(range(8), (9, 90)), *charges) < third.stated(PLD(), DELTA).epsilon


def test_a_sampled_sum_is_no_more_private_than_its_profile_says() -> None:
    """Three silos of one number each, one of them drawn: the exact hockey-stick divergence of the two mixtures.

    Silo 0 goes from C to -C while the others stay at -C, the worst case: the mixture of N(C, s) and N(-C, s) with
    probability 1/3, 2/3 against N(-C, s) alone.
    """
    sigma, rate = 0.7, 1 / 3
    release = replace(SILO, noise_multiplier=sigma)
    value = outsider_view((), PLD(), 0.01, release=release, rounds={0: (1, 3)}).epsilon
    x = np.linspace(-12, 14, 400_001)
    density = stats.norm.pdf
    first = rate * density(x, 1, sigma) + (1 - rate) * density(x, 0, sigma)
    other = density(x, 0, sigma)
    exact = max(
        integrate.trapezoid(np.maximum(p - math.exp(value) * q, 0), x) for p, q in ((first, other), (other, first))
    )
    assert 0.99 * 0.01 < exact <= 0.01


def test_a_round_released_again_to_the_same_silos_is_one_sample_with_less_noise() -> None:
    charges = [charge(0, release=SILO, count=1), charge(0, silo=4, release=SILO, count=1, noise_id="again")]
    assert outsider({0: (9, 90), 1: (9, 90)}, *charges) == pytest.approx(
        epsilon((sums(30.0, 0.1), 1), (sums(30.0 / math.sqrt(2), 0.1), 1)), rel=1e-12
    )


def test_an_outsider_view_of_records_or_of_removed_silos_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="unit: silo"):
        outsider({0: (1, 2)}, release=A)
    with pytest.raises(UnsupportedError, match="replace_one"):
        outsider({0: (1, 2)}, release=replace(SILO, neighbouring="add_or_remove"))
    with pytest.raises(LedgerError, match="not one release"):
        outsider({0: (1, 2)}, charge(1, release=SILO, count=1))
