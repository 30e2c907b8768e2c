"""What a silo does."""

import os

from flwr.app import Message, MetricRecord, RecordDict

from dpfl_plugin.adapters.flower import private_client_app
from silos.task import draws, load, make_model

KIND = os.environ.get("DPFL_TEST_MODEL", "linear")
NAME = os.environ.get("DPFL_TEST_DRAW", "")

app = private_client_app(
    lambda: make_model(KIND),
    lambda context: load(context.run_config["data"], context.node_config["partition-id"]),
    draw=(lambda context: draws(5, NAME)) if NAME else None,
)


@app.train()
def train(message, context):
    raise AssertionError("a plain training message must not get here")


@app.evaluate()
def evaluate(message, context):
    model = make_model(KIND)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = load(context.run_config["data"], context.node_config["partition-id"])
    accuracy = float((model(x).argmax(1) == y).double().mean())
    return Message(
        RecordDict({"metrics": MetricRecord({"accuracy": accuracy, "num-examples": len(y)})}), reply_to=message
    )
