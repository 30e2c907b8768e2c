"""Workloads, and their synthetic federations: values do not matter for time, shapes do."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.algorithms.scaffold import Scaffold
from dpfl_plugin.core.streams import stream
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.models.linear import softmax
from dpfl_plugin.models.mlp import mlp
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.samplers import FixedSize


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A round of DP-SCAFFOLD.

    Attributes:
        num_features, num_classes: of the model; image: (channels, height, width) of the features of images.
        model: "softmax" regression; "mlp", one hidden layer of 200; "cnn", two convolutions and two linear layers;
            "resnet18", for small images, with GroupNorm.
        num_silos: M; num_records: R, training records of each silo; num_participants: S, silos in a round.
        batch_size: b, records of a local step, without replacement.
        local_steps: K; local_lr: eta_l.
        clip_norm: C; noise_multiplier: sigma_g. 0 and inf are allowed: see `contenders`.
        seed: of the data, the batches, the participants and the noise.
        device: where model and records are.
    """

    num_features: int
    num_classes: int
    model: Literal["softmax", "mlp", "cnn", "resnet18"] = "softmax"
    image: tuple[int, int, int] | None = None
    num_silos: int
    num_records: int
    num_participants: int
    batch_size: int
    local_steps: int = 50
    local_lr: float = 0.1
    clip_norm: float = 1.0
    noise_multiplier: float = 1.0
    seed: int = 0
    device: str = "cpu"

    @property
    def feature_shape(self) -> tuple[int, ...]:
        return self.image or (self.num_features,)

    def module(self) -> nn.Module:
        """The model, with the same parameters each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            makers = {"softmax": softmax, "mlp": mlp, "cnn": _cnn, "resnet18": _resnet18}
            return makers[self.model](self.feature_shape, self.num_classes).to(self.device)

    @property
    def algorithm(self) -> Scaffold:
        return Scaffold(local_steps=self.local_steps, local_lr=self.local_lr)

    @property
    def sampler(self) -> FixedSize:
        return FixedSize(batch_size=self.batch_size)

    @property
    def silo_steps(self) -> int:
        """Local steps of all silos in a round."""
        return self.num_participants * self.local_steps

    def plan(self, round: int) -> RoundPlan:
        """Who takes part in a round, the same for all that are compared."""
        rng = stream(self.seed, "participants", round)
        chosen = sorted(rng.choice(self.num_silos, self.num_participants, replace=False).tolist())
        return RoundPlan(
            local_steps=self.local_steps,
            local_lr=self.local_lr,
            num_gradients=self.local_steps,
            participants=tuple(chosen),
            weights=(1 / len(chosen),) * len(chosen),
            silo_share=len(chosen) / self.num_silos,
        )

    def draw(self, round: int) -> Draw:
        """The names of a round's random streams, the same for all that are compared."""
        return Draw(self.seed, round)

    def silos(self) -> list[Records]:
        """Normal features and uniform labels of all silos."""
        return [self.silo(silo) for silo in range(self.num_silos)]

    def silo(self, silo: int) -> Records:
        """Normal features and uniform labels of one silo."""
        rng = stream(self.seed, "data", silo=silo)
        features = rng.standard_normal((self.num_records, *self.feature_shape), dtype="float32")
        labels = rng.integers(self.num_classes, size=self.num_records)
        return Records(torch.from_numpy(features).to(self.device), torch.from_numpy(labels).to(self.device))


WORKLOADS: Final[dict[str, Workload]] = {
    "W1": Workload(
        num_features=40, num_classes=10, num_silos=100, num_records=4000, num_participants=20, batch_size=800
    ),
    "W2": Workload(
        num_features=784, num_classes=47, num_silos=40, num_records=2000, num_participants=8, batch_size=400
    ),
    "W3": Workload(
        num_features=60,
        num_classes=10,
        model="mlp",
        num_silos=60,
        num_records=800,
        num_participants=12,
        batch_size=160,
    ),
    "W4": Workload(
        num_features=3072,
        num_classes=10,
        model="cnn",
        image=(3, 32, 32),
        num_silos=4,
        num_records=320,
        num_participants=2,
        batch_size=64,
        local_steps=5,
    ),
}
RESNET18: Final = replace(WORKLOADS["W4"], model="resnet18")
"""Too large for a processor core: measured on GPUs only."""


def _cnn(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    channels, height, width = shape
    pooled = 64 * math.prod(size // 4 for size in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(pooled, 128),
        nn.ReLU(),
        nn.Linear(128, num_classes),
    )


class _Residual(nn.Module):
    """Two 3 x 3 convolutions beside the identity, or beside a 1 x 1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.GroupNorm(32, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.GroupNorm(32, outputs),
        )
        self.skip: nn.Module = nn.Identity()
        if inputs != outputs:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(32, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.skip(x))


def _resnet18(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """ResNet-18 (He et al. 2016) with a 3 x 3 first layer, as is usual for 32 x 32, and GroupNorm."""
    widths = (64, 64, 128, 256, 512)
    blocks = [
        block
        for inputs, outputs in itertools.pairwise(widths)
        for block in (_Residual(inputs, outputs, 1 if inputs == outputs else 2), _Residual(outputs, outputs, 1))
    ]
    return nn.Sequential(
        nn.Conv2d(shape[0], 64, 3, padding=1, bias=False),
        nn.GroupNorm(32, 64),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, num_classes),
    )


def describe(workload: Workload) -> str:
    """A workload in words."""
    w = workload
    shape = " x ".join(map(str, w.feature_shape))
    kind = {
        "softmax": "softmax regression",
        "mlp": "a fully connected network with 200 hidden units,",
        "cnn": "two 5 x 5 convolutions (32, 64) and two linear layers (128),",
        "resnet18": "ResNet-18 with GroupNorm,",
    }
    return (
        f"{kind[w.model]} {shape} -> "
        f"{w.num_classes} on {w.num_silos} silos of {w.num_records} records; "
        f"a round is {w.num_participants} silos x {w.local_steps} local steps on {w.batch_size} records"
    )
