"""The result of a sweep: a row for each run, the runs by label, and a picture of their configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfl_plugin as dpfl
from dpfl_plugin.api.sweep_result import SweepResult
from dpfl_plugin.errors import ConfigError
from tests.cli.sweeping import write as write_sweep

SWEEP: dict[str, Any] = {"list": [{"privacy": {"epsilon": 4.0}}, {}], "grid": {"l2": [0.0, 0.1]}, "seeds": 2}
BASE: dict[str, Any] = {"rounds": 2, "privacy": {"noise_multiplier": None, "epsilon": 2.0, "delta": 1e-3}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweep")


@pytest.fixture(scope="module")
def results(folder: Path) -> SweepResult:
    return dpfl.sweep(write_sweep(folder, SWEEP, BASE), out=folder / "out", jobs=2)


def test_the_table_has_what_each_run_changed_asked_and_spent(results: SweepResult) -> None:
    table = results.table
    measures = ["test_accuracy"]
    spent = ["epsilon asked", "epsilon", "delta", "seconds", "folder"]
    assert list(table) == ["privacy.epsilon", "l2", "seed", "status", "rounds", *measures, *spent]
    assert table["epsilon asked"].tolist() == [4.0] * 4 + [2.0] * 4 and table["seed"].tolist() == [0, 1] * 4
    assert (table["epsilon"] <= table["epsilon asked"]).all() and (table["status"] == "done").all()
    assert list(table.index) == list(results) and len(results) == 8
    for label, run in results.items():
        row = table.loc[label]
        assert row["epsilon"] == run.epsilon and row["folder"] == str(run.folder) and row["rounds"] == len(run.history)
        assert row["test_accuracy"] == run.result["test_accuracy"]["mean_last_10_percent"]
    assert set(dpfl.compare(results).ranked()) == set(results)


def test_the_picture_has_a_curve_for_each_configuration(results: SweepResult) -> None:
    (axes,) = results.plot().axes
    labels = [str(line.get_label()) for line in axes.lines if "n = 2" in str(line.get_label())]
    assert len(labels) == len(axes.collections) == 4  # with a band each
    shown = [run.history["test_accuracy"].iloc[-1] for label, run in results.items() if "l2=0.1 " in label][:2]
    ends = [np.asarray(line.get_ydata())[-1] for line in axes.lines]
    assert any(end == pytest.approx(np.mean(shown)) for end in ends)
    assert results.plot("train_loss", "epsilon").axes[0].get_ylabel() == "train loss"
    page = results._repr_html_()
    assert "data:image/png;base64" in page and page.count("<tr>") == 9
    for wrong, message in (({"measure": "acc"}, "measure='acc'"), ({"against": "time"}, "against='time'")):
        with pytest.raises(ConfigError, match=message):
            results.plot(**wrong)


def test_runs_that_have_not_begun_are_rows_without_numbers(folder: Path) -> None:
    planned = dpfl.sweep(write_sweep(folder, SWEEP, BASE), ["rounds=3"], out=folder / "other", dry_run=True)
    row = planned.rows[0]
    assert row["status"] == "pending" and row["epsilon"] is None and row["seed"] == 0 and row["epsilon asked"] == 4.0
    assert len(planned) == 0 and "#" in planned._repr_html_()
    with pytest.raises(KeyError):
        planned[row["run"]]
    with pytest.raises(ConfigError, match="nothing was measured yet"):
        planned.plot()


def test_runs_of_variants_have_their_labels_in_the_table(tmp_path: Path) -> None:
    variants = {"A": {"algorithm": {"name": "fedavg"}}, "B": {}}
    results = dpfl.sweep(write_sweep(tmp_path, {"seeds": 1}, {"rounds": 1, "variants": variants}), out=tmp_path)
    assert [(row["variant"], row["algorithm.name"]) for row in results.rows] == [("A", "fedavg"), ("B", "scaffold")]


def test_a_program_sweeps_over_records_of_its_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    silos = {name: (rng.normal(size=(40, 4)), rng.integers(0, 2, 40)) for name in ("a", "b")}
    experiment = dpfl.Federation.from_arrays(silos, classes=[0, 1]).experiment(
        algorithm=dpfl.algorithms.FedAvg(local_steps=2, local_lr=0.5), privacy=dpfl.Privacy(epsilon=4), rounds=2
    )
    results = dpfl.sweep(experiment, ["sweep.seeds=2"], out=tmp_path)
    assert [row["status"] for row in results.rows] == ["done", "done"]
    with pytest.raises(ConfigError, match="on='slurm' must be local"):
        dpfl.sweep(experiment, ["sweep.seeds=2"], out=tmp_path, on="slurm")
