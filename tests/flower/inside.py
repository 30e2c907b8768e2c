"""Runs in Flower's own environment (see test_flower.py): the adapter on a grid that is a loop."""

import importlib
import logging
import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import yaml

sys.path.insert(0, str(Path(__file__).parent / "app"))

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.client.mod import secagg_mod, secaggplus_mod
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.server import LegacyContext
from flwr.server.workflow.default_workflows import default_init_params_workflow
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from silos.task import draws, make_model

from dpfl_plugin.adapters import Server, agree, flower
from dpfl_plugin.adapters.flower import PrivateStrategy, private_client_app, surroundings
from dpfl_plugin.adapters.flower_arrays import read
from dpfl_plugin.adapters.flower_guard import failed
from dpfl_plugin.adapters.flower_seam import try_seam
from dpfl_plugin.adapters.flower_settings import settings_of
from dpfl_plugin.adapters.flower_waits import Evaluation
from dpfl_plugin.adapters.owner import say_once, silo_limits
from dpfl_plugin.api.projects import new as new_package
from dpfl_plugin.callbacks import Callback
from dpfl_plugin.errors import ConfigError, LimitError, TrainingError, UnsupportedError
from tests.adapters.federation import PUBLIC, SimulatedSilo
from tests.adapters.named_code import NAMED, recorded
from tests.adapters.named_code import settings as named

SETTINGS = {
    "rounds": 4,
    "algorithm": {"name": "scaffold", "local_steps": 3, "local_lr": 0.5},
    "privacy": {"noise_multiplier": 1.5, "delta": 1e-5, "record_rate": 0.25},
}


TaskIdentity._run_id = TaskIdentity._task_id = TaskIdentity._node_id = 1  # as Flower's processes have it


def flat(values, prefix="dpfl"):
    found = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}.{key}") if isinstance(value, dict) else {f"{prefix}.{key}": value}
    return found


def data(silo):
    rng = torch.Generator().manual_seed(silo)
    size = 20 + 7 * silo
    return torch.randn(size, 4, generator=rng).double() + silo, torch.randint(0, 3, (size,), generator=rng)


class Grid:
    """Nodes in this process; node 100 + i is silo i. Each has an owner's limits, unless they are ``simulated``."""

    def __init__(self, folder, app, num_silos=3, settings=SETTINGS, simulated=False, **limits):
        self.config = flat({**settings, "num_silos": num_silos, "folder": str(folder)})
        self.app, self.states = app, {100 + i: RecordDict() for i in range(num_silos)}
        self.silo_of = {100 + i: i for i in range(num_silos)}
        self.away, self.change, self.kinds = set(), lambda silo, reply: reply, []
        self.limits = dict.fromkeys(range(num_silos))
        for silo in () if simulated else range(num_silos):  # each on a machine of its own
            values = {"folder": str(folder / f"owner-{silo}"), "epsilon": 100, "delta": 1e-3, **PUBLIC}
            self.limits[silo] = folder / f"limits-{silo}.yaml"
            self.limits[silo].write_text(yaml.safe_dump({**values, "send": ["metrics"], **limits}))
            self.limits[silo].chmod(0o600)

    def context(self, node):
        silo = self.silo_of[node]
        config = {"partition-id": silo, "num-partitions": len(self.silo_of)}
        if self.limits[silo] is not None:
            config["dpfl-limits"] = str(self.limits[silo])
        return Context(1, node, config, self.states[node], self.config)

    def get_node_ids(self):
        return [node for node in reversed(list(self.silo_of)) if node not in self.away]

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.kinds.append(message.metadata.message_type)
            message.metadata.__dict__["_src_node_id"] = 1
            try:
                reply = self.app(message, self.context(node))
                if message.metadata.message_type == "train.dpfl":
                    reply = self.change(self.silo_of[node], reply)
            except Exception as error:
                reply = Message(Error(code=0, reason=f"{type(error).__name__}: {error}"), reply_to=message)
            if reply is not None:
                replies.append(reply)
        return replies[::-1]


@pytest.fixture
def simulation(monkeypatch):
    """Where silos need no limits, and noise may be seeded."""
    monkeypatch.setattr(flower, "surroundings", lambda: "simulation")


def app_of(kind="linear", seeded=False):
    made = private_client_app(
        lambda: make_model(kind),
        lambda context: data(context.node_config["partition-id"]),
        draw=(lambda context: draws(0, "same")) if seeded else None,
    )

    @made.train()
    def train(message, context):
        raise AssertionError("unprotected")

    @made.evaluate()
    def evaluate(message, context):
        arrays = message.content["arrays"].to_torch_state_dict()
        metrics = {"num-examples": 1, "norm": float(sum(v.norm() for v in arrays.values()))}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return made


