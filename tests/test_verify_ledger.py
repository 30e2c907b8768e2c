"""`tools/verify_ledger.py`, a reader's own check: it finds what was changed, and states no less than the truth."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dpfl_plugin as dpfl
from dpfl_plugin.privacy.ledger import Ledger
from tests.cli.command import run, write

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tools" / "verify_ledger.py"
EPSILON = re.compile(r"epsilon at most ([0-9.]+)")


def verify(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, path], capture_output=True, text=True, timeout=300)


def test_it_uses_nothing_of_this_package() -> None:
    names = {
        alias.name.partition(".")[0]
        for node in ast.walk(ast.parse(SCRIPT.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in ([ast.alias(node.module or "")] if isinstance(node, ast.ImportFrom) else node.names)
    }
    assert names - set(sys.stdlib_module_names) == {"dp_accounting"} and len(SCRIPT.read_text().splitlines()) <= 150


def test_the_test_vectors_of_the_docs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "ledger.md").read_text()
    (vectors,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "ledger.jsonl"
    path.write_text(vectors)
    done = verify(path)
    assert done.returncode == 0 and EPSILON.findall(done.stdout) == ["0.3751", "0.3751"], done.stderr
    ours = dpfl.Ledger.open(path).epsilon(1e-5)
    assert f"{ours:.4f}" == "0.2318" and page.count("0.2318") == page.count("0.3751") == 2
    assert f"{0.3751 / ours - 1:.0%}" == "62%" and "62 % more" in page
    for at, (changed, what) in enumerate([('"count":2', "line 2"), ('"ledger":1', "line 1")]):
        broken = tmp_path / f"{at}.jsonl"
        broken.write_text(vectors.replace(changed, changed[:-1] + "3", 1))
        done = verify(broken)
        assert done.returncode == 1 and what in done.stderr
    path.write_text(vectors.rstrip("\n"))  # a line without its end
    assert "cut off" in verify(path).stdout


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["fixed", "poisson", "full"])
def test_its_epsilon_is_no_smaller_than_ours(tmp_path: Path, sampler: str) -> None:
    privacy = {"sampler": sampler, "randomness": "fresh"} | ({"record_rate": None} if sampler == "full" else {})
    path = write(tmp_path, {"privacy": privacy, "private_evaluation": {"noise_multiplier": 8.0, "share": 0.25}})
    for _ in range(2):
        result = run(path, "--ledger", tmp_path / "all.jsonl", "--out", tmp_path / str(_))
    own = Path(result["folder"]) / "ledger.jsonl"
    epsilons = dpfl.Ledger.open(own).epsilons(1e-5)
    found = [float(epsilon) for epsilon in EPSILON.findall(verify(own).stdout)]
    assert len(found) == len(epsilons) and all(a >= b for a, b in zip(found, epsilons.values(), strict=True))
    shared = verify(tmp_path / "all.jsonl").stdout
    assert shared.count("run ") == 2 and sorted(map(float, EPSILON.findall(shared))) == sorted(2 * found)
    assert f"last checksum: {Ledger.open(own, append=False).head}" in verify(own).stdout
