"""What callbacks and trackers are given of a run's result: what is listed here, and nothing else.

Of raw records that is losses, accuracies and other measures that are one number each, of all silos together. No epsilon
covers them. Confusion matrices and calibration curves stay in `result.json`: a bin of a curve may hold one record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dpfl_plugin.core.outcomes import score_key

GIVEN_OF_RESULT: Final = (
    "schema",
    "status",
    "cause",
    "name",
    "id",
    "algorithm",
    "seed",
    "randomness",
    "rounds",
    "num_silos",
    "num_train_records",
    "num_test_records",
    "test_accuracy",
    "train_loss",
    "outcome",
    "early_stopping",
    "private_evaluation",
    "private_statistics",
    "noise_multiplier",
    "warnings",
    "earlier_runs",
    "seconds",
    "bytes_up",
    "bytes_down",
    "engine",
    "model_sha256",
    "tuning",
    "finished",
)
GIVEN_OF_MEASURES: Final = ("outcome", "ranked_by", "higher_is_better", "baseline")
GIVEN_OF_INPUTS: Final = ("shape", "num_classes", "columns")


def for_callbacks(
    result: Mapping[str, Any], published: Mapping[str, Any], *, named: bool, per_silo: bool
) -> dict[str, Any]:
    """What of a result a callback is given when a run ends.

    Args:
        result: what `result.json` holds. published: what may be shown of its statement.
        named: whether the names of classes may be shown. per_silo: whether it asks for measures of single silos.
    """
    shown = {key: result[key] for key in dict.fromkeys((*GIVEN_OF_RESULT, score_key(result))) if key in result}
    if result["status"] == "failed":
        shown.pop("cause", None)  # it may be a loss, measured on raw records
    if per_silo:
        shown["silos"] = result["silos"]
    return shown | {
        "positive_class": result["positive_class"] if named or result["positive_class"] is None else "1",
        "inputs": _inputs(result["inputs"], named=named),
        "measures": _measures(result["measures"], per_silo=per_silo),
        "reason": published["run"]["reason"],
        "epsilon": published["views"],
    }


def _inputs(inputs: Mapping[str, Any] | None, *, named: bool) -> dict[str, Any] | None:
    if inputs is None:
        return None
    return {**{key: inputs[key] for key in GIVEN_OF_INPUTS}, "classes": list(inputs["classes"]) if named else []}


def _measures(measures: Mapping[str, Any] | None, *, per_silo: bool) -> dict[str, Any] | None:
    """Measures that are one number each; of single silos for who asks for them."""
    if measures is None:
        return None
    shown = {key: measures[key] for key in GIVEN_OF_MEASURES}
    shown |= {key: _numbers(measures[key]) for key in ("pooled", "mean_of_silos") if key in measures}
    by_silo = measures["silos"]
    if per_silo:
        shown["silos"] = None if by_silo is None else {silo: _numbers(of) for silo, of in by_silo.items()}
    return shown


def _numbers(tables: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Any] | None:
    """``tables``: of the model, the baseline and silos' own models."""
    if tables is None:
        return None
    return {
        who: {name: value for name, value in table.items() if value is None or isinstance(value, int | float)}
        for who, table in tables.items()
    }
