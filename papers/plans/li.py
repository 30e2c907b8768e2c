"""Theorems 3 and 4 of Li, Wang, Wu 2025 ([L]): steps, the best number of them in a round, and the noise of eq. 20."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from dpfl_plugin.algorithms.fedavg_sync import FedAvgSync
from papers.plans.bounds import FedAvgSyncProblem, public_lipschitz
from dpfl_plugin.core.exact import floor_share
from dpfl_plugin.errors import ArgumentError, ConfigError
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.events import SampledGaussian, Term
from papers.plans.li_noise import noise_scale
from dpfl_plugin.runs.plugins import build_plugin
from papers.plans.base import Case, Constant, Prescription, Run, Value, linear, number
from papers.plans.scaffnew import convexity

SHOWN: Final = (1, 2, 5, 10, 20, 50)  # numbers of local steps, beside the best one
ONE_ROUND: Final = (
    "epsilon is what eq. 20 claims of one round, without a proof that holds for batches drawn afresh at every step. Of "
    "a whole run Theorem 2 has a constant that is not stated, so that the paper claims no number of it."
)


def prescribe(case: Case) -> Prescription:
    """The Q whose bound is least after the rounds of the configuration, the steps of Theorem 3, and eq. 20's noise.

    Raises:
        ConfigError: a constant is not known, the algorithm is another, or batches are too large for eq. 20.
    """
    algorithm = build_plugin("algorithms", case.config.algorithm, where="algorithm")
    if not isinstance(algorithm, FedAvgSync):
        raise ConfigError(f"algorithm.name={case.config.algorithm.name!r}: the paper's is fedavg_sync.")
    rounds = case.config.rounds
    if rounds is None:
        raise ArgumentError("rounds is missing: the best number of local steps is that of a number of rounds.")
    problem, constants = _problem(case, algorithm)
    n_k = min(case.num_records)
    most = n_k // (2 * problem.batch_size)
    if most < 1:
        raise ConfigError(
            f"privacy.batch_size={problem.batch_size} is above half of the {n_k} records of the smallest silo: Theorem "
            "1 of the paper amplifies nothing there. Use smaller batches."
        )
    Q = problem.local_steps(rounds, most)
    return Prescription(
        theorem=f"Theorem {3 if problem.participants == problem.num_silos else 4} of Li, Wang, Wu 2025",
        values=(
            Value("Q", Q, f"local steps whose bound is least after {rounds} rounds, of 1 to {most} (Q b / n_k <= 1/2)"),
            Value("alpha", number(problem.alpha(Q)), "of the steps 2 / (mu (alpha + t)), max(8 L / mu, Q)"),
            Value("bound", number(problem.bound(Q, rounds)), f"E F - F* is at most that after {rounds * Q} iterations"),
        ),
        rows=[_row(case, problem, q, rounds) for q in sorted({*SHOWN, Q}) if q <= most],
        constants=constants,
        fails=_fails(case, problem),
        notes=(ONE_ROUND,),
        runs=_runs(case, problem, Q, rounds),
    )


def _problem(case: Case, algorithm: FedAvgSync) -> tuple[FedAvgSyncProblem, Sequence[Constant]]:
    config, setting, counts, known = case.config, case.setting, case.num_records, linear(case)
    mu, L = convexity(case, "Theorem 3")
    if known is None:
        raise ConfigError(
            f"model: how far {config.model.name or config.model.module} begins from its optimum is not known without "
            "records. Use logistic or softmax with their own loss, and unit_norm as the last step of data.preprocess."
        )
    G, n = algorithm.gradient_clip, sum(counts)
    if not math.isfinite(G):
        raise ConfigError("algorithm.gradient_clip must be finite: the noise of eq. 20 grows with it.")
    longest = public_lipschitz(1.0, model=known.model, bias=known.bias)
    start = math.log(known.num_classes)  # F(0), which F* and every F_k* are below, and they are at least 0
    problem = FedAvgSyncProblem(
        mu=mu.value,
        L=L.value,
        G=G,
        variance=sum((n_k / n) ** 2 for n_k in counts) * longest**2,
        heterogeneity=start,
        distance=math.sqrt(2 * start / mu.value),
        num_silos=len(counts),
        participants=setting.num_participants,
        num_records=n,
        batch_size=setting.batch_size or floor_share(setting.record_rate or 1.0, min(counts)),
        dimension=case.dimension,
        epsilon=case.needed_epsilon(),
        delta=config.privacy.delta,
        with_replacement=algorithm.silo_sampling == "with_replacement",
    )
    classes = f"ln {known.num_classes}"
    return problem, (
        mu,
        L,
        Constant("G", G, "algorithm.gradient_clip"),
        Constant("phi", longest, "a record's gradient is at most so long, and its deviation at most that"),
        Constant("Gamma", start, f"at most F(0) = {classes}: known without a record"),
        Constant("|w_0 - w*|", problem.distance, f"at most sqrt(2 F(0) / mu), F(0) = {classes}"),
        Constant("b", problem.batch_size, "records of a batch"),
        Constant("N", problem.num_silos, f"silos, of which K = {problem.participants} take part in a round"),
        Constant("n", n, f"training records of all silos; of the smallest {min(counts)}"),
        Constant("d", problem.dimension, "parameters of the model"),
        Constant("epsilon", problem.epsilon, "claimed of a round"),
    )


def _multiplier(case: Case, problem: FedAvgSyncProblem, Q: int) -> float:
    """Eq. 20's noise on the smallest silo, which has the most, relative to the proven sensitivity 2 Q G eta."""
    scale = noise_scale(
        local_steps=Q,
        batch_size=problem.batch_size,
        num_records=min(case.num_records),
        epsilon=problem.epsilon,
        delta=problem.delta,
    )
    return scale / (2 * Q)


