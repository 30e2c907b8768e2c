"""Every mutant of the catalogue turns a test red, and the table in the documentation lists them."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.mutants import harness, table
from tests.mutants.catalogue import MUTANTS, Mutant
from tests.mutants.harness import Result

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dpfl_plugin"


def test_each_text_to_replace_is_there_once_and_what_takes_its_place_parses() -> None:
    """Else the code has moved on: write the mutant anew for what is there now."""
    sources = {file: (PACKAGE / file).read_text() for file in {mutant.file for mutant in MUTANTS}}
    wrong = []
    for mutant in MUTANTS:
        try:
            assert mutant.old != mutant.new, f"mutant {mutant.name} changes nothing"
            ast.parse(mutant.applied(sources[mutant.file]))
        except (AssertionError, SyntaxError, ValueError) as error:
            wrong.append(f"{mutant.name}: {error}")
    assert not wrong


def test_names_are_unique_and_tests_are_there() -> None:
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
    for test in {test for mutant in MUTANTS for test in mutant.tests}:
        path, *_, function = test.partition("[")[0].split("::")
        assert f"def {function}(" in (ROOT / path).read_text(), test


def test_numbas_loops_are_made_of_the_files_that_are_named() -> None:
    """Else a mutant of another file would be tried with loops of the one before it."""
    sources = {file.relative_to(PACKAGE).as_posix(): file.read_text() for file in PACKAGE.rglob("*.py")}
    found, waiting = set[str](), [name for name, source in sources.items() if "numba.njit(" in source]
    while waiting:
        name = waiting.pop()
        found.add(name)
        for module, names in re.findall(r"^from dpfl_plugin\.?(\S*) import (.+)", sources[name], re.MULTILINE):
            folder = module.replace(".", "/")
            used = [f"{folder}.py", *(f"{folder}/{one.strip()}.py" for one in names.split(","))]
            waiting += [one for one in used if one in sources and one not in found]
    assert found == set(harness.KERNELS)


def test_the_table_lists_the_mutants_of_the_catalogue() -> None:
    """Else: python -m tests.mutants. A row says, too, that its test is green in such a tree without the mutation: it is
    written by a run that tried that first."""
    assert table.listed() == [(mutant.name, mutant.bug) for mutant in MUTANTS]


# Slow: the mutants themselves

Ask = Callable[[str, Sequence[str]], Result]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """A process that has imported the libraries and forks for each mutant; one for each process of xdist."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    command = [sys.executable, "-m", "tests.mutants", "--serve"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        talk, listen = server.stdin, server.stdout

        def answer(name: str, tests: Sequence[str]) -> Result:
            talk.write(json.dumps([name, list(tests)]) + "\n")
            talk.flush()
            values = json.loads(listen.readline())
            return Result(**{**values, "tests": tuple(values["tests"])})

        yield answer
        talk.close()


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_killed(ask: Ask, mutant: Mutant) -> None:
    result = ask(mutant.name, mutant.tests)
    if result.verdict == harness.BROKEN:  # a child that died, which something else on the machine may have done
        result = ask(mutant.name, mutant.tests)
    assert result.verdict == harness.KILLED, f"{mutant.bug}: {result.verdict}\n{result.output}"


@pytest.mark.slow
def test_a_file_that_does_not_parse_or_tests_that_are_not_there_kill_nothing(ask: Ask) -> None:
    assert ask("", ["tests/core/test_exact.py", "-k", "no such test"]).verdict == harness.BROKEN
    assert ask("", ["tests/core/no_such_file.py"]).verdict == harness.BROKEN
