"""All measures of a model at the silos of this process, and those of who knows no feature beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.federation.summaries import described
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.persons import has_label
from dpfl_plugin.measures.answers import Answers, baseline
from dpfl_plugin.measures.tables import Table, score, table

MOST_SILOS: Final = 100  # that are measured one by one


@dataclass(frozen=True, slots=True)
class SiloAnswers:
    """What the models answer on a silo's test records, beside its labels.

    Attributes:
        model: what the model says of the silo's test records. labels: of these. training: of its training records.
        own: what the silo's own model says of the test records; None where it has none.
    """

    model: Answers
    labels: NDArray[Any]
    training: NDArray[Any]
    own: Answers | None = None


def measures(outcome: Outcome, by_silo: Mapping[int, SiloAnswers], num_outputs: int) -> dict[str, Any]:
    """As `result.json` has them: of the model, of silos' own models where all have some, and of a baseline.

    ``baseline_score`` is the baseline's mean over silos of what evaluations measure, beside which they can be seen.

    Args:
        num_outputs: classes, or the model's outputs.
    """
    every = list(by_silo.values())
    own = [silo.own for silo in every if silo.own is not None]
    together = SiloAnswers(
        _joined([silo.model for silo in every]),
        np.concatenate([silo.labels for silo in every]),
        np.concatenate([silo.training for silo in every]),
        _joined(own) if len(own) == len(every) else None,
    )
    pooled = _tables(outcome, together, num_outputs, True)
    constant = [baseline(outcome, together.training, num_outputs, len(silo.labels)) for silo in every]
    scores = [score(outcome, answers, silo.labels) for answers, silo in zip(constant, every, strict=True)]
    silos = None
    if len(by_silo) <= MOST_SILOS:
        silos = {str(silo): _tables(outcome, answers, num_outputs, False) for silo, answers in by_silo.items()}
    mean = math.fsum(scores) / len(scores)
    return {
        **described(outcome),
        "baseline_score": mean if math.isfinite(mean) else None,
        "pooled": pooled,
        "silos": silos,
    }


def of_each(outcome: Outcome, by_silo: Mapping[int, SiloAnswers], num_outputs: int) -> dict[int, dict[str, Any]]:
    """Of each silo by itself, beside a baseline that knows its own training labels; for `summaries.of_ranks`."""
    return {
        silo: {**_tables(outcome, answers, num_outputs, False), "num_test": len(answers.labels)}
        for silo, answers in by_silo.items()
    }


def _tables(outcome: Outcome, answers: SiloAnswers, num_outputs: int, curves: bool) -> dict[str, Table]:
    nothing = baseline(outcome, answers.training, num_outputs, len(answers.labels))
    tables = {
        "model": table(outcome, answers.model, answers.labels, curves=curves),
        "baseline": table(outcome, nothing, answers.labels, curves=False),
    }
    return (
        tables
        if answers.own is None
        else {**tables, "own_models": table(outcome, answers.own, answers.labels, curves=curves)}
    )


def _joined(answers: Sequence[Answers]) -> Answers:
    def joined(parts: list[NDArray[Any] | None]) -> NDArray[Any] | None:
        known = [part for part in parts if part is not None]
        return np.concatenate(known) if len(known) == len(parts) else None

    probabilities, predicted = [a.probabilities for a in answers], [a.predicted for a in answers]
    return Answers(joined([*probabilities]), joined([*predicted]), joined([a.scores for a in answers]))


def labels_of(records: Records, *, persons: bool = False) -> NDArray[Any]:
    """[n, ...]; of ``persons`` those of all their records."""
    labels = records.labels[has_label(records.labels)] if persons else records.labels
    array: NDArray[Any] = labels.cpu().numpy()
    return array
