"""What is wrong with a configuration or with data is said in one message, before anything is written."""

from __future__ import annotations

import gzip
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dpfl_plugin.privacy.samplers import Poisson
from tests.cli.command import BASE, charges, dpfl, merged, one_message, write

BOMB = "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
FILES = {
    "": ["holds no mapping"],
    "[1, 2]": ["holds no mapping"],
    "a: [1": ["line 1, column 6"],
    "seed: 1\nrounds: 2\nseed: 1": ["line 3", "'seed' is given twice"],
    "data: {num_silos: 1, num_silos: 2}": ["'num_silos' is given twice"],
    "[1]: 2": ["line 1", "key"],
    "{a: 1}: 2": ["line 1", "key"],
    "\tseed: 1": ["line 1, column 1", "'seed: 1' is indented by a tab. Use spaces"],
    "seed: 1\nprivacy:\n    epsilon: 3\n  delta: 1e-5": ["line 4", "indentation of 'delta: 1e-5' does not fit"],
    "seed: 1\n  rounds: 2": ["line 2", "indentation of 'rounds: 2' does not fit"],
    "- seed: 1\nrounds: 2": ["line 2", "indentation of 'rounds: 2' does not fit"],
    "seed: 1 rounds: 2": ["line 1", "'seed: 1 rounds: 2' has a second colon"],
    "a: !!python/object:os.system x": ["line 1", "python/object"],
    "a: &b {c: *b}": ["line 1", "stands for what it is a part of"],
    BOMB: ["line 1", "aliases", "Write out"],
    "a: " + "[" * 9999: ["nested too deeply"],
    "privacy: {delta: !!float x}": ["does not fit its tag"],
    "rounds: 100000000000000000000000": ["line 1", "rounds=100000000000000000000000 is too large"],
    "rounds: 1" + "0" * 5000: ["rounds=1000", "5,001 digits"],
    "sweep: {slurm: {time: 12:00:00}}": ["line 1", "time=12:00:00", "43200", "'12:00:00'"],
    "privacy: {clip_norm: 1:30.5}": ["clip_norm=1:30.5", "90.5", "'1:30.5'"],
    "sweep: {slurm: {account: 010}}": ["account=010", "base 8", "'010'"],
    "seed: 08": ["seed=08", "base 8"],
    "seed: 99999999999999999999": ["seed=99999999999999999999"],
    "null: 1": ["None is not a known key"],
    "rounds: 3": ["algorithm is missing", "privacy is missing"],
    "name: 2024-99-99": ["algorithm is missing"],
}


