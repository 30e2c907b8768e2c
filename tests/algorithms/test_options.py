"""What a program gives an algorithm is checked by name, as what a file gives it is."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle

import pytest

import dpfl_plugin as dpfl
from dpfl_plugin import registry
from dpfl_plugin.errors import ConfigError


@pytest.mark.parametrize("name", registry.names("algorithms"))
def test_a_misspelt_or_missing_option_is_told(name: str) -> None:
    kind = registry.load("algorithms", name)
    if not kind.__module__.startswith("dpfl_plugin."):
        pytest.skip("another package's")
    options = registry.options(kind)
    for option in options:
        with pytest.raises(ConfigError, match=rf"{option}x is not a known option \(did you mean '{option}'\?\)"):
            kind(**{f"{option}x": 3})
    needed = [key for key, one in options.items() if one.default is inspect.Parameter.empty]
    if needed:
        with pytest.raises(ConfigError, match=f"{', '.join(needed)} is missing"):
            kind()
    with pytest.raises(ConfigError, match="given by name"):
        kind(3)


@pytest.mark.parametrize(
    ("kind", "word", "says"),
    [
        (dpfl.algorithms.Scaffold, "lr", r" \(did you mean 'local_lr'\?\)"),
        (dpfl.algorithms.MBSGD, "learning_rate", r" \(did you mean 'lr'\?\)"),
        (
            dpfl.algorithms.Scaffold,
            "epochs",
            r" \(did you mean 'local_steps'\? It counts gradient steps in a round, not passes ",
        ),
        (dpfl.algorithms.MBSGD, "epochs", r"[.;](.|\n)*Known options: "),  # it takes one step a round
        (dpfl.algorithms.FedAvg, "batch_size", r" \(did you mean 'privacy.batch_size'\?\)"),
        (dpfl.algorithms.FedAvg, "rounds", r" \(did you mean 'rounds', at the top level\?\)"),
    ],
)
def test_another_word_for_an_option_names_ours(kind: type, word: str, says: str) -> None:
    """To a class, and to a file's algorithm alike."""
    with pytest.raises(ConfigError, match=f"{word} is not a known option{says}"):
        kind(**{word: 1})
    with pytest.raises(ConfigError, match=f"algorithm.{word} is not a known option{says}"):
        registry.check_options(kind, {word: 1}, where="algorithm")


def test_an_algorithm_is_a_frozen_dataclass_as_before() -> None:
    one = dpfl.algorithms.Scaffold(local_steps=3, local_lr=1.0)
    assert dataclasses.replace(one, local_steps=4).local_steps == 4
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one
    assert inspect.signature(dpfl.algorithms.Scaffold).parameters["option"].default == "II"
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.local_steps = 4  # type: ignore[misc]
