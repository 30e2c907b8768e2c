"""`python -m benchmarks.coverage [--write]`: how often intervals around private coefficients hold the true ones.

Records are drawn from a known law and trained on with `mb_sgd` at four silos, all records in each step, hardly any
gradient clipped, and `average: tail`. Three intervals are tried:

* noise: of the noise alone, whose law is public, at its worst, a flat loss: no step takes back what another added.
* known: of the standard deviation that the estimates have, which nobody knows who has one model.
* parts: of five models of disjoint fifths of the records, by Student's t; together they cost what one does.

Each is counted for the column that fares worst: of the usual ones, and of all, with two that are correlated and one
that 3 % of the records have. What has run is kept in runs/coverage.jsonl, and not run again. Ten minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from dataclasses import asdict, dataclass
from typing import Final

import torch
from scipy import stats
from torch import Tensor

import dpfl_plugin as dpfl
from benchmarks.pages import ROOT, show
from benchmarks.table import table
from dpfl_plugin.gradients.outcome_losses import Hazards
from dpfl_plugin.models.score_heads import BaselineHazards

KEPT: Final = ROOT / "runs" / "coverage.jsonl"
OUTCOMES: Final = ("classes", "regression", "counts", "survival")
SIZES, COLUMNS, EPSILONS = (500, 2000, 8000), (6, 12), (1.0, 3.0, 8.0)
INTERVALS: Final = ("noise", "known", "parts")
REPEATS, STEPS, SILOS, PARTS, DELTA = 200, 60, 4, 5, 1e-5
AT_ONCE: Final = 2_000_000  # numbers of records in memory
LR: Final = {"classes": 3.0, "regression": 0.7, "counts": 0.7, "survival": 1.0}
CLIP: Final = {"classes": 1.0, "regression": 1.0, "counts": 4.0, "survival": 2.0}  # times a record's usual norm
EDGES: Final = (0.5, 1.0, 2.0, 4.0)
NOMINAL: Final = 0.95


@dataclass(frozen=True, slots=True)
class Cell:
    """A place of the grid."""

    outcome: str
    n: int
    p: int
    epsilon: float


def truth(p: int) -> Tensor:
    """The true coefficients (p,), for half the range of a column."""
    return torch.tensor([0.8, -0.4, 0.0, 0.6]).repeat(math.ceil(p / 4))[:p]


def records(cell: Cell, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """(x (count, n, p), y (count, n, ...)) of so many studies; columns from -1 to 1, the last one of 0 and 1."""
    n, p = cell.n, cell.p
    z = torch.randn(count, n, p, generator=rng)
    z[..., 1] = 0.9 * z[..., 0] + math.sqrt(1 - 0.81) * z[..., 1]
    x = (z / 2).clamp(-1, 1)
    x[..., -1] = (torch.rand(count, n, generator=rng) < 0.03).float()
    score = x @ truth(p)
    if cell.outcome == "classes":
        return x, torch.bernoulli((score - 1).sigmoid(), generator=rng)
    if cell.outcome == "regression":
        return x, score / 2 + 0.3 * torch.randn(count, n, generator=rng)
    if cell.outcome == "counts":
        return x, torch.poisson((score - 0.5).exp(), generator=rng)
    times = torch.empty(count, n).exponential_(generator=rng) / (score - 1).exp()
    censored = torch.rand(count, n, generator=rng) * 8
    ends = torch.minimum(times, censored).clamp(max=EDGES[-1])
    return x, torch.stack([ends, (times == ends).float()], dim=-1)


def fitted(outcome: str, x: Tensor, y: Tensor, clip: float, noise: float, rng: torch.Generator) -> Tensor:
    """(r, p) the coefficients of r studies, from where models of the package begin.

    Args:
        noise: standard deviation in each number of a step's mean gradient.
    """
    count, n, p = x.shape
    if outcome == "survival":
        head = BaselineHazards(len(EDGES))
        bias, loss = head.log_rates.detach().expand(count, -1).clone(), Hazards(EDGES)
    else:
        bias = torch.zeros(count, 1)
    weights, squares, sums = torch.zeros(count, p), x.square().sum(-1), torch.zeros(count, p)
    for step in range(STEPS):
        score = torch.einsum("rnp,rp->rn", x, weights)
        if outcome == "survival":
            rates = (bias.unsqueeze(1) + score.unsqueeze(-1)).reshape(count * n, -1)
            outputs = head.outputs(torch.zeros(count * n), [rates])
            residuals = loss.residuals(outputs, y.reshape(-1, 2))
            by_score, (by_bias,) = head.derivatives(torch.zeros(count * n), [rates], residuals)
            by_score, by_bias = by_score.reshape(count, n), by_bias.reshape(count, n, -1)
        else:
            score = score + bias
            predicted = {"classes": score.sigmoid, "regression": score.clone, "counts": score.exp}[outcome]()
            by_score = predicted - y
            by_bias = by_score.unsqueeze(-1)
        norms = (by_score.square() * squares + by_bias.square().sum(-1)).sqrt()
        factor = (clip / norms).clamp(max=1.0)
        gradients = [
            torch.einsum("rn,rnp->rp", factor * by_score, x) / n,
            torch.einsum("rn,rnb->rb", factor, by_bias) / n,
        ]
        for parameter, gradient in zip((weights, bias), gradients, strict=True):
            parameter -= LR[outcome] * (gradient + noise * torch.randn(gradient.shape, generator=rng))
        if step >= STEPS // 2:
            sums += weights
    return sums / (STEPS - STEPS // 2)


def measured(cell: Cell) -> dict[str, list[float]]:
    """{interval: the least share, over the usual columns and over all, in which it holds the true coefficient}"""
    rng = torch.Generator().manual_seed(0)
    clip = CLIP[cell.outcome] * math.sqrt(1 + cell.p / 4)
    multiplier = dpfl.calibrate(epsilon=cell.epsilon, sampler="full", steps=STEPS, delta=DELTA).noise_multiplier
    noise = multiplier * 2 * clip * math.sqrt(SILOS) / cell.n  # a silo's sum moves by 2 C where a record is replaced
    whole, parts = [], []
    at_once = max(1, AT_ONCE // (cell.n * cell.p))
    for first in range(0, REPEATS, at_once):
        x, y = records(cell, min(at_once, REPEATS - first), rng)
        whole.append(fitted(cell.outcome, x, y, clip, noise, rng))
        shares = zip(x.chunk(PARTS, dim=1), y.chunk(PARTS, dim=1), strict=True)
        parts.append(torch.stack([fitted(cell.outcome, a, b, clip, PARTS * noise, rng) for a, b in shares]))
    estimates, of_parts = torch.cat(whole), torch.cat(parts, dim=1)
    scale = 0.5 if cell.outcome == "regression" else 1.0
    errors = (estimates - scale * truth(cell.p)).abs()
    z = stats.norm.ppf((1 + NOMINAL) / 2)
    # Of a walk of T steps of size s, the mean of the last half has variance s^2 (T / 2 + T / 6).
    walk = LR[cell.outcome] * noise * math.sqrt(2 * STEPS / 3)
    student = stats.t.ppf((1 + NOMINAL) / 2, PARTS - 1)
    of_t = (of_parts.mean(0) - scale * truth(cell.p)).abs() <= student * of_parts.std(0) / math.sqrt(PARTS)
    held = {"noise": errors <= z * walk, "known": errors <= z * estimates.std(0), "parts": of_t}
    covered = {name: each.float().mean(0) for name, each in held.items()}
    return {name: [float(share[2:-1].min()), float(share.min())] for name, share in covered.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="Put the table into docs/outcomes.md.")
    arguments = parser.parse_args()
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    known = {}
    if KEPT.exists():
        known = {Cell(**line["cell"]): line["coverage"] for line in map(json.loads, KEPT.read_text().splitlines())}
    for cell in itertools.starmap(Cell, itertools.product(OUTCOMES, SIZES, COLUMNS, EPSILONS)):
        if cell not in known:
            known[cell] = measured(cell)
            with KEPT.open("a") as file:
                file.write(json.dumps({"cell": asdict(cell), "coverage": known[cell]}) + "\n")
            print(cell, known[cell], flush=True)
    rows = []
    for outcome, n in itertools.product(OUTCOMES, SIZES):
        row = [outcome, f"{n:,}"]
        for columns, epsilon in itertools.product(range(2), EPSILONS):
            cells = [known[Cell(outcome, n, p, epsilon)] for p in COLUMNS]
            least = [min(cell[name][columns] for cell in cells) for name in INTERVALS]
            row.append(" / ".join(f"{100 * share:.0f}" for share in least))
        rows.append(row)
    kinds = [f"{kind}, {epsilon:g}" for kind, epsilon in itertools.product(("usual", "all"), EPSILONS)]
    text = table(["outcome", "records", *kinds], rows)
    show("docs/outcomes.md", "coverage", text, write=arguments.write)


if __name__ == "__main__":
    main()
