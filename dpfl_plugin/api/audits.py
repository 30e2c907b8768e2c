"""Whether the privacy of a configuration is what its accountant says: audits of all its runs."""

from __future__ import annotations

from pathlib import Path

from dpfl_plugin.api.experiment import Experiment, experiment_of
from dpfl_plugin.api.progress import say
from dpfl_plugin.api.runs import Run
from dpfl_plugin.config.load import in_file
from dpfl_plugin.core.text import Printed
from dpfl_plugin.errors import ConfigError, DataError
from dpfl_plugin.evidence.audit import Options
from dpfl_plugin.evidence.audit import audit as audit_config
from dpfl_plugin.evidence.audit_report import FALSE_ALARM, Report
from dpfl_plugin.federation.runtime import ChargeSink, Observer, Runtime
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.privacy.audit import Correlation, Interval
from dpfl_plugin.runtimes.in_process import InProcess

__all__ = ["FALSE_ALARM", "Correlation", "Interval", "Options", "Report", "audit", "audits"]


def audit(
    experiment: Experiment | Run | str | Path,
    *,
    canaries: int = 1000,
    silos: int | None = None,
    rounds: int | None = None,
    seed: int = 0,
) -> Report | Reports:
    """Check by experiment what a configuration claims: canaries in silos, seen by the server; as `dpfl audit`.

    Args:
        canaries: in all silos together. silos: that have canaries; None: up to 10.
        rounds: None: all that the configuration would run.

    Returns:
        what was found (``consistent``, ``epsilon_bound``, ``violations``, ...); by label where there are several
        variants, of which those without noise are left out.

    Raises:
        ConfigError, DataError: the configuration or its records are wrong; UnsupportedError: it cannot be audited.
    """
    found = experiment_of(experiment)
    reports = audits(found, Options(canaries=canaries, silos=silos, rounds=rounds, seed=seed))
    return Reports(reports) if len(found.loaded().variants) > 1 else next(iter(reports.values()))


class Reports(Printed, dict[str, Report]):
    """What audits found, by label; ``print`` shows it as `dpfl audit` does."""

    def __str__(self) -> str:
        return "\n\n".join(f"{label}: {report}" for label, report in self.items())


def audits(experiment: Experiment, options: Options) -> dict[str, Report]:
    """As `audit`, always by label."""
    variants = experiment.loaded().variants
    reports: dict[str, Report] = {}
    for one in variants:
        label = one.label or one.config.name
        if len(variants) > 1 and one.config.privacy.noise_multiplier == 0:
            say(f"{label}: not private, so there is nothing to audit.")
            continue
        try:
            reports[label] = audit_config(one.config, experiment.base, options, _in_process)
        except (ConfigError, DataError) as error:
            raise in_file(error, experiment.path, one) from error
    return reports


def _in_process(host: SiloGroup, stack: int, charges: ChargeSink, observer: Observer) -> Runtime:
    return InProcess(host, charges, stack_size=stack, observers=[observer])
