"""Li, Wang, Wu 2025: convergence of differentially private federated averaging (Mathematics 13(3), 497)."""

from __future__ import annotations

from typing import Final

from papers.items import Claim, Item, Paper, Part, Stated

IID: Final = "data.partition={name: iid}"
QUICK: Final = ("rounds=40", "sweep={seeds: 2}")
LOUDEST: Final = "eq. 20, 0.5 a round"
CLIPPING: Final = (
    "G is fixed (2 for MNIST, 1 for Adult); the paper takes the median of the unclipped norms of all gradients."
)
UNIT: Final = (
    "Epsilon is of a whole silo, after all rounds. The paper's is of one record and one round, by a lemma that takes "
    "the batches of a round for one sample, and of a whole run it states none."
)
ROOT: Final = (
    "The steps are eta_0 / sqrt(1 + t) with t over all iterations: after 100 rounds of 5 they are a 22nd of eta_0."
)
LENGTH: Final = "100 rounds and three seeds are ours: the text says neither."
BORDER: Final = (
    "Of the 100 silos of Adult that are sorted by label, one has records of both, as the border falls into it."
)
CHANCE: Final = (
    "Noise of eq. 20 is on every coordinate of the update: at 0.5 a round and Q = 5 its standard deviation is 28.7 "
    "(MNIST) and 54.7 (Adult) times G eta, while a silo's whole update is at most 5 G eta long. Guessing gets 10 % on "
    "MNIST, and the larger class is 76 % of Adult."
)


REASON: Final = "the noise of the paper's eq. 20 is on every coordinate, and far longer than a silo's update can be"


def _parts(suffix: str) -> tuple[Part, ...]:
    """MNIST and Adult, of few labels a silo and i.i.d."""
    return (
        Part(
            name="mnist",
            config=f"li2025/mnist{suffix}.yaml",
            title="MNIST, 4 labels a silo",
            settings=("sweep={seeds: 3}",),
            quick=QUICK,
        ),
        Part(
            name="mnist-iid",
            config=f"li2025/mnist{suffix}.yaml",
            title="MNIST, i.i.d.",
            settings=(IID, "sweep={seeds: 3}"),
            quick=None,
        ),
        Part(
            name="adult",
            config=f"li2025/adult{suffix}.yaml",
            title="Adult, 1 label a silo",
            settings=("sweep={seeds: 3}",),
            quick=QUICK,
        ),
        Part(
            name="adult-iid",
            config=f"li2025/adult{suffix}.yaml",
            title="Adult, i.i.d.",
            settings=(IID, "sweep={seeds: 3}"),
            quick=None,
        ),
    )


FIGURE_2: Final = Item(
    kind="figure",
    number="2",
    title="test accuracy by claimed privacy",
    source="Section 4.2, Fig. 2: N = 100, K = 10, Q = 5, b = 10; claimed epsilons of a round",
    parts=_parts(""),
    claims=(
        *(
            Claim(
                text="strong privacy without a significant decrease in accuracy (less than 5 points)",
                source="section 4.2",
                part=part,
                better=LOUDEST,
                worse="no noise",
                at={},
                least=-0.05,
            )
            for part in ("mnist", "mnist-iid", "adult", "adult-iid")
        ),
    ),
    stated=(
        Stated(
            text="MNIST tolerates noise better than Adult",
            source="section 4.2",
            ours="the other way: MNIST loses more of its accuracy.",
        ),
    ),
    reason=REASON,
    found=(
        "Strong privacy without a significant decrease of accuracy, as published, is not found with the noise of the "
        "paper's own eq. 20, added as its algorithm adds it.",
        "With the steps of the paper Adult gets no further than its larger class without noise either.",
    ),
    why=(CHANCE, ROOT),
    differs=(
        CLIPPING,
        UNIT,
        "The claimed epsilons of the figure's lines are not in the text; 0.5, 1 and 2 are ours.",
        LENGTH,
        BORDER,
    ),
)
FIGURE_3: Final = Item(
    kind="figure",
    number="3",
    title="test accuracy by local steps",
    source="Section 4.3, Fig. 3: a claimed epsilon of 0.5 a round, K = 10, b = 10",
    parts=_parts("_steps"),
    claims=(
        Claim(
            text="large Q does not hurt on MNIST",
            source="section 4.3",
            part="mnist",
            better="Q = 30",
            worse="Q = 1",
            at={},
        ),
        Claim(
            text="a large Q slows Adult down",
            source="section 4.3",
            part="adult",
            better="Q = 1",
            worse="Q = 16",
            at={},
        ),
    ),
    stated=(
        Stated(
            text="excessively small values of Q slow Adult down, too; the best Q of MNIST is significantly larger than "
            "Adult's",
            source="section 4.3",
            ours="Q = 1 is the best of those tried, on both data sets.",
        ),
    ),
    reason=REASON,
    why=(
        CHANCE,
        "Eq. 20's noise grows with Q squared, an update only with Q; `python -m papers plan li2025` finds Q = 1 the "
        "best number of local steps by the bound of Theorem 3 whenever this noise is what matters.",
    ),
    differs=(
        CLIPPING,
        UNIT,
        "Q = 1, 5, 10, and the most for which eq. 20 claims anything (Q b / n at most 1/2): 30 and 16.",
        LENGTH,
        BORDER,
    ),
)

PAPER: Final = Paper(
    name="li2025",
    short="Li et al. 2025",
    reference="Y. Li, S. Wang, Q. Wu: Convergence Analysis for Differentially Private Federated Averaging in "
    "Heterogeneous Settings. Mathematics 13(3), 497, 2025",
    items=(FIGURE_2, FIGURE_3),
    text='Runs called "eq. 20, 2 a round" have the noise that eq. 20 of the paper gives for an epsilon of 2 in each '
    "round: that is what the paper claims. What is proven, for all rounds together, is in the columns of epsilon.",
)
