"""The privacy statement of a run: `ledger.json`, its page `privacy.md`, and what of both may be published.

Both are to be shown to others. So they hold no digest of anything private, no name of noise, nothing of other runs but
what they cost, no text of an error at a silo, no name of a class that was read from the records, no loss; and where
something is claimed of an outsider who does not know who took part, nothing from which that could be told: neither what
a single silo released nor the most that one did. The rest is in `details.json` and `result.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from dpfl_plugin.config.privacy import OF_PERSONS
from dpfl_plugin.config.schema import SCHEMA_KEY, Config
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.core.text import items, render
from dpfl_plugin.core.validation_scores import CLIPPED_SHARE
from dpfl_plugin.data.base import AS_READ, NOT_PUBLIC
from dpfl_plugin.data.schema import TableSchema
from dpfl_plugin.federation.outcome import Cause
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.observers import finite
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import Cyclic
from dpfl_plugin.privacy.shared_ledger import Joint, adaptive_total, planned_total, runs_in, total_after_another
from dpfl_plugin.privacy.statement_pages import privacy_page
from dpfl_plugin.runs.folder import RunFolder, to_json
from dpfl_plugin.runs.plugins import is_ours
from dpfl_plugin.runs.privacy_rules import cycle_facts
from dpfl_plugin.runs.public_facts import has_schema

STATEMENT_SCHEMA: Final = 1
DETAILS_SCHEMA: Final = 1
FAILED: Final = "an error, which result.json tells"
VOID: Final = "void: the run went on after this was stated, and released more"

HeldBy = Literal["process", "ranks", "simulation", "site"]
"""Who held the records while a run went on. process: one process those of all silos. ranks: those of an MPI job. site:
each silo its own, on a platform. simulation: on a platform, too, where whoever ran it had the records of all."""

HOLDERS: Final[Mapping[HeldBy | None, tuple[str, ...]]] = {
    "process": (
        "The run was one process on one machine: the person who ran it held the records of all silos. The guarantee is "
        "for what was published afterwards, not against that person.",
    ),
    "ranks": (
        "The run was one MPI job: whoever started its ranks could read the records that they read. The guarantee is "
        "for what left the silos' ranks, not against that person.",
    ),
    "simulation": (
        "The run was a simulation: the person who ran it had the records of all silos. The guarantee is for what was "
        "published afterwards, not against that person.",
    ),
}
DEALT: Final = (
    "How records were dealt to silos (data.partition) is taken as given: a partition may look at the labels of all "
    "records, and replacing one record may move others."
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
FAILURES = (
    "The server sees that a silo failed, when, and with what message, and this folder shows it; no epsilon covers what "
    "that reveals about the silo's records.",
)
TESTED = "Any record may be a test record, so raw test measures are covered for nobody."
MEASUREMENTS = (
    "Losses, accuracies and other measures in metrics.jsonl, result.json and pictures are computed from records "
    "without noise, for the experimenter; values that cannot be used are left out. No epsilon here covers publishing "
    f"them. {TESTED}",
)
ENDED_EARLY: Final[Mapping[Cause, str]] = {
    Cause.NOT_FINITE: "The run ended because its model or its loss was not finite, at a round that depends on records; "
    "epsilon does not cover what that reveals.",
    Cause.CALLBACK: "A callback that saw measurements of raw records stopped the run; epsilon does not cover what the "
    "round that it ended at reveals. All planned rounds are charged.",
    Cause.CALLBACK_FAILED: "A callback failed and ended the run; epsilon is of the rounds that ran, and does not cover "
    "what the round that it ended at reveals.",
    Cause.STOP_REQUESTED: "The run was stopped. If somebody stopped it for what was measured, the round that it ended "
    "at depends on records; epsilon does not cover what that reveals.",
}
TIMES = "The server sees how long silos take and when their messages arrive; no epsilon covers what that reveals."
BITS = (
    "Releases are whole steps of a grid with exactly distributed noise; rounding is part of the sensitivity and takes "
    "at most 0.2 % more noise. It is assumed that a row of a matrix product does not depend on other rows."
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
    public_schema: bool | None = None,
) -> dict[str, Any]:
    """The guarantee, for whom, and on what assumptions.

    Args:
        run: id, status, reason and rounds.
        lost: silos that were lost while the run went on.
        measurements: what is computed from records without noise, and by whom it is seen.
        revealed: whether the server was given it.
        draws: whether this package drew who took part, and no platform.
        held_by: who held the records meanwhile; None where that is not known, or they are of one silo alone.
        public_schema: whether a schema says what is public of the records; None: as the configuration says.
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
        "assumptions": _assumptions(
            config,
            account,
            rules,
            outsider="outsider" in views,
            lost=bool(lost),
            draws=draws,
            public_schema=_has_public_schema(config) if public_schema is None else public_schema,
        ),
        "lost": list(lost),
        "caveats": [
            *HOLDERS.get(held_by, ()),
            *(text for text in caveats if text not in as_read),
            *(FAILURES if lost or run["status"] == "failed" else ()),
            *measurements,
            *_of_computing(rules),
        ],
        "notes": [*(text for text in as_read if text not in notes), *notes],
    }


