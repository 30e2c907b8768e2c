"""A picture of what an audit found."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfl_plugin.core.rounding import places
from dpfl_plugin.runs.folder import write_atomic

if TYPE_CHECKING:
    from dpfl_plugin.api.audits import Report


def draw_audits(path: Path, reports: Mapping[str, Report]) -> None:
    """Draw each audit: the scores of the two groups of canaries with their normal fits, and the epsilons beside."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(reports),
        2,
        figsize=(9, 2.9 * len(reports)),
        width_ratios=(3, 2),
        layout="constrained",
        squeeze=False,
    )
    for (scores, epsilons), (label, report) in zip(axes, reports.items(), strict=True):
        _scores(scores, report)
        scores.set_title(f"{label}: {report.canaries} canaries", fontsize=10)
        _epsilons(epsilons, report)
        for axis in (scores, epsilons):
            axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("score, in standard deviations of the claimed noise")
    axes[-1, 1].set_xlabel("epsilon")
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150, format="png")
    pyplot.close(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, picture.getvalue())


def _scores(axis: Any, report: Report) -> None:
    import numpy as np
    from scipy import stats

    edges = np.histogram_bin_edges(report.scores, bins=min(40, max(8, report.canaries // 12)))
    x = np.linspace(edges[0], edges[-1], 200)
    names = ("-C", "+C") if report.neighbouring == "replace_one" else ("absent", "present")
    for bit, (name, colour) in enumerate(zip(names, ("C0", "C1"), strict=True)):
        group = report.scores[report.bits == bool(bit)]
        if not len(group):
            continue
        axis.hist(group, edges, density=True, alpha=0.45, color=colour, label=f"canary {name} ({len(group)})")
        if len(group) > 1 and group.std() > 0:
            axis.plot(x, stats.norm.pdf(x, group.mean(), group.std()), color=colour)
    axis.set_ylabel("density")
    axis.legend(fontsize=8, frameon=False)


def _epsilons(axis: Any, report: Report) -> None:
    """Bars: what is proven and what is estimated; a line: what is claimed."""
    axis.barh(["lower bound,\n95 %"], [report.epsilon_bound], color="C2", height=0.5)
    if report.gaussian is not None and all(map(math.isfinite, dataclasses.astuple(report.gaussian))):
        g = report.gaussian
        around = [[g.estimate - g.low], [g.high - g.estimate]]
        axis.errorbar([g.estimate], ["if Gaussian,\n95 %"], xerr=around, fmt="o", color="C3", capsize=3)
    axis.set_xlim(left=0)
    axis.set_ylim(-0.6, 1.6)
    if report.epsilon is not None:
        axis.axvline(report.epsilon, color="black", linestyle="--", label=f"accountant: {places(report.epsilon, 2)}")
        axis.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.17))
    axis.invert_yaxis()
    axis.tick_params(axis="y", labelsize=8)
