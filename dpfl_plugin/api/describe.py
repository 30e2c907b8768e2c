"""`dpfl.describe`: counts, means, quantiles, histograms and cross-tables of a table by site, as one charged release."""

from __future__ import annotations

import functools
import itertools
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.api.description import Description
from dpfl_plugin.api.experiment import Experiment, experiment_of
from dpfl_plugin.config.incompatible import check_compatible
from dpfl_plugin.config.schema import SCHEMA_KEY, Config
from dpfl_plugin.core.streams import FreshStream, stream
from dpfl_plugin.core.text import sentence
from dpfl_plugin.data.base import Federation, Silo, Survey, survey
from dpfl_plugin.data.record_order import OrderKeys
from dpfl_plugin.data.schema import TableSchema
from dpfl_plugin.data.variables import NOWHERE, Variable, variables_of
from dpfl_plugin.errors import ConfigError, UnsupportedError, is_real, nearest, require
from dpfl_plugin.measures.noisy_counts import Estimate, Interval, count, mean_and_std, quantile
from dpfl_plugin.owners.limits import find_limits
from dpfl_plugin.privacy.calibration import least_noise
from dpfl_plugin.privacy.composition import Planned
from dpfl_plugin.privacy.events import Charge, SampledGaussian, Term
from dpfl_plugin.privacy.extra_releases import WHOLE
from dpfl_plugin.privacy.filters import RegisteredPlan
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.shared_ledger import adaptive_total, runs_in
from dpfl_plugin.privacy.tabulation import Tabulation
from dpfl_plugin.runs.ledgers import LedgerEntry, Wait, end_run, locked_shared
from dpfl_plugin.runs.plugins import make_accountant
from dpfl_plugin.runs.privacy_rules import privacy_rules
from dpfl_plugin.runs.public_facts import has_schema
from dpfl_plugin.runs.record_marks import MarkKey, shared_key_file
from dpfl_plugin.runs.records import compared_sites, federate, keys_of
from dpfl_plugin.runs.start_notes import SEEDED

SHARES: Final = (0.05, 0.25, 0.5, 0.75, 0.95)
BINS: Final = 16
MOST_BINS: Final = 1000
POOLED: Final = "all sites"
NOISE_ONLY: Final = (
    "± is the standard deviation of the noise alone, and (a to b) a 95 % interval of the noise alone: how the records "
    "themselves were sampled is in neither. Percentages are of all {unit}s of a site. Each count has noise of its own, "
    "so counts and percentages need not add up."
)
AT_THE_ENDS: Final = "Numbers outside the range of the schema count at its ends."
BEGINS: Final = (
    "This release begins {ledger} and fixes its totals, with {run} in view. Set privacy.epsilon to what the run will "
    'have before the first release (docs/privacy.md, "Without a limit").'
)
FILLED_IN: Final = "Missing values of {columns} count as the default of the schema."


def describe(
    experiment: Experiment | str | Path,
    *,
    epsilon: float,
    cross: Sequence[Sequence[str]] = (),
    bins: int = BINS,
    ledger: str | Path | None = None,
    plan: bool = False,
    tell: Callable[[str], None] | None = None,
) -> Description:
    """Describe the training records of a table: Table 1 of a paper, with noise, as one release of each site.

    Every number has noise of the same standard deviation: the least with which the release costs epsilon. It reads the
    training records, as runs do, so that test records stay in no release. It is charged to the ledger as a run is,
    before anything is shown, and another call is another release.

    Args:
        experiment: a configuration whose data are a table with a schema, by its file; `privacy.delta`, unit and
            neighbours are its own.
        epsilon: what the release may cost.
        cross: pairs of columns that are counted together.
        bins: of the histograms of numbers, whose quantiles are read from them.
        ledger: the file that is charged; None: what the configuration names (``privacy.ledger``).
        plan: say what it would cost and how much noise it would have; nothing is released.
        tell: gets, before anything is charged, how sites' tables differ: for the eyes of who holds the records.

    Raises:
        ConfigError, DataError: an argument, the configuration or the records are wrong, or no ledger is named.
        UnsupportedError: no schema says what is public of the records, or whole silos are protected.
        BudgetError: the ledger's limit does not afford it. BusyError: another run has the ledger.
    """
    require(is_real(epsilon) and 0 < epsilon < math.inf, "epsilon", epsilon, "be positive and finite")
    require(type(bins) is int and 2 <= bins <= MOST_BINS, "bins", bins, f"be a whole number from 2 to {MOST_BINS}")
    source = experiment_of(experiment)
    study = _Study.of(source.config, source.base, epsilon, cross, bins)
    named = study.config.privacy.ledger
    path = Path(ledger) if ledger is not None else None if named is None else source.base / named
    if not study.config.fresh:
        check_compatible(study.config, "ledger" if ledger is not None else "")
        path = None
    elif path is None:
        raise ConfigError(
            "describe needs a ledger that counts what it releases. Name one: privacy.ledger in the configuration, or "
            "--ledger FILE (ledger=...)."
        )
    with locked_shared(path, Wait(60.0)) as shared:
        if path is None or shared is None:
            sites = study.sites(study.federation())
            study.announce(tell)
            return study.description(sites, {} if plan else study.release(sites))
        key = MarkKey.at(shared_key_file(path))
        federation = study.federation(key)
        sites = study.sites(federation)
        entry = study.entry(path, shared, study.marks(key, federation))
        study.announce(tell)
        if plan:
            return study.description(sites, {}, path, study.total(shared, [entry.plan]))
        key.keep()
        total = study.charge(entry)
        return study.description(sites, study.release(sites), path, total)


