"""A run in its folder: begin or resume it, run its rounds, and write how it ended; or show that it is finished.

Three orders hold everywhere. Bad input is found before anything is written. Charges are on disk before anything leaves
a silo. A run that is finished is shown, and not run again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from dpfl_plugin import given
from dpfl_plugin.algorithms.base import Regrouping
from dpfl_plugin.callbacks.base import Callback
from dpfl_plugin.config.incompatible import check_compatible
from dpfl_plugin.config.load import run_id, to_yaml
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.stopwatch import PARTS, STOPPED, Part, Stopwatch
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ChangedError, ConfigError, DeviceError, MemoryShortError, SiloError
from dpfl_plugin.federation.memory import LEAST_CHUNK, advice, is_device_failure
from dpfl_plugin.federation.memory import text as memory_text
from dpfl_plugin.federation.outcome import Cause, RunOutcome
from dpfl_plugin.federation.progress import Progress
from dpfl_plugin.federation.round_loop import RoundLoop
from dpfl_plugin.federation.runtime import Runtime
from dpfl_plugin.federation.scaled_records import SUMS, scaling_of
from dpfl_plugin.federation.silo_group import SiloMetrics, begun
from dpfl_plugin.federation.statistics_round import StatisticsRound
from dpfl_plugin.federation.survivors import TooFewSilosError
from dpfl_plugin.models.fixed import fixed_digest
from dpfl_plugin.models.linear import predicting
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.budget import Budget
from dpfl_plugin.privacy.costs import MOST_ROUNDS
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.extra_releases import NOT_RUN
from dpfl_plugin.privacy.shared_ledger import Joint, Registration
from dpfl_plugin.runs import checkpoint as checkpoints
from dpfl_plugin.runs import environment
from dpfl_plugin.runs.accounting import in_runs, read_costs
from dpfl_plugin.runs.backend import Backend
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runs.checkpoint import Checkpoint
from dpfl_plugin.runs.existing_run import (
    check_beginning,
    check_finished,
    check_same,
    refuse_unfinished,
    with_begun_seed,
)
from dpfl_plugin.runs.extra_plan import statistics_planned, training_records
from dpfl_plugin.runs.folder import Result, folder_of, to_json
from dpfl_plugin.runs.forecast import solving
from dpfl_plugin.runs.hooks import Hooks, Reporter, callbacks_of
from dpfl_plugin.runs.ledgers import (
    NO_WAIT,
    Ledgers,
    Wait,
    check_shared,
    is_known,
    ledger_of,
    locked_shared,
    made_again,
    open_ledgers,
    why_not_counted,
)
from dpfl_plugin.runs.plugins import plugin_fault, traceback_of
from dpfl_plugin.runs.prepare import (
    PreparedRun,
    TuningStage,
    evaluations_of,
    ledger_facts,
    look_ahead,
    new_account,
    planner_of,
    prepare,
    rebuilt,
    registered_run,
    stopping_of,
    with_slots,
)
from dpfl_plugin.runs.privacy_rules import cycle_facts
from dpfl_plugin.runs.public_facts import names_its_classes
from dpfl_plugin.runs.record_marks import key_file, shared_key_file
from dpfl_plugin.runs.result import Ended, write_result
from dpfl_plugin.runs.start_notes import note_start, shared_total, site_notes
from dpfl_plugin.runs.statement import holders_of, published, void_statement

PROFILE_SCHEMA: Final = 1
BEST: Final = "early_stopping.best"  # in a checkpoint, beside the server's vectors


def run_config(
    config: Config,
    base: Path,
    *,
    resume: bool,
    backend: Backend,
    reporter: Reporter,
    stop: Callable[[], bool],
    label: str | None = None,
    ledger: Path | None = None,
    wait: Wait = NO_WAIT,
    profile: bool = False,
    callbacks: Sequence[Callback] = (),
    stage: TuningStage | None = None,
) -> Result:
    """Run ``config`` to its end, or until it is stopped; return what `result.json` holds.

    Args:
        base: the folder in which relative paths start.
        label: what the user's file calls the run, if it has several; None for the label that it was begun with.
        ledger: a file that several runs on the same data share, which states what all of them come to; None: what
            the configuration names.
        wait: how to wait for it while another run has it.
        profile: take the time of each part, and write it to `profile.json`.
        callbacks: called beside the trackers of the configuration; not for a run that finished before.
        stage: how far it goes now, as a candidate of a tuning; None for a run by itself.

    Raises:
        ConfigError: the configuration is wrong, or the folder holds an unfinished run and ``resume`` is not set.
        DataError: data files are missing or damaged, or are not those that the unfinished run began with.
        LedgerError: a ledger is damaged.
        LedgerBusyError: another run had the ledger for longer than ``wait`` says.
    """
    folder = folder_of(config)
    config = with_begun_seed(config, folder)
    if stage is None:
        if text := why_not_counted(config) if ledger is None else "":
            reporter.note(text)
        ledger = ledger_of(config, base, ledger)
    result = folder.finished_result()
    if result is not None:
        check_finished(config, base, folder, reporter, backend, ledger, wait)
        if callbacks or config.trackers:
            reporter.note("callbacks and trackers are not told about it: to run it again, use another out folder")
        return result
    given.check_all(config.model_dump(mode="python"))
    check_beginning(folder, resume, stage is None, reporter.note, label)
    callbacks = callbacks_of(config, base, callbacks)
    if config.privacy.ledger_epsilon is not None and (ledger is None or stage is not None):
        raise ConfigError(
            "privacy.ledger_epsilon limits the runs of a shared ledger: give ledger, or leave it out. A tuning "
            "has a ledger of its own, which privacy.epsilon bounds."
        )
    if ledger is not None and stage is None:
        check_compatible(config, "ledger")
    with locked_shared(ledger, wait) as shared:
        check_shared(folder, ledger, shared)
        # Bad input is found before anything is written.
        label, clock = folder.label() if label is None and resume else label, Stopwatch() if profile else STOPPED
        if shared is not None and not folder.ledger.exists() and (ahead := registered_run(shared, config)) is not None:
            config = config.with_public_seed(int(ahead.facts["seed"]))
        if text := solving(config):
            reporter.note(text)
        key = key_file(config, folder, ledger)
        hold = functools.partial(backend.hold, key=key)
        run = prepare(config, base, folder, hold=hold, ledger=ledger, shared=shared)
        run = replace(run, label=label, clock=clock, stage=stage)
        torch.set_num_threads(config.runtime.threads)
        if shared is not None and stage is None:
            run = with_slots(run, shared)
        run.parts.host.clock = clock
        with folder.locked():
            result = folder.finished_result()
            if result is not None:  # by another process, while this one was loading its data
                return result
            refuse_unfinished(folder, resume)
            check_same(folder, run.parts, key)
            backend.begin()
            for text in site_notes(config, base, run.parts):
                reporter.note(f"records: {text}.")  # not for log.txt
            hooks = Hooks(reporter, folder, callbacks)
            try:
                return _run_in_memory(run, backend, hooks, stop)
            finally:
                hooks.close()


def _run_in_memory(run: PreparedRun, backend: Backend, hooks: Hooks, stop: Callable[[], bool]) -> Result:
    """`_run`; if memory runs out, again from the last finished round, with smaller chunks of gradients.

    With fresh noise the round that did not end is charged again.
    """
    while True:
        try:
            return _run(run, backend, hooks, stop)
        except MemoryShortError as error:
            chunk = run.parts.memory.chunk // 4
            if chunk < LEAST_CHUNK:
                together = min(run.parts.stack, run.parts.setting.num_participants)
                raise MemoryShortError(
                    f"{error}. Smaller chunks of gradients will not help: {advice(together)}use a "
                    "smaller model or more machines, or free memory; then continue with resume."
                ) from error
            message = str(error)
        hooks.note(
            f"{message}. Continuing from the last finished round with chunks of {memory_text(chunk)} for gradients; "
            "give runtime.memory_budget to have them from the beginning."
        )
        key = key_file(run.config, run.folder, run.shared)
        run = rebuilt(run, functools.partial(backend.hold, key=key), chunk)
        check_same(run.folder, run.parts, key)  # a data set may answer otherwise when it is read again


def _run(run: PreparedRun, backend: Backend, hooks: Hooks, stop: Callable[[], bool]) -> Result:
    """Run from the checkpoint, if there is one, in a folder that is locked."""
    checkpoint = checkpoints.load(run.folder.checkpoint)
    if checkpoint is not None:  # by another process, while this one was loading its data
        run = replace(run, coins=str(checkpoint.facts["coins"]), run_name=str(checkpoint.facts["run_name"]))
    void_statement(run.folder)  # before the ledger may grow beyond what an earlier session stated
    with open_ledgers(run.folder, ledger_facts(run), checkpoint, run.run_name, run.entry) as ledgers:
        active = ActiveRun(run, ledgers, checkpoint, backend, hooks, stop)
        active.begin()
        outcome = active.rounds()
        ended, outcome = active.finish(outcome)
        if outcome.status in ("done", "budget_exhausted") and run.stage is None:
            ledgers.end()
    return active.write(ended, outcome)


class ActiveRun:
    """A run at work: its folder is locked, and its ledgers are open.

    `begin` it, or resume it from ``checkpoint``; run its `rounds`; `finish` what follows the last of them; and `write`
    the result.
    """

    def __init__(
        self,
        run: PreparedRun,
        ledgers: Ledgers,
        checkpoint: Checkpoint | None,
        backend: Backend,
        hooks: Hooks,
        stop: Callable[[], bool],
    ) -> None:
        self.run, self.folder, self.parts, self.hooks = run, run.folder, run.parts, hooks
        self.ledgers, self.checkpoint, self.stop = ledgers, checkpoint, stop
        self.folder.write(self.folder.config, to_yaml(run.config))
        _write_environment(run)
        for note in ledgers.own.notes:
            hooks.note(f"ledger: {note}")
        self.account = _account(run, ledgers, checkpoint)
        look_ahead(run, self.account)
        self.runtime = backend.runtime(run.parts, self.account, run.config)
        self.facts = _lasting_facts(run) | _disclosed(run, hooks, checkpoint)
        self.progress, silos = self._state()
        self.recorder = Recorder(run, self.runtime, self.account, self.facts, self.progress, hooks)
        self.rounds_before = self.progress.rounds
        self.loop = self._round_loop(self.folder.keep_metrics(-1 if checkpoint is None else checkpoint.rounds))
        self._retry = functools.partial(self.loop.survivors.retry, self.progress)
        if silos is not None:
            self._retry(lambda: self.runtime.load_states(silos))

    def _state(self) -> tuple[Progress, Vectors | None]:
        """The state to go on from, and the silos' states; None for the first ones.

        Silos that were lost when the checkpoint was written are back, with the last states that are known of them.
        """
        parts, checkpoint = self.parts, self.checkpoint
        if checkpoint is None:
            return Progress(server=parts.algorithm.init_server(parts.model, parts.setting)), None
        device = parts.model.device
        progress, silos = _progress(checkpoint, device), _moved(checkpoint.silos, device)
        self.hooks.note(self._resumed(checkpoint))
        if others := environment.changed(self.run.code, checkpoint.facts["code"]):
            self.hooks.note(
                f"changed since this run began: {', '.join(others)}. Rounds from here on are made with the new code"
            )
        back = sorted(progress.lost)
        if back:
            self.hooks.note(
                f"back after round {checkpoint.rounds}: silos {', '.join(map(str, back))}, which had been lost"
            )
            for loss in progress.losses:
                loss["back"] = checkpoint.rounds if loss["back"] is None else loss["back"]
            if isinstance(parts.algorithm, Regrouping):
                ids = range(parts.setting.num_silos)
                progress.server, silos = parts.algorithm.regroup(progress.server, silos, ids, parts.setting.weights)
        return progress, silos

    def _resumed(self, checkpoint: Checkpoint) -> str:
        """Where a run goes on from, and what the ledger holds beyond that: a crash comes between two checkpoints."""
        text = f"resumed after round {checkpoint.rounds}"
        later = made_again((charge for charge in self.ledgers.own if _is_later(checkpoint, charge)), checkpoint)
        if not later:
            return text
        again = (
            "This is computed again with fresh noise, and charged again"
            if self.run.config.fresh
            else "This is computed again with the same noise, and counts once"
        )
        return f"{text}, the last checkpoint. The ledger holds what was released after it: {later}. {again}."

    def _round_loop(self, lines: Sequence[Mapping[str, Any]]) -> RoundLoop:
        """The rounds, after those that ``lines`` evaluated."""
        run, config, parts = self.run, self.run.config, self.parts
        every, seconds = config.checkpoint.when(fresh=parts.rules.fresh)
        planner, first = planner_of(config, parts, run.coins), None
        if parts.extra_plan.statistics is not None:
            num_records = tuple(training_records(config, count) for count in parts.num_records)
            counts = config.private_statistics is not None and config.private_statistics.outcome
            begin = functools.partial(_begun_by, config, parts) if counts else None
            released = None if run.stage is None else run.stage.statistics
            released = None if released is None else released.to(parts.model.device)
            first = StatisticsRound(planner, self.account, num_records, released, begin)
        return RoundLoop(
            planner=planner,
            runtime=self.runtime,
            account=self.account,
            rounds=config.rounds or MOST_ROUNDS,
            until=None if run.stage is None else run.stage.until,
            expected_rounds=run.expected,
            run_name=run.run_name,
            fresh=config.fresh,
            score=parts.outcome.score,
            evaluations=replace(evaluations_of(run), may_end=run.stage is None),
            evaluated=lines[-1]["round"] if lines else 0,
            dissimilarity=config.evaluation.dissimilarity,
            checkpoint_every=every,
            checkpoint_seconds=seconds,
            first=first,
            stopping=stopping_of(config, parts.score),
            personalise=config.personalise,
            min_silos=config.runtime.min_silos,
            clock=run.clock,
            save=self.recorder.save,
            record=self.recorder.record,
            tick=self.hooks.ticked,
            stop=self.stop,
            ending=self.hooks.ending,
            note=self.hooks.note,
        )

    def begin(self) -> None:
        """Write the first checkpoint of this session, and say what a user may want to know before its rounds."""
        # So that resume always has one to go on from, and knows on what machine the rounds to come were released.
        self.loop.checkpoint(self.progress)
        config, clock = self.run.config, self.run.clock
        note_start(config, self.parts, self.hooks)
        shared = self.ledgers.shared
        if shared is not None and self.run.stage is None and (text := shared_total(shared, config.privacy.delta)):
            self.hooks.note(text)
        expected, done = self.loop.expected_rounds, self.progress.rounds
        self.hooks.begin(config, self.parts.rules, self.account, expected, done, self.run.label)
        clock.lap("start")
        clock.start(self.parts.model.device)

    def rounds(self) -> RunOutcome:
        """Run the rounds; a fault of a silo, or of a plugin's code, ends them with a checkpoint."""
        progress, folder = self.progress, self.folder
        try:
            return self.loop.run(progress)
        except MemoryShortError:
            self.recorder.save(progress)
            raise
        except Exception as error:
            if isinstance(error, DeviceError) or is_device_failure(error):  # what is on the device cannot be saved
                text = str(error).splitlines()[0].removesuffix(".")
                device = self.run.config.runtime.device
                where = "" if isinstance(error, DeviceError) else f"runtime.device={device!r} failed: "
                hint = (
                    "nvidia-smi, or dmesg, may say why. The last good state is in the run's checkpoint; continue with"
                )
                raise DeviceError(f"round {progress.rounds + 1}: {where}{text}. {hint} resume.") from error
            known = isinstance(error, SiloError | ChangedError)
            fault = str(error) if known else plugin_fault(error, self.parts.plugins)
            if fault is None:
                raise
            folder.append(folder.log, traceback_of(error))
            elsewhere = isinstance(error, SiloError)  # on the rank of that silo, whose log has what it raised
            reason = f"round {progress.rounds + 1}: {fault}" + ("" if elsewhere else "; the traceback is in log.txt")
            self.loop.checkpoint(progress)
            return RunOutcome("failed", Cause.ERROR, reason)
        finally:
            self.hooks.end()

    def finish(self, outcome: RunOutcome) -> tuple[Ended, RunOutcome]:
        """Have silos make their own models, and measure the final one, if the rounds are over.

        Nothing is measured of a candidate that the budget stops before the choice is made.
        """
        loop, progress, clock = self.loop, self.progress, self.run.clock
        by_silo: dict[int, SiloMetrics] = {}
        notes: list[str] = []
        measured: dict[str, Any] | None = None
        if outcome.status in ("done", "budget_exhausted") and loop.evaluations.made:
            try:
                by_silo, notes = loop.finish(progress)
                measured = self._retry(lambda: self.runtime.measures(loop.final_model(progress)))
            except TooFewSilosError as error:
                outcome = RunOutcome("failed", Cause.TOO_FEW_SILOS, str(error))
            except ChangedError as error:
                outcome = RunOutcome("failed", Cause.ERROR, f"at the end: {error}")
        if clock.on:
            clock.lap("I/O")  # the last checkpoint
            self.folder.write(self.folder.profile, to_json(self._profile()))
        return Ended(loop.final_model(progress), by_silo, tuple(notes), measured), outcome

    def _profile(self) -> dict[str, Any]:
        """Seconds by part, of this process and of silo ranks."""
        ranks = {rank: _by_part(seconds) for rank, seconds in self.runtime.profiles().items()}
        rounds, seconds = self.progress.rounds - self.rounds_before, _by_part(self.run.clock.seconds)
        profile = {"schema": PROFILE_SCHEMA, "rounds": rounds, "server" if ranks else "process": seconds}
        return profile | ({"silo_ranks": ranks} if ranks else {})

    def write(self, ended: Ended, outcome: RunOutcome) -> Result:
        """Write the result and the statement, and give callbacks what they may have of them."""
        config = self.run.config
        if config.rounds is None and outcome.status == "budget_exhausted":
            outcome = replace(outcome, status="done")  # the budget was what the run was asked to use up
        _write_environment(self.run)
        result, stated = write_result(self.run, self.account, self.progress, outcome, ended, self.facts)
        named = self.parts.outcome.kind != "classes" or names_its_classes(config)  # levels and labels are public
        self.hooks.over(result, published(stated), named=named)
        return result


