"""`dpfl run` and `dpfl resume`: run, print how it ended, and say how to go on."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpfl_plugin.api.comparison import Comparison
from dpfl_plugin.api.experiment import Experiment
from dpfl_plugin.api.progress import command_reporter
from dpfl_plugin.api.runs import Run
from dpfl_plugin.api.training import begun, of_one_seed, rounds_saved, run_each
from dpfl_plugin.cli.output import show
from dpfl_plugin.config.load import Plan
from dpfl_plugin.errors import ConfigError, DpflError
from dpfl_plugin.interrupts import INTERRUPTED, NO_ROUND, startup_is_over, stopping
from dpfl_plugin.runtimes.mpi import job


def run(config: Path, settings: list[str], out: Path | None, variant: str | None, **how: Any) -> int:
    """Run what a file describes; returns the exit code."""
    if out is not None:
        settings = [*settings, f"out={json.dumps(str(out))}"]
    experiment = Experiment(config, tuple(settings), variant)
    named = variant is not None
    again = [*sys.argv[1:], *([] if how.get("resume") else ["--resume"])]
    return carry_out(
        lambda: (of_one_seed(experiment.loaded()), experiment.base), again, named=named, source=config, **how
    )


def resume(folder: Path, **how: Any) -> int:
    """Continue the run of a folder; returns the exit code."""
    return carry_out(lambda: begun(folder), sys.argv[1:], resume=True, **how)


def carry_out(
    plan_of: Callable[[], tuple[Plan, Path]],
    again: list[str],
    *,
    as_json: bool,
    verbose: bool,
    named: bool = False,
    **how: Any,
) -> int:
    """Run a plan and print how it ended; returns the exit code, the most severe of several runs'.

    As one of several MPI ranks, only the first does so; the others hold silos and do what it asks.

    Args:
        plan_of: loads (the runs, where relative paths start). again: the words of the command that goes on.
        named: whether it is one variant, which was asked for.
        how: as `run_each` takes it.
    """
    joined = job.join(lambda: _silo_timeout(plan_of))
    if joined is not None and joined.rank > 0:
        startup_is_over()
        joined.serve()
        return 0
    plan, base = plan_of()
    named_ledger = how.get("ledger") is not None or any(each.config.privacy.ledger for each in plan.variants)
    if how.get("ledger_wait") is not None and not named_ledger:
        raise ConfigError("--ledger-wait has no meaning without --ledger or privacy.ledger.")
    before, runs, during_planning = rounds_saved(plan), dict[str, Run](), False
    how["reporter"] = lambda label: command_reporter(label, verbose=verbose)
    with stopping(exits=True) as stop:
        try:
            for label, run in run_each(plan, base, stop=stop, **how):
                runs[label] = run
        except KeyboardInterrupt:
            label = next(v.label or v.config.name for v in plan.variants if (v.label or v.config.name) not in runs)
            _say(f"{label}: interrupted during planning: no round began.")
            during_planning = True
        finally:  # what ended before an error is shown, too
            if runs:
                alone = named or plan.variants[0].label is None
                show(next(iter(runs.values())) if alone else Comparison(runs, pairs=plan.compare), as_json)
    for label, run in runs.items():
        if how.get("profile") and run.profile is not None:
            print(f"{label}: {run.profile}", file=sys.stderr if as_json else sys.stdout)
        if run.status != "done":
            _say((f"{label}: " if len(plan.variants) > 1 else "") + run.ending(shlex.join([*job.command(), *again])))
    code = max((run.exit_code for run in runs.values()), default=0)
    if not during_planning and code != INTERRUPTED:
        return code
    return INTERRUPTED if rounds_saved(plan) != before else NO_ROUND


def _silo_timeout(plan_of: Callable[[], tuple[Plan, Path]]) -> float | None:
    """The longest of all runs; None where they cannot be loaded, which is said once all ranks have started."""
    try:
        plan, _ = plan_of()
    except DpflError:
        return None
    longest = max(variant.config.runtime.silo_timeout or math.inf for variant in plan.variants)
    return longest if math.isfinite(longest) else None


def _say(text: str) -> None:
    print(f"dpfl: {text}", file=sys.stderr)
