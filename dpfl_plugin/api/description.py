"""What a table holds, as far as noise lets it be told: the result of `dpfl.describe`, and its Table 1."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.core.text import aligned, counted
from dpfl_plugin.core.validation_scores import NORMAL_95
from dpfl_plugin.data.variables import Variable
from dpfl_plugin.runs.start_notes import total_in_words

if TYPE_CHECKING:
    import pandas

MOST_SITES: Final = 8  # columns of the text; JSON and `rows` have all
CUT_OFF: Final = "* cut to what is possible: noise took a count below 0 or above the number of records, say."
TOO_FEW: Final = "- too few records for this noise: the 95 % interval is the whole possible range."
COLUMNS: Final = ("site", "column", "statistic", "value", "noisy", "noise_std", "low", "high")


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
        """`rows` as a data frame."""
        import pandas

        return pandas.DataFrame(self.rows)

    def __str__(self) -> str:
        lines = [*([] if not self.sites else [_text(self), ""]), *self.notes]
        return "\n".join([*lines, self._price()])

    __repr__ = __str__

    def _price(self) -> str:
        """What it costs, in words."""
        spends = "This costs" if self.sites else "Nothing was released. This would cost"
        spends = "With fresh randomness this would cost" if self.randomness == "seeded" else spends
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


def _numbers(entry: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(name, number) of a column, in the order of the table."""
    if "mean" in entry:
        yield "mean", entry["mean"]
        yield "standard deviation", entry["std"]
        for share, found in entry["quantiles"].items():
            yield f"quantile {share}", found
    for cell in entry["counts"]:
        yield cell["level"], cell


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
        half = {"type": "", "range": (0.0, (entry["range"][1] - entry["range"][0]) / 2)}
        rows.append(["  standard deviation", *(_interval(found["std"], half) for found in there)])
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
    shown = [cell for row in rows[1:] for cell in row[1:]]
    text += f"\n{CUT_OFF}" * any("*" in cell for cell in shown)
    return text + f"\n{TOO_FEW}" * ("-" in shown)


def _count_rows(cells: Sequence[Sequence[Mapping[str, Any]]], names: Sequence[str]) -> list[list[str]]:
    return [[f"  {name}", *(_count(of[place]) for of in cells)] for place, name in enumerate(names)]


def _count(cell: Mapping[str, Any]) -> str:
    mark = "*" * (cell["noisy"] != cell["value"])
    return f"{cell['value']:.0f}{mark} ± {_spread(cell['noise_std'])} ({100 * cell['share']:.1f} %)"


def _spread(std: float) -> str:
    return f"{std:.0f}" if std >= 10 else f"{std:.2g}"


def _shown(value: float, entry: Mapping[str, Any]) -> str:
    if entry["type"] == "date":
        return Variable("", "date").shown(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _estimate(found: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    error = NORMAL_95 * found["noise_std"]
    if _is_whole(found["value"] - error, found["value"] + error, entry):
        return "-"
    days = " days" * (entry["type"] == "date")
    return f"{_shown(found['value'], entry)}{'*' * found['cut']} ± {_spread(found['noise_std'])}{days}"


def _interval(found: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    if _is_whole(found["low"], found["high"], entry):
        return "-"
    value, low, high = (_shown(found[key], entry) for key in ("value", "low", "high"))
    return f"{value}{'*' * found.get('cut', False)} ({low} to {high})"


def _is_whole(low: float, high: float, entry: Mapping[str, Any]) -> bool:
    """Whether an interval leaves nothing out of what is possible."""
    return bool(low <= entry["range"][0] and high >= entry["range"][1])
