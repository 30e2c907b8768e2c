"""`python -m papers plan`: it prints what the papers' formulas say, and its commands run what was planned."""

from __future__ import annotations

import contextlib
import io
import math
import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from scipy.optimize import minimize_scalar

import dpfl_plugin
from dpfl_plugin.algorithms import isrl_theory as theory
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy.accountants import PLD, Gaussian
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.paper import NOBLE_THIRD_PARTY_UNSOUND
from papers.chang2022 import DECAYS
from papers.chang_theory import last_round
from papers.noble2022_privacy import TABLE_1, TABLE_1_STEPS
from papers.plans import main, plans
from papers.plans.base import Plan
from papers.plans.chang import terms
from papers.plans.li import FedAvgSyncProblem, noise_scale
from papers.plans.noble import largest_rounds
from papers.plans.scaffnew import ScaffNewProblem
from tests.cli.command import dpfl, one_message, write

# 4 silos of 40 training records
BINARY: dict[str, Any] = {
    "data": {
        "dataset": {"name": "synthetic", "num_features": 4, "num_classes": 2, "records_per_silo": 50},
        "preprocess": ["unit_norm"],
    },
    "model": "logistic",
    "l2": 0.02,
}
SILO = {"unit": "silo", "sampler": "full", "record_rate": None, "noise_multiplier": None, "epsilon": 30.0}
SCAFFNEW: dict[str, Any] = {**BINARY, "privacy": SILO}


def plan(config: Path, paper: str, *words: object) -> dict[str, Any]:
    """The plan of the one variant, as plain values; words as the command has them."""
    found = answers(config, paper, *words)
    assert len(found) == 1
    return next(iter(found.values()))


def answers(config: Path, paper: str, *words: object) -> dict[str, dict[str, Any]]:
    """By variant; of one that has no plan why."""
    options = [(str(name)[2:].replace("-", "_"), value) for name, value in zip(words[::2], words[1::2], strict=True)]
    settings = tuple(str(value) for name, value in options if name == "set")
    given = {name: value for name, value in options if name not in ("set", "variant")}
    experiment = dpfl_plugin.Experiment(config, settings, dict(options).get("variant"))  # type: ignore[arg-type]
    found = plans(paper, experiment, **given)  # type: ignore[arg-type]
    return {label: plain(one) if isinstance(one, Plan) else {"refused": str(one)} for label, one in found.items()}


def plain(found: Plan) -> dict[str, Any]:
    whole = asdict(found)
    proofs = [
        {**proof, "noise_multiplier": proof["noise"][0] if len(proof["noise"]) == 1 else proof["noise"]}
        | {"claimed_epsilon": proof["claimed"], "command": list(proof["command"])}
        | {"epsilon": {view: proof[view] for view in ("server", "third_party")}}
        for proof in whole.pop("proofs")
    ]
    return {**whole, "proven": proofs}


