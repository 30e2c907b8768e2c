"""What the theorems of a paper prescribe for a configuration, beside what is proven of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dpfl_plugin.config.load import Variant
from dpfl_plugin.errors import ArgumentError, ConfigError
from dpfl_plugin.runs.plan_request import Question
from papers.plans import chang, gao, li, noble, scaffnew
from papers.plans.base import Case, Given, Prescription

__all__ = ["Given", "Prescribed", "prescribed"]

PAPERS: Final[dict[str, Callable[[Case], Prescription]]] = {
    "scaffnew": scaffnew.prescribe,
    "gao": gao.prescribe,
    "noble": noble.prescribe,
    "chang": chang.prescribe,
    "li": li.prescribe,
}


@dataclass(frozen=True, slots=True)
class Prescribed:
    """What a paper says of one run, and rows of what is proven of it."""

    prescription: Prescription
    proofs: Sequence[dict[str, Any]]


def prescribed(question: Question, paper: str, given: Given) -> dict[str, Prescribed | ConfigError]:
    """The plan of a paper for each variant of a file that it is of, or why it has none; by label.

    Raises:
        ConfigError: it has none for any of them.
    """
    given.check(paper)
    variants = question.variants()
    answers = {variant.label or variant.config.name: _tried(question, paper, given, variant) for variant in variants}
    refusals = {label: answer for label, answer in answers.items() if isinstance(answer, ConfigError)}
    if len(refusals) < len(answers):
        return answers
    if len(variants) == 1:
        raise next(iter(refusals.values()))
    texts = {label: error.text for label, error in refusals.items()}
    labels = {why: ", ".join(label for label in texts if texts[label] == why) for why in texts.values()}
    raise ArgumentError(" ".join(f"{whose}: {why}" for why, whose in labels.items()))


def _tried(question: Question, paper: str, given: Given, variant: Variant) -> Prescribed | ConfigError:
    try:
        case = Case.of(question, given, variant.label, variant.config)
        prescription = PAPERS[paper](case)
        if variant.config.augmentation is not None:
            fails = [*prescription.fails, "its gradients are of records as they are, not of their views (augmentation)"]
            prescription = replace(prescription, fails=fails)
        return Prescribed(prescription, [*prescription.proofs, *map(case.proven, prescription.runs)])
    except ConfigError as error:
        return error
