"""A FedML project of one's own: digits at five hospitals that mostly see two digits each."""

import fedml
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpfl_plugin.adapters.fedml import private_runner

NUM_SILOS = 5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))

    def forward(self, x):
        return self.layers(x)


def load_data():
    x, y = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    x = (x / x.norm(dim=1, keepdim=True)).float()
    position = torch.arange(len(y))
    home = torch.where(position % 4 > 0, y * NUM_SILOS // 10, position // 4 % NUM_SILOS)

    def loader(here):
        return DataLoader(TensorDataset(x[here], y[here]), batch_size=32, shuffle=True)

    is_test = position % 5 == 0
    train = {silo: loader((home == silo) & ~is_test) for silo in range(NUM_SILOS)}
    test = {silo: loader((home == silo) & is_test) for silo in range(NUM_SILOS)}
    sizes = {silo: len(part.dataset) for silo, part in train.items()}
    return [int((~is_test).sum()), int(is_test.sum()), loader(~is_test), loader(is_test), sizes, train, test, 10]


if __name__ == "__main__":
    args = fedml.init()
    device = fedml.device.get_device(args)
    dataset = load_data()
    model = Net()
    runner = private_runner(args, device, dataset, model)
    runner.run()
