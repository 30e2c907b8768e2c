"""A run in words: what `dpfl run` prints at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpfl_plugin.api.runs import Run, _private_scores, measures_lines
from tests.cli.command import run, write


def test_why_a_third_partys_epsilon_is_the_larger_one(tmp_path: Path) -> None:
    result = run(write(tmp_path))
    larger = "The third party's epsilon is larger where it has to hold in advance"
    assert larger not in str(Run(Path(result["folder"]), result))
    result["epsilon"]["third_party"]["epsilon"] = result["epsilon"]["server"]["epsilon"] + 0.002
    assert str(Run(Path(result["folder"]), result)).count(larger) == 1


def test_what_is_said_at_the_end_follows_the_cause_and_not_the_words() -> None:
    result = {"status": "budget_exhausted", "rounds": 7, "folder": "runs/x", "reason": "in other words"}
    for cause, by in (("max_participations", "max_participations"), ("budget", "the budget")):
        assert Run(Path(), {**result, "cause": cause}).ending("").startswith(f"stopped by {by} after 7")


@pytest.mark.parametrize(("accuracy", "no_better"), [(0.9, False), (0.8, True), (0.7, True)])
def test_a_model_that_is_no_better_than_the_most_frequent_class_is_called_so(accuracy: float, no_better: bool) -> None:
    pooled = {"model": {"accuracy": 0.5}, "own_models": {"accuracy": accuracy}, "baseline": {"accuracy": 0.8}}
    measures = {"ranked_by": "accuracy", "higher_is_better": True, "baseline": "the majority", "pooled": pooled}
    head, row, last = measures_lines(measures, "ill")
    assert head == "all test records together; each silo's by its own model  model  baseline"
    assert row.split() == ["accuracy", f"{accuracy:g}", "0.8"] and len(row) == len(head)
    assert last.startswith("The baseline is without features: the majority. The positive class is ill.")
    assert last.endswith("By accuracy the model is no better.") == no_better
    del pooled["own_models"]
    assert measures_lines(measures, None)[-1] == (
        "The baseline is without features: the majority. By accuracy the model is no better."
    )
    errors = {"model": {"rmse": 2.0}, "baseline": {"rmse": 3.0}}
    of_errors = {**measures, "ranked_by": "rmse", "higher_is_better": False, "pooled": errors}
    assert "no better" not in measures_lines(of_errors, None)[-1]
    assert measures_lines({**measures, "pooled": {"model": {}, "baseline": {}}}, None) == [
        "all test records together: no measure is defined."
    ]


@pytest.mark.parametrize(("measure", "bound", "is_cut"), [("deviance", 10.0, True), ("accuracy", 1.0, False)])
def test_a_private_score_that_is_cut_says_why_it_is_below_the_measures(
    measure: str, bound: float, is_cut: bool
) -> None:
    private = {"scores": [[3, 0.5]], "measure": measure, "bound": bound, "noise_std": 0.1}
    (line,) = _private_scores({"private_evaluation": private})
    assert line.count("cut") == 2 * is_cut, line
