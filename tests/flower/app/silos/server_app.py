"""What the server does."""

import os

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from dpfl_plugin.adapters.flower import PrivateStrategy
from silos.task import make_model

app = ServerApp()


@app.main()
def main(grid, context):
    model, nodes = make_model(os.environ.get("DPFL_TEST_MODEL", "linear")), context.run_config["nodes"]
    measured = context.run_config["evaluated"]
    inner = FedAvg(min_available_nodes=1, min_evaluate_nodes=1, min_train_nodes=nodes, fraction_evaluate=measured)
    strategy = PrivateStrategy(inner, model, context, patience=context.run_config["patience"])
    rounds = context.run_config["num-server-rounds"]
    strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=rounds)
    print("ended:", strategy.server.status, strategy.server.rounds, flush=True)
