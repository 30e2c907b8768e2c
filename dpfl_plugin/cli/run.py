"""`dpfl run`."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dpfl_plugin.cli.plot import curves
from dpfl_plugin.cli.progress import BarReporter, PlainReporter, duration
from dpfl_plugin.config.load import Variant, load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import TrainingError
from dpfl_plugin.runtimes.in_process import InProcess
from dpfl_plugin.training.build import Parts
from dpfl_plugin.training.folder import RunFolder, to_json
from dpfl_plugin.training.runtime import ChargeSink, Runtime
from dpfl_plugin.training.session import Result, finished_result, folder_of, run_session

EXIT_CODES = {"done": 0, "failed": 1, "budget_exhausted": 3, "interrupted": 4}


def run_file(path: Path, settings: list[str], out: Path | None, *, resume: bool, as_json: bool) -> int:
    """Run what a file describes and print how it went; returns the exit code (the most severe of several runs)."""
    if out is not None:
        settings = [*settings, f"out={json.dumps(str(out))}"]
    variants = load(path, settings)
    console = Console(stderr=True)
    results: dict[str, Result] = {}
    with _stopping() as stop:
        for variant in variants:
            label = variant.label or variant.config.name
            results[label] = _run_one(variant, path.parent, resume, stop, console)
            if results[label]["status"] == "interrupted":
                break
    if as_json:
        values = list(results.values())
        print(to_json(results if variants[0].label is not None else values[0]))
    else:
        _show(variants, results)
    for label, result in results.items():
        if result["status"] != "done":
            prefix = f"{label}: " if len(variants) > 1 else ""
            print(f"dpfl: {prefix}{_ending(result, path)}", file=sys.stderr)
    return max((EXIT_CODES[result["status"]] for result in results.values()), default=0)


def _run_one(variant: Variant, base: Path, resume: bool, stop: Callable[[], bool], console: Console) -> Result:
    label = variant.label or ""
    reporter = BarReporter(label, console) if console.is_terminal else PlainReporter(label)
    if finished_result(folder_of(variant.config)) is not None:
        reporter.note(f"finished before, not run again: {folder_of(variant.config).path}")
    result = run_session(
        variant.config, base, resume=resume, make_runtime=_in_process, reporter=reporter, stop=stop
    )
    folder = RunFolder(Path(result["folder"]))
    lines = folder.read_metrics()
    if lines and not folder.curves.exists():
        curves(folder.curves, {label or variant.config.name: lines}, _title(variant.config), variant.config.privacy.delta)
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
        print("\ndpfl: stopping after this silo's work; once more to stop at once.", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, ask) for number in signals}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ending(result: Result, path: Path) -> str:
    done = f"{result['rounds']} rounds are done"
    match result["status"]:
        case "interrupted":
            return f"interrupted; {done} and saved. Go on with: dpfl run {path} --resume"
        case "budget_exhausted":
            return f"stopped by the budget after {result['rounds']} rounds: {result['reason']}."
        case _:
            return f"failed: {result['reason']}. The last good state is in {result['folder']}/checkpoint."


def _title(config: Config) -> str:
    return f"{config.name}: {config.algorithm.name or config.algorithm.module} on {config.data.dataset.name}"


def _show(variants: list[Variant], results: dict[str, Result]) -> None:
    """The table at the end, and where the files are."""
    console = Console(highlight=False)
    config = variants[0].config
    table = Table(title=config.name, title_justify="left")
    for column in ("run", "rounds", "test accuracy", "epsilon, server", "epsilon, third party", "seconds"):
        table.add_column(column, justify="left" if column == "run" else "right")
    for label, result in results.items():
        epsilon = result["epsilon"]
        table.add_row(
            label,
            str(result["rounds"]),
            _accuracy(result["test_accuracy"]),
            _epsilon(epsilon["server"]),
            _epsilon(epsilon["third_party"]),
            f"{result['seconds']:.1f}",
        )
    console.print(table)
    _explain(console, results)
    if len(variants) > 1:
        _compare(console, variants, results)
    for label, result in results.items():
        console.print(f"{label}: {result['folder']}", soft_wrap=True, markup=False)


def _accuracy(values: dict[str, float | None]) -> str:
    last, mean = values["last"], values["mean_last_10_percent"]
    return "-" if last is None or mean is None else f"{last:.4f} (mean of last 10 %: {mean:.4f})"


def _epsilon(view: dict[str, Any]) -> str:
    return "none" if view["epsilon"] is None else f"{view['epsilon']:.3f}"


def _explain(console: Console, results: dict[str, Result]) -> None:
    """What the epsilons mean, and what else a reader should know; each sentence once."""
    views = [view for result in results.values() for view in result["epsilon"].values() if view["epsilon"] is not None]
    meanings = dict.fromkeys(
        f"epsilon at delta = {view['delta']:g}, {view['unit']} level, {view['neighbouring'].replace('_', '-')} neighbours, "
        f"accountant {view['accountant']}"
        for view in views
    )
    for meaning in meanings:
        console.print(meaning + ".", soft_wrap=True)
    if len(views) < 2 * len(results):
        console.print("epsilon none: no noise, so nothing is guaranteed.", soft_wrap=True)
    for note in dict.fromkeys(note for result in results.values() for note in result["notes"]):
        console.print(f"note: {note}", soft_wrap=True, markup=False)


def _compare(console: Console, variants: list[Variant], results: dict[str, Result]) -> None:
    """One picture of all variants, beside their folders."""
    config = variants[0].config
    lines = {label: RunFolder(Path(result["folder"])).read_metrics() for label, result in results.items()}
    if not all(lines.values()):
        raise TrainingError("a run has no evaluations to draw.")
    path = Path(config.out) / config.name / "curves.png"
    curves(path, lines, config.name, config.privacy.delta)
    console.print(f"picture: {path}", soft_wrap=True, markup=False)
