"""dpfl.PrivateOracle: what it hands out was charged before, and what it states is what the ledger holds."""

from __future__ import annotations

import copy
import itertools
import math
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import dpfl_plugin as dpfl
from dpfl_plugin.algorithms.fedavg import FedSGD
from dpfl_plugin.api import private_oracle
from dpfl_plugin.core.streams import Stream
from dpfl_plugin.errors import (
    BudgetError,
    BusyError,
    ChangedError,
    ConfigError,
    DataError,
    LedgerError,
    UnsupportedError,
)
from dpfl_plugin.gradients import losses, outcome_losses
from dpfl_plugin.models.score_heads import Thresholds
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.shared_ledger import plans_in

RNG = torch.Generator().manual_seed(0)
X = torch.randn(50, 3, generator=RNG)
Y = (X[:, 0] > 0).long()
GIVEN = {"noise_multiplier": 2.0, "delta": 1e-5, "record_rate": 0.2}


def net():
    model = nn.Sequential(nn.Linear(3, 2))
    nn.init.zeros_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    return model


def made(path, model=None, data=(X, Y), privacy=GIVEN, **more):
    more = more if path is None or "steps" in more else {**more, "steps": 50}
    return dpfl.PrivateOracle.of(net() if model is None else model, data, privacy=privacy, ledger=path, **more)


def accounted(path):
    """The server's epsilon of all that a ledger holds."""
    return next(row.epsilon for row in dpfl.account(path).rows if row.accountant == "filter")


def test_its_steps_are_registered_and_a_limit_of_the_ledger_is_kept(tmp_path):
    """Two oracles of 5 steps fit the limit that one PLD would have taken up; an 11th step does not.

    What the first of three leaves serves the second.
    """
    path, limited = tmp_path / "silo.jsonl", GIVEN | {"ledger_epsilon": 2.0}
    for steps, releases in ((5, 2), (3, 3), (5, 5)):
        with made(path, privacy=limited if releases == 2 else GIVEN, steps=steps) as oracle:
            for _ in range(releases):
                oracle.backward()
    plans = plans_in(Ledger.open(path, append=False))
    assert [one.count for plan in plans for one in plan.silos[0]] == [5, 5]
    with pytest.raises(BudgetError, match="the ledger's limit is 2:"):
        made(path, steps=1)
    with made(tmp_path / "one.jsonl", privacy=GIVEN | {"ledger_epsilon": 1.25}, steps=5) as oracle:
        for _ in range(5):
            oracle.backward()
        with pytest.raises(BudgetError, match="limit of the shared ledger"):
            oracle.backward()
    with pytest.raises(BudgetError, match="the ledger's limit is 2:"):
        made(path, steps=5)
    with pytest.raises(ConfigError, match=r"steps is missing: in a ledger"):
        made(tmp_path / "other.jsonl", steps=None)
    assert not (tmp_path / "other.jsonl").exists()


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"sampler": "poisson"},
        {"sampler": "full", "record_rate": None},
        {"clip": "adaptive"},
        {"schedule": {"name": "geometric", "beta": 0.9}},
    ],
    ids=str,
)
def test_its_epsilon_is_that_of_the_ledger_through_several_oracles(tmp_path, capsys, more):
    path, said, total = tmp_path / "silo.jsonl", [], []
    for releases in (3, 2):
        with made(path, privacy=GIVEN | more, steps=5) as oracle:
            for _ in range(releases):
                oracle.backward()
        said.append(oracle.epsilon)
        total.append(oracle.ledger_epsilon)
        assert total[-1] == accounted(path) == dpfl.Ledger.open(path).epsilon(1e-5)
    assert said[0] > said[1] > 0 and total[1] > total[0] > said[0]  # what was registered, and not only what was made
    assert sum(charge.count for charge in dpfl.Ledger.open(path).charges) == 5
    assert len({(charge.round, charge.noise_id) for charge in dpfl.Ledger.open(path).charges}) == 5
    assert f"dpfl account {path.name}" in oracle.statement
    assert "that the server made" not in oracle.statement and "which is the training loop here" in oracle.statement


