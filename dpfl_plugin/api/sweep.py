"""`dpfl.sweep`: all runs of a sweep that are not finished, on this machine or by Slurm."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from dpfl_plugin import own_folders
from dpfl_plugin.api.experiment import Experiment, experiment_of
from dpfl_plugin.api.progress import SweepBar
from dpfl_plugin.api.sweep_result import SweepResult
from dpfl_plugin.config.incompatible import check_compatible
from dpfl_plugin.config.schema import Config
from dpfl_plugin.config.sweep import Row, config_of, expand
from dpfl_plugin.data.outcome_option import parse
from dpfl_plugin.data.preprocess import check_steps
from dpfl_plugin.data.schema import TableSchema
from dpfl_plugin.errors import require
from dpfl_plugin.experiments import manifest, scripts, submission
from dpfl_plugin.experiments.manifest import Backend, Options, Sweep
from dpfl_plugin.experiments.status import SweepStatus, states
from dpfl_plugin.experiments.supervisor import FAILED, INTERRUPTED, run_rows, say, try_again
from dpfl_plugin.interrupts import startup_is_over
from dpfl_plugin.runs.backbone import MORE_STEPS
from dpfl_plugin.runs.environment import changed, file_digests
from dpfl_plugin.runs.ledgers import ledger_of
from dpfl_plugin.runs.plugins import make_accountant, make_algorithm
from dpfl_plugin.runs.privacy_rules import privacy_rules
from dpfl_plugin.runs.records import steps_of
from dpfl_plugin.runs.run_status import RunStatus

COMPOSES: Final = (
    "Each run's epsilon is of that run alone: whoever sees several runs on the same records, or the best of them, "
    "sees their composition (docs/slurm.md)."
)


def sweep(
    experiment: Experiment | str | Path,
    settings: Sequence[str] = (),
    *,
    on: Backend = "local",
    out: str | Path | None = None,
    jobs: int = 1,
    at_once: int | None = None,
    pack: int = 1,
    retry: bool = False,
    dry_run: bool = False,
    ledger: str | Path | None = None,
    progress: bool | None = None,
) -> SweepResult:
    """Run, or submit, all runs of a sweep that are not finished; as `dpfl sweep`. The same call continues.

    On this machine each run is a process that is forked from this one: call it before anything uses a GPU.

    Args:
        experiment: a YAML file with `sweep:`, or an experiment and ``settings`` that give it one.
        settings: changes of it, "key=value".
        on: this machine ("local"), "slurm", or Slurm by "submitit".
        out: folder of the sweep; None: sweeps/NAME.
        jobs: runs at the same time, on this machine or in each task of Slurm. at_once: tasks at the same time. pack:
            runs in a task.
        retry: run failed ones again. dry_run: only say what would be run, and by which script.
        ledger: a file that all runs share.
        progress: whether to show a bar; None: in a terminal and in Jupyter.

    Raises:
        ConfigError, DataError: the file is wrong. BudgetError: the ledger's limit does not afford all runs.
        DpflError: Slurm refuses, or does not answer. KeyboardInterrupt: asked to stop; what began is saved.
    """
    several = isinstance(settings, Sequence) and not isinstance(settings, str)
    require(several, "settings", settings, "be a list of texts, such as ['rounds=2']")
    require(on in get_args(Backend), "on", on, f"be one of {', '.join(get_args(Backend))}")
    for name, count in {"jobs": jobs, "at_once": at_once, "pack": pack}.items():
        whole = isinstance(count, int) and not isinstance(count, bool) and count >= 1
        require(whole or (name == "at_once" and count is None), name, count, "be a whole number of at least 1")
    require(progress is None or isinstance(progress, bool), "progress", progress, "be True, False or None")
    options = Options(on=on, jobs=jobs, at_once=at_once, pack=pack, progress=progress)
    file = experiment_of(experiment)
    require(file.variant is None, "experiment", file.variant, "be a whole file: a sweep runs all of its variants")
    require(file.held is None or on == "local", "on", on, "be local: jobs have no records and objects of this program")
    expansion = expand(file.path, [*file.settings, *settings], Preflight(shared=ledger is not None).check)
    folder = Path("sweeps") / expansion.rows[0].name if out is None else Path(out)
    source = file.base / file.path.name  # where relative paths start
    planned = manifest.plan(expansion, source, folder, None if ledger is None else Path(ledger))
    manifest.check_ledger(planned)
    if jobs > 1 or on != "local":
        for path in _ledgers(planned, planned.rows):
            say(f"ledger {path}: one run uses it at a time, and the others wait for it.")
    if dry_run:
        rows, _ = _wanted(planned, expansion.duplicates, retry)
        return SweepResult(folder, _status(planned), dry_run=_dry_run(planned, rows, options))
    startup_is_over()
    try:
        if on == "local":
            return _run_or_submit(planned, expansion.duplicates, folder, options, retry)
        with submission.alone(planned, say) as lock:
            submission.settle(planned, say)
            return _run_or_submit(planned, expansion.duplicates, folder, options, retry, lock)
    except KeyboardInterrupt:
        say("interrupted; everything that began is saved. The same command continues.")
        raise


def _run_or_submit(
    planned: Sweep, duplicates: int, folder: Path, options: Options, retry: bool, lock: int | None = None
) -> SweepResult:
    """Run or submit what is not finished by now; the lock's descriptor is for what submits."""
    rows, failed = _wanted(planned, duplicates, retry)
    manifest.write(planned)
    if retry:
        for row in failed:
            try_again(planned.folder_of(row))
    elif failed:
        say(f"{len(failed)} failed before and are left alone; --retry runs them again. dpfl status says why.")
    if not rows:
        status = _status(planned)
        at_work = status.counts["running"]
        say("nothing is left to run" + (f" but {at_work} runs that are at work." if at_work else "."))
        return SweepResult(folder, status)
    _register(planned, rows)
    submitted = [] if lock is None else submission.submit(planned, rows, options, lock, say)
    code = 0
    if lock is None:
        with SweepBar(lambda: _status(planned), options.progress) as bar:
            code = run_rows(planned, rows, options.jobs, bar=bar)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    ledgers = _ledgers(planned, planned.rows)
    for path in ledgers:
        say(f"epsilon of all runs together: dpfl account {shlex.quote(str(path))}")
    if not ledgers and _is_private(planned):
        say(COMPOSES)
    return SweepResult(folder, _status(planned), tuple(submitted), failed=code == FAILED)


