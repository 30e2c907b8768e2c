"""Epsilon of a mechanism, and the noise for an epsilon: what `dpfl account` and `dpfl plan` say of numbers alone."""

from __future__ import annotations

import functools
import html
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, ParamSpec, TypeVar

from dpfl_plugin import registry
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.errors import ConfigError, UnsupportedError, require
from dpfl_plugin.privacy.accountants import Accountant, why_infinite
from dpfl_plugin.privacy.calibration import least_noise, max_rounds
from dpfl_plugin.privacy.events import Neighbouring, SampledGaussian, Sampler, Term
from dpfl_plugin.privacy.pld import check_delta
from dpfl_plugin.synonyms import meant

NEIGHBOURS: Final[dict[str, tuple[Sampler, Neighbouring]]] = {
    "fixed": ("fixed", "replace_one"),
    "poisson": ("poisson", "add_or_remove"),
    "full": ("full", "replace_one"),
}
IN_WORDS: Final = {
    "replace_one": "data sets that differ in the values of one record (replace-one)",
    "add_or_remove": "data sets of which one has one more record (add-or-remove)",
}
DRAWN: Final = {
    "fixed": "a fixed number of records without replacement, {rate:g} of them (sampler fixed)",
    "poisson": "each record independently with probability {rate:g} (sampler poisson)",
    "full": "all records (sampler full)",
}
MOST_STEPS: Final = 10**7  # that `max_steps` looks for
MOST_ODDS: Final = 1e6  # a factor beyond it says nothing to a person


