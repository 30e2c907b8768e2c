"""How a run tells a person how it goes: a bar in a terminal and in Jupyter, plain lines in a batch log."""

from __future__ import annotations

import html
import importlib
import io
import secrets
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from dpfl_plugin.core.outcomes import score_key
from dpfl_plugin.core.rounding import places
from dpfl_plugin.core.text import duration

if TYPE_CHECKING:
    from dpfl_plugin.experiments.status import SweepStatus
    from dpfl_plugin.federation.progress import Progress as RunProgress

WARNING: Final = "warning: "
FINISHED: Final = "finished before"
SEEDED: Final = "randomness seeded"
# How notes begin that are shown without a terminal, too.
ALWAYS: Final = (WARNING, SEEDED, "folder: ", FINISHED, "interrupted", "records: ", "silos have ")
LONGEST: Final = 800  # letters of a note that are shown
SECONDS_BETWEEN_LINES: Final = 10.0
ROUNDS_TO_TIME, SECONDS_TO_TIME = 5, 5.0  # either is enough to estimate the time that is left
HUGE_LOSS: Final = 1e6  # decimal places of it say nothing
REDRAW_SECONDS: Final = 0.2  # at least, between two pictures in a notebook
NOTEBOOK_WIDTH: Final = 110  # letters of a line there
LOOKS: Final = 20  # the time between two looks at all runs of a sweep, in that of a look


def say(text: str) -> None:
    """Tell the caller, on stderr, what takes a while and what to know when reading a result."""
    print(f"dpfl: {text}", file=sys.stderr, flush=True)


class Lines:
    """The reporter of a command in a batch log: every note, and a line at most every ten seconds, besides the last.

    Args:
        label: of the run, where a file has several. verbose: whether details are shown, too.
    """

    def __init__(self, label: str = "", *, verbose: bool = False) -> None:
        self._label, self._verbose, self._pace = label, verbose, _Pace()
        self._printed_at = 0.0
        self._line: dict[str, Any] = {}
        self._shown: dict[str, Any] = {}

    def note(self, text: str) -> None:
        prefix = f"[{self._label}] " if self._label else ""
        print(prefix + text.rstrip(), file=sys.stderr, flush=True)

    def detail(self, text: str) -> None:
        if self._verbose:
            self.note(text)

    def start(self, rounds: int, done: int) -> None:
        self._pace.start(rounds, done)

    def evaluated(self, line: dict[str, Any]) -> None:
        self._line = line
        self._pace.reached(line["round"])
        if time.monotonic() - self._printed_at >= SECONDS_BETWEEN_LINES:
            self._show()

    def ticked(self, progress: RunProgress) -> None:
        self._pace.reached(progress.rounds)

    def end(self) -> None:
        if self._line and self._line is not self._shown:
            self._show()

    def _show(self) -> None:
        self._printed_at, self._shown = time.monotonic(), self._line
        self.note(f"round {self._line['round']}/{self._pace.rounds}  {numbers(self._line)}  {self._pace.left()}")


class Warnings:
    """The reporter of a program that nobody watches: warnings, and where the run's folder is.

    Args:
        each: whether to tell of each run that it is seeded, or finished before.
    """

    def __init__(self, *, each: bool = True) -> None:
        self._always = tuple(word for word in ALWAYS if each or word not in (SEEDED, FINISHED))

    def note(self, text: str) -> None:
        if text.startswith(self._always):
            say(_shortened(text))

    def detail(self, text: str) -> None: ...

    def start(self, rounds: int, done: int) -> None: ...

    def evaluated(self, line: dict[str, Any]) -> None: ...

    def ticked(self, progress: RunProgress) -> None: ...

    def end(self) -> None: ...


