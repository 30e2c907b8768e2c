"""A silo that is opened for every message is made once in a process, and computes what one that stays open does."""

import functools
import pkgutil

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset

from dpfl_plugin.adapters import Server, agree, beginning
from dpfl_plugin.adapters import silo as silo_module
from dpfl_plugin.adapters.agreement import Agreements
from dpfl_plugin.adapters.kept import Kept, hashed, kept_here
from dpfl_plugin.adapters.records import silo_of
from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.data.base import digest
from dpfl_plugin.errors import BusyError, DataError, LimitError, UnsupportedError
from dpfl_plugin.gradients import choice
from dpfl_plugin.owners.limits import Limits
from tests.adapters.federation import NOISY, PUBLIC, SimulatedSilo, block, draws, loop, over_the_wire
from tests.adapters.test_faults import module, records


class Opened:
    """Stands for a silo, as adapters have it: opened for a message, and closed after its answer."""

    def __init__(self, *args, **more):
        self.open = functools.partial(SimulatedSilo, *args, **more)

    def answer(self, message):
        with self.open() as silo:
            return silo.answer(message)


@pytest.fixture
def made(monkeypatch):
    """What was made anew: "parts" and "hashed", one each time."""
    found = []

    def counted(name, function):
        return lambda *args, **more: (found.append(name), function(*args, **more))[1]

    monkeypatch.setattr(beginning, "build", counted("parts", beginning.build))
    monkeypatch.setattr(silo_module, "hashed", counted("hashed", silo_module.hashed))
    return found


def one(folder, kept, data=None, model=None, **more):
    """(a server of one silo, that silo)"""
    agreement = agree(block(rounds=6), num_silos=1, model=module())
    data = records()[0] if data is None else data
    return Server(agreement, module()), Opened(agreement, 0, model or module(), data, folder, kept=kept, **more)


def a_round(server, silo):
    message = server.begin()
    assert server.receive(0, silo.answer(over_the_wire(message))) is None
    assert server.end()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": {"name": "scaffnew", "local_lr": 0.2, "p": 0.4}},
        {"privacy": {"noise_multiplier": 1.5, "delta": 1e-5, "record_rate": 0.25, "clip": "adaptive"}},
    ],
    ids=["scaffold", "scaffnew", "adaptive clipping"],
)
def test_silos_that_are_opened_for_every_message_compute_what_silos_do_that_stay_open(tmp_path, made, changes):
    values, data, draw = block(**changes), records(), draws(5, "same")
    with loop(tmp_path / "open", values, module(), data, draw) as stays:
        expected = stays.run()
    made.clear()
    kept, agreement = Kept(), agree(values, num_silos=len(data), model=module())
    with Server(agreement, module()) as server:
        silos = {i: Opened(agreement, i, module(), x, tmp_path / f"{i}", draw=draw, kept=kept) for i, x in data.items()}
        while (message := server.begin()) is not None:
            for i in server.asked:
                server.receive(i, silos[i].answer(over_the_wire(message)))
            assert server.end()
        assert torch.equal(server.model, expected)
    assert sorted(made) == ["hashed"] * len(data) + ["parts"] * len(data)


def test_silos_take_turns_in_processes_and_go_on_from_their_folder(tmp_path, made):
    """As where Ray or FedML moves a silo: what a process kept of it is older than the folder."""
    data, draw = records()[0], draws(5, "same")
    server, silo = one(tmp_path / "plain", None, data, draw=draw)
    for _ in range(5):
        a_round(server, silo)
    others = [one(tmp_path / "moved", kept, data, draw=draw)[1] for kept in (Kept(), Kept())]
    moved, _ = one(tmp_path / "moved", None)
    made.clear()
    for turn in (0, 1, 0, 0, 1):
        a_round(moved, others[turn])
    assert torch.equal(moved.model, server.model)
    assert sorted(made) == ["hashed"] * 2 + ["parts"] * 2


