"""`dpfl run`: what a run leaves behind, and what its result depends on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from dpfl_plugin.config.load import load, run_id
from dpfl_plugin.runs.result import model_sha256
from tests.cli.command import charges, dpfl, metrics, one_message, run, write

FILES = {
    "config.yaml",
    "metrics.jsonl",
    "ledger.jsonl",
    "ledger.json",
    "privacy.md",
    "details.json",
    "silos.csv",
    "silos",
    "model.safetensors",
    "checkpoint",
    "result.json",
    "environment.json",
    "log.txt",
    "curves.png",
}
FIELDS = {
    *(
        "schema",
        "status",
        "reason",
        "cause",
        "name",
        "id",
        "algorithm",
        "seed",
        "randomness",
        "code",
        "rounds",
        "num_silos",
        "num_train_records",
        "outcome",
        "measures",
        "positive_class",
    ),
    *(
        "cause",
        "num_test_records",
        "silos",
        "silo_names",
        "dearest_silo",
        "earlier_runs",
        "lost",
        "early_stopping",
        "signal_to_noise",
        "inputs",
        "warnings",
        "test_accuracy",
        "train_loss",
        "noise_multiplier",
        "epsilon",
        "not_covered",
        "seconds",
        "bytes_up",
        "bytes_down",
        "engine",
        "engine_reason",
    ),
    *("model_sha256", "notes", "folder", "finished"),
}
POISSON = {"privacy": {"sampler": "poisson", "noise_multiplier": 8.0}}
SILO = {
    "algorithm": {"name": "fedavg"},
    "privacy": {"unit": "silo", "sampler": "full", "record_rate": None, "noise_multiplier": 20.0},
}


def test_a_run_leaves_a_complete_folder(tmp_path: Path, pictures: None) -> None:
    result = run(write(tmp_path))
    folder = Path(result["folder"])
    assert {path.name for path in folder.iterdir() if path.name != ".lock"} == FILES
    assert json.loads((folder / "result.json").read_text()) == result
    assert set(result) == FIELDS and (result["schema"], result["status"], result["rounds"]) == (1, "done", 6)
    named = load_file(folder / "model.safetensors")
    assert set(named) == {"1.weight", "1.bias"}  # the model's own names: it can be loaded into one
    assert model_sha256(torch.cat([named[n].flatten() for n in ("1.weight", "1.bias")])) == result["model_sha256"]
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert [line["round"] for line in metrics(result)] == [1, 2, 3, 4, 5, 6]
    assert len(charges(folder)) == 6 * 4
    statement = json.loads((folder / "ledger.json").read_text())
    assert statement["views"] == result["epsilon"] and statement["num_charges"] == 24
    assert [path.name for path in (folder / "checkpoint").iterdir()] == ["state.safetensors"]
    again = load(folder / "config.yaml").variants[0].config
    assert run_id(again) == result["id"] == folder.name


def test_a_finished_run_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(write(tmp_path))
    monkeypatch.setattr("dpfl_plugin.runs.prepare.build", lambda *args: pytest.fail("it was built again"))
    assert run(tmp_path / "config.yaml") == first == run(tmp_path / "config.yaml", "--resume")


def test_a_damaged_ledger_of_a_finished_run_is_noticed(tmp_path: Path) -> None:
    folder = Path(run(write(tmp_path, {"rounds": 2}))["folder"])
    data = bytearray((folder / "ledger.jsonl").read_bytes())
    data[-40] ^= 1
    (folder / "ledger.jsonl").write_bytes(bytes(data))
    done = dpfl("run", tmp_path / "config.yaml", "--out", tmp_path / "runs")
    assert done.code in (1, 2) and "ledger.jsonl" in done.err and "Restore" in done.err and "Traceback" not in done.err


def test_a_finished_folder_may_be_moved(tmp_path: Path) -> None:
    first = run(write(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").rename(tmp_path / "elsewhere" / "runs")
    (tmp_path / "config.yaml").rename(tmp_path / "elsewhere" / "config.yaml")
    second = run(tmp_path / "elsewhere" / "config.yaml")
    assert second == {**first, "folder": str(tmp_path / "elsewhere" / "runs" / "run" / first["id"])}


def test_people_get_a_table_on_stdout_and_progress_on_stderr(tmp_path: Path) -> None:
    done = dpfl("run", write(tmp_path), "--out", tmp_path)
    assert done.code == 0
    assert "epsilon" in done.out and "replace-one" in done.out
    assert "round 6/6" in done.err and "round 6/6" not in done.out


SAME = [
    {"out": "elsewhere"},
    {"description": "other words"},
    {"checkpoint": {"every": 1, "seconds": 7}},
    {"data": {"folder": "/data"}},
    {"data": {"partition": {"name": "iid"}}},  # the default, in words
    {"runtime": {"stack": 3}},
]
OTHER = [
    {"seed": 4},
    {"rounds": 7},
    {"algorithm": {"local_lr": 0.4}},
    {"algorithm": {"name": "fedavg"}},
    {"privacy": {"clip_norm": 2.0}},
    {"privacy": {"delta": 1e-6}},
    {"privacy": {"epsilon": 100}},
    {"silo_rate": 0.5},
    {"l2": 0.1},
    {"runtime": {"dtype": "float64"}},
    {"runtime": {"lockstep": True}},
    {"runtime": {"lockstep": True, "stack": 3}},
    {"runtime": {"device": "cuda"}},
    {"runtime": {"device": "cuda", "graphs": True}},
    {"data": {"dataset": {"alpha": 1.0}}},
    {"data": {"partition": "natural"}},
    {"model": {"name": "softmax", "bias": False}},
]


def test_the_id_depends_on_what_changes_the_result(tmp_path: Path) -> None:
    def identity(changes: dict[str, Any]) -> str:
        return run_id(load(write(tmp_path, changes)).variants[0].config)

    base = identity({})
    assert {identity(changes) for changes in SAME} == {base}
    others = [identity(changes) for changes in OTHER]
    assert len({base, *others}) == 1 + len(others)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        POISSON,
        SILO,
        {"silo_rate": 0.5, "silo_weights": "records"},
        {"algorithm": {"name": "scaffold_warm", "option": "I"}, "silo_rate": 0.5},
        {"model": {"name": "mlp", "hidden": [3]}, "runtime": {"dtype": "float64"}},
        {"model": {"name": "mlp", "hidden": [3]}, "engine": "bookkeeping"},
    ],
    ids=["scaffold", "poisson", "silo", "weights", "warm", "mlp", "bookkeeping"],
)
def test_results_do_not_depend_on_the_stack(tmp_path: Path, changes: dict[str, Any]) -> None:
    runs = []
    for stack in (1, 2, 5):
        folder = tmp_path / str(stack)
        folder.mkdir()
        runs.append(run(write(folder, {**changes, "runtime": {**changes.get("runtime", {}), "stack": stack}})))
    assert len({result["model_sha256"] for result in runs}) == 1
    assert metrics(runs[0]) == metrics(runs[1]) == metrics(runs[2])
    assert charges(runs[0]["folder"]) == charges(runs[1]["folder"]) == charges(runs[2]["folder"])


def test_kinds_of_runs(tmp_path: Path) -> None:
    plain = run(write(tmp_path))
    double = run(tmp_path / "config.yaml", "--set", "runtime.dtype=float64")
    assert double["model_sha256"] != plain["model_sha256"]
    assert double["test_accuracy"]["last"] == pytest.approx(plain["test_accuracy"]["last"], abs=0.5)
    mlp = run(tmp_path / "config.yaml", "--set", "model={name: mlp, hidden: [3]}")
    assert (plain["engine"], mlp["engine"]) == ("closed_form", "dense")
    poisson = run(write(tmp_path, POISSON))
    assert poisson["epsilon"]["server"]["neighbouring"] == "add_or_remove"
    silo = run(write(tmp_path, SILO))
    assert silo["epsilon"]["server"]["unit"] == "silo" and len(charges(silo["folder"])) == 24
    assert {charge.count for charge in charges(silo["folder"])} == {1}


def test_without_noise_there_is_no_epsilon(tmp_path: Path) -> None:
    result = run(write(tmp_path, {"privacy": {"noise_multiplier": 0, "clip_norm": float("inf")}}))
    assert result["epsilon"]["server"]["epsilon"] is result["epsilon"]["third_party"]["epsilon"] is None
    assert "none" in json.loads((Path(result["folder"]) / "ledger.json").read_text())["guarantee"]


HALF_RELEASED = """
from dpfl_plugin.algorithms.scaffold import Scaffold

