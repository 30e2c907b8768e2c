"""The last rounds of Chang, Seif, Tandon 2022 ([C]): noise that decays by round or by step, on one budget."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from dpfl_plugin.errors import ConfigError, require
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.events import SampledGaussian, Term
from papers.chang_theory import Scheme, last_round
from papers.plans.base import Case, Constant, Plan, Proof, Value, most

SCHEMES: Final[dict[Scheme, str]] = {0: "constant noise", 1: "decays by round (eq. 6)", 2: "decays by step (eq. 7)"}
GRID: Final = math.log(1.01)  # of noise multipliers, which are rounded down to it: sound, and few kinds of releases
PRODUCT_RANGE: Final = 0.1  # pq may not be above it in Theorems 1 and 2
NOT_SOUND: Final = (
    "Chang et al.'s epsilon counts the sampling of silos as if of records, which is not proven: what the server sees "
    "is not amplified by it. Their budget is the sum of 1 / sigma^2 over all steps, which compares schedules with each "
    "other; the proven rounds are those of the exact composition, with noise multipliers rounded down by up to 1 %."
)


def plan(case: Case) -> Plan:
    """Plan the last round of each scheme on the budget of `rounds` rounds of constant noise, or of epsilon.

    Raises:
        ConfigError: beta, the threshold, the noise or the rounds are not known.
    """
    (beta, threshold), release, tau = _schedule(case), case.release(), case.local_steps()
    setting, delta = case.setting, case.config.privacy.delta

    def epsilon(scheme: Scheme, rounds: int) -> float:
        return PLD().epsilon(terms(scheme, rounds, release, beta.value, int(threshold.value), tau), delta)

    budget_rounds, budget, source = _budget(case, epsilon)
    rows = []
    for scheme, words in SCHEMES.items():
        theirs = last_round(scheme, beta.value, int(threshold.value), tau, budget_rounds)
        proven = budget_rounds
        if scheme:
            proven = most(functools.partial(_is_within, functools.partial(epsilon, scheme), budget), budget_rounds)
        rows.append(
            {
                "scheme": scheme,
                "noise": words,
                "last round": theirs,
                "epsilon of it, proven": epsilon(scheme, theirs) if theirs else 0.0,
                "last round, proven": proven,
            }
        )
    product = setting.num_participants / setting.num_silos * release.rate
    fails = [f"pq = {product:.3g} is above {PRODUCT_RANGE}, where Theorems 1 and 2 say nothing"]
    return Plan(
        theorem="Theorems 1 and 2 of Chang et al. 2022",
        values=(
            Value("budget", budget_rounds, f"rounds of constant noise: {source}"),
            Value("epsilon", budget, f"of these rounds, proven (server, delta {delta:g}, PLD)"),
        ),
        rows=rows,
        constants=(
            beta,
            threshold,
            Constant("sigma", release.noise_multiplier, "privacy.noise_multiplier"),
            Constant("tau", tau, "private gradients that a round asks for"),
            Constant("q", release.rate, "records of a batch / records of a silo, the largest"),
        ),
        fails=fails if product > PRODUCT_RANGE else (),
        notes=(NOT_SOUND,),
        proofs=_proofs(case, rows, beta.value, int(threshold.value), release.noise_multiplier),
    )


def _is_within(epsilon: Callable[[int], float], budget: float, rounds: int) -> bool:
    return epsilon(rounds) <= budget


def _schedule(case: Case) -> tuple[Constant, Constant]:
    """beta and R_th: of the command line, else of `privacy.schedule`."""
    options = case.config.privacy.schedule.options
    found = []
    for name in ("beta", "threshold"):
        given = name in case.constants or options.get(name) is None
        value = case.needed(name, "give it, or privacy.schedule with beta and threshold.") if given else options[name]
        found.append(Constant(name, value, f"--{name}" if given else f"privacy.schedule.{name}"))
    require(0 < found[0].value <= 1, found[0].source, found[0].value, "be in (0, 1]: the paper's noise decays")
    require(found[1].value >= 0, found[1].source, found[1].value, "be at least 0")
    return found[0], found[1]


def _budget(case: Case, epsilon: Callable[[Scheme, int], float]) -> tuple[int, float, str]:
    """(rounds of constant noise, their epsilon, where they come from)."""
    asked, rounds = case.epsilon, case.config.rounds
    if asked is not None:
        rounds = most(lambda R: epsilon(0, R) <= asked)
        require(rounds > 0, "--epsilon", asked, "be larger: not even 1 round of this noise fits it")
        return rounds, asked, f"the most within epsilon {asked:g}"
    if rounds is None:
        raise ConfigError("rounds is missing: the budget is that of `rounds` rounds of constant noise, or --epsilon.")
    return rounds, epsilon(0, rounds), "rounds of the configuration"


def terms(scheme: Scheme, rounds: int, release: SampledGaussian, beta: float, threshold: int, tau: int) -> list[Term]:
    """What ``rounds`` rounds release; noise that decays is rounded down to a grid."""
    decayed = max(0, rounds - threshold) if scheme else 0
    counts: Counter[int] = Counter({0: (rounds - decayed) * tau})
    for n in range(decayed if scheme == 1 else decayed * tau):
        exponent = n + 1 if scheme == 1 else n  # eq. 6 begins with beta, eq. 7 with 1
        steps = math.ceil(-exponent * math.log(beta) / 2 / GRID - 1e-9)  # of the deviation: half of the variance's
        counts[steps] += tau if scheme == 1 else 1
    sigma = release.noise_multiplier
    return [
        Term(release=replace(release, noise_multiplier=sigma * math.exp(-steps * GRID)), count=1, rounds=count)
        for steps, count in counts.items()
        if count
    ]


def _proofs(case: Case, rows: Sequence[Mapping[str, Any]], beta: float, threshold: int, sigma: float) -> list[Proof]:
    """The proven last round of each scheme."""
    proofs = []
    for row in rows:
        by = "round" if row["scheme"] == 1 else "step"
        decay = f"{{name: geometric, beta: {beta!r}, threshold: {threshold}, by: {by}}}"
        if row["last round, proven"]:
            settings = [f"rounds={row['last round, proven']}", f"privacy.noise_multiplier={sigma!r}"]
            settings += ["privacy.epsilon=null", f"privacy.schedule={'constant' if row['scheme'] == 0 else decay}"]
            proofs.append(case.proven(f"scheme {row['scheme']}, proven", settings))
    return proofs
