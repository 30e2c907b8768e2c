"""Users' own code is part of what a run is: edited code has other noise, and never an old result or an old run."""

from __future__ import annotations

import importlib
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.federation.experiment import Experiment
from dpfl_plugin.privacy.ledger import Ledger
from tests.cli.command import charges, dpfl, one_message, run, write
from tests.cli.test_resume import CHANGES, crash, same

# One round of one silo, so that what is released is the model; noise far above all gradients.
ONE: dict[str, Any] = {
    "rounds": 1,
    "data": {"num_silos": 1, "dataset": {"num_features": 300, "num_classes": 10, "records_per_silo": 30}},
    "algorithm": {"name": "fedavg", "local_steps": 1, "local_lr": 1.0},
    "privacy": {"noise_multiplier": 20.0},
    "model": {"name": None, "module": "mine.net:make"},
}
STD = 20.0 * 2.0 / 12  # sigma 2C / b
FILES = {
    "mine/__init__.py": "SCALE = 1.0\n",
    "mine/net.py": """
import torch
from . import part
from mine.sub.deep import BIAS

class Net(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = torch.nn.Linear(inputs, outputs)

    def forward(self, x):
        from mine.late import shift
        return self.linear(part.scaled(x)) + BIAS + shift()

def make(feature_shape, num_classes):
    return Net(feature_shape[0], num_classes)
""",
    "mine/part.py": "import mine\nimport helper\n\ndef scaled(x):\n    return mine.SCALE * helper.factor() * x\n",
    "mine/sub/deep.py": "BIAS = 0.0\n",  # of a package without __init__
    "mine/late.py": "def shift():\n    return 0.0\n",
    "helper.py": "from table import FACTORS\n\ndef factor():\n    return FACTORS['one']\n",
    "table.py": "FACTORS = {'one': 1.0}\n",
}


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules that `run` of this file loads anew each time, as another process would."""
    folder = tmp_path / "code"
    for name, text in FILES.items():
        edit(folder / name, text)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    forget()


def forget() -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in ("mine", "helper", "table"):
            del sys.modules[name]
    importlib.invalidate_caches()


def edit(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    forget()


def made(folder: Path, *args: object, changes: dict[str, Any] | None = None) -> tuple[torch.Tensor, dict[str, Any]]:
    """What a run in a folder of its own releases, and its result."""
    forget()
    folder.mkdir(exist_ok=True)
    result = run(write(folder, changes or ONE), *args)
    return torch.cat(
        [v.flatten() for _, v in sorted(load_file(Path(result["folder"]) / "model.safetensors").items())]
    ), result


def names(result: dict[str, Any]) -> set[str]:
    return {charge.noise_id for charge in charges(result["folder"])}


EDITS = (
    ("mine/net.py", "+ BIAS", "- BIAS"),
    ("mine/__init__.py", "1.0", "1.5"),
    ("mine/part.py", "helper.factor() *", "helper.factor() ** 2 *"),
    ("mine/sub/deep.py", "0.0", "0.5"),
    ("mine/late.py", "0.0", "0.5"),
    ("helper.py", "FACTORS['one']", "FACTORS['one'] * 2"),
    ("table.py", "1.0", "3.0"),
)


def test_edited_code_has_other_noise(tmp_path: Path, code: Path) -> None:
    """The difference of two uploads is that of two independent noises, whichever import of an import was edited.

    With noise in common it would be the difference of two gradients, of norm 2C at most: a std below 2 / sqrt(3,010).
    The estimate of d = 3,010 numbers is off by 5 of its standard deviations, 5 / sqrt(2 d), with probability 6e-7.
    """
    first, result = made(tmp_path / "first")
    again, repeated = made(tmp_path / "again")
    assert torch.equal(first, again) and names(result) == names(repeated), "the same code has the same bits"
    for number, (file, old, new) in enumerate(EDITS):
        edit(code / file, FILES[file].replace(old, new))
        other, edited = made(tmp_path / f"other {number}")
        edit(code / file, FILES[file])
        assert names(edited).isdisjoint(names(result)), file
        relative = float((first - other).std()) / (STD * math.sqrt(2))
        assert abs(relative - 1) < 5 / math.sqrt(2 * first.numel()) + 2 / (STD * math.sqrt(3010)), file


def test_a_module_that_changes_and_hands_on_what_is_ours_names_the_noise(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the configuration names there says that it is of another module."""
    monkeypatch.setattr(FedAvg, "changed_by_mine", 0.0, raising=False)
    rest = {key: value for key, value in ONE.items() if key != "model"}  # which would lead there, too
    found = []
    for scale in (1.0, 2.0):
        edit(
            code / "mine" / "patched.py",
            "from dpfl_plugin.algorithms.fedavg import FedAvg as Ours\n"
            f"Ours.changed_by_mine = {scale}\nassert Ours.__module__ != __name__\n",
        )
        algorithm = {"module": "mine.patched:Ours", "name": None, "local_steps": 1, "local_lr": 1.0}
        found.append(names(made(tmp_path / str(scale), changes={**rest, "algorithm": algorithm})[1]))
    assert found[0].isdisjoint(found[1])