def test_it_refuses_at_the_budget(tmp_path):
    path, privacy = tmp_path / "silo.jsonl", {**GIVEN, "epsilon": 1.0}
    del privacy["noise_multiplier"]
    with made(path, privacy=privacy, steps=4) as oracle:
        for _ in range(4):  # what the noise was solved for
            oracle.backward()
        before = [parameter.grad.clone() for parameter in oracle.net.parameters()]
        with pytest.raises(BudgetError, match="used up after 4 releases: one more would pass epsilon 1 at"):
            oracle.backward()
        charged = len(dpfl.Ledger.open(path).charges)
        assert charged == oracle.num_releases
        assert 0.9 < oracle.epsilon <= 1.0
        assert all(map(torch.equal, before, [parameter.grad for parameter in oracle.net.parameters()]))
    spent = {**privacy, "noise_multiplier": oracle.noise_multiplier}
    with pytest.raises(ConfigError, match=r"does not cover one release"):
        made(path, privacy={**spent, "epsilon": 0.01})
    assert len(dpfl.Ledger.open(path).charges) == charged


SECOND = """
import os, signal, sys
import torch
import dpfl_plugin as dpfl
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.shared_ledger import plans_in

def made(path):
    data = torch.randn(20, 3), torch.zeros(20, dtype=torch.int64)
    privacy = {"noise_multiplier": 2.0, "delta": 1e-5, "record_rate": 0.2}
    return dpfl.PrivateOracle.of(torch.nn.Linear(3, 2), data, privacy=privacy, ledger=path, steps=5)

try:
    made(sys.argv[1])
except dpfl_plugin.errors.BusyError as error:
    print(error, flush=True)
oracle, sync = made(sys.argv[2]), Ledger.sync

def killed(ledger):
    sync(ledger)
    if ledger.path is not None:
        os.kill(os.getpid(), signal.SIGKILL)

Ledger.sync = killed
oracle.backward()
print("handed out")
"""


