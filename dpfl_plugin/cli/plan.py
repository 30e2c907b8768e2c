"""`dpfl plan`: the noise, rounds, local steps, participation cap or record rate that a privacy budget allows."""

from __future__ import annotations

import shlex
import sys
from typing import Final

from rich.console import Console
from rich.table import Table

from dpfl_plugin.api.plans import KEYS, Answer, Given, Question, plans
from dpfl_plugin.api.rates import NEAR
from dpfl_plugin.cli import fitting
from dpfl_plugin.cli.account import WIDTH
from dpfl_plugin.cli.theorems import plan_paper
from dpfl_plugin.runs.folder import to_json

RULE: Final = (
    "The record_rate is the smallest that was tried whose noise on a mean gradient is at most "
    f"{NEAR - 1:.0%} above the least: larger batches cost computing, and gain next to nothing."
)


def plan_file(question: Question, solve: str | None, paper: str | None, given: Given, *, as_json: bool) -> None:
    """Print what is solved for, or what a paper prescribes, for each variant of a file."""
    if paper is not None:
        plan_paper(question, solve, paper, given, as_json=as_json)
        return
    answers = plans(question, solve)
    if as_json:
        print(to_json(answers if len(answers) > 1 else next(iter(answers.values()))))
        return
    _show(answers, next(iter(answers.values()))["solved"])


def _show(answers: dict[str, Answer], solve: str) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    named = KEYS[solve].rpartition(".")[2]
    columns = list(dict.fromkeys((named, "rounds")))  # which may be the same
    for column in (*columns, "epsilon, server", "third party", "delta"):
        table.add_column(column, justify="right", no_wrap=True)
    lines = []
    for label, answer in answers.items():
        if answer["value"] is None:
            table.add_row(label, *["-"] * (len(columns) + 3))
            lines.append(f"{label}: {answer['why']}.")
            continue
        value = f"{answer['value']:g}" if solve == "sigma" else str(answer["value"])
        epsilons = [f"{answer['epsilon'][view]:.4f}" for view in ("server", "third_party")]
        more = " or more" if answer["at_limit"] else ""
        found = [value + more, str(answer["rounds"])][: len(columns)]
        table.add_row(label, *found, *epsilons, f"{answer['asked']['delta']:g}")
        lines.append(f"{label}: {shlex.join(answer['command'])}")
        lines += [
            f"{label}: record_rate {one['rate']:g}: noise_multiplier {one['noise_multiplier']:.4g}, and noise of "
            f"{one['noise']:.3g} on each number of a mean gradient"
            for one in answer.get("tried", [])
        ]
        if "warning" in answer:
            lines.append(f"{label}: warning: {answer['warning']}.")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    fitting.show(console, table)
    asked = next((answer for answer in answers.values() if answer["value"] is not None), None)
    if asked is not None:
        view = asked["asked"]["view"].replace("_", " ")
        console.print(
            f"Solved for {named}: {view} view, accountant {asked['accountant']}. The server's epsilon is that of a "
            "silo in every round, or in as many as its cap allows: it holds whoever is drawn."
        )
        if solve == "rate":
            console.print(RULE)
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
