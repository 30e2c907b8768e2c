"""Whether a finished run's model is worth less than what is known without features, or has hardly been trained.

All of it is seen in what the run evaluated for its owner, on raw test records: nothing is computed from a record here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

# What to say of them, where a model is worse than the baseline; the first that a result has counts.
MEANS: Final = {
    "log_loss": "its probabilities are no better than a constant",
    "brier": "its probabilities are no better than a constant",
    "deviance": "its predictions are no better than a constant",
    "rmse": "its predictions are no better than a constant",
}
FEWER: Final = 10  # times smaller is the step that is proposed
MORE: Final = 3  # times larger
CLOSE: Final = 0.02  # of a score: so near the best it counts as the best; by so much it changes, or has converged
MOST: Final = 0.8  # of the records: that many are most
FEWEST: Final = 5  # evaluations, of which half being alike says something
STEPS: Final = ("local_lr", "lr", "eta_0")


def too_small_a_step(
    result: Mapping[str, Any], scores: Sequence[float | None], algorithm: Mapping[str, Any]
) -> str | None:
    """A note where a model says one class of every test record, or scored like a constant one for half of the
    rounds; else None.

    It is no remedy where training went away from where it began: `worse_than_baseline` has another. Nor where most
    records are of one class, and probabilities were learned: a good model may say that class of every record.

    Args:
        result: as in `result.json`. scores: of its evaluations, in their order. algorithm: as there.
    """
    key = _step(algorithm)
    if key is None or _went_too_far(result) or _knows_how_rare(result):
        return None
    signs = []
    if _says_one_class(_measured(result).get("model", {}).get("confusion_matrix")):
        signs.append("the model says the same class of every test record")
    measures = result.get("measures") or {}
    alike = _constant(scores, _of_baseline(result), higher_is_better=measures.get("higher_is_better", True))
    if len(scores) >= FEWEST and 2 * alike >= len(scores):
        signs.append(f"the score was that of a constant model in {alike} of {len(scores)} evaluations")
    if not signs:
        return None
    step = algorithm[key]
    return f"{', and '.join(signs)}: the step may be too small. Try algorithm.{key}={MORE * step:.2g}"


def _says_one_class(confusion: Sequence[Sequence[int]] | None) -> bool:
    """Whether all predictions are alike though records are not; rows are what records are, columns what is said."""
    if not confusion:
        return False
    return sum(map(any, confusion)) > 1 and sum(map(any, zip(*confusion, strict=True))) == 1


def _of_baseline(result: Mapping[str, Any]) -> list[float]:
    """Its scores, of all test records and in the mean over silos, as evaluations have it."""
    measures = result.get("measures") or {}
    tables = [_measured(result), *(measures.get("silos") or {}).values()]
    pooled, *silos = ((one.get("baseline") or {}).get(measures.get("ranked_by")) for one in tables)
    known = [score for score in silos if score is not None]
    return [*([] if pooled is None else [pooled]), *([math.fsum(known) / len(known)] if known else [])]


def _constant(scores: Sequence[float | None], baseline: Sequence[float], *, higher_is_better: bool) -> int:
    """The evaluations whose score is the baseline's, or, where the first is worse than that, those up to the first that
    changed it; the more of both.

    Later ones that are alike are none, nor are better ones: training may have converged.
    """
    known = [score for score in scores if score is not None]
    same = sum(any(math.isclose(score, value) for value in baseline) for score in known)
    stayed = sum(1 for _ in itertools.takewhile(lambda score: score == known[0], known))
    worse = stayed and any(known[0] < value if higher_is_better else known[0] > value for value in baseline)
    return max(same, stayed if worse else 0)


def _measured(result: Mapping[str, Any]) -> Mapping[str, Any]:
    measures = result.get("measures") or {}
    return measures.get("pooled") or measures.get("mean_of_silos") or {}


def _step(algorithm: Mapping[str, Any]) -> str | None:
    """The option that is a step size, where one is given."""
    return next((key for key in STEPS if isinstance(algorithm.get(key), int | float)), None)


WEIGHTED: Final = (
    "class_weights make the probabilities of classes with larger weights too large: rank records by them, and do not "
    "read them as risks"
)


def worse_than_baseline(
    result: Mapping[str, Any], algorithm: Mapping[str, Any], scores: Sequence[float | None] = ()
) -> str | None:
    """A warning where the model's probabilities, or expected values, are worse than a baseline's; else None.

    Accuracy does not show it: an over-confident model may rank well, and be far off in what it says of a patient.

    Args:
        result: as in `result.json`. algorithm: options of the configuration, {name: value}. scores: of its evaluations,
            in their order.
    """
    if (judged := _judged(result)) is None:
        return None
    name, value, known = judged
    if value <= known:
        return None
    ranked = name == (result.get("measures") or {}).get("ranked_by")
    fix = _by_scores(scores, algorithm) if ranked else _step_advice(value, _untrained(name, result), algorithm)
    return (
        f"the model's {name.replace('_', ' ')} {value:.4g} is worse than that of a baseline without features, "
        f"{known:.4g}: {MEANS[name]}. {fix}"
    )


def _judged(result: Mapping[str, Any]) -> tuple[str, float, float] | None:
    """(measure, the model's, the baseline's), of the first of `MEANS` that both have."""
    measured = _measured(result)
    model, baseline = measured.get("own_models", measured.get("model", {})), measured.get("baseline", {})
    for name in MEANS:
        if model.get(name) is not None and baseline.get(name) is not None:
            return name, model[name], baseline[name]
    return None


def _went_too_far(result: Mapping[str, Any]) -> bool:
    """Whether the model is worse than a baseline, and than before its first round."""
    judged = _judged(result)
    return judged is not None and judged[1] > max(judged[2], _untrained(judged[0], result))


def _knows_how_rare(result: Mapping[str, Any]) -> bool:
    """Whether most test records are of one class, and the model's probabilities better than before its first round."""
    judged, records = _judged(result), list(map(sum, _measured(result).get("model", {}).get("confusion_matrix") or ()))
    if judged is None or not records or max(records) < MOST * sum(records):
        return False
    return judged[1] < (1 - CLOSE) * _untrained(judged[0], result)


