"""What a run refuses for what its rounds ask for, accounts and plans refuse with the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import dpfl_plugin as dpfl
from dpfl_plugin.errors import ConfigError
from tests.conformance.cases import ALGORITHMS

CONFIG: dict[str, Any] = {
    "data": {"dataset": "heart_disease", "partition": "natural"},
    "model": "logistic",
    "loss": "hinge",
    "rounds": 4,
    "seed": 1,
}
PRIVACY = {"noise_multiplier": 5.0, "epsilon": 1e4, "delta": 1e-5}


@pytest.mark.parametrize("privacy", [{"unit": "silo"}, {"sampler": "cyclic", "record_rate": 0.1}], ids=str)
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_account_and_plan_refuse_what_a_run_refuses(tmp_path: Path, name: str, privacy: dict[str, Any]) -> None:
    path = tmp_path / "run.yaml"
    algorithm = {"name": name, **ALGORITHMS[name][0]}
    path.write_text(yaml.safe_dump({**CONFIG, "algorithm": algorithm, "privacy": {**PRIVACY, **privacy}}))
    asked = {
        "check": dpfl.check,
        "account": dpfl.account,
        "plan": lambda path: dpfl.plan(path, solve="noise_multiplier"),
    }
    said: dict[str, str] = {}
    for verb, ask in asked.items():
        try:
            ask(path)
        except ConfigError as error:
            said[verb] = str(error)
    assert said.get("account") == said.get("check")
    if "check" in said:
        assert said["plan"] == said["check"]
