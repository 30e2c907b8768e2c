"""What a run has spent and may spend: before, during and after a resume."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.algorithms.base import RoundPlan, Setting
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.streams import stream
from dpfl_plugin.errors import PluginError
from dpfl_plugin.federation.participant_sampling import draw_participants
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.accountants import PLD, RDP
from dpfl_plugin.privacy.costs import RoundCost
from dpfl_plugin.privacy.events import Charge, SampledGaussian, Term
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.participation import CERTAIN, Participation
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import FixedSize
from dpfl_plugin.runs.accounting import in_runs, make_account, read_costs

SIGMA, RATE, RECORDS = 8.0, 0.5, 20
OLD_LEDGER = Path(__file__).parents[1] / "privacy" / "ledgers" / "without_kinds.jsonl"  # as earlier versions wrote it
DRAWN = Participation("without_replacement", 0.5)
PLAN = RoundPlan(local_steps=2, local_lr=0.1, num_gradients=2, participants=(0, 1))


def account(view: str = "server", num_participants: int = 2, epsilon: float | None = 2.0, **given: Any):  # type: ignore[no-untyped-def]
    privacy = {"clip_norm": 1, "noise_multiplier": SIGMA, "record_rate": RATE, "epsilon": epsilon, "budget_view": view}
    rules = given.pop("rules", None) or PrivacyRules(
        unit="record",
        neighbouring="replace_one",
        clip_norm=1.0,
        mechanism=Gaussian(SIGMA),
        sampler=FixedSize(record_rate=RATE),
    )
    setting = Setting(num_silos=2, num_participants=num_participants, silo_rate=num_participants / 2, record_rate=RATE)
    return make_account(
        given.pop("config", Config(algorithm={"name": "fedavg"}, privacy=privacy, rounds=100)),
        rules=rules,
        setting=setting,
        num_records=[RECORDS, RECORDS],
        **{"accountant": PLD(), "ledger": Ledger(), **given},
    )


def spend(of: PrivacyAccount, rounds: range, noise_id: str = "run.0", silos: tuple[int, ...] = (0, 1)) -> int:
    """Run so many of the rounds as the budget allows; the next one's number."""
    for round in rounds:
        if not of.affords(round, PLAN):
            return round
        of.begin_round(round, PLAN)
        charges = [charge for charge in of.charges(round, PLAN) if charge.silo in silos]
        of.append([_with(charge, noise_id) for charge in charges])
    return rounds.stop


def _with(charge: Charge, noise_id: str) -> Charge:
    return Charge(round=charge.round, silo=charge.silo, release=charge.release, count=charge.count, noise_id=noise_id)


def epsilon(of: PrivacyAccount, view: str) -> float:
    return float(of.views()[view]["epsilon"])


@pytest.mark.parametrize("view", ["server", "third_party"])
def test_the_budget_is_used_up_and_not_passed(view: str) -> None:
    one = account(view)
    rounds = spend(one, range(100))
    assert 8 < rounds < 100 and epsilon(one, view) <= 2.0
    assert one.expected_rounds(PLAN, 100) == rounds
    more = account(view, epsilon=None)
    spend(more, range(rounds + 1))
    assert epsilon(more, view) > 2.0


@pytest.mark.parametrize("view", ["server", "third_party"])
@pytest.mark.parametrize("known", [0, 2, 4])
def test_a_resumed_account_decides_as_the_undisturbed_one(view: str, known: int) -> None:
    """The checkpoint knows ``known`` rounds; the ledger all, which are repeated with the same noise."""
    one = account(view)
    rounds = spend(one, range(100))
    costs = {round: RoundCost(((SIGMA, 2),), (0.0, 1.0)) for round in range(known)}
    again = account(view, ledger=one.ledger, costs=costs, pending=lambda charge: charge.round >= known)
    assert again.views()["server"] == one.views()["server"]  # nothing is forgotten, wherever it ends
    before = len(one.ledger)
    assert spend(again, range(known, 100)) == rounds
    assert len(again.ledger) == before and again.views() == one.views()


