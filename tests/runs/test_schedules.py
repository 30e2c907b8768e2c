"""What rounds of changing noise cost: composed by hand from the paper's formula, in every view."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dpfl_plugin.algorithms.base import RoundPlan, Setting
from dpfl_plugin.config.schema import Config
from dpfl_plugin.federation.participant_sampling import draw_participants
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.costs import RoundCost
from dpfl_plugin.privacy.events import SampledGaussian, Term, Unit
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import FixedSize
from dpfl_plugin.privacy.schedules import Constant, Geometric, Schedule
from dpfl_plugin.runs.accounting import make_account

SIGMA, RATE, RECORDS, DELTA, K, BETA, THRESHOLD = 8.0, 0.5, 20, 1e-5, 2, 0.9, 3
PLAN = RoundPlan(local_steps=K, local_lr=0.1, num_gradients=K)
BY_ROUND = Geometric(beta=BETA, threshold=THRESHOLD)
BY_STEP = Geometric(beta=BETA, threshold=THRESHOLD, by="step")
BOTH = pytest.mark.parametrize("schedule", [BY_ROUND, BY_STEP], ids=["by round", "by step"])


def account(
    schedule: Schedule,
    view: str = "server",
    participants: int = 4,
    epsilon: float | None = 2.0,
    unit: Unit = "record",
    rounds: int | None = 60,
    cap: int | None = None,
    **given: Any,
) -> PrivacyAccount:
    privacy = {"noise_multiplier": SIGMA, "record_rate": RATE, "epsilon": epsilon, "budget_view": view, "unit": unit}
    config = Config(algorithm={"name": "fedavg"}, privacy=privacy, rounds=rounds, max_participations=cap)
    rules = PrivacyRules(
        unit=unit,
        neighbouring="replace_one",
        clip_norm=1.0,
        mechanism=Gaussian(SIGMA),
        sampler=FixedSize(record_rate=RATE),
        schedule=schedule,
    )
    setting = Setting(num_silos=4, num_participants=participants, silo_rate=participants / 4, record_rate=RATE)
    return make_account(
        config,
        rules=rules,
        accountant=PLD(),
        setting=setting,
        num_records=[RECORDS] * 4,
        **{"ledger": Ledger(), **given},
    )


def planned(round: int, participants: int = 4) -> RoundPlan:
    setting = Setting(num_silos=4, num_participants=participants, silo_rate=participants / 4, record_rate=RATE)
    return replace(PLAN, participants=tuple(draw_participants(0, round, setting)))


def spend(of: PrivacyAccount, rounds: int, participants: int = 4, noise_id: str = "run.0", first: int = 0) -> int:
    """Run as many rounds as the budget allows; how many there are by then."""
    for round in range(first, rounds):
        plan = planned(round, participants)
        if not of.affords(round, plan):
            return round
        of.begin_round(round, plan)
        of.append([replace(charge, noise_id=noise_id) for charge in of.charges(round, plan)])
    return rounds


def sigmas(schedule: Schedule, round: int, releases: int = K) -> list[float]:
    """[C] Eqs. 6 and 7, with r and t from 1."""
    if schedule == BY_ROUND:
        return [SIGMA * BETA ** (max(0, round + 1 - THRESHOLD) / 2)] * releases
    exponents = [releases * (round - THRESHOLD) + t - 1 for t in range(1, releases + 1)]
    return [SIGMA * (BETA ** (e / 2) if round >= THRESHOLD else 1.0) for e in exponents]


def by_hand(noise: Sequence[float], participation: float = 1.0, count: int = 1) -> list[Term]:
    return [
        Term(
            release=SampledGaussian(noise_multiplier=s, sampler="fixed", rate=RATE, neighbouring="replace_one"),
            count=count,
            rounds=1,
            participation=participation,
        )
        for s in noise
    ]


def last(fits: Callable[[int], bool]) -> int:
    """An independent loop: how many rounds fit, one after the other."""
    return next(rounds for rounds in itertools.count() if not fits(rounds + 1))


def all_rounds(schedule: Schedule, rounds: int) -> float:
    return PLD().epsilon(by_hand([s for r in range(rounds) for s in sigmas(schedule, r)]), DELTA)


@BOTH
def test_the_ledger_holds_the_noise_of_every_release(schedule: Schedule) -> None:
    one = account(schedule, epsilon=None)
    spend(one, 7)
    for round in range(7):
        for silo in range(4):
            mine = [charge for charge in one.ledger if (charge.round, charge.silo) == (round, silo)]
            found = [charge.release.noise_multiplier for charge in mine for _ in range(charge.count)]
            assert found == pytest.approx(sigmas(schedule, round), rel=1e-14)
    assert one.views()["server"]["epsilon"] == pytest.approx(all_rounds(schedule, 7), rel=1e-9)


@BOTH
def test_the_budget_stops_exactly_where_the_accountant_says(schedule: Schedule) -> None:
    one = account(schedule)
    rounds = spend(one, 60)
    assert rounds == last(lambda n: all_rounds(schedule, n) <= 2.0) == account(schedule).expected_rounds(PLAN, 60)
    assert THRESHOLD + 3 < rounds < spend(account(Constant()), 60)
    views = one.views()
    for epsilon in (views["server"]["epsilon"], views["server"]["worst_case_epsilon"], views["third_party"]["epsilon"]):
        assert epsilon == pytest.approx(all_rounds(schedule, rounds), rel=1e-9)


@BOTH
def test_a_budget_ends_a_run_when_one_of_the_drawn_silos_has_used_it_up(schedule: Schedule) -> None:
    """Against a loop over every silo's own releases, without any of what makes it fast."""
    spent: Counter[tuple[int, int]] = Counter()

    def fits(rounds: int) -> bool:
        drawn = planned(rounds - 1, 2).participants
        spent.update((silo, rounds - 1) for silo in drawn)
        return all(
            PLD().epsilon(by_hand([s for i, r in spent if i == silo for s in sigmas(schedule, r)]), DELTA) <= 2.0
            for silo in drawn
        )

    one = account(schedule, participants=2)
    rounds = spend(one, 60, 2)
    assert rounds == last(fits)
    assert rounds > spend(account(schedule), 60)  # than if all took part in all of them
    for evaluated in (one.epsilons_so_far()["server"], one.views()["server"]["epsilon"]):
        assert evaluated is not None and evaluated <= 2.0 * 1.1
    realised = one.views()["server"]["epsilon"]
    assert realised <= 2.0 and (one.epsilons_so_far()["server"] or 0) >= realised * (1 - 1e-6)


