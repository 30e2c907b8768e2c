"""Runs in Flower's own environment (see test_flower.py): the contract of adapters, with a grid that is a loop.

Strategy, client app and nodes' contexts are those of a project; messages are Flower's, and pass its serialisation.
"""

import contextlib
import io
import math

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as Sent
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from dpfl_plugin.adapters import flower
from dpfl_plugin.adapters.flower import PrivateStrategy, private_client_app
from dpfl_plugin.testing.wire import WireContract
from dpfl_plugin.testing.wire_faults import ANNOUNCED
from tests.adapters.wires import check_page, flat, no_power_cuts  # noqa: F401

TaskIdentity._run_id = TaskIdentity._task_id = TaskIdentity._node_id = 1  # as Flower's processes have it
SERVER, FIRST = 1, 100  # nodes: that of silo i is FIRST + i


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    monkeypatch.setattr(flower, "surroundings", lambda: "simulation")


def over_the_wire(message):
    return message_from_proto(Sent.FromString(message_to_proto(message).SerializeToString()))


class Flower:
    """Nodes that answer when they are asked. Who a reply is from is known by its connection, as SuperLink knows it."""

    def __init__(self, parties, settings):
        num_silos = parties.agreement.num_silos
        self.config = flat({**settings, "num_silos": num_silos, "folder": str(parties.folder)})
        self.limits = {silo: {"dpfl-limits": str(parties.limits_file(silo))} for silo in parties.limits}
        self.states = [RecordDict() for _ in range(num_silos)]
        self.app = private_client_app(
            parties.model,
            lambda context: parties.records(context.node_config["partition-id"]),
            draw=lambda context: parties.silo_options(context.node_config["partition-id"]).get("draw"),
        )
        model, context = parties.model(), Context(1, SERVER, {}, RecordDict(), self.config)
        self.start = ArrayRecord(model.state_dict())
        self.strategy = PrivateStrategy(FedAvg(min_available_nodes=1), model, context, patience=0.0)
        self.number, self.carry = 0, None

    @property
    def server(self):
        return self.strategy.server

    def round(self, carry):
        self.number, self.carry = self.number + 1, carry
        messages = list(self.strategy.configure_train(self.number, self.start, ConfigRecord(), self))
        if not messages:
            return False
        self.strategy.aggregate_train(self.number, self.send_and_receive(messages))
        return True

    def get_node_ids(self):
        return [FIRST + silo for silo in range(len(self.states))]

    def send_and_receive(self, messages, *, timeout=None):
        return [reply for message in messages for reply in self._sent(message)]

    def _sent(self, message):
        node = message.metadata.dst_node_id
        message.metadata.__dict__["_src_node_id"] = SERVER
        message, silo = over_the_wire(message), node - FIRST
        config = {"partition-id": silo, "num-partitions": len(self.states), **self.limits.get(silo, {})}
        context = Context(1, node, config, self.states[silo], self.config)
        try:
            reply = self.app(message, context)
        except Exception as error:
            return [Message(Error(code=0, reason=str(error)), reply_to=message)]
        if message.metadata.message_type.startswith("query"):
            return [over_the_wire(reply)]
        return [*self._came(node, self.carry(silo, message_to_proto(reply).SerializeToString()))]

    def _came(self, node, delivered):
        for data in delivered:
            with contextlib.suppress(Exception):  # what cannot be parsed is not delivered
                reply = message_from_proto(Sent.FromString(data))
                reply.content  # noqa: B018, raises where there is none
                reply.metadata.__dict__["_src_node_id"] = node
                yield reply


class TestFlower(WireContract):
    checks_bytes = False  # TLS does, which is SuperLink's
    lacks = (
        "secure aggregation",
        "Flower's own differential privacy",
        "workflows of the interface before the Message API",
    )

    @contextlib.contextmanager
    def federation(self, parties):
        made = Flower(parties, self.settings)
        yield made
        if made.strategy._server is not None:
            made.server.close()

    def announcing(self, data):
        found, head, length = Sent.FromString(data), io.BytesIO(), ANNOUNCED // 8
        np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (length,)})
        (record,) = found.content.items if hasattr(found.content, "items") else ()
        for item in record.array_record.items:
            if item.key == "model":
                item.value.data, item.value.shape[:] = head.getvalue(), [length]
        assert math.prod([length]) * 8 == ANNOUNCED
        return found.SerializeToString()


def test_the_table_of_wires_states_what_runs_here():
    check_page("Flower", TestFlower)