@dataclass(frozen=True, slots=True)
class Recorder:
    """Writes checkpoints and evaluations of a run at work."""

    run: PreparedRun
    runtime: Runtime
    account: PrivacyAccount
    facts: Mapping[str, Any]
    progress: Progress
    hooks: Hooks

    def save(self, progress: Progress) -> None:
        """Write a checkpoint."""
        silos = self._silo_states(progress)
        checkpoints.save(self.run.folder.checkpoint, _checkpoint(progress, silos, self.account, self.facts))

    def _silo_states(self, progress: Progress) -> Vectors:
        """Silos' states; of those that were lost the last that is known, from the checkpoint before."""
        parts = self.run.parts
        states, lost, num_silos = self.runtime.states(), sorted(progress.lost), parts.setting.num_silos
        if not lost:
            return states
        last = checkpoints.load(self.run.folder.checkpoint)
        if last is None:
            first = parts.algorithm.init_silos(parts.model, num_silos)
            known = begun(first, parts.rules, num_silos, parts.layout.dimension)
        else:
            known = last.silos
        if len(lost) == num_silos:
            return known
        for name, value in states.items():
            value[lost] = known[name][lost].to(value.device)
        return states

    def record(self, line: dict[str, Any]) -> None:
        """Keep an evaluation."""
        self.run.folder.add_metrics(line)
        self.hooks.evaluated(line, self.progress)


