"""Preprocessing does what its name says, fits on training records only, and says what it means for privacy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfl_plugin.data.base import Federation, Silo
from dpfl_plugin.data.preprocess import preprocess
from dpfl_plugin.errors import ConfigError, DataError


def federation(shape: tuple[int, ...] = (6,), seed: int = 0, sizes: tuple[int, ...] = (50, 80, 30)) -> Federation:
    rng = np.random.default_rng(seed)

    def part(i: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(3.0 * i, 1.0 + i, size=(n, *shape)) * np.arange(1, shape[-1] + 1)
        return x.astype(np.float32), rng.integers(0, 10, n)

    silos = [Silo(*part(i, n), *part(i, n // 4)) for i, n in enumerate(sizes)]
    return Federation(silos, 10, shape)


def apply(fed: Federation, *steps: Any, base: Path = Path()) -> Federation:
    preprocess(fed, steps, base)
    return fed


def pooled(fed: Federation) -> np.ndarray:
    return np.concatenate([silo.train_x for silo in fed.silos]).astype(np.float64)


def test_standardise_pooled_makes_mean_0_and_variance_1() -> None:
    fed = apply(federation(), "standardise")
    assert np.allclose(pooled(fed).mean(axis=0), 0, atol=1e-5)
    assert np.allclose(pooled(fed).std(axis=0), 1, atol=1e-5)
    assert not np.allclose(fed.silos[2].train_x.mean(axis=0), 0, atol=0.1)  # one map for all silos
    assert len(fed.caveats) == 1
    assert "all silos' private training records" in fed.caveats[0]


def test_standardise_by_silo() -> None:
    fed = apply(federation((2, 3)), {"name": "standardise", "fit": "silo"})
    for silo in fed.silos:
        assert np.allclose(silo.train_x.mean(axis=0), 0, atol=1e-5)
        assert np.allclose(silo.train_x.std(axis=0), 1, atol=1e-5)
    assert "each silo's private training records" in fed.caveats[0]


def test_standardise_by_public_constants_costs_nothing() -> None:
    before, fed = federation(), apply(federation(), {"name": "standardise", "fit": "none", "mean": 2.0, "std": 4.0})
    assert np.allclose(fed.silos[0].test_x, (before.silos[0].test_x - 2) / 4, atol=1e-5)
    assert fed.caveats == []


@pytest.mark.parametrize("step", ["standardise", {"name": "pca", "dims": 2}, {"name": "standardise", "fit": "silo"}])
def test_nothing_is_fitted_on_test_records(step: Any) -> None:
    changed = federation()
    for silo in changed.silos:
        silo.test_x = silo.test_x[:3] * 1000
    one, other = apply(federation(), step), apply(changed, step)
    assert all(np.array_equal(a.train_x, b.train_x) for a, b in zip(one.silos, other.silos, strict=True))


def test_a_constant_feature_becomes_zero_and_stays_finite() -> None:
    for fit in ("pooled", "silo"):
        fed = federation()
        for silo in fed.silos:
            silo.train_x[:, 2], silo.test_x[:, 2] = 0.1, 0.1
        apply(fed, {"name": "standardise", "fit": fit})
        assert not fed.silos[1].train_x[:, 2].any()
        assert np.isfinite(pooled(fed)).all()


@pytest.mark.parametrize("shape", [(6,), (1, 4, 4)])
def test_unit_norm_is_over_the_whole_record(shape: tuple[int, ...]) -> None:
    fed = federation(shape)
    fed.silos[0].train_x[3] = 0
    direction = fed.silos[1].test_x[0] / np.linalg.norm(fed.silos[1].test_x[0])
    apply(fed, "unit_norm")
    norms = np.linalg.norm(fed.silos[0].train_x.reshape(50, -1), axis=1)
    assert norms[3] == 0
    assert np.allclose(np.delete(norms, 3), 1, atol=1e-6)
    assert fed.caveats == []
    assert np.allclose(fed.silos[1].test_x[0], direction, atol=1e-6)
    assert fed.feature_shape == shape


def test_pca_is_that_of_scikit_learn_up_to_sign() -> None:
    from sklearn.decomposition import PCA

    for shape in ((6,), (1, 4, 4)):
        d = int(np.prod(shape))
        raw, fed = federation(shape), apply(federation(shape), {"name": "pca", "dims": 3})
        reference = PCA(3, svd_solver="full").fit(pooled(raw).reshape(-1, d))
        expected = reference.transform(raw.silos[1].test_x.reshape(-1, d).astype(np.float64))
        assert np.allclose(np.abs(fed.silos[1].test_x), np.abs(expected), rtol=1e-3, atol=1e-3)
        assert fed.feature_shape == (3,)
        assert "private" in fed.caveats[0]


def test_pca_gives_the_same_bits_again() -> None:
    one, other = (apply(federation(), {"name": "pca", "dims": 2}) for _ in range(2))
    assert all(a.train_x.tobytes() == b.train_x.tobytes() for a, b in zip(one.silos, other.silos, strict=True))


def test_pca_fitted_on_public_records_does_not_depend_on_private_ones(tmp_path: Path) -> None:
    np.savez(tmp_path / "public.npz", x=np.random.default_rng(1).normal(size=(40, 6)))
    step = {"name": "pca", "dims": 2, "fit": "public.npz"}
    one, other = federation(), federation()
    other.silos[2].train_x *= 100
    apply(one, step, base=tmp_path), apply(other, step, base=tmp_path)
    assert np.array_equal(one.silos[0].train_x, other.silos[0].train_x)
    assert "public.npz" in one.caveats[0]
    assert "private" not in one.caveats[0]
    with pytest.raises(DataError, match="there is no file"):
        apply(federation(), {"name": "pca", "dims": 2, "fit": "absent.npz"}, base=tmp_path)
    with pytest.raises(DataError, match="records with 4 features"):
        apply(federation((4,)), step, base=tmp_path)


def test_scale_and_parity() -> None:
    before, fed = federation(), apply(federation(), {"name": "scale", "factor": 2.0, "offset": -1.0}, "parity")
    assert np.allclose(fed.silos[0].train_x, before.silos[0].train_x * 2 - 1)
    assert np.array_equal(fed.silos[1].test_y, before.silos[1].test_y % 2)
    assert fed.num_classes == 2
    assert fed.caveats == []


def test_steps_run_in_order() -> None:
    last_unit = apply(federation(), "standardise", "unit_norm")
    assert np.allclose(np.linalg.norm(pooled(last_unit), axis=1), 1, atol=1e-6)
    last_standard = apply(federation(), "unit_norm", "standardise")
    assert np.allclose(pooled(last_standard).std(axis=0), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("standardize", r"data\.preprocess\[1\]\.name='standardize' is unknown .did you mean 'standardise'"),
        ({"name": "pca"}, r"data\.preprocess\[1\]\.dims is missing"),
        ({"name": "pca", "dims": 7}, r"data\.preprocess\[1\]\.dims=7 must be from 1 to 6"),
        ({"name": "pca", "dims": 2, "whiten": True}, r"data\.preprocess\[1\]\.whiten is not a known option"),
        ({"name": "scale", "factor": 0.0}, r"data\.preprocess\[1\]\.factor=0"),
        ({"name": "standardise", "fit": "none"}, "give mean and std"),
        ({"name": "standardise", "mean": 1.0}, "give mean and std"),
        ({"name": "standardise", "fit": "none", "mean": 0.0, "std": 0.0}, r"std=0\.0 must be positive"),
    ],
)
def test_errors_name_the_step(step: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply(federation(), "unit_norm", step)


def test_a_column_that_makes_all_of_the_norm_is_noted() -> None:
    def noted(largest: float) -> list[str]:
        x = np.array([[largest, 1.0, -1.0]] * 4, np.float32)
        silos = [Silo(x.copy(), np.zeros(4, np.int64), x[:1].copy(), np.zeros(1, np.int64)) for _ in range(2)]
        found = Federation(silos, 2, (3,), columns=("income", "age", "sex"))
        preprocess(found, ["unit_norm"], Path())
        return found.notes

    assert noted(4.2) == []  # 17.64 of 19.64: 89.8 %
    (note,) = noted(4.3)  # 18.49 of 20.49: 90.2 %
    assert "'income'" in note and "90.2 %" in note.replace("%", " %")
