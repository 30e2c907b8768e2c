"""Model, metrics, ledger and checkpoint of a run on MPI ranks are those of the run in one process, to the bit."""

from __future__ import annotations

import copy
import csv
import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpfl_plugin.data.base import NOT_PUBLIC
from dpfl_plugin.experiments.reports.runs import read
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.measurements import join_lines, join_result
from dpfl_plugin.runs.statement import HOLDERS
from tests.cli.command import charges, dpfl, metrics, run, write
from tests.cli.test_resume import crash
from tests.mpi.launch import BOTH, FOUND, mpirun, needs_mpi
from tests.runs.test_persons import tables

pytestmark = needs_mpi

SILO = {"unit": "silo", "sampler": "full", "record_rate": None, "noise_multiplier": 20.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "scaffold": {"silo_rate": 0.6, "runtime": {"stack": 2}, "evaluation": {"dissimilarity": True}},
    "warm": {"algorithm": {"name": "scaffold_warm", "option": "I", "server_optimizer": "adam", "server_lr": 0.1}},
    "fedavg": {"algorithm": {"name": "fedavg", "average": "tail"}, "silo_weights": "records", "runtime": {"stack": 3}},
    "solved": {"privacy": {"noise_multiplier": None, "epsilon": 2.0}},
    "budget": {"rounds": None, "privacy": {"epsilon": 2.0}},
    "scaffnew": {"algorithm": {"name": "scaffnew", "local_steps": None, "p": 0.4}},
    "adaptive": {"privacy": {"clip": "adaptive", "clip_norm": 0.5}},
    "layers": {"model": {"name": "mlp", "hidden": [6]}, "privacy": {"clip": "per_layer"}, "engine": "vmap"},
    "silo": {
        "algorithm": {"name": "fedavg", "server_optimizer": "fedexp", "average": "ema"},
        "privacy": SILO,
        "runtime": {"stack": 3},
    },
    "cyclic": {"algorithm": {"local_steps": 3}, "privacy": {"sampler": "cyclic", "record_rate": 0.25}},
    "poisson": {"privacy": {"sampler": "poisson"}, "runtime": {"dtype": "float64"}},
    "localized": {
        "algorithm": {"name": "localized_mb_sgd", "phase_rounds": [3, 2], "lr": 0.1, "regularisation": 0.5},
        "rounds": 5,
    },
    "standardised": {"data": {"preprocess": ["standardise", {"name": "pca", "dims": 3}]}},
    "files": {
        "data": {"dataset": {"name": "csv", "files": "silo-*.csv"}, "num_silos": None, "partition": "natural"},
        "engine": "auto",
    },
    "statistics": {
        "data": {
            "dataset": {"name": "table", "files": "silo-*.csv"},
            "num_silos": None,
            "partition": "natural",
            "schema": {
                "label": {"column": "label", "classes": ["no", "yes"]},
                "columns": {
                    "a": {"type": "number", "range": [-3, 3], "scale": "mean"},
                    "b": {"type": "number", "range": [-9, 9], "scale": "quantiles"},
                },
            },
        },
        "private_statistics": {"noise_multiplier": 3.0},
        "engine": "auto",
    },
    "stopped and own models": {
        "rounds": 8,
        "silo_rate": 0.6,
        "early_stopping": {"share": 0.25, "every": 2, "patience": 1, "min_gain": 0.99, "noise_multiplier": 2.0},
        "personalise": {"local_steps": 2, "local_lr": 0.1},
    },
    "fresh": {"privacy": {"randomness": "fresh"}, "rounds": 2},
    "settings of single silos": {
        "silos": {0: {"noise_multiplier": 9.0}, 5: {"clip_norm": 0.5}},
        "silo_weights": "noise",
        "algorithm": {"name": "mr_mtl", "mean_weight": 0.5},
        "rounds": 3,
    },
    "persons and scores": {
        "data": {
            "dataset": {"name": "csv", "files": "h*.csv", "person_column": "patient", "classes": ["no", "yes"]},
            "num_silos": None,
            "partition": "natural",
            "preprocess": [{"name": "backbone", "cache": "features"}],
        },
        "privacy": {"unit": "person", "max_records_per_person": 2, "shared_persons": "per_silo"},
        "private_evaluation": {"share": 0.2, "every": 2, "noise_multiplier": 3.0},
        "rounds": 4,
    },
}
# Of these, not all is the same.
APART: dict[str, dict[str, Any]] = {
    "hidden": {"evaluation": {"reveal": "experimenter"}, "personalise": {"local_steps": 2, "local_lr": 0.1}},
    "lockstep": {
        "engine": "closed_form",
        "runtime": {"lockstep": True, "dtype": "float64"},
    },
}
BACKBONE = "from torch import nn\ndef make(shape):\n    return nn.Flatten()\n"
SOME = ("scaffold", "adaptive", "silo", "files")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("same")
    rng = np.random.default_rng(0)
    for silo in range(6):
        rows = [f"{rng.normal()},{rng.normal()},{'no' if rng.random() < 0.4 else 'yes'}" for _ in range(20 + silo)]
        (folder / f"silo-{silo}.csv").write_text("\n".join(["a,b,label", *rows]))
    tables(folder)
    # A name of its own: a process that comes back to these tests makes them anew, and imports a name once.
    made, variants = f"features_{folder.name}", copy.deepcopy(VARIANTS)
    (folder / f"{made}.py").write_text(BACKBONE)
    variants["persons and scores"]["data"]["preprocess"][0]["factory"] = f"{made}:make"
    some = {label: VARIANTS[label] for label in SOME}
    # Rank 0 has measurements only if it may.
    shown = {"data": {"num_silos": 7}, "evaluation": {"reveal": "server"}}
    write(folder, {**shown, "variants": some}, "some.yaml")
    return write(folder, {**shown, "variants": variants | APART})