def test_a_second_process_is_refused_and_one_killed_before_it_hands_out_was_charged(tmp_path):
    held, killed = tmp_path / "held.jsonl", tmp_path / "killed.jsonl"
    with made(held):
        code = SECOND.replace("import dpfl_plugin as dpfl", "import dpfl_plugin.errors\nimport dpfl_plugin as dpfl")
        done = subprocess.run([sys.executable, "-c", code, held, killed], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "another run (pid " in done.stdout
    assert "handed out" not in done.stdout
    assert sum(charge.count for charge in dpfl.Ledger.open(killed).charges) == 1
    with made(killed) as oracle:  # its lock went with it
        assert oracle.ledger_epsilon > 0


def test_what_cannot_be_charged_is_not_handed_out(tmp_path, monkeypatch):
    with made(tmp_path / "silo.jsonl") as oracle:
        shared = oracle._opened.account.shared
        with monkeypatch.context() as patch:
            patch.setattr(shared, "sync", lambda: (_ for _ in ()).throw(LedgerError("the disk is full")))
            with pytest.raises(LedgerError, match="the disk is full"):
                oracle.backward()
        assert all(parameter.grad is None for parameter in oracle.net.parameters())
        oracle.backward()
        assert oracle.num_releases == 2  # the one that was lost may be in the ledger, and counts


def test_a_release_is_the_in_process_runs_to_the_bit(tmp_path, monkeypatch):
    draw = Draw(7, 0, "same")
    monkeypatch.setattr(Draw, "fresh", lambda step, name: draw)
    monkeypatch.setattr("dpfl_plugin.oracle.FreshStream", lambda sums: Stream())
    with made(tmp_path / "silo.jsonl") as oracle:
        found, host = oracle.gradient(), oracle._opened.parts.host
        assert isinstance(oracle._opened.parts.algorithm, FedSGD)
        up, charges = host.run([0], {"model": oracle._opened.parts.model}, private_oracle.PLAN, draw)
        charged = list(oracle._opened.account.ledger)
    assert torch.equal(-up["model"][0], torch.cat([part.reshape(-1) for part in found.values()]))
    assert charged == charges
    grid = torch.cat([part.reshape(-1) for part in found.values()]).double() * 10  # the mean of 10 records
    assert grid.abs().max() > 0


def test_noise_never_repeats(tmp_path):
    values = []
    for _ in range(2):
        with made(tmp_path / "silo.jsonl") as oracle:
            values += [torch.cat([g.reshape(-1) for g in oracle.gradient().values()]) for _ in range(2)]
    assert len({tuple(value.tolist()) for value in values}) == 4


def _batch_norm():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"model": _batch_norm()}, UnsupportedError, "batch statistics mix records.*GroupNorm"),
        ({"model": "softmax"}, ConfigError, "net is a str: give an nn.Module"),
        ({"model": nn.Linear(3, 2).half()}, UnsupportedError, r"call \.float\(\)"),
        ({"model": nn.Linear(5, 2)}, ConfigError, r"fails on features of shape \(3, 3\)"),
        ({"data": (X, Y + 1)}, DataError, "labels are from 1 to 2, and the model has outputs for the classes 0..1"),
        ({"data": (X, Y.float())}, UnsupportedError, "labels are torch.float32"),
        ({"data": (X, Y[:9])}, DataError, "50 rows of features, but 9 labels"),
        ({"data": (X * float("nan"), Y)}, DataError, "not finite"),
        ({"data": (X[:0], Y[:0])}, DataError, "no training records"),
        ({"privacy": {**GIVEN, "randomness": "seeded"}}, ConfigError, "seeded needs a seed"),
        ({"seed": 1}, ConfigError, "noise that follows from a seed protects nothing. Leave ledger out"),
        (
            {"privacy": {**GIVEN, "noise_multiplier": 0}},
            ConfigError,
            "no noise covers .* Leave ledger out",
        ),
        ({"outcome": "regression"}, ConfigError, "outcome: .*range"),
        ({"outcome": {"kind": "survival", "range": (0, 9)}}, DataError, r"must have shape \(50, 2\)"),
        (
            {"outcome": "ordinal", "model": nn.Sequential(nn.Linear(3, 1), Thresholds(3)), "data": (X, Y + 2)},
            DataError,
            "labels are from 2 to 3, .* the classes 0..2",
        ),
        ({"privacy": {**GIVEN, "clip": "median"}}, UnsupportedError, "no epsilon holds"),
        ({"privacy": {**GIVEN, "epsilom": 1}}, ConfigError, "epsilom"),
        ({"privacy": {"epsilon": -1}}, ConfigError, "epsilon"),
        ({"privacy": {"epsilon": 1}, "steps": None}, ConfigError, "steps is missing"),
        ({"privacy": {"delta": 1e-5}, "steps": 3}, ConfigError, "epsilon is missing"),
        ({"privacy": 4}, ConfigError, "give dpfl.Privacy"),
        ({"steps": 0}, ConfigError, "steps=0 must be"),
        ({"loss": "croos_entropy"}, ConfigError, "croos_entropy"),
        ({"path": ""}, ConfigError, "ledger='' must be the path of a file, .* or None"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_said_and_begins_no_ledger(tmp_path, given, error, said):
    path = tmp_path / "silo.jsonl"
    with pytest.raises(error, match=said):
        made(**{"path": path, **given})
    assert not path.exists()
    with made(path):  # nothing holds the lock
        pass


def test_where_the_owner_set_limits_it_does_not_begin(tmp_path, monkeypatch):
    """They are of the data's lifetime, and its ledger is not theirs."""
    limits = tmp_path / "limits.yaml"
    limits.write_text(f"folder: {tmp_path / 'silo'}\nepsilon: 100\ndelta: 1e-4\n")
    limits.chmod(0o600)
    monkeypatch.setenv("DPFL_LIMITS", str(limits))
    with pytest.raises(UnsupportedError, match=r"limits\.yaml: the owner of the data set limits.*dpfl.train"):
        made(tmp_path / "silo.jsonl")
    assert not (tmp_path / "silo.jsonl").exists()
    monkeypatch.delenv("DPFL_LIMITS")
    with made(tmp_path / "silo.jsonl") as oracle:
        oracle.gradient()
        monkeypatch.setenv("DPFL_LIMITS", str(limits))
        with pytest.raises(UnsupportedError, match="the owner of the data set limits"):
            oracle.gradient()
        assert oracle.num_releases == 1


def test_it_computes_for_the_net_and_the_process_that_it_was_given_only(tmp_path):
    path, model = tmp_path / "silo.jsonl", nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].weight.requires_grad_(False)
    with made(path, model) as oracle:
        with pytest.raises(BusyError, match=r"an oracle of this process uses it, after 0 releases. Call its close\(\)"):
            made(path)
        with pytest.raises(TypeError, match="cannot be copied"):
            copy.copy(oracle)
        oracle.backward()
        assert [name for name, p in model.named_parameters() if p.grad is None] == ["0.weight"]
        model[0].weight.add_(1)
        with pytest.raises(ChangedError, match=r"the frozen parameter 0\.weight changed"):
            oracle.backward()
        model[1].bias.requires_grad_(False)
        with pytest.raises(ConfigError, match="added, removed, frozen or unfrozen, or moved"):
            oracle.backward()
    with pytest.raises(ConfigError, match="this oracle is closed"):
        oracle.backward()
    assert len(dpfl.Ledger.open(path).charges) == 1


