"""A project in FedML, as the tests run it: python main.py --cf fedml_config.yaml --rank R --role server|client."""

import os
import signal
import sys
from pathlib import Path

import fedml
import numpy as np
import torch
from fedml.core import mlops
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpfl_plugin.adapters.fedml import PrivateTrainer, private_runner
from dpfl_plugin.oracle import Draw

MODELS = {
    "linear": lambda: nn.Linear(4, 3),
    "mlp": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
    "wide": lambda: nn.Sequential(nn.Linear(4, 5000), nn.Tanh(), nn.Linear(5000, 3)),
}


def make_model(kind):
    model = MODELS[kind]().double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.linspace(-0.5, 0.5, parameter.numel()).reshape(parameter.shape) + 0.01 * number)
    return model


def load(folder, silo):
    with np.load(Path(folder) / f"{silo}.npz") as found:
        return torch.from_numpy(found["x"]), torch.from_numpy(found["y"])


def hit_in(round, when, by):
    """A signal hits this process in a round: when it is "asked", or when it has "answered", but sent nothing."""

    def before(method):
        def hit(trainer, *args):
            known = trainer._asked if when == "asked" else trainer._answer
            if known.header.get("round") == round:
                os.kill(os.getpid(), signal.Signals[by])
            return method(trainer, *args)

        return hit

    name = "train" if when == "asked" else "get_model_params"
    setattr(PrivateTrainer, name, before(getattr(PrivateTrainer, name)))


def set_limits():
    """As the owner of this rank's data would have, who is another one at each rank of a deployment."""
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
    if "--rank" in sys.argv:
        rank = sys.argv[sys.argv.index("--rank") + 1]
    settings = Path(sys.argv[sys.argv.index("--cf") + 1]).read_text()
    if rank != "0" and "training_type: cross_silo" in settings and os.environ.get("DPFL_TEST_LIMITS"):
        os.environ["DPFL_LIMITS"] = os.environ["DPFL_TEST_LIMITS"].format(rank=rank)


def main():
    if os.environ.get("DPFL_TEST_SIGNAL"):
        round, when, by = os.environ["DPFL_TEST_SIGNAL"].split()
        hit_in(int(round), when, by)
    set_limits()
    mlops.fetch_config = lambda *args, **more: False  # FedML asks its cloud for settings, tracking on or off
    args = fedml.init(check_env=False)
    device = torch.device("cpu")
    loaders = {
        silo: DataLoader(TensorDataset(*load(args.data_cache_dir, silo)), batch_size=8, shuffle=True)
        for silo in range(args.client_num_in_total)
    }
    sizes = {silo: len(loader.dataset) for silo, loader in loaders.items()}
    whole = loaders[0]
    dataset = [sum(sizes.values()), sum(sizes.values()), whole, whole, sizes, loaders, loaders, 3]
    name = os.environ.get("DPFL_TEST_DRAW")
    draw = (lambda round: Draw(5, round, name)) if name else None
    if os.environ.get("DPFL_TEST_PLAIN"):  # as a project is before it gets our lines
        runner = fedml.FedMLRunner(args, device, dataset, make_model(args.model))
    else:
        runner = private_runner(args, device, dataset, make_model(args.model), draw=draw)
    runner.run()


if __name__ == "__main__":
    main()
