"""Theorems 3 and 4 of Li, Wang, Wu 2025 ([L]): steps, the best number of them in a round, and the noise of eq. 20.

[L] is "Convergence Analysis for Differentially Private Federated Averaging in Heterogeneous Settings", Mathematics
2025, 13(3), 497. The noise is for comparison only, no ledger uses it: its Lemma 3 treats a round of Q batches of b
records, drawn afresh for every local step, as one sample of Q b records without replacement. It gives no proof of that;
its Lemma 1 (Dwork and Roth 2014) is for epsilon below 1, which the epsilon before amplification often passes, as it
does in [L] sec. 4. Over a run its Theorem 2 has a constant that is not stated, so that no number follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import dpfl_plugin as dpfl
from dpfl_plugin.core.exact import floor_share
from dpfl_plugin.errors import ConfigError, require
from papers.plans.base import Case, Constant, Plan, Proof, Value, convexity, linear, number

SHOWN: Final = (1, 2, 5, 10, 20, 50)  # numbers of local steps, beside the best one
ONE_ROUND: Final = (
    "epsilon is what eq. 20 claims of one round, without a proof that holds for batches drawn afresh at every step. Of "
    "a whole run Theorem 2 has a constant that is not stated, so that the paper claims no number of it."
)


def noise_scale(*, local_steps: int, batch_size: int, num_records: int, epsilon: float, delta: float) -> float:
    """sigma_k / (G eta): the standard deviation of the noise on silo k's model that [L] eq. 20 wants for a round.

    sqrt(2 ln(1.25 / delta')) (4 Q G eta) / epsilon', where epsilon' = epsilon / (2 q), delta' = delta / q, q = Q b / n.
    """
    q = _share(local_steps, batch_size, num_records)
    return 2 * q / epsilon * 4 * local_steps * _quantile(q, delta)


def claimed_epsilon(
    noise_multiplier: float, *, local_steps: int, batch_size: int, num_records: int, delta: float
) -> float:
    """The epsilon of a round for which [L] eq. 20 wants just the noise of ``noise_multiplier``.

    That is relative to the proven sensitivity 2 Q G eta (see `dpfl_plugin.algorithms.fedavg_sync`), half of [L]'s.
    """
    q = _share(local_steps, batch_size, num_records)
    return 2 * q * 2 * _quantile(q, delta) / noise_multiplier


def _share(local_steps: int, batch_size: int, num_records: int) -> float:
    q = local_steps * batch_size / num_records
    require(0 < q <= 0.5, "Q b / n", q, "be in (0, 1/2], where [L] Theorem 1 promises an amplification")
    return q


def _quantile(q: float, delta: float) -> float:
    require(0 < delta < q, "delta", delta, f"be in (0, Q b / n = {q:g})")
    return math.sqrt(2 * math.log(1.25 * q / delta))


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvgSyncProblem:
    """What the bound of DP-FedAvg with noise at synchronisation depends on ([L] Theorems 3 and 4).

    Attributes:
        mu, L: every silo's loss is mu-strongly convex and L-smooth; 0 < mu <= L.
        G: no batch's gradient is longer.
        variance: sum_k p_k^2 phi_k^2, phi_k^2 being that of a record's gradient at silo k.
        heterogeneity: Gamma = F* - sum_k p_k F_k*, at least 0.
        distance: ||w_0 - w*||.
        num_silos: N; participants: K, of a round, drawn without or with replacement.
        num_records: n, of all silos; batch_size: b; dimension: d.
        epsilon, delta: what the noise of eq. 20 is said to give a round; inf: there is no noise.
    """

    mu: float
    L: float
    G: float
    variance: float
    heterogeneity: float
    distance: float
    num_silos: int
    participants: int
    num_records: int
    batch_size: int
    dimension: int
    epsilon: float
    delta: float
    with_replacement: bool = False

    def alpha(self, local_steps: int) -> float:
        """max(8 L / mu, Q), of the steps 2 / (mu (alpha + t)). [L] Theorem 3."""
        return max(8 * self.L / self.mu, local_steps)

    def terms(self, local_steps: int) -> tuple[float, float, float]:
        """A, B and H of [L] Theorems 3 and 4: what batches and drift, the noise, and the drawing of silos contribute.

        Without replacement H is (N - K) / (N - 1) times 4 Q^2 G^2 / K, with replacement that itself; if all silos take
        part it is 0.
        """
        Q, b, G, n = local_steps, self.batch_size, self.G, self.num_records
        A = self.variance / b + 8 * (Q - 1) ** 2 * G**2 + 6 * self.L * self.heterogeneity
        logarithms = math.log(n) * math.log(1.25**2 * Q**2 * b**2 / (n * self.delta**2))
        noise = 8 * self.dimension * Q**4 * b**2 * G**2 * logarithms / (n * self.L**2 * self.epsilon**2)
        N, K = self.num_silos, self.participants
        drawn = 4 / K * Q**2 * G**2
        left_out = 1.0 if self.with_replacement else (N - K) / max(1, N - 1)
        return A, noise * (2 * (Q - 1) ** 2 + 1), left_out * drawn

    def bound(self, local_steps: int, rounds: int) -> float:
        """What E F(w_T) - F* stays below after T = rounds * Q iterations. [L] Theorem 3, eq. 24; Theorem 4."""
        start = 2 * self.L * self.distance**2
        rate = 2 * self.L / self.mu / (rounds * local_steps + self.alpha(local_steps))
        return rate * (sum(self.terms(local_steps)) / self.mu + start)

    def local_steps(self, rounds: int, most: int) -> int:
        """The Q of 1..most with the least bound after so many rounds. [L] Remarks 3 and 4."""
        return min(range(1, most + 1), key=lambda Q: self.bound(Q, rounds))


def plan(case: Case) -> Plan:
    """Plan the Q whose bound is least after the configuration's rounds, the steps of Theorem 3, and eq. 20's noise.

    Raises:
        ConfigError: a constant is not known, the algorithm is another, or batches are too large for eq. 20.
    """
    if case.config.algorithm.name != "fedavg_sync":
        raise ConfigError(f"algorithm.name={case.config.algorithm.name!r}: the paper's is fedavg_sync.")
    algorithm = dpfl.algorithms.FedAvgSync(**case.config.algorithm.options)
    rounds = case.config.rounds
    if rounds is None:
        raise ConfigError("rounds is missing: the best number of local steps is that of a number of rounds.")
    problem, constants = _problem(case, algorithm)
    n_k = min(case.num_records)
    most = n_k // (2 * problem.batch_size)
    if most < 1:
        raise ConfigError(
            f"privacy.batch_size={problem.batch_size} is above half of the {n_k} records of the smallest silo: Theorem "
            "1 of the paper amplifies nothing there. Use smaller batches."
        )
    Q = problem.local_steps(rounds, most)
    return Plan(
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
        proofs=_proofs(case, problem, Q, rounds),
    )


def _problem(case: Case, algorithm: dpfl.algorithms.FedAvgSync) -> tuple[FedAvgSyncProblem, Sequence[Constant]]:
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
    longest = known.lipschitz
    start = known.initial_loss  # F(0), which F* and every F_k* are below, and they are at least 0
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


def _row(case: Case, problem: FedAvgSyncProblem, Q: int, rounds: int) -> Mapping[str, Any]:
    """The bound of a number of local steps, and what a round with the noise of eq. 20 costs, proven."""
    A, B, H = problem.terms(Q)
    multiplier = _multiplier(case, problem, Q)
    spent = dpfl.epsilon(noise_multiplier=multiplier, steps=1, delta=problem.delta, sampler="full")
    return {
        "Q": Q,
        "A": number(A),
        "B (noise)": number(B),
        "H": number(H),
        "bound": number(problem.bound(Q, rounds)),
        "noise multiplier, eq. 20": number(multiplier),
        "epsilon of a round, proven": spent.epsilon,
    }


def _proofs(case: Case, problem: FedAvgSyncProblem, Q: int, rounds: int) -> list[Proof]:
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
    return [case.proven("noise of eq. 20", theirs), case.proven("the run's epsilon, proven", ours)]


def _fails(case: Case, problem: FedAvgSyncProblem) -> list[str]:
    known, config = linear(case), case.config
    assert known is not None
    longest = known.lipschitz
    fails = []
    if longest > problem.G:
        fails.append(
            f"a gradient may be {longest:.4g} long, and l2 adds to it, and is clipped to G = {problem.G:g}: "
            "Assumption 4 has it shorter by itself"
        )
    if config.silo_weights != "records":
        fails.append("it has weights p_k = n_k / n (--set silo_weights=records)")
    return fails
