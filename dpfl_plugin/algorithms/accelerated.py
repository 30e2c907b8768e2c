"""Accelerated ISRL-DP MB-SGD (AC-SA) and its multi-stage form.

[G] is Gao, Lowy, Zhou and Wright, ICML 2024: Alg. 2, and Alg. 5 in its appendix B; Ghadimi and Lan 2012, 2013.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from dpfl_plugin.algorithms import isrl_theory as theory
from dpfl_plugin.algorithms.base import algorithm
from dpfl_plugin.algorithms.isrl import ENDLESS, ConstraintSet, Facts, OneGradient, Stage, known_rounds, positive
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError, require


@dataclass(frozen=True, slots=True)
class ACSA:
    """[G] Alg. 2, with the steps of Alg. 5, l. 4: alpha_r = 2 / (r + 1), eta_r = 4 v / (r (r + 1))."""

    def start(self, w: Tensor) -> Vectors:
        return {"model": w, "w": w.clone()}  # l. 1; "model" is w^ag

    def query(self, state: Vectors, stage: Stage, r: int) -> Tensor:
        alpha, eta, mu = _steps(stage, r)
        scale = eta + (1 - alpha**2) * mu
        w_ag, w = state["model"], state["w"]
        return (1 - alpha) * (mu + eta) / scale * w_ag + alpha * ((1 - alpha) * mu + eta) / scale * w  # l. 3, w^md

    def step(self, state: Vectors, g: Tensor, stage: Stage, r: int, sets: ConstraintSet) -> Vectors:
        alpha, eta, mu = _steps(stage, r)
        w_md = self.query(state, stage, r)
        # l. 9: its objective is (mu + eta) / 2 ||w - z||^2 and a constant, so that the minimiser on W is W's nearest to
        z = (alpha * mu * w_md + ((1 - alpha) * mu + eta) * state["w"] - alpha * g) / (mu + eta)
        w = sets.project(z)
        return {"w": w, "model": alpha * w + (1 - alpha) * state["model"]}  # l. 10


def _steps(stage: Stage, r: int) -> tuple[float, float, float]:
    return 2 / (r + 1), 4 * stage.rate / (r * (r + 1)), stage.modulus


@algorithm
class AcceleratedMBSGD(OneGradient):
    """Accelerated noisy minibatch SGD (AC-SA). Gao et al. 2024, Alg. 2.

    Attributes:
        smoothness: beta of the mean loss; 1/4 of a record's largest ||(x, 1)||^2 for logistic regression.
        strong_convexity: mu of the mean loss, 0 if it is merely convex.
        v: the scale of the steps, which shrink as it grows; 2 beta if left out.
    """

    smoothness: float
    strong_convexity: float = 0.0
    v: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "smoothness", "v")
        mu = self.strong_convexity
        require(0 <= mu <= self.smoothness, "strong_convexity", mu, f"be in [0, smoothness={self.smoothness}]")

    @property
    def solver(self) -> ACSA:
        return ACSA()

    def stages(self, facts: Facts) -> Sequence[Stage]:
        if self.passes == "one":
            known_rounds(facts, "one pass divides the records among all rounds")
        v = 2 * self.smoothness if self.v is None else self.v
        return [Stage(phase=1, rounds=facts.rounds or ENDLESS, modulus=self.strong_convexity, rate=v)]

    def remarks(self, facts: Facts) -> Iterator[str]:
        if self.v is not None and self.v < 2 * self.smoothness:
            yield f"v={self.v:g} is below 2 beta = {2 * self.smoothness:g}: Gao et al. 2024 have no rate for it."


@algorithm
class MultistageMBSGD(OneGradient):
    """AC-SA begun anew in stages, for strongly convex losses. Gao et al. 2024, Alg. 5.

    Attributes:
        smoothness: beta; strong_convexity: mu, both of the mean loss.
        stage_rounds: R^(k), adding up to ``rounds``; left out: l. 2's, the last stage to the end of the run.
        lipschitz: L; privacy.clip_norm if left out.
        gap: Delta >= F(w_0) - min F; L^2 / (2 mu) if left out, which holds for every L-Lipschitz F.
        variance: V^2, of the noisy mean gradient.
    """

    smoothness: float
    strong_convexity: float
    stage_rounds: tuple[int, ...] | None = None
    lipschitz: float | None = None
    gap: float | None = None
    variance: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "smoothness", "strong_convexity", "lipschitz", "gap")
        mu = self.strong_convexity
        require(mu <= self.smoothness, "strong_convexity", mu, f"be at most smoothness={self.smoothness}")
        require(self.variance >= 0, "variance", self.variance, "be at least 0")
        if self.stage_rounds is not None:
            good = len(self.stage_rounds) > 0 and min(self.stage_rounds) >= 1
            require(good, "stage_rounds", self.stage_rounds, "be one or more counts of 1 or more")

    @property
    def solver(self) -> ACSA:
        return ACSA()

    def stages(self, facts: Facts) -> Sequence[Stage]:
        R = known_rounds(facts, "stages are cut from them")
        whole = Stage(phase=1, rounds=R, modulus=self.strong_convexity)
        L, gap = self._constants(facts)
        return cut(whole, self.smoothness, L, gap, self.variance, self.stage_rounds)

    def theorem_rounds(self, facts: Facts) -> int:
        """R of Lemma B.1, (14), at least 1."""
        facts.need("num_records", "epsilon", "delta", instead="Give privacy.epsilon, and a data set of known silos.")
        (L, gap), n, mu = self._constants(facts), facts.num_records, self.strong_convexity
        return theory.smooth_rounds(
            beta=self.smoothness - mu,  # beta_i + lambda_i there is the smoothness of the whole here
            lambda_i=mu,
            gap=gap,
            L=L,
            n_i=n,
            N=facts.num_silos,
            M=facts.num_participants,
            K_i=facts.batch(n),
            d=facts.dimension,
            epsilon=facts.epsilon,
            delta=facts.delta,
        )

    def remarks(self, facts: Facts) -> Iterator[str]:
        yield from short_stages(self.stages(facts), self.smoothness, *self._constants(facts))

    def _constants(self, facts: Facts) -> tuple[float, float]:
        """L and Delta."""
        L = lipschitz_constant(self.lipschitz, facts)
        return L, L**2 / (2 * self.strong_convexity) if self.gap is None else self.gap


def cut(
    whole: Stage, beta: float, L: float, gap: float, variance: float, lengths: Sequence[int] | None = None
) -> list[Stage]:
    """[G] Alg. 5: the stages of one phase, with R^(k) rounds each as far as they go; the last one takes the rest."""
    R = list(lengths) if lengths is not None else _lengths(whole, beta, L, gap)
    if sum(R) != whole.rounds:
        raise ConfigError(f"stage_rounds={tuple(R)} must add up to the {whole.rounds} rounds that there are.")
    mu, stages = whole.modulus, enumerate(R, start=1)
    v = [theory.stage_scale(k, beta=beta, mu=mu, variance=variance, gap=gap, R=r) for k, r in stages]  # l. 3
    return [replace(whole, rounds=r, rate=v_k) for r, v_k in zip(R, v, strict=True)]


def _lengths(whole: Stage, beta: float, L: float, gap: float) -> list[int]:
    lengths: list[int] = []
    left, k = whole.rounds, 1
    while (need := theory.stage_rounds(k, beta=beta, mu=whole.modulus, L=L, gap=gap)) <= left:  # l. 2
        lengths.append(need)
        left, k = left - need, k + 1
    return [*lengths[:-1], lengths[-1] + left] if lengths else [left]


def short_stages(stages: Sequence[Stage], beta: float, L: float, gap: float) -> Iterator[str]:
    """A remark on the first stage that is shorter than [G] Alg. 5, l. 2 has it."""
    for k, stage in enumerate(stages, start=1):
        need = theory.stage_rounds(k, beta=beta, mu=stage.modulus, L=L, gap=gap)
        if stage.rounds < need:
            yield (
                "Lemma B.1 of Gao et al. 2024 does not apply: "
                f"stage {k} of Alg. 5 takes {need} rounds (l. 2) and has {stage.rounds}."
            )
            return


def lipschitz_constant(given: float | None, facts: Facts) -> float:
    """L: an option, or the clipping norm, which bounds every record's gradient. Raises ConfigError if there is none."""
    if given is None:
        facts.need("clip_norm", instead="Give lipschitz (L), or a finite privacy.clip_norm.")
        return facts.clip_norm
    return given
