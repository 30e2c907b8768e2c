"""One HTML page that needs nothing else: tables, filters and curves; it works without a network."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Final

import numpy as np

from dpfl_plugin.core.outcomes import higher_is_better
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.core.text import render
from dpfl_plugin.reports.groups import Band, Group, band, drawn_at, epsilon_text, key_text, series, tradeoff
from dpfl_plugin.reports.runs import AXES, Problem, Run
from dpfl_plugin.reports.tables import MEANINGS, meanings, measures

MOST_CURVES: Final = 500  # groups, and runs one by one, whose curves are in a page; tables have all
POINTS: Final = 60
UPLOAD: Final = "https://cloud.plotly.com/newchart"
MOST_VALUES: Final = 40  # a key with more values gets no filter


def page(
    groups: Sequence[Group], metrics: Sequence[str], *, caption: str, problems: Sequence[Problem], made_by: str
) -> str:
    """The page as text."""
    runs = [run for group in groups for run in group.runs]
    return render(
        "report/page.html.jinja",
        groups=groups,
        metrics=metrics,
        caption=caption,
        measured=measures(groups),
        problems=problems,
        made_by=made_by,
        filters=_filters(groups),
        meanings={what: MEANINGS[what] for what in meanings(groups)[1]},
        number=_attribute,
        num_runs=len(runs),
        num_complete=sum(run.complete for run in runs),
        totals=[run for run in runs if run.guarantee is not None and run.guarantee.total_server is not None],
        caveats=sorted({run.guarantee.caveat for run in runs if run.guarantee is not None} - {""}),
        axes=AXES,
        private=any(tradeoff(group, metric) for group in groups for metric in metrics),
        data=_script_json(_data(groups, metrics)),
        key_text=key_text,
        epsilon_text=epsilon_text,
        plotly=_packed(_plotly(_library())),
    )


def _library() -> str:
    """The basic bundle of Plotly.js, which has what this page draws, at a third of the length of the whole library."""
    file = resources.files("dpfl_plugin.reports").joinpath("plotly/plotly-basic.min.js.gz")
    return gzip.decompress(file.read_bytes()).decode()


def _plotly(text: str) -> str:
    """The library without the address to which its button "Share chart" sends what is drawn."""
    return text.replace(UPLOAD, "")


def _packed(text: str) -> str:
    """Compressed, as text that a page may hold: it is 1.2 MB long, which every mail would carry."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _filters(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Of each key in which groups differ its values as text, numbers in their order."""
    keys = dict.fromkeys(key for group in groups for key in group.keys)
    found = {}
    for key in keys:
        values = {key_text(key, group.keys[key]): group.keys[key] for group in groups if key in group.keys}
        texts = sorted(values, key=lambda text: (*_order(values[text]), text))
        if any(key not in group.keys for group in groups):
            texts.append("-")
        if 1 < len(texts) <= MOST_VALUES:
            found[key] = texts
    return found


def _order(value: Any) -> tuple[bool, float]:
    number = isinstance(value, int | float) and not math.isnan(value)
    return not number, value if number else 0.0


def _attribute(value: float | None) -> str:
    """What a cell is sorted by; nothing sorts last."""
    return "" if value is None else ("1e308" if math.isinf(value) else repr(float(value)))


def _data(groups: Sequence[Group], metrics: Sequence[str]) -> dict[str, Any]:
    """What the page draws. A group of several complete runs has bands; single runs have their curves."""
    singly = sum(len(group.runs) for group in groups) <= MOST_CURVES
    at = drawn_at(epsilon for group in groups if (epsilon := group.epsilon("server")) is not None)
    entries = []
    for index, group in enumerate(groups):
        entry: dict[str, Any] = {"label": group.label, "n": len(group.complete), "bands": {}, "runs": []}
        points = {metric: _point(group, metric, at) for metric in metrics}
        entry |= {"series": series(group), "points": {m: point for m, point in points.items() if point is not None}}
        if index < MOST_CURVES:
            entry["bands"] = {axis: _bands(group, metrics, axis) for axis in AXES} if entry["n"] else {}
            entry["runs"] = [_curve(run, metrics) for run in group.runs if singly or not run.complete]
        entries.append(entry)
    errors = [metric for metric in metrics if not higher_is_better(metric)]
    return {"metrics": list(metrics), "lower": errors, "axes": AXES, "groups": entries}


def _point(group: Group, metric: str, at: Mapping[float, float]) -> list[float] | None:
    """Epsilon towards the server, as it is drawn; mean and standard deviation over complete runs (0 for one).

    None without a guarantee.
    """
    found = tradeoff(group, metric)
    if found is None:
        return None
    return [float(digits(at[found[0]], 5)), *(float(f"{value:.5g}") for value in found[1:])]


def _bands(group: Group, metrics: Sequence[str], axis: str) -> dict[str, Any]:
    found = {metric: band(group.complete, metric, axis) for metric in metrics}
    return {metric: _band(value, axis) for metric, value in found.items() if value is not None}


def _band(found: Band, axis: str) -> dict[str, Any]:
    kept = _kept(len(found.x))
    return {
        "x": _numbers(found.x[kept], axis),
        "mean": _numbers(found.mean[kept]),
        "std": None if found.std is None else _numbers(found.std[kept]),
    }


def _curve(run: Run, metrics: Sequence[str]) -> dict[str, Any]:
    columns = {name: run.curve[name] for name in (*AXES, *metrics) if name in run.curve}
    kept = _kept(len(run.curve["rounds"]))
    curve = {name: _numbers(values[kept], name) for name, values in columns.items()} if len(kept) else {}
    return {"seed": run.seed, "status": run.status, "complete": run.complete, "curve": curve}


def _kept(count: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int))


def _numbers(values: np.ndarray, column: str = "") -> list[float | None]:
    """With five digits; an epsilon, which is a bound, is rounded up."""
    short = (lambda value: digits(value, 5)) if column.startswith("epsilon") else "{:.5g}".format
    return [float(short(value)) if math.isfinite(value) else None for value in values.tolist()]


def _script_json(value: Mapping[str, Any]) -> str:
    """JSON that no text in it can break out of a script element with."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
