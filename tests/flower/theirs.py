"""Runs in Flower's own environment (see test_flower.py): what docs/migration.md says of Flower 1.41 itself."""

import inspect

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import mod
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod, strategy
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping as FixedClipping
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.privacy_accounting import GaussianPrivacyEvent
from flwr.supercore.task_identity import TaskIdentity
from scipy.optimize import brentq
from scipy.stats import norm

from dpfl_plugin.adapters import Server, agree
from tests.adapters.federation import SimulatedSilo, block
from tests.adapters.test_faults import module, records

TaskIdentity._run_id = TaskIdentity._task_id = TaskIdentity._node_id = 1  # as Flower's processes have it
SIZE = 100_000  # draws, of fixed seeds


def arrays(value):
    return ArrayRecord([np.full(SIZE, value)])


def reply(value, weight=1):
    asked = Message(RecordDict({"arrays": arrays(0.0)}), message_type="train", dst_node_id=2)
    asked.metadata.__dict__["_src_node_id"] = 1
    metrics = MetricRecord({"num-examples": weight})
    return Message(RecordDict({"arrays": arrays(value), "metrics": metrics}), reply_to=asked)


class Grid:
    def get_node_ids(self):
        return [2, 3]


def a_round(replies, seed, noise_multiplier=2.0, clipping_norm=0.5, **more):
    """The model after a round from a model of zeros."""
    made = FixedClipping(FedAvg(min_train_nodes=2), noise_multiplier, clipping_norm, len(replies), **more)
    list(made.configure_train(1, arrays(0.0), ConfigRecord({}), Grid()))
    np.random.seed(seed)  # noqa: NPY002
    found, _ = made.aggregate_train(1, replies)
    return found.to_numpy_ndarrays()[0]


def test_the_unit_is_a_client_whatever_its_records():
    """Whole updates are clipped, and noise is z C / m."""
    found = a_round([reply(1.0), reply(1.0)], seed=0)
    assert float(np.std(found)) == pytest.approx(2.0 * 0.5 / 2, rel=5 / np.sqrt(2 * SIZE))
    quiet = a_round([reply(1.0), reply(1.0)], seed=0, noise_multiplier=0.0)
    assert float(np.linalg.norm(quiet)) == pytest.approx(0.5)


def test_there_is_no_privacy_of_records_and_none_that_begins_with_an_epsilon_over_all_rounds():
    """Names and parameters: a version that has them fails here."""
    wrappers = {name for name in strategy.__all__ if "Privacy" in name}
    assert wrappers == {
        f"DifferentialPrivacy{side}Side{kind}Clipping"
        for side in ("Client", "Server")
        for kind in ("Adaptive", "Fixed")
    }
    mods = {"LocalDpMod", "adaptiveclipping_mod", "fixedclipping_mod", "arrays_size_mod", "message_size_mod"}
    assert set(mod.__all__) == mods
    for name in wrappers:
        parameters = set(inspect.signature(getattr(strategy, name)).parameters)
        assert "noise_multiplier" in parameters and not parameters & {"epsilon", "delta", "rounds"}
    assert set(inspect.signature(LocalDpMod).parameters) == {"clipping_norm", "sensitivity", "epsilon", "delta"}


def test_noise_is_of_numpys_global_generator(tmp_path):
    """Whoever knows or sets its seed knows the noise; ours is the operating system's, and does not repeat."""
    first, again = (a_round([reply(1.0), reply(1.0)], seed=7) for _ in range(2))
    assert np.array_equal(first, again)
    agreement, found = agree(block(), num_silos=4, model=module()), []
    message = Server(agreement, module()).begin()
    for folder in ("a", "b"):
        np.random.seed(7)  # noqa: NPY002
        with SimulatedSilo(agreement, 0, module(), records()[0], tmp_path / folder) as silo:
            found.append(silo.answer(message).vectors["model"])
    assert not np.array_equal(found[0], found[1])


def test_without_an_accountant_weights_may_be_unequal_and_the_noise_is_for_equal_ones():
    """With weights 1 and 9 a client moves the mean by 0.9 C, where the noise is for C / 2; with one it is refused."""
    heavy = a_round([reply(1.0, 9), reply(-1.0, 1)], seed=0, noise_multiplier=0.0)
    light = a_round([reply(1e-12, 9), reply(-1.0, 1)], seed=0, noise_multiplier=0.0)
    assert float(np.linalg.norm(heavy - light)) == pytest.approx(0.9 * 0.5)
    with pytest.raises(ValueError, match="requires equal client weights"):
        a_round([reply(1.0, 9), reply(-1.0, 1)], seed=0, accountant=accountant())


def accountant(sampling=SamplingMethod.NO_AMPLIFICATION):
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    return RdpAccountant(PrivacyConfig(1e-5, 2, relation, sampling))


def test_its_accountant_is_renyi_without_amplification_and_looser_than_a_loss_distribution():
    with pytest.raises(ValueError, match="requires sampling_method='no-amplification'"):
        FixedClipping(FedAvg(), 2.0, 0.5, 2, accountant=accountant(SamplingMethod.POISSON))
    theirs = accountant()
    theirs.compose(GaussianPrivacyEvent(noise_multiplier=5.0, sample_size=2, population_size=2), 100)
    # 100 Gaussians of noise 5 are one of noise 0.5.
    tight = epsilon_of(0.5, 1e-5)
    assert (tight, theirs.get_epsilon(1e-5)) == pytest.approx((10.00, 10.73), abs=0.01)  # a valid bound


def delta_of(sigma, epsilon):
    """Of the Gaussian mechanism, exactly: Balle and Wang 2018, Theorem 8, with sensitivity 1."""
    return norm.cdf(0.5 / sigma - epsilon * sigma) - np.exp(epsilon + norm.logcdf(-0.5 / sigma - epsilon * sigma))


def epsilon_of(sigma, delta):
    return brentq(lambda epsilon: delta_of(sigma, epsilon) - delta, 0.0, 100.0)


def sent(made, seed):
    asked = Message(RecordDict({"arrays": arrays(0.0)}), message_type="train", dst_node_id=2)
    asked.metadata.__dict__["_src_node_id"] = 1
    np.random.seed(seed)  # noqa: NPY002
    answer = made(asked, Context(1, 2, {}, RecordDict(), {}), lambda message, context: reply(1e-12))
    return answer.content["arrays"].to_numpy_ndarrays()[0]


def test_the_epsilon_of_local_dp_is_that_of_one_upload():
    """As much noise in the tenth round as in the first, and nothing that counts them."""
    made = LocalDpMod(1.0, 1.0, 0.5, 1e-5)
    before, std = dict(vars(made)), np.sqrt(2 * np.log(1.25e5)) / 0.5
    for seed in range(10):
        assert float(np.std(sent(made, seed))) == pytest.approx(std, rel=6 / np.sqrt(2 * SIZE))
    assert vars(made) == before


def test_its_formula_is_used_beyond_the_epsilons_for_which_it_is_proven():
    """At epsilon 10 and delta 1e-5 the noise that it adds gives a delta of more than 2e-5."""
    std = float(np.std(sent(LocalDpMod(1.0, 1.0, 10.0, 1e-5), 0)))
    assert std == pytest.approx(np.sqrt(2 * np.log(1.25e5)) / 10, rel=6 / np.sqrt(2 * SIZE))
    assert delta_of(np.sqrt(2 * np.log(1.25e5)) / 10, 10.0) > 2e-5
    assert delta_of(np.sqrt(2 * np.log(1.25e5)), 1.0) < 1e-5
