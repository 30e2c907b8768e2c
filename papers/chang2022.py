"""Chang, Seif, Tandon 2022, "Differentially Private Federated Learning with Drift Control" (CISS)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from papers.chang_theory import DriftControlProblem, Scheme, last_round, same_budget_variance
from papers.items import Claim, Computed, Item, Lines, Paper, Part

DECAYS: Final[tuple[tuple[Scheme, float, int, float], ...]] = (
    (1, 0.998, 497, 0.9981),
    (2, 0.99992, 428, 0.99991),
)
"""Section IV: scheme, the beta that is printed, the round that is printed, the beta that gives it."""
DECAYING: Final[tuple[Scheme, ...]] = (1, 2)


def last_rounds() -> Computed:
    """Return the last rounds on a budget of 600 rounds of constant noise."""
    rows = []
    for scheme, beta, published, fits in DECAYS:
        ours, theirs = (last_round(scheme, b, threshold=200, local_steps=50, budget_rounds=600) for b in (beta, fits))
        rows.append([str(scheme), f"{beta}", str(published), str(ours), f"{fits}", str(theirs)])
    header = ["scheme", "printed beta", "printed round", "round of this beta", "beta of the printed round", "its round"]
    return header, rows


ROUNDS: Final = Item(
    kind="table",
    number="rounds",
    label="Rounds",
    title="rounds under decaying noise",
    source="Section IV: the last round that each schedule affords on the budget of 600 rounds of constant noise "
    "(R_th = 200, tau = 50), in the paper's own count of a budget",
    computed=last_rounds,
    reason="the printed decays and the printed rounds do not go together; decays very close to them give these rounds",
    why=(
        "The printed decays and the printed rounds do not go together; decays very close to them give the printed "
        "rounds.",
        "`papers/configs/chang2022.yaml` runs the three schemes in small, and `dpfl plan papers/configs/chang2022.yaml "
        "--solve rounds` tells the last round of each by the proven accountant.",
    ),
)

FIGURE_3_PROBLEM: Final = DriftControlProblem(
    num_silos=40,
    participants=8,
    local_steps=200,
    server_lr=2.0,
    batch_size=500,
    gradient_variance=1.0,  # not printed; about 1.5e-6 of what the noise adds
    distance=1.0,
    control_error=1.0,
)
FIGURE_3_BETAS: Final[Mapping[Scheme, float]] = {0: 1.0, 1: 0.998, 2: 0.99998}
FIGURE_3_VARIANCE: Final = 8.0
FIGURE_3_THRESHOLD: Final = 200
FIGURE_3_ROUNDS: Final = 700
FIGURE_3_FIRST: Final = 100  # of the picture: the bounds of few rounds are far above the others


def _last(scheme: Scheme) -> int:
    tau = FIGURE_3_PROBLEM.local_steps
    return last_round(scheme, FIGURE_3_BETAS[scheme], FIGURE_3_THRESHOLD, tau, FIGURE_3_ROUNDS)


def _bound(scheme: Scheme, rounds: int) -> float:
    beta = FIGURE_3_BETAS[scheme]
    return FIGURE_3_PROBLEM.corollary(
        scheme, rounds, variance=FIGURE_3_VARIANCE, beta=beta, threshold=FIGURE_3_THRESHOLD
    )


def _same_budget(scheme: Scheme) -> float:
    """Variance of constant noise that spends as much in as many rounds."""
    return same_budget_variance(
        scheme,
        _last(scheme),
        FIGURE_3_PROBLEM.local_steps,
        variance=FIGURE_3_VARIANCE,
        beta=FIGURE_3_BETAS[scheme],
        threshold=FIGURE_3_THRESHOLD,
    )


def bounds() -> Computed:
    """Return Corollaries 1 to 3 by rounds, while the budget of 700 rounds of constant noise lasts."""
    stops = sorted({200, 300, 400, *map(_last, FIGURE_3_BETAS)})
    rows = [
        [f"scheme {scheme}", *(f"{_bound(scheme, R):.4f}" if _last(scheme) >= R else "" for R in stops)]
        for scheme in FIGURE_3_BETAS
    ]
    for scheme in DECAYING:
        same, last = _same_budget(scheme), _last(scheme)
        value = f"{FIGURE_3_PROBLEM.corollary(0, last, variance=same):.4f}"
        rows.append([f"constant, sigma_0^2 = {same:.3f}", *(value if last == R else "" for R in stops)])
    return ["bound after rounds", *map(str, stops)], rows


def curves() -> Lines:
    """Return the bounds round by round: of the schemes, and of constant noise that spends as much in as few rounds."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for scheme in FIGURE_3_BETAS:
        rounds = range(FIGURE_3_FIRST, _last(scheme) + 1)
        found[f"scheme {scheme}"] = [float(R) for R in rounds], [_bound(scheme, R) for R in rounds]
    for scheme in DECAYING:
        rounds, same = range(FIGURE_3_FIRST, _last(scheme) + 1), _same_budget(scheme)
        constant = [FIGURE_3_PROBLEM.corollary(0, R, variance=same) for R in rounds]
        found[f"constant noise, {_last(scheme)} rounds (not published)"] = [float(R) for R in rounds], constant
    return found


