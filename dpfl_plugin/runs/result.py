"""What a run ended with: `result.json`, `silos.csv`, the model and the statement."""

from __future__ import annotations

import hashlib
import itertools
import math
import operator
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from safetensors.torch import save as serialise

from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.config.load import run_id
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.outcome_counts import hazards_of, mean_of
from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.federation.outcome import Cause, RunOutcome
from dpfl_plugin.federation.progress import Progress
from dpfl_plugin.federation.scaled_records import scaling_of
from dpfl_plugin.federation.silo_group import SiloMetrics
from dpfl_plugin.federation.summaries import last, of_silos
from dpfl_plugin.measures.histogram import auc
from dpfl_plugin.models.fixed import whole_state
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.paper import chang_theorem
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.schedules import Geometric
from dpfl_plugin.privacy.scores import Scores
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runs.csv_cells import csv_text
from dpfl_plugin.runs.extra_plan import statistics_planned, training_records
from dpfl_plugin.runs.folder import RESULT_SCHEMA, Result, to_json
from dpfl_plugin.runs.forecast import Forecast
from dpfl_plugin.runs.hooks import GIVEN, plan_charge
from dpfl_plugin.runs.prepare import PreparedRun, planner_of, stopping_of
from dpfl_plugin.runs.privacy_rules import privacy_rules
from dpfl_plugin.runs.signal import signal_to_noise
from dpfl_plugin.runs.statement import (
    ENDED_EARLY,
    MEASUREMENTS,
    SIMULATION,
    not_covered,
    statement,
    write_statement,
)
from dpfl_plugin.runs.training_diagnostics import price

STAYED = (
    "losses and accuracies stayed with the silo ranks, since the server must not have them: dpfl report joins them; or "
    "give evaluation.reveal: server, which no epsilon covers."
)
LEFT_OUT = (
    "model.safetensors holds what trains alone: the model's own code changed {} while records went through it, which "
    "may hold some of them"
)
DERIVED = (
    "model.safetensors leaves out {}, which the model's own code makes of what trains: whether it is what that "
    "would give cannot be told. Have state_dict hold parameters and buffers as they are"
)
HUGE_LOSS = 1e6
GROWN = 1000.0  # a loss that ends so many times above its least, or above 1, is that of a run that diverged

STOPPED: Final = "stopped by a callback"
"""In what may be published: the callback's own words may say what was measured."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a run ended with.

    Attributes:
        model: (d,); by_silo: its metrics, and those of silos' own models; empty for a run that can go on.
        measures: all of them, see `measuring.measures`; None for a run that can go on, or where records are elsewhere.
    """

    model: torch.Tensor
    by_silo: dict[int, SiloMetrics]
    notes: tuple[str, ...]
    measures: Mapping[str, Any] | None = None


def _diverged(losses: Sequence[float | None]) -> list[str]:
    """A note where the loss ended orders of magnitude above where it was, is huge, or is no number."""
    known = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    if len(known) < len(losses):
        what = "is not finite"
    elif known and known[-1] > min(HUGE_LOSS, GROWN * max(1.0, min(known))):
        what = f"is {known[-1]:.4g} at the end"
    else:
        return []
    return [f"training diverged: its loss {what}. Use a smaller local_lr, fewer local steps or less noise."]


def write_result(
    run: PreparedRun,
    account: PrivacyAccount,
    progress: Progress,
    outcome: RunOutcome,
    final: Ended,
    facts: Mapping[str, Any],
) -> tuple[Result, dict[str, Any]]:
    """Write the model, the statement and the result of a run into its folder; return (result, statement).

    Args:
        facts: of all sessions of the run: whether the server got measures (``revealed``), how many kinds of them
            callbacks got (``given``, see `hooks.GIVEN`), and who held the records (``held_by``).
    """
    config, folder, parts = run.config, run.folder, run.parts
    model = final.model
    state, left_out = whole_state(parts.module, model, parts.state)
    folder.write(folder.model, serialise(state, metadata={"run": run_id(config)}))
    lines = [line for line in folder.read_metrics() if line["round"] <= progress.rounds]
    notes = [*parts.caveats, *parts.algorithm.notes(progress.server), *account.ledger.notes, *final.notes]
    notes += schedule_notes(parts.rules, parts.setting, parts.num_records, account)
    if lines and all(line["phase"] == "warm-up" for line in lines):
        notes.append("all rounds were warm-up: the model was never trained. Use more rounds, or fewer warm_rounds.")
    hidden = lines and lines[-1][f"test_{parts.outcome.score}"] is None
    notes += [STAYED] if hidden else []
    in_words = [LEFT_OUT.format("entries")] if left_out else []  # the model's code may choose by records which they are
    document = _stated(run, account, progress, outcome, [*notes, *in_words], facts)
    notes += [LEFT_OUT.format(", ".join(left_out))] if left_out else []
    notes += [DERIVED.format(", ".join(parts.state.derived))] if parts.state.derived else []
    measured = [line["train_loss"] for line in lines if line[f"test_{parts.outcome.score}"] is not None]
    notes += [_loss_in_words(loss) for loss in progress.losses]
    result = _result(run, account, progress, outcome, final, lines, notes, document)
    # Not in the statement, which may be published: no epsilon covers what a loss tells.
    result["notes"] += [] if hidden else [f"{note}{price(result)}" for note in _diverged(measured)]
    result["code"] = dict(run.code)
    if final.by_silo:
        folder.write(folder.silos, _table_of_silos(final.by_silo, parts, document["silos"] or ()))
    write_statement(folder, document)
    folder.write(folder.result, to_json(result))
    return result, document