@pytest.mark.parametrize(("text", "parts"), FILES.items(), ids=map(repr, FILES))
def test_files(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    one_message(dpfl("run", path, "--out", tmp_path / "runs"), str(path), *parts)
    assert not (tmp_path / "runs").exists()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    one_message(dpfl("run", tmp_path / "no.yaml"), "no.yaml", "No such file")
    one_message(dpfl("run", tmp_path), str(tmp_path), "directory")
    (tmp_path / "latin.yaml").write_bytes(b"description: \xe9")
    one_message(dpfl("run", tmp_path / "latin.yaml"), "latin.yaml", "UTF-8")
    (tmp_path / "zero.yaml").write_bytes(b"\0")
    one_message(dpfl("run", tmp_path / "zero.yaml"), "zero.yaml")


SETTINGS = {
    "rounds=1e23": ["rounds=1e+23"],
    # unknown keys
    "seeed=1": ["seeed", "did you mean 'seed'"],
    "privacy.record_rte=1": ["privacy.record_rte", "did you mean 'record_rate'"],
    "algorithm.local_stps=3": ["algorithm.local_stps", "did you mean 'local_steps'"],
    "data.dataset.num_feature=3": ["data.dataset.num_feature", "did you mean 'num_features'"],
    "model={name: mlp, hiden: [3]}": ["model.hiden", "did you mean 'hidden'"],
    "model.hidden=3": ["model", "exactly one of name"],
    "variants=5": ["variants must map labels to changes of this file"],
    # types
    "rounds=many": ["rounds='many'"],
    "rounds=2.5": ["rounds=2.5"],
    "privacy.randomness=secure": ["privacy.randomness='secure'"],
    "privacy=3": ["privacy=3", "a mapping"],
    "model=3": ["model=3", "a plugin's name, or a mapping"],
    "algorithm.local_steps=x": ["algorithm.local_steps='x'"],
    "data.preprocess=unit_norm": ["data.preprocess='unit_norm'", "list"],
    "runtime.dtype=float16": ["runtime.dtype='float16'", "float32"],
    "data.folder=3": ["data.folder=3"],
    # ranges
    "algorithm.local_steps=0": ["algorithm.local_steps=0", "at least 1"],
    "algorithm.local_lr=nan": ["algorithm.local_lr=nan"],
    "algorithm.local_lr=0": ["algorithm.local_lr=0"],
    "algorithm.server_lr=-1": ["algorithm.server_lr=-1"],
    "algorithm.eta_0=1": ["algorithm", "local_lr", "eta_0", "exactly one"],
    "privacy.clip_norm=nan": ["privacy.clip_norm='nan'"],
    "privacy.clip_norm=inf": ["privacy.clip_norm=inf", "finite clip_norm"],
    "privacy.epsilon=nan": ["privacy.epsilon"],
    "privacy.record_rate=0.01": ["silo 0", "privacy.record_rate=0.01", "is 0", "Use at least 0.04167"],
    "privacy={noise_multiplier: null}": ["privacy.epsilon is missing", "noise_multiplier"],
    "privacy={noise_multiplier: null, epsilon: 1e-9}": ["privacy.epsilon=1e-09", "out of reach", "fewer rounds"],
    "privacy={noise_multiplier: null, epsilon: 1, clip_norm: .inf}": ["privacy.clip_norm=inf", "finite clip_norm"],
    "max_participations=1.5": ["max_participations=1.5"],
    "privacy={batch_size: 25, record_rate: null}": ["silo 0", "privacy.batch_size=25", "24"],
    "silo_rate=0.2": ["silo_rate=0.2", "Use at least 0.25"],
    "data.test_fraction=0.99": ["silo 0", "test_fraction=0.99"],
    "rounds=null": ["rounds is missing", "privacy.epsilon"],
    "name=a/b": ["name='a/b'"],
    # plugins
    "algorithm.name=scafold": ["'scafold'", "did you mean 'scaffold'"],
    "algorithm.name=null": ["algorithm", "exactly one of name"],
    "model=softmx": ["'softmx'", "did you mean 'softmax'"],
    "data.dataset.name=synthtic": ["'synthtic'", "did you mean 'synthetic'"],
    "data.partition=dirichle": ["'dirichle'", "did you mean 'dirichlet'"],
    "data.partition=dirichlet": ["data.partition.alpha", "missing"],
    "data.partition={name: dirichlet, alpha: 1e-9}": ["data.partition.alpha=1e-09", "larger alpha"],
    "data.preprocess=[unit_nrm]": ["data.preprocess[0]", "did you mean 'unit_norm'"],
    "engine=vmpa": ["'vmpa'", "did you mean 'vmap'"],
    "privacy.accountant=pdl": ["'pdl'", "did you mean 'pld'"],
    "privacy.mechanism=gausian": ["'gausian'", "did you mean 'gaussian'"],
    "loss=crossentropy": ["loss='crossentropy'", "did you mean 'cross_entropy'"],
    "runtime.device=tpu": ["runtime.device='tpu'"],
    "runtime.memory_budget=lots": ["runtime.memory_budget: 'lots' must be a size, e.g. 8GB or 500 MiB"],
    "runtime.memory_budget=1kB": ["memory: this run needs", "runtime.memory_budget='1kB'", "Raise"],
    "runtime.precision=tf32": ["runtime.precision='tf32'", "CUDA"],
    "runtime={precision: bf16, dtype: float64}": ["runtime.precision='bf16'", "dtype: float32"],
    "runtime.precision=fp8": ["runtime.precision='fp8'"],
    # accountants that do not know what would be released
    "privacy.accountant=gaussian": ["Gaussian has no bound", "sampler=fixed", "Use pld"],
    "privacy.accountant=prv": ["PRV has no bound", "sampler=fixed", "Use pld"],
    "privacy={accountant: paper, sampler: poisson}": ["Paper has no bound", "sampler=poisson"],
    # that do not go together
    "data.test=own": ["data.test='own'", "split"],
    "privacy.neighbouring=add_or_remove": ["privacy.neighbouring='add_or_remove'", "replace_one"],
    "privacy.unit=user": ["privacy.unit='user'", "'record', 'person' or 'silo'"],
    "privacy={unit: silo}": ["privacy.unit='silo'", "fedavg"],
    "compare=[[a, b]]": ["compare"],
    # --set itself
    "rounds": ["--set 'rounds'", "key=value"],
    "=3": ["--set '=3'"],
    "a..b=3": ["--set 'a..b=3'"],
    "seed=[": ["--set 'seed=['", "not YAML"],
    # users' own code
    "algorithm={module: no_such_module:x}": ["no_such_module", "ModuleNotFoundError"],
    "algorithm={module: os.path}": ["algorithm", "package.module:name"],
    "model={module: broken:make}": ["broken:make", "ZeroDivisionError"],
    "model={module: mine:missing}": ["mine:missing", "AttributeError"],
    "model={module: mine:no_model}": ["mine:no_model", "int", "torch.nn.Module"],
    "model={module: mine:fails}": ["mine:fails", "RuntimeError: no luck"],
    "model={module: mine:batch_norm}": ["mine:batch_norm", "BatchNorm1d", "GroupNorm"],
    "model={module: mine:number}": ["mine:number", "not callable"],
    "data.dataset={module: mine:no_model}": ["mine:no_model", "not a dpfl_plugin.data.base.Dataset"],
    "data.dataset={module: mine:fails}": [
        "data.dataset: mine:fails failed",
        "RuntimeError: no luck",
        "mine.py, line 8",
    ],
    "data.partition={module: mine:fails}": ["data.partition: mine:fails failed: RuntimeError: no luck", "mine.py"],
    "algorithm={name: null, module: mine:fails}": ["algorithm: mine:fails failed: RuntimeError: no luck", "mine.py"],
    "privacy.mechanism={module: mine:fails}": ["mine:fails failed: RuntimeError: no luck", "mine.py, line 8"],
    "loss=mine:missing": ["mine:missing"],
    "loss=mine:scalar_loss": ["loss='mine:scalar_loss'", "one value for each record"],
    "loss=mine:fails": ["loss='mine:fails'", "RuntimeError: no luck"],
}

MINE = """
from torch import nn
from torch.nn import functional

number = 3

def no_model(*args): return 3
def fails(*args): raise RuntimeError("no luck")
def scalar_loss(outputs, labels): return functional.cross_entropy(outputs, labels)
def batch_norm(shape, classes): return nn.Sequential(nn.Linear(*shape, classes), nn.BatchNorm1d(classes))
"""


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mine", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_rounds_or_noise_must_be_given(tmp_path: Path) -> None:
    path = write(tmp_path, {"rounds": None, "privacy": {"noise_multiplier": None, "epsilon": 2.0}})
    one_message(dpfl("run", path, "--out", tmp_path / "runs"), "rounds is missing", "or privacy.noise_multiplier")


@pytest.mark.parametrize(("setting", "parts"), SETTINGS.items(), ids=list(SETTINGS))
def test_settings(tmp_path: Path, own_code: None, setting: str, parts: list[str]) -> None:
    done = dpfl("run", write(tmp_path), "--out", tmp_path / "runs", "--set", setting)
    one_message(done, *parts)
    assert not (tmp_path / "runs").exists()
    if not setting.startswith(("rounds", "=3", "a..b", "seed=[")):
        assert "config.yaml" in done.err


def test_an_accountant_that_does_not_know_drawn_rounds(tmp_path: Path) -> None:
    settings = ["--set", "privacy={accountant: prv, sampler: poisson}", "--set", "silo_rate=0.5"]
    done = dpfl("run", write(tmp_path), "--out", tmp_path / "runs", *settings)
    one_message(done, "PRV has no bound", "participation=0.5", "certain rounds only")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("privacy.delta=1", "privacy.delta=1"),
        ("privacy.delta=1.5", "privacy.delta=1.5"),
        ("privacy.accountant=pdl", "did you mean 'pld'"),
    ],
)
def test_account_refuses_what_run_refuses(tmp_path: Path, setting: str, part: str) -> None:
    one_message(dpfl("account", write(tmp_path), "--set", setting), part)


