"""`private_statistics` from the command line: what is charged and claimed, what becomes of records, interruptions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from unittest import mock

import dp_accounting
import numpy as np
import pandas
import pytest
import torch
import yaml
from dp_accounting.pld import PLDAccountant
from safetensors.torch import load_file

from dpfl_plugin.api.export import export
from dpfl_plugin.federation.scaled_records import SUMS
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.federation.statistics_round import StatisticsRound
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs import checkpoint
from tests.cli.command import charges, dpfl, merged, metrics, one_message, run
from tests.cli.losing import losing

DELTA = 1e-4
CONFIG: dict[str, Any] = {
    "seed": 3,
    "rounds": 3,
    "data": {
        "dataset": {"name": "table", "files": ["a.csv", "b.csv"], "test_files": ["c.csv", "d.csv"]},
        "test": "own",
        "partition": "natural",
        "schema": {
            "label": {"column": "ill", "classes": ["no", "yes"]},
            "columns": {
                "age": {"type": "number", "range": [0, 120], "scale": "mean"},
                "lab": {"type": "number", "range": [0, 200], "scale": "quantiles", "missing": "indicator"},
                "sex": {"type": "category", "values": ["f", "m"], "missing": "most_frequent"},
            },
        },
    },
    "model": "softmax",
    "algorithm": {"name": "fedavg", "local_steps": 2, "local_lr": 0.5},
    "privacy": {"noise_multiplier": 2.0, "delta": DELTA, "sampler": "full"},
    "private_statistics": {"noise_multiplier": 5.0, "outcome": True},
}
SOLVED = {"privacy": {"noise_multiplier": None, "epsilon": 3.0}, "private_statistics": {"noise_multiplier": None}}


def frame(seed: int, count: int) -> pandas.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, count).round(1)
    age[0] = 500.0  # beyond the range
    lab = np.where(rng.random(count) < 0.2, np.nan, rng.lognormal(3, 0.4, count).round(2))
    sex = rng.choice(["f", "m", ""], count, p=[0.3, 0.6, 0.1])
    ill = np.where(age + rng.normal(0, 8, count) > 62, "yes", "no")
    return pandas.DataFrame({"id": np.arange(count) // 2, "age": age, "lab": lab, "sex": sex, "ill": ill})


FRAMES = {name: frame(seed, count) for seed, (name, count) in enumerate({"a": 60, "b": 90, "c": 20, "d": 20}.items())}


def config(folder: Path, changes: dict[str, Any] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    known = ["age", "lab", "sex", "ill"]
    if (changes or {}).get("privacy", {}).get("unit") == "person":
        known = ["id", *known]
    for name, records in FRAMES.items():
        if not (folder / f"{name}.csv").exists():
            records.assign(id=records["id"].astype(str) + name)[known].to_csv(folder / f"{name}.csv", index=False)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(merged(CONFIG, changes or {}), sort_keys=False))
    return path


def statistics_in(folder: str) -> list[Any]:
    return [charge for charge in charges(folder) if charge.kind == "statistics"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, measuring: Any) -> dict[str, Any]:
    """A run that nothing disturbed."""
    with measuring():
        return run(config(tmp_path_factory.mktemp("whole")))


def test_without_noise_columns_are_scaled_by_the_statistics_of_all_training_records(tmp_path: Path) -> None:
    without = {"privacy": {"noise_multiplier": 0, "clip_norm": 1.0}, "private_statistics": {"noise_multiplier": 0}}
    result = run(config(tmp_path, without))
    records = pandas.concat([FRAMES["a"], FRAMES["b"]])
    age, lab = records["age"].clip(0, 120), records["lab"].dropna()
    told = result["private_statistics"]["columns"]
    assert told["age"]["mean"] == pytest.approx(age.mean(), abs=1e-3)
    assert told["age"]["std"] == pytest.approx(age.std(ddof=0), rel=1e-4)
    assert told["lab"]["median"] == pytest.approx(lab.median(), abs=200 / 32)
    assert told["sex"]["most_frequent"] == "m" == records["sex"].mode()[0]
    assert result["epsilon"]["server"]["epsilon"] is None


@pytest.mark.parametrize("model", ["softmax", "logistic", {"name": "mlp", "hidden": [3]}], ids=str)
def test_the_model_begins_with_the_shares_of_the_classes(tmp_path: Path, model: Any) -> None:
    """Its last bias predicts them; steps are too small to change it."""
    changes = {
        "model": model,
        "algorithm": {"local_lr": 1e-9},
        "privacy": {"noise_multiplier": 0, "clip_norm": 1.0},
        "private_statistics": {"noise_multiplier": 0},
    }
    result = run(config(tmp_path, changes))
    ill = float((pandas.concat([FRAMES["a"], FRAMES["b"]])["ill"] == "yes").mean())
    assert result["private_statistics"]["columns"]["class_shares"] == pytest.approx({"no": 1 - ill, "yes": ill})
    (bias,) = [v for k, v in load_file(Path(result["folder"]) / "model.safetensors").items() if k.endswith("bias")][-1:]
    difference = bias[0] if len(bias) == 1 else bias[1] - bias[0]
    assert float(difference) == pytest.approx(math.log(ill / (1 - ill)), abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": {"name": "softmax", "bias": False}}, "does not end with a linear layer that has a bias"),
        ({"algorithm": {"name": "local"}}, "silos' own models would not begin with it"),
    ],
)
def test_counts_of_classes_are_refused_where_no_model_begins_with_them(tmp_path: Path, changes: Any, why: str) -> None:
    for command in ("plan", "run"):
        one_message(dpfl(command, config(tmp_path, merged(SOLVED, changes))), why)


def by_dp_accounting(*noise: float) -> float:
    """Of Gaussian releases of one whole data set, which another package composes. Replacing is a shift by Delta."""
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=1e-4)
    for one in noise:
        accountant.compose(dp_accounting.GaussianDpEvent(one))
    return float(accountant.get_epsilon(DELTA))


def test_each_silo_is_charged_for_one_more_gaussian_release_and_epsilon_is_that_of_all(whole: dict[str, Any]) -> None:
    held = statistics_in(whole["folder"])
    assert {(charge.silo, charge.round, charge.count) for charge in held} == {(0, 0, 1), (1, 0, 1)}
    assert {charge.release.noise_multiplier for charge in held} == {5.0}
    expected = by_dp_accounting(5.0, *[2.0] * 6)
    assert whole["epsilon"]["server"]["epsilon"] == pytest.approx(expected, rel=2e-3)
    assert expected > by_dp_accounting(*[2.0] * 6) * 1.01, "too little for the test to tell"
    page = (Path(whole["folder"]) / "privacy.md").read_text()
    assert (
        "statistics of columns and counts of labels: one noisy sum of each silo" in page and "publishing them" in page
    )
    assert dpfl("account", whole["folder"]).code == 0


def test_noise_is_solved_so_that_statistics_and_rounds_fit_together(tmp_path: Path) -> None:
    path = config(tmp_path, SOLVED)
    done = dpfl("plan", path, "--json")
    result = run(path)
    noise, of_statistics = result["noise_multiplier"], result["private_statistics"]["noise_multiplier"]
    assert 2.98 < result["epsilon"]["server"]["worst_case_epsilon"] <= 3.0
    assert 0.74 < by_dp_accounting(of_statistics) <= 0.7505, "a quarter of epsilon 3, if nothing else was released"
    assert 2.98 < by_dp_accounting(of_statistics, *[noise] * 6) <= 3.002
    assert str(noise) in done.out
    assert "private statistics, noise included: class_shares no " in dpfl("run", path, "--out", tmp_path / "runs").out


class Died(BaseException):
    """As a killed process: nothing catches it."""


def dies(original: Any, when: int) -> Any:
    calls = []

    def made(*args: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == when:
            raise Died
        return original(*args, **named)

    return made


@pytest.mark.parametrize(
    ("where", "name", "when", "charged"),
    [
        (SiloGroup, "_sums", 1, 0),  # before anything was released
        (PrivacyAccount, "sync", 2, 0),  # charged, and nothing has left
        (StatisticsRound, "run", 2, 2),  # in a checkpoint
        (SiloGroup, "_scale", 1, 2),  # released, in a checkpoint, and silos know nothing of it
        (checkpoint, "save", 2, 2),  # released, and lost
    ],
)
def test_a_run_that_dies_goes_on_with_the_same_statistics(
    tmp_path: Path, whole: dict[str, Any], where: Any, name: str, when: int, charged: int
) -> None:
    path = config(tmp_path)
    with mock.patch.object(where, name, dies(getattr(where, name), when)), pytest.raises(Died):
        run(path)
    (folder,) = (path.parent / "runs" / "run").iterdir()
    held = [charge for charge in Ledger.open(folder / "ledger.jsonl", append=False) if charge.kind == "statistics"]
    assert len(held) >= charged, "a release left before it was charged"
    result = run(path, "--resume")
    assert result["model_sha256"] == whole["model_sha256"]
    assert result["private_statistics"] == whole["private_statistics"]
    assert charges(result["folder"]) == charges(whole["folder"]), "the same release is charged once"
    assert metrics(result) == metrics(whole), "and counts"


def test_fresh_statistics_that_were_lost_are_charged_again_or_not_made(tmp_path: Path) -> None:
    secure = {"privacy": {"randomness": "fresh"}}
    lost = mock.patch.object(checkpoint, "save", dies(checkpoint.save, 2))
    path = config(tmp_path / "free", secure)
    with lost, pytest.raises(Died):
        run(path)
    result = run(path, "--resume")
    assert len(statistics_in(result["folder"])) == 4
    assert result["epsilon"]["server"]["epsilon"] == pytest.approx(by_dp_accounting(5.0, 5.0, *[2.0] * 6), rel=2e-3)
    path = config(tmp_path / "bound", merged(SOLVED, secure))
    with mock.patch.object(checkpoint, "save", dies(checkpoint.save, 2)), pytest.raises(Died):
        run(path)
    result = run(path, "--resume", code=3)
    assert result["status"] == "budget_exhausted" and result["rounds"] < 3, "rounds pay for what was lost"
    assert len(statistics_in(result["folder"])) == 4 and result["epsilon"]["server"]["epsilon"] <= 3.0
    dear = {"private_statistics": {"epsilon_share": 0.9}}
    path = config(tmp_path / "dear", merged(merged(SOLVED, secure), dear))
    with mock.patch.object(checkpoint, "save", dies(checkpoint.save, 2)), pytest.raises(Died):
        run(path)
    result = run(path, "--resume", code=3)
    assert result["rounds"] == 0 and "private statistics: one more would pass epsilon 3" in result["reason"]
    assert len(statistics_in(result["folder"])) == 2 and result["epsilon"]["server"]["epsilon"] <= 3.0


@pytest.mark.parametrize(
    ("call", "late", "of", "charged"),
    [
        (1, True, 60, [0, 0, 1]),  # silo 1 is lost when all have released: the other does so again
        (2, False, 150, [0, 1]),  # when records are to be scaled: by what both released
    ],
)
def test_a_silo_that_is_lost_with_statistics(
    tmp_path: Path, call: int, late: bool, of: int, charged: list[int]
) -> None:
    path = config(tmp_path, {"runtime": {"on_silo_failure": "continue"}})
    with losing({call: {1: "gone"}}, late=late):
        result = run(path)
    assert result["status"] == "done" and [loss["silo"] for loss in result["lost"]] == [1]
    assert sorted(charge.silo for charge in statistics_in(result["folder"])) == charged
    state = checkpoint.load(Path(result["folder"]) / "checkpoint")
    assert state is not None and state.server[SUMS][:2].tolist() == [of, 1 + (of > 60)]
    said = json.loads((Path(result["folder"]) / "ledger.json").read_text())
    spent = {silo["silo"]: silo["epsilon"] for silo in said["silos"]}
    assert spent[0] == pytest.approx(by_dp_accounting(*[5.0] * charged.count(0), *[2.0] * 6), rel=2e-3)


@pytest.mark.parametrize(("randomness", "same"), [("seeded", True), ("fresh", False)])
def test_statistics_are_the_seeds_or_of_no_seed(tmp_path: Path, randomness: str, same: bool) -> None:
    changes = {"privacy": {"randomness": randomness}}
    one, other = (run(config(tmp_path / name, changes))["private_statistics"]["columns"] for name in "ab")
    assert (one == other) is same


def test_what_an_owner_allows_covers_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text(f"folder: {tmp_path / 'owner'}\nepsilon: 4\ndelta: 1e-3\n")
    limits.chmod(0o600)
    monkeypatch.setenv("DPFL_LIMITS", str(limits))
    result = run(config(tmp_path, merged(SOLVED, {"privacy": {"randomness": "fresh"}})))
    released, held = (
        charges(result["folder"]),
        set(Ledger.open(tmp_path / "owner" / "data.lifetime.jsonl", append=False)),
    )
    assert released <= held and statistics_in(result["folder"])


def test_predictions_and_exports_scale_as_training_did(tmp_path: Path, whole: dict[str, Any]) -> None:
    pooled = whole["measures"]["pooled"]["model"]["accuracy"]
    folder, right, count = Path(whole["folder"]), 0, 0
    base = folder.parents[2]
    for name in ("c", "d"):
        done = dpfl("predict", folder, base / f"{name}.csv", "--json")
        assert done.code == 0, done.err
        said = {one["line"] - 2: one["predicted"] for one in done.json["predictions"]}
        right += sum(said[row] == label for row, label in enumerate(FRAMES[name]["ill"]))
        count += len(said)
    assert right / count == pytest.approx(pooled)
    fresh = run(config(tmp_path, {"privacy": {"randomness": "fresh"}}))
    folder, told = Path(fresh["folder"]), fresh["private_statistics"]["columns"]["age"]
    export(folder, tmp_path / "model")  # which compares what it wrote with the predictions
    program = torch.export.load(tmp_path / "model" / "model.pt2").module()
    weights = load_file(folder / "model.safetensors")
    x = torch.zeros(1, 4)  # age 60, no lab value is missing, female
    x[0, 2] = 1.0  # now it is
    z = torch.tensor([[(60 - told["mean"]) / told["std"], 0.0, 1.0, 0.0]])
    (weight,) = (value for value in weights.values() if value.dim() == 2)
    (bias,) = (value for value in weights.values() if value.dim() == 1)
    torch.testing.assert_close(program(x), z @ weight.T + bias, rtol=1e-4, atol=1e-5)


def test_persons_and_poisson_batches_and_fresh_noise(tmp_path: Path) -> None:
    persons = {
        "data": {"schema": {"person": "id"}},
        "privacy": {"unit": "person", "max_records_per_person": 2, "shared_persons": "refuse", "randomness": "fresh"},
    }
    result = run(config(tmp_path / "persons", persons))
    assert {charge.release.unit for charge in statistics_in(result["folder"])} == {"person"}
    removed = {"privacy": {"sampler": "poisson", "record_rate": 0.2}}
    result = run(config(tmp_path / "removed", removed))
    assert {charge.release.neighbouring for charge in statistics_in(result["folder"])} == {"add_or_remove"}


def test_scores_are_of_other_records_than_statistics(tmp_path: Path) -> None:
    scores = {"private_evaluation": {"share": 0.2, "noise_multiplier": 4.0}}
    result = run(config(tmp_path, scores))
    shares = {charge.kind: charge.share for charge in charges(result["folder"])}
    assert shares["statistics"] == shares["round"] == (0.0, 0.8) and shares["score"] == (0.8, 1.0)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"private_statistics": None}, ("data.schema.columns.age.scale: mean", "Set private_statistics")),
        (
            {
                "private_statistics": {"outcome": False},
                "data": {
                    "schema": {
                        "columns": {"age": {"scale": None}, "lab": {"scale": None}, "sex": {"missing": "category"}}
                    }
                },
            },
            ("private_statistics: no column asks for any",),
        ),
        (
            {"private_statistics": {"noise_multiplier": None}},
            ("private_statistics.noise_multiplier is missing", "epsilon_share"),
        ),
        (
            {"privacy": {"noise_multiplier": None, "epsilon": 0.5}},
            ("private_statistics.noise_multiplier=5", "over privacy.epsilon=0.5"),
        ),
        (
            {"data": {"schema": {"columns": {"age": {"missing": "most_frequent"}}}}},
            ("columns.age", "missing: most_frequent is for type: category"),
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], parts: tuple[str, ...]
) -> None:
    one_message(dpfl("run", config(tmp_path, changes)), *parts)
    assert not (tmp_path / "runs").exists()