def holders_of(*sessions: HeldBy | None) -> HeldBy | None:
    """Who held the records in all sessions of a run, the last one last: once one process had held all, it had."""
    return "process" if "process" in sessions else sessions[-1]


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
        "noise_multiplier": account.rules.noise_multiplier,
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
    config: Config,
    account: PrivacyAccount,
    rules: PrivacyRules,
    *,
    outsider: bool,
    lost: bool,
    draws: bool,
    public_schema: bool,
) -> list[str]:
    return items(
        "pages/assumptions.md.jinja",
        unit=rules.unit,
        neighbouring=rules.release(1.0).neighbouring,
        public_schema=public_schema,
        dealt=_is_dealt(config),
        fresh=rules.fresh,
        draws=draws,
        outsider=outsider,
        statistics=config.private_statistics is not None,
        early_stopping=config.early_stopping is not None,
        scores=config.private_evaluation is not None,
        histograms=bool(config.private_evaluation and config.private_evaluation.histogram_bins),
        clipped=_counts_clipped(config),
        personalise=config.personalise is not None,
        shared=account.shared is not None,
        tuned="tuning" in account.ledger.facts,
        lost=lost,
    )


def not_covered(config: Config) -> list[str]:
    """What no epsilon of a run covers, as `result.json` has it: a reader of accuracies alone should know."""
    return [*([DEALT] if _is_dealt(config) else []), TESTED]


def _of_computing(rules: PrivacyRules) -> list[str]:
    """What no epsilon covers of how releases are computed."""
    return [TIMES, *((BITS,) if is_ours(rules.mechanism) else ())]


def _has_public_schema(config: Config) -> bool:
    """Whether a table's schema was written by whoever knows it, and not drafted: that is a caveat of the data."""
    return has_schema(config) and not TableSchema.parse(config.data.dataset.options[SCHEMA_KEY]).drafted


def _is_dealt(config: Config) -> bool:
    """Whether records were dealt to silos, as a simulation does, and are not their own."""
    partition = config.data.partition
    return "data" in config.model_fields_set and (partition.module is not None or partition.name != "natural")


def warnings(config: Config, account: PrivacyAccount, rules: PrivacyRules, *, revealed: bool) -> list[str]:
    """What has to be read before any number, first things first."""
    texts = []
    if not rules.fresh and rules.release(1.0).noise_multiplier > 0:
        tuning = account.ledger.facts.get("tuning")
        epsilon = account.views()["server"]["epsilon"] if tuning is None else tuning["epsilon"]
        texts.append(SIMULATION.format(epsilon="none" if epsilon is None else digits(epsilon, 4)))
    if revealed:
        texts.append(REVEALED.format(more=REVEALED_GRADIENTS * config.evaluation.dissimilarity))
    return texts


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
    """What the ledger of a run, or of the project that its tuning is in, holds beside it; None if it is in none."""
    ledger = account.shared
    if "tuning" in account.ledger.facts:
        project = account.registration.project if isinstance(account.registration, Joint) else None
        if project is None:
            return None
        ledger, name = project.ledger, project.name
    elif ledger is None or ledger.path is None:
        return None
    else:
        name = ledger.runs[-1]["noise"]  # no other has the ledger meanwhile
    return {**shared_with_others(ledger, name, delta), "after_another": total_after_another(ledger, name, delta)}


