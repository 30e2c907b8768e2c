"""What earlier runs leave of a budget: they add up where a record may have been in both, and nowhere else."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.privacy.accountants import PLD, RDP
from dpfl_plugin.privacy.composition import Planned, Share
from dpfl_plugin.privacy.events import Charge, SampledGaussian, Term
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.prior import Prior, _envelope, envelope, prior_of, runs_in
from dpfl_plugin.privacy.tally import Tally
from dpfl_plugin.privacy.views import server_view, third_party_view, worst_case_view

DELTA = 1e-5
A = SampledGaussian(noise_multiplier=20.0, sampler="fixed", rate=0.1, neighbouring="replace_one")
B = replace(A, noise_multiplier=5.0)
POISSON = replace(A, sampler="poisson", neighbouring="add_or_remove")
SILO = SampledGaussian(noise_multiplier=10.0, sampler="full", rate=1.0, neighbouring="replace_one", unit="silo")
FIRST, SECOND = (0.0, 0.5), (0.5, 1.0)


def charge(round: int, silo: int = 0, release: SampledGaussian = A, count: int = 5, **more: Any) -> Charge:
    return Charge(round=round, silo=silo, release=release, count=count, **{"noise_id": "?", **more})


def shared(*runs: tuple[str, str, list[Charge]], **facts: Any) -> Ledger:
    """A ledger of runs: (noise, records, charges) each."""
    ledger = Ledger()
    for noise, records, charges in runs:
        ledger.begin_run(
            {
                "noise": noise,
                "name": noise,
                "data_sha256": records,
                "num_silos": 3,
                "drawn": False,
                "draws_decided": False,
                "largest_rate": 0.1,
                **facts,
            }
        )
        ledger.append(replace(one, noise_id=f"{noise}.0") for one in charges)
    return ledger


def prior(ledger: Ledger, noise: str = "now", records: str = "here", release: SampledGaussian = A) -> Prior:
    return prior_of(ledger, noise=noise, data_sha256=records, num_silos=3, release=release)


def epsilon(*terms: tuple[SampledGaussian, int]) -> float:
    return PLD().epsilon([Term(release=release, count=count, rounds=1) for release, count in terms], DELTA)


def total(charges: list[Charge], before: Prior) -> float:
    return server_view(charges, PLD(), DELTA, earlier=before.realised).epsilon


# Envelopes


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["fixed", "poisson"]),
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 3), st.sampled_from([0.05, 0.1, 0.3]), st.sampled_from([5.0, 20.0]),
            st.integers(1, 9), st.sampled_from(["a", "b"]),
        ),
        min_size=1, max_size=14,
    ),
)  # fmt: skip
def test_the_envelope_costs_at_least_what_each_silo_does(sampler: Any, made: list[Any]) -> None:
    relation: Any = "replace_one" if sampler == "fixed" else "add_or_remove"
    charges = [
        charge(
            t,
            silo,
            SampledGaussian(noise_multiplier=sigma, sampler=sampler, rate=q, neighbouring=relation),
            count,
            noise_id=noise,
        )
        for t, silo, q, sigma, count, noise in made
    ]
    ledger = Ledger()
    ledger.append(charges)
    worst = server_view(ledger, RDP(), DELTA).epsilon
    everywhere = server_view((), RDP(), DELTA, earlier={0: envelope(ledger)}).epsilon
    certain = server_view((), RDP(), DELTA, earlier={0: envelope(ledger, every_round=True)}).epsilon
    assert worst * (1 - 1e-9) <= everywhere
    assert everywhere * (1 - 1e-9) <= certain


@pytest.mark.parametrize("release", [A, POISSON])
def test_a_larger_rate_dominates_in_any_composition(release: SampledGaussian) -> None:
    """At every delta, beside other releases: not only where one epsilon is looked at."""
    for delta in (1e-9, 1e-5, 1e-2, 0.3):
        by_rate = [
            PLD().epsilon(
                [
                    Term(release=replace(release, rate=rate, noise_multiplier=3.0), count=10, rounds=1),
                    Term(release=replace(release, noise_multiplier=6.0), count=40, rounds=1),
                ],
                delta,
            )
            for rate in (0.05, 0.1, 0.2, 0.5, 0.9)
        ]
        assert by_rate == sorted(by_rate)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 3), st.sampled_from([A, B]), st.integers(1, 9),
            st.sampled_from(["a", "b"]), st.sampled_from([FIRST, SECOND, (0.0, 1.0)]),
        ),
        max_size=14,
    ),
    st.booleans(), st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_the_envelope_of_very_many_charges_is_that_of_each(
    made: list[Any], by_silo: bool, whole: bool, every_round: bool, parts: bool
) -> None:
    # With a rate for each silo and one share it is counted as a whole, else charge by charge.
    charges = [
        charge(
            t,
            silo,
            replace(release, rate=0.1 * (1 + (silo if by_silo else t))),
            count,
            noise_id=noise,
            share=(0.0, 1.0) if whole else share,
        )
        for t, silo, release, count, noise, share in made
    ]
    tally = Tally(charges)
    each = tally if parts else [replace(one, share=(0.0, 1.0)) for one in tally]
    assert _envelope(tally, every_round=every_round, parts=parts) == envelope(each, every_round=every_round)


def test_the_envelope_of_very_many_charges_is_of_the_dearest_silo() -> None:
    made = [charge(t, silo, replace(A, rate=0.1 * (1 + silo)), 1 + silo) for t in range(3) for silo in range(3)]
    for every_round in (False, True):
        (dearest,) = _envelope(Tally(made), every_round=every_round, parts=True)
        assert dearest.count == 9 and dearest.release.rate == pytest.approx(0.3)


def test_an_envelope_is_no_larger_than_it_has_to_be() -> None:
    charges = [charge(t, silo) for t in range(4) for silo in range(3)]
    assert envelope(charges) == envelope(charges, every_round=True) == [Planned(A, 20)]
    drawn = [charge(t, t % 3) for t in range(4)]
    assert envelope(drawn) == [Planned(A, 10)] and envelope(drawn, every_round=True) == [Planned(A, 20)]


def test_releases_of_one_round_on_several_shares_add_up_where_shares_do_not_count() -> None:
    """A silo that reads two parts in a round: with both read as the whole, it made both releases."""
    ledger = shared(("old", "elsewhere", [charge(0, 0, share=FIRST), charge(0, 0, share=SECOND)]))
    assert prior(ledger).realised[1] == prior(ledger).certain[1] == (Planned(A, 10),)


# Adding up


def test_runs_on_the_same_records_add_up_silo_by_silo() -> None:
    ledger = shared(("one", "here", [charge(0, 0, count=50)]), ("two", "here", [charge(0, 1, count=40)]))
    before = prior(ledger)
    assert total([charge(0, 0, count=7)], before) == epsilon((A, 57))
    assert total([charge(0, 1, count=7)], before) == epsilon((A, 50))  # silo 0 is worse, which made nothing now
    assert total([charge(0, 2, count=7)], before) == epsilon((A, 50))
    assert total([charge(0, 1, count=17)], before) == epsilon((A, 57))


def test_runs_on_other_records_count_at_every_silo() -> None:
    ledger = shared(("one", "there", [charge(0, 0, count=50), charge(0, 1, replace(A, rate=0.2), 40)]))
    before = prior(ledger)
    assert before.realised == dict.fromkeys(range(3), (Planned(replace(A, rate=0.2), 50),))
    assert total([charge(0, 2, count=7)], before) == epsilon((A, 7), (replace(A, rate=0.2), 50))


def test_both_kinds_and_the_run_itself() -> None:
    ledger = shared(
        ("one", "here", [charge(0, 0, B, 3)]),
        ("two", "there", [charge(0, 2, count=10)]),
        ("now", "here", [charge(0, 0, count=100)]),
    )
    before = prior(ledger)
    assert [run["name"] for run in before.runs] == ["one", "two"]
    assert [run["same_records"] for run in before.runs] == [True, False]
    assert before.realised == {0: (Planned(A, 10), Planned(B, 3)), 1: (Planned(A, 10),), 2: (Planned(A, 10),)}
    # Seen from the other records, the others' envelopes: 100 of A and 3 of B.
    other = prior(ledger, noise="two", records="there")
    assert set(other.realised[1]) == {Planned(A, 100), Planned(B, 3)}


def test_the_same_bits_released_in_two_runs_folders_are_one_release() -> None:
    ledger = shared(("one", "here", [charge(0, count=50)]), ("one", "here", [charge(0, count=50)]))
    assert len(runs_in(ledger)) == 1
    assert prior(ledger).realised[0] == (Planned(A, 50),)
    assert prior(ledger, noise="one").realised == {}


def test_disjoint_shares_compose_in_parallel_on_the_same_records_only() -> None:
    for records, expected in (("here", epsilon((A, 50))), ("there", epsilon((A, 90)))):
        ledger = shared(("one", records, [charge(0, share=FIRST, count=50)]))
        assert total([charge(0, share=SECOND, count=40)], prior(ledger)) == expected


def test_terms_are_those_that_a_share_overlaps() -> None:
    before = prior(shared(("one", "here", [charge(0, share=FIRST, count=50), charge(1, 1, share=SECOND)])))

    def counts(prior: Prior, silo: int, *share: Share, third_party: bool = False) -> list[list[int]]:
        return [[term.count for term in terms] for terms in prior.terms(silo, *share, third_party=third_party)]

    assert counts(before, 0, FIRST) == counts(before, 0) == [[50]]
    assert counts(before, 0, SECOND) == [[]] == counts(before, 2) == counts(Prior(), 0)
    assert counts(before, 2, SECOND, third_party=True) == [[5]]
    assert counts(before, 2, third_party=True) == [[50], [5]]  # a record is in one of the parts


# Views


def test_a_third_party_gets_no_amplification_for_earlier_runs() -> None:
    """Silo 2 was never drawn then, and may be what other draws pick: every earlier round counts, whoever was in it."""
    before = prior(shared(("one", "here", [charge(t, t % 2, count=1) for t in range(30)])))
    now = dict.fromkeys(range(10), 0.5)
    view = third_party_view(
        (), PLD(), DELTA, silos=[2], participation=now, pattern=lambda s, t: [Planned(A, 1)], earlier=before.certain
    )
    mixture = Term(release=A, count=1, rounds=10, participation=0.5)
    assert view.epsilon == PLD().epsilon([mixture, Term(release=A, count=30, rounds=1)], DELTA)
    worst = worst_case_view(
        (), PLD(), DELTA, silos=[2], rounds=range(10), pattern=lambda s, t: [Planned(A, 1)], earlier=before.realised
    )
    assert worst.epsilon == epsilon((A, 10))  # towards the server, silo 2 released nothing before


def test_a_run_that_does_not_say_whether_its_length_follows_draws_counts_as_one_that_does() -> None:
    """As versions wrote it that did not know; where no draw was before it, there is nothing to follow."""
    for drawn, said in itertools.product((False, True), ({}, {"follows_draws": False})):
        ledger = shared(("one", "here", [charge(0)]), drawn=drawn)
        ledger.begin_run({**ledger.runs[0], "noise": "two", "drawn": False, **said})
        assert prior(ledger).draws_decided == (drawn and not said)


def test_draws_that_decided_a_length_are_remembered_from_any_session() -> None:
    ledger = shared(("one", "here", [charge(0)]))
    assert not prior(ledger).draws_decided
    ledger.begin_run({**ledger.runs[0], "draws_decided": True})
    assert prior(ledger).draws_decided


# Refusals


@pytest.mark.parametrize("other", [POISSON, SILO])
def test_other_meanings_are_refused(other: SampledGaussian) -> None:
    ledger = shared(("old", "here", [charge(0, release=other, count=1)]))
    with pytest.raises(ConfigError, match=r"'old'.*no single epsilon"):
        prior(ledger)
    assert prior(ledger, release=other).realised[0] == (Planned(other, 1),)


def test_a_silos_data_may_have_been_anywhere_on_other_records() -> None:
    ledger = shared(("old", "there", [charge(0, release=SILO, count=1)]))
    with pytest.raises(UnsupportedError, match="other records"):
        prior(ledger, release=SILO)


def test_fixed_and_full_batches_go_together() -> None:
    full = replace(A, sampler="full", rate=1.0)
    before = prior(shared(("old", "here", [charge(0, release=full, count=2)])))
    assert total([charge(0)], before) == epsilon((A, 5), (full, 2))


def test_a_third_party_gets_no_credit_for_who_was_drawn_before() -> None:
    """The one silo that was drawn samples a tenth of its records, another a half, and might have been drawn."""
    facts = {"drawn": True, "largest_rate": 0.5}
    before = prior(shared(("one", "here", [charge(0)]), ("two", "there", [charge(0)]), **facts))
    assert before.certain[1] == (Planned(replace(A, rate=0.5), 10),) and before.drawn
    assert before.realised[1] == (Planned(A, 5),)  # towards the server it is known who was
    parts = prior(shared(("one", "there", [charge(0, share=FIRST)]), **facts))
    assert parts.certain[1] == (Planned(replace(A, rate=1.0, sampler="full"), 5),)
