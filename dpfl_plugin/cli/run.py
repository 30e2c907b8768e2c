"""`dpfl run`."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dpfl_plugin.cli.plot import curves
from dpfl_plugin.cli.progress import BarReporter, PlainReporter
from dpfl_plugin.cli.rounding import places
from dpfl_plugin.config.load import Plan, Variant, load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError, DataError
from dpfl_plugin.runtimes.in_process import InProcess
from dpfl_plugin.training.accounting import TOO_FEW_LEFT
from dpfl_plugin.training.build import Parts
from dpfl_plugin.training.folder import RunFolder, to_json
from dpfl_plugin.training.runtime import ChargeSink, Runtime
from dpfl_plugin.training.session import Result, finished_result, folder_of, run_session

EXIT_CODES = {"done": 0, "failed": 1, "budget_exhausted": 3, "interrupted": 4}


def run_file(
    path: Path, settings: list[str], out: Path | None, *, resume: bool, as_json: bool, ledger: Path | None = None
) -> int:
    """Run what a file describes and print how it went; returns the exit code (the most severe of several runs)."""
    command = ["dpfl", "run", str(path), *(f"--set={setting}" for setting in settings)]
    if out is not None:
        settings = [*settings, f"out={json.dumps(str(out))}"]
        command += ["--out", str(out)]
    if ledger is not None:
        command += ["--ledger", str(ledger)]
    sys.path.append(str(path.parent.resolve()))  # users' own modules may lie beside their configuration
    plan = load(path, settings)
    console = Console(stderr=True)
    results: dict[str, Result] = {}
    with _stopping() as stop:
        for variant in plan.variants:
            label = variant.label or variant.config.name
            try:
                results[label] = _run_one(variant, path.parent, resume, stop, console, ledger)
            except (ConfigError, DataError) as error:
                raise type(error)(f"{path}{f' (variant {label})' if variant.label else ''}: {error}") from error
            if results[label]["status"] == "interrupted":
                break
    if as_json:
        print(to_json(results if plan.variants[0].label is not None else next(iter(results.values()))))
    else:
        _show(plan, results)
    for label, result in results.items():
        if result["status"] != "done":
            prefix = f"{label}: " if len(plan.variants) > 1 else ""
            print(f"dpfl: {prefix}{_ending(result, shlex.join([*command, '--resume']))}", file=sys.stderr)
    return max((EXIT_CODES[result["status"]] for result in results.values()), default=0)


def _run_one(
    variant: Variant, base: Path, resume: bool, stop: Callable[[], bool], console: Console, ledger: Path | None
) -> Result:
    label, config = variant.label or "", variant.config
    reporter = BarReporter(label, console) if console.is_terminal else PlainReporter(label)
    folder = folder_of(config)
    finished = finished_result(folder) is not None
    result = run_session(
        config, base, resume=resume, make_runtime=_in_process, reporter=reporter, stop=stop, ledger=ledger
    )
    lines = folder.read_metrics()
    if lines and not (finished and folder.curves.exists()):
        curves(folder.curves, {label or config.name: lines}, _title(config), config.privacy.delta)
    return result


def _in_process(parts: Parts, account: ChargeSink, config: Config, stop: Callable[[], bool]) -> Runtime:
    return InProcess(parts.host, account, stack_size=config.runtime.stack, stop=stop)


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C, SIGTERM or SIGUSR1 came; the first one asks politely, a second one ends at once."""
    asked: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def ask(number: int, frame: Any) -> None:
        if asked:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        asked.append(number)
        # Not print: the signal may have come in the middle of one.
        os.write(2, b"\ndpfl: stopping after this silo's work; once more to stop at once.\n")

    before = {number: signal.signal(number, ask) for number in signals}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ending(result: Result, resume: str) -> str:
    done = f"{result['rounds']} rounds are done"
    match result["status"]:
        case "interrupted":
            return f"interrupted; {done} and saved. Go on with: {resume}"
        case "budget_exhausted":
            capped = result["reason"].startswith(TOO_FEW_LEFT)
            by = "max_participations" if capped else "the budget"
            return f"stopped by {by} after {result['rounds']} rounds: {result['reason']}."
        case _:
            return f"failed: {result['reason']}. The last good state is in {result['folder']}/checkpoint."


def _title(config: Config) -> str:
    return f"{config.name}: {config.algorithm.name or config.algorithm.module} on {config.data.dataset.name}"


