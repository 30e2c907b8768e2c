"""What runs of a shared ledger registered: totals, slots that serve others, and runs that no one epsilon bounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.privacy import filters, shared_ledger, slots
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.budget import Budget
from dpfl_plugin.privacy.composition import Planned
from dpfl_plugin.privacy.events import Charge, SampledGaussian, Term
from dpfl_plugin.privacy.filters import RegisteredPlan
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.slots import SlotKind

DELTA = 1e-5
A = SampledGaussian(noise_multiplier=20.0, sampler="fixed", rate=0.1, neighbouring="replace_one")
POISSON = replace(A, sampler="poisson", neighbouring="add_or_remove")
SILO = SampledGaussian(noise_multiplier=10.0, sampler="full", rate=1.0, neighbouring="replace_one", unit="silo")


def begin(ledger: Ledger, name: str, *slots: Planned, records: str = "here", **facts: Any) -> None:
    early = {"early": True} if not len(ledger) else {}
    plain = shared_ledger.slots_to_plain({0: slots})
    ledger.begin_run(
        {"noise": name, "name": name, "data_sha256": records, "started": "now", "slots": plain, **early, **facts}
    )


def charge(name: str, release: SampledGaussian = A, count: int = 1, **more: Any) -> Charge:
    return Charge(round=0, silo=0, release=release, count=count, noise_id=f"{name}.0", **more)


def test_runs_that_were_registered_first_are_one_plan() -> None:
    ledger, other = Ledger(facts={"shared": "a"}), replace(A, noise_multiplier=10.0)
    begin(ledger, "one", Planned(A, 50))
    assert shared_ledger.planned_total(ledger, DELTA) is None  # a single run says what it costs itself
    begin(ledger, "two", Planned(other, 50))
    ledger.begin_run({"noise": "one"})
    ledger.append([charge("one", count=50)])
    begin(ledger, "late", Planned(A, 50))
    early = RegisteredPlan("here", {0: [Planned(A, 50), Planned(other, 50)]})
    assert shared_ledger.plans_in(ledger) == [early, RegisteredPlan("here", {0: [Planned(A, 50)]})]
    terms = [Term(release=A, count=50, rounds=1), Term(release=other, count=50, rounds=1)]
    assert shared_ledger.planned_total(ledger, DELTA) == {
        **{"epsilon": PLD().epsilon(terms, DELTA), "delta": DELTA, "num_runs": 2},
    }
    ledger.begin_run({"noise": "two"})
    ledger.append([charge("two", other, 51)])
    assert shared_ledger.planned_total(ledger, DELTA) is None, "a round that a crash lost was in no plan"


def test_records_of_several_kinds_are_composed_at_their_worst() -> None:
    plans = [
        RegisteredPlan("here", {0: [Planned(A, 40)], 1: [Planned(A, 50)]}),
        RegisteredPlan("there", {0: [Planned(A, 7)], 5: []}),
    ]
    assert filters.planned_epsilon(plans, DELTA) == PLD().epsilon([Term(release=A, count=57, rounds=1)], DELTA)


KINDS = st.builds(
    lambda noise, rate, share: (replace(A, noise_multiplier=noise, rate=rate), share),
    st.sampled_from([5.0, 10.0, 20.0]),
    st.sampled_from([0.1, 0.2]),
    st.sampled_from([(0.0, 0.5), (0.5, 1.0), (0.0, 1.0)]),
)
COUNTS = st.dictionaries(KINDS, st.integers(1, 9), max_size=5)


@settings(deadline=None)
@given(COUNTS, COUNTS)
def test_what_slots_serve_costs_no_more_than_they_do(left: dict[SlotKind, int], wanted: dict[SlotKind, int]) -> None:
    taken, served = shared_ledger._matched(Counter(left), Counter(wanted))
    assert taken <= Counter(left) and served <= Counter(wanted) and taken.total() == served.total()
    if taken:
        filter = filters.RenyiFilter(1.0, DELTA, 8.0)
        costs = [filters.cost_of([RegisteredPlan("", {0: slots.planned_of(one)})], filter) for one in (served, taken)]
        assert costs[0] <= costs[1] * (1 + 1e-9)
    for kind, count in wanted.items():  # of its own kind nothing is left unused while others serve
        assert served[kind] >= min(count, left.get(kind, 0))


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


def test_slots_are_left_once_and_by_runs_that_ended() -> None:
    ledger = Ledger(facts={"shared": "a"})
    begin(ledger, "one", Planned(A, 10))
    ledger.append([charge("one", count=4)])
    wanted = {0: [Planned(A, 20)]}
    assert shared_ledger.unused(ledger, "here", wanted) == []  # it may go on
    ledger.begin_run({"noise": "one", "started": "now", "ended": True})
    assert shared_ledger.unused(ledger, "there", wanted) == []
    reuses = shared_ledger.unused(ledger, "here", wanted)
    assert reuses == [("one", {0: Counter({(A, (0.0, 1.0)): 6})}, {0: Counter({(A, (0.0, 1.0)): 6})})]
    assert shared_ledger.without_reused(wanted, reuses) == {0: [Planned(A, 14)]}
    begin(ledger, "two", Planned(A, 20), reuses=shared_ledger.reuses_to_plain(reuses))
    assert shared_ledger.plans_in(ledger) == [
        RegisteredPlan("here", {0: [Planned(A, 10)]}),
        RegisteredPlan("here", {0: [Planned(A, 14)]}),
    ]
    ledger.append([charge("two", count=20)])
    assert len(shared_ledger.plans_in(ledger)) == 2
    ledger.begin_run({"noise": "two", "started": "now", "ended": True})
    assert shared_ledger.unused(ledger, "here", wanted) == []


@pytest.mark.parametrize("other", [POISSON, SILO])
def test_other_meanings_are_refused(other: SampledGaussian) -> None:
    ledger = Ledger(facts={"shared": "a"})
    begin(ledger, "old", Planned(other, 1))
    shared_ledger.check_protection(ledger, "now", "here", other)
    with pytest.raises(ConfigError, match=r"'old'.*no single epsilon"):
        shared_ledger.check_protection(ledger, "now", "here", A)


def test_a_silos_data_may_have_been_anywhere_on_other_records() -> None:
    ledger = Ledger(facts={"shared": "a"})
    begin(ledger, "old", Planned(SILO, 1))
    with pytest.raises(UnsupportedError, match="other records"):
        shared_ledger.check_protection(ledger, "now", "there", SILO)


def test_another_run_costs_what_it_would_once_registered() -> None:
    ledger, plan = Ledger(facts={"shared": "a"}), RegisteredPlan("here", {0: [Planned(A, 50)]})
    ledger.facts.update(shared_ledger.first_line(plan, None, DELTA))
    begin(ledger, "one", Planned(A, 50))
    after = shared_ledger.total_after_another(ledger, "one", DELTA)
    ledger.append([charge("one", count=50)])
    begin(ledger, "two", Planned(A, 50))
    assert after == shared_ledger.adaptive_total(ledger, DELTA)


def test_what_a_crash_makes_a_tuning_release_again_is_registered_in_its_project() -> None:
    project, own = Ledger(facts={"shared": "a"}), Ledger(facts={"shared": "b"})
    begin(project, "tuning", Planned(A, 50))
    begin(own, "candidate")
    joint = shared_ledger.Joint(
        own, "candidate", Budget(9.0, DELTA, PLD()), shared_ledger.Registration(project, "tuning")
    )
    for round, count in enumerate((30, 20)):
        made = [(replace(charge("candidate", count=count), round=round), (0,))]
        joint.take(made)
        joint.take(made) if round == 1 else None  # before it is charged, each counts: the next is beyond
        own.append([made[0][0]])
    (tuning,) = shared_ledger.runs_in(project)
    assert list(tuning.more.values()) == [{0: Counter({(A, (0.0, 1.0)): 20})}]
    resumed = shared_ledger.Registration(project, "tuning")
    resumed.deduct(own.tally)
    resumed.take([(replace(charge("candidate", count=21), round=2), (0,))])
    (tuning,) = shared_ledger.runs_in(project)
    assert sum(sum(counts[0].values()) for counts in tuning.more.values()) == 21, "20 were left, and one was not"


def test_a_tuning_goes_on_only_within_the_limit_of_its_project_and_has_it_on_disk(tmp_path: Path) -> None:
    """What was released beyond the slots, and was never registered, is registered when the tuning goes on."""
    plan = RegisteredPlan("here", {0: [Planned(A, 50)]})
    with Ledger(tmp_path / "project.jsonl", {"shared": "a", **shared_ledger.first_line(plan, 2.0, DELTA)}) as project:
        own = Ledger(facts={"shared": "b"})
        begin(project, "tuning", Planned(A, 50))
        begin(own, "candidate")
        budget = Budget(1e3, DELTA, PLD())
        joint = shared_ledger.Joint(own, "candidate", budget, shared_ledger.Registration(project, "tuning"))
        assert joint.affords({0: [Planned(A, 50)]}) and not joint.affords({0: [Planned(A, 50_000)]})
        own.append([charge("candidate", count=60)])
        shared_ledger.Registration(project, "tuning").deduct(own.tally)
        on_disk = Ledger.open(tmp_path / "project.jsonl", append=False)
        (tuning,) = shared_ledger.runs_in(on_disk)
        assert list(tuning.more.values()) == [{0: Counter({(A, (0.0, 1.0)): 10})}]


def test_what_follows_a_tuning_is_not_registered_before_the_first_release() -> None:
    """The tuning's releases are in a ledger of its own, and the project's holds none."""
    project = Ledger(facts={"shared": "a"})
    assert shared_ledger.nothing_released(project)
    begin(project, "run", Planned(A, 50))
    assert shared_ledger.nothing_released(project)
    project.begin_run({"noise": "t", "name": "tune", "tuning": True, "data_sha256": "here"})
    assert not shared_ledger.nothing_released(project)