def test_a_delta_that_protects_nobody_is_remarked_on_ahead_too(tmp_path: Path) -> None:
    done = dpfl("account", write(tmp_path), "--set", "privacy.delta=0.05", "--json")
    assert done.code == 0 and "privacy.delta=0.05 is not below 1/24" in done.err and done.json
    assert "delta" not in dpfl("account", tmp_path / "config.yaml").err
    bare = dpfl("account", tmp_path / "config.yaml", "--set", "privacy={noise_multiplier: 0, delta: 0.05}")
    assert bare.code == 0 and "delta" not in bare.err  # nothing is claimed at any delta


def test_account_of_a_run_whose_ledger_is_damaged(tmp_path: Path) -> None:
    folder = Path(dpfl("run", write(tmp_path), "--out", tmp_path / "runs", "--json").json["folder"])
    ledger = folder / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    whole = b"".join(lines)
    for damage, line in (
        (whole.replace(b'"round":2', b'"round":1', 1), "line 10"),
        (b"".join(lines[:4] + lines[5:]), "line 5"),
        (b"".join([*lines[:6], b"\0" * len(lines[6]), *lines[7:]]), "line 7"),
    ):
        ledger.write_bytes(damage)
        one_message(dpfl("account", folder), "ledger.jsonl", line, "are intact and prove", "Restore", code=1)
        assert ledger.read_bytes() == damage
    torn = whole + b'{"count":3,"rel'  # of a round that never left: said, and left as it is
    ledger.write_bytes(torn)
    done = dpfl("account", folder)
    assert done.code == 0 and "was cut off before it was synced" in done.err and ledger.read_bytes() == torn
    ledger.write_bytes(whole[:-5])  # a line that the checkpoint knows of
    one_message(dpfl("account", folder), "its end is missing", code=1)