def test_a_shared_ledger_charges_edited_code_as_a_run_of_its_own(tmp_path: Path, code: Path) -> None:
    ledger = tmp_path / "all.jsonl"
    _, first = made(tmp_path / "first", "--ledger", ledger)
    made(tmp_path / "again", "--ledger", ledger)
    assert len(Ledger.open(ledger, append=False)) == 1, "the very same run is charged once"
    edit(code / "table.py", "FACTORS = {'one': 3.0}\n")
    _, second = made(tmp_path / "other", "--ledger", ledger)
    assert len(Ledger.open(ledger, append=False)) == 2
    assert second["epsilon"]["server"]["epsilon"] >= first["epsilon"]["server"]["epsilon"]


def test_an_old_result_is_not_shown_for_edited_code(tmp_path: Path, code: Path) -> None:
    _, result = made(tmp_path / "first")
    config = tmp_path / "first" / "config.yaml"
    edit(code / "table.py", "FACTORS = {'one': 3.0}\n")
    done = dpfl("run", config, "--out", config.parent / "runs", "--json")
    one_message(
        done,
        "made with different code",
        f"module table ({code / 'table.py'}) changed",
        "another --out",
        "put the old one",
    )
    edit(code / "table.py", FILES["table.py"])
    assert run(config)["model_sha256"] == result["model_sha256"]
    shutil.rmtree(code / "mine")
    forget()
    done = dpfl("run", config, "--out", config.parent / "runs", "--json")
    assert done.code == 0 and "cannot be loaded any more" in done.err and done.json["id"] == result["id"]


def test_a_run_is_not_resumed_with_edited_code(tmp_path: Path, code: Path) -> None:
    changes = {**CHANGES, "model": ONE["model"]}
    _, whole = made(tmp_path / "whole", changes=changes)
    (tmp_path / "crashed").mkdir()
    forget()
    config = crash(write(tmp_path / "crashed", changes), 8)
    before = charges(next((tmp_path / "crashed").glob("runs/*/*/ledger.jsonl")).parent)
    edit(code / "table.py", "FACTORS = {'one': 3.0}\n")
    done = dpfl("run", config, "--out", config.parent / "runs", "--resume")
    one_message(done, "made with different code", "module table", "changed", "another --out", "stays spent")
    assert f"A command for it: dpfl run {config} --out {config.parent / 'runs'}-anew" in done.err
    edit(code / "table.py", FILES["table.py"])
    result = run(config, "--resume")
    same(result, whole)
    assert before <= charges(result["folder"])


