"""`dpfl.describe`: counts, means, quantiles, histograms and cross-tables of a table by site, as one charged release."""

from __future__ import annotations

import functools
import html
import itertools
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.api.experiment import Experiment, experiment_of
from dpfl_plugin.config.incompatible import check_compatible
from dpfl_plugin.config.schema import SCHEMA_KEY, Config
from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.core.streams import FreshStream, stream
from dpfl_plugin.core.text import aligned, counted
from dpfl_plugin.data.base import Silo, survey
from dpfl_plugin.data.schema import TableSchema
from dpfl_plugin.data.variables import NOWHERE, Variable, variables_of
from dpfl_plugin.errors import ConfigError, UnsupportedError, is_real, nearest, require
from dpfl_plugin.late import pandas_for
from dpfl_plugin.measures.noisy_counts import Estimate, Interval, count, mean_and_std, quantile
from dpfl_plugin.owners.limits import find_limits
from dpfl_plugin.privacy.calibration import least_noise
from dpfl_plugin.privacy.composition import Planned
from dpfl_plugin.privacy.events import Charge, Term
from dpfl_plugin.privacy.extra_releases import WHOLE
from dpfl_plugin.privacy.filters import RegisteredPlan
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.shared_ledger import (
    adaptive_total,
    check_protection,
    first_line,
    reuses_to_plain,
    runs_in,
    slots_to_plain,
    unused,
    without_reused,
)
from dpfl_plugin.privacy.tabulation import Tabulation
from dpfl_plugin.runs.ledgers import Wait, ledger_of, locked_shared, now, open_shared
from dpfl_plugin.runs.plugins import make_accountant
from dpfl_plugin.runs.prepare import check_limit
from dpfl_plugin.runs.privacy_rules import privacy_rules
from dpfl_plugin.runs.public_facts import has_schema
from dpfl_plugin.runs.record_marks import MarkKey, shared_key_file
from dpfl_plugin.runs.records import federate, keys_of
from dpfl_plugin.runs.start_notes import SEEDED, total_in_words

if TYPE_CHECKING:
    import pandas

SHARES: Final = (0.05, 0.25, 0.5, 0.75, 0.95)
BINS: Final = 16
MOST_BINS: Final = 1000
POOLED: Final = "all sites"
MOST_SITES: Final = 8  # columns of the text; JSON and `rows` have all
NOISE_ONLY: Final = (
    "± is the standard deviation of the noise alone, and (a to b) a 95 % interval of the noise alone: how the records "
    "themselves were sampled is in neither. Percentages are of all {unit}s of a site."
)
AT_THE_ENDS: Final = "Numbers outside the range of the schema count at its ends."
FILLED_IN: Final = "Missing values of {columns} count as the default of the schema."
CUT_OFF: Final = "* noise made this count negative: 0 is shown."


