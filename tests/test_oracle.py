"""The oracle: sensitivity, noise, sampling and charges, by identities and by counting."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from dpfl_plugin.core.grid import Grid
from dpfl_plugin.core.rounded_normals import by_numpy
from dpfl_plugin.core.shares import share_bounds
from dpfl_plugin.core.streams import stream
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import ConfigError, TrainingError, UnsupportedError
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.shares import Part, part_of
from dpfl_plugin.gradients.smoothing import Convolution
from dpfl_plugin.gradients.vmap import Vmap
from dpfl_plugin.oracle import STEPS_AHEAD, Draw, PrivateOracle
from dpfl_plugin.privacy.samplers import FixedSize, FullBatch, Poisson
from dpfl_plugin.privacy.schedules import Constant, Geometric
from tests.on_device import noise_drawn_on
from tests.quadratics import rules

ALPHA = 1e-6  # false alarm of each statistical assertion; seeds are fixed, so it can only fail once
MODEL = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()
DIMENSION = Layout.of(MODEL).dimension
WIDE = nn.Sequential(nn.Flatten(), nn.Linear(49, 3)).double()  # 150 numbers of noise at a time
ENGINES = {"closed_form": ClosedForm, "vmap": Vmap}


def silo(count, seed=0, model=MODEL):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, model[1].in_features, generator=generator, dtype=torch.float64)
    return Records(x, torch.randint(0, 3, (count,), generator=generator))


def oracle(
    silos,
    made_by,
    *,
    ids=None,
    round=0,
    seed=0,
    steps=5000,
    share=(0.0, 1.0),
    engine="closed_form",
    model=MODEL,
):
    made = ENGINES[engine](model, losses.cross_entropy, 2**20)
    ids = range(len(silos)) if ids is None else ids
    prepared = [made.prepare(records) for records in silos]
    draw = Draw(seed, round)
    return PrivateOracle(made_by, made, prepared, ids, draw, max_gradients=steps, share=share)


def zeros(m=1, model=MODEL):
    return torch.zeros(m, Layout.of(model).dimension, dtype=torch.float64)


SAMPLERS = [FixedSize(0.25), FixedSize(batch_size=3), Poisson(0.25), FullBatch()]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: s.name)
def test_without_noise_the_mean_over_the_drawn_batch(sampler, engine):
    records, made_by = silo(12), rules(sampler=sampler, clip_norm=0.3)
    result = oracle([records], made_by, engine=engine).gradient(zeros())[0]
    index = sampler.draw(12, np.random.Generator(_bits("batch", 0)))
    batch = records if index is None else records.select(torch.from_numpy(index))
    expected = zeros()[0]
    reference = Vmap(MODEL, losses.cross_entropy, 2**20)
    reference.clipped_sum(zeros()[0], batch, 0.3, expected)
    torch.testing.assert_close(result, expected / sampler.divisor(12))


def _bits(purpose, step):
    return stream(0, purpose, 0, 0, step).bit_generator


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("clip_norm", [0.1, 1.0])
def test_sensitivity_is_reached_and_never_passed_by_the_worst_neighbours(engine, clip_norm):
    """Opposite huge records: the two clipped gradients differ by 2C, so the mean over b by 2C/b: [N] l. 13's Delta.

    A clip after averaging, or of the batch's mean, moves the mean by far more than this for the huge record.
    """
    made_by = rules(clip_norm=clip_norm)  # full batch, replace one
    records = silo(8)
    worst, other = records.features.clone(), records.features.clone()
    worst[3], other[3] = 1e6, -1e6
    first, second = (
        oracle([Records(x, records.labels)], made_by, engine=engine).gradient(zeros())[0] for x in (worst, other)
    )
    distance = float((first - second).norm())
    assert distance <= 2 * clip_norm / 8 * (1 + 1e-9)
    # ||(x, 1)|| is dominated by x, which is opposite: nearly the whole 2C is reached
    assert distance >= 0.99 * 2 * clip_norm / 8


def test_add_or_remove_changes_a_poisson_sum_by_at_most_c_over_expected_size():
    """The divisor is the expected size s n with a public n, so removing a record moves the sum by its own gradient."""
    made_by = rules(sampler=Poisson(1.0), clip_norm=0.5)
    records = silo(8)
    full = oracle([records], made_by).gradient(zeros())[0] * 8
    less = oracle([records.between(0, 7)], made_by).gradient(zeros())[0] * 7
    assert float((full - less).norm()) <= 0.5 * (1 + 1e-9)
    assert float((full - less).norm()) >= 0.49


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: s.name)
def test_noise_has_the_stated_std_and_is_normal(sampler):
    """sigma_g * Delta with Delta = 2C/b (fixed, full) or C/(s n) (Poisson). 90,000 draws: 3 % off would show."""
    sigma, clip_norm, n = 2.5, 0.4, 12
    silos, y = [silo(n, model=WIDE)], zeros(model=WIDE)
    asked = oracle(silos, rules(sigma, clip_norm, sampler), seed=1, model=WIDE)
    silent = oracle(silos, rules(0.0, clip_norm, sampler), seed=1, model=WIDE)
    noise = torch.cat([asked.gradient(y)[0] - silent.gradient(y)[0] for _ in range(600)]).numpy()
    delta = {"fixed": 2, "full": 2, "poisson": 1}[sampler.name] * clip_norm / sampler.divisor(n)
    assert stats.kstest(noise, stats.norm(scale=sigma * delta).cdf).pvalue > ALPHA
    assert stats.kstest(noise, stats.norm(scale=1.05 * sigma * delta).cdf).pvalue < ALPHA


def test_noise_is_independent_between_silos_steps_and_rounds():
    """|r| < 0.1 at 15,000 pairs: 12 standard deviations; equal noise would give 1."""
    silos, y = [silo(5, model=WIDE)] * 2, zeros(2, model=WIDE)
    asked = [oracle(silos, rules(1.0, 1.0), round=t, model=WIDE) for t in range(100)]
    draws = np.array([[o.gradient(y).numpy(), o.gradient(y).numpy()] for o in asked])
    draws -= draws.mean(axis=0)  # the gradient itself; [round, step, silo, d]
    pairs = {
        "silos": (draws[:, :, 0], draws[:, :, 1]),
        "steps": (draws[:, 0], draws[:, 1]),
        "rounds": (draws[:-1], draws[1:]),
        "coordinates": (draws[..., :-1], draws[..., 1:]),
    }
    for name, (a, b) in pairs.items():
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.1, name


def test_batches_are_fresh_at_every_step_and_silo_and_uniform():
    """4,000 batches of 10 of 40 records; would notice a record that is drawn 10 % more often."""
    sampler = FixedSize(0.25)
    batches = [
        frozenset(sampler.draw(40, np.random.Generator(_batch_bits(i, k))).tolist())
        for i in range(4)
        for k in range(1000)
    ]
    assert len(set(batches)) == 4000
    assert all(len(batch) == 10 for batch in batches)
    counts = np.bincount([record for batch in batches for record in batch], minlength=40)
    assert stats.chisquare(counts).pvalue > ALPHA
    skewed = counts * np.where(np.arange(40) % 2, 1.05, 0.95)
    assert stats.chisquare(skewed, np.full(40, skewed.mean())).pvalue < ALPHA


def _batch_bits(silo, step):
    return stream(0, "batch", 0, silo, step).bit_generator


def test_the_regulariser_is_added_after_clipping_and_noise():
    y = torch.full((1, DIMENSION), 100.0, dtype=torch.float64)
    without = oracle([silo(5)], rules(1.0, 0.1)).gradient(y)
    with_l2 = oracle([silo(5)], rules(1.0, 0.1, l2=0.01)).gradient(y)
    torch.testing.assert_close(with_l2 - without, 0.01 * y)


def test_a_stack_gives_each_silo_what_it_gets_alone():
    silos = [silo(5, seed) for seed in range(3)]
    y = torch.randn(3, DIMENSION, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    made_by = rules(1.0, 0.5, FixedSize(0.4))
    together = oracle(silos, made_by).gradient(y)
    for i in range(3):
        assert torch.equal(together[i], oracle([silos[i]], made_by, ids=[i]).gradient(y[i : i + 1])[0])


def test_the_same_seeded_round_gives_the_same_bits():
    made_by = rules(1.0, 0.5)
    first = oracle([silo(5)], made_by, round=3).gradient(zeros())
    assert torch.equal(first, oracle([silo(5)], made_by, round=3).gradient(zeros()))


def test_a_sum_that_the_integers_of_the_noise_do_not_hold_is_refused(monkeypatch):
    monkeypatch.setattr("dpfl_plugin.oracle.has_room", lambda records, dimension: records < 9)
    oracle([silo(8)], rules(1.0, 0.5)).gradient(zeros())
    asked = oracle([silo(9)], rules(1.0, 0.5))
    with pytest.raises(UnsupportedError, match="9 records of 15 numbers each does not fit"):
        asked.gradient(zeros())
    assert sum(charge.count for charge in asked.charges()) == 0


def test_more_gradients_than_the_plan_said_are_refused():
    asked = oracle([silo(5)], rules(1.0, 0.5), steps=2)
    asked.gradient(zeros())
    asked.gradient(zeros())
    with pytest.raises(TrainingError, match="more than the 2 gradients"):
        asked.gradient(zeros())
    assert asked.charges()[0].count == 2


@pytest.mark.parametrize("unit", ["record", "silo"])
def test_a_closed_oracle_answers_no_more(unit):
    asked = oracle([silo(9)], rules(0.0, 0.5, unit=unit))
    asked.close()
    for ask in [asked.gradient, *([asked.release] if unit == "silo" else [])]:
        with pytest.raises(TrainingError, match="would not be charged"):
            ask(zeros())
    assert asked.charges() == []


def test_a_charge_for_each_silo_says_what_was_done():
    asked = oracle([silo(12), silo(20)], rules(3.0, 0.5, FixedSize(0.25)), ids=[4, 9], round=7)
    assert asked.charges() == []
    for _ in range(5):
        asked.gradient(zeros(2))
    first, second = asked.charges()
    assert (first.silo, second.silo, first.round, first.count) == (4, 9, 7, 5)
    assert first.release.rate == 3 / 12
    assert second.release.rate == 5 / 20
    assert (first.release.noise_multiplier, first.release.sampler) == (3.0, "fixed")
    assert first.release.neighbouring == "replace_one"


def test_what_is_charged_is_what_the_plan_was_checked_for():
    for sampler in SAMPLERS:
        made_by = rules(3.0, 0.5, sampler)
        asked = oracle([silo(12)], made_by)
        for _ in range(3):
            asked.gradient(zeros())
        charge = asked.charges()[0]
        assert [(charge.release, charge.count)] == made_by.pattern(12, (0.0, 1.0), made_by.noise_levels(0, 3))


def test_sampling_everything_is_charged_as_no_sampling():
    asked = oracle([silo(12)], rules(3.0, 0.5, FixedSize(1.0)))
    asked.gradient(zeros())
    assert asked.charges()[0].release.sampler == "full"


def test_disjoint_shares_read_disjoint_records():
    parts = [(0.0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1.0)]
    for count in (3, 7, 10, 1734):
        bounds = [share_bounds(part, count) for part in parts]
        assert bounds[0][0] == 0
        assert bounds[-1][1] == count
        assert all(a[1] == b[0] for a, b in itertools.pairwise(bounds))
    records = silo(10)
    parts_of_it = [part_of(records, part) for part in parts]
    read = torch.cat([part.features for part in parts_of_it])
    assert torch.equal(read, records.features), "intervals of the order that records have"
    halves = [oracle([records], rules(0.0, 0.5), share=half).gradient(zeros()) for half in ((0.0, 0.5), (0.5, 1.0))]
    torch.testing.assert_close((halves[0] + halves[1]) / 2, oracle([records], rules(0.0, 0.5)).gradient(zeros()))
    with pytest.raises(ConfigError, match="share"):
        share_bounds((0.5, 0.51), 10)


@pytest.mark.parametrize("other", [Draw(1, 0), Draw(0, 1), Draw(0, 0, "b")])
def test_a_share_is_the_same_records_for_every_seed_round_and_run(other):
    """Else shares that look disjoint, and compose in parallel, would have records in common."""
    made = ENGINES["closed_form"](MODEL, losses.cross_entropy, 2**20)
    one, two = (
        PrivateOracle(
            rules(0.0, 0.5), made, [made.prepare(silo(50))], [3], draw, max_gradients=1, share=(0.5, 1.0)
        ).gradient(zeros())
        for draw in (Draw(0, 0), other)
    )
    assert torch.equal(one, two)


# Silo level


def test_a_silo_release_is_clipped_noised_and_charged_once():
    made_by = rules(2.0, 0.5, unit="silo", neighbouring="replace_one")
    silent = rules(0.0, 0.5, unit="silo", neighbouring="replace_one")
    update = torch.full_like(zeros(model=WIDE), 3.0)
    clipped = oracle([silo(5)], silent).release(update)
    assert float(clipped.norm()) == pytest.approx(0.5)
    noise = []
    for t in range(400):
        asked = oracle([silo(5)], made_by, round=t)
        noise.append((asked.release(update) - clipped)[0])
    noise = torch.cat(noise).numpy()
    assert stats.kstest(noise, stats.norm(scale=2.0 * 2 * 0.5).cdf).pvalue > ALPHA
    assert stats.kstest(noise, stats.norm(scale=1.06 * 2.0 * 2 * 0.5).cdf).pvalue < ALPHA
    (charge,) = asked.charges()
    assert (charge.count, charge.release.unit, charge.release.sampler, charge.release.rate) == (1, "silo", "full", 1.0)
    with pytest.raises(TrainingError, match="twice"):
        asked.release(update)


def test_add_or_remove_of_a_silo_needs_half_the_noise():
    noisy, silent = (rules(s, 0.5, unit="silo", neighbouring="add_or_remove") for s in (2.0, 0.0))
    half = oracle([silo(5)], noisy).release(zeros()) - oracle([silo(5)], silent).release(zeros())
    full = oracle([silo(5)], rules(2.0, 0.5, unit="silo", neighbouring="replace_one")).release(zeros())
    torch.testing.assert_close(2 * half, full)


def test_at_silo_level_gradients_are_plain_and_what_was_not_released_may_not_leave():
    asked = oracle([silo(5)], rules(2.0, 1e-3, unit="silo", neighbouring="replace_one"))
    gradient = asked.gradient(zeros())
    plain = oracle([silo(5)], rules(0.0, math.inf)).gradient(zeros())
    torch.testing.assert_close(gradient, plain)
    with pytest.raises(UnsupportedError, match="without releasing it"):
        asked.check_upload({"model": gradient})
    released = asked.release(gradient)
    asked.check_upload({"model": released})
    with pytest.raises(UnsupportedError, match="'control'"):
        asked.check_upload({"model": released, "control": gradient})


def test_a_diverged_silo_releases_noise_alone():
    asked = oracle([silo(5)], rules(2.0, 0.5, unit="silo", neighbouring="replace_one"))
    broken = torch.full((1, DIMENSION), 1e6, dtype=torch.float64)
    broken[0, 1] = math.nan  # by which no norm is known, while the others would leave unclipped
    assert torch.equal(
        asked.release(broken),
        oracle([silo(5)], rules(2.0, 0.5, unit="silo", neighbouring="replace_one")).release(zeros()),
    )


def test_at_record_level_release_is_post_processing():
    update = zeros()
    asked = oracle([silo(5)], rules(2.0, 0.5))
    assert asked.release(update) is update
    assert asked.charges() == []


# Refusals


def test_combinations_that_are_not_proven_are_refused():
    with pytest.raises(ConfigError, match="no noise is enough"):
        rules(1.0, math.inf)
    with pytest.raises(UnsupportedError, match="not proven"):
        rules(1.0, 0.5, Poisson(0.1), neighbouring="replace_one")
    with pytest.raises(UnsupportedError, match="not proven"):
        rules(1.0, 0.5, FixedSize(0.1), neighbouring="add_or_remove")


def test_a_batch_of_no_records_or_of_too_many_is_refused():
    with pytest.raises(ConfigError, match=r"floor\(0.05 \* 12\)"):
        FixedSize(0.05).divisor(12)
    with pytest.raises(ConfigError, match="at most"):
        FixedSize(batch_size=13).divisor(12)
    assert FixedSize(0.29).divisor(100) == 29


def test_an_empty_poisson_batch_still_releases_noise():
    asked = oracle([silo(5)], rules(1.0, 0.5, Poisson(1e-9)))
    assert float(asked.gradient(zeros()).norm()) > 0
    assert asked.charges()[0].count == 1
    silent = oracle([silo(5)], rules(0.0, 0.5, Poisson(1e-9)))
    assert float(silent.gradient(zeros()).norm()) == 0  # no record stands in for the empty batch


@pytest.mark.parametrize("other", [Draw(1, 0), Draw(0, 1)])
def test_other_seeds_and_rounds_share_neither_noise_nor_batches(other):
    made = ENGINES["closed_form"](MODEL, losses.cross_entropy, 2**20)
    for made_by in (rules(1.0, 0.5), rules(0.0, 0.5, FixedSize(0.4))):  # noise alone; batch alone
        same, one, two = (
            PrivateOracle(made_by, made, [made.prepare(silo(50))], [0], draw, max_gradients=1).gradient(zeros())
            for draw in (Draw(0, 0, "another name in the ledger"), Draw(0, 0), other)
        )
        assert torch.equal(same, one) and not torch.equal(one, two)


def noise_of(rng, sigma, sensitivity):
    """(d,) what is added with the numbers of ``rng``."""
    grid = Grid.of(sensitivity, DIMENSION)
    found = by_numpy(DIMENSION, sigma * grid.sensitivity / grid.step, rng.bit_generator.random_raw)
    return torch.from_numpy(found).double() * grid.step


def test_noise_comes_from_the_stream_of_its_name():
    noisy, silent = (oracle([silo(9)], rules(sigma, 0.5), round=4, seed=6) for sigma in (1.5, 0.0))
    grid = Grid.of(2 * 0.5, DIMENSION)
    for step in range(2):
        noise = 9 * (noisy.gradient(zeros()).double() - silent.gradient(zeros()).double())[0]
        expected = noise_of(stream(6, "noise", 4, 0, step), 1.5, 2 * 0.5)
        torch.testing.assert_close(noise, expected, rtol=0, atol=0.51 * grid.step)  # the sum is rounded, too


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: s.name)
def test_what_is_drawn_ahead_belongs_to_its_silo_and_step(sampler):
    """Over more steps than are drawn ahead, with silos of other sizes in the stack: batches and noise, step by step."""
    steps, silos, ids = 2 * STEPS_AHEAD + 3, [silo(12, 1), silo(20, 2)], [4, 9]
    asked = oracle(silos, rules(1.5, 0.5, sampler), ids=ids, round=4, seed=6, steps=steps)
    engine = ENGINES["closed_form"](MODEL, losses.cross_entropy, 2**20)
    for step in range(steps):
        found = asked.gradient(zeros(2))
        for row, records in enumerate(map(engine.prepare, silos)):
            index = sampler.draw(len(records), stream(6, "batch", 4, ids[row], step))
            expected = zeros()[0]
            engine.clipped_sum(zeros()[0], Part(records, (0.0, 1.0)).batch(index), 0.5, expected)
            expected += noise_of(stream(6, "noise", 4, ids[row], step), 1.5, sampler.sensitivity * 0.5)
            rounded = 0.51 * Grid.of(sampler.sensitivity * 0.5, DIMENSION).step
            torch.testing.assert_close(found[row] * sampler.divisor(len(records)), expected, rtol=0, atol=rounded)
    with pytest.raises(TrainingError, match="more than the"):
        asked.gradient(zeros(2))


def test_points_of_a_smoothed_loss_come_from_another_stream_than_the_noise():
    """Else the noise would be a function of the points, which the gradient depends on."""
    asked, alone = (Convolution(MODEL, losses.cross_entropy, 0.5) for _ in range(2))
    asked = PrivateOracle(rules(0.0, 0.5), asked, [silo(9)], [2], Draw(6, 4), max_gradients=2)
    for step in range(2):
        alone.rng, expected = stream(6, "algorithm", 4, 2, step), zeros()[0]
        alone.clipped_sum(zeros()[0], silo(9), 0.5, expected)
        torch.testing.assert_close(asked.gradient(zeros())[0], expected / 9)


def test_every_step_of_a_round_has_a_batch_of_its_own():
    asked = oracle([silo(50)], rules(0.0, 0.5, FixedSize(0.2)))
    gradients = [asked.gradient(zeros()) for _ in range(5)]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(gradients, 2))


def test_silos_of_a_stack_release_independent_noise():
    made_by = rules(1.0, 0.5, unit="silo", neighbouring="replace_one")
    released = torch.stack([oracle([silo(5)] * 2, made_by, round=t).release(zeros(2)) for t in range(500)])
    r = np.corrcoef(released[:, 0].flatten().numpy(), released[:, 1].flatten().numpy())[0, 1]
    assert abs(r) < 0.1  # 7,500 pairs: more than 8 standard deviations


def test_what_was_released_may_not_be_changed_before_it_is_sent():
    asked = oracle([silo(5)], rules(2.0, 1e-3, unit="silo", neighbouring="replace_one"))
    released = asked.release(zeros())
    asked.check_upload({"model": released})
    released += 1.0
    with pytest.raises(UnsupportedError, match="as it is"):
        asked.check_upload({"model": released})


@pytest.mark.parametrize("shape", [(2, DIMENSION), (DIMENSION,), (0, DIMENSION)])
def test_only_a_row_for_each_silo_is_answered(shape):
    wrong = torch.zeros(shape, dtype=torch.float64)
    with pytest.raises(TrainingError, match="it has 1 silos"):
        oracle([silo(5)], rules(1.0, 0.5)).gradient(wrong)
    with pytest.raises(TrainingError, match="it has 1 silos"):
        oracle([silo(5)], rules(1.0, 0.5, unit="silo", neighbouring="replace_one")).release(wrong)


@pytest.mark.parametrize("noise", ["host", "device"])
@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_flows_back_to_the_records(engine, noise):
    """Else backward() through a noisy gradient would give derivatives of it that have no noise."""
    y = zeros().requires_grad_()
    with noise_drawn_on(noise):
        result = oracle([silo(5)], rules(1.0, 0.5), engine=engine).gradient(y)
    assert not result.requires_grad
    assert result.grad_fn is None


@pytest.mark.parametrize("by", ["round", "step"])
def test_a_schedule_that_changes_nothing_changes_no_bit(by):
    plain, scheduled = (
        oracle([silo(12)], rules(3.0, 0.5, FixedSize(0.25), schedule=schedule), round=5, steps=3)
        for schedule in (Constant(), Geometric(beta=1.0, by=by))
    )
    for _ in range(3):
        assert torch.equal(plain.gradient(zeros()), scheduled.gradient(zeros()))
    assert plain.charges() == scheduled.charges()


def test_scheduled_noise_is_the_constant_noise_times_the_factor():
    """The same batch and the same normals in every step of every round, but for the grid."""
    schedule = Geometric(beta=0.81, threshold=1, by="step")
    for round, factors in ((0, (1.0, 1.0)), (1, (1.0, 0.9)), (2, (0.81, 0.729))):
        silent, plain, scheduled = (
            oracle([silo(12)], rules(sigma, 0.5, FixedSize(0.25), schedule=of), round=round, steps=2)
            for sigma, of in ((0.0, Constant()), (3.0, Constant()), (3.0, schedule))
        )
        for factor in factors:
            mean, noisy, result = (asked.gradient(zeros()) for asked in (silent, plain, scheduled))
            step = Grid.of(2 * 0.5, DIMENSION).step / 3
            torch.testing.assert_close(result - mean, factor * (noisy - mean), rtol=0, atol=2.1 * step)
        charged = [(charge.release.noise_multiplier, charge.count) for charge in scheduled.charges()]
        expected = [(3.0, 2)] if round == 0 else [(pytest.approx(3.0 * factor, rel=1e-12), 1) for factor in factors]
        assert charged == expected


def test_fewer_gradients_than_planned_are_charged_as_what_they_were():
    """Of a plan of four steps the first two: with their noise, not with that of a plan of two."""
    asked = oracle(
        [silo(12)], rules(3.0, 0.5, FixedSize(0.25), schedule=Geometric(beta=0.81, by="step")), round=1, steps=4
    )
    for _ in range(2):
        asked.gradient(zeros())
    assert [charge.release.noise_multiplier for charge in asked.charges()] == pytest.approx(
        [3.0 * 0.9**4, 3.0 * 0.9**5], rel=1e-12
    )


def test_without_noise_a_schedule_has_nothing_to_change():
    asked = oracle([silo(12)], rules(sampler=FixedSize(0.25), schedule=Geometric(beta=0.5, by="step")), steps=3)
    for _ in range(3):
        asked.gradient(zeros())
    assert [(charge.release.noise_multiplier, charge.count) for charge in asked.charges()] == [(0.0, 3)]


def test_a_share_is_charged_at_its_own_rate():
    made_by = rules(1.0, 0.5, FixedSize(batch_size=3))
    asked = oracle([silo(12)], made_by, share=(0.5, 1.0))
    asked.gradient(zeros())
    assert asked.charges()[0].release.rate == 3 / 6
    assert made_by.pattern(12, (0.5, 1.0), made_by.noise_levels(0, 1)) == [(asked.charges()[0].release, 1)]


@pytest.mark.parametrize("rate", [0.01, 0.25, 1.0])
def test_poisson_draws_and_charges_the_same_rate(rate):
    sampler = Poisson(rate)
    assert sampler.rate(123) == rate
    sizes = [len(sampler.draw(1000, stream(0, "batch", 0, 0, k))) for k in range(400)]
    assert abs(np.mean(sizes) - 1000 * rate) <= 5.5 * math.sqrt(1000 * rate * (1 - rate) / 400)


def fresh_messages(count, sampler, seed=0):
    """Fresh messages of a silo, one for each oracle, all of the same names."""
    made_by = rules(sigma=3.0, clip_norm=0.5, sampler=sampler, fresh=True)
    return torch.stack([oracle([silo(12)], made_by, seed=seed).gradient(zeros())[0] for _ in range(count)])


def test_fresh_noise_is_another_each_time_and_does_not_depend_on_the_seed():
    messages = fresh_messages(4, FullBatch())
    assert len({float(value) for value in messages[:, 0]}) == 4
    steps = oracle([silo(12), silo(12)], rules(sigma=3.0, clip_norm=0.5, fresh=True))
    first, second = steps.gradient(zeros(2)), steps.gradient(zeros(2))
    assert len({float(row[0]) for row in (*first, *second)}) == 4  # neither silos nor steps share it


@pytest.mark.statistical
def test_fresh_noise_has_the_standard_deviation_that_is_charged():
    """False alarm 1e-6 for each of two tests; the sum of 6,000 squares shows a standard deviation that is 10 % off."""
    messages = fresh_messages(400, FullBatch())
    without = oracle([silo(12)], rules(clip_norm=0.5)).gradient(zeros())[0]
    noise = ((messages - without) / (3.0 * 2 * 0.5 / 12)).flatten().numpy()
    assert stats.kstest(noise, "norm").pvalue > ALPHA
    low, high = stats.chi2(noise.size).interval(1 - ALPHA)
    assert low < (noise**2).sum() < high
    assert 1.1**2 * low > high


def test_fresh_batches_are_another_each_time():
    made_by = rules(clip_norm=0.5, sampler=FixedSize(0.5), fresh=True)
    seen = {tuple(oracle([silo(12)], made_by).gradient(zeros())[0].tolist()) for _ in range(8)}
    assert len(seen) > 1  # of 924 batches; all eight alike has probability 1e-20
