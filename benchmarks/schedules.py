"""Noise that falls against noise that stays, at equal budgets: `python -m benchmarks.schedules`; needs MNIST.

Runs papers/configs/chang2022.yaml with several seeds; writes a table in docs/algorithms.md and a picture.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.pages import ROOT, put
from benchmarks.table import table
from dpfl_plugin.config.load import load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.runs.rules import privacy_rules

PAPER: Final = ROOT / "papers" / "configs" / "chang2022.yaml"
PICTURE: Final = "docs/pictures/noise_schedules.png"
SEEDS: Final = (0, 1, 2)
SCHEMES: Final = {
    "scheme 0": "constant",
    "scheme 1": "falls by round",
    "scheme 2": "falls by step",
}

Result = dict[str, Any]


def results() -> dict[str, list[Result]]:
    """{scheme: a result for each seed}."""
    found: dict[str, list[Result]] = {label: [] for label in SCHEMES}
    with tempfile.TemporaryDirectory() as out:
        for seed in SEEDS:
            command = [sys.executable, "-m", "dpfl_plugin", "run", str(PAPER), "--out", out, "--json"]
            done = subprocess.run([*command, "--set", f"seed={seed}"], check=True, text=True, stdout=subprocess.PIPE)
            for label, result in _by_label(json.loads(done.stdout)).items():
                lines = (Path(result["folder"]) / "metrics.jsonl").read_text().splitlines()
                found[label].append({**result, "curve": [json.loads(line) for line in lines]})
    return found


def _by_label(printed: Result) -> dict[str, Result]:
    return {label: printed[label] for label in SCHEMES}


def row(label: str, made: list[Result], same_rounds: int) -> list[str]:
    accuracy = [result["test_accuracy"]["mean_last_10_percent"] for result in made]
    then = [at(result["curve"], same_rounds) for result in made]
    return [
        label,
        SCHEMES[label],
        " / ".join(str(result["rounds"]) for result in made),
        spread(accuracy),
        spread(then),
        f"{max(result['epsilon']['server']['epsilon'] for result in made):.2f}",
    ]


def spread(values: list[float]) -> str:
    return f"{statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f}"


def at(curve: list[Result], round: int) -> float:
    """Test accuracy at the last evaluation up to a round."""
    return float(
        max((line for line in curve if line["round"] <= round), key=lambda line: line["round"])["test_accuracy"]
    )


def draw(found: dict[str, list[Result]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    noise, accuracy = figure.subplots(1, 2)
    colours = dict(zip(SCHEMES, ("#555555", "#0072b2", "#d55e00"), strict=True))
    for variant in load(PAPER).variants:
        label = str(variant.label)
        longest = max(found[label], key=lambda result: result["rounds"])
        noise.plot(*_noise(variant.config, longest["rounds"]), color=colours[label], label=label)
        for result in found[label]:
            rounds = [line["round"] for line in result["curve"]]
            values = [line["test_accuracy"] for line in result["curve"]]
            accuracy.plot(rounds, values, color=colours[label], linewidth=0.8, alpha=0.7)
            accuracy.plot(rounds[-1], values[-1], "o", color=colours[label], markersize=4)
    noise.set(xlabel="round", ylabel="noise multiplier at its first step", ylim=(0, None), title="noise")
    accuracy.set(xlabel="round", ylabel="test accuracy", title="accuracy until the budget is used up (3 seeds)")
    noise.legend(frameon=False)
    for axes in (noise, accuracy):
        axes.grid(alpha=0.3)
    figure.savefig(ROOT / PICTURE, dpi=130)


def _noise(config: Config, rounds: int) -> tuple[list[int], list[float]]:
    rules, steps = privacy_rules(config), int(config.algorithm.options["local_steps"])
    sigma = rules.noise_multiplier
    return list(range(1, rounds + 1)), [sigma * rules.factors(round, steps)[0] for round in range(rounds)]


def main() -> None:
    found = results()
    same = min(result["rounds"] for made in found.values() for result in made)
    titles = ["run", "noise", "rounds, by seed", "accuracy, last 10 % of rounds", f"accuracy after {same} rounds",
              "epsilon, server"]  # fmt: skip
    rows = [row(label, made, same) for label, made in found.items()]
    gains = []
    for label in ("scheme 1", "scheme 2"):
        pairs = zip(found[label], found["scheme 0"], strict=True)
        values = [
            a["test_accuracy"]["mean_last_10_percent"] - b["test_accuracy"]["mean_last_10_percent"] for a, b in pairs
        ]
        error = statistics.stdev(values) / math.sqrt(len(values))
        gains.append(f"{label} less scheme 0, same seeds: {statistics.fmean(values):+.4f} (standard error {error:.4f})")
    text = table(titles, rows) + "\n\n" + "; ".join(gains) + "."
    print(text)
    put("docs/algorithms.md", "schedules", text)
    draw(found)


if __name__ == "__main__":
    main()
