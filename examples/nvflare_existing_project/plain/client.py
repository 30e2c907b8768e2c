"""What a silo does."""

import nvflare.client as flare
import torch
from task import Net, train_data
from torch import nn

STEPS, LR = 10, 1.0


def batches(loader):
    while True:
        yield from loader


def main():
    flare.init()
    model, loader = Net(), batches(train_data(flare.get_site_name()))
    while flare.is_running():
        received = flare.receive()
        model.load_state_dict(received.params)
        optimiser = torch.optim.SGD(model.parameters(), lr=LR)
        for _ in range(STEPS):
            x, y = next(loader)
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
        flare.send(flare.FLModel(params=model.state_dict(), meta={"NUM_STEPS_CURRENT_ROUND": STEPS}))


if __name__ == "__main__":
    main()
