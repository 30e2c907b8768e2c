"""Table 1 of Noble, Bellet, Dieuleveut 2022: the rounds that their accounting affords, beside what is proven."""

from __future__ import annotations

from collections.abc import Iterable

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.calibration import max_rounds
from dpfl_plugin.privacy.costs import RoundCost
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.paper import NOBLE_THIRD_PARTY_UNSOUND, noble_largest_rounds
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.runs.forecast import Forecast, forecast
from dpfl_plugin.runs.plugins import build_plugin
from papers.plans.base import Case, Constant, Prescription, Run, Value

LOOKED_AT = 10  # rounds, to see that all cost the same
MOST = 10_000  # proven rounds: planning a run takes time for each


def prescribe(case: Case) -> Prescription:
    """T, the largest number of rounds whose third-party epsilon, as they compute it, is at most epsilon.

    Raises:
        ConfigError: the noise is not given, or the table is not of such runs.
    """
    privacy, epsilon, setting = case.config.privacy, case.needed_epsilon(), case.setting
    sigma = given_noise(case)
    ahead = forecast(case.config, case.question.base, federation=case.federation)
    K = local_steps(ahead)
    if privacy.unit != "record" or privacy.sampler != "fixed":
        raise ConfigError(
            f"privacy.unit={privacy.unit!r}, privacy.sampler={privacy.sampler!r}: Table 1 is of unit: record and "
            "sampler: fixed, and Lemma B.7 behind it of nothing else."
        )
    rules = ahead.rules(case.config, sigma)
    rates = {rules.sampler.rate(n) for n in case.num_records}
    share = setting.num_participants / setting.num_silos
    rounds = min(
        noble_largest_rounds(
            epsilon=epsilon,
            noise_multiplier=sigma,
            local_steps=K,
            silo_rate=share,
            record_rate=rate,
            num_silos=setting.num_silos,
            delta=privacy.delta,
        )
        for rate in rates
    )
    within = _within(case, (dearest_release(rules, case.num_records), K), share)
    runs = [
        Run(name="their rounds", settings=_settings(rounds, sigma), claimed=epsilon, claimed_view="third_party")
        if rounds
        else None,
        Run(name="proven rounds", settings=_settings(within, sigma)) if within else None,
    ]
    return Prescription(
        theorem="Table 1 of Noble et al. 2022 (appendix B.4)",
        values=(Value("T", rounds, f"rounds with a claimed third-party epsilon of at most {epsilon:g}"),),
        constants=(
            Constant("sigma_g", sigma, "privacy.noise_multiplier"),
            Constant("K", K, "private gradients that a round asks for"),
            Constant("l", share, f"silo_rate: {setting.num_participants} of M = {setting.num_silos} silos"),
            Constant("s", max(rates), "records of a batch / records of a silo"),
            Constant("delta", privacy.delta, "privacy.delta"),
        ),
        fails=() if rounds else (f"not even 1 round fits epsilon {epsilon:g} by their accounting",),
        notes=(
            NOBLE_THIRD_PARTY_UNSOUND,
            *([f"{MOST:,} rounds or more are within epsilon, proven."] if within == MOST else []),
        ),
        runs=[run for run in runs if run is not None],
    )


def dearest_release(rules: PrivacyRules, num_records: Iterable[int]) -> SampledGaussian:
    """What a release is charged as at the silo whose batches hold the largest part of its records."""
    sampled = (rules.sampler.rate(n) for n in num_records)
    return rules.release(1.0 if rules.unit == "silo" else max(sampled))


def _within(case: Case, pattern: tuple[SampledGaussian, int], share: float) -> int:
    """The most rounds that the accountant proves to be within epsilon, in the view that the budget bounds."""
    privacy, (release, count) = case.config.privacy, pattern
    accountant: Accountant = build_plugin("accountants", privacy.accountant, where="privacy.accountant")
    participation = share if privacy.budget_view == "third_party" else 1.0
    term = Term(release=release, count=count, rounds=1, participation=participation)
    return max_rounds(accountant, term, (), case.needed_epsilon(), privacy.delta, MOST)


def _settings(rounds: int, sigma: float) -> tuple[str, ...]:
    """Without a budget, which in another view or by another accountant would end the run before."""
    return (f"rounds={rounds}", f"privacy.noise_multiplier={sigma!r}", "privacy.epsilon=null")


def given_noise(case: Case) -> float:
    """sigma_g. Raises ConfigError if it is left open, or 0."""
    sigma = case.config.privacy.noise_multiplier
    if not sigma:
        raise ConfigError(
            "privacy.noise_multiplier must be given and above 0. Add --set privacy.noise_multiplier=NUMBER."
        )
    return sigma


def local_steps(ahead: Forecast) -> int:
    """K. Raises ConfigError if it is not the same in all rounds, or rounds read shares of the records."""
    costs = set(ahead.changed(rounds=LOOKED_AT).costs(LOOKED_AT).values())
    (first, *others) = costs or {RoundCost((), (0.0, 1.0))}
    if others or first.share != (0.0, 1.0) or not first.num_releases:
        raise ConfigError(
            "algorithm: the paper is of rounds with one fixed number of local steps on all records of a silo. Use "
            "scaffold or fedavg with local_steps."
        )
    return first.num_releases
