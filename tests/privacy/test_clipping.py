"""Clipping strategies: what a record can change, in units of the noise; what is charged; what C does."""

import contextlib
import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.core.streams import stream
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import ConfigError, PluginError, UnsupportedError
from dpfl_plugin.federation.silo_group import CLIP_NORM
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Records, clipped_sum_and_norms, layers
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.vmap import Vmap
from dpfl_plugin.oracle import Draw, PrivateOracle
from dpfl_plugin.privacy.accountants import PLD, RDP
from dpfl_plugin.privacy.clipping import Adaptive, AutoS, Clipping, Flat, Median, PerLayer, clip_update
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.samplers import FixedSize, FullBatch, Poisson
from dpfl_plugin.privacy.schedules import Geometric
from tests.quadratics import Lab, rules
from tests.quadratics import silo as quadratic

ALPHA = 1e-6  # false alarm of each statistical assertion; seeds are fixed, so it can only fail once
MODEL = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()
DEEP = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
ENGINES = {"closed_form": ClosedForm, "vmap": Vmap}
# At y = 0 a record's gradient is r (x, 1) with this ||r||, whatever its label.
RESIDUAL = math.sqrt(2 / 3)
C, Z, N = 100.0, 1.7, 12


@dataclass(frozen=True)
class Recorder:
    """Adds no noise, and writes down what the oracle noises, in units of the noise's standard deviation."""

    noise_multiplier: float
    released: list

    event = Gaussian.event

    def __call__(self, total, sensitivity, rng, out, factor=1.0):
        self.released.append(total.clone().double().flatten() / (sensitivity * factor * self.noise_multiplier))
        out.copy_(total)


@dataclass(frozen=True)
class Without:
    """A Poisson sampler that leaves a record out, as if it counted as zero."""

    record: int
    sampler: Poisson

    def __getattr__(self, name):
        return getattr(self.sampler, name)

    def draw(self, num_records, rng):
        index = self.sampler.draw(num_records, rng)
        return index[index != self.record]


def silo(features):
    return Records(features, torch.arange(len(features)) % 3)


def norms(values):
    """Records whose gradients at y = 0 have these norms."""
    x = torch.zeros(len(values), 4, dtype=torch.float64)
    x[:, 0] = ((torch.as_tensor(values, dtype=torch.float64) / RESIDUAL) ** 2 - 1).sqrt()
    return silo(x)


def oracle(made_by, records, *, model=MODEL, engine="closed_form", step_limit=10**6, **given):
    made = ENGINES[engine](model, losses.cross_entropy, 2**20)
    named = {"layers": layers(Layout.of(model)), "max_gradients": step_limit, **given}
    many = records if isinstance(records, list) else [records]
    return PrivateOracle(made_by, made, [made.prepare(r) for r in many], range(len(many)), Draw(0, 0), **named)


def zeros(model=MODEL, m=1):
    return torch.zeros(m, Layout.of(model).dimension, dtype=torch.float64)


def in_units_of_noise(clipping, sampler, records, engine, model=MODEL, y=None):
    """All that one release noises, as one vector: the sum, and the count if there is one."""
    released = []
    start, now = (5 * C, [C]) if clipping.adapts else (C, None)  # C_i has moved away from where it began
    made_by = replace(rules(Z, start, sampler, clipping=clipping), mechanism=Recorder(Z, released))
    asked = oracle(made_by, records, model=model, engine=engine, clip_norms=now)
    asked.gradient(zeros(model) if y is None else y)
    assert asked.charges()[0].release.noise_multiplier == Z
    return torch.cat(released)


STRATEGIES = {
    "flat": Flat(),
    "per_layer": PerLayer(),
    "adaptive": Adaptive(),
    "adaptive, dear bits": Adaptive(bit_noise_multiplier=1.2 * Z),
}
SAMPLERS = {"fixed": FixedSize(0.5), "full": FullBatch(), "poisson": Poisson(0.7)}


