"""The privacy statement of a run as data: `ledger.json`; in words: `dpfl_plugin.privacy.statement_page`.

What of the statement may be published: `published`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dpfl_plugin.config.privacy import OF_PERSONS
from dpfl_plugin.config.schema import SCHEMA_KEY, Config
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.data.base import AS_READ
from dpfl_plugin.data.schema import TableSchema
from dpfl_plugin.federation.outcome import Cause
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.claims.base import finite
from dpfl_plugin.privacy.held_by import HeldBy, of_holders
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.registered import adaptive_total, planned_total, runs_in
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import Cyclic
from dpfl_plugin.privacy.statement_page import number
from dpfl_plugin.runs.public_facts import has_schema
from dpfl_plugin.runs.rules import cycle_facts

STATEMENT_SCHEMA: Final = 1

ASSUMPTIONS = (
    "The server is honest but curious: it sees every message of every silo, and who took part.",
    "Who takes part is drawn independently of the data. The server's epsilon needs no more; a third party's needs "
    "that it was drawn with the stated probability.",
    "The user's own code is trusted: models and losses compute a record's output from that record and the parameters "
    "alone, and plugins and callbacks do what they say.",
    "The numbers of training and test records of the silos are public.",
)
DEALT = (
    "How records were dealt to silos (data.partition) is taken as given: a partition may look at the labels of all "
    "records, and would deal others elsewhere if one were replaced.",
)
ORDERED = (
    "Training and test records, and the shares of them that are read apart, were cut from an order by a keyed hash of "
    "each record, so that replacing one moves no other. Its key is the silos' secret, and has to stay it.",
)
PERSONS = (
    "The numbers of training persons and of test records of the silos are public; how many records a person has is "
    "not.",
    "The data say rightly whose records they are: two numbers or names of one person are two persons here, and each is "
    "protected by itself. Where runs share a ledger, they mean the same persons.",
    "Test records are those of other persons; nothing is promised to these.",
)
REVEALED = (
    "No epsilon covers everything that the server was given: by evaluation.reveal: server it has, of every silo, "
    "the loss on its training records{more}, and all measures of the model on its test records, beside those of its "
    "own model, if it has one, and of a baseline made of its training labels, computed without noise."
)
REVEALED_GRADIENTS = " with (evaluation.dissimilarity) its gradient"
SIMULATION = (
    "Reproducible simulation. With fresh randomness these settings would cost epsilon = {epsilon}; this run's noise "
    "can be computed from its seed, so it protects nobody."
)
BY_SCHEMA = (
    "The categories and ranges of the schema are public: they are known without the records, and not read from them.",
)
SEEDED = (
    "Batches, noise and participants would be drawn unpredictably (privacy.randomness: fresh); here they follow from "
    "the seed.",
)
FRESH = (
    "Batches and noise came from AES in counter mode under keys that each silo drew from its operating system, used "
    "for one computation and never stored: the seed of the run does not reveal them.",
)
FRESH_DRAWS = (
    "Who took part was drawn from 256 bits of the server's operating system, which were known to nobody before the run "
    "and are in its checkpoint only.",
)
ZERO_OUT = (
    "add_or_remove means that a record (or a silo's update) is there or counts as zero, while the public numbers of "
    "records and silos stay as they are; that these numbers changed is not hidden.",
)
SHARED = (
    "The total covers the runs that the shared ledger holds, and no other use of the records. In each of them a record "
    "is at one silo at most.",
)
TUNED = (
    "What each place of the tuning's plan releases was fixed before the first of them; only which configuration takes "
    "a place was chosen, from noisy scores, which are releases themselves. Nothing else was looked at but whether a "
    "candidate failed: one that fails before its score ranks last there. The tuning's tuning.md and the winner's "
    "statement name each that did; epsilon does not cover what that reveals.",
)
OUTSIDER = (
    "What is said of an outsider needs more: nobody tells who took part in which round (whoever knows the seed can "
    "compute it), and no silo tells its noise.",
)
SCORES = (
    "Validation scores are releases too: each silo's noisy count of correct predictions on records that no gradient "
    "reads, charged to those records, so for each record the costlier of rounds and scores counts.",
)
HISTOGRAMS = (
    "Validation scores are releases too: each silo's noisy counts, by class and by the model's score, of records that "
    "no gradient reads, charged to those records, so for each record the costlier of rounds and scores counts. A "
    "record is in one count; noise is in proportion to how far one record moves all of them together, in L2.",
)
STATISTICS = (
    "Statistics of columns are releases too: each silo's noisy sum, before the first round, over all records that "
    "gradients may read. How records are scaled and filled in is made of these sums alone, so that publishing it "
    "(result.json, exported models) tells no more than epsilon covers; test records are scaled by the same.",
)
EARLY_STOPPING = (
    *SCORES,
    "When the run ends depends on scores, which are releases. All rounds and scores that were planned are therefore "
    "charged, also where it ended before: a shorter run is a function of the planned one.",
)
PERSONALISED = (
    "Each silo's own model is made from private gradients, charged like those of a round, and stays at the silo. What "
    "is reported of it is a measurement on test records, like every accuracy here.",
)
LOST = (
    "Silos were lost while the run went on (see the notes), and a record may make its silo fail. What is said of who "
    "takes part therefore does not count here: a third party's epsilon is the server's worst case, in which a silo is "
    "in every round and in every attempt at one. A round in which a silo was lost was repeated by the others with "
    "fresh noise, and every attempt is charged, including that of the lost silo.",
)
FAILURES = (
    "The server sees that a silo failed, when, and with what message, and this folder shows it; no epsilon covers what "
    "that reveals about the silo's records.",
)
MEASUREMENTS = (
    "Losses, accuracies and other measures in metrics.jsonl, result.json and pictures of them are computed from "
    "records without noise, for the experimenter, and those that cannot be used are left out; publishing them is not "
    "covered by any epsilon here. Any record may be a test record, so raw test measures are covered for nobody.",
)
ENDED_EARLY: Final[Mapping[Cause, str]] = {
    Cause.NOT_FINITE: "The run ended because its model or its loss was not finite, at a round that depends on records; "
    "epsilon does not cover what that reveals.",
    Cause.STOP_REQUESTED: "The run was stopped. If somebody stopped it for what was measured, the round that it ended "
    "at depends on records; epsilon does not cover what that reveals.",
}
TIMES = "The server sees how long silos take and when their messages arrive; no epsilon covers what that reveals."
BITS = (
    "Releases are whole steps of a grid with exactly distributed noise; rounding is part of the sensitivity, and takes "
    "at most 0.2 % more noise. It is assumed that a row of a product of matrices does not depend on other rows."
)


def statement(
    config: Config,
    account: PrivacyAccount,
    *,
    rules: PrivacyRules,
    accountant: Accountant,
    run: dict[str, Any],
    caveats: Sequence[str],
    notes: Sequence[str],
    lost: Sequence[dict[str, Any]] = (),
    measurements: Sequence[str] = MEASUREMENTS,
    revealed: bool = False,
    draws: bool = True,
    held_by: HeldBy | None = None,
) -> dict[str, Any]:
    """The guarantee, for whom, and on what assumptions.

    Args:
        run: id, status, reason and rounds.
        lost: silos that were lost while the run went on.
        measurements: what is computed from records without noise, and by whom it is seen.
        revealed: whether the server was given it.
        draws: whether this package drew who took part, and no platform.
        held_by: who held the records meanwhile; None where that is not known, or they are of one silo alone.
    """
    views, release = account.views(), rules.release(1.0)
    as_read = [text for text in caveats if text.startswith(AS_READ)]
    return {
        "schema": STATEMENT_SCHEMA,
        "warnings": warnings(config, account, rules, revealed=revealed),
        "guarantee": _guarantee(rules, views, account),
        "run": run,
        "held_by": held_by,
        **{key: value for key, value in account.ledger.facts.items() if key == "tuning"},
        "protects": {"unit": release.unit, "neighbouring": release.neighbouring, **_of_persons(config)},
        "mechanism": _mechanism(config, account, rules),
        "beside": _beside(config, account, rules),
        "max_participations": config.max_participations,
        "accountant": {"name": accountant.name, "error": accountant.error, "caveat": accountant.caveat},
        "budget": _budget(config),
        "views": views,
        "silos": account.per_silo(),
        "num_charges": len(account.ledger),
        "num_releases": sum(account.ledger.tally.totals().values()),
        "head": account.ledger.head,
        "shared": _shared(account, config.privacy.delta),
        "assumptions": _assumptions(config, account, rules, "outsider" in views, bool(lost), draws),
        "lost": list(lost),
        "caveats": [
            *of_holders(held_by),
            *(text for text in caveats if text not in as_read),
            *(FAILURES if lost or run["status"] == "failed" else ()),
            *measurements,
            *_of_computing(rules),
        ],
        "notes": [*(text for text in as_read if text not in notes), *notes],
    }


def _budget(config: Config) -> dict[str, Any]:
    privacy = config.privacy
    return {"epsilon": privacy.epsilon, "delta": privacy.delta, "view": privacy.budget_view}


def _of_persons(config: Config) -> dict[str, Any]:
    """What a person is, where persons are protected."""
    privacy = config.privacy
    return {key: getattr(privacy, key) for key in OF_PERSONS} if privacy.unit == "person" else {}


def _mechanism(config: Config, account: PrivacyAccount, rules: PrivacyRules) -> dict[str, Any]:
    return {
        "name": config.privacy.mechanism.name or config.privacy.mechanism.module,
        "clip": {**config.privacy.clip.model_dump(exclude_none=True), "what": rules.clipping.statement},
        "clip_norm": finite(rules.clip_norm),
        "noise_multiplier": account.noise_multiplier,
        "noise_multiplier_solved": config.privacy.noise_multiplier is None,
        "schedule": {**config.privacy.schedule.model_dump(exclude_none=True), "what": rules.schedule.statement},
        "sampler": config.privacy.sampler,
        "record_rate": config.privacy.record_rate,
        "batch_size": config.privacy.batch_size,
        "randomness": "fresh" if rules.fresh else "seeded",
        "formula": _formula(rules),
        **cycle_facts(rules),
    }


def _assumptions(
    config: Config, account: PrivacyAccount, rules: PrivacyRules, outsider: bool, lost: bool, draws: bool
) -> list[str]:
    release = rules.release(1.0)
    return [
        *ASSUMPTIONS[:-1],
        *(PERSONS if rules.unit == "person" else ASSUMPTIONS[-1:]),
        *_of_schema(config),
        *(DEALT if _is_dealt(config) else ()),
        *(ORDERED if rules.fresh else ()),
        *(FRESH if rules.fresh else SEEDED),
        *(FRESH_DRAWS if rules.fresh and draws else ()),
        *(ZERO_OUT if release.neighbouring == "add_or_remove" else ()),
        *(OUTSIDER if outsider else ()),
        *(STATISTICS if config.private_statistics is not None else ()),
        *(EARLY_STOPPING if config.early_stopping is not None else ()),
        *((HISTOGRAMS if config.private_evaluation.histogram_bins else SCORES) if config.private_evaluation else ()),
        *(PERSONALISED if config.personalise is not None else ()),
        *(SHARED if account.shared is not None else ()),
        *(TUNED if "tuning" in account.ledger.facts else ()),
        *(LOST if lost else ()),
    ]


def _of_computing(rules: PrivacyRules) -> list[str]:
    """What no epsilon covers of how releases are computed."""
    return [TIMES, *(() if _is_others(rules.mechanism) else (BITS,))]


def _of_schema(config: Config) -> tuple[str, ...]:
    """What holds of a table's schema, unless it says that it was drafted: that is a caveat of the data."""
    if not has_schema(config):
        return ()
    return () if TableSchema.parse(config.data.dataset.options[SCHEMA_KEY]).drafted else BY_SCHEMA


