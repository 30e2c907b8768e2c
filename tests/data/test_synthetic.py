"""synthetic(alpha, beta) has the moments that the paper gives it.

Seeds are fixed. For a fresh seed each statistical test fails on correct code with probability below ALPHA.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpfl_plugin.data import synthetic as module
from dpfl_plugin.data.base import Dataset, validate
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.synthetic import synthetic
from dpfl_plugin.errors import ConfigError

ALPHA = 1e-6
VARIANCES = np.arange(1, 41) ** -1.2


def two_sided(statistic: float, df: int) -> float:
    """p-value of a chi-square statistic."""
    return float(2 * min(stats.chi2.cdf(statistic, df), stats.chi2.sf(statistic, df)))


def by_silo(data: Dataset, M: int) -> np.ndarray:
    return data.features.astype(np.float64).reshape(M, -1, data.features.shape[1])


def test_shapes_and_types() -> None:
    data = synthetic(DataSource(seed=1, num_silos=3), records_per_silo=50)
    validate(data, "synthetic")
    assert data.features.shape == (150, 40)
    assert data.num_classes == 10
    assert data.groups is not None
    assert np.array_equal(data.groups, np.repeat([0, 1, 2], 50))


def test_features_have_variance_j_to_the_minus_1_2_and_no_covariance() -> None:
    M, R = 20, 500
    x = by_silo(synthetic(DataSource(seed=2, num_silos=M), records_per_silo=R, beta=3.0), M)
    scatter = ((x - x.mean(axis=1, keepdims=True)) ** 2).sum(axis=(0, 1))
    pvalues = np.array([two_sided(s, M * (R - 1)) for s in scatter / VARIANCES])
    assert pvalues.min() * 40 > ALPHA
    assert two_sided(scatter[0] / 1.1, M * (R - 1)) < ALPHA  # would notice 10 %
    wrong = np.arange(40) + 2.0  # an index that starts at 2 would be noticed
    assert max(two_sided(s, M * (R - 1)) for s in (scatter / wrong**-1.2)[:3]) < ALPHA
    z = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(VARIANCES)
    correlations = np.einsum("mri,mrj->ij", z, z)[np.triu_indices(40, 1)] / np.sqrt(M * R)
    assert stats.norm.sf(np.abs(correlations)).min() * 2 * len(correlations) > ALPHA


@pytest.mark.parametrize("beta", [0.0, 4.0])
def test_silo_means_have_variance_one_plus_beta_elementwise(beta: float) -> None:
    M, R = 400, 20
    x = by_silo(synthetic(DataSource(seed=3, num_silos=M), records_per_silo=R, beta=beta), M)
    standard = x.mean(axis=1) / np.sqrt(1 + beta + VARIANCES / R)  # standard normal, [M, 40]
    assert two_sided(float((standard**2).sum()), M * 40) > ALPHA
    assert two_sided(float((standard**2).sum()) / 1.1, M * 40) < ALPHA  # would notice 10 %
    # Independent entries: with one B_i for all features this would have variance 1 + 39 beta / (1 + beta).
    assert two_sided(float((standard.sum(axis=1) ** 2).sum() / 40), M) > ALPHA


def test_model_parameters_have_variance_one_plus_alpha_elementwise() -> None:
    rng = np.random.default_rng(4)
    for alpha in (0.0, 3.0):
        W = module._two_level(rng, alpha, (400, 100)) / np.sqrt(1 + alpha)
        assert two_sided(float((W**2).sum()), W.size) > ALPHA
        assert two_sided(float((W.sum(axis=1) ** 2).sum() / 100), 400) > ALPHA  # u_i is no constant along a row
    assert two_sided(float((module._two_level(rng, 9.0, (400, 100)) ** 2).sum()) / (1 + 3.0), 40_000) < ALPHA


def test_labels_are_a_linear_model_of_each_silo_and_silos_differ() -> None:
    """One half of a silo's records predicts the other; another silo's model does not."""
    from sklearn.linear_model import LogisticRegression

    M = 2
    data = synthetic(DataSource(seed=5, num_silos=M), num_features=5, num_classes=3, label_noise=0.0)
    x, y = by_silo(data, M), data.labels.reshape(M, -1)
    fitted = LogisticRegression(C=1e3, max_iter=1000).fit(x[0, :2500], y[0, :2500])
    assert fitted.score(x[0, 2500:], y[0, 2500:]) > 0.97
    assert fitted.score(x[1], y[1]) < 0.9


def test_labels_depend_on_a_bias() -> None:
    """With one feature and no bias, a silo's labels are the largest and the smallest weight's: two classes."""
    data = synthetic(DataSource(seed=9, num_silos=10), num_features=1, records_per_silo=2000, label_noise=0.0)
    assert max(len(np.unique(y)) for y in data.labels.reshape(10, -1)) > 2


def test_label_noise_changes_five_percent_to_any_other_class() -> None:
    source = DataSource(seed=6, num_silos=4)
    size = {"num_features": 2, "records_per_silo": 100_000}
    clean, noisy = (synthetic(source, label_noise=noise, **size) for noise in (0.0, 0.05))
    assert np.array_equal(clean.features, noisy.features)
    changed = clean.labels != noisy.labels
    assert stats.binomtest(int(changed.sum()), len(changed), 0.05).pvalue > ALPHA
    assert stats.binomtest(int(changed.sum()), len(changed), 0.045).pvalue < ALPHA  # not "any class, the same too"
    shifts = np.bincount((noisy.labels - clean.labels)[changed] % 10, minlength=10)
    assert shifts[0] == 0
    assert stats.chisquare(shifts[1:]).pvalue > ALPHA
    everything = synthetic(source, label_noise=1.0, **size)
    assert not (everything.labels == clean.labels).any()


def test_a_silo_depends_on_the_seed_and_its_number_only() -> None:
    few, many = (synthetic(DataSource(seed=7, num_silos=M), records_per_silo=30, beta=1.0) for M in (2, 5))
    assert np.array_equal(few.features, many.features[:60])
    assert np.array_equal(few.labels, many.labels[:60])
    other = synthetic(DataSource(seed=8, num_silos=2), records_per_silo=30, beta=1.0)
    assert not np.isin(other.features, few.features).any()
    assert not np.isin(many.features[:30], many.features[30:]).any()


@pytest.mark.parametrize(
    ("options", "named"),
    [({"alpha": -1.0}, "alpha"), ({"label_noise": 1.5}, "label_noise"), ({"num_classes": 1}, "num_classes")],
)
def test_options_out_of_range_are_named(options: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named}="):
        synthetic(DataSource(num_silos=2), **options)  # type: ignore[arg-type]


def test_number_of_silos_is_required() -> None:
    with pytest.raises(ConfigError, match="num_silos is missing"):
        synthetic(DataSource())