@pytest.fixture(scope="module")
def here(config: Path) -> dict[str, Any]:
    done = dpfl("run", config, "--out", config.parent / "here", "--json")
    assert done.code in (0, 3), done.err
    return done.json


def states(result: dict[str, Any]) -> dict[str, bytes]:
    """What the last checkpoint holds."""
    found = load_file(Path(result["folder"]) / "checkpoint" / "state.safetensors")
    return {key: value.tobytes() for key, value in found.items()}


def compare(one: dict[str, Any], other: dict[str, Any], label: str) -> None:
    assert one["model_sha256"] == other["model_sha256"], label
    for key in ("status", "reason", "rounds", "epsilon", "noise_multiplier", "bytes_up", "bytes_down"):
        assert one[key] == other[key], (label, key)
    # What one process says of the records stays with the silo ranks.
    assert [text for text in one["notes"] if NOT_PUBLIC not in text] == other["notes"], label
    assert metrics(one) == metrics(other), label
    assert states(one) == states(other), label
    for key in ("silos", "early_stopping", "private_evaluation"):
        assert one.get(key) == other.get(key), (label, key)
    for name in ("ledger.jsonl", "ledger.json"):
        assert stated(one, name) == stated(other, name), (label, name)
    assert of_silos(one) == of_silos(other), label


def stated(result: dict[str, Any], name: str) -> Any:
    """A file as it is; of a statement, from which privacy.md is made, all but who held the records."""
    text = (Path(result["folder"]) / name).read_text()
    if name == "ledger.jsonl":
        return text
    said = json.loads(text)
    held = HOLDERS.get(said.pop("held_by"), ())
    return {**said, "caveats": [one for one in said["caveats"] if one not in held]}


