"""How a run ended, and what ended it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

Status = Literal["done", "budget_exhausted", "interrupted", "failed"]
EXIT_CODES: Final[dict[Status, int]] = {"done": 0, "failed": 1, "budget_exhausted": 3, "interrupted": 4}
"""Of commands that run one."""


class Cause(StrEnum):
    """What ended a run: `cause` in `result.json`."""

    ROUNDS = "rounds"  # all of them were made
    EARLY_STOPPING = "early_stopping"
    CALLBACK = "callback"  # which saw measurements of raw records
    CALLBACK_OF_RELEASED = "callback_of_released"  # which saw released scores alone
    CALLBACK_FAILED = "callback_failed"
    BUDGET = "budget"
    MAX_PARTICIPATIONS = "max_participations"  # too few silos may take part once more
    STOP_REQUESTED = "stop_requested"
    PAUSED = "paused"  # where a tuning compares it with other candidates
    NOT_FINITE = "not_finite"  # the model or its loss
    TOO_FEW_SILOS = "too_few_silos"  # the others were lost
    ERROR = "error"


BY_CALLBACK: Final = (Cause.CALLBACK, Cause.CALLBACK_OF_RELEASED)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended; ``reason`` in words where it did not simply finish."""

    status: Status
    cause: Cause
    reason: str = ""


# Results of versions without `cause` tell it by how their reason begins. These texts are those of then.
CAUSES_BY_REASON: Final = {
    r"too few silos may take part in another round": Cause.MAX_PARTICIPATIONS,
    r"stopped early after round": Cause.EARLY_STOPPING,
    r"the training loss is": Cause.NOT_FINITE,
    r"the global model is not finite": Cause.NOT_FINITE,
    r"after round \d+: \d+ silos are left": Cause.TOO_FEW_SILOS,
}
CAUSES_BY_STATUS: Final = {
    "done": Cause.ROUNDS,
    "budget_exhausted": Cause.BUDGET,
    "interrupted": Cause.STOP_REQUESTED,
    "failed": Cause.ERROR,
}


def cause_of(result: Mapping[str, Any]) -> Cause:
    """What ended the run whose `result.json` this is, of any version."""
    if "cause" in result:
        return Cause(result["cause"])
    status, reason = result["status"], result["reason"]
    for begins, cause in CAUSES_BY_REASON.items():
        if re.match(begins, reason):
            return cause
    # With `rounds` left out the budget is what a finished run was asked to use up: that alone gives a reason here.
    return Cause.BUDGET if status == "done" and reason else CAUSES_BY_STATUS[status]
