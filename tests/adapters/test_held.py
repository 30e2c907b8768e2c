"""Silos that stay open from message to message answer as those that are opened for each."""

import functools
import json

import numpy as np
import pytest
import torch

from dpfl_plugin.adapters import Server, Silo, agree, held
from dpfl_plugin.adapters.held import Held
from dpfl_plugin.adapters.kept import Kept
from dpfl_plugin.errors import BusyError, DataError, DpflError, LimitError
from dpfl_plugin.owners import limits as limits_module
from tests.adapters.federation import SimulatedSilo, block, draws, loop, over_the_wire
from tests.adapters.test_faults import module, records
from tests.adapters.test_kept import Scaled


class Counted:
    """Opens a silo, and counts how often."""

    def __init__(self, *args, **more):
        self.opened, self._made = 0, functools.partial(SimulatedSilo, *args, **more)

    def __call__(self):
        self.opened += 1
        return self._made()


@pytest.mark.parametrize("most", [64, 2], ids=["all stay open", "two of four do"])
def test_they_compute_what_silos_do_that_are_opened_for_every_message(tmp_path, monkeypatch, most):
    monkeypatch.setattr(held, "MOST", most)
    values, data, draw = block(), records(), draws(5, "same")
    with loop(tmp_path / "open", values, module(), data, draw) as stays:
        expected = stays.run()
    kept, agreement, silos = Kept(), agree(values, num_silos=len(data), model=module()), Held()
    makes = {i: Counted(agreement, i, module(), x, tmp_path / f"{i}", draw=draw, kept=kept) for i, x in data.items()}
    with Server(agreement, module()) as server:
        while (message := server.begin()) is not None:
            for i in server.asked:
                with silos.silo(i, module(), data[i], makes[i]) as silo:
                    server.receive(i, silo.answer(over_the_wire(message)))
                assert len(silos) <= most
            assert server.end()
        assert torch.equal(server.model, expected)
    assert {one.opened for one in makes.values()} == ({1} if most == 64 else {4})
    silos.close()
    for i, make in makes.items():
        assert json.loads((tmp_path / f"{i}" / "ledger.json").read_text())["counted"]["rounds_ahead"] == 0
        make().close()  # nobody has it


def test_statements_count_a_round_ahead_till_their_silos_are_let_go_of(tmp_path):
    agreement, data, silos = agree(block(rounds=6), num_silos=1, model=module()), records()[0], Held()
    server, make = Server(agreement, module()), Counted(agreement, 0, module(), data, tmp_path / "silo")

    def ahead():
        return json.loads((tmp_path / "silo" / "ledger.json").read_text())["counted"]["rounds_ahead"]

    with silos.silo(0, module(), data, make) as silo:
        server.receive(0, silo.answer(server.begin()))
    assert server.end() and ahead() == 1
    silos.close()
    assert ahead() == 0


def test_what_decides_is_compared_before_each_answer(tmp_path):
    model, data, silos = Scaled(), records()[0], Held()
    agreement = agree(block(rounds=9), num_silos=1, model=model)
    server = Server(agreement, model)

    def opened(model=model, records=data):
        make = Counted(agreement, 0, model, records, tmp_path / "silo")
        with silos.silo(0, model, records, make) as silo:
            server.receive(0, silo.answer(server.begin()))
        assert server.end()
        return make.opened

    assert opened() == 1
    assert opened() == opened(records=(data[0].clone(), data[1].clone())) == 0  # other objects, and the same bytes
    assert opened(Scaled(2.0)) == 1  # an attribute, which no digest of its tensors shows
    assert opened(Scaled(2.0)) == 0
    with torch.no_grad():
        data[0][0, 0] = np.nextafter(float(data[0][0, 0]), np.inf)  # one bit, in place
    with pytest.raises(DataError, match="the records are not those that this silo began with"):
        opened(Scaled(2.0))
    assert len(silos) == 0


def test_an_error_closes_a_silo_and_the_next_message_finds_its_folder(tmp_path, monkeypatch):
    agreement, data, silos = agree(block(rounds=6), num_silos=1, model=module()), records()[0], Held()
    server, make = Server(agreement, module()), Counted(agreement, 0, module(), data, tmp_path / "silo")

    def answer(message):
        with silos.silo(0, module(), data, make) as silo:
            return silo.answer(message)

    server.receive(0, answer(server.begin()))
    assert server.end()
    with pytest.raises(BusyError):
        make()
    message = server.begin()
    with monkeypatch.context() as patch:
        patch.setattr(Silo, "_charge", lambda *args: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            answer(message)
    assert len(silos) == 0
    server.receive(0, answer(message))
    assert server.end() and make.opened == 3  # with the one that found it busy
    silos.close()


def test_only_so_many_bytes_of_records_are_held_beside_the_last(tmp_path):
    agreement, silos = agree(block(rounds=6), num_silos=4, model=module()), Held(0)
    for i, data in records().items():
        with silos.silo(i, module(), data, Counted(agreement, i, module(), data, tmp_path / f"{i}")):
            pass
        assert len(silos) == 1
    silos.close()
    assert len(silos) == 0


def test_an_owners_limits_hold_for_one_message(tmp_path, monkeypatch):
    """Set in mid-run they count from the next message on; silos with some are closed after each, and ask anew."""
    path, data, silos = tmp_path / "limits.yaml", records()[0], Held()
    monkeypatch.setattr(limits_module, "PLACES", (str(path),))
    privacy = {"epsilon": 3.0, "delta": 1e-5, "record_rate": 0.25}

    def limit(epsilon):
        path.write_text(
            f"folder: {tmp_path / 'owner'}\nepsilon: {epsilon}\ndelta: 1e-4\nmin_records: 20\nnum_classes: 3\n"
        )
        path.chmod(0o600)

    def begun(name):
        agreement = agree(block(name=name, rounds=9, privacy=privacy), num_silos=1, model=module())
        folder = None if path.exists() else tmp_path / name
        make = Counted(agreement, 0, module(), data, folder, surroundings="simulation")
        return Server(agreement, module()), make

    def answer(server, make):
        with silos.silo(0, module(), data, make) as silo:
            server.receive(0, silo.answer(server.begin()))
        assert server.end()

    server, make = begun("without")
    answer(server, make)
    answer(server, make)
    assert make.opened == len(silos) == 1
    limit(20)
    with pytest.raises(DpflError, match="folder"):  # which is not in the owner's
        answer(server, make)
    assert len(silos) == 0
    server, make = begun("within")
    answer(server, make)
    answer(server, make)
    assert make.opened == 2 and len(silos) == 0
    limit(0.001)
    with pytest.raises(LimitError, match=r"epsilon 3 is above the owner's limit of 0\.001"):
        answer(server, make)