def run(folder, grid, kind="linear", rounds=4, **options):
    model, context = make_model(kind), Context(1, 1, {}, RecordDict(), grid.config)
    strategy = PrivateStrategy(FedAvg(min_available_nodes=1), model, context, **{"patience": 0.0, **options})
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=rounds)
    return strategy, result


def plain_loop(folder, kind="linear", rounds=4, settings=SETTINGS, lost=lambda round, silo: False):
    model = make_model(kind)
    agreement = agree(settings, num_silos=3, model=model)
    server = Server(agreement, model)
    silos = [
        SimulatedSilo(agreement, i, model, data(i), folder / f"plain-{i}", draw=draws(0, "same")) for i in range(3)
    ]
    for round in range(rounds):
        message = server.begin()
        for silo in server.asked:
            answer = silos[silo].answer(message)
            if not lost(round, silo):
                server.receive(silo, answer)
        assert server.end()
    for silo in silos:
        silo.close()
    return server.model


def test_a_run_of_flowers_has_the_bits_of_a_plain_loop_and_what_a_project_measures(tmp_path, simulation):
    kind = "mlp"
    grid = Grid(tmp_path, app_of(kind, seeded=True), simulated=True)
    strategy, result = run(tmp_path, grid, kind)
    assert torch.equal(strategy.server.model, plain_loop(tmp_path, kind))
    arrays = result.arrays.to_torch_state_dict()
    assert torch.equal(torch.cat([value.flatten() for value in arrays.values()]), strategy.server.model)
    assert set(grid.kinds) == {"query.dpfl", "train.dpfl", "evaluate"}
    assert [m["rounds"] for m in result.train_metrics_clientapp.values()] == [1, 2, 3, 4]
    assert len(result.evaluate_metrics_clientapp) == 4


def test_a_node_that_leaves_comes_back_as_another_node(tmp_path):
    grid = Grid(tmp_path, app_of())
    strategy, _ = run(tmp_path, grid, rounds=1)
    grid.away = {101}
    strategy.start(grid=grid, initial_arrays=strategy._arrays(), num_rounds=1)
    grid.silo_of[555], grid.states[555] = 1, RecordDict()  # it remembers nothing but its folder
    strategy.start(grid=grid, initial_arrays=strategy._arrays(), num_rounds=2)
    assert strategy.server.rounds == 4
    assert {s: about["rounds"] for s, about in strategy.server.summary()["silos"].items()} == {"0": 4, "1": 3, "2": 4}


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


def test_callbacks_are_told_at_the_server_what_it_knows(tmp_path):
    """Where Flower ends before the run does, they are told that; and that it goes on."""
    kept, grid = Keeps(), Grid(tmp_path, app_of())
    strategy, _ = run(tmp_path, grid, rounds=1, callbacks=[kept])
    strategy.start(grid=grid, initial_arrays=strategy._arrays(), num_rounds=3)
    begins = ["begin 0", "round 1", "end interrupted", "begin 1"]
    assert kept.events == [*begins, "round 2", "round 3", "round 4", "end done"]
    said = max(about["epsilon"] for about in strategy.server.summary()["silos"].values())
    assert kept.rounds[-1].epsilon == {"server": said, "third_party": None}
    with pytest.raises(ConfigError, match=r"callbacks\[0\].*make one: Keeps\(\)"):
        run(tmp_path, grid, callbacks=[Keeps])


def spoilt(change):
    def changed(reply):
        record = dict(reply.content["dpfl"].to_torch_state_dict())
        reply.content["dpfl"] = ArrayRecord(change(record))
        return reply

    return changed


def without_a_record(reply):
    reply.content.pop("dpfl")
    return reply


BAD = {
    "no header": (spoilt(lambda v: {"model": v["model"]}), "holds no dpfl.header"),
    "nothing": (without_a_record, "holds no ArrayRecord"),
}


@pytest.mark.parametrize(("spoil", "why"), BAD.values(), ids=BAD)
def test_a_bad_reply_is_refused_by_name_and_the_round_goes_on_without_it(tmp_path, caplog, simulation, spoil, why):
    grid, seen = Grid(tmp_path, app_of(seeded=True), simulated=True), []

    def change(silo, reply):
        seen.append(silo)
        return spoil(reply) if silo == 2 and seen.count(2) == 3 else reply

    grid.change = change
    strategy, _ = run(tmp_path, grid)
    (refused,) = strategy.server.summary()["refused"]
    assert (refused["round"], refused["silo"]) == (3, 2) and re.search(why, refused["why"])
    expected = plain_loop(tmp_path, lost=lambda round, silo: silo == 2 and round == 2)
    assert torch.equal(strategy.server.model, expected)


