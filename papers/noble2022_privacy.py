"""The epsilons that Noble et al. 2022 print, and what is sound: tables that take no run."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dpfl_plugin.core.rounding import places
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.paper import NOBLE_THIRD_PARTY_UNSOUND, noble_third_party_epsilon
from papers.items import Computed, Item
from papers.plans.base import most
from papers.plans.noble import largest_rounds

RECORD_RATE: Final = 0.2
LOCAL_STEPS: Final = 50
MOST_ROUNDS: Final = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """An epsilon that Noble et al. print: section 5 for the setting; figures 1 to 3 and appendix D.3.3 for epsilon.

    Attributes:
        num_records: R of a silo, of which 80 % train; delta = 1 / (M R) counts these.
    """

    name: str
    epsilon: str
    noise_multiplier: float
    rounds: int
    silo_rate: float
    num_silos: int
    num_records: int

    @property
    def delta(self) -> float:
        return 1 / (self.num_silos * self.num_records * 0.8)


CAPTIONS: Final = (
    Published(name="synthetic", epsilon="13", noise_multiplier=60, rounds=400, silo_rate=0.2, num_silos=100,
              num_records=5000),
    Published(name="FEMNIST", epsilon="11.4", noise_multiplier=30, rounds=400, silo_rate=0.2, num_silos=40,
              num_records=2500),
    Published(name="MNIST", epsilon="7.2", noise_multiplier=30, rounds=100, silo_rate=0.2, num_silos=60,
              num_records=1000),
    Published(name="synthetic, l = 0.05", epsilon="4.2", noise_multiplier=60, rounds=400, silo_rate=0.05,
              num_silos=100, num_records=5000),
)  # fmt: skip

# Table 1: the largest T for epsilon = 3, l = 0.05, s = 0.2, synthetic data; rows by sigma_g, columns by K.
TABLE_1_STEPS: Final = (1, 5, 10, 20, 40)
TABLE_1: Final[Mapping[int, tuple[int, ...]]] = {
    10: (542, 488, 428, 324, 72),
    20: (545, 502, 451, 352, 83),
    40: (546, 505, 457, 360, 86),
    80: (546, 506, 458, 362, 87),
    160: (546, 506, 458, 362, 87),
}


def epsilons() -> Computed:
    """The captions: published, their recipe, and what is sound."""
    rows = []
    for p in CAPTIONS:
        recipe = noble_third_party_epsilon(
            noise_multiplier=p.noise_multiplier,
            local_steps=LOCAL_STEPS,
            rounds=p.rounds,
            silo_rate=p.silo_rate,
            record_rate=RECORD_RATE,
            num_silos=p.num_silos,
            delta=p.delta,
        )
        server, third_party = (
            PLD().epsilon([_term(p.noise_multiplier, LOCAL_STEPS, p.rounds, chance)], p.delta)
            for chance in (1.0, p.silo_rate)
        )
        setting = [f"{p.noise_multiplier:g}", str(p.rounds), f"{p.silo_rate:g}", f"{p.delta:.3g}"]
        rows.append([p.name, *setting, p.epsilon, f"{recipe:.3f}", places(third_party, 3), places(server, 3)])
    header = ["data", "sigma_g", "T", "l", "delta", "published", "their recipe", "third party", "server, every round"]
    return header, rows


def rounds() -> Computed:
    """Table 1: published T, their recipe's, and the most that a sound epsilon of 3 allows."""
    delta = CAPTIONS[0].delta
    rows = []
    for sigma, published in TABLE_1.items():
        cells = []
        for steps, theirs in zip(TABLE_1_STEPS, published, strict=True):
            recipe = largest_rounds(
                epsilon=3.0,
                noise_multiplier=sigma,
                local_steps=steps,
                silo_rate=0.05,
                record_rate=RECORD_RATE,
                num_silos=100,
                delta=delta,
            )
            sound = most(functools.partial(_is_sound, sigma, steps, delta), MOST_ROUNDS)
            cells.append(f"{theirs} / {recipe} / {sound:,}{'+' * (sound == MOST_ROUNDS)}")
        rows.append([str(sigma), *cells])
    return ["sigma_g", *(f"K = {steps}" for steps in TABLE_1_STEPS)], rows


def _is_sound(sigma: float, local_steps: int, delta: float, rounds: int) -> bool:
    return PLD().epsilon([_term(sigma, local_steps, rounds, 0.05)], delta) <= 3.0


def _term(sigma: float, local_steps: int, rounds: int, participation: float) -> Term:
    release = SampledGaussian(
        noise_multiplier=sigma, sampler="fixed", rate=RECORD_RATE, neighbouring="replace_one", unit="record"
    )
    return Term(release=release, count=local_steps, rounds=rounds, participation=participation)


EPSILONS: Final = Item(
    kind="table",
    number="epsilons",
    label="Epsilons",
    title="the published epsilons",
    source="The captions of figures 1 to 3 and of appendix D.3.3, K = 50, s = 0.2. 'Their recipe' reproduces "
    "the published numbers (`dpfl_plugin.privacy.paper`), and is not a guarantee; 'third party' and 'server, every "
    "round' are what is sound, and tight: the mixture of taking part and not, and a silo that takes part in all "
    "rounds, both by `pld`",
    computed=epsilons,
    reason="the recipe of the published third-party epsilons is not a guarantee",
    why=(
        NOBLE_THIRD_PARTY_UNSOUND,
        "Here the sound numbers are below the published ones: the recipe's Lemma B.7 gives away more than its unproven "
        "steps win. It need not be so: with one silo a round and K = 1 the recipe promises a tenth of what is lost "
        "(`tests/privacy/test_paper.py`).",
    ),
)  # fmt: skip

ROUNDS: Final = Item(
    kind="table",
    number="rounds",
    label="Rounds",
    title="the rounds of Table 1",
    source="Table 1 prints the largest T at which the recipe stays within epsilon = 3 (l = 0.05). Each cell: published "
    "/ their recipe / the most rounds with a sound third-party epsilon of 3. At sigma_g = 160 the printed T of K = 5, "
    "10 and 20 is one below the recipe's",
    computed=rounds,
)
