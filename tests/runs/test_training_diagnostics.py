"""A warning where a model says less of a patient than a baseline without features does."""

from __future__ import annotations

from typing import Any

import pytest

from dpfl_plugin.runs.training_diagnostics import (
    _cause,
    cut_short,
    mostly_clipped,
    price,
    too_small_a_step,
    worse_than_baseline,
)


def result(
    model: dict[str, Any], baseline: dict[str, Any], where: str = "pooled", whose: str = "model"
) -> dict[str, Any]:
    measures = {"pooled": None, where: {"model": {}, whose: model, "baseline": baseline}}
    return {"measures": measures, "inputs": {"num_classes": 2}}


FRESH: dict[str, Any] = {
    "randomness": "fresh",
    "noise_multiplier": 3.0,
    "signal_to_noise": 2.0,
    "epsilon": {"server": {"epsilon": 4.0, "delta": 1e-5}},
}
SMALLER = "Training went away from where it began: a smaller step may help (algorithm."
AGAIN = " Another private run like this one adds to it: epsilon 8.000 at delta 2e-05 for both."
IN_ALL = (
    " Another private run like this one brings the total, as it was when this run ended, to epsilon 6.600 at delta "
    "1e-05."
)


@pytest.mark.parametrize(
    ("found", "algorithm", "parts"),
    [
        (
            result({"log_loss": 1.35}, {"log_loss": 0.68}),
            {"local_lr": 1.0},
            ["log loss 1.35", "0.68", f"{SMALLER}local_lr=0.1).{AGAIN}"],
        ),
        (result({"log_loss": 1.35}, {"log_loss": 0.68}), {"lr": 3}, [f"{SMALLER}lr=0.3"]),
        (result({"log_loss": 1.35}, {"log_loss": 0.68}), {"eta_0": 2.0}, [f"{SMALLER}eta_0=0.2"]),
        (result({"log_loss": 1.35}, {"log_loss": 0.68}), {"local_lr": None}, ["no better than a constant."]),
        # It stayed where training begins, at ln 2: a smaller step is not the remedy.
        (result({"log_loss": 0.69}, {"log_loss": 0.68}), {"local_lr": 0.01}, ["log loss 0.69"]),
        (result({"rmse": 9.0, "mae": 1.0}, {"rmse": 5.0}), {"local_lr": 1.0}, ["rmse 9", "constant."]),
        (result({"deviance": 2.0}, {"deviance": 1.0}, "mean_of_silos"), {"lr": 1.0}, ["deviance 2"]),
        (result({"log_loss": 2.0}, {"log_loss": 1.0}, "pooled", "own_models"), {"lr": 1.0}, ["log loss 2"]),
        # Of one measure only: probabilities that are better than the baseline's are no matter for a warning.
        (result({"log_loss": 0.5, "brier": 0.3}, {"log_loss": 0.6, "brier": 0.2}), {"lr": 1.0}, []),
        (result({"log_loss": 0.68}, {"log_loss": 0.68}), {"lr": 1.0}, []),
        (result({"log_loss": None, "accuracy": 0.5}, {"log_loss": 0.7}), {"lr": 1.0}, []),
        ({"measures": None}, {"lr": 1.0}, []),
    ],
)
def test_the_warning_and_its_remedy(found: dict[str, Any], algorithm: dict[str, Any], parts: list[str]) -> None:
    said = worse_than_baseline(FRESH | found, algorithm)
    assert (said is None) == (not parts) and all(part in str(said) for part in parts), said


@pytest.mark.parametrize(
    ("scores", "remedy"),
    [
        ([30.0, 25.0, 20.0, 15.0, 9.0], "Its error was still falling."),
        ([30.0, 12.0, 9.1, 9.0, 9.05], ""),
        ([9.5, 8.0, 7.0, 8.5, 9.0], ""),
        ([8.0, 8.2, 8.5, 8.9, 9.0], f"{SMALLER}lr=0.01).{AGAIN}"),
        ([None, 30.0, 9.0], ""),
    ],
)
def test_a_step_is_advised_only_where_training_was_unstable(scores: list[float | None], remedy: str) -> None:
    """What an error is before the first round depends on where the labels lie in their range."""
    found = FRESH | result({"mae": 9.0}, {"mae": 5.0})
    found["measures"]["ranked_by"] = "mae"
    assert _cause(found, ("mae", 9.0, 5.0), scores, {"lr": 0.1}) == remedy


def test_no_step_is_advised_where_noise_hides_what_records_say() -> None:
    found = FRESH | {"signal_to_noise": 0.9} | result({"log_loss": 1.35}, {"log_loss": 0.68})
    said = str(worse_than_baseline(found, {"lr": 1.0}))
    assert "noise is larger" in said and said.endswith(AGAIN) and "algorithm.lr" not in said
    found |= result(CONSTANT, {"log_loss": 0.68})
    assert "algorithm.lr" not in str(too_small_a_step(found, [0.61] * 20, {"lr": 1.0}))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, AGAIN),
        ({"randomness": "seeded"}, ""),
        ({"epsilon": {"server": {"epsilon": None, "delta": 1e-5}}}, ""),
        ({"tuning": {"epsilon": 5.0, "delta": 1e-5}}, AGAIN.replace("8.000", "10.000")),
        (
            {"total_after_another": {"epsilon": 6.6, "delta": 1e-5, "why": ""}},
            IN_ALL,
        ),
        (
            {"total_after_another": {"epsilon": None, "delta": 1e-5, "why": ""}},
            " After another private run like this one no total holds.",
        ),
    ],
)
def test_the_price_of_another_run(changes: dict[str, Any], text: str) -> None:
    assert price(FRESH | changes) == text


