"""Claims as plain values, side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dpfl_plugin.privacy.claims.base import finite
from dpfl_plugin.privacy.claims.server import Server
from dpfl_plugin.privacy.claims.third_party import ThirdParty
from dpfl_plugin.privacy.views import ViewEpsilon

LOST = (
    "silos were lost, which may depend on their records, so that the server's worst case is claimed and nothing of the "
    "draw of participants"
)


def views_of(server: Server, third: ThirdParty) -> dict[str, Any]:
    """The server's view (realised, and the worst case) and a third party's."""
    book = server.book
    charges, rounds = book.once("rounds", (), book.charged)
    realised, beside = server.realised(), book.extra.releases(ahead=False)
    costs = book.pricing.dearest(rounds) if book.lost else rounds
    worst = server.worst_case(costs, charges, beside)
    if book.lost:
        third_party = replace(worst, view="third_party", basis=f"{worst.basis}; {LOST}")
    else:
        third_party = third.stated(costs, charges, beside)
    return {
        "server": {
            **plain(realised),
            "worst_case_epsilon": finite(worst.epsilon),
            "worst_case_basis": worst.basis,
        },
        "third_party": plain(third_party),
    }


def plain(view: ViewEpsilon) -> dict[str, Any]:
    """One guarantee; epsilon None where there is none."""
    return {
        "epsilon": finite(view.epsilon),
        "delta": view.delta,
        "neighbouring": view.neighbouring,
        "unit": view.unit,
        "accountant": view.accountant,
        "worst_silo": view.worst_silo,
        "basis": view.basis,
    }
