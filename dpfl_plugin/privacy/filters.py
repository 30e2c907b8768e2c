"""Totals of runs that were chosen after looking at earlier ones: two filters and an odometer.

A privacy loss distribution composes releases that were planned before the first of them. It is no bound where noise,
rates, rounds or further runs were chosen by what was seen (Rogers, Roth, Ullman, Vadhan 2016): of a ledger that goes on
as long as the PLD of all that was released fits epsilon 1, somebody who chooses the second run by the first one's
outcome gets epsilon 1.3. What holds then is here: functions of *plans*, each the releases that a run registers before
its first one, and of nothing else.

**Pairs.** A pair (P, Q) dominates a mechanism if H_a of what is seen under two neighbours is at most H_a(P, Q) for all
a >= 0, where H_a(P, Q) is the integral of max(0, p - a q); one pair for each direction (Zhu, Dong, Wang 2022).
Pi(S) is the product of a multiset S of pairs.

**Theorem (moves).** Somebody who has seen everything so far may, again and again, (i) replace S by an S' with
H_a(Pi(S')) <= H_a(Pi(S)) for all a >= 0 in each direction, (ii) take a pair out of S and get one release that it
dominates, or (iii) stop. Then what was seen is dominated by Pi(S0), S0 being what S was at first.

**Proof.** By induction over the moves that are left. (iii) Nothing is released, and the identity is dominated by
anything. (i) What follows is dominated by Pi(S') by the induction hypothesis, so by Pi(S). (ii) Let o be what the
release of pair k shows, with densities p and q. By the induction hypothesis H_b(the rest given o) <= H_b(Pi(S - k)) for
all b, so that H_a of all is the integral of p(o) H_{a q(o) / p(o)}(the rest given o) <= H_a((p, q) x Pi(S - k)), which
is at most H_a(Pi(S)) as k dominates (p, q) (their Theorem 10). []

**Plan filter.** Let G_mu(a) = H_a(N(mu, 1), N(0, 1)), and let W(mu, d) be the pair that is disclosed with probability
d, and else N(mu, 1) against N(0, 1). For a >= 1, H_a(W) = d + (1 - d) G_mu(a). Below 1, H_a(P, Q) = 1 - a +
a H_{1 / a}(Q, P) of any pair, and W is its own mirror image. So a plan whose profiles in both directions are at most
d + (1 - d) G_mu(a) for all a >= 1 is dominated by W(mu, d). W(mu, d) x W(mu', d') is W of the root of mu^2 + mu'^2
and of 1 - (1 - d)(1 - d') <= d + d', and H_a(W) grows with mu and with d. Start with S0 = {W(m, D)}, where
D + (1 - D) G_m(e^epsilon) = delta. To register a plan that W(mu, d) dominates is move (i) as long as mu^2 and d are
taken from what is left of m^2 and D, whatever decided on the plan. So everything together is (epsilon, delta)-DP.

The smallest mu is found from the plan's PLD, an upper bound on its profile, cell by cell of a grid: where the loss is
in [l, l'], the profile at l, which is its largest, has to be at most d + (1 - d) G_mu(e^l'), the least of the bound.
Beyond the grid the PLD is at most d, which covers it whatever mu is. Plans of Gaussians without sampling need no d.

**Renyi filter.** Let R be the Renyi divergence of order alpha of the exact pair of a release, the larger of both
directions, and log M = (alpha - 1) R. E_P[exp((alpha - 1) L)] of the loss L of what is seen is at most the product of
the M of all that is taken, by induction: given o, the rest has at most M(all that is left) / M(this release). So as
long as the sum of R over all registered plans is at most r, whatever decided on them, the divergence of order alpha of
what is seen is at most r (Feldman, Zrnic 2021; Lecuyer 2021), and epsilon = r + log(1 - 1 / alpha) -
log(alpha delta) / (alpha - 1) holds at delta (Canonne, Kamath, Steinke 2020, Prop. 12). The order is fixed before the
first release: to go on as long as some order is within the budget is no filter at the same delta. Divergences depend on
H_a alone and grow with it, so those of a dominating pair are bounds; they are integrated from the pair's own losses
(`dpfl_plugin.privacy.step_loss`), since bounds on sampled releases that hold for any mechanism are twice as large.

**Odometer.** Let epsilon_1 < ... < epsilon_K, and delta_1, ..., delta_K that add up to delta, be fixed before the first
release, and let all that was registered be said to cost the smallest epsilon_k whose plan filter at delta_k it passes.
All delta_k are alike, unless a larger run is known to follow the first plan, as it follows a description of the
records: then half of delta is for what both come to. Let E be a set of things seen, and E_k the part
of it at which epsilon_k is said. Whoever stops before filter k is passed sees the same on E_k, so that P(E_k) <=
exp(epsilon_k) Q(E_k) + delta_k, and P(E) <= sum of exp(epsilon_k) Q(E_k) + delta: whatever is said holds, at
delta for all that may be said together. A number that is worked out anew from what was released, as a running PLD is,
has no such property.

**Records.** A record is at one silo and has one rank there, so of runs on the same records (equal marks) those alone
count whose shares cover its elementary interval (`dpfl_plugin.privacy.composition`): what is summed over plans is
summed for each silo and interval, and the worst counts. In a run on other records it may be anywhere: the worst of that
run, or of all runs that are on those same other records, is added. Where it was a test record, or absent, the run's
releases do not depend on it. Messages of silos that do not hold it are, given what was seen before, functions of that
and of fresh noise, and tell nothing.

Taken as given, as within one run: how records are dealt to silos. Replacing a record means at the silo where it is. A
silo's whole data set (``unit: silo``) may have been spread over many silos in a run on other records: that is refused.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np

from dpfl_plugin.errors import LedgerError, require
from dpfl_plugin.late import dp_accounting
from dpfl_plugin.privacy import pld
from dpfl_plugin.privacy.accountants import LEAST_NOISE, MOST_NOISE, PLD, Accountant, in_passes
from dpfl_plugin.privacy.calibration import worst_epsilon
from dpfl_plugin.privacy.composition import (
    Planned,
    Terms,
    certain_parts,
    compositions,
    shares_by_interval,
    undominated,
)
from dpfl_plugin.privacy.events import SampledGaussian
from dpfl_plugin.privacy.step_loss import Array, Direction, renyi_moment

FIRST_DELTA: Final = 0.02  # of delta: what the first plans of a plan filter may disclose by
COPIES: Final = (1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.4, 8.0, 11.0, 16.0, 32.0, 64.0, 128.0)
"""Of the first plan, at what so many of which come to the thresholds of an odometer are. Each has an equal share of
delta."""
PARTS: Final = (0.0, 0.025, 0.09, 0.18, 0.3, 0.45, 0.6, 0.78)
"""Of a larger run that is to follow the first plan, where thresholds below it are; from it on they are at `COPIES`."""
ORDERS: Final = tuple(1 + 2 ** (n / 8) for n in range(-40, 81))  # 1.03 to 1,025
_CELLS: Final = 4000
_LEVELS: Final = 4  # tilts, each for a good bound on another part of a profile; more change nothing that shows
_ROUNDING: Final = 1e-12  # relative, of a profile of Gaussians, and of a moment


@dataclass(frozen=True, slots=True)
class RegisteredPlan:
    """The releases that a run registered before its first one.

    Attributes:
        records: marks the records; plans of the same mark are on the same records.
        silos: of each silo, what it may release.
    """

    records: str
    silos: Mapping[int, Sequence[Planned]]


class Filter(Protocol):
    """Bounds on plans that may be chosen one after another, by all that was seen; see the module."""

    @property
    def epsilon(self) -> float: ...
    @property
    def delta(self) -> float: ...
    @property
    def most(self) -> float:
        """What costs may come to in all."""
        ...

    def cost(self, terms: Terms, place: int) -> float:
        """What releases cost that are a part of the plan at this ``place``, counted from 0."""
        ...

    def needed(self, cost: float) -> float:
        """The smallest epsilon, at this delta, of a filter of this kind that costs so much do not pass."""
        ...

    def mu(self, cost: float) -> float:
        """That of the Gaussian which costs so much."""
        ...


# Gaussian profiles


def profile(mu: float, loss: Array) -> Array:
    """(n,) H_a(N(mu, 1), N(0, 1)) at a = exp(loss)."""
    from scipy.special import log_ndtr

    first, second = log_ndtr(mu / 2 - loss / mu), loss + log_ndtr(-mu / 2 - loss / mu)
    return np.asarray(np.exp(first) * -np.expm1(np.minimum(second - first, 0.0)), dtype=np.float64)


def epsilon_of(mu: float, disclosed: float, delta: float) -> float:
    """The smallest epsilon >= 0 at which W(mu, disclosed) is (epsilon, delta)-DP; math.inf if none is."""
    if disclosed >= delta or not math.isfinite(mu):
        return math.inf
    if mu == 0:
        return 0.0
    return float(dp_accounting.get_epsilon_gaussian(1 / mu, (delta - disclosed) / (1 - disclosed)))


def most_mu(epsilon: float, disclosed: float, delta: float) -> float:
    """The largest mu at which W(mu, disclosed) is (epsilon, delta)-DP; 0 if none is."""
    if disclosed >= delta:
        return 0.0
    level, loss = (delta - disclosed) / (1 - disclosed), np.array([epsilon])
    return _bisected(lambda mu: float(profile(mu, loss)[0]) * (1 + _ROUNDING) <= level, upwards=True)


def _bisected(holds: Callable[[float], bool], *, upwards: bool) -> float:
    """The end of the positive numbers at which something holds: of the small ones, or else of the large ones.

    The number that is returned was tried; math.inf or 0 where that cannot be told from all or none.
    """
    low, high = -40.0, 20.0  # of log2
    if holds(math.exp2(low)) != upwards:
        return 0.0 if upwards else math.exp2(low)
    if holds(math.exp2(high)) == upwards:
        return math.exp2(high) if upwards else math.inf
    while high - low > 1e-9:
        middle = (low + high) / 2
        if holds(math.exp2(middle)) == upwards:
            low = middle
        else:
            high = middle
    return math.exp2(low if upwards else high)


@functools.lru_cache(maxsize=4096)
def mu_of(terms: Terms, disclosed: float) -> float:
    """The smallest mu such that W(mu, disclosed) dominates a plan; math.inf where none is known to.

    Args:
        terms: certain releases.

    Raises:
        ConfigError, UnsupportedError: as `Accountant.epsilon`.
    """
    terms = in_passes(terms)
    if not terms:
        return 0.0
    if min(term.release.noise_multiplier for term in terms) < LEAST_NOISE:
        return math.inf
    for term in terms:
        pld.check_release(term.release)
    if all(term.release.rate == 1 for term in terms):
        return math.sqrt(math.fsum(t.count * t.rounds / t.release.noise_multiplier**2 for t in terms))
    clamped = pld.normalise(
        replace(t, release=replace(t.release, noise_multiplier=min(t.release.noise_multiplier, MOST_NOISE)))
        for t in terms
    )
    largest = 0.0
    for losses, bounds in pld.profiles(clamped, disclosed, _LEVELS, _CELLS):
        over = np.flatnonzero(bounds > disclosed)
        if not over.size:
            continue
        last = int(over[-1])
        if last + 1 >= losses.size:
            return math.inf
        ends, wanted = losses[1 : last + 2], (bounds[: last + 1] - disclosed) / (1 - disclosed)
        largest = max(largest, _bisected(functools.partial(_covers, ends, wanted), upwards=False))
    return largest


def _covers(ends: Array, wanted: Array, mu: float) -> bool:
    return bool(np.all(profile(mu, ends) * (1 - _ROUNDING) >= wanted))


@dataclass(frozen=True, slots=True)
class PlanFilter:
    """At most (epsilon, delta), by the Gaussians that dominate plans; see the module.

    Of plan n, counted from 1, `FIRST_DELTA` delta / 4^floor(log2 n) may be disclosed: together less than twice
    `FIRST_DELTA` delta.
    """

    epsilon: float
    delta: float

    @property
    def most(self) -> float:
        """m^2 of the module."""
        return _most_squared(self.epsilon, self.delta)

    def cost(self, terms: Terms, place: int) -> float:
        """mu^2 of the module."""
        return mu_of(terms, self.delta * FIRST_DELTA / 4 ** math.floor(math.log2(place + 1))) ** 2

    def needed(self, cost: float) -> float:
        """See `Filter.needed`."""
        return epsilon_of(math.sqrt(cost), 2 * FIRST_DELTA * self.delta, self.delta)

    def mu(self, cost: float) -> float:
        """See `Filter.mu`."""
        return math.sqrt(cost)


@functools.lru_cache(maxsize=256)
def _most_squared(epsilon: float, delta: float) -> float:
    return most_mu(epsilon, 2 * FIRST_DELTA * delta, delta) ** 2


# Renyi divergences


@functools.lru_cache(maxsize=65536)
def divergence(release: SampledGaussian, order: float) -> float:
    """The Renyi divergence of the exact pair of a release, the larger of both directions; math.inf without noise.

    Raises:
        ConfigError, UnsupportedError: as `Accountant.epsilon`.
    """
    if release.noise_multiplier < LEAST_NOISE:
        return math.inf
    pld.check_release(release)
    if release.rate == 1:
        return order / (2 * release.noise_multiplier**2)
    clamped = replace(release, noise_multiplier=min(release.noise_multiplier, MOST_NOISE))
    directions: tuple[Direction, ...] = ("remove", "add") if release.sampler == "poisson" else ("symmetric",)
    log_moment = max(renyi_moment(clamped, direction, order) for direction in directions)
    return max(0.0, log_moment + _ROUNDING) / (order - 1)


def renyi_epsilon(total: float, order: float, delta: float) -> float:
    """Epsilon >= 0 at delta of a Renyi divergence of this order."""
    return max(0.0, total + math.log1p(-1 / order) - math.log(order * delta) / (order - 1))


@dataclass(frozen=True, slots=True)
class RenyiFilter:
    """At most (epsilon, delta), by the Renyi divergence of one order; see the module."""

    epsilon: float
    delta: float
    order: float

    @property
    def most(self) -> float:
        """r of the module."""
        return max(
            0.0, self.epsilon - math.log1p(-1 / self.order) + math.log(self.order * self.delta) / (self.order - 1)
        )

    def cost(self, terms: Terms, place: int) -> float:
        """The divergence of all releases."""
        return math.fsum(term.count * term.rounds * divergence(term.release, self.order) for term in in_passes(terms))

    def needed(self, cost: float) -> float:
        """See `Filter.needed`."""
        return renyi_epsilon(cost, self.order, self.delta)

    def mu(self, cost: float) -> float:
        """See `Filter.mu`."""
        return math.sqrt(2 * cost / self.order)


# What plans cost


def cost_of(plans: Iterable[RegisteredPlan], filter: Filter, first: int = 0) -> float:
    """What plans cost a filter, in the order in which they were registered; see "Records" in the module.

    Args:
        first: the place of the first of them.

    Raises:
        ConfigError, UnsupportedError: as `Accountant.epsilon`.
    """
    of_records: defaultdict[str, list[tuple[int, RegisteredPlan]]] = defaultdict(list)
    for place, plan in enumerate(plans, first):
        of_records[plan.records].append((place, plan))
    return math.fsum(_worst(same, filter) for same in of_records.values())


def _worst(plans: Sequence[tuple[int, RegisteredPlan]], filter: Filter) -> float:
    """The largest cost of plans on the same records, over silos and elementary intervals."""
    silos = {silo for _, plan in plans for silo in plan.silos}
    alike = {tuple((place, tuple(plan.silos.get(silo, ()))) for place, plan in plans) for silo in silos}
    return max((_of_silo(made, filter) for made in alike), default=0.0)


def _of_silo(plans: Sequence[tuple[int, Sequence[Planned]]], filter: Filter) -> float:
    everything = [one for _, made in plans for one in made]
    pld.normalise(term for _, term in certain_parts(everything))  # one neighbouring relation and unit
    intervals = shares_by_interval((one.share for one in everything), everything[0].release.unit) if everything else ()
    return max(
        (
            math.fsum(
                filter.cost(pld.normalise(term for share, term in certain_parts(made) if share in covering), place)
                for place, made in plans
            )
            for covering in intervals
        ),
        default=0.0,
    )


def affords(filter: Filter, plans: Sequence[RegisteredPlan]) -> bool:
    """Whether these plans, the last of them included, are within a filter.

    So is a first one that its PLD says to be, and then, if the filter does not afford it, no other: what is registered
    first is known before the filter begins, and may be all that it lets happen.
    """
    if len(plans) == 1 and planned_epsilon(plans, filter.delta) <= filter.epsilon:
        return True
    return cost_of(plans, filter) <= filter.most


def planned_epsilon(plans: Iterable[RegisteredPlan], delta: float, accountant: Accountant | None = None) -> float:
    """Epsilon of plans that were all registered before the first release, by their PLD if no accountant is given.

    Raises:
        ConfigError, UnsupportedError: as `Accountant.epsilon`.
    """
    return worst_epsilon(PLD() if accountant is None else accountant, worst_compositions(plans), delta)


def worst_compositions(plans: Iterable[RegisteredPlan]) -> list[Terms]:
    """What plans come to for a record, wherever it is: the compositions that may be worst.

    Raises:
        ConfigError: neighbouring relations or units are mixed.
    """
    of_records: defaultdict[str, defaultdict[int, list[Planned]]] = defaultdict(lambda: defaultdict(list))
    for plan in plans:
        for silo, made in plan.silos.items():
            of_records[plan.records][silo] += made
    together: list[Terms] = [()]
    for silos in of_records.values():
        worst = undominated(itertools.chain(*(compositions(made) for made in silos.values())))
        if worst:
            together = undominated(pld.normalise([*one, *more]) for one in together for more in worst)
    return together


def adaptive_epsilon(filter: Filter, plans: Sequence[RegisteredPlan]) -> float:
    """The smallest limit, at the filter's delta, that affords plans of which later ones were chosen after looking."""
    if len(plans) == 1:
        return planned_epsilon(plans, filter.delta)
    return filter.needed(cost_of(plans, filter))


