"""How the measurements of an evaluation are summed up over silos, and over rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np

from dpfl_plugin.core.outcomes import CLASSES, Outcome


def spread(values: Sequence[float]) -> dict[str, float]:
    """Minimum, 10th percentile, median and maximum of silos' values.

    Between two values they are interpolated, unless one is infinite: a deviance is, of an event that a model had ruled
    out. No number is between that and another one.
    """
    method: Literal["linear", "inverted_cdf"] = "linear" if np.isfinite(values).all() else "inverted_cdf"
    least, tenth, median, most = np.quantile(values, [0, 0.1, 0.5, 1], method=method)
    return {"min": float(least), "p10": float(tenth), "median": float(median), "max": float(most)}


def means(losses: Sequence[float], scores: Sequence[float], score: str = CLASSES.score) -> dict[str, Any]:
    """Of an evaluation, over silos; None for all where nothing was measured here. ``score`` names what an outcome is
    ranked by: of classes the accuracy; of others, say, rmse, and test_accuracy is None."""
    key = f"test_{score}"
    none: dict[str, Any] = {"test_accuracy": None, "test_accuracy_of_silos": None} | {
        key: None,
        f"{key}_of_silos": None,
    }
    if not losses:
        return {"train_loss": None, **none}
    return {
        "train_loss": math.fsum(losses) / len(losses),
        **none,
        key: math.fsum(scores) / len(scores),
        f"{key}_of_silos": spread(scores),
    }


def of_silos(
    ids: Sequence[int], common: Sequence[float], own: Sequence[float], outcome: Outcome = CLASSES
) -> dict[str, Any] | None:
    """How the final model, and silos' own, do at the silos of these ids; None where nothing was measured here."""
    if not common:
        return None
    name, sign = outcome.score, 1 if outcome.higher_is_better else -1
    scores: dict[str, Any] = {f"test_{name}": {**spread(common), "mean": math.fsum(common) / len(common)}}
    scores["worst"] = min(zip((sign * score for score in common), ids, strict=True))[1]
    if own:
        scores[f"personalised_{name}"] = {**spread(own), "mean": math.fsum(own) / len(own)}
        pairs = list(zip(common, own, strict=True))
        scores["better_personalised"] = sum(sign * b > sign * a for a, b in pairs)
        scores["worse_personalised"] = sum(sign * b < sign * a for a, b in pairs)
    return scores


OF_BASELINE: Final = {
    "classes": "the most frequent class of the training labels, and how often each occurs",
    "ordinal": "the median level of the training labels, and how often each occurs",
    "regression": "the mean of the training labels",
    "counts": "the training labels' rate: all counts over all exposure",
    "multi_label": "how often each label holds in the training labels",
    "survival": "each bin's share of events among the training records that are at risk",
}


def described(outcome: Outcome) -> dict[str, Any]:
    """What measures are of, in `result.json`."""
    return {
        "outcome": outcome.kind,
        "ranked_by": outcome.score,
        "higher_is_better": outcome.higher_is_better,
        "baseline": OF_BASELINE[outcome.kind],
    }


def of_ranks(outcome: Outcome, by_silo: Mapping[int, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Measures that silo ranks made, each of its own silos, as `result.json` has them; None where there are none.

    Test records do not leave a rank, and what all of them together would give, of an AUC say, does not follow from each
    silo's. So ``pooled`` is None, and ``mean_of_silos`` the mean of each measure that is defined at all silos, weighed
    by their test records. Baselines know their own silo's training labels.

    Args:
        by_silo: of each ``model``, ``baseline`` and perhaps ``own_models``, {measure: value}, and ``num_test``.
    """
    if not by_silo:
        return None
    ordered = dict(sorted(by_silo.items()))
    silos = list(ordered.values())
    total = sum(silo["num_test"] for silo in silos)
    means: dict[str, dict[str, float]] = {}
    known = [who for who in ("model", "baseline", "own_models") if all(who in silo for silo in silos)]
    for who in known:
        names = dict.fromkeys(name for silo in silos for name in silo[who])
        values = {name: [silo[who].get(name) for silo in silos] for name in names}
        means[who] = {
            name: math.fsum(value * silo["num_test"] for value, silo in zip(column, silos, strict=True)) / total
            for name, column in values.items()
            if all(isinstance(value, int | float) for value in column)
        }
    of_each = {str(id): {who: silo[who] for who in known} for id, silo in ordered.items()}
    return {**described(outcome), "pooled": None, "mean_of_silos": means, "silos": of_each}


def last(lines: Sequence[Mapping[str, Any]], key: str) -> dict[str, float | None]:
    """The last value, and the mean over the last 10 % of rounds ([N] D.3.2)."""
    if not lines:
        return {"last": None, "mean_last_10_percent": None}
    rounds = lines[-1]["round"]
    tail = [line[key] for line in lines if line["round"] > rounds - math.ceil(rounds / 10)]
    mean = math.fsum(tail) / len(tail) if all(value is not None for value in tail) else None
    return {"last": lines[-1][key], "mean_last_10_percent": mean}
