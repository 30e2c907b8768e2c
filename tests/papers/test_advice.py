"""`dpfl plan --recommend`: the method that the nearest measurements favour, from the configuration alone."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml

import dpfl_plugin as api
from benchmarks import drift
from dpfl_plugin.api.recommendations import MEASURED_ROUNDS
from dpfl_plugin.config.load import load
from papers.drift_control import Cell, Place, advice, gap, numbers
from tests.cli.command import dpfl

CONFIG: dict[str, Any] = {
    "rounds": 40,
    "silo_rate": 0.2,
    "data": {"dataset": "mnist", "num_silos": 10, "folder": "/there/are/no/records"},
    "algorithm": {"name": "fedavg", "local_steps": 5, "local_lr": 1.0},
    "privacy": {"epsilon": 8.0},
}
TWO_LABELS = {"name": "labels_per_silo", "labels": 2}


def config(folder: Path, partition: Any, **changes: Any) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, "data": {**CONFIG["data"], "partition": partition}, **changes}))
    return path


def recommended(path: Path, *options: str) -> dict[str, Any]:
    done = dpfl("plan", path, "--recommend", "--json", *options)
    assert done.code == 0, done.err
    answer: dict[str, Any] = done.json
    return answer


def measured(skew: str, silo_rate: float, local_steps: int, epsilon: float) -> Cell:
    at = (skew, silo_rate, local_steps, epsilon)
    (found,) = [c for c in numbers().cells if (c.skew, c.silo_rate, c.local_steps, c.epsilon) == at]
    return found


def test_few_labels_and_few_silos_call_for_drift_control(tmp_path: Path) -> None:
    path = config(tmp_path, TWO_LABELS)
    answer = recommended(path)
    assert answer["recommended"].startswith("SCAFFOLD") and "algorithm.name=scaffold" in answer["set"]
    found = measured("labels", 0.2, 5, 8.0)
    accuracy = {name: statistics.fmean(of.accuracies) for name, of in found.methods.items()}
    assert answer["best"] == max(accuracy, key=lambda name: accuracy[name])
    assert answer["cells"][0]["accuracy"] == pytest.approx(accuracy) and len(answer["cells"]) == 1
    steps = {name: of.local_lr for name, of in found.methods.items()}
    assert answer["cells"][0]["local_lr"] == steps
    assert answer["step_by_fedavgs"] == [steps[answer["recommended"]] / steps["FedAvg"]] * 2
    gain = answer["gain_over_fedavg"]
    assert gain["mean"] == pytest.approx(accuracy[answer["recommended"]] - accuracy["FedAvg"])
    assert gain["mean"] > 0.05 and gain["told_apart"] and not answer["outside"]
    with_it = load(path, answer["set"]).variants[0].config  # the words that are printed are a run's
    assert (with_it.algorithm.name, with_it.data.partition.name) == ("scaffold", "labels_per_silo")
    assert api.plan(path, recommend=True) == answer


def test_silos_that_are_alike_do_not(tmp_path: Path) -> None:
    """Nor do values between those that were measured, which take the mean of the cells around them."""
    answer = recommended(config(tmp_path, "iid", silo_rate=0.5), "--epsilon", "3")
    assert answer["recommended"].startswith("FedAvg") and "algorithm.name=fedavg" in answer["set"]
    assert {(c["skew"], c["silo_rate"], c["epsilon"]) for c in answer["cells"]} == {
        ("alike", rate, epsilon) for rate in (0.2, 1.0) for epsilon in (1.0, 8.0)
    }
    assert len(answer["remarks"]) == 2 and not answer["outside"]
    for name, row in answer["methods"].items():
        assert row["accuracy"] == pytest.approx(statistics.fmean(c["accuracy"][name] for c in answer["cells"]))


def test_silos_of_the_data_are_not_counted_but_asked_for(tmp_path: Path) -> None:
    path = config(tmp_path, "natural", algorithm={"name": "scaffold", "local_steps": 200, "local_lr": 1.0})
    refused = dpfl("plan", path, "--recommend")
    assert refused.code == 2 and "--skew is missing" in refused.err and "private" in refused.err
    answer = recommended(path, "--skew", "source", "--set", "model=mlp", "--set", "data.num_silos=1000")
    assert answer["data_sets"] == ["FEMNIST"]
    assert [c["skew"] for c in answer["cells"]] == ["source"]
    assert answer["cells"][0]["local_steps"] == max(c.local_steps for c in numbers().cells if c.skew == "source")
    assert [text.split()[0] for text in answer["outside"]] == ["local_steps", "data", "1000", "model"]
    said = dpfl("plan", path, "--recommend", "--skew", "source")
    assert "not measured: local_steps 200 is above all" in said.out and numbers().origin() in said.out


def test_what_was_measured_is_said_before_any_accuracy(tmp_path: Path) -> None:
    """Of tables at their sites: on which data, that it predicts nothing for these, and what was not measured."""
    table = {"dataset": {"name": "csv", "files": "silos/*.csv", "label_column": "ill"}, "partition": "natural"}
    path = tmp_path / "tables.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, "data": table, "rounds": 30}))
    for skew, data in (("shares", "MNIST"), ("source", "FEMNIST")):
        said = dpfl("plan", path, "--recommend", "--skew", skew).out
        before, after = said.split("begin with", 1)
        assert before.startswith(f"Measured on {data}, ") and "not a prediction for your data" in before
        for unlike in (
            "data set csv, with its columns, classes and records",
            "the number of silos",
            "30 rounds: measured",
        ):
            assert f"not measured: {unlike}" in before
        assert f"accuracy on {data}" in after
        assert not any(source[:12] in said for source in numbers().sources)
    answer = recommended(path, "--skew", "shares")
    assert answer["sources"]["sources"] == list(numbers().sources) and len(answer["outside"]) == 3


def test_rounds_are_those_of_the_benchmark() -> None:
    for rate, rounds in MEASURED_ROUNDS.items():
        assert {drift.Cell("labels", rate, 5, 8.0).config(path, 1.0, 0).rounds for path in drift.PATHS} == {rounds}
    assert set(numbers().levels("silo_rate", ["labels"])) == set(MEASURED_ROUNDS)


def test_drift_control_is_advised_where_it_pays_with_such_silos_whatever_steps_and_epsilon() -> None:
    """In every cell that was measured: the rule that docs/drift.md states, of the silos and not of the one cell."""
    found = numbers()
    for cell in found.cells:
        like = [c for c in found.cells if (c.skew, c.silo_rate) == (cell.skew, cell.silo_rate)]
        ahead = behind = 0
        for one in like:
            best = sorted(one.methods, key=lambda name: one.methods[name].mean, reverse=True)
            plain, controlled = (next(n for n in best if n.startswith("FedAvg") == kind) for kind in (True, False))
            g = gap([one], controlled, plain)
            ahead += g.told_apart and g.mean >= 0.005
            behind += g.told_apart and g.mean <= -0.005
        axes = ("skew", "silo_rate", "local_steps", "epsilon")
        said = advice([Place(axis, (getattr(cell, axis),)) for axis in axes], found)
        assert said.method.startswith("SCAFFOLD") == (2 * ahead >= len(like) and not behind)


@pytest.mark.parametrize(
    ("partition", "skews"),
    [
        ({"name": "dirichlet", "alpha": 0.5}, {"shares"}),
        ({"name": "dirichlet", "alpha": 0.1}, {"labels", "shares"}),
        ({"name": "dirichlet", "alpha": 1.0}, {"shares", "alike"}),
        ({"name": "dirichlet", "alpha": 100.0}, {"alike"}),
        ({"name": "similarity", "gamma": 0}, {"labels"}),
        ({"name": "similarity", "gamma": 10}, {"labels", "shares"}),
    ],
)
def test_how_a_simulation_deals_records_out_is_known(tmp_path: Path, partition: Any, skews: set[str]) -> None:
    assert {c["skew"] for c in recommended(config(tmp_path, partition))["cells"]} == skews


@pytest.mark.parametrize(
    ("options", "changes", "said"),
    [
        (["--skew", "labels"], {}, "--skew belongs to --recommend"),
        (["--recommend", "--skew", "label"], {}, "--skew='label' must be one of labels, shares, alike, source"),
        (["--recommend", "--solve", "rounds"], {}, "--solve has no meaning with --recommend"),
        (["--recommend", "--paper", "noble"], {}, "--paper has no meaning with --recommend"),
        (["--recommend", "--delta", "1e-6"], {}, "--delta has no meaning with --recommend"),
        (["--recommend"], {"privacy": {"noise_multiplier": 2.0}}, "--epsilon is missing"),
        (["--recommend"], {"privacy": {"epsilon": 8.0, "unit": "silo"}}, "scaffold is refused"),
        (["--recommend"], {"algorithm": {"name": "mb_sgd", "lr": 1.0}}, "nothing drifts"),
    ],
)
def test_what_has_no_answer_is_refused(tmp_path: Path, options: list[str], changes: Any, said: str) -> None:
    done = dpfl("plan", config(tmp_path, TWO_LABELS, **changes), *options)
    assert done.code == 2 and said in done.err, done.err


def test_runs_with_the_same_answer_share_it(tmp_path: Path) -> None:
    path = config(tmp_path, TWO_LABELS, variants={"a": {}, "b": {"seed": 1}, "c": {"silo_rate": 1.0}})
    said = dpfl("plan", path, "--recommend").out
    assert said.count("begin with") == 2 and "a, b: begin with" in said and "c: begin with" in said
    assert set(json.loads(dpfl("plan", path, "--recommend", "--json").out)) == {"a", "b", "c"}


@pytest.mark.parametrize("epsilon", [1.0, 3.0, 8.0])
@pytest.mark.parametrize("silo_rate", [0.2, 1.0])
def test_the_step_is_said_beside_fedavgs(tmp_path: Path, silo_rate: float, epsilon: float) -> None:
    """Whoever has a step size for FedAvg is told how the recommended method's was beside it, in all cells in use."""
    path = config(tmp_path, TWO_LABELS, silo_rate=silo_rate, privacy={"epsilon": epsilon})
    answer, said = recommended(path), dpfl("plan", path, "--recommend").out
    method, cells = answer["recommended"], answer["cells"]
    ratios = [cell["local_lr"][method] / cell["local_lr"]["FedAvg"] for cell in cells]
    assert answer["step_by_fedavgs"] == [min(ratios), max(ratios)]
    assert f"(that of {method} was " in said
    assert ("was as large as FedAvg's" in said) == (min(ratios) == max(ratios) == 1)
    for cell in cells:
        assert f"{method} {cell['accuracy'][method]:.3f} with local_lr {cell['local_lr'][method]:.2g}" in said
