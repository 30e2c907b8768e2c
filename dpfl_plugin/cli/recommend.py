"""`dpfl plan --recommend`: which method to begin with, and the measurements that favour it."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console
from rich.table import Table

from dpfl_plugin.api.plans import Answer, Question, check_recommend
from dpfl_plugin.api.recommendations import recommendations
from dpfl_plugin.cli import fitting
from dpfl_plugin.cli.account import WIDTH
from dpfl_plugin.runs.folder import to_json

PAGE: Final = "docs/drift.md"
PLAIN: Final = "FedAvg"


def plan_method(
    question: Question, skew: str | None, solve: str | None, paper: str | None, *, recommend: bool, as_json: bool
) -> None:
    """Print the method for each run of a file; runs with the same answer share it."""
    check_recommend(recommend, skew, {"solve": solve, "paper": paper})
    answers = recommendations(question, skew)
    if as_json:
        print(to_json(answers if len(answers) > 1 else next(iter(answers.values()))))
        return
    shown: list[tuple[list[str], Answer]] = []
    for label, answer in answers.items():
        same = next((labels for labels, other in shown if other == answer), None)
        if same is None:
            shown.append(([label], answer))
        else:
            same.append(label)
    for labels, answer in shown:
        _show(", ".join(labels), answer)


def _show(labels: str, answer: Answer) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False)

    say(f"{labels}: begin with {answer['recommended']}: {' '.join(f'--set {one}' for one in answer['set'])}")
    say(_why(answer))
    for remark in answer["remarks"]:
        say(f"between measurements: {remark}.")
    for remark in answer["outside"]:
        say(f"not measured: {remark}. The nearest is shown; take it as a guess.")
    fitting.show(console, _table(answer))
    shown = [name for name in answer["methods"] if name in (answer["recommended"], PLAIN)]
    for cell in answer["cells"]:
        at = ", ".join(f"{key} {cell[key]}" for key in ("skew", "silo_rate", "local_steps"))
        found = "; ".join(f"{name} {cell['accuracy'][name]:.3f}" for name in shown)
        say(f"  {at}, epsilon {cell['epsilon']:g} ({cell['seeds']} seeds): {found}")
    say(f"{answer['measured']} Each method had its own best step size, which is not yours: tune it.")
    say(f"{answer['origin']}. All of it: {PAGE}.")


def _why(answer: Answer) -> str:
    level = [name for name in answer["level_with_the_best"] if name != answer["recommended"]]
    if answer["recommended"] == answer["best"]:
        return "It is the most accurate" + (
            f", and simpler than what is level with it: {'; '.join(level)}." if level else "."
        )
    others = f"; so are: {'; '.join(level)}" if level else ""
    return f"It is the simplest that is level with the most accurate, {answer['best']}{others}."


def _table(answer: Answer) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("method", no_wrap=True)
    table.add_column("accuracy", justify="right", no_wrap=True)
    table.add_column("points ahead of FedAvg", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name, row in answer["methods"].items():
        ahead, error = row["ahead_of_fedavg"], row["standard_error"]
        said = "" if ahead is None else f"{100 * ahead:+.1f} ± {100 * error:.1f}"
        apart = "" if ahead is None or row["told_apart"] else "not told apart"
        table.add_row(name, f"{row['accuracy']:.3f}", said, apart)
    return table