def printed(config: Path, paper: str, *words: object) -> str:
    """What the command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([paper, *map(str, (config, *words))]) == 0
    return out.getvalue()


def values(answer: dict[str, Any], part: str = "values") -> dict[str, Any]:
    return {one["name"]: one["value"] for one in answer[part]}


def proven(answer: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in answer["proven"] if one["name"] == name]
    return dict(found)


def runs_as_planned(config: Path, said: str, name: str, answer: dict[str, Any]) -> dict[str, Any]:
    """The command that is printed is that of the plan; its run has the planned rounds and epsilon."""
    (line,) = [line for line in said.splitlines() if line.startswith(f"{name}: dpfl run")]
    command = shlex.split(line.partition(": ")[2])
    row = proven(answer, name)
    assert command == row["command"]
    done = dpfl(*command[1:], "--out", config.parent / "planned", "--json")
    assert done.code == 0, done.err
    result: dict[str, Any] = done.json
    assert result["status"] == "done" and result["rounds"] == row["rounds"]
    assert result["noise_multiplier"] == row["noise_multiplier"]
    assert result["epsilon"]["server"]["worst_case_epsilon"] == row["epsilon"]["server"]
    return result


# Corollary 1 of the paper of DP-ScaffNew


def test_corollary_1_is_the_numerical_minimum_of_the_bound(tmp_path: Path) -> None:
    """With mu = l2, L = (1 + 1) / 4 + l2 and psi_0 = 2 N ln 2 / mu, of records of norm 1 with a bias: all public."""
    answer = plan(write(tmp_path, SCAFFNEW), "scaffnew")
    found, constants = values(answer), values(answer, "constants")
    assert constants["mu"] == 0.02 and constants["L"] == 0.52
    assert constants["psi_0"] == pytest.approx(2 * 4 * math.log(2) / 0.02)
    assert (constants["N"], constants["d"]) == (4, 5)
    problem = ScaffNewProblem(
        mu=0.02, L=0.52, psi_0=constants["psi_0"], clip_norm=1, num_silos=4, dimension=5, epsilon=30, delta=1e-5
    )
    best = minimize_scalar(lambda T: problem.bound(1 / 0.52, problem.p, T), bounds=(1, 1e4), method="bounded")
    assert found["T"] == pytest.approx(best.x, rel=1e-4) and best.x > 10
    assert found["bound"] == pytest.approx(best.fun, rel=1e-5)
    assert found["local_lr"] == pytest.approx(1 / 0.52, rel=1e-5) and found["local_lr"] <= 1 / 0.52
    assert found["p"] == pytest.approx(math.sqrt(0.02 / 0.52), rel=1e-5)
    assert not answer["fails"]
    rounds = max(1, round(found["p"] * found["T"]))
    assert {row["rounds"] for row in answer["proven"]} == {rounds}
    paper = proven(answer, "noise of Lemma 1")
    assert paper["noise_multiplier"] == pytest.approx(math.sqrt(8 * rounds * math.log(1e5)) / 2 / 30, rel=1e-5)
    assert paper["claimed_epsilon"] == 30
    release = SampledGaussian(
        noise_multiplier=paper["noise_multiplier"], sampler="full", rate=1.0, neighbouring="replace_one", unit="silo"
    )
    assert paper["epsilon"]["server"] == pytest.approx(
        Gaussian().epsilon([Term(release=release, count=1, rounds=rounds)], 1e-5), rel=1e-3
    )
    assert 30 * (1 - 1e-3) < proven(answer, "proven noise")["epsilon"]["server"] <= 30


@pytest.mark.parametrize("name", ["noise of Lemma 1", "proven noise"])
def test_corollary_1_runs(tmp_path: Path, name: str) -> None:
    """From another algorithm's configuration, with another budget than the file's."""
    config = write(tmp_path, SCAFFNEW)
    words = printed(config, "scaffnew", "--epsilon", "20")
    answer = plan(config, "scaffnew", "--epsilon", "20")
    result = runs_as_planned(config, words, name, answer)
    algorithm = yaml.safe_load((Path(result["folder"]) / "config.yaml").read_text())["algorithm"]
    found = values(answer)
    assert algorithm == {"name": "scaffnew", "local_lr": found["local_lr"], "p": found["p"], "local_steps": None}


def test_a_claim_that_is_not_confirmed_is_told(tmp_path: Path) -> None:
    """The constant of Lemma 1 is right for small epsilon only."""
    config, told = write(tmp_path, SCAFFNEW), "noise of Lemma 1: the accountant does not confirm epsilon"
    for epsilon, confirmed in ((1, True), (500, False)):
        row = proven(plan(config, "scaffnew", "--epsilon", epsilon), "noise of Lemma 1")
        assert (row["epsilon"]["server"] <= epsilon) == confirmed
        said = printed(config, "scaffnew", "--epsilon", epsilon)
        assert (f"{told} {epsilon}." in said) != confirmed


def test_constants_that_are_given_take_the_place_of_public_ones(tmp_path: Path) -> None:
    words = ("--psi0", 50.0, "--smoothness", 2.0, "--strong-convexity", 0.5)
    given = plan(write(tmp_path, SCAFFNEW), "scaffnew", *words)
    assert [values(given, "constants")[one] for one in ("mu", "L", "psi_0")] == [0.5, 2, 50]
    assert values(given)["p"] == 0.5


def test_conditions_of_theorem_1_that_fail_are_named(tmp_path: Path) -> None:
    config = write(tmp_path, {**BINARY, "privacy": {"epsilon": 3.0, "noise_multiplier": None}, "rounds": 2})
    answer = plan(config, "scaffnew")
    assert [part in " ".join(answer["fails"]) for part in ("unit=silo", "sampler=full", "T* is below 1")] == [True] * 3
    assert not answer["advised"] and "dpfl run" not in printed(config, "scaffnew")
    assert [row["name"] for row in answer["proven"]] == ["proven noise"], "Lemma 1 is of releases of whole silos"


# Table 1 of Noble et al.


@pytest.mark.parametrize(("sigma", "K"), [(10, 40), (20, 10)])
def test_table_1(tmp_path: Path, sigma: int, K: int) -> None:
    """The published cell, by the command line: 100 silos of 16 records, s = 0.2 of which are 3: s is given as 1/5."""
    data = {"dataset": {"num_features": 2, "records_per_silo": 25}, "num_silos": 100}
    privacy = {"noise_multiplier": sigma, "record_rate": 0.2, "delta": 2.5e-6}
    algorithm = {"local_steps": K}
    config = write(tmp_path, {"data": data, "privacy": privacy, "algorithm": algorithm, "silo_rate": 0.05})
    answer = plan(config, "noble2022", "--epsilon", 3)
    published = TABLE_1[sigma][TABLE_1_STEPS.index(K)]
    assert values(answer)["T"] == published
    assert published == largest_rounds(
        epsilon=3,
        noise_multiplier=sigma,
        local_steps=K,
        silo_rate=0.05,
        record_rate=0.2,
        num_silos=100,
        delta=2.5e-6,
    )
    assert NOBLE_THIRD_PARTY_UNSOUND in answer["notes"]
    theirs, mine = proven(answer, "their rounds"), proven(answer, "proven rounds")
    release = SampledGaussian(
        noise_multiplier=sigma, sampler="fixed", rate=0.2, neighbouring="replace_one", unit="record"
    )
    epsilons = [PLD().epsilon([Term(release=release, count=K, rounds=T)], 2.5e-6) for T in (published, mine["rounds"])]
    assert [theirs["epsilon"]["server"], mine["epsilon"]["server"]] == pytest.approx(epsilons, rel=1e-9)
    assert theirs["claimed_epsilon"] == 3 and mine["epsilon"]["server"] <= 3


def test_table_1_is_of_a_fixed_number_of_local_steps(tmp_path: Path) -> None:
    config = write(tmp_path, {"algorithm": {"name": "scaffnew", "local_steps": None, "p": 0.3}})
    with pytest.raises(ConfigError, match="one fixed number of local steps"):
        plan(config, "noble2022", "--epsilon", 3)


def test_table_1_runs(tmp_path: Path) -> None:
    config = write(tmp_path, {"privacy": {"noise_multiplier": 6.0}, "silo_rate": 0.5})
    answer = plan(config, "noble2022", "--epsilon", 5)
    told = printed(config, "noble2022", "--epsilon", 5)
    assert NOBLE_THIRD_PARTY_UNSOUND[:50] in told
    assert "privacy.epsilon=null" in told and "privacy.epsilon=null sets no budget" in told
    for row in answer["proven"]:
        runs_as_planned(config, printed(config, "noble2022", "--epsilon", 5), row["name"], answer)


# Last rounds of Chang et al.


def test_last_rounds(tmp_path: Path) -> None:
    """Their functions' rounds; the proven ones spend what the budget is, and one more would pass it."""
    decay = ["--beta", 0.99, "--threshold", 10]
    config = write(tmp_path, {"rounds": 60, "privacy": {"noise_multiplier": 6.0}})
    answer = plan(config, "chang2022", *decay)
    rows = {row["scheme"]: row for row in answer["rows"]}
    for scheme in (0, 1, 2):
        assert rows[scheme]["last round"] == last_round(scheme, 0.99, 10, 2, 60)
    budget = values(answer)["epsilon"]

    def exact(scheme: int, rounds: int) -> float:
        """Without a grid: every step's own multiplier."""
        steps = []
        for r in range(1, rounds + 1):
            later = max(0, r - 10)
            powers = [later, later] if scheme == 1 else [2 * (later - 1), 2 * later - 1] if later else [0, 0]
            for power in powers if scheme else [0, 0]:
                release = SampledGaussian(
                    noise_multiplier=6.0 * 0.99 ** (power / 2),
                    sampler="fixed",
                    rate=0.5,
                    neighbouring="replace_one",
                    unit="record",
                )
                steps.append(Term(release=release, count=1, rounds=1))
        return PLD().epsilon(steps, 1e-5)

    assert budget == pytest.approx(exact(0, 60), rel=1e-3)
    for scheme in (1, 2):
        last = rows[scheme]["last round, proven"]
        assert 10 < last < 60
        assert exact(scheme, last) <= budget * (1 + 1e-4) and exact(scheme, last + 2) > budget
    first = answer["proven"][0]
    assert first["rounds"] == 60 and first["epsilon"]["server"] == pytest.approx(budget)


