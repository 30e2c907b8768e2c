"""The last rounds of Chang, Seif, Tandon 2022 ([C]): noise that decays by round or by step, on one budget."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from dpfl_plugin.errors import ArgumentError, ConfigError
from dpfl_plugin.privacy.calibration import most
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.paper import Scheme, chang_last_round
from dpfl_plugin.runs.forecast import MOST_PLANNED, forecast
from papers.plans.base import Case, Constant, Prescription, Run, Value
from papers.plans.noble import dearest_release, given_noise, local_steps

SCHEMES: Final[dict[Scheme, str]] = {0: "constant noise", 1: "decays by round (eq. 6)", 2: "decays by step (eq. 7)"}
GRID: Final = math.log(1.01)  # of noise multipliers, which are rounded down to it: sound, and few kinds of releases
PRODUCT_RANGE: Final = 0.1  # pq may not be above it in Theorems 1 and 2
NOT_SOUND: Final = (
    "Chang et al.'s epsilon counts the sampling of silos as if of records, which is not proven: what the server sees "
    "is not amplified by it. Their budget is the sum of 1 / sigma^2 over all steps, which compares schedules with each "
    "other; the proven rounds are those of the exact composition, with noise multipliers rounded down by up to 1 %."
)


def prescribe(case: Case) -> Prescription:
    """The last round of each scheme on the budget of `rounds` rounds of constant noise, or of epsilon.

    Raises:
        ConfigError: beta, the threshold, the noise or the rounds are not known.
    """
    config = case.config
    beta, threshold = _schedule(case)
    sigma = given_noise(case)
    constant = case.changed(["rounds=1", "privacy.schedule=constant"])
    ahead = forecast(constant, case.question.base, federation=case.federation)
    tau, setting = local_steps(ahead), case.setting
    rules = ahead.rules(constant, sigma)
    release = dearest_release(rules, case.num_records)
    accountant, delta = ahead.accountant, config.privacy.delta

    def epsilon(scheme: Scheme, rounds: int) -> float:
        return accountant.epsilon(terms(scheme, rounds, release, beta.value, int(threshold.value), tau), delta)

    budget_rounds, budget, source = _budget(case, epsilon)
    rows = []
    for scheme, words in SCHEMES.items():
        theirs = chang_last_round(scheme, beta.value, int(threshold.value), tau, budget_rounds)
        proven = (
            budget_rounds if scheme == 0 else _last_round(functools.partial(epsilon, scheme), budget, budget_rounds)
        )
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
    return Prescription(
        theorem="Theorems 1 and 2 of Chang et al. 2022",
        values=(
            Value("budget", budget_rounds, f"rounds of constant noise: {source}"),
            Value("epsilon", budget, f"of these rounds, proven (server, delta {delta:g}, {accountant.name})"),
        ),
        rows=rows,
        constants=(
            beta,
            threshold,
            Constant("sigma", sigma, "privacy.noise_multiplier"),
            Constant("tau", tau, "private gradients that a round asks for"),
            Constant("q", release.rate, "records of a batch / records of a silo, the largest"),
        ),
        fails=fails if product > PRODUCT_RANGE else (),
        notes=(NOT_SOUND,),
        runs=_runs(case, rows, beta.value, int(threshold.value), sigma),
    )


def _last_round(epsilon: Callable[[int], float], budget: float, budget_rounds: int) -> int:
    """The last round within the budget, which noise that decays cannot take beyond that of constant noise."""
    return most(lambda rounds: epsilon(rounds) <= budget, budget_rounds)


def _schedule(case: Case) -> tuple[Constant, Constant]:
    """beta and R_th: of the command line, else of `privacy.schedule`."""
    options = case.config.privacy.schedule.options
    found = []
    for name, option in (("beta", "--beta"), ("threshold", "--threshold")):
        given = getattr(case.given, name)
        value = options.get(name) if given is None else given
        if value is None:
            raise ArgumentError(f"{{{name}}} is missing: give it, or privacy.schedule with beta and threshold.")
        found.append(Constant(name, value, f"privacy.schedule.{name}" if given is None else option))
    if not 0 < found[0].value <= 1:
        raise ConfigError(f"privacy.schedule.beta={found[0].value!r} must be in (0, 1]: the paper's noise decays.")
    return found[0], found[1]


def _budget(case: Case, epsilon: Callable[[Scheme, int], float]) -> tuple[int, float, str]:
    """(rounds of constant noise, their epsilon, where they come from)."""
    asked, config = case.question.epsilon, case.config
    if asked is not None:
        rounds = most(lambda R: epsilon(0, R) <= asked, MOST_PLANNED)
        if not rounds:
            raise ArgumentError(f"{{epsilon}}={asked!r}: not even 1 round of this noise fits it.")
        return rounds, asked, f"the most within epsilon {asked:g}"
    if config.rounds is None:
        raise ArgumentError("rounds is missing: the budget is that of `rounds` rounds of constant noise, or {epsilon}.")
    return config.rounds, epsilon(0, config.rounds), "rounds of the configuration"


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


def _runs(case: Case, rows: list[dict[str, Any]], beta: float, threshold: int, sigma: float) -> list[Run]:
    """The proven last round of each scheme."""
    runs = []
    for row in rows:
        by = "round" if row["scheme"] == 1 else "step"
        decay = f"{{name: geometric, beta: {beta!r}, threshold: {threshold}, by: {by}}}"
        schedule = "constant" if row["scheme"] == 0 else decay
        if row["last round, proven"]:
            settings = [f"rounds={row['last round, proven']}", f"privacy.noise_multiplier={sigma!r}"]
            settings += ["privacy.epsilon=null", f"privacy.schedule={schedule}"]
            runs.append(Run(name=f"scheme {row['scheme']}, proven", settings=tuple(settings)))
    return runs