@pytest.mark.parametrize("view", ["server", "third_party"])
def test_fresh_noise_counts_again(view: str) -> None:
    one = account(view)
    rounds = spend(one, range(100))
    costs = {round: RoundCost(((SIGMA, 2),), (0.0, 1.0)) for round in range(2)}
    short = account(view, ledger=Ledger(), epsilon=None)
    spend(short, range(rounds - 2))
    resumed = account(view, ledger=short.ledger, costs=costs)
    end = spend(resumed, range(2, 100), "run.1")
    assert rounds - 2 + (end - 2) == rounds  # of the two rounds that were left, both were spent on repeating
    assert epsilon(resumed, view) == epsilon(one, view)


def test_rounds_alike_count_fresh_noise() -> None:
    """Where all rounds are alike nobody looks at each again; but one that was made twice counts twice."""
    rounds = spend(account("third_party", num_participants=1), range(100))
    once, twice = account("third_party", num_participants=1), account("third_party", num_participants=1)
    for one in (once, twice):
        assert spend(one, range(rounds - 1)) == rounds - 1
    twice.append([_with(charge, "run.1") for charge in twice.charges(0, PLAN)])
    assert once.affords(rounds - 1, PLAN) and not twice.affords(rounds - 1, PLAN)


def test_what_was_spent_so_far_on_the_way() -> None:
    """An evaluation of a round that is repeated says what that round's model cost, as it did the first time."""
    one, said = account(epsilon=None), []
    for round in range(6):
        spend(one, range(round, round + 1))
        said.append(one.epsilons_so_far())
    costs = {round: RoundCost(((SIGMA, 2),), (0.0, 1.0)) for round in range(3)}
    again = account(epsilon=None, ledger=one.ledger, costs=costs, pending=lambda charge: charge.round >= 3)
    for round in range(3, 6):
        spend(again, range(round, round + 1))
        assert again.epsilons_so_far() == said[round]


def test_sampled_silos_spend_when_they_take_part() -> None:
    setting = Setting(num_silos=10, num_participants=3, silo_rate=0.3, record_rate=None)
    drawn = [draw_participants(7, round, setting) for round in range(400)]
    assert all(len(set(silos)) == 3 and silos == sorted(silos) for silos in drawn)
    counts = [sum(silo in silos for silos in drawn) for silo in range(10)]
    # Binomial(400, 0.3) has a standard deviation of 9.2; the seed is fixed.
    assert min(counts) > 120 - 46 and max(counts) < 120 + 46
    # The stream that all recorded results were made with; it is not any silo's.
    expected = stream(7, "participants", 5).choice(10, 3, replace=False)
    assert drawn[5] == sorted(expected.tolist())
    assert drawn != [draw_participants(8, round, setting) for round in range(400)]
    assert draw_participants(0, 0, Setting(num_silos=3, num_participants=3, silo_rate=1.0, record_rate=None)) == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize(("participation", "probability"), [("sampled", 0.5), ("all", 1.0)])
def test_a_third_party_is_promised_the_probability_of_the_draw(participation: str, probability: float) -> None:
    """S/M where silos are drawn, and no amplification where all take part."""
    of = account(num_participants=1, epsilon=None)
    plan = RoundPlan(local_steps=2, local_lr=0.1, num_gradients=2, participation=participation, participants=(0,))
    for round in range(6):
        of.begin_round(round, plan)
    (release,) = {charge.release for charge in of.charges(0, plan)}
    term = Term(release=release, count=2, rounds=6, participation=probability)
    assert epsilon(of, "third_party") == PLD().epsilon([term], 1e-5)


# A third party where draws decide when the run ends


