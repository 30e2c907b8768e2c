"""Runs whose silos are answered together: the same up to rounding, the same charges, never taken for a repetition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.command import charges, dpfl, one_message, run, write

DOUBLE = {"dtype": "float64"}
CHANGES: dict[str, dict[str, Any]] = {
    "scaffold": {},
    "poisson": {"privacy": {"sampler": "poisson"}},
    "adaptive": {"privacy": {"clip": "adaptive"}},
    "mlp": {"model": {"name": "mlp", "hidden": [3]}, "privacy": {"clip": "per_layer"}},
}


def made(folder: Path, changes: dict[str, Any], **runtime: Any) -> dict[str, Any]:
    folder.mkdir()
    return run(write(folder, {**changes, "runtime": {**DOUBLE, **runtime}}))


def model(result: dict[str, Any]) -> torch.Tensor:
    parts = load_file(Path(result["folder"]) / "model.safetensors")
    return torch.cat([parts[name].flatten() for name in sorted(parts)])


def lockstep(result: dict[str, Any]) -> int:
    """How many silos were answered together."""
    return int(json.loads((Path(result["folder"]) / "environment.json").read_text())["lockstep"])


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_charges_are_those_of_the_plain_run_and_no_round_counts_as_repeated(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    plain = made(tmp_path / "plain", changes)
    for stack in (None, 3):
        found = made(tmp_path / f"stack {stack}", changes, lockstep=True, **({"stack": stack} if stack else {}))
        assert [c.release for c in charges(found["folder"])] == [c.release for c in charges(plain["folder"])]
        assert lockstep(found) == (stack or 2**31)
    assert lockstep(plain) == 0


def test_the_model_is_that_of_the_plain_run_up_to_rounding(tmp_path: Path) -> None:
    """Full batches without noise: nothing is drawn, so runs of other names compute the same."""
    changes = {"privacy": {"noise_multiplier": 0, "sampler": "full", "record_rate": None}}
    plain = made(tmp_path / "plain", changes)
    found = [
        made(tmp_path / "all", changes, lockstep=True),
        made(tmp_path / "three", changes, lockstep=True, stack=3),
    ]
    for result in found:
        torch.testing.assert_close(model(result), model(plain), rtol=1e-9, atol=1e-12)
    assert len({result["id"] for result in (plain, *found)}) == 3


def test_stacks_of_other_sizes_have_noise_of_their_own(tmp_path: Path) -> None:
    """Sums round by the stack: under the same noise the difference of two runs would show by how much.

    In the first round; by the second they are asked at other models.
    """
    names = []
    for number, runtime in enumerate(({"stack": 2}, {"stack": 3}, {"lockstep": True, "stack": 2}, {"lockstep": True})):
        result = made(tmp_path / str(number), {"rounds": 2}, **runtime)
        names.append({charge.noise_id for charge in charges(result["folder"]) if charge.round == 0})
    assert names[0] == names[1] and not names[0] & names[2] and not names[2] & names[3]


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (["runtime={lockstep: true}", "engine=vmap"], ["runtime.lockstep=true", "engine vmap", "Leave lockstep out"]),
        (["runtime={lockstep: true}", "privacy.clip=median"], ["runtime.lockstep=true", "one after another"]),
        (
            ["runtime={lockstep: true}", "privacy.unit=silo", "algorithm.name=fedavg"],
            ["runtime.lockstep=true", "unit='silo'"],
        ),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, settings: list[str], parts: list[str]) -> None:
    changes = [argument for setting in settings for argument in ("--set", setting)]
    one_message(dpfl("run", write(tmp_path), "--out", tmp_path / "runs", *changes), *parts)
    assert not (tmp_path / "runs").exists()