def shared_with_others(shared: Ledger, name: str, delta: float) -> dict[str, Any]:
    """What a shared ledger holds beside one of its runs, and what all of it comes to.

    Raises:
        LedgerError, ConfigError, UnsupportedError: as `adaptive_total`.
    """
    assert shared.path is not None
    runs = {run.name: run for run in runs_in(shared)}
    this = runs.pop(name)
    others = [
        {
            **{key: run.facts[key] for key in ("name", "noise", "started")},
            "same_records": run.records == this.records,
            "num_charges": len(shared.tally_of_run(run.name)),
        }
        for run in runs.values()
    ]
    return {
        "file": shared.path.name,
        "head": shared.head,
        **totals(shared, delta),
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
    scores, own = account.extra_plan.scores, config.personalise
    counted = config.private_statistics is not None and config.private_statistics.outcome
    return items(
        "pages/beside.md.jinja",
        persons=config.privacy.unit == "person",
        statistics=account.extra_plan.statistics,
        tuned="tuning" in account.ledger.facts,
        classes=counted or config.class_weights == "balanced",
        scores=scores,
        share=None if scores is None else round(1 - scores.share[0], 12),
        std=None if scores is None else scores.noise_multiplier * scores.sensitivity(rules.neighbouring),
        num_scores=account.extra_plan.num_scores,
        clipped=_counts_clipped(config),
        own_models=None if own is None else own.local_steps,
    )


def _counts_clipped(config: Config) -> bool:
    return config.private_evaluation is not None and config.private_evaluation.measure == CLIPPED_SHARE


def published(document: dict[str, Any]) -> dict[str, Any]:
    """The part of a statement that may be published."""
    shown = {key: value for key, value in document.items() if key not in ("head", "shared", "lost")}
    for key in ("caveats", "notes"):
        shown[key] = [text for text in document[key] if NOT_PUBLIC not in text]
    if document["run"]["status"] == "failed":
        shown["run"] = {**document["run"], "reason": FAILED}
    shown["lost"] = [{key: value for key, value in loss.items() if key != "why"} for loss in document["lost"]]
    shown["shared"] = None if document["shared"] is None else _cost_of_others(document["shared"])
    if "outsider" in document["views"]:
        shown["silos"] = None
        shown["views"] = {**document["views"], "server": whoever_took_part(document["views"]["server"])}
    return shown


def whoever_took_part(server: Mapping[str, Any]) -> dict[str, Any]:
    """The server's view without what the silo that took part most often released: its number tells how often."""
    return {
        **server,
        "epsilon": server["worst_case_epsilon"],
        "basis": server["worst_case_basis"],
        "worst_silo": None,
    }


def _cost_of_others(shared: dict[str, Any]) -> dict[str, Any]:
    return {key: shared[key] for key in ("adaptive", "planned", "num_runs", "num_same_records")}


def details(document: dict[str, Any]) -> dict[str, Any]:
    """What `published` leaves out, and what shows later whether the ledger is whole."""
    keys = ("run", "views", "silos", "shared", "lost", "num_charges", "head")
    private = {**{key: document[key] for key in keys}, "tuning": document.get("tuning")}
    return {"schema": DETAILS_SCHEMA, "not_to_be_published": True, **private}


def write_statement(folder: RunFolder, document: dict[str, Any]) -> None:
    """Write a run's statement: `details.json` first, by which `dpfl account` knows how much the ledger has to hold."""
    shown = published(document)
    folder.write(folder.details, to_json(details(document)))
    folder.write(folder.statement, to_json(shown))
    folder.write(folder.privacy, privacy_page(shown))


def void_statement(folder: RunFolder) -> None:
    """Let nothing in a run's folder state an epsilon but its ledger, while a session goes on with the run.

    The session charges more, and may be killed: before it opens the ledger, what an earlier one stated is replaced.
    `ledger.json` keeps what shows whether the ledger's end is missing: its length and its last checksum, as they were.
    """
    folder.result.unlink(missing_ok=True)
    if not (folder.statement.exists() or folder.privacy.exists()):
        return
    try:
        document = json.loads(folder.statement.read_text())
    except (OSError, ValueError):
        document = None
    known = document if isinstance(document, dict) else {}
    kept = {key: known[key] for key in ("schema", "num_charges", "counted", "head") if key in known}
    folder.write(folder.privacy, render("pages/void.md.jinja"))
    folder.write(folder.statement, to_json({**kept, "guarantee": VOID}))
