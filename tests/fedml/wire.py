"""Runs in FedML's own environment (see test_fedml.py): the contract of adapters, for a cross-silo job in one process.

Managers, aggregator, trainers and messages are FedML's, as `private_runner` has them; in the place of GRPC is a list of
letters, pickled as GRPC's are.
"""

import contextlib
import json
import os
import pickle
import time
from types import SimpleNamespace
from typing import ClassVar
from unittest import mock

import torch
from fedml.core import ServerAggregator, mlops
from fedml.core.distributed.communication.base_com_manager import BaseCommunicationManager
from fedml.core.distributed.communication.message import Message as Carried
from fedml.cross_silo.client.fedml_client_master_manager import ClientMasterManager
from fedml.cross_silo.client.fedml_trainer_dist_adapter import TrainerDistAdapter
from fedml.cross_silo.client.message_define import MyMessage
from fedml.cross_silo.server import fedml_server_manager
from fedml.cross_silo.server.fedml_aggregator import FedMLAggregator
from fedml.cross_silo.server.fedml_server_manager import FedMLServerManager
from fedml.ml.trainer.trainer_creator import create_model_trainer

from dpfl_plugin.adapters import agree, fedml_ends
from dpfl_plugin.adapters.fedml import PrivateAggregator, PrivateTrainer
from dpfl_plugin.adapters.fedml_ends import end_together
from dpfl_plugin.testing.wire import WireContract
from dpfl_plugin.testing.wire_faults import DecidedByPlatform
from tests.adapters.wires import check_page, no_power_cuts  # noqa: F401

SERVER = 0
UPLOAD = MyMessage.MSG_TYPE_C2S_SEND_MODEL_TO_SERVER
mlops.MLOpsStore.mlops_args = SimpleNamespace(using_mlops=False)  # as `fedml.init` has them from the settings
fedml_server_manager.time = SimpleNamespace(time=time.time, sleep=lambda seconds: None)  # for what has not left yet
fedml_ends.FAREWELL_SECONDS = fedml_ends.TOLD_SECONDS = 0.0
end_together()


class Post(BaseCommunicationManager):
    """What each rank sent, in the order of sending."""

    def __init__(self, letters):
        self.letters = letters

    def send_message(self, msg):
        self.letters.append((msg.get_receiver_id(), msg.get_type(), pickle.dumps(msg)))

    def add_observer(self, observer): ...

    def stop_receive_message(self): ...


class Measures(ServerAggregator):
    """A project's own."""

    def get_model_params(self): ...

    def set_model_params(self, model_parameters): ...

    def test(self, test_data, device, args): ...


class Silo(ClientMasterManager):
    def _init_manager(self):
        self.com_manager = Post(self.comm)


class ServerOfJob(FedMLServerManager):
    def _init_manager(self):
        self.com_manager = Post(self.comm)


def arguments(parties, settings, rank):
    num_silos = parties.agreement.num_silos
    return SimpleNamespace(
        training_type="cross_silo",
        scenario="horizontal",
        backend="GRPC",
        federated_optimizer="FedAvg",
        dataset="own",
        model="own",
        rank=rank,
        run_id="0",
        comm_round=20,  # of which some may not count; what the settings say ends the run
        client_id_list=json.dumps([rank] if rank else list(range(1, num_silos + 1))),
        client_num_in_total=num_silos,
        client_num_per_round=num_silos,
        frequency_of_the_test=10**6,
        using_mlops=False,
        enable_wandb=False,
        dpfl={**settings, "folder": str(parties.folder)},
    )