def _account(run: PreparedRun, ledgers: Ledgers, checkpoint: Checkpoint | None) -> PrivacyAccount:
    """The account of a run that begins, or is resumed from a checkpoint."""

    def pending(charge: Charge) -> bool:
        if is_known(checkpoint, charge):
            return False
        return charge.noise_id.startswith(NOT_RUN) or (not run.config.fresh and _is_later(checkpoint, charge))

    facts = None if checkpoint is None else checkpoint.facts
    account = new_account(
        run.config,
        run.parts,
        ledgers.own,
        shared=ledgers.shared,
        costs=read_costs(facts, run.parts.setting),
        pending=pending,
        lost=bool(facts and facts.get("losses")),
        coins=run.coins,
    )
    if ledgers.shared is not None and run.stage is None:
        account.registration = Registration(ledgers.shared, run.run_name)
    elif ledgers.shared is not None and run.stage is not None and run.config.fresh:  # seeded, no release counts twice
        budget = Budget(run.stage.tuning["epsilon"], run.stage.tuning["delta"], run.parts.accountant)
        for terms in run.stage.planned:
            budget.holds(terms)
        account.registration = Joint(ledgers.shared, run.run_name, budget, run.stage.project)
    return account


def _is_later(checkpoint: Checkpoint | None, charge: Charge) -> bool:
    """Whether it is of a release after the checkpoint."""
    return charge.round >= (checkpoint.rounds if checkpoint else 0) and not is_known(checkpoint, charge)