def _stated(
    run: PreparedRun,
    account: PrivacyAccount,
    progress: Progress,
    outcome: RunOutcome,
    notes: Sequence[str],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """The statement of a run, which may be published."""
    config, parts = run.config, run.parts
    seen = () if run.stage is None else run.stage.seen
    ended = [text for cause, text in ENDED_EARLY.items() if cause == outcome.cause]
    if outcome.status == "failed":
        account.failed = True
    document = statement(
        config,
        account,
        rules=parts.rules,
        accountant=parts.accountant,
        run={
            "name": config.name,
            "id": run_id(config),
            "num_silos": parts.setting.num_silos,
            "rounds": progress.rounds,
            "status": outcome.status,
            "reason": STOPPED + plan_charge(parts.rules) if outcome.cause is Cause.CALLBACK else outcome.reason,
        },
        caveats=(*parts.caveats, *seen),
        notes=[*notes, *(_loss_in_words({**loss, "why": "see result.json"}) for loss in progress.losses)],
        lost=progress.losses,
        measurements=(*MEASUREMENTS, *ended, *GIVEN[: facts["given"]]),
        revealed=facts["revealed"],
        held_by=facts["held_by"],
    )
    for row in document["silos"] or ():
        row["num_test_records"] = parts.num_test_records[row["silo"]]
    return document


def _result(
    run: PreparedRun,
    account: PrivacyAccount,
    progress: Progress,
    outcome: RunOutcome,
    final: Ended,
    lines: Sequence[Mapping[str, Any]],
    notes: Sequence[str],
    document: Mapping[str, Any],
) -> Result:
    """What `result.json` holds: ``lines`` are the run's metrics, ``document`` its statement."""
    config, parts = run.config, run.parts
    return {
        "schema": RESULT_SCHEMA,
        "status": outcome.status,
        "cause": outcome.cause.value,
        "reason": outcome.reason,
        "name": config.name,
        "id": run_id(config),
        "algorithm": config.algorithm.name or config.algorithm.module,
        "seed": config.public_seed,
        "randomness": config.privacy.randomness,
        "rounds": progress.rounds,
        "num_silos": parts.setting.num_silos,
        "num_train_records": sum(parts.num_records),
        "num_test_records": sum(_num_tested(parts).values()),
        "test_accuracy": last(lines, "test_accuracy"),
        **_score(parts.outcome, lines),
        "train_loss": last(lines, "train_loss"),
        "outcome": parts.outcome.plain(),
        "positive_class": _positive_class(parts),
        "measures": final.measures,
        "silos": _of_silos(final.by_silo, parts.outcome),
        "silo_names": {str(silo): name for silo, name in sorted(parts.names.items())},
        "dearest_silo": _dearest(document["views"], document["silos"]),
        "lost": progress.losses,
        "early_stopping": _early_stopping(config, parts, progress),
        **_private_evaluation(config, parts, progress),
        **_statistics(config, parts, progress),
        "inputs": None if parts.inputs is None else parts.inputs.plain(),
        "noise_multiplier": parts.noise_multiplier,
        "signal_to_noise": _signal(parts, sum(cost.num_releases for cost in account.costs.values())),
        **_capped(run, outcome),
        "warnings": [text for text in document["warnings"] if not text.startswith(SIMULATION[:25])],
        "epsilon": document["views"],
        "not_covered": not_covered(config),
        "earlier_runs": None if document["shared"] is None else document["shared"]["num_runs"],
        **(
            {}
            if document["shared"] is None
            else {
                "adaptive_total": document["shared"]["adaptive"],
                "planned_total": document["shared"]["planned"],
                "total_after_another": document["shared"]["after_another"],
            }
        ),
        "seconds": round(progress.seconds, 3),
        "bytes_up": progress.bytes_up,
        "bytes_down": progress.bytes_down,
        "engine": parts.engine.name,
        "engine_reason": parts.engine_reason,
        "model_sha256": model_sha256(final.model),
        **({"tuning": document["tuning"]} if "tuning" in document else {}),
        "notes": list(notes),
        "folder": str(run.folder.path),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _positive_class(parts: Parts) -> str | None:
    """What sensitivity, AUC and other measures of two classes call positive: the second, by its name where that is
    known; None of other outcomes."""
    survey = parts.holding.survey
    if parts.outcome.kind != "classes" or survey.num_classes != 2:
        return None
    names = () if survey.inputs is None else survey.inputs.classes
    return names[1] if names else "1"


def _loss_in_words(loss: dict[str, Any]) -> str:
    back = "" if loss["back"] is None else f"; it came back after round {loss['back']}"
    return f"silo {loss['silo']} was lost after round {loss['after_round']}: {loss['why']}{back}."


def schedule_notes(
    rules: PrivacyRules, setting: Setting, num_records: Sequence[int], account: PrivacyAccount
) -> list[str]:
    """What the paper that a noise schedule is from says of a run."""
    schedule = rules.schedule
    if not (isinstance(schedule, Geometric) and rules.unit == "record" and rules.noise_multiplier and account.costs):
        return []
    theorem = chang_theorem(
        by=schedule.by,
        noise_multiplier=rules.noise_multiplier,
        beta=schedule.beta,
        threshold=schedule.threshold,
        local_steps=account.costs[max(account.costs)].num_releases,
        rounds=len(account.costs),
        silo_rate=setting.num_participants / setting.num_silos,
        record_rate=max(rules.sampler.rate(count) for count in set(num_records)),
    )
    return [theorem]


def _score(outcome: Outcome, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What an outcome that is not classes is ranked by; of those it is the accuracy."""
    key = f"test_{outcome.score}"
    return {} if outcome.kind == "classes" else {key: last(lines, key)}


def _num_tested(parts: Parts) -> dict[int, int]:
    """Test records of each silo that measures are of: those that can be used, or all where records are elsewhere."""
    return {silo: len(parts.test.get(silo, range(n))) for silo, n in enumerate(parts.num_test_records)}


def _of_silos(by_silo: dict[int, SiloMetrics], outcome: Outcome) -> dict[str, Any] | None:
    """How the final model, and silos' own, do at the silos; None for a run that is not at its end."""
    own = [m.personalised_score for m in by_silo.values() if m.personalised_score is not None]
    return of_silos(list(by_silo), [m.test_score for m in by_silo.values()], own, outcome)


def _table_of_silos(by_silo: dict[int, SiloMetrics], parts: Parts, spent: Sequence[Mapping[str, Any]]) -> str:
    """`silos.csv`: a line for each silo; what it has not, a model of its own or a name, is empty.

    Args:
        spent: by each silo, as the statement says; shown where silos have budgets or noise of their own.
    """
    of = {
        row["silo"]: {key: row[key] for key in ("epsilon", "budget", "noise_multiplier") if "budget" in row}
        for row in spent
    }
    num_tested = _num_tested(parts)
    return csv_text(
        [
            {
                "silo": silo,
                "num_train": parts.num_records[silo],
                "num_test": num_tested[silo],
                f"test_{parts.outcome.score}": m.test_score,
                f"personalised_{parts.outcome.score}": m.personalised_score,
                "name": parts.names.get(silo, ""),
                **of.get(silo, {}),
            }
            for silo, m in by_silo.items()
        ]
    )


def _dearest(views: Mapping[str, Any], silos: Sequence[Mapping[str, Any]]) -> int | None:
    """The silo that spent most; None where all spent alike."""
    worst: int | None = views["server"]["worst_silo"]
    return worst if len({silo["epsilon"] for silo in silos}) > 1 else None


def _early_stopping(config: Config, parts: Parts, progress: Progress) -> dict[str, Any] | None:
    stopping, scores = stopping_of(config, parts.score), parts.extra_plan.scores
    if stopping is None or scores is None or config.early_stopping is None:
        return None
    best = stopping.best(progress.scores)
    kept = progress.rounds if best is None or not stopping.keep_best else progress.scores[best][0]
    return {
        "measure": stopping.score.measure,
        "bound": stopping.score.bound,
        "scores": progress.scores,
        "noise_multiplier": scores.noise_multiplier,
        "noise_std": stopping.score.bound * _noise_of_scores(config, parts, scores, progress)[0],
        "stopped": stopping.stops(progress.scores) and progress.rounds < (config.rounds or 0),
        "kept_round": kept,
    }


def _noise_of_scores(config: Config, parts: Parts, scores: Scores, progress: Progress) -> tuple[float, float]:
    """(standard deviation of the noise in a mean of silos' shares, the largest weight of a record in it)"""
    planner = planner_of(config, parts)
    there = planner.alive(progress.lost)
    counts = [parts.num_records[silo] - training_records(config, parts.num_records[silo]) for silo in there]
    each = [weight / count for weight, count in zip(planner.weights_of(there), counts, strict=True)]
    std = scores.noise_multiplier * scores.sensitivity(parts.rules.neighbouring)
    return math.sqrt(math.fsum((weight * std) ** 2 for weight in each)), max(each)


def _private_evaluation(config: Config, parts: Parts, progress: Progress) -> dict[str, Any]:
    """Scores, with 95 % confidence limits, and the standard deviation of the noise in each: that of a mean of silos'
    noisy shares. Of histograms they are the accuracies that follow, and beside them the AUCs."""
    scores, score = parts.extra_plan.scores, parts.score
    if config.private_evaluation is None or scores is None or score is None:
        return {}
    noise, most_weight = _noise_of_scores(config, parts, scores, progress)
    # An accuracy of a histogram is the sum of as many shares as there are bins.
    of_score = score.bound * noise * math.sqrt(max(1, scores.bins))
    entry: dict[str, Any] = {
        "measure": score.measure,
        "bound": score.bound,
        "scores": progress.scores,
        "intervals": [score.interval(value, of_score, most_weight) for _, value in progress.scores],
        "noise_multiplier": scores.noise_multiplier,
        "noise_std": of_score,
    }
    if scores.bins:
        pairs = list(zip(progress.scores, progress.histograms, strict=True))
        entry["auc"] = [{"round": at, **asdict(auc(shares, noise))} for (at, _), shares in pairs]
        entry["histograms"] = {"noise_std": noise, "shares": progress.histograms}
    return {"private_evaluation": entry}


def _capped(run: PreparedRun, outcome: RunOutcome) -> dict[str, Any]:
    """The cap on participations that would have taken less noise than what was solved for; see `Forecast.capped`."""
    config, parts = run.config, run.parts
    if config.privacy.noise_multiplier is not None or parts.own.of or outcome.status != "done" or run.stage is not None:
        return {}
    ahead = Forecast(config, parts.algorithm, parts.accountant, parts.setting, parts.num_records, privacy_rules)
    capped = ahead.capped(parts.noise_multiplier)
    return {} if capped is None else {"capped": capped}


def _signal(parts: Parts, num_steps: int) -> float | None:
    return signal_to_noise(parts.rules, parts.setting, parts.num_records, parts.layout.dimension, num_steps)


def _statistics(config: Config, parts: Parts, progress: Progress) -> dict[str, Any]:
    """Private statistics of columns, and the scaling by them: releases, or made of them; {} without any."""
    known = parts.holding.survey
    statistics = statistics_planned(config, known.inputs, known.outcome, known.num_classes, parts.extra_plan)
    if statistics is None or progress.statistics is None:
        return {}
    scaling = scaling_of(statistics, progress.statistics, parts.rules.neighbouring)
    noise = parts.extra_plan.statistics
    columns = scaling.statistics()
    shares = list(columns.get("class_shares", {}).values())
    if shares and not known.outcome.has_classes:
        columns = {known.outcome.kind: _baseline(known.outcome, shares), **columns}
        columns.pop("class_shares")
    columns |= {"class_weights": scaling.class_weights} if config.class_weights == "balanced" else {}
    return {"private_statistics": {"noise_multiplier": noise, "columns": columns, "scaling": scaling.plain()}}


def _baseline(outcome: Outcome, shares: Sequence[float]) -> dict[str, float]:
    """What the released counts of labels predict without features, in their unit."""
    if outcome.kind == "regression":
        return {"mean": outcome.middle + outcome.half_range * mean_of(shares)}
    if outcome.kind == "counts":
        return {"mean": outcome.middle * (mean_of(shares) + 1)}
    survival = itertools.accumulate((1 - hazard for hazard in hazards_of(outcome, shares)), operator.mul)
    return {f"S({end:g})": value for end, value in zip(outcome.edges, survival, strict=True)}


def views_of_all(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """The views that cover a run's model: with the other runs in its shared ledger, which it may have been chosen by.

    A candidate of a tuning was chosen by what all candidates released: it has the guarantee of all of them.
    """
    views: Mapping[str, Any] = result["epsilon"]
    if "tuning" in result:
        total = {"epsilon": result["tuning"]["epsilon"]}
    elif result.get("earlier_runs"):
        known = result.get("adaptive_total") or {"epsilon": None}
        total = {key: known[key] for key in ("epsilon", "delta") if key in known}
    else:
        return views
    return {**views, **{who: {**views[who], **total} for who in ("server", "third_party")}}


def model_sha256(model: torch.Tensor) -> str:
    """Digest of the model's bits."""
    return hashlib.sha256(model.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
