"""`dpfl plan --paper`: what is prescribed, from what, where the theorem does not hold, and what is proven."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from dpfl_plugin.api.fitting import WIDTH
from dpfl_plugin.api.plans import Given, Prescribed, Prescription, Question, paper_plans
from dpfl_plugin.api.theorem_text import Proof, show
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runs.folder import to_json


def plan_paper(question: Question, solve: str | None, paper: str, given: Given, *, as_json: bool) -> None:
    """Print the plan of a paper for each variant of a file that it is of; of one that is named, or why it has none."""
    answers = paper_plans(question, paper, given, solve)
    plans = {label: answer for label, answer in answers.items() if isinstance(answer, Prescribed)}
    refusals = {label: answer.as_options for label, answer in answers.items() if isinstance(answer, ConfigError)}
    if as_json:
        plain = {label: as_plain(paper, one.prescription, one.proofs) for label, one in plans.items()}
        plain |= {label: {"paper": paper, "refused": why} for label, why in refusals.items()}
        print(to_json(plain if len(plain) > 1 else next(iter(plain.values()))))
        return
    show(Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH), answers, as_options=True)


def as_plain(paper: str, prescription: Prescription, proofs: Sequence[Proof]) -> dict[str, Any]:
    """A plan as plain values."""
    plain = asdict(prescription)
    del plain["runs"], plain["proofs"]
    return {"paper": paper, **plain, "proven": [_finite(proof) for proof in proofs]}


def _finite(proof: Proof) -> Proof:
    epsilon = {view: e if e is None or math.isfinite(e) else None for view, e in proof["epsilon"].items()}
    return {**proof, "epsilon": epsilon}
