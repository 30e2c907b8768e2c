"""Runs in FedML's own environment (see test_fedml.py): what the adapter refuses, and what it makes of bad uploads."""

import functools
import logging
import re
import time
from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch
from fedml.core import ClientTrainer, ServerAggregator
from fedml.core.distributed.communication.message import Message as Carried
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

from dpfl_plugin.adapters import Message as MessageOfOurs
from dpfl_plugin.adapters import agree, fedml_ends
from dpfl_plugin.adapters.fedml import (
    PrivateAggregator,
    PrivateTrainer,
    _finish,
    _take_over,
    private_runner,
)
from dpfl_plugin.adapters.fedml_checks import too_few_rounds, without_effect
from dpfl_plugin.adapters.fedml_given import agreement_of, check, check_records, surroundings
from dpfl_plugin.adapters.fedml_waits import Watch, server_waits_for, silo_waits_for
from dpfl_plugin.adapters.platforms import check_version, show_log
from dpfl_plugin.callbacks import Callback
from dpfl_plugin.errors import ConfigError, DpflError, LimitError, MessageError, TrainingError, UnsupportedError
from dpfl_plugin.oracle import Draw
from tests.adapters.named_code import NAMED, recorded
from tests.adapters.named_code import settings as named

SETTINGS = {
    "rounds": 3,
    "algorithm": {"name": "scaffold", "local_steps": 2, "local_lr": 0.1},
    "privacy": {"noise_multiplier": 1.0, "delta": 1e-5, "record_rate": 0.5},
}


class Own(ClientTrainer):
    """A project's trainer, which counts what it is asked."""

    tested = 0

    def get_model_params(self):
        raise AssertionError("unprotected")

    def set_model_params(self, model_parameters):
        raise AssertionError("unprotected")

    def train(self, train_data, device, args):
        raise AssertionError("unprotected")

    def test(self, test_data, device, args):
        self.tested += 1
        return "measured"


class OwnAggregator(ServerAggregator):
    def get_model_params(self):
        raise AssertionError("not asked")

    def set_model_params(self, model_parameters):
        raise AssertionError("not asked")

    def test(self, test_data, device, args):
        return "measured"


def arguments(folder, **more):
    values = {
        "training_type": "simulation",
        "backend": "sp",
        "client_num_in_total": 3,
        "client_num_per_round": 3,
        "federated_optimizer": "FedAvg",
        "dpfl": {**SETTINGS, "folder": str(folder)},
    }
    return SimpleNamespace(**{**values, **more})


def federation(folder, callbacks=()):
    torch.manual_seed(0)
    model, args = nn.Linear(4, 3).double(), arguments(folder)
    agreement = agree(SETTINGS, num_silos=3, model=model)
    loaders = {i: [(torch.randn(20, 4).double(), torch.arange(20) % 3)] for i in range(3)}
    draw = lambda round: Draw(0, round)  # noqa: E731
    trainers = [PrivateTrainer(Own(model, args), args, agreement, loaders, folder, None, draw) for _ in range(3)]
    aggregator = PrivateAggregator(OwnAggregator(model, args), args, agreement, folder, callbacks)
    return aggregator, trainers, loaders


def a_round(server, trainers, loaders, sent):
    uploads = []
    for silo, trainer in enumerate(trainers):
        trainer.set_model_params(sent)
        trainer.train(loaders[silo], None, None)
        uploads.append(trainer.get_model_params())
    return uploads


def test_bad_uploads_are_refused_by_name_and_the_round_goes_on(tmp_path, caplog):
    server, trainers, loaders = federation(tmp_path)
    first = server.get_model_params()
    uploads = a_round(server, trainers, loaders, first)
    uploads[1]["model"] = uploads[1]["model"] * float("nan")
    second = server.collect(uploads)
    assert server.server.rounds == 1
    (refused,) = server.server.summary()["refused"]
    assert refused["silo"] == 1 and "not finite" in refused["why"]
    replayed = [uploads[0], *a_round(server, trainers, loaders, second)[1:]]
    server.collect([*replayed, OrderedDict(model=torch.zeros(3))])
    assert server.server.rounds == 2
    assert [r["silo"] for r in server.server.summary()["refused"]] == [1, 0]
    assert "holds no dpfl.header" in caplog.text


