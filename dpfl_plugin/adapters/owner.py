"""What the owner of a silo's data has to say, at the owner's machine: limits, the agreed plan, and where things are."""

from __future__ import annotations

import functools
import logging
import math
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.adapters.agreement import Agreement
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.errors import ConfigError, LedgerError, LimitError, require
from dpfl_plugin.owners.lifetime import Lifetime
from dpfl_plugin.owners.limits import NONE_SET, SIMULATED, Limits, Surroundings, find_limits
from dpfl_plugin.privacy.composition import compositions
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.slots import from_plain, released, to_plain, together
from dpfl_plugin.runs.agreed_plan import AgreedPlan, agreed_plan
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runs.forecast import Forecast
from dpfl_plugin.runs.privacy_rules import privacy_rules

LOG: Final = logging.getLogger("dpfl_plugin.silo")
KEPT_NO_PLAN: Final = (
    "begun by a version that kept no plan of what may be released: one is kept to from here on, and what was released "
    "counts."
)


def silo_limits(
    surroundings: Surroundings, named: object = None, by: str = "", *, own: int | None = None
) -> Limits | None:
    """The limits that the owner of a silo's data has set on this machine; None in a simulation without any.

    Args:
        surroundings: None are needed in a simulation only; decided by whoever starts this process, never by a server.
        named, by: see `find_limits`. own: the silo, where one machine plays several, each an owner of its own.

    Raises:
        LimitError: a deployment has none, or they cannot be used (see `find_limits`).
    """
    try:
        limits = find_limits(named, by)
    except ConfigError as error:
        raise LimitError(str(error), "the limits on the silo's machine cannot be used; its own log says why") from error
    if limits is None and surroundings == "deployment":
        raise LimitError(f"{NONE_SET}.", "the owner of the data has set no limits")
    if limits is None:
        say_once(logging.WARNING, SIMULATED)
    return limits if limits is None or own is None else limits.of_silo(own)


@functools.cache
def say_once(level: int, text: str) -> None:
    """To the silo's log; a platform may open a silo for every message."""
    LOG.log(level, "%s", text)


def place(folder: Path | str | None, limits: Limits | None, agreement: Agreement, id: int) -> Path:
    """Where a silo keeps what lasts: in the owner's folder, if there are limits.

    Raises:
        ConfigError: no folder is named, or one that is not in the owner's.
    """
    if limits is None:
        require(folder is not None, "folder", folder, "be given where no limits name one")
        return Path(str(folder))
    if folder is None:
        return limits.folder / f"silo-{id}-{agreement.run}"
    if not Path(folder).resolve().is_relative_to(limits.folder.resolve()):
        raise ConfigError(
            f"folder={str(folder)!r} is not in {limits.folder}, which {limits.source} names. Leave folder out: it then "
            "is in a place there."
        )
    return Path(folder)


def plan_of(
    config: Config,
    agreement: Agreement,
    parts: Parts,
    begun: Ledger | None,
    id: int,
    *,
    needed: bool,
) -> AgreedPlan | None:
    """The slots of a silo, as they were when its agreement began; None where nothing bounds what is released.

    Args:
        config: as the silo sees it. begun: its ledger; None if it begins.
        needed: whether there has to be a plan though no epsilon was agreed on: where an owner has set limits.

    Raises:
        LedgerError: it was begun by a version that kept no plan, and what it released does not fit together with one.
        ConfigError, UnsupportedError: see `agreed_plan`.
    """
    privacy, known = config.privacy, {} if begun is None else begun.facts
    if "slots" in known:
        epsilon = known.get("plan_epsilon")
        return AgreedPlan(tuple(from_plain(known["slots"])), math.inf if epsilon is None else epsilon, privacy.delta)
    if privacy.epsilon is None and not needed:
        return None
    # As the server plans: by what both sides know, and not by the numbers of records that are known here alone.
    setting, num_records = agreement.setting, parts.num_records
    forecast = Forecast(config, agreement.algorithm, parts.accountant, setting, num_records, privacy_rules)
    plan = agreed_plan(forecast, parts.rules, num_records[id])
    if begun is None:
        return plan
    whole = tuple(together(plan.planned, released(begun)))
    if KEPT_NO_PLAN not in begun.notes:
        begun.note(KEPT_NO_PLAN)
        begun.sync()
    if set(whole) == set(plan.planned):
        return plan
    found = max(parts.accountant.epsilon(terms, privacy.delta) for terms in compositions(whole))
    if privacy.epsilon is not None and not found <= privacy.epsilon:
        raise LedgerError(
            f"{begun.path}: what it holds was not released by the agreed plan. With what is left of that it comes to "
            f"epsilon {digits(found, 6)}, above {privacy.epsilon:g}. Begin a new agreement; what is in it stays spent."
        )
    return AgreedPlan(whole, max(found, plan.epsilon), privacy.delta)


def plan_facts(plan: AgreedPlan | None) -> dict[str, Any]:
    """What a silo's ledger keeps of its plan, for `plan_of`."""
    if plan is None:
        return {}
    epsilon = plan.epsilon if math.isfinite(plan.epsilon) else None
    return {"slots": to_plain(plan.planned), "plan_epsilon": epsilon}


def begins(id: int, plan: AgreedPlan | None, folder: Path, lifetime: Lifetime | None) -> str:
    """The line with which a run begins in the log of a silo."""
    if lifetime is not None and plan is not None:
        return f"silo {id}: {lifetime.line(plan.epsilon, plan.delta, folder)}"
    agreed = "none" if plan is None else f"{digits(plan.epsilon, 6)} at delta {digits(plan.delta, 6)}"
    return f"silo {id}: agreed epsilon {agreed}; folder {folder}; no limits are set, so no lifetime budget is kept"
