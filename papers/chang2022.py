"""Chang, Seif, Tandon 2022, "Differentially Private Federated Learning with Drift Control" (CISS)."""

from __future__ import annotations

from typing import Final

from papers.chang_theory import DriftControlProblem, same_budget_variance
from dpfl_plugin.privacy.paper import Scheme, chang_last_round
from papers.items import Claim, Computed, Item, Lines, Paper, Part

DECAYS: Final[tuple[tuple[Scheme, float, int, float], ...]] = (
    (1, 0.998, 497, 0.9981),
    (2, 0.99992, 428, 0.99991),
)
"""Section IV: scheme, the beta that is printed, the round that is printed, the beta that gives it."""


def last_rounds() -> Computed:
    """The last rounds on a budget of 600 rounds of constant noise."""
    rows = []
    for scheme, beta, published, fits in DECAYS:
        found = [chang_last_round(scheme, b, threshold=200, local_steps=50, budget_rounds=600) for b in (beta, fits)]
        rows.append([str(scheme), f"{beta}", str(published), str(found[0]), f"{fits}", str(found[1])])
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
FIGURE_3_BETAS: Final[dict[Scheme, float]] = {1: 0.998, 2: 0.99998}
FIGURE_3_VARIANCE: Final = 8.0
FIGURE_3_THRESHOLD: Final = 200
FIGURE_3_ROUNDS: Final = 700
FIGURE_3_FIRST: Final = 100  # of the picture: the bounds of few rounds are far above the others


def bounds() -> Computed:
    """Corollaries 1 to 3 by rounds, while the budget of 700 rounds of constant noise lasts."""
    tau = FIGURE_3_PROBLEM.local_steps
    last: dict[Scheme, int] = {0: FIGURE_3_ROUNDS}
    for scheme, beta in FIGURE_3_BETAS.items():
        last[scheme] = chang_last_round(scheme, beta, FIGURE_3_THRESHOLD, tau, FIGURE_3_ROUNDS)
    stops = sorted({200, 300, 400, *last.values()})
    rows = []
    for scheme, end in last.items():
        cells = [_bound(scheme, R) if end >= R else "" for R in stops]
        rows.append([f"scheme {scheme}", *cells])
    for scheme, beta in FIGURE_3_BETAS.items():
        decay = {"variance": FIGURE_3_VARIANCE, "beta": beta, "threshold": FIGURE_3_THRESHOLD}
        same = same_budget_variance(scheme, last[scheme], tau, **decay)  # type: ignore[arg-type]
        value = FIGURE_3_PROBLEM.corollary(0, last[scheme], variance=same)
        cells = [f"{value:.4f}" if last[scheme] == R else "" for R in stops]
        rows.append([f"constant, sigma_0^2 = {same:.3f}", *cells])
    return ["bound after rounds", *map(str, stops)], rows


def _bound(scheme: Scheme, rounds: int) -> str:
    beta = FIGURE_3_BETAS.get(scheme, 1.0)
    given = {"variance": FIGURE_3_VARIANCE, "beta": beta, "threshold": FIGURE_3_THRESHOLD}
    return f"{FIGURE_3_PROBLEM.corollary(scheme, rounds, **given):.4f}"  # type: ignore[arg-type]


def curves() -> Lines:
    """The bounds round by round: of the three schemes, and of constant noise that spends as much in as few rounds."""
    tau, first = FIGURE_3_PROBLEM.local_steps, FIGURE_3_FIRST
    found: dict[str, tuple[list[float], list[float]]] = {}
    controls: dict[str, tuple[list[float], list[float]]] = {}
    schemes: dict[Scheme, float] = {0: 1.0, **FIGURE_3_BETAS}
    for scheme, beta in schemes.items():
        given = {"variance": FIGURE_3_VARIANCE, "beta": beta, "threshold": FIGURE_3_THRESHOLD}
        last = FIGURE_3_ROUNDS
        if scheme:
            last = chang_last_round(scheme, beta, FIGURE_3_THRESHOLD, tau, FIGURE_3_ROUNDS)
        rounds = list(range(first, last + 1))
        value = [FIGURE_3_PROBLEM.corollary(scheme, R, **given) for R in rounds]  # type: ignore[arg-type]
        found[f"scheme {scheme}"] = ([float(R) for R in rounds], value)
        if scheme:
            same = same_budget_variance(scheme, last, tau, **given)  # type: ignore[arg-type]
            constant = [FIGURE_3_PROBLEM.corollary(0, R, variance=same) for R in rounds]
            name = f"constant noise, {last} rounds (not published)"
            controls[name] = ([float(R) for R in rounds], constant)
    return {**found, **controls}


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
