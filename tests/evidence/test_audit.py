"""Audits of the running code: correct code is consistent, code with a defect in it is contradicted.

All are statistical: a false alarm of correct code has a probability below 1e-6 for each audit. The seeds are new ones
in every run of the tests.
"""

import math
import secrets
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from benchmarks.audit import CORRECT, LOCKSTEP, MUTANTS, in_process, report
from dpfl_plugin.config.load import load
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.evidence.audit import Options, audit
from dpfl_plugin.evidence.canaries import CanaryEngine, Planting
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.dense import Dense
from dpfl_plugin.gradients.stacked import Pool
from dpfl_plugin.oracle import PrivateOracle
from dpfl_plugin.privacy.samplers import FixedSize, Poisson
from tests.cli.command import write
from tests.quadratics import rules

# Fewer and shorter rounds with less noise: the claim is about that of the quickstart.
SHORT = ("privacy.noise_multiplier=2", "algorithm.local_steps=10")


def short(*settings: str, rounds: int = 12):
    return report((*SHORT, *settings), Options(rounds=rounds, seed=secrets.randbits(32)))


@pytest.mark.statistical
@pytest.mark.parametrize("name", CORRECT)
def test_correct_code_is_consistent_and_nearly_reaches_its_epsilon(name):
    """Below 1e-6. Power: the Gaussian estimate is 0.6 to 1 of the accountant's epsilon, within its limits."""
    found = short(*CORRECT[name])
    assert found.consistent, found.violations
    assert found.charged == found.made > 0
    if found.unit == "record":
        assert found.canaries > 700
        # The limits are wrong in 5 % of cases; three times as wide, in 1e-8.
        g = found.gaussian
        assert g.estimate + 3 * (g.high - g.estimate) > 0.6 * found.epsilon
        assert g.estimate - 3 * (g.estimate - g.low) < found.epsilon
        assert found.epsilon_bound < found.epsilon
        assert found.influence == pytest.approx(1.0, abs=1e-3)


@pytest.mark.statistical
@pytest.mark.parametrize("name", MUTANTS)
def test_defects_are_contradicted_for_what_they_are(name):
    """Below 1e-6 for a miss: every defect that can be seen is far beyond its limit."""
    mutant = MUTANTS[name]
    with mutant.applied():
        found = short(*mutant.settings)
    assert found.consistent == (not mutant.reason), found.violations
    assert any(mutant.reason in violation for violation in found.violations) or not mutant.reason


def run(path: Path, **options):
    config = load(path).variants[0].config
    return audit(config, path.parent, Options(**options), in_process)


def test_an_audit_can_be_repeated_and_another_seed_is_another_audit():
    options = Options(rounds=2, seed=5)
    first, again, other = (report((), o) for o in (options, options, Options(rounds=2, seed=6)))
    assert (first.scores == again.scores).all() and (first.bits == again.bits).all()
    assert not (first.bits == other.bits).all() and not (first.scores[:50] == other.scores[:50]).any()


@pytest.mark.parametrize("clip", ["flat", "adaptive"])
def test_an_audit_is_the_same_for_silos_that_are_advanced_together(clip):
    """As the run is, to the bit; adapted bounds are those of the silos that have them."""
    settings, options = (f"privacy.clip={clip}",), Options(rounds=2, seed=5)
    one, two = report(settings, options), report((*settings, "runtime.stack=2"), options)
    assert (one.scores == two.scores).all() and one.noise == two.noise


@pytest.mark.parametrize(
    ("settings", "asked"),
    [((), {1}), (LOCKSTEP, {5}), ((*LOCKSTEP, "runtime.stack=2"), {1, 2}), (("runtime.stack=5",), {1})],
)
def test_silos_are_asked_together_as_in_the_run(settings, asked):
    """As many at a time, of five; the last of them alone by stacks of two."""
    seen, alone, together = [], CanaryEngine.clipped_sum, CanaryEngine.clipped_sums
    one = lambda self, y, *rest: (seen.append(1), alone(self, y, *rest))[1]  # noqa: E731
    many = lambda self, y, *rest: (seen.append(len(y)), together(self, y, *rest))[1]  # noqa: E731
    with mock.patch.multiple(CanaryEngine, clipped_sum=one, clipped_sums=many):
        found = report(settings, Options(rounds=2))
    assert set(seen) == asked and found.made == sum(seen) == 200