def epsilon_left(filter: Filter, plans: Sequence[RegisteredPlan]) -> float:
    """Epsilon, at the filter's delta, of the Gaussian that a filter would afford beside plans; 0 if none."""
    left = max(0.0, filter.most - cost_of(plans, filter))
    return epsilon_of(filter.mu(left), 0.0, filter.delta)


def copies(filter: Filter, plan: RegisteredPlan, limit: int = 10**6) -> int:
    """How many times a filter affords a plan, up to ``limit``."""
    number, left = 0, filter.most
    while number < limit:
        each = cost_of([plan], filter, first=number)
        octave = number + 1  # as many plans from here on cost the same
        fit = octave if each * octave <= left else max(0, math.floor(left / each))
        number += fit
        left -= each * fit
        if fit < octave:
            break
    return min(number, limit)


def chosen_filter(epsilon: float, delta: float, first: RegisteredPlan) -> PlanFilter | RenyiFilter:
    """The filter of a limit: whichever affords more copies of the first plan.

    Raises:
        ConfigError: epsilon is not a positive number, or as `Accountant.epsilon`.
    """
    require(0 < epsilon < math.inf, "epsilon", epsilon, "be positive and finite")
    pld.check_delta(delta)
    by_plan, best, by_order = PlanFilter(epsilon, delta), 0.0, RenyiFilter(epsilon, delta, ORDERS[0])
    for order in ORDERS:
        filter = RenyiFilter(epsilon, delta, order)
        cost = cost_of([first], filter)
        afforded = filter.most / cost if cost > 0 else math.inf
        if afforded > best:
            best, by_order = afforded, filter
        elif afforded < best / 2:
            break  # beyond the best order: what is left takes ever longer to integrate
    return by_plan if copies(by_plan, first) >= copies(by_order, first) else by_order