def _write_environment(run: PreparedRun) -> None:
    """Write `environment.json`: where the run runs; again as it ends, with all that it imported."""
    folder, parts = run.folder, run.parts
    facts = {**environment.describe(), "base": str(run.base.resolve())}
    facts |= {"engine": parts.engine.name, "kernels": getattr(parts.engine, "kernels", None)}
    facts |= {"device": str(parts.model.device), "chunk_bytes": parts.memory.chunk}
    facts |= {"lockstep": parts.stack if parts.lockstep else 0}
    facts |= {"threads": run.config.runtime.threads, "memory": parts.memory.described(), "label": run.label}
    facts["packages_before"] = folder.packages_before(facts["package_sha256"])
    folder.write(folder.environment, to_json(facts))


def _lasting_facts(run: PreparedRun) -> dict[str, Any]:
    """What every checkpoint of the run holds, and a resume of it has to find again."""
    parts = run.parts
    facts: dict[str, Any] = {"run": run_id(run.config), "run_name": run.run_name, "data_sha256": parts.data_sha256}
    facts |= {"seed": run.config.public_seed, "coins": run.coins, "code": dict(run.code)}
    facts |= {"fixed": fixed_digest(parts.module), **cycle_facts(parts.rules)}
    return facts | {"shared_key": None if run.shared is None else str(shared_key_file(run.shared))}


