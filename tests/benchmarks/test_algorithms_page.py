"""What docs/algorithms.md says that was measured or computed."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from benchmarks import fedavg_sync, scaffnew
from benchmarks.pages import ROOT
from benchmarks.table import table
from dpfl_plugin import registry
from dpfl_plugin.config.load import load
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.events import SampledGaussian, Term

PAGE = (ROOT / "docs" / "algorithms.md").read_text()


@pytest.mark.parametrize("name", registry.names("algorithms"))
def test_every_algorithm_has_a_section_with_a_picture(name: str) -> None:
    """Else: a heading that names it, and `python -m benchmarks.algorithms` with its name in a task's ``drawn``."""
    sections = re.split(r"^#+ ", PAGE, flags=re.MULTILINE)[1:]
    headings = [text.partition("\n")[0] for text in sections]
    (section,) = (s for s, h in zip(sections, headings, strict=True) if f"`{name}`" in h or name in h.split(", "))
    picture = f"pictures/algorithms/{'mr_mtl' if name == 'local' else name}.png"  # its point without a pull
    assert f"]({picture})" in section
    file = ROOT / "docs" / picture
    assert file.read_bytes().startswith(b"\x89PNG") and file.stat().st_size < 60_000


@pytest.mark.parametrize("name", registry.names("algorithms"))
def test_every_algorithm_has_a_configuration_that_the_page_names(name: str) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    of = [row for row in rows if row.startswith(f"| `{name}` |")] or [
        row for row in rows if row.startswith("| `mb_sgd`")
    ]
    (link,) = re.findall(r"\((\.\./configs/[^)]*)\)", of[0])
    names = {variant.config.algorithm.name for variant in load(ROOT / "docs" / link).variants}
    assert name in names


def test_the_table_of_claims_is_current() -> None:
    """Else: python -m benchmarks.fedavg_sync"""
    rows = fedavg_sync.rows()
    claimed, proven, sampled = (float(row[1]) for row in rows)
    assert sampled < claimed < proven
    titles = [f"epsilon after {n} round" + ("s" if n > 1 else "") for n in fedavg_sync.ROUNDS]
    assert table(["", *titles], rows) in (ROOT / "docs" / "algorithms.md").read_text()


@pytest.mark.parametrize("epsilon", [1.0, 300.0])
def test_all_releases_together_have_the_epsilon_that_was_asked_for(epsilon: float) -> None:
    """By another accountant than the one that was solved for."""
    multiplier = scaffnew.noise_multiplier(epsilon, 1e-3, 12)
    release = SampledGaussian(
        noise_multiplier=multiplier, sampler="full", rate=1.0, neighbouring="replace_one", unit="silo"
    )
    assert PLD().epsilon([Term(release=release, count=1, rounds=12)], 1e-3) == pytest.approx(epsilon, rel=1e-3)
    assert scaffnew.noise_multiplier(math.inf, 1e-3, 12) == 0


def test_sweeps() -> None:
    sweep = scaffnew.Sweep((1, 2, 4), [[3.0, 1.0, 1.05], [0.1, 0.2, 0.3]])
    assert [sweep.best(0), sweep.best(1)] == [2, 1] and [sweep.near(0), sweep.near(1)] == [[2, 4], [1]]


def test_the_gap_of_gradient_descent(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """p = 1 without noise: F(x_T) - F* <= (1 - mu/L)^T (F(0) - F*), and F(0) = log 2."""
    monkeypatch.setenv("DPFL_DATA", str(data_folder))
    if not (data_folder / "mushrooms").is_dir():
        pytest.skip(f"{data_folder} has no mushrooms")
    plan, first = scaffnew.planner(0, 1000.0), math.log(2) - scaffnew.problem(0).best
    assert 0 < scaffnew.gap(0, 1.0, math.inf, 8) <= (1 - plan.mu / plan.L) ** 8 * first
    assert scaffnew.gap(0, 1.0, 1000.0, 8) != scaffnew.gap(0, 1.0, math.inf, 8)