def kind_of(filter: PlanFilter | RenyiFilter) -> dict[str, Any]:
    """What a filter is besides its limit, as plain values for a ledger."""
    return {"kind": "renyi", "order": filter.order} if isinstance(filter, RenyiFilter) else {"kind": "plan"}


def filter_of(kind: Mapping[str, Any], epsilon: float, delta: float) -> PlanFilter | RenyiFilter:
    """The filter of a limit that `kind_of` wrote of.

    Raises:
        LedgerError: it is something else.
    """
    try:
        if kind["kind"] == "plan":
            return PlanFilter(epsilon, delta)
        if kind["kind"] == "renyi" and float(kind["order"]) > 1:
            return RenyiFilter(epsilon, delta, float(kind["order"]))
    except (KeyError, TypeError, ValueError):
        pass
    raise LedgerError(f"the filter of the limit cannot be read: {kind!r}.")


@dataclass(frozen=True, slots=True)
class Odometer:
    """Thresholds, the smallest of which that plans do not pass is what they are said to cost; see the module.

    Attributes:
        thresholds: epsilons, ascending, fixed before the first release.
        shares: of delta, of each threshold; () where all have the same.
    """

    thresholds: tuple[float, ...]
    delta: float
    shares: tuple[float, ...] = ()

    @classmethod
    def at(cls, costs: Sequence[float], shares: Sequence[float], delta: float) -> Odometer:
        """With thresholds for plans of these costs."""
        epsilons = (
            PlanFilter(0.0, share * delta).needed(cost) * (1 + 1e-6) for cost, share in zip(costs, shares, strict=True)
        )
        thresholds, ordered = zip(*sorted(zip(epsilons, shares, strict=True)), strict=True)
        return cls(thresholds, delta, () if len(set(ordered)) == 1 else ordered)

    def passed(self, plans: Sequence[RegisteredPlan]) -> float:
        """The smallest threshold that plans do not pass; math.inf after the last."""
        shares = self.shares or (1 / len(self.thresholds),) * len(self.thresholds)
        costs = {share: cost_of(plans, PlanFilter(0.0, share * self.delta)) for share in set(shares)}
        return next(
            (
                epsilon
                for epsilon, share in zip(self.thresholds, shares, strict=True)
                if costs[share] <= PlanFilter(epsilon, share * self.delta).most
            ),
            math.inf,
        )


