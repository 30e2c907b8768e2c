"""Scores of canaries and the noise around them, in units of the noise that is claimed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.evidence.audit_report import FALSE_ALARM
from dpfl_plugin.evidence.canaries import Planting
from dpfl_plugin.evidence.linear_response import Response
from dpfl_plugin.privacy import audit as statistics
from dpfl_plugin.privacy.audit import Correlation, Interval
from dpfl_plugin.privacy.rules import PrivacyRules

Array = NDArray[np.float64]

CONFIDENCE: Final = 0.05  # of the intervals that are shown
MOST_NORMALS: Final = 200_000
FEW: Final = 10  # canaries below which nothing is said of their spread


class Measured:
    """Scores and noise of the canary silos, in units of the noise that is claimed.

    The claim is computed here from the configuration's numbers, not asked of the code that makes the noise:
    standard deviation sigma 2C / b where records are replaced and sigma C / b where one is added or removed, with
    b = rate n; at silo level without the b. Where clipping norms are adapted, C is that of each release, and sigma is
    larger by as much as the count of gradients within C costs.
    """

    def __init__(
        self,
        rules: PrivacyRules,
        planting: Planting,
        silos: Sequence[int],
        num_records: Sequence[int],
        found: Sequence[Response],
    ) -> None:
        self._planting, self._rules = planting, rules
        self._sigma = rules.release(1.0).noise_multiplier
        self.noisy = self._sigma > 0
        self.scores = np.zeros(planting.num_canaries)
        self._chance = np.zeros(planting.num_canaries)  # variance that the batches add to a score
        self._quiet: list[Array] = []
        self._names = [response.names for response in found]
        expected = []
        for silo, records, response in zip(silos, num_records, found, strict=True):
            rate = rules.sampler.rate(records) if rules.unit != "silo" else 1.0
            sigma = self._sigma * self._grown(rate * records)
            seen = response.innovations(self._claimed_std(sigma, rate * records))
            size = float(np.linalg.norm(response.mean))
            own = planting.of(silo)
            if size > 0:
                self.scores[own] = response.mean / size @ seen[:, own]
            self._quiet.append(seen[:, planting.num_canaries :])
            if self.noisy:
                replaced = self._sensitivity
                present = np.ones(len(own)) if replaced == 2.0 else planting.bits[own].astype(float)
                self._chance[own] = present * rate * (1 - rate) / (replaced * sigma) ** 2
                expected += [rate * size / sigma] * len(own)
        self._expected = float(np.mean(expected)) if expected else None

    @property
    def _sensitivity(self) -> float:
        return 2.0 if self._rules.neighbouring == "replace_one" else 1.0

    def _grown(self, batch: float) -> float:
        """z_g / z: how much larger the noise of a gradient is for the sake of a count."""
        clipping = self._rules.clipping
        if not self.noisy or not clipping.adapts:
            return 1.0
        return 1 / math.sqrt(1 - clipping.bit_weight(self._sigma, batch, self._sensitivity / 2) ** 2)

    def _claimed_std(self, sigma: float, batch: float) -> float:
        if not self.noisy:
            return 1.0
        return sigma * self._sensitivity * self._rules.clip_norm / (batch if self._rules.unit != "silo" else 1.0)

    def results(self, delta: float, strict_delta: float) -> dict[str, Any]:
        bits, scores = self._planting.bits, self.scores
        mu = statistics.separation(scores, bits, CONFIDENCE / 2)
        strict = statistics.separation(scores, bits, FALSE_ALARM)
        noise = np.concatenate([seen.ravel() for seen in self._quiet]) if self.noisy else np.zeros(0)
        spread = self._spread() if self.noisy else None

        def epsilon(mu: float) -> float:
            return statistics.gaussian_epsilon(mu, delta)

        def size(values: Array, freedom: int, false_alarm: float) -> Interval | None:
            return statistics.spread(values, freedom, false_alarm) if freedom > 0 else None

        return {
            "epsilon_bound": statistics.one_run_bound(scores, bits, delta, CONFIDENCE),
            "strict_bound": statistics.one_run_bound(scores, bits, strict_delta, FALSE_ALARM),
            "separation": mu,
            "expected": self._expected,
            "gaussian": None if mu is None else mu.map(epsilon),
            "gaussian_strict": None if strict is None else epsilon(strict.low),
            "noise": size(noise, len(noise), CONFIDENCE),
            "noise_strict": size(noise, len(noise), FALSE_ALARM),
            "spread": None if spread is None else size(*spread, CONFIDENCE),
            "spread_strict": None if spread is None else size(*spread, FALSE_ALARM),
            "between_silos": self._between_silos(),
            "between_rounds": self._between_rounds(),
            "normality": statistics.normality(noise[:MOST_NORMALS]) if len(noise) else None,
            "scores": scores,
        }

    def _spread(self) -> tuple[Array, int] | None:
        """Scores around the means of their groups (silo and bit), in claimed standard deviations; and their freedom."""
        planting, residuals, freedom = self._planting, [], 0
        for silo, bit in itertools.product(np.unique(planting.silo), (False, True)):
            group = (planting.silo == silo) & (planting.bits == bit)
            if group.sum() >= 2:
                values = self.scores[group] / np.sqrt(1 + self._chance[group])
                residuals.append(values - values.mean())
                freedom += int(group.sum()) - 1
        return (np.concatenate(residuals), freedom) if freedom >= FEW else None

    def _between_silos(self) -> Correlation:
        """Of two silos' noise at the same places, over all rounds."""
        found = []
        if self.noisy:
            for i, j in itertools.combinations(range(len(self._quiet)), 2):
                both = sorted(set(self._names[i]) & set(self._names[j]))
                if both:
                    rows = [[self._names[s].index(name) for name in both] for s in (i, j)]
                    x, y = self._quiet[i][rows[0]], self._quiet[j][rows[1]]
                    found.append((statistics.correlation(x, y), x.size))
        return statistics.striking(found, FALSE_ALARM)

    def _between_rounds(self) -> Correlation:
        """Of the noise of two innovations (rounds, or different uploads of one), over all silos that made both."""
        if not self.noisy:
            return Correlation()
        names = sorted({name for own in self._names for name in own})
        place = {name: i for i, name in enumerate(names)}
        products, squares = np.zeros((len(names),) * 2), np.zeros((len(names),) * 2)
        counts = np.zeros((len(names),) * 2, dtype=int)
        for own, seen in zip(self._names, self._quiet, strict=True):
            at = np.ix_(*([[place[name] for name in own]] * 2))
            products[at] += seen @ seen.T
            squares[at] += np.square(seen).sum(axis=1)[:, None]
            counts[at] += seen.shape[1]
        i, j = np.triu_indices(len(names), 1)
        some = squares[i, j] * squares[j, i] > 0
        i, j = i[some], j[some]
        r = products[i, j] / np.sqrt(squares[i, j] * squares[j, i])
        return statistics.striking(list(zip(r.tolist(), counts[i, j].tolist(), strict=True)), FALSE_ALARM)
