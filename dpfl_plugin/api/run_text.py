"""How a run's final model does, in words: its measures beside a baseline, its silos, and what is doubtful."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfl_plugin.core.outcomes import ACCURACY, score_key
from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.data.names import called
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.usefulness import too_small_a_step, worse_than_baseline

SILOS_FOR_A_TENTH = 10  # with fewer, the 10th percentile is but a mixture of the worst two


def run_lines(result: Mapping[str, Any], options: Mapping[str, Any], folder: Path) -> list[str]:
    """All of it, as at the end of `dpfl run`; arguments as of `doubts`."""
    silos, measures = result.get("silos"), result.get("measures")
    return [
        *(f"warning: {text}" for text in result.get("warnings", ())),
        *(measures_lines(measures, result.get("positive_class")) if measures else ()),
        *([silos_line(result)] if silos and result["num_silos"] > 1 else ()),
        *(f"{kind}: {text}" for kind, text in doubts(result, options, folder)),
        *not_covered(result),
        *ledger_lines(result),
        *(f"note: {text}" for text in result["notes"]),
    ]


def not_covered(result: Mapping[str, Any]) -> list[str]:
    """What no epsilon covers, in one line; none where no epsilon is stated."""
    return [" ".join(result.get("not_covered", ()))] if result["epsilon"]["server"]["epsilon"] else []


def ledger_lines(result: Mapping[str, Any]) -> list[str]:
    """What the runs of a shared ledger came to when this one ended; nothing where it was the only one."""
    lines, adaptive, planned = [], result.get("adaptive_total"), result.get("planned_total")
    if not (adaptive and result["earlier_runs"]):
        return []
    if planned:
        lines.append(
            f"shared ledger: {_total(planned)} for the {planned['num_runs']} runs that were registered before the "
            "first of them released anything."
        )
    lines.append(
        f"shared ledger: {_total(adaptive)} for all its runs together, also if later ones were chosen by looking at "
        f"earlier ones: {adaptive['why']}."
    )
    return lines


def _total(total: Mapping[str, Any]) -> str:
    epsilon = "none" if total["epsilon"] is None else places(total["epsilon"], 3)
    return f"epsilon {epsilon} at delta {digits(total['delta'], 6)}"


def two_classes(result: Mapping[str, Any]) -> str:
    """AUC, that of the baseline and the positive class, in a few words; "" of other outcomes, or without measures."""
    measures, positive = result.get("measures"), result.get("positive_class")
    found = (measures or {}).get("pooled") or (measures or {}).get("mean_of_silos") or {}
    auc = found.get("own_models", found.get("model", {})).get("auc")
    if positive is None or auc is None:
        return ""
    baseline = found["baseline"].get("auc")
    beside = "" if baseline is None else f"baseline {baseline:.4f}, "
    return f"AUC {auc:.4f} ({beside}positive class {positive})"


def silos_line(result: Mapping[str, Any]) -> str:
    """How the final model does at single silos, which a mean hides."""
    key = score_key(result["silos"])
    said = spread(result["silos"][key], key, result["num_silos"], worst_silo(result))
    return f"{key.replace('_', ' ')} of the final model at silos: {said}."


def worst_silo(result: Mapping[str, Any]) -> str:
    """ " at " the silo where the final model is worst, if it is known."""
    names = {int(silo): name for silo, name in result.get("silo_names", {}).items()}
    silos = result["silos"]
    return f" at {called(silos['worst'], names)}" if "worst" in silos else ""


def spread(of: dict[str, float], key: str, num_silos: int, worst: str = "") -> str:
    """The worst, the middle and the best of silos' scores; ``worst``: where the worst is."""
    if key != ACCURACY:  # an error: the largest is the worst
        middle = f"median {of['median']:.3f}, best {of['min']:.3f}, mean {of['mean']:.3f}"
        return f"worst {of['max']:.3f}{worst}, {middle}"
    tenth = f", 10th percentile {of['p10']:.3f}" if num_silos >= SILOS_FOR_A_TENTH else ""
    return (
        f"worst {of['min']:.3f}{worst}{tenth}, median {of['median']:.3f}, best {of['max']:.3f}, mean {of['mean']:.3f}"
    )


def doubts(result: Mapping[str, Any], options: Mapping[str, Any], folder: Path) -> list[tuple[str, str]]:
    """("warning" or "note", text) of a model whose probabilities, or expected values, are worse than a baseline's,
    which accuracy hides, and of one that was hardly trained.

    Args:
        options: of the algorithm. folder: of the run.
    """
    scores = [line[score_key(line)] for line in RunFolder(folder).read_metrics()]
    found = (
        ("warning", worse_than_baseline(result, options, scores)),
        ("note", too_small_a_step(result, scores, options)),
    )
    return [(kind, said) for kind, said in found if said is not None]


def measures_lines(measures: Mapping[str, Any], positive_class: str | None) -> list[str]:
    """A line for each measure: of the model, of silos' own where they have some, and of a baseline."""
    found = measures["pooled"] or measures["mean_of_silos"]
    model, baseline = found.get("own_models", found["model"]), found["baseline"]
    where = "all test records together" if measures["pooled"] else "mean of silos, weighted by their test records"
    whose = "; each silo's by its own model" if "own_models" in found else ""
    rows = [(f"{where}{whose}", "model", "baseline")] + [
        (f"  {key.replace('_', ' ')}", f"{value:.4g}", "undefined" if baseline[key] is None else f"{baseline[key]:.4g}")
        for key, value in model.items()
        if isinstance(value, float) and isinstance(baseline.get(key, ""), float | None)
    ]
    if len(rows) == 1:
        return [f"{where}{whose}: no measure is defined."]
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = [
        row[0].ljust(first) + "".join(f"  {text:>{width}}" for text, width in zip(row[1:], others, strict=True))
        for row in rows
    ]
    name, sign = measures["ranked_by"], 1 if measures["higher_is_better"] else -1
    value, known = model.get(name), baseline.get(name)
    beaten = value is not None and known is not None and sign * value <= sign * known
    positive = "" if positive_class is None else f" The positive class is {positive_class}."
    no_use = f" By {name.replace('_', ' ')} the model is no better." if beaten else ""
    return [*lines, f"The baseline is without features: {measures['baseline']}.{positive}{no_use}"]
