"""Errors cross processes, and are told again with where they came up."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import pytest

import dpfl_plugin
from dpfl_plugin.errors import (
    ConfigError,
    LimitError,
    RecordKindError,
    require,
    said_of,
)


@pytest.mark.parametrize("error", [RecordKindError("labels 0.5", "no classes"), LimitError("/a/b", "no more")])
def test_an_error_is_the_same_in_another_process(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)


def test_what_the_other_side_is_told_holds_nothing_of_records_by_default() -> None:
    told = said_of(RecordKindError("labels 0.5", "no classes"), "silo.csv: ")
    assert str(told) == "silo.csv: labels 0.5" and "0.5" not in told.public and "silo.csv" not in told.public


def test_a_notebook_shows_one_message() -> None:
    with pytest.raises(ConfigError) as raised:
        dpfl_plugin.Privacy(epsilom=3)  # type: ignore[call-arg]
    (line,) = raised.value._render_traceback_()
    assert line == "ConfigError: Privacy: privacy.epsilom is not a known key (did you mean 'epsilon'?)."


@pytest.mark.parametrize(
    ("value", "must", "told"),
    [
        ("0.1", "be positive and finite", "a='0.1' must be positive and finite. It is text: write it without quotes."),
        ("1e-5", "be from 0 to 1", "a='1e-5' must be from 0 to 1. It is text: write it without quotes."),
        (-1.0, "be positive and finite", "a=-1.0 must be positive and finite."),
        ("much", "be positive and finite", "a='much' must be positive and finite."),
        ("5", "be a column's name", "a='5' must be a column's name."),
    ],
)
def test_a_number_that_is_text_is_told_so(value: object, must: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        require(False, "a", value, must)
    assert str(error.value) == told


# Which are words of a command that is named with them.
WITH_THEIR_COMMAND = {
    "finished_run.py": {"--resume"},
    "ledgers.py": {"--ledger", "--ledger-wait"},
}


def test_no_message_of_a_run_knows_the_command_line_alone() -> None:
    """Python users read it, too."""
    for path in sorted(Path(dpfl_plugin.__file__).parent.joinpath("runs").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
                found = set(re.findall(r"--(?:out|resume|ledger)[a-z-]*\b", node.value))
                named = WITH_THEIR_COMMAND.get(path.name, set())
                assert not found - named, f"{path.name}, line {node.lineno}: {node.value!r}"
