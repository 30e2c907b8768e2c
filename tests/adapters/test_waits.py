"""How often a silo and a server wait for the disk: each time may take longer than to train a small model."""

import os

import pytest

from dpfl_plugin.adapters import Server, Silo, agree
from dpfl_plugin.adapters.kept import Kept
from dpfl_plugin.owners.limits import Limits
from tests.adapters.federation import NOISY, PUBLIC, SimulatedSilo, block
from tests.adapters.test_faults import module, records

ROUNDS = 24


@pytest.mark.parametrize(
    ("limited", "most", "later"),
    [(False, 6, 3), (True, 9, 6)],
    ids=["a simulation", "an owner's limits"],
)
def test_a_silo_waits_for_its_charge_its_statement_and_its_answer_and_nothing_else(
    tmp_path, monkeypatch, limited, most, later
):
    """Opened for each message: statement 3 (two files, their folder), charge 1, answer 2; with a lifetime ledger its
    line and its marker, 3. Later a statement counts rounds ahead, and most messages wait for none."""
    values = block(rounds=ROUNDS + 1, privacy={**NOISY, "noise_multiplier": 4.0})
    agreement, kept, waits, server_waits = agree(values, num_silos=1, model=module()), Kept(), [], []
    limits = Limits(folder=tmp_path / "owner", epsilon=1e3, delta=1e-3, **PUBLIC) if limited else None
    count, real = [0], os.fsync

    def fsync(handle):
        count[0] += 1
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)

    def waited() -> int:
        found, count[0] = count[0], 0
        return found

    with Server(agreement, module(), tmp_path / "server") as server:
        for _ in range(ROUNDS):
            waited()
            message = server.begin()
            before = waited()
            folder, made = (None, Silo) if limited else (tmp_path / "silo", SimulatedSilo)
            with made(agreement, 0, module(), records()[0], folder, limits=limits, kept=kept) as silo:
                answer = silo.answer(message)
            waits.append(waited())
            server.receive(0, answer)
            assert server.end()
            server_waits.append(before + waited())
    assert max(waits[1:]) <= most
    assert min(waits) == later and waits.count(later) >= 3
    assert max(server_waits[1:]) <= 6  # the request 2; the checkpoint 4: its vectors, its facts, their names, its own
