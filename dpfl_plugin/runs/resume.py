"""The state that a run goes on from: what a checkpoint holds of it, and what is made of that again."""

from __future__ import annotations

from typing import Any

import torch

from dpfl_plugin.algorithms.base import Regrouping
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.federation.progress import Progress
from dpfl_plugin.federation.scaled_records import SUMS
from dpfl_plugin.federation.silo_group import begun
from dpfl_plugin.federation.stopping import Score
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.budget import Budget
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.extra_releases import NOT_RUN
from dpfl_plugin.privacy.registered import Joint, Registration
from dpfl_plugin.runs import checkpoint as checkpoints
from dpfl_plugin.runs.accounting import in_runs, read_costs
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runs.checkpoint import Checkpoint
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.hooks import Hooks
from dpfl_plugin.runs.job import Job, new_account
from dpfl_plugin.runs.ledgers import Ledgers, is_known, made_again
from dpfl_plugin.runs.named_files import changed

BEST = "early_stopping.best"  # in a checkpoint, beside the server's vectors


def account_of(job: Job, ledgers: Ledgers, found: Checkpoint | None) -> PrivacyAccount:
    def pending(charge: Charge) -> bool:
        if is_known(found, charge):
            return False
        return charge.noise_id.startswith(NOT_RUN) or (not job.config.fresh and _is_later(found, charge))

    account = new_account(
        job.config,
        job.parts,
        ledgers.own,
        shared=ledgers.shared,
        costs=read_costs(None if found is None else found.facts, job.parts.setting),
        pending=pending,
        lost=bool(_losses(found)),
        coins=job.coins,
    )
    if ledgers.shared is not None and job.stage is None:
        account.registration = Registration(ledgers.shared, job.run_name)
    elif ledgers.shared is not None and job.stage is not None and job.config.fresh:  # seeded, no release counts twice
        budget = Budget(job.stage.tuning["epsilon"], job.stage.tuning["delta"], job.parts.accountant)
        for terms in job.stage.planned:
            budget.holds(terms)
        account.registration = Joint(ledgers.shared, job.run_name, budget)
    return account


def _is_later(found: Checkpoint | None, charge: Charge) -> bool:
    """Whether it is of a release after the checkpoint."""
    return charge.round >= (found.rounds if found else 0) and not is_known(found, charge)


def _resumed(job: Job, ledgers: Ledgers, found: Checkpoint) -> str:
    """From where a run goes on, and what the ledger holds beyond that: a crash comes between two checkpoints."""
    said = f"resumed after round {found.rounds}"
    what = made_again((one for one in ledgers.own if _is_later(found, one)), found)
    if not what:
        return said
    again = (
        "This is computed again with fresh noise, and charged again"
        if job.config.fresh
        else "This is computed again with the same noise, and counts once"
    )
    return f"{said}, the last checkpoint. The ledger holds what was released after it: {what}. {again}."


def start(
    job: Job, found: Checkpoint | None, ledgers: Ledgers, hooks: Hooks
) -> tuple[Progress, list[dict[str, Any]], Vectors | None]:
    """The state to go on from, the evaluations that it comes with, and the silos' states; None for the first ones.

    Silos that were lost when the checkpoint was written are back, with the last states that are known of them.
    """
    parts = job.parts
    if found is None:
        server = parts.algorithm.init_server(parts.model, parts.setting)
        return Progress(server=server), job.folder.keep_metrics(-1), None
    device = parts.model.device
    progress, silos = _progress(found, device), _moved(found.silos, device)
    hooks.note(_resumed(job, ledgers, found))
    if others := changed(job.code, found.facts["code"]):
        hooks.note(f"changed since this run began: {', '.join(others)}. Rounds from here on are made with the new code")
    back = sorted(progress.lost)
    if back:
        hooks.note(f"back after round {found.rounds}: silos {', '.join(map(str, back))}, which had been lost")
        for loss in progress.losses:
            loss["back"] = found.rounds if loss["back"] is None else loss["back"]
        if isinstance(parts.algorithm, Regrouping):
            ids = range(parts.setting.num_silos)
            progress.server, silos = parts.algorithm.regroup(progress.server, silos, ids, parts.setting.weights)
    return progress, job.folder.keep_metrics(found.rounds), silos


def with_lost(states: Vectors, progress: Progress, folder: RunFolder, parts: Parts) -> Vectors:
    """Silos' states with the last that is known of those that were lost: that of the checkpoint before."""
    lost = sorted(progress.lost)
    if not lost:
        return states
    found = checkpoints.load(folder.checkpoint)
    known = _first_states(parts) if found is None else found.silos
    if len(lost) == parts.setting.num_silos:
        return known
    for name, value in states.items():
        value[lost] = known[name][lost].to(value.device)
    return states


def _first_states(parts: Parts) -> Vectors:
    num_silos = parts.setting.num_silos
    states = parts.algorithm.init_silos(parts.model, num_silos)
    return begun(states, parts.rules, num_silos, parts.layout.dimension)


def _losses(found: Checkpoint | None) -> list[dict[str, Any]]:
    return [] if found is None else [dict(loss) for loss in found.facts.get("losses", ())]


def checkpoint_of(progress: Progress, silos: Vectors, account: PrivacyAccount, facts: dict[str, Any]) -> Checkpoint:
    spent = {"seconds": progress.seconds, "bytes_up": progress.bytes_up, "bytes_down": progress.bytes_down}
    costs = in_runs(account.costs)
    account.sync()  # so that the ledger never holds less than a checkpoint says
    more = {**spent, "costs": costs, "charges": len(account.ledger), "scores": progress.scores}
    more |= {"losses": progress.losses, "begun": progress.begun}
    more |= {"histograms": progress.histograms} if progress.histograms else {}
    more |= {} if account.shared is None else {"shared_head": account.shared.head}
    best = {} if progress.best is None else {BEST: progress.best.clone()}
    statistics = {} if progress.statistics is None else {SUMS: progress.statistics.clone()}
    return Checkpoint(progress.rounds, {**progress.server, **best, **statistics}, silos, {**facts, **more})


def _moved(vectors: Vectors, device: torch.device) -> Vectors:
    return {name: value.to(device) for name, value in vectors.items()}


def _progress(found: Checkpoint, device: torch.device) -> Progress:
    facts, server = found.facts, _moved(found.server, device)
    best, statistics = server.pop(BEST, None), server.pop(SUMS, None)
    return Progress(
        server=server,
        rounds=found.rounds,
        seconds=float(facts["seconds"]),
        bytes_up=int(facts["bytes_up"]),
        bytes_down=int(facts["bytes_down"]),
        begun=int(facts.get("begun", found.rounds)),
        scores=_read_scores(found),
        histograms=[list(map(float, one)) for one in facts.get("histograms", ())],
        best=best,
        losses=_losses(found),
        statistics=statistics,
    )


def _read_scores(found: Checkpoint | None) -> list[Score]:
    return [(int(at), float(score)) for at, score in (found.facts.get("scores", ()) if found else ())]