def test_rounds_of_fedml_beyond_the_agreed_ones_train_nothing(tmp_path):
    server, trainers, loaders = federation(tmp_path)
    sent = server.get_model_params()
    for _ in range(5):
        sent = server.collect(a_round(server, trainers, loaders, sent))
    assert (server.server.status, server.server.rounds) == ("done", 3)
    charges = [line for line in (tmp_path / "silo-0" / "ledger.jsonl").read_text().splitlines() if '"round"' in line]
    assert len(charges) == 3


def test_a_projects_own_trainer_and_aggregator_go_on_evaluating(tmp_path):
    server, trainers, _ = federation(tmp_path)
    trainers[0].set_model_params(server.get_model_params())
    assert trainers[0].test(None, None, None) == server.test(None, None, None) == "measured"


class Keeps(Callback):
    def __init__(self):
        self.events, self.rounds = [], []

    def on_begin(self, run):
        self.events.append(f"begin {run.done}")

    def on_round(self, round):
        self.events.append(f"round {round.number}")
        self.rounds.append(round)

    def on_end(self, result):
        self.events.append(f"end {result['status']}")


def test_callbacks_are_told_at_the_server_what_it_knows(tmp_path, caplog):
    """Its log says rounds and epsilons, and the project's own model is the trained one, as FedML leaves it."""
    kept = Keeps()
    server, trainers, loaders = federation(tmp_path, [kept])
    sent = server.get_model_params()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            sent = server.collect(a_round(server, trainers, loaders, sent))
    assert "dpfl: round 2 of 3: epsilon at most " in caplog.text
    model = nn.Linear(4, 3).double()
    _finish(trainers[0], server, model)  # FedML ends before the run
    assert torch.equal(torch.cat([value.flatten() for value in model.parameters()]), server.server.model)
    assert kept.events == ["begin 0", "round 1", "round 2", "end interrupted"]
    said = max(about["epsilon"] for about in server.server.summary()["silos"].values())
    assert kept.rounds[-1].epsilon == {"server": said, "third_party": None}


def test_a_plain_model_is_refused(tmp_path):
    _, trainers, _ = federation(tmp_path)
    with pytest.raises(MessageError, match="would not be private"):
        trainers[0].set_model_params(nn.Linear(4, 3).state_dict())


def test_loaders_that_are_not_one_silos_are_refused(tmp_path):
    server, trainers, loaders = federation(tmp_path)
    trainers[0].set_model_params(server.get_model_params())
    with pytest.raises(ConfigError, match="not those of one silo"):
        trainers[0].train(list(loaders[0]), None, None)


def test_settings_that_would_not_be_private_are_refused(tmp_path):
    model = nn.Linear(4, 3)
    for change, why in (
        ({"enable_dp": True}, "enable_dp: true changes uploads"),
        ({"federated_optimizer": "SCAFFOLD"}, "FedML's FedAvg carries"),
        ({"backend": "NCCL"}, "is not tested here. Use sp or MPI"),
        ({"training_type": "cross_silo", "rank": 0, "backend": "MQTT_S3"}, "is not tested here. Use GRPC or MPI"),
        ({"training_type": "cross_silo", "rank": 0, "backend": "MPI", "scenario": "hierarchical"}, "Use horizontal"),
        ({"dpfl": {**SETTINGS, "silo_rate": 0.5}}, "Use its client_num_per_round"),
        ({"dpfl": None}, "has no dpfl_args"),
        (
            {"training_type": "cross_silo", "rank": 0, "backend": "MPI", "client_num_per_round": 2},
            "another silo's data in every round",
        ),
        ({"dpfl": {**SETTINGS, "folder": "here"}}, "must be an absolute path"),
    ):
        args = arguments(tmp_path, **change)
        with pytest.raises(ConfigError, match=why):
            private_runner(args, None, [0, 0, None, None, {}, {}, {}, 3], model)
    check(arguments(tmp_path), agreement_of(arguments(tmp_path), model))


def test_another_version_is_refused():
    with pytest.raises(UnsupportedError, match=r"fedml 0\.9\.6 is not supported: this adapter was tested with 1\.0"):
        check_version("fedml", ("1.0",))