@dataclass(frozen=True, slots=True)
class Description:
    """What a table holds, by site and in all, as far as noise lets it be told.

    Attributes:
        epsilon, delta: of this release by itself. total: what all runs of its ledger come to with it; None where it is
            charged to none. ledger: that file.
        noise_multiplier: noise standard deviation / sensitivity of a site's numbers.
        noise_std: of each count at one site.
        unit: what is protected, record or person. neighbouring: from what neighbours.
        randomness: fresh, or seeded: a simulation, which protects nobody.
        num_records: training records, or persons, of each site.
        sites: {site: {"usable": ..., "columns": {name: ...}, "cross": [...]}}, the first of them all sites together;
            empty where nothing was released. usable: how many records add to anything; others lack a label, say.
        notes: how to read it.
    """

    epsilon: float
    delta: float
    total: Mapping[str, Any] | None
    ledger: str | None
    noise_multiplier: float
    noise_std: float
    unit: str
    neighbouring: str
    randomness: str
    num_records: Mapping[str, int]
    sites: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        names = [name for name in type(self).__slots__ if name not in ("total", "num_records", "sites", "notes")]
        return {
            **{name: getattr(self, name) for name in names},
            "total": None if self.total is None else dict(self.total),
            "num_records": dict(self.num_records),
            "sites": {site: dict(found) for site, found in self.sites.items()},
            "notes": list(self.notes),
        }

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One for each number: site, column, statistic, value, and noise_std, or low and high."""
        rows = []
        for site, found in self.sites.items():
            rows.append({"site": site, "column": "", "statistic": "usable", **found["usable"]})
            for column, entry in found["columns"].items():
                for name, value in _numbers(entry):
                    rows.append({"site": site, "column": column, "statistic": name, **value})
            for table in found["cross"]:
                for cell in table["cells"]:
                    levels = ", ".join(cell["levels"])
                    rows.append({"site": site, "column": " x ".join(table["columns"]), "statistic": levels, **cell})
        return [{key: row.get(key) for key in COLUMNS} for row in rows]

    @property
    def table(self) -> pandas.DataFrame:
        """`rows` as a data frame.

        Raises:
            ConfigError: pandas is not installed.
        """
        return pandas_for("table", "rows").DataFrame(self.rows)

    def __str__(self) -> str:
        lines = [*([] if not self.sites else [_text(self), ""]), *self.notes]
        return "\n".join([*lines, self._price()])

    __repr__ = __str__

    def _price(self) -> str:
        """What it costs, in words."""
        spends = "This costs" if self.sites else "Nothing was released. This would cost"
        price = f"{spends} epsilon {places(self.epsilon, 3)} at delta {digits(self.delta, 6)}: {self.unit} level"
        noise = (
            f"{self.neighbouring.replace('_', '-')} neighbours, noise of ± {self.noise_std:.3g} on each count of a site"
        )
        if self.total is None:
            return f"{price}, {noise}."
        runs = counted(self.total["num_runs"], "run")
        return f"{price}, {noise}. With it, {self.ledger} comes to {total_in_words(self.total)} ({runs})."

    def _repr_html_(self) -> str:
        return f'<pre style="white-space: pre-wrap">{html.escape(str(self))}</pre>'


COLUMNS: Final = ("site", "column", "statistic", "value", "noisy", "noise_std", "low", "high")


def describe(
    experiment: Experiment | str | Path,
    *,
    epsilon: float,
    cross: Sequence[Sequence[str]] = (),
    bins: int = BINS,
    ledger: str | Path | None = None,
    plan: bool = False,
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

    Raises:
        ConfigError, DataError: an argument, the configuration or the records are wrong, or no ledger is named.
        UnsupportedError: no schema says what is public of the records, or whole silos are protected.
        BudgetError: the ledger's limit does not afford it. BusyError: another run has the ledger.
    """
    require(is_real(epsilon) and 0 < epsilon < math.inf, "epsilon", epsilon, "be positive and finite")
    require(type(bins) is int and 2 <= bins <= MOST_BINS, "bins", bins, f"be a whole number from 2 to {MOST_BINS}")
    source = experiment_of(experiment)
    study = _Study.of(source.config, source.base, epsilon, cross, bins)
    path = None if ledger is None else Path(ledger)
    path = ledger_of(study.config, source.base, path) if study.config.fresh else None
    if study.config.fresh and path is None:
        raise ConfigError(
            "describe needs a ledger that counts what it releases. Name one: privacy.ledger in the configuration, or "
            "--ledger FILE (ledger=...)."
        )
    with locked_shared(path, Wait(60.0)) as shared:
        key = None if path is None else MarkKey.at(shared_key_file(path))
        sites = study.sites(key)
        if path is None or shared is None or key is None:
            noisy = {} if plan else study.release(sites)
            return study.description(sites, noisy, None, None)
        records, cuts = study.marks(key)
        planned = Planned(study.tabulation.release(study.rules.neighbouring, study.rules.unit), 1, WHOLE)
        slots = {site.silo: [planned] for site in sites}
        name = secrets.token_hex(16)
        try:
            check_protection(shared, name, records, planned.release)
        except ConfigError as error:
            raise type(error)(f"ledger {path}: {error}") from error
        reuses = unused(shared, records, slots)
        registered = RegisteredPlan(records, without_reused(slots, reuses))
        check_limit(shared, path, study.config, [registered])
        privacy = study.config.privacy
        if plan:
            runs = len(runs_in(shared))
            total = adaptive_total(shared, privacy.delta, [registered]) if runs else study.alone
            return study.description(sites, {}, path, {**total, "num_runs": runs + 1})
        key.keep()
        totals = functools.partial(first_line, registered, privacy.ledger_epsilon, privacy.delta)
        facts = {
            **{"noise": name, "name": f"describe {study.config.name}", "data_sha256": records, **cuts},
            **{"num_silos": len(sites), "delta": privacy.delta, "started": now(), "slots": slots_to_plain(slots)},
            **({"early": True} if not len(shared) else {}),
            **({"reuses": reuses_to_plain(reuses)} if reuses else {}),
        }
        with open_shared(path, totals) as charged:
            charged.begin_run(facts)
            charged.append(
                Charge(
                    round=0,
                    silo=site.silo,
                    release=planned.release,
                    count=1,
                    share=WHOLE,
                    noise_id=f"{name}.0",
                    kind="statistics",
                )
                for site in sites
            )
            charged.begin_run({"noise": name, "started": now(), "ended": True})
            charged.sync()  # on the disk, before anything is shown
            runs = len(runs_in(charged))
            total = adaptive_total(charged, privacy.delta) if runs > 1 else study.alone
        return study.description(sites, study.release(sites), path, {**total, "num_runs": runs})


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
            missing values are a public default.
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
        return cls(config, base, rules, cost(noise), noise, variables, numbers, pairs, filled_in, shape(noise))

    @property
    def alone(self) -> dict[str, Any]:
        """The total of a ledger that holds nothing else."""
        return {"epsilon": self.epsilon, "delta": self.config.privacy.delta, "why": "nothing else was released"}

    def sites(self, key: MarkKey | None) -> list[_Site]:
        """The records as they are before preprocessing, cut as those of a run."""
        plain = self.config.model_copy(update={"data": self.config.data.model_copy(update={"preprocess": []})})
        keys = None if key is None else keys_of(self.config, key.value)
        federation = federate(plain, self.base, keys=keys)
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

    def marks(self, key: MarkKey) -> tuple[str, dict[str, Any]]:
        """By what a ledger knows the records, and how they are cut: as of a run of this configuration."""
        found = key.marked(survey(federate(self.config, self.base, keys=keys_of(self.config, key.value))))
        return found.data_sha256, found.cut_facts

    def release(self, sites: Sequence[_Site]) -> dict[int, NDArray[np.float64]]:
        """The noisy numbers of each site."""
        source = FreshStream() if self.config.fresh else None
        found = {}
        for site in sites:
            rng = source.seek(b"") if source else stream(self.config.public_seed, "description", silo=site.silo)
            found[site.silo] = self.tabulation.noisy(site.codes, site.values, site.owners, self.rules.neighbouring, rng)
        return found

    def description(
        self,
        sites: Sequence[_Site],
        noisy: Mapping[int, NDArray[np.float64]],
        ledger: Path | None,
        total: Mapping[str, Any] | None,
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
            notes=tuple(self._notes(noisy)),
        )

    def _notes(self, noisy: Mapping[int, Any]) -> Iterator[str]:
        if not self.config.fresh:
            yield SEEDED.format(seed=self.config.seed)
        if noisy:
            yield NOISE_ONLY.format(unit=self.rules.unit)
            if self.numbers:
                yield AT_THE_ENDS
            if self.filled_in:
                yield FILLED_IN.format(columns=", ".join(self.filled_in))
        if self.rules.unit == "person":
            yield "Each person counts once, by the mean of their records."

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
            entry["counts"] = [_cell(name, *each) for name, *each in _cells(variable.cells, counts, num_records, std)]
            columns[variable.name] = entry
        cross = []
        for (first, second), counts in zip(self.pairs, histograms[len(self.variables) :], strict=True):
            a, b = self.variables[first], self.variables[second]
            cells = list(itertools.product(a.cells, b.cells))
            made = [
                {"levels": list(levels), **_counted(*each)} for levels, *each in _cells(cells, counts, num_records, std)
            ]
            cross.append({"columns": [a.name, b.name], "cells": made})
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


