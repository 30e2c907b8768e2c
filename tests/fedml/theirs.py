"""Runs in FedML's own environment (see test_fedml.py): what docs/migration.md says of FedML 0.9.6 itself."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fedml.core import ClientTrainer, ServerAggregator
from fedml.core.dp.fedml_differential_privacy import FedMLDifferentialPrivacy
from fedml.ml.aggregator.agg_operator import FedMLAggOperator
from fedml.simulation.sp.fedavg import FedAvgAPI
from fedml.simulation.sp.scaffold.scaffold_trainer import ScaffoldTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.fedml.inside import a_round, federation

NUM_SILOS = 3


def arguments(**more):
    values = {
        "comm_round": 2,
        "training_type": "simulation",
        "backend": "sp",
        "federated_optimizer": "FedAvg",
        "dataset": "own",
        "model": "lr",
        "client_num_in_total": NUM_SILOS,
        "client_num_per_round": NUM_SILOS,
        "frequency_of_the_test": 10,
        "epochs": 1,
        "batch_size": 8,
        "client_optimizer": "sgd",
        "learning_rate": 0.1,
        "weight_decay": 0.0,
        "enable_wandb": False,
        "initialize_all_clients": True,
        "server_lr": 1.0,
    }
    return SimpleNamespace(**{**values, **more})


def dp(kind, **more):
    """Settings of FedML's for `enable_dp`."""
    return arguments(
        enable_dp=True,
        dp_solution_type=kind,
        mechanism_type="gaussian",
        epsilon=0.5,
        delta=1e-5,
        sensitivity=0.1,
        **more,
    )


REPORTS = (
    "log_training_status",
    "log_aggregation_status",
    "log_round_info",
    "event",
    "log",
    "log_training_finished_status",
    "log_aggregation_finished_status",
)


@pytest.fixture(autouse=True)
def none_is_left(monkeypatch):
    """Nothing is told to FedML's cloud, and its differential privacy is begun anew."""
    for name in REPORTS:
        monkeypatch.setattr(f"fedml.mlops.{name}", lambda *args, **more: None)
    FedMLDifferentialPrivacy._dp_instance = None
    yield
    FedMLDifferentialPrivacy._dp_instance = None


def dataset():
    rng = torch.Generator().manual_seed(0)
    sizes = {i: 16 + 8 * i for i in range(NUM_SILOS)}
    loaders = {
        i: DataLoader(TensorDataset(torch.randn(n, 4, generator=rng) + i, torch.arange(n) % 3), batch_size=8)
        for i, n in sizes.items()
    }
    total = sum(sizes.values())
    return [total, total, loaders[0], loaders[0], sizes, loaders, loaders, 3]


def model():
    torch.manual_seed(1)
    return nn.Linear(4, 3)


def flat(parameters):
    return torch.cat([value.flatten() for value in parameters.values()])


# SCAFFOLD


def test_what_becomes_of_a_silos_control_variate_in_fedmls_scaffold_and_in_ours(tmp_path):
    """After two rounds FedML's silos have c_i = 0, as at the beginning; ours have c = mean c_i, not 0."""
    theirs = ScaffoldTrainer(dataset(), model(), torch.device("cpu"), arguments(federated_optimizer="SCAFFOLD"))
    theirs.train()
    assert float(flat(theirs.c_model_global.state_dict()).norm()) > 0.01  # the server has learnt something
    for client in theirs.client_list:
        assert float(flat(client.c_model_local.state_dict()).norm()) == 0

    from safetensors.torch import load_file

    server, trainers, loaders = federation(tmp_path)
    following = server.collect(a_round(server, trainers, loaders, server.get_model_params()))
    a_round(server, trainers, loaders, following)  # the silo learns that its upload counted
    kept = [load_file(tmp_path / f"silo-{i}" / "state.safetensors")["states/control"][0] for i in range(3)]
    assert all(float(one.norm()) > 0 for one in kept)
    torch.testing.assert_close(following["control"], torch.stack(kept).mean(0), rtol=0, atol=1e-14)


def test_fedmls_scaffold_takes_the_step_of_the_last_silo_alone():
    updates = [(10, {"w": torch.full((2,), float(i))}, {"w": torch.full((2,), 10.0 * i)}) for i in (1, 2, 6)]
    step, control = FedMLAggOperator.agg(arguments(federated_optimizer="SCAFFOLD"), copy.deepcopy(updates))
    assert step["w"].tolist() == [6.0, 6.0]  # the mean is 3
    assert control["w"].tolist() == [20.0, 20.0]  # 1/M of the last one's 60; the mean is 30


# enable_dp


def trained(args):
    torch.manual_seed(0)
    api = FedAvgAPI(args, torch.device("cpu"), dataset(), model())
    api.train()
    return flat(api.model_trainer.get_model_params())


@pytest.mark.parametrize("kind", ["ldp", "cdp"])
def test_enable_dp_changes_nothing_in_a_simulation(kind):
    """FedAvg in `sp`, to the bit: the hooks that add noise are called in cross-silo only."""
    without = trained(arguments())
    with_dp = trained(dp(kind, max_grad_norm=0.001))
    assert FedMLDifferentialPrivacy.get_instance().is_dp_enabled()
    assert torch.equal(with_dp, without)


