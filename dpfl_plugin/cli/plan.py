"""`dpfl plan`: the noise, rounds, local steps, participation cap or record rate that a privacy budget allows."""

from __future__ import annotations

import sys

from rich.console import Console

from dpfl_plugin.api.plan_text import show
from dpfl_plugin.api.plans import Question, plans
from dpfl_plugin.runs.folder import to_json
from dpfl_plugin.terminal import WIDTH


def plan_file(question: Question, solve: str | None, *, as_json: bool) -> None:
    """Print what is solved for, for each variant of a file."""
    answers = plans(question, solve)
    if as_json:
        print(to_json(answers if len(answers) > 1 else next(iter(answers.values()))))
        return
    show(Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH), answers)