EXACT = {"noise_multiplier": 0, "delta": 1e-5, "clip_norm": math.inf, "sampler": "full"}  # the plain mean gradient
SLOPE = 1.0


class Own(nn.Module):
    """Layers with attributes, a class attribute, a global name and a layer without parameters between them."""

    scale = 1.0

    def __init__(self):
        super().__init__()
        self.first, self.activation, self.last = nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)
        self.temperature = 1.0

    def forward(self, x):
        return self.last(self.activation(self.first(x)) * SLOPE) * self.scale / self.temperature


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = chain()

    def forward(self, x):
        return self.layers(x)


class Tempered(nn.Linear):
    temperature = 1.0

    def forward(self, x):
        return super().forward(x) / self.temperature


def chain():
    return nn.Sequential(nn.Linear(3, 4), nn.ELU(), nn.Linear(4, 2))


def deform(module, inputs, output):
    return 2 * output + 1


class Reversed(nn.Sequential):
    def forward(self, x):
        return -super().forward(x)


CHANGES = {
    "an attribute": (Own, lambda net, patch: setattr(net, "temperature", 3.0)),
    "an attribute of a class": (Own, lambda net, patch: patch.setattr(Own, "scale", 3.0)),
    "a global name": (Own, lambda net, patch: patch.setitem(globals(), "SLOPE", 3.0)),
    "a method of a class": (
        Own,
        lambda net, patch: patch.setattr(Own, "forward", lambda net, x: net.last(net.first(x))),
    ),
    "a method of an object": (Own, lambda net, patch: setattr(net, "forward", lambda x: 2 * Own.forward(net, x))),
    "an activation": (Own, lambda net, patch: setattr(net, "activation", nn.Tanh())),
    "a hook of a layer": (Own, lambda net, patch: net.first.register_forward_hook(deform)),
    "a hook": (Own, lambda net, patch: net.register_forward_hook(lambda *given: deform(*given))),
    "an activation of a chain": (chain, lambda net, patch: net.__setitem__(1, nn.Tanh())),
    "its option": (chain, lambda net, patch: setattr(net[1], "alpha", 0.5)),
    "a layer more": (chain, lambda net, patch: net.append(nn.Softmax(dim=1))),
    "the class": (chain, lambda net, patch: setattr(net, "__class__", Reversed)),
    "a hook of a chain": (chain, lambda net, patch: net[0].register_forward_hook(lambda *given: deform(*given))),
    "what is wrapped": (Wrapped, lambda net, patch: net.layers.append(nn.Tanh())),
    "the wrapper": (Wrapped, lambda net, patch: patch.setattr(Wrapped, "forward", lambda net, x: 2 * net.layers(x))),
    "a layer of a class of its own": (lambda: Tempered(3, 2), lambda net, patch: setattr(net, "temperature", 3.0)),
    "its class": (lambda: Tempered(3, 2), lambda net, patch: patch.setattr(Tempered, "temperature", 3.0)),
}


