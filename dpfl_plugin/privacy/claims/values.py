"""Claims as plain values, side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dpfl_plugin.privacy.claims.base import finite
from dpfl_plugin.privacy.claims.server import Server
from dpfl_plugin.privacy.claims.third_party import ThirdParty
from dpfl_plugin.privacy.prior import Prior, earlier_runs
from dpfl_plugin.privacy.views import ViewEpsilon

LOST = (
    "silos were lost, which may depend on their records, so that the server's worst case is claimed and nothing of the "
    "draw of participants"
)


def views_of(server: Server, third: ThirdParty, prior: Prior) -> dict[str, Any]:
    """The server's view (realised, and the worst case) and a third party's, together with what ``prior`` holds."""
    book = server.book
    charges, rounds = book.once("rounds", (), book.charged)
    realised = server.realised(prior)
    if book.extra.plan:
        beside = book.extra.prior(ahead=False)
        prior = prior.joined(beside) if prior.runs else beside
    costs = book.pricing.dearest(rounds) if book.lost else rounds
    worst = server.worst_case(costs, charges, prior)
    if book.lost:
        third_party = replace(worst, view="third_party", basis=f"{worst.basis}; {LOST}")
        return _both(realised, worst, third_party, prior)
    third_party = third.stated(costs, charges, prior)
    # Earlier runs count as realised in the worst case, and that holds too.
    if prior.runs and worst.epsilon < third_party.epsilon:
        third_party = replace(third_party, epsilon=worst.epsilon, basis="the server's worst case")
    return _both(realised, worst, third.given_draws(third_party), prior)


def plain(view: ViewEpsilon, prior: Prior) -> dict[str, Any]:
    """One guarantee, with what it was composed with in its basis; epsilon None where there is none."""
    return {
        "epsilon": finite(view.epsilon),
        "delta": view.delta,
        "neighbouring": view.neighbouring,
        "unit": view.unit,
        "accountant": view.accountant,
        "worst_silo": view.worst_silo,
        "basis": _basis(view, prior),
    }


def _both(realised: ViewEpsilon, worst: ViewEpsilon, third_party: ViewEpsilon, prior: Prior) -> dict[str, Any]:
    return {
        "server": {
            **plain(realised, prior),
            "worst_case_epsilon": finite(worst.epsilon),
            "worst_case_basis": _basis(worst, prior),
        },
        "third_party": plain(third_party, prior),
    }


def _basis(view: ViewEpsilon, prior: Prior) -> str:
    return view.basis + (f"; and what {earlier_runs(prior)} released" if prior.runs else "")