def _show(plan: Plan, results: dict[str, Result]) -> None:
    """The table at the end, what it means, and where the files are."""
    config = plan.variants[0].config
    # Without a terminal to fit into, lines are as long as they are.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    table = Table(title=config.name, title_justify="left")
    table.add_column("run")
    for column in ("rounds", "test accuracy\nlast round", "test accuracy\nlast 10 %", "epsilon\nserver"):
        table.add_column(column, justify="right")
    for column in ("epsilon\nthird party", "delta", "seconds"):
        table.add_column(column, justify="right")
    for label, result in results.items():
        server, third_party = result["epsilon"]["server"], result["epsilon"]["third_party"]
        last, mean = result["test_accuracy"]["last"], result["test_accuracy"]["mean_last_10_percent"]
        table.add_row(
            label,
            str(result["rounds"]),
            *("-" if value is None else f"{value:.4f}" for value in (last, mean)),
            *(_epsilon(view) for view in (server, third_party)),
            f"{server['delta']:g}",
            f"{result['seconds']:.1f}",
        )
    console.print(table)
    for line in [*_meaning(results), *_comparisons(plan, results), *_files(plan, results)]:
        console.print(line, soft_wrap=True, markup=False)


def _meaning(results: dict[str, Result]) -> list[str]:
    """What the epsilons mean, and what else a reader should know; each sentence once."""
    views = [result["epsilon"]["server"] for result in results.values()]
    lines = [
        f"epsilon: {view['unit']} level, {_neighbours(view['neighbouring'])}, the worst silo, "
        f"accountant {view['accountant']}. Server: sees every message. Third party: sees the global models."
        for view in views
        if view["epsilon"] is not None and view["neighbouring"] is not None
    ]
    if any(view["neighbouring"] is None for view in views):
        lines.append("epsilon 0 where no round began: nothing was released.")
    if any(view["epsilon"] is None for view in views):
        lines.append("epsilon none: no noise covers what was released, so nothing is guaranteed.")
    for result in results.values():
        if "total" in result["epsilon"]:
            total = result["epsilon"]["total"]
            lines.append(
                f"{result['name']} with the runs before it in the shared ledger: epsilon "
                f"{_epsilon(total['server'])} (server), {_epsilon(total['third_party'])} (third party)."
            )
    lines += [f"note: {note}" for result in results.values() for note in result["notes"]]
    return list(dict.fromkeys(lines))


def _epsilon(view: dict[str, Any]) -> str:
    return "none" if view["epsilon"] is None else places(view["epsilon"], 3)


def _neighbours(relation: str) -> str:
    """The relation in words; where something is added or removed, its number stays public."""
    words = relation.replace("_", "-") + " neighbours"
    return words + " (added or removed: counted as zero or not; the numbers are public)" * (relation == "add_or_remove")


def _comparisons(plan: Plan, results: dict[str, Result]) -> list[str]:
    """The pairs that the file asks for, and whether their difference is more than chance would make."""
    lines = []
    for first, second in plan.compare:
        if first in results and second in results:
            a, b = (results[label]["test_accuracy"]["mean_last_10_percent"] for label in (first, second))
            if a is not None and b is not None:
                lines.append(f"{first} against {second}: {difference(a, b, results[first]['num_test_records'])}")
    return lines


def difference(a: float, b: float, count: int) -> str:
    """Two accuracies on ``count`` test records in words, with the normal approximation's standard error.

    The same records test both, so the error of the difference is at most that of independent ones.
    """
    error = math.sqrt((a * (1 - a) + b * (1 - b)) / count)
    points = f"{100 * (a - b):+.1f} points ({a:.3f}, {b:.3f})"
    if abs(a - b) > 2 * error:
        return f"{points}, more than two standard errors ({200 * error:.1f}): a difference, for this seed."
    return f"{points}, within two standard errors ({200 * error:.1f}): one run does not show a difference."


def _files(plan: Plan, results: dict[str, Result]) -> list[str]:
    """Where the results are; one picture of all variants beside their folders."""
    lines = [f"{label}: {result['folder']}" for label, result in results.items()]
    if len(plan.variants) > 1:
        config = plan.variants[0].config
        measured = {label: RunFolder(Path(result["folder"])).read_metrics() for label, result in results.items()}
        path = Path(config.out) / config.name / "curves.png"
        drawn = {label: rows for label, rows in measured.items() if rows}
        if drawn:
            curves(path, drawn, config.name, config.privacy.delta)
    else:
        path = RunFolder(Path(next(iter(results.values()))["folder"])).curves
    return [*lines, f"picture: {path}"] if path.exists() else lines
