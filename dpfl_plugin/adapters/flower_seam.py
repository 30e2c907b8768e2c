"""What this package relies on in Flower, tried out: a version that no test has seen may keep it, or not."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, Final

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy

OLDEST: Final = "1.38"
NEWEST: Final = "1.42"  # of those that are tested


def try_seam() -> None:
    """Carry a message through Flower's client app, its records and its strategy's loop, in this process.

    Raises:
        AssertionError, Exception: Flower does something else there than the versions that are tested.
    """
    _records_keep_bits()
    _mods_stand_before_every_message()
    _a_round_is_asked_for_sent_and_aggregated()


def _expect(condition: bool, otherwise: str) -> None:
    """Not by `assert`, which python -O leaves out."""
    if not condition:
        raise AssertionError(otherwise)


def _records_keep_bits() -> None:
    values = {
        "half.way": torch.tensor([1 / 3, -0.0, 1e-320], dtype=torch.float64),
        "single": torch.tensor([2**-149, 1 / 3]),
        "header": torch.arange(256, dtype=torch.uint8),
        "empty": torch.zeros(0),
    }
    found = RecordDict({"dpfl": ArrayRecord(values)})["dpfl"].to_torch_state_dict()
    _expect(list(found) == list(values), "records do not keep the names of tensors")
    kept = [
        found[name].dtype == value.dtype and found[name].numpy().tobytes() == value.numpy().tobytes()
        for name, value in values.items()
    ]
    _expect(all(kept), "records do not keep tensors to the bit")


def _mods_stand_before_every_message() -> None:
    seen = []

    def refuse(message: Any, context: Any, call: Any) -> Any:
        seen.append(message.metadata.message_type)
        if message.metadata.message_type == "train":
            raise PermissionError
        return call(message, context)

    app = ClientApp(mods=[refuse])
    app.train()(lambda message, context: "unprotected")
    app.train("dpfl")(lambda message, context: context.node_config["partition-id"])
    app.query("dpfl")(lambda message, context: context.run_config["dpfl.rounds"])
    context = Context(1, 1, {"partition-id": 3}, RecordDict({"dpfl": ConfigRecord({"x": "y"})}), {"dpfl.rounds": 4})

    def answer(kind: str) -> Any:
        return app(SimpleNamespace(metadata=SimpleNamespace(message_type=kind)), context)

    _expect((answer("train.dpfl"), answer("query.dpfl")) == (3, 4), "messages do not reach the function of their name")
    try:
        answer("train")
    except PermissionError:
        pass
    else:
        raise AssertionError("a mod cannot refuse a message")
    _expect(seen == ["train.dpfl", "query.dpfl", "train"], "messages pass by mods")
    _expect(context.state["dpfl"]["x"] == "y", "a node remembers nothing")


class _Steps(Strategy):
    """Notes in which order it is called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def summary(self) -> None: ...

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> list[Any]:
        self.called.append(f"configure {server_round}")
        return ["asked"]

    def aggregate_train(self, server_round: int, replies: Any) -> tuple[Any, Any]:
        self.called.append(f"aggregate {server_round} {list(replies)}")
        return ArrayRecord({"x": torch.full((1,), 7.0)}), None

    def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> list[Any]:
        return []

    def aggregate_evaluate(self, server_round: int, replies: Any) -> None:
        return None


def _a_round_is_asked_for_sent_and_aggregated() -> None:
    grid = SimpleNamespace(send_and_receive=lambda messages, *, timeout=None: ["answered"] * len(list(messages)))
    steps, log = _Steps(), logging.getLogger("flwr")
    was, log.disabled = log.disabled, True  # what it says of this run would be taken for the project's
    try:
        result = steps.start(grid=grid, initial_arrays=ArrayRecord({"x": torch.zeros(1)}), num_rounds=2)
    finally:
        log.disabled = was
    expected = [line for t in (1, 2) for line in (f"configure {t}", f"aggregate {t} ['answered']")]
    _expect(steps.called == expected, f"rounds go otherwise: {steps.called}")
    _expect(float(result.arrays.to_torch_state_dict()["x"]) == 7, "what a round gives is not the run's result")
