"""Epsilon of a sampled Gaussian mechanism, and the noise or the steps that an epsilon allows."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Final

from dpfl_plugin.core.rounding import digits
from dpfl_plugin.core.text import Printed
from dpfl_plugin.errors import ConfigError, UnsupportedError, is_real, require
from dpfl_plugin.privacy.accountants import Accountant, named_accountant, why_infinite
from dpfl_plugin.privacy.calibration import least_noise, max_rounds
from dpfl_plugin.privacy.events import Neighbouring, SampledGaussian, Sampler, Term
from dpfl_plugin.privacy.pld import check_delta

SAMPLERS: Final[dict[str, tuple[Sampler, Neighbouring, str]]] = {
    "fixed": ("fixed", "replace_one", "a fixed number of records without replacement, record_rate {:g}"),
    "poisson": ("poisson", "add_or_remove", "each record independently, with probability record_rate {:g}"),
    "full": ("full", "replace_one", "all records"),
}
NEIGHBOURS: Final = {
    "replace_one": "differ in the values of one record (replace-one)",
    "add_or_remove": "differ by one more record (add-or-remove)",
}
MAX_STEPS: Final = 10**7
MAX_FACTOR: Final = 1e6  # larger odds mean nothing to a reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Epsilon(Printed):
    """The privacy of repeated releases of a sampled Gaussian mechanism; ``float`` gives its epsilon.

    Attributes:
        epsilon: upper bound, by ``accountant``; math.inf if nothing is guaranteed, or it is too large to compute.
        delta: at which it holds.
        noise_multiplier: sigma_g, noise standard deviation / L2 sensitivity, of each release.
        steps: number of releases.
        record_rate: s, fraction of the records in a batch.
        sampler: how a batch is drawn.
        neighbouring: how the two data sets differ that cannot be told apart.
        accountant: what composed the releases.
        sound: whether ``epsilon`` is an upper bound; if not, it is for comparison only.
        caveat, error: what the accountant takes for granted, and how far it may be off.
    """

    epsilon: float
    delta: float
    noise_multiplier: float
    steps: int
    record_rate: float
    sampler: str
    neighbouring: Neighbouring
    accountant: str
    sound: bool
    caveat: str
    error: str

    def __float__(self) -> float:
        return self.epsilon

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        number, delta = "none" if math.isinf(self.epsilon) else digits(self.epsilon, 6), f"{self.delta:.15g}"
        factor = math.exp(min(self.epsilon, 700.0))
        change = f"at most {digits(factor, 3)}-fold" if factor < MAX_FACTOR else "by more than means anything"
        odds = f"Odds between neighbouring data sets change {change}, except with probability {delta}."
        lines = [
            f"epsilon {number} at delta {delta}: {self.steps} steps with noise_multiplier {self.noise_multiplier:g}",
            f"No guarantee: {why_infinite(self.noise_multiplier)}." if math.isinf(self.epsilon) else odds,
            f"Each step takes {SAMPLERS[self.sampler][2].format(self.record_rate)} (sampler {self.sampler}).",
            f"Neighbouring data sets {NEIGHBOURS[self.neighbouring]}. Accountant: {self.accountant}.",
        ]
        return "\n".join(lines if self.sound else [*lines, f"NOT AN UPPER BOUND: {self.caveat}"])

    __repr__ = __str__


def epsilon(
    *,
    noise_multiplier: float,
    steps: int,
    delta: float,
    record_rate: float | None = None,
    sampler: str = "fixed",
    accountant: str = "pld",
) -> Epsilon:
    """Epsilon of ``steps`` noisy sums over batches of one silo's records; the words are those of `privacy` in a file.

    Args:
        noise_multiplier: sigma_g, noise standard deviation / L2 sensitivity; 0 gives an infinite epsilon.
        steps: releases in all: rounds times local steps.
        delta: well below 1 / records.
        record_rate: s, fraction of the records in a batch; None: all of them.
        sampler: "fixed" (replace-one neighbours), "poisson" (add-or-remove) or "full".
        accountant: a registered accountant.

    Raises:
        ConfigError: a number is out of range, or the accountant is unknown; names it.
        UnsupportedError: nothing is proven for this sampler, or by this accountant.
    """
    return _epsilon(named_accountant(accountant), _term(noise_multiplier, steps, record_rate, sampler), delta)


def calibrate(
    *,
    epsilon: float,
    delta: float,
    steps: int | None = None,
    noise_multiplier: float | None = None,
    record_rate: float | None = None,
    sampler: str = "fixed",
    accountant: str = "pld",
) -> Epsilon:
    """The least noise with which ``steps`` fit a budget, or the most steps with ``noise_multiplier``: give one of them.

    Other arguments are those of `epsilon`. The answer fits: its own epsilon is at most the one that is asked for. The
    noise is rounded up to five significant digits; 0 steps if not even one fits.

    Raises:
        ConfigError: a number is out of range, no noise is enough, or both or neither of steps and noise are given.
        UnsupportedError: as `epsilon`; or more than 10^7 steps fit, beyond which nothing is computed.
    """
    require(is_real(epsilon) and 0 < epsilon < math.inf, "epsilon", epsilon, "be positive and finite")
    check_delta(delta)
    chosen = named_accountant(accountant)
    if steps is not None and noise_multiplier is None:
        require(is_real(steps) and steps >= 1, "steps", steps, "be at least 1")
        noise = least_noise(lambda sigma: chosen.epsilon([_term(sigma, steps, record_rate, sampler)], delta), epsilon)
        return _epsilon(chosen, _term(noise, steps, record_rate, sampler), delta)
    if steps is not None or noise_multiplier is None:
        raise ConfigError("Give either steps, to solve for noise_multiplier, or noise_multiplier, to solve for steps.")
    most = max_rounds(chosen, _term(noise_multiplier, 1, record_rate, sampler), (), epsilon, delta, MAX_STEPS)
    result = _epsilon(chosen, _term(noise_multiplier, most, record_rate, sampler), delta)
    if most == MAX_STEPS:
        raise UnsupportedError(
            f"epsilon={epsilon!r}: cannot compute above {MAX_STEPS:,} steps, which come to epsilon "
            f"{digits(result.epsilon, 4)} with noise_multiplier {noise_multiplier:g}. Lower one of these."
        )
    return result


def _epsilon(chosen: Accountant, term: Term, delta: float) -> Epsilon:
    return Epsilon(
        epsilon=chosen.epsilon([term], delta),
        delta=delta,
        noise_multiplier=term.release.noise_multiplier,
        steps=term.rounds,
        record_rate=term.release.rate,
        sampler=term.release.sampler,
        neighbouring=term.release.neighbouring,
        accountant=chosen.name,
        sound=chosen.sound,
        caveat=chosen.caveat,
        error=chosen.error,
    )


def _term(noise_multiplier: float, steps: int, record_rate: float | None, sampler: str) -> Term:
    if sampler == "with_replacement":
        raise UnsupportedError(
            "sampler='with_replacement' is not proven at record level: a record that is drawn twice moves a sum twice "
            "as far. Use sampler fixed or poisson."
        )
    require(sampler in SAMPLERS, "sampler", sampler, f"be one of {', '.join(SAMPLERS)}")
    rate = 1.0 if record_rate is None else record_rate
    require(
        is_real(rate) and 0 < rate <= 1,
        "record_rate",
        record_rate,
        "be in (0, 1]: the fraction of the records in a batch",
    )
    if sampler == "full" and rate != 1:
        raise ConfigError(f"record_rate={record_rate!r} with sampler 'full', which takes all records. Leave it out.")
    noisy = is_real(noise_multiplier) and 0 <= noise_multiplier < math.inf
    require(noisy, "noise_multiplier", noise_multiplier, "be finite and at least 0: noise std / L2 sensitivity")
    require(is_real(steps) and steps >= 0 and steps % 1 == 0, "steps", steps, "be a whole number of at least 0")
    kind, neighbouring, _ = SAMPLERS[sampler]
    release = SampledGaussian(
        noise_multiplier=noise_multiplier,
        sampler="full" if rate == 1 else kind,  # to draw all records is no sampling, and has an exact accountant
        rate=rate,
        neighbouring=neighbouring,
    )
    return Term(release=release, count=1, rounds=steps)
