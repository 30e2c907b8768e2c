"""What a silo does."""

from flwr.app import Context, Message, MetricRecord, RecordDict

from digits.task import Net, load_data
from digits.task import test as test_fn
from dpfl_plugin.adapters.flower import private_client_app

app = private_client_app(
    Net, lambda context: load_data(context.node_config["partition-id"], context.node_config["num-partitions"])[0]
)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, loader = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    metrics = MetricRecord({"accuracy": test_fn(model, loader), "num-examples": len(loader.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
