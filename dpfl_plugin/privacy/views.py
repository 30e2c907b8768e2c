"""From charges to statements: what each observer could learn, as (epsilon, delta).

The server sees every message of every silo, so that a silo's own releases are composed and nobody else's noise helps.
A third party sees global models only, functions of the server's view; if who takes part is drawn honestly,
unpredictably and independently of the data, its guarantee is the mixture of taking part and not
(`third_party_composed`).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dpfl_plugin.errors import ConfigError, LedgerError, UnsupportedError
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.budget import Budget
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
from dpfl_plugin.privacy.costs import RoundCost, attempted
from dpfl_plugin.privacy.events import Charge, Neighbouring, SampledGaussian, Term, Unit
from dpfl_plugin.privacy.pld import normalise
from dpfl_plugin.privacy.tally import Tally

View = Literal["server", "third_party", "outsider"]

_PER_SILO_LIMIT = 64  # distinct compositions up to which each silo's own epsilon is worked out


Releases = Callable[[int, RoundCost], Iterable[Planned]]
"""(silo, what a round costs) -> what the silo is charged in it if it takes part; depends on its number of records."""


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
    """What a view is a statement of, to be stated by any number of accountants; see the functions of these names.

    Attributes:
        compositions: of each silo.
        basis: what was composed, in a sentence.
        within: a budget that holds as well, by its own accountant: another does not lean on what that one allowed.
    """

    view: View
    compositions: Mapping[int, tuple[Terms, ...]]
    basis: str
    within: Budget | None = None

    def because(self, why: str) -> Composed:
        """With another reason in its basis."""
        return replace(self, basis=f"{self.basis}; {why}")

    def stated(self, accountant: Accountant, delta: float) -> ViewEpsilon:
        found = _statement(self.view, self.compositions, accountant, delta, self.basis)
        within = self.within
        if within is None or found.epsilon <= within.largest or within.accountant != accountant:
            return found
        basis = "the budget, which no silo's releases pass, whoever is drawn"
        return replace(found, epsilon=within.largest, basis=basis)


def server_view(
    charges: Iterable[Charge], accountant: Accountant, delta: float, *, extra: ReleasesBySilo = NO_RELEASES
) -> ViewEpsilon:
    """What the server learned: each silo's realised releases, the worst silo.

    Args:
        extra: what is to be composed with them.

    Raises:
        ConfigError: neighbouring relations or units are mixed, or delta is outside (0, 1).
        UnsupportedError: no sound bound is known for a release.
    """
    return server_composed(charges, extra=extra).stated(accountant, delta)


def server_composed(charges: Iterable[Charge], *, extra: ReleasesBySilo = NO_RELEASES) -> Composed:
    """What `server_view` states."""
    basis = "all releases that each silo made, in the rounds it took part in; disjoint record shares in parallel"
    return Composed("server", silo_compositions(charges, extra), basis)


def worst_case_composed(
    costs: Mapping[int, RoundCost],
    attempts: Mapping[int, int],
    releases: Releases,
    *,
    silos: Iterable[int],
    cap: int | None = None,
    extra: ReleasesBySilo = NO_RELEASES,
) -> Composed:
    """What the server could have learned by picking a silo in every round that was run, or in ``cap`` of them.

    Args:
        costs: of the rounds that were run.
        attempts: how often rounds were released, of those that were released more than once. A round released afresh
            after a crash counts as often, by whichever silos: one that no attempt had might have been in all of them.
        silos: ids to state it for; one of each kind (number of records) is enough.
        cap: the most rounds that a silo may take part in; see `worst_case_terms`.
        extra: as `server_view`.

    Raises:
        ConfigError, UnsupportedError: as `server_view` and `worst_case_terms`.
    """
    counted = attempted(costs, attempts)
    again = ", and in every attempt at one" if attempts else ""
    capped = cap is not None and cap < counted.total()
    where = f"in {cap} rounds, the cap" if capped else f"in each of the {len(costs)} rounds run{again}"
    basis = f"all releases that a silo would make by taking part {where}; disjoint record shares in parallel"
    return Composed("server", in_every_round(counted, releases, silos, cap, extra), basis)


def in_every_round(
    counted: Mapping[RoundCost, int],
    releases: Releases,
    silos: Iterable[int],
    cap: int | None = None,
    extra: ReleasesBySilo = NO_RELEASES,
) -> dict[int, tuple[Terms, ...]]:
    """Compositions of silos in all rounds of these costs, so many of each, or in ``cap`` of them."""
    found = {}
    for silo in silos:
        plans: Counter[tuple[Planned, ...]] = Counter()  # rounds of different costs may make the same releases
        for cost, rounds in counted.items():
            plans[tuple(releases(silo, cost))] += rounds
        found[silo] = worst_case_terms(plans, cap, extra.get(silo, ()))
    return found


def worst_case_terms(
    plans: Mapping[tuple[Planned, ...], int], cap: int | None = None, extra: Iterable[Planned] = ()
) -> tuple[Terms, ...]:
    """A silo's compositions, had it taken part in every round, or in the dearest ``cap`` of them.

    With a cap these are the dearest rounds, where of any two rounds one dominates the other: it makes as many releases
    of noise up to any z, and they differ in nothing else. Any ``cap`` rounds are then dominated by the dearest, one by
    one. Else each release on each share is counted in those ``cap`` rounds that make most of it, which can only
    overstate.

    Args:
        plans: what a round makes of the silo, and how many rounds do, each as often as it was released.
        cap: the most rounds, fresh releases of a round included, that a silo may take part in.
        extra: releases to be composed with them.

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
    parts = certain_parts(extra)
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