def test_a_third_partys_epsilon_does_not_depend_on_how_long_the_draws_let_a_run_go_on():
    """With the server's budget the length is a function of the draws: each must come with the same statement.

    Silo 0 alone was drawn (the shortest run), or both in turn (the longest): the mixture over the realised rounds
    would promise more after the shorter one.
    """
    stated, realised = [], []
    for silos in ((0,), (0, 1)):
        of = account(num_participants=1)
        for round in range(1000):
            plan = RoundPlan(local_steps=2, local_lr=0.1, num_gradients=2, participants=(silos[round % len(silos)],))
            if not of.affords(round, plan):
                break
            of.begin_round(round, plan)
            of.append(of.charges(round, plan))
        stated.append(of.views()["third_party"]["epsilon"])
        realised.append(of.epsilons_so_far()["third_party"])
    assert stated[0] == stated[1]
    assert realised[0] < stated[0] <= 2.0
    assert realised[1] <= stated[1]


@pytest.mark.parametrize("warm_rounds", [3, 6], ids=["a warm-up", "one that other draws would have ended"])
def test_rounds_that_cost_more_by_the_draws_all_count_as_the_longest(warm_rounds: int) -> None:
    of, dear = account(num_participants=1, epsilon=None), account(num_participants=1, epsilon=None)
    for round in range(6):
        cost = 3 if round >= warm_rounds else 2
        for account_of, num_gradients in ((of, cost), (dear, 3)):
            plan = replace(PLAN, num_gradients=num_gradients, most_gradients=3, participants=(0,))
            account_of.begin_round(round, plan)
    assert of.ahead()[1] == dear.ahead()[1]
    assert of.ahead()[0] < dear.ahead()[0]  # the server knows who was drawn


def test_with_a_servers_budget_rounds_of_several_lengths_leave_no_mixture() -> None:
    """How many of which length the budget lets happen is decided by the draws, from the first round on."""
    one = account(num_participants=1, epsilon=8.0)
    for round in range(3):
        one.begin_round(round, replace(PLAN, most_gradients=3, participants=(0,)))
    views = one.views()
    assert views["third_party"]["epsilon"] == views["server"]["worst_case_epsilon"] < 8.0


def test_rounds_of_several_lengths_say_so() -> None:
    one = account(num_participants=1, epsilon=None)
    one.begin_round(0, PLAN)
    longer = replace(PLAN, num_gradients=3)
    with pytest.raises(PluginError, match=r"3 gradients .* as many as in other rounds, 2.*most_gradients"):
        one.begin_round(1, longer)
    with pytest.raises(PluginError, match=r"3 gradients .* most_gradients of its round plan, 2"):
        one.begin_round(1, replace(longer, most_gradients=2))
    one.begin_round(1, replace(longer, participation="all"))  # always certain
    resumed = account(num_participants=1, epsilon=None, costs=dict(one.costs))
    with pytest.raises(PluginError, match="as many as in other rounds"):
        resumed.begin_round(2, longer)


# A cap on participation


def capped(cap: int, num_silos: int = 2, **given: Any) -> PrivacyAccount:
    """An account of one of ``num_silos`` silos a round, of which each may be in ``cap``."""
    made = account(num_participants=1, epsilon=None)
    setting = Setting(num_silos=num_silos, num_participants=1, silo_rate=1 / num_silos, record_rate=RATE)
    config = Config(
        algorithm={"name": "fedavg"},
        privacy={"clip_norm": 1, "noise_multiplier": SIGMA, "record_rate": RATE},
        rounds=100,
        max_participations=cap,
    )
    return make_account(
        config,
        rules=made.rules,
        accountant=PLD(),
        setting=setting,
        num_records=[RECORDS] * num_silos,
        **{"ledger": Ledger(), **given},
    )


