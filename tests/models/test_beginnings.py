"""A model that begins with counts of labels says without features what the baseline says, which knows all labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dpfl_plugin.core.outcome_counts import PARTS, codes_of, num_codes
from dpfl_plugin.core.outcomes import Outcome, OutcomeKind
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.measures.answers import answers, baseline
from dpfl_plugin.models.build import build_model
from dpfl_plugin.models.linear import predicting

RNG = np.random.default_rng(0)
SIZE = 4000
OUTCOMES: dict[OutcomeKind, Outcome] = {
    "classes": Outcome(),
    "ordinal": Outcome("ordinal"),
    "regression": Outcome("regression", range=(-10.0, 90.0)),
    "counts": Outcome("counts", range=(0.0, 90.0)),
    "survival": Outcome("survival", range=(0.0, 12.0), edges=(2.0, 5.0, 12.0)),
}
LABELS = {
    "classes": RNG.choice(3, SIZE, p=[0.9, 0.08, 0.02]),
    "ordinal": RNG.choice(3, SIZE, p=[0.1, 0.7, 0.2]),
    "regression": RNG.gamma(2.0, 4.0, SIZE).astype(np.float32),
    "counts": np.stack([RNG.poisson(9.0, SIZE), np.ones(SIZE)], axis=1).astype(np.float32),
    "survival": np.stack([RNG.uniform(0, 12, SIZE), RNG.random(SIZE) < 0.3], axis=1).astype(np.float32),
}


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("classes", "softmax"),
        ("ordinal", "linear"),
        ("regression", "linear"),
        ("counts", "linear"),
        ("survival", "grouped_cox"),
        ("survival", "linear"),
    ],
)
def test_it_says_what_the_baseline_says(kind: OutcomeKind, model: str) -> None:
    """Of a regression as exactly as its parts are; of survival as exactly as half a bin is what the censored have."""
    outcome, labels = OUTCOMES[kind], LABELS[kind]
    count, width = num_codes(outcome, 3), outcome.num_outputs(3)
    codes = codes_of(outcome, torch.from_numpy(labels))
    shares = torch.bincount(codes, minlength=count).double() / SIZE
    module = build_model({"name": model}, (4,), width, 0, outcome)
    layout = Layout.of(module)
    begun = layout.unflatten(predicting(module, outcome, shares.clamp(min=1e-9).tolist()))
    outputs = torch.func.functional_call(module, begun, (torch.zeros(1, 4),))
    found, expected = answers(outcome, outputs.detach().double().numpy()), baseline(outcome, labels, width, 1)
    if kind in ("regression", "counts"):
        assert found.predicted == pytest.approx(expected.predicted, abs=100 / PARTS / 2)
    else:
        np.testing.assert_allclose(
            found.probabilities, expected.probabilities, atol=0.01 if kind == "survival" else 1e-6
        )


@pytest.mark.parametrize("kind", ["regression", "counts", "survival"])
def test_a_label_that_is_none_has_no_code(kind: OutcomeKind) -> None:
    labels = torch.from_numpy(LABELS[kind][:4]).clone()
    labels[1] = torch.nan
    codes = codes_of(OUTCOMES[kind], labels)
    assert (codes >= 0).tolist() == [True, False, True, True] and codes.max() < num_codes(OUTCOMES[kind], 3)
    far = torch.full_like(labels, 1e30)
    assert codes_of(OUTCOMES[kind], far).max() < num_codes(OUTCOMES[kind], 3)


def test_a_model_without_a_last_bias_is_refused() -> None:
    for module in (nn.Linear(4, 3, bias=False), nn.Linear(4, 2)):
        with pytest.raises(UnsupportedError, match="does not end with a linear layer that has a bias"):
            predicting(module, Outcome(), [0.2, 0.3, 0.5])
