"""Accountants compared: `python -m benchmarks.accountants` writes their tables into docs/benchmarks.md.

Epsilon, time and memory of each, every one in a process of its own; and the noise that each needs for an epsilon.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.table import table
from dpfl_plugin import registry
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.calibration import least_noise, with_noise
from dpfl_plugin.privacy.events import SampledGaussian, Sampler, Term

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- accountants: begin -->", "<!-- accountants: end -->"
EPSILONS: Final = (1.0, 3.0, 8.0)
WARM_CALLS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Releases of one silo.

    Attributes:
        rate: b / R; rounds: T; local_steps: K; participation: S / M, the chance of a silo to be in a round.
    """

    rate: float
    noise_multiplier: float
    rounds: int
    delta: float
    local_steps: int = 50
    participation: float = 1.0

    def term(self, sampler: Sampler = "fixed") -> Term:
        neighbouring = "add_or_remove" if sampler == "poisson" else "replace_one"
        rate = 1.0 if sampler == "full" else self.rate
        release = SampledGaussian(
            noise_multiplier=self.noise_multiplier, sampler=sampler, rate=rate, neighbouring=neighbouring
        )
        return Term(release=release, count=self.local_steps, rounds=self.rounds, participation=self.participation)


# Batches and silos of the workloads, noise and rounds of the experiments in Noble et al. that they are like.
SETTINGS: Final[dict[str, Setting]] = {
    "W1, server": Setting(rate=0.2, noise_multiplier=60, rounds=400, delta=2.5e-6),
    "W1, third party": Setting(rate=0.2, noise_multiplier=60, rounds=400, delta=2.5e-6, participation=0.2),
    "W2, server": Setting(rate=0.2, noise_multiplier=30, rounds=400, delta=1.25e-5),
    "W2, third party": Setting(rate=0.2, noise_multiplier=30, rounds=400, delta=1.25e-5, participation=0.2),
    "W3, server": Setting(rate=0.2, noise_multiplier=30, rounds=100, delta=1 / 48_000),
    "W3, third party": Setting(rate=0.2, noise_multiplier=30, rounds=100, delta=1 / 48_000, participation=0.2),
}
CONTENDERS: Final[tuple[tuple[str, Sampler], ...]] = (
    ("pld", "fixed"),
    ("rdp", "fixed"),
    ("paper", "fixed"),
    ("pld", "poisson"),
    ("prv", "poisson"),
    ("rdp", "poisson"),
    ("pld", "full"),
    ("gaussian", "full"),
)
TITLES: Final = {
    "pld": "PLD (ours)",
    "rdp": "RDP (dp-accounting)",
    "paper": "Lemma B.7 (Noble et al.)",
    "prv": "PRV (Opacus)",
    "gaussian": "Gaussian (closed form)",
}


def accountant(name: str) -> Accountant:
    made: Accountant = registry.build(registry.load("accountants", name), {}, where="accountant")
    return made


def measure(name: str, sampler: Sampler, setting: str) -> dict[str, float] | None:
    """Epsilon, seconds of the first call and of later ones, and memory, in a new process; None if it refuses.

    Raises:
        subprocess.CalledProcessError: the process failed.
    """
    command = [sys.executable, "-m", "benchmarks.accountants", "--measure", name, sampler, setting]
    found: dict[str, float] | None = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def _measured(name: str, sampler: Sampler, setting: str) -> dict[str, float] | None:
    one, delta = SETTINGS[setting].term(sampler), SETTINGS[setting].delta
    chosen = accountant(name)
    before = _peak()
    began = time.process_time()
    try:
        epsilon = chosen.epsilon([one], delta)
    except ConfigError:
        return None
    first = time.process_time() - began
    memory, warm = _peak() - before, []
    for number in range(WARM_CALLS):  # other noise each time, so that no result is remembered
        began = time.process_time()
        chosen.epsilon(with_noise([one], 1 + 0.01 * (number + 1)), delta)
        warm.append(time.process_time() - began)
    return {"epsilon": epsilon, "first": first, "warm": statistics.median(warm), "memory": memory}


