"""Errors cross processes, and are told again with where they came up."""

from __future__ import annotations

import ast
import pickle
import re
import shlex
from pathlib import Path

import pytest

import dpfl_plugin
from dpfl_plugin.api.progress import Warnings
from dpfl_plugin.errors import (
    ArgumentError,
    ConfigError,
    DpflError,
    LimitError,
    RecordKindError,
    TrainingError,
    Worded,
    require,
    require_argument,
    said_of,
)


@pytest.mark.parametrize(
    "error", [RecordKindError("labels 0.5", "no classes"), LimitError("/a/b", "no more"), ArgumentError("use {out}")]
)
def test_an_error_is_the_same_in_another_process(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)


def test_what_the_other_side_is_told_holds_nothing_of_records_by_default() -> None:
    told = said_of(RecordKindError("labels 0.5", "no classes"), "silo.csv: ")
    assert str(told) == "silo.csv: labels 0.5" and "0.5" not in told.public and "silo.csv" not in told.public


QUOTED = """'a' "day\\\""""


@pytest.mark.parametrize("kind", [TrainingError, ConfigError, ArgumentError])
def test_a_message_names_an_argument_in_the_words_of_each_door(kind: type[DpflError]) -> None:
    error = kind(Worded(f"use {{resume=True}}, {{label={'a day'!r}}} or {{time={QUOTED!r}}}, or another {{out}}"))
    for found in (error, pickle.loads(pickle.dumps(error)), said_of(error, "")):
        assert str(found) == f"use resume=True, label='a day' or time={QUOTED!r}, or another out"
        assert found.as_options == f"use --resume, --label 'a day' or --time {shlex.quote(QUOTED)}, or another --out"
    named = ArgumentError("{RUN_FOLDER}='x': use another")
    assert (str(named), named.as_options) == ("run_folder='x': use another", "RUN_FOLDER='x': use another")
    plain = TrainingError("a {model} as it is")
    assert str(plain) == plain.as_options == "a {model} as it is"


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
    for check in (require, require_argument):
        with pytest.raises(ConfigError) as error:
            check(False, "a", value, must)
        assert str(error.value) == told


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("a smaller step may help: --set algorithm.local_lr=0.3.", "a smaller step may help: algorithm.local_lr=0.3."),
        ("(--set privacy.unit=silo)", "(privacy.unit='silo')"),
        ("Use --set privacy.randomness=fresh, or --set tune=null.", "Use privacy.randomness='fresh', or tune=None."),
        ("Use --set rounds=..., or --set model.hidden=[50]", "Use rounds=..., or model.hidden=[50]"),
        ("Add --set privacy.noise_multiplier=NUMBER.", "Add privacy.noise_multiplier=NUMBER."),
        ("--set silo_weights=records weighs them", "silo_weights='records' weighs them"),
        ("a choice in the file (--set key=value)", "a choice in the file (key='value')"),
    ],
)
def test_a_setting_is_advised_in_the_words_of_each_door(
    told: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for error in (ConfigError(told), ArgumentError(told)):
        assert str(error) == shown and error.as_options == told
    Warnings().note(f"warning: {told}")
    assert capsys.readouterr().err == f"dpfl: warning: {shown}\n"


# Which are words of a command that is named with them.
WITH_THEIR_COMMAND = {
    "trained.py": {"--resume"},
    "ledgers.py": {"--ledger", "--ledger-wait"},
}


def test_no_message_of_a_run_knows_the_command_line_alone() -> None:
    """Python users read it, too: see `Worded`."""
    for path in sorted(Path(dpfl_plugin.__file__).parent.joinpath("runs").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
                found = set(re.findall(r"--(?:out|resume|ledger)[a-z-]*\b", node.value))
                named = WITH_THEIR_COMMAND.get(path.name, set())
                assert not found - named, f"{path.name}, line {node.lineno}: {node.value!r}"