def test_loaders_of_which_it_cannot_be_told_what_they_give_are_refused_before_anything_begins(tmp_path, caplog):
    """Loaders of 40, 60, 30 and 50 records over one data set were read as 180 each."""
    whole = TensorDataset(torch.randn(180, 4), torch.arange(180) % 3)
    pick = lambda first, last: DataLoader(whole, sampler=SubsetRandomSampler(range(first, last)))  # noqa: E731
    weighted = DataLoader(whole, sampler=WeightedRandomSampler(torch.ones(180), 40))
    model = nn.Linear(4, 3)
    for loaders, why in (
        ({0: pick(0, 40), 1: pick(39, 100), 2: pick(100, 180)}, "silos 0 and 1 have a record in common"),
        ({0: pick(0, 40), 1: weighted, 2: pick(100, 180)}, "the sampler WeightedRandomSampler"),
    ):
        with pytest.raises(DpflError, match=why):
            private_runner(arguments(tmp_path), None, [0, 0, None, None, {}, loaders, {}, 3], model)
    check_records([0, 0, None, None, {0: 40, 1: 180, 2: 80}, {0: pick(0, 40), 1: pick(40, 100), 2: None}, {}, 3])
    assert "silo 1: its loader gives 60 records, and FedML's list of the data set says 180" in caplog.text
    assert "silo 0" not in caplog.text


GENEROUS = {"epsilon": 1000, "delta": 1e-4, "min_records": 8, "num_classes": 3}


def cross_silo(folder, monkeypatch, settings=SETTINGS, limits=None):
    """A server's aggregator, and the trainer of a silo on an owner's machine."""
    server, _, loaders = federation(folder)
    model, args = nn.Linear(4, 3).double(), arguments(folder, training_type="cross_silo", rank=1)
    if limits is not None:
        path = folder / "limits.yaml"
        path.write_text("".join(f"{key}: {value}\n" for key, value in {"folder": folder / "owner", **limits}.items()))
        path.chmod(0o600)
        monkeypatch.setenv("DPFL_LIMITS", str(path))
    agreement = agree(settings, num_silos=3, model=model)
    trainer = PrivateTrainer(Own(model, args), args, agreement, loaders, folder, None, None)
    server._agreement = agreement
    return server, trainer, loaders


def test_a_silo_without_limits_does_not_begin_in_a_deployment(tmp_path, monkeypatch):
    monkeypatch.setattr("dpfl_plugin.owners.limits.PLACES", ())
    args = arguments(tmp_path, training_type="cross_silo", backend="MPI", rank=1)
    with pytest.raises(LimitError, match="no limits are set for these data"):
        private_runner(args, None, [0, 0, None, None, {}, {0: [], 1: [], 2: []}, {}, 3], nn.Linear(4, 3))
    assert surroundings(SimpleNamespace()) == "deployment"  # in doubt


def test_a_silos_folder_is_where_its_owner_says(tmp_path, monkeypatch):
    server, trainer, loaders = cross_silo(tmp_path, monkeypatch, limits=GENEROUS)
    trainer.set_model_params(server.get_model_params())
    trainer.train(loaders[1], None, None)
    assert "model" in trainer.get_model_params()
    assert list((tmp_path / "owner").glob("silo-1-*/ledger.jsonl")) and not (tmp_path / "silo-1").exists()


# What is said, and how all processes end


def test_what_this_package_logs_is_shown_where_fedml_logs(monkeypatch):
    """FedML puts a logger of its own in the place of the root, of which loggers of others know nothing."""
    seen, theirs = [], logging.Logger("fedml's", logging.INFO)
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())
    theirs.addHandler(handler)
    for _ in range(2):
        show_log(lambda: logging.root)
    with monkeypatch.context() as patch:
        patch.setattr(logging, "root", theirs)
        logging.getLogger("dpfl_plugin.fedml").info("the run is over")
        logging.getLogger("dpfl_plugin.server").warning("a refusal")
    assert seen == ["the run is over", "a refusal"]


def test_settings_and_hooks_that_stop_working_are_named(tmp_path):
    class Hooked(OwnAggregator):
        def on_after_aggregation(self, aggregated_model_or_grad):
            raise AssertionError("never called")

    args = arguments(tmp_path, learning_rate=0.1, epochs=3, comm_round=2)
    model = nn.Linear(4, 3).double()
    agreement = agree(SETTINGS, num_silos=3, model=model)
    found = dict(without_effect(args, "cuda:0", agreement, Own(model, args), Hooked(model, args)))
    assert list(found) == [
        "learning_rate=0.1, epochs=3",
        "device=cuda:0",
        "Own.train",
        "Hooked.on_after_aggregation",
    ]
    assert not dict(without_effect(arguments(tmp_path), torch.device("cpu"), agreement, None, None))
    assert "comm_round=2 is less than dpfl_args: dpfl: rounds=3" in too_few_rounds(args, agreement)
    assert not too_few_rounds(arguments(tmp_path, comm_round=3), agreement)


