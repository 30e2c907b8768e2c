"""Localized ISRL-DP algorithms: phases on disjoint records, each pulled ever harder to what the last one found.

[G] is Gao, Lowy, Zhou and Wright, ICML 2024: Alg. 1 (smooth losses) and Alg. 4 (subgradients).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from dpfl_plugin.algorithms import isrl_theory as theory
from dpfl_plugin.algorithms.accelerated import ACSA, cut, lipschitz_constant
from dpfl_plugin.algorithms.averages import Average, Averages
from dpfl_plugin.algorithms.base import algorithm
from dpfl_plugin.algorithms.isrl import Facts, OneGradient, Solver, Stage, known_rounds, positive
from dpfl_plugin.algorithms.mb_sgd import LAST, SGD
from dpfl_plugin.errors import ConfigError, require


@algorithm
class Phases(OneGradient):
    """What Alg. 1 and Alg. 4 share: tau phases, phase i on n / 2^i records of each silo.

    Attributes:
        phases: tau; floor(log2 n) if left out.
        phase_rounds: R_i, adding up to ``rounds``; left out: ``rounds`` divided evenly. One noise multiplier serves
            all phases, so that with equal R_i and a record_rate every phase costs the same.
        exponent: p; max(log_n(M) / 2 + 1, 3) if left out.
        lipschitz: L; privacy.clip_norm if left out.
    """

    phases: int | None = None
    phase_rounds: tuple[int, ...] | None = None
    exponent: float | None = None
    lipschitz: float | None = None
    theorem_name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "exponent", "lipschitz")
        require(self.phases is None or self.phases >= 1, "phases", self.phases, "be at least 1")
        R = self.phase_rounds
        if R is not None:
            require(
                len(R) > 0 and min(R) >= 1, "phase_rounds", R, "be one or more counts of 1 or more: no phase is empty"
            )
            require(self.phases in (None, len(R)), "phases", self.phases, f"be {len(R)}, as phase_rounds has it")

    # What the two algorithms add

    def curvature(self, i: int, facts: Facts) -> float:
        """lambda_i."""
        raise NotImplementedError

    def refined(self, phase: Stage, facts: Facts) -> Sequence[Stage]:
        """The stages of a phase, from a stage without a rate."""
        raise NotImplementedError

    def theorem_rounds(self, facts: Facts) -> list[int]:
        """R_i as the theorem has them; ``facts`` must have what `theorem` needs."""
        raise NotImplementedError

    def stages(self, facts: Facts) -> Sequence[Stage]:
        L = lipschitz_constant(self.lipschitz, facts)
        stages: list[Stage] = []
        for i, rounds in enumerate(self.rounds_of_phases(facts), start=1):
            lambda_i = self.curvature(i, facts)
            phase = Stage(
                phase=i,
                rounds=rounds,
                # n_i = n / 2^i (Alg. 1, l. 4-5). One share serves silos of all sizes, and neighbouring parts leave no
                # record between them: a silo's n_i is the floor that the paper has, or one record more.
                share=(1 - 2.0 ** -(i - 1), 1 - 2.0**-i),
                pull=lambda_i,
                modulus=lambda_i,
                radius=2 * L / lambda_i,  # D_i
            )
            stages += self.refined(phase, facts)
        return stages

    def rounds_of_phases(self, facts: Facts) -> Sequence[int]:
        """R_1, ..., R_tau."""
        if self.phase_rounds is not None:
            return self.phase_rounds
        T = known_rounds(facts, "it is divided among the phases")
        tau = self.num_phases(facts)
        require(tau <= T, "phases", tau, f"be at most the {T} rounds: no phase is empty")
        return [T // tau + (1 if i < T % tau else 0) for i in range(tau)]

    def num_phases(self, facts: Facts) -> int:
        """tau."""
        if self.phases is not None or self.phase_rounds is not None:
            return self.phases or len(self.phase_rounds or ())
        facts.need("num_records", instead="Give phases.")
        return max(1, theory.num_phases(facts.num_records))

    def p(self, facts: Facts) -> float:
        """The exponent."""
        if self.exponent is None:
            facts.need("num_records", instead="Give exponent (p).")
            return theory.exponent(facts.num_records, facts.num_participants)
        return self.exponent

    def theorem(self, facts: Facts) -> dict[str, Any] | None:
        """L, D, n, M, d, epsilon, delta, as the theorems' formulas take them; None if one is not known."""
        n, M, d = facts.num_records, facts.num_participants, facts.dimension
        if not (self.diameter and n and facts.epsilon and facts.delta):
            return None
        L = lipschitz_constant(self.lipschitz, facts)
        return {"L": L, "D": self.diameter, "n": n, "M": M, "d": d, "epsilon": facts.epsilon, "delta": facts.delta}

    def need_theorem(self, facts: Facts, option: str, name: str) -> dict[str, Any]:
        """`theorem`. Raises ConfigError if it cannot give what ``option`` would."""
        known = self.theorem(facts)
        if known is None:
            raise ConfigError(
                f"{option} is missing: {name} of Gao et al. 2024 gives it from diameter (D), the numbers of records "
                f"and silos, and privacy.epsilon and delta, which are not all known. Give them, or {option}."
            )
        return known

    def departures(self, facts: Facts) -> Iterator[str]:
        """In what a run is not the paper's, whatever its solver."""
        n, M = facts.num_records, facts.num_participants
        if n and self.num_phases(facts) != theory.num_phases(n):
            yield f"phases {self.num_phases(facts)}, where it has {theory.num_phases(n)}"
        if n and self.p(facts) != theory.exponent(n, M):
            yield f"exponent {self.p(facts):g}, where it has {theory.exponent(n, M):g}"
        if self.diameter is None:
            yield "no diameter"
        if not facts.epsilon:
            yield "no privacy.epsilon"
        elif facts.epsilon > 2 * math.log(2 / facts.delta):
            yield f"epsilon {facts.epsilon:g}, above 2 ln(2 / delta)"

    def too_few(self, facts: Facts, needed: Sequence[int]) -> Iterator[str]:
        """The first phase with fewer rounds than its theorem takes, or with too small a batch."""
        for i, (R, need) in enumerate(zip(self.rounds_of_phases(facts), needed, strict=True), start=1):
            n_i = facts.num_records // 2**i
            least = theory.least_batch(n_i=n_i, R_i=R, epsilon=facts.epsilon, delta=facts.delta)
            if need > R:
                yield f"{R} rounds in phase {i}, where it takes {need}"
                return
            if facts.batch(n_i) < least:
                yield f"batches of {facts.batch(n_i):g} in phase {i}, where it takes {least:.4g}"
                return

    def remark(self, name: str, departures: Sequence[str]) -> Iterator[str]:
        """What `remarks` says of a theorem."""
        if departures:
            yield f"{name} of Gao et al. 2024 does not apply: {'; '.join(departures)}."