def _status(planned: Sweep) -> SweepStatus:
    return SweepStatus(planned.rows, tuple(states(map(planned.folder_of, planned.rows))))


def _wanted(planned: Sweep, duplicates: int, retry: bool) -> tuple[list[Row], list[Row]]:
    """(Rows that are to run now, rows that failed before), after saying how far all are."""
    status = _status(planned)
    pairs = list(zip(planned.rows, status.states, strict=True))
    counts = ", ".join(f"{n} {name}" for name, n in Counter(state.status for state in status.states).items())
    again = f" ({duplicates} combinations are the same as others)" if duplicates else ""
    say(f"{len(planned.rows)} runs: {counts}{again}; in {planned.runs}")
    _say_other_code(planned, [(row, state) for row, state in pairs if state.status == "done"])
    failed = [row for row, state in pairs if state.status == "failed"]
    rows = [row for row, state in pairs if state.status in ("pending", "lost")]
    return sorted([*rows, *failed], key=lambda row: row.index) if retry else rows, failed


def _say_other_code(planned: Sweep, done: Sequence[tuple[Row, RunStatus]]) -> None:
    """Name each finished run that was made with another file of users' code than there is now."""
    own_folders.look_in(planned.source.parent)
    for row, state in done:
        now = file_digests(config_of(planned.base, row, planned.runs))
        if modules := changed(now, state.result.get("code") or {}):
            say(f"{row.index}: made with another version of {', '.join(modules)} than there is now  {row.label}")


def _register(planned: Sweep, rows: Sequence[Row]) -> None:
    """Register all runs in the ledger that they share: they are then one plan, whatever is seen of the first."""
    if not _ledgers(planned, rows):
        return
    from dpfl_plugin.runs.ledgers import Wait
    from dpfl_plugin.runtimes.choice import register

    own_folders.look_in(planned.source.parent)
    configs = [config_of(planned.base, row, planned.runs) for row in rows]
    register(configs, planned.source.parent, planned.ledger, Wait(math.inf, say), say)


def _ledgers(planned: Sweep, rows: Sequence[Row]) -> list[Path]:
    """Those that runs share."""
    if planned.ledger is not None:
        return [planned.ledger]
    configs = (config_of(planned.base, row, planned.runs) for row in rows)
    paths = (ledger_of(config, planned.source.parent) for config in configs)
    return list(dict.fromkeys(path for path in paths if path is not None))


def _dry_run(planned: Sweep, rows: Sequence[Row], options: Options) -> str:
    lines = [f"# {row.index} {row.id} {row.label}" for row in rows]
    if options.on == "slurm" and rows:
        tasks = planned.tasks(rows, options.pack)
        name = planned.rows[0].name
        for request, part in submission.arrays(planned, tasks, options.pack, say):
            lines.append(scripts.sweep_script(planned, part, name, request, options))
    return "\n".join(lines) or "nothing is left to run."


def _is_private(planned: Sweep) -> bool:
    privacy = planned.base.get("privacy")
    return len(planned.rows) > 1 and isinstance(privacy, dict) and privacy.get("noise_multiplier") != 0


class Preflight:
    """Checks the configurations of a sweep before the first run begins, what they have in common once.

    Plugins are made with their options, steps of preprocessing and schemas of tables are read. Users' own modules are
    left to the runs, each of which loads them as they are when it begins, and records to whom they belong.

    Args:
        shared: whether its runs share a ledger, whatever they name.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._checked: set[str] = set()
        self._shared = shared

    def check(self, config: Config) -> None:
        """
        Raises:
            ConfigError: a value is one that no run can have; the message names the key.
            PluginError: a plugin cannot be made.
        """
        privacy = config.privacy
        if self._shared or ledger_of(config, Path()) is not None:
            check_compatible(config, "ledger")
        if config.algorithm.name is not None:
            self._once("algorithm", config.algorithm.model_dump(mode="json"), lambda: make_algorithm(config))
        if privacy.accountant.name is not None:
            self._once("accountant", privacy.accountant.model_dump(mode="json"), lambda: make_accountant(config))
        if None not in (privacy.mechanism.name, privacy.clip.name, privacy.schedule.name):
            facts = [privacy.model_dump(mode="json"), config.rounds is None, config.l2]
            self._once("privacy", facts, lambda: privacy_rules(config))
        steps, options = steps_of(config), config.data.dataset.options
        self._once("preprocess", steps, lambda: check_steps(steps, MORE_STEPS))
        if config.data.dataset.name == "table":
            self._once("schema", options.get("schema"), lambda: TableSchema.parse(options.get("schema")))
        elif config.data.dataset.name in ("csv", "npz"):
            texts = [options.get("outcome"), options.get("classes")]
            self._once("outcome", texts, lambda: parse(*texts))

    def _once(self, what: str, facts: Any, look: Callable[[], object]) -> None:
        key = what + json.dumps(facts, default=str, sort_keys=True)
        if key not in self._checked:
            look()
            self._checked.add(key)
