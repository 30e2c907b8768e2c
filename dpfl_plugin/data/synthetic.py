"""The synthetic(alpha, beta) classification problem."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core.streams import stream
from dpfl_plugin.data.base import Dataset
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.errors import ConfigError, require


def synthetic(
    source: DataSource,
    *,
    alpha: float = 0.0,
    beta: float = 0.0,
    num_features: int = 40,
    num_classes: int = 10,
    records_per_silo: int = 5000,
    label_noise: float = 0.05,
) -> Dataset:
    """Linear models and features that differ from silo to silo, by the variances alpha and beta.

    Noble et al. 2022, arXiv:2111.09278v3, App. D.2 (beta is its nu). For silo i, elementwise:
    W_i ~ N(u_i, 1), u_i ~ N(0, alpha), both [num_features, num_classes]; b_i likewise [num_classes];
    x ~ N(v_i, diag(j^-1.2)), v_i ~ N(B_i, 1), B_i ~ N(0, beta), all [num_features];
    y = argmax(x W_i + b_i), changed to another class, uniformly, with probability ``label_noise``.
    The records of silo i depend neither on the number of silos nor on those of other silos.

    u_i is a matrix of independent entries, as in the paper's text and its authors' code. So W_i and b_i are distributed
    as sqrt(1 + alpha) times those of alpha = 0, and the labels do not depend on alpha in distribution: models differ
    between silos as much at alpha = 0. (With one u_i for all entries, as in Li et al. 2020, arXiv:1812.06127v5,
    argmax does not see alpha either.) The authors' code draws the new label among all classes, ours among the others.
    """
    M = source.num_silos
    if M is None:
        raise ConfigError("num_silos is missing: synthetic makes as many silos as you ask for; the paper has 100.")
    for key, value in {"alpha": alpha, "beta": beta}.items():
        require(0 <= value < np.inf, key, value, "be a variance, 0 or more")
    for key, count in {"num_silos": M, "num_features": num_features, "records_per_silo": records_per_silo}.items():
        require(count >= 1, key, count, "be 1 or more")
    require(num_classes >= 2, "num_classes", num_classes, "be 2 or more")
    require(0 <= label_noise <= 1, "label_noise", label_noise, "be a probability")
    R, d, classes = records_per_silo, num_features, num_classes
    features, labels = source.scratch.empty((M * R, d), np.float32), np.empty(M * R, dtype=np.int64)
    std = (np.arange(1, d + 1) ** -0.6).astype(np.float32)  # square root of Sigma_jj = j^-1.2
    for i in range(M):
        rng = stream(source.seed, "data", silo=i)
        W = _two_level(rng, alpha, (d, classes))
        b = _two_level(rng, alpha, (classes,))
        v = _two_level(rng, beta, (d,))
        x = features[i * R : (i + 1) * R]
        rng.standard_normal(out=x, dtype=np.float32)
        x *= std
        x += v.astype(np.float32)
        y = np.argmax(x.astype(np.float64) @ W + b, axis=1)
        flipped = rng.random(R) < label_noise
        shift = rng.integers(1, classes, size=R)  # never 0: a changed label is another label
        labels[i * R : (i + 1) * R] = np.where(flipped, (y + shift) % classes, y)
    return Dataset(features, labels, classes, groups=np.repeat(np.arange(M, dtype=np.int64), R))


def _two_level(rng: np.random.Generator, variance: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """N(u, 1) around u ~ N(0, variance), elementwise."""
    u: NDArray[np.float64] = np.sqrt(variance) * rng.standard_normal(shape)
    return u + rng.standard_normal(shape)