def test_what_went_wrong_at_a_silo_stays_there(tmp_path, caplog):
    """Flower would send the text of an error to the server; it may tell of records."""
    broken = [False]

    def records_of(context):
        assert not (broken[0] and context.node_config["partition-id"] == 1), "the record of Jane Doe"
        return data(context.node_config["partition-id"])

    app = private_client_app(lambda: make_model("linear"), records_of)
    grid, replies = Grid(tmp_path, app), []
    grid.change = lambda silo, reply: replies.append((silo, reply)) or reply
    strategy, _ = run(tmp_path, grid, rounds=1)
    broken[0] = True
    strategy.start(grid=grid, initial_arrays=strategy._arrays(), num_rounds=1)
    (refused,) = strategy.server.summary()["refused"]
    assert refused["silo"] == 1 and "the silo failed with an error" in refused["why"]
    assert "Jane Doe" in caplog.text  # at the silo
    silo, reply = replies[-2]
    assert silo == 1 and not reply.has_error() and "Jane" not in str(reply.content)
    assert strategy.server.rounds == 2


SECRET = "J_ Doe, HIV+"


class Panic(BaseException):
    """As extension modules raise theirs, which is no Exception."""


def spills(*_, kind=ValueError):
    raise kind(f"invalid literal for int(): {SECRET!r}")


def exits(*_):
    raise SystemExit(f"no number: {SECRET!r}")


def panics(*_):
    spills(kind=Panic)


def named_by_a_record():
    """A model that this package refuses by the name of its layer."""
    model = make_model("linear")
    model.add_module(f"for {SECRET}", torch.nn.BatchNorm1d(3))
    return model


def named_by_a_kind():
    """And one that it refuses by the name of its class."""
    return type(SECRET, (torch.nn.Linear,), {})(4, 3).half()


def sent(kind, content=None):
    """A message as it comes to the node of silo 0."""
    message = Message(content=content or RecordDict(), message_type=kind, dst_node_id=100)
    message.metadata.__dict__["_src_node_id"] = 1
    return message


def spilling(model=lambda: make_model("linear"), then=lambda app: None, **options):
    def made():
        app = private_client_app(model, lambda context: data(0), **options)
        then(app)
        return app

    return made


SPILLS = {
    "model factory": (spilling(spills), "train.dpfl"),
    "model factory that exits": (spilling(exits), "train.dpfl"),
    "model factory that panics": (spilling(panics), "train.dpfl"),
    "model's layer": (spilling(named_by_a_record), "train.dpfl"),
    "model's class": (spilling(named_by_a_kind), "train.dpfl"),
    "draw": (spilling(draw=spills), "train.dpfl"),
    "mod": (spilling(mods=[spills]), "train.dpfl"),
    "mod of a question": (spilling(mods=[spills]), "query.dpfl"),
    "lifespan": (spilling(then=lambda app: app.lifespan()(spills)), "train.dpfl"),
    "evaluation": (spilling(then=lambda app: app.evaluate()(spills)), "evaluate"),
    "question": (spilling(then=lambda app: app.query("own")(panics)), "query.own"),
}


@pytest.mark.parametrize(("made", "kind"), SPILLS.values(), ids=SPILLS)
def test_the_text_of_whatever_a_client_app_raises_stays_there(tmp_path, caplog, made, kind):
    """Before the silo is open, too, where Flower would send it: a factory that looks at records, a project's mod."""
    grid = Grid(tmp_path, app_of())  # whose server has a model that is allowed
    model, context = make_model("linear"), Context(1, 1, {}, RecordDict(), grid.config)
    strategy = PrivateStrategy(FedAvg(), model, context, patience=0.0)
    asked, *_ = strategy.configure_train(1, ArrayRecord(model.state_dict()), ConfigRecord(), grid)
    caplog.clear()
    reply = made()(sent(kind, asked.content), grid.context(100))
    assert reply.has_error() and reply.error.code == 2
    assert SECRET in caplog.text and "Doe" not in reply.error.reason  # at the node
    told = r"a message of type '[a-z.]+': it failed, and its own log says why"  # the same whatever it was, and where
    assert re.fullmatch(told, reply.error.reason), reply.error.reason


def test_a_round_goes_on_without_a_node_whose_model_cannot_be_made_and_its_records_stay_there(tmp_path, caplog):
    nodes = []

    def model():
        nodes.append(len(nodes))
        return spills() if len(nodes) == 2 else make_model("linear")

    grid = Grid(tmp_path, private_client_app(model, lambda context: data(context.node_config["partition-id"])))
    strategy, _ = run(tmp_path, grid, rounds=1)
    assert strategy.server.rounds == 1 and len(nodes) == 3
    (said,) = [one.getMessage() for one in caplog.records if "gives no answer" in one.getMessage()]
    assert "a message of type 'train.dpfl': it failed, and its own log says why" in said and SECRET not in said


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(3), SystemExit()], ids=repr)
def test_the_end_of_a_nodes_process_comes(tmp_path, end):
    """By a signal: its handler, Flower's, raises it wherever the process is."""

    def model():
        raise end

    grid = Grid(tmp_path, private_client_app(model, lambda context: data(0)))
    with pytest.raises(type(end)) as raised:
        grid.app(sent("train.dpfl"), grid.context(100))
    assert raised.value is end