def _is_dealt(config: Config) -> bool:
    """Whether records were dealt to silos, as a simulation does, and are not their own."""
    partition = config.data.partition
    return "data" in config.model_fields_set and (partition.module is not None or partition.name != "natural")


def _is_others(plugin: object) -> bool:
    """Whether the class of a plugin is not this package's."""
    return type(plugin).__module__.partition(".")[0] != "dpfl_plugin"


def warnings(config: Config, account: PrivacyAccount, rules: PrivacyRules, *, revealed: bool) -> list[str]:
    """What has to be read before any number, first things first."""
    found = []
    if not rules.fresh and rules.release(1.0).noise_multiplier > 0:
        tuning = account.ledger.facts.get("tuning")
        epsilon = account.views()["server"]["epsilon"] if tuning is None else tuning["epsilon"]
        found.append(SIMULATION.format(epsilon="none" if epsilon is None else digits(epsilon, 4)))
    if revealed:
        found.append(REVEALED.format(more=REVEALED_GRADIENTS * config.evaluation.dissimilarity))
    return found


def _guarantee(rules: PrivacyRules, views: dict[str, Any], account: PrivacyAccount) -> str:
    if rules.clipping.measures:
        return f"none: {rules.clipping.statement}"
    noise = rules.release(1.0).noise_multiplier
    if noise == 0:
        return "none: no noise was added"
    if views["server"]["worst_case_epsilon"] is None:
        falls = ", as privacy.schedule changes it," if rules.varies else ""
        return f"none: noise_multiplier {noise:g}{falls} is too little: epsilon is too large to compute"
    return f"differential privacy, as stated in {'tuning' if 'tuning' in account.ledger.facts else 'views'}"


