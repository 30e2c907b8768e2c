"""What the server does."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context):
    model = Net()
    strategy = FedAvg(min_available_nodes=5)
    rounds = context.run_config["num-server-rounds"]
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=rounds)
    last = result.evaluate_metrics_clientapp.get(rounds)
    print(f"accuracy after {rounds} rounds: {last['accuracy']:.3f}" if last else "no node sent its accuracy")
