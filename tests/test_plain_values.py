"""Text is no number and true is not 1, in a file and in Python, of keys and of plugins' options."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

import dpfl_plugin as dpfl
from dpfl_plugin import registry
from dpfl_plugin.config.load import load, merged, parse_setting
from dpfl_plugin.errors import ConfigError

FILE = "algorithm: {name: fedavg, local_steps: 2, local_lr: 1.0}\nprivacy: {noise_multiplier: 4}\nrounds: 3\n"


def plugin(
    *,
    count: int = 1,
    rate: float = 1.0,
    some: list[int] | None = None,
    flag: bool = False,
    size: int | Literal["auto"] = 1,
    seeds: int | list[int] | None = None,
    anything: Any = None,
) -> dict[str, Any]:
    return locals()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": "5"}, "p.count='5': must be a whole number, not text: write it without quotes"),
        ({"count": True}, "p.count=True: must be a whole number, not true or false"),
        ({"rate": "1e-5"}, "p.rate='1e-5': must be a number, not text"),
        ({"rate": False}, "p.rate=False: must be a number, not true or false"),
        ({"some": [1, "2"]}, "must be a whole number, not text"),
        ({"seeds": [True]}, "must be a whole number, not true or false"),
        ({"flag": 1}, "p.flag=1: must be true or false, not a number"),
        ({"flag": "yes"}, "p.flag='yes': must be true or false, not text"),
        ({"count": "five"}, "p.count='five': must be a valid integer"),  # no quotes would mend that
    ],
)
def test_what_only_looks_like_the_value_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as found:
        registry.check_options(plugin, given, where="p")
    assert message in str(found.value)


@pytest.mark.parametrize(
    "given",
    [
        {"count": 5.0},
        {"rate": 5},
        {"rate": "inf"},
        {"some": [1, 2]},
        {"flag": True},
        {"size": "auto"},
        {"seeds": 3},
        {"anything": "5"},
        {"anything": True},
    ],
)
def test_what_is_meant_is_taken(given: dict[str, Any]) -> None:
    (key,) = given
    taken = registry.check_options(plugin, given, where="p")[key]
    assert taken == (float("inf") if given[key] == "inf" else given[key])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rounds='5'", "rounds='5': must be a whole number, not text"),
        ("rounds=true", "rounds=True: must be a whole number, not true or false"),
        ("privacy.epsilon='4'", "privacy.epsilon='4': must be a number, not text"),
        ("algorithm.local_steps='2'", "local_steps='2': must be a whole number, not text"),
    ],
)
def test_in_a_file_and_in_python(setting: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(FILE)
    with pytest.raises(ConfigError) as in_file:
        dpfl.check(dpfl.load(path).with_(**parse_setting(setting)))
    assert message in str(in_file.value)
    given: dict[str, Any] = {"algorithm": {"local_steps": 2}, "privacy": {"noise_multiplier": 4}, "rounds": 3}
    patients = dpfl.Federation.load("digits", partition="iid", num_silos=3)
    given = merged(given, {"algorithm": {"name": "fedavg", "local_lr": 1.0}}, parse_setting(setting))
    with pytest.raises(ConfigError) as in_python:
        dpfl.train(patients, out=str(tmp_path), **given)
    assert message in str(in_python.value)


def test_numbers_that_yaml_1_1_takes_for_text_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(FILE.replace("noise_multiplier: 4", "noise_multiplier: 4, delta: 1e-5, clip_norm: inf"))
    (one,) = load(path).variants
    assert (one.config.privacy.delta, one.config.privacy.clip_norm) == (1e-5, float("inf"))