@dataclass(frozen=True, slots=True, kw_only=True)
class Epsilon:
    """A guarantee, and how it was computed; ``float`` gives its epsilon.

    Attributes:
        epsilon: upper bound, by ``accountant``; math.inf where nothing is guaranteed, or too large to compute.
        delta: at which it holds.
        noise_multiplier: sigma_g, noise standard deviation / L2 sensitivity, of each release.
        record_rate: s, share of the records in a batch.
        steps: number of releases.
        sampler: how a batch is drawn. neighbouring: what the two data sets differ in that cannot be told apart.
        accountant: what composed the releases; caveat, error: what it takes for granted, and how far it may be off.
        sound: whether the number is an upper bound; if not, it is for comparison only.
    """

    epsilon: float
    delta: float
    noise_multiplier: float
    record_rate: float
    steps: int
    sampler: str
    neighbouring: Neighbouring
    accountant: str
    sound: bool
    caveat: str
    error: str

    def __float__(self) -> float:
        return self.epsilon

    @property
    def odds(self) -> str:
        """What the number means, in a sentence."""
        if math.isinf(self.epsilon):
            return why_infinite(self.noise_multiplier)
        factor = math.exp(min(self.epsilon, 700.0))
        much = f"{digits(factor, 3)}-fold" if factor < MOST_ODDS else "by a factor beyond use"
        return (
            f"whatever is seen changes the odds between two such data sets at most {much}, except with probability "
            f"{self.delta:.15g}"
        )

    def __str__(self) -> str:
        number = "none" if math.isinf(self.epsilon) else digits(self.epsilon, 6)
        drawn = DRAWN[self.sampler].format(rate=self.record_rate)
        lines = [
            f"epsilon {number} at delta {self.delta:.15g}: {self.odds}.",
            f"{self.steps} releases, each with noise of {self.noise_multiplier:g} times the sensitivity, on {drawn}; "
            f"{IN_WORDS[self.neighbouring]}; accountant {self.accountant}.",
        ]
        if not self.sound:
            lines.append(f"NOT AN UPPER BOUND: {self.caveat}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "<p>" + html.escape(str(self)).replace("\n", "<br>") + "</p>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The least noise for a budget.

    Attributes:
        noise_multiplier: sigma_g, rounded up to five significant digits.
        reached: what it gives, which is at most the epsilon that was asked for.
    """

    noise_multiplier: float
    reached: Epsilon

    def __str__(self) -> str:
        return f"noise_multiplier {self.noise_multiplier:g}\n{self.reached}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<p>noise_multiplier {self.noise_multiplier:g}</p>{self.reached._repr_html_()}"


P = ParamSpec("P")
R = TypeVar("R")


def _words_told(function: Callable[P, R]) -> Callable[P, R]:
    """Have the message for an argument that there is not name the one that is meant."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: P.args, **given: P.kwargs) -> R:
        for name in given:
            if name not in known:
                near = meant(name, known, None)
                raise ConfigError(
                    f"{function.__name__}: {name} is not a known argument{near}. Known: {', '.join(known)}."
                )
        return function(*args, **given)

    return checked


@_words_told
def epsilon(
    *,
    noise_multiplier: float,
    steps: int,
    delta: float,
    record_rate: float | None = None,
    sampler: str = "fixed",
    accountant: str = "pld",
) -> Epsilon:
    """Epsilon of ``steps`` noisy sums over batches of one silo's records; the keys are those of `privacy` in a file.

    Args:
        noise_multiplier: sigma_g, noise standard deviation / L2 sensitivity; 0 gives an infinite epsilon.
        steps: releases in all: rounds times local steps.
        delta: well below 1 / records.
        record_rate: s, share of the records in a batch; None: all of them.
        sampler: "fixed" (replace-one neighbours), "poisson" (add-or-remove) or "full".
        accountant: a registered accountant.

    Raises:
        ConfigError: a number is out of range, or the accountant is unknown; names it.
        UnsupportedError: nothing is proven for this sampler, or by this accountant.
    """
    require(
        _is_number(noise_multiplier) and 0 <= noise_multiplier < math.inf,
        "noise_multiplier",
        noise_multiplier,
        "be finite and at least 0: noise std / L2 sensitivity",
    )
    _check_steps(steps, least=0)
    chosen = named_accountant(accountant)
    return _stated(chosen, _term(noise_multiplier, record_rate, sampler, steps), delta)


@_words_told
def calibrate(
    *,
    epsilon: float,
    steps: int,
    delta: float,
    record_rate: float | None = None,
    sampler: str = "fixed",
    accountant: str = "pld",
) -> Calibration:
    """The least noise with which ``steps`` releases keep to ``epsilon`` at ``delta``; other arguments as `epsilon`.

    Raises:
        ConfigError: a number is out of range, or no noise is enough; UnsupportedError: as `epsilon`.
    """
    _check_budget(epsilon, delta)
    _check_steps(steps, least=1)
    chosen = named_accountant(accountant)
    noise = least_noise(lambda sigma: chosen.epsilon([_term(sigma, record_rate, sampler, steps)], delta), epsilon)
    return Calibration(
        noise_multiplier=noise, reached=_stated(chosen, _term(noise, record_rate, sampler, steps), delta)
    )


@_words_told
def max_steps(
    *,
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    record_rate: float | None = None,
    sampler: str = "fixed",
    accountant: str = "pld",
) -> Epsilon:
    """The most releases that keep to ``epsilon`` at ``delta``: ``steps`` of what is returned.

    Other arguments and errors as `epsilon`; 0 releases where not even one fits.

    Raises:
        UnsupportedError: 10^7 releases fit, beyond which nothing is computed.
    """
    require(
        _is_number(noise_multiplier) and 0 < noise_multiplier < math.inf,
        "noise_multiplier",
        noise_multiplier,
        "be positive and finite: without noise no epsilon holds",
    )
    _check_budget(epsilon, delta)
    chosen = named_accountant(accountant)
    one = _term(noise_multiplier, record_rate, sampler, 1)
    steps = max_rounds(chosen, one, (), epsilon, delta, MOST_STEPS)
    found = _stated(chosen, _term(noise_multiplier, record_rate, sampler, steps), delta)
    if steps == MOST_STEPS:
        raise UnsupportedError(
            f"epsilon={epsilon!r}: cannot compute above {MOST_STEPS:,} steps, which come to epsilon "
            f"{digits(found.epsilon, 4)} with noise_multiplier {noise_multiplier:g}. Ask for a smaller epsilon, or use "
            "less noise."
        )
    return found


def named_accountant(name: str) -> Accountant:
    """The registered accountant of this name, with its defaults."""
    require(isinstance(name, str), "accountant", name, "be the name of a registered accountant")
    accountant: Accountant = registry.build(registry.load("accountants", name), {}, where="accountant")
    return accountant


def _stated(chosen: Accountant, term: Term, delta: float) -> Epsilon:
    require(_is_number(delta), "delta", delta, "be a number in (0, 1)")
    release = term.release
    return Epsilon(
        epsilon=chosen.epsilon([term], delta),
        delta=delta,
        noise_multiplier=release.noise_multiplier,
        record_rate=release.rate,
        steps=term.rounds,
        sampler=release.sampler,
        neighbouring=release.neighbouring,
        accountant=chosen.name,
        sound=chosen.sound,
        caveat=chosen.caveat,
        error=chosen.error,
    )


def _term(noise_multiplier: float, record_rate: float | None, sampler: str, steps: int) -> Term:
    if sampler == "with_replacement":
        raise UnsupportedError(
            "sampler='with_replacement' is not proven at record level: a record that is drawn twice moves a sum twice "
            "as far. Use sampler fixed or poisson."
        )
    require(sampler in NEIGHBOURS, "sampler", sampler, f"be one of {', '.join(NEIGHBOURS)}")
    rate = 1.0 if record_rate is None else record_rate
    require(_is_number(rate) and 0 < rate <= 1, "record_rate", record_rate, "be in (0, 1]: the share of the records")
    if sampler == "full" and rate != 1:
        raise ConfigError(f"record_rate={record_rate!r} with sampler 'full', which takes all records. Leave it out.")
    kind, neighbouring = NEIGHBOURS[sampler]
    release = SampledGaussian(
        noise_multiplier=noise_multiplier,
        sampler="full" if rate == 1 else kind,  # to draw all records is no sampling, and has an exact accountant
        rate=rate,
        neighbouring=neighbouring,
    )
    return Term(release=release, count=1, rounds=steps)


def _check_budget(epsilon: float, delta: float) -> None:
    require(_is_number(epsilon) and 0 < epsilon < math.inf, "epsilon", epsilon, "be positive and finite")
    require(_is_number(delta), "delta", delta, "be a number in (0, 1)")
    check_delta(delta)


def _check_steps(steps: int, *, least: int) -> None:
    whole = isinstance(steps, int) and not isinstance(steps, bool)
    require(whole and steps >= least, "steps", steps, f"be a whole number of at least {least}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
