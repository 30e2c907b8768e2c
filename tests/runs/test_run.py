"""A session by itself, without a command: begun, gone on with, or shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dpfl_plugin.config.load import configure
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runs.folder import folder_of
from dpfl_plugin.runs.hooks import Silent
from dpfl_plugin.runs.run import run_config
from dpfl_plugin.runtimes.in_process import InProcessBackend
from tests.cli.command import BASE, merged


def config_in(out: Path) -> Config:
    return configure(merged(BASE, {"rounds": 3, "out": str(out)}), source="test")


def session(config: Config, stop: Callable[[], bool] = lambda: False, **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"resume": False, "backend": InProcessBackend(), "reporter": Silent(), **more}
    return run_config(config, Path(config.out), stop=stop, **given)


def files(config: Config) -> dict[str, bytes]:
    """What the run's folder holds but for its log and lock."""
    folder = folder_of(config).path
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in (".txt", ".lock")
    }


def test_in_parts_or_whole_it_is_the_same_run_and_a_finished_one_is_only_shown(tmp_path: Path) -> None:
    config, other = config_in(tmp_path / "parts"), config_in(tmp_path / "whole")
    asked = iter([False] * 2 + [True] * 99)
    stopped = session(config, stop=lambda: next(asked))
    assert (stopped["status"], stopped["cause"]) == ("interrupted", "stop_requested") and stopped["rounds"] < 3
    before = files(config)
    with pytest.raises(ConfigError, match="Use resume to continue"):
        session(config)
    assert files(config) == before, "a refusal changes nothing"
    result, whole = session(config, resume=True), session(other)
    assert (result["status"], result["cause"]) == ("done", "rounds")
    for key in ("model_sha256", "epsilon", "test_accuracy", "train_loss", "silos"):
        assert result[key] == whole[key], key
    before = files(config)
    assert session(config) == result and files(config) == before, "nothing is released again"


def shifted(function: Callable[..., torch.Tensor], by: float, *given: Any, **named: Any) -> torch.Tensor:
    return function(*given, **named) + by