CONSTANT = {"confusion_matrix": [[30, 0], [19, 0]], "log_loss": 0.66}
RARE = {"confusion_matrix": [[48, 0], [2, 0]]}
TRAINED = {"confusion_matrix": [[25, 5], [9, 10]], "log_loss": 0.5}


@pytest.mark.parametrize(
    ("model", "scores", "parts"),
    [
        (CONSTANT, [0.6, 0.61], ["same class of every test record."]),
        (
            TRAINED,
            [0.61] * 11 + [0.61 + 0.01 * n for n in range(1, 10)],
            ["constant model in 11 of 20 evaluations", "=0.3"],
        ),
        (CONSTANT, [0.61] * 20, ["every test record, and the score was that of a constant model in 20 of 20"]),
        (TRAINED, [0.61] * 9 + [0.61 + 0.01 * n for n in range(1, 12)], []),
        (TRAINED, [0.61, 0.7] * 10, ["constant model in 10 of 20"]),
        (TRAINED, [0.6, 0.7] * 10, []),
        (TRAINED, [0.39] * 11 + [0.7] * 9, ["constant model in 11 of 20"]),  # of a rarer class
        (TRAINED, [0.9] * 20, []),  # from the first round on, which no constant model is
        (TRAINED, [0.61, 0.7, 0.8] + [0.9] * 17, []),  # it converged
        (TRAINED, [0.6, 0.6], []),
        (TRAINED, [None] * 20, []),
        # Every test record is of the class that is said.
        ({"confusion_matrix": [[49, 0], [0, 0]], "log_loss": 0.1}, [0.9, 1.0], []),
        # No worse than before the first round, ln 2.
        ({**CONSTANT, "log_loss": 0.69}, [], ["same class"]),
        # Of a rare class, whatever else is said of its probabilities; not where they are what they were.
        ({**RARE, "log_loss": 0.115}, [0.96] * 20, []),
        ({**RARE, "log_loss": 0.7}, [0.96] * 20, []),
        ({**RARE, "log_loss": 0.685}, [0.96] * 20, ["same class"]),
        # Worse than a baseline, and than that: that has a warning of its own, of a step that is too large.
        ({**CONSTANT, "log_loss": 3.0}, [0.6] * 20, []),
        ({}, [], []),
    ],
)
def test_a_model_that_stayed_where_it_began_asks_for_a_larger_step(
    model: dict[str, Any], scores: list[float | None], parts: list[str]
) -> None:
    found = result(model, {"log_loss": 0.68, "accuracy": 0.61})
    found["measures"]["ranked_by"] = "accuracy"
    said = too_small_a_step(found, scores, {"local_lr": 0.1})
    assert (said is None) == (not parts) and all(part in str(said) for part in parts), said
    assert too_small_a_step(found, scores, {"name": "mine"}) is None


def test_evaluations_are_means_over_silos_and_so_is_the_baseline_that_they_are_compared_with() -> None:
    found = result(TRAINED, {"log_loss": 0.68, "accuracy": 0.61})
    found["measures"] |= {"ranked_by": "accuracy", "silos": {n: {"baseline": {"accuracy": n}} for n in (0.5, 0.7)}}
    assert "in 3 of 6" in str(too_small_a_step(found, [0.4, 0.6] * 3, {"lr": 1.0}))


@pytest.mark.parametrize(
    ("risks", "share", "parts"),
    [
        ((0.029, 0.107), 0.11, ["risk is 0.029, and 0.107 was observed", "cuts the gradients of 11% of the records"]),
        ((0.029, 0.107), None, ["0.107 was observed. Clipping may be why: a simulation (seed=1)"]),
        ((0.029, 0.107), 0.01, []),  # hardly any is cut
        ((0.029, 0.107), 0.0, []),
        ((0.1, 0.107), 0.11, []),
        ((0.0, 0.002), 0.11, []),  # two of a thousand: chance
    ],
)
def test_risks_that_clipping_biases_are_told_of(
    risks: tuple[float, float], share: float | None, parts: list[str]
) -> None:
    predicted, observed = risks
    events = round(1000 * observed)
    found = FRESH | result(
        {
            "predicted_observed_ratio": predicted / observed,
            "calibration_in_the_large": predicted - observed,
            "confusion_matrix": [[1000 - events, 0], [events, 0]],
        },
        {},
    )
    found["measures"] |= {"clipped_share": share}
    said = cut_short(found, 1.0)
    assert (said is None) == (not parts) and all(part in str(said) for part in parts), said


@pytest.mark.parametrize(("simulated", "private", "share"), [(0.8, None, "80%"), (None, 0.7, "70%"), (0.8, 0.4, None)])
def test_most_gradients_being_clipped_is_noted(
    simulated: float | None, private: float | None, share: str | None
) -> None:
    """A simulation's share, or in its place the one that was released."""
    known = result({}, {})
    known["measures"] |= {"clipped_share": simulated}
    known |= {"private_evaluation": {"measure": "clipped_share", "scores": [] if private is None else [[9, private]]}}
    note = mostly_clipped(known, 2.0)
    assert note is None if share is None else f"clip_norm=2 cuts the gradients of {share}" in str(note)