def _disclosed(run: PreparedRun, hooks: Hooks, checkpoint: Checkpoint | None) -> dict[str, Any]:
    """What others got of the records without noise, in all sessions of the run, and who held the records."""
    before: Mapping[str, Any] = {} if checkpoint is None else checkpoint.facts
    return {
        "revealed": run.config.evaluation.reveal == "server" or bool(before.get("revealed")),
        "given": max(hooks.given, int(before.get("given", 0))),
        "held_by": holders_of(before.get("held_by"), run.parts.held_by),
    }


def _checkpoint(progress: Progress, silos: Vectors, account: PrivacyAccount, facts: Mapping[str, Any]) -> Checkpoint:
    spent = {"seconds": progress.seconds, "bytes_up": progress.bytes_up, "bytes_down": progress.bytes_down}
    costs = in_runs(account.costs)
    account.sync()  # so that the ledger never holds less than a checkpoint says
    more = {**spent, "costs": costs, "charges": len(account.ledger), "scores": progress.scores}
    more |= {"losses": progress.losses, "begun": progress.begun}
    more |= {} if progress.stopped is None else {"stopped": [str(progress.stopped.cause), progress.stopped.reason]}
    more |= {"histograms": progress.histograms} if progress.histograms else {}
    more |= {} if account.shared is None else {"shared_head": account.shared.head}
    best = {} if progress.best is None else {BEST: progress.best.clone()}
    statistics = {} if progress.statistics is None else {SUMS: progress.statistics.clone()}
    return Checkpoint(progress.rounds, {**progress.server, **best, **statistics}, silos, {**facts, **more})