class _Site(NamedTuple):
    """The training records of a silo that can be used, of persons one after another.

    codes: of each histogram; values: of each variable with moments; owners: whose record each is; num_records: public.
    """

    silo: int
    name: str
    codes: list[NDArray[np.int64]]
    values: list[NDArray[np.float64]]
    owners: NDArray[np.int64]
    num_records: int


@dataclass(frozen=True, slots=True)
class _Study:
    """What is described, and how: all of it public.

    Attributes:
        numbers: variables with moments. pairs: places of variables that are counted together. filled_in: columns whose
            missing values are a public default. caveats: of the schema.
    """

    config: Config
    base: Path
    rules: PrivacyRules
    epsilon: float
    noise: float
    variables: tuple[Variable, ...]
    numbers: tuple[Variable, ...]
    pairs: tuple[tuple[int, int], ...]
    filled_in: tuple[str, ...]
    caveats: tuple[str, ...]
    tabulation: Tabulation

    @classmethod
    def of(cls, config: Config, base: Path, epsilon: float, cross: Sequence[Sequence[str]], bins: int) -> _Study:
        if not has_schema(config):
            raise UnsupportedError(
                "describe needs a table with a schema, whose categories and ranges are public (dpfl init --from FILES "
                "drafts one)."
            )
        if find_limits() is not None:
            raise UnsupportedError(
                "the owner of the data set limits on this machine, and a description is not counted in their lifetime "
                "ledger. The owner may remove the limits."
            )
        check_compatible(config, "ledger" if config.fresh else "")
        if config.privacy.unit == "silo":
            raise UnsupportedError("privacy.unit: silo hides all records of a silo, which leaves nothing to describe.")
        config = config.with_public_seed(config.public_seed)  # what is dealt at random is dealt once
        schema = TableSchema.parse(config.data.dataset.options[SCHEMA_KEY])
        variables = variables_of(schema, bins)
        filled_in = tuple(name for name, column in schema.columns.items() if column.missing == "default")
        numbers = tuple(variable for variable in variables if not variable.is_listed)
        pairs = _pairs(variables, cross)
        sizes = [1, *(len(variable.cells) for variable in variables)]  # at first all that can be used
        sizes += [len(variables[first].cells) * len(variables[second].cells) for first, second in pairs]
        rules = privacy_rules(config, 1.0)
        accountant, shape = make_accountant(config), functools.partial(Tabulation, tuple(sizes), len(numbers))

        def cost(noise: float) -> float:
            release = shape(noise).release(rules.neighbouring, rules.unit)
            return accountant.epsilon([Term(release=release, count=1, rounds=1)], config.privacy.delta)

        noise = least_noise(cost, epsilon)
        return cls(
            config, base, rules, cost(noise), noise, variables, numbers, pairs, filled_in, schema.caveats, shape(noise)
        )

    def federation(self, key: MarkKey | None = None) -> Federation:
        """The records as they are before preprocessing, cut as those of a run."""
        data = self.config.data.model_copy(update={"preprocess": []})
        return federate(self.config.model_copy(update={"data": data}), self.base, keys=self._keys(key))

    def _keys(self, key: MarkKey | None) -> OrderKeys | None:
        return None if key is None else keys_of(self.config, key.value)

    def announce(self, tell: Callable[[str], None] | None) -> None:
        """What to look at in the tables before a release is paid."""
        if tell is not None:
            for text in compared_sites(self.config, self.base):
                tell(text)

    def marks(self, key: MarkKey, federation: Federation) -> Survey:
        """By what a ledger knows the records, and how they are cut: as of a run of this configuration."""
        if self.config.data.preprocess:
            federation = federate(self.config, self.base, keys=self._keys(key))
        return key.marked(survey(federation))

    def entry(self, path: Path, shared: Ledger, records: Survey) -> LedgerEntry:
        """One release of each silo in a ledger, which affords it.

        Raises:
            ConfigError, BudgetError: as those of a run.
        """
        facts = {"name": f"describe {self.config.name}"}
        entry = LedgerEntry(path, secrets.token_hex(16), facts, self.config, records)
        entry.check_noise(shared, self._charged)
        slots = {silo: [Planned(self._charged, 1, WHOLE)] for silo in range(len(records.num_records))}
        return entry.afforded(shared, slots)

    @property
    def _charged(self) -> SampledGaussian:
        return self.tabulation.release(self.rules.neighbouring, self.rules.unit)

    def charge(self, entry: LedgerEntry) -> dict[str, Any]:
        """Charge the release, on the disk; returns what the ledger comes to."""
        charge = functools.partial(Charge, round=0, release=self._charged, count=1, share=WHOLE, kind="statistics")
        with entry.begin() as ledger:
            ledger.append(charge(silo=silo, noise_id=f"{entry.name}.0") for silo in entry.slots)
            end_run(ledger, entry.name)
            return self.total(ledger)

    def total(self, ledger: Ledger, new: Sequence[RegisteredPlan] = ()) -> dict[str, Any]:
        """What a ledger comes to, with what would be registered."""
        delta, num_runs = self.config.privacy.delta, len(runs_in(ledger)) + len(new)
        alone = {"epsilon": self.epsilon, "delta": delta, "why": "nothing else was released"}
        return {**(alone if num_runs == 1 else adaptive_total(ledger, delta, new)), "num_runs": num_runs}

    def sites(self, federation: Federation) -> list[_Site]:
        """The records of each silo, as what they add to."""
        names = federation.names
        return [self._site(silo, names.get(silo, f"silo {silo}"), data) for silo, data in enumerate(federation.silos)]

    def _site(self, silo: int, name: str, data: Silo) -> _Site:
        x, y, num_records = data.train_x, data.train_y, len(data.train_y)
        owners = np.arange(num_records)
        there = np.ones(num_records, bool) if data.usable is None else data.usable
        if self.rules.unit == "person":  # (n, k, d): of n persons, each with k places for records
            real = y >= 0 if y.dtype == np.int64 else ~np.isnan(y).reshape(*y.shape[:2], -1).any(axis=2)
            there = (real & there[:, None]).reshape(-1)
            owners = np.repeat(owners, x.shape[1])
            x, y = x.reshape(-1, *x.shape[2:]), y.reshape(-1, *y.shape[2:])
        x, y = x[there], y[there]
        _, owners = np.unique(owners[there], return_inverse=True)
        own = [variable.codes(x, y) for variable in self.variables]
        codes = [np.zeros_like(owners), *own]
        for first, second in self.pairs:
            a, b = own[first], own[second]
            joint = a * len(self.variables[second].cells) + b
            codes.append(np.where((a == NOWHERE) | (b == NOWHERE), NOWHERE, joint))
        values = [variable.scaled(x, y) for variable in self.numbers]
        return _Site(silo, name, codes, values, owners.astype(np.int64), num_records)

    def release(self, sites: Sequence[_Site]) -> dict[int, NDArray[np.float64]]:
        """The noisy numbers of each site."""
        source = FreshStream() if self.config.fresh else None
        noisy = {}
        for site in sites:
            rng = source.seek(b"") if source else stream(self.config.public_seed, "description", silo=site.silo)
            noisy[site.silo] = self.tabulation.noisy(site.codes, site.values, site.owners, self.rules.neighbouring, rng)
        return noisy

    def description(
        self,
        sites: Sequence[_Site],
        noisy: Mapping[int, NDArray[np.float64]],
        ledger: Path | None = None,
        total: Mapping[str, Any] | None = None,
    ) -> Description:
        """What follows from noisy numbers; ``noisy`` is empty where nothing was released."""
        std, config = self.tabulation.noise_std(self.rules.neighbouring), self.config
        counts = {site.name: site.num_records for site in sites}
        shown: dict[str, Any] = {}
        if noisy:
            shown[POOLED] = self._of(
                np.sum(list(noisy.values()), axis=0), sum(counts.values()), std * math.sqrt(len(noisy))
            )
            if len(sites) > 1:
                shown |= {site.name: self._of(noisy[site.silo], site.num_records, std) for site in sites}
        return Description(
            epsilon=self.epsilon,
            delta=config.privacy.delta,
            total=total,
            ledger=None if ledger is None else str(ledger),
            noise_multiplier=self.noise,
            noise_std=std,
            unit=self.rules.unit,
            neighbouring=self.rules.neighbouring,
            randomness=str(config.privacy.randomness),
            num_records={POOLED: sum(counts.values()), **(counts if len(sites) > 1 else {})},
            sites=shown,
            notes=tuple(self._notes(noisy, ledger, total)),
        )

    def _notes(self, noisy: Mapping[int, Any], ledger: Path | None, total: Mapping[str, Any] | None) -> Iterator[str]:
        if not self.config.fresh:
            yield SEEDED.format(seed=self.config.seed)
        yield from map(sentence, self.caveats)
        if noisy:
            yield NOISE_ONLY.format(unit=self.rules.unit)
            if self.numbers:
                yield AT_THE_ENDS
            if self.filled_in:
                yield FILLED_IN.format(columns=", ".join(self.filled_in))
        if self.rules.unit == "person":
            yield "Each person counts once, by the mean of their records."
        privacy = self.config.privacy
        if ledger is not None and total is not None and total["num_runs"] == 1 and privacy.ledger_epsilon is None:
            run = "no run" if privacy.epsilon is None else f"privacy.epsilon={privacy.epsilon:g}"
            yield BEGINS.format(ledger=ledger.name, run=run)

    def _of(self, vector: NDArray[np.float64], num_records: int, std: float) -> dict[str, Any]:
        """The statistics of a site, of its noisy numbers."""
        ends = np.cumsum([*self.tabulation.sizes, *[2] * self.tabulation.num_moments])[:-1]
        parts = [part.tolist() for part in np.split(vector, ends)]
        histograms, moments = parts[: len(self.tabulation.sizes)], parts[len(self.tabulation.sizes) :]
        of_numbers = dict(zip((variable.name for variable in self.numbers), moments, strict=True))
        (usable,), columns = histograms.pop(0), {}
        for variable, counts in zip(self.variables, histograms, strict=False):
            entry: dict[str, Any] = {"type": variable.type, "unit": variable.unit}
            if not variable.is_listed:
                entry |= _of_number(variable, counts, of_numbers[variable.name], min(usable, num_records), std)
            entry["counts"] = [
                {"level": name, **_counted(noisy, num_records, std)}
                for name, noisy in zip(variable.cells, counts, strict=True)
            ]
            columns[variable.name] = entry
        cross = []
        for (first, second), counts in zip(self.pairs, histograms[len(self.variables) :], strict=True):
            a, b = self.variables[first], self.variables[second]
            cells = [
                {"levels": list(levels), **_counted(noisy, num_records, std)}
                for levels, noisy in zip(itertools.product(a.cells, b.cells), counts, strict=True)
            ]
            cross.append({"columns": [a.name, b.name], "cells": cells})
        return {"usable": _counted(usable, num_records, std), "columns": columns, "cross": cross}


