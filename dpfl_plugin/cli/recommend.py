"""`dpfl plan --recommend`: which method to begin with, and the measurements that favour it."""

from __future__ import annotations

import sys

from rich.console import Console

from dpfl_plugin.api.fitting import WIDTH
from dpfl_plugin.api.plans import Question, check_recommend
from dpfl_plugin.api.recommendation_text import show
from dpfl_plugin.api.recommendations import recommendations
from dpfl_plugin.runs.folder import to_json


def plan_method(
    question: Question, skew: str | None, solve: str | None, paper: str | None, *, recommend: bool, as_json: bool
) -> None:
    """Print the method for each run of a file; runs with the same answer share it."""
    check_recommend(recommend, skew, {"solve": solve, "paper": paper})
    answers = recommendations(question, skew)
    if as_json:
        print(to_json(answers if len(answers) > 1 else next(iter(answers.values()))))
        return
    show(Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH), answers)
