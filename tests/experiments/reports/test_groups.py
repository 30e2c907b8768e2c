"""Groups, their names, means and bands."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.experiments.reports.groups import Group, differing, epsilon_text, grouped, select, value_text
from dpfl_plugin.experiments.reports.runs import VARIANT, Run
from tests.experiments.reports.folders import some


def group_of(runs: list[Run]) -> Group:
    (group,) = grouped(runs)
    return group


def test_runs_that_differ_in_their_seed_only_are_one_group(tmp_path: Path) -> None:
    runs = some(tmp_path, {"seed": 1}, {"seed": 0}, {"seed": 1, "changes": {"algorithm.local_lr": 2.0}})
    groups = grouped(runs)
    assert [group.label for group in groups] == ["scaffold, local_lr=1", "scaffold, local_lr=2"] or [
        group.label for group in groups
    ] == ["local_lr=1", "local_lr=2"]
    assert [run.seed for run in groups[0].runs] == [0, 1]
    assert groups[0].keys == {"algorithm.local_lr": 1.0}


def test_mean_and_its_confidence_interval(tmp_path: Path) -> None:
    values = [0.5, 0.7, 0.9]
    summary = group_of(some(tmp_path, *({"seed": i, "accuracies": [v]} for i, v in enumerate(values)))).summary(
        "test_accuracy"
    )
    assert summary.n == 3
    assert summary.mean == pytest.approx(0.7)
    assert summary.std == pytest.approx(statistics.stdev(values)) == pytest.approx(0.2)
    assert summary.half_width == pytest.approx(stats.t.ppf(0.975, 2) * 0.2 / math.sqrt(3))
    assert str(summary) == "0.70 ± 0.50"


def test_one_run_has_no_standard_deviation(tmp_path: Path) -> None:
    summary = group_of(some(tmp_path, {"accuracies": [0.5]})).summary("test_accuracy")
    assert (summary.n, summary.mean, summary.std) == (1, 0.5, None)
    assert str(summary) == "0.5"


def test_partial_and_failed_runs_are_counted_and_not_averaged(tmp_path: Path) -> None:
    group = group_of(
        some(
            tmp_path,
            {"seed": 0, "accuracies": [0.5]},
            {"seed": 1, "accuracies": [0.7], "status": "budget_exhausted"},
            {"seed": 2, "accuracies": [0.1], "status": "failed"},
            {"seed": 3, "accuracies": [0.1], "status": "interrupted"},
            {"seed": 4, "accuracies": [0.1], "status": None},
        )
    )
    assert group.summary("test_accuracy").mean == pytest.approx(0.6)
    assert group.state == "2 of 5 (1 interrupted, 1 failed, 1 unfinished)"


def test_a_number_that_is_not_finite_is_told_and_not_left_out_of_a_mean(tmp_path: Path) -> None:
    summary = group_of(some(tmp_path, {"seed": 0}, {"seed": 1, "accuracies": [0.5, None]})).summary("test_accuracy")
    assert summary.mean is None and summary.not_finite == 1
    assert str(summary) == "not finite in 1 of 2"


def test_epsilon_is_the_largest_and_rounded_up(tmp_path: Path) -> None:
    group = group_of(some(tmp_path, {"seed": 0, "epsilon": 1.5}, {"seed": 1, "epsilon": 2.0001}))
    assert group.epsilon("server") == 2.0001
    assert epsilon_text(group.epsilon("server")) == "2.001"
    assert group.meaning("neighbouring") == "replace-one" and group.meaning("delta") == "1e-05"


def test_without_noise_there_is_no_guarantee(tmp_path: Path) -> None:
    group = group_of(some(tmp_path, {"seed": 0, "epsilon": 1.5}, {"seed": 1, "epsilon": None}))
    assert group.epsilon("server") == math.inf
    assert epsilon_text(group.epsilon("server")) == "no guarantee"
    assert group.meaning("accountant") == "-"


def test_partial_runs_do_not_lend_their_epsilon(tmp_path: Path) -> None:
    group = group_of(some(tmp_path, {"status": "interrupted", "epsilon": 1.5}))
    assert group.epsilon("server") is None and epsilon_text(None) == "-"


def test_labels_tell_all_groups_apart_in_few_words(tmp_path: Path) -> None:
    runs = some(
        tmp_path,
        {"changes": {"algorithm.name": "fedavg"}},
        {"changes": {"privacy.noise_multiplier": 0, "privacy.clip_norm": math.inf}},
        {},
    )
    assert [group.label for group in grouped(runs)] == [
        "fedavg, noise_multiplier=4",
        "scaffold, no noise",
        "scaffold, noise_multiplier=4",
    ]


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ([(None, 2.0), (None, 4.0)], ["epsilon=2", "epsilon=4"]),
        ([(None, 4.0), (8.0, None)], ["noise solved for epsilon=4", "noise_multiplier=8"]),
        ([(None, 2.0), (None, 4.0), (8.0, None)], ["epsilon=2", "epsilon=4", "noise_multiplier=8"]),
        ([(None, 4.0), (0.0, None), (8.0, 4.0)], ["no noise", "noise solved for epsilon=4", "noise_multiplier=8"]),
        ([(8.0, None), (8.0, 4.0)], ["epsilon=4", "noise_multiplier=8"]),
    ],
)
def test_labels_say_where_noise_was_solved_for(
    tmp_path: Path, settings: list[tuple[float | None, float | None]], labels: list[str]
) -> None:
    keys = ("privacy.noise_multiplier", "privacy.epsilon")
    runs = some(tmp_path, *({"changes": dict(zip(keys, values, strict=True))} for values in settings))
    assert [group.label for group in grouped(runs)] == labels


def test_labels_of_many_groups_are_all_different(tmp_path: Path) -> None:
    settings = [
        {"changes": {"algorithm.local_lr": lr, "privacy.clip_norm": clip, "rounds": rounds}}
        for lr in (0.1, 0.2)
        for clip in (1.0, 2.0)
        for rounds in (10, 20)
    ]
    labels = [group.label for group in grouped(some(tmp_path, *settings))]
    assert len(set(labels)) == 8


def test_group_by_a_key_averages_over_all_else(tmp_path: Path) -> None:
    runs = some(
        tmp_path, {"changes": {"rounds": 10}}, {"changes": {"rounds": 20}}, {"changes": {"algorithm.name": "x"}}
    )
    groups = grouped(runs, ["algorithm.name"])
    assert [(group.label, len(group.runs)) for group in groups] == [("scaffold", 2), ("x", 1)]


def test_select(tmp_path: Path) -> None:
    runs = some(tmp_path, {"seed": 0}, {"seed": 1}, {"seed": 1, "changes": {"algorithm.local_lr": 3.0}})
    assert len(select(runs, {"seed": 1})) == 2
    assert select(runs, {"seed": 1, "algorithm.local_lr": 3}) == [runs[2]]
    assert select(runs, {"seed": 7}) == []
    with pytest.raises(ConfigError, match=r"where algorithm\.local_l: no run.*did you mean 'algorithm\.local_lr'"):
        select(runs, {"algorithm.local_l": 3})


def test_differing() -> None:
    assert differing([{"a": 1, "b": [1]}, {"a": 1, "b": [2]}, {"a": 1}]) == ["b"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (0.5, "0.5"),
        (2.0, "2"),
        ("x", "x"),
        ([{"name": "a"}, {"name": "b"}], "a+b"),
        ([], "none"),
        ([1], "[1]"),
    ],
)
def test_value_text(value: Any, text: str) -> None:
    assert value_text(value) == text


def test_variants_have_the_names_of_their_file_and_users_name_rows_and_words(tmp_path: Path) -> None:
    runs = some(tmp_path, {"changes": {"algorithm.name": "fedavg"}}, {"changes": {"privacy.noise_multiplier": 8.0}})
    labels = {"fedavg": "DP-FedAvg", "scaffold": "ours"}
    assert [group.label for group in grouped(runs, labels=labels)] == ["DP-FedAvg", "ours"]
    named = [replace(run, config={VARIANT: label, **run.config}) for run, label in zip(runs, "ab", strict=True)]
    assert [group.label for group in grouped(named)] == ["a", "b"]
    assert [group.label for group in grouped(named[:1])] == ["a"]
    assert len(grouped([named[0], replace(runs[0], seed=1)])) == 1, "a label alone tells no runs apart"


def test_a_single_configuration_has_a_name(tmp_path: Path) -> None:
    runs = some(tmp_path, {"seed": 0}, {"seed": 1, "changes": {"rounds": 5}})
    assert group_of(runs[:1]).label == group_of(runs[:1]).series == "scaffold"
    assert [group.label for group in grouped(runs, ["algorithm.name"])] == ["scaffold"]
    assert [group.label for group in grouped(runs, ["rounds"])] == ["rounds=10", "rounds=5"]


def test_differences_are_of_equal_seeds(tmp_path: Path) -> None:
    """Seed by seed they vary less than the runs; a pair that was tested on other records is counted."""
    settings = [
        {"seed": seed, "changes": {"algorithm.name": name}, "accuracies": [0.1 * seed + more]}
        for name, more in (("a", 0.02), ("b", 0.0))
        for seed in range(4)
        if (name, seed) != ("b", 3)
    ]
    first, second = grouped(some(tmp_path, *settings))
    found = first.difference(second, "test_accuracy")
    assert found.summary.n == 3 and found.summary.mean == pytest.approx(0.02) and found.unpaired == (3,)
    assert found.summary.half_width == pytest.approx(0, abs=1e-12) and found.other_tests == 0
    moved = replace(second, runs=tuple(replace(run, test_part="other") for run in second.runs))
    assert first.difference(moved, "test_accuracy").other_tests == 3


def test_rows_that_join_configurations_are_compared_by_the_means_of_equal_seeds(tmp_path: Path) -> None:
    settings = [
        {"seed": seed, "changes": {"algorithm.name": name, "rounds": rounds}, "accuracies": [0.1 * seed + more]}
        for name, rounds, more in (("a", 5, 0.02), ("a", 6, 0.04), ("b", 5, 0.0), ("b", 6, 0.02))
        for seed in range(3)
    ]
    first, second = grouped(some(tmp_path, *settings), ["algorithm.name"])
    found = first.difference(second, "test_accuracy").summary
    assert found.n == 3 and found.mean == pytest.approx(0.02)