def neighbours(sampler, records, record, other):
    """(sampler, records) of two neighbours that differ in a record of the batch."""
    if sampler.name == "poisson":  # it is there, or counts as zero
        return (sampler, records), (Without(record, sampler), records)
    changed = records.features.clone()
    changed[record] = other
    return (sampler, records), (sampler, Records(changed, records.labels))


def in_batch(sampler):
    index = sampler.draw(N, stream(0, "batch"))
    return 0 if index is None else int(index[0])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_worst_neighbours_are_one_over_z_apart(strategy, sampler, engine):
    """In units of the noise, which is N(0, I) then: exactly a Gaussian mechanism of multiplier z, bits and all.

    The worst pair: gradients that are opposite, one just within C, the other beyond it, so that the bit changes too.
    """
    sampler = SAMPLERS[sampler]
    records, record = norms([3.0] * N), in_batch(sampler)
    inside, beyond = records.features[record].clone(), torch.zeros(4, dtype=torch.float64)
    inside[0], beyond[0] = math.sqrt((C * (1 - 1e-9) / RESIDUAL) ** 2 - 1), -1e6
    records.features[record] = inside
    pair = neighbours(sampler, records, record, beyond)
    one, two = (in_units_of_noise(STRATEGIES[strategy], by, of, engine) for by, of in pair)
    distance = float((one - two).norm())
    assert distance <= 1 / Z * (1 + 1e-6)
    assert distance >= 1 / Z * (1 - 1e-3)
    if isinstance(STRATEGIES[strategy], Adaptive):
        assert len(one) == zeros().numel() + 1 and abs(one[-1] - two[-1]) > 0.05 / Z  # the bits are part of it


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("model", [MODEL, DEEP], ids=["linear", "deep"])
def test_no_neighbours_are_further_apart(strategy, sampler, model):
    """Random data sets and records of all sizes, at random parameters; some are not even finite."""
    sampler, generator = SAMPLERS[sampler], torch.Generator().manual_seed(5)
    for _ in range(10):
        y = torch.randn(zeros(model).shape, generator=generator, dtype=torch.float64)
        sizes = 10 ** (torch.rand(N + 1, 1, generator=generator, dtype=torch.float64) * 5 - 1)
        x = torch.randn(N + 1, 4, generator=generator, dtype=torch.float64) * sizes
        x[torch.rand(N + 1, generator=generator) < 0.05] = math.nan
        pair = neighbours(sampler, silo(x[:N].clone()), in_batch(sampler), x[N])
        one, two = (in_units_of_noise(STRATEGIES[strategy], by, of, "vmap", model, y) for by, of in pair)
        assert float((one - two).norm()) <= 1 / Z * (1 + 1e-6)


@pytest.mark.parametrize("z", [0.3, 1.0, 5.8, 60.0])
@pytest.mark.parametrize("size", [1, 57, 10**3, 10**6])
@pytest.mark.parametrize("sensitivity", [0.5, 1.0])
def test_sum_and_count_cost_one_release_of_multiplier_z(z, size, sensitivity):
    """z_g^-2 + z_b^-2 = z^-2; a default count costs 1 % of noise, or has a deviation of 1/20 for less."""
    for clipping in (Adaptive(), Adaptive(bit_noise_multiplier=3 * z)):
        w = clipping.bit_weight(z, size, sensitivity)
        z_g, z_b = z / math.sqrt(1 - w**2), z / w
        assert z_g**-2 + z_b**-2 == pytest.approx(z**-2, rel=1e-12)
        if clipping.bit_noise_multiplier:
            assert z_b == pytest.approx(3 * z)
        else:
            assert z_g <= 1.01 * z * (1 + 1e-12)
            assert z_g == pytest.approx(1.01 * z) or z_b * sensitivity / size == pytest.approx(1 / 20)


# Layers


