"""What a platform's run is compared with: SCAFFOLD by a loop that shares no code with the package."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from scipy.stats import kstest, norm
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

EXACT = {"noise_multiplier": 0.0, "clip_norm": 1e9, "record_rate": 1.0, "delta": 1e-5}  # full batches, no noise
NOISY = {**EXACT, "noise_multiplier": 1e-3, "clip_norm": 1e3}
ALPHA = 1e-6  # false alarm of a statistical test


def scaffold(
    model: nn.Module, data: Sequence[tuple[Tensor, Tensor]], *, rounds: int, local_steps: int, local_lr: float
) -> Tensor:
    """The model (d,) after all rounds, with full batches: Karimireddy et al. 2020, Alg. 1, Option II, eta_g = 1."""
    made = copy.deepcopy(model)

    def gradient(y: Tensor, silo: int) -> Tensor:
        vector_to_parameters(y, made.parameters())
        loss = nn.functional.cross_entropy(made(data[silo][0]), data[silo][1])
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(made.parameters()))])

    x = parameters_to_vector(model.parameters()).detach().clone()
    c, controls = torch.zeros_like(x), [torch.zeros_like(x) for _ in data]
    for _ in range(rounds):
        models, changes = [], []
        for silo, c_i in enumerate(controls):
            y = x.clone()
            for _ in range(local_steps):
                y = y - local_lr * (gradient(y, silo) - c_i + c)
            following = c_i - c + (x - y) / (local_steps * local_lr)
            models.append(y)
            changes.append(following - c_i)
            controls[silo] = following
        x = torch.stack(models).mean(0)
        c = c + torch.stack(changes).mean(0)
    return x


def check_noise(found: Tensor, model: nn.Module, data: Sequence[tuple[Tensor, Tensor]], local_lr: float = 0.5) -> None:
    """Assert that a model after one round of one full step differs from the exact one by what `NOISY` says.

    Each silo adds N(0, (2 C sigma / n_i)^2) to its mean gradient; the mean of them is Gaussian. False alarm: 1e-6.
    Power: noise of 1.1 times the size is noticed, with certainty for all purposes (d = 40,000).
    """
    exact = scaffold(model, data, rounds=1, local_steps=1, local_lr=local_lr)
    variances = [(2 * NOISY["clip_norm"] * NOISY["noise_multiplier"] / len(labels)) ** 2 for _, labels in data]
    std, noise = local_lr * math.sqrt(sum(variances)) / len(data), (found - exact).numpy()
    assert kstest(noise, norm(scale=std).cdf).pvalue > ALPHA
    assert kstest(noise, norm(scale=1.1 * std).cdf).pvalue < ALPHA