@pytest.mark.parametrize("engine", ["closed_form", "vmap"])
@pytest.mark.parametrize("sigma", [0.0, 4.0])
def test_an_empty_poisson_batch_releases_noise_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, sigma: float
) -> None:
    """Without noise the model stays where it began, to the bit; with it, it moves, and every silo is charged."""
    monkeypatch.setattr(Poisson, "draw", lambda self, n, rng: np.flatnonzero(rng.random(n) < 0))
    privacy = {"sampler": "poisson", "record_rate": 0.02, "noise_multiplier": sigma}
    config = write(tmp_path, {"privacy": privacy, "engine": engine, "algorithm": {"name": "fedavg"}})
    done = [dpfl("run", config, "--out", tmp_path / "runs", "--json", "--set", f"rounds={n}").json for n in (1, 6)]
    assert all(math.isfinite(result["train_loss"]["last"]) for result in done)
    assert (done[0]["model_sha256"] == done[1]["model_sha256"]) == (sigma == 0)
    assert len(charges(done[1]["folder"])) == 6 * 4


def test_batches_that_are_sometimes_empty(tmp_path: Path) -> None:
    """Of 24 records with probability 0.02 each, six batches of ten are empty; the ledger does not tell which."""
    privacy = {"sampler": "poisson", "record_rate": 0.02, "noise_multiplier": 8.0}
    result = dpfl("run", write(tmp_path, {"privacy": privacy}), "--out", tmp_path / "runs", "--json").json
    assert {charge.count for charge in charges(result["folder"])} == {2} and result["status"] == "done"


def test_an_engine_that_does_not_fit_the_model(tmp_path: Path) -> None:
    settings = ["--set", "model={name: mlp, hidden: [3]}", "--set", "engine=closed_form"]
    one_message(dpfl("run", write(tmp_path), *settings), "engine='closed_form'", "engine: auto")


VARIANTS = {
    "variants: 5": ["variants must map labels"],
    "variants: {}": ["variants must map labels"],
    "variants: {a: 5}": ["variants must map labels"],
    "variants: {a: {seeed: 1}}": ["(variant a)", "seeed", "did you mean 'seed'"],
    "compare: [[a, b]]": ["compare", "has none"],
    "variants: {a: {}, b: {}}\ncompare: [[a, c]]": ["compare=['a', 'c']", "a, b"],
    "variants: {a: {}, b: {}}\ncompare: [a, b]": ["compare='a'", "pair"],
    "variants: {a: {}, b: {}}\ncompare: [[a, b, a]]": ["pair"],
    "variants: {a: {}, b: {}}\ncompare: 3": ["compare=3", "pair"],
    "variants: {1: {}, '1': {}}": ["given twice"],
}


@pytest.mark.parametrize(("text", "parts"), VARIANTS.items(), ids=list(VARIANTS))
def test_variants(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text() + text)
    one_message(dpfl("run", path, "--out", tmp_path / "runs"), "config.yaml", *parts)
    assert not (tmp_path / "runs").exists()


# Data files

CSV = "a,b,label,site\n" + "".join(f"{i},{i * i},{i % 2},{i % 3}\n" for i in range(40))
TABLES = {
    "nan": (CSV.replace("\n5,", "\nnan,"), {}, ["records.csv, line 7", "'a'", "not a finite number"]),
    "inf": (CSV.replace("\n5,", "\ninf,"), {}, ["records.csv, line 7", "'a'", "not a finite number"]),
    "word": (CSV.replace("\n5,", "\nfive,"), {}, ["records.csv, line 7", "'five'", "not a number"]),
    "short line": (CSV.replace("\n5,25,", "\n5,"), {}, ["records.csv, line 7"]),
    "no label": (CSV, {"label_column": "lable"}, ["lable", "did you mean 'label'"]),
    "classes": (CSV, {"classes": [0, 2]}, ["records.csv", "'1'", "not one of"]),
    "one class": (CSV, {"label_column": "site", "classes": [0]}, ["records.csv"]),
    "empty": ("", {}, ["records.csv"]),
    "header only": ("a,b,label,site\n", {}, ["records.csv"]),
    "binary": ("a\0,b,label\n\x80", {}, ["records.csv"]),
}