def test_a_trainer_that_is_set_after_ours_is_refused_before_it_trains(tmp_path):
    server, trainers, _ = federation(tmp_path)
    clients = [SimpleNamespace(model_trainer=None) for _ in range(3)]
    ran, inner = [], SimpleNamespace(model_trainer=None, client_list=clients)
    runner = SimpleNamespace(runner=SimpleNamespace(fl_trainer=inner), run=lambda: ran.append(1))
    _take_over(runner, trainers[0], server, nn.Linear(4, 3).double())
    own, clients[1].model_trainer = Own(nn.Linear(4, 3), arguments(tmp_path)), None
    clients[1].model_trainer = own
    with pytest.raises(UnsupportedError, match=r"client_list\[1\].model_trainer is a Own, set after private_runner"):
        runner.run()
    assert not ran
    clients[1].model_trainer = trainers[0]
    runner.run()
    assert ran
    for one in (server, trainers[0]):  # the project's own way to have the model
        assert set(one.get_model_params()) == {"weight", "bias"}


def test_an_error_of_the_server_is_sent_to_all_silos_and_then_raised(tmp_path):
    server, _, _ = federation(tmp_path)
    server.args.training_type = "cross_silo"
    server.get_model_params()
    for garbled in (None, [1, 2], OrderedDict(model=torch.zeros(3))):
        sent = server.collect([garbled] * 3)
    header = MessageOfOurs.from_tensors(sent).header
    assert header["over"] and "0 of 3 silos sent a good upload" in header["reason"]
    assert isinstance(server.error, TrainingError)


def test_a_silo_of_another_model_answers_and_the_server_says_what_differs(tmp_path, monkeypatch):
    server, trainer, loaders = cross_silo(tmp_path, monkeypatch, limits=GENEROUS)
    trainer._agreement = agree(SETTINGS, num_silos=3, model=nn.Linear(4, 5).double())
    trainer._inner.model = nn.Linear(4, 5).double()
    trainer.set_model_params(server.get_model_params())
    trainer.train(loaders[1], None, None)
    server.collect([trainer.get_model_params()])
    assert "the model there is built differently from the server's" in server.server.summary()["refused"][0]["why"]


class Manager:
    """Stands for FedML's managers."""

    RUN_FINISHED_STATUS_FLAG = "FINISHED"

    def __init__(self):
        self.round_idx, self.num_rounds, self.client_real_ids = 0, 9, [1, 2, 3]
        self.round_num, self.args = 9, SimpleNamespace(grpc_ipconfig_path="ips.csv")
        self.is_inited = self.is_initialized = False
        self.backend, self.finish = "GRPC", lambda: self.finished.append("ended")
        self.handled, self.finished = [], []

    def handle(self, message):
        if message == "bad":
            raise TrainingError("no more")
        self.handled.append(message)

    def send_client_status(self, rank, status):
        self.finished.append((rank, status))

    def send_message_finish(self, rank, silo):
        if rank == 2:
            raise ConnectionError
        self.finished.append(rank)


def test_processes_of_fedml_end_together_and_begin_again_together(caplog, monkeypatch):
    monkeypatch.setattr(fedml_ends, "FAREWELL_SECONDS", 0.0)
    monkeypatch.setattr(fedml_ends, "TOLD_SECONDS", 0.0)
    manager = Manager()
    with pytest.raises(TrainingError):
        fedml_ends._tells_all(Manager.handle, manager, "bad")
    assert manager.finished == [1, 3, "ended"] and "tells all silos: no more" in caplog.text
    told = Carried(7, 0, 1)
    fedml_ends._names_itself(lambda self, message: None, manager, told)
    assert told.get(fedml_ends.REASON) == "no more" and told.get(fedml_ends.ROUNDS) == 9
    fedml_ends._hears_why(lambda self, message: None, manager, told)
    assert "the server ended the run: no more" in caplog.text
    fedml_ends._takes_what_it_asked_for(Manager.handle, manager, "early")
    manager.is_initialized = True
    fedml_ends._takes_what_it_asked_for(Manager.handle, manager, "asked for")
    begins = {name: {fedml_ends.SERVER: name} for name in ("one", "another")}
    fedml_ends._begins_again(Manager.handle, manager, begins["one"])
    manager.is_inited = True  # in its first round
    fedml_ends._begins_again(lambda self, message: None, manager, begins["one"])  # sent twice by the same server
    assert manager.is_inited
    fedml_ends._begins_again(Manager.handle, manager, begins["another"])
    assert manager.handled == ["asked for", begins["one"], begins["another"]] and not manager.is_inited
    over = MessageOfOurs({"over": True, "reason": "why"}).to_tensors()
    fedml_ends._ends_when_over(Manager.handle, manager, {"model_params": over})
    assert manager.round_idx == 9 and "the server ended the run: why" in caplog.text