def _pairs(variables: Sequence[Variable], cross: Sequence[Sequence[str]]) -> tuple[tuple[int, int], ...]:
    names = [variable.name for variable in variables]
    for pair in cross:
        if len(pair) != 2 or pair[0] == pair[1]:
            raise ConfigError(f"cross={','.join(pair)!r} must name two different columns.")
        for name in pair:
            if name not in names:
                known = f"{nearest(name, names)}. There are: {', '.join(names)}"
                raise ConfigError(f"cross: {name!r} is no column that is described{known}.")
    return tuple((names.index(first), names.index(second)) for first, second in cross)


def _counted(noisy: float, num_records: int, std: float) -> dict[str, Any]:
    """A count; ``share`` of all records of the site."""
    value = count(noisy, std, num_records).value
    return {"value": value, "noisy": noisy, "noise_std": std, "share": value / num_records}


def _of_number(
    variable: Variable, counts: Sequence[float], sums: Sequence[float], usable: float, std: float
) -> dict[str, Any]:
    """Mean, standard deviation and quantiles, in the variable's unit; of dates in days since 1970-01-01.

    Args:
        usable: noisy count of the records that can be used.
    """
    half, bins = (variable.high - variable.low) / 2, variable.num_bins
    missing = max(0.0, counts[bins]) if variable.missing >= 0 else 0.0
    there = Estimate(usable - missing, std * math.sqrt(1 + (variable.missing >= 0)))
    mean, spread = mean_and_std((sums[0], sums[1]), std, there)
    quantiles = {f"{share:g}": quantile(counts[:bins], variable.edges, share, std) for share in SHARES}
    in_units: dict[str, Estimate | Interval] = {
        "mean": Estimate(variable.low + half * (mean.value + 1), half * mean.noise_std),
        "std": Interval(*(half * value for value in spread)),
    }
    cut = {"mean": abs(mean.value) == 1, "std": spread.value in (0, 1)}  # noise took them beyond what can be
    return {
        "range": [variable.low, variable.high],
        **{name: {**estimate._asdict(), "cut": cut[name]} for name, estimate in in_units.items()},
        "quantiles": {share: _within(estimate, variable)._asdict() for share, estimate in quantiles.items()},
    }


def _within(interval: Interval, variable: Variable) -> Interval:
    """Bins of whole numbers reach beyond the range by a half."""
    return Interval(*(min(max(value, variable.low), variable.high) for value in interval))
