"""Progress: a bar in a terminal and in a notebook, plain lines in a batch log."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress

from dpfl_plugin.api.progress import duration
from dpfl_plugin.core.outcomes import score_key
from dpfl_plugin.core.rounding import places
from dpfl_plugin.runs.progress_bars import bar_on

if TYPE_CHECKING:
    from dpfl_plugin.federation.progress import Progress as RunProgress

SECONDS_BETWEEN_LINES = 10.0
ROUNDS_TO_TIME, SECONDS_TO_TIME = 5, 5.0  # either is enough to tell how long the others take
WARNING = "warning: "
HUGE_LOSS = 1e6  # decimal places of it say nothing


class _Warned:
    """What was warned of, so that a run's end does not say it again."""

    def __init__(self) -> None:
        self.warned: list[str] = []

    def _remember(self, text: str) -> None:
        if text.startswith(WARNING):
            self.warned.append(text.removeprefix(WARNING))


class PlainReporter(_Warned):
    """One line at most every ten seconds, besides the last one."""

    def __init__(self, label: str, verbose: bool = False) -> None:
        super().__init__()
        self._verbose = verbose
        self._prefix = f"[{label}] " if label else ""
        self._printed_at = 0.0
        self._line: dict[str, Any] = {}
        self._shown: dict[str, Any] = {}
        self._pace = _Pace()

    def note(self, text: str) -> None:
        self._remember(text)
        self._print(text)

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
        self._print(f"round {self._line['round']}/{self._pace.rounds}  {numbers(self._line)}  {self._pace.eta()}")

    def _print(self, text: str) -> None:
        print(self._prefix + text.rstrip(), file=sys.stderr, flush=True)


class BarReporter(_Warned):
    """A bar with round, loss, accuracy, epsilon so far and the time that is left."""

    def __init__(self, label: str, console: Console, verbose: bool = False) -> None:
        super().__init__()
        self._verbose = verbose
        self._label, self._console = label, console
        self._pace = _Pace()
        self._bar: Progress | None = None

    def note(self, text: str) -> None:
        self._remember(text)
        prefix = f"[{self._label}] " if self._label else ""
        self._console.print(prefix + text, style="dim", markup=False, highlight=False)

    def detail(self, text: str) -> None:
        if self._verbose:
            self.note(text)

    def start(self, rounds: int, done: int) -> None:
        self._pace.start(rounds, done)
        self._bar = bar_on(self._console)
        self._task = self._bar.add_task(self._label or "training", total=rounds, completed=done, text="")
        self._text = ""
        self._bar.start()

    def evaluated(self, line: dict[str, Any]) -> None:
        self._text = numbers(line)

    def ticked(self, progress: RunProgress) -> None:
        self._pace.reached(progress.rounds)
        text = f"{progress.rounds}/{self._pace.rounds}  {self._text}  {self._pace.eta()}"
        if self._bar is not None:
            self._bar.update(self._task, completed=progress.rounds, text=text)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def reporter_on(console: Console, label: str, verbose: bool = False) -> BarReporter | PlainReporter:
    """A bar where a person looks on, lines elsewhere."""
    if console.is_terminal or console.is_jupyter:
        return BarReporter(label, console, verbose)
    return PlainReporter(label, verbose)


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

    def eta(self) -> str:
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
    name = key.removeprefix("test_")
    words = [] if loss is None or score is None else [f"loss {value_of(loss)}  {name} {score:.4f}"]
    return "  ".join(words + ([f"epsilon {places(epsilon, 3)}"] if epsilon is not None else []))


def value_of(loss: float) -> str:
    """Four places, or as many digits of a number that is so large that training has diverged."""
    return f"{loss:.4f}" if abs(loss) < HUGE_LOSS else f"{loss:.4g}"
