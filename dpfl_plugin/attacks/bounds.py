"""What a privacy guarantee allows any attack, as a curve: the largest true positive rate at a false positive rate.

With (epsilon, delta) for neighbouring data sets, a test of one against the other has

    TPR <= e^epsilon FPR + delta    and    1 - FPR <= e^epsilon (1 - TPR) + delta

(Kairouz, Oh, Viswanath 2015, Thm 2.1). All pairs (epsilon, delta) hold together, so the smallest bound counts
(Dong, Roth, Su 2022, sec. 2). A membership attack obeys it on average over which of a silo's records were drawn to
train on: exchanging a member and a non-member is replacing one record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.events import Term

Array = NDArray[np.float64]

# Small ones for the steep end of the curve, where few are called members; the others so that its middle looks round.
DELTAS = (*(float(d) for d in np.geomspace(1e-7, 0.02, 24)), *(float(d) for d in np.linspace(0.03, 0.9, 30)))
_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Bound:
    """The largest true positive rate that a guarantee allows.

    Attributes:
        guarantees: (epsilon, delta), all of which hold.
        exchanges: neighbours between a data set with a record and one with another in its place: 1 where neighbours
            differ by replacing one, 2 where by adding or removing one.
    """

    guarantees: tuple[tuple[float, float], ...]
    exchanges: int = 1

    def tpr(self, fpr: Array | float) -> Array:
        """The bound at false positive rates ``fpr``, in [0, 1]; 1 where nothing is guaranteed."""
        rate = np.asarray(fpr, dtype=np.float64)
        for _ in range(self.exchanges):  # neighbours of neighbours: Dong, Roth, Su 2022, sec. 2.5
            rate = self._once(rate)
        return rate

    def _once(self, fpr: Array) -> Array:
        best = np.ones_like(fpr)
        for epsilon, delta in self.guarantees:
            steep = fpr * math.exp(min(epsilon, 700.0)) + delta
            flat = 1 - math.exp(-epsilon) * (1 - delta - fpr)
            best = np.minimum(best, np.minimum(steep, flat))
        return best

    def auc(self) -> float:
        """The largest area under a ROC curve, rounded up: a sum of the curve's right ends, at most 5e-5 above."""
        return float(self.tpr(np.arange(1, _STEPS + 1) / _STEPS).mean())


def bound(accountant: Accountant, compositions: Iterable[Sequence[Term]], *, replace_one: bool) -> Bound:
    """The bound for a silo whose releases are ``compositions``, of disjoint shares of its records: the worst one.

    Raises:
        UnsupportedError: the accountant does not know a release.
    """
    composed = [tuple(terms) for terms in compositions]
    guarantees = tuple(
        (max((accountant.epsilon(terms, delta) for terms in composed), default=0.0), delta) for delta in DELTAS
    )
    return Bound(guarantees, 1 if replace_one else 2)
