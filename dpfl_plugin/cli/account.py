"""`dpfl account`: epsilon of a configuration, of a run's ledger, or of a mechanism given by its numbers."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from dpfl_plugin.api.numbers import epsilon
from dpfl_plugin.api.spent import RECIPE, TUNED, Row, is_spent, spent, without_papers
from dpfl_plugin.cli import fitting
from dpfl_plugin.config.load import load
from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.errors import ConfigError, require
from dpfl_plugin.runs.folder import RunFolder, to_json

MECHANISMS: Final = {"gaussian-wor": "fixed", "gaussian-poisson": "poisson", "gaussian": "full"}
"""What --mechanism names: the sampler, in the words of a configuration."""
PAPER: Final = "paper"  # as a configuration names it
WIDTH: Final = 100  # where there is no terminal to fit into
RECIPE_IN_SHORT: Final = (
    "Noble et al. 2022, third party. Not sound: it credits the other silos' noise, which is not proven for K > 1, "
    "amplifies by the sampling of silos as if of records, and takes control variates for free. It may still be "
    "the larger number, because Lemma B.7 is loose. See --json."
)
SIDE_BY_SIDE: Final = (
    "Every number is an upper bound, unless marked as not proven: the smallest holds. How far each may be off: --json; "
    "what each accountant knows: docs/privacy.md."
)

SEES: Final = {
    TUNED: "Whatever the server may see: ",
    "server": "Sees every message, and who took part: ",
    "server, worst case": "As the server, whoever is drawn: ",
    "third party": "Sees the global models only: ",
    "outsider": "As a third party, but knowing less: ",
}


def account_mechanism(
    mechanism: str,
    q: float | None,
    sigma: float | None,
    steps: int | None,
    delta: float | None,
    accountant: str,
    *,
    as_json: bool,
) -> None:
    """Print epsilon of ``steps`` releases of a mechanism."""
    for name, value in (("--sigma", sigma), ("--steps", steps), ("--delta", delta)):
        if value is None:
            raise ConfigError(f"{name} is missing: --mechanism needs --sigma, --steps and --delta (and --q).")
    assert sigma is not None
    assert steps is not None
    assert delta is not None
    require(0 <= sigma < math.inf, "--sigma", sigma, "be finite and at least 0: noise std / L2 sensitivity")
    require(steps >= 0, "--steps", steps, "be at least 0")
    sampled = sampling(mechanism, q)
    found = epsilon(noise_multiplier=sigma, steps=steps, delta=delta, accountant=accountant, **sampled)
    if as_json:
        named = {"accountant": found.accountant, "sound": found.sound, "caveat": found.caveat, "error": found.error}
        print(to_json({"epsilon": found.epsilon, "delta": delta, "neighbouring": found.neighbouring, **named}))
    elif math.isinf(found.epsilon):
        print("epsilon: none (without noise nothing is guaranteed)")
    else:
        relation = found.neighbouring.replace("_", "-")
        shown = digits(found.epsilon, 6)
        print(f"epsilon {shown} at delta {delta:g} ({relation} neighbours, accountant {found.accountant})")


def sampling(mechanism: str, q: float | None) -> dict[str, Any]:
    """How --mechanism and --q draw records, as arguments of `dpfl.epsilon`; what is wrong names the options."""
    require(mechanism in MECHANISMS, "--mechanism", mechanism, f"be one of {', '.join(MECHANISMS)}")
    require(q is None or 0 < q <= 1, "--q", q, "be in (0, 1]: the share of the records in a batch")
    if mechanism == "gaussian":
        require(q in (None, 1), "--q", q, "be 1 (left out) for --mechanism gaussian, which samples nothing")
    return {"sampler": MECHANISMS[mechanism], "record_rate": q}


def account_file(path: Path, settings: list[str], *, of_papers: bool, as_json: bool) -> None:
    """Print the epsilons of a configuration that was not run yet, or of what a run's or a shared ledger holds.

    What papers would say of it is for their own configurations, and for whoever asks by ``of_papers``.
    """
    if not is_spent(path):
        rows = _ahead(path, settings)
        of_papers |= _is_of_a_paper(path, settings)
    elif settings:
        what = "a run's folder" if path.is_dir() else "a ledger"
        raise ConfigError(f"--set has no meaning for {what}: what was released was released.")
    else:
        rows = spent(path)
        of_papers |= path.is_dir() and load(RunFolder(path).config).variants[0].config.privacy.accountant.name == PAPER
    if as_json:
        print(to_json(rows if len(rows) > 1 else next(iter(rows.values()))))
        return
    _show(rows if of_papers else {label: without_papers(views) for label, views in rows.items()})
    if not of_papers and any(without_papers(views) != views for views in rows.values()):
        print("--all shows bounds and recipes of papers, too.")


def _ahead(path: Path, settings: list[str]) -> dict[str, list[Row]]:
    """Of a configuration, whose models need torch, and its records what reads them: no ledger does."""
    from dpfl_plugin.api.accounts import rows_of
    from dpfl_plugin.api.experiment import Experiment

    return rows_of(Experiment(path, tuple(settings)))


def _is_of_a_paper(path: Path, settings: list[str]) -> bool:
    """Whether a configuration repeats a paper, or is accounted for by one's bound."""
    from dpfl_plugin.api.experiment import Experiment
    from dpfl_plugin.published.items import files

    variants = Experiment(path, tuple(settings)).loaded().variants
    own = any(one.config.privacy.accountant.name == PAPER for one in variants)
    return own or path.resolve().is_relative_to((files() / "configs").resolve())


