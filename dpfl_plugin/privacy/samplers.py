"""Which records are in a batch, and what that choice means for sensitivity and accounting.

Each sampler fixes its neighbouring relation: the accountants' theorems hold for these pairs and no other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core import draws
from dpfl_plugin.core.exact import floor_share
from dpfl_plugin.errors import ConfigError, UnsupportedError, require
from dpfl_plugin.privacy.correlation import Correlation, correlation
from dpfl_plugin.privacy.events import Neighbouring
from dpfl_plugin.privacy.events import Sampler as Accounted

SamplerName = Literal[Accounted, "with_replacement"]

LEAST_RATE: Final = 2.0**-30
"""Of Poisson batches: see there."""
_STEPS: Final = 2**53


class Sampler(Protocol):
    """Draws a fresh batch for every release.

    Attributes:
        neighbouring: the relation under which amplification by this sampler is proven.
        sensitivity: L2 sensitivity of a sum of vectors of norm <= 1 over the batch: 2 or 1; inf where none is used.
    """

    @property
    def name(self) -> SamplerName: ...

    @property
    def neighbouring(self) -> Neighbouring: ...

    @property
    def sensitivity(self) -> float: ...

    def divisor(self, num_records: int) -> float:
        """What the sum is divided by: the batch size, or its expectation where it varies."""
        ...

    def rate(self, num_records: int) -> float:
        """The probability that a given record is in the batch."""
        ...

    def draw(self, num_records: int, rng: np.random.Generator) -> NDArray[np.int64] | None:
        """Indices of the batch (b,), or None for all records."""
        ...


@dataclass(frozen=True, slots=True)
class FixedSize:
    """floor(rate * n) records without replacement, or ``batch_size`` of them. [N] Alg. 1, l. 8.

    ``least_records``, where it is given, is public, and n is not: the rate that is charged is then the most that it may
    be for any n of at least so many, which is no function of n. A larger rate costs no less: at q' >= q the dominating
    pair ((1 - q') P + q' Q, P) dominates that at q, which is a mixture of it and (P, P).
    """

    record_rate: float | None = None
    batch_size: int | None = None
    name: SamplerName = "fixed"
    neighbouring: Neighbouring = "replace_one"
    sensitivity: float = 2.0
    least_records: int | None = None

    def divisor(self, num_records: int) -> float:
        """b. Raises ConfigError if it is 0 or exceeds the number of records."""
        if self.record_rate is not None:
            size = floor_share(self.record_rate, num_records)
            if size >= 1:  # the message takes longer than the draw
                return size
            require(
                False,
                "privacy.record_rate",
                self.record_rate,
                f"give at least one record of a silo that has {num_records}: floor({self.record_rate} * {num_records})"
                " is 0",
                f"Use at least {1 / num_records:.4g}, sampler: poisson, or larger silos.",
            )
        assert self.batch_size is not None
        require(
            self.batch_size <= num_records,
            "privacy.batch_size",
            self.batch_size,
            f"be at most the number of records of every silo: one has {num_records}",
            "Use a smaller batch, record_rate, or larger silos.",
        )
        return self.batch_size

    def rate(self, num_records: int) -> float:
        """
        Raises:
            UnsupportedError: batches of ``batch_size`` are of a share of the records, whose size is not public.
        """
        if self.least_records is None:
            return self.divisor(num_records) / num_records
        if self.record_rate is not None:
            # With more records in all, a share of them may have one record less: floors.
            self.divisor(num_records - (num_records < self.least_records))
            return self.record_rate
        if num_records < self.least_records:
            raise UnsupportedError(
                f"privacy.batch_size={self.batch_size} of a share of the records, of which only a least number is "
                "public: its rate is not known. Use record_rate."
            )
        return self.divisor(self.least_records) / self.least_records

    def draw(self, num_records: int, rng: np.random.Generator) -> NDArray[np.int64] | None:
        return draws.shuffled(rng, draws.subset(rng, num_records, int(self.divisor(num_records))))


@dataclass(frozen=True, slots=True)
class WithReplacement(FixedSize):
    """As many draws from all records, so that a record may be in a batch more than once.

    One record then moves a sum by up to 2 b, and no accountant here covers that: for ``unit: silo`` only, where batches
    do not count.
    """

    name: SamplerName = "with_replacement"
    sensitivity: float = math.inf

    def rate(self, num_records: int) -> float:
        return -math.expm1(self.divisor(num_records) * math.log1p(-1 / num_records)) if num_records > 1 else 1.0

    def draw(self, num_records: int, rng: np.random.Generator) -> NDArray[np.int64] | None:
        return rng.integers(num_records, size=int(self.divisor(num_records)))


@dataclass(frozen=True, slots=True)
class Poisson:
    """Each record independently with probability ``record_rate``; the batch may be empty.

    The sum is divided by its expected size s n, where n counts as public.

    Uniform numbers are multiples of 2^-53, and one of them is below s with the probability s rounded up to such a
    multiple. A record is drawn where one is below s rounded down: never more often than is charged, and less often by
    2^-23 of s at most, at s = `LEAST_RATE`. That costs no more: the law at s' < s is a mixture of that at s and of
    that without the record.

    Raises:
        ConfigError: s is not in [`LEAST_RATE`, 1].
    """

    record_rate: float
    name: SamplerName = "poisson"
    neighbouring: Neighbouring = "add_or_remove"
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        require(
            LEAST_RATE <= self.record_rate <= 1,
            "privacy.record_rate",
            self.record_rate,
            f"be in [2^-30, 1] with sampler: poisson, i.e. at least {LEAST_RATE:.3g}: for less, uniform numbers of 53 "
            "bits are too coarse",
            "Use a larger rate.",
        )

    def divisor(self, num_records: int) -> float:
        return self.record_rate * num_records

    def rate(self, num_records: int) -> float:
        return self.record_rate

    def draw(self, num_records: int, rng: np.random.Generator) -> NDArray[np.int64] | None:
        drawn_rate = math.floor(self.record_rate * _STEPS) / _STEPS
        return draws.shuffled(rng, np.flatnonzero(draws.uniform(rng, num_records) < drawn_rate))


@dataclass(frozen=True, slots=True)
class FullBatch:
    """All records, every time."""

    name: SamplerName = "full"
    neighbouring: Neighbouring = "replace_one"
    sensitivity: float = 2.0

    def divisor(self, num_records: int) -> float:
        return num_records

    def rate(self, num_records: int) -> float:
        return 1.0

    def draw(self, num_records: int, rng: np.random.Generator) -> NDArray[np.int64] | None:
        return None


@dataclass(frozen=True, slots=True)
class Cyclic:
    """1 / rate batches, dealt out once, which a silo's steps take in turn: every record in every pass, once.

    Nothing is hidden by this choice, and nothing is gained by it from an accountant. What it is for is noise that is
    correlated over ``bands`` steps, see `dpfl_plugin.privacy.correlation`.

    Raises:
        ConfigError: 1 / rate is not a whole number of batches, 2 or more; or ``bands`` is more than that.
    """

    record_rate: float
    bands: int | None = None
    name: SamplerName = "cyclic"
    neighbouring: Neighbouring = "replace_one"
    sensitivity: float = 2.0

    def __post_init__(self) -> None:
        require(
            whole_batches(self.record_rate) >= 2,
            "privacy.record_rate",
            self.record_rate,
            "be 1 over a whole number of batches, 2 or more, with sampler: cyclic",
            "Use 0.1, say, for ten batches.",
        )
        assert self.correlation is not None  # which refuses too many bands

    @property
    def batches(self) -> int:
        """B, in a pass."""
        return whole_batches(self.record_rate)

    @property
    def correlation(self) -> Correlation:
        """How the noise of a step depends on that of the steps before."""
        return correlation(self.batches if self.bands is None else self.bands, self.batches)

    def divisor(self, num_records: int) -> float:
        """n / B; batches differ by one record where that is no whole number. Raises ConfigError if one is empty."""
        require(
            num_records >= self.batches,
            "privacy.record_rate",
            self.record_rate,
            f"give each of {self.batches} batches a record of every silo: one has {num_records}",
            "Use a larger rate, or larger silos.",
        )
        return num_records / self.batches

    def rate(self, num_records: int) -> float:
        return 1 / self.batches

    def draw(self, num_records: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """The first batch of a cycle, see `batch`."""
        return self.batch(num_records, 0)

    def batch(self, num_records: int, step: int) -> NDArray[np.int64]:
        """Indices of the records of a silo's ``step``, from 0: an interval of their order."""
        turn = step % self.batches
        return np.arange(turn * num_records // self.batches, (turn + 1) * num_records // self.batches)


def whole_batches(rate: float) -> int:
    """1 / rate where that is a whole number, as far as a person who wrote it out can tell; else 0."""
    number = round(1 / rate) if rate > 0 else 0
    return number if number and abs(number * rate - 1) <= 1e-3 / number else 0


SAMPLERS: Final[tuple[SamplerName, ...]] = ("fixed", "poisson", "full", "with_replacement", "cyclic")


def usual_most(sampler: Sampler, num_records: int) -> int:
    """Records of a long batch: of fixed size, or what is expected and 6 standard deviations more."""
    size = sampler.divisor(num_records)
    return min(num_records, math.ceil(size + 6 * math.sqrt(size))) if sampler.name == "poisson" else math.ceil(size)


def make(
    name: str,
    record_rate: float | None,
    batch_size: int | None,
    bands: int | None = None,
    least_records: int | None = None,
) -> Sampler:
    """The sampler that a configuration names.

    Args:
        bands: of a cyclic one; of no use to others. least_records: see `FixedSize`.

    Raises:
        ConfigError: its rate is missing.
    """
    makers: dict[str, Callable[[], Sampler]] = {
        "fixed": lambda: FixedSize(record_rate, batch_size, least_records=least_records),
        "poisson": lambda: Poisson(_given("poisson", record_rate)),
        "full": FullBatch,
        "with_replacement": lambda: WithReplacement(record_rate, batch_size),
        "cyclic": lambda: Cyclic(_given("cyclic", record_rate), bands),
    }
    require(name in makers, "privacy.sampler", name, f"be one of {', '.join(SAMPLERS)}")
    return makers[name]()


def _given(sampler: str, record_rate: float | None) -> float:
    if record_rate is None:
        raise ConfigError(f"privacy.record_rate is missing: sampler: {sampler} needs it.")
    return record_rate