def _peak() -> float:
    """Mebibytes that this process ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def reference_table() -> str:
    """Every accountant on what it knows, at q = 0.2, sigma = 60, 20,000 steps, delta = 2.5e-6."""
    rows = []
    for name, sampler in CONTENDERS:
        if found := measure(name, sampler, "W1, server"):
            times = [f"{found['first'] * 1000:,.0f}", f"{found['warm'] * 1000:.3g}"]
            rows.append([f"{TITLES[name]}, {sampler}", f"{found['epsilon']:.4g}", *times, f"{found['memory']:.0f}"])
    return table(["accountant, batches", "epsilon", "first call, ms", "later calls, ms", "memory, MiB"], rows)


def workloads_table() -> str:
    """Epsilon, and milliseconds of a later call, of the accountants that know fixed batches."""
    names = [name for name, sampler in CONTENDERS if sampler == "fixed"]
    rows = []
    for setting in SETTINGS:
        found = [measure(name, "fixed", setting) for name in names]
        rows.append(
            [setting, *("-" if f is None else f"{f['epsilon']:.4g} ({f['warm'] * 1000:.3g} ms)" for f in found)]
        )
    return table(["workload", *(TITLES[name] for name in names)], rows)


def noise_table() -> str:
    """The least noise multiplier for an epsilon, the seconds to find it, and what tight accounting saves."""
    names = [name for name, sampler in CONTENDERS if sampler == "fixed"]
    rows = []
    for epsilon in EPSILONS:
        noise, cells = {}, []
        for name in names:
            began = time.process_time()
            noise[name] = _noise(name, epsilon)
            seconds = time.process_time() - began
            cells.append("out of reach" if noise[name] is None else f"{noise[name]:.5g} ({seconds:.2f} s)")
        saved = 1 - noise["pld"] / noise["rdp"] if noise["pld"] and noise["rdp"] else None
        rows.append([f"{epsilon:g}", *cells, "-" if saved is None else f"{saved:.0%}"])
    return table(["epsilon", *(TITLES[name] for name in names), "noise saved against RDP"], rows)


def _noise(name: str, epsilon: float) -> float | None:
    setting, chosen = SETTINGS["W1, server"], accountant(name)
    one = replace(setting, noise_multiplier=1.0).term()
    try:
        return least_noise(lambda noise: chosen.epsilon(with_noise([one], noise), setting.delta), epsilon)
    except ConfigError:
        return None


TEMPLATE: Final = """Written by `python -m benchmarks.accountants`.

One silo's releases at q = 0.2, sigma = 60, 20,000 steps, delta = 2.5e-6 (W1 below), each accountant in a process of its
own. Times are the process's own, not the clock's. The first call imports what the accountant needs; memory is what it
adds to the peak of the process. Fixed and full batches protect against replacing a record, Poisson batches against
adding or removing one: compare epsilons of the same batches.

{reference}

The workloads, with the noise and rounds of the experiments that they are like (Noble et al., section 5: W1 synthetic,
sigma 60, T = 400; W2 FEMNIST, 30, 400; W3 MNIST, 30, 100; K = 50, s = 0.2, l = 0.2). Server: a silo in every round.
Third party: the mixture of taking part and not. In brackets a later call:

{workloads}

The least noise for an epsilon, 20,000 steps at q = 0.2, delta = 2.5e-6, and the time to find it (`dpfl plan`):

{noise}"""


def section() -> str:
    """Measure everything, and say it."""
    return TEMPLATE.format(reference=reference_table(), workloads=workloads_table(), noise=noise_table())


def kept(page: Path) -> str:
    """The section as it stands on the page, marks included; empty marks if there is none."""
    found = re.search(f"{BEGIN}.*{END}", page.read_text() if page.exists() else "", re.DOTALL)
    return found.group() if found else f"{BEGIN}\n{END}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accountants", description=__doc__)
    parser.add_argument("--out", type=Path, default=PAGE, help="default: docs/benchmarks.md")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        print(json.dumps(_measured(*options.measure)))
        return
    text = f"{BEGIN}\n{section()}\n{END}"
    options.out.write_text(options.out.read_text().replace(kept(options.out), text))


if __name__ == "__main__":
    main()
