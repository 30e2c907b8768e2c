"""How a run that a program began tells how it goes: a bar in a terminal and in Jupyter, elsewhere warnings alone."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import Progress

from dpfl_plugin.core.outcomes import score_key
from dpfl_plugin.core.rounding import places
from dpfl_plugin.runs.progress_bars import bar_on

if TYPE_CHECKING:
    from dpfl_plugin.federation.progress import Progress as RunProgress

WARNING: Final = "warning: "
FINISHED: Final = "finished before"
SEEDED: Final = "randomness seeded"
# How notes begin that are shown without a terminal, too.
ALWAYS: Final = (WARNING, SEEDED, "folder: ", FINISHED, "interrupted", "records: ", "silos have ")
LONGEST: Final = 800  # letters of a note that are shown


def say(text: str) -> None:
    """Tell the caller, on stderr, what takes a while and what to know when reading a result."""
    print(f"dpfl: {text}", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """ "42 s", "3 min 5 s" or "2 h 14 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Silent:
    """What a run has to say is in its log.txt."""

    def note(self, text: str) -> None: ...

    def detail(self, text: str) -> None: ...

    def start(self, rounds: int, done: int) -> None: ...

    def evaluated(self, line: object) -> None: ...

    def ticked(self, progress: object) -> None: ...

    def end(self) -> None: ...


class Teller:
    """A `Reporter` (`training.session`).

    Args:
        bar: whether to show a bar and all notes; None: where a person looks on, in a terminal or in Jupyter.
        each: whether to tell of each run that it is seeded, or finished before.

    Attributes:
        notes: what was said, in order.
    """

    def __init__(self, bar: bool | None = None, *, each: bool = True) -> None:
        self._always = tuple(word for word in ALWAYS if each or word not in (SEEDED, FINISHED))
        self._console = Console(stderr=True)
        self._shown = (self._console.is_terminal or self._console.is_jupyter) if bar is None else bar
        self._bar: Progress | None = None
        self._text = ""
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)
        text = text.rstrip() if len(text) <= LONGEST else f"{text[:LONGEST].rstrip()} ... (all of it: log.txt)"
        if self._shown:
            self._console.print(text, style="dim", markup=False, highlight=False)
        elif text.startswith(self._always):
            say(text)

    def detail(self, text: str) -> None:
        self.notes.append(text)

    def start(self, rounds: int, done: int) -> None:
        if not self._shown:
            return
        self._bar = bar_on(self._console)
        self._task = self._bar.add_task("training", total=rounds, completed=done, text="")
        self._rounds = rounds
        self._bar.start()

    def evaluated(self, line: dict[str, Any]) -> None:
        key, epsilon = score_key(line), line["epsilon"]["server"]
        words = [] if line[key] is None else [f"{key.removeprefix('test_')} {line[key]:.4f}"]
        self._text = "  ".join(words + ([] if epsilon is None else [f"epsilon {places(epsilon, 3)}"]))

    def ticked(self, progress: RunProgress) -> None:
        if self._bar is not None:
            text = f"{progress.rounds}/{self._rounds}  {self._text}"
            self._bar.update(self._task, completed=progress.rounds, text=text)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