@algorithm
class Regularised(Phases):
    """Phases with lambda_i = lambda 2^((i-1) p), as in Alg. 1 and 6.

    Attributes:
        regularisation: lambda; Theorem C.1's if left out.
    """

    regularisation: float | None = None
    theorem_name: ClassVar[str] = "Theorem C.1"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "regularisation")

    def curvature(self, i: int, facts: Facts) -> float:
        first = self.regularisation
        if first is None:
            first = theory.regularisation(**self.need_theorem(facts, "regularisation", self.theorem_name))  # (15)
        return first * math.pow(2, (i - 1) * self.p(facts))  # Alg. 1, l. 4

    def cut(self, phase: Stage, beta: float, variance: float, facts: Facts) -> Sequence[Stage]:
        """The stages of Alg. 5 for a phase; its loss is (beta + lambda_i)-smooth and 3L-Lipschitz (Lemma C.3)."""
        L = lipschitz_constant(self.lipschitz, facts)
        return cut(phase, beta + phase.pull, 3 * L, self.gap(phase.pull, L), variance)

    def gap(self, lambda_i: float, L: float) -> float:
        """Delta_i >= F_i(w_{i-1}) - min F_i: at the distance t <= D it falls by at most L t - lambda_i t^2 / 2."""
        most = L**2 / (2 * lambda_i)
        return min(most, L * self.diameter) if self.diameter else most

    def beta(self, facts: Facts) -> float:
        """beta, of the loss or of what it is smoothed to."""
        raise NotImplementedError

    def theorem_rounds(self, facts: Facts) -> list[int]:
        known = self.need_theorem(facts, "phase_rounds", self.theorem_name)
        known["always_sampled"] = self.smoothing == "convolution"
        needed = []
        for i in range(1, self.num_phases(facts) + 1):
            lambda_i, n_i = self.curvature(i, facts), facts.num_records // 2**i
            given = {**known, "n_i": n_i, "N": facts.num_silos, "K_i": facts.batch(n_i), "lambda_i": lambda_i}
            del given["D"], given["n"]
            needed.append(theory.smooth_rounds(beta=self.beta(facts), gap=self.gap(lambda_i, known["L"]), **given))
        return needed

    def departures_of(self, facts: Facts) -> Iterator[str]:
        """`departures`, and those from the theorem's lambda and R_i."""
        yield from self.departures(facts)
        known = self.theorem(facts)
        if known is None:
            return
        if self.regularisation not in (None, theory.regularisation(**known)):
            yield f"regularisation {self.regularisation:g}, where it has {theory.regularisation(**known):.4g}"
        yield from self.too_few(facts, self.theorem_rounds(facts))


