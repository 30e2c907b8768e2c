"""What a run is named by: code as it was loaded, the model that was made, and what is in doubt."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from dpfl_plugin.runs.foreign_code import Code, trace
from dpfl_plugin.runs.naming import model_facts
from torch import nn
from torch.nn import functional

from dpfl_plugin import loaded
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runtimes.mpi.session import check_code


def imported(path: Path, text: str) -> object:
    path.write_text(text)
    importlib.invalidate_caches()
    return importlib.import_module(path.stem)


def test_a_digest_is_of_what_was_loaded_and_not_of_the_file(folder: Path) -> None:
    module = imported(folder / "first.py", "def make():\n    return 1\n")
    before = trace([module.make])
    (folder / "first.py").write_text("def make():\n    return 2\n")
    assert trace([module.make]) == before and set(before.files) == {"first"} and not before.doubts
    importlib.reload(module)
    assert trace([module.make]).changes(before.facts) == [f"module first ({folder / 'first.py'}) changed"]


def test_sources_are_parsed_by_one_thread_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two silos of a process that begin together: CPython 3.11 fails where two threads parse (gh-106905)."""
    module = imported(folder / "twice.py", "def make():\n    return 1\n")
    real, at_once, most = ast.parse, Counter[str](), list[int]()

    def slow(source: bytes) -> ast.Module:
        at_once["now"] += 1
        most.append(at_once["now"])
        time.sleep(0.02)
        at_once["now"] -= 1
        return real(source)

    monkeypatch.setattr("dpfl_plugin.runs.foreign_code.ast.parse", slow)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: trace([module.make]), range(4)))
    assert most == [1] * 4 and all(set(code.files) == {"twice"} for code in found)


def test_imports_of_imports_count_whoever_loaded_them_first(folder: Path) -> None:
    """Here the last one first, so that nothing was loaded on behalf of the plugin."""
    imported(folder / "last.py", "VALUE = 1\n")
    imported(folder / "middle.py", "def late():\n    import last\n    return last.VALUE\n")
    module = imported(folder / "plugin.py", "def make():\n    from middle import late\n    return late()\n")
    found = trace([module.make])
    assert set(found.files) == {"plugin", "middle", "last"} and not found.doubts
    assert not loaded.asked_for_by("plugin") and not loaded.asked_for_by("middle")


def test_a_class_is_its_source_and_what_it_is_made_of_in_other_packages_is_their_version(
    folder: Path,
) -> None:
    """So that the name of a run with ``model=Net`` rests on no source of torch's, which does much that is not known."""
    imported(folder / "layers.py", "from torch import nn\nclass Base(nn.Module): ...\n")
    module = imported(folder / "nets.py", "import layers\nclass Net(layers.Base): ...\n")
    for plugin in (module.Net, module.Net()):
        found = trace([plugin])
        assert set(found.files) == {"layers", "nets"} and set(found.packages) == {"torch"} and not found.doubts


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(reduction="none"), functional.huber_loss, partial(functional.nll_loss), "torch.nn"]
)
def test_a_loss_of_torch_is_torchs_version(loss: object) -> None:
    """Not its source, as a plugin's own is."""
    found = trace([loss])
    assert not found.files and set(found.packages) == {"torch"} and not found.doubts


def test_bytecode_that_is_older_than_its_source_is_not_loaded(folder: Path) -> None:
    """Python trusts it by size and second of change: an edit within a second would run the old code."""
    module = imported(folder / "second.py", "VALUE = 1\n")
    changed = os.stat(folder / "second.py")
    importlib.import_module("py_compile").compile(str(folder / "second.py"))
    del sys.modules["second"]
    (folder / "second.py").write_text("VALUE = 2\n")
    os.utime(folder / "second.py", ns=(changed.st_atime_ns, changed.st_mtime_ns))
    assert importlib.import_module("second").VALUE == 2 and module.VALUE == 1


def test_what_was_loaded_by_other_means_is_in_doubt_if_it_is_newer_than_the_process(folder: Path) -> None:
    path = folder / "third.py"
    path.write_text("def make(): ...\n")
    spec = importlib.util.spec_from_file_location("third", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["third"] = module
    spec.loader.exec_module(module)
    (doubt,) = trace([module.make]).doubts
    assert "third" in doubt and "changed since this process began" in doubt
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loaded, "BEGAN", time.time() + 10)  # as of a process that began after the file was written
        assert not trace([module.make]).doubts


def test_a_process_knows_when_it_began() -> None:
    assert loaded.BEGAN is not None and 0 < time.time() - loaded.BEGAN < 36_000
    assert not loaded.changed_since_beginning([loaded.BEGAN - 1]) and loaded.changed_since_beginning([time.time()])


