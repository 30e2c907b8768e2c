"""What a user is told of a promise that is next to nothing."""

from __future__ import annotations

import pytest

from dpfl_plugin.config.schema import Config
from dpfl_plugin.runs.privacy_rules import privacy_rules, small_delta, weak_claims


@pytest.mark.parametrize("sizes", [(9, 336), (336, 9), (336,), (1, 2, 200_000)])
@pytest.mark.parametrize("unit", ["record", "silo"])
def test_a_delta_that_lets_a_record_of_some_silo_be_published_is_told(sizes: tuple[int, ...], unit: str) -> None:
    """To publish one of n at random is (0, 1/n): of the silo with most records that is allowed first."""
    units = len(sizes) if unit == "silo" else max(sizes)
    for delta in (2 / units, 1 / units, 0.99 / units, small_delta(units)):
        if not 0 < delta < 1:
            continue
        keys = {"clip_norm": 1.0, "noise_multiplier": 4.0, "record_rate": 0.5, "delta": delta, "unit": unit}
        config = Config.model_validate(
            {
                "rounds": 1,
                "data": {"dataset": "digits", "num_silos": len(sizes)},
                "algorithm": {"name": "fedavg", "local_steps": 1, "local_lr": 1.0},
                "privacy": keys,
            }
        )
        told = weak_claims(config, privacy_rules(config), sizes)
        assert len(told) == (delta >= 1 / units)
        assert all(f"not below 1/{units}" in text and f"as {small_delta(units):g}." in text for text in told)
    assert 1 / (100 * units) <= small_delta(units) <= 1 / (10 * units)