class Half(Scaffold):
    def local_update(self, down, silos, oracle, plan):
        up, new = super().local_update(down, silos, oracle, plan)
        return {**up, "model": oracle.release(up["model"])}, new
"""


@pytest.mark.parametrize("algorithm", [{"name": "scaffold"}, {"name": None, "module": "half_released:Half"}])
def test_an_algorithm_that_sends_unreleased_vectors_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: dict[str, Any]
) -> None:
    (tmp_path / "half_released.py").write_text(HALF_RELEASED)
    monkeypatch.syspath_prepend(tmp_path)
    path = write(tmp_path, {**SILO, "algorithm": algorithm})
    one_message(dpfl("run", path, "--out", tmp_path / "runs"), "privacy.unit='silo'", "fedavg")
    assert not (tmp_path / "runs").exists()


def test_warm_up_with_sampled_silos(tmp_path: Path) -> None:
    result = run(write(tmp_path, {"rounds": 12, "algorithm": {"name": "scaffold_warm"}, "silo_rate": 0.5}))
    phases = [line["phase"] for line in metrics(result)]
    warm = phases.index("train")
    assert 2 <= warm <= 8 and set(phases[:warm]) == {"warm-up"} and set(phases[warm:]) == {"train"}
    by_round: dict[int, set[int]] = {}
    for charge in charges(result["folder"]):
        by_round.setdefault(charge.round, set()).add(charge.silo)
    assert all(len(silos) == 2 for silos in by_round.values())
    assert set.union(*(by_round[round] for round in range(warm))) == {0, 1, 2, 3}


# Budgets

BUDGET = {"privacy": {"epsilon": 2.0}}
VIEWS = ["server", "third_party"]


def spent_by(config: Path, rounds: int, view: str, accountant: str = "PLD") -> float:
    """Epsilon ahead of time of so many rounds without a budget; the server's for a silo in all of them."""
    done = dpfl("account", config, "--json", "--set", f"rounds={rounds}", "--set", "privacy.epsilon=null")
    name = {"server": "server, worst case", "third_party": "third party"}[view]
    (row,) = (r for r in done.json if (r["view"], r["accountant"]) == (name, accountant))
    return float(row["epsilon"])


