"""Chang, Seif, Tandon 2022, "Differentially Private Federated Learning with Drift Control" (CISS)."""

from __future__ import annotations

from typing import Final

from dpfl_plugin.privacy.paper import Scheme, chang_last_round
from dpfl_plugin.published.items import Computed, Item, Paper

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
    why=(
        "The printed decays and the printed rounds do not go together; decays very close to them give the printed "
        "rounds.",
        "`configs/papers/chang2022.yaml` runs the three schemes in small, and `dpfl plan configs/papers/chang2022.yaml "
        "--solve rounds` tells the last round of each by the proven accountant.",
    ),
)

PAPER: Final = Paper(
    name="chang2022",
    short="Chang et al. 2022",
    reference="W.-T. Chang, M. Seif, R. Tandon: Differentially Private Federated Learning with Drift Control. "
    "CISS 2022",
    items=(ROUNDS,),
)