def _progress(checkpoint: Checkpoint, device: torch.device) -> Progress:
    facts, server = checkpoint.facts, _moved(checkpoint.server, device)
    best, statistics, stopped = server.pop(BEST, None), server.pop(SUMS, None), facts.get("stopped")
    return Progress(
        server=server,
        rounds=checkpoint.rounds,
        seconds=float(facts["seconds"]),
        bytes_up=int(facts["bytes_up"]),
        bytes_down=int(facts["bytes_down"]),
        begun=int(facts.get("begun", checkpoint.rounds)),
        scores=[(int(after), float(score)) for after, score in facts.get("scores", ())],
        histograms=[list(map(float, histogram)) for histogram in facts.get("histograms", ())],
        best=best,
        losses=[dict(loss) for loss in facts.get("losses", ())],
        stopped=None if stopped is None else RunOutcome("done", Cause(stopped[0]), str(stopped[1])),
        statistics=statistics,
    )


def _moved(vectors: Vectors, device: torch.device) -> Vectors:
    return {name: value.to(device) for name, value in vectors.items()}


def _by_part(seconds: Mapping[Part, float]) -> dict[str, float]:
    return {part: round(seconds[part], 6) for part in PARTS if part in seconds}


def _begun_by(config: Config, parts: Parts, sums: Tensor) -> Vectors:
    """The server's vectors, of a model that begins with what the released counts of labels predict."""
    known = parts.holding.survey
    statistics = statistics_planned(config, known.inputs, known.outcome, known.num_classes, parts.extra_plan)
    assert statistics is not None
    shares = scaling_of(statistics, sums, parts.rules.neighbouring).class_shares
    model = predicting(parts.module, known.outcome, list(shares.values()))
    return parts.algorithm.init_server(model.to(parts.model), parts.setting)