BOUNDS = {"flat": [0.4] * 4, "of each silo": [0.1, 0.4, 1.6, 6.4], "layers": [(0.3, 0.4)] * 4, "none": [math.inf] * 4}


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("neighbouring", ["replace_one", "add_remove"])
def test_canaries_of_silos_that_are_answered_together_are_those_of_each(bounds, neighbouring):
    """Batches of all lengths: with canaries first, last, between, none and nothing else; and none at all."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double()
    d, generator = Layout.of(model).dimension, torch.Generator().manual_seed(0)
    dense = Dense(model, losses.cross_entropy, 2**20)
    labels = [torch.tensor(own) for own in ([-1, 0, -2, 2, -3], [1, 2], [-4, -5, -6], [0, 1, -7, 2, 0, -8])]
    silos = {
        i: dense.prepare(Records(torch.randn(len(own), 4, generator=generator, dtype=torch.float64), own))
        for i, own in enumerate(labels)
    }
    bits = np.array([True, False] * 4)
    by = {"replace_one": FixedSize(0.5), "add_remove": Poisson(0.5)}[neighbouring]
    made_by = rules(0.0 if bounds == "none" else 1.0, math.inf if bounds == "none" else 0.5, by)
    engine = CanaryEngine(dense, d, Planting(np.zeros(8, dtype=int), bits, quiet=2), made_by)
    y = torch.randn(4, d + 10, generator=generator, dtype=torch.float64)
    for sizes in ((5, 2, 3, 6), (3, 0, 1, 0), (0, 0, 0, 0)):
        batches = Pool(silos).gather(range(4), [np.arange(size)[::-1].copy() for size in sizes])
        engine.bounds.clear()
        together = torch.full_like(y, math.nan, dtype=torch.float64)
        there = torch.tensor(BOUNDS[bounds], dtype=torch.float64).reshape(4, -1)
        norms = engine.clipped_sums(y, batches, None if bounds == "none" else there, together)
        asked = list(engine.bounds)
        engine.bounds.clear()
        for i, size in enumerate(sizes):
            alone = torch.full_like(y[i], math.nan, dtype=torch.float64)
            batch = silos[i].select(torch.arange(size).flip(0))
            own = engine.clipped_sum(y[i], batch, BOUNDS[bounds][i], alone)
            torch.testing.assert_close(together[i], alone, rtol=1e-12, atol=1e-14)
            if norms is None:
                assert own is None
            else:
                torch.testing.assert_close(norms[i, :size].reshape(own.shape), own, rtol=1e-12, atol=0)
                assert (norms[i, size:] == math.inf).all()
        assert asked == engine.bounds and (bounds == "none") == (norms is None)
    assert (together == 0).all()  # of no records


def test_a_budget_ends_an_audit_where_it_ends_the_run(tmp_path):
    path = write(tmp_path, {"rounds": None, "privacy": {"epsilon": 3.0, "delta": 1e-3}})
    found = run(path)
    assert 1 < found.rounds < 100 and found.epsilon <= 3.0
    assert run(path, rounds=1).rounds == 1


def test_silos_that_take_part_most_are_chosen(tmp_path):
    path = write(tmp_path, {"silo_rate": 0.5, "rounds": 9})
    every, one = run(path), run(path, silos=1)
    assert one.silos == 1 and one.epsilon == pytest.approx(every.epsilon)  # the worst of all is among them


def test_without_noise_nothing_is_claimed():
    found = report(("privacy.noise_multiplier=0",), Options(rounds=5))
    assert found.consistent and found.epsilon is None and found.noise is None
    assert found.epsilon_bound > 3 and "claims no epsilon" in found.notes[0]


def test_what_cannot_be_audited_is_refused(tmp_path):
    silo = {"algorithm": {"name": "fedavg"}, "privacy": {"unit": "silo"}, "l2": 0.1}
    with pytest.raises(UnsupportedError, match="l2"):
        run(write(tmp_path, silo))
    layered = {
        "algorithm": {"name": "fedavg"},
        "model": {"name": "mlp"},
        "privacy": {"unit": "silo", "clip": "per_layer"},
    }
    with pytest.raises(UnsupportedError, match="per_layer"):
        run(write(tmp_path, layered))
    with pytest.raises(ConfigError, match="this algorithm sends"):
        run(write(tmp_path, {"privacy": {"unit": "silo"}}))
    with pytest.raises(ConfigError, match="one round"):
        run(write(tmp_path, {"privacy": {"epsilon": 0.01, "delta": 1e-9}}))


@pytest.mark.statistical
def test_an_adapted_bound_that_noise_does_not_follow_is_contradicted():
    """Below 1e-6: the noise is that of the first clipping norm, while the bound grows."""

    def fixed(sum_: object) -> object:
        def changed(self, y, batch, row, step, total, out):
            noise = self._rules.mechanism
            noises = self._noise
            start, now = self._rules.clip_norm, self.clip_norms[row]

            def louder(total, sensitivity, rng, out, factor=1.0):
                noise(total, sensitivity * start / now if len(total) > 1 else sensitivity, rng, out, factor)

            louder.event = noise.event
            with mock.patch.object(
                noises, "_rules_of", [replace(rules, mechanism=louder) for rules in noises._rules_of]
            ):
                sum_(self, y, batch, row, step, total, out)

        return changed

    settings = ("privacy.clip={name: adaptive, lr: 0.5}",)
    with mock.patch.object(PrivateOracle, "_adaptive_sum", fixed(PrivateOracle._adaptive_sum)):
        assert not short(*settings).consistent
    assert short(*settings).consistent


def test_few_canaries_say_little_and_say_so(tmp_path):
    found = run(write(tmp_path), canaries=1, silos=1)
    assert found.canaries == 1 and found.gaussian is None and found.spread is None and found.consistent
    assert "too few canaries" in found.notes[0]
    silo = run(write(tmp_path, {"algorithm": {"name": "fedavg"}, "privacy": {"unit": "silo"}}))
    assert silo.canaries == 4 and "4 bits" in silo.notes[0]


def test_releases_charged_as_if_they_had_read_disjoint_parts_are_contradicted(tmp_path):
    real = PrivateOracle.charges

    def parted(self):
        return [replace(one, share=(0.0, 0.5) if one.round % 2 else (0.5, 1.0)) for one in real(self)]

    with mock.patch.object(PrivateOracle, "charges", parted):
        found = run(write(tmp_path))
    assert any("are not in the ledger, or not as what they were" in violation for violation in found.violations)


def test_what_adaptive_clipping_hides_from_an_audit_is_said(tmp_path):
    found = run(write(tmp_path, {"privacy": {"clip": "adaptive"}}))
    assert any("counts" in note for note in found.notes)
    assert not any("counts" in note for note in run(write(tmp_path)).notes)
