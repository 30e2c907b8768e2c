"""What Li, Wang, Wu 2025 claim of their noise, beside what is proven: `python -m benchmarks.fedavg_sync`.

Writes a table in docs/algorithms.md.
"""

from __future__ import annotations

from typing import Final

from benchmarks.pages import put
from benchmarks.table import table
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.events import SampledGaussian, Sampler, Term
from papers.plans.li_noise import claimed_epsilon, noise_scale

Q, B, N, EPSILON, DELTA = 5, 10, 600, 0.5, 1e-5
ROUNDS: Final = (1, 10, 100)


def epsilon(multiplier: float, sampler: Sampler, rate: float, rounds: int) -> float:
    release = SampledGaussian(noise_multiplier=multiplier, sampler=sampler, rate=rate, neighbouring="replace_one")
    return PLD().epsilon([Term(release=release, count=1, rounds=rounds)], DELTA)


def rows() -> list[list[str]]:
    scale = noise_scale(local_steps=Q, batch_size=B, num_records=N, epsilon=EPSILON, delta=DELTA)
    multiplier = scale / (2 * Q)  # relative to the proven sensitivity, 2 Q G eta
    claim = claimed_epsilon(multiplier, local_steps=Q, batch_size=B, num_records=N, delta=DELTA)
    share = Q * B / N
    return [
        ["claimed, eq. 20", f"{claim:.3g}", *("not stated" for _ in ROUNDS[1:])],
        ["in the ledger, proven", *(f"{epsilon(multiplier, 'full', 1.0, n):.3g}" for n in ROUNDS)],
        ["were a round one sample", *(f"{epsilon(multiplier, 'fixed', share, n):.3g}" for n in ROUNDS)],
    ]


def main() -> None:
    titles = [f"epsilon after {n} round" + ("s" if n > 1 else "") for n in ROUNDS]
    text = table(["", *titles], rows())
    print(text)
    put("docs/algorithms.md", "fedavg_sync", text)


if __name__ == "__main__":
    main()