def test_a_silo_of_another_comm_round_goes_on_as_long_as_the_server(caplog):
    """FedML's silos count by their own settings; one that ended before the others left all waiting."""
    manager = Manager()
    fedml_ends._begins_again(Manager.handle, manager, {fedml_ends.ROUNDS: 12})
    assert manager.num_rounds == 12 and "comm_round=9 here, and 12 at the server: the server's counts" in caplog.text


def test_a_silo_that_finds_no_server_says_what_to_do(caplog):
    with pytest.raises(TrainingError):
        fedml_ends._finds_server(Manager.handle, Manager(), "bad")
    assert "start it first, and see to its address in ips.csv" in caplog.text


FAILED = "it failed, and its own log says why"


def named_by_a_record():
    """A model that this package refuses by the name of its layer."""
    return nn.Sequential(OrderedDict({"J_ Doe, HIV+": nn.BatchNorm1d(4), "out": nn.Linear(4, 3)}))


def named_by_a_kind():
    """And one that it refuses by the name of its class."""
    return type("J_ Doe, HIV+", (nn.Linear,), {})(4, 3).half()


@pytest.mark.parametrize(
    ("model", "folder", "said"),
    [
        (named_by_a_record, "", "layer J_ Doe, HIV+ (BatchNorm1d)"),
        (named_by_a_kind, "", "the model J_ Doe, HIV+ must"),
        (lambda: nn.Linear(4, 3), "J_ Doe, HIV+", "folder='J_ Doe, HIV+' must be"),
    ],
    ids=["layer", "class", "folder"],
)
def test_what_a_model_or_a_setting_says_of_records_stays_at_the_silo(
    tmp_path, monkeypatch, caplog, model, folder, said
):
    told = []
    monkeypatch.setattr("dpfl_plugin.adapters.fedml.tell_server", lambda args, why: told.append(why))
    limits = tmp_path / "limits.yaml"
    limits.write_text(f"folder: {tmp_path}/owner\nepsilon: 1000\ndelta: 1e-4\nmin_records: 8\nnum_classes: 3\n")
    limits.chmod(0o600)
    monkeypatch.setenv("DPFL_LIMITS", str(limits))
    args = arguments(tmp_path, rank=1, training_type="cross_silo", backend="GRPC")
    args.dpfl["folder"] = folder or args.dpfl["folder"]
    with pytest.raises(DpflError, match=re.escape(said)):
        private_runner(args, None, [0, 0, None, None, {}, {0: []}, {}, 3], model())
    assert told == [FAILED]
    assert said in caplog.text  # at the silo