def draw(of: PrivacyAccount, setting: Setting, rounds: range, noise_id: str = "run.0") -> list[int]:
    """Run the rounds with who is drawn among those below the cap; who it was."""
    drawn = []
    for round in rounds:
        eligible = of.eligible()
        assert eligible is not None
        if len(eligible) < setting.num_participants:
            break
        silos = draw_participants(3, round, setting, eligible)
        plan = RoundPlan(local_steps=2, local_lr=0.1, num_gradients=2, participants=tuple(silos))
        of.begin_round(round, plan)
        of.append([_with(charge, noise_id) for charge in of.charges(round, plan)])
        drawn += silos
    return drawn


def test_the_cap_is_used_up_and_not_passed() -> None:
    setting = Setting(num_silos=5, num_participants=1, silo_rate=0.2, record_rate=RATE)
    of = capped(3, 5)
    drawn = draw(of, setting, range(100))
    assert sorted(drawn) == sorted([*range(5)] * 3) and of.eligible() == []
    assert "max_participations=3" in of.cap_reason() and "0 of 5" in of.cap_reason()
    assert of.expected_rounds(PLAN, 100) == 15
    views = of.views()
    assert views["server"]["epsilon"] == views["server"]["worst_case_epsilon"] == views["third_party"]["epsilon"]


@pytest.mark.parametrize("known", [0, 4, 9])
def test_a_resumed_cap_draws_as_the_undisturbed_one(known: int) -> None:
    setting = Setting(num_silos=5, num_participants=1, silo_rate=0.2, record_rate=RATE)
    of = capped(3, 5)
    drawn = draw(of, setting, range(12))
    again = capped(3, 5, ledger=of.ledger, pending=lambda charge: charge.round >= known)
    assert drawn[:known] + draw(again, setting, range(known, 12)) == drawn
    fresh = capped(3, 5, ledger=of.ledger)  # nothing is repeated: the twelve rounds count, and three are left
    assert len(draw(fresh, setting, range(known, 100), "run.1")) == 3


def test_the_most_frequent_silo_is_what_a_third_partys_epsilon_allows_for_under_a_cap() -> None:
    """A cap that may be reached makes later rounds depend on earlier ones; one that cannot be changes nothing."""
    for cap, mixture in ((50, False), (100, True)):
        of = capped(cap)
        free = account(num_participants=1, epsilon=None)
        for one in (of, free):
            for round in range(60):
                one.begin_round(round, RoundPlan(local_steps=2, local_lr=0.1, num_gradients=2, participants=(0,)))
        assert (of.ahead()[1] == free.ahead()[1]) == mixture
        assert of.ahead()[1] == (free.ahead()[1] if mixture else of.ahead()[0])


def test_a_cap_that_only_repeated_rounds_can_reach_decides_who_is_drawn_after_them() -> None:
    """A hundred rounds cannot pass a cap of a hundred; with one that was released twice they can, so that draws depend
    on each other and no mixture is proven."""
    for noise_ids, mixture in ((("run.0",), True), (("run.0", "run.1"), False)):
        of, plan = capped(100), RoundPlan(local_steps=2, local_lr=0.1, num_gradients=2, participants=(0,))
        for noise_id in noise_ids:
            of.begin_round(0, plan)
            of.append([_with(charge, noise_id) for charge in of.charges(0, plan)])
        for round in range(1, 40):
            of.begin_round(round, plan)
        assert (epsilon(of, "third_party") < of.views()["server"]["worst_case_epsilon"]) == mixture
        assert (of.ahead()[1] < of.ahead()[0]) == mixture