def test_a_third_party_gets_the_mixture_of_rounds_with_one_noise() -> None:
    def epsilon(rounds: int) -> float:
        terms = [t for r in range(rounds) for t in by_hand(sigmas(BY_ROUND, r)[:1], participation=0.5, count=K)]
        return PLD().epsilon(terms, DELTA)

    one = account(BY_ROUND, "third_party", participants=2)
    rounds = spend(one, 60, 2)
    assert rounds == last(lambda n: epsilon(n) <= 2.0)
    assert rounds == account(BY_ROUND, "third_party", participants=2).expected_rounds(PLAN, 60)
    assert one.views()["third_party"]["epsilon"] == pytest.approx(epsilon(rounds), rel=1e-9)


def test_a_third_party_gets_the_worst_case_of_rounds_with_several() -> None:
    """The first rounds have one noise, and are mixed; the others count as certain, and that is said."""

    def epsilon(rounds: int) -> float:
        mixed = [Term(release=by_hand([SIGMA])[0].release, count=K, rounds=min(rounds, THRESHOLD), participation=0.5)]
        return PLD().epsilon(
            [*mixed, *by_hand([s for r in range(THRESHOLD, rounds) for s in sigmas(BY_STEP, r)])], DELTA
        )

    one = account(BY_STEP, "third_party", participants=2)
    rounds = spend(one, 60, 2)
    assert rounds == last(lambda n: epsilon(n) <= 2.0) > THRESHOLD + 2
    third_party = one.views()["third_party"]
    assert third_party["epsilon"] == pytest.approx(epsilon(rounds), rel=1e-9)
    assert "no mixture is proven, by their noise schedule" in third_party["basis"]


def test_where_draws_decide_the_length_a_third_party_is_promised_what_the_server_is() -> None:
    one = account(BY_ROUND, participants=2)
    spend(one, 60, 2)
    views = one.views()
    worst = views["server"]["worst_case_epsilon"]
    assert views["server"]["epsilon"] <= views["third_party"]["epsilon"] == min(2.0, worst)


def test_drawn_rounds_of_several_lengths_and_noises_count_as_certain() -> None:
    """How many releases a round makes may depend on earlier draws, and its noise on how many it makes."""
    one = account(BY_ROUND, "third_party", participants=2, epsilon=None)
    for round, releases in enumerate((2, 3, 2)):
        plan = replace(planned(round, 2), num_gradients=releases, most_gradients=3)
        one.begin_round(round, plan)
        one.append(one.charges(round, plan))
    certain = [s for round, releases in enumerate((2, 3, 2)) for s in sigmas(BY_ROUND, round, releases)]
    assert one.views()["third_party"]["epsilon"] == pytest.approx(PLD().epsilon(by_hand(certain), DELTA), rel=1e-9)


def test_a_third_partys_budget_ends_rounds_of_several_lengths_as_if_all_were_certain() -> None:
    """Draws may decide which rounds are longer, and with them where the budget ends the run: no mixture is claimed."""
    one = account(BY_ROUND, "third_party", participants=2)
    rounds = 0
    while one.affords(rounds, plan := replace(planned(rounds, 2), most_gradients=K + 1)):
        one.begin_round(rounds, plan)
        one.append(one.charges(rounds, plan))
        rounds += 1
    assert one.views()["third_party"]["epsilon"] == pytest.approx(all_rounds(BY_ROUND, rounds), rel=1e-9)
    assert all_rounds(BY_ROUND, rounds) <= 2.0 < all_rounds(BY_ROUND, rounds + 1)


