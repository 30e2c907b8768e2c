"""Published experiments beside what we measure, and published epsilons beside what is sound; docs/papers.md.

`python -m benchmarks.papers` trains, and writes the table of accuracies; `python -m benchmarks.papers --epsilons`
trains nothing, and writes the tables of epsilons.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.quickstart import ROOT, run, table
from benchmarks.table import table as aligned
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.calibration import max_rounds
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.paper import (
    NOBLE_THIRD_PARTY_UNSOUND,
    Scheme,
    chang_last_round,
    noble_largest_rounds,
    noble_third_party_epsilon,
)

PUBLISHED = "| Noble et al., Table 1 | 0.435 ± 0.015 | not stated; third party 3 | 2.5e-06 |"
RECORD_RATE: Final = 0.2
LOCAL_STEPS: Final = 50
MOST_ROUNDS: Final = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """An epsilon that Noble et al. print: section 5 for the setting; figures 1 to 3 and appendix D.3.3 for epsilon.

    Attributes:
        num_records: R of a silo, of which 80 % train; delta = 1 / (M R) counts these.
    """

    name: str
    epsilon: str
    noise_multiplier: float
    rounds: int
    silo_rate: float
    num_silos: int
    num_records: int

    @property
    def delta(self) -> float:
        return 1 / (self.num_silos * self.num_records * 0.8)


CAPTIONS: Final = (
    Published(name="synthetic", epsilon="13", noise_multiplier=60, rounds=400, silo_rate=0.2, num_silos=100,
              num_records=5000),
    Published(name="FEMNIST", epsilon="11.4", noise_multiplier=30, rounds=400, silo_rate=0.2, num_silos=40,
              num_records=2500),
    Published(name="MNIST", epsilon="7.2", noise_multiplier=30, rounds=100, silo_rate=0.2, num_silos=60,
              num_records=1000),
    Published(name="synthetic, l = 0.05", epsilon="4.2", noise_multiplier=60, rounds=400, silo_rate=0.05,
              num_silos=100, num_records=5000),
)  # fmt: skip

# Table 1: the largest T for epsilon = 3, l = 0.05, s = 0.2, synthetic data; rows by sigma_g, columns by K.
TABLE_1_STEPS: Final = (1, 5, 10, 20, 40)
TABLE_1: Final = {
    10: (542, 488, 428, 324, 72),
    20: (545, 502, 451, 352, 83),
    40: (546, 505, 457, 360, 86),
    80: (546, 506, 458, 362, 87),
    160: (546, 506, 458, 362, 87),
}

# Chang et al., section IV: scheme, the beta that they print, the round that they print, the beta that gives it.
CHANG: Final[tuple[tuple[Scheme, float, int, float], ...]] = ((1, 0.998, 497, 0.9981), (2, 0.99992, 428, 0.99991))


def epsilons() -> str:
    """Noble et al.'s captions: published, their recipe, and what is sound."""
    rows = []
    for p in CAPTIONS:
        recipe = noble_third_party_epsilon(
            noise_multiplier=p.noise_multiplier,
            local_steps=LOCAL_STEPS,
            rounds=p.rounds,
            silo_rate=p.silo_rate,
            record_rate=RECORD_RATE,
            num_silos=p.num_silos,
            delta=p.delta,
        )
        server, third_party = (
            PLD().epsilon([_term(p.noise_multiplier, LOCAL_STEPS, p.rounds, chance)], p.delta)
            for chance in (1.0, p.silo_rate)
        )
        setting = [f"{p.noise_multiplier:g}", str(p.rounds), f"{p.silo_rate:g}", f"{p.delta:.3g}"]
        rows.append([p.name, *setting, p.epsilon, f"{recipe:.3f}", f"{third_party:.3f}", f"{server:.3f}"])
    header = ["data", "sigma_g", "T", "l", "delta", "published", "their recipe", "third party", "server, every round"]
    return aligned(header, rows)


def largest_rounds() -> str:
    """Noble et al.'s Table 1: published T, their recipe's, and the most that a sound epsilon of 3 allows."""
    delta = CAPTIONS[0].delta
    rows = []
    for sigma, published in TABLE_1.items():
        cells = []
        for steps, theirs in zip(TABLE_1_STEPS, published, strict=True):
            recipe = noble_largest_rounds(
                epsilon=3.0,
                noise_multiplier=sigma,
                local_steps=steps,
                silo_rate=0.05,
                record_rate=RECORD_RATE,
                num_silos=100,
                delta=delta,
            )
            sound = max_rounds(PLD(), _term(sigma, steps, 1, 0.05), (), 3.0, delta, MOST_ROUNDS)
            cells.append(f"{theirs} / {recipe} / {sound:,}{'+' * (sound == MOST_ROUNDS)}")
        rows.append([str(sigma), *cells])
    return aligned(["sigma_g", *(f"K = {steps}" for steps in TABLE_1_STEPS)], rows)


def last_rounds() -> str:
    """Chang et al.'s last rounds on a budget of 600 rounds of constant noise."""
    rows = []
    for scheme, beta, published, fits in CHANG:
        found = [chang_last_round(scheme, b, threshold=200, local_steps=50, budget_rounds=600) for b in (beta, fits)]
        rows.append([str(scheme), f"{beta}", str(published), str(found[0]), f"{fits}", str(found[1])])
    header = ["scheme", "printed beta", "printed round", "round of this beta", "beta of the printed round", "its round"]
    return aligned(header, rows)


def _term(sigma: float, local_steps: int, rounds: int, participation: float) -> Term:
    release = SampledGaussian(
        noise_multiplier=sigma, sampler="fixed", rate=RECORD_RATE, neighbouring="replace_one", unit="record"
    )
    return Term(release=release, count=local_steps, rounds=rounds, participation=participation)


def write(mark: str, text: str) -> None:
    """Put ``text`` between the marks of docs/papers.md."""
    page = ROOT / "docs" / "papers.md"
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    between = re.compile(f"{begin}.*{end}", re.DOTALL)
    page.write_text(between.sub(lambda _: f"{begin}\n{text}\n{end}", page.read_text()))


def accuracies(seeds: int) -> str:
    """Table 1, sigma_g = 10, K = 10, trained."""
    with tempfile.TemporaryDirectory() as folder:
        results = run(ROOT / "configs" / "papers" / "noble_table1.yaml", seeds, Path(folder))
    third_party = max(run["epsilon"]["third_party"]["epsilon"] for runs in results.values() for run in runs)
    worst_case = max(run["epsilon"]["server"]["worst_case_epsilon"] for runs in results.values() for run in runs)
    text = f"{table(results)}\n{PUBLISHED}\n\n"
    return text + f"Third party: {third_party:.2f}. A silo that took part in every round: {worst_case:.2f} (server)."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", action="store_true", help="the tables of epsilons only; trains nothing")
    arguments = parser.parse_args()
    if arguments.epsilons:
        parts = {
            "noble_epsilons": f"{epsilons()}\n\n{textwrap.fill(NOBLE_THIRD_PARTY_UNSOUND, 120)}",
            "noble_rounds": largest_rounds(),
            "chang_rounds": last_rounds(),
        }
    else:
        parts = {"noble_table1": accuracies(arguments.seeds)}
    for mark, text in parts.items():
        print(text)
        write(mark, text)


if __name__ == "__main__":
    main()
