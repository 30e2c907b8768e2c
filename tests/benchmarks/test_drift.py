"""The benchmark of drift control: its page is made of the shipped numbers, and its search ends at the best step."""

from __future__ import annotations

import pytest

from benchmarks import drift, drift_page
from benchmarks.pages import ROOT
from dpfl_plugin.evidence.drift_control import SKEWS, Gap, numbers

PAGE = (ROOT / drift_page.PAGE).read_text()


@pytest.mark.parametrize("name", drift_page.parts(numbers()))
def test_the_page_is_made_of_the_shipped_numbers(name: str) -> None:
    """Else: python -m benchmarks.drift --write"""
    assert f"<!-- {name}: begin -->\n{drift_page.parts(numbers())[name]()}\n<!-- {name}: end -->" in PAGE


def test_the_picture_is_there() -> None:
    assert drift_page.PICTURE.read_bytes().startswith(b"\x89PNG") and drift_page.PICTURE.stat().st_size < 60_000
    assert f"]({drift_page.PICTURE.relative_to(ROOT / 'docs')})" in PAGE


def test_tasks_are_the_skews_that_advice_knows() -> None:
    assert set(drift.TASKS) == set(drift.DATA) == set(SKEWS)
    assert [name for name in drift.methods() if not name.endswith(drift.AVERAGED)] == list(drift.PATHS)
    assert not set(drift.TUNING) & {seed for seeds in drift.SEEDS for seed in seeds}


def test_one_run_shows_both_methods_of_a_path() -> None:
    """The runs differ from the file's variants in what their names say, and in nothing else."""
    cell = drift.Cell("labels", 0.2, 5, 8.0)
    for path in drift.PATHS:
        config = cell.config(path, 1.0, 0)
        both = drift.start(path + drift.AVERAGED)
        assert config.algorithm == both.algorithm and config.privacy == both.privacy
        assert (config.data, config.rounds, config.max_participations) == (
            both.data,
            both.rounds,
            both.max_participations,
        )


@pytest.mark.parametrize(
    ("against_plain", "best_against_best", "said"),
    [
        ([0.1, 0.1], [0.05, 0.0], "SCAFFOLD"),
        ([0.1, 0.1], [0.004, 0.004], "FedAvg, averaged or with momentum: level with SCAFFOLD"),
        ([0.1, 0.1], [0.05, -0.05], "FedAvg, averaged or with momentum: level with SCAFFOLD or ahead of it"),
        ([-0.1, -0.1], [-0.05, 0.0], "FedAvg: SCAFFOLD loses accuracy"),
        ([0.1, 0.1], [0.0, 0.0], "FedAvg, averaged or with momentum: level with SCAFFOLD"),
        ([-0.1, 0.0], [0.0, 0.0], "FedAvg: SCAFFOLD loses accuracy"),
        ([0.0, 0.0], [0.0, 0.0], "FedAvg: SCAFFOLD gains nothing"),
    ],
)
def test_what_cells_say_is_what_half_of_them_say(
    against_plain: list[float], best_against_best: list[float], said: str
) -> None:
    plain, best = ([Gap(mean, 0.001, 10) for mean in means] for means in (against_plain, best_against_best))
    assert drift_page.verdict(plain, best) == said