def test_what_is_public_of_an_error_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("dpfl_plugin.owners.limits.PLACES", ())
    with pytest.raises(LimitError) as raised:
        silo_limits("deployment")
    reason = failed(sent("train.dpfl"), raised.value).error.reason
    assert reason == "a message of type 'train.dpfl': the owner of the data has set no limits"


def test_a_plain_training_message_is_refused_at_both_ends_without_a_traceback(tmp_path, caplog):
    grid = Grid(tmp_path, app_of())
    content = RecordDict({"arrays": ArrayRecord(make_model("linear").state_dict()), "config": ConfigRecord({})})
    message = Message(content=content, message_type="train", dst_node_id=100)
    message.metadata.__dict__["_src_node_id"] = 1
    reply = grid.app(message, grid.context(100))
    for said in (reply.error.reason, caplog.text):
        assert "train without privacy: it is refused. Use PrivateStrategy at the server" in said
    assert not any(record.exc_info for record in caplog.records)


def test_a_node_that_is_no_silo_of_the_run_says_so_at_both_ends(tmp_path, caplog):
    grid = Grid(tmp_path, app_of())
    grid.silo_of[999], grid.states[999], grid.limits[7] = 7, RecordDict(), None
    strategy, _ = run(tmp_path, grid, rounds=1)
    assert strategy.server.rounds == 1 and 999 not in strategy._silo_of
    why = "node-config partition-id=7 must be this silo's number, from 0 and below "
    why += "[tool.flwr.app.config.dpfl] num_silos=3"
    assert f"dpfl: {why}" in caplog.text  # at the node
    assert f"dpfl: node 999 does not say which silo it is: {why}" in caplog.text  # at the server


def test_two_nodes_cannot_be_one_silo(tmp_path, caplog):
    grid = Grid(tmp_path, app_of())
    grid.silo_of[999], grid.states[999] = 0, RecordDict()
    strategy, _ = run(tmp_path, grid, rounds=1)
    assert strategy._silo_of[100] == 0 and 999 not in strategy._silo_of


def test_a_ledger_that_was_set_back_while_the_node_ran_is_noticed(tmp_path):
    import shutil

    grid = Grid(tmp_path, app_of())
    strategy, _ = run(tmp_path, grid, rounds=1)
    (folder,) = (tmp_path / "owner-1").glob("silo-1-*")
    shutil.rmtree(folder)
    (tmp_path / "owner-1" / "data.lifetime.jsonl").unlink()
    (tmp_path / "owner-1" / "data.lifetime.json").unlink()
    strategy.start(grid=grid, initial_arrays=strategy._arrays(), num_rounds=1)
    assert {s: about["rounds"] for s, about in strategy.server.summary()["silos"].items()} == {"0": 2, "1": 1, "2": 2}


def test_a_second_run_in_the_same_folders_is_over_at_once(tmp_path):
    run(tmp_path, Grid(tmp_path, app_of()))
    grid = Grid(tmp_path, app_of())
    strategy, result = run(tmp_path, grid)
    assert "train.dpfl" not in grid.kinds
    assert strategy.server.status == "done"
    arrays = torch.cat([value.flatten() for value in result.arrays.to_torch_state_dict().values()])
    assert torch.equal(arrays, strategy.server.model)


def test_settings_are_checked(tmp_path):
    model = make_model("linear")
    for change, why in (
        ({"dpfl.num_silos": "3"}, r"num_silos='3' must be the number of silos"),
        ({"dpfl.folder": "relative"}, "must be an absolute path"),
        ({"dpfl.privcy.epsilon": 1.0}, "privcy is not a known key"),
    ):
        config = {**Grid(tmp_path, None).config, **change}
        with pytest.raises(ConfigError, match=why):
            PrivateStrategy(FedAvg(), model, Context(1, 1, {}, RecordDict(), config))


def test_a_folder_that_the_server_cannot_use_is_named_before_anything_is_asked(tmp_path):
    grid = Grid(tmp_path, app_of())
    (tmp_path / "file").touch()
    grid.config["dpfl.folder"] = str(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"folder: the server cannot use .*file/server \(.*name another folder"):
        run(tmp_path, grid)
    assert not grid.kinds