@pytest.mark.parametrize("what", ["model", "algorithm"])
def test_a_run_is_not_resumed_with_another_model_of_the_same_code(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """As where it reads an environment variable, which no digest of sources shows."""
    monkeypatch.setenv("W", "1")
    if what == "model":
        text = FILES["mine/net.py"].replace(
            "super().__init__()", "super().__init__()\n        self.width = float(os.environ['W'])"
        )
        edit(code / "mine/net.py", "import os\n" + text.replace("part.scaled(x)", "self.width * part.scaled(x)"))
        changes = {**CHANGES, "model": ONE["model"]}
    else:
        edit(code / "mine/rule.py", RULE)
        changes = {
            **CHANGES,
            "algorithm": {"name": None, "module": "mine.rule:Mine", "local_steps": 1, "local_lr": 1.0},
        }
    config = crash(write(tmp_path, changes), 8)
    monkeypatch.setenv("W", "2")
    forget()
    said = {"model": "the model's structure", "algorithm": "what the algorithm or the mechanism holds"}[what]
    one_message(dpfl("run", config, "--out", tmp_path / "runs", "--resume"), said, "environment variable")


RULE = """
import os
from dpfl_plugin.algorithms.fedavg import FedAvg

class Mine(FedAvg):
    factor = float(os.environ["W"])
"""


DOUBTS = {
    "exec": "exec('TEN = 10')\n",
    "importlib": "import importlib\n",
    "pickle": "from pickle import loads\n",
    "torch.hub": "import torch\nload = torch.hub.load\n",
}


@pytest.mark.parametrize("what", [*DOUBTS, "bytecode", "edited before it was recorded"])
def test_in_doubt_noise_is_fresh_and_charged(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    changes, ledger = ONE, tmp_path / "all.jsonl"
    if what in DOUBTS:
        edit(code / "table.py", FILES["table.py"] + DOUBTS[what])
    elif what == "bytecode":
        import py_compile

        py_compile.compile(str(code / "table.py"), str(code / "table.pyc"))
        (code / "table.py").unlink()
    else:
        monkeypatch.setattr("dpfl_plugin.loaded._Finder.find_spec", classmethod(lambda cls, *given: None))
    first, result = made(tmp_path / "first", "--ledger", ledger, changes=changes)
    second, again = made(tmp_path / "second", "--ledger", ledger, changes=changes)
    assert not torch.equal(first, second) and names(result).isdisjoint(names(again))
    assert len(Ledger.open(ledger, append=False)) == 2
    log = (Path(again["folder"]) / "log.txt").read_text()
    assert log.count("noise is fresh") == 1 and str(code) in log


@pytest.mark.parametrize("what", ["a hook", "a generator", "a hidden option of a loss"])
def test_a_model_that_cannot_be_known_has_fresh_noise(tmp_path: Path, code: Path, what: str) -> None:
    """Nor has a loss; what they hold instead of what they are made of, no digest shows."""
    changes = ONE
    if what == "a hidden option of a loss":
        edit(code / "table.py", FILES["table.py"] + LOSS)
        changes = {**ONE, "loss": "table:loss"}
    else:
        line = {"a hook": "register_forward_hook(lambda *given: None)", "a generator": "rng = torch.Generator()"}[what]
        made_so = FILES["mine/net.py"].replace("super().__init__()", f"super().__init__()\n        self.{line}")
        edit(code / "mine/net.py", made_so)
    _, result = made(tmp_path / "first", changes=changes)
    _, again = made(tmp_path / "second", changes=changes)
    assert names(result).isdisjoint(names(again))
    assert "noise is fresh" in (Path(again["folder"]) / "log.txt").read_text()


@pytest.mark.parametrize("how", ["tensor", "private", "in a dict", "of a loss", "of a loss, the same"])
def test_attributes_that_a_variable_decides_name_the_noise(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The code is the same, and so are the parameters; the model computes something else."""
    value = "float(os.environ['W'])"
    made_of = {"tensor": f"width = torch.tensor({value})", "private": f"_width = {value}"}
    made_of |= {"in a dict": f"options = {{'width': {value}}}"}
    changes = ONE
    if how in made_of:
        text = FILES["mine/net.py"].replace("super().__init__()", f"super().__init__()\n        self.{made_of[how]}")
        used = {"tensor": "self.width", "private": "self._width", "in a dict": "self.options['width']"}[how]
        edit(code / "mine/net.py", "import os\n" + text.replace("part.scaled(x)", f"{used} * part.scaled(x)"))
    else:
        text = LOSS.replace("torch.Generator()", value)
        edit(code / "table.py", "import os\n" + FILES["table.py"] + text)
        changes = {**ONE, "loss": "table:loss"}
    found = []
    for number, width in enumerate(("1", "1" if "same" in how else "2")):
        monkeypatch.setenv("W", width)
        found.append(names(made(tmp_path / str(number), changes=changes)[1]))
    assert found[0] == found[1] if "same" in how else found[0].isdisjoint(found[1])


LOSS = """
import torch

def made(held):
    def loss(outputs, labels):
        assert held is not None
        return torch.nn.functional.cross_entropy(outputs, labels, reduction="none")
    return loss

loss = made(torch.Generator())
"""


def test_what_only_makes_the_records_may_be_in_doubt(tmp_path: Path, code: Path) -> None:
    """The records are known themselves."""
    edit(
        code / "table.py",
        "import pickle\nimport numpy as np\nfrom dpfl_plugin.data.base import Dataset\n\ndef records(source):\n"
        "    x = np.arange(160.0, dtype='float32').reshape(40, 4)\n"
        "    return Dataset(features=x % 7, labels=np.arange(40) % 2, num_classes=2)\n",
    )
    data = {"dataset": {"name": None, "module": "table:records"}, "partition": "iid", "num_silos": 4}
    for key in ("num_features", "num_classes", "records_per_silo"):
        data["dataset"][key] = None
    first, result = made(tmp_path / "first", changes={"data": data})
    second, again = made(tmp_path / "second", changes={"data": data})
    assert torch.equal(first, second) and names(result) == names(again)


def test_a_run_in_doubt_goes_on_with_fresh_noise(tmp_path: Path, code: Path) -> None:
    edit(code / "table.py", FILES["table.py"] + DOUBTS["exec"])
    config = crash(write(tmp_path, {**CHANGES, "model": ONE["model"]}), 8)
    folder = next(tmp_path.glob("runs/*/*/ledger.jsonl")).parent
    before = charges(folder)
    run(config, "--resume")
    later = charges(folder) - before
    assert {charge.round for charge in before} & {charge.round for charge in later}
    assert {c.noise_id for c in before}.isdisjoint(c.noise_id for c in later)


def test_code_that_is_edited_before_it_is_imported_late_ends_the_run(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of what the other code made is used, and the run says which file it was."""
    late = FILES["mine/net.py"].replace("from mine.late import shift", "shift = late_shift(x)")
    late = late.replace("+ shift()", "+ shift").replace(
        "class Net", "def late_shift(x):\n    if len(x) > 12:\n        import table\n    return 0.0\n\nclass Net"
    )
    edit(code / "mine/net.py", late)
    edit(code / "helper.py", "def factor():\n    return 1.0\n")
    real = Experiment.run

    def edited(self: Experiment, *given: Any, **more: Any) -> Any:
        sys.modules.pop("table", None)
        (code / "table.py").write_text("FACTORS = {'one': 1.0}\n# edited\n")
        return real(self, *given, **more)

    monkeypatch.setattr(Experiment, "run", edited)
    config = write(tmp_path, {**ONE, "engine": "vmap"})
    done = dpfl("run", config, "--out", tmp_path / "runs", "--json")
    assert done.code == 1 and "module table" in done.err and "not what the run was named for" in done.err
    assert done.json["status"] == "failed" and done.json["rounds"] == 0


def test_a_sweep_does_not_mix_old_results_with_edited_code(tmp_path: Path, code: Path) -> None:
    config = write(tmp_path, {**ONE, "sweep": {"seeds": 1}})
    sweep = ["sweep", config, "--out", tmp_path / "sweeps"]
    assert dpfl(*sweep).code == 0 and dpfl(*sweep).code == 0
    edit(code / "table.py", "FACTORS = {'one': 3.0}\n")
    one_message(dpfl(*sweep), "finished runs of this sweep", "module table", "another --out")