def test_a_silo_that_cannot_begin_tells_the_server_which_ends_before_any_is_asked(tmp_path, monkeypatch, caplog):
    """What of the error is sent: the same of all, but for what an owner refuses."""
    told, sent = [], []
    monkeypatch.setattr("dpfl_plugin.adapters.fedml.tell_server", lambda args, why: told.append(why))
    monkeypatch.setattr("dpfl_plugin.owners.limits.PLACES", ())
    twice = DataLoader(TensorDataset(torch.randn(9, 4), torch.arange(9) % 3), sampler=[1, 1])
    limits = tmp_path / "limits.yaml"
    limits.write_text(f"folder: {tmp_path}/owner\nepsilon: 8\ndelta: 1e-4\nmin_records: 8\nnum_classes: 3\n")
    limits.chmod(0o600)
    silo = {"training_type": "cross_silo", "backend": "GRPC"}
    for more, place in (({"dpfl": {}}, ""), ({}, ""), ({}, str(limits))):
        if place:
            monkeypatch.setenv("DPFL_LIMITS", place)
        for rank in (0, 1):  # a server tells nobody so: whoever waits for it goes on with the next
            args = arguments(tmp_path, rank=rank, **silo, **more)
            with pytest.raises(DpflError):
                private_runner(args, None, [0, 0, None, None, {}, {0: twice}, {}, 3], nn.Linear(4, 3))
    assert told == ["the owner of the data has set no limits"] * 2 + [FAILED]
    assert "record 1 of the silo is there twice" in caplog.text
    status = Carried(5, 2, 0)
    status.add_params(fedml_ends.REASON, told[1])
    with pytest.raises(TrainingError, match="silo of rank 2 cannot take part: the owner of the data has set no limits"):
        fedml_ends._hears_who_cannot_begin(Manager.handle, Manager(), status)

    class Comes:
        def send_message(self, message):
            sent.append(message)
            if len(sent) == 1:
                raise ConnectionError

    assert not fedml_ends._sent(Comes(), status) and fedml_ends._sent(Comes(), status)


@pytest.mark.parametrize("key", NAMED)
def test_no_code_that_settings_name_is_called_unless_the_silos_owner_lists_it(tmp_path, monkeypatch, caplog, key):
    told = []
    monkeypatch.setattr("dpfl_plugin.adapters.fedml.tell_server", lambda args, why: told.append(why))
    limits = tmp_path / "limits.yaml"
    limits.write_text(f"folder: {tmp_path}/owner\nepsilon: 1000\ndelta: 1e-4\nmin_records: 8\nnum_classes: 3\n")
    limits.chmod(0o600)
    monkeypatch.setenv("DPFL_LIMITS", str(limits))
    args = arguments(tmp_path, rank=1, training_type="cross_silo", backend="GRPC")
    args.dpfl = {**named(key), "folder": str(tmp_path)}
    start = functools.partial(private_runner, args, None, [0, 0, None, None, {}, {0: []}, {}, 3], nn.Linear(4, 3))
    with recorded() as calls:
        with pytest.raises(LimitError):
            start()
        assert told == ["not within this owner's limits"] and not calls
        assert f"{key} (tempfile:mkdtemp)" in caplog.text
        if key not in ("loss", "privacy.accountant.module", "algorithm.of.module"):
            limits.write_text(limits.read_text() + "code: ['tempfile:mkdtemp']\n")
            with pytest.raises(DpflError, match="it was called"):
                start()
            assert told[1:] == [FAILED] and calls


def test_a_silo_that_meets_with_a_plain_server_ends_and_tells_it(caplog):
    """Of a plain server that is all that ends it: it waits for every silo, without end."""
    manager = Manager()
    with pytest.raises(TrainingError):
        fedml_ends._tells_server(Manager.handle, manager, "bad")
    assert manager.finished == [(0, "FINISHED"), "ended"]
    assert "this silo ends, and tells the server that it does: no more" in caplog.text


def test_who_waits_says_for_whom_and_for_how_long(caplog):
    caplog.set_level("INFO")
    aggregator = SimpleNamespace(flag_client_model_uploaded_dict={0: True, 1: False, 2: False})
    manager = Manager()
    manager.__dict__ |= {
        "client_id_list_in_this_round": [1, 2, 3],
        "client_online_mapping": {"2": True},
        "client_finished_mapping": {},
        "aggregator": aggregator,
    }
    assert server_waits_for(manager).startswith("silos of rank 1, 3 (1 of 3 have) to come.")
    manager.is_initialized = True
    assert server_waits_for(manager).startswith("silos of rank 2-3 (1 of 3 have) to answer.")
    manager.client_finished_mapping = {"3": True}
    assert server_waits_for(manager).endswith("; silo of rank 3 said that it ended")
    aggregator.flag_client_model_uploaded_dict = dict.fromkeys(range(3), True)
    assert server_waits_for(manager) == ""
    assert silo_waits_for(manager).startswith("the server: its first message")
    watch, last = Watch(lambda: "silo 1", 0.01), time.monotonic() + 60
    while "dpfl: waiting for silo 1, for 0 s so far" not in caplog.text:
        assert time.monotonic() < last
        time.sleep(0.01)
    with watch.busy():  # it trains, and waits for nobody
        time.sleep(0.05)
        caplog.clear()
        time.sleep(0.1)
        assert not caplog.text
    watch.end()
