"""What a silo agreed to release, release by release: a plan of which each slot is used once at most.

An epsilon that is checked before each round is no guarantee against a server that looks at what came back before it
decides what to ask for next: a privacy loss distribution at a fixed (epsilon, delta) is not a filter (Rogers, Roth,
Ullman, Vadhan 2016). Such a server gets more than epsilon out of rounds each of which fitted (tests/privacy/
test_slots.py has one). So a silo holds the multiset of *slots* of its plan. A slot is one release: its mechanism (noise
multiplier, sampler, rate, neighbouring relation, unit) and the share of the records that it reads. A release takes a
slot of exactly its kind.

**Theorem.** Let S be a multiset of slots, fixed before the first release, and let (P_k, Q_k) dominate the mechanism of
kind k on two neighbouring data sets, one way round, whatever it is asked. A server asks, one after another, for
releases that each take a slot of S; it may choose by everything that it has seen which kind comes next, what is asked
of it, and when to stop. Then for every a >= 0 the hockey-stick divergence H_a of what it has seen is at most that of
the product of all (P_k, Q_k) in S: the epsilon of the full plan holds.

**Proof.** By induction over the number of slots. Without slots nothing was released. Else let the server, given what it
has seen, ask for kind k first: it sees o with densities p(o), q(o), and what follows is a strategy on S - {k}, which
may depend on o. Its divergence is the integral over o of p(o) H_{a q(o) / p(o)}(rest | o) (where p = 0 nothing is
added). By the induction hypothesis this is at most the integral of p(o) H_{a q(o) / p(o)}(product over S - {k}) =
H_a((p, q) x product over S - {k}). As (P_k, Q_k) dominates (p, q), this is at most H_a(product over S) (Zhu, Dong, Wang
2022, Theorem 10). The product does not depend on which kind came first, so the server gains nothing by the order. To
stop is to ask for nothing more, which is post-processing. []

Shares: a record is in one elementary interval (`dpfl_plugin.privacy.composition`), and what reads others alone is the
same whatever the record is. So the theorem holds for each interval by itself, with the slots whose shares cover it, and
the plan's epsilon is the largest of theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpfl_plugin.errors import LedgerError
from dpfl_plugin.privacy.composition import Planned, Share
from dpfl_plugin.privacy.events import Charge, SampledGaussian

SlotKind = tuple[SampledGaussian, Share]


@dataclass(frozen=True, slots=True)
class Lack:
    """Why a release has no slot.

    Attributes:
        release, share: its kind.
        wanted, left: how many releases of it are asked for, and how many slots are left.
        planned: whether the plan has slots of this kind at all.
    """

    release: SampledGaussian
    share: Share
    wanted: int
    left: int
    planned: bool

    def __str__(self) -> str:
        one = self.release
        part = "" if self.share == (0.0, 1.0) else f", on the records [{self.share[0]:g}, {self.share[1]:g})"
        what = f"noise_multiplier {one.noise_multiplier:g}, sampler {one.sampler}, rate {one.rate:g}{part}"
        if not self.planned:
            return f"no release of this kind is in the plan that was agreed on ({what})"
        return f"{self.wanted} releases were asked for, and {self.left} are left of those in the agreed plan ({what})"


class Slots:
    """The slots that are left of a plan.

    Args:
        planned: the plan: what was agreed on before the first release.
    """

    def __init__(self, planned: Iterable[Planned]) -> None:
        self._planned = count_kinds(planned)
        self._left = Counter(self._planned)

    def lacking(self, wanted: Iterable[Planned]) -> Lack | None:
        """Why these releases may not be made; None if each has a slot of exactly its kind. Asking changes nothing."""
        for kind, count in count_kinds(wanted).items():
            if count > self._left[kind]:
                return Lack(*kind, count, self._left[kind], kind in self._planned)
        return None

    def take(self, made: Iterable[Planned]) -> None:
        """Use up the slots of releases that are about to be made.

        Raises:
            LedgerError: one has no slot; then none is used.
        """
        made = list(made)
        lack = self.lacking(made)
        if lack is not None:
            raise LedgerError(f"{lack}: nothing was released.")
        self._left.subtract(count_kinds(made))

    @property
    def planned(self) -> list[Planned]:
        """The whole plan, whatever of it was used."""
        return planned_of(self._planned)


def released(charges: Iterable[Charge]) -> list[Planned]:
    """What charges say was released, as what takes slots. The ledger has each release once."""
    return [Planned(charge.release, charge.count, charge.share) for charge in charges]


def together(planned: Iterable[Planned], made: Iterable[Planned]) -> list[Planned]:
    """The least plan that holds ``planned`` and has a slot for all that was ``made``."""
    return planned_of(count_kinds(planned) | count_kinds(made))


def count_kinds(planned: Iterable[Planned]) -> Counter[SlotKind]:
    """How many releases of each kind."""
    counts: Counter[SlotKind] = Counter()
    for one in planned:
        counts[one.release, one.share] += one.count
    return counts


def planned_of(counts: Mapping[SlotKind, int]) -> list[Planned]:
    """What `count_kinds` counts, without what is not there."""
    return [Planned(release, count, share) for (release, share), count in counts.items() if count > 0]


def to_plain(planned: Iterable[Planned]) -> list[dict[str, Any]]:
    """As plain values, for a ledger."""
    return [{"release": asdict(one.release), "share": list(one.share), "count": one.count} for one in planned]


def from_plain(values: Sequence[Mapping[str, Any]]) -> list[Planned]:
    """What `to_plain` wrote.

    Raises:
        LedgerError: it is something else.
    """
    try:
        return [
            Planned(SampledGaussian(**one["release"]), int(one["count"]), (float(first), float(last)))
            for one in values
            for first, last in [one["share"]]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"the slots of the agreed plan cannot be read ({type(error).__name__}: {error}).") from error