class Scaled(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.scale = module(), scale

    def forward(self, x):
        return self.inner(x) * self.scale


def halved(outputs, labels):
    return functional.cross_entropy(outputs, labels, reduction="none") / 2


def test_what_decides_is_compared_and_made_anew_where_it_is_another(tmp_path, made):
    model = Scaled()
    agreement = agree(block(rounds=9), num_silos=1, model=model)
    kept, server, data = Kept(), Server(agreement, model), records()[0]
    folder = tmp_path / "silo"

    def opened(model=model, records=data, **more):
        made.clear()
        a_round(server, Opened(agreement, 0, model, records, folder, kept=kept, **more))
        return made.copy()

    assert opened() == ["hashed", "parts"]
    assert opened() == []
    assert opened(records=(data[0].clone(), data[1].clone())) == []  # other objects, and the same bytes
    assert opened(model=Scaled(2.0)) == ["parts"]  # an attribute, which no digest of its tensors shows
    assert opened(model=Scaled(2.0)) == []
    assert opened(model=Scaled(2.0), loss=halved) == ["parts"]
    assert opened(model=Scaled(2.0), loss=halved) == []
    assert opened(model=Scaled(2.0)) == ["parts"]
    with torch.no_grad():
        data[0][0, 0] = np.nextafter(float(data[0][0, 0]), np.inf)  # one bit, in place
    with pytest.raises(DataError, match="the records are not those that this silo began with"):
        opened()


def test_a_silo_that_is_kept_looks_at_its_model_once_for_a_message(tmp_path, monkeypatch):
    """How it is built, and what of it does not train, is worked out once; nothing is copied for an engine."""
    server, silo = one(tmp_path / "silo", Kept())
    a_round(server, silo)
    found = []
    for name in ("agreement.structure", "frozen.digest_of", "frozen.Frozen.model"):
        path = f"dpfl_plugin.adapters.{name}"
        real = pkgutil.resolve_name(path)
        monkeypatch.setattr(path, lambda *args, name=name, real=real: (found.append(name), real(*args))[1])
    a_round(server, silo)
    assert found == ["agreement.structure", "frozen.digest_of"]


def test_what_an_error_left_is_made_anew(tmp_path, made, monkeypatch):
    kept = Kept()
    server, silo = one(tmp_path / "silo", kept)
    a_round(server, silo)
    message, made[:] = server.begin(), []
    with monkeypatch.context() as patch:
        patch.setattr(silo_module.Silo, "_charge", lambda *args: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            silo.answer(message)
    assert (made, len(kept)) == ([], 0)
    server.receive(0, silo.answer(message))
    assert server.end() and sorted(made) == ["hashed", "parts"]


def test_locks_and_limits_are_those_of_every_message(tmp_path):
    kept, agreement, data = Kept(), agree(block(rounds=6), num_silos=1, model=module()), records()[0]

    def opened(epsilon):
        limits = Limits(folder=tmp_path / "owner", epsilon=epsilon, delta=1e-3, **PUBLIC)
        return SimulatedSilo(agreement, 0, module(), data, limits=limits, kept=kept)

    server = Server(agreement, module())
    with opened(1000.0) as silo:
        server.receive(0, silo.answer(server.begin()))
        assert server.end()
        with pytest.raises(BusyError):
            opened(1000.0)
        assert not len(kept)  # one that is open has it for itself
    assert len(kept) == 1
    with pytest.raises(LimitError):
        opened(0.001)  # the owner's word since the last message
    with opened(1000.0) as silo:  # nobody holds the folder meanwhile
        server.receive(0, silo.answer(server.begin()))
    assert server.end()


def test_only_so_much_is_kept_beside_the_last(tmp_path):
    agreement = agree(block(rounds=6), num_silos=4, model=module())
    for most_bytes, expected in ((0, 1), (2**20, 4)):
        kept = Kept(most_bytes)
        for i, data in records().items():
            SimulatedSilo(agreement, i, module(), data, tmp_path / f"{most_bytes}-{i}", kept=kept).close()
        assert len(kept) == expected
    assert kept_here() is kept_here()


def test_records_are_the_same_to_the_byte_alone():
    x, y = records()[0]
    mine = hashed(silo_of((x, y), module()))
    for other, expected in (
        ((x.clone(), y.clone()), True),
        ((x.flip(0), y.flip(0)), False),
        ((x[:-1], y[:-1]), False),
        ((x, (y + 1) % 3), False),
        ((torch.cat([x[:1].neg().neg(), x[1:]]), y), True),
    ):
        assert mine.same(silo_of(other, module())) is expected
    zero, minus = torch.zeros(3, 4), torch.zeros(3, 4)
    minus[1, 2] = -0.0
    labels = torch.arange(3)
    assert not hashed(silo_of((zero, labels), module())).same(silo_of((minus, labels), module()))


def test_tensors_are_read_at_once_as_they_would_be_one_by_one():
    x, y = torch.randn(20, 4), torch.arange(20).reshape(-1, 1) % 3

    class Slow(TensorDataset):  # another class: one by one
        pass

    picks = (None, [3, 1, 7], range(4, 9), torch.tensor([0, -1, 5]))
    for pick in picks:
        found = []
        for kind in (TensorDataset, Slow):
            dataset = kind(x, y)
            dataset = dataset if pick is None else Subset(Subset(dataset, range(1, 20)), pick)
            found += [digest(silo_of(one, module())) for one in (dataset, DataLoader(dataset, 7, shuffle=True))]
        assert len(set(found)) == 1, pick
    with pytest.raises(DataError, match="twice"):
        silo_of(Subset(TensorDataset(x, y), [3, 4, 3]), module())


def test_silos_of_one_process_share_the_trial_of_an_engine_and_nothing_else(tmp_path, monkeypatch):
    tried = []
    real = choice._tried
    monkeypatch.setattr(choice, "_tried", lambda *args: (tried.append(args[0]), real(*args))[1])
    kept, data, draw = Kept(), records(3, size=20), draws(5, "same")
    data[1], data[2] = (data[1][0][:20], data[1][1][:20]), records(1, size=40)[0]  # which has larger batches
    found, agreement = {}, agree(block(), num_silos=3, model=module())
    for way in ("shared", "alone"):
        with Server(agreement, module()) as server:
            message = server.begin()
            for i, own in data.items():
                of = kept if way == "shared" else Kept()
                silo = Opened(agreement, i, module(), own, tmp_path / way / f"{i}", draw=draw, kept=of)
                found[way, i] = silo.answer(over_the_wire(message)).vectors
        if way == "shared":
            assert len(tried) == 2
            engines = {id(kept.take(tmp_path / way / f"{i}").parts.engine) for i in data}
            assert len(engines) == 3
    for i in data:
        assert all(torch.equal(value, found["alone", i][name]) for name, value in found["shared", i].items())


def test_agreements_are_made_once_for_the_same_settings_and_models_built_alike():
    made = Agreements()

    def agreed(values=None, model=None, num_silos=3):
        return made.agree(values or block(), num_silos=num_silos, model=model or module(), source="here")

    norm = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    norm[1].eval().requires_grad_(False)
    first, of_norm = agreed(), agreed(model=norm)
    trained = module()
    with torch.no_grad():
        trained[0].weight.add_(1.0)
    assert first is agreed() is agreed(model=trained), "what trains is the server's"
    one = {"name": "scaffold", "local_steps": 3, "local_lr": 1}
    others = [
        agreed(block(algorithm=one)),
        agreed(block(algorithm={**one, "local_lr": 1.0})),
        agreed(block(privacy={**NOISY, "noise_multiplier": 1.25})),
        agreed(num_silos=4),
        agreed(model=module().float()),
        agreed(model=nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()),
    ]
    assert len({id(one) for one in (first, of_norm, *others)}) == 2 + len(others)
    assert of_norm is agreed(model=norm)
    norm[1].train()  # built alike, by all that a digest of it shows
    with pytest.raises(UnsupportedError, match="batch statistics mix records"):
        agreed(model=norm)
    for number in range(Agreements.MOST):
        agreed(num_silos=10 + number)
    assert agreed() is not first
    theirs = block(algorithm={"module": "tests.adapters.test_kept:TheirAlgorithm", "local_steps": 1, "local_lr": 0.1})
    assert agreed(theirs).algorithm is not agreed(theirs).algorithm


class TheirAlgorithm(FedAvg):
    """Might keep anything."""


def test_records_are_ordered_by_the_silos_secret_and_known_again_in_any_order(tmp_path):
    """In a file of its folder that nobody else can read; a seeded simulation takes records as they are given."""
    agreement = agree(block(rounds=6), num_silos=1, model=module())
    x, y = records()[0]
    shuffled = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    trained = []
    for given in ((x, y), (x[shuffled], y[shuffled])):
        with SimulatedSilo(agreement, 0, module(), given, tmp_path / "fresh") as silo:
            trained.append(silo._host.train[0].features)
    assert torch.equal(*trained) and not torch.equal(trained[0], x.to(trained[0]))
    assert (tmp_path / "fresh" / "key").stat().st_mode & 0o777 == 0o600
    with SimulatedSilo(agreement, 0, module(), (x, y), tmp_path / "seeded", draw=draws(0, "same")) as silo:
        assert torch.equal(silo._host.train[0].features, x.to(trained[0]))