def test_a_servers_run_config_sets_neither_the_folder_nor_the_budget_of_a_node(tmp_path, caplog):
    """`flwr run --run-config "dpfl.privacy.epsilon=1000 dpfl.folder=..."` on nodes whose owners allow 8."""
    settings = {**SETTINGS, "privacy": {"epsilon": 1000.0, "delta": 1e-5, "record_rate": 0.25}}
    grid, answers = Grid(tmp_path, app_of(), settings=settings, epsilon=8), []
    grid.change = lambda silo, reply: answers.append(reply) or reply
    strategy, _ = run(tmp_path, grid)
    assert (strategy.server.status, strategy.server.rounds) == ("refused", 0)
    assert re.fullmatch("silo [012]: not within this owner's limits", strategy.server.reason)
    assert "silo 0 takes no part: " in caplog.text and "limits-0.yaml" in caplog.text
    assert "epsilon 1000 is above the owner's limit of 8" in caplog.text
    assert len(answers) == 3 and "limits-0.yaml" not in str([reply.content for reply in answers])
    assert not list(tmp_path.rglob("ledger.jsonl"))


def test_a_node_keeps_its_silo_where_its_owner_says(tmp_path, caplog):
    grid = Grid(
        tmp_path, app_of(), settings={**SETTINGS, "privacy": {**SETTINGS["privacy"], "epsilon": 8.0}}, epsilon=8
    )
    with caplog.at_level("INFO"):
        run(tmp_path, grid)
    assert not list(tmp_path.glob("silo-*"))  # the folder of the run's configuration has the server alone
    for silo in range(3):
        assert (tmp_path / f"owner-{silo}" / "data.lifetime.jsonl").exists()
        assert (
            f"silo {silo}: agreed epsilon 8 at delta 1e-05; folder {tmp_path}/owner-{silo}/silo-{silo}-" in caplog.text
        )


def test_nodes_without_limits_take_no_part_and_say_why(tmp_path):
    grid = Grid(tmp_path, app_of())
    grid.limits = dict.fromkeys(range(3))
    strategy, _ = run(tmp_path, grid)
    assert strategy.server.status == "refused" and "the owner of the data has set no limits" in strategy.server.reason


def test_what_a_project_measures_is_sent_only_if_the_owner_says_so(tmp_path, caplog):
    grid = Grid(tmp_path, app_of(), send=[])
    strategy, result = run(tmp_path, grid)
    assert strategy.server.rounds == 4
    assert not any(result.evaluate_metrics_clientapp.values())
    message = Message(content=RecordDict(), message_type="evaluate", dst_node_id=100)
    message.metadata.__dict__["_src_node_id"] = 1
    caplog.clear()
    said = grid.app(message, grid.context(100)).error.reason
    assert said.startswith("not within this owner's limits") and str(tmp_path) not in said
    assert "send: [metrics]" in said and "fraction_evaluate=0.0" in said and str(tmp_path) not in said
    assert str(grid.limits[0]) in caplog.text and "add metrics to send:" in caplog.text  # at the node alone


def test_an_evaluation_that_too_few_nodes_are_here_for_is_waited_for_once_and_training_goes_on(
    tmp_path, caplog, monkeypatch
):
    """Flower itself waits without end: a node that is gone would stop a run which can go on without it."""
    grid, model, clock = Grid(tmp_path, app_of()), make_model("linear"), Clock()
    for name in ("flower", "flower_waits"):
        monkeypatch.setattr(f"dpfl_plugin.adapters.{name}.time", clock)
    context = Context(1, 1, {}, RecordDict(), grid.config)
    strategy = PrivateStrategy(FedAvg(min_available_nodes=3), model, context, patience=70.0)
    grid.away = {102}
    with caplog.at_level("INFO"):
        result = strategy.start(grid, ArrayRecord(model.state_dict()), 2)
    assert clock.now == 140  # for the silo and for the evaluation, each once
    assert strategy.server.rounds == 2 and not result.evaluate_metrics_clientapp
    waits = [record.getMessage() for record in caplog.records if "to evaluate (" in record.getMessage()]
    assert waits == [
        f"dpfl: waiting for nodes to evaluate (2 here, 3 needed), for {left} s at most" for left in (70, 40, 10)
    ]
    assert caplog.text.count("evaluation is left out until 3 nodes are connected") == 1
    grid.away = set()
    assert strategy.start(grid, strategy._arrays(), 1).evaluate_metrics_clientapp
    grid.away = {101, 102}
    none = Evaluation(FedAvg(min_available_nodes=3, fraction_evaluate=0.0), 70.0)
    assert none.may_begin(grid) and clock.now == 140  # there is nothing to wait for


def test_a_reply_of_the_superlink_for_a_node_that_is_away_counts_as_that_nodes(tmp_path, caplog):
    """It comes by the number of the SuperLink, and names the message that it answers."""

    class Link(Grid):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            for number, message in enumerate(messages):
                message.metadata.__dict__["_message_id"] = f"message {number}"
            gone = [message for message in messages if message.metadata.dst_node_id in self.lost]
            replies = super().send_and_receive([message for message in messages if message not in gone])
            for message in gone:
                message.metadata.__dict__["_src_node_id"] = 1
                reply = Message(Error(code=5, reason="Node Unavailable"), reply_to=message)
                reply.metadata.__dict__["_src_node_id"] = 1
                replies.append(reply)
            return replies

    grid = Link(tmp_path, app_of())
    grid.lost = set()
    strategy, _ = run(tmp_path, grid, rounds=1)
    grid.lost = {101}
    strategy.start(grid, strategy._arrays(), 1)
    assert "dpfl: silo 1 (node 101) gives no answer: Node Unavailable" in caplog.text
    caplog.clear()
    grid.silo_of[555], grid.states[555], grid.limits[1] = 1, RecordDict(), grid.limits[1]
    grid.lost = {555}
    strategy.start(grid, strategy._arrays(), 1)
    assert "dpfl: node 555 does not say which silo it is: Node Unavailable" in caplog.text


