"""Whether the wheel works in a bare environment: the README's "Your own run", `dpfl quickstart` and the notebook.

    python tools/check_wheel.py 3.11 3.12=2.4.0 /path/to/python=2.5.0 ...

Each is a Python with the newest torch, or PYTHON=TORCH. Prints a row of docs/versions.md for each.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = """
import platform
from importlib.metadata import version
print(platform.python_version(), *map(version, ["torch", "numpy", "scipy", "pandas"]), sep=" | ")
"""


def done(*command: object, folder: Path) -> str:
    """What a command printed; it sees nothing of this checkout."""
    alone = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "DPFL_"))}
    result = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**alone, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise SystemExit(
            f"{' '.join(map(str, command))}: exit code {result.returncode}\n{result.stdout}{result.stderr}"
        )
    return result.stdout


def tables(folder: Path) -> None:
    """Tables of three sites, with words and gaps."""
    rng = random.Random(0)
    for site in ("mercy", "north", "st-anne"):
        lines = ["patient_id,age,sex,pressure,diagnosis"]
        for patient in range(150):
            age, sex = rng.randint(30, 90), rng.choice(["f", "m"])
            ill = age + rng.gauss(0, 15) > 60
            pressure = "" if rng.random() < 0.05 else f"{rng.gauss(120, 12):.0f}"
            lines.append(f"{site}-{patient},{age},{sex},{pressure},{'ill' if ill else 'healthy'}")
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")


def used(home: Path, work: Path) -> None:
    """What a user does."""
    dpfl, python = home / "bin" / "dpfl", home / "bin" / "python"
    (work / "silos").mkdir()
    tables(work / "silos")
    done(dpfl, "init", "my-study", "--from", "silos/", "--label", "diagnosis", folder=work)
    study = work / "my-study"
    for words in ("check run.yaml", "plan run.yaml --epsilon 2", "run run.yaml"):
        done(dpfl, *words.split(), folder=study)
    (run,) = (path.parent for path in study.glob("runs/my-study/*/result.json"))
    done(dpfl, "predict", run, work / "silos" / "north.csv", "--id", "patient_id", folder=study)
    done(dpfl, "statement", run, folder=study)
    done(dpfl, "quickstart", "--out", "quick", "--seeds", "1", "--set", "rounds=5", folder=work)
    cells = json.loads((ROOT / "examples" / "first_federation.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    (work / "notebook.py").write_text(code)
    done(python, "notebook.py", folder=work)


def checked(wheel: Path, asked: str) -> str:
    """The row of an interpreter and a torch; what failed ends the program."""
    base, _, torch = asked.partition("=")
    base = base if "/" in base else f"python{base}"
    with tempfile.TemporaryDirectory() as name:
        work, home = Path(name) / "work", Path(name) / "environment"
        work.mkdir()
        done(base, "-m", "venv", home, folder=work)
        pip = [home / "bin" / "python", "-m", "pip", "install", "--quiet"]
        done(*pip, f"{wheel}[notebook]", *([f"torch=={torch}"] if torch else []), folder=work)
        used(home, work)
        return f"| {done(home / 'bin' / 'python', '-c', VERSIONS, folder=work).strip()} |"


def main() -> None:
    if not sys.argv[1:] or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "source"
        shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "__pycache__", "*.egg-info"))
        done(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", name, source, folder=source)
        (wheel,) = Path(name).glob("*.whl")
        print("| Python | torch | numpy | scipy | pandas |\n| --- | --- | --- | --- | --- |", flush=True)
        for asked in sys.argv[1:]:
            print(checked(wheel, asked), flush=True)


if __name__ == "__main__":
    main()