@pytest.mark.parametrize(("rounds", "code", "status"), [(None, 0, "done"), (100, 3, "budget_exhausted")])
def test_a_budget_ends_the_run_before_it_is_passed(tmp_path: Path, rounds: int | None, code: int, status: str) -> None:
    path = write(tmp_path, {**BUDGET, "rounds": rounds})
    result = run(path, code=code)
    assert result["status"] == status and "one more would pass epsilon 2" in result["reason"]
    ran = result["rounds"]
    assert 2 <= ran < 100 and result["epsilon"]["server"]["epsilon"] <= 2.0
    assert spent_by(path, ran, "server") == result["epsilon"]["server"]["epsilon"]
    assert spent_by(path, ran + 1, "server") > 2.0
    assert {charge.round for charge in charges(result["folder"])} == set(range(ran))
    assert metrics(result)[-1]["round"] == ran
    assert run(path, code=code) == result  # asked again, the same exit code


def test_a_budget_for_each_silo_when_they_are_sampled(tmp_path: Path) -> None:
    """Stopped before the round that would take one of its participants beyond the budget, whoever that is."""
    path = write(tmp_path, {**BUDGET, "rounds": None, "silo_rate": 0.5})
    result = run(path)
    assert result["epsilon"]["server"]["epsilon"] <= 2.0 < result["epsilon"]["server"]["worst_case_epsilon"]
    more = run(write(tmp_path, {"rounds": result["rounds"] + 1, "silo_rate": 0.5}))
    assert more["epsilon"]["server"]["epsilon"] > 2.0
    counts = [silo["rounds"] for silo in json.loads((Path(more["folder"]) / "ledger.json").read_text())["silos"]]
    assert sum(counts) == 2 * (result["rounds"] + 1)


def test_a_budget_in_a_third_partys_view(tmp_path: Path) -> None:
    path = write(
        tmp_path, {"privacy": {"epsilon": 2.0, "budget_view": "third_party"}, "silo_rate": 0.5, "rounds": None}
    )
    result = run(path)
    found = result["epsilon"]["third_party"]["epsilon"]
    assert found <= 2.0 and found == spent_by(path, result["rounds"], "third_party")
    assert spent_by(path, result["rounds"] + 1, "third_party") > 2.0
    assert found < 0.9 * spent_by(path, result["rounds"], "server")  # amplified by the draw of silos


def test_a_budget_too_small_for_one_round_writes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, {"privacy": {"epsilon": 1e-3}, "rounds": 6})
    done = dpfl("run", path, "--out", tmp_path / "runs")
    mend = "Leave out privacy.noise_multiplier to have it solved for 6 rounds"
    one_message(done, "privacy.epsilon=0.001 does not cover one round, which costs ", mend)
    costs = float(done.err.partition("which costs ")[2].split()[0].rstrip("."))
    assert costs == pytest.approx(spent_by(path, 1, "server"), rel=1e-3)
    assert not (tmp_path / "runs").exists()


# Several runs of a file


