"""One upload must not tell by its bits what was under the noise: every value has the same set of possible uploads.

The attack is Mironov's (CCS 2012): of a coordinate that is zero in every record, say a pixel of the border, "0 + noise"
in float32 cannot reach all floats; of one that is not, other floats. Whoever sees the upload looks for coordinates that
noise alone cannot have made.
"""

import numpy as np
import pytest
import torch

from dpfl_plugin.core import draws
from dpfl_plugin.core.counter_words import FreshWords
from dpfl_plugin.core.device_noise import DeviceNoise
from dpfl_plugin.core.grid import Grid
from dpfl_plugin.core.streams import FreshStream, stream
from dpfl_plugin.privacy.mechanisms import Gaussian

SIGMA, SENSITIVITY, DIVISOR, DIMENSION, TRIALS = 40.0, 2.0, 60, 400, 40


def in_floats(value, rng):
    """value + scale * N(0, 1) in float32, as it is usually done: the power of the attack."""
    normals = rng.standard_normal(DIMENSION).astype(np.float32)
    noisy = value.astype(np.float32) + np.float32(SIGMA * SENSITIVITY) * normals
    return noisy * np.float32(1 / DIVISOR)


def float_noise_alone(upload):
    """Whether there are float32 normals z with fl(fl(scale z) / b) equal to the upload, in each coordinate."""
    scale, per = np.float32(SIGMA * SENSITIVITY), np.float32(1 / DIVISOR)
    nearest = (upload / per / scale).astype(np.float32)
    found = np.zeros(len(upload), bool)
    for ulps in range(-4, 5):
        z = (nearest.view(np.int32) + ulps).view(np.float32)
        found |= (scale * z) * per == upload
    return found


def ours(value, rng):
    out = torch.empty(DIMENSION)
    Gaussian(SIGMA)(torch.from_numpy(value), SENSITIVITY, rng, out)
    return out.mul_(1 / DIVISOR).numpy()


def grid_noise_alone(upload):
    """As above, of noise in whole steps."""
    step, per = Grid.of(SENSITIVITY, DIMENSION).step, np.float32(1 / DIVISOR)
    nearest = np.rint(upload / np.float64(per) / step)
    found = np.zeros(len(upload), bool)
    for steps in range(-(2**6), 2**6 + 1):
        found |= ((nearest + steps) * step).astype(np.float32) * per == upload
    return found


def right_guesses(release, noise_alone, source):
    """Of `TRIALS` uploads, half of them with a record that shows in one coordinate of ten, how many are told apart."""
    touched = np.where(np.arange(DIMENSION) % 10 == 0, 0.0031337, 0.0)
    right = 0
    for trial in range(TRIALS):
        with_record = trial % 2 == 1
        upload = release(touched if with_record else 0 * touched, source(trial))
        right += (not noise_alone(upload).all()) == with_record
    return right


@pytest.mark.parametrize("fresh", [False, True])
def test_what_noise_alone_can_reach_is_all_that_is_reached(fresh, monkeypatch):
    """In floats every upload is told apart, at an epsilon of 0.1; on the grid every guess is the same."""
    monkeypatch.setattr(draws, "kernels", draws.Kernels(worth=1))
    seeded = lambda trial: stream(7, "noise", trial)  # noqa: E731
    assert right_guesses(in_floats, float_noise_alone, seeded) == TRIALS
    source = (lambda trial: FreshStream().seek(b"")) if fresh else seeded
    assert right_guesses(ours, grid_noise_alone, source) == TRIALS // 2


@pytest.mark.parametrize("mechanism", ["host", "device"])
def test_a_release_is_whole_steps_of_a_grid_that_does_not_depend_on_the_value(mechanism):
    """In float64 every bit of it: the parity of the steps included, which is as likely to be even as odd."""
    step = Grid.of(SENSITIVITY, DIMENSION).step
    odd = 0
    for trial in range(50):
        value = torch.full((DIMENSION,), 0.123456789 * (trial % 7), dtype=torch.float64)
        out = torch.empty(DIMENSION, dtype=torch.float64)
        if mechanism == "host":
            Gaussian(SIGMA)(value, SENSITIVITY, stream(1, "noise", trial), out)
        else:
            rows, (grid, std) = slice(0, 1), Gaussian(SIGMA).in_steps(SENSITIVITY, DIMENSION, 1.0)
            made = DeviceNoise(FreshWords(), rows=1, count=DIMENSION, steps=1, device=torch.device("cpu"))
            made.add_rounded(value.unsqueeze(0), 0, rows, [grid], [std], out.unsqueeze(0))
        steps = out / step
        assert torch.equal(steps, steps.round())
        odd += int((steps % 2 != 0).sum())
    count = 50 * DIMENSION
    assert abs(odd - count / 2) < 5 * (count / 4) ** 0.5  # false alarm below 6e-7
