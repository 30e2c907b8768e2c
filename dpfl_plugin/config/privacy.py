"""The privacy settings of a configuration: of all silos, and of single ones."""

from __future__ import annotations

import math
import warnings
from typing import Any, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from dpfl_plugin.config.blocks import Block, PluginBlock, Strict
from dpfl_plugin.errors import EarlierNameWarning

OF_PERSONS: Final[tuple[str, ...]] = ("max_records_per_person", "shared_persons")
OF_CYCLES: Final = ("bands",)
RECORD_RATE: Final = 0.2  # s of Noble et al.; a smaller one takes less noise, and more local steps for a pass


class PrivacyConfig(Strict):
    """How releases are made private, and how much may be spent."""

    unit: Literal["record", "person", "silo"] = Field(
        default="record", description="what neighbouring data sets differ in"
    )
    max_records_per_person: int | None = Field(
        default=None,
        ge=1,
        le=10**6,
        description="unit: person: so many records of a person are used, drawn once where it has more",
    )
    shared_persons: Literal["refuse", "per_silo"] = Field(
        default="refuse",
        description="unit: person: one at several silos is refused, or protected at each of them by itself",
    )
    neighbouring: Literal["replace_one", "add_or_remove"] | None = Field(
        default=None, description="default: what the sampler is accounted under; replace_one for unit: silo"
    )
    mechanism: PluginBlock = Field(default=Block(name="gaussian"), description="what makes a value noisy")
    clip_norm: float = Field(default=1.0, gt=0, description="C, L2 bound of one example's gradient (inf: no clipping)")
    clip: PluginBlock = Field(default=Block(name="flat"), description="how C bounds an example, and who chooses it")
    noise_multiplier: float | None = Field(
        default=None,
        ge=0,
        lt=math.inf,
        description="sigma_g, noise std / L2 sensitivity; 0: none; left out: the least that affords all rounds",
    )
    schedule: PluginBlock = Field(
        default=Block(name="constant"), description="how the noise changes from round to round, or step to step"
    )
    sampler: Literal["fixed", "poisson", "full", "with_replacement", "cyclic"] = Field(
        default="fixed",
        description="how a batch is drawn; with_replacement: for unit: silo; cyclic: 1 / record_rate batches in turn, "
        "with correlated noise",
    )
    bands: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="sampler: cyclic: over so many steps noise is correlated, at most those of a pass; 1: not at all; "
        "default: those of a pass",
    )
    record_rate: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="s, share of a silo's records (or persons) in a batch; 0.2 if batch_size is left out, too",
    )
    batch_size: int | None = Field(
        default=None, ge=1, description="instead of record_rate, the same count at every silo"
    )
    epsilon: float | None = Field(
        default=None, gt=0, description="budget: the run stops before the round that would pass it"
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="at which epsilon is stated; well below 1 / records")
    ledger: str | None = Field(
        default=None,
        min_length=1,
        description="file of the ledger that private runs on the same records share, beside the configuration; runs "
        "without noise and seeded ones are no part of it",
    )
    ledger_epsilon: float | None = Field(
        default=None,
        gt=0,
        description="limit on all runs of a shared ledger together, at delta; fixed by the first of them. epsilon is "
        "the budget of each",
    )
    budget_view: Literal["server", "third_party"] = Field(
        default="server", description="whose epsilon the budget bounds"
    )
    accountant: PluginBlock = Field(default=Block(name="pld"), description="what composes the releases")
    randomness: Literal["fresh", "seeded"] | None = Field(
        default=None,
        description="fresh: batches, noise and participants from the operating system; seeded: from seed, which "
        "repeats and protects nobody; default: seeded where a seed is named",
    )

    @model_serializer(mode="wrap")
    def _as_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without the keys of what is not used, persons and cycles: such runs have the names that they always had."""
        values: dict[str, Any] = dump(self)
        left_out = () if self.unit == "person" else OF_PERSONS
        left_out += () if self.sampler == "cyclic" else OF_CYCLES
        left_out += tuple(key for key in ("ledger", "ledger_epsilon") if getattr(self, key) is None)
        return {key: value for key, value in values.items() if key not in left_out}

    @model_validator(mode="before")
    @classmethod
    def _secure(cls, values: Any) -> Any:
        """Read the key of earlier versions."""
        if not isinstance(values, dict) or not isinstance(values.get("secure"), bool):
            return values
        if values.get("randomness") is not None:
            raise ValueError("secure is an earlier name of randomness: leave it out")
        randomness = "fresh" if values["secure"] else "seeded"
        warnings.warn(
            f"privacy.secure: {str(values['secure']).lower()} is read as privacy.randomness: {randomness}.",
            EarlierNameWarning,
            stacklevel=2,
        )
        return {**{key: value for key, value in values.items() if key != "secure"}, "randomness": randomness}

    @model_validator(mode="after")
    def _persons(self) -> PrivacyConfig:
        if self.unit == "person" and self.max_records_per_person is None:
            raise ValueError(
                "max_records_per_person is missing: unit: person needs it. A person's gradient is the mean of so many "
                "records at most; of a person who has more, the same ones are used all the time"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _batches(cls, values: Any) -> Any:
        """The default depends on other keys, and is written out, so that a run's folder says what was done."""
        if not isinstance(values, dict) or values.get("sampler", "fixed") == "full":
            return values
        given = any(values.get(key) is not None for key in ("record_rate", "batch_size"))
        return values if given else {**values, "record_rate": RECORD_RATE}


class SiloConfig(Strict):
    """Privacy settings of one silo's own; what is left out is that of `privacy`."""

    epsilon: float | None = Field(default=None, gt=0, description="the silo's own budget: its noise is solved for that")
    noise_multiplier: float | None = Field(default=None, gt=0, lt=math.inf, description="sigma_g of the silo")
    record_rate: float | None = Field(default=None, gt=0, le=1, description="s, share of the silo's records in a batch")
    batch_size: int | None = Field(default=None, ge=1, description="instead of record_rate")
    clip_norm: float | None = Field(default=None, gt=0, lt=math.inf, description="C of the silo")

    @model_validator(mode="after")
    def _something(self) -> SiloConfig:
        if not self.model_dump(exclude_none=True):
            keys = ", ".join(type(self).model_fields)
            raise ValueError(f"a silo needs settings of its own here: one of {keys}; else leave it out")
        if self.record_rate is not None and self.batch_size is not None:
            raise ValueError("record_rate and batch_size say the same thing: give one of them")
        return self
