"""The formulas of theorems: against numerical minima, by hand, and on losses that they are to bound."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy.accountants import Gaussian
from dpfl_plugin.privacy.events import SampledGaussian, Term
from papers.plans.base import Linear
from papers.plans.li import FedAvgSyncProblem, claimed_epsilon, noise_scale
from papers.plans.scaffnew import ScaffNewProblem, psi_0_bound

PROBLEM = ScaffNewProblem(
    mu=0.05, L=2.0, psi_0=300.0, clip_norm=0.5, num_silos=10, dimension=20, epsilon=50.0, delta=1e-5
)


@pytest.mark.parametrize("mu", [0.001, 0.05, 0.5, 1.9])
@pytest.mark.parametrize("iterations", [1, 30, 400])
def test_no_step_and_no_probability_is_better(mu, iterations):
    """eta* and p* minimise the bound of any T: over p on a fine grid, with the largest step and with smaller ones."""
    problem = replace(PROBLEM, mu=mu)
    best = problem.bound(problem.local_lr, problem.p, iterations)
    for p in np.linspace(1e-3, 1, 500):
        assert problem.bound(problem.local_lr, p, iterations) >= best * (1 - 1e-12)
    for smaller in (0.3, 0.9):
        bound = min(problem.bound(smaller * problem.local_lr, p, iterations) for p in np.linspace(1e-3, 1, 500))
        assert bound >= best * (1 - 1e-9)


@pytest.mark.parametrize("mu", [0.001, 0.05, 0.5])
@pytest.mark.parametrize("epsilon", [5.0, 50.0, 500.0])
def test_the_number_of_iterations_is_the_numerical_minimum(mu, epsilon):
    problem = replace(PROBLEM, mu=mu, epsilon=epsilon)
    found = minimize_scalar(
        lambda T: problem.bound(problem.local_lr, problem.p, T),
        bounds=(1, 1e5),
        method="bounded",
        options={"xatol": 1e-4},
    )
    assert problem.iterations == pytest.approx(found.x, abs=0.01, rel=1e-4)


def test_by_hand():
    """mu / L = 1 - 1/e, so that every logarithm is a whole number: T* = ln(psi_0 eps^2 / (v C^2 N d ln(1/delta)))."""
    problem = ScaffNewProblem(
        mu=1 - math.exp(-1),
        L=1.0,
        psi_0=math.exp(7),
        clip_norm=1,
        num_silos=1,
        dimension=1,
        epsilon=1,
        delta=math.exp(-1),
        v=1,
    )
    assert problem.iterations == pytest.approx(7)
    assert problem.local_lr == 1 and problem.p == pytest.approx(math.sqrt(1 - math.exp(-1)))


def test_more_privacy_wants_fewer_iterations_and_the_same_probability():
    """[S] Observation 3 for T, and Corollary 1 for p."""
    private, open_ = replace(PROBLEM, epsilon=5.0), replace(PROBLEM, epsilon=500.0)
    assert 1 <= private.iterations < open_.iterations and private.p == open_.p
    assert replace(PROBLEM, epsilon=1e-3).iterations == 1 == replace(PROBLEM, mu=2.0).iterations


# mu and L of the losses


def hessian(x, labels, l2, model, w):
    """Of the mean loss with its regulariser, at the flat parameters w, by automatic differentiation."""
    x1 = torch.column_stack([x, torch.ones(len(x), dtype=x.dtype)])

    def loss(w):
        scores = x1 @ w.reshape(-1, x1.shape[1]).T
        if model == "softmax":
            mean = torch.nn.functional.cross_entropy(scores, labels)
        else:
            mean = torch.nn.functional.binary_cross_entropy_with_logits(scores[:, 0], labels.double())
        return mean + l2 / 2 * w.square().sum()

    return torch.autograd.functional.hessian(loss, w)


@pytest.mark.parametrize(("model", "outputs"), [("logistic", 1), ("softmax", 2), ("softmax", 4)])
def test_mu_and_l_bound_the_hessian(model, outputs):
    """Everywhere; and at 0 L is attained where all probabilities are 1/2 and all records are one."""
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(30, 3, generator=rng, dtype=torch.float64)
    x = x / x.norm(dim=1, keepdim=True)
    labels = torch.randint(0, max(outputs, 2), (30,), generator=rng)
    L = Linear(model, True, max(outputs, 2)).smoothness(0.01)
    for scale in (0.0, 1.0, 10.0):
        w = scale * torch.randn(4 * outputs, generator=rng, dtype=torch.float64)
        eigenvalues = torch.linalg.eigvalsh(hessian(x, labels, 0.01, model, w))
        assert eigenvalues.min() >= 0.01 - 1e-9 and eigenvalues.max() <= L + 1e-9
        if scale == 0 and outputs <= 2:
            assert torch.linalg.eigvalsh(hessian(x[:1], labels[:1], 0.01, model, w)).max().item() == pytest.approx(L)


@pytest.mark.parametrize(("model", "outputs"), [("logistic", 1), ("softmax", 3)])
def test_the_bound_on_psi_0_holds_whatever_the_records_are(model, outputs):
    """Of silos with labels of their own and with random ones; h_0 = 0, x_0 = 0, so that F(x_0) = ln(classes)."""
    rng = torch.Generator().manual_seed(2)
    classes, l2, silos = max(outputs, 2), 0.05, []
    for silo in range(3):
        x = torch.randn(20, 3, generator=rng, dtype=torch.float64)
        labels = torch.full((20,), silo % classes) if silo < 2 else torch.randint(0, classes, (20,), generator=rng)
        silos.append((torch.column_stack([x / x.norm(dim=1, keepdim=True), torch.ones(20)]), labels))

    def loss(w, x, labels):
        scores = x @ w.reshape(outputs, 4).T
        if model == "softmax":
            mean = torch.nn.functional.cross_entropy(scores, labels)
        else:
            mean = torch.nn.functional.binary_cross_entropy_with_logits(scores[:, 0], labels.double())
        return mean + l2 / 2 * w.square().sum()

    w = torch.zeros(4 * outputs, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([w], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-15)

    def closure():
        optimiser.zero_grad()
        mean = sum(loss(w, *silo) for silo in silos) / len(silos)
        mean.backward()
        return mean

    assert closure().item() == pytest.approx(math.log(classes))
    optimiser.step(closure)
    mu, L = l2, Linear(model, True, classes).smoothness(l2)
    gradients = [torch.autograd.grad(loss(w, *silo), w)[0] for silo in silos]
    psi_0 = 3 * w.square().sum() + sum(g.square().sum() for g in gradients) / (L * mu)
    bound = psi_0_bound(math.log(classes), mu, 3)
    assert 0.05 * bound < psi_0.item() <= bound


@pytest.mark.parametrize(("model", "classes"), [("logistic", 2), ("softmax", 4)])
def test_no_gradient_of_a_record_is_longer_than_the_public_constant(model, classes):
    """And it is attained in the limit of scores that are sure and wrong."""
    longest = Linear(model, True, classes).lipschitz
    x = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)  # of norm 1, and the bias
    rng = torch.Generator().manual_seed(1)
    found = []
    for scale in (0.0, 1.0, 30.0):
        w = scale * torch.randn(1 if model == "logistic" else classes, 3, generator=rng, dtype=torch.float64)
        for label in range(classes):
            scores = w @ x
            gradient = scores.sigmoid() - label if model == "logistic" else scores.softmax(0)
            if model == "softmax":
                gradient = gradient - torch.nn.functional.one_hot(torch.tensor(label), classes)
            found.append((gradient.norm() * x.norm()).item())
    assert 0.99 * longest < max(found) <= longest + 1e-12


def test_without_a_bias():
    known = Linear("logistic", False, 2)
    assert (known.smoothness(0.5), known.lipschitz) == (0.75, 1)


# Li, Wang, Wu 2025

SYNC = FedAvgSyncProblem(
    mu=0.1,
    L=2.0,
    G=0.5,
    variance=0.3,
    heterogeneity=0.7,
    distance=3.0,
    num_silos=100,
    participants=100,
    num_records=60_000,
    batch_size=10,
    dimension=20,
    epsilon=0.5,
    delta=1e-5,
)


def test_theorem_3_by_hand():
    """With Q = 1 A has no drift and B no factor; without noise and drift only the start and 6 L Gamma are left."""
    A, B, H = SYNC.terms(1)
    assert (pytest.approx(0.3 / 10 + 6 * 2 * 0.7), 0.0) == (A, H)
    logarithms = math.log(60_000) * math.log(1.25**2 * 100 / (60_000 * 1e-10))
    assert pytest.approx(8 * 20 * 100 * 0.25 * logarithms / (60_000 * 4 * 0.25)) == B
    assert SYNC.terms(4)[0] == pytest.approx(A + 8 * 9 * 0.25)
    assert SYNC.terms(4)[1] == pytest.approx(
        B * 4**4 * (2 * 9 + 1) * math.log(1.25**2 * 1600 / 6e-6) / math.log(1.25**2 * 100 / 6e-6)
    )
    silent = replace(SYNC, epsilon=math.inf, variance=0.0, heterogeneity=0.0)
    assert silent.bound(1, 40) == pytest.approx(2 * 20 / (40 + 160) * 2 * 2 * 9)
    assert replace(SYNC, mu=2.0).alpha(50) == 50 and SYNC.alpha(50) == 160


def test_the_noise_of_theorem_3_is_lemma_a4s_integral_of_equation_20():
    """sum_k log(1.25 Q b / (k delta)) / k over k <= n, as an integral, and eta <= 1 / (4 L): B = 2 d (..) of that."""
    Q = 3
    inside = quad(lambda u: math.log(1.25 * Q * 10 / (math.exp(u) * 1e-5)), 0, math.log(60_000))[0]
    per_round = 128 * Q**4 * 100 * 0.25 / (60_000 * 0.25) * inside / (4 * 2.0) ** 2
    assert SYNC.terms(Q)[1] == pytest.approx(2 * 20 * per_round * (2 * (Q - 1) ** 2 + 1))


def test_theorem_4_charges_the_drawing_of_silos():
    """H = 4 Q^2 G^2 / K with replacement, (N - K) / (N - 1) of it without."""
    few = replace(SYNC, participants=10)
    assert replace(few, with_replacement=True).terms(3)[2] == pytest.approx(4 * 9 * 0.25 / 10)
    assert few.terms(3)[2] == pytest.approx(90 / 99 * 4 * 9 * 0.25 / 10)


def test_the_best_number_of_local_steps_is_the_least_bound():
    """It falls with the noise, to 1, and noise aside with what the drift of many steps costs ([L] Remark 4)."""
    found = []
    for epsilon in (0.5, 1e3, 1e5, math.inf):
        problem = replace(SYNC, epsilon=epsilon)
        Q = problem.local_steps(100, 60)
        assert problem.bound(Q, 100) == min(problem.bound(q, 100) for q in range(1, 61))
        found.append(Q)
    assert found == sorted(found) and found[0] == 1 < found[-1] < 60


# Its eq. 20, by its own lemmas and by its published form

ROUND = {"local_steps": 5, "batch_size": 10, "num_records": 600}
DELTA = 1e-5


def test_the_setting_of_its_section_4():
    """Q = 5, b = 10, n_k = 600, delta = 1e-5, epsilon = 0.5: sigma_k = 28.676 G eta."""
    assert noise_scale(**ROUND, epsilon=0.5, delta=DELTA) == pytest.approx(28.676, abs=5e-4)


def test_lemmas_1_to_3_by_hand():
    """q = 1/12: epsilon' = 3, delta' = 1.2e-4, and 20 G eta is the sensitivity."""
    expected = 20 * math.sqrt(2 * math.log(1.25 / 1.2e-4)) / 3
    assert noise_scale(**ROUND, epsilon=0.5, delta=DELTA) == pytest.approx(expected)


def test_the_weighted_sum_is_equation_20_as_published():
    """sum_k p_k sigma_k^2 = 128 eta^2 Q^4 b^2 G^2 / (n eps^2) sum_k log(1.25 Q b / (n_k delta)) / n_k."""
    counts, Q, b, epsilon = (600, 300, 1100), 5, 10, 0.7
    n = sum(counts)
    total = sum(
        k / n * noise_scale(local_steps=Q, batch_size=b, num_records=k, epsilon=epsilon, delta=DELTA) ** 2
        for k in counts
    )
    published = 128 * Q**4 * b**2 / (n * epsilon**2) * sum(math.log(1.25 * Q * b / (k * DELTA)) / k for k in counts)
    assert total == pytest.approx(published)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
def test_the_claim_is_the_inverse(epsilon):
    sigma = noise_scale(**ROUND, epsilon=epsilon, delta=DELTA)
    assert claimed_epsilon(sigma / (2 * 5), **ROUND, delta=DELTA) == pytest.approx(epsilon)


def test_the_claim_is_below_what_the_ledger_proves():
    """For a round of its section 4: 0.5 against the exact epsilon of the Gaussian that is released."""
    multiplier = noise_scale(**ROUND, epsilon=0.5, delta=DELTA) / (2 * 5)
    release = SampledGaussian(
        noise_multiplier=multiplier, sampler="full", rate=1.0, neighbouring="replace_one", unit="silo"
    )
    proven = Gaussian().epsilon([Term(release=release, count=1, rounds=1)], DELTA)
    assert proven > 2 * claimed_epsilon(multiplier, **ROUND, delta=DELTA)


def test_where_it_claims_nothing():
    with pytest.raises(ConfigError, match="Q b / n"):
        noise_scale(local_steps=31, batch_size=10, num_records=600, epsilon=0.5, delta=DELTA)
    with pytest.raises(ConfigError, match="delta"):
        claimed_epsilon(1.0, **ROUND, delta=0.1)