def _shared(account: PrivacyAccount, delta: float) -> dict[str, Any] | None:
    if account.shared is None or account.shared.path is None or "tuning" in account.ledger.facts:
        return None
    runs = {run.name: run for run in runs_in(account.shared)}
    this = runs.pop(account.shared.runs[-1]["noise"])  # no other has the ledger meanwhile
    others = [
        {
            **{key: run.facts[key] for key in ("name", "noise", "started")},
            "same_records": run.records == this.records,
            "num_charges": len(account.shared.tally_of_run(run.name)),
        }
        for run in runs.values()
    ]
    return {
        "file": account.shared.path.name,
        "head": account.shared.head,
        **totals(account.shared, delta),
        "num_runs": len(others),
        "num_same_records": sum(one["same_records"] for one in others),
        "runs": others,
    }


def totals(shared: Ledger, delta: float) -> dict[str, Any]:
    """What all that a shared ledger holds comes to: adaptive, and planned for runs that were registered at first."""
    return {"adaptive": adaptive_total(shared, delta), "planned": planned_total(shared, delta)}


def _formula(rules: PrivacyRules) -> str:
    """A release in symbols: C is clip_norm, sigma noise_multiplier, b batch_size, s record_rate."""
    gradient = "mean gradient of a person" if rules.unit == "person" else "gradient"
    if rules.augmentation is not None:
        gradient = f"mean gradient of {rules.augmentation.views} views of a record"
    if isinstance(rules.sampler, Cyclic) and rules.sampler.correlation.bands > 1:
        return (
            "u_t / (n / B), decoded from r_t = u_t + sum over k of c_k u_(t-k), where r_t = x_t + sum over k of "
            "c_k x_(t-k) + 2 C sigma |c| N(0, I), x_t = sum over the batch of clip(gradient, C), k = 1, ..., bands - 1"
        )
    if rules.unit == "silo":
        return f"clip(update, C) + {'2 C' if rules.neighbouring == 'replace_one' else 'C'} sigma N(0, I)"
    factor, divisor = {"fixed": ("2 ", "b"), "poisson": ("", "(s n)"), "full": ("2 ", "n")}.get(
        rules.sampler.name, ("2 ", "(n / B)")
    )
    if rules.clipping.normalises:
        return f"(sum over the batch of C {gradient} / (its norm + gamma) + {factor}C sigma N(0, I)) / {divisor}"
    if rules.clipping.adapts:
        return (
            f"(sum over the batch of clip({gradient}, C_i) + {factor}C_i sigma' N(0, I)) / {divisor}, with a noised "
            "count of the gradients within C_i; sigma' exceeds sigma by so much that both together are one Gaussian "
            "release with sigma"
        )
    return f"(sum over the batch of clip({gradient}, C) + {factor}C sigma N(0, I)) / {divisor}"


