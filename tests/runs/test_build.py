"""From a configuration to the parts of a run, without a command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dpfl_plugin.config.load import configure
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.gradients import fused
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.runs.build import build
from tests.cli.command import BASE, merged


def config_of(**changes: Any) -> Config:
    return configure(merged(BASE, changes), source="test")


WRONG: dict[str, dict[str, Any]] = {
    "algorithm": {"algorithm": {"local_step": 1}},
    "privacy.clip": {"privacy": {"clip": {"name": "flat", "quantile": 0.5}}},
    "privacy.mechanism": {"privacy": {"mechanism": {"name": "gaussian", "sd": 1.0}}},
    "privacy.accountant": {"privacy": {"accountant": {"name": "pld", "orders": 3}}},
    "privacy.schedule": {"privacy": {"schedule": {"name": "constant", "beta": 0.5}}},
}


@pytest.mark.parametrize("where", WRONG)
def test_a_misspelt_option_of_any_plugin_is_named_before_records_are_read(where: str, tmp_path: Path) -> None:
    def hold(config: Config, base: Path) -> Any:
        raise AssertionError("records were read")

    with pytest.raises(ConfigError, match=where.replace(".", r"\.")):
        build(config_of(**WRONG[where]), tmp_path, hold=hold)


def test_the_same_configuration_gives_the_same_parts_and_another_seed_deals_other_records(tmp_path: Path) -> None:
    one, same, other = (build(config_of(seed=seed), tmp_path) for seed in (0, 0, 1))
    assert torch.equal(one.model, same.model) and one.data_sha256 == same.data_sha256
    assert one.data_sha256 != other.data_sha256
    assert one.num_records == tuple(len(one.train[silo]) for silo in sorted(one.train))
    assert sum(one.setting.weights) == pytest.approx(1)


def test_noise_that_was_solved_for_is_what_every_release_has(tmp_path: Path) -> None:
    solve = config_of(privacy={"noise_multiplier": None, "epsilon": 3.0})
    solved = build(solve, tmp_path)
    again = build(solve, tmp_path, solved.noise_multiplier)
    assert solved.planned is not None and again.planned is None, "a run that goes on does not solve once more"
    for parts in (solved, again):
        assert parts.rules.noise_multiplier == parts.noise_multiplier == solved.noise_multiplier > 0


@pytest.mark.skipif(fused.kernels() is None, reason="no compiled loops here")
@pytest.mark.parametrize(("rounds", "silos", "local_steps", "compiled"), [(250, 2, 2, True), (249, 2, 2, False)])
def test_a_short_run_does_without_compiled_loops(
    rounds: int, silos: int, local_steps: int, compiled: bool, tmp_path: Path
) -> None:
    """They take longer to load than they save."""
    config = config_of(
        rounds=rounds,
        data={"num_silos": silos},
        algorithm={"name": "fedavg", "local_steps": local_steps},
        engine="closed_form",
    )
    engine = build(config, tmp_path).engine
    assert isinstance(engine, ClosedForm) and (engine.kernels is not None) == compiled