def test_what_a_round_waits_for_is_said_and_that_a_run_goes_on(tmp_path, caplog):
    caplog.set_level("INFO")
    run(tmp_path, Grid(tmp_path, app_of()), rounds=1)
    assert "dpfl: round 1: waiting for answers of silos 0-2, for 3600 s at most" in caplog.text
    caplog.clear()
    run(tmp_path, Grid(tmp_path, app_of()), rounds=1)
    assert f"dpfl: the run in {tmp_path} goes on after round 1; Flower counts from 1" in caplog.text
    assert "dpfl: round 2: waiting for answers of silos 0-2, for 3600 s at most" in caplog.text


def test_what_is_relied_on_holds_in_this_version(monkeypatch):
    try_seam()
    with monkeypatch.context() as patch:  # and it would be seen if it did not
        patch.setattr(ArrayRecord, "to_torch_state_dict", lambda self: dict.fromkeys(self, torch.zeros(2)))
        with pytest.raises(AssertionError, match="to the bit"):
            try_seam()


WRAPPERS = {
    "DifferentialPrivacyServerSideFixedClipping": (1.0, 0.5, 3),
    "DifferentialPrivacyClientSideFixedClipping": (1.0, 0.5, 3),
    "DifferentialPrivacyServerSideAdaptiveClipping": (0.1, 100),
    "DifferentialPrivacyClientSideAdaptiveClipping": (0.1, 100),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_flowers_own_privacy_around_or_inside_is_refused_by_name_before_anything_is_asked(tmp_path, name):
    grid, model = Grid(tmp_path, app_of()), make_model("linear")
    context = Context(1, 1, {}, RecordDict(), grid.config)

    def wrapped(strategy):
        return getattr(strategies, name)(strategy, *WRAPPERS[name])

    with pytest.raises(UnsupportedError, match=f"Flower's {name} is inside PrivateStrategy"):
        PrivateStrategy(wrapped(FedAvg()), model, context)
    outside = wrapped(PrivateStrategy(FedAvg(), model, context))
    with pytest.raises(UnsupportedError, match=f"Flower's {name} is around PrivateStrategy"):
        outside.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=1)
    assert not grid.kinds


MODS = [
    (fixedclipping_mod, "fixedclipping_mod: it would change"),
    (adaptiveclipping_mod, "adaptiveclipping_mod: it would change"),
    (LocalDpMod(1.0, 1.0, 1.0, 1e-5), "LocalDpMod: it would change"),
    (secagg_mod, "secagg_mod: SecAgg masks the results of its own kind"),
    (secaggplus_mod, "secaggplus_mod: SecAgg masks the results of its own kind"),
]


@pytest.mark.parametrize(("mod", "why"), MODS, ids=[why.partition(":")[0] for _, why in MODS])
def test_mods_of_flowers_own_privacy_are_refused_by_name(mod, why):
    with pytest.raises(UnsupportedError, match=f"Flower's {why}"):
        private_client_app(lambda: make_model("linear"), lambda context: None, mods=[mod])


def test_a_workflow_of_secure_aggregation_is_refused_before_anything_is_asked(tmp_path):
    grid, model = Grid(tmp_path, app_of()), make_model("linear")
    context = Context(1, 1, {}, RecordDict(), grid.config)
    legacy = LegacyContext(context, strategy=PrivateStrategy(FedAvg(), model, context))
    with pytest.raises(UnsupportedError, match=r"not in a workflow .*SecAggPlusWorkflow"):
        default_init_params_workflow(grid, legacy)  # the first step of DefaultWorkflow, whatever its fit_workflow
    assert not grid.kinds


