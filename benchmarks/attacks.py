"""`python -m benchmarks.attacks`: the attacks of `dpfl attack`; writes docs/pictures and the tables of docs/attacks.md.

MNIST has to be in $DPFL_DATA, in ~/.cache/dpfl, or on the network; without it, that part of the page stays as it was.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from benchmarks.pages import ROOT, put
from benchmarks.table import table
from dpfl_plugin.cli.main import app
from dpfl_plugin.errors import DataError

PICTURES = ROOT / "docs" / "pictures"
# What to attack: configuration, options, seeds.
RUNS: dict[str, tuple[str, tuple[str, ...], int]] = {
    "quickstart": ("quickstart.yaml", (), 10),
    "quickstart-fedavg": ("quickstart.yaml", ("--variant", "DP-FedAvg"), 10),
    "mnist": ("attack_mnist.yaml", (), 3),
}
DRAWN = ("quickstart", "mnist")


def attack(config: Path, options: tuple[str, ...], repeats: int, out: Path) -> dict[str, Any]:
    """What `attack.json` holds.

    Raises:
        DataError: the data are not here.
    """
    arguments = ["attack", str(config), *options, "--repeats", str(repeats), "--out", str(out), "--json"]
    answer = CliRunner().invoke(app, arguments)
    if isinstance(answer.exception, DataError):
        raise answer.exception
    if answer.exit_code:
        raise SystemExit(f"{config}: {answer.exception}")
    result: dict[str, Any] = json.loads(answer.stdout)
    return result


def rows(result: dict[str, Any]) -> str:
    """A Markdown table of one run."""
    settings = result["membership"]
    quiet, noisy = settings["without noise"], settings["with noise"]
    lines = [
        ["AUC, guessing is 0.5", _range(quiet["auc"]), _range(noisy["auc"]), f"{noisy['auc_bound']:.3f}"],
        ["TPR at 1 % FPR", _range(quiet["tpr"]), _range(noisy["tpr"]), f"{noisy['tpr_bound']:.3f}"],
    ]
    for name, key in (("one record", "batch_of_1"), ("8 records", "batch")):
        values = [result["inversion"][setting][key]["correlations"] for setting in settings]
        lines.append([f"correlation, {name}", *(f"{sum(some) / len(some):.3f}" for some in values), ""])
        guesses = [result["inversion"][setting][key]["correlations_of_guesses"] for setting in settings]
        lines.append(["what a guess gets", *(f"{sum(some) / len(some):.3f}" for some in guesses), ""])
    controls = [result["inversion"][setting]["batch"]["correlation_of_other_records"] for setting in settings]
    lines.append(["the same, records of no message", *(f"{value:.3f}" for value in controls), ""])
    bound = f"bound at epsilon {noisy['epsilon']:.2f}, delta {noisy['delta']:g}"
    counts = f"{quiet['members']} members, {quiet['non_members']} others, {len(result['seeds'])} seeds"
    return table([counts, "without noise", "with noise", bound], lines)


def _range(value: dict[str, float]) -> str:
    return f"{value['value']:.3f} ({value['low']:.3f} to {value['high']:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=RUNS, help="one of the runs")
    arguments = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    for name, (config, options, seeds) in RUNS.items():
        if arguments.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = attack(ROOT / "configs" / config, options, seeds, Path(folder))
            except DataError as error:
                print(f"{name}: left as it was: {error}")
                continue
            for picture in ("membership", "inversion") if name in DRAWN else ():
                shutil.copy(Path(folder) / f"{picture}.png", PICTURES / f"{picture}-{name}.png")
        text = rows(result)
        print(text)
        put("docs/attacks.md", f"{name} table", text)


if __name__ == "__main__":
    main()
