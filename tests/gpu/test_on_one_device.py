"""A stack's step on a device that is not the CPU, where there is no GPU: torch follows tensors without numbers, and
raises where an operation, number by number, mixes their device with the CPU's, or where numbers are needed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpfl_plugin.core.counter_words import FreshWords, SeededWords
from dpfl_plugin.core.device_noise import normals
from dpfl_plugin.core.streams import stream_key
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.dense import Dense
from dpfl_plugin.gradients.stacked import Pool

ELSEWHERE = torch.device("meta")  # a device without numbers


def test_mixed_devices_would_be_noticed() -> None:
    there, here = torch.empty(3, 3, device=ELSEWHERE), torch.empty(3, 3)
    for mixed in (
        lambda: there + here,
        lambda: there * here,
        lambda: torch.maximum(there, here),
        lambda: there <= here,
        lambda: there.long() ^ here.long(),
        lambda: torch.bmm(there.unsqueeze(0), here.unsqueeze(0)) + there,  # on the other side of the product, silent
    ):
        with pytest.raises(RuntimeError, match="expected device"):
            mixed()


MODELS: dict[str, Any] = {
    "closed_form": (ClosedForm, lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 5)).to(ELSEWHERE)),
    "dense": (
        Dense,
        lambda: nn.Sequential(nn.Linear(4, 3, device=ELSEWHERE), nn.Tanh(), nn.Linear(3, 5, device=ELSEWHERE)),
    ),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("clip_norm", [0.5, math.inf])
def test_the_sums_of_a_stack(kind: str, clip_norm: float) -> None:
    make, model = MODELS[kind]
    engine = make(model(), losses.cross_entropy, 2**20)
    silos = {
        silo: engine.prepare(
            Records(torch.empty(9, 4, device=ELSEWHERE), torch.zeros(9, dtype=torch.int64, device=ELSEWHERE)),
        )
        for silo in range(3)
    }
    batches = Pool(silos).gather([0, 1, 2], [np.arange(3), np.arange(5), np.arange(0)])
    assert batches.features.device == batches.labels.device == batches.padding.device == ELSEWHERE
    d = sum(layer.weight.numel() + layer.bias.numel() for layer in model() if isinstance(layer, nn.Linear))
    y = torch.empty(3, d, device=ELSEWHERE)
    clip_norms = None if clip_norm == math.inf else torch.empty(3, 1, dtype=torch.float64, device=ELSEWHERE)
    norms = engine.clipped_sums(y, batches, clip_norms, torch.empty_like(y, dtype=torch.float64))
    assert norms is None if clip_norms is None else norms.device == ELSEWHERE


@pytest.mark.parametrize("count", [6, 7])
def test_noise(count: int) -> None:
    """Its words, and its normals; whether they are decided has to be asked of numbers."""
    seeded = SeededWords(lambda row, step: stream_key(0, "noise", silo=row, step=step))
    for words in (seeded, FreshWords()):
        drawn = normals(words, [(row, 2) for row in range(3)], count, ELSEWHERE)
        assert drawn.device == ELSEWHERE and drawn.shape == (3, count) and drawn.dtype == torch.float64
