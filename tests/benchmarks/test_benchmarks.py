"""The benchmark compares like with like: what is timed computes the same model."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import benchmarks
from benchmarks.contenders import OURS, PlainSGD, contenders
from benchmarks.workloads import Workload

PLAIN = PlainSGD.name
TINY = Workload(
    num_features=7,
    num_classes=3,
    num_silos=5,
    num_records=40,
    num_participants=3,
    batch_size=11,
    local_steps=4,
    local_lr=0.5,
    clip_norm=0.8,
    noise_multiplier=0.0,
)


def models(load: Workload, num_rounds: int = 3) -> dict[str, Tensor]:
    """Each contender's model after some rounds: silos come back, so control variates matter too."""
    silos = load.silos()
    found = {}
    for entrant in contenders(load, silos):
        for number in range(num_rounds):
            entrant.round(load.plan(number), load.draw(number))
        found[entrant.name] = entrant.model()
    return found


MODELS = {
    "softmax": (TINY, 6),  # closed form, dense, book-keeping, vmap; Opacus' hooks and ghost clipping
    "mlp": (replace(TINY, model="mlp"), 5),
    "cnn": (replace(TINY, model="cnn", image=(1, 8, 8), num_records=20, local_lr=0.1, clip_norm=0.2), 4),
}


@pytest.mark.parametrize("model", MODELS)
def test_all_that_clip_train_the_same_model(model: str) -> None:
    load, count = MODELS[model]
    found = models(load)
    plain = found.pop(PLAIN)
    assert len(found) == count and found[OURS].norm() > 0.1
    for name, model in found.items():
        torch.testing.assert_close(model, found[OURS], atol=1e-5, rtol=0, msg=lambda text, name=name: f"{name}: {text}")
    assert (plain - found[OURS]).abs().max() > 1e-2, "clipping has to matter, or nothing was compared"


def test_plain_sgd_trains_the_same_model_without_clipping() -> None:
    load = replace(TINY, clip_norm=math.inf)
    silos = load.silos()
    ours, plain = (next(e for e in contenders(load, silos) if e.name == name) for name in (OURS, PLAIN))
    for number in range(3):
        for entrant in (ours, plain):
            entrant.round(load.plan(number), load.draw(number))
    torch.testing.assert_close(plain.model(), ours.model(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("sigma_g", [1.0, 2.0])
def test_the_noise_has_the_same_size(sigma_g: float) -> None:
    """A factor of 2 (C or 2C) would show: the deviation of 600 normals is good to 3 %, and 20 % is allowed."""
    quiet = replace(TINY, num_features=199, local_steps=1, num_records=11, num_participants=5)
    noisy = replace(quiet, noise_multiplier=sigma_g)
    without, with_noise = models(quiet, num_rounds=1), models(noisy, num_rounds=1)
    deviation = {name: float((with_noise[name] - without[name]).std()) for name in without}
    assert deviation.pop(PLAIN) == 0.0
    expected = noisy.local_lr * sigma_g * 2 * noisy.clip_norm / noisy.batch_size / math.sqrt(noisy.num_participants)
    for name, found in deviation.items():
        assert found == pytest.approx(expected, rel=0.2), name


@pytest.mark.parametrize("path", sorted(Path(benchmarks.__path__[0]).glob("*.py")), ids=lambda path: path.stem)
def test_every_benchmark_can_be_imported(path: Path) -> None:
    importlib.import_module(f"benchmarks.{path.stem}")
