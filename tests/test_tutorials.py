"""What tutorials say is what happens: their files, their code, and the numbers that do not depend on noise."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from glob import glob
from pathlib import Path

import pytest
from safetensors.torch import load_file

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
    trained = text.partition("$ dpfl run")[2].splitlines()[0]
    assert dpfl("run", *trained.split(), "--set", "rounds=2").code == 0
    lines = [line for block in blocks("hospitals", "sh") for line in block.splitlines() if "/hospitals/* " in line]
    for line in lines:
        command, pattern, *others = shlex.split(line, comments=True)[1:]
        done = dpfl(command, *glob(pattern), *others)
        assert done.code == 0, done.err
    assert len(lines) == 2 and {path.name for path in Path("my-model").iterdir()} >= {"README.md", "privacy.md"}


def test_six_hospitals_train_over_a_folder_as_the_page_says(hospitals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell's own lines, with a stand-in for `dpfl` that writes down what it is asked; then that, step by step."""
    words = ("keys new", "limits/", "mailbox")
    made = [block for block in blocks("hospitals", "sh") if any(word in block for word in words)]
    for name in ("server", *(path.stem for path in Path("silos").glob("*.csv"))):
        Path(f"{name}.line").write_text(dpfl("keys", "new", name).out)
    stand_in = """dpfl() {
      if [[ $1 == keys ]]; then cat "$3.line"; else echo "${DPFL_LIMITS:-}|$*" >> started; fi
    }"""
    environment = {key: value for key, value in os.environ.items() if key != "DPFL_LIMITS"}
    shell = "\n".join([stand_in, *made, "wait"])
    subprocess.run(["bash", "-ec", shell], check=True, cwd=hospitals, env=environment, capture_output=True)
    started = [line.split("|") for line in (hospitals / "started").read_text().splitlines()]
    asked = [(limits, words.split()) for limits, words in started if words.split()[0] in ("server", "silo")]
    assert [words[0] for _, words in asked].count("silo") == 6 and [words[0] for _, words in asked].count("server") == 1
    monkeypatch.chdir(hospitals)
    for _ in range(3):  # two rounds, and their end
        for limits, words in sorted(asked, key=lambda one: one[1][0] == "silo"):
            if limits:
                monkeypatch.setenv("DPFL_LIMITS", limits)
            else:
                monkeypatch.delenv("DPFL_LIMITS", raising=False)
            done = dpfl(*words, "--once", "--set", "rounds=2")
            assert done.code in (0, 6), done.err
    monkeypatch.delenv("DPFL_LIMITS")
    assert all(value.isfinite().all() for value in load_file("hospitals-server/model.safetensors").values())
    for limits, words in asked:
        if words[0] == "silo":
            monkeypatch.setenv("DPFL_LIMITS", limits)
            name = Path(words[-1]).stem
            assert Path(limits).stem == name == Path(words[words.index("--key") + 1]).stem
            (folder,) = (hospitals / f"at-{name}").glob("silo-*")
            assert "a factor of at most e^4 (about 55 times)" in (folder / "privacy.md").read_text()
            shown = dpfl("limits")
            assert shown.code == 0 and f"at-{name}" in shown.out.replace("\n", ""), shown.err


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
    brake = dpfl("run", "brake.yaml", *plain, "--set", "algorithm.brake=0").json
    fedavg = dpfl("run", "brake.yaml", *plain, "--set", "algorithm.name=fedavg").json
    assert brake["id"] != fedavg["id"]
    assert brake["test_accuracy"] == fedavg["test_accuracy"]
