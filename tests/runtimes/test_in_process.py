"""The order of a round: charges on disk, then observers, then the mean; states only when the round counts."""

from unittest import mock

import pytest
import torch

from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.algorithms.scaffold import Scaffold
from dpfl_plugin.oracle import Draw
from dpfl_plugin.runtimes.in_process import InProcess
from tests.quadratics import Lab, Quadratic, rules, silo

SILOS = [silo([1.0], [2.0]), silo([3.0], [-1.0]), silo([2.0], [0.5])]


class Sink:
    def __init__(self, log):
        self.log = log

    def append(self, charges):
        self.log.append(("charged", [charge.silo for charge in charges]))

    def sync(self):
        self.log.append("synced")


def lab(**options):
    return Lab(Scaffold(local_steps=2, local_lr=0.1), SILOS, rules(1.0, 1.0), [1.0], **options)


def test_charges_are_synced_before_anybody_sees_an_upload():
    made, log = lab(), []
    runtime = InProcess(made.host, Sink(log), stack_size=2, observers=[lambda *seen: log.append("observed")])
    runtime.run_round(made.algorithm.download(made.server), made.plan(), Draw(0, 0))
    assert log == [("charged", [0, 1]), ("charged", [2]), "synced", "observed"]


def test_a_sync_that_fails_keeps_everything_in():
    class Broken(Sink):
        def sync(self):
            raise OSError("disk full")

    made, seen = lab(), []
    runtime = InProcess(made.host, Broken([]), observers=[lambda *what: seen.append(what)])
    with pytest.raises(OSError, match="disk full"):
        runtime.run_round(made.algorithm.download(made.server), made.plan(), Draw(0, 0))
    assert seen == []


def test_states_change_at_commit_and_not_before():
    made = lab()
    made.runtime.run_round(made.algorithm.download(made.server), made.plan(), Draw(0, 0))
    assert torch.equal(made.host.states["control"], torch.zeros(3, 1, dtype=torch.float64))
    made.runtime.commit()
    assert not torch.equal(made.host.states["control"], torch.zeros(3, 1, dtype=torch.float64))


def test_at_silo_level_a_stack_never_mixes_silos():
    """An algorithm that normalises over the whole stack by mistake: each silo still sees itself alone."""

    class Careless(FedAvg):
        def local_update(self, down, silos, oracle, plan):
            y = down["model"].expand(oracle.num_silos, -1)
            update = -oracle.gradient(y)
            return {"model": oracle.release(update / update.norm())}, {}

    ends = []
    for last in (0.5, 50.0):
        silos = [*SILOS[:2], silo([2.0], [last])]
        made = Lab(Careless(local_steps=1, local_lr=0.1), silos, rules(0.0, 1.0, unit="silo"), [1.0], stack=3)
        made.step()
        ends.append(made.uploads[0]["model"][:2])
    assert torch.equal(*ends)


def test_a_model_that_cannot_be_copied_is_evaluated_all_the_same():
    def refuse(self, memo):
        raise RuntimeError("no copies")

    model = torch.tensor([0.5], dtype=torch.float64)
    copied = lab().host.evaluate(model, False)
    with mock.patch.object(Quadratic, "__deepcopy__", refuse, create=True):
        shared = lab().host.evaluate(model, False)
    assert copied == shared and copied[0].train_loss > 0
