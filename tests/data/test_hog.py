"""`hog`: scikit-image's histograms, the same for flat and for shaped images, of each record alone."""

from pathlib import Path

import numpy as np
import pytest

from dpfl_plugin.data.base import Federation, Silo
from dpfl_plugin.data.preprocess import fitted_on_records, pooled, preprocess
from dpfl_plugin.errors import ConfigError

pytest.importorskip("skimage", reason="scikit-image is not installed: launchers/env images")


def made(shape, *, test=2, step=None, images=None):
    rng = np.random.default_rng(0)
    x = (rng.random((3 + test, 8, 8)) if images is None else images).astype(np.float32).reshape(-1, *shape)
    y = np.zeros(len(x), np.int64)
    silo = Silo(x[: len(x) - test].copy(), y[: len(x) - test], x[len(x) - test :].copy(), y[len(x) - test :])
    federation = Federation([silo], 2, shape, columns=("a",))
    preprocess(federation, [{"name": "hog", "cell": 4, **(step or {})}], Path())
    return federation


@pytest.mark.parametrize("shape", [(64,), (8, 8), (1, 8, 8)])
def test_every_form_of_an_image_has_the_same_features(shape):
    federation, flat = made(shape), made((64,))
    assert federation.feature_shape == (2 * 2 * 9,) and federation.columns == ()
    for name in ("train_x", "test_x"):
        found = getattr(federation.silos[0], name)
        assert found.dtype == np.float32
        assert np.array_equal(found, getattr(flat.silos[0], name))
    assert made(shape, test=0).silos[0].test_x.shape == (0, 36)


def test_edges_fall_into_the_bins_of_their_direction():
    """Brightness that grows to the right, and downwards: angles 0 and 90 degrees, of 180 in two bins."""
    ramp = np.tile(np.arange(8.0), (8, 1))
    federation = made((64,), test=0, step={"orientations": 2}, images=np.stack([ramp, ramp.T]))
    right, down = federation.silos[0].train_x.reshape(2, -1, 2)
    assert (right[:, 0] > 0).all() and not right[:, 1].any()
    assert (down[:, 1] > 0).all() and not down[:, 0].any()


def test_a_record_has_the_same_features_whoever_else_is_there():
    """So that nothing of one record is in another's: the step costs no privacy."""
    images = np.random.default_rng(1).random((4, 8, 8))
    others = images.copy()
    others[1:] = 0
    first, second = (made((64,), test=0, images=each).silos[0].train_x for each in (images, others))
    assert np.array_equal(first[0], second[0]) and not np.array_equal(first[1], second[1])
    assert not pooled(["hog"]) and not fitted_on_records(["hog"])


@pytest.mark.parametrize(
    ("shape", "step", "said"),
    [
        ((64,), {"side": 7}, "side=7"),
        ((32, 2), {"side": 8}, "side=8"),
        ((4, 4, 4), {}, r"grey images.*\[4, 4, 4\]"),
        ((64,), {"cell": 8}, "cell=8, block=2: no block fits into images of 8 x 8"),
        ((64,), {"orientations": 0}, "orientations=0"),
        ((32, 1, 2), {}, "grey images"),
    ],
)
def test_what_is_no_image_is_refused(shape, step, said):
    with pytest.raises(ConfigError, match=said):
        made(shape, step=step)
