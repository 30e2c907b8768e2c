"""From releases to compositions: what each silo made, per elementary interval of its records.

**Elementary intervals.** A silo's records have an order that does not depend on what is in them, and a share [a, b)
reads the ranks round(a n) <= rank < round(b n) of n records (`core.shares.share_bounds`); of persons, where these are
the unit. Let e_0 < e_1 < ... be the ends of all shares that a silo's releases read, and r_k = round(e_k n). As both
multiplication by n and rounding are monotone, r_0 <= r_1 <= ..., and the ranks [r_k, r_k+1) of the elementary intervals
[e_k, e_k+1) are disjoint.

**Claim.** A record of rank t in [r_k, r_k+1) is read by those shares alone that cover [e_k, e_k+1).

**Proof.** Let it be read by [a, b), so that round(a n) <= t < round(b n). The ends a and b are among the e_j. If
a > e_k then a >= e_k+1 and round(a n) >= r_k+1 > t, a contradiction; likewise b < e_k+1 means b <= e_k and
round(b n) <= r_k <= t. So a <= e_k and b >= e_k+1. []

So replacing one record, or letting it count as zero, changes the releases of one elementary interval's shares and no
others, and the worst of these compositions holds for all records (parallel composition, McSherry 2009, Thm 4). Of
intervals only those count whose set of shares is not a part of another's, since fewer releases are a post-processing of
more. An elementary interval that holds no rank of a silo can only overstate. It needs the same order and the same n in
all runs that are composed in this way; see `dpfl_plugin.privacy.filters`. Replacing a silo (``unit: silo``) changes all
records: all shares are one interval.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dpfl_plugin.privacy.events import Batch, Charge, SampledGaussian, Term, Unit, batches
from dpfl_plugin.privacy.pld import normalise
from dpfl_plugin.privacy.tally import Tally

Terms = tuple[Term, ...]
Share = tuple[float, float]
_KEPT_LIMIT = 200  # incomparable compositions beyond which looking for dominated ones costs more than it saves


@dataclass(frozen=True, slots=True)
class Planned:
    """What one round makes of one silo, if it takes part: ``count`` times ``release``, reading ``share``."""

    release: SampledGaussian
    count: int
    share: Share = (0.0, 1.0)


ReleasesBySilo = Mapping[int, Sequence[Planned]]
"""For each silo, releases that are to be composed with those of its rounds."""

NO_RELEASES: ReleasesBySilo = {}


class Spending:
    """Per silo, how often each release was made on each share; grows with the ledger.

    Args:
        charges: a `Tally` is taken over as it is, and must not grow by itself from there on.
    """

    def __init__(self, charges: Iterable[Charge] = ()) -> None:
        self._counts: dict[int, dict[int, int]] = {}  # silo -> {kind: releases}, by the numbers of `Names`
        self._seen = charges if isinstance(charges, Tally) else Tally()
        for (silo, kind), count in self._seen.totals().items():
            self._count(silo, kind, count)
        if charges is not self._seen:
            self.add(charges)

    def add(self, charges: Iterable[Charge]) -> None:
        """Add charges. The same bits released again count once, as in the ledger."""
        self.add_all(batches(charges))

    def add_all(self, made: Iterable[Batch]) -> None:
        """`add` of charges that are in batches already."""
        for first, silos in made:
            kind = self._seen.names.kind_number((first.share, first.release))
            for silo, more in zip(silos, self._seen.add(first, silos), strict=True):
                if more:
                    self._count(silo, kind, more)

    def _count(self, silo: int, kind: int, more: int) -> None:
        counts = self._counts.setdefault(silo, {})
        counts[kind] = counts.get(kind, 0) + more

    def __iter__(self) -> Iterator[int]:
        return iter(self._counts)

    def compositions(self, silo: int, planned: Iterable[Planned] = ()) -> tuple[Terms, ...]:
        """The silo's compositions, one for each elementary interval, were ``planned`` released too.

        Raises:
            ConfigError: neighbouring relations or units are mixed.
        """
        kinds = self._seen.names.kinds
        counts = Counter({kinds[kind]: count for kind, count in self._counts.get(silo, {}).items()})
        for plan in planned:
            counts[plan.share, plan.release] += plan.count
        return compose([(share, Term(release=r, count=n, rounds=1)) for (share, r), n in counts.items()])

    def noise_multipliers(self) -> set[float]:
        """Of all releases that were made."""
        kinds = self._seen.names.kinds
        return {kinds[kind][1].noise_multiplier for counts in self._counts.values() for kind in counts}

    def envelope(self, silos: Iterable[int]) -> list[Planned]:
        """Releases that dominate those of each of ``silos``.

        Of releases that differ in their noise only, it makes as many of noise up to any z as that silo which makes the
        most. So the k-th in the order of growing noise has no more noise than the k-th of any silo.
        """
        kinds: defaultdict[tuple[Share, SampledGaussian], list[dict[float, int]]] = defaultdict(list)
        for silo in silos:
            own: defaultdict[tuple[Share, SampledGaussian], dict[float, int]] = defaultdict(dict)
            for number, count in self._counts.get(silo, {}).items():
                share, release = self._seen.names.kinds[number]
                own[share, replace(release, noise_multiplier=0.0)][release.noise_multiplier] = count
            for kind, counts in own.items():
                kinds[kind].append(counts)
        return [
            Planned(replace(release, noise_multiplier=noise), count, share)
            for (share, release), of_silos in kinds.items()
            for noise, count in _least_noise_first(of_silos)
        ]


def _least_noise_first(of_silos: Sequence[Mapping[float, int]]) -> Iterator[tuple[float, int]]:
    """(noise, count) such that up to any noise they are as many as the most of one silo's {noise: count}."""
    so_far, most = [0] * len(of_silos), 0
    for noise in sorted({noise for counts in of_silos for noise in counts}):
        so_far = [total + counts.get(noise, 0) for total, counts in zip(so_far, of_silos, strict=True)]
        if max(so_far) > most:
            yield noise, max(so_far) - most
            most = max(so_far)


