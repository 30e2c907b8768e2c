"""What a run can move a model by, against its noise: the ratio is the one that a simulation has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import FullBatch
from dpfl_plugin.runs.signal import signal_to_noise, weak_signal

RULES = PrivacyRules(
    unit="record", neighbouring="replace_one", clip_norm=2.0, mechanism=Gaussian(3.0), sampler=FullBatch()
)
SETTING = Setting(num_silos=2, num_participants=2, silo_rate=1.0, record_rate=1.0, weights=(0.25, 0.75))
COUNTS, DIMENSION, STEPS = (50, 150), 5000, 4


def test_it_is_the_longest_sum_of_gradients_over_the_length_of_the_noise_in_it() -> None:
    """Drawn: the noise's length in 5,000 dimensions is within 6 % of its mean but for 1e-7."""
    rng, std = np.random.default_rng(0), 2.0 * 3.0 * 2.0  # C, noise multiplier, sensitivity in units of C
    silos = (
        weight * std / count * rng.normal(size=(STEPS, DIMENSION))
        for weight, count in zip((0.25, 0.75), COUNTS, strict=True)
    )
    noise = np.linalg.norm(sum(silos).sum(axis=0))
    ratio = signal_to_noise(RULES, SETTING, COUNTS, DIMENSION, STEPS)
    assert ratio == pytest.approx(STEPS * 2.0 / noise, rel=0.06)


def test_there_is_none_without_noise_or_steps() -> None:
    for rules, steps in ((replace(RULES, mechanism=Gaussian(0.0)), STEPS), (RULES, 0)):
        assert signal_to_noise(rules, SETTING, COUNTS, DIMENSION, steps) is None
        assert weak_signal(rules, SETTING, COUNTS, DIMENSION, steps, "classes") == ""


def test_fewer_parameters_have_more_signal_and_are_not_warned_of() -> None:
    of = [signal_to_noise(RULES, SETTING, COUNTS, dimension, STEPS) or 0.0 for dimension in (10_000, 100, 1)]
    assert of[1] / of[0] == pytest.approx(10) and of[2] / of[1] == pytest.approx(10)
    told = [weak_signal(RULES, SETTING, COUNTS, dimension, STEPS, "classes") for dimension in (10_000, 100, 1)]
    assert [bool(text) for text in told] == [ratio < 3 for ratio in of] == [True, False, False]
    assert weak_signal(RULES, SETTING, COUNTS, 100, STEPS, "regression"), "regression needs more"
