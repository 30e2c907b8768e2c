"""What an account is made from: a run's budget, and the public facts that its claims rest on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

BudgetView = Literal["server", "third_party"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpec:
    """What a run may spend, and the federation that spends it. Known before the run, from no record.

    Attributes:
        epsilon: of the budget; None for a run without one. epsilons: of silos with a budget of their own, by id.
        delta: at which all epsilons are stated.
        view: whose epsilon the budget bounds.
        rounds: T; None where only a budget ends the run.
        max_participations: the most rounds that a silo may take part in; None for any number.
        num_records: training records of each silo.
        num_silos: M.
        num_participants: S, silos in a round of sampled participation.
        weights: p_k, by which silos are drawn with replacement, adding up to 1; () where they never are.
        equal_weights: whether all uploads of a round weigh the same.
        in_sums: whether models are made of sums of silos' releases alone, each of which depends on the download and on
            the silo's own data (see `algorithms.base.in_sums`).
    """

    epsilon: float | None
    delta: float
    view: BudgetView = "server"
    rounds: int | None = None
    max_participations: int | None = None
    num_records: tuple[int, ...]
    num_silos: int
    num_participants: int
    weights: tuple[float, ...] = field(default=(), repr=False)
    equal_weights: bool = False
    in_sums: bool = False
    epsilons: Mapping[int, float] = field(default_factory=dict, hash=False)