def _row(case: Case, problem: FedAvgSyncProblem, Q: int, rounds: int) -> dict[str, Any]:
    """The bound of a number of local steps, and what a round with the noise of eq. 20 costs, proven."""
    A, B, H = problem.terms(Q)
    multiplier = _multiplier(case, problem, Q)
    accountant: Accountant = build_plugin("accountants", case.config.privacy.accountant, where="privacy.accountant")
    release = SampledGaussian(
        noise_multiplier=multiplier, sampler="full", rate=1.0, neighbouring="replace_one", unit="silo"
    )
    return {
        "Q": Q,
        "A": number(A),
        "B (noise)": number(B),
        "H": number(H),
        "bound": number(problem.bound(Q, rounds)),
        "noise multiplier, eq. 20": number(multiplier),
        "epsilon of a round, proven": accountant.epsilon([Term(release=release, count=1, rounds=1)], problem.delta),
    }


def _runs(case: Case, problem: FedAvgSyncProblem, Q: int, rounds: int) -> list[Run]:
    settings = (
        f"algorithm.local_steps={Q}",
        "algorithm.schedule=strongly_convex",
        "algorithm.local_lr=null",
        f"algorithm.mu={problem.mu!r}",
        f"algorithm.alpha={number(problem.alpha(Q))!r}",
        "privacy.unit=silo",
        f"privacy.clip_norm={problem.G!r}",
        f"rounds={rounds}",
    )
    theirs = (*settings, "privacy.epsilon=null", f"privacy.noise_multiplier={number(_multiplier(case, problem, Q))}")
    ours = (*settings, f"privacy.epsilon={problem.epsilon}", "privacy.noise_multiplier=null")
    return [Run(name="noise of eq. 20", settings=theirs), Run(name="the run's epsilon, proven", settings=ours)]


def _fails(case: Case, problem: FedAvgSyncProblem) -> list[str]:
    known, config = linear(case), case.config
    assert known is not None
    longest = public_lipschitz(1.0, model=known.model, bias=known.bias)
    fails = []
    if longest > problem.G:
        fails.append(
            f"a gradient may be {longest:.4g} long, and l2 adds to it, and is clipped to G = {problem.G:g}: "
            "Assumption 4 has it shorter by itself"
        )
    if config.silo_weights != "records":
        fails.append("it has weights p_k = n_k / n (--set silo_weights=records)")
    return fails
