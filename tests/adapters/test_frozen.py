"""Frozen layers and buffers are the server's at every silo, whatever random model a silo's process has built."""

import json

import pytest
import torch
from torch import nn

from dpfl_plugin.adapters import Message, Server, agree
from dpfl_plugin.adapters.frozen import FIXED
from dpfl_plugin.errors import ConfigError, DataError, MessageError
from dpfl_plugin.models.fixed import fixed_digest
from tests.adapters.federation import SimulatedSilo, block, draws, over_the_wire
from tests.adapters.test_faults import NUM_SILOS, records

DRAW = draws(7, "same")


class Net(nn.Module):
    """Another one each time: a frozen layer, a buffer, one that no state_dict has, and a head that trains."""

    def __init__(self, width=6):
        super().__init__()
        self.body, self.head = nn.Linear(5, width), nn.Linear(width, 3)
        self.register_buffer("scale", torch.rand(width) + 0.5)
        self.register_buffer("shift", torch.randn(width), persistent=False)
        self.register_buffer("mask", torch.rand(width) > 0.2)
        self.register_buffer("calls", torch.tensor(3))
        self.body.requires_grad_(False)
        self.double()

    def forward(self, x):
        return self.head(torch.tanh(self.body(x) * self.scale + self.shift) * self.mask)


def federation(folder, nets, server=None):
    """(server, silos), each of ``nets`` at one silo."""
    first = server or nets[0]
    agreement = agree(block(), num_silos=NUM_SILOS, model=first)
    silos = [
        SimulatedSilo(agreement, i, nets[i], records()[i], folder / f"silo-{i}", draw=DRAW) for i in range(NUM_SILOS)
    ]
    return Server(agreement, first, folder / "server"), silos


def a_round(server, silos, seen=None, lose=()):
    message = server.begin()
    if seen is not None:
        seen.append(message)
    for i in server.asked:
        up = silos[i].answer(over_the_wire(message))
        assert not set(up.vectors) - {"model", "control"}, "a silo sends nothing of them"
        if i not in lose:
            assert server.receive(i, over_the_wire(up)) is None
    return server.end()


def close(silos, server=None):
    for one in silos if server is None else [*silos, server]:
        one.close()


def test_silos_that_build_other_random_models_train_the_servers(tmp_path):
    """To the bit what silos do that have built the same; also where silos and server are started anew each round."""
    first = Net()
    server, silos = federation(tmp_path / "same", [first] * NUM_SILOS)
    seen = []
    for _ in range(4):
        assert a_round(server, silos, seen)
    expected = server.model.clone()
    close(silos)
    assert [FIXED in message.vectors for message in seen] == [True, False, False, False], "they are sent once"
    assert len({message.header["fixed"] for message in seen}) == 1

    for round in range(4):
        begun = first if round == 0 else Net()
        others = [Net() for _ in range(NUM_SILOS)]
        server, silos = federation(tmp_path / "other", others, begun)
        if round == 0:
            other = others[0].state_dict()
        assert a_round(server, silos)
        close(silos, server)
    assert torch.equal(server.model, expected)
    made = Net()
    server.write_to(made)
    assert fixed_digest(made) == fixed_digest(first) != fixed_digest(others[0])
    silos[0].write_frozen_to(others[1])
    assert fixed_digest(others[1]) == fixed_digest(first)
    assert torch.equal(others[0].state_dict()["body.weight"], others[0].body.weight), "a project's own model is left"
    assert not torch.equal(other["body.weight"], first.body.weight)


def test_they_are_sent_until_every_silo_that_is_asked_has_them(tmp_path):
    server, silos = federation(tmp_path, [Net() for _ in range(NUM_SILOS)])
    seen = []
    assert a_round(server, silos, seen, lose=[2])
    assert a_round(server, silos, seen)
    assert a_round(server, silos, seen)
    assert [FIXED in message.vectors for message in seen] == [True, True, False]
    close(silos)


def test_nothing_is_sent_of_a_model_all_of_which_trains(tmp_path):
    model = nn.Linear(5, 3).double()
    server = Server(agree(block(), num_silos=2, model=model), model)
    assert set(server.begin().vectors) == {"model", "control"}


