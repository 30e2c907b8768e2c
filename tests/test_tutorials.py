"""What tutorials say is what happens: their files, their code, and the numbers that do not depend on noise."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dpfl_plugin.adapters import Silo
from dpfl_plugin.core.rounding import odds
from tests.cli.command import dpfl

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
HOSPITALS = ROOT / "examples" / "hospitals"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (TUTORIALS / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example with its records; the working folder."""
    folder = tmp_path / "my-hospitals"
    shutil.copytree(HOSPITALS, folder)
    monkeypatch.chdir(folder)
    runpy.run_path(str(folder / "make_silos.py"))
    return folder


def program(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_hospitals_configuration_is_the_examples_and_trains(hospitals: Path) -> None:
    (shown,) = blocks("hospitals", "yaml")
    assert shown == (HOSPITALS / "hospitals.yaml").read_text(encoding="utf-8")
    done = dpfl("run", "hospitals.yaml", "--set", "rounds=2")
    assert done.code == 0, done.err
    names = [path.stem for path in Path("silos").glob("*.csv")]
    assert any(f"({name})" in done.out for name in names), done.out  # each file is a silo; which is worst goes by noise


def test_the_model_of_the_hospitals_is_checked_and_used_as_the_page_says(hospitals: Path) -> None:
    """Its commands, but for those that start processes, in their order."""
    text = (TUTORIALS / "hospitals.md").read_text(encoding="utf-8")
    (checked,) = re.findall(r"```console\n\$ dpfl (check .*)\n((?:.|\n)*?)```", text)
    done = dpfl(*checked[0].split())
    assert done.code == 0 and (done.err + done.out).split() == checked[1].split()
    assert dpfl("run", "hospitals.yaml", "--set", "rounds=2").code == 0
    (folder,) = map(str, Path("runs/hospitals").iterdir())
    lines = [line for block in blocks("hospitals", "sh") for line in block.splitlines() if " runs/hospitals/* " in line]
    for line in lines:
        done = dpfl(*shlex.split(line, comments=True)[1:2], folder, *shlex.split(line, comments=True)[3:])
        assert done.code == 0, done.err
    assert len(lines) == 2 and {path.name for path in Path("my-model").iterdir()} >= {"README.md", "privacy.md"}


def test_six_hospitals_train_over_files(hospitals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As threads instead of processes, without limits: records reach a silo from its own file only."""
    federation = program(hospitals / "federation.py")
    monkeypatch.setitem(federation.SETTINGS, "rounds", 2)
    monkeypatch.setattr(
        federation,
        "Silo",
        lambda agreement, silo, *rest: Silo(
            agreement, silo, *rest, hospitals / f"silo-{silo}", surroundings="simulation"
        ),
    )
    files = sorted(Path("silos").glob("*.csv"))
    others = [threading.Thread(target=federation.answer, args=(i, str(file))) for i, file in enumerate(files)]
    for one in others:
        one.start()
    federation.serve()
    for one in others:
        one.join()
    state = torch.load("model.pt")
    assert len(files) == 6 and all(value.isfinite().all() and value.any() for value in state.values())
    for silo in range(6):
        assert "a factor of at most e^4 (about 55 times)" in (hospitals / f"silo-{silo}" / "privacy.md").read_text()


def test_the_hospitals_limits_are_made_and_found_as_the_page_says(
    hospitals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell's own lines, with a stand-in for the process that they start; it says which limits it was given."""
    made = [block for block in blocks("hospitals", "sh") if "limits/" in block and "python" in block]
    shell = 'python() { echo "$DPFL_LIMITS|$3|$4" >> started; }\n' + "".join(made) + "wait\n"
    subprocess.run(["bash", "-ec", shell], check=True, cwd=hospitals)
    started = sorted(line.split("|") for line in (hospitals / "started").read_text().splitlines())
    assert sorted(number for _, number, _ in started) == ["0", "1", "2", "3", "4", "5"]
    for limits, _, file in started:
        assert Path(limits).stem == Path(file).stem and Path(file).exists()
        monkeypatch.setenv("DPFL_LIMITS", limits)
        shown = dpfl("limits")
        assert shown.code == 0 and f"at-{Path(file).stem}" in shown.out.replace("\n", ""), shown.err


def test_what_plan_and_account_print(hospitals: Path) -> None:
    """Each line that is shown is among those printed, but for the widths of columns."""
    tried = 0
    for block in blocks("epsilon", "console"):
        command, *shown = block.splitlines()
        words = shlex.split(command.removeprefix("$ dpfl "))
        if words[0] in ("plan", "account"):  # what others print depends on noise
            printed = {" ".join(line.split()) for line in dpfl(*words).out.splitlines()}
            assert {" ".join(line.split()) for line in shown} <= printed
            tried += 1
    assert tried == 2


def test_the_commands_of_the_first_steps_work_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From `dpfl init` to predictions, as docs/start.md prints them, the name of the run's folder included."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    blocks = [
        block for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "run.yaml" in block or "predict" in block
    ]
    ran = []
    for line in "".join(blocks).splitlines():
        program, *words = shlex.split(line, comments=True)
        if program == "cd":
            monkeypatch.chdir(words[0])
            continue
        done = dpfl(*words)
        assert done.code == 0, f"{line}\n{done.err}"
        ran.append(words[0])
    assert ran == ["init", "account", "run", "predict", "predict"]


@pytest.mark.parametrize("page", ["README", "docs/faq", "docs/tutorials/epsilon", "docs/tutorials/hospitals"])
def test_odds(page: str) -> None:
    text = (ROOT / f"{page}.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d.]+) \| (about [\d.,]+ times) \|", text, re.MULTILINE)
    rows += re.findall(r"e\^([\d.]+) (?:is )?\(?(about [\d.,]+ times)", text)
    rows += [("1", times) for times in re.findall(r"\be \((about [\d.,]+ times)", text)]
    assert rows
    assert rows == [(epsilon, odds(float(epsilon))) for epsilon, _ in rows]


def test_the_algorithm_trains_and_without_its_brake_it_is_fedavg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, contract = blocks("algorithm", "python")
    (config,) = blocks("algorithm", "yaml")
    assert 'algorithm = {"module": "brake:Brake"' in contract
    (tmp_path / "brake.py").write_text(code)
    (tmp_path / "brake.yaml").write_text(config)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "brake", None)  # what is imported here is gone afterwards
    del sys.modules["brake"]
    assert dpfl("run", "brake.yaml", "--set", "rounds=2").code == 0
    plain = ["--variant", "braking, not private", "--json", "--set", "rounds=2"]
    plain += ["--set", "privacy.sampler=full", "--set", "privacy.record_rate=null"]  # else each draws its own batches
    brake = dpfl("run", "brake.yaml", *plain, "--set", "algorithm.brake=0").json
    fedavg = dpfl("run", "brake.yaml", *plain, "--set", "algorithm.name=fedavg").json
    assert brake["id"] != fedavg["id"]
    assert brake["test_accuracy"] == fedavg["test_accuracy"]
