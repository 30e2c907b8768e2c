"""The commands of docs/commands.md, as they are printed and in their order: each works after those before it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.cli.command import dpfl

# Its sweep makes processes of its own, which a busy machine may hold up.
pytestmark = [pytest.mark.slow, pytest.mark.flaky(reruns=1)]
ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    """The lines of the page's block, without what they say of themselves; the README shows some of them."""
    (block,) = re.findall(r"```sh\n(.*?)```", COMMANDS, re.DOTALL)
    (shown,) = [text for text in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) if "my-run.yaml" in text]
    lines, few = ([re.split(r"\s+#", line)[0] for line in text.splitlines() if line.strip()] for text in (block, shown))
    assert set(few) <= set(lines)
    return lines


def silos(folder: Path) -> None:
    """Files as the README's configuration names them."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for silo in range(3):
        lines = ["patient_id,age,pressure,diagnosis"]
        for record in range(60):
            age, pressure = rng.normal(size=2).round(4)
            lines.append(f"{1000 * silo + record},{age},{pressure},{'ill' if age + pressure > 0 else 'healthy'}")
        (folder / f"{silo}.csv").write_text("\n".join(lines) + "\n")


def shortened_sweep() -> str:
    values = yaml.safe_load((ROOT / "configs" / "sweep.yaml").read_text(encoding="utf-8"))
    values |= {"rounds": 2, "sweep": {"grid": {"algorithm.local_lr": [0.5, 1.0]}, "seeds": 1}}
    return yaml.safe_dump(values)


def finished(folder: Path, named: str) -> str:
    """A run that is done, in the place of its id."""
    runs = sorted(folder.glob(named.replace("<id>", "*")))
    return str(next(path for path in runs if (path / "result.json").exists()))


def test_each_works_after_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer rounds and seeds, for the sake of time; everything else is as printed. Ranks have tests of their own."""
    monkeypatch.chdir(tmp_path)
    silos(tmp_path / "silos")
    (tmp_path / "new.csv").write_bytes((tmp_path / "silos" / "0.csv").read_bytes())
    (text,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert "rounds: 40\n" in text
    (tmp_path / "my-run.yaml").write_text(text.replace("rounds: 40\n", "rounds: 3\n"))
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "sweep.yaml").write_text(shortened_sweep())
    (tmp_path / "configs" / "tuning.yaml").write_text((ROOT / "configs" / "tuning.yaml").read_text())
    tried = []
    for line in commands():
        program, *words = shlex.split(line)
        if program == "launchers/mpirun":
            continue
        assert program == "dpfl", line
        if "<id>" in line:
            words = [finished(tmp_path, word) if word.endswith("/<id>") else word for word in words]
        more = {"attack": ["--repeats", "1"]}
        done = dpfl(*words, *more.get(words[0], []))
        assert done.code == 0 or words[0] == "doctor", f"{line}\n{done.out}{done.err}"
        assert done.out.strip() or done.err.strip(), line
        tried.append(words[0])
    assert set(tried) >= {"run", "account", "plan", "audit", "attack", "sweep", "status", "report", "list", "new"}