def compositions(planned: Iterable[Planned]) -> tuple[Terms, ...]:
    """Compositions of releases that are certain, one for each elementary interval.

    Raises:
        ConfigError: as `Spending.compositions`.
    """
    return compose(certain_parts(planned))


def silo_compositions(charges: Iterable[Charge], extra: ReleasesBySilo = NO_RELEASES) -> dict[int, tuple[Terms, ...]]:
    """Per silo its compositions, one for each elementary interval; a record is in one of them only.

    Raises:
        ConfigError: as `Spending.compositions`.
    """
    spending = Spending(charges)
    return {silo: spending.compositions(silo, extra.get(silo, ())) for silo in sorted({*spending, *extra})}


def shares_by_interval(shares: Iterable[Share], unit: Unit) -> tuple[frozenset[Share], ...]:
    """The shares that cover an elementary interval, for each of these; see the module.

    Without those intervals whose shares all cover another one, too. Empty if there are no shares.
    """
    return _shares_by_interval(frozenset(shares), unit)


@functools.lru_cache(maxsize=4096)
def _shares_by_interval(shares: frozenset[Share], unit: Unit) -> tuple[frozenset[Share], ...]:
    if unit == "silo" or len(shares) < 2:
        return (shares,) if shares else ()
    ends = sorted({end for share in shares for end in share})
    covers = {
        frozenset(share for share in shares if share[0] <= first and last <= share[1])
        for first, last in itertools.pairwise(ends)
    }
    largest = [cover for cover in covers if cover and not any(cover < other for other in covers)]
    return tuple(sorted(largest, key=sorted))


def compose(parts: Sequence[tuple[Share, Term]]) -> tuple[Terms, ...]:
    """The compositions of terms on shares of a silo's records, one for each elementary interval.

    Raises:
        ConfigError: as `Spending.compositions`.
    """
    everything = normalise(term for _, term in parts)  # one neighbouring relation and unit over all intervals
    if not everything:
        return ()
    intervals = shares_by_interval((share for share, _ in parts), everything[0].release.unit)
    if len(intervals) == 1:
        return (everything,)
    composed = {normalise(term for share, term in parts if share in covering) for covering in intervals}
    return tuple(sorted((terms for terms in composed if terms), key=repr))


def certain_parts(planned: Iterable[Planned]) -> list[tuple[Share, Term]]:
    return [(p.share, Term(release=p.release, count=p.count, rounds=1)) for p in planned]


def undominated(compositions: Iterable[Terms]) -> list[Terms]:
    """The compositions that may be worst: not those that another is at least as costly as, term by term."""
    kept: list[Terms] = []
    for terms in sorted(set(compositions), key=_size, reverse=True):
        if not any(dominates(other, terms) for other in kept[:_KEPT_LIMIT]):
            kept.append(terms)
    return kept


def _size(terms: Terms) -> tuple[float, ...]:
    return (
        sum(t.count * t.rounds * t.participation * t.release.rate for t in terms),
        sum(t.count * t.rounds for t in terms),
        -sum(t.release.noise_multiplier for t in terms),
    )


def dominates(more: Terms, less: Terms) -> bool:
    """Whether ``less`` is a post-processing of ``more``, or has the smaller privacy profile, term by term.

    More noise, fewer releases and less participation are post-processing; the profile of a sampled release grows
    with its rate (its delta(epsilon) is a convex combination with that of no release at all).
    """
    return len(more) == len(less) and all(
        (m.release.sampler, m.release.neighbouring, m.release.unit)
        == (n.release.sampler, n.release.neighbouring, n.release.unit)
        and m.release.noise_multiplier <= n.release.noise_multiplier
        and m.release.rate >= n.release.rate
        and m.count >= n.count
        and m.rounds >= n.rounds
        and m.participation >= n.participation
        for m, n in zip(more, less, strict=True)
    )