class Trainer(ClientTrainer):
    def get_model_params(self):
        return self.model.state_dict()

    def set_model_params(self, model_parameters):
        self.model.load_state_dict(model_parameters)

    def train(self, train_data, device, args): ...


class Aggregator(ServerAggregator):
    get_model_params, set_model_params = Trainer.get_model_params, Trainer.set_model_params

    def test(self, test_data, device, args): ...


def constant(value, size=100_000):
    made = nn.Linear(size, 1, bias=False)
    nn.init.constant_(made.weight, value)
    return made


def test_local_noise_is_added_to_whole_weights_that_are_not_clipped():
    """The noise of `ldp` has the scale of the settings' sensitivity; weights are of any size."""
    scale, means = 0.1 * np.sqrt(2 * np.log(1.25e5)) / 0.5, []
    for size in (1.0, 1000.0):
        torch.manual_seed(0)
        trainer = Trainer(constant(size), dp("ldp", max_grad_norm=0.5))
        trainer.on_after_local_training(None, None, None)
        sent = trainer.get_model_params()["weight"].double()
        means.append(float(sent.mean()))
        assert float(sent.std()) == pytest.approx(scale, rel=0.02)  # of 100,000 draws: 9 standard errors
    assert means == pytest.approx([1.0, 1000.0], abs=0.05)


def test_central_clipping_is_of_whole_weights_not_of_updates():
    """`cdp` with max_grad_norm: models are scaled to that norm, so that what training starts from is, too."""
    aggregator = Aggregator(constant(0.0), dp("cdp", max_grad_norm=1.0))
    sent = constant(1.0).state_dict()
    started_from = constant(1.0).state_dict()  # the update is zero
    ((_, clipped),), _ = aggregator.on_before_aggregation([(1, sent)])
    assert float(clipped["weight"].norm()) == pytest.approx(1.0, rel=1e-3)
    assert float((clipped["weight"] - started_from["weight"]).norm()) > 300
    FedMLDifferentialPrivacy._dp_instance = None
    free = Aggregator(constant(0.0), dp("cdp"))  # without max_grad_norm
    ((_, kept),), _ = free.on_before_aggregation([(1, constant(1.0).state_dict())])
    assert torch.equal(kept["weight"], started_from["weight"])


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("dp_clip", {"clipping_norm": 0.1, "noise_multiplier": 1.0, "train_data_num_in_total": 72}),
        ("nbafl", {"C": 0.1}),
    ],
)
def test_dp_clip_and_nbafl_are_never_applied(kind, more):
    """Each hook of a round in cross-silo leaves what it is given, to the bit."""
    args = dp(kind, comm_round=10, **more)
    trainer = Trainer(constant(1.0, 10), args)
    trainer.on_before_local_training(None, None, None)
    trainer.on_after_local_training(None, None, None)
    assert torch.equal(trainer.get_model_params()["weight"], constant(1.0, 10).weight)
    aggregator = Aggregator(constant(0.0, 10), args)
    uploads, _ = aggregator.on_before_aggregation([(1, constant(1.0, 10).state_dict()) for _ in range(2)])
    mean = aggregator.on_after_aggregation(aggregator.aggregate(uploads))
    assert torch.equal(mean["weight"], constant(1.0, 10).weight)


def test_epsilon_is_that_of_one_release_and_at_most_1():
    scales = []
    for rounds in (1, 1000):
        FedMLDifferentialPrivacy._dp_instance = None
        Trainer(constant(1.0, 2), dp("ldp", comm_round=rounds))
        scales.append(FedMLDifferentialPrivacy.get_instance().dp_solution.ldp.get_rdp_scale())
    assert scales[0] == scales[1]
    args = dp("ldp")
    args.epsilon = 2.0
    FedMLDifferentialPrivacy._dp_instance = None
    with pytest.raises(ValueError, match="Epsilon cannot be greater than 1"):
        Trainer(constant(1.0, 2), args)


def test_the_accountant_cannot_be_switched_on():
    more = {"enable_rdp_accountant": True, "rdp_alpha": 2, "max_grad_norm": 1.0, "sigma": 1.0, "clipping": 1.0}
    with pytest.raises(TypeError, match="dp_param"):
        Trainer(constant(1.0, 2), dp("cdp", **more))


def test_silos_that_start_alike_draw_the_same_noise():
    """fedml.init seeds torch with random_seed, 0 unless one says otherwise, in every process; the noise is torch's."""
    noise = []
    for weights in (1.0, 5.0):  # two silos, each a process of its own, after fedml.init
        torch.manual_seed(getattr(arguments(), "random_seed", 0))
        trainer = Trainer(constant(weights, 8).double(), dp("ldp"))
        trainer.on_after_local_training(None, None, None)
        noise.append(trainer.get_model_params()["weight"] - weights)
    torch.testing.assert_close(noise[0], noise[1], rtol=0, atol=1e-12)


def test_who_takes_part_is_known_to_everybody():
    for round in range(5):
        drawn = FedAvgAPI._client_sampling(None, round, 10, 3)
        assert sorted(drawn) == sorted(np.random.RandomState(round).choice(range(10), 3, replace=False))
