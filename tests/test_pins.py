"""The pins of the platforms' environments, beside those of the project's own."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def pins(name: str) -> dict[str, str]:
    lines = (line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines())
    return dict(line.split("==") for line in lines if line)


@pytest.mark.parametrize("platform", ["fedml", "flower"])
def test_platforms_have_the_compiled_loops_and_those_of_the_project(platform):
    """Without them a small model trains three times as long there; another version of them has other last bits."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "dpfl-plugin[fast]" in declared[platform]
    own, theirs = pins("constraints.txt"), pins(f"constraints-{platform}.txt")
    assert [theirs.get(one) for one in ("llvmlite", "numba")] == [own["llvmlite"], own["numba"]]
