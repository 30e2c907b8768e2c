"""`dpfl plan --paper`: what the theorems of a paper prescribe for a configuration, beside what is proven of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dpfl_plugin.cli.plan import Asked
from dpfl_plugin.cli.theorems import chang, gao, noble, scaffnew
from dpfl_plugin.cli.theorems.base import Case, Given, Prescription
from dpfl_plugin.cli.theorems.show import as_plain, show
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.training.folder import to_json

__all__ = ["Given", "plan_paper"]

PAPERS: Final[dict[str, Callable[[Case], Prescription]]] = {
    "scaffnew": scaffnew.prescribe,
    "gao": gao.prescribe,
    "noble": noble.prescribe,
    "chang": chang.prescribe,
}


def plan_paper(asked: Asked, paper: str, given: Given, *, as_json: bool) -> None:
    """Print the plan of a paper for each variant of a file that it is of; of one that is named, or why it has none."""
    variants, answers, refusals = asked.variants(), {}, {}
    for variant in variants:
        label = variant.label or variant.config.name
        try:
            case = Case.of(asked, given, variant.label, variant.config)
            prescription = PAPERS[paper](case)
            answers[label] = (prescription, [*prescription.proofs, *map(case.proven, prescription.runs)])
        except ConfigError as error:
            if len(variants) == 1:
                raise
            refusals[label] = str(error)
    if not answers:
        labels = {why: ", ".join(label for label in refusals if refusals[label] == why) for why in refusals.values()}
        raise ConfigError(" ".join(f"{whose}: {why}" for why, whose in labels.items()))
    if as_json:
        plain: dict[str, Any] = {label: as_plain(paper, *answer) for label, answer in answers.items()}
        plain |= {label: {"paper": paper, "refused": why} for label, why in refusals.items()}
        print(to_json(plain if len(plain) > 1 else next(iter(plain.values()))))
        return
    for label, (prescription, proofs) in answers.items():
        show(label, prescription, proofs)
    for label, why in refusals.items():
        print(f"{label}: no plan. {why}")
