"""Algorithms for non-smooth losses that smooth every record's loss first.

[G] is Gao, Lowy, Zhou and Wright, ICML 2024: convolution with a ball (Alg. 6 and 7 in its appendix D) and Moreau
envelopes (appendix E). The smoothed gradients come from the oracle, which a round's plan tells what to smooth by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from dpfl_plugin.algorithms import isrl_theory as theory
from dpfl_plugin.algorithms.accelerated import ACSA, lipschitz_constant
from dpfl_plugin.algorithms.base import algorithm
from dpfl_plugin.algorithms.isrl import ENDLESS, Facts, OneGradient, Stage, known_rounds, positive
from dpfl_plugin.algorithms.localized import Regularised
from dpfl_plugin.errors import require


@algorithm
class ConvolutionMBSGD(OneGradient):
    """AC-SA on the loss averaged over a ball; for non-smooth losses. Gao et al. 2024, Alg. 7.

    Attributes:
        smoothing_radius: s, of the ball.
        strong_convexity: mu of the mean loss, 0 if it is merely convex.
        lipschitz: L; privacy.clip_norm if left out. The smoothed loss is L sqrt(d) / s-smooth.
        v: the scale of the steps; 2 L sqrt(d) / s if left out.
    """

    smoothing_radius: float
    strong_convexity: float = 0.0
    lipschitz: float | None = None
    v: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "smoothing_radius", "lipschitz", "v")
        require(self.strong_convexity >= 0, "strong_convexity", self.strong_convexity, "be at least 0")

    @property
    def solver(self) -> ACSA:
        return ACSA()

    @property
    def smoothing(self) -> str:
        return "convolution"

    def strength(self, facts: Facts) -> float:
        return self.smoothing_radius

    def stages(self, facts: Facts) -> Sequence[Stage]:
        if self.passes == "one":
            known_rounds(facts, "one pass divides the records among all rounds")
        v = self.v
        if v is None:
            L = lipschitz_constant(self.lipschitz, facts)
            v = 2 * theory.convolved_smoothness(L=L, d=facts.dimension, radius=self.smoothing_radius)
        return [Stage(phase=1, rounds=facts.rounds or ENDLESS, modulus=self.strong_convexity, rate=v)]


@algorithm
class LocalizedConvolution(Regularised):
    """Localized multi-stage AC-SA on the loss averaged over a ball. Gao et al. 2024, Alg. 6.

    Attributes:
        smoothing_radius: s; Theorem D.5's if left out.
        variance: V^2 of the noisy mean gradient; at most 4 L^2 / (K M) without the noise (Theorem D.4).
    """

    smoothing_radius: float | None = None
    variance: float = 0.0
    theorem_name: ClassVar[str] = "Theorem D.5"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "smoothing_radius")
        require(self.variance >= 0, "variance", self.variance, "be at least 0")

    @property
    def solver(self) -> ACSA:
        return ACSA()

    @property
    def smoothing(self) -> str:
        return "convolution"

    def strength(self, facts: Facts) -> float:
        if self.smoothing_radius is None:
            return theory.smoothing_radius(**_without_L(self.need_theorem(facts, "smoothing_radius", "Theorem D.5")))
        return self.smoothing_radius

    def beta(self, facts: Facts) -> float:
        L = lipschitz_constant(self.lipschitz, facts)
        return theory.convolved_smoothness(L=L, d=facts.dimension, radius=self.strength(facts))

    def refined(self, phase: Stage, facts: Facts) -> Sequence[Stage]:
        return self.cut(phase, self.beta(facts), self.variance, facts)

    def remarks(self, facts: Facts) -> Iterator[str]:
        departures, known = list(self.departures_of(facts)), self.theorem(facts)
        if known is not None and self.smoothing_radius not in (None, s := theory.smoothing_radius(**_without_L(known))):
            departures.append(f"smoothing_radius {self.smoothing_radius:g}, where it has {s:.4g}")
        yield from self.remark("Theorem D.5", departures)


@algorithm
class LocalizedNesterov(Regularised):
    """Localized multi-stage AC-SA on Moreau envelopes; for non-smooth losses. Gao et al. 2024, sec. 3.1 and App. E.

    Attributes:
        envelope: beta of f_beta(w) = min_v f(v) + beta/2 ||w - v||^2; Theorem E.2's if left out.
        variance: V^2 of the noisy mean gradient.
    """

    envelope: float | None = None
    variance: float = 0.0
    theorem_name: ClassVar[str] = "Theorem E.2"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "envelope")
        require(self.variance >= 0, "variance", self.variance, "be at least 0")

    @property
    def solver(self) -> ACSA:
        return ACSA()

    @property
    def smoothing(self) -> str:
        return "moreau"

    def strength(self, facts: Facts) -> float:
        if self.envelope is None:
            return theory.envelope_smoothness(**self.need_theorem(facts, "envelope", "Theorem E.2"))
        return self.envelope

    def beta(self, facts: Facts) -> float:
        return self.strength(facts)  # Lemma E.1 (1)

    def refined(self, phase: Stage, facts: Facts) -> Sequence[Stage]:
        return self.cut(phase, self.beta(facts), self.variance, facts)

    def remarks(self, facts: Facts) -> Iterator[str]:
        departures, known = list(self.departures_of(facts)), self.theorem(facts)
        if known is not None and self.envelope not in (None, beta := theory.envelope_smoothness(**known)):
            departures.append(f"envelope {self.envelope:g}, where it has {beta:.4g}")
        # The prox of App. E stays in the constraint set; the oracle's does not know it.
        departures.append("envelopes are taken over all of R^d, not over the constraint set")
        yield from self.remark("Theorem E.2", departures)


def _without_L(known: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in known.items() if name != "L"}