def odometer_for(first: RegisteredPlan, delta: float, run: float | None = None) -> Odometer:
    """Thresholds at what `COPIES` of the first plan cost, or of a larger run that is to follow it.

    Args:
        run: epsilon of a run that is to follow. Half of delta is for the threshold that both together stay within.

    Raises:
        ConfigError, UnsupportedError: as `Accountant.epsilon`.
    """
    if run is not None:
        # What a Gaussian of this epsilon costs, as full batches are, and a little more, for small releases beside it.
        following, alone = 1.03 * PlanFilter(run, delta).most, cost_of([first], PlanFilter(0.0, delta))
        if 2 * alone < following:
            share = 0.5 / (len(PARTS) + len(COPIES) - 1)
            alone = cost_of([first], PlanFilter(0.0, share * delta))
            shares = [0.5 if copies == 1 else share for copies in (*PARTS, *COPIES)]
            return Odometer.at([alone + copies * following for copies in (*PARTS, *COPIES)], shares, delta)
    share = 1 / len(COPIES)
    return Odometer.at(_costs_of_copies(first, share * delta), [share] * len(COPIES), delta)


def _costs_of_copies(plan: RegisteredPlan, delta: float) -> list[float]:
    # Copies at the places 2^n - 1 to 2^(n + 1) - 2 cost the same.
    filter = PlanFilter(0.0, delta)
    octaves = range(math.ceil(math.log2(COPIES[-1])) + 1)
    each = [cost_of([plan], filter, first=2**octave - 1) for octave in octaves]
    return [
        math.fsum(each[n] * min(2**n, copies - (2**n - 1)) for n in octaves if copies > 2**n - 1) for copies in COPIES
    ]
