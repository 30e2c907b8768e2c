"""Both attacks on a configuration, with its noise and without: an experiment by somebody who holds all records."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from dpfl_plugin.attacks import roc
from dpfl_plugin.attacks.bounds import Bound, bound
from dpfl_plugin.attacks.inversion import Inverted, batches, first_layer, invert, tells_more
from dpfl_plugin.attacks.membership import Attack
from dpfl_plugin.attacks.transcript import listen
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.streams import stream
from dpfl_plugin.errors import ConfigError, require
from dpfl_plugin.privacy.clipping import Flat
from dpfl_plugin.privacy.composition import silo_compositions
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.runs.build import Parts, build, refuse_outcome

FPR = 0.01
MESSAGES = 8  # of one record; and one message of so many records

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Membership:
    """Membership inference against one setting.

    Attributes:
        runs: members' and non-members' scores of each seed.
        rounds: that the silo took part in, in the first run.
        epsilon: at the configuration's delta, of what the silo released; math.inf without noise.
        bound: on any attack; it allows everything without noise.
    """

    runs: tuple[roc.Scores, ...]
    rounds: int
    epsilon: float
    bound: Bound
    auc: roc.Measured
    tpr: roc.Measured


def is_private(config: Config, base: Path) -> bool:
    """Whether a run of ``config`` adds noise."""
    return noise_multiplier(build(config, base).rules) > 0


def noise_multiplier(rules: PrivacyRules) -> float:
    """sigma_g of what is added, which a release that reads data without noise as well is not charged as."""
    return rules.mechanism.event("full", 1.0, rules.neighbouring, rules.unit).noise_multiplier


def check_silo(silo: int, parts: Parts) -> None:
    """Raise ConfigError unless the run has such a silo, UnsupportedError unless its labels are classes."""
    refuse_outcome(parts, "an attack")
    count = len(parts.num_records)
    require(0 <= silo < count, "silo", silo, f"be one of the run's {count} silos", f"They are 0 to {count - 1}.")


def membership(config: Config, base: Path, silo: int, repeats: int, note: Note) -> Membership:
    """Attack ``repeats`` runs of ``config``, with the seeds from its own on: data, split, model and noise anew in each.

    Raises:
        ConfigError: the silo never takes part; or as `build` and `Listener.hear`.
    """
    runs, facts = [], None
    for repeat in range(repeats):
        seeded = config.model_copy(update={"seed": config.public_seed + repeat})
        parts = build(seeded, base)
        check_silo(silo, parts)
        attack, ledger = Attack(parts, silo), Ledger()
        scores = attack.scores(listen(seeded, parts, silo, ledger, f"attack-{noise_multiplier(parts.rules)!r}"))
        members = attack.candidates.num_members
        runs.append((scores[:members].numpy(), scores[members:].numpy()))
        if facts is None:
            facts = _facts(config, parts, ledger, silo)
        note(f"seed {seeded.public_seed}: AUC {roc.auc(*runs[-1]):.3f}")
    assert facts is not None
    rounds, epsilon, limit = facts
    rng = stream(config.public_seed, "attack", step=1)
    tpr = partial(roc.tpr_at, fpr=FPR)
    return Membership(
        runs=tuple(runs),
        rounds=rounds,
        epsilon=epsilon,
        bound=limit,
        auc=roc.measure(runs, roc.auc, rng),
        tpr=roc.measure(runs, tpr, rng),
    )


def _facts(config: Config, parts: Parts, ledger: Ledger, silo: int) -> tuple[int, float, Bound]:
    """(rounds the silo took part in, its epsilon, the bound): from what was charged."""
    charges = [charge for charge in ledger if charge.silo == silo]
    if not charges:
        raise ConfigError(f"silo={silo} takes part in no round with seed {config.public_seed}. Use more rounds.")
    compositions = silo_compositions(charges)[silo]
    epsilon = max(parts.accountant.epsilon(terms, config.privacy.delta) for terms in compositions)
    relation = charges[0].release.neighbouring
    return (
        len({charge.round for charge in charges}),
        epsilon,
        bound(parts.accountant, compositions, replace_one=relation == "replace_one"),
    )


@dataclass(frozen=True, slots=True)
class Inversion:
    """Gradient inversion in one setting: ``single`` messages of one record each, ``batch`` one of several."""

    single: tuple[Inverted, ...]
    batch: Inverted | None

    @property
    def correlation_single(self) -> float:
        """Mean over the messages of one record."""
        return statistics.fmean(float(one.correlations[0]) for one in self.single)

    @property
    def against_guesses(self) -> dict[str, tuple[float, bool]]:
        """By "batch of 1" and "batch of N": the correlation that guessing reaches, and whether the attack tells more.

        nan, and False, where the silo has no other records to guess by.
        """
        groups = {"batch of 1": self.single} | ({} if self.batch is None else {self._batch_name: (self.batch,)})
        found = {}
        for name, parts in groups.items():
            correlations, guesses = (
                torch.cat([getattr(one, what) for one in parts]) for what in ("correlations", "guesses")
            )
            found[name] = (float(guesses.mean()), tells_more(correlations, guesses))
        return found

    @property
    def _batch_name(self) -> str:
        assert self.batch is not None
        return f"batch of {len(self.batch.originals)}"

    @property
    def num_features(self) -> int:
        """Numbers of a record."""
        return self.single[0].originals[0].numel()


def inversion(config: Config, base: Path, silo: int) -> tuple[Inversion, Inversion | None]:
    """Attack first messages of a silo without noise and, where the configuration has any, with it.

    Raises:
        UnsupportedError: the model is not known to the attack.
    """
    parts = build(config, base)
    check_silo(silo, parts)
    first_layer(parts.module)  # refused before any work
    chosen = batches(parts.num_records[silo], config.public_seed, [1] * MESSAGES + [MESSAGES])
    quiet = _inversion(parts, silo, config.public_seed, chosen, noise=False)
    private = noise_multiplier(parts.rules) > 0
    return quiet, _inversion(parts, silo, config.public_seed, chosen, noise=True) if private else None


def _inversion(parts: Parts, silo: int, seed: int, chosen: Sequence[torch.Tensor], *, noise: bool) -> Inversion:
    rules = parts.rules if noise else replace(parts.rules, mechanism=Gaussian(0.0), clipping=Flat())
    quiet = replace(parts, rules=rules)
    found = [invert(quiet, silo, batch, seed, message) for message, batch in enumerate(chosen)]
    single = tuple(one for one in found if len(one.originals) == 1)
    return Inversion(single, next((one for one in found if len(one.originals) > 1), None))
