"""Rounds ahead, planned and charged without any record: for what they will cost, and for how many a budget lasts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import NoReturn

import torch

from dpfl_plugin.algorithms.base import Algorithm, RoundPlan
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.federation.planning import Planner, rehearse
from dpfl_plugin.privacy.account import PrivacyAccount


def rehearsal(
    account: PrivacyAccount,
    planner: Planner,
    limit: int,
    server: Vectors | None = None,
    first: int = 0,
    noise_id: str = "rehearsal",
    lost: Collection[int] = (),
) -> Iterator[int]:
    """Plan, charge and begin round after round that a run would make; yields how many there are by then.

    Args:
        server: its state before round ``first``; None for the beginning. lost: silos that are out.
    """
    algorithm = planner.algorithm
    server = algorithm.init_server(torch.zeros(1), planner.setting) if server is None else server
    for round in range(first, limit):
        plan = planner.plan(server, round, account.eligible(), lost)
        if plan is None or not account.affords(round, plan):
            return
        account.begin_round(round, plan)
        account.append(account.charges(round, plan, noise_id))
        yield round + 1
        server = rehearsed(algorithm, server, plan)


class Unread(Vectors):
    """Stands for a server's state that nobody has worked out; notes whether somebody looks at it all the same."""

    looked_at = False

    def _look(self, *args: object, **named: object) -> NoReturn:
        self.looked_at = True
        raise LookupError("this state has not been worked out")

    __getitem__ = __iter__ = __len__ = __contains__ = __reversed__ = __eq__ = __ne__ = __or__ = __ror__ = _look
    get = keys = values = items = copy = __repr__ = __reduce_ex__ = _look


def rounds_ahead(account: PrivacyAccount, planner: Planner, limit: int) -> Iterator[int]:
    """As `rehearsal` from the beginning, for an account of nothing but what rounds cost.

    Plans decide that alone, and most algorithms' plans depend on nothing that the rounds before them compute. As long
    as nobody looks at the server's state, nobody works it out, and no silo is drawn; else all is rehearsed.
    """
    planner.algorithm.init_server(torch.zeros(1), planner.setting)  # which refuses what it cannot run in
    server, done = Unread(), 0
    while done < limit and not account.restricts:
        try:
            plan = planner.asks(server, done)
        except Exception:
            if not server.looked_at:
                raise
        if server.looked_at:
            break
        account.begin_round(done, plan)
        done += 1
        yield done
    if done < limit:
        yield from (number for number in rehearsal(account, planner, limit) if number > done)


def rehearsed(algorithm: Algorithm, server: Vectors, plan: RoundPlan) -> Vectors:
    """The server's state after a round with made-up uploads, of which one local step makes as good ones as K."""
    up, _ = rehearse(algorithm, server, replace(plan, local_steps=1))
    return algorithm.aggregate(server, {name: value[0] for name, value in up.items()}, plan)
