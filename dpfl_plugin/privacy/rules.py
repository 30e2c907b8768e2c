"""How every release of a run is made: what is clipped to what, with which noise, and as what it is charged."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from dpfl_plugin.core.balls import LEAST_CLIP_NORM, MOST_CLIP_NORM
from dpfl_plugin.core.shares import share_bounds
from dpfl_plugin.core.views import Augmentation
from dpfl_plugin.errors import ConfigError, PluginError, UnsupportedError, require
from dpfl_plugin.privacy.clipping import Clipping, Flat
from dpfl_plugin.privacy.events import Neighbouring, SampledGaussian, Unit
from dpfl_plugin.privacy.mechanisms import Mechanism
from dpfl_plugin.privacy.samplers import Sampler
from dpfl_plugin.privacy.schedules import Constant, Schedule, checked_factors


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyRules:
    """How every release of a run is made; the same for all silos but those in ``silos``.

    Attributes:
        unit: "record" or "person": `gradient` is clipped and noised, of records, or of persons, each of whom is one row
            of the silo's records (`dpfl_plugin.data.persons`); "silo": `release` is, and `gradient` is not.
        neighbouring: the relation of a "silo" release; a record's or a person's is its sampler's.
        clip_norm: C, the L2 bound of one example's gradient, or of one silo's update. A person is one example.
        clipping: how C bounds it, and whether C changes.
        schedule: how the mechanism's noise changes with the round and the release.
        l2: lambda of the regulariser lambda/2 ||y||^2. A function of y alone: added after clipping and noise.
        fresh: batches and noise are from the operating system's randomness, not from the run's seed.
        augmentation: of each record the mean gradient of its views is what `clipping` bounds; None: its own gradient.
        silos: the rules of silos with settings of their own, by id; they differ in noise multiplier, sampler and
            clip_norm only.
    """

    unit: Unit
    neighbouring: Neighbouring
    clip_norm: float
    mechanism: Mechanism
    sampler: Sampler
    clipping: Clipping = field(default_factory=Flat)
    schedule: Schedule = field(default_factory=Constant)
    l2: float = 0.0
    fresh: bool = False
    augmentation: Augmentation | None = None
    silos: Mapping[int, PrivacyRules] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        bounds = f"be in [{LEAST_CLIP_NORM:.0e}, {MOST_CLIP_NORM:.0e}], or inf"
        inside = LEAST_CLIP_NORM <= self.clip_norm <= MOST_CLIP_NORM or math.isinf(self.clip_norm)
        require(inside, "privacy.clip_norm", self.clip_norm, bounds)
        if math.isinf(self.clip_norm) and self.noise_multiplier > 0:
            raise ConfigError(
                "privacy.clip_norm=inf with privacy.noise_multiplier > 0: without a clipping norm no noise is enough. "
                "Give a finite clip_norm, or noise_multiplier: 0 for a run without privacy."
            )
        if self.unit == "silo" and (self.clipping.adapts or self.clipping.measures or self.clipping.normalises):
            raise UnsupportedError(
                f"privacy.clip: {type(self.clipping).__name__} needs unit: record or person: a silo's update is one "
                "vector, and tells nothing of norms. Use clip: flat or per_layer."
            )
        self.clipping.check(self.unit, self.clip_norm, self.noise_multiplier)
        if self.unit != "silo" and self.neighbouring != self.sampler.neighbouring:
            raise UnsupportedError(
                f"privacy.neighbouring={self.neighbouring!r} is not proven for sampler: {self.sampler.name} at "
                f"{self.unit} level, which is accounted under {self.sampler.neighbouring!r}. Leave neighbouring out."
            )

    def of(self, silo: int) -> PrivacyRules:
        """How the releases of one silo are made."""
        return self.silos.get(silo, self)

    @property
    def noise_multiplier(self) -> float:
        """sigma_g, noise standard deviation / L2 sensitivity: given, or solved for; times the schedule's factors."""
        return self.release(1.0).noise_multiplier

    @property
    def varies(self) -> bool:
        """Whether releases may differ in their noise. Third-party schedules are assumed to vary."""
        return type(self.schedule) is not Constant

    def factors(self, round: int, num_gradients: int) -> tuple[float, ...]:
        """What the noise of each release of a round is multiplied by, in the order of the releases.

        Raises:
            PluginError: the schedule does not say.
        """
        return checked_factors(self.schedule, round, 1 if self.unit == "silo" else num_gradients)

    def release(self, rate: float, factor: float = 1.0) -> SampledGaussian:
        """What one release is charged as, where a record, or a person, is in a batch with probability ``rate``.

        Args:
            factor: by the schedule, of the noise that is added.
        """
        if self.unit == "silo":
            return _scaled(self.mechanism.event("full", 1.0, self.neighbouring, "silo"), factor)
        assert self.sampler.name != "with_replacement", "of which nothing is proven, but at silo level"
        # Sampling all records is no sampling, and has an exact accountant.
        sampler = self.sampler.name if rate < 1 else "full"
        event = _scaled(self.mechanism.event(sampler, rate, self.neighbouring, self.unit), factor)
        # No noise covers a clipping norm that was read from private gradients.
        return replace(event, noise_multiplier=0.0) if self.clipping.measures else event

    def bounds(self, layers: Mapping[str, int]) -> float | tuple[float, ...]:
        """C, or a bound for each of the model's layers, {name: number of parameters}; together they are C at most."""
        bounds = self.clipping.bounds(self.clip_norm, layers)
        whole = math.hypot(*bounds) if isinstance(bounds, tuple) else bounds
        if not whole <= self.clip_norm * (1 + 1e-9):
            raise PluginError(
                f"privacy.clip gives the bounds {bounds}, together {whole:g}; clip_norm={self.clip_norm}."
            )
        return bounds

    def noise_levels(self, round: int, num_gradients: int) -> tuple[tuple[float, int], ...]:
        """(noise multiplier, number of releases that are charged with it) of a round, known before it runs."""
        made = self.releases(1.0, self.factors(round, num_gradients))
        return tuple((release.noise_multiplier, count) for release, count in made.items())

    def releases(self, rate: float, factors: Iterable[float]) -> Counter[SampledGaussian]:
        """{what is charged: how often} for releases with these factors, in their order."""
        made: Counter[SampledGaussian] = Counter()
        for factor, count in Counter(factors).items():
            made[self.release(rate, factor)] += count  # without noise, those of all factors are the same
        return made

    def pattern(
        self, num_records: int, share: tuple[float, float], levels: Iterable[tuple[float, int]]
    ) -> list[tuple[SampledGaussian, int]]:
        """(release, count) of each of a round's noise levels, which it will cost a silo; known before it runs."""
        first, last = share_bounds(share, num_records)
        release = self.release(1.0 if self.unit == "silo" else self.sampler.rate(last - first))
        return [(replace(release, noise_multiplier=noise), count) for noise, count in levels]


def _scaled(event: SampledGaussian, factor: float) -> SampledGaussian:
    return replace(event, noise_multiplier=event.noise_multiplier * factor)
