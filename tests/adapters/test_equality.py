"""A plain loop over the seam gives what a run in one process gives: the same bits, and the same charges."""

import pytest
import torch

from tests.adapters.federation import NOISY, SCAFFOLD, block, in_process, loop, records_of
from tests.adapters.reference import EXACT, scaffold

UNEQUAL = {"dataset": "digits", "partition": {"name": "quantity_skew", "alpha": 1.0}, "num_silos": 3}
CASES = {
    "scaffold": {},
    "option I": {"algorithm": {**SCAFFOLD, "option": "I"}},
    "partial": {"silo_rate": 0.5, "rounds": 6},
    "scaffold_warm": {"algorithm": {**SCAFFOLD, "name": "scaffold_warm"}, "silo_rate": 0.5, "rounds": 10},
    "fedavg": {"algorithm": {**SCAFFOLD, "name": "fedavg", "server_optimizer": "fedexp", "average": "tail"}},
    "scaffnew": {"algorithm": {"name": "scaffnew", "local_lr": 0.2, "p": 0.4, "average": "ema"}},
    "fedavg, momentum": {"algorithm": {**SCAFFOLD, "name": "fedavg", "server_optimizer": "adam", "server_lr": 0.1}},
    "uploads of a number": {
        "algorithm": {"module": "tests.testing.algorithms:ShortUploads", "local_steps": 3, "local_lr": 0.5}
    },
    "silo level": {
        "algorithm": {**SCAFFOLD, "name": "fedavg", "server_optimizer": "fedexp"},
        "privacy": {"unit": "silo", "noise_multiplier": 1.0, "clip_norm": 0.1},
    },
    "adaptive clipping": {"privacy": {**NOISY, "clip": "adaptive"}},
    "poisson": {"privacy": {**NOISY, "sampler": "poisson"}},
    "no privacy": {"privacy": {"noise_multiplier": 0, "clip_norm": float("inf")}},
    "schedule": {"privacy": {**NOISY, "schedule": {"name": "geometric", "by": "round", "beta": 0.9}}},
    "another model": {"model": {"name": "mlp", "hidden": [5]}, "l2": 0.01},
}


def both(tmp_path, changes, dtype, data=None):
    values = block(**changes)
    more = {} if data is None else {"data": data}
    parts, model, charges, draw, _ = in_process(tmp_path / "runs", values, dtype, **more)
    values.pop("model", None)
    with loop(tmp_path / "seam", values, parts.module, records_of(parts), draw) as made:
        return model, charges, made.run(), made.charges()


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_the_seam_gives_the_bits_and_charges_of_a_run_in_one_process(tmp_path, changes):
    model, charges, found, charged = both(tmp_path, changes, "float64")
    assert torch.equal(found, model)
    assert charged == charges


@pytest.mark.parametrize("name", ["scaffold", "scaffnew", "adaptive clipping"])
def test_in_float32_as_well(tmp_path, name):
    model, _, found, _ = both(tmp_path, CASES[name], "float32")
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, model, rtol=0, atol=1e-6)


def test_without_noise_it_is_the_scaffold_of_the_paper(tmp_path):
    """By code that shares none with the package. Runs on platforms are compared with this loop."""
    rng = torch.Generator().manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double()
    records = {
        silo: (torch.randn(size, 4, generator=rng).double() + silo, torch.randint(0, 3, (size,), generator=rng))
        for silo, size in enumerate((25, 34, 43))
    }
    expected = scaffold(model, list(records.values()), rounds=4, local_steps=3, local_lr=0.5)
    with loop(tmp_path, block(privacy=EXACT), model, records) as made:
        torch.testing.assert_close(made.run(), expected, rtol=0, atol=1e-12)


def test_silos_of_unequal_size_have_equal_weights(tmp_path):
    model, charges, found, charged = both(tmp_path, {}, "float64", UNEQUAL)
    assert torch.equal(found, model)
    assert charged == charges


def test_a_budget_ends_the_run_where_it_ends_that_in_one_process(tmp_path):
    values = block(rounds=None, privacy={**NOISY, "noise_multiplier": 4.0, "epsilon": 1.5})
    parts, model, charges, draw, result = in_process(tmp_path / "runs", values, "float64")
    with loop(tmp_path / "seam", values, parts.module, records_of(parts), draw) as made:
        assert torch.equal(made.run(), model)
        assert made.charges() == charges
        assert made.server.rounds == result["rounds"] > 1
        assert made.server.status == "budget_exhausted"
        assert "one more would pass epsilon 1.5" in made.server.reason
        for silo in made.silos.values():
            assert silo.epsilon == pytest.approx(result["epsilon"]["server"]["epsilon"], rel=1e-9)


def test_each_silo_finds_the_noise_that_a_run_in_one_process_finds(tmp_path):
    values = block(privacy={"epsilon": 3.0, "delta": 1e-5, "record_rate": 0.25})
    parts, model, charges, draw, _ = in_process(tmp_path / "runs", values, "float64")
    with loop(tmp_path / "seam", values, parts.module, records_of(parts), draw) as made:
        assert {silo.noise_multiplier for silo in made.silos.values()} == {parts.noise_multiplier}
        assert torch.equal(made.run(), model)
        assert made.charges() == charges
        assert all(2.9 < silo.epsilon <= 3.0 for silo in made.silos.values())