FIGURE_3: Final = Item(
    kind="figure",
    number="3",
    title="bounds of convergence",
    source="Section III-B, Fig. 3: Corollaries 1 to 3, which are eq. 10 with the step of eq. 9, at sigma_0^2 = 8, R_th "
    "= 200, tau = 200, S = 8 of K = 40, B = 500, eta_g = 2, ||w_0 - w*|| = 1, C_0 = 1, beta = 0.998 (scheme 1) and "
    "0.99998 (scheme 2), on the budget of 700 rounds of constant noise",
    computed=bounds,
    lines=curves,
    lines_of="bound of E f - f*",
    reason="the schemes stop later than the rounds that the paper prints, and constant noise on the same budget has a "
    "lower bound than either",
    why=(
        "The schemes stop at rounds 546 and 474 in the paper's own count of a budget; it prints \"around R = 500 and "
        '400".',
        "At equal rounds noise that falls has the lower bound, as published: it has spent more. The last rows are the "
        "control that is missing there: constant noise that spends the same budget in as few rounds. Its bound is "
        "lower than the scheme's, and not by the choice of numbers: the bound grows with the sum of the variances, and "
        "of all noise with one sum of 1 / sigma^2 constant noise has the least.",
    ),
    differs=(
        "sigma^2 of the gradients is not printed: 1 here, which the bound does not feel.",
        "The budget is the sum of 1 / sigma^2 over steps, as the paper compares its schemes; its (11.5147, 1e-5) is by "
        "a count that is not proven, and no part of the bounds.",
    ),
)

SCHEMES: Final = ("scheme 1", "scheme 2")
CONTROLS: Final = ("constant, 189 rounds", "constant, 167 rounds")
FIGURE_4: Final = Item(
    kind="figure",
    number="4",
    title="schemes of noise on one budget",
    source="Section IV, Fig. 4: test accuracy of DP-SCAFFOLD until the budget of constant noise is used up; K = 40, p "
    "= 0.2, q = 0.2 (500 of 2,500 records), tau = 50, R_th = 200, beta = 0.998 (scheme 1) and 0.99992 (scheme 2)",
    parts=(
        Part(
            name="mnist",
            config="chang2022/mnist.yaml",
            title="MNIST, 40 silos",
            columns="data.partition.gamma",
            settings=("sweep={seeds: 3, grid: {data.partition.gamma: [0, 10, 100]}}",),
            quick=(
                "data.max_records_per_silo=250",
                "evaluation.every=24",
                "sweep={seeds: 2, grid: {data.partition.gamma: [0]}}",
            ),
        ),
    ),
    shown=(0.7, 0.9),
    claims=(
        *(
            Claim(
                text="decaying noise ends above constant noise, in fewer rounds",
                source="section IV",
                part="mnist",
                better=scheme,
                worse="scheme 0",
                at={},
            )
            for scheme in SCHEMES
        ),
        *(
            Claim(
                text="the same against constant noise of the same epsilon and rounds",
                source="our control",
                part="mnist",
                better=scheme,
                worse=control,
                at={},
                published=False,
            )
            for scheme, control in zip(SCHEMES, CONTROLS, strict=True)
        ),
    ),
    found=("At each gamma all lines end within a point of each other, at 1,200 training records a silo.",),
    why=(
        "The paper compares with constant noise over more rounds. The last two lines are the control that it lacks: "
        "constant noise, solved for the same epsilon and the same rounds. By the bounds of Fig. 3 it is ahead of "
        "falling noise, but those bounds are of the mean of all iterates; here the last models are scored, which "
        "favours falling noise.",
        "Towards a third party scheme 2 has an epsilon twice that of the others: while noise changes from step to step "
        "no amplification by the sampling of silos is proven, so that these rounds count in full.",
        "The paper's epsilon, 7.6769 at delta = 1e-5, counts the sampling of silos as if of records; ours is proven.",
    ),
    differs=(
        "MNIST for EMNIST, 240 of 1,200 records a step, 20 local steps for 50, 240 rounds of constant noise for 600, "
        "R_th = 80 for 200; beta is 0.994 (scheme 1) and 0.9994 (scheme 2), so that noise falls about as far in fewer "
        "rounds. Quick runs have 200 training records a silo.",
        "The clipping norm, 1, and the step, 0.5, are ours: the paper prints neither.",
        "sigma is 8 times the sensitivity; in what unit the paper's sigma_0^2 = 8 is, it does not say.",
        "Every line has the same epsilon, 8.77 to 8.81 as rounds are whole, for a silo that takes part in every round; "
        "the silo that is drawn most often "
        "decides what is shown.",
    ),
)

PAPER: Final = Paper(
    name="chang2022",
    short="Chang et al. 2022",
    reference="W.-T. Chang, M. Seif, R. Tandon: Differentially Private Federated Learning with Drift Control. "
    "CISS 2022",
    items=(FIGURE_3, FIGURE_4, ROUNDS),
)
