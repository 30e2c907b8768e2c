"""`average`: a mean of the global models is returned, and nothing else of a run changes."""

import pytest
import torch

from dpfl_plugin import registry
from dpfl_plugin.algorithms.averages import Averages
from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.algorithms.fedavg_sync import FedAvgSync
from dpfl_plugin.algorithms.fedprox import FedProx
from dpfl_plugin.algorithms.localized import LocalizedMBSGD
from dpfl_plugin.algorithms.mb_sgd import MBSGD
from dpfl_plugin.algorithms.scaffnew import ScaffNew
from dpfl_plugin.algorithms.scaffold import Scaffold, ScaffoldWarm
from dpfl_plugin.errors import ConfigError
from tests.quadratics import Lab, rules, silo

TWO = [silo([1.0], [2.0]), silo([3.0], [-1.0])]
STEPS = {"local_steps": 3, "local_lr": 0.1}
WARM_ROUNDS = 1
KINDS = {
    "fedavg": (FedAvg, STEPS),
    "momentum": (FedAvg, {**STEPS, "server_optimizer": "momentum"}),
    "fedprox": (FedProx, {**STEPS, "mu": 0.5}),
    "scaffold": (Scaffold, STEPS),
    "scaffold, adam": (Scaffold, {**STEPS, "server_optimizer": "adam", "server_lr": 0.1}),
    "warm": (ScaffoldWarm, {**STEPS, "warm_rounds": WARM_ROUNDS}),
    "scaffnew": (ScaffNew, STEPS),
    "fedavg_sync": (FedAvgSync, {**STEPS, "gradient_clip": 10.0}),
    "mb_sgd": (MBSGD, {"lr": 0.1}),
    "mb_sgd, adam": (MBSGD, {"lr": 0.1, "server_optimizer": "adam"}),
}
ROUNDS, TAIL = 7, 3  # a tail of .5 of the rounds has floor(3.5) of them
AVERAGES = ("uniform", "linear", "tail", "ema")


def weights(average, done, warm):
    """Of the models after rounds 1, ..., done, of which the first ``warm`` had none; each by its definition."""
    of_rounds = range(1, done - warm + 1)
    match average:
        case "uniform":
            return [1.0 for _ in of_rounds]
        case "linear":
            return [float(r) for r in of_rounds]
        case "ema":
            return [0.9 ** (len(of_rounds) - r) for r in of_rounds]
    tail = [float(r + warm > ROUNDS - TAIL) for r in of_rounds]
    return tail if any(tail) else [float(r == len(of_rounds)) for r in of_rounds]


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_of_the_models_that_the_same_noisy_run_goes_through(kind, average):
    make, options = KINDS[kind]
    warm = WARM_ROUNDS if kind == "warm" else 0
    known = {"rounds": ROUNDS}
    plain = Lab(make(**options), TWO, rules(1.0, 0.5), [3.0], known=known)
    averaged = Lab(make(**options, average=average), TWO, rules(1.0, 0.5), [3.0], known=known)
    models = []
    for done in range(1, ROUNDS + 1):
        plain.step()
        averaged.step()
        for name, upload in plain.uploads[-1].items():  # the same is released
            assert torch.equal(averaged.uploads[-1][name], upload)
        if done <= warm:  # the model stays, and does not count
            assert torch.equal(averaged.server["model"], plain.server["model"])
            continue
        models.append(plain.server["model"].clone())
        of_each = weights(average, done, warm)
        mean = sum(weight * model for weight, model in zip(of_each, models, strict=True)) / sum(of_each)
        torch.testing.assert_close(averaged.server["model"], mean)
    assert not torch.equal(averaged.server["model"], plain.server["model"])
    assert list(averaged.ledger) == list(plain.ledger)  # and it is free