@pytest.mark.parametrize(
    ("scheme", "powers"),
    [(0, [0] * 12), (1, [0] * 6 + [1] * 3 + [2] * 3), (2, [0] * 6 + [0, 1, 2] + [3, 4, 5])],
)
def test_noise_of_the_schemes_is_rounded_down_by_one_percent_at_most(scheme: Any, powers: list[int]) -> None:
    """4 rounds of 3 steps, R_th = 2: sigma beta^(power / 2), the powers of eqs. 6 and 7."""
    release = SampledGaussian(
        noise_multiplier=6.0, sampler="fixed", rate=0.5, neighbouring="replace_one", unit="record"
    )
    found = [
        term.release.noise_multiplier
        for term in terms(scheme, 4, release, beta=0.9, threshold=2, tau=3)
        for _ in range(term.count * term.rounds)
    ]
    for used, power in zip(sorted(found, reverse=True), powers, strict=True):
        assert used * (1 - 1e-9) <= 6.0 * 0.9 ** (power / 2) < used * 1.01 * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "beta", "rounds"), [(scheme, fits, rounds) for scheme, _, rounds, fits in DECAYS])
def test_the_papers_last_rounds(tmp_path: Path, scheme: int, beta: float, rounds: int) -> None:
    """[C] section IV: R_th = 200, tau = 50, 600 rounds; of the betas that give what they print."""
    changes = {"rounds": 600, "algorithm": {"local_steps": 50}, "privacy": {"noise_multiplier": 100.0}}
    answer = plan(write(tmp_path, changes), "chang2022", "--beta", beta, "--threshold", 200)
    assert answer["rows"][scheme]["last round"] == rounds


