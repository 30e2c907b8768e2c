"""What a paper prescribes, from what, where the theorem does not hold, and what is proven, in words."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from dpfl_plugin.api import fitting
from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.core.text import Printed
from dpfl_plugin.errors import ConfigError
from papers.plans import Prescribed
from papers.plans.base import Prescription

Proof = dict[str, Any]
NO_BUDGET: Final = "privacy.epsilon=null"
WITHOUT_BUDGET: Final = (
    f"{NO_BUDGET} sets no budget: the run makes all its rounds with the noise that is given, where a budget would end "
    "it or solve for other noise. It still states what it spends."
)


@dataclass(frozen=True, slots=True)
class PrescribedRun(Printed, Prescribed):
    """What a paper says of one run; ``print`` shows what `dpfl plan --paper` does. ``label``: of the run."""

    label: str = ""

    def __str__(self) -> str:
        return fitting.printed(lambda console: show(console, {self.label: self}))

    __repr__ = __str__


class PrescribedVariants(Printed, dict[str, Prescribed | ConfigError]):
    """What a paper says of each variant, or why it has no plan; ``print`` shows what `dpfl plan --paper` does."""

    def __str__(self) -> str:
        return fitting.printed(lambda console: show(console, self))


def show(console: Console, answers: Mapping[str, Prescribed | ConfigError], *, as_options: bool = False) -> None:
    """Print the plan of each run that has one, then why others have none; ``as_options``: in the command's words."""
    for label, answer in answers.items():
        if isinstance(answer, Prescribed):
            _show(console, label, answer.prescription, answer.proofs)
    for label, answer in answers.items():
        if isinstance(answer, ConfigError):
            why = answer.as_options if as_options else str(answer)
            console.print(f"{label}: no plan. {why}", soft_wrap=True, markup=False)


def _show(console: Console, label: str, prescription: Prescription, proofs: Sequence[Proof]) -> None:
    console.print(f"{label}: {prescription.theorem}", soft_wrap=True, markup=False)
    console.print(_grid("prescribed", [(v.name, _number(v.value), v.meaning) for v in prescription.values]))
    if prescription.rows:
        console.print(_rows(prescription.rows))
    constants = [(c.name, _number(c.value), c.source) for c in prescription.constants]
    console.print(_grid("from", constants))
    if prescription.fails:
        console.print(_grid("does not apply, or not as it stands", [("", "-", why) for why in prescription.fails]))
    console.print(_proofs(proofs))
    for proof in proofs:
        claimed, found = proof["claimed_epsilon"], proof["epsilon"][proof["claimed_view"]]
        if claimed is not None and found > claimed:
            console.print(f"\n{proof['name']}: the accountant does not confirm epsilon {claimed:g}.", markup=False)
    for note in prescription.notes:
        console.print(f"\n{note}", markup=False)
    for proof in proofs if prescription.advised else ():
        if "command" in proof:
            console.print(f"\n{proof['name']}: {shlex.join(proof['command'])}", soft_wrap=True, markup=False)
    if prescription.advised and any(NO_BUDGET in proof.get("command", ()) for proof in proofs):
        console.print(f"\n{WITHOUT_BUDGET}", soft_wrap=True, markup=False)


def _grid(title: str, lines: Sequence[tuple[str, str, str]]) -> Table:
    grid = Table(box=None, pad_edge=False, show_header=False, title=f"\n{title}", title_justify="left")
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column()
    for name, value, text in lines:
        grid.add_row(f"  {name}", value, text)
    return grid


def _rows(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, title="", title_justify="left")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for column in columns:
        words = all(isinstance(row.get(column), str) for row in rows)
        table.add_column(f"  {column}" if column == columns[0] else column, justify="left" if words else "right")
    for row in rows:
        table.add_row(*(_number(row[column]) if column in row else "-" for column in columns))
    return table


def _proofs(proofs: Sequence[Proof]) -> Table:
    title = "\nclaimed and proven"
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for column in ("rounds", "noise multiplier", "claimed epsilon", "proven, server", "third party", "delta"):
        table.add_column(column, justify="right")
    for proof in proofs:
        epsilon = proof["epsilon"]
        table.add_row(
            f"  {proof['name']}",
            str(proof["rounds"]),
            _noise(proof["noise_multiplier"]),
            _number(proof["claimed_epsilon"]),
            _bound(epsilon["server"]),
            _bound(epsilon["third_party"]),
            digits(proof["delta"], 6),
        )
    return table


def _noise(value: float | Sequence[float]) -> str:
    if isinstance(value, Sequence):
        return f"{min(value):.4g}" if len(set(value)) == 1 else f"{min(value):.4g} to {max(value):.4g}"
    return f"{value:g}"


def _bound(epsilon: float | None) -> str:
    if epsilon is None:
        return "-"
    return places(epsilon, 4) if math.isfinite(epsilon) else "none"


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