def test_a_silo_that_has_others_and_is_not_sent_the_servers_refuses(tmp_path):
    server, silos = federation(tmp_path, [Net() for _ in range(NUM_SILOS)])
    message = server.begin()
    without = Message(message.header, {name: value for name, value in message.vectors.items() if name != FIXED})
    assert silos[0].answer(without).header["status"] == "upload", "it has the server's"
    with pytest.raises(MessageError, match=r"silo 1, a message of the server: the server's model has other frozen"):
        silos[1].answer(without)
    spoilt = message.vectors[FIXED].clone()
    spoilt[5] += 1
    with pytest.raises(MessageError, match="not those that it names"):
        silos[1].answer(Message(message.header, {**message.vectors, FIXED: spoilt}))
    with pytest.raises(MessageError, match=r"dpfl\.fixed is uint8\[3\], where uint8\["):
        silos[1].answer(Message(message.header, {**message.vectors, FIXED: spoilt[:3]}))
    assert len(silos[1]._ledger) == 0
    close(silos)


def test_a_server_that_changes_them_is_refused(tmp_path):
    server, silos = federation(tmp_path, [Net() for _ in range(NUM_SILOS)])
    assert a_round(server, silos)
    anew = Server(server.agreement, Net())  # without its folder
    message = anew.begin()
    for silo in silos:
        spent = len(silo._ledger)
        header = {**message.header, "round": 1, "counted": server.begin().header["counted"]}
        with pytest.raises(MessageError, match="not those that this silo began with"):
            silo.answer(Message(header, message.vectors))
        assert len(silo._ledger) == spent
    close(silos)


def test_values_for_which_the_model_has_no_output_are_refused_and_not_kept(tmp_path):
    first = Net()
    with torch.no_grad():
        first.body.weight.fill_(float("nan"))
    server, silos = federation(tmp_path, [Net() for _ in range(NUM_SILOS)], first)
    with pytest.raises(ConfigError, match="not finite"):
        silos[0].answer(server.begin())
    assert not (tmp_path / "silo-0" / "frozen.safetensors").exists()
    close(silos)


def test_a_damaged_file_is_refused(tmp_path):
    server, silos = federation(tmp_path, [Net() for _ in range(NUM_SILOS)])
    assert a_round(server, silos)
    close(silos)
    file = tmp_path / "silo-1" / "frozen.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"frozen\.safetensors cannot be read"):
        SimulatedSilo(server.agreement, 1, Net(), records()[1], tmp_path / "silo-1")


class Otherwise(Net):
    """The same tensors; another constant, which no state_dict has."""

    def __init__(self):
        super().__init__()
        self.constant = torch.randn(4)


def variants():
    slope = lambda value: nn.Sequential(nn.Linear(5, 3), nn.LeakyReLU(value)).double()  # noqa: E731
    frozen, free = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 3)).double(), nn.Linear(5, 3).double()
    frozen[1].requires_grad_(False)
    return {
        "another width of what is frozen": (Net(), Net(7)),
        "an option": (slope(0.1), slope(0.2)),
        "a layer without parameters": (slope(0.1), nn.Sequential(nn.Linear(5, 3), nn.Tanh()).double()),
        "a tensor that is a plain attribute": (Otherwise(), Otherwise()),
        "a frozen layer more": (frozen, free),
    }


@pytest.mark.parametrize("name", variants())
def test_a_model_that_is_built_otherwise_is_refused_with_the_reason_at_both_ends(tmp_path, name):
    here, there = variants()[name]
    server = Server(agree(block(), num_silos=NUM_SILOS, model=here), here)
    elsewhere = agree(block(), num_silos=NUM_SILOS, model=there)
    message = server.begin()
    with SimulatedSilo(elsewhere, 0, there, records()[0], tmp_path / "silo-0") as silo:
        with pytest.raises(MessageError, match=r"differ \(the model is built differently\)"):
            silo.answer(message)
        why = server.receive(0, over_the_wire(silo.failure(message)))
        assert why == "it is of another run: the model there is built differently from the server's."
        assert len(silo._ledger) == 0
    with pytest.raises(ConfigError, match=r"built differently from|other trainable parameters than"):
        SimulatedSilo(server.agreement, 1, there, records()[1], tmp_path / "silo-1")


def test_other_settings_are_told_from_another_model(tmp_path):
    model = Net()
    server = Server(agree(block(), num_silos=NUM_SILOS, model=model), model)
    other = agree(block(rounds=9), num_silos=NUM_SILOS, model=model)
    with SimulatedSilo(other, 0, model, records()[0], tmp_path) as silo:
        message = server.begin()
        with pytest.raises(MessageError, match=r"differ \(the settings\)"):
            silo.answer(message)
        assert "settings there differ" in server.receive(0, silo.failure(message))


def test_a_model_that_is_built_alike_agrees_whatever_its_random_values_are():
    runs = {agree(block(), num_silos=2, model=Net()).run for _ in range(3)}
    assert len(runs) == 1
    assert json.dumps(sorted(runs))