@algorithm
class LocalizedMBSGD(Regularised):
    """Phases of regularised problems on disjoint records, solved by MB-SGD or AC-SA. Gao et al. 2024, Alg. 1.

    Attributes:
        subsolver: of a phase's problem. "mb_sgd": sec. 4's practical variant; "accelerated": Alg. 2; "multistage": 5.
        lr: of mb_sgd: eta_1; phase i has eta_1 lr_decay^(i-1).
        lr_decay: of mb_sgd; 2^-p if left out, so that eta_i lambda_i stays the same.
        average: of mb_sgd: what a phase returns: the last iterate, or a mean of the phase's.
        tail_share, ema_decay: of that mean, as mb_sgd has them.
        smoothness: of the others: beta of the mean loss, without the regulariser.
        v: of accelerated: the scale of its steps; 2 (beta + lambda_i) if left out.
        variance: of multistage: V^2.
    """

    subsolver: Literal["mb_sgd", "accelerated", "multistage"] = "mb_sgd"
    lr: float | None = None
    lr_decay: float | None = None
    average: Average | None = None
    tail_share: float | None = None
    ema_decay: float | None = None
    smoothness: float | None = None
    v: float | None = None
    variance: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "lr", "lr_decay", "smoothness", "v", "variance")
        of = {
            "mb_sgd": ("lr", "lr_decay", "average", "tail_share", "ema_decay"),
            "accelerated": ("smoothness", "v"),
            "multistage": ("smoothness", "variance"),
        }
        needed, *_ = mine = of[self.subsolver]
        if getattr(self, needed) is None:
            raise ConfigError(f"{needed} is missing: subsolver: {self.subsolver} needs it.")
        for key in sorted({key for keys in of.values() for key in keys} - set(mine)):
            value = getattr(self, key)
            require(value is None, key, value, f"be left out with subsolver: {self.subsolver}")
        _ = self.solver  # checks its own options

    @property
    def solver(self) -> Solver:
        if self.subsolver != "mb_sgd":
            return ACSA()
        tail = LAST.tail_share if self.tail_share is None else self.tail_share
        decay = LAST.ema_decay if self.ema_decay is None else self.ema_decay
        return SGD(Averages(kind=self.average or LAST.kind, tail_share=tail, ema_decay=decay))

    def beta(self, facts: Facts) -> float:
        if self.smoothness is None:
            raise ConfigError("smoothness is missing: Theorem C.1 of Gao et al. 2024 needs it.")
        return self.smoothness

    def refined(self, phase: Stage, facts: Facts) -> Sequence[Stage]:
        if self.lr is not None:
            decay = 2.0 ** -self.p(facts) if self.lr_decay is None else self.lr_decay
            return [replace(phase, rate=self.lr * decay ** (phase.phase - 1))]
        assert self.smoothness is not None
        if self.subsolver == "accelerated":
            return [replace(phase, rate=self.v or 2 * (self.smoothness + phase.pull))]
        return self.cut(phase, self.smoothness, self.variance or 0.0, facts)

    def remarks(self, facts: Facts) -> Iterator[str]:
        if self.smoothness is None:
            yield "Theorem C.1 of Gao et al. 2024 does not apply: its solver is Alg. 5, not MB-SGD (sec. 4)."
            return
        departures = list(self.departures_of(facts))
        if self.subsolver == "accelerated":
            departures.append("its solver is Alg. 5, not one call of Alg. 2")
        yield from self.remark("Theorem C.1", departures)


@algorithm
class LocalizedSubgradient(Phases):
    """Phases of regularised problems on disjoint records, solved by the subgradient method. Gao et al. 2024, Alg. 4.

    Attributes:
        eta: of eta_i = eta / 2^(i p), lambda_i = 1 / (eta_i n_i); Theorem G.1's if left out.
    """

    eta: float | None = None
    theorem_name: ClassVar[str] = "Theorem G.1"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "eta")

    @property
    def solver(self) -> SGD:
        return SGD(Averages(kind="linear"), decreasing=True)  # l. 7: gamma_r = 2 / (lambda_i (r + 1)), r from 0

    def curvature(self, i: int, facts: Facts) -> float:
        facts.need("num_records", instead="Use a data set whose silos are known.")
        eta = self.eta
        if eta is None:
            eta = theory.step_size(**self.need_theorem(facts, "eta", "Theorem G.1"))  # (34)
        eta_i, n_i = eta / math.pow(2, i * self.p(facts)), math.ldexp(facts.num_records, -i)  # l. 4
        return 1 / (eta_i * n_i)

    def refined(self, phase: Stage, facts: Facts) -> Sequence[Stage]:
        return [phase]

    def theorem_rounds(self, facts: Facts) -> list[int]:
        n_i = [facts.num_records // 2**i for i in range(1, self.num_phases(facts) + 1)]
        M, d = facts.num_participants, facts.dimension
        return [theory.nonsmooth_rounds(n_i=n, M=M, d=d, epsilon=facts.epsilon) for n in n_i]

    def remarks(self, facts: Facts) -> Iterator[str]:
        departures, known = list(self.departures(facts)), self.theorem(facts)
        if known is not None:
            if self.eta not in (None, theory.step_size(**known)):
                departures.append(f"eta {self.eta:g}, where it has {theory.step_size(**known):.4g}")
            departures += self.too_few(facts, self.theorem_rounds(facts))
        yield from self.remark("Theorem G.1", departures)
