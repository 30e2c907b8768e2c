"""All measures of a model at the silos of this process, and those of who knows no feature beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.federation.summaries import described
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.persons import has_label
from dpfl_plugin.measures.answers import Answers, baseline
from dpfl_plugin.measures.tables import Table, table

MOST_SILOS: Final = 100  # that are measured one by one


def measures(
    outcome: Outcome, by_silo: Mapping[int, tuple[Answers, NDArray[Any], NDArray[Any]]], num_outputs: int
) -> dict[str, Any]:
    """As `result.json` has them.

    Args:
        by_silo: (what the model says of the test records, their labels, the training labels) of each silo.
        num_outputs: classes, or the model's outputs.
    """
    said, labels, training = zip(*by_silo.values(), strict=True)
    pooled = _both(outcome, _joined(said), np.concatenate(labels), np.concatenate(training), num_outputs, True)
    silos = None
    if len(by_silo) <= MOST_SILOS:
        silos = {str(silo): _both(outcome, *found, num_outputs, False) for silo, found in by_silo.items()}
    return {**described(outcome), "pooled": pooled, "silos": silos}


def of_each(
    outcome: Outcome, by_silo: Mapping[int, tuple[Answers, NDArray[Any], NDArray[Any]]], num_outputs: int
) -> dict[int, dict[str, Any]]:
    """Of each silo by itself, beside a baseline that knows its own training labels; for `summaries.of_ranks`."""
    return {
        silo: {**_both(outcome, *found, num_outputs, False), "num_test": len(found[1])}
        for silo, found in by_silo.items()
    }


def _both(
    outcome: Outcome, said: Answers, labels: NDArray[Any], training: NDArray[Any], num_outputs: int, curves: bool
) -> dict[str, Table]:
    nothing = baseline(outcome, training, num_outputs, len(labels))
    return {
        "model": table(outcome, said, labels, curves=curves),
        "baseline": table(outcome, nothing, labels, curves=False),
    }


def _joined(said: tuple[Answers, ...]) -> Answers:
    def one(parts: list[NDArray[Any] | None]) -> NDArray[Any] | None:
        known = [part for part in parts if part is not None]
        return np.concatenate(known) if len(known) == len(parts) else None

    probabilities, predicted = [a.probabilities for a in said], [a.predicted for a in said]
    return Answers(one([*probabilities]), one([*predicted]), one([a.scores for a in said]))


def labels_of(records: Records, *, persons: bool = False) -> NDArray[Any]:
    """[n, ...]; of ``persons`` those of all their records."""
    labels = records.labels[has_label(records.labels)] if persons else records.labels
    found: NDArray[Any] = labels.cpu().numpy()
    return found