def _untrained(measure: str, result: Mapping[str, Any]) -> float:
    """What a model has that says the same of every class, as one does before its first round; 0 where unknown."""
    if measure == "log_loss":
        return math.log(max(1, (result.get("inputs") or {}).get("num_classes", 1)))
    return 0.25 if measure == "brier" else 0.0


def _by_scores(scores: Sequence[float | None], algorithm: Mapping[str, Any]) -> str:
    """Of errors, whose value before the first round is not known: by whether they still fell at the end."""
    key, known = _step(algorithm), [score for score in scores if score is not None]
    if key is None or len(known) < FEWEST:
        return "Other step sizes, more rounds or a larger epsilon may help."
    step, best, half = algorithm[key], min(known), known[len(known) // 2]
    if known[-1] <= (1 + CLOSE) * best < known[0] and known[-1] > (1 - CLOSE) * half:
        return "Training had converged: other features or a larger epsilon may help."
    if known[-1] <= (1 + CLOSE) * best < known[0]:
        return f"It was still falling: more rounds or a larger step may help: algorithm.{key}={MORE * step:.2g}"
    fewer = FEWER if known[-1] > known[0] else MORE
    return f"The mean of silos was {best:.3g} before: a smaller step may help: algorithm.{key}={step / fewer:.2g}"


def _step_advice(value: float, untrained: float, algorithm: Mapping[str, Any]) -> str:
    """Training that went away from where it began took steps too large; one that did not may have gone too short."""
    key = _step(algorithm)
    if key is None:
        return "Other step sizes, fewer features or a larger epsilon may help."
    if value <= untrained:
        return f"More rounds, or another step size than algorithm.{key}={algorithm[key]:g}, may help."
    smaller = f"algorithm.{key}={algorithm[key] / FEWER:.2g}"
    return f"A smaller step may help ({smaller}); where noise is the cause, more records or a larger epsilon."
