"""A project in NVFlare, as the tests run it: its model in float64, its records, and random bits that repeat."""

import torch
from torch import nn

from dpfl_plugin.oracle import Draw


class Net(nn.Module):
    def __init__(self, hidden=0):
        super().__init__()
        layers = [nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 3)] if hidden else [nn.Linear(4, 3)]
        self.layers = nn.Sequential(*layers).double()
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(torch.linspace(-0.5, 0.5, parameter.numel()).reshape(parameter.shape) + 0.01 * number)

    def forward(self, x):
        return self.layers(x)


def records(site):
    """Silos of unequal sizes."""
    silo = int(site.rpartition("-")[2]) - 1
    rng, size = torch.Generator().manual_seed(silo), 20 + 7 * silo
    return torch.randn(size, 4, generator=rng).double() + silo, torch.randint(0, 3, (size,), generator=rng)


def draw(round):
    return Draw(5, round)
