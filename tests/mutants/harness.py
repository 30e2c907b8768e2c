"""Runs tests on a copy of the repository in which one piece of source text was replaced.

A parent imports the libraries once, but nothing of the package, and forks a child for each mutant. The child writes
the mutated file into a tree of its own, puts that tree first on the path, and runs pytest on it. All other files of
that tree are links to one copy, which has what was compiled of them beside it: bytecode of Python's and of pytest's,
numba's loops.
"""

from __future__ import annotations

import compileall
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

from tests.mutants.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("dpfl_plugin", "tests", "pyproject.toml")
SECONDS = 400  # a mutant that takes longer hangs
LINES = 40  # of a child's output that are kept
# What numba's loops are made of. It looks for changes of the files that have them, not of those that these import from.
KERNELS = (
    *(f"core/{name}.py" for name in ("balls", "kept_loops", "rounded_normals", "sfc64", "ziggurat")),
    "errors.py",
    "gradients/kernels.py",
    "late.py",
)

KILLED, SURVIVED, BROKEN = "killed", "survived", "broken"


@dataclass(frozen=True)
class Result:
    """What pytest made of a tree.

    Attributes:
        mutant: its name; "" for the tree as it is.
        verdict: "killed": an assertion of a test failed; "survived": all passed; "broken": anything else, as an error
            while tests are collected, no tests at all, a child that died.
        by: the test that failed.
        seconds: of processor time.
    """

    mutant: str
    tests: tuple[str, ...]
    verdict: str
    by: str
    seconds: float
    output: str

    @property
    def killed(self) -> bool:
        return self.verdict == KILLED

    @property
    def green(self) -> bool:
        return self.verdict == SURVIVED


class _Verdict:
    """A pytest plugin: how many tests passed, and whether the first failure is an assertion of the test."""

    def __init__(self, tree: Path) -> None:
        self.tree, self.passed, self.verdict, self.by = tree, 0, "", ""

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        import pytest

        if call.excinfo is None:
            self.passed += call.when == "call"
        elif not call.excinfo.errisinstance(pytest.skip.Exception) and not self.by:
            asserted = call.when == "call" and _asserts(call.excinfo.value, self.tree)
            self.by, self.verdict = item.nodeid, KILLED if asserted else BROKEN

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.by:
            self.by, self.verdict = report.nodeid, BROKEN


def _asserts(error: BaseException, tree: Path) -> bool:
    """An AssertionError, but none of the package's own, or what pytest.raises raises; of a group, each
    of them."""
    import pytest

    if isinstance(error, BaseExceptionGroup):  # hypothesis, when an example fails in several ways
        return all(_asserts(one, tree) for one in error.exceptions)
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    of_the_package = Path(frame.f_code.co_filename).is_relative_to(tree / "dpfl_plugin")
    return isinstance(error, AssertionError | pytest.fail.Exception) and not of_the_package


