"""A privacy statement in words: `privacy.md`, which may be published, and the page to sign, which names sites.

Every number in them is one of `ledger.json`, or follows from one by a formula that is named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from dpfl_plugin.core.text import cell, render

MOST_SILOS: Final = 20  # rows of the table; ledger.json has all
MOST_OWNERS: Final = 20  # rows to sign on
FALSE_ALARMS: Final = (0.001, 0.01, 0.05)
_ABSENT: Final = {"held_by": None, "tuning": None, "counted": None, "shared": None}  # keys that not every statement has


def privacy_page(statement: Mapping[str, Any]) -> str:
    """`privacy.md`, of what `ledger.json` holds. The same data give the same text."""
    silos = statement["silos"] or []
    worst = statement["views"]["server"]["worst_silo"]
    budget, notes = statement["budget"]["epsilon"], statement["notes"]
    if not statement["guarantee"].startswith("none"):
        notes = [text for text in notes if text not in statement["caveats"]]
    return render(
        "pages/privacy.md.jinja",
        **{**_ABSENT, **statement, "notes": notes},
        shown_silos=silos[:MOST_SILOS] + [silo for silo in silos[MOST_SILOS:] if silo["silo"] == worst],
        most_silos=MOST_SILOS,
        **_meaning(statement),
        own_settings=any("budget" in silo for silo in silos),
        own_budgets=any(silo.get("budget", budget) != budget for silo in silos),
    )


def page_to_sign(statement: Mapping[str, Any], names: Mapping[int, str], **facts: Any) -> str:
    """The page to sign, in Markdown.

    Args:
        statement: what `ledger.json` holds, of a run of which something is guaranteed.
        names: of sites, by silo. facts: what else `templates/pages/page_to_sign.md.jinja` shows.
    """
    sites = [_site(silo, statement, names) for silo in statement["silos"] or _unknown_silos(statement)]
    owners = [f"owner of the records of {site['title']}" for site in sites]
    if len(owners) > MOST_OWNERS:
        owners = [f"owner of the records, for each of {len(owners)} sites on a sheet of its own"]
    meaning = _meaning(statement)
    return render(
        "pages/page_to_sign.md.jinja",
        **{**_ABSENT, **statement},
        **facts,
        **meaning,
        sites=sites,
        owners=owners,
        tests=[] if meaning["total"]["epsilon"] is None else [(rate, meaning["power"](rate)) for rate in FALSE_ALARMS],
    )


def _meaning(statement: Mapping[str, Any]) -> dict[str, Any]:
    """What `pages/meaning.md.jinja` explains epsilon by."""
    total = total_of(statement, statement["views"]["server"])
    return {
        "total": total,
        "power": lambda false_alarms: power(total["epsilon"], total["delta"], false_alarms),
        "guess": lambda epsilon: guess(epsilon, total["delta"]),
    }


def total_of(statement: Mapping[str, Any], alone: Mapping[str, Any]) -> Mapping[str, Any]:
    """Epsilon and delta of all runs of one ledger, of all candidates of a tuning, or of this run ``alone``."""
    if statement["shared"] and statement["shared"]["num_runs"]:
        total: Mapping[str, Any] = statement["shared"]["adaptive"]
        return total
    return statement.get("tuning") or alone


def _unknown_silos(statement: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Silos of which nothing is published but how many there are."""
    nothing = {"num_records": None, "rounds": None, "epsilon": None}
    return [{"silo": silo, **nothing} for silo in range(statement["run"]["num_silos"])]


def _site(silo: Mapping[str, Any], statement: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
    number = silo["silo"]
    name = f"{cell(names[number])} (silo {number})" if number in names else f"silo {number}"
    epsilon = total_of(statement, silo)["epsilon"]
    return {"num_test_records": None, **silo, "title": name, "epsilon": epsilon}


def power(epsilon: float, delta: float, false_alarms: float) -> float:
    """The most often that a test with so many false alarms can be right, under (epsilon, delta)-differential privacy.

    Wasserman and Zhou 2010, Theorem 2.4; Kairouz, Oh and Viswanath 2015, Theorem 2.1: a test that is wrong with
    probability a where the record is absent is right with probability at most e^epsilon a + delta where it is there,
    and the same holds of the opposite test.

    Returns:
        a probability, at least that of both bounds: min(e^epsilon a + delta, 1 - e^-epsilon (1 - delta - a)).
    """
    first = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    second = 1.0 - math.exp(-epsilon) * max(0.0, 1.0 - delta - false_alarms)
    return max(false_alarms, min(1.0, first, second))


def guess(epsilon: float, delta: float) -> float:
    """The most often that anybody can guess right which of two equally likely neighbours was used.

    It is 1/2 + d/2 for the total variation d <= (e^epsilon - 1 + 2 delta) / (e^epsilon + 1): Kairouz, Oh and Viswanath
    2015, Theorem 2.1, with as many false alarms as misses.
    """
    return 1.0 - (1.0 - delta) / (1.0 + math.exp(min(epsilon, 700.0)))
