"""What drafts train with: scales of the rule. What it is worth is measured by benchmarks/drafts.py."""

from __future__ import annotations

import math

import pytest

from dpfl_plugin.api.training_defaults import RARE, ROUNDS, STEPS, squared_norm_of, training_defaults


@pytest.mark.parametrize("outcome", ["classes", "ordinal", "regression", "counts", "survival"])
def test_lengths_scale_with_records_and_steps_with_their_squares(outcome) -> None:
    """As gradients and curvatures do: features that are k times as long train the same model with weights / k."""
    one, four = (
        training_defaults(outcome, squared - 1, num_records=1000, num_silos=4, epsilon=3.0) for squared in (4.0, 64.0)
    )
    assert four.clip_norm / one.clip_norm == pytest.approx(4, rel=0.05)
    assert four.local_lr / one.local_lr == pytest.approx(1 / 16, rel=0.1)


def test_steps_grow_with_the_signal_within_their_bounds() -> None:
    drafts = [
        training_defaults("classes", 3.0, num_records=n, num_silos=m, epsilon=epsilon)
        for n, m, epsilon in ((100, 4, 1.0), (1000, 4, 3.0), (1000, 1, 3.0), (4000, 4, 3.0), (10**6, 4, 3.0))
    ]
    steps = [draft.rounds * draft.local_steps for draft in drafts]
    assert steps == sorted(steps) and steps[0] == STEPS[0] and STEPS[1] <= steps[-1] < STEPS[1] + 3
    assert [draft.local_steps for draft in drafts] == [1, 1, 1, 2, 3]
    assert all(draft.rounds <= ROUNDS for draft in drafts)


def test_a_rare_class_is_counted_and_no_gradient_of_it_is_cut() -> None:
    usual, rare = (
        training_defaults("classes", 8.0, num_records=1000, num_silos=4, epsilon=3.0, rarest=share)
        for share in (RARE, RARE / 2)
    )
    assert not usual.count_labels and rare.count_labels
    assert rare.clip_norm == pytest.approx(math.sqrt(2) * usual.clip_norm, rel=0.05)


def test_the_norm_of_a_usual_record_follows_from_the_schema() -> None:
    columns = {
        "age": {"type": "number", "range": [0, 100], "missing": "indicator"},
        "sex": {"type": "category", "values": ["f", "m"]},
        "smoker": {"type": "category", "values": ["no", "yes"], "missing": "category"},
        "town": {"type": "category", "values": list("abcd")},
        "id": {"type": "ignored"},
    }
    assert squared_norm_of(columns) == 0.5 + 0.5 + 1 + 1