ENGINES = [("auto", change) for change in CHANGES]
ENGINES += itertools.product(["vmap", "bookkeeping", "opacus"], ["an attribute", "a global name", "an activation"])


def autograd(model, loss, x=X, y=Y):
    value = loss(model(x), y).mean()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return dict(zip(trained, torch.autograd.grad(value, list(trained.values())), strict=True))


def assert_exact(oracle, loss=functional.cross_entropy, x=X, y=Y):
    found, expected = oracle.gradient(), autograd(oracle.net, loss, x, y)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("engine", "change"), ENGINES, ids=lambda name: name.replace(" ", "-"))
def test_a_step_is_of_the_net_as_it_is_then(engine, change, monkeypatch):
    make, apply = CHANGES[change]
    torch.manual_seed(0)
    with made(None, make(), privacy=EXACT, engine=engine) as oracle:
        assert_exact(oracle)
        before = oracle.gradient()
        apply(oracle.net, monkeypatch)
        assert_exact(oracle)
        after = oracle.gradient()
        assert any(not torch.allclose(before[name], after[name], rtol=1e-2) for name in before)


def test_a_net_that_cannot_be_compared_with_a_copy_is_refused_by_an_engine_that_calls_one():
    with made(None, Own(), privacy=EXACT, engine="opacus") as oracle:
        oracle.net.register_forward_hook(lambda *given: deform(*given))
        with pytest.raises(UnsupportedError, match="does not call the model itself"):
            oracle.gradient()


def test_a_net_that_begins_to_mix_records_is_refused_and_keeps_its_modes(tmp_path):
    path, model = tmp_path / "silo.jsonl", nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.0), nn.Linear(4, 2))
    model[1].eval()
    modes = [layer.training for layer in model.modules()]
    with made(path, model) as oracle:
        oracle.backward()
        model.append(nn.BatchNorm1d(2, affine=False))
        with pytest.raises(UnsupportedError, match="batch statistics mix records"):
            oracle.backward()
        assert oracle.num_releases == 1
        del model[3]
        oracle.backward()
    assert [layer.training for layer in model.modules()] == modes
    assert sum(charge.count for charge in dpfl.Ledger.open(path).charges) == 2


TIMES = torch.rand(50, 2, generator=RNG) * torch.tensor([9.0, 1.0])
TIMES[:, 1] = TIMES[:, 1].round()
NUMBERS, COUNTS = X[:, 1] * 3, X[:, 1].abs().round()
FLAGS = (X > 0).float()
HAZARDS = outcome_losses.Hazards((3.0, 9.0))


class Levels(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 1, bias=False), Thresholds(3))


