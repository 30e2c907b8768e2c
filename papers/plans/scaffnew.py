"""Corollary 1 of "Balancing Privacy and Performance for Private Federated Learning Algorithms" ([S])."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dpfl_plugin.errors import require
from papers.plans.base import Case, Constant, Plan, Value, convexity, linear, number

NOT_CHECKED = (
    "Not checked, since it depends on the records or on a constant that the paper does not give: that no update "
    "reaches clip_norm, and epsilon <= u p T (Lemma 1). v of Lemma 1 is taken as that of zCDP."
)


# Of [S] Lemma 1, which says only that it exists. R releases of sensitivity 2C with noise of variance s^2 have
# rho = R (2C)^2 / (2 s^2) in zCDP, hence epsilon near 2 sqrt(rho ln(1/delta)): s^2 = 8 C^2 R ln(1/delta) / epsilon^2.
REPLACE_A_SILO = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaffNewProblem:
    """What DP-ScaffNew's utility bound depends on ([S] Theorem 1).

    Attributes:
        mu, L: every silo's loss is mu-strongly convex and L-smooth; 0 < mu <= L.
        psi_0: sum_i ||x_0 - x*||^2 + (eta / p)^2 sum_i ||h_i - grad f_i(x*)||^2; a guess of it, as x* is not known.
        clip_norm: C, which no update may reach.
        num_silos: N; dimension: d.
        epsilon, delta: of all releases together.
        v: the constant of Lemma 1.
    """

    mu: float
    L: float
    psi_0: float
    clip_norm: float
    num_silos: int
    dimension: int
    epsilon: float
    delta: float
    v: float = REPLACE_A_SILO

    @property
    def local_lr(self) -> float:
        """eta* = 1 / L. [S] Corollary 1."""
        return 1 / self.L

    @property
    def p(self) -> float:
        """p* = sqrt(mu / L). [S] Corollary 1; 1 / p* local steps a round in the mean."""
        return math.sqrt(self.mu / self.L)

    @property
    def iterations(self) -> float:
        """T*, with eta* and p*; at least 1. [S] Corollary 1; p* T* rounds in the mean."""
        if self.mu == self.L:
            return 1.0
        decay = -math.log1p(-self.mu / self.L)
        return max(1.0, math.log(self.psi_0 * decay / self._noise) / decay)

    def bound(self, local_lr: float, p: float, iterations: float) -> float:
        """What E psi_T stays below, for local_lr in (0, 1/L] and p in (0, 1]. [S] eq. 2.

        Raises:
            ConfigError: local_lr or p is outside of what the theorem covers.
        """
        require(0 < local_lr <= 1 / self.L, "local_lr", local_lr, f"be in (0, 1/L = {1 / self.L:g}]")
        require(0 < p <= 1, "p", p, "be in (0, 1]")
        theta = max(1 - self.mu * local_lr, 1 - p**2)
        return float(theta**iterations * self.psi_0 + p**2 / (1 - theta) * self._noise * iterations)

    @property
    def _noise(self) -> float:
        """v C^2 N d ln(1/delta) / eps^2."""
        size = self.v * self.clip_norm**2 * self.num_silos * self.dimension
        return size * math.log(1 / self.delta) / self.epsilon**2


def psi_0_bound(initial_loss: float, mu: float, num_silos: int) -> float:
    """2 N F(x_0) / mu, which psi_0 never exceeds with h_0 = 0, eta = 1/L and p = sqrt(mu/L): no data needed.

    For losses f_i >= 0 that are mu-strongly convex and L-smooth: ||x_0 - x*||^2 <= 2 (F(x_0) - F*) / mu, and
    ||grad f_i(x*)||^2 <= 2 L f_i(x*), whose sum over silos is at most 2 L N F*, times (eta/p)^2 = 1 / (L mu).

    Args:
        initial_loss: F(x_0), with its regulariser; log(number of classes) for a linear model that starts at 0.
    """
    return 2 * num_silos * initial_loss / mu


def plan(case: Case) -> Plan:
    """Plan eta*, p* and T*, with the noise of Lemma 1 and with the least that is proven.

    Raises:
        ConfigError: a constant is not known, or the losses are not strongly convex.
    """
    privacy, epsilon = case.config.privacy, case.needed_epsilon()
    replace_one = privacy.neighbouring != "add_or_remove"
    sensitivity = 2.0 if replace_one else 1.0
    require(privacy.clip_norm < math.inf, "privacy.clip_norm", privacy.clip_norm, "be finite: the noise grows with it")
    mu, L = convexity(case, "Theorem 1")
    psi_0 = _psi_0(case, mu.value)
    problem = ScaffNewProblem(
        mu=mu.value,
        L=L.value,
        psi_0=psi_0.value,
        clip_norm=privacy.clip_norm,
        num_silos=len(case.num_records),
        dimension=case.dimension,
        epsilon=epsilon,
        delta=privacy.delta,
        v=REPLACE_A_SILO * sensitivity**2 / 4,
    )
    local_lr, p, T = number(problem.local_lr, down=True), number(problem.p), problem.iterations
    rounds = max(1, round(p * T))
    lemma_1 = math.sqrt(problem.v * rounds * math.log(1 / privacy.delta)) / (sensitivity * epsilon)
    step = ["algorithm.name=scaffnew", f"algorithm.local_lr={local_lr}", f"algorithm.p={p}"]
    settings = (*step, "algorithm.local_steps=null", f"rounds={rounds}")
    open_ended = (*settings, f"privacy.epsilon={epsilon}", "privacy.noise_multiplier=null")
    paper = (*settings, "privacy.epsilon=null", f"privacy.noise_multiplier={number(lemma_1)}")
    proofs = [case.proven("noise of Lemma 1", paper, epsilon)] if privacy.unit == "silo" else []
    return Plan(
        theorem="Corollary 1 of the paper of DP-ScaffNew",
        values=(
            Value("local_lr", local_lr, "step size eta* = 1/L"),
            Value("p", p, f"probability of communicating after an iteration, sqrt(mu/L): {1 / p:.4g} steps a round"),
            Value("T", number(T), f"iterations, the least of the bound; p T = {p * T:.4g} rounds, run as {rounds}"),
            Value("bound", number(problem.bound(problem.local_lr, problem.p, T)), "E psi_T is at most that (eq. 2)"),
        ),
        constants=(
            mu,
            L,
            psi_0,
            Constant("C", privacy.clip_norm, "privacy.clip_norm"),
            Constant("N", problem.num_silos, "silos of the data"),
            Constant("d", problem.dimension, "parameters of the model"),
        ),
        fails=tuple(_fails(case, T)),
        notes=(NOT_CHECKED,),
        proofs=[*proofs, case.proven("proven noise", open_ended)],
        advised=T > 1,
    )


def _psi_0(case: Case, mu: float) -> Constant:
    known = linear(case)
    if known is None or "psi0" in case.constants:
        why = "psi_0 is known without looking at records for linear models alone; see docs/planning.md."
        return Constant("psi_0", case.needed("psi0", why), "--psi0")
    bound = psi_0_bound(known.initial_loss, mu, len(case.num_records))
    return Constant(
        "psi_0", bound, f"at most 2 N F(x_0) / mu, where F(0) = ln {known.num_classes}: known without a record"
    )


def _fails(case: Case, T: float) -> Iterator[str]:
    config, privacy = case.config, case.config.privacy
    if linear(case) is None:
        yield f"whether the losses of model {config.model.name or config.model.module} are convex is not known"
    if privacy.unit != "silo":
        yield "it has noise on the update, not on gradients (--set privacy.unit=silo)"
    if privacy.sampler != "full":
        yield "it has gradients of all records (--set privacy.sampler=full)"
    if config.silo_weights != "equal":
        yield "it has the plain mean of the silos (--set silo_weights=equal)"
    if T == 1:
        yield "T* is below 1: the bound grows from the first iteration on, so that no training pays at this epsilon"