def test_a_round_that_is_planned_anew_after_a_loss_counts_as_the_dearer_plan() -> None:
    """Which of the plans was carried out is for the silos that were lost to say, whichever came first."""
    cheap, dear = (RoundPlan(local_steps=n, local_lr=0.1, num_gradients=n, participants=(0,)) for n in (1, 5))
    found = {}
    for name, plans, lost in (  # all take part
        ("dear alone", (dear,), True),
        ("cheap alone", (cheap,), True),
        ("dear first", (dear, cheap), True),
        ("cheap first", (cheap, dear), True),
        ("planned anew without a loss", (dear, cheap), False),
    ):
        of = account(epsilon=None, lost=lost)
        for plan in plans:
            of.begin_round(0, plan)
        found[name] = of.costs[0].num_releases, epsilon(of, "third_party")
    assert found["dear first"] == found["cheap first"] == found["dear alone"]
    assert found["dear alone"][0] == 5 and found["dear alone"][1] > found["cheap alone"][1]
    assert found["planned anew without a loss"][0] == 1


def test_draws_are_uniform_among_those_who_may() -> None:
    """Each pair of the four equally often: 6,000 draws, standard deviation 29; the seeds are fixed."""
    setting = Setting(num_silos=9, num_participants=2, silo_rate=2 / 9, record_rate=None)
    eligible = [1, 4, 6, 8]
    drawn = [tuple(draw_participants(seed, 0, setting, eligible)) for seed in range(6000)]
    counts = {pair: drawn.count(pair) for pair in set(drawn)}
    assert set(counts) == {(a, b) for a in eligible for b in eligible if a < b}
    assert all(abs(count - 1000) < 150 for count in counts.values())
    assert draw_participants(1, 5, setting, list(range(9))) == draw_participants(1, 5, setting)
    assert draw_participants(1, 5, setting, [2, 7]) == [2, 7]


def test_an_outsider_is_promised_no_noise_of_silos_that_sent_nothing() -> None:
    """A round that counts as certain though half of the silos were drawn, as after runs that share its ledger."""
    rules = replace(account().rules, unit="silo")
    made = account(epsilon=None, num_participants=1, rules=rules, in_sums=True)
    everybody = replace(PLAN, participation="all")
    made.begin_round(0, everybody)
    made.append(made.charges(0, everybody))
    assert made.outsider() is not None
    made.begin_round(1, everybody)
    made.append(made.charges(1, replace(everybody, participants=(1,))))
    assert made.outsider() is None


def test_other_draws_may_have_made_more_of_the_cheap_rounds() -> None:
    """A dear round comes first; what any draws allow is counted in rounds of the cheap kind."""
    dear, cheap = (
        RoundCost(((SIGMA, 9),), (0.0, 1.0)),
        RoundCost(((SIGMA, 2),), (0.0, 1.0), Participation("without_replacement", 0.5)),
    )
    one = account(num_participants=1, costs={0: dear, 1: cheap}, epsilon=2.5)
    release = one.charges(0, PLAN)[0].release
    limit = 2 * account(epsilon=2.5).expected_rounds(PLAN, 100)  # each of two silos
    assert limit < 100
    stated = one.views()["third_party"]["epsilon"]
    mixture = [
        Term(release=release, count=9, rounds=1),
        Term(release=release, count=2, rounds=limit, participation=0.5),
    ]
    assert stated == pytest.approx(min(2.5, PLD().epsilon(mixture, 1e-5)), rel=1e-12)


MULTIPLIER = 3.0
OF_SILO = SampledGaussian(
    noise_multiplier=MULTIPLIER, sampler="full", rate=1.0, neighbouring="replace_one", unit="silo"
)
WITH_REPLACEMENT = replace(PLAN, participation="sampled_with_replacement", participants=(0, 1))


def with_replacement(weights: tuple[float, ...], S: int, epsilon: float | None = None) -> PrivacyAccount:
    """Of S draws a round, at silo level."""
    privacy = {"unit": "silo", "clip_norm": 1, "noise_multiplier": MULTIPLIER, "epsilon": epsilon}
    return make_account(
        Config(algorithm={"name": "fedavg"}, privacy=privacy, rounds=1000),
        rules=PrivacyRules(
            unit="silo",
            neighbouring="replace_one",
            clip_norm=1.0,
            mechanism=Gaussian(MULTIPLIER),
            sampler=FixedSize(RATE),
        ),
        accountant=PLD(),
        setting=Setting(
            num_silos=len(weights), num_participants=S, silo_rate=S / len(weights), record_rate=None, weights=weights
        ),
        num_records=[RECORDS] * len(weights),
        ledger=Ledger(),
        in_sums=True,
    )


