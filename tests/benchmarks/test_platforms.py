"""What benchmarks.platforms does to the example projects; the times themselves need the platforms."""

import re
import shutil

import pytest

from benchmarks.pages import ROOT
from benchmarks.platforms import FEDML, FLOWER, PLACES, VARIANTS, _prepare, lines


@pytest.mark.parametrize(("page", "example"), [("flower", FLOWER), ("fedml", FEDML)])
def test_lines_are_those_that_the_page_shows(page, example):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    (shown,) = re.findall(r"```diff\n(.*?)```", text, re.DOTALL)
    changed = [line for line in shown.splitlines() if not line.startswith(("+++", "---"))]
    assert lines(example) == tuple(sum(line.startswith(sign) for line in changed) for sign in "+-")


@pytest.mark.parametrize(
    ("place", "variant"),
    [pytest.param(place, variant, id=f"{place.name}, {variant}") for place in PLACES for variant in place.variants],
)
def test_projects_are_given_a_clock_and_nothing_else_but_what_the_variant_says(tmp_path, place, variant):
    before = place.example / VARIANTS[variant]
    shutil.copytree(before, tmp_path / "project")
    private = VARIANTS[variant] == "private"
    _prepare(place, tmp_path / "project", variant)
    for path in sorted((tmp_path / "project").rglob("*.py")):
        compile(path.read_text(), str(path), "exec")
    settings = "pyproject.toml" if place.example == FLOWER else "fedml_config.yaml"
    found = (tmp_path / "project" / settings).read_text()
    assert ("noise_multiplier" in found) == ("noise 0" in variant)
    assert ("epsilon" in found) == (private and "noise 0" not in variant)
    assert ('backend: "MPI"' in found) == ("MPI" in place.name)
