"""One HTML page that needs nothing else: a section for each data set; it works without a network."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dpfl_plugin.core.outcomes import measure_range
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.core.text import render
from dpfl_plugin.experiments.reports.curves import Band, band, drawn_at, tradeoff
from dpfl_plugin.experiments.reports.groups import Group, epsilon_text, key_text
from dpfl_plugin.experiments.reports.runs import AXES, Problem, Run
from dpfl_plugin.experiments.reports.tables import measures, title

if TYPE_CHECKING:
    from dpfl_plugin.experiments.reports.section import Section

MOST_CURVES: Final = 500  # runs, or configurations of them, whose curves are in a page; tables have all
UPLOAD: Final = "https://cloud.plotly.com/newchart"
MOST_VALUES: Final = 40  # a key with more values gets no filter


def page(sections: Sequence[Section], *, problems: Sequence[Problem], made_by: str) -> str:
    """The page as text."""
    runs = [run for section in sections for group in section.groups for run in group.runs]
    return render(
        "report/page.html.jinja",
        sections=sections,
        problems=problems,
        made_by=made_by,
        num_runs=len(runs),
        num_complete=sum(run.complete for run in runs),
        caveats=sorted({run.guarantee.caveat for run in runs if run.guarantee is not None} - {""}),
        axes=AXES,
        data=_script_json({"axes": AXES, "sections": [_data(section) for section in sections]}),
        filters_of=_filters,
        curved=_curved,
        compared=_compared,
        minor_of=_minor,
        measures=measures,
        title=title,
        key_text=key_text,
        epsilon_text=epsilon_text,
        plotly=_packed(_plotly(_library())),
    )


def _library() -> str:
    """The basic bundle of Plotly.js, which has what this page draws, at a third of the length of the whole library."""
    file = resources.files("dpfl_plugin.experiments.reports").joinpath("plotly/plotly-basic.min.js.gz")
    return gzip.decompress(file.read_bytes()).decode()


def _plotly(text: str) -> str:
    """The library without the address to which its button "Share chart" sends what is drawn."""
    return text.replace(UPLOAD, "")


def _packed(text: str) -> str:
    """Compressed, as text that a page may hold: it is 1.2 MB long, which every mail would carry."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _filters(section: Section) -> dict[str, list[str]]:
    """Of each key that tells configurations apart its values as text, numbers in their order."""
    choices = {}
    for key in section.groups[0].distinguishing:
        values = {key_text(key, group.keys[key]): group.keys[key] for group in section.groups if key in group.keys}
        texts = [text for text, value in sorted(values.items(), key=lambda item: (*_order(item[1]), item[0]))]
        if any(key not in group.keys for group in section.groups):
            texts.append("-")
        if 1 < len(texts) <= MOST_VALUES:
            choices[key] = texts
    return choices


def _order(value: Any) -> tuple[bool, float]:
    number = isinstance(value, int | float) and not math.isnan(value)
    return not number, value if number else 0.0


def _curved(section: Section) -> list[str]:
    """Metrics with curves: those of the rows first."""
    every = dict.fromkeys(name for group in section.groups for run in group.runs for name in run.numbers)
    return sorted(every, key=lambda name: name not in section.metrics)


def _compared(section: Section) -> bool:
    """Whether there are results at two epsilons, to be drawn against them."""
    points = [point for group in section.groups if (point := tradeoff(group, section.metrics[0])) is not None]
    return len({*drawn_at(epsilon for epsilon, _, _ in points).values()}) > 1


def _minor(section: Section) -> list[int]:
    """Columns that a phone shows only if asked."""
    columns = section.table.columns
    major = (0, columns.index(title(section.metrics[0])), columns.index("epsilon, server"))
    return [place for place in range(len(columns)) if place not in major]


def _data(section: Section) -> dict[str, Any]:
    """What the page draws. A group of several complete runs has bands; single runs have their curves."""
    groups, curved, first = section.groups, _curved(section), section.metrics[0]
    singly = sum(len(group.runs) for group in groups) <= MOST_CURVES
    at = drawn_at(epsilon for group in groups if (epsilon := group.epsilon("server")) is not None)
    entries = []
    for index, group in enumerate(groups):
        entry: dict[str, Any] = {"label": group.label, "n": len(group.complete), "bands": {}, "runs": []}
        entry |= {"series": group.series, "point": _point(group, first, at)}
        if index < MOST_CURVES:
            entry["bands"] = {axis: _bands(group, curved, axis) for axis in AXES} if entry["n"] else {}
            entry["runs"] = [_curve(run, curved) for run in group.runs if singly or not run.complete]
        entries.append(entry)
    shown = [*dict.fromkeys([*curved, *section.metrics])]
    baselines = {name: [value for group in groups if (value := group.baseline(name)) is not None] for name in shown}
    return {
        "points": first,
        "titles": {name: title(name) for name in shown},
        "range": {name: measure_range(name) for name in shown},
        "baseline": {
            name: float(f"{values[0]:.5g}") for name, values in baselines.items() if values and np.ptp(values) < 1e-3
        },
        "groups": entries,
    }


def _point(group: Group, metric: str, at: Mapping[float, float]) -> list[float] | None:
    """Epsilon towards the server, as it is drawn; mean and half width of its interval (0 for one run).

    None without a guarantee.
    """
    point = tradeoff(group, metric)
    if point is None:
        return None
    return [float(digits(at[point[0]], 5)), *(float(f"{value:.5g}") for value in point[1:])]


def _bands(group: Group, metrics: Sequence[str], axis: str) -> dict[str, Any]:
    bands = {metric: band(group.complete, metric, axis) for metric in metrics}
    return {metric: _band(value, axis) for metric, value in bands.items() if value is not None}


def _band(curve: Band, axis: str) -> dict[str, Any]:
    half = None if curve.half_width is None else _numbers(curve.half_width)
    return {"x": _numbers(curve.x, axis), "mean": _numbers(curve.mean), "half": half}


def _curve(run: Run, metrics: Sequence[str]) -> dict[str, Any]:
    columns = {name: run.curve[name] for name in (*AXES, *metrics) if name in run.curve}
    curve = {name: _numbers(values, name) for name, values in columns.items()} if len(run.curve["rounds"]) else {}
    return {"seed": run.seed, "status": run.status, "complete": run.complete, "curve": curve}


def _numbers(values: np.ndarray, column: str = "") -> list[float | None]:
    """With five digits; an epsilon, which is a bound, is rounded up."""
    short = (lambda value: digits(value, 5)) if column.startswith("epsilon") else "{:.5g}".format
    return [float(short(value)) if math.isfinite(value) else None for value in values.tolist()]


def _script_json(value: Mapping[str, Any]) -> str:
    """JSON that no text in it can break out of a script element with."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
