"""From releases to compositions: what each silo made, by groups of records that have none in common."""

from __future__ import annotations

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


Earlier = Mapping[int, Sequence[Planned]]
"""For each silo, releases of earlier runs that a record which is there now may have been in; see `privacy.prior`."""

NOTHING_EARLIER: Earlier = {}


class Spending:
    """Per silo, how often each release was made on each share; grows with the ledger.

    Args:
        charges: a `Tally` is taken over as it is, and must not grow by itself from there on.
    """

    def __init__(self, charges: Iterable[Charge] = ()) -> None:
        self._counts: dict[int, dict[int, int]] = {}  # silo -> {kind: releases}, by the numbers of `Names`
        self._totals: dict[int, int] = {}
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
            kind = self._seen.names.kind(first.share, first.release)
            grown = self._seen.know_all(self._seen.keys(first, silos), first.count)
            for silo, more in zip(silos, grown, strict=True):
                if more:
                    self._count(silo, kind, more)

    def _count(self, silo: int, kind: int, more: int) -> None:
        counts = self._counts.setdefault(silo, {})
        counts[kind] = counts.get(kind, 0) + more
        self._totals[silo] = self._totals.get(silo, 0) + more

    def __iter__(self) -> Iterator[int]:
        return iter(self._counts)

    def kind(self, planned: Planned) -> int:
        """The number of a kind of release, for `made`."""
        return self._seen.names.kind(planned.share, planned.release)

    def made(self, silo: int, kind: int) -> tuple[int, int]:
        """(how many releases of one kind, how many in all) the silo made."""
        counts = self._counts.get(silo)
        return (0, 0) if counts is None else (counts.get(kind, 0), self._totals[silo])

    def compositions(self, silo: int, planned: Iterable[Planned] = ()) -> tuple[Terms, ...]:
        """The silo's compositions, one for each group of overlapping shares, were ``planned`` released too.

        Raises:
            ConfigError: neighbouring relations or units are mixed.
            UnsupportedError: see `share_groups`.
        """
        return compose(self._parts(silo, planned))

    def composition(self, silo: int, planned: Iterable[Planned], share: Share) -> Terms:
        """Of `compositions` the one that releases on ``share`` are in."""
        parts = self._parts(silo, planned)
        groups = share_groups((of for of, _ in parts), parts[0][1].release.unit)
        return normalise(term for of, term in parts if groups[of] == groups[share])

    def _parts(self, silo: int, planned: Iterable[Planned]) -> list[tuple[Share, Term]]:
        kinds = self._seen.names.kinds
        counts = Counter({kinds[kind]: count for kind, count in self._counts.get(silo, {}).items()})
        for plan in planned:
            counts[plan.share, plan.release] += plan.count
        return [(share, Term(release=r, count=n, rounds=1)) for (share, r), n in counts.items()]

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
    """Compositions of releases that are certain, one for each group of overlapping shares.

    Raises:
        ConfigError, UnsupportedError: as `Spending.compositions`.
    """
    return compose(certain_parts(planned))


def silo_compositions(charges: Iterable[Charge], earlier: Earlier = NOTHING_EARLIER) -> dict[int, tuple[Terms, ...]]:
    """Per silo its compositions, one for each group of overlapping record shares; a record is in one group only.

    Raises:
        ConfigError, UnsupportedError: as `Spending.compositions`.
    """
    spending = Spending(charges)
    return {silo: spending.compositions(silo, earlier.get(silo, ())) for silo in sorted({*spending, *earlier})}


def share_groups(shares: Iterable[Share], unit: Unit) -> dict[Share, int]:
    """A group number for each share; shares of different groups have no record in common.

    Replacing one record changes one group, so that groups compose in parallel (McSherry 2009, Thm 4). So does a record
    that is there or counts as zero, which is what add_or_remove means here: the number of records is public, and no
    other record changes its place. Chains of overlaps make one group, which can only overstate. Replacing a silo
    changes every group: all shares are one.
    """
    ordered = sorted(set(shares))
    if unit == "silo":
        return dict.fromkeys(ordered, 0)
    groups: dict[Share, int] = {}
    group, reach = -1, float("-inf")
    for first, last in ordered:
        if first >= reach:
            group += 1
        reach = max(reach, last)
        groups[first, last] = group
    return groups


def compose(parts: Sequence[tuple[Share, Term]]) -> tuple[Terms, ...]:
    normalise(term for _, term in parts)  # one neighbouring relation and unit over all groups
    if not parts:
        return ()
    release = parts[0][1].release
    groups = share_groups((share for share, _ in parts), release.unit)
    members: defaultdict[int, list[Term]] = defaultdict(list)
    for share, term in parts:
        members[groups[share]].append(term)
    composed = {normalise(terms) for terms in members.values()}
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
