"""Which faults each wire is tested against: `python -m benchmarks.wires` runs the contract of adapters on every wire.

The table in docs/adapters.md is what ran, and what classes declare of the rest. A wire's class is run in the
environment that has its platform: all of them have to be there.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.pages import ROOT, put
from benchmarks.table import table
from dpfl_plugin.testing.wire import WireContract
from dpfl_plugin.testing.wire_faults import DecidedByPlatform, Declared, Elsewhere, Impossible

PAGE: Final = "docs/adapters.md"
TESTED: Final = "yes"
KINDS: Final = {Impossible: "cannot happen", DecidedByPlatform: "the platform's own", Elsewhere: "tested elsewhere"}
OFFLINE: Final = "examples/fedml_existing_project/offline"


@dataclass(frozen=True, slots=True)
class Wire:
    """
    Attributes:
        file, kind: where the class that runs the contract is, and its name.
        environment: the folder of the one that has its platform. paths: more of them for its imports.
        example: of a project before and after, if there is one.
    """

    name: str
    file: str
    kind: str
    environment: str = ".venv"
    paths: tuple[str, ...] = ()
    example: str = ""

    @property
    def exists(self) -> bool:
        return (ROOT / self.file).exists()


_ALL: Final = (
    Wire("folder", "tests/adapters/test_wire_contract.py", "TestFolder"),
    Wire("Flower", "tests/flower/wire.py", "TestFlower", ".venv-flower", (), "examples/flower_existing_project"),
    Wire("FedML", "tests/fedml/wire.py", "TestFedML", ".venv-fedml", (OFFLINE,), "examples/fedml_existing_project"),
    Wire(
        "NVFlare",
        "tests/nvflare/wire_inside.py",
        "TestNVFlare",
        ".venv-nvflare",
        (),
        "examples/nvflare_existing_project",
    ),
    Wire("toy", "tests/adapters/test_wire_contract.py", "TestToy"),
    Wire("MPI", "tests/adapters/wires_of_runs.py", "TestMPI"),
    Wire("one process", "tests/adapters/wires_of_runs.py", "TestInProcess"),
)
WIRES: Final = tuple(wire for wire in _ALL if wire.exists)


def load(wire: Wire) -> type[WireContract]:
    """The class of a wire; in the environment that has its platform."""
    spec = importlib.util.spec_from_file_location(f"wire_{wire.name.replace(' ', '_')}", ROOT / wire.file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found: type[WireContract] = getattr(module, wire.kind)
    return found


def footnote(wire: str, why: Declared) -> str:
    """A declaration as the page has it."""
    more = f": {', '.join(f'`{test}`' for test in why.tests)}" if isinstance(why, Elsewhere) else ""
    return f"{wire}, {KINDS[type(why)]}: {why.reason}{more}."


def declared(kind: type[WireContract], wire: str) -> dict[str, tuple[str, str]]:
    """{check: (fault, footnote)}, the footnote empty where the check is run."""
    return {name: (fault, "" if why is None else footnote(wire, why)) for name, (fault, why) in kind.faults().items()}


class _Outcomes:
    """A plugin of pytest that keeps a class, and how each of its tests ended."""

    def __init__(self, kind: str) -> None:
        self.kind, self.found = kind, dict[str, str]()
        self.made: type[WireContract] | None = None

    def pytest_itemcollected(self, item: Any) -> None:
        if item.cls is not None and item.cls.__name__ == self.kind:
            self.made = item.cls

    def pytest_runtest_logreport(self, report: Any) -> None:
        *_, owner, name = ["", *report.nodeid.split("::")]
        if owner == self.kind and (report.when == "call" or report.outcome != "passed"):
            self.found[name] = report.outcome


def ran(wire: Wire) -> dict[str, Any]:
    """What a wire's class declares, and how its checks ended; in the environment that has its platform."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        paths = os.pathsep.join(str(ROOT / path) for path in (*wire.paths, "."))
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
        python = ROOT / wire.environment / "bin" / "python"
        command = [str(python), "-m", "benchmarks.wires", "--run", wire.name, "--out", str(out)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if not out.exists():
            raise RuntimeError(f"{wire.name}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def _run(name: str, out: Path) -> None:
    import pytest

    (wire,) = [one for one in WIRES if one.name == name]
    outcomes = _Outcomes(wire.kind)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:warnings", f"--rootdir={ROOT}", "-k", wire.kind]
    pytest.main([*options, str(ROOT / wire.file)], plugins=[outcomes])
    kind = outcomes.made or load(wire)  # pytest finds none where all is declared
    out.write_text(
        json.dumps({"declared": declared(kind, name), "outcomes": outcomes.found, "lacks": list(kind.lacks)})
    )


def faults_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The table, and what its numbers mean.

    Raises:
        RuntimeError: a check that is not declared away did not pass.
    """
    notes: list[str] = []
    rows = []
    for check, (fault, _) in WireContract.faults().items():
        cells = []
        for wire, facts in found.items():
            _, note = facts["declared"][check]
            if note:
                if note not in notes:
                    notes.append(note)
                cells.append(f"({notes.index(note) + 1})")
            elif facts["outcomes"].get(check) == "passed":
                cells.append(TESTED)
            else:
                raise RuntimeError(f"{wire}: {check} ended with {facts['outcomes'].get(check)!r}, and has to pass")
        rows.append([fault, *cells])
    listed = "\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1))
    return f"{table(['what goes wrong', *found], rows)}\n\n{listed}"


def projects_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Lines of a project that change, by its examples before and after, and what a platform lacks."""
    from benchmarks.platforms import lines

    rows = []
    for wire in WIRES:
        lacks = "; ".join(found[wire.name]["lacks"])
        gets, loses = map(str, lines(ROOT / wire.example)) if wire.example else ("", "")
        if lacks or gets:
            rows.append([wire.name, gets, loses, lacks])
    return table(["wire", "lines that a project gets", "loses", "what cannot be had"], rows)


def stated(text: str, wire: str) -> dict[str, str]:
    """{fault: `TESTED`, or the footnote} of a wire, as a page has it; empty if it has no such wire."""
    found = re.search("<!-- faults table: begin -->(.*?)<!-- faults table: end -->", text, re.DOTALL)
    lines = found[1].splitlines() if found else []
    notes = {number: note for line in lines if (m := re.match(r"(\d+)\. (.*)", line)) for number, note in [m.groups()]}
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    if not cells or wire not in cells[0]:
        return {}
    column = cells[0].index(wire)
    return {row[0]: notes.get(row[column].strip("()"), row[column]) for row in cells[2:]}


def expected(kind: type[WireContract], wire: str) -> dict[str, str]:
    """What `stated` has to be."""
    return {fault: note or TESTED for fault, note in declared(kind, wire).values()}


def missing_tests(kinds: Sequence[type[WireContract]]) -> list[str]:
    """Of those that declarations name, which are not there."""
    named = {
        test for kind in kinds for _, why in kind.faults().values() if isinstance(why, Elsewhere) for test in why.tests
    }
    gone = []
    for test in sorted(named):
        path, _, name = test.partition("::")
        with contextlib.suppress(OSError):
            if re.search(rf"^def {re.escape(name)}\(", (ROOT / path).read_text(), re.MULTILINE):
                continue
        gone.append(test)
    return gone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="", help="a wire's class, in its environment")
    parser.add_argument("--out", type=Path, help="where what that finds is written")
    arguments = parser.parse_args()
    if arguments.run:
        _run(arguments.run, arguments.out)
        return
    found = {}
    for wire in WIRES:
        print(wire.name, flush=True)
        found[wire.name] = ran(wire)
    put("docs/adapters.md", "faults table", faults_table(found))
    put("docs/adapters.md", "projects table", projects_table(found))


if __name__ == "__main__":
    main()
