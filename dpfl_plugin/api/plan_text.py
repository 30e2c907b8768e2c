"""What a plan found, in words."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from dpfl_plugin import terminal
from dpfl_plugin.api.rates import NEAR
from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.core.text import Printed

Answer = dict[str, Any]

KEYS: Final = {
    "sigma": "privacy.noise_multiplier",
    "rounds": "rounds",
    "steps": "algorithm.local_steps",
    "cap": "max_participations",
    "rate": "privacy.record_rate",
}
RULE: Final = (
    "The record_rate is the smallest that was tried whose noise on a mean gradient is at most "
    f"{NEAR - 1:.0%} above the least: larger batches cost computing, and gain next to nothing."
)


class OfOneRun(Answer):
    """An answer, by its keys.

    Attributes:
        label: of the run.
    """

    def __init__(self, answer: Mapping[str, Any] | None = None, label: str = "") -> None:
        super().__init__(answer or {})
        self.label = label


class Planned(Printed, OfOneRun):
    """What a budget allows one run; ``print`` shows what `dpfl plan` does."""

    def __str__(self) -> str:
        return terminal.printed(lambda console: show(console, {self.label: self}))


class PlannedVariants(Printed, dict[str, Answer]):
    """What a budget allows each variant, by label; ``print`` shows what `dpfl plan` does."""

    def __str__(self) -> str:
        return terminal.printed(lambda console: show(console, self))


def show(console: Console, answers: Mapping[str, Answer]) -> None:
    """Print what was solved for, a line for each run; then what it means, and how each is run."""
    solve = next(iter(answers.values()))["solved"]
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
        epsilons = [places(answer["epsilon"][view], 4) for view in ("server", "third_party")]
        more = " or more" if answer["at_limit"] else ""
        found = [value + more, str(answer["rounds"])][: len(columns)]
        table.add_row(label, *found, *epsilons, digits(answer["asked"]["delta"], 6))
        lines.append(f"{label}: {_how(answer)}")
        lines += [
            f"{label}: record_rate {one['rate']:g}: noise_multiplier {digits(one['noise_multiplier'], 4)}, and noise "
            f"of {one['noise']:.3g} on each number of a mean gradient"
            for one in answer.get("tried", [])
        ]
        if "warning" in answer:
            lines.append(f"{label}: warning: {answer['warning']}.")
    terminal.show_table(console, table)
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


def _how(answer: Answer) -> str:
    """The command, or the settings where only this process has the records."""
    return shlex.join(answer["command"]) if "command" in answer else f"with {', '.join(answer['set'])}"
