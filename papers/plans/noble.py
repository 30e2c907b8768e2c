"""Table 1 of Noble, Bellet, Dieuleveut 2022: the rounds that their accounting affords, beside what is proven."""

from __future__ import annotations

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.events import Term
from dpfl_plugin.privacy.paper import NOBLE_THIRD_PARTY_UNSOUND, noble_third_party_epsilon
from papers.plans.base import Case, Constant, Plan, Value, most

MOST = 10_000  # proven rounds: planning a run takes time for each


def largest_rounds(
    *,
    epsilon: float,
    noise_multiplier: float,
    local_steps: int,
    silo_rate: float,
    record_rate: float,
    num_silos: int,
    delta: float,
) -> int:
    """Return the largest T whose published third-party epsilon is at most ``epsilon``: Table 1. NOT A GUARANTEE."""

    def fits(rounds: int) -> bool:
        claimed = noble_third_party_epsilon(
            noise_multiplier=noise_multiplier,
            local_steps=local_steps,
            rounds=rounds,
            silo_rate=silo_rate,
            record_rate=record_rate,
            num_silos=num_silos,
            delta=delta,
        )
        return claimed <= epsilon

    return most(fits)


def plan(case: Case) -> Plan:
    """Plan T, the largest number of rounds whose third-party epsilon, as they compute it, is at most epsilon.

    Raises:
        ConfigError: the noise is not given, or the table is not of such runs.
    """
    privacy, epsilon, setting = case.config.privacy, case.needed_epsilon(), case.setting
    release, K = case.release(), case.local_steps()
    if privacy.unit != "record" or privacy.sampler != "fixed":
        raise ConfigError(
            f"privacy.unit={privacy.unit!r}, privacy.sampler={privacy.sampler!r}: Table 1 is of unit: record and "
            "sampler: fixed, and Lemma B.7 behind it of nothing else."
        )
    sigma, share = release.noise_multiplier, setting.num_participants / setting.num_silos
    rounds = largest_rounds(
        epsilon=epsilon,
        noise_multiplier=sigma,
        local_steps=K,
        silo_rate=share,
        record_rate=release.rate,
        num_silos=setting.num_silos,
        delta=privacy.delta,
    )
    participation = share if privacy.budget_view == "third_party" else 1.0

    def fits(rounds: int) -> bool:
        term = Term(release=release, count=K, rounds=rounds, participation=participation)
        return PLD().epsilon([term], privacy.delta) <= epsilon

    within = most(fits, MOST)
    proofs = [case.proven("their rounds", _settings(rounds, sigma), epsilon, "third_party")] if rounds else []
    proofs += [case.proven("proven rounds", _settings(within, sigma))] if within else []
    return Plan(
        theorem="Table 1 of Noble et al. 2022 (appendix B.4)",
        values=(Value("T", rounds, f"rounds with a claimed third-party epsilon of at most {epsilon:g}"),),
        constants=(
            Constant("sigma_g", sigma, "privacy.noise_multiplier"),
            Constant("K", K, "private gradients that a round asks for"),
            Constant("l", share, f"silo_rate: {setting.num_participants} of M = {setting.num_silos} silos"),
            Constant("s", release.rate, "records of a batch / records of a silo"),
            Constant("delta", privacy.delta, "privacy.delta"),
        ),
        fails=() if rounds else (f"not even 1 round fits epsilon {epsilon:g} by their accounting",),
        notes=(
            NOBLE_THIRD_PARTY_UNSOUND,
            *([f"{MOST:,} rounds or more are within epsilon, proven."] if within == MOST else []),
        ),
        proofs=proofs,
    )


def _settings(rounds: int, sigma: float) -> tuple[str, ...]:
    """Without a budget, which in another view or by another accountant would end the run before."""
    return (f"rounds={rounds}", f"privacy.noise_multiplier={sigma!r}", "privacy.epsilon=null")
