"""A progress bar for terminals and for notebooks; rich draws it, and in a notebook IPython shows it."""

from __future__ import annotations

import html
import importlib
import io
import secrets
import time
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

BETWEEN: Final = 0.2  # seconds, at least, between two pictures in a notebook
WIDTH: Final = 110  # letters of a line there


def bar_on(console: Console) -> Progress:
    """A bar with a description and, in the field ``text``, what is told beside it."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[text]}"))
    kind = NotebookProgress if console.is_jupyter else Progress
    return kind(*columns, console=console)


class NotebookProgress(Progress):
    """Shows itself as one output that is replaced. Rich would need ipywidgets for that, and show nothing without."""

    def start(self) -> None:
        self._id, self._at = f"dpfl-{secrets.token_hex(8)}", 0.0
        self._show()

    def update(self, *args: Any, **changes: Any) -> None:
        super().update(*args, **changes)
        if time.monotonic() - self._at >= BETWEEN:
            self._show()

    def stop(self) -> None:
        if self._at:
            self._show()

    def _show(self) -> None:
        again, self._at = bool(self._at), time.monotonic()
        page = Console(file=io.StringIO(), width=WIDTH, force_jupyter=False, force_terminal=False)
        page.print(self.get_renderable())
        text = page.file.getvalue().rstrip()  # type: ignore[attr-defined]
        content = {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}
        importlib.import_module("IPython.display").display(content, raw=True, display_id=self._id, update=again)