SCRIPT = """
import time, pathlib, sys
{before}
from dpfl_plugin import loaded
loaded.BEGAN = 0.0  # as where the clock of files is ahead: by its time alone, every file changed since
{after}
try:
    print(loaded.source_of(sys.modules["__main__"]).sha256)
except loaded.InDoubtError as error:
    print(error)
"""
REWRITE = 'pathlib.Path(__file__).write_text(pathlib.Path(__file__).read_text().replace("BEGAN = 0.0", "BEGAN = 1.0"))'


@pytest.mark.parametrize(("before", "after", "known"), [("", "", True), ("", REWRITE, True), (REWRITE, "", False)])
def test_a_script_is_known_by_the_code_that_is_running(folder: Path, before: str, after: str, known: bool) -> None:
    """Whatever its file's time, and whatever becomes of the file once the package is imported; not before."""
    path, text = folder / "script.py", SCRIPT.format(before=before, after=after)
    path.write_text(text)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if known:
        assert done.stdout.strip() == hashlib.sha256(text.encode()).hexdigest()
    else:
        assert "changed since this process began" in done.stdout


@pytest.mark.parametrize(
    "text",
    [
        "exec('x = 1')",
        "x = eval('1')",
        "import importlib",
        "import importlib.util as u",
        "from importlib import import_module",
        "import importlib.metadata\nx = importlib.import_module",
        "__import__('os')",
        "import pickle",
        "from pickle import load",
        "import ctypes",
        "import torch\nx = torch.hub",
        "def late():\n    import runpy",
    ],
)
def test_code_that_loads_code_is_in_doubt(folder: Path, text: str) -> None:
    module = imported(folder / "doubtful.py", text + "\ndef make(): ...\n")
    assert len(trace([module.make]).doubts) >= 1
    del sys.modules["doubtful"]


@pytest.mark.parametrize(
    "text",
    [
        "import re\nx = re.compile('a')",
        "import torch\nx = torch.nn.Linear(1, 1).eval()",
        "from importlib import metadata",
    ],
)
def test_code_that_only_sounds_like_it_is_not(folder: Path, text: str) -> None:
    module = imported(folder / "harmless.py", text + "\ndef make(): ...\n")
    assert not trace([module.make]).doubts
    del sys.modules["harmless"]


def test_objects_of_a_notebook_are_in_doubt() -> None:
    made = {"__name__": "__notebook__"}
    exec("def make(): ...", made)
    assert trace([made["make"]]).doubts


def test_installed_distributions_count_by_version_and_files(folder: Path) -> None:
    module = imported(folder / "uses.py", "import yaml\nimport torch\ndef make(): ...\n")
    found = trace([module.make])
    assert set(found.files) == {"uses"} and not found.doubts
    assert found.packages["torch"].startswith(torch.__version__.partition("+")[0])
    assert any(name.lower() == "pyyaml" for name in found.packages)


def test_the_package_itself_is_known_by_its_own_digest() -> None:
    from dpfl_plugin.algorithms.scaffold import Scaffold

    assert trace([Scaffold, Scaffold(local_steps=1, local_lr=1.0)]) == Code()


def test_what_changed_is_said() -> None:
    then = Code({"a": "1", "b": "2"}, {"torch": "2.0"}).facts
    now = Code({"b": "3", "c": "4"}, {"torch": "2.1"})
    assert now.changes(then) == ["module a is gone", "module b changed", "module c is new", "package torch changed"]


class Net(nn.Module):
    def __init__(self, scale: float = 1.0, frozen: bool = False, shift: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.scale = nn.Linear(3, 2), scale
        self.linear.bias.requires_grad_(not frozen)
        self.register_buffer("shift", torch.tensor(shift))


def test_another_model_has_other_facts() -> None:
    """Structure, attributes, parameters, frozen ones, buffers: whatever decided them, code, a file or a variable."""
    start = Net()
    with torch.no_grad():
        start.linear.weight[1, 1] += 1e-7
    models = [Net(), Net(scale=2.0), Net(frozen=True), Net(shift=1.0), start, nn.Sequential(Net()), Net().double()]
    found = [tuple(model_facts(model).values()) for model in models]
    assert len(set(found)) == len(found)
    assert model_facts(Net()) == model_facts(Net())


def test_ranks_of_other_code_are_refused() -> None:
    code, model = Code({"mine": "1"}).facts, {"structure": "s", "parameters": "p"}
    check_code({1: {"code": {"mine": "1"}, "model": model}}, code, model)
    with pytest.raises(ConfigError, match=r"rank 2 runs other code than rank 0 does: module mine\b.* changed"):
        check_code({2: {"code": {"mine": "2"}, "model": model}}, code, model)
    with pytest.raises(ConfigError, match=r"rank 2 .* the model that it makes is another"):
        check_code({2: {"code": {"mine": "1"}, "model": {**model, "parameters": "q"}}}, code, model)