def _beside(config: Config, account: PrivacyAccount, rules: PrivacyRules) -> list[str]:
    """What silos release beside the rounds, in words."""
    lines, scores, own = [], account.beside.scores, config.personalise
    persons = config.privacy.unit == "person"
    if account.beside.statistics is not None:
        lines.append(
            "statistics of columns: one noisy sum of each silo before the first round, noise_multiplier "
            f"{number(account.beside.statistics)}; a record adds at most 1 in norm for each column"
            + (", a person the mean of what its records add" if persons else "")
        )
    if scores is not None:
        what, which, each = "a count of correct predictions", "predicted correctly", ""
        if scores.bins:
            what, which = f"counts by class and by the model's score, in {scores.bins} bins of each class,", "there"
            each = " in each"
        rows = f"persons (each adds the share of its records that are {which})" if persons else "records"
        std = scores.noise_multiplier * scores.sensitivity(rules.neighbouring)
        lines.append(
            f"validation scores: {what} on the last {number(round(1 - scores.share[0], 12))} of each silo's {rows} (in "
            f"a fixed random order), with noise of standard deviation {number(std)}{each}; "
            f"{account.beside.num_scores} of each silo, planned in advance"
        )
    if own is not None:
        lines.append(f"silos' own models: {own.local_steps} more releases of each silo, at the end")
    return lines
