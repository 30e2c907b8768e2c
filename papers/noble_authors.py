"""What the public code of Noble et al. 2022 computes, for Table 1: an emulation that is NOT PRIVATE and claims nothing.

It is not their paper's Algorithm 1, and no algorithm of this package: it releases nothing through the oracle, has no
ledger, and no epsilon can be stated of it. It is here to say where the published accuracies come from.

* lambda is never applied: the optimiser gets a weight decay and does not use it.
* The generators of all silos of a round are seeded alike before each local step: they draw the same places of their
  records, and the same noise. Noise that all share does not average out over silos, and a silo that knows its own noise
  knows everybody's.
* "Standardise" scales feature j by the least and the largest feature of record number j, not of all records, and record
  number j changes while it goes on.
* Each parameter tensor is clipped by itself, to the median of the unclipped norms of the batch in that tensor: C is
  read from records without noise.
* All silos make their first control variate at the first round, drawn or not; 4 / l rounds then move nothing.

In their code without privacy, control variates are renewed by s / (K eta_l) in place of 1 / (K eta_l), too. That is
not of Table 1.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from papers.items import Computed, Item

Array = NDArray[np.float64]
NUM_SILOS: Final = 100
NUM_RECORDS: Final = 5000
FEATURES: Final = 40
CLASSES: Final = 10
SILO_RATE: Final = 0.05
RECORD_RATE: Final = 0.2
SEEDS: Final = (0, 1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class NobleAuthors:
    """The option set ``noble_authors``; each option of it can be turned off to see what it does.

    Attributes:
        same_noise: all silos of a round draw the same noise, and the same places of their records.
        odd_scaling: "standardise" by single records; else by the mean and standard deviation of all silos' records.
        median_clipping: else C = 1 for all parameters together.
    """

    noise_multiplier: float
    eta_0: float
    local_steps: int
    rounds: int
    heterogeneity: float = 5.0
    same_noise: bool = True
    odd_scaling: bool = True
    median_clipping: bool = True


@dataclass(frozen=True, slots=True)
class _Data:
    """Records of all silos: features [M, n, 40] and labels [M, n], of training and of tests."""

    x: Array
    y: NDArray[np.int64]
    test_x: Array
    test_y: NDArray[np.int64]


def accuracies(
    options: NobleAuthors, seed: int, *, num_silos: int = NUM_SILOS, num_records: int = NUM_RECORDS
) -> float:
    """Test accuracy over the last 10 % of rounds, mean over silos."""
    data = _data(options, seed, num_silos, num_records)
    rng, K = np.random.default_rng([seed, 1]), options.local_steps
    n, drawn = data.x.shape[1], max(1, round(SILO_RATE * num_silos))
    lr = options.eta_0 / max(round(RECORD_RATE * K), 1)
    x = rng.uniform(-1, 1, (FEATURES + 1, CLASSES)) / math.sqrt(FEATURES)  # weights, and biases as the last row
    controls, server, seen = np.zeros((num_silos, *x.shape)), np.zeros_like(x), np.zeros(num_silos, dtype=bool)
    for i in range(num_silos):
        draws = [_draw(options, seed, 0, i, k, n, x.shape) for k in range(K)]
        controls[i] = np.mean([_gradient(options, data, i, x, *draw) for draw in draws], axis=0)
    found = []
    for t in range(options.rounds):
        silos = rng.choice(num_silos, drawn, replace=False)
        if t < round(4 / SILO_RATE):  # nothing moves; the server adds up the control variates of who was not seen yet
            for i in silos[~seen[silos]]:
                server, seen[i] = server + controls[i] / num_silos, True
        else:
            moved, renewed = np.zeros_like(x), np.zeros_like(x)
            for i in silos:
                y = x.copy()
                for k in range(K):
                    draw = _draw(options, seed, t + 1, i, k, n, x.shape)
                    y -= lr * (_gradient(options, data, i, y, *draw) + server - controls[i])
                new = controls[i] - server - (y - x) / (K * lr)
                moved += (y - x) / drawn
                renewed += (new - controls[i]) / num_silos
                controls[i] = new
            x, server = x + moved, server + renewed
        if t >= options.rounds - math.ceil(options.rounds / 10):
            said = (data.test_x @ x[:-1] + x[-1]).argmax(axis=2)
            found.append(float((said == data.test_y).mean()))
    return statistics.fmean(found)


def _draw(
    options: NobleAuthors, seed: int, round: int, silo: int, step: int, n: int, shape: tuple[int, ...]
) -> tuple[NDArray[np.int64], Array]:
    """Places of a batch, and standard normal noise."""
    whose = 0 if options.same_noise else silo + 1
    rng = np.random.default_rng([seed, 2, round, whose, step])
    return rng.choice(n, _batch(n), replace=False), rng.standard_normal(shape)


def _batch(n: int) -> int:
    return max(1, round(RECORD_RATE * n))


def _gradient(
    options: NobleAuthors, data: _Data, silo: int, w: Array, places: NDArray[np.int64], noise: Array
) -> Array:
    """The clipped and noised gradient of a batch, [41, 10]."""
    x, labels = data.x[silo, places], data.y[silo, places]
    z = x @ w[:-1] + w[-1]
    z = np.exp(z - z.max(axis=1, keepdims=True))
    of_bias = z / z.sum(axis=1, keepdims=True)
    of_bias[np.arange(len(labels)), labels] -= 1
    bias_norms = np.linalg.norm(of_bias, axis=1)
    weight_norms = bias_norms * np.linalg.norm(x, axis=1)
    if options.median_clipping:
        clips = np.median(weight_norms), np.median(bias_norms)
        scales = [_scale(norms, clip) for norms, clip in zip((weight_norms, bias_norms), clips, strict=True)]
    else:
        clips = 1.0, 1.0
        scales = [_scale(np.hypot(weight_norms, bias_norms), 1.0)] * 2
    total = np.concatenate([x.T @ (of_bias * scales[0][:, None]), (scales[1] @ of_bias)[None]])
    std = 2 * options.noise_multiplier / len(places) * np.array([*[clips[0]] * FEATURES, clips[1]])
    return np.asarray(total / len(places) + std[:, None] * noise)


def _scale(norms: Array, clip: float) -> Array:
    return 1 / np.maximum(1, norms / clip)


def _data(options: NobleAuthors, seed: int, num_silos: int, num_records: int) -> _Data:
    """Appendix D.2, a changed label drawn from all classes as in their code; 80 % to train on."""
    rng, spread = np.random.default_rng([seed, 0]), math.sqrt(options.heterogeneity)

    def two_level(*shape: int) -> Array:
        return spread * rng.standard_normal(shape) + rng.standard_normal(shape)

    x = rng.standard_normal((num_silos, num_records, FEATURES)) * np.arange(1, FEATURES + 1) ** -0.6
    x += two_level(num_silos, 1, FEATURES)
    y = (x @ two_level(num_silos, FEATURES, CLASSES) + two_level(num_silos, 1, CLASSES)).argmax(axis=2)
    changed = rng.random(y.shape) < 0.05
    y = np.where(changed, rng.integers(0, CLASSES, y.shape), y)
    train = int(0.8 * num_records)
    if options.odd_scaling:
        for i in range(num_silos):
            for j in range(FEATURES):
                least, most = x[i, j].min(), x[i, j].max()  # of record j, as far as it is scaled by now
                x[i, :, j] = (x[i, :, j] - least) / (most - least)
    else:
        known = x[:, :train].reshape(-1, FEATURES)
        x = (x - known.mean(axis=0)) / known.std(axis=0)
    x /= np.linalg.norm(x, axis=2, keepdims=True)
    return _Data(x[:, :train], y[:, :train], x[:, train:], y[:, train:])


CELLS: Final = (
    (10, 0.1, 428, True, "43.5 ± 1.5"),
    (10, 0.3, 428, True, "43.5 ± 1.5"),
    (10, 0.1, 428, False, ""),
    (160, 0.1, 458, True, "19.3 ± 1.7"),
    (160, 0.1, 458, False, ""),
)
"""sigma_g, eta_0, T, whether all silos draw the same noise, and the published accuracy of the cell; K = 10."""


def table() -> Computed:
    """Accuracies of the emulation in cells of Table 1; minutes."""
    rows = []
    for sigma, eta_0, rounds, same, published in CELLS:
        options = NobleAuthors(noise_multiplier=sigma, eta_0=eta_0, local_steps=10, rounds=rounds, same_noise=same)
        scores = [100 * accuracies(options, seed) for seed in SEEDS]
        ours = f"{statistics.fmean(scores):.1f} ± {statistics.stdev(scores):.1f}"
        rows.append(
            [str(sigma), f"{eta_0:g}", str(rounds), "shared" if same else "each its own", ours, published, "none"]
        )
    header = ["sigma_g", "eta_0", "T", "noise of silos", "emulated, %", "published, %", "epsilon"]
    return header, rows


AUTHORS: Final = Item(
    kind="table",
    number="1-authors",
    label="Table 1, noble_authors",
    title="as the authors' public code computes it",
    source="Table 1, K = 10, warm-started, three seeds. NOT PRIVATE: an emulation of what the public code does "
    "(`papers.noble_authors` says what), of which no epsilon can be stated",
    computed=table,
)
