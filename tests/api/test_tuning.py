"""`Federation.tune`: the tuning of a file, of records that a program has."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import dpfl_plugin as dpfl
from dpfl_plugin.errors import ConfigError, UnsupportedError
from tests.cli.command import BASE, write
from tests.cli.command import dpfl as command

SPEC: dict[str, Any] = {"grid": {"algorithm.local_lr": [0.01, 0.5]}, "rungs": [1], "eta": 2, "share": 0.25}
PRIVACY: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-3, "sampler": "poisson", "record_rate": 0.5}
KEYS: dict[str, Any] = {"algorithm": BASE["algorithm"], "privacy": PRIVACY, "rounds": 2}


def arrays() -> dict[str, tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    return {name: (rng.normal(size=(30, 4)), rng.integers(0, 2, 30)) for name in "abc"}


def test_it_is_the_tuning_of_a_file_with_these_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same candidates, noise, scores and winner, to the bit; the same price before it."""
    monkeypatch.chdir(tmp_path)
    privacy = {"clip_norm": 1.0, "noise_multiplier": None, **PRIVACY}
    path = write(tmp_path, {"rounds": 2, "privacy": privacy, "tune": SPEC, "name": "alike"})
    by_command = command("tune", path, "--out", "command", "--json").json
    data = dict(BASE["data"])
    records = dpfl.Federation.load(data.pop("dataset"), **data)
    keys = {**KEYS, "privacy": dpfl.Privacy(clip_norm=1.0, **PRIVACY), "seed": BASE["seed"], "name": "alike"}
    price = records.plan_tuning(SPEC, **keys)
    assert not Path("tunes").exists() and price["lines"] == dpfl.plan_tuning(path)["lines"]
    found = records.tune(SPEC, **keys, progress=False)
    assert found.folder == Path("tunes/alike")
    elsewhere = {"folder"}
    for one, other in zip(found.result["ranking"], by_command["ranking"], strict=True):
        assert {key: one[key] for key in one.keys() - elsewhere} == {key: other[key] for key in one.keys() - elsewhere}
    for key in ("id", "noise_multiplier", "score_noise", "epsilon", "guarantee"):
        assert found.result[key] == by_command[key], key
    winner = dpfl.Run.open(by_command["winner"]["folder"])
    assert found.winner.result["model_sha256"] == winner.result["model_sha256"]
    assert found.epsilon == 3.0 and len(found) == 2
    _shows_itself(found)


def _shows_itself(found: dpfl.Tuning) -> None:
    """A row for each candidate, the winner first; the one that was left behind has no second score."""
    first, second = found.rows
    assert first["candidate"] == found.result["winner"]["label"] and "score after 2" in first
    assert (
        first["score after 2"] is not None and second["score after 2"] is None and second["score after 1"] is not None
    )
    shown = found._repr_html_()
    assert shown.count("<tr>") == 3 and f"{first['score after 2']:.3f}" in shown and "epsilon 3 at delta" in shown
    assert isinstance(found.table, pandas.DataFrame) and list(found.table.index) == list(found)


def test_records_and_models_of_a_program_are_tuned_and_their_tuning_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    records, net = dpfl.Federation.from_arrays(arrays(), classes=[0, 1]), torch.nn.Linear(4, 2)
    found = records.tune(SPEC, model=net, **KEYS, out="tuned")
    assert isinstance(found.winner.model, torch.nn.Linear) and found.winner.status == "done"
    ledger = Path("tuned/ledger.jsonl").read_bytes()
    again = dpfl.Federation.from_arrays(arrays(), classes=[0, 1]).tune(SPEC, model=net, **KEYS, out="tuned")
    assert again.result == found.result and Path("tuned/ledger.jsonl").read_bytes() == ledger
    assert json.dumps(pickle.loads(pickle.dumps(found)).result) == json.dumps(found.result)  # without the records
    with pytest.raises(ConfigError, match="another tuning"):
        records.tune({**SPEC, "eta": 3}, model=net, **KEYS, out="tuned")


@pytest.mark.parametrize(
    ("spec", "changes", "error", "says"),
    [
        ("grid", {}, ConfigError, "tune='grid' must be what tune is in a file"),
        ({}, {}, ConfigError, r"Federation.tune: tune.rungs"),
        ({**SPEC, "rung": [1]}, {}, ConfigError, "tune.rung is not a known key.*did you mean 'rungs'"),
        (
            {**SPEC, "model.hidden": [[8]]},
            {},
            ConfigError,
            "tune.model.hidden is not a known key: put it under tune.grid",
        ),
        ({**SPEC, "rungs": [2]}, {}, ConfigError, r"Federation.tune: tune.rungs=\[2\] .* below rounds=2"),
        ({**SPEC, "grid": {"seed": [1, 2]}}, {}, ConfigError, "seed is nothing that candidates may differ in"),
        ({**SPEC, "grid": {"algorithm.local_lr": [torch.ones(1)]}}, {}, ConfigError, "give plain values"),
        (SPEC, {"rounds": None}, ConfigError, "rounds is missing"),
        (SPEC, {"privacy": {"noise_multiplier": 1.0}}, ConfigError, "privacy.epsilon is missing"),
        (SPEC, {"privacy": None}, ConfigError, "be dpfl.Privacy"),
        (SPEC, {"data": {}}, ConfigError, "data comes from the federation"),
        (SPEC, {"out": ""}, ConfigError, "out='' must be a path"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_begun(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spec: Any,
    changes: dict[str, Any],
    error: type[Exception],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    records = dpfl.Federation.from_arrays(arrays(), classes=[0, 1])
    for call in (records.tune, records.plan_tuning):
        with pytest.raises(error, match=says):
            call(spec, **{**KEYS, **changes})
    assert not list(tmp_path.iterdir())


def test_a_measure_of_another_outcome_is_refused_before_it_is_priced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    numbers = {name: (x, y.astype(float)) for name, (x, y) in arrays().items()}
    records = dpfl.Federation.from_arrays(numbers, outcome={"kind": "counts", "range": [0, 5]})
    for call in (records.plan_tuning, records.tune):
        with pytest.raises(UnsupportedError, match=r"tune.measure='mae' is not a score .* counts. Use deviance"):
            call({**SPEC, "measure": "mae"}, model="linear", **KEYS)
    assert not list(tmp_path.iterdir())


def test_levels_are_tuned() -> None:
    records = dpfl.Federation.from_arrays(arrays(), classes=[0, 1, 2], outcome={"kind": "ordinal"})
    assert records.plan_tuning(SPEC, model="linear", **KEYS)["num_candidates"] == 2
