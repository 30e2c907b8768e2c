"""CPU time of a `PrivateOracle` step against Opacus' hooks: `python -m benchmarks.private_oracle`.

An MLP (30-128-128-5), batches of 32, one thread: as an `nn.Sequential`, and as a class of the user's own, with none, 64
thousand or 100 million frozen parameters. Steps of both take turns. Compiled loops (numba) are loaded before.
"""

from __future__ import annotations

import functools
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.table import table
from dpfl_plugin import PrivateOracle
from dpfl_plugin.core import draws

BATCH: Final = 32
STEPS: Final = 150
FROZEN: Final = (0, 64_000, 100_000_000)


def sequential() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 5))


class Own(nn.Module):
    """The same beside ``frozen`` parameters that do not train."""

    def __init__(self, frozen: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(30, 128), nn.Linear(128, 128), nn.Linear(128, 5)
        self.frozen = nn.Parameter(torch.zeros(frozen), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(torch.relu(self.second(torch.relu(self.first(x)))))
        return found


def records() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(100 * BATCH, 30, generator=generator), torch.randint(5, (100 * BATCH,), generator=generator)
    )


def ours(net: nn.Module, ledger: Path) -> Callable[[], object]:
    privacy = {"noise_multiplier": 1.0, "delta": 1e-5, "batch_size": BATCH}
    oracle = PrivateOracle.of(net, records(), privacy=privacy, ledger=ledger, steps=10 * STEPS)
    optimizer = torch.optim.SGD((p for p in net.parameters() if p.requires_grad), lr=0.01)

    def step() -> None:
        oracle.backward()
        optimizer.step()

    return step


def hooks(net: nn.Module) -> Callable[[], object]:
    optimizer = torch.optim.SGD((p for p in net.parameters() if p.requires_grad), lr=0.01)
    made = PrivacyEngine().make_private(
        module=net,
        optimizer=optimizer,
        data_loader=DataLoader(records(), batch_size=BATCH),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    module, optimizer, loader = made
    loss, batches = nn.CrossEntropyLoss(), (batch for _ in range(10 * STEPS) for batch in loader)

    def step() -> None:
        features, labels = next(batches)
        optimizer.zero_grad()
        loss(module(features), labels).backward()
        optimizer.step()

    return step


def measure(make: Callable[[], nn.Module], ledger: Path) -> list[str]:
    steps = ours(make(), ledger), hooks(make())
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(STEPS + 10):
        for step, times in zip(steps, taken, strict=True):
            began = time.thread_time()
            step()
            if turn >= 10:
                times.append(time.thread_time() - began)
    medians = [f"{statistics.median(times) * 1e3:.2f} ms" for times in taken]
    return [*medians, f"{statistics.median(a / b for a, b in zip(*taken, strict=True)):.2f}"]


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    draws.kernels = draws.Kernels(worth=1)
    draws.kernels.of(draws.FEW)
    nets: dict[str, Callable[[], nn.Module]] = {"nn.Sequential": sequential}
    nets |= {f"own class, {frozen:,} frozen parameters": functools.partial(Own, frozen) for frozen in FROZEN}
    with tempfile.TemporaryDirectory() as folder:
        rows = [[name, *measure(make, Path(folder) / f"{name}.jsonl")] for name, make in nets.items()]
    print(table(["network", "PrivateOracle", "Opacus' hooks", "times"], rows))


if __name__ == "__main__":
    main()
