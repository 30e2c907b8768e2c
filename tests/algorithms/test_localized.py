"""Localization: Gao et al. 2024, Alg. 1 and 4. Which records phases read, what they solve, what they cost."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from dpfl_plugin.algorithms import isrl_theory as theory
from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.algorithms.isrl import Facts, OneGradient
from dpfl_plugin.algorithms.localized import LocalizedMBSGD, LocalizedSubgradient
from dpfl_plugin.core.shares import share_bounds
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.events import Term
from dpfl_plugin.privacy.samplers import FixedSize
from dpfl_plugin.privacy.views import server_view
from tests.algorithms.test_mb_sgd import numbered, spied
from tests.quadratics import Lab, rules, silo

SGD: dict[str, Any] = {"lr": 0.1, "regularisation": 0.5, "lipschitz": 100.0}
EACH = {
    "mb_sgd": LocalizedMBSGD(phases=3, **SGD),
    "accelerated": LocalizedMBSGD(
        phases=3, subsolver="accelerated", smoothness=3.0, regularisation=0.5, lipschitz=100.0, diameter=6.0
    ),
    "multistage": LocalizedMBSGD(phases=3, subsolver="multistage", smoothness=3.0, regularisation=0.5, lipschitz=9.0),
    "subgradient": LocalizedSubgradient(phases=3, eta=0.5, lipschitz=9.0),
    "one pass": LocalizedMBSGD(phases=3, passes="one", **SGD),
}


def facts(**known: Any) -> Facts:
    base = {"num_silos": 25, "num_participants": 25, "silo_rate": 1.0, "record_rate": None, "num_records": 1734}
    return Facts.of(Setting(**{**base, "rounds": 100, "clip_norm": 1.0, **known}), 51)


@pytest.mark.parametrize("algorithm", EACH.values(), ids=EACH)
def test_phases_read_disjoint_records_and_half_as_many_each(algorithm: OneGradient) -> None:
    """Alg. 1, l. 5: n / 2, n / 4, n / 8 records; seen at the engine."""
    records = [numbered(40), numbered(64)]
    lab = Lab(algorithm, records, rules(), [1.0, 1.0], known={"rounds": 12, "num_records": 40})
    read = spied(lab)
    for _ in range(12):
        lab.step()
    for i, size in enumerate((40, 64)):
        phases = [[set(batch) for batch in read[i::2][4 * p : 4 * p + 4]] for p in range(3)]
        unions = [set().union(*batches) for batches in phases]
        assert [len(union) for union in unions] == [size // 2, size // 4, size // 8]
        assert not any(one & other for one, other in itertools.combinations(unions, 2))
        if algorithm.passes == "one":
            assert all(sum(map(len, batches)) == len(union) for batches, union in zip(phases, unions, strict=True))
        else:
            assert all(batch == union for batches, union in zip(phases, unions, strict=True) for batch in batches)


def test_phases_hold_the_papers_numbers_of_records_or_one_more() -> None:
    """n_i = floor(n / 2^i), Alg. 1, l. 4; for any n, as parts that serve all sizes cannot have floors everywhere."""
    for n in (*range(2, 70), 1734, 65_537):
        known = facts(num_records=n)
        stages = LocalizedMBSGD(**SGD).stages(known._replace(rounds=20))
        bounds = [share_bounds(stage.share, n) for stage in stages]
        assert all(last - first - n // 2**i in (0, 1) for i, (first, last) in enumerate(bounds, start=1))
        assert all(one[1] == other[0] for one, other in itertools.pairwise(bounds))


def test_runs_of_every_seed_cut_the_same_shares() -> None:
    """One ledger may hold several runs: phase 1 of one has to be disjoint from phase 2 of another."""
    seen = []
    for seed in (0, 1):
        known = {"rounds": 3, "num_records": 40}
        lab = Lab(EACH["mb_sgd"], [numbered(40)], rules(), [1.0, 1.0], seed=seed, known=known)
        read = spied(lab)
        for _ in range(3):
            lab.step()
        seen.append([frozenset(batch) for batch in read])
    assert seen[0] == seen[1] and len(set(seen[0])) == 3


def epsilon(*counts: int, sampler=None, size: int = 20) -> float:  # type: ignore[no-untyped-def]
    given = rules(2.0, 1.0, sampler)
    release = given.release(given.sampler.rate(size))
    return max(PLD().epsilon([Term(release=release, count=n, rounds=1)], 1e-5) for n in counts)


def test_phases_cost_what_the_dearest_of_them_costs() -> None:
    lab = Lab(
        LocalizedMBSGD(phase_rounds=(3, 5, 2), **SGD),
        [numbered(40)] * 2,
        rules(2.0, 1.0),
        [1.0, 1.0],
        known={"rounds": 10, "num_records": 40},
    )
    for _ in range(10):
        lab.step()
    assert server_view(lab.ledger, PLD(), 1e-5).epsilon == epsilon(3, 5, 2) < epsilon(10)


def test_one_pass_costs_what_one_release_costs() -> None:
    lab = Lab(EACH["one pass"], [numbered(40)], rules(2.0, 1.0), [1.0, 1.0], known={"rounds": 12, "num_records": 40})
    for _ in range(12):
        lab.step()
    assert server_view(lab.ledger, PLD(), 1e-5).epsilon == epsilon(1)


def test_a_phase_solves_its_regularised_problem() -> None:
    """One phase of many rounds: min F + lambda / 2 ||w - w_0||^2, whose minimiser on quadratics is known."""
    a, b, start = 2.0, 3.0, 1.0
    for algorithm in (
        LocalizedMBSGD(phases=1, lr=0.1, regularisation=0.5, lipschitz=100.0),
        LocalizedMBSGD(phases=1, subsolver="accelerated", smoothness=2.0, regularisation=0.5, lipschitz=100.0),
        LocalizedMBSGD(phases=1, subsolver="multistage", smoothness=2.0, regularisation=0.5, lipschitz=100.0),
    ):
        lab = Lab(algorithm, [silo([a], [b], copies=4)], rules(), [start], known={"rounds": 150, "num_records": 4})
        for _ in range(150):
            lab.step()
        assert float(lab.server["model"]) == pytest.approx((a * b + 0.5 * start) / (a + 0.5), abs=1e-3)


def test_each_phase_is_pulled_to_what_the_last_one_returned() -> None:
    """Two phases by hand: phase 2 has lambda 2^p, eta_2 = eta / 2^p, and the center w_1."""
    algorithm = LocalizedMBSGD(phases=2, lr=0.1, regularisation=0.5, exponent=1.0, lipschitz=100.0)
    lab = Lab(algorithm, [silo([2.0], [3.0], copies=8)], rules(), [1.0], known={"rounds": 6, "num_records": 8})
    w = center = 1.0
    for phase, (eta, pull) in enumerate([(0.1, 0.5), (0.05, 1.0)], start=1):
        for _ in range(3):
            assert lab.plan().phase == f"phase {phase}"
            w = w - eta * (2.0 * (w - 3.0) + pull * (w - center))
            lab.step()
            assert float(lab.server["w"]) == pytest.approx(w)
        center = w
        assert float(lab.server["center"]) == pytest.approx(center)


def test_a_phase_stays_within_its_ball() -> None:
    """||w - w_{i-1}|| <= D_i = 2 L / lambda_i."""
    algorithm = LocalizedMBSGD(phases=2, lr=0.5, regularisation=1.0, exponent=1.0, lipschitz=0.1, lr_decay=1.0)
    lab = Lab(algorithm, [silo([1.0], [9.0], copies=8)], rules(), [0.0], known={"rounds": 20, "num_records": 8})
    ends = []
    for _ in range(20):
        lab.step()
        ends.append(float(lab.server["w"]))
    assert ends[9] == pytest.approx(0.2) and ends[19] == pytest.approx(0.2 + 0.1)


def test_schedules_are_the_theorems() -> None:
    known = facts(epsilon=1.5, delta=1e-6)
    algorithm = LocalizedMBSGD(subsolver="multistage", smoothness=0.5, diameter=10.0)
    public = {"L": 1.0, "D": 10.0, "n": 1734, "M": 25, "d": 51, "epsilon": 1.5, "delta": 1e-6}
    first = theory.regularisation(**public)
    stages = {stage.phase: stage for stage in algorithm.stages(known)}
    assert list(stages) == list(range(1, 11))  # floor(log2 1734)
    for i, stage in stages.items():
        assert stage.pull == stage.modulus == pytest.approx(first * 8 ** (i - 1))
        assert stage.radius == pytest.approx(2 / stage.pull)
        assert stage.share == (1 - 2.0 ** (1 - i), 1 - 2.0**-i)
        assert stage.rate >= 2 * (0.5 + stage.pull)
    subgradient = LocalizedSubgradient(diameter=10.0)
    eta = theory.step_size(**public)
    for stage in subgradient.stages(known):
        i = stage.phase
        assert stage.pull == pytest.approx(1 / ((eta / 8**i) * (1734 / 2**i)))


def test_rounds_are_divided_evenly_or_as_told() -> None:
    assert LocalizedMBSGD(phases=3, **SGD).rounds_of_phases(facts(rounds=11)) == [4, 4, 3]
    assert LocalizedMBSGD(phase_rounds=(7, 4), **SGD).rounds_of_phases(facts(rounds=11)) == (7, 4)


def test_the_subgradient_methods_first_steps() -> None:
    """Alg. 4, l. 7: gamma_0 = 2 / lambda_1, anew in every phase; l. 10 of Alg. 3 averages."""
    algorithm = LocalizedSubgradient(phases=2, eta=2.0, exponent=1.0, lipschitz=1e6)
    lab = Lab(algorithm, [silo([1.0], [3.0], copies=8)], rules(), [1.0], known={"rounds": 4, "num_records": 8})
    model = 1.0
    for i in (1, 2):
        pull = 1 / ((2.0 / 2**i) * (8 / 2**i))
        center = w = model
        total = 0.0
        for r in (1, 2):
            w = w - 2 / (pull * r) * ((w - 3.0) + pull * (w - center))
            total += r * w
            lab.step()
        model = 2 / (2 * 3) * total
        assert float(lab.server["model"]) == pytest.approx(model)


# Refusals and remarks


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="no phase is empty"):
        LocalizedMBSGD(phase_rounds=(3, 0), **SGD)
    with pytest.raises(ConfigError, match="phases=0 must be at least 1"):
        LocalizedMBSGD(phases=0, **SGD)
    with pytest.raises(ConfigError, match="be 2, as phase_rounds has it"):
        LocalizedMBSGD(phases=3, phase_rounds=(1, 1), **SGD)
    with pytest.raises(ConfigError, match="lr is missing"):
        LocalizedMBSGD(regularisation=1.0)
    with pytest.raises(ConfigError, match="smoothness is missing"):
        LocalizedMBSGD(subsolver="multistage")
    with pytest.raises(ConfigError, match="must be left out with subsolver: mb_sgd"):
        LocalizedMBSGD(v=1.0, **SGD)
    with pytest.raises(ConfigError, match="must be left out with subsolver: accelerated"):
        LocalizedMBSGD(subsolver="accelerated", smoothness=1.0, lr=0.1)
    for bad in (-1.0, 0.0, math.inf):
        with pytest.raises(ConfigError, match="exponent"):
            LocalizedSubgradient(eta=1.0, exponent=bad)


@pytest.mark.parametrize(
    ("algorithm", "known", "part"),
    [
        (LocalizedMBSGD(phases=4, **SGD), {"rounds": 3}, "phases=4 must be at most the 3 rounds"),
        (LocalizedMBSGD(phases=4, **SGD), {"rounds": None}, "rounds is missing"),
        (LocalizedMBSGD(phase_rounds=(3, 4), **SGD), {"rounds": 9}, "rounds=9 must be 7"),
        (LocalizedMBSGD(phases=5, **SGD), {"num_records": 31}, "leave a record to every round"),
        (LocalizedMBSGD(phases=3, **SGD), {"num_records": 31, "record_rate": 0.2}, "floor(0.2 * 3) is 0"),
        (LocalizedMBSGD(phases=3, **SGD), {"num_records": 31, "batch_size": 4}, "privacy.batch_size=4 must be at most"),
        (LocalizedMBSGD(lr=0.1, phases=3), {"epsilon": 1.0, "delta": 1e-5}, "regularisation is missing"),
        (LocalizedMBSGD(lr=0.1, phases=3, diameter=1.0), {}, "regularisation is missing"),
        (LocalizedSubgradient(phases=3), {}, "eta is missing"),
        (LocalizedMBSGD(lr=0.1, regularisation=1.0), {"clip_norm": None}, "Give lipschitz"),
    ],
)
def test_what_cannot_be_in_a_setting_is_refused(algorithm: OneGradient, known: dict[str, Any], part: str) -> None:
    base = {"num_silos": 4, "num_participants": 4, "silo_rate": 1.0, "record_rate": None, "num_records": 100}
    setting = Setting(**{**base, "rounds": 20, "clip_norm": 1.0, **known})
    with pytest.raises(ConfigError) as caught:
        algorithm.init_server(torch.zeros(2), setting)
    assert part in str(caught.value)


def test_remarks_name_the_theorem_that_does_not_apply() -> None:
    known = facts(epsilon=1.5, delta=1e-6)
    (remark,) = LocalizedMBSGD(lr=1.0, diameter=9.0).remarks(known)
    assert "Theorem C.1" in remark and "MB-SGD" in remark
    (remark,) = LocalizedMBSGD(subsolver="multistage", smoothness=0.5, diameter=9.0, phases=4).remarks(known)
    assert "Theorem C.1" in remark and "phases 4, where it has 10" in remark
    (remark,) = LocalizedMBSGD(subsolver="multistage", smoothness=0.5, phases=4, regularisation=1.0).remarks(known)
    assert "no diameter" in remark
    (remark,) = LocalizedSubgradient(diameter=9.0).remarks(known)
    assert "Theorem G.1" in remark and "10 rounds in phase 1, where it takes" in remark


def test_nothing_is_remarked_where_the_theorem_applies() -> None:
    """R_i and K_i by the theorem, of a loss that is smooth enough for few rounds."""
    given = facts(epsilon=1.5, delta=1e-6)
    algorithm = LocalizedSubgradient(diameter=9.0)
    R = [theory.nonsmooth_rounds(n_i=1734 // 2**i, M=25, d=51, epsilon=1.5) for i in range(1, 11)]
    exact = LocalizedSubgradient(diameter=9.0, phase_rounds=tuple(R))
    assert list(exact.remarks(given._replace(rounds=sum(R)))) == []
    assert list(algorithm.remarks(given)) != []


@pytest.mark.parametrize("algorithm", EACH.values(), ids=EACH)
def test_stacks_of_any_size_give_the_same_bits(algorithm: OneGradient) -> None:
    silos = [silo([1.0, 2.0], [float(i), 1.0], copies=40) for i in range(4)]
    ends = []
    for stack in (1, 3, 4):
        known = {"rounds": 6, "num_records": 40}
        lab = Lab(algorithm, silos, rules(1.0, 2.0, FixedSize(0.5)), [1.0, -1.0], stack=stack, known=known)
        for chosen in ([0, 1, 2, 3], [1, 3], [0, 1, 2]) * 2:
            lab.step(chosen)
        ends.append(lab.server)
    assert all(torch.equal(ends[0][name], end[name]) for end in ends[1:] for name in end)


def test_a_run_that_ended_early_says_so() -> None:
    lab = Lab(EACH["mb_sgd"], [numbered(40)], rules(), [1.0, 1.0], known={"rounds": 12, "num_records": 40})
    for _ in range(5):
        lab.step()
    assert "ended after 5 of 12 rounds, in phase 2 of 3." in lab.algorithm.notes(lab.server)
    for _ in range(7):
        lab.step()
    assert not any("ended" in note for note in lab.algorithm.notes(lab.server))
    with pytest.raises(ConfigError, match="rounds must be 12"):
        lab.plan()