# What is printed


def _show(rows: Mapping[str, list[Row]]) -> None:
    """A line for each run and view, a column for each accountant; then what the numbers are of."""
    sound = [row for views in rows.values() for row in views if row["view"] != RECIPE]
    accountants = _smallest_first(sound)
    table = Table(box=None, pad_edge=False, title="epsilon, by accountant", title_justify="left")
    table.add_column("run", overflow="fold")
    table.add_column("view", no_wrap=True)
    for column in (*accountants, "delta"):
        table.add_column(column, justify="right", no_wrap=True)
    for label, views in rows.items():
        for name in dict.fromkeys(row["view"] for row in views):
            of = {row["accountant"]: row for row in views if row["view"] == name}
            if name == RECIPE:
                continue
            values = [_number(of[accountant]) if accountant in of else "-" for accountant in accountants]
            table.add_row(label, name, *values, f"{next(iter(of.values()))['delta']:g}")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    fitting.show(console, table)
    for title, lines in (
        ("views", _bases(rows)),
        ("not proven", {row["accountant"]: row["caveat"] for row in sound if not row["sound"]}),
        (RECIPE, _recipes(rows)),
    ):
        if lines:
            console.print(_explained(title, lines))
    if len(accountants) > 1:
        console.print(f"\n{SIDE_BY_SIDE}")
    for row in sound:
        if "note" in row:
            console.print(row["note"])
            break


def _smallest_first(rows: Sequence[Row]) -> list[str]:
    """Accountants, by the first number that each has: the smallest holds."""
    first: dict[str, float] = {}
    for row in rows:
        first.setdefault(row["accountant"], math.inf if row["epsilon"] is None else row["epsilon"])
    return sorted(first, key=lambda name: first[name])


def _explained(title: str, lines: Mapping[str, str]) -> Table:
    grid = Table(box=None, pad_edge=False, show_header=False, title=f"\n{title}", title_justify="left")
    grid.add_column(no_wrap=True)
    grid.add_column()
    for term, text in lines.items():
        grid.add_row(f"  {term}", text)
    return grid


def _bases(rows: Mapping[str, list[Row]]) -> dict[str, str]:
    """What each view is of; with the runs' names where it is not the same for all."""
    found: dict[str, dict[str, list[str]]] = {}
    for label, views in rows.items():
        for row in views:
            relation = str(row["neighbouring"] or "no").replace("_", "-")
            runs = found.setdefault(row["view"], {}).setdefault(f"{row['basis']}; {relation} neighbours", [])
            if row["view"] != RECIPE and label not in runs:
                runs.append(label)
    several = len(rows) > 1
    return {
        view: SEES[view]
        + "; or ".join(
            f"{basis} ({', '.join(runs)})" if several and len(bases) > 1 else basis for basis, runs in bases.items()
        )
        for view, bases in found.items()
        if view != RECIPE
    }


def _recipes(rows: Mapping[str, list[Row]]) -> dict[str, str]:
    values = {label: row["epsilon"] for label, views in rows.items() for row in views if row["view"] == RECIPE}
    lines = {label: places(epsilon, 4) for label, epsilon in values.items()}
    return {**lines, "why": RECIPE_IN_SHORT} if lines else {}


def _number(row: Row) -> str:
    return "none" if row["epsilon"] is None else places(row["epsilon"], 4)