class FedML:
    """Rank 0 is the server, rank 1 + i silo i."""

    def __init__(self, parties, settings):
        self.parties, self.settings, self.letters = parties, settings, []
        args, num_silos = arguments(parties, settings, SERVER), parties.agreement.num_silos
        agreement = self.agreement = agree(settings, num_silos=num_silos, model=parties.model())
        inner = Measures(parties.model(), args)
        self.aggregator = PrivateAggregator(inner, args, agreement, parties.folder)
        self.aggregator.open()
        counts = dict.fromkeys(range(num_silos), 1)
        theirs = FedMLAggregator(
            None, None, num_silos, counts, counts, counts, num_silos, torch.device("cpu"), args, self.aggregator
        )
        self.manager = ServerOfJob(args, theirs, self.letters, SERVER, num_silos + 1, "GRPC")
        self.silos = {rank: self._silo(rank) for rank in range(1, num_silos + 1)}
        self.manager.register_message_receive_handlers()
        self.manager.receive_message(MyMessage.MSG_TYPE_CONNECTION_IS_READY, Carried(0, SERVER, SERVER))

    @property
    def server(self):
        return self.aggregator.server

    def _silo(self, rank):
        parties, num_silos, args = self.parties, self.agreement.num_silos, arguments(self.parties, self.settings, rank)
        silo, model = rank - 1, parties.model()
        records = {one: [parties.records(one)] if one == silo else [] for one in range(num_silos)}
        inner = create_model_trainer(model, args)
        trainer = PrivateTrainer(inner, args, self.agreement, records, parties.folder, None, None)
        counts = dict.fromkeys(range(num_silos), 1)
        device = torch.device("cpu")
        adapter = TrainerDistAdapter(args, device, rank, model, num_silos, counts, records, records, trainer)
        made = Silo(args, adapter, self.letters, rank, num_silos + 1, "GRPC")
        made.register_message_receive_handlers()
        return made

    def round(self, carry):
        """Until all that they make each other send is delivered, but for the requests of the next round."""
        running, request = self.server.status == "running", self.aggregator._message
        for data in self._pumped():
            silo = pickle.loads(data).get_sender_id() - 1
            for came in carry(silo, data) if running else [data]:
                self._upload(came)
        while running and self.aggregator._message in (request, None) and self.aggregator.error is None:
            request = self.aggregator._message
            for silo in self._unanswered():  # none is given up: whoever started it does so again, and it answers again
                self.silos[silo + 1] = self._silo(silo + 1)
                ready = Carried(0, silo + 1, silo + 1)
                self.silos[silo + 1].receive_message(MyMessage.MSG_TYPE_CONNECTION_IS_READY, ready)
                for data in self._pumped():
                    self._upload(data)
        if self.aggregator.error is not None and running:
            raise self.aggregator.error
        return running

    def _pumped(self):
        """Deliver all there is, and what is sent thereupon, but for uploads: these are given back."""
        uploads, waiting, self.letters[:] = [], list(self.letters), []
        while waiting:
            receiver, kind, data = waiting.pop(0)
            if kind == UPLOAD:
                uploads.append(data)
            else:
                self._deliver(receiver, data)
            waiting += self.letters
            self.letters.clear()
        return uploads

    def _deliver(self, receiver, data):
        message = pickle.loads(data)
        if receiver == SERVER:
            self.manager.receive_message(message.get_type(), message)
            return
        with mock.patch.dict(os.environ, DPFL_LIMITS=str(self.parties.limits_file(receiver - 1))):
            self.silos[receiver].receive_message(message.get_type(), message)

    def _upload(self, data):
        """What GRPC's servicer cannot unpickle comes to nobody; who it is from is what the message says."""
        try:
            message = pickle.loads(data)
            message.get_type()
        except Exception:
            return
        self.manager.receive_message(UPLOAD, message)

    def _unanswered(self):
        came = self.manager.aggregator.flag_client_model_uploaded_dict
        return [silo for silo, here in came.items() if not here]


class TestFedML(WireContract):
    simulated = False  # a cross-silo job is a deployment
    checks_bytes = False
    waits_for_all = True
    lacks = (
        "a round that goes on without a silo: FedML waits for all",
        "a sender that is known by more than what its message says; TLS",
        "backends beside sp, MPI and GRPC; optimizers beside FedAvg; enable_dp, enable_secagg, enable_fhe",
        "a part of the silos in a round, but in simulations",
    )
    declared: ClassVar = {
        "test_what_is_too_large_does_not_count": DecidedByPlatform(
            "FedML reads and unpickles up to 1 GB before anybody sees it, and takes no notice of what follows"
        ),
        "test_what_is_announced_is_not_allocated": DecidedByPlatform(
            "FedML unpickles what comes, which makes whatever it says: let only members reach its ports"
        ),
    }

    @contextlib.contextmanager
    def federation(self, parties):
        made = FedML(parties, self.settings)
        yield made
        made.server.close()


def test_the_table_of_wires_states_what_runs_here():
    check_page("FedML", TestFedML)
