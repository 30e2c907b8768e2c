"""Noble, Bellet, Dieuleveut 2022, "Differentially Private Federated Learning on Heterogeneous Data" (AISTATS)."""

from __future__ import annotations

from typing import Final

from dpfl_plugin.published.items import Claim, Item, Paper, Part

SCAFFOLD: Final = "DP-SCAFFOLD-warm"
FEDAVG: Final = "DP-FedAvg"
GAMMA: Final = "data.partition.gamma"

FIGURE_2: Final = Item(
    kind="figure",
    number="2",
    title="test accuracy on FEMNIST and MNIST",
    source="Section 5, Fig. 2: K = 50, l = s = 0.2, sigma_g = 30; MNIST: a 60-200-10 network, T = 100",
    parts=(
        Part(
            name="mnist",
            config="noble2022/mnist.yaml",
            title="MNIST",
            columns=GAMMA,
            settings=("sweep.seeds=3", "sweep.grid={data.partition.gamma: [0, 10, 100]}"),
            quick=("rounds=30", "sweep.seeds=2", "sweep.grid={data.partition.gamma: [0, 100]}"),
        ),
    ),
    claims=(
        Claim(
            text="DP-SCAFFOLD clearly outperforms DP-FedAvg under data heterogeneity",
            source="section 5",
            part="mnist",
            better=SCAFFOLD,
            worse=FEDAVG,
            at={GAMMA: 0},
        ),
    ),
)

PAPER: Final = Paper(
    name="noble2022",
    short="Noble et al. 2022",
    reference="M. Noble, A. Bellet, A. Dieuleveut: Differentially Private Federated Learning on Heterogeneous Data. "
    "AISTATS 2022, arXiv:2111.09278v3",
    items=(FIGURE_2,),
)
