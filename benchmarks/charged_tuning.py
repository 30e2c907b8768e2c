"""`python -m benchmarks.charged_tuning --write`: what tuning costs and brings; the table in docs/tuning.md.

Three hospitals, one budget: with the file's own values, tuned under charge, with values that were found on the patients
of a fourth hospital, which count as public, and with the best values in hindsight, which nobody may know.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dpfl_plugin as dpfl
from benchmarks.pages import ROOT, show
from benchmarks.table import table
from dpfl_plugin.config.tune import Candidate, TuneFile, read_tune

CONFIG = ROOT / "configs" / "tuning.yaml"
PAGE, PART = "docs/tuning.md", "charged tuning table"
PUBLIC = ["cleveland"]


def accuracy(run: dpfl.Run) -> float:
    """Of the final model on all test patients."""
    assert run.measures is not None
    return float(run.measures["pooled"]["model"]["accuracy"])


def experiment(seed: int, out: Path, **changes: Any) -> dpfl.Experiment:
    """A run of the file without tuning."""
    settings = {"tune": None, "seed": seed, "out": str(out), **changes}
    return dpfl.Experiment(CONFIG, tuple(f"{key}={json.dumps(value)}" for key, value in settings.items()))


def one(seed: int, out: Path, **changes: Any) -> dpfl.Run:
    found = experiment(seed, out, **changes).run(progress=False, resume=True)
    assert isinstance(found, dpfl.Run)
    return found


def of(candidate: Candidate) -> dict[str, Any]:
    """What a candidate changes, as settings."""
    return dict(candidate.changes)


def best(file: TuneFile, seeds: Iterable[int], out: Path, **changes: Any) -> Candidate:
    """The candidate with the best accuracy over seeds, without any charge: of public data, or in hindsight."""
    seeds = list(seeds)
    return max(
        file.candidates,
        key=lambda one_: statistics.mean(accuracy(one(seed, out, **of(one_), **changes)) for seed in seeds),
    )


def rows(seeds: int, out: Path) -> list[list[str]]:
    """A row for each way to the hyper-parameters."""
    file, every = read_tune(CONFIG), range(seeds)
    public = best(file, every, out, **{"data.dataset.hospitals": PUBLIC})
    hindsight = best(file, every, out)
    tuned = [
        dpfl.tune(dpfl.Experiment(CONFIG, (f"seed={seed}",)), out=out / f"tuned-{seed}", progress=False)
        for seed in every
    ]
    ways = {
        "the file's own values": [one(seed, out) for seed in every],
        "tuned under charge": [found.winner for found in tuned],
        f"found on public data ({public.label})": [one(seed, out, **of(public)) for seed in every],
        f"best in hindsight, not private ({hindsight.label})": [one(seed, out, **of(hindsight)) for seed in every],
    }
    return [
        [
            way,
            f"{statistics.mean(map(accuracy, runs)):.3f} ± {statistics.stdev(map(accuracy, runs)) / seeds**0.5:.3f}",
            f"{runs[0].result['noise_multiplier']:.2f}",
            "none" if "hindsight" in way else f"{max(run.epsilon for run in runs):.2f}",
        ]
        for way, runs in ways.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"into {PAGE}")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = table(
            ["hyper-parameters", "accuracy", "noise multiplier", "epsilon, all included"],
            rows(given.seeds, Path(folder)),
        )
    show(PAGE, PART, found, write=given.write)


if __name__ == "__main__":
    main()
