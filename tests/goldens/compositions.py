"""Epsilons of releases that are drawn by a seed: what runs are told that they have spent, by all that composes them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dpfl_plugin import registry
from dpfl_plugin.errors import DpflError
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.extra_releases import ExtraPlan
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import make
from dpfl_plugin.privacy.schedules import Constant, Geometric
from dpfl_plugin.privacy.scores import Scores
from dpfl_plugin.privacy.spec import BudgetSpec
from tests.goldens.rows import Row

COUNT: Final = 500
NAMES: Final = tuple(f"composition {number}" for number in range(COUNT))
EVERYDAY: Final = NAMES[:40]
Story = dict[str, Any]


@dataclass(frozen=True)
class Round:
    """What an account has to know of a round's plan."""

    participants: tuple[int, ...]
    num_gradients: int
    participation: str
    share: tuple[float, float] = (0.0, 1.0)
    most_gradients: int | None = None


def story(name: str) -> Story:
    """A federation, its releases in order, and what bounds them, as plain values."""
    rng = random.Random(name)

    def chance(probability: float, value: Any) -> Any:
        return value if rng.random() < probability else None

    unit = rng.choice(["record", "record", "record", "person", "silo"])
    sampler = "full" if unit == "silo" else rng.choice(["fixed", "fixed", "poisson", "poisson", "full", "cyclic"])
    num_silos = rng.randint(2, 5)
    participation = (
        "all" if sampler == "cyclic" else rng.choice(["all", "sampled", "sampled", "sampled_with_replacement"])
    )
    drawn = num_silos if participation == "all" else rng.randint(1, num_silos)
    rounds = rng.randint(1, 8)
    steps = 1 if unit == "silo" else rng.randint(1, 5)
    told = {
        "unit": unit,
        "sampler": sampler,
        "rate": rng.choice([0.05, 0.1, 0.25, 0.5]) if sampler != "full" else None,
        "neighbouring": rng.choice(["replace_one", "add_or_remove"]) if unit == "silo" else None,
        "noise_multiplier": rng.choice([2.0, 3.0, 4.5, 6.0, 9.0]),
        "accountant": rng.choice(["pld", "pld", "rdp", "rdp", "gaussian"] if sampler == "full" else ["pld", "rdp"]),
        "schedule": chance(0.25, [round(rng.uniform(0.8, 1.1), 3), rng.choice(["round", "step"]), rng.randint(0, 2)]),
        "num_records": [rng.choice([20, 40, 60]) for _ in range(num_silos)],
        "participation": participation,
        "weights": _weights(rng, num_silos) if participation == "sampled_with_replacement" else None,
        "drawn": drawn,
        "halves": bool(chance(0.1, sampler != "cyclic")),
        "in_sums": rng.random() < 0.3,
        "max_participations": chance(0.15, rng.randint(1, rounds)),
        "budget": chance(0.3, [round(rng.uniform(0.3, 4.0), 2), rng.choice(["server", "third_party"])]),
        "earlier": chance(  # runs in a shared ledger, which are no part of an account any more: keeps the other draws
            0.25, [[round(rng.uniform(3.0, 12.0), 2), rng.randint(1, 9)] for _ in range(rng.randint(1, 2))]
        ),
        "scores": chance(0.15, [round(rng.uniform(2.0, 9.0), 2), rng.randint(1, 3)]),
        "statistics": chance(0.1, round(rng.uniform(2.0, 9.0), 2)),
        "own_models": chance(0.1, rng.randint(1, 3)),
        "lost_after": chance(0.1, rng.randint(0, rounds)),
        "rounds": [],
    }
    for _ in range(rounds):
        silos = sorted(rng.sample(range(num_silos), drawn))
        told["rounds"].append([silos, rng.choice([steps, steps, max(1, steps - 1)]) if drawn == num_silos else steps])
    told["again"] = chance(0.1, rng.randrange(rounds))
    if sampler == "poisson" and told["accountant"] == "rdp":  # others take it seconds each
        told |= {"rate": 0.05, "noise_multiplier": 4.5, "schedule": None, "budget": None}
    for key in _REFUSED_WITH["cyclic"] * (sampler == "cyclic") + _REFUSED_WITH["schedule"] * (
        told["schedule"] is not None
    ):
        told[key] = None
    return {key: value for key, value in told.items() if value not in (None, False)}