def of_silos(result: dict[str, Any]) -> list[dict[str, str]]:
    """The rows of silos.csv without silos' names, which rank 0 is not told."""
    with (Path(result["folder"]) / "silos.csv").open(newline="") as file:
        return [{key: value for key, value in row.items() if key != "name"} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def ranks(config: Path) -> tuple[dict[str, Any], str]:
    """All of it at five ranks, of which one job is made: what rank 0 has, and what was said."""
    code, out, err = mpirun(5, "run", config, "--out", config.parent / "ranks-5", "--json")
    assert code in (0, 3), err
    return json.loads(out), err


def test_ranks_give_the_bits_of_one_process(here: dict[str, Any], ranks: tuple[dict[str, Any], str]) -> None:
    there, _ = ranks
    assert tuple(there) == (*VARIANTS, *APART)
    assert not any(result["silo_names"] for result in there.values()), "rank 0 is told no name"
    for label in VARIANTS:
        if label == "fresh":  # noise of its own
            assert there[label]["model_sha256"] != here[label]["model_sha256"]
            assert there[label]["epsilon"] == here[label]["epsilon"]
        else:
            compare(here[label], there[label], label)


@pytest.mark.parametrize("size", [2, 9])  # the last is more than one for each silo
def test_any_number_of_ranks_gives_them(config: Path, here: dict[str, Any], size: int) -> None:
    path, out = config.with_name("some.yaml"), config.parent / f"ranks-{size}"
    code, said, err = mpirun(size, "run", path, "--out", out, "--json")
    assert code == 0, err
    there = json.loads(said)
    assert tuple(there) == SOME
    for label in SOME:
        compare(here[label], there[label], label)


@pytest.mark.skipif("openmpi" not in FOUND, reason="no Open MPI, which alone has ULFM")
def test_ranks_that_may_outlive_each_other_give_the_bits_of_one_process(config: Path, here: dict[str, Any]) -> None:
    lasting = ("--set=runtime.on_silo_failure=continue", "--out", config.parent / "lasting", "--json")
    code, out, err = mpirun(4, "run", config.with_name("some.yaml"), *lasting, mpi="openmpi", ulfm=True)
    assert code == 0, err
    for label, there in json.loads(out).items():
        compare(here[label], there, label)


@pytest.mark.parametrize("mpi", BOTH)
def test_a_run_that_crashed_in_one_process_goes_on_at_ranks(tmp_path: Path, mpi: str) -> None:
    """The round that was released but lost is released again, to the same bits, and charged once."""
    changes = {"data": {"num_silos": 7}, "checkpoint": {"every": 2}, "evaluation": {"reveal": "server"}}
    variants: dict[str, Any] = {"variants": {"cut": {}, "sum": {"runtime": {"aggregation": "reduce"}}}}
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    result = run(write(tmp_path / "whole", changes))
    config = crash(write(tmp_path / "cut", changes | variants), 4)  # in the first one
    code, out, err = mpirun(3, "run", config, "--out", config.parent / "runs", "--json", "--resume", mpi=mpi)
    assert code == 0 and "resumed after round 2" in err, err
    there = json.loads(out)
    compare(result, there["cut"], mpi)
    assert there["sum"]["epsilon"] == result["epsilon"] and there["sum"]["rounds"] == result["rounds"]


def test_what_one_process_has_finished_ranks_show(tmp_path: Path) -> None:
    config = write(tmp_path, {"data": {"num_silos": 7}, "evaluation": {"reveal": "server"}})
    result = run(config)
    code, out, err = mpirun(2, "run", config, "--out", tmp_path / "runs", "--json")
    assert code == 0 and json.loads(out)["model_sha256"] == result["model_sha256"]
    assert "finished before, not run again" in err


def test_what_silo_ranks_measure_is_the_same_and_stays_with_them(
    here: dict[str, Any], ranks: tuple[dict[str, Any], str]
) -> None:
    one, other = here["hidden"], ranks[0]["hidden"]
    assert other["model_sha256"] == one["model_sha256"] and other["epsilon"] == one["epsilon"]
    folder = RunFolder(Path(other["folder"]))
    assert {line["test_accuracy"] for line in folder.read_metrics()} == {None} and other["silos"] is None
    assert other["test_accuracy"]["last"] is None and not folder.silos.exists() and not folder.curves.exists()
    lines = join_lines(folder.read_metrics(), folder.silo_ranks)
    assert metrics(one) == metrics(other) and lines[-1]["test_accuracy"] is not None
    joined = join_result(other, lines, folder.silo_ranks)
    assert all(joined[key] == one[key] for key in ("silos", "test_accuracy", "train_loss"))
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder.silo_ranks, *folder.silo_ranks.iterdir())] == [
        0o700,
        *[0o600] * 5,  # the key, and four ranks' measurements
    ]
    assert read(folder.path).numbers == read(Path(one["folder"])).numbers, "dpfl report joins them"
    told = [line for line in ranks[1].splitlines() if line.startswith("[hidden] ")]
    assert any("round 6/6" in line for line in told) and "accuracy" not in str(told), told


def test_in_lockstep_ranks_give_the_model_of_one_process_up_to_rounding(
    here: dict[str, Any], ranks: tuple[dict[str, Any], str]
) -> None:
    """Stacks differ, and sums round by them; batches, noise and charges do not."""
    found = (here["lockstep"], ranks[0]["lockstep"])
    models = [load_file(Path(result["folder"]) / "model.safetensors") for result in found]
    for name, value in models[0].items():
        assert np.allclose(value, models[1][name], rtol=1e-9, atol=1e-12)
    released = [{replace(charge, noise_id="?") for charge in charges(one["folder"])} for one in found]
    assert released[0] == released[1] and found[0]["epsilon"] == found[1]["epsilon"]
