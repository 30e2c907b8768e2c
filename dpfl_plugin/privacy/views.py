"""From charges to statements: what each observer could learn, as (epsilon, delta).

The server sees every message of every silo, so that a silo's own releases are composed and nobody else's noise helps.
A third party sees global models only, functions of the server's view; if who takes part is drawn honestly,
unpredictably and independently of the data, its guarantee is the mixture of taking part and not (`third_party_view`).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dpfl_plugin.errors import ConfigError, LedgerError, UnsupportedError
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.composition import (
    NO_RELEASES,
    Planned,
    ReleasesBySilo,
    Share,
    Terms,
    certain_parts,
    compose,
    shares_by_interval,
    silo_compositions,
    undominated,
)
from dpfl_plugin.privacy.events import Charge, Neighbouring, SampledGaussian, Term, Unit
from dpfl_plugin.privacy.pld import normalise
from dpfl_plugin.privacy.tally import Tally

View = Literal["server", "third_party", "outsider"]

_PER_SILO_LIMIT = 64  # distinct compositions up to which each silo's own epsilon is worked out


Pattern = Callable[[int, int], Iterable[Planned]]
"""(silo, round) -> what the silo is charged in that round if it takes part; depends on its number of records."""


@dataclass(frozen=True, slots=True)
class AlikeRounds:
    """A pattern of very many rounds: asked once for all that have the same plan.

    Attributes:
        plans: of each round; those of alike rounds are best one object.
        planned: (silo, plan) -> what the silo is charged.
    """

    plans: Mapping[int, Any]
    planned: Callable[[int, Any], Iterable[Planned]]

    def __call__(self, silo: int, round_: int) -> Iterable[Planned]:
        return self.planned(silo, self.plans[round_])


def _alike(pattern: Pattern, round_: int) -> object:
    """The same for rounds of which the pattern says the same."""
    return id(pattern.plans[round_]) if isinstance(pattern, AlikeRounds) else round_


def _grouped(rounds: Iterable[int], key: Callable[[int], object]) -> list[tuple[int, int]]:
    """(one of them, how many) of rounds with the same key."""
    found: dict[object, tuple[int, int]] = {}
    for round_ in rounds:
        alike = key(round_)
        first, times = found.get(alike, (round_, 0))
        found[alike] = first, times + 1
    return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewEpsilon:
    """One guarantee, with all that it depends on.

    Attributes:
        view: who looks.
        epsilon, delta: the guarantee; epsilon is math.inf where there is none.
        neighbouring, unit: what it protects; None where nothing was released.
        accountant: its name.
        worst_silo: the silo whose epsilon this is; None where nothing was released.
        basis: what was composed, in a sentence.
        per_silo: each silo's own epsilon, where that is cheap; else empty.
    """

    view: View
    epsilon: float
    delta: float
    neighbouring: Neighbouring | None
    unit: Unit | None
    accountant: str
    worst_silo: int | None
    basis: str
    per_silo: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Composed:
    """What a view is a statement of, to be stated by any number of accountants; see the views of these names.

    Attributes:
        compositions: of each silo.
        basis: what was composed, in a sentence.
    """

    view: View
    compositions: Mapping[int, tuple[Terms, ...]]
    basis: str

    def stated(self, accountant: Accountant, delta: float) -> ViewEpsilon:
        return _statement(self.view, self.compositions, accountant, delta, self.basis)


def server_view(
    charges: Iterable[Charge], accountant: Accountant, delta: float, *, beside: ReleasesBySilo = NO_RELEASES
) -> ViewEpsilon:
    """What the server learned: each silo's realised releases, the worst silo.

    Args:
        beside: what is to be composed with them.

    Raises:
        ConfigError: neighbouring relations or units are mixed, or delta is outside (0, 1).
        UnsupportedError: no sound bound is known for a release.
    """
    return server_composed(charges, beside=beside).stated(accountant, delta)


def server_composed(charges: Iterable[Charge], *, beside: ReleasesBySilo = NO_RELEASES) -> Composed:
    """What `server_view` states."""
    basis = "all releases that each silo made, in the rounds it took part in; disjoint record shares in parallel"
    return Composed("server", silo_compositions(charges, beside), basis)


def worst_case_view(
    charges: Iterable[Charge],
    accountant: Accountant,
    delta: float,
    *,
    silos: Iterable[int],
    rounds: Collection[int],
    pattern: Pattern,
    cap: int | None = None,
    beside: ReleasesBySilo = NO_RELEASES,
) -> ViewEpsilon:
    """What the server could have learned by picking a silo in every round that was run, or in ``cap`` of them.

    Args:
        charges: what was released; each must be part of the pattern. A round released afresh after a crash counts as
            often as it was released, by whichever silos: a silo that no attempt had might have been in all of them.
        silos: ids to state it for; one of each kind (number of records) is enough.
        rounds: the rounds that were run.
        cap: the most rounds that a silo may take part in; see `worst_case_terms`.
        beside: as `server_view`.

    Raises:
        LedgerError: a charge is not in the pattern.
        ConfigError, UnsupportedError: as `server_view` and `worst_case_terms`.
    """
    composed = worst_case_composed(charges, silos=silos, rounds=rounds, pattern=pattern, cap=cap, beside=beside)
    return composed.stated(accountant, delta)


def worst_case_composed(
    charges: Iterable[Charge],
    *,
    silos: Iterable[int],
    rounds: Collection[int],
    pattern: Pattern,
    cap: int | None = None,
    beside: ReleasesBySilo = NO_RELEASES,
) -> Composed:
    """What `worst_case_view` states."""
    attempts = _attempts(charges, rounds, pattern)
    groups = _grouped(rounds, lambda round_: (_alike(pattern, round_), attempts.of(round_)))
    compositions = {}
    for silo in silos:
        plans: Counter[tuple[Planned, ...]] = Counter()
        for round_, times in groups:
            plans[tuple(pattern(silo, round_))] += attempts.of(round_) * times
        compositions[silo] = worst_case_terms(plans, cap, beside.get(silo, ()))
    capped = cap is not None and cap < sum(attempts.of(round_) for round_ in rounds)
    again = ", and in every attempt at one" if attempts.several else ""
    where = f"in {cap} rounds, the cap" if capped else f"in each of the {len(rounds)} rounds run{again}"
    basis = f"all releases that a silo would make by taking part {where}; disjoint record shares in parallel"
    return Composed("server", compositions, basis)


def worst_case_terms(
    plans: Mapping[tuple[Planned, ...], int], cap: int | None = None, beside: Iterable[Planned] = ()
) -> tuple[Terms, ...]:
    """A silo's compositions, had it taken part in every round, or in the dearest ``cap`` of them.

    With a cap these are the dearest rounds, where of any two rounds one dominates the other: it makes as many releases
    of noise up to any z, and they differ in nothing else. Any ``cap`` rounds are then dominated by the dearest, one by
    one. Else each release on each share is counted in those ``cap`` rounds that make most of it, which can only
    overstate.

    Args:
        plans: what a round makes of the silo, and how many rounds do, each as often as it was released.
        cap: the most rounds, fresh releases of a round included, that a silo may take part in.
        beside: releases to be composed with them.

    Raises:
        ConfigError: the cap is below 0, or as `Spending.compositions`.
        UnsupportedError: as `Spending.compositions`.
    """
    if cap is not None and cap < 0:
        raise ConfigError(f"cap={cap!r} must be at least 0.")
    if cap is not None and (ordered := _dearest_first(plans)) is not None:
        plans, cap = _first(ordered, plans, cap), None
    rounds: defaultdict[tuple[Share, SampledGaussian], Counter[int]] = defaultdict(Counter)
    for plan, number in plans.items():
        counts: Counter[tuple[Share, SampledGaussian]] = Counter()
        for planned in plan:
            counts[planned.share, planned.release] += planned.count
        for key, count in counts.items():
            rounds[key][count] += number
    parts = certain_parts(beside)
    for (share, release), numbers in rounds.items():
        left = sum(numbers.values()) if cap is None else cap
        for count in sorted(numbers, reverse=True):
            taken = min(left, numbers[count])
            left -= taken
            parts.append((share, Term(release=release, count=count, rounds=taken)))
    return compose(parts)


def _dearest_first(plans: Iterable[tuple[Planned, ...]]) -> list[tuple[Planned, ...]] | None:
    """The rounds in an order in which each dominates the next, or None if there is no such order."""
    ordered = sorted(plans, key=_information, reverse=True)
    kinds = {(p.share, replace(p.release, noise_multiplier=0.0)) for plan in ordered for p in plan}
    chain = len(kinds) == 1 and all(_covers(more, less) for more, less in itertools.pairwise(ordered))
    return ordered if chain else None


def _information(plan: tuple[Planned, ...]) -> float:
    """sum of 1 / sigma^2, which is not smaller for a round that dominates another."""
    return sum(p.count / max(p.release.noise_multiplier, 1e-150) ** 2 for p in plan)


def _covers(more: tuple[Planned, ...], less: tuple[Planned, ...]) -> bool:
    """Whether up to any noise there are at least as many releases in ``more`` as in ``less``."""
    counts: defaultdict[float, int] = defaultdict(int)
    for sign, plan in ((1, more), (-1, less)):
        for planned in plan:
            counts[planned.release.noise_multiplier] += sign * planned.count
    return all(total >= 0 for total in itertools.accumulate(counts[noise] for noise in sorted(counts)))


def _first(
    ordered: Sequence[tuple[Planned, ...]], plans: Mapping[tuple[Planned, ...], int], number: int
) -> dict[tuple[Planned, ...], int]:
    """The first ``number`` rounds in this order."""
    taken: dict[tuple[Planned, ...], int] = {}
    for plan in ordered:
        taken[plan] = min(plans[plan], number - sum(taken.values()))
    return taken


def third_party_view(
    charges: Iterable[Charge],
    accountant: Accountant,
    delta: float,
    *,
    silos: Iterable[int],
    participation: Mapping[int, float],
    pattern: Pattern,
    beside: ReleasesBySilo = NO_RELEASES,
) -> ViewEpsilon:
    """What anyone learns from the global models, when participation was drawn honestly, unpredictably and
    independently of the data.

    Ex ante: a round that a silo takes part in with probability p costs the mixture of its releases, with
    probability p, and nothing. With p = 1 that is the worst case of the server's view, and never more than that.
    Silos that were never picked have this epsilon too.

    Why, and what of the draw it needs. Let D say who takes part in which round, Y what is seen, and X, X' neighbours
    that differ at silo i. D has one law under both, so that for the hockey-stick divergence

        H_a((D, Y)(X) || (D, Y)(X')) = E_D[H_a(Y(X) given D || Y(X') given D)],

    and given D only the rounds in which D has i differ. Their bits are independent, each 1 with probability p: this is
    the composition of rounds that tell their bit, and then release or not, which is what is composed here. So (D, Y)
    has the guarantee, and with it Y alone:

    * No secrecy is needed: whoever is told D when the run is over, or as it goes, sees no more than (D, Y).
    * Unpredictability is: the left side is an average over D. To whom D is known in advance, because it follows from
      a seed that is 0 unless somebody says otherwise, D is a constant and nothing is averaged. Such an observer may
      look at the silo that D has most often, and holds Y given D: what is left is the server's realised view, which
      bounds whatever anybody makes of the models. The same goes for batches, whose amplification is an average over
      their draw in every view.

    Therefore fresh runs draw participants from the operating system's randomness (`planning.fresh_coins`), and the
    basis of a simulation's number says that it holds as if they had been.

    Args:
        charges: as `worst_case_view`. A round that was released more than once is composed as certain, as often as
            it was released: whether its attempts drew their silos anew is not known here.
        participation: for each round that was run, the probability that a given silo takes part (S / M).
        beside: as `server_view`; composed as certain.

    Raises:
        ConfigError: a probability is outside [0, 1], or as `server_view`.
        LedgerError: a charge is not in the pattern, or in a round without a probability.
        UnsupportedError: a round that is not certain makes different releases on the same records; or as `server_view`.
    """
    composed = third_party_composed(charges, silos=silos, participation=participation, pattern=pattern, beside=beside)
    return composed.stated(accountant, delta)


def third_party_composed(
    charges: Iterable[Charge],
    *,
    silos: Iterable[int],
    participation: Mapping[int, float],
    pattern: Pattern,
    beside: ReleasesBySilo = NO_RELEASES,
) -> Composed:
    """What `third_party_view` states."""
    for round_, probability in participation.items():
        if not 0 <= probability <= 1:
            raise ConfigError(f"participation={probability!r} in round {round_} must be in [0, 1].")
    attempts = _attempts(charges, participation, pattern)
    groups = _grouped(
        participation, lambda round_: (_alike(pattern, round_), attempts.of(round_), participation[round_])
    )
    compositions = {}
    for silo in silos:
        totals: Counter[tuple[tuple[Planned, ...], float]] = Counter()
        for round_, times in groups:
            number, probability = attempts.of(round_), participation[round_]
            totals[tuple(pattern(silo, round_)), 1.0 if number > 1 else probability] += number * times
        compositions[silo] = _mixtures(totals, beside.get(silo, ()))
    basis = (
        "for each round run, the mixture of a silo's releases (with the probability that it takes part, drawn honestly "
        "and independently of the data) and none; disjoint record shares in parallel"
    )
    if attempts.several:
        basis += "; a round that was released again counts as certain, as often as it was released"
    return Composed("third_party", compositions, basis)


def outsider_view(
    charges: Iterable[Charge],
    accountant: Accountant,
    delta: float,
    *,
    release: SampledGaussian,
    rounds: Mapping[int, tuple[int, int]],
) -> ViewEpsilon:
    """What the global models tell of a whole silo to someone who does not know who took part.

    In a round such an observer sees a function of the mean of S updates, each clipped to C and noised with 2 C sigma,
    of S silos drawn out of M without replacement. Replacing one silo's data moves one update by at most 2 C, and the
    noise of the sum is sqrt(S) times that of one: a Gaussian mechanism of noise multiplier sqrt(S) sigma on a sample of
    S of M. Sampling amplifies here, as it does not at record level, because a round without the silo has another silo
    in its place: the sets that are compared are of the same size.

    This holds where an update depends on the download and on the silo's own data only (no state is kept between
    rounds), all uploads have the same weight, who took part stays secret (it must neither follow from a seed that the
    observer knows, nor be told by what is published of the run), and no silo tells its own noise. A round
    that was released n times, to the same silos, is one sample with n sums: noise multiplier sqrt(S / n) sigma.

    Args:
        charges: what was released.
        release: the one release of a silo in a round.
        rounds: (S, M) of each round.

    Raises:
        UnsupportedError: the releases are not of whole silos under replacement.
        LedgerError: a charge is another release, or in a round that ``rounds`` does not know.
    """
    if (release.unit, release.neighbouring) != ("silo", "replace_one"):
        raise UnsupportedError(
            "what someone learns who does not know who took part is only proven for unit: silo, neighbouring: "
            f"replace_one; not for unit={release.unit!r}, neighbouring={release.neighbouring!r}."
        )
    noise: defaultdict[int, set[str]] = defaultdict(set)
    for charge in charges:
        if charge.release != release or charge.count != 1 or charge.round not in rounds:
            raise LedgerError(f"{charge} is not one release {release} in a round that the view was asked for.")
        noise[charge.round].add(charge.noise_id)
    totals = Counter((S, M, max(1, len(noise[round_]))) for round_, (S, M) in rounds.items())
    terms = []
    for (S, M, number), count in totals.items():
        sigma = release.noise_multiplier * math.sqrt(S / number)
        seen = replace(release, noise_multiplier=sigma, sampler="fixed" if S < M else "full", rate=S / M)
        terms.append(Term(release=seen, count=1, rounds=count))
    basis = (
        "for each round run, the sum of all uploads with the noise of all of them, of silos drawn without replacement; "
        "whoever looks knows neither who took part nor any silo's noise"
    )
    return _statement("outsider", {0: (normalise(terms),)} if terms else {}, accountant, delta, basis)


def _mixtures(totals: Mapping[tuple[tuple[Planned, ...], float], int], beside: Sequence[Planned]) -> tuple[Terms, ...]:
    """Compositions of rounds that either make all their releases or none, and of releases ``beside`` them."""
    everything = [*beside, *(p for plan, _ in totals for p in plan)]
    if not everything:
        return ()
    found = set[Terms]()
    for covering in shares_by_interval((p.share for p in everything), everything[0].release.unit):
        terms = [term for share, term in certain_parts(beside) if share in covering]
        for (plan, probability), rounds in totals.items():
            merged: Counter[SampledGaussian] = Counter()
            for planned in plan:
                if planned.share in covering:
                    merged[planned.release] += planned.count
            if probability < 1 and len(merged) > 1:
                raise UnsupportedError(
                    "a round that a silo takes part in with a probability below 1 makes different releases on the "
                    "same records: their mixture is not implemented. State the server's worst case, which holds here "
                    "too."
                )
            for release, count in merged.items():
                terms.append(Term(release=release, count=count, rounds=rounds, participation=probability))
        found.add(normalise(terms))
    normalise(term for terms in found for term in terms)  # one neighbouring relation and unit over all intervals
    return tuple(sorted((terms for terms in found if terms), key=repr))


class _Attempts:
    """For each round how often it was released, whoever took part: 1, also where nobody did, but for some."""

    def __init__(self, several: Mapping[int, int]) -> None:
        self.several = several

    def of(self, round_: int) -> int:
        return self.several.get(round_, 1)


def _attempts(charges: Iterable[Charge], rounds: Collection[int], pattern: Pattern) -> _Attempts:
    """How often rounds were released; checks the charges against the pattern."""
    tally = charges if isinstance(charges, Tally) else Tally(charges)
    known = rounds if isinstance(rounds, Mapping | range) else set(rounds)
    planned: dict[tuple[object, int, int], int] = {}
    for round_, silo, kind, _, count in tally.entries():
        if round_ not in known:
            raise LedgerError(f"round {round_} has charges, but is not among the rounds that the view was asked for.")
        key = _alike(pattern, round_), silo, kind
        if key not in planned:
            plan = pattern(silo, round_)
            planned[key] = sum(p.count for p in plan if (p.share, p.release) == tally.names.kinds[kind])
        if count > planned[key]:
            share, release = tally.names.kinds[kind]
            most = max(e.releases for e in tally.entries() if (e.round, e.silo, e.kind) == (round_, silo, kind))
            raise LedgerError(
                f"silo {silo} was charged {most} releases in round {round_} where the run's pattern has "
                f"{planned[key]} ({release} on {share}): the configuration is not the one that made the ledger."
            )
    return _Attempts(tally.again())


def _statement(
    view: View, compositions: Mapping[int, tuple[Terms, ...]], accountant: Accountant, delta: float, basis: str
) -> ViewEpsilon:
    kinds: dict[tuple[Terms, ...], int] = {}
    for silo in sorted(compositions):
        kinds.setdefault(compositions[silo], silo)
    meanings = {(t.release.neighbouring, t.release.unit) for kind in kinds for terms in kind for t in terms}
    if len(meanings) > 1:
        named = ", ".join(sorted(f"{neighbouring} of a {unit}" for neighbouring, unit in meanings))
        raise ConfigError(f"silos' releases have different neighbouring relations or units: {named}. State them apart.")
    neighbouring, unit = next(iter(meanings), (None, None))
    known: dict[Terms, float] = {(): accountant.epsilon((), delta)}

    def of(kind: tuple[Terms, ...]) -> float:
        for terms in kind:
            if terms not in known:
                known[terms] = accountant.epsilon(terms, delta)
        return max((known[terms] for terms in kind), default=known[()])

    per_silo: dict[int, float] = {}
    if len(kinds) <= _PER_SILO_LIMIT:
        per_silo = {silo: of(kind) for silo, kind in compositions.items()}
    kept = set(undominated(terms for kind in kinds for terms in kind))
    candidates = [kind for kind in kinds if not kept.isdisjoint(kind)]
    worst = max(candidates, key=of, default=None)
    return ViewEpsilon(
        view=view,
        epsilon=known[()] if worst is None else of(worst),
        delta=delta,
        neighbouring=neighbouring,
        unit=unit,
        accountant=accountant.name,
        worst_silo=None if worst is None else kinds[worst],
        basis=basis,
        per_silo=per_silo,
    )
