"""What was released, as data. Events never change meaning; accountants and reports read nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

Sampler = Literal["fixed", "poisson", "full", "cyclic"]
Neighbouring = Literal["replace_one", "add_or_remove"]
Unit = Literal["record", "person", "silo"]
ChargeKind = Literal["round", "statistics", "score", "personalise"]
CHARGE_KINDS: Final[tuple[ChargeKind, ...]] = get_args(ChargeKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledGaussian:
    """Gaussian noise on a sum over a sample: what an accountant needs to know of one release.

    Attributes:
        noise_multiplier: noise standard deviation / L2 sensitivity under ``neighbouring``.
        sampler: "fixed": ``batch_size`` of ``num_records`` without replacement, fresh for every release;
            "poisson": each record independently with probability ``rate``; "full": no sampling; "cyclic": the records
            are dealt out once into 1 / ``rate`` batches, which a silo's releases take in turn, from the first on. n of
            these together are dominated by ceil(n ``rate``) Gaussians without sampling, see `accountants.in_passes`.
        rate: batch_size / num_records, the Poisson rate, 1 / batches, or 1.
        neighbouring: which data sets are neighbours; fixes the sensitivity (2C for replace_one, C else).
        unit: what a neighbour differs in: one record of a silo, all records that one person has there, or all of them.
    """

    noise_multiplier: float
    sampler: Sampler
    rate: float
    neighbouring: Neighbouring
    unit: Unit = "record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """The releases of one silo in one round.

    Attributes:
        round: communication round, from 0.
        silo: silo id, from 0.
        release: the mechanism.
        count: how many releases of it.
        share: the part [first, last) of the silo's records that they read; disjoint parts compose in parallel.
        noise_id: names the random bits. The same bits released again are the same release: charged once.
        kind: what it was for: a round of the algorithm, statistics of columns, a validation score, or a silo's own
            model. None in ledgers of versions that did not say, until `Tally.settle`. It is no part of what tells
            releases apart.
    """

    round: int
    silo: int
    release: SampledGaussian
    count: int
    share: tuple[float, float] = (0.0, 1.0)
    noise_id: str
    kind: ChargeKind | None = field(default="round", compare=False)


Batch = tuple[Charge, list[int]]
"""(the first, the silos of all) of charges that differ in nothing but their silo."""


def batches(charges: Iterable[Charge]) -> Iterator[Batch]:
    """Charges that follow each other and differ in nothing but their silo, together.

    What the charges of a round have in common is then looked at once, and not once a silo. Numbers and shares that are
    not the same object begin another batch, which costs time and nothing else.
    """
    first, silos = None, list[int]()
    for one in charges:
        if (
            first is None
            or one.round is not first.round
            or one.count is not first.count
            or one.share is not first.share
            or one.kind is not first.kind
            or one.noise_id != first.noise_id
            or (one.release is not first.release and one.release != first.release)
        ):
            if first is not None:
                yield first, silos
            first, silos = one, []
        silos.append(one.silo)
    if first is not None:
        yield first, silos


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A factor of a composition: ``rounds`` independent rounds, each of which, with probability
    ``participation`` (publicly drawn, independently of the data), makes ``count`` releases, else none."""

    release: SampledGaussian
    count: int
    rounds: int
    participation: float = 1.0
