"""Membership inference: its mathematics, its power without noise, and its limits with noise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.stats import multivariate_normal

from dpfl_plugin.attacks import demonstration, roc
from dpfl_plugin.attacks.membership import MOST_CANDIDATES, Attack, candidates, log_likelihood_ratios
from dpfl_plugin.attacks.transcript import listen
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs.build import build
from tests.attacks.simulated import HERE, QUIET, config

SEEDS = 6


def test_the_log_likelihood_ratio_by_densities() -> None:
    """Against the two Gaussian densities of what was seen, the others' memberships integrated out."""
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    seen, share, noise = torch.randn(5, generator=generator, dtype=torch.float64), 0.7, 0.4
    ratios = log_likelihood_ratios(u @ u.t() / noise, u @ seen / noise, share)
    for j in range(3):
        rest = u[[i for i in range(3) if i != j]]
        covariance = noise * torch.eye(5, dtype=torch.float64) + share * (1 - share) * rest.t() @ rest
        member, other = (multivariate_normal((m - share) * u[j].numpy(), covariance).logpdf(seen) for m in (1, 0))
        assert float(ratios[j]) == pytest.approx(member - other, rel=1e-9)


@pytest.mark.parametrize("change", [{}, {"model": {"name": "mlp", "hidden": [5]}}], ids=["softmax", "mlp"])
def test_one_step_sees_each_candidates_own_clipped_gradient(change: dict[str, Any]) -> None:
    wanted = config({"rounds": 1, "algorithm": {"local_steps": 1}, "runtime": {"dtype": "float64"}}, change)
    parts = build(wanted, HERE)
    attack = Attack(parts, 0)
    (seen,) = listen(wanted, parts, 0, Ledger(), "test")
    found = attack.contributions(seen)
    records = parts.engine.prepare(attack.candidates.records)
    for j in (0, 7, len(found) - 1):
        alone = torch.empty_like(parts.model, dtype=torch.float64)
        parts.engine.clipped_sum(parts.model, records.select(torch.tensor([j])), 0.5, alone)
        torch.testing.assert_close(found[j], alone)


def test_the_replayed_path_ends_near_where_the_silo_ended() -> None:
    """Full batches, no noise, candidates that are the silo: the mean contribution is the mean upload."""
    wanted = config(QUIET, {"rounds": 1, "privacy": {"sampler": "full", "record_rate": None}})
    parts = build(wanted, HERE)
    parts.test[0] = parts.train[0]  # as many members twice: their mean is the silo's
    attack = Attack(parts, 0)
    (seen,) = listen(wanted, parts, 0, Ledger(), "test")
    torch.testing.assert_close(attack.contributions(seen).mean(dim=0), seen.mean, rtol=1e-3, atol=1e-5)


def test_the_replayed_path_follows_the_noise_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Much noise: 1/8 of the way before its end, the replay is 1/8 of the way from where the silo ended."""
    change = {"rounds": 1, "algorithm": {"name": "fedavg", "local_steps": 8}, "privacy": {"noise_multiplier": 30.0}}
    wanted = config(change, {"runtime": {"dtype": "float64"}})
    parts = build(wanted, HERE)
    attack = Attack(parts, 0)
    (seen,) = listen(wanted, parts, 0, Ledger(), "test")
    visited: list[torch.Tensor] = []
    clipped = attack._clipped
    monkeypatch.setattr(attack, "_clipped", lambda y: visited.append(y) or clipped(y))
    attack.contributions(seen)
    way = -8 * seen.mean  # local_lr is 1
    left = parts.model + way - visited[-1]
    assert float(left.norm() / way.norm()) == pytest.approx(1 / 8, rel=0.05)


def test_more_records_than_the_attack_solves_for_are_thinned() -> None:
    records = Records(torch.arange(2000.0).unsqueeze(1), torch.zeros(2000, dtype=torch.int64))
    few = candidates(records, records.between(0, 20), dimension=1)
    assert few.num_members == MOST_CANDIDATES and len(few) == MOST_CANDIDATES + 20
    assert float(few.records.features[few.num_members - 1]) == 1999


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["scaffold", "fedavg"])
def test_overfitting_shows_without_noise_and_noise_hides_it(name: str) -> None:
    """30 members and 30 others, 6 seeds: the AUC of guessing has the standard deviation sqrt(61 / (12 * 900 * 6)) =
    0.031 (Mann, Whitney 1947), and passes 5 of them with probability 3e-7, as a private one passes 5 above its bound.
    Without noise the attack passes that line, so the test would notice if none were added.
    """
    deviation = math.sqrt(61 / (12 * 30 * 30) / SEEDS)
    change = {"algorithm": {"name": name}, "privacy": {"noise_multiplier": 6.0}}
    quiet, noisy = (
        demonstration.membership(config(change, last), HERE, 0, SEEDS, lambda text: None) for last in (QUIET, {})
    )
    line = noisy.bound.auc() + 5 * deviation
    assert 0.5 + 5 * deviation < line < quiet.auc.value
    assert noisy.auc.value < line
    assert quiet.bound.auc() == 1 and math.isinf(quiet.epsilon)
    assert noisy.rounds == 8 and math.isfinite(noisy.epsilon)


def test_scores_of_records_that_cannot_differ_are_equal() -> None:
    """A member twice, once among the non-members: the same gradients, the same score."""
    wanted = config(QUIET, {"runtime": {"dtype": "float64"}})
    parts = build(wanted, HERE)
    parts.test[0] = Records(parts.train[0].features[:5], parts.train[0].labels[:5])
    attack = Attack(parts, 0)
    scores = attack.scores(listen(wanted, parts, 0, Ledger(), "test"))
    torch.testing.assert_close(scores[:5], scores[30:], rtol=1e-5, atol=1e-5)


def test_the_silo_has_to_exist_and_to_take_part() -> None:
    with pytest.raises(ConfigError, match="silo=3 must be one of"):
        demonstration.membership(config(), HERE, 3, 1, lambda text: None)
    absent = config({"silo_rate": 0.4, "rounds": 1})
    idle = next(silo for silo in range(3) if not list(listen(absent, build(absent, HERE), silo, Ledger(), "t")))
    with pytest.raises(ConfigError, match="takes part in no round"):
        demonstration.membership(absent, HERE, idle, 1, lambda text: None)


def test_all_seeds_are_in_the_result() -> None:
    once = demonstration.membership(config({"rounds": 2}), HERE, 0, 2, lambda text: None)
    assert len(once.runs) == 2 and once.auc.value == roc.auc(*roc.pooled(once.runs))
    assert not (once.runs[0][0] == once.runs[1][0]).any()