def with_files(tmp_path: Path, **dataset: Any) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(merged(BASE, {"data": None}) | {"data": {"dataset": dataset, "num_silos": 3}}))
    return path


@pytest.mark.parametrize(("text", "options", "parts"), TABLES.values(), ids=list(TABLES))
def test_tables(tmp_path: Path, text: str, options: dict[str, Any], parts: list[str]) -> None:
    (tmp_path / "records.csv").write_bytes(text.encode("latin-1"))
    path = with_files(tmp_path, name="csv", files="records.csv", **options)
    one_message(dpfl("run", path, "--out", tmp_path / "runs"), *parts)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "command", ["run", "account", "plan --epsilon 2", "check", "audit", "attack", "list engines --for"]
)
def test_what_is_wrong_with_records_names_the_file_that_asks_for_them(tmp_path: Path, command: str) -> None:
    path = with_files(tmp_path, name="csv", files="records.csv")
    (tmp_path / "records.csv").write_text(CSV.replace("\n5,", "\nfive,"))
    one_message(dpfl(*command.split(), path), f"dpfl: {path}: ", "records.csv, line 7")


def test_a_good_table_runs(tmp_path: Path) -> None:
    (tmp_path / "records.csv").write_text(CSV)
    path = with_files(tmp_path, name="csv", files="records.csv", classes=[0, 1], silo_column="site")
    done = dpfl("run", path, "--out", tmp_path / "runs", "--set", "data={num_silos: null, partition: natural}")
    assert done.code == 0, done.err


def test_arrays(tmp_path: Path) -> None:
    good = tmp_path / "good.npz"
    np.savez(good, x=np.ones((20, 2), np.float32), y=np.arange(20) % 2)
    (tmp_path / "cut.npz").write_bytes(good.read_bytes()[:-80])
    np.savez(tmp_path / "objects.npz", x=np.array([{}] * 4), y=np.arange(4) % 2)
    np.savez(tmp_path / "lengths.npz", x=np.ones((20, 2)), y=np.arange(19) % 2)
    np.savez(tmp_path / "nan.npz", x=np.full((20, 2), np.nan), y=np.arange(20) % 2)
    for name in ("cut", "objects", "lengths", "nan", "missing"):
        path = with_files(tmp_path, name="npz", files=f"{name}.npz")
        one_message(dpfl("run", path, "--out", tmp_path / "runs"), f"{name}.npz")
    assert not (tmp_path / "runs").exists()


def test_a_truncated_gz_and_a_missing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "records.csv.gz").write_bytes(gzip.compress(CSV.encode())[:-20])
    path = with_files(tmp_path, name="csv", files="records.csv.gz")
    one_message(dpfl("run", path), "records.csv.gz")

    def no_network(*args: Any) -> None:
        raise OSError("no network here")

    monkeypatch.setattr("dpfl_plugin.data.fetch._download", no_network)
    path = with_files(tmp_path, name="mnist")
    one_message(dpfl("run", path, "--set", f"data.folder={tmp_path}/nowhere"), f"{tmp_path}/nowhere", "no network here")


# Folders


def test_out_is_a_file_or_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    one_message(dpfl("run", write(tmp_path), "--out", tmp_path / "file"), f"{tmp_path}/file", "another out")
    assert (tmp_path / "file").read_text() == "mine"
    one_message(dpfl("run", write(tmp_path), "--out", "/proc/runs"), "/proc/runs", "another out")


def test_a_full_disk_ends_the_run_with_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes | str) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("dpfl_plugin.runs.folder.write_atomic", full)
    one_message(dpfl("run", write(tmp_path), "--out", tmp_path / "runs"), "No space left on device", code=1)


def test_a_result_that_was_changed_by_hand(tmp_path: Path) -> None:
    done = dpfl("run", write(tmp_path), "--out", tmp_path / "runs", "--json")
    result = Path(done.json["folder"]) / "result.json"
    result.write_text(result.read_text()[:50])
    one_message(dpfl("run", tmp_path / "config.yaml", "--out", tmp_path / "runs"), "result.json", "cannot be read")