def test_each_layer_of_one_example_stays_within_its_bound():
    engine = Vmap(DEEP, losses.cross_entropy, 2**20)
    named = layers(Layout.of(DEEP))
    assert named == {"1": 25, "3": 18}
    bounds = PerLayer(shares=(1.0, 2.0)).bounds(0.5, named)
    assert math.hypot(*bounds) == pytest.approx(0.5) and bounds[1] == pytest.approx(2 * bounds[0])
    y = torch.randn(43, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.randn(1, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for scale in (1e-3, 1.0, 1e4):
        out = torch.empty_like(y)
        found = clipped_sum_and_norms(engine, y, silo(x * scale), bounds, out)[0]
        for part, bound, norm in zip(out.split([25, 18]), bounds, found, strict=True):
            assert float(part.norm()) == pytest.approx(min(bound, float(norm)), rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_with_one_layer_it_is_flat_clipping_to_the_bit(engine):
    records = silo(torch.randn(N, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    one, two = (
        oracle(rules(Z, 0.5, clipping=clipping), records, engine=engine).gradient(zeros())
        for clipping in (Flat(), PerLayer())
    )
    assert torch.equal(one, two)


def test_shares_are_checked():
    with pytest.raises(ConfigError, match=r"each of 2 layers: 1 \(25\), 3 \(18\)"):
        PerLayer(shares=(1.0,)).bounds(1.0, layers(Layout.of(DEEP)))
    with pytest.raises(ConfigError, match="shares"):
        PerLayer(shares=(1.0, 0.0))
    assert PerLayer().bounds(math.inf, {"a": 1, "b": 2}) == math.inf


def test_an_update_is_clipped_layer_by_layer():
    made_by = rules(0.0, 1.0, unit="silo", neighbouring="replace_one", clipping=PerLayer())
    update = zeros(DEEP)
    update[0, :25], update[0, 25:] = 1.0, 1e-3
    released = oracle(made_by, silo(torch.ones(3, 4).double()), model=DEEP, engine="vmap").release(update)[0]
    assert float(released[:25].norm()) == pytest.approx(math.sqrt(0.5))
    assert torch.equal(released[25:], update[0, 25:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bounds", [(1.0,), (0.3, 0.7)])
def test_no_update_is_longer_than_the_clip_norm(bounds, dtype):
    """Not by a single rounding: what is charged is C."""
    generator = torch.Generator().manual_seed(0)
    sizes = [50, 700][: len(bounds)]
    for scale in torch.logspace(-3, 30, 300).tolist():
        update = torch.randn(sum(sizes), generator=generator).to(dtype) * scale
        clip_update(update, bounds if len(bounds) > 1 else bounds[0], sizes)
        for part, bound in zip(update.split(sizes), bounds, strict=True):
            assert math.fsum(value**2 for value in part.tolist()) <= bound**2


def test_an_update_of_millions_of_numbers_is_no_longer_than_the_clip_norm():
    """A norm that is added up in float32 is .1 % short here, by which the update would stay too long."""
    update = torch.full((10_000_000,), 1e-3)
    assert float(torch.linalg.vector_norm(update)) < 0.9995 * math.sqrt(10)
    clip_update(update, 1.0, [len(update)])
    assert 0.999 < float(torch.linalg.vector_norm(update, dtype=torch.float64)) <= 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_update_beside_which_c_is_next_to_nothing_becomes_zero(dtype):
    """As a record's gradient does: a factor below 2^-126 has few digits."""
    for ratio, kept in ((2.0**118, True), (2.0**121, False), (2.0**126, False)):
        for bounds in (2.0**-10, (2.0**-11, 2.0**-10)):
            update = torch.tensor([1.0, -1.5, 0.0]).to(dtype) * 2.0**-10 * ratio / 2
            clip_update(update, bounds, [1, 2])
            assert bool(update.any()) == kept and float(update.double().norm()) <= math.hypot(2.0**-11, 2.0**-10)


@pytest.mark.parametrize("bounds", [1.0, (0.6, 0.8)])
def test_an_update_that_is_not_finite_becomes_zero(bounds):
    update = torch.tensor([1.0, math.nan, 3.0])
    clip_update(update, bounds, [1, 2])
    assert not update.any()


# Adaptation


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
def test_without_noise_c_finds_the_quantile(quantile):
    """99 norms, evenly spaced in log: a full batch's fraction is exact, and C comes to rest between two of them."""
    values = np.exp(np.linspace(math.log(2.0), math.log(50.0), 99))
    asked = oracle(rules(clip_norm=500.0, clipping=Adaptive(quantile=quantile, lr=0.5)), norms(values))
    for _ in range(300):
        asked.gradient(zeros())
    below, above = np.quantile(values, [quantile - 0.02, quantile + 0.02])
    assert below <= asked.clip_norms[0] <= above


@pytest.mark.parametrize(
    ("sampler", "quantile"), [(FixedSize(0.5), 0.3), (Poisson(0.5), 0.8)], ids=["fixed-0.3", "poisson-0.8"]
)
def test_with_noise_c_goes_round_the_quantile(sampler, quantile):
    """500 norms, uniform in log over 2..50, batches of 250, z = 4: the count's deviation is 1/20 to 1/9.

    In equilibrium the mean noised fraction is the quantile up to |log C change| / (lr steps); the mean of log C over
    1,000 steps is good to 0.1 (its deviation is 0.1 with a memory of about 35 steps), 0.03 of the quantile.
    """
    values = np.exp(np.linspace(math.log(2.0), math.log(50.0), 500))
    asked = oracle(rules(4.0, 0.5, sampler, clipping=Adaptive(quantile=quantile, lr=0.1)), norms(values))
    path = []
    for _ in range(1200):
        asked.gradient(zeros())
        path.append(math.log(asked.clip_norms[0]))
    expected = math.log(2.0) + quantile * math.log(25.0)
    assert np.mean(path[200:]) == pytest.approx(expected, abs=0.1)
    assert np.std(path[200:]) > 0.01  # there was noise


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_noise_of_an_adaptive_release(sampler):
    """On the mean gradient z_g Delta C_i / b; on the fraction z_b Delta_b / b. 5 % or 30 % would show."""
    sampler, values = SAMPLERS[sampler], [3.0] * N
    clipping, start = Adaptive(lr=0.3, bit_noise_multiplier=2 * Z), 0.7
    made_by = rules(Z, 0.5, sampler, clipping=clipping)
    b, delta = sampler.divisor(N), sampler.sensitivity
    z_g, z_b = (Z**-2 - (2 * Z) ** -2) ** -0.5, 2 * Z
    made = [
        (of, engine, [engine.prepare(norms(values))] * 50)
        for of in (made_by, replace(made_by, mechanism=Gaussian(0.0)))
        for engine in [ClosedForm(MODEL, losses.cross_entropy, 2**20)]
    ]
    noise, fractions = [], []
    for round in range(40):  # of 50 silos
        noisy, silent = (
            PrivateOracle(of, engine, records, range(50), Draw(0, round), max_gradients=1, clip_norms=[start] * 50)
            for of, engine, records in made
        )
        noise.append(noisy.gradient(zeros(m=50)) - silent.gradient(zeros(m=50)))
        fractions += [
            -math.log(one / other) / 0.3 for one, other in zip(noisy.clip_norms, silent.clip_norms, strict=True)
        ]
    noise = torch.cat(noise).flatten().numpy()
    assert stats.kstest(noise, stats.norm(scale=z_g * delta * start / b).cdf).pvalue > ALPHA
    assert stats.kstest(noise, stats.norm(scale=1.06 * z_g * delta * start / b).cdf).pvalue < ALPHA
    assert stats.kstest(fractions, stats.norm(scale=z_b * delta / 2 / b).cdf).pvalue > ALPHA
    assert stats.kstest(fractions, stats.norm(scale=1.3 * z_b * delta / 2 / b).cdf).pvalue < ALPHA
    assert abs(np.corrcoef(noise.reshape(2000, -1)[:, 0], fractions)[0, 1]) < 0.12  # 5 deviations of independence


def test_an_adaptive_release_follows_the_schedule():
    """Both parts of it, where noise grows: with the same normals, twice the noise, and a charge of twice the noise."""
    made, values, found = ClosedForm(MODEL, losses.cross_entropy, 2**20), [3.0] * N, []
    clipping = Adaptive(lr=0.3)
    for sigma, beta in ((Z, 4.0), (2 * Z, 1.0), (0.0, 1.0)):
        of = rules(sigma, 0.5, SAMPLERS["fixed"], clipping=clipping, schedule=Geometric(beta=beta))
        asked = PrivateOracle(of, made, [made.prepare(norms(values))], [0], Draw(0, 0), max_gradients=1)
        found.append((asked.gradient(zeros()), asked.clip_norms[0], asked.charges()))
    (grown, clip_norm, charges), (constant, same_norm, same_charges), (silent, silent_norm, _) = found
    torch.testing.assert_close(grown, constant)
    assert clip_norm == pytest.approx(same_norm, rel=1e-12) and clip_norm != silent_norm and charges == same_charges
    assert not torch.allclose(grown, silent)


def test_without_noise_the_count_is_exact_and_nothing_is_guaranteed():
    asked = oracle(rules(0.0, 3.0, clipping=Adaptive(quantile=0.5, lr=1.0)), norms([2.0, 2.5, 2.9, 10.0]))
    asked.gradient(zeros())
    assert asked.clip_norms[0] == pytest.approx(3.0 * math.exp(-(0.75 - 0.5)))
    assert asked.charges()[0].release.noise_multiplier == 0


def test_an_example_that_is_not_finite_counts_as_beyond_c():
    records = norms([2.0, 2.0, 2.0, 2.0])
    records.features[0] = math.nan
    for engine in ENGINES:
        asked = oracle(rules(0.0, 3.0, clipping=Adaptive(lr=1.0)), records, engine=engine)
        asked.gradient(zeros())
        assert asked.clip_norms[0] == pytest.approx(3.0 * math.exp(-0.25))


def test_a_poisson_count_is_divided_by_the_expected_size():
    """An empty batch says nothing: fraction 1/2, not 0 or NaN; and a full one of a small rate says much."""
    asked = oracle(rules(0.0, 3.0, Poisson(1e-9), clipping=Adaptive(lr=1.0, quantile=0.9)), norms([2.0] * 4))
    asked.gradient(zeros())
    assert asked.clip_norms[0] == pytest.approx(3.0 * math.exp(0.4))
    everything = Poisson(1.0)
    half = replace(rules(0.0, 3.0, Poisson(0.5), clipping=Adaptive(lr=1.0)), sampler=_Expecting(everything, 2.0))
    asked = oracle(half, norms([2.0] * 4))
    asked.gradient(zeros())
    assert asked.clip_norms[0] == pytest.approx(3.0 * math.exp(-(2.0 / 2.0)))  # sum of bits 4/2, over 2, is 1


@dataclass(frozen=True)
class _Expecting:
    """A sampler that says another expected batch size."""

    sampler: object
    size: float

    def __getattr__(self, name):
        return getattr(self.sampler, name)

    def divisor(self, num_records):
        return self.size


def test_c_stays_within_its_range():
    clipping = Adaptive(lr=5.0)
    assert clipping.adapted(1.0, 1e6, 2.0) == pytest.approx(2e-3)
    found = []
    with contextlib.suppress(OverflowError):
        found += [clipping.adapted(1.0, far, 2.0) for far in (-50.0, -1e6, -1e300, -math.inf)]
    assert found == pytest.approx([2e3] * 4)


# State of the silos


def lab(stack=1, sigma=1.0):
    silos = [quadratic([1.0, 2.0], [float(i), 1.0], copies=4) for i in range(4)]
    made_by = rules(sigma, 1.0, FixedSize(0.5), clipping=Adaptive())
    return Lab(FedAvg(local_steps=3, local_lr=0.1), silos, made_by, [0.0, 0.0], stack=stack)


def test_every_stack_gives_the_same_bits():
    labs = [lab(stack) for stack in (1, 3, 4)]
    for _, here in itertools.product(range(3), labs):
        here.step()
    for other in labs[1:]:
        assert torch.equal(other.server["model"], labs[0].server["model"])
        assert torch.equal(other.host.states[CLIP_NORM], labs[0].host.states[CLIP_NORM])
    found = labs[0].host.states[CLIP_NORM].flatten().tolist()
    assert len(set(found)) == 4 and found != [1.0] * 4


def test_c_changes_when_the_round_counts_and_a_replay_gives_the_same_bits():
    here = lab()
    here.step([0, 1])
    before = here.host.states[CLIP_NORM].clone()
    assert before[2:].tolist() == [[1.0], [1.0]] and before[0] != 1.0
    down = here.algorithm.download(here.server)
    once = here.runtime.run_round(down, here.plan(), Draw(0, 1))
    assert torch.equal(here.host.states[CLIP_NORM], before)
    again = here.runtime.run_round(down, here.plan(), Draw(0, 1))
    assert torch.equal(once["model"], again["model"])
    here.runtime.commit()
    assert not (here.host.states[CLIP_NORM] == before).any()


def test_the_next_round_goes_on_from_the_committed_c():
    """Two rounds of a step, or one of two: the same numbers of C, since only batches and noise have other names."""
    here = lab(sigma=0.0)
    here.algorithm = FedAvg(local_steps=1, local_lr=1e-9)
    here.host._algorithm = here.algorithm
    for rounds in (1, 2, 3):
        here.step()
        # all copies of a silo's record are alike: each step's fraction is 0 or 1
        logs = here.host.states[CLIP_NORM].log().flatten() / 0.1
        assert torch.allclose(logs, logs.round(), atol=1e-6)
        assert (logs.abs().round() <= rounds).all()
    assert int(logs.abs().max().round()) == 3


def test_an_algorithm_sees_nothing_of_it(monkeypatch):
    seen, real = [], FedAvg.local_update

    def local_update(self, down, silos, oracle, plan):
        seen.extend([*down, *silos])
        return real(self, down, silos, oracle, plan)

    monkeypatch.setattr(FedAvg, "local_update", local_update)
    here = lab()
    here.step()
    assert CLIP_NORM in here.host.states and CLIP_NORM not in seen
    assert all(set(up) == {"model"} for up in here.uploads)


# Median


def test_the_median_is_the_bound_and_no_epsilon_holds():
    records = norms([2.0, 4.0, 8.0])
    for engine in ENGINES:
        made_by = rules(5.0, 1e-9, clipping=Median())
        asked = oracle(replace(made_by, mechanism=Gaussian(0.0)), records, engine=engine)
        expected = oracle(rules(0.0, 4.0), records, engine=engine).gradient(zeros())
        torch.testing.assert_close(asked.gradient(zeros()), expected)
        release = made_by.release(1.0)
        assert release == SampledGaussian(
            noise_multiplier=0.0, sampler="full", rate=1.0, neighbouring="replace_one", unit="record"
        )
        for accountant in (PLD(), RDP()):
            assert accountant.epsilon([Term(release=release, count=1, rounds=1)], 1e-5) == math.inf


def test_the_noise_of_the_median_shows_a_record():
    """Why it is charged so: one record among three moves the scale of the noise as far as it likes."""
    scales = []
    for third in (3.0, 3e6):
        asked = [
            oracle(rules(sigma, 1.0, clipping=Median()), norms([2.0, third, 1e9])).gradient(zeros())
            for sigma in (1.0, 0.0)
        ]
        scales.append(float((asked[0] - asked[1]).norm()))
    assert scales[1] / scales[0] == pytest.approx(1e6, rel=1e-3)


def test_a_batch_without_a_median_releases_next_to_nothing():
    clipping = Median()
    assert clipping.measured(torch.tensor([1.0, 3.0, math.inf, 2.0])) == 2.0
    for nothing in (torch.empty(0), torch.full((3,), math.inf), torch.zeros(3)):
        assert 0 < clipping.measured(nothing) < 1e-11
    rate, num_records = 1e-9, 4
    answered = oracle(rules(1.0, 1.0, Poisson(rate), clipping=clipping), norms([2.0] * num_records)).gradient(zeros())
    assert float(answered.abs().max()) * rate * num_records < 1e-10  # what is divided by the batch that is expected


# Refusals


def test_bits_must_be_noised_more_than_the_whole():
    for z_b in (1.0, 2.0):
        with pytest.raises(ConfigError, match=r"above privacy.noise_multiplier=2.*Use 14.2"):
            rules(2.0, 0.5, clipping=Adaptive(bit_noise_multiplier=z_b))
    assert rules(2.0, 0.5, clipping=Adaptive(bit_noise_multiplier=2.1)).release(1.0).noise_multiplier == 2.0
    with pytest.raises(ConfigError, match="clip_norm=inf"):
        rules(0.0, math.inf, clipping=Adaptive())
    refused = {"quantile": (0.0, 1.0), "lr": (0.0, math.inf), "bit_noise_multiplier": (-1.0, 0.0, math.inf)}
    for option in ({name: value} for name, values in refused.items() for value in values):
        with pytest.raises(ConfigError, match=next(iter(option))):
            Adaptive(**option)
    for noise_multiplier in (-1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="noise_multiplier"):
            Gaussian(noise_multiplier)


class Greedy(Clipping):
    """A stranger's: C for each layer."""

    def bounds(self, clip_norm, layers):
        return (clip_norm,) * len(layers)


def test_bounds_that_are_more_than_c_together_are_refused():
    made_by = rules(1.0, 0.5, clipping=Greedy())
    assert made_by.bounds({"a": 3}) == (0.5,)
    with pytest.raises(PluginError, match=r"together 0\.707"):
        made_by.bounds({"a": 3, "b": 4})
    for sizes in (1, 2, 7, 100):
        assert rules(1.0, 0.5, clipping=PerLayer()).bounds(dict.fromkeys(map(str, range(sizes)), 1))


class Silent:
    """A stranger's engine that keeps its norms to itself."""

    name = "silent"

    def clipped_sum(self, y, batch, clip_norm, out):
        out.zero_()


@pytest.mark.parametrize("clipping", [Adaptive(), Median()])
def test_an_engine_that_does_not_tell_norms_is_refused(clipping):
    asked = PrivateOracle(
        rules(1.0, 1.0, clipping=clipping), Silent(), [norms([2.0])], [0], Draw(0, 0), max_gradients=1
    )
    with pytest.raises(PluginError, match=r"engine: silent must return .* shape \(1,\)"):
        asked.gradient(zeros())


@pytest.mark.parametrize("kind", [Adaptive, Median, AutoS])
def test_a_clipping_of_a_users_own_that_goes_by_norms_is_refused_at_silo_level(kind: type[Clipping]) -> None:
    """By what it says of itself: its name is not in the table of what does not go together."""
    own = type("Own", (kind,), {})()
    with pytest.raises(UnsupportedError, match="Own needs unit: record or person"):
        rules(1.0, 1.0, unit="silo", clipping=own)