def test_what_a_project_says_in_its_own_words_counts_at_both_ends(tmp_path, caplog, simulation):
    """The same bits as of what is told in our words, which go first where both are there."""
    ours = {**SETTINGS, "silo_rate": 1.0}
    theirs = {"algorithm": {"name": "scaffold"}, "privacy": {"noise_multiplier": 1.5, "delta": 1e-5}}
    project = {"num-server-rounds": 4, "learning-rate": 0.5, "local_steps": 3, "fraction-train": 1.0, "batch-size": 5}
    results = []
    for name, settings, config in (("ours", ours, {}), ("theirs", theirs, project)):
        (tmp_path / name).mkdir()
        if name == "ours":
            settings = {**settings, "privacy": {"noise_multiplier": 1.5, "delta": 1e-5, "batch_size": 5}}
        grid = Grid(tmp_path / name, app_of(seeded=True), settings=settings, simulated=True)
        grid.config |= config
        with caplog.at_level("INFO"):
            strategy, _ = run(tmp_path / name, grid)
        assert strategy.server.status == "done"
        results.append(strategy.server.model)
    assert torch.equal(*results)
    for key, place in (("num-server-rounds", "rounds"), ("local_steps", "algorithm.local_steps")):
        assert caplog.text.count(f"run-config {key} counts as dpfl.{place}") == 1
    assert "dpfl reads none" not in caplog.text

    found = settings_of(
        {"dpfl.rounds": 4, "dpfl.algorithm.name": "scaffold", "dpfl.algorithm.eta_0": 1.0, "dpfl.silo_rate": 0.5}
        | {"lr": 0.1, "fraction-train": 0.5, "num-server-rounds": 3, "local-epochs": 2, "batch-size": "32"},
        "dpfl",
    )
    assert found.values == {"rounds": 4, "algorithm": {"name": "scaffold", "eta_0": 1.0}, "silo_rate": 0.5}
    assert not found.used and found.unread == ("batch-size", "local-epochs", "lr", "num-server-rounds")


def test_what_of_a_project_has_no_effect_is_said_once(tmp_path, caplog):
    class Own(FedAvg):
        def aggregate_train(self, server_round, replies):
            raise AssertionError("never called")

    grid, model = Grid(tmp_path, app_of()), make_model("linear")
    grid.config |= {"num-server-rounds": 2, "lr": 0.1, "batch-size": 32}
    inner = Own(min_available_nodes=1, fraction_train=0.5, min_train_nodes=3)
    strategy = PrivateStrategy(inner, model, Context(1, 1, {}, RecordDict(), grid.config))
    arrays = ArrayRecord(model.state_dict())
    strategy.start(grid, arrays, 2, train_config=ConfigRecord({"lr": 0.1, "local-steps": 3, "epochs": 3}))
    for what in (
        "train_config (epochs; lr=0.1, and algorithm.local_lr=0.5 counts) has no effect: silos train by [tool.",
        "fraction_train=0.5 has no effect: dpfl.silo_rate says",
        "min_train_nodes=3 has no effect",
        "Own.aggregate_train has no effect",
        "num_rounds=2, and [tool.flwr.app.config.dpfl] rounds=4",
        "run-config batch-size, lr, num-server-rounds: dpfl reads none of these.",
    ):
        assert caplog.text.count(what) == 1, what
    caplog.clear()
    (tmp_path / "other").mkdir()
    run(tmp_path, Grid(tmp_path / "other", app_of()), rounds=4)
    assert not any(what in caplog.text for what in ("no effect", "num_rounds", "run-config"))


@pytest.mark.parametrize(("name", "hook"), [("FedAdam", "aggregate_train"), ("FedProx", "configure_train")])
def test_a_step_of_flowers_own_strategies_that_is_not_taken_is_named(tmp_path, caplog, name, hook):
    grid, model = Grid(tmp_path, app_of()), make_model("linear")
    inner = getattr(strategies, name)(min_available_nodes=1, **({"proximal_mu": 0.1} if name == "FedProx" else {}))
    strategy = PrivateStrategy(inner, model, Context(1, 1, {}, RecordDict(), grid.config), patience=0.0)
    strategy.start(grid, ArrayRecord(model.state_dict()), 1)
    assert caplog.text.count(f"dpfl: {name}.{hook} has no effect: ") == 1


def test_what_this_package_logs_is_shown_where_flower_logs_and_the_end_is_said_once(tmp_path, caplog):
    """Flower shows its own logger: INFO of others was lost. A run of as many rounds as Flower's had no last line."""
    seen, handler = [], logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())
    logging.getLogger("flwr").addHandler(handler)
    say_once.cache_clear()  # other tests' silos said the same
    caplog.set_level("INFO")
    try:
        run(tmp_path, Grid(tmp_path, app_of()), rounds=4)
        ends = [line for line in seen if "the run is over" in line]
        assert len(ends) == 1 and ends[0].startswith("dpfl: the run is over: done after 4 rounds. Epsilon: at most ")
        for silo in range(3):
            about = f"silo {silo}: noise multiplier 1.5"  # and no number of records: a log may be read by others
            assert seen.count(about) == 1 and any(line.startswith(f"silo {silo}: agreed epsilon") for line in seen)
        seen.clear()
        run(tmp_path, Grid(tmp_path, app_of()), rounds=4)
        assert [line for line in seen if "over" in line] == [
            f"dpfl: the run in {tmp_path} was over before: done after 4 rounds. Nothing is trained; for another run "
            "give another folder: its epsilon adds to this one's"
        ]
    finally:
        logging.getLogger("flwr").removeHandler(handler)