def test_with_replacement_a_third_party_gets_the_mixture_of_the_likeliest_silo() -> None:
    """1 - (1 - p)^S; and no outsider's epsilon."""
    one = with_replacement((0.5, 0.25, 0.25), 2)
    for round in range(5):
        one.begin_round(round, WITH_REPLACEMENT)
        one.append(one.charges(round, WITH_REPLACEMENT))
    stated = one.views()
    mixture = Term(release=OF_SILO, count=1, rounds=5, participation=1 - (1 - 0.5) ** 2)
    assert stated["third_party"]["epsilon"] == pytest.approx(PLD().epsilon([mixture], 1e-5), rel=1e-12)
    assert stated["third_party"]["epsilon"] < stated["server"]["worst_case_epsilon"]
    assert one.outsider() is None


def test_draws_with_replacement_stay_so_where_their_probability_is_that_of_draws_without() -> None:
    """One draw of two equal silos: no outsider's epsilon, and nothing of it is lost in a checkpoint."""
    one = with_replacement((0.5,) * 2, 1)
    for round in range(3):
        one.begin_round(round, WITH_REPLACEMENT)
    one.append(one.charges(0, replace(WITH_REPLACEMENT, participants=(1,))))
    assert one.costs[0].probability == 0.5 and one.outsider() is None
    setting = Setting(num_silos=2, num_participants=1, silo_rate=0.5, record_rate=None, weights=(0.5,) * 2)
    rows = json.loads(json.dumps(in_runs(one.costs)))
    assert read_costs({"costs": rows}, setting) == one.costs
    without = replace(one.costs[0], participation=Participation("without_replacement", 0.5))
    certain = replace(one.costs[0], participation=CERTAIN)
    likelier = replace(one.costs[0], participation=Participation("with_replacement", 0.7))
    for number, cost in (
        (0.5, without),
        (math.nextafter(0.5, 1), one.costs[0]),
        (0.7, likelier),
        (1.0, certain),
    ):  # as earlier versions wrote them
        assert read_costs({"costs": [[0, 2, *rows[0][2:4], number, None]]}, setting) == dict.fromkeys(range(3), cost)


def with_more_than_rounds(ledger: Ledger) -> PrivacyAccount:
    """Four rounds on .9 of the records, scores after every second on the rest, and models of silos' own."""
    config = Config(
        algorithm={"name": "fedavg"},
        privacy={"clip_norm": 1, "noise_multiplier": SIGMA, "record_rate": RATE, "epsilon": 9.0},
        rounds=4,
        early_stopping={"every": 2, "noise_multiplier": 20.0},
        personalise={"local_steps": 3, "local_lr": 0.1},
    )
    return account(config=config, ledger=ledger)


def test_a_ledger_of_an_earlier_version_which_does_not_say_what_charges_were_for(tmp_path: Path) -> None:
    """The run's plan tells it, once; the run goes on with lines that say it, and charges nothing twice."""
    path = tmp_path / "ledger.jsonl"
    shutil.copy(OLD_LEDGER, path)
    unread = Ledger.open(path, append=False)
    assert {charge.kind for charge in unread} == {None}
    ledger = Ledger.open(path)
    one = with_more_than_rounds(ledger)
    assert Counter(charge.kind for charge in ledger) == {"round": 8, "score": 4, "personalise": 2}
    assert [row["rounds"] for row in one.per_silo()] == [4, 4]
    assert one.was_released("score", 1, 3, "run.0") and one.was_released("personalise", 0, 4, "run.0")
    before = ledger.head
    one.append(list(ledger))
    assert ledger.head == before  # the same releases
    one.append([replace(charge, noise_id="run.1") for charge in ledger if charge.kind == "personalise"])
    ledger.close()
    kinds = Counter(charge.kind for charge in Ledger.open(path, append=False))
    assert kinds == {None: 14, "personalise": 2}
    again = with_more_than_rounds(Ledger.open(path, append=False))
    assert again.views() == one.views() != with_more_than_rounds(unread).views()


