"""`audit`: whether the privacy of a configuration is what its accountant says, by experiment."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfl_plugin.api.experiment import Experiment, experiment_of
from dpfl_plugin.api.plots import png, shown
from dpfl_plugin.api.progress import say
from dpfl_plugin.api.runs import Run
from dpfl_plugin.config.load import in_file
from dpfl_plugin.core.rounding import places
from dpfl_plugin.core.text import Printed
from dpfl_plugin.errors import ConfigError, DataError
from dpfl_plugin.evidence.audit import Options
from dpfl_plugin.evidence.audit import audit as audit_config
from dpfl_plugin.evidence.audit_report import Report
from dpfl_plugin.federation.runtime import ChargeSink, Observer, Runtime
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.runs.folder import write_atomic
from dpfl_plugin.runtimes.in_process import InProcess

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Reports(Printed, Mapping[str, Report]):
    """What audits of the private variants of a file found, by label."""

    reports: Mapping[str, Report]

    def __getitem__(self, label: str) -> Report:
        return self.reports[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self.reports)

    def __len__(self) -> int:
        return len(self.reports)

    @property
    def consistent(self) -> bool:
        """Whether none of them is contradicted."""
        return all(report.consistent for report in self.values())

    def __str__(self) -> str:
        return "\n\n".join(f"{label}: {report}" for label, report in self.items())

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `dpfl audit --json` prints them."""
        return {label: report.to_dict() for label, report in self.items()}


def audit(
    experiment: Experiment | Run | str | Path,
    *,
    canaries: int = 1000,
    silos: int | None = None,
    rounds: int | None = None,
    seed: int = 0,
    picture: str | Path | None = None,
) -> Report | Reports:
    """Check by experiment what a configuration claims: canaries in silos, seen by the server.

    Args:
        canaries: in all silos together. silos: that have canaries; None: up to 10.
        rounds: None: all that the configuration would run. seed: of canaries, batches and noise.
        picture: a PNG file, to which the canaries' scores are drawn; None: none.

    Returns:
        what was found (``consistent``, ``epsilon_bound``, ``violations``, ...); by label of a file with variants, of
        which those without noise are left out.

    Raises:
        ConfigError, DataError: the configuration or its records are wrong; UnsupportedError: it cannot be audited.
    """
    source = experiment_of(experiment)
    options = Options(canaries=canaries, silos=silos, rounds=rounds, seed=seed)
    variants = source.loaded().variants
    reports: dict[str, Report] = {}
    for variant in variants:
        config, label = variant.config, variant.label or variant.config.name
        if len(variants) > 1 and config.privacy.noise_multiplier == 0:
            say(f"{label}: not private, so there is nothing to audit.")
            continue
        try:
            reports[label] = audit_config(config, source.base, options, _in_process)
        except (ConfigError, DataError) as error:
            raise in_file(error, source.path, variant) from error
    if picture is not None and reports:
        Path(picture).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(Path(picture), png(plot(reports), dpi=150))
    alone = source.variant is not None or variants[0].label is None
    return next(iter(reports.values())) if alone else Reports(reports)


def _in_process(host: SiloGroup, stack: int, charges: ChargeSink, observer: Observer) -> Runtime:
    return InProcess(host, charges, stack_size=stack, observers=[observer])


def plot(reports: Mapping[str, Report]) -> Figure:
    """Draw each audit: the scores of the two groups of canaries with their normal fits, and the epsilons beside."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.9 * len(reports)), layout="constrained")
    axes = figure.subplots(len(reports), 2, width_ratios=(3, 2), squeeze=False)
    for (scores, epsilons), (label, report) in zip(axes, reports.items(), strict=True):
        _scores(scores, report)
        scores.set_title(f"{label}: {report.canaries} canaries", fontsize=10)
        _epsilons(epsilons, report)
        for axis in (scores, epsilons):
            axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("score, in standard deviations of the claimed noise")
    axes[-1, 1].set_xlabel("epsilon")
    return shown(figure)


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
