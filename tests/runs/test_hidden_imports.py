"""Sources that may load or make code which no import names are in doubt; others are not."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
from dpfl_plugin.runs.foreign_code import trace
from dpfl_plugin.runs.hidden_imports import unseen

import dpfl_plugin
from dpfl_plugin import loaded

PATH = "__file__"


@pytest.mark.parametrize(
    "text",
    [
        # Builtins, whatever they are called.
        "import builtins\nbuiltins.exec('x = 1')",
        "from builtins import exec as run",
        "from builtins import *",
        "import os\nos.sys.modules['builtins'].exec('x = 1')",
        "x = __builtins__",
        "run = print.__self__.exec\nx = (lambda: 0).__globals__",
        "x = globals()['exec']",
        "x = vars()['exec']",
        "x = [k for k in ().__class__.__base__.__subclasses__()]",
        # Loaders of code, data that is code, and other programs.
        "import pkgutil\nx = pkgutil.resolve_name('os:getcwd')",
        "from pydoc import locate",
        "from dpfl_plugin.registry import load_object",
        "from dpfl_plugin import registry as r",
        "import dpfl_plugin\nx = dpfl_plugin.registry.load_object",
        "import dpfl_plugin.loaded as l",
        "import shelve",
        "import marshal",
        "import cffi",
        "import zipimport",
        "import subprocess",
        "import multiprocessing.pool",
        "from os import system",
        "import os as o\no.popen('true')",
        "from importlib.metadata import entry_points",
        "import numpy as np\nx = np.load(" + PATH + ", allow_pickle=True)",
        "import numpy as np\nx = np.load(" + PATH + ")",
        "import torch\nx = torch.load(" + PATH + ", weights_only=False)",
        "import torch\nx = torch.load(" + PATH + ")",
        "import torch\nsafe = False\nx = torch.load(" + PATH + ", weights_only=safe)",
        "import torch\nx = map(torch.load, [])",
        "from torch import load as read",
        "from torch import *",
        "import torch as t\nx = t.jit.load",
        "import torch\nt = torch\nu = t\nx = u.hub",
        "import torch\nx = (t := torch).package",
        "import torch\nx = torch.ops.load_library",
        "from torch.utils import cpp_extension",
        "import torch.utils.cpp_extension as c",
        # Names that are not written, and modules that go where they are not followed.
        "import torch\nname = 'lo' + 'ad'\nx = getattr(torch, name)",
        "import torch\nx = getattr(torch, 'load')",
        "import torch\nx = getattr(getattr(torch, 'jit'), 'load')",
        "import torch\nx = vars(torch)['load']",
        "import torch\nx = torch.__dict__['load']",
        "import torch\nx = [torch]",
        "import torch\ndef late(t=torch):\n    return t.load",
        "import torch\ndef late():\n    return torch",
        "from operator import attrgetter",
        "import sys\nx = sys.modules",
        "import sys\nx = sys._getframe",
        "from types import FunctionType",
    ],
)
def test_code_that_may_load_code_is_in_doubt(text: str) -> None:
    assert list(unseen(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nx = torch.nn.Linear(1, 1).eval()\ny = torch.compile\nz = torch.nn.functional.relu",
        "import torch.nn.functional as F\nimport numpy as np\nx = F.relu\ny = np.asarray([1.0]).sum()",
        "from torch import nn, Tensor\nclass Net(nn.Module):\n"
        "    def forward(self, x: Tensor):\n        return getattr(self, 'a' + 'b')(x)",
        "import torch\nt = torch\nx = t.ones(3)\ny = getattr(torch, 'ones')\nz = hasattr(torch, 'xpu')",
        "import torch\nx = torch.load(" + PATH + ", weights_only=True)",
        "import numpy\nx = numpy.load(" + PATH + ", allow_pickle=False)",
        "from importlib import metadata, resources\nx = metadata.version('torch')",
        "import json, math, os, re, sys\nx = json.load, re.compile, os.environ, os.path.join, sys.path.insert",
        "from math import *\nfrom . import code\nfrom .pickle import load",
        "import yaml\nwith open(" + PATH + ") as f:\n    x = yaml.safe_load(f)",
        "self = object()\nx = vars(self) if hasattr(self, '__dict__') else None",
        "from dpfl_plugin.algorithms.base import RoundPlan\nfrom dpfl_plugin.core.vectors import Vectors",
    ],
)
def test_code_that_names_what_it_uses_is_not(text: str) -> None:
    assert list(unseen(ast.parse(text))) == []


PLUMBING = ("build", "attributes", "global_names", "fixed")  # not what a user writes: they load models, or look at them


@pytest.mark.parametrize("folder", ["models", "algorithms"])
def test_ordinary_models_and_algorithms_are_not_in_doubt(folder: str) -> None:
    """The project's own, as users would copy them."""
    found = (Path(dpfl_plugin.__file__).parent / folder).glob("*.py")
    paths = [path for path in found if path.stem not in PLUMBING]
    assert len(paths) > 3
    for path in paths:
        assert list(unseen(ast.parse(path.read_text()))) == [], path


def test_modules_that_were_loaded_on_behalf_of_a_plugin_count_however_it_loaded_them(folder: Path) -> None:
    """Here by a function that nobody suspects: the finder of modules sees who is running."""
    (folder / "asked_helper.py").write_text("VALUE = 1\n")
    (folder / "asked_other.py").write_text("VALUE = 1\n")
    (folder / "asked_plugin.py").write_text(
        "def make(find):\n    return find('asked_helper').VALUE\n\ndef other():\n    return 1\n"
    )
    importlib.invalidate_caches()
    plugin = importlib.import_module("asked_plugin")
    importlib.import_module("asked_other")  # nobody's
    assert set(trace([plugin.make]).files) == {"asked_plugin"}
    plugin.make(importlib.import_module)
    found = trace([plugin.make])
    assert set(found.files) == {"asked_plugin", "asked_helper"} and not found.doubts
    assert loaded.asked_for_by("asked_plugin") == ["asked_helper"] and not loaded.asked_for_by("asked_other")
    assert set(trace([plugin.make], asked=False).files) == {"asked_plugin"}
