"""How a silo reads what the server asks, and says that it has no upload."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from dpfl_plugin.adapters.agreement import Agreement
from dpfl_plugin.adapters.message import PROTOCOL, Message, check_vectors, value_of
from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.errors import LimitError, MessageError
from dpfl_plugin.runs.public_errors import owners_words

MOST: Final = 10**9  # rounds, steps and gradients of a round


def failure(agreement: Agreement | None, id: int, message: Message) -> Message:
    """The answer of a silo that could not answer, or not even begin: the same whatever the cause, which may be a
    record.

    Args:
        agreement: None where there is none yet: then the run is what the server calls it.
    """
    round, tag, run = (message.header.get(key) for key in ("round", "tag", "run"))
    sane = type(round) is int and isinstance(tag, str)
    about = {"dpfl": PROTOCOL, "run": run, "round": round if sane else 0, "tag": tag if sane else "", "silo": id}
    ours = {} if agreement is None else {"run": agreement.run, "model": agreement.structure}
    return Message({**about, **ours, "status": "failed"})


def refusal(agreement: Agreement | None, id: int, message: Message, error: LimitError) -> Message:
    """The answer of a silo whose owner does not let it take part, with what is public of why; nothing was released.

    Others' code, such as a loader, does not speak for the owner: of what it raises, the answer is that of a `failure`.
    """
    failed, words = failure(agreement, id, message), owners_words(error)
    return failed if words is None else Message({**failed.header, "status": "refused", "reason": words[:500]})


def facts(agreement: Agreement, id: int, round: Any, tag: Any) -> dict[str, Any]:
    return {"dpfl": PROTOCOL, "run": agreement.run, "round": round, "tag": tag, "silo": id}


def checked(agreement: Agreement, id: int, message: Message) -> tuple[int, str, str | None]:
    """(round, tag, the tag of this silo's last upload that counted) of a message that is in order."""
    header = message.header
    try:
        if header.get("dpfl") != PROTOCOL:
            raise MessageError(f"it is of protocol {str(header.get('dpfl'))[:20]}, and this version of {PROTOCOL}.")
        if value_of(header, "run", str) != agreement.run:
            built = header.get("model") == agreement.structure
            which = "the settings" if built else "the model is built differently"
            raise MessageError(
                f"it is of run {header['run'][:32]}, and this silo agreed to {agreement.run}: settings or "
                f"the model differ ({which})."
            )
        round, tag = value_of(header, "round", int), value_of(header, "tag", str)
        known = value_of(header, "counted", dict).get(str(id))
        if not (0 <= round < MOST and 0 < len(tag) <= 64 and (known is None or isinstance(known, str))):
            raise MessageError("its round, tag or counted make no sense.")
        check_vectors(message.vectors, agreement.down_with(message.vectors))
    except MessageError as error:
        raise MessageError(f"silo {id}, a message of the server: {error}") from error
    return round, tag, known


def plan_from(id: int, header: Mapping[str, Any]) -> RoundPlan:
    try:
        given = value_of(header, "plan", dict)
        share, smoothing = value_of(given, "share", list), value_of(given, "smoothing", list, type(None))
        plan = RoundPlan(
            local_steps=value_of(given, "local_steps", int),
            local_lr=float(value_of(given, "local_lr", float, int)),
            num_gradients=value_of(given, "num_gradients", int),
            participation="all",  # as far as this silo can tell: no word of the server's amplifies
            share=(float(share[0]), float(share[1])),
            phase=value_of(given, "phase", str),
            smoothing=None if smoothing is None else (str(smoothing[0]), float(smoothing[1])),
            silo_share=float(value_of(given, "silo_share", float, int)),
            participants=(id,),
            weights=(1.0,),
        )
        if not _makes_sense(plan):
            raise MessageError("its plan makes no sense.")
    except (IndexError, TypeError, ValueError, OverflowError) as error:
        raise MessageError(f"silo {id}, a message of the server: {error}") from error
    return plan


def _makes_sense(plan: RoundPlan) -> bool:
    """Whether its numbers are such as a round may have."""
    counts = all(0 <= count < MOST for count in (plan.local_steps, plan.num_gradients))
    numbers = (plan.local_lr, plan.silo_share, *(() if plan.smoothing is None else plan.smoothing[1:]))
    return counts and all(map(math.isfinite, numbers)) and 0 <= plan.share[0] < plan.share[1] <= 1