def third_party_composed(
    costs: Mapping[int, RoundCost],
    attempts: Mapping[int, int],
    releases: Releases,
    *,
    silos: Iterable[int],
    extra: ReleasesBySilo = NO_RELEASES,
) -> Composed:
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

    Therefore fresh runs draw participants from the operating system's randomness
    (`participant_sampling.fresh_coins`), and the basis of a simulation's number says that it holds as if they had been.

    Args:
        costs, attempts, silos: as `worst_case_composed`.
        extra: as `server_view`; composed as certain.

    Raises:
        ConfigError: as `server_view`.
        UnsupportedError: a round that is not certain makes different releases on the same records; or as `server_view`.
    """
    basis = (
        "for each round run, the mixture of a silo's releases (with the probability that it takes part, drawn honestly "
        "and independently of the data) and none; disjoint record shares in parallel"
    )
    if attempts:
        basis += "; a round that was released again counts as certain, as often as it was released"
    return Composed("third_party", in_drawn_rounds(attempted(costs, attempts), releases, silos, extra), basis)


def in_drawn_rounds(
    counted: Mapping[RoundCost, int],
    releases: Releases,
    silos: Iterable[int],
    extra: ReleasesBySilo = NO_RELEASES,
) -> dict[int, tuple[Terms, ...]]:
    """Compositions of silos that are drawn for rounds of these costs, so many of each: see `third_party_composed`."""
    found = {}
    for silo in silos:
        totals: Counter[tuple[tuple[Planned, ...], float]] = Counter()
        for cost, rounds in counted.items():
            totals[tuple(releases(silo, cost)), cost.probability] += rounds
        found[silo] = _mixtures(totals, extra.get(silo, ()))
    return found


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


def _mixtures(totals: Mapping[tuple[tuple[Planned, ...], float], int], extra: Sequence[Planned]) -> tuple[Terms, ...]:
    """Compositions of rounds that either make all their releases or none, and of releases ``beside`` them."""
    everything = [*extra, *(p for plan, _ in totals for p in plan)]
    if not everything:
        return ()
    found = set[Terms]()
    for covering in shares_by_interval((p.share for p in everything), everything[0].release.unit):
        terms = [term for share, term in certain_parts(extra) if share in covering]
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


def check_charges(tally: Tally, costs: Mapping[int, RoundCost], releases: Releases) -> None:
    """Raise LedgerError if a charge is of no round that was run, or is more than the round costs."""
    planned: dict[tuple[int, int, int], int] = {}  # by what rounds cost: of many rounds one object
    for round_, silo, kind, _, count in tally.entries():
        cost = costs.get(round_)
        if cost is None:
            raise LedgerError(f"round {round_} has charges, but is not among the rounds that the view was asked for.")
        key = id(cost), silo, kind
        if key not in planned:
            planned[key] = sum(p.count for p in releases(silo, cost) if (p.share, p.release) == tally.names.kinds[kind])
        if count > planned[key]:
            share, release = tally.names.kinds[kind]
            most = max(e.releases for e in tally.entries() if (e.round, e.silo, e.kind) == (round_, silo, kind))
            raise LedgerError(
                f"silo {silo} was charged {most} releases in round {round_} where the run's pattern has "
                f"{planned[key]} ({release} on {share}): the configuration is not the one that made the ledger."
            )


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
