"""Each loss, minimised without noise, against the estimators that people know; to 1e-4 of a coefficient."""

from __future__ import annotations

import warnings

import numpy as np
import pandas
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
from torch import Tensor, nn

from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Loss
from dpfl_plugin.gradients.outcome_losses import OutcomeLoss
from dpfl_plugin.measures.answers import answers, baseline
from dpfl_plugin.models.score_heads import BaselineHazards, Thresholds

N, D = 300, 2
AGREE = {"rtol": 0.0, "atol": 1e-4}
rng = np.random.default_rng(0)
X = rng.normal(size=(N, D))
SCORE = X @ np.array([0.8, -0.5])


def fitted(
    loss: Loss, outputs: int, labels: NDArray[np.float64], features: NDArray[np.float64] = X, *, cox: bool = False
) -> nn.Module:
    """The linear model that minimises the mean loss."""
    model: nn.Module = nn.Linear(features.shape[1], outputs)
    if isinstance(loss, losses.Cumulative):
        model = nn.Sequential(nn.Linear(features.shape[1], 1, bias=False), Thresholds(outputs + 1))
    if cox:
        model = nn.Sequential(nn.Linear(features.shape[1], 1, bias=False), BaselineHazards(outputs))
    model = model.double()
    for name, parameter in model.named_parameters():
        if name.endswith(("weight", "bias")):
            nn.init.zeros_(parameter)
    x, y = torch.from_numpy(features), torch.from_numpy(labels)
    optimiser = torch.optim.LBFGS(
        model.parameters(), max_iter=300, tolerance_grad=1e-11, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def step() -> Tensor:
        optimiser.zero_grad()
        value = loss(model(x), y).mean()
        value.backward()
        return value

    optimiser.step(step)  # type: ignore[no-untyped-call]
    return model.requires_grad_(False)


def of(outcome: Outcome, names: int = 1) -> OutcomeLoss:
    found = losses.find("auto", outcome.num_outputs(names), outcome, names)
    assert isinstance(found, OutcomeLoss)
    return found


def test_squared_is_least_squares_in_the_labels_unit() -> None:
    outcome = Outcome("regression", (-100.0, 300.0))
    y = 60 + 20 * SCORE + rng.normal(size=N)
    model = fitted(of(outcome), 1, y)
    expected = LinearRegression().fit(X, y).predict(X)
    found = answers(outcome, model(torch.from_numpy(X)).numpy()).predicted
    np.testing.assert_allclose(found, expected, **AGREE)


def test_huber_is_statsmodels_robust_regression() -> None:
    """With the scale that it estimates, by which its threshold is measured."""
    api = pytest.importorskip("statsmodels.api")
    y = 60 + 20 * SCORE + 5 * rng.standard_t(2, N)
    aim, exog = api.robust.norms.HuberT(t=1.345), api.add_constant(X)
    theirs = api.RLM(y, exog, M=aim).fit(update_scale=False, tol=1e-12, maxiter=500)
    outcome = Outcome("regression", (-100.0, 300.0), huber_delta=1.345 * float(theirs.scale))
    loss = losses.find("huber", 1, outcome)
    assert isinstance(loss, OutcomeLoss)
    found = answers(outcome, fitted(loss, 1, y)(torch.from_numpy(X)).numpy()).predicted
    np.testing.assert_allclose(found, exog @ theirs.params, **AGREE)
    squares = LinearRegression().fit(X, y).predict(X)
    assert abs(found - squares).max() > 0.1  # it is another estimate


@pytest.mark.parametrize(("classes", "outputs"), [(2, 1), (2, 2), (3, 3)])
def test_classes_are_logistic_regression(classes: int, outputs: int) -> None:
    """Probabilities: with as many outputs as classes, parameters are free by one vector."""
    y = np.digitize(SCORE + rng.logistic(size=N), [0.0, 1.0][: classes - 1])
    model = fitted(losses.find("auto", outputs), outputs, y)
    found = answers(Outcome(), model(torch.from_numpy(X)).numpy()).probabilities
    theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(X, y)
    np.testing.assert_allclose(found, theirs.predict_proba(X), **AGREE)


def test_counts_are_poisson_regression_with_exposure() -> None:
    outcome, exposure = Outcome("counts", (0.0, 50.0)), rng.uniform(0.5, 3, N)
    y = rng.poisson(exposure * np.exp(SCORE)).astype(float)
    model = fitted(of(outcome), 1, np.stack([y, exposure], axis=1))
    theirs = PoissonRegressor(alpha=0, tol=1e-10, max_iter=1000).fit(X, y / exposure, sample_weight=exposure)
    np.testing.assert_allclose(model.weight[0].numpy(), theirs.coef_, **AGREE)
    np.testing.assert_allclose(model.bias[0].item(), theirs.intercept_, **AGREE)
    api = pytest.importorskip("statsmodels.api")
    glm = api.GLM(y, api.add_constant(X), family=api.families.Poisson(), offset=np.log(exposure)).fit(tol=1e-12)
    np.testing.assert_allclose(model.weight[0].numpy(), glm.params[1:], **AGREE)


def test_levels_are_ordered_logits() -> None:
    miscmodels = pytest.importorskip("statsmodels.miscmodels.ordinal_model")
    levels = np.digitize(SCORE + rng.logistic(size=N), [-1.0, 0.5, 2.0])
    model = fitted(of(Outcome("ordinal"), 4), 3, levels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = miscmodels.OrderedModel(levels, X, distr="logit")
        params = theirs.fit(method="bfgs", disp=False, gtol=1e-9).params
    np.testing.assert_allclose(model[0].weight[0].numpy(), params[:D], **AGREE)
    np.testing.assert_allclose(model[1].thresholds().numpy(), theirs.transform_threshold_params(params)[1:-1], **AGREE)


def test_labels_are_logistic_regressions_each() -> None:
    y = (rng.random((N, 2)) < 1 / (1 + np.exp(-np.stack([SCORE, 1 - SCORE], axis=1)))).astype(float)
    model = fitted(of(Outcome("multi_label"), 2), 2, y)
    for k in range(2):
        theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(X, y[:, k])
        np.testing.assert_allclose(model.weight[k].numpy(), theirs.coef_[0], **AGREE)


EDGES = (1.0, 2.0, 3.0, 5.0)
SURVIVAL = Outcome("survival", (0.0, 5.0), EDGES)


def times(score: NDArray[np.float64] = SCORE) -> NDArray[np.float64]:
    """Censored within bins, and at the end of the last one."""
    time, censored = rng.exponential(3 * np.exp(-score)), rng.uniform(0, 8, len(score))
    event = (time <= np.minimum(censored, 5.0)).astype(float)
    return np.stack([np.minimum(np.minimum(time, censored), 5.0), event], axis=1)


def test_hazards_are_logistic_regressions_weighted_by_the_share_of_the_bin_at_risk() -> None:
    labels = times()
    time, event = labels.T
    model = fitted(of(SURVIVAL), 4, labels)
    begin = 0.0
    for b, end in enumerate(EDGES):
        happened = (event == 1) & (time <= end)
        share = np.where(event == 1, time > begin, np.clip((time - begin) / (end - begin), 0, 1))
        rows = share > 0
        theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
        theirs.fit(X[rows], happened[rows], sample_weight=share[rows])
        np.testing.assert_allclose(model.weight[b].numpy(), theirs.coef_[0], **AGREE)
        begin = end


MANY = 20_000  # records: a survival of .3 has a standard error of .004, a coefficient one of .01
LONG = rng.normal(size=(MANY, D)) * 0.5
OF_LONG = LONG @ np.array([0.8, -0.5])


def test_hazards_follow_kaplan_meier_though_people_leave_within_bins() -> None:
    """Who leaves within a bin counts for the share of it that they were there for; without them, S(5) is .06 less."""
    lifelines = pytest.importorskip("lifelines")
    labels = times(OF_LONG)
    curve = lifelines.KaplanMeierFitter().fit(*labels.T).survival_function_at_times(EDGES).to_numpy()
    model = fitted(of(SURVIVAL), 4, labels, np.zeros((MANY, 1)))
    found = answers(SURVIVAL, model(torch.zeros(1, 1, dtype=torch.float64)).numpy()).survival()
    np.testing.assert_allclose(found[0], curve, atol=0.01)
    np.testing.assert_allclose(baseline(SURVIVAL, labels, 4, 1).survival()[0], curve, atol=0.01)


def test_grouped_cox_is_cox_regression_of_times_that_are_not_known_exactly() -> None:
    """Also their baseline: survival at the ends of bins, of two people."""
    lifelines = pytest.importorskip("lifelines")
    labels = times(OF_LONG)
    model = fitted(of(SURVIVAL), 4, labels, LONG, cox=True)
    frame = pandas.DataFrame({"a": LONG[:, 0], "b": LONG[:, 1], "time": labels[:, 0], "event": labels[:, 1]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = lifelines.CoxPHFitter().fit(frame, "time", "event")
    np.testing.assert_allclose(model[0].weight[0].numpy(), theirs.params_.to_numpy(), atol=0.02)
    people = np.array([[0.5, 0.5], [-1.0, 0.5]])
    curves = theirs.predict_survival_function(pandas.DataFrame(people, columns=["a", "b"]), times=EDGES).to_numpy().T
    found = answers(SURVIVAL, model(torch.from_numpy(people)).numpy()).survival()
    np.testing.assert_allclose(found, curves, atol=0.01)
