"""Whether a finished run's model is worth less than what is known without features."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

# What to say of them, where a model is worse than the baseline; the first that a result has counts.
MEANS: Final = {
    "log_loss": "its probabilities mean nothing",
    "brier": "its probabilities mean nothing",
    "deviance": "what it expects means nothing",
    "rmse": "what it expects means nothing",
}
FEWER: Final = 10  # times smaller is the step that is proposed


def worse_than_baseline(result: Mapping[str, Any], algorithm: Mapping[str, Any]) -> str | None:
    """A warning where the model's probabilities, or expected values, are worse than a baseline's; else None.

    Accuracy does not show it: an over-confident model may rank well, and be far off in what it says of a patient.

    Args:
        result: as in `result.json`. algorithm: options of the configuration, {name: value}.
    """
    measures = result.get("measures") or {}
    found = measures.get("pooled") or measures.get("mean_of_silos") or {}
    model, baseline = found.get("own_models", found.get("model", {})), found.get("baseline", {})
    for name, means in MEANS.items():
        value, known = model.get(name), baseline.get(name)
        if value is None or known is None:
            continue
        if value <= known:
            return None
        return (
            f"the model's {name.replace('_', ' ')} {value:.3g} is worse than that of a baseline without features, "
            f"{known:.3g}: {means}. {_mend(value, _untrained(name, result), algorithm)}"
        )
    return None


def _untrained(measure: str, result: Mapping[str, Any]) -> float:
    """What a model has that says the same of every class, as one does before its first round; 0 where unknown."""
    if measure == "log_loss":
        return math.log(max(1, (result.get("inputs") or {}).get("num_classes", 1)))
    return 0.25 if measure == "brier" else 0.0


def _mend(value: float, untrained: float, algorithm: Mapping[str, Any]) -> str:
    """Training that went away from where it began took steps too large; one that did not may have gone too short."""
    key = next((key for key in ("local_lr", "lr", "eta_0") if isinstance(algorithm.get(key), int | float)), None)
    if key is None:
        return "Other step sizes, fewer features or a larger epsilon may help."
    if value <= untrained:
        return f"More rounds, or another step size than algorithm.{key}={algorithm[key]:g}, may help."
    return f"A smaller step may help: --set algorithm.{key}={algorithm[key] / FEWER:.2g}"