def test_every_scheme_runs(tmp_path: Path) -> None:
    """Beta and threshold from the file; the run of a scheme costs no more than the budget."""
    schedule = {"name": "geometric", "beta": 0.98, "threshold": 3, "by": "step"}
    config = write(tmp_path, {"rounds": 9, "privacy": {"noise_multiplier": 6.0, "schedule": schedule}})
    answer = plan(config, "chang2022")
    assert values(answer, "constants")["beta"] == 0.98 and values(answer, "constants")["threshold"] == 3
    assert answer == {**plan(config, "chang2022", "--beta", 0.98, "--threshold", 3), "constants": answer["constants"]}
    assert len(answer["proven"]) == 3
    for row in answer["proven"]:
        runs_as_planned(config, printed(config, "chang2022"), row["name"], answer)
        assert row["epsilon"]["server"] <= values(answer)["epsilon"]


def test_a_budget_instead_of_rounds(tmp_path: Path) -> None:
    decay = ["--beta", 0.99, "--threshold", 10]
    config = write(tmp_path, {"rounds": None, "privacy": {"noise_multiplier": 6.0, "epsilon": 9.0}})
    answer = plan(config, "chang2022", *decay, "--epsilon", 4)
    found = values(answer)
    assert found["epsilon"] == 4 and found["budget"] == answer["proven"][0]["rounds"]
    assert answer["proven"][0]["epsilon"]["server"] <= 4
    runs_as_planned(config, printed(config, "chang2022", *decay, "--epsilon", 4), answer["proven"][0]["name"], answer)


# Schedules of Gao et al.


def gao(folder: Path, algorithm: dict[str, Any], **changes: Any) -> Path:
    whole = {"local_steps": None, "local_lr": None, **algorithm}
    privacy = {"sampler": "full", "record_rate": None, "noise_multiplier": None, "epsilon": 6.0}
    return write(folder, {**BINARY, "l2": 0.0, "algorithm": whole, "privacy": privacy, "rounds": 9, **changes})