_REFUSED_WITH: Final = {  # by configurations; an account that has both knows nothing of it
    "cyclic": ("schedule", "halves", "scores", "statistics", "own_models", "earlier", "again", "lost_after"),
    "schedule": ("own_models",),
}


def _weights(rng: random.Random, num_silos: int) -> list[float]:
    parts = [rng.randint(1, 4) for _ in range(num_silos)]
    return [part / sum(parts) for part in parts]


class Stage:
    """Nothing: an account needs no files."""

    def __init__(self, folder: Path) -> None: ...


def row(name: str, stage: Stage) -> Row:
    told = story(name)
    try:
        return {"story": told, "epsilons": dict(_epsilons(told))}
    except DpflError as error:
        return {"story": told, "refused": type(error).__name__}


def _epsilons(told: Story) -> Iterator[tuple[str, Any]]:
    """What is said of the rounds that the budget and the cap allow."""
    account, made = _account(told), 0
    share = (0.0, 0.8) if "scores" in told else (0.0, 1.0)
    for number, (silos, steps) in enumerate(told["rounds"]):
        if told.get("lost_after") == number:
            account.lose()
        eligible = account.eligible()
        taking = silos if eligible is None else [silo for silo in silos if silo in eligible]
        if len(taking) < len(silos):
            break
        part = (share[1] * 0.5 * (number % 2), share[1] * 0.5 * (number % 2 + 1)) if "halves" in told else share
        plan = Round(tuple(taking), steps, told["participation"], part)
        if not account.affords(number, plan):
            break
        for noise in ("first", "second") if told.get("again") == number else ("first",):
            account.begin_round(number, plan)
            account.append(account.charges(number, plan, noise))
        made += 1
    yield "rounds", made
    _beside(account, told)
    yield "so far", account.epsilons_so_far()
    views = account.views()
    for view, said in views.items():
        keys = ("epsilon", "worst_case_epsilon", "realised_epsilon")
        yield view, {key: said[key] for key in keys if key in said}
    yield "silos", [one["epsilon"] for one in account.per_silo()]


def _account(told: Story) -> PrivacyAccount:
    unit, num_records = told["unit"], tuple(told["num_records"])
    sampler = make(told["sampler"], told.get("rate"), None)
    beta, by, threshold = told.get("schedule") or (None, None, None)
    rules = PrivacyRules(
        unit=unit,
        neighbouring=told.get("neighbouring", sampler.neighbouring),
        clip_norm=1.0,
        mechanism=Gaussian(told["noise_multiplier"]),
        sampler=sampler,
        schedule=Constant() if beta is None else Geometric(beta=beta, by=by, threshold=threshold),
    )
    epsilon, view = told.get("budget") or (None, "server")
    num_silos, rounds = len(num_records), len(told["rounds"])
    spec = BudgetSpec(
        epsilon=epsilon,
        delta=1e-5,
        view=view,
        rounds=rounds,
        max_participations=told.get("max_participations"),
        num_records=num_records,
        num_silos=num_silos,
        num_participants=told["drawn"],
        weights=tuple(told.get("weights", ())),
        equal_weights="weights" not in told,
        in_sums="in_sums" in told,
    )
    noise, num_scores = told.get("scores") or (None, 0)
    scores = None if noise is None else Scores((0.8, 1.0), noise)
    extra_plan = ExtraPlan(rounds, scores, num_scores, told.get("own_models", 0), told.get("statistics"))
    return PrivacyAccount(
        spec,
        rules=rules,
        accountant=registry.load("accountants", told["accountant"])(),
        extra_plan=extra_plan,
        draw=lambda round, plan, eligible: told["rounds"][round % rounds][0],
        ledger=Ledger(),
    )


def _beside(account: PrivacyAccount, told: Story) -> None:
    """Half of the planned scores, and all else that is planned beside the rounds."""
    for kind in account.extra_plan.kinds:
        planned, count = account.extra_plan.planned(kind, account.rules, min(told["num_records"]))
        for number in range((count + 1) // 2):
            account.append(
                [
                    Charge(
                        round=number if kind == "score" else account.extra_plan.last,
                        silo=silo,
                        release=planned.release,
                        count=planned.count,
                        share=planned.share,
                        noise_id="beside",
                        kind=kind,
                    )
                    for silo in range(len(told["num_records"]))
                ]
            )