@pytest.mark.parametrize("key", NAMED)
def test_no_code_that_a_run_config_names_is_called_unless_the_nodes_owner_lists_it(tmp_path, caplog, key):
    """`flwr run --run-config`: the server's words, in an app whose code somebody read."""
    grid, model = Grid(tmp_path, app_of()), make_model("linear")
    strategy = PrivateStrategy(FedAvg(), model, Context(1, 1, {}, RecordDict(), grid.config), patience=0.0)
    asked, *_ = strategy.configure_train(1, ArrayRecord(model.state_dict()), ConfigRecord(), grid)
    grid.config = flat({**named(key), "num_silos": 3, "folder": str(tmp_path)})
    with recorded() as calls:
        answer = read(grid.app(sent("train.dpfl", asked.content), grid.context(100)).content).header
        assert (answer["status"], answer["reason"]) == ("refused", "not within this owner's limits")
        assert not calls and f"{key} (tempfile:mkdtemp)" in caplog.text
        if key not in ("loss", "privacy.accountant.module", "algorithm.of.module"):
            grid.limits[0].write_text(grid.limits[0].read_text() + "code: ['tempfile:mkdtemp']\n")
            assert grid.app(sent("train.dpfl", asked.content), grid.context(100)).error.reason == (
                "a message of type 'train.dpfl': it failed, and its own log says why"
            )
            assert calls and "it was called" in caplog.text


class Clock:
    """Stands for the module time: seconds pass while somebody sleeps."""

    def __init__(self, then=lambda now: None):
        self.now, self.then = 0.0, then

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.then(self.now)


def test_who_is_waited_for_is_said_at_once_and_one_that_is_gone_is_waited_for_once(tmp_path, caplog, monkeypatch):
    grid, clock = Grid(tmp_path, app_of()), Clock()
    monkeypatch.setattr("dpfl_plugin.adapters.flower.time", clock)
    caplog.set_level("INFO")
    grid.away = {102}
    strategy, _ = run(tmp_path, grid, rounds=3, patience=70.0)
    assert clock.now == 70  # in the first round alone
    waits = [record.getMessage() for record in caplog.records if "waiting for silos" in record.getMessage()]
    assert waits == [
        f"dpfl: waiting for silos 2 (2 of 3 here, 2 needed), for {left} s at most" for left in (70, 40, 10)
    ]
    assert caplog.text.count("silos 2 did not come in 70 s: rounds continue without them") == 1
    grid.away = set()
    strategy.start(grid=grid, initial_arrays=strategy._arrays(), num_rounds=1)
    assert strategy.server.summary()["silos"]["2"]["rounds"] == 1
    grid.away = {102}  # it was back: it is waited for again
    assert not strategy._gone


def test_too_few_silos_are_waited_for_by_name_and_then_none_is_asked(tmp_path, caplog, monkeypatch):
    grid = Grid(tmp_path, app_of())
    monkeypatch.setattr("dpfl_plugin.adapters.flower.time", Clock())
    caplog.set_level("INFO")
    grid.away = {101, 102}
    with pytest.raises(TrainingError, match=r"silos 1-2 did not come in 90 s; 1 of 3 are here, and 2 are needed. None"):
        run(tmp_path, grid, rounds=1, timeout=90.0)
    assert "waiting for silos 1-2 (1 of 3 here, 2 needed), for 90 s at most" in caplog.text
    assert set(grid.kinds) == {"query.dpfl"} and not list(tmp_path.rglob("ledger.jsonl"))


def test_the_app_that_dpfl_new_writes_trains_from_rows_that_are_mappings(tmp_path, caplog, monkeypatch):
    new_package("flower-app", "written_app", tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "written-app")
    client, task = importlib.import_module("written_app.client_app"), importlib.import_module("written_app.task")
    values = tomllib.loads((tmp_path / "written-app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    grid = Grid(tmp_path, client.app, num_silos=5, settings=values.pop("dpfl"), min_records=200, num_classes=10)
    grid.config |= {**values, "num-server-rounds": 2, "dpfl.folder": str(tmp_path)}
    model, context = task.Net(), Context(1, 1, {}, RecordDict(), grid.config)
    strategy = PrivateStrategy(FedAvg(), model, context, patience=0.0)
    with caplog.at_level("INFO"):
        result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=2)
    assert strategy.server.status == "done" and strategy.server.rounds == 2
    assert all(7.9 < about["epsilon"] <= 8 for about in strategy.server.summary()["silos"].values())
    assert 0 <= result.evaluate_metrics_clientapp[2]["accuracy"] <= 1
    assert "dpfl reads none" not in caplog.text  # every setting of it counts


def test_this_process_is_no_simulation():
    assert surroundings() == "deployment"
