"""`python -m papers plan PAPER CONFIG`: what a paper's theorems prescribe, beside what is proven of it."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from rich.console import Console
from rich.table import Table

import dpfl_plugin as dpfl
from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.errors import ConfigError, require
from papers.plans import chang, gao, li, noble, scaffnew
from papers.plans.base import Case, Plan, Proof

CONSTANTS: Final = {
    "psi0": "psi_0 (default: a bound known without data)",
    "strong_convexity": "mu of the losses (default: l2)",
    "smoothness": "L, or beta, of the losses (default: of linear models, known)",
    "lipschitz": "L of a record's loss (default: clip_norm)",
    "distance": "D, diameter of the ball that is searched",
    "beta": "the factor of the noise's variance, in (0, 1]",
    "threshold": "the last round of constant noise",
}
PAPERS: Final[Mapping[str, tuple[Callable[[Case], Plan], tuple[str, ...]]]] = {
    "scaffnew": (scaffnew.plan, ("psi0", "strong_convexity", "smoothness")),
    "gao2024": (gao.plan, ("smoothness", "lipschitz", "distance")),
    "noble2022": (noble.plan, ()),
    "chang2022": (chang.plan, ("beta", "threshold")),
    "li2025": (li.plan, ("strong_convexity", "smoothness")),
}
"""By paper: what plans, and the constants of its theorems that can be given."""
VIEWS: Final = "its gradients are of records as they are, not of their views (augmentation)"
NO_BUDGET: Final = "privacy.epsilon=null"
WITHOUT_BUDGET: Final = (
    f"{NO_BUDGET} sets no budget: the run makes all its rounds with the noise that is given, where a budget would end "
    "it or solve for other noise. It still states what it spends."
)


def plans(
    paper: str, experiment: dpfl.Experiment, *, epsilon: float | None = None, **constants: float
) -> dict[str, Plan | ConfigError]:
    """Return the plan of a paper for each variant of a file, or why it has none, by label.

    Raises:
        ConfigError: it has none for any of them.
    """
    for name, value in constants.items():
        if name not in ("beta", "threshold"):
            require(0 < value < math.inf, f"--{name.replace('_', '-')}", value, "be positive and finite")
    budget = () if epsilon is None else (f"privacy.epsilon={float(epsilon)}",)
    found: dict[str, Plan | ConfigError] = {}
    for label, variant in replace(experiment, settings=(*experiment.settings, *budget)).variants.items():
        try:
            plan = PAPERS[paper][0](Case(experiment=variant, constants=constants, epsilon=epsilon))
        except ConfigError as error:
            found[label] = error
            continue
        found[label] = replace(plan, fails=[*plan.fails, *([VIEWS] if variant.config.augmentation else [])])
    errors = [one for one in found.values() if isinstance(one, ConfigError)]
    if len(errors) == len(found):
        raise errors[0]
    return found


def show(console: Console, found: Mapping[str, Plan | ConfigError]) -> None:
    """Print the plan of each run that has one, then why others have none."""
    for label, plan in found.items():
        if isinstance(plan, Plan):
            _show(console, label, plan)
    for label, plan in found.items():
        if isinstance(plan, ConfigError):
            console.print(f"{label}: no plan. {plan}", soft_wrap=True, markup=False)


def _show(console: Console, label: str, plan: Plan) -> None:
    console.print(f"{label}: {plan.theorem}", soft_wrap=True, markup=False)
    console.print(_grid("prescribed", [(v.name, _number(v.value), v.meaning) for v in plan.values]))
    if plan.rows:
        columns = list(dict.fromkeys(key for row in plan.rows for key in row))
        console.print(_table("", columns, [[_number(row.get(column)) for column in columns] for row in plan.rows]))
    console.print(_grid("from", [(c.name, _number(c.value), c.source) for c in plan.constants]))
    if plan.fails:
        console.print(_grid("does not apply, or not as it stands", [("", "-", why) for why in plan.fails]))
    header = ["", "rounds", "noise multiplier", "claimed epsilon", "proven, server", "third party", "delta"]
    console.print(_table("\nclaimed and proven", header, list(map(_cells, plan.proofs))))
    said = [
        f"{proof.name}: the accountant does not confirm epsilon {proof.claimed:g}."
        for proof in plan.proofs
        if not proof.confirmed
    ]
    for text in (*said, *plan.notes):
        console.print(f"\n{text}", markup=False)
    commands = [f"{one.name}: {shlex.join(one.command)}" for one in plan.proofs if one.command and plan.advised]
    without = [WITHOUT_BUDGET] if any(NO_BUDGET in text for text in commands) else []
    for text in (*commands, *without):
        console.print(f"\n{text}", soft_wrap=True, markup=False)


def _grid(title: str, lines: Sequence[tuple[str, str, str]]) -> Table:
    grid = Table(box=None, pad_edge=False, show_header=False, title=f"\n{title}", title_justify="left")
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column()
    for name, value, text in lines:
        grid.add_row(f"  {name}", value, text)
    return grid


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for column, name in enumerate(header):
        side: Literal["left", "right"] = "left" if any(row[column][:1].isalpha() for row in rows) else "right"
        table.add_column(f"  {name}" if column == 0 else name, justify=side, no_wrap=column == 0)
    for first, *others in rows:
        table.add_row(f"  {first}", *others)
    return table


def _cells(proof: Proof) -> list[str]:
    few, *more = dict.fromkeys(f"{value:.4g}" for value in (min(proof.noise), max(proof.noise)))
    noise = f"{proof.noise[0]:g}" if len(proof.noise) == 1 else " to ".join([few, *more])
    spent = ["-" if one is None else places(one, 4) for one in (proof.server, proof.third_party)]
    return [proof.name, str(proof.rounds), noise, _number(proof.claimed), *spent, digits(proof.delta, 6)]


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m papers plan", description=__doc__)
    of = parser.add_subparsers(dest="paper", metavar="PAPER", required=True)
    for name, (_, constants) in PAPERS.items():
        one = of.add_parser(name)
        one.add_argument("config", type=Path, metavar="CONFIG")
        one.add_argument("--variant", help="one variant of the file (default: all)")
        one.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of the file")
        one.add_argument("--epsilon", type=float, help="the budget (default: the configuration's)")
        for constant in constants:
            kind = int if constant == "threshold" else float
            one.add_argument(f"--{constant.replace('_', '-')}", type=kind, help=CONSTANTS[constant])
    asked = parser.parse_args(words)
    given = {name: value for name in CONSTANTS if (value := getattr(asked, name, None)) is not None}
    experiment = dpfl.Experiment(asked.config, tuple(asked.set), asked.variant)
    found = plans(asked.paper, experiment, epsilon=asked.epsilon, **given)
    show(Console(highlight=False, width=None if sys.stdout.isatty() else 100), found)
    return 0