class Workshop:
    """A temporary place for trees, and the parent of their tests."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="mutants-"))
        self._number = 0
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self._folder / "whole" / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, self._folder / "whole" / name)
        for name in ("dpfl_plugin", "tests"):
            compileall.compile_dir(self._folder / "whole" / name, quiet=2)
        _import_libraries()
        _compile_once(self._folder / "whole" / "dpfl_plugin")
        gc.freeze()  # else each child looks through the libraries again, and gets its own copy of that memory
        self._compile_kernels()

    def __enter__(self) -> Workshop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder)

    def _compile_kernels(self) -> None:
        """Once for all children, into the copy."""
        pid = os.fork()
        if pid == 0:
            try:
                _use(self._folder / "whole")
                importlib.import_module("dpfl_plugin.gradients.fused").kernels()
                importlib.import_module("dpfl_plugin.core.draws").load()
            finally:
                os._exit(0)  # if they do not work here, tests do without
        os.waitpid(pid, 0)

    def all(
        self, jobs: Sequence[tuple[str, Sequence[str]]], at_a_time: int = 1, say: Callable[[str], None] | None = None
    ) -> list[Result]:
        """The results of (mutant, tests) pairs, in their order."""
        waiting, running, done = list(enumerate(jobs)), {}, {}
        # A copy for each: a link more or less to a file counts as a change of it, and those of another tree would have
        # a test's runs doubt the code that they loaded, and repeat nothing bit for bit.
        free = [self._copy(number) for number in reversed(range(at_a_time))]
        while waiting or running:
            while waiting and free:
                place, (name, tests) = waiting.pop(0)
                whole = free.pop()
                pid, tree = self._fork(whole, name, tests)
                running[pid] = (place, name, tuple(tests), whole, tree)
            pid, status, used = os.wait4(-1, 0)
            place, name, tests, whole, tree = running.pop(pid)
            done[place] = result = self._collect(name, tests, whole, tree, status, used.ru_utime + used.ru_stime)
            free.append(whole)
            if say:
                say(
                    f"{result.verdict:8} {name or 'unmutated'}: {result.by or ' '.join(tests)} ({result.seconds:.1f} s)"
                )
        return [done[place] for place in range(len(jobs))]

    def _copy(self, number: int) -> Path:
        """The copy that trees one after another are made of links to."""
        copy = self._folder / f"whole{number or ''}"
        if not copy.exists():
            shutil.copytree(self._folder / "whole", copy)
        return copy

    def _fork(self, whole: Path, name: str, tests: Sequence[str]) -> tuple[int, Path]:
        self._number += 1
        tree = self._folder / str(self._number)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            try:
                signal.alarm(SECONDS)
                _child(whole, tree, name, tests)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(3)  # `_child` exits with 0
        return pid, tree

    def _collect(
        self, name: str, tests: tuple[str, ...], whole: Path, tree: Path, status: int, seconds: float
    ) -> Result:
        output = tree / "output.txt"
        lines = output.read_text(errors="replace").splitlines() if output.exists() else ["no output"]
        text = "\n".join(lines[-LINES:])
        verdict, by = BROKEN, ""
        if status == 0:
            verdict, by = json.loads((tree / "verdict.json").read_text())
            self._keep_bytecode(tree, whole)
        shutil.rmtree(tree, ignore_errors=True)
        return Result(name, tests, verdict, by, round(seconds, 1), text)

    def _keep_bytecode(self, tree: Path, whole: Path) -> None:
        """What pytest has compiled of the tests, which no mutant changes."""
        for compiled in (tree / "tests").rglob("*-pytest-*.pyc"):
            kept = whole / compiled.relative_to(tree)
            if not kept.exists():
                os.link(compiled, kept)


OPTIONS = (
    *("-x", "-q", "--tb=native", "-p", "no:cacheprovider", "-p", "no:xdist"),
    *("-W", "ignore:Module already imported"),  # by the parent, on purpose
    *("-k", "not speed and not quick"),  # which is no matter of privacy, and a slow machine would kill every mutant
)
LIBRARIES = (
    "dp_accounting.gaussian_mechanism",
    "dp_accounting.pld.privacy_loss_distribution",
    "dp_accounting.rdp",
    "hypothesis.extra.numpy",
    "matplotlib.pyplot",
    "mpmath",
    "numba",
    "opacus.accountants.analysis.prv",
    "pooch",
    "pydantic.main",
    "pytest_rerunfailures",
    "safetensors.torch",
    "scipy.integrate",
    "scipy.optimize",
    "scipy.signal",
    "scipy.stats",
    "sklearn.datasets",
    "torch.func",
    "typer.testing",
    "yaml",
)


def _import_libraries() -> None:
    """What takes seconds to import, here once for all children."""
    for name in LIBRARIES:
        importlib.import_module(name)
    import hypothesis
    import numba

    numba.njit("void()")(lambda: None)  # has it import what compiles
    # Else what hypothesis finds would depend on chance, and would be tried again in later runs of the real tests.
    # Nor is the simplest example of interest.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None, phases=phases)
    hypothesis.settings.load_profile("mutants")


def _compile_once(package: Path) -> None:
    """The package has its own modules compiled from their source, in each process anew; a child takes what is known of
    the very same bytes."""
    known = {}
    for file in package.rglob("*.py"):
        data = file.read_bytes()
        known[data] = compile(data, file, "exec", dont_inherit=True)
    anew = SourceFileLoader.source_to_code

    def source_to_code(self: SourceFileLoader, data: Any, path: Any, **options: Any) -> CodeType:
        code = known.get(bytes(data))
        return _placed(code, os.fspath(path)) if code else anew(self, data, path, **options)

    SourceFileLoader.source_to_code = source_to_code  # type: ignore[method-assign, assignment]


def _placed(code: CodeType, path: str) -> CodeType:
    """The code of a file as if it had been compiled at a path."""
    inner = tuple(_placed(one, path) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=path, co_consts=inner)


def _child(whole: Path, tree: Path, name: str, tests: Sequence[str]) -> None:
    """Build the tree, run its tests, write the verdict; does not return."""
    import pytest

    tree.mkdir()
    output = os.open(tree / "output.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    shutil.copytree(whole, tree, dirs_exist_ok=True, copy_function=os.link)
    for mutant in MUTANTS:
        if mutant.name == name:
            _mutate(tree / "dpfl_plugin", mutant)
    _use(tree)
    for name in ("CI", "BUILD_NUMBER"):  # there pytest shows all of a difference, for which it may take half an hour
        os.environ.pop(name, None)
    sys.dont_write_bytecode = False  # whatever this process was told: the children to come load what pytest compiled
    # This process began before its files were written, which would put all code in doubt; it loads them from here on.
    time.sleep(0.1)
    importlib.import_module("dpfl_plugin.loaded").BEGAN = time.time()
    plugin = _Verdict(tree)
    try:
        code = int(pytest.main([*OPTIONS, "--rootdir", str(tree), *tests], plugins=[plugin]))
    except Exception:  # after the tests: what a failed one left open is an error then
        traceback.print_exc()
        code = 1
    import dpfl_plugin

    assert Path(dpfl_plugin.__file__).is_relative_to(tree), "the tests ran on another package"
    verdict = plugin.verdict or (SURVIVED if code == 0 and plugin.passed else BROKEN)
    (tree / "verdict.json").write_text(json.dumps([verdict, plugin.by]))
    sys.stdout.flush()
    os._exit(0)


def _mutate(package: Path, mutant: Mutant) -> None:
    file = package / mutant.file
    text = mutant.applied(file.read_text())
    file.unlink()  # it is a link: the copy stays as it is
    file.write_text(text)
    stale = [*(file.parent / "__pycache__").glob(f"{file.stem}.*")]
    if mutant.file in KERNELS:
        stale += package.rglob("*.nb[ci]")
    for compiled in stale:
        compiled.unlink(missing_ok=True)


def _use(tree: Path) -> None:
    """Have this process, and those that it starts, import the package and the tests from a tree."""
    for module in [m for m in sys.modules if m.partition(".")[0] in ("tests", "dpfl_plugin")]:
        assert module.startswith("tests"), "the parent has imported the package"
        del sys.modules[module]
    os.chdir(tree)
    sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]
    os.environ.update(PYTHONPATH=str(tree), PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")


def serve() -> None:
    """A line of JSON [mutant, tests] on stdin gives a line with the result on stdout, until stdin ends."""
    with Workshop() as workshop:
        for line in sys.stdin:
            name, tests = json.loads(line)
            (result,) = workshop.all([(name, tests)])
            print(json.dumps(asdict(result)), flush=True)