class Bar:
    """The reporter where a person looks on: every note, and a bar with round, loss, score, epsilon and time left.

    Args:
        label, verbose: as of `Lines`. python: whether notes name settings as Python does.
    """

    def __init__(self, console: Console, label: str = "", *, verbose: bool = False, python: bool = False) -> None:
        self._console, self._label, self._verbose, self._python = console, label, verbose, python
        self._pace, self._text = _Pace(), ""
        self._bar: Progress | None = None

    def note(self, text: str) -> None:
        prefix = f"[{self._label}] " if self._label else ""
        text = _shortened(text) if self._python else text
        self._console.print(prefix + text, style="dim", markup=False, highlight=False)

    def detail(self, text: str) -> None:
        if self._verbose:
            self.note(text)

    def start(self, rounds: int, done: int) -> None:
        self._pace.start(rounds, done)
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[text]}"))
        self._bar = (NotebookBar if self._console.is_jupyter else Progress)(*columns, console=self._console)
        self._task = self._bar.add_task(self._label or "training", total=rounds, completed=done, text="")
        self._bar.start()

    def evaluated(self, line: dict[str, Any]) -> None:
        self._text = numbers(line)

    def ticked(self, progress: RunProgress) -> None:
        self._pace.reached(progress.rounds)
        text = f"{progress.rounds}/{self._pace.rounds}  {self._text}  {self._pace.left()}"
        if self._bar is not None:
            self._bar.update(self._task, completed=progress.rounds, text=text)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class SweepBar:
    """One bar for all runs of a sweep, or lines; drawn by who waits for the runs: a thread would disturb their forks.

    Args:
        status: how far the sweep is. progress: whether to show a bar; None: in a terminal and in Jupyter.
    """

    def __init__(self, status: Callable[[], SweepStatus], progress: bool | None) -> None:
        self._console, self._status = Console(stderr=True), status
        self._shown = _is_shown(self._console, progress)
        self._due, self._began, self._before = 0.0, time.monotonic(), status().fraction

    def __enter__(self) -> SweepBar:
        if self._shown:
            columns = (TextColumn("sweep"), BarColumn(bar_width=24), TextColumn("{task.fields[text]}"))
            kind = NotebookBar if self._console.is_jupyter else Progress
            # What a run prints has another process's view of the screen.
            plain: dict[str, Any] = {"auto_refresh": False, "redirect_stdout": False, "redirect_stderr": False}
            self._bar = kind(*columns, console=self._console, **plain)
            self._task = self._bar.add_task("sweep", total=1.0, text="")
            self._bar.start()
            self.draw()
        return self

    def __exit__(self, *error: object) -> None:
        if self._shown:
            self._due = 0.0
            self.draw()
            self._bar.stop()

    def note(self, text: str) -> None:
        """Say something; a bar counts the runs that are done instead of listing them."""
        if not self._shown:
            say(text)
        elif ": done  " not in text:
            self._console.print(text, style="dim", markup=False, highlight=False)

    def draw(self) -> None:
        """Show how far the sweep is, once a second; where looking at many runs takes long, less often."""
        now = time.monotonic()
        if not self._shown or now < self._due:
            return
        status = self._status()
        counts, fraction = status.counts, status.fraction
        words = [f"{counts['done']}/{len(status.rows)} runs"]
        words += [f"{counts[name]} {name}" for name in ("running", "failed") if counts[name]]
        if now - self._began >= SECONDS_TO_TIME and self._before < fraction < 1:
            words.append(f"{duration((now - self._began) / (fraction - self._before) * (1 - fraction))} left")
        self._bar.update(self._task, completed=fraction, text="  ".join(words), refresh=True)
        self._due = now + max(1.0, LOOKS * (time.monotonic() - now))


def _is_shown(console: Console, progress: bool | None) -> bool:
    return (console.is_terminal or console.is_jupyter) if progress is None else progress


def python_reporter(progress: bool | None) -> Bar | Warnings:
    """The reporter of a Python program; ``progress``: whether to show a bar; None: in a terminal and in Jupyter."""
    console = Console(stderr=True)
    return Bar(console, python=True) if _is_shown(console, progress) else Warnings()


def command_reporter(label: str = "", *, verbose: bool = False) -> Bar | Lines:
    """The reporter of a command: a bar where a person looks on, lines elsewhere."""
    console = Console(stderr=True)
    return Bar(console, label, verbose=verbose) if console.is_terminal else Lines(label, verbose=verbose)


class NotebookBar(Progress):
    """Shows itself as one output that is replaced. Rich would need ipywidgets for that, and show nothing without."""

    def start(self) -> None:
        self._id, self._at = f"dpfl-{secrets.token_hex(8)}", 0.0
        self._show()

    def update(self, *args: Any, **changes: Any) -> None:
        super().update(*args, **changes)
        if time.monotonic() - self._at >= REDRAW_SECONDS:
            self._show()

    def stop(self) -> None:
        if self._at:
            self._show()

    def _show(self) -> None:
        again, self._at = bool(self._at), time.monotonic()
        page = Console(file=io.StringIO(), width=NOTEBOOK_WIDTH, force_jupyter=False, force_terminal=False)
        page.print(self.get_renderable())
        text = page.file.getvalue().rstrip()  # type: ignore[attr-defined]
        content = {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}
        importlib.import_module("IPython.display").display(content, raw=True, display_id=self._id, update=again)


class _Pace:
    """The time that is left, by the rounds of this process without its first, which loads and compiles things."""

    def __init__(self) -> None:
        self.rounds = self.done = self._first = 0
        self._began: float | None = None

    def start(self, rounds: int, done: int) -> None:
        self.rounds, self.done, self._first, self._began = rounds, done, done, None

    def reached(self, round: int) -> None:
        self.done = round
        if self._began is None and round > self._first:
            self._first, self._began = round, time.monotonic()

    def left(self) -> str:
        """In words; empty where nothing is left, or where too few rounds were timed to tell."""
        finished, left = self.done - self._first, self.rounds - self.done
        if self._began is None or finished <= 0 or left <= 0:
            return ""
        took = time.monotonic() - self._began
        timed = finished >= ROUNDS_TO_TIME or took >= SECONDS_TO_TIME
        return f"{duration(took / finished * left)} left" if timed else ""


def numbers(line: dict[str, Any]) -> str:
    """An evaluation in few words."""
    key = score_key(line)
    loss, score = line["train_loss"], line[key]
    epsilon = line["epsilon"]["server"]
    words = [] if loss is None or score is None else [f"loss {short(loss)}  {key.removeprefix('test_')} {score:.4f}"]
    return "  ".join(words + ([f"epsilon {places(epsilon, 3)}"] if epsilon is not None else []))


def short(loss: float) -> str:
    """Four places, or as many digits of a number that is so large that training has diverged."""
    return f"{loss:.4f}" if abs(loss) < HUGE_LOSS else f"{loss:.4g}"


def _shortened(text: str) -> str:
    return text.rstrip() if len(text) <= LONGEST else f"{text[:LONGEST].rstrip()} ... (all of it: log.txt)"