def _cells(cells: Sequence[Any], counts: Sequence[float], num_records: int, std: float) -> Iterator[tuple[Any, ...]]:
    for cell, noisy in zip(cells, counts, strict=True):
        yield cell, noisy, num_records, std


def _cell(name: str, *each: Any) -> dict[str, Any]:
    return {"level": name, **_counted(*each)}


def _counted(noisy: float, num_records: int, std: float) -> dict[str, Any]:
    """A count; ``share`` of all records of the site."""
    found = count(noisy, std)
    return {"value": found.value, "noisy": noisy, "noise_std": std, "share": min(1.0, found.value / num_records)}


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
    return {
        "mean": Estimate(variable.low + half * (mean.value + 1), half * mean.noise_std)._asdict(),
        "std": Estimate(half * spread.value, half * spread.noise_std)._asdict(),
        "quantiles": {share: _within(found, variable)._asdict() for share, found in quantiles.items()},
    }


def _within(found: Interval, variable: Variable) -> Interval:
    """Bins of whole numbers reach beyond the range by a half."""
    return Interval(*(min(max(value, variable.low), variable.high) for value in found))


def _numbers(entry: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(name, number) of a column, in the order of the table."""
    if "mean" in entry:
        yield "mean", entry["mean"]
        yield "standard deviation", entry["std"]
        for share, found in entry["quantiles"].items():
            yield f"quantile {share}", found
    for cell in entry["counts"]:
        yield cell["level"], cell


# Text


def _text(description: Description) -> str:
    """Table 1: a line for each statistic, a column for each site."""
    names = list(description.sites)
    names = names if len(names) <= MOST_SITES else names[:1]
    first = description.sites[names[0]]
    rows = [["", *names], [f"{description.unit}s", *(f"{description.num_records[name]:,}" for name in names)]]
    rows += _count_rows([[description.sites[name]["usable"]] for name in names], ["usable"])
    for column, entry in first["columns"].items():
        there = [description.sites[name]["columns"][column] for name in names]
        unit = f", {entry['unit']}" if entry["unit"] else ""
        if "mean" not in entry:
            rows.append([f"{column}{unit}", *[""] * len(names)])
            rows += _count_rows([cells["counts"] for cells in there], [cell["level"] for cell in entry["counts"]])
            continue
        rows.append([f"{column}{unit}: mean", *(_estimate(found["mean"], entry) for found in there)])
        rows.append(["  standard deviation", *(_estimate(found["std"], {"type": ""}) for found in there)])
        for share, name in {"0.25": "25 %", "0.5": "median", "0.75": "75 %"}.items():
            rows.append([f"  {name}", *(_interval(found["quantiles"][share], entry) for found in there)])
        if entry["counts"][-1]["level"] == "missing":
            rows += _count_rows([found["counts"][-1:] for found in there], ["missing"])
    for place, table in enumerate(first["cross"]):
        rows.append([" x ".join(table["columns"]), *[""] * len(names)])
        cells = [description.sites[name]["cross"][place]["cells"] for name in names]
        rows += _count_rows(cells, [", ".join(cell["levels"]) for cell in table["cells"]])
    text = aligned(rows)
    left_out = f"\n{len(description.sites) - 1} sites: to_dict(), rows and --json have each of them."
    text += left_out * (len(description.sites) > len(names))
    return text + f"\n{CUT_OFF}" * ("* ±" in text)


def _count_rows(cells: Sequence[Sequence[Mapping[str, Any]]], names: Sequence[str]) -> list[list[str]]:
    return [[f"  {name}", *(_count(of[place]) for of in cells)] for place, name in enumerate(names)]


def _count(cell: Mapping[str, Any]) -> str:
    mark = "*" * (cell["noisy"] < 0)
    return f"{cell['value']:.0f}{mark} ± {_spread(cell['noise_std'])} ({cell['share']:.1%})"


def _spread(std: float) -> str:
    return f"{std:.0f}" if std >= 100 else f"{std:.2g}"


def _shown(value: float, entry: Mapping[str, Any]) -> str:
    return Variable("", entry["type"]).shown(value) if entry["type"] == "date" else f"{value:.4g}"


def _estimate(found: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    days = " days" * (entry["type"] == "date")
    return f"{_shown(found['value'], entry)} ± {_spread(found['noise_std'])}{days}"


def _interval(found: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    value, low, high = (_shown(found[key], entry) for key in ("value", "low", "high"))
    return f"{value} ({low} to {high})"