def test_theorem_c1(tmp_path: Path) -> None:
    """Its formulas at n = 40, M = N = 4, d = 5, L = 1, D = 5, beta = 1/2; the phases of the configuration give way."""
    path = gao(tmp_path, {"name": "localized_mb_sgd", "lr": 1.0, "phases": 2, "diameter": 7.0})
    answer = plan(path, "gao2024", "--distance", 5)
    known = {"L": 1.0, "D": 5.0, "n": 40, "M": 4, "d": 5, "epsilon": 6.0, "delta": 1e-5}
    found = values(answer)
    lam = theory.regularisation(**known)
    assert answer["theorem"] == "Theorem C.1 of Gao et al. 2024"
    assert (found["tau"], found["p"]) == (5, 3) and found["lambda"] == pytest.approx(lam, rel=1e-5)
    assert found["risk"] == pytest.approx(5 / 2 * (1 / math.sqrt(40) + math.sqrt(5 * math.log(1e5)) / 240), rel=1e-5)
    R = []
    for i, n_i in enumerate((20, 10, 5, 2, 1), start=1):
        lambda_i = lam * 8 ** (i - 1)
        R.append(
            theory.smooth_rounds(
                beta=0.5,
                lambda_i=lambda_i,
                gap=min(1 / (2 * lambda_i), 5.0),
                L=1.0,
                n_i=n_i,
                N=4,
                M=4,
                K_i=n_i,
                d=5,
                epsilon=6.0,
                delta=1e-5,
            )
        )
    rounds: dict[int, int] = {}
    for row in answer["rows"]:
        rounds[row["phase"]] = rounds.get(row["phase"], 0) + row["rounds"]
    assert list(rounds.values()) == R and found["R"] == sum(R)
    assert answer["rows"][0]["lambda_i"] == pytest.approx(lam, rel=1e-5)
    assert answer["rows"][0]["D_i"] == pytest.approx(2 / lam, rel=1e-5)
    assert any("1.414 long" in why for why in answer["fails"])
    clip = plan(path, "gao2024", "--distance", 5, "--set", "privacy.clip_norm=1.5", "--lipschitz", 1.415)
    assert not clip["fails"], "every condition that can be checked is met"
    assert values(clip, "constants")["L"] == 1.415


def test_the_theorems_noise_and_what_is_proven_of_it(tmp_path: Path) -> None:
    answer = plan(gao(tmp_path, {"name": "localized_subgradient", "diameter": 5.0}, loss="hinge"), "gao2024")
    assert answer["theorem"] == "Theorem G.1 of Gao et al. 2024"
    row, rounds = proven(answer, "noise of the theorem"), [phase["rounds"] for phase in answer["rows"]]
    n_i = [20, 10, 5, 2, 1]
    assert rounds == [theory.nonsmooth_rounds(n_i=n, M=4, d=5, epsilon=6.0) for n in n_i]
    epsilons = []
    for n, R, z in zip(n_i, rounds, row["noise_multiplier"], strict=True):
        std = theory.noise_std(L=1.0, n_i=n, R_i=R, epsilon=6.0, delta=1e-5)
        assert z == pytest.approx(std / (2 / n), rel=1e-5)
        release = SampledGaussian(
            noise_multiplier=z, sampler="full", rate=1.0, neighbouring="replace_one", unit="record"
        )
        epsilons.append(Gaussian().epsilon([Term(release=release, count=1, rounds=R)], 1e-5))
    assert row["epsilon"]["server"] == pytest.approx(max(epsilons), rel=1e-3)
    assert row["claimed_epsilon"] == 6 and not row["command"]