def test_a_phase_has_a_tail_of_its_own():
    """Localized MB-SGD: each of two phases ends at the mean of the last half of its own rounds."""
    given = {"lr": 0.1, "phases": 2, "phase_rounds": (4, 4), "regularisation": 0.1, "diameter": 100.0, "lipschitz": 1.0}
    known = {"rounds": 8, "num_records": 4, "batch_size": 1}
    records = [silo([1.0], [2.0], 4), silo([3.0], [-1.0], 4)]
    lab = Lab(LocalizedMBSGD(**given, average="tail"), records, rules(1.0, 0.5), [3.0], known=known)
    iterates = []
    for _ in range(3):
        lab.step()
        iterates.append(lab.server["w"].clone())
    torch.testing.assert_close(lab.server["model"], iterates[-1])
    lab.step()  # the fourth: the phase ends, and the next begins at the mean of the third and the fourth
    model = lab.server["model"]
    assert torch.equal(lab.server["w"], model)
    fourth = 2 * model - iterates[-1]
    plain = Lab(LocalizedMBSGD(**given), records, rules(1.0, 0.5), [3.0], known=known)
    for _ in range(4):
        plain.step()
    torch.testing.assert_close(fourth, plain.server["model"])


@pytest.mark.parametrize("rounds", [1, 2, 9, 10])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 1.0])
def test_the_parts_of_a_tail_are_those_of_a_mean_over_its_rounds(share, rounds):
    """floor(share R) of the last rounds, at least one, with equal weights, all others with none."""
    averages = Averages(kind="tail", tail_share=share)
    of_each = [0.0] * rounds
    for r in range(1, rounds + 1):
        part = averages.part(r, rounds)
        of_each = [(1 - part) * weight for weight in of_each]
        of_each[r - 1] = part
    count = max(1, int(share * rounds + 1e-9))
    assert of_each == pytest.approx([0.0] * (rounds - count) + [1 / count] * count)


def test_what_there_is_not_is_refused():
    with pytest.raises(ConfigError, match="average='first' must be one of last, uniform, linear, tail, ema"):
        FedAvg(**STEPS, average="first")
    with pytest.raises(ConfigError, match=r"tail_share=0 must be in \(0, 1\]"):
        ScaffNew(**STEPS, average="tail", tail_share=0)
    with pytest.raises(ConfigError, match=r"ema_decay=1 must be in \(0, 1\)"):
        MBSGD(lr=0.1, average="ema", ema_decay=1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tail_of_nobody_knows_how_many_rounds_is_refused(kind):
    make, options = KINDS[kind]
    with pytest.raises(ConfigError, match=r"average.*give rounds|rounds is missing"):
        Lab(make(**options, average="tail"), TWO, rules(1.0, 0.5), [3.0])


def test_a_run_that_ended_before_its_tail_says_so():
    lab = Lab(FedAvg(**STEPS, average="tail"), TWO, rules(1.0, 0.5), [3.0], known={"rounds": 8})
    for _ in range(4):
        lab.step()
    assert "ended after round 4, before its tail (round 5 on)" in " ".join(lab.algorithm.notes(lab.server))
    lab.step()
    assert not lab.algorithm.notes(lab.server)


@pytest.mark.parametrize(
    ("name", "option", "why"),
    [
        ("mr_mtl", "average", "own models"),
        ("local", "server_optimizer", "own models"),
        ("scaffnew", "server_optimizer", "must be the mean of the silos' models"),
        ("fedavg_sync", "server_optimizer", "sum of the eta_t"),
        ("accelerated_mb_sgd", "server_optimizer", "another has no rate"),
        ("accelerated_mb_sgd", "average", "an average already"),
        ("noisy_subgradient", "server_optimizer", "use mb_sgd"),
    ],
)
def test_an_algorithm_says_why_it_has_no_such_option(name, option, why):
    with pytest.raises(ConfigError, match=rf"algorithm\.{option}: .*{why}"):
        registry.build(registry.load("algorithms", name), {option: "adam"}, where="algorithm")
