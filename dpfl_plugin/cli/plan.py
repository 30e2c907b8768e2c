"""`dpfl plan`: the noise, rounds, local steps, participation cap or record rate that a privacy budget allows."""

from __future__ import annotations

import math
import shlex
import sys
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from dpfl_plugin.api.numbers import MOST_STEPS, calibrate, max_steps
from dpfl_plugin.api.plans import Answer, Given, Question, plans
from dpfl_plugin.cli import fitting
from dpfl_plugin.cli.account import WIDTH, sampling
from dpfl_plugin.cli.theorems import plan_paper
from dpfl_plugin.errors import ConfigError, require
from dpfl_plugin.runs.folder import to_json

SOLVED: Final = {"sigma": "noise_multiplier", "steps": "steps"}  # of a mechanism by its numbers, in --json


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """A mechanism by its numbers, each an option of that name; None for what is not given."""

    mechanism: str
    q: float | None
    sigma: float | None
    steps: int | None
    epsilon: float | None
    delta: float | None
    accountant: str | None = None

    def check(self, solve: str) -> None:
        """Raise ConfigError unless all numbers but the one to solve for are given, and in their ranges."""
        must = "be sigma or steps with --mechanism"
        require(solve in SOLVED, "--solve", solve, must, "rounds, cap and rate need CONFIG.")
        given = {name: getattr(self, name) for name in ("sigma", "steps", "epsilon", "delta")}
        if given.pop(solve) is not None:
            raise ConfigError(f"--{solve} is what --solve {solve} finds: leave it out, or solve for another.")
        for name, value in given.items():
            if value is None:
                needed = ", ".join(f"--{one}" for one in given)
                raise ConfigError(f"--{name} is missing: --mechanism with --solve {solve} needs {needed} (and --q).")
        assert self.epsilon is not None
        require(0 < self.epsilon < math.inf, "--epsilon", self.epsilon, "be positive and finite")
        require(self.steps is None or self.steps >= 1, "--steps", self.steps, "be at least 1")
        noisy = self.sigma is None or 0 < self.sigma < math.inf
        require(noisy, "--sigma", self.sigma, "be positive and finite: without noise no epsilon holds")


def plan_mechanism(numbers: Numbers, solve: str | None, *, as_json: bool) -> None:
    """Print the least noise of ``steps`` releases, or the most releases at noise ``sigma``."""
    solve = solve or ("sigma" if numbers.sigma is None else "steps")
    numbers.check(solve)
    assert numbers.epsilon is not None
    assert numbers.delta is not None
    sampled = sampling(numbers.mechanism, numbers.q)
    budget: dict[str, Any] = {"epsilon": numbers.epsilon, "delta": numbers.delta}
    budget["accountant"] = numbers.accountant or "pld"
    if solve == "sigma":
        assert numbers.steps is not None
        own = calibrate(steps=numbers.steps, **budget, **sampled).reached
        found = f"noise_multiplier {own.noise_multiplier:g}"
    else:
        assert numbers.sigma is not None
        own = max_steps(noise_multiplier=numbers.sigma, **budget, **sampled)
        found = f"{own.steps} releases" + (" or more" if own.steps == MOST_STEPS else "")
    if as_json:
        said = {"noise_multiplier": own.noise_multiplier, "steps": own.steps, "epsilon": own.epsilon}
        print(to_json({"solved": SOLVED[solve], **said, "delta": own.delta, "accountant": own.accountant}))
    else:
        print(f"{found}: epsilon {own.epsilon:.6g} at delta {own.delta:g} (accountant {own.accountant})")


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
    for column in (solve, "rounds", "epsilon, server", "third party", "delta"):
        table.add_column(column, justify="right", no_wrap=True)
    lines = []
    for label, answer in answers.items():
        if answer["value"] is None:
            table.add_row(label, "-", "-", "-", "-", "-")
            lines.append(f"{label}: {answer['why']}.")
            continue
        value = f"{answer['value']:g}" if solve == "sigma" else str(answer["value"])
        epsilons = [f"{answer['epsilon'][view]:.4f}" for view in ("server", "third_party")]
        more = " or more" if answer["at_limit"] else ""
        table.add_row(label, value + more, str(answer["rounds"]), *epsilons, f"{answer['asked']['delta']:g}")
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
            f"Solved for {solve}: {view} view, accountant {asked['accountant']}. The server's epsilon is that of a "
            "silo in every round, or in as many as its cap allows: it holds whoever is drawn."
        )
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
