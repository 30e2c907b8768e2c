"""`dpfl.load`, `dpfl.audit` and `dpfl.Ledger`: what `dpfl run`, `dpfl audit` and `dpfl account` do."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpfl_plugin as dpfl
from dpfl_plugin.errors import ConfigError, DataError, PluginError
from tests.cli.command import charges, run, write
from tests.cli.command import dpfl as command

VARIANTS = {"fedavg": {"algorithm": {"name": "fedavg"}}, "scaffold": {}}


def test_a_file_with_changed_keys_is_the_run_of_the_same_settings(tmp_path):
    path, out = write(tmp_path), str(tmp_path / "runs")
    found = dpfl.load(path).with_(seed=1, privacy={"delta": 1e-4}, algorithm={"local_steps": 3}, out=out).run()
    by_command = run(path, "--set", "seed=1", "--set", "privacy.delta=1e-4", "--set", "algorithm.local_steps=3")
    assert by_command["folder"] == str(found.folder)  # shown, not run again
    assert found.result["seed"] == 1 and found.delta == 1e-4 and found.config.algorithm.options["local_steps"] == 3


def test_variants_are_runs_beside_each_other(tmp_path):
    experiment = dpfl.load(write(tmp_path, {"variants": VARIANTS, "rounds": 2, "out": str(tmp_path / "runs")}))
    assert list(experiment.variants) == ["fedavg", "scaffold"]
    both = experiment.run()
    assert all(f"variant {name}: algorithm: {{name: {name}" in str(experiment) for name in VARIANTS)
    assert list(both) == ["fedavg", "scaffold"] and "fedavg" in repr(both) and len(both.rows) == 2
    alone = experiment.variants["scaffold"].run()
    assert alone.folder == both["scaffold"].folder
    with pytest.raises(ConfigError, match="several variants: choose one"):
        _ = experiment.config


def test_an_audit_finds_a_sound_run_consistent(tmp_path):
    report = dpfl.audit(write(tmp_path), canaries=40, rounds=3)
    assert report.consistent and report.canaries <= 40 and report.rounds == 3
    assert all(part in str(report) for part in ("found", "releases in the ledger / made", "CONSISTENT: "))
    assert repr(report) == str(report) and "CONSISTENT: " in report._repr_html_()


def test_a_ledger_comes_to_what_dpfl_account_says(tmp_path):
    shared = tmp_path / "shared.jsonl"
    path = write(tmp_path, {"rounds": 3})
    folders = [
        run(path, "--ledger", shared, "--set", f"seed={seed}", "--set", "privacy.randomness=fresh")["folder"]
        for seed in (1, 2)
    ]
    own, both = dpfl.Ledger.open(folders[0]), dpfl.Ledger.open(shared)
    assert set(own.charges) == charges(folders[0]) and len(both.charges) == 2 * len(own.charges)
    spent = {
        row["accountant"]: row["epsilon"]
        for row in command("account", folders[0], "--json").json
        if row["view"] == "server"
    }
    assert own.epsilon(1e-5) == spent["PLD"] == max(own.epsilons(1e-5).values()) and len(own.epsilons(1e-5)) == 4
    rows = command("account", shared, "--json").json["total at delta 1e-05"]
    assert both.epsilon(1e-5) == rows[0]["epsilon"] > own.epsilon(1e-5) and "2 runs" in repr(both)
    with pytest.raises(ConfigError, match="is shared by 2 runs"):
        both.epsilons(1e-5)


def test_what_is_wrong_is_named(tmp_path):
    path = write(tmp_path)
    for call, error, says in (
        (lambda: dpfl.load(tmp_path / "none.yaml"), ConfigError, "none.yaml: cannot be read"),
        (lambda: dpfl.load(path).with_(seeds=1), ConfigError, "seeds is not a known key.*did you mean 'seed'"),
        (
            lambda: dpfl.load(path).with_(algorithm=dpfl.algorithms.FedAvg(local_steps=1, local_lr=1)),
            ConfigError,
            "plain values",
        ),
        (lambda: dpfl.load(path, variant="a"), ConfigError, "has no variants"),
        (lambda: dpfl.Ledger.open(tmp_path), DataError, "there is no ledger"),
    ):
        with pytest.raises(error, match=says):
            call()


NET = "import torch\n\n\ndef net(shape, classes):\n    return torch.nn.Linear(shape[0], classes, bias={})\n"


def test_a_configuration_has_the_modules_of_its_own_folder_or_is_refused(tmp_path: Path) -> None:
    """Two of them in one process, each beside a module of the same name: the second never gets the first one's."""
    made, folders = {}, [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    for bias, name, folder in zip((True, False, False), ("nets", "nets", "nets_of_c"), folders, strict=True):
        folder.mkdir()
        (folder / f"{name}.py").write_text(NET.format(bias))
        model = {"name": None, "module": f"{name}:net"}
        made[folder.name] = dpfl.load(write(folder, {"rounds": 1, "model": model, "out": str(folder / "runs")}))
    assert len(list(made["a"].run().model.parameters())) == 2
    with pytest.raises(PluginError) as error:
        made["b"].run()
    assert str(folders[0] / "nets.py") in str(error.value) and str(folders[1] / "nets.py") in str(error.value)
    assert "Rename one" in str(error.value) and not (folders[1] / "runs").exists()
    assert len(list(made["c"].run().model.parameters())) == 1


def test_records_of_a_program_are_checked_planned_accounted_audited_and_run_as_a_file(tmp_path, monkeypatch, capsys):
    """The experiment of a federation gives the numbers of `dpfl.train`, which reads no file."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(120, 3))
    frame = pd.DataFrame(rows, columns=["a", "b", "c"]).assign(site=["x", "y"] * 60, label=(rows[:, 0] > 0).astype(int))
    federation = dpfl.Federation.from_frame(frame, silo="site", classes=[0, 1], test_fraction=0.25)
    given = {
        "algorithm": dpfl.algorithms.FedAvg(local_steps=2, local_lr=0.5),
        "privacy": dpfl.Privacy(epsilon=3, delta=1e-3),
    }
    mine = federation.experiment(**given, rounds=3, seed=3)
    run = dpfl.train(federation, **given, rounds=3, seed=3, out="trained", progress=False)
    assert "data: Federation(120 records" in str(mine) and "algorithm: {name: fedavg, local_steps: 2" in str(mine)
    assert mine.config.out == "runs"  # and not above the temporary folder of its file
    checked = dpfl.check(mine).run
    assert checked.num_records == (45, 45) and checked.noise_multiplier == run.result["noise_multiplier"]
    planned = dpfl.plan(mine)
    assert planned.run.value == run.result["noise_multiplier"] and "command" not in planned.to_dict()
    assert "with privacy.epsilon=3" in str(dpfl.plan(mine, epsilon=3))
    rows = {(row.view, row.accountant): row.epsilon for row in dpfl.account(mine).rows}
    assert rows["server, worst case", "PLD"] == pytest.approx(run.epsilon)
    assert dpfl.audit(mine, canaries=20, rounds=1).consistent
    again = mine.with_(seed=3).run(out="again", progress=False)
    assert again.result["model_sha256"] == run.result["model_sha256"] and again.folder.parts[0] == "again"
    monkeypatch.setattr("dpfl_plugin.api.runs.worse_than_baseline", lambda *_: "of no use: algorithm.local_lr=1")
    capsys.readouterr()
    assert mine.run(progress=False).folder.match("runs/*/*")
    assert "dpfl: warning: of no use: algorithm.local_lr=1\n" in capsys.readouterr().err
    folder = mine.path.parent
    del mine, again
    gc.collect()
    assert not folder.exists()
    with pytest.raises(ConfigError, match="roundz"):
        federation.experiment(**given, roundz=3)