def test_what_a_charge_was_for_is_not_guessed() -> None:
    """Neither by the records that it read, nor by its round."""
    one = with_more_than_rounds(Ledger())
    (score, _), (own, _) = (one.extra_plan.planned(kind, one.rules, RECORDS) for kind in ("score", "personalise"))
    made = [(1, score, "score"), (3, own, "round"), (9, own, "round"), (2, own, "personalise")]
    for round, of, kind in made:
        one.append([Charge(round=round, silo=0, release=of.release, count=1, share=of.share, noise_id="x", kind=kind)])
    found = {charge.round: charge.kind for charge in one.ledger}
    assert found == {1: "score", 3: "round", 9: "round", 2: "personalise"}
    assert one.was_released("score", 0, 1, "x") and one.was_released("personalise", 0, 2, "x")
    assert one.per_silo()[0]["rounds"] == 2


def test_with_replacement_a_round_may_be_of_one_silo() -> None:
    """So ten silos may last for ten times as many rounds as one of them bears, and not for 10 / S times as many."""
    one = with_replacement((0.1,) * 10, 4, epsilon=8.0)
    one.begin_round(0, WITH_REPLACEMENT)
    one.append(one.charges(0, WITH_REPLACEMENT))
    alone = Term(release=OF_SILO, count=1, rounds=1)
    each = max(n for n in range(1, 100) if PLD().epsilon([replace(alone, rounds=n)], 1e-5) <= 8.0)
    mixture = lambda rounds: PLD().epsilon([replace(alone, rounds=rounds, participation=1 - 0.9**4)], 1e-5)  # noqa: E731
    assert mixture(10 * each // 4) < 8.0 < mixture(10 * each)
    assert one.views()["third_party"]["epsilon"] == 8.0


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"max_participations": 4},
        {"max_participations": 10},  # which only a silo reaches that was in rounds that were released again
        {"early_stopping": {"every": 2, "noise_multiplier": 20.0}},
    ],
)
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("known", [0, 3, 6])
def test_a_statement_of_a_ledger_alone_is_that_of_the_run(config: dict[str, Any], lost: bool, known: int) -> None:
    """It looks at no charge by itself: not at rounds of two names of noise, of several silos, nor at scores."""
    privacy = {"clip_norm": 1, "noise_multiplier": SIGMA, "record_rate": RATE, "epsilon": 9.0}
    chosen = Config(algorithm={"name": "fedavg"}, privacy=privacy, rounds=9, **config)
    writes = account(config=chosen, num_participants=1)
    for round, silos, noise_id in ((0, (0,), "a"), (1, (1,), "a"), (2, (0,), "a"), (2, (1,), "b"), (3, (0, 1), "a")):
        spend(writes, range(round, round + 1), noise_id, silos)
    spend(writes, range(3, 6), "c", (0,))
    if "early_stopping" in config:
        writes.charge_scores_not_made([2, 4])
    given = {"costs": dict(list(writes.costs.items())[:known]), "lost": lost, "config": chosen, "num_participants": 1}
    stated = account(ledger=writes.ledger, **given, stating=True)
    for accountant in (PLD(), RDP(), PLD()):
        expected = account(ledger=writes.ledger, accountant=accountant, budget_accountant=PLD(), **given)
        assert stated.statement().views(accountant) == expected.views()
    with pytest.raises(AssertionError):
        stated.affords(9, PLAN)
    with pytest.raises(AssertionError):
        stated.append([])
