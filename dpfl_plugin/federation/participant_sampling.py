"""Which silos take part in a round: drawn in a seeded run from its seed, in a fresh one from coins of the operating
system, and never from data.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np

from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.core.streams import Stream, stream_key
from dpfl_plugin.privacy.participation import WITH_REPLACEMENT, PlannedRound


def fresh_coins() -> str:
    """256 bits of the operating system's randomness, for the draws of a run."""
    return secrets.token_hex(32)


def draw_participants(
    seed: int, round: int, setting: Setting, eligible: Sequence[int] | None = None, coins: str = ""
) -> list[int]:
    """S of the silos, uniformly, without replacement, independently of all data; ascending.

    Args:
        eligible: who may be drawn, ascending, at least S of them; None for all.
        coins: of `fresh_coins`; empty: the draw follows from the seed alone.
    """
    pool = range(setting.num_silos) if eligible is None else eligible
    if setting.num_participants == len(pool):
        return list(pool)
    rng = _draws(seed, round, coins)
    chosen = rng.choice(len(pool), setting.num_participants, replace=False)
    return sorted(pool[int(index)] for index in chosen)


def _draws(seed: int, round: int, coins: str) -> np.random.Generator:
    return Stream().seek(stream_key(seed, "participants", round, secret=coins))


def draw_with_replacement(seed: int, round: int, setting: Setting, coins: str = "") -> list[int]:
    """S silos, each drawn from all with its weight as probability, independently of all data; ascending, with repeats.

    [L] Assumption 5 (Li, Wang, Wu 2025), sampling with replacement.
    """
    rng = _draws(seed, round, coins)
    return sorted(rng.choice(setting.num_silos, setting.num_participants, p=setting.weights).tolist())


def drawn_silos(
    seed: int, round: int, plan: PlannedRound, setting: Setting, eligible: Sequence[int] | None, coins: str = ""
) -> list[int]:
    """Who takes part in a round with this plan; ascending, repeated as often as they were drawn."""
    if plan.participation == "all":
        return list(range(setting.num_silos))
    if plan.participation == WITH_REPLACEMENT:
        return draw_with_replacement(seed, round, setting, coins)
    return draw_participants(seed, round, setting, eligible, coins)
