"""What an audit found, and what of it contradicts the claim."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from decimal import ROUND_FLOOR, Decimal
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from dpfl_plugin.core.grid import SUM_SLACK
from dpfl_plugin.core.rounding import digits_down, places
from dpfl_plugin.core.text import Printed, items
from dpfl_plugin.data.names import listed
from dpfl_plugin.privacy.audit import Correlation, Interval
from dpfl_plugin.terminal import printed

FALSE_ALARM: Final = 1e-7  # of each of the eight statements by chance that may contradict: below 1e-6 together
NOISE_MARGIN: Final = 0.03  # by which noise may differ from the claim, beyond chance: floating point, few releases
SPREAD_MARGIN: Final = 0.10  # as much for the canaries' scores, whose sampling is not quite normal
CLIP_MARGIN: Final = 1e-3  # rounding of clipped gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Printed):
    """What an audit found. Intervals hold with 95 %; ``strict`` ones are wrong with probability 1e-7.

    Attributes:
        rounds, silos, canaries: how many were run, had canaries, and were planted.
        releases: of each of these silos that took part in all rounds.
        epsilon: what the accountant says of what these silos were charged, the worst of them; None if it claims none.
        epsilon_bound: lower bound by one-run auditing, with 95 %.
        strict_delta: a smaller delta; strict_epsilon: the accountant's epsilon there, None if it does not tell;
        strict_bound: lower bound of it, with 1 - 1e-7.
        separation: mu, by which the groups of scores differ, in standard deviations; expected: by the claim.
        gaussian: epsilon of a mu-Gaussian mechanism; gaussian_strict: its strict lower limit.
        noise: measured / claimed standard deviation of the noise; noise_strict: the same.
        spread: the same of a canary's score, in which batches are: 1 if every release draws a fresh one.
        between_silos, between_rounds: correlations of noise.
        normality: p-value of the noise's normality.
        influence: the most that one real record changed a clipped sum, in clipping norms.
        worst_pair: the most that one record moved a sum in batches made up for that, in sensitivities; None: not tried.
        made, charged: releases of all silos, as the algorithm makes them, and as the ledger has them.
        violations: what contradicts the claim, in words; a false alarm has a probability below 1e-6 in all.
        canary_silos: that had canaries, by number; silo_names: theirs, where the data have any.
        scores, bits: (m,) of each canary, for pictures.
    """

    algorithm: str
    unit: str
    neighbouring: str
    accountant: str
    delta: float
    rounds: int
    silos: int
    canaries: int
    releases: int
    epsilon: float | None
    epsilon_bound: float
    strict_delta: float
    strict_epsilon: float | None
    strict_bound: float
    separation: Interval | None
    expected: float | None
    gaussian: Interval | None
    gaussian_strict: float | None
    noise: Interval | None
    noise_strict: Interval | None
    spread: Interval | None
    spread_strict: Interval | None
    between_silos: Correlation
    between_rounds: Correlation
    normality: float | None
    influence: float | None
    worst_pair: float | None
    made: int
    charged: int
    seconds: float
    violations: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    canary_silos: tuple[int, ...] = ()
    silo_names: dict[int, str] = field(default_factory=dict)
    scores: NDArray[np.float64] = field(repr=False)
    bits: NDArray[np.bool_] = field(repr=False)

    @property
    def consistent(self) -> bool:
        return not self.violations

    @property
    def title(self) -> str:
        """What was planted where, and how long it took."""
        which = f" ({listed(self.canary_silos, self.silo_names)})" if self.silo_names else ""
        return f"{self.canaries} canaries in {self.silos} silos{which}, {self.rounds} rounds, {self.seconds:.1f} s"

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """(what was looked at, what was found, what is claimed), a row for each."""
        return _rows(self)

    @property
    def verdict(self) -> list[str]:
        """The result in words, a line for each statement."""
        names = ("notes", "epsilon", "violations", "delta", "unit", "neighbouring")
        return items("pages/audit_verdict.md.jinja", **{name: getattr(self, name) for name in names})

    def __str__(self) -> str:
        return "\n".join([self.title, printed(self._show), *self.verdict])

    __repr__ = __str__

    def _show(self, console: Console) -> None:
        table = Table()
        table.add_column("seen by the server", overflow="fold")
        for column in ("found", "claimed"):
            table.add_column(column, justify="right", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        console.print(table, markup=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values without single scores, as `dpfl audit --json` prints them."""
        values = {"consistent": self.consistent, **asdict(self)}
        return {key: value for key, value in values.items() if key not in ("scores", "bits")}


def judged(report: Report, missing: int, *, adapts: bool) -> Report:
    """With what contradicts the claim, and what a reader should know; ``missing``: releases that were not charged."""
    notes = []
    if report.unit == "silo":
        notes.append(
            f"at silo level a silo is one canary, so {report.canaries} bits decide: they can show little, "
            "and the noise is better evidence."
        )
    if adapts:
        notes.append(
            "the noise on the counts that clipping norms follow is part of the claim, but does not show in uploads: "
            "it is not tried here."
        )
    if report.separation is None:
        notes.append("too few canaries for two groups of scores: no Gaussian estimate. Use more canaries or silos.")
    if report.epsilon is None:
        notes.append("this configuration claims no epsilon, so that nothing can contradict it.")
        return replace(report, notes=tuple(notes))
    return replace(report, violations=tuple(_violations(report, missing)), notes=tuple(notes))