@pytest.mark.parametrize("participants", [2, 4])
@BOTH
def test_a_plan_that_changes_is_checked_anew(schedule: Schedule, participants: int) -> None:
    """Rounds that were known to fit with two releases each are not thereby known to fit with twenty."""
    one = account(schedule, participants=participants)
    rounds = spend(one, 3, participants)
    assert rounds == 3 and one.affords(3, planned(3, participants))
    assert not one.affords(3, replace(planned(3, participants), num_gradients=200))
    assert one.affords(3, planned(3, participants))


@BOTH
def test_a_round_that_is_released_again_counts_at_once(schedule: Schedule) -> None:
    """Rounds that were known to fit may not, once one of those before was released more than once."""
    one, undisturbed = account(schedule), spend(account(schedule), 60)
    assert spend(one, 3) == 3
    for attempt in range(8):
        one.append(one.charges(2, planned(2), f"again {attempt}"))
    assert 3 < spend(one, 60, first=3) < undisturbed
    assert one.views()["server"]["epsilon"] <= 2.0


@BOTH
@pytest.mark.parametrize("view", ["server", "third_party"])
def test_a_round_is_checked_again_before_it_is_released_again(schedule: Schedule, view: str) -> None:
    one, attempts = account(schedule, view), 0
    assert spend(one, 3) == 3
    while one.affords(2, planned(2)) and attempts < 99:
        one.append(one.charges(2, planned(2), f"again {attempts}"))
        attempts += 1
    assert 0 < attempts < 99 and one.server.spent({}) <= 2.0


def test_a_round_whose_other_attempt_made_different_releases_counts_as_certain() -> None:
    """No mixture of different releases is proven, whichever attempt made them."""
    one = account(BY_STEP, "third_party", participants=2, epsilon=None)
    for releases in (3, 0):
        plan = replace(planned(4, 2), num_gradients=releases, most_gradients=None)
        one.begin_round(4, replace(plan, participation="all" if releases else "sampled"))
        one.append(one.charges(4, plan))
    assert len(one.costs[4].levels) > 1 and one.costs[4].probability == 1


@BOTH
def test_a_resumed_account_ends_where_the_undisturbed_one_does(schedule: Schedule) -> None:
    """With the charges of rounds that will be repeated bit for bit, and with those that are released afresh."""
    undisturbed = spend(account(schedule), 60)
    first = account(schedule)
    spend(first, 8)
    costs = {round: cost for round, cost in first.costs.items() if round < 6}
    again = account(schedule, ledger=first.ledger, costs=costs, pending=lambda charge: charge.round >= 6)
    assert spend(again, 60, first=6) == undisturbed
    fresh = account(schedule, ledger=_ledger(first), costs=costs)
    ended = spend(fresh, 60, noise_id="run.1", first=6)
    twice = [s for r in (*range(ended), 6, 7) for s in sigmas(schedule, r)]
    assert 8 < ended <= undisturbed and fresh.views()["server"]["epsilon"] == pytest.approx(
        PLD().epsilon(by_hand(twice), DELTA), rel=1e-9
    )
    more = [*twice, *sigmas(schedule, ended)]
    assert PLD().epsilon(by_hand(twice), DELTA) <= 2.0 < PLD().epsilon(by_hand(more), DELTA)


def _ledger(of: PrivacyAccount) -> Ledger:
    copy = Ledger()
    copy.append([charge for charge in of.ledger if charge.round < 8])
    return copy


@BOTH
def test_a_ledger_alone_tells_what_rounds_cost(schedule: Schedule) -> None:
    """Of a run that was killed before any checkpoint: nothing but its ledger knows the rounds."""
    one = account(schedule, epsilon=None)
    spend(one, 6)
    alone = account(schedule, epsilon=None, ledger=one.ledger)
    for name in ("epsilon", "worst_case_epsilon"):
        assert alone.views()["server"][name] == pytest.approx(all_rounds(schedule, 6), rel=1e-9)


@BOTH
def test_a_cap_counts_the_rounds_with_the_least_noise(schedule: Schedule) -> None:
    one = account(schedule, participants=2, epsilon=None, cap=3)
    for round in range(6):
        one.begin_round(round, planned(round, 2))
    dearest = [s for round in (3, 4, 5) for s in sigmas(schedule, round)]
    expected = pytest.approx(PLD().epsilon(by_hand(dearest), DELTA), rel=1e-9)
    assert one.views()["server"]["worst_case_epsilon"] == expected
    assert one.views()["third_party"]["epsilon"] == expected


def test_silo_level_releases_are_charged_by_round() -> None:
    one = account(BY_ROUND, unit="silo", epsilon=None)
    spend(one, 6)
    found = [(charge.release.noise_multiplier, charge.count) for charge in one.ledger if charge.silo == 0]
    assert found == [(pytest.approx(sigmas(BY_ROUND, round)[0], rel=1e-14), 1) for round in range(6)]
    assert one.outsider() is None


def test_a_cost_keeps_its_proportions() -> None:
    cost = RoundCost(((1.0, 2), (0.5, 1)), (0.0, 1.0))
    assert cost.scaled(8.0).levels == ((8.0, 2), (4.0, 1)) and cost.num_releases == 3