@pytest.mark.parametrize(
    ("outputs", "labels", "given", "loss"),
    [
        (1, Y, {}, losses.logistic),
        (1, Y.bool(), {"loss": "hinge"}, losses.hinge),
        (1, NUMBERS, {"outcome": {"kind": "regression", "range": (-9, 9)}}, outcome_losses.Squared(0.0, 9.0)),
        (
            1,
            NUMBERS,
            {"outcome": {"kind": "regression", "range": (-9, 9), "huber_delta": 1.8}, "loss": "huber"},
            outcome_losses.Huber(0.0, 9.0, 0.2),
        ),
        (
            1,
            NUMBERS,
            {
                "outcome": {"kind": "regression", "range": (-9, 9)},
                "loss": lambda outputs, labels: (outputs[:, 0] - labels).abs(),
            },
            lambda outputs, labels: (outputs[:, 0] - labels).abs(),
        ),
        (
            1,
            COUNTS,
            {"outcome": {"kind": "counts", "range": (0, 9)}},
            lambda outputs, labels: outputs[:, 0].exp() - labels * outputs[:, 0],
        ),
        (3, FLAGS, {"outcome": {"kind": "multi_label", "labels": ["a", "b", "c"]}}, outcome_losses.MultiLabel()),
        (2, TIMES, {"outcome": {"kind": "survival", "range": (0, 9), "bins": [3, 9]}}, HAZARDS),
        (0, Y, {"outcome": "ordinal"}, outcome_losses.Cumulative(3)),
    ],
    ids=["binary", "hinge", "regression", "huber", "callable", "counts", "multi_label", "survival", "ordinal"],
)
def test_losses_and_targets_are_those_of_a_run(outputs, labels, given, loss):
    torch.manual_seed(0)
    model = Levels() if outputs == 0 else nn.Linear(3, outputs)
    for data in ((X, labels), TensorDataset(X, labels)):
        with made(None, model, data, EXACT, **given) as oracle:
            assert_exact(oracle, loss, X, labels.float() if labels.dtype is torch.bool else labels)


def test_without_noise_it_says_that_nothing_is_guaranteed():
    with made(None, privacy={**EXACT, "clip_norm": 1.0}) as oracle:
        oracle.gradient()
        assert oracle.epsilon == math.inf
        assert "without noise nothing is guaranteed" in repr(oracle)
        assert "**Nothing is protected**: no noise was added." in oracle.statement


def test_seeded_releases_repeat_and_its_statement_says_that_they_protect_nobody(tmp_path, monkeypatch):
    def releases(seed, **more):
        with made(None, privacy=GIVEN | more, seed=seed) as oracle:
            found = torch.stack([torch.cat([g.reshape(-1) for g in oracle.gradient().values()]) for _ in range(2)])
            return found, oracle.statement

    (first, said), (again, _), (other, _) = releases(1), releases(1), releases(2)
    assert torch.equal(first, again)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, other)
    assert "Reproducible simulation. With fresh randomness these settings would cost epsilon = " in said
    fresh, said = releases(1, randomness="fresh")
    assert not torch.equal(fresh, first)
    assert "simulation" not in said
    limits = tmp_path / "limits.yaml"
    limits.write_text(f"folder: {tmp_path / 'silo'}\nepsilon: 100\ndelta: 1e-4\n")
    limits.chmod(0o600)
    monkeypatch.setenv("DPFL_LIMITS", str(limits))
    with pytest.raises(UnsupportedError, match="the owner of the data set limits"):
        releases(1)


def test_charges_in_memory_count_and_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    privacy = {**GIVEN, "epsilon": 1.0}
    with made(None, privacy=privacy) as oracle, made("silo.jsonl", privacy=privacy) as filed:
        while True:
            try:
                oracle.backward()
            except BudgetError as error:
                assert "in memory: the budget is used up after" in str(error)  # noqa: PT017
                break
            filed.backward()
            assert oracle.epsilon == filed.epsilon
        with pytest.raises(BudgetError):
            filed.backward()
        assert "The charges were kept in memory" in oracle.statement
        assert oracle.path is None
        with made(None):  # nothing to lock
            pass
    assert {path.name for path in tmp_path.iterdir()} <= {"silo.jsonl", "silo.jsonl.key", "silo.jsonl.lock"}
