"""Whatever a configuration is used for asks the table of what does not go together with that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import yaml

import dpfl_plugin as dpfl
from dpfl_plugin.adapters import agree
from dpfl_plugin.config.incompatible import USES
from dpfl_plugin.config.load import load
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.owners.custody import Custody
from dpfl_plugin.owners.limits import Limits

ALGORITHM: Final = {"name": "fedavg", "local_steps": 1, "local_lr": 0.1}
CONFIG: Final[dict[str, Any]] = {
    "algorithm": ALGORITHM,
    "rounds": 4,
    "privacy": {"epsilon": 4.0},
    "silos": {"0": {"epsilon": 2.0}},
}
TUNE: Final = {"tune": {"grid": {"algorithm.local_lr": [0.1, 0.2]}, "rungs": [1]}}


def platform(path: Path) -> object:
    return agree(CONFIG, num_silos=2, model=torch.nn.Linear(4, 3))


def oracle(path: Path) -> object:
    records, privacy = (torch.ones(8, 4), torch.zeros(8, dtype=torch.int64)), dpfl.Privacy(epsilon=2.0, unit="silo")
    return dpfl.PrivateOracle.of(torch.nn.Linear(4, 3), records, privacy=privacy, steps=4, ledger=None)


def limits(path: Path) -> object:
    return Custody(Limits(folder=path.parent, epsilon=8.0, delta=1e-4)).check(load(path).variants[0].config)


ENTRIES: Final[dict[str, Callable[[Path], object]]] = {
    "ledger": lambda path: dpfl.load(path).run(out=path.parent / "runs", ledger=path.parent / "ledger.jsonl"),
    "tune": lambda path: dpfl.tune(path, out=path.parent / "runs"),
    "forecast": dpfl.plan,
    "audit": dpfl.audit,
    "attack": dpfl.attack,
    "limits": limits,
    "platform": platform,
    "PrivateOracle": oracle,
}


@pytest.mark.parametrize("use", USES)
def test_every_use_asks_the_table(use: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, **(TUNE if use == "tune" else {})}))
    with pytest.raises(ConfigError, match=f"{use} does not go with "):
        ENTRIES[use](path)
    assert list(tmp_path.iterdir()) == [path]