def _violations(report: Report, missing: int) -> list[str]:
    epsilon, found = report.epsilon, []
    assert epsilon is not None
    if report.strict_epsilon is not None and report.strict_bound > report.strict_epsilon:
        found.append(
            f"epsilon at delta {report.strict_delta:g} is at least {digits_down(report.strict_bound, 3)}, and the "
            f"accountant says {places(report.strict_epsilon, 2)}"
        )
    if report.gaussian_strict is not None and report.gaussian_strict > epsilon:
        found.append(
            f"the canaries' scores are as far apart as an epsilon of {digits_down(report.gaussian_strict, 3)} or more "
            f"makes them, and the accountant says {places(epsilon, 2)}"
        )
    noise = report.noise_strict
    if noise is not None and (noise.high < 1 - NOISE_MARGIN or noise.low > 1 + NOISE_MARGIN):
        found.append(f"the noise in the uploads is {noise.estimate:.3f} times what independent claimed noise would be")
    spread = report.spread_strict
    if spread is not None and spread.low > 1 + SPREAD_MARGIN:
        found.append(
            f"scores of alike canaries are spread {spread.estimate:.2f} times as far as fresh batches would spread them"
        )
    for correlation, what in ((report.between_silos, "silos"), (report.between_rounds, "rounds")):
        if correlation.largest > correlation.threshold:
            found.append(f"the noise of two {what} is correlated: |r| = {correlation.largest:.2f}")
    if report.normality is not None and report.normality < FALSE_ALARM:
        found.append(f"the noise is not normal (p = {report.normality:.0e})")
    if report.influence is not None and report.influence > 1 + CLIP_MARGIN:
        one = "person" if report.unit == "person" else "record"
        found.append(f"one {one} changes a clipped sum by {report.influence:.3f} clipping norms")
    if report.worst_pair is not None and report.worst_pair > 1 + SUM_SLACK:
        found.append(
            f"by rounding, one record moves a sum by {report.worst_pair:.4f} of the sensitivity, and "
            f"{1 + SUM_SLACK:.4f} is charged"
        )
    if missing:
        found.append(f"{missing} of {report.made} releases are not in the ledger, or not as what they were")
    return found


def _rows(report: Report) -> list[tuple[str, str, str]]:
    """(what, found, claimed) for a table."""
    claimed, strict = _epsilon(report.epsilon, report), _epsilon(report.strict_epsilon, report)
    proven, surely = digits_down(report.epsilon_bound, 3), digits_down(report.strict_bound, 3)
    lines = [
        (f"epsilon that the canaries prove (delta {report.delta:g}, 95 %)", proven, claimed),
        (f"the same at delta {report.strict_delta:g}, sure to {_strict()}", surely, strict),
    ]
    if report.gaussian is not None:
        lines.append(("epsilon estimated, if noise is Gaussian", _interval(report.gaussian, 2), claimed))
    if report.separation is not None and report.expected is not None:
        lines.append(
            ("how far apart canaries are, in noise", _interval(report.separation, 2), f"{report.expected:.2f}")
        )
    if report.noise is not None:
        lines.append(("strength of the noise / claimed", _interval(report.noise, 3), "1"))
    if report.spread is not None:
        lines.append(("spread by batches / if drawn afresh", _interval(report.spread, 2), "1"))
    between = (
        (report.between_silos, "noise alike at two silos? largest |r|"),
        (report.between_rounds, "noise alike in two rounds? largest |r|"),
    )
    for correlation, what in between:
        if correlation.pairs:
            lines.append((what, *_correlated(correlation)))
    if report.normality is not None:
        lines.append(("is the noise Gaussian? p-value", f"{report.normality:.2g}", f"above {FALSE_ALARM:g}"))
    if report.influence is not None:
        one = "person" if report.unit == "person" else "record"
        lines.append((f"most that one {one} changes a sum, in C", f"{report.influence:.3f}", "at most 1"))
    if report.worst_pair is not None:
        most = f"at most {1 + SUM_SLACK:.6f}"
        lines.append(("the same by rounding, in sensitivities", f"{report.worst_pair:.6f}", most))
    lines.append(("releases in the ledger / made", f"{report.charged} / {report.made}", "all"))
    return lines


def _epsilon(value: float | None, report: Report) -> str:
    return "none" if value is None else f"at most {places(value, 2)} ({report.accountant})"


def _strict() -> str:
    return f"{100 * (1 - FALSE_ALARM):.5f} %"


def _interval(interval: Interval, digits: int) -> str:
    """Its ends are rounded outwards."""
    step = Decimal(1).scaleb(-digits)
    low = f"{Decimal(f'{interval.low}').quantize(step, ROUND_FLOOR):f}" if math.isfinite(interval.low) else "inf"
    estimate = f"{interval.estimate:.{digits}f}" if math.isfinite(interval.estimate) else "inf"
    high = places(interval.high, digits) if math.isfinite(interval.high) else "inf"
    return f"{estimate} ({low} to {high})"


def _correlated(correlation: Correlation) -> tuple[str, str]:
    return f"{correlation.largest:.3f}", f"0; by chance up to {correlation.threshold:.3f}"
