"""The package as it is published: what `python -m build` makes holds all that it needs, and runs without a clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dpfl_plugin.api.projects import rendered_package as rendered

ROOT = Path(__file__).resolve().parents[1]
# What lies beside the package in a checkout, and has to stay out of the wheel; the sdist takes what its build needs.
BESIDE = ("tests", "benchmarks", "configs", "docs", "papers")
ALONE = ("PYTHONPATH", "PYTHONHOME", "DPFL_DATA")  # of this process; the installed package does without them
pytestmark = pytest.mark.slow


def done(*command: object, folder: Path, without: tuple[str, ...] = ALONE) -> str:
    """What a command printed."""
    environment = {key: value for key, value in os.environ.items() if key not in without} | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def built(folder: Path) -> Path:
    """The wheel, built from the sdist, which is built from a copy of the checkout: nothing is left in this one."""
    pytest.importorskip("build", reason="build is not installed: launchers/env dev")
    source = folder / "source"
    for name in ("dpfl_plugin", *BESIDE):
        shutil.copytree(
            ROOT / name,
            source / name,
            ignore=shutil.ignore_patterns("__pycache__", *(["runs"] if name in BESIDE else [])),
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    # Without isolation: with the setuptools that is here, and no network.
    done(sys.executable, "-m", "build", "--no-isolation", source, folder=source, without=())
    names = sorted(path.name for path in (source / "dist").iterdir())
    assert len(names) == 2 and names[0].endswith(".whl") and names[1].endswith(".tar.gz"), names
    return source / "dist" / names[0]


def installed(wheel: Path, home: Path) -> Callable[..., str]:
    """Runs a program of an environment that has the wheel, and sees what else is installed here."""
    venv.create(home, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "--disable-pip-version-check"]
    done(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, folder=home)
    # After it, so that pip does not take what is here for what is there. A .pth in a folder that one names is not
    # read, so an editable install of this checkout is not seen.
    others = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "others.pth").write_text("".join(f"{path}\n" for path in sorted(others)))
    where = done(home / "bin" / "python", "-c", "import dpfl_plugin; print(dpfl_plugin.__file__)", folder=home)
    assert Path(where.strip()) == site / "dpfl_plugin" / "__init__.py"
    return lambda program, *words, folder=home: done(home / "bin" / program, *words, folder=folder)


def holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / "dpfl_plugin").rglob("*") if path.is_file()}
    assert {name for name in names if ".dist-info/" not in name} == {
        path for path in found if "__pycache__" not in path
    }


def test_what_is_published_is_whole_and_runs_alone(tmp_path: Path) -> None:
    """One test, so that it is built once: the README's beginning, `dpfl init` and `dpfl new`, without the checkout."""
    wheel = built(tmp_path)
    holds_the_package_and_nothing_else(wheel)
    (tmp_path / "environment").mkdir()
    call = installed(wheel, tmp_path / "environment")
    one = ("--set", "rounds=1", "--set", "variants=null")  # all of its runs: tests/cli/test_init.py
    said = call("dpfl", "quickstart", "--out", "out", "--seeds", "1", *one, folder=tmp_path)
    assert "dpfl init" in said and (tmp_path / "out" / "quickstart.png").exists()
    assert {path.parts[-3] for path in tmp_path.glob("out/*/*/result.json")} == {"hospitals", "two_labels"}
    call("dpfl", "init", "project", folder=tmp_path)
    said = call("dpfl", "run", "run.yaml", "--set", "rounds=2", folder=tmp_path / "project")
    assert "epsilon" in said and list(tmp_path.glob("project/runs/project/*/privacy.md"))
    call("dpfl", "new", "algorithm", "my_method", folder=tmp_path)
    found = {path: (tmp_path / "my-method" / path).read_text() for path in rendered("my_method")}
    assert found == rendered("my_method")
    call("python", "-c", "import dpfl_plugin.testing.contract")
