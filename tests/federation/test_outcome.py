"""What ended a run is a type, and results from before there was one are read as well."""

from __future__ import annotations

import pytest

from dpfl_plugin.federation.outcome import Cause, cause_of

# What versions without `cause` wrote: (status, reason).
OLD = {
    ("done", ""): Cause.ROUNDS,
    ("done", "round 8 would take epsilon to 2.1, beyond 2"): Cause.BUDGET,  # `rounds` was left out
    ("done", "stopped early after round 4 of 9: the best score, 0.9, is that after round 2"): Cause.EARLY_STOPPING,
    ("done", "too few silos may take part in another round: 0 of 5"): Cause.MAX_PARTICIPATIONS,
    ("budget_exhausted", "round 8 would take epsilon to 2.1, beyond 2"): Cause.BUDGET,
    ("budget_exhausted", "too few silos may take part in another round: 0 of 5"): Cause.MAX_PARTICIPATIONS,
    ("interrupted", "asked to stop; ended after round 3"): Cause.STOP_REQUESTED,
    ("failed", "the training loss is nan after round 3; it was last finite after round 2"): Cause.NOT_FINITE,
    ("failed", "the global model is not finite after round 3; its loss was last finite"): Cause.NOT_FINITE,
    ("failed", "after round 3: 1 silos are left, fewer than runtime.min_silos=2"): Cause.TOO_FEW_SILOS,
    ("failed", "round 3: too few silos may take part in another round"): Cause.ERROR,  # words of a stranger
}


@pytest.mark.parametrize(("status", "reason"), OLD)
def test_an_older_result_tells_its_cause_by_status_and_reason(status: str, reason: str) -> None:
    assert cause_of({"status": status, "reason": reason}) is OLD[status, reason]


@pytest.mark.parametrize("cause", Cause)
def test_a_cause_is_believed_whatever_the_reason_says(cause: Cause) -> None:
    for status, reason in OLD:
        assert cause_of({"status": status, "reason": reason, "cause": str(cause)}) is cause