def test_variants(tmp_path: Path) -> None:
    changes = {"variants": {"a": {}, "b": {"algorithm": {"name": "fedavg"}}}, "compare": [["a", "b"]]}
    path = write(tmp_path, changes)
    done = dpfl("run", path, "--out", tmp_path / "runs", "--json")
    assert done.code == 0
    assert set(done.json) == {"a", "b"} and done.json["a"]["model_sha256"] != done.json["b"]["model_sha256"]
    shown = dpfl("run", path, "--out", tmp_path / "runs")
    assert "a against b" in shown.out and "standard errors" in shown.out
    changes["variants"]["b"] = {"data": {"dataset": {"label_noise": 0.5}}}
    other = dpfl("run", write(tmp_path, changes), "--out", tmp_path / "runs")
    assert "on other test records" in other.out and "standard error" not in other.out


@pytest.mark.parametrize(("secure", "randomness"), [(True, "fresh"), (False, "seeded")])
def test_keys_of_earlier_versions_are_read_with_a_note_each(tmp_path: Path, secure: bool, randomness: str) -> None:
    changes = {"seed": None, "rounds": 1, "privacy": {"secure": secure}, "variants": {"a": {}, "b": {"l2": 0.1}}}
    changes["runtime"] = {"noise": "device"}
    done = dpfl("run", write(tmp_path, changes), "--out", tmp_path / "runs", "--json")
    assert done.code == 0 and done.json["a"]["randomness"] == done.json["b"]["randomness"] == randomness
    note = f"note: privacy.secure: {str(secure).lower()} is read as privacy.randomness: {randomness}.\n"
    assert done.err.count(note) == done.err.count("note: privacy.secure") == 1
    note = "note: runtime.noise: device is no longer needed: noise is drawn where the model is. Remove it.\n"
    assert done.err.count(note) == done.err.count("note: runtime.noise") == 1
    assert secure or done.json["a"]["seed"] == 0


def test_variants_without_a_seed_share_one_that_is_drawn(tmp_path: Path) -> None:
    """Also one that begins later; another command draws another seed."""
    path = write(tmp_path, {"seed": None, "rounds": 2, "variants": {"a": {}, "b": {"algorithm": {"name": "fedavg"}}}})
    first, both = run(path, "--variant", "a"), run(path)
    assert first["randomness"] == "fresh" and first["seed"] == both["a"]["seed"] == both["b"]["seed"]
    apart = dpfl("run", path, "--out", tmp_path / "apart", "--json").json
    assert apart["a"]["seed"] == apart["b"]["seed"] != first["seed"]


def test_a_run_folder_tells_which_variant_it_is(tmp_path: Path) -> None:
    """Whatever goes on with it; and the id is that of the configuration, which others may write without variants."""
    path = write(tmp_path, {"variants": {"a": {}, "b, longer": {"rounds": 2}}})
    told = lambda result: json.loads((Path(result["folder"]) / "environment.json").read_text()).get("label")  # noqa: E731
    found = run(path)
    assert {label: told(result) for label, result in found.items()} == {"a": "a", "b, longer": "b, longer"}
    other = tmp_path / "other"
    other.mkdir()
    plain = run(write(other, {"rounds": 2}))
    assert plain["id"] == found["b, longer"]["id"] and told(plain) is None
    folder = Path(found["a"]["folder"])
    (folder / "result.json").unlink()
    done = dpfl("run", folder / "config.yaml", "--resume", "--json", "--out", tmp_path / "runs")
    again = done.json
    assert again["folder"] == found["a"]["folder"] and told(again) == "a"


def test_a_wrong_variant_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, {"variants": {"good": {}, "bad": {"algorithm": {"local_steps": 0}}}})
    done = dpfl("run", path, "--out", tmp_path / "runs")
    assert done.code == 2 and "(variant bad): algorithm.local_steps=0" in done.err


def test_a_null_option_is_kept_when_the_configuration_is_read_back(tmp_path: Path) -> None:
    """Null need not be a plugin's default, so config.yaml must not lose it."""
    config = load(write(tmp_path), ["algorithm.eta_0=null"]).variants[0].config
    result = run(tmp_path / "config.yaml", "--set", "algorithm.eta_0=null")
    saved = Path(result["folder"]) / "config.yaml"
    assert run_id(load(saved).variants[0].config) == result["id"] == run_id(config)
    assert yaml.safe_load(saved.read_text())["algorithm"]["eta_0"] is None


def test_a_delta_that_nobody_chose_is_told_of(tmp_path: Path) -> None:
    """Once, before the first round, with what it has to be small against; not where the file says it, nor without
    noise, where none means anything."""
    path = write(tmp_path)
    done = dpfl("run", path, "--out", tmp_path / "runs")
    assert done.err.count("delta is 1e-05, the default") == 1 and "delta well below 1/24." in done.err
    assert "the default" not in dpfl("run", path, "--out", tmp_path / "other", "--set", "privacy.delta=1e-5").err
    assert "delta is" not in dpfl("run", path, "--out", tmp_path / "quiet", "--set", "privacy.noise_multiplier=0").err
