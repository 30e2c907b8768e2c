"""Whether a finished run's model is worth less than what is known without features, or has hardly been trained.

All of it is seen in what the run evaluated for its owner, on raw test records: nothing is computed from a record here.

A hint about the step size is given for one of two reasons: the model moved away from where it began though its noise
is small (unstable), or it hardly moved at all. Nothing is advised where noise hides what the records say. A hint needs
another private run, so it states what that costs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.core.validation_scores import CLIPPED_SHARE

# What to say of them, where a model is worse than the baseline; the first that a result has counts.
MEANS: Final = {
    "log_loss": "its probabilities are no better than a constant",
    "brier": "its probabilities are no better than a constant",
    "deviance": "its predictions are no better than a constant",
    "rmse": "its predictions are no better than a constant",
}
OFF: Final = (0.8, 1.25)  # predicted over observed risk, between which clipping does little harm
ERRORS: Final = 3.0  # standard errors of an observed risk, within which a difference may be chance
CUT: Final = 0.03  # of the gradients: that many clipped ones may bias risks
MOSTLY_CUT: Final = 0.5  # of the gradients: that many clipped ones are worth a note whatever the predictions are
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
    rounds; else None. A larger step is advised for the second reason only, which shows that the model hardly moved.

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
    stayed = len(scores) >= FEWEST and 2 * alike >= len(scores)
    if stayed:
        signs.append(f"the score was that of a constant model in {alike} of {len(scores)} evaluations")
    if not signs:
        return None
    if not stayed or _is_hidden(result):
        return f"{', and '.join(signs)}."
    step = f"algorithm.{key}={MORE * algorithm[key]:.2g}"
    return f"{', and '.join(signs)}: the step may be too small. Try {step}.{price(result)}"


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
    return (
        f"the model's {name.replace('_', ' ')} {value:.4g} is worse than that of a baseline without features, "
        f"{known:.4g}: {MEANS[name]}. {_cause(result, judged, scores if ranked else (), algorithm)}"
    ).rstrip()


def cut_short(result: Mapping[str, Any], clip_norm: float) -> str | None:
    """A warning where a model of two classes says risks that are too low or too high on average, and clipping may be
    why: it cuts the records of a rare class most. None where the difference may be chance, or few gradients are cut.

    Args:
        result: as in `result.json`; see `_clipped_share`.
    """
    model = _measured(result).get("model", {})
    ratio, difference = model.get("predicted_observed_ratio"), model.get("calibration_in_the_large")
    confusion, share = model.get("confusion_matrix"), _clipped_share(result)
    if ratio is None or not confusion or OFF[0] < ratio < OFF[1] or not result.get("noise_multiplier"):
        return None
    server = (result.get("epsilon") or {}).get("server") or {}
    if share is None and (result.get("randomness") != "fresh" or server.get("unit") == "silo"):
        return None  # a simulation knows the share, where gradients of records are cut at one norm
    records, observed = sum(map(sum, confusion)), difference / (ratio - 1)
    if abs(difference) < ERRORS * math.sqrt(observed * (1 - observed) / records) or (share is not None and share < CUT):
        return None
    text = f"the mean predicted risk is {observed + difference:.3f}, and {observed:.3f} was observed"
    if share is None:
        return (
            f"{text}. Clipping may be why: a simulation (seed=1) says how many gradients "
            f"privacy.clip_norm={clip_norm:g} cuts, and so does private_evaluation.measure=clipped_share, charged"
        )
    return f"{text}; {_cuts(clip_norm, share)}"


def mostly_clipped(result: Mapping[str, Any], clip_norm: float) -> str | None:
    """A note where most gradients are clipped, so that records count alike however far off their predictions are; else
    None. Arguments as of `cut_short`."""
    share = _clipped_share(result)
    return None if share is None or share < MOSTLY_CUT else _cuts(clip_norm, share)


def _cuts(clip_norm: float, share: float) -> str:
    return (
        f"privacy.clip_norm={clip_norm:g} cuts the gradients of {share:.0%} of the records. A larger one cuts less, "
        "with proportionally more noise"
    )


def _clipped_share(result: Mapping[str, Any]) -> float | None:
    """The share of the records whose gradients are clipped at the final model: a simulation's, or the last one that
    was released (`private_evaluation.measure=clipped_share`)."""
    private = result.get("private_evaluation") or {}
    if private.get("measure") == CLIPPED_SHARE and private["scores"]:
        return min(1.0, max(0.0, float(private["scores"][-1][1])))
    share = (result.get("measures") or {}).get("clipped_share")
    return None if share is None else float(share)


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


def _cause(
    result: Mapping[str, Any],
    judged: tuple[str, float, float],
    scores: Sequence[float | None],
    algorithm: Mapping[str, Any],
) -> str:
    """Why, as far as it is known: noise, steps that were too large, or neither.

    Args:
        judged: see `_judged`. scores: of its evaluations, if they are of the measure that is worse: errors.
    """
    if _is_hidden(result):
        return (
            "Its noise is larger than all clipped gradients together can be: more records, a larger epsilon or fewer "
            f"columns would help, and no other step size.{price(result)}"
        )
    key, known = _step(algorithm), [score for score in scores if score is not None]
    rose = len(known) >= FEWEST and known[-1] > (1 + CLOSE) * known[0]
    rose |= judged[1] > _untrained(judged[0], result) > 0
    is_small = result.get("signal_to_noise") is not None or result.get("noise_multiplier") == 0
    if key is not None and rose and is_small:
        fewer = f"algorithm.{key}={algorithm[key] / FEWER:.2g}"
        return f"Training went away from where it began: a smaller step may help ({fewer}).{price(result)}"
    if len(known) < FEWEST:
        return ""
    return "Its error was still falling." if known[-1] < (1 - CLOSE) * known[len(known) // 2] else ""


def _is_hidden(result: Mapping[str, Any]) -> bool:
    """Whether noise is larger than what all clipped gradients together can be: see `signal_to_noise`."""
    ratio = result.get("signal_to_noise")
    return ratio is not None and ratio < 1


def price(result: Mapping[str, Any]) -> str:
    """What another private run like this one brings the total to, as a sentence; "" of a run that protects nobody."""
    alone = result.get("tuning") or (result.get("epsilon") or {}).get("server") or {}
    if result.get("randomness") != "fresh" or not alone.get("epsilon"):
        return ""
    after = result.get("total_after_another")
    if after is None:  # each is private by itself: epsilons and deltas add up, whatever was seen in between
        both = _epsilon(2 * alone["epsilon"], 2 * alone["delta"])
        return f" Another private run like this one adds to it: {both} for both."
    if after["epsilon"] is None:
        return " After another private run like this one no total holds."
    total = _epsilon(after["epsilon"], after["delta"])
    return f" Another private run like this one brings the total, as it was when this run ended, to {total}."


def _epsilon(epsilon: float, delta: float) -> str:
    return f"epsilon {places(epsilon, 3)} at delta {digits(delta, 6)}"
