"""What earlier runs on the same data released: one budget across runs.

A ledger that several runs share says of each run which charges are its own and, by a fingerprint, which records were at
which silo. What a run may still spend is what these earlier runs left, as follows.

**Claim.** Let x be a record that is at silo i in this run. Under replacing x (or letting it count as zero), what the
server saw of this run and of the earlier runs R_1, ..., R_k together is dominated by the composition of

* this run's releases of silo i,
* for each R_j on the same records (equal fingerprints): R_j's releases of silo i;
* for each other R_j: the envelope E_j, which dominates the releases of every one of R_j's silos.

**Proof.** In a run whose fingerprint is equal, x is at silo i. In any other run (another partition, split or
preprocessing) x is at one silo s_j at most, for each record is at one silo in each run; where x was a test record or
absent, the run's releases do not depend on it, and the identity is dominated by anything. Given everything seen before,
the messages of silos that do not hold x do not depend on x: they are the same function of what was seen and of fresh,
independent noise. So R_j is dominated by its releases of s_j, and these by E_j. A pair of distributions that dominates
each factor, factor by factor, dominates the adaptive composition (Zhu, Dong, Wang 2022, Thm 10); noise and batches of
different runs are independent, since each run draws its own. []

**Envelope.** Group a run's releases by all but their rate: sampler, noise_multiplier, neighbouring, unit. E_j makes,
for each group, the largest number of releases that a silo made, at the largest rate that a silo had. More releases
dominate fewer, which are a part of them. A larger rate dominates a smaller one, q < q':

* batches without replacement: for a >= 1 the profile is h_q(a) = q g((a - 1) / q) with g(u) = delta_G(1 + u) convex,
  decreasing and at least 0; its derivative in q is g(u) - u g'(u) >= 0 at u = (a - 1) / q. Below 1 the profile is
  1 - a + a h_q(1 / a), which grows with it.
* Poisson batches: with t = q / q', (1 - q) P_0 + q P_1 = (1 - t) P_0 + t ((1 - q') P_0 + q' P_1). H_a is jointly
  convex, so that H_a(q, P_0) <= (1 - t) H_a(P_0, P_0) + t H_a(q', P_0); and H_a(P_0, P_0) = max(0, 1 - a) is the least
  value that H_a has. The same the other way round.

Parts of records: with equal fingerprints a share [first, last) is the same records, so that shares stay what they are.
In other runs x may have been in any share: they all count as reading everything.

**What it is not.** The runs, their noise, rounds and steps, are those that were going to be made whatever earlier ones
showed. An experimenter who looks at a run and then chooses the next one's parameters is an adversary who chooses
mechanisms adaptively; a composition of those that happened to be chosen, at one (epsilon, delta), is no bound for that.
What is, see `dpfl_plugin.privacy.filters` and `dpfl_plugin.privacy.registered`: a limit of the ledger, or its odometer.

**A third party** sees global models. Its guarantee averages over the draws of participants, and two runs of one seed
draw the same ones, so that an earlier run's realised draws say what this run's will be. Therefore earlier runs count as
if every silo had taken part in each of their rounds, at the largest rate that any silo has, drawn or not: who was
drawn must not show in what is counted. Given the draws D, what a third party saw is then dominated by
(all rounds of earlier runs) x (this run's rounds in which D has silo i); averaged over D, that is (all rounds of
earlier runs) x (this run's mixture), whatever the earlier draws had to do with this run's. Only a number of rounds, or
of releases in one, that itself depends on draws breaks the argument (a budget in the server's view does that, and a
warm-up that ends when all silos were drawn): after such a run, `draws_decided` says to count this run's rounds as
certain too, which holds for each D by itself. So does noise that was solved for what silos that were `drawn` had left.
A run of all silos that goes on for as long as its budget has room beside what drawn silos released, or whose noise was
solved for that, has a length, or noise, which depends on draws as well: `follows_draws`.

Taken as given, as within one run: how records are dealt to silos. A partitioner that looks at labels could deal other
records elsewhere if one were replaced; replacing a record means at the silo where it is. And a silo's whole data set
(``unit: silo``) may have been spread over many silos in a run on other records: that is refused.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.privacy.composition import Earlier, Planned, Share, shares_by_interval
from dpfl_plugin.privacy.events import Charge, SampledGaussian, Term
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.spec import BudgetView
from dpfl_plugin.privacy.tally import Tally, packed

WHOLE: Share = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Prior:
    """What earlier runs released of the records of this run.

    Attributes:
        realised: for each silo, towards the server.
        certain: for each silo, towards a third party: as if it had taken part in every round.
        draws_decided: whether the draws of participants decided how long some earlier run, or a round of it, was.
        drawn: whether participants of some earlier run were drawn, so that ``realised`` depends on the draws.
        later: whether one of them came in after this run had begun: what a budget of this run allowed until then did
            not count it.
        runs: facts of the earlier runs, once each, with ``same_records`` and ``num_charges``.
        bounded: whether a budget of this run is for them together; else the ledger has a limit, which bounds all.
    """

    realised: Earlier = field(default_factory=dict)
    certain: Earlier = field(default_factory=dict)
    draws_decided: bool = False
    drawn: bool = False
    later: bool = False
    runs: tuple[Mapping[str, Any], ...] = ()
    bounded: bool = True

    def terms(self, silo: int, share: Share = WHOLE, *, third_party: bool = False) -> list[list[Term]]:
        """What to compose with a silo's releases that read ``share``, in each elementary interval that it covers.

        At least one composition, which may be empty. For budgets, and to solve for what is left.
        """
        earlier = (self.certain if third_party else self.realised).get(silo, ())
        if not earlier:
            return [[]]
        intervals = shares_by_interval([share, *(p.share for p in earlier)], earlier[0].release.unit)
        return [
            [Term(release=p.release, count=p.count, rounds=1) for p in earlier if p.share in covering]
            for covering in intervals
            if share in covering
        ]

    def joined(self, beside: Prior) -> Prior:
        """This and what the run itself releases ``beside`` its rounds, of which no draw decides anything."""
        return replace(
            self,
            realised=_side_by_side(self.realised, beside.realised),
            certain=_side_by_side(self.certain, beside.certain),
        )


def follows_draws(prior: Prior, view: BudgetView, *, capped: bool) -> bool:
    """Whether what a budget in this view leaves beside ``prior`` depends on how participants were drawn there.

    Args:
        capped: whether a silo takes part in so many rounds at most: then a third party's budget is the server's.
    """
    return prior.bounded and (prior.draws_decided or (prior.drawn and (view == "server" or capped)))


def _side_by_side(one: Earlier, other: Earlier) -> Earlier:
    return {silo: tuple(_merged([*one.get(silo, ()), *other.get(silo, ())])) for silo in {**one, **other}}


NO_PRIOR: Final = Prior()


def earlier_runs(prior: Prior) -> str:
    return f"{len(prior.runs)} earlier run{'s' * (len(prior.runs) > 1)}"


def prior_of(ledger: Ledger, *, noise: str, data_sha256: str, num_silos: int, release: SampledGaussian) -> Prior:
    """What ``ledger`` holds besides the run known by ``noise``, for that run's silos.

    Args:
        release: one of the run's, for what it protects.

    Raises:
        ConfigError: an earlier run has another neighbouring relation or unit.
        UnsupportedError: at silo level, an earlier run was on other records.
    """
    everywhere: list[Planned] = []
    certain: list[Planned] = []
    of_silo: defaultdict[int, list[Planned]] = defaultdict(list)
    runs = []
    for facts in runs_in(ledger):
        if facts["noise"] == noise:
            continue
        charges = ledger.tally_of_run(facts["noise"])
        same = facts["data_sha256"] == data_sha256
        runs.append({**facts, "same_records": same, "num_charges": len(charges)})
        kinds = [charges.names.kinds[kind] for kind in dict.fromkeys(kind for _, kind in charges.totals())]
        _check_meaning(facts, [other for _, other in kinds], release, same)
        # At which rate a silo that was never drawn would have read a part of its records is not known.
        parts = any(share != WHOLE for share, _ in kinds)
        largest = 1.0 if parts and facts["drawn"] else facts["largest_rate"]
        enveloped = functools.partial(_envelope, charges, parts=same)
        certain += [_at_least(largest, planned) for planned in enveloped(every_round=True)]
        if same:
            for (silo, kind), count in charges.totals().items():
                share, made = charges.names.kinds[kind]
                of_silo[silo].append(Planned(made, count, share))
        else:
            everywhere += enveloped(every_round=False)
    return Prior(
        realised={silo: tuple(_merged([*everywhere, *of_silo[silo]])) for silo in range(num_silos)} if runs else {},
        certain=dict.fromkeys(range(num_silos), tuple(_merged(certain))) if runs else {},
        draws_decided=any(run["draws_decided"] for run in runs),
        drawn=any(run["drawn"] for run in runs),
        later=_others_came_later(ledger, noise),
        runs=tuple(runs),
    )


def _others_came_later(ledger: Ledger, noise: str) -> bool:
    """Whether a session of another run began after the first one of this run."""
    sessions = [facts["noise"] for facts in ledger.runs]
    return noise in sessions and any(other != noise for other in sessions[sessions.index(noise) :])


def runs_in(ledger: Ledger) -> list[dict[str, Any]]:
    """The facts of each run of a shared ledger, as it was begun first; what any session said of the draws counts.

    Versions that did not yet say whether a run `follows_draws` of earlier ones are not believed that it does not.
    """
    runs: dict[str, dict[str, Any]] = {}
    drawn = False
    for facts in ledger.runs:
        known = runs.setdefault(facts["noise"], dict(facts))
        silent = drawn and "follows_draws" not in facts
        known["draws_decided"] = known["draws_decided"] or facts["draws_decided"] or silent
        drawn = drawn or facts["drawn"]
    return list(runs.values())


def envelope(charges: Iterable[Charge], *, every_round: bool = False) -> list[Planned]:
    """Releases that dominate those of each silo; with ``every_round``, of a silo that takes part in all rounds."""
    rates: dict[tuple[Share, SampledGaussian], float] = {}
    counts: defaultdict[tuple[Share, SampledGaussian], defaultdict[Any, Counter[int]]]
    counts = defaultdict(lambda: defaultdict(Counter))
    for charge in charges:
        kind = (charge.share, replace(charge.release, rate=1.0))
        rates[kind] = max(rates.get(kind, 0.0), charge.release.rate)
        counts[kind][(charge.round, charge.noise_id) if every_round else None][charge.silo] += charge.count
    return [
        Planned(
            replace(release, rate=rates[share, release]),
            sum(max(by_silo.values()) for by_silo in rounds.values()),
            share,
        )
        for (share, release), rounds in counts.items()
    ]


def _envelope(charges: Tally, *, every_round: bool, parts: bool) -> list[Planned]:
    """`envelope` of very many charges; without ``parts``, as if each had read all records."""
    groups: dict[tuple[Share, SampledGaussian], int] = {}
    group_of: list[int] = []  # of each kind: those that differ in their rate only
    for share, release in charges.names.kinds:
        alike = share if parts else WHOLE, replace(release, rate=1.0)
        group_of.append(groups.setdefault(alike, len(groups)))
    rates: dict[int, float] = {}
    kind_of: dict[tuple[int, int], int] = {}
    for silo, kind in charges.totals():
        group = group_of[kind]
        rates[group] = max(rates.get(group, 0.0), charges.names.kinds[kind][1].rate)
        if kind_of.setdefault((silo, group), kind) != kind:
            # A silo's releases of several rates, or parts, in one round are to be added up: rare, and not made short.
            made = charges if parts else (replace(charge, share=WHOLE) for charge in charges)
            return envelope(made, every_round=every_round)
    counts: Counter[int] = Counter()
    if every_round:
        dearest = Tally()  # of a round, of the group's kind and one name of noise
        for round_, _, kind, noise, count in charges.entries():
            counts[group_of[kind]] += dearest.know(packed(round_, 0, group_of[kind], noise), count)
    else:
        most: Counter[int] = Counter()
        for (_, kind), count in charges.totals().items():
            most[group_of[kind]] = max(most[group_of[kind]], count)
        counts = most
    named = list(groups)
    return [
        Planned(replace(named[group][1], rate=rate), counts[group], named[group][0]) for group, rate in rates.items()
    ]


def _at_least(rate: float, planned: Planned) -> Planned:
    """The same releases at no smaller rate; at rate 1 nothing is sampled."""
    release = planned.release
    if rate <= release.rate:
        return planned
    return replace(planned, release=replace(release, rate=rate, sampler=release.sampler if rate < 1 else "full"))


def _merged(planned: Iterable[Planned]) -> list[Planned]:
    """Equal releases as one, in an order that does not depend on how they came."""
    counts: Counter[tuple[SampledGaussian, Share]] = Counter()
    for one in planned:
        counts[one.release, one.share] += one.count
    merged = [Planned(release, count, share) for (release, share), count in counts.items()]
    return sorted(merged, key=repr)


def _check_meaning(
    facts: Mapping[str, Any], made: Iterable[SampledGaussian], release: SampledGaussian, same: bool
) -> None:
    for other in made:
        if (other.neighbouring, other.unit) != (release.neighbouring, release.unit):
            raise ConfigError(
                f"it holds run {facts['name']!r}, which protects against {other.neighbouring} of a {other.unit}, and "
                f"this run protects against {release.neighbouring} of a {release.unit}: no single epsilon bounds both. "
                "Use a ledger for each."
            )
        if other.unit == "silo" and not same:
            raise UnsupportedError(
                f"it holds run {facts['name']!r} on other records than this run's, and with unit: silo the data of one "
                "silo here may have been at many silos there: no bound is known. Use a ledger for each set of records."
            )