ALGORITHMS: dict[str, dict[str, Any]] = {
    "localized_mb_sgd": {"lr": 1.0, "diameter": 5.0, "passes": "one"},
    "localized_subgradient": {"diameter": 1.0, "eta": 1.0},
    "localized_convolution": {"diameter": 5.0, "smoothing_radius": 1.0},
    "localized_nesterov": {"diameter": 5.0, "envelope": 1.0},
    "multistage_mb_sgd": {"smoothness": 0.6, "strong_convexity": 0.1},
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_schedules_run_as_planned(tmp_path: Path, name: str) -> None:
    """From batches that are too small for the last phases, too."""
    loss = "auto" if name in ("localized_mb_sgd", "multistage_mb_sgd") else "hinge"
    l2 = 0.1 if name == "multistage_mb_sgd" else 0.0
    path = gao(tmp_path, {"name": name, **ALGORITHMS[name]}, loss=loss, l2=l2)
    settings = ["--set", "privacy.sampler=fixed", "--set", "privacy.record_rate=0.2"]
    answer = plan(path, "gao2024", *settings)
    result = runs_as_planned(path, printed(path, "gao2024", *settings), "proven noise", answer)
    assert result["rounds"] == sum(row["rounds"] for row in answer["rows"]) == values(answer)["R"]
    phases = [note for note in result["notes"] if "where it takes" in note or "where it has" in note]
    assert not phases, "the run's own notes find no departure from the theorem's schedule"


# Variants, and what is refused


def test_variants_of_a_paper(tmp_path: Path) -> None:
    variants = {"a": {}, "b": {"l2": 0.1}, "open": {"privacy": {"noise_multiplier": 0, "epsilon": None}}}
    config = write(tmp_path, {**SCAFFNEW, "variants": variants})
    found = answers(config, "scaffnew")
    assert set(found) == {"a", "b", "open"} and "epsilon" in found["open"]["refused"]
    assert values(found["b"])["p"] > values(found["a"])["p"]
    command = proven(found["b"], "proven noise")["command"]
    assert command[:5] == ["dpfl", "run", str(config), "--variant", "b"]
    result = dpfl(*command[1:], "--out", tmp_path / "runs", "--json").json
    assert result["noise_multiplier"] == proven(found["b"], "proven noise")["noise_multiplier"]
    assert plan(config, "scaffnew", "--variant", "b") == found["b"]
    assert "open: no plan. --epsilon is missing" in printed(config, "scaffnew")


# Theorems 3 and 4 of Li, Wang, Wu 2025

LI: dict[str, Any] = {
    **BINARY,
    "rounds": 6,
    "silo_weights": "records",
    "algorithm": {"name": "fedavg_sync", "local_steps": 3, "gradient_clip": 1.5, "local_lr": 0.1},
    "privacy": {"unit": "silo", "clip_norm": 1.5, "batch_size": 2, "record_rate": None, "epsilon": 0.5, "delta": 1e-4},
}


def test_li_prescribes_the_steps_with_the_least_bound_and_runs_them(tmp_path: Path) -> None:
    path = write(tmp_path, LI)
    answer = plan(path, "li2025")
    found, constants = values(answer), values(answer, "constants")
    assert (constants["mu"], constants["L"], constants["G"]) == (0.02, 0.52, 1.5)
    problem = FedAvgSyncProblem(
        mu=0.02,
        L=0.52,
        G=1.5,
        variance=4 / 16 * 2,
        heterogeneity=math.log(2),
        distance=math.sqrt(2 * math.log(2) / 0.02),
        num_silos=4,
        participants=4,
        num_records=160,
        batch_size=2,
        dimension=5,
        epsilon=0.5,
        delta=1e-4,
    )
    assert found["Q"] == problem.local_steps(6, 10) == 1
    assert found["bound"] == pytest.approx(problem.bound(1, 6), rel=1e-5) and found["alpha"] == 208
    rows = {row["Q"]: row for row in answer["rows"]}
    assert list(rows) == [1, 2, 5, 10]
    scale = noise_scale(local_steps=5, batch_size=2, num_records=40, epsilon=0.5, delta=1e-4)
    assert rows[5]["noise multiplier, eq. 20"] == pytest.approx(scale / 10, rel=1e-5)
    assert rows[5]["bound"] == pytest.approx(problem.bound(5, 6), rel=1e-5)
    assert proven(answer, "noise of eq. 20")["epsilon"]["server"] > rows[1]["epsilon of a round, proven"] > 0.5
    assert proven(answer, "the run's epsilon, proven")["epsilon"]["server"] <= 0.5
    assert answer["fails"] == []
    runs_as_planned(path, printed(path, "li2025"), "noise of eq. 20", answer)


def test_li_says_which_theorem_and_what_does_not_fit(tmp_path: Path) -> None:
    drawn = plan(write(tmp_path, LI), "li2025", "--set", "silo_rate=0.5", "--set", "silo_weights=equal")
    assert drawn["theorem"] == "Theorem 4 of Li, Wang, Wu 2025" and "p_k = n_k / n" in " ".join(drawn["fails"])
    clipped = plan(write(tmp_path, LI), "li2025", "--set", "algorithm.gradient_clip=1")
    assert clipped["theorem"] == "Theorem 3 of Li, Wang, Wu 2025" and "clipped to G = 1" in " ".join(clipped["fails"])
    with pytest.raises(ConfigError, match="batch_size=21"):
        plan(write(tmp_path, LI), "li2025", "--set", "privacy.batch_size=21")


@pytest.mark.parametrize(
    ("paper", "words", "part"),
    [
        ("scaffnew", ["--psi0", "-1"], "--psi0=-1.0 must be positive"),
        ("scaffnew", ["--strong-convexity", "9"], "--strong-convexity=9.0 must be at most L"),
        ("scaffnew", ["--set", "l2=0"], "l2=0.0 must be above 0"),
        ("scaffnew", ["--set", "silo_rate=0.5"], "algorithm=scaffnew does not go with silo_rate=0.5"),
        ("scaffnew", ["--set", "data.preprocess=[]"], "mu is known without looking at records for"),
        ("scaffnew", ["--set", "privacy.clip_norm=inf"], "clip_norm=inf"),
        ("gao2024", [], "no theorem of Gao et al. 2024 has a schedule for it"),
        ("gao2024", ["--distance", "0"], "--distance=0.0 must be positive"),
        ("gao2024", ["--set", "algorithm={name: localized_subgradient}"], "--distance is missing"),
        ("li2025", [], "the paper's is fedavg_sync"),
        ("noble2022", [], "privacy.noise_multiplier must be given"),
        ("noble2022", ["--set", "privacy.noise_multiplier=4"], "Table 1 is of unit: record"),
        ("chang2022", ["--beta", "0.9"], "--threshold is missing"),
        ("chang2022", ["--beta", "1.1", "--threshold", "2"], "--beta=1.1 must be in (0, 1]"),
        ("chang2022", ["--beta", "0.9", "--threshold", "-2"], "--threshold=-2 must be at least 0"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, paper: str, words: list[str], part: str) -> None:
    silo = {"unit": "silo", "sampler": "full", "record_rate": None}
    chang = {"noise_multiplier": 2.0, "epsilon": 30.0, **silo} if paper == "chang2022" else SILO
    with pytest.raises(ConfigError, match=re.escape(part)):
        main([paper, str(write(tmp_path, {**SCAFFNEW, "privacy": chang})), *words])


@pytest.mark.parametrize(
    ("algorithm", "part"),
    [
        ({"name": "scaffnew", "p": 0}, "algorithm.p=0.0 must be in (0, 1]"),
        ({"name": "scaffnew", "p": 1.5}, "algorithm.p=1.5 must be in (0, 1]"),
        ({"name": "localized_mb_sgd", "lr": 1, "phases": 9}, "smallest silo has 40 records"),
        ({"name": "localized_mb_sgd", "lr": 1, "phase_rounds": [6, 0]}, "no phase is empty"),
        ({"name": "localized_mb_sgd", "lr": 1, "phases": 7}, "be at most the 6 rounds: no phase is empty"),
    ],
)
def test_impossible_schedules_are_refused_with_what_is_possible(
    tmp_path: Path, algorithm: dict[str, Any], part: str
) -> None:
    """p = 0, more phases than records have halves (tau above log2 n), an empty phase."""
    whole = {"local_steps": None, "local_lr": 1.0 if algorithm["name"] == "scaffnew" else None, **algorithm}
    rounds = 9 if algorithm.get("phases") == 9 else 6
    diameter = {} if algorithm["name"] == "scaffnew" else {"diameter": 5.0, "regularisation": 0.1}
    config = write(tmp_path, {**SCAFFNEW, "rounds": rounds, "algorithm": {**whole, **diameter}})
    one_message(dpfl("plan", config, "--set", "privacy.unit=record"), part)
