"""One run in its folder: start it, resume it, or find that it is finished; and say how it ended."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import torch

from dpfl_plugin import given
from dpfl_plugin.callbacks.base import Callback
from dpfl_plugin.config.incompatible import check_compatible
from dpfl_plugin.config.load import run_id, to_yaml
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.core.stopwatch import PARTS, STOPPED, Part, Stopwatch
from dpfl_plugin.core.text import counted
from dpfl_plugin.errors import ChangedError, ConfigError, DeviceError, MemoryShortError, SiloError
from dpfl_plugin.federation.experiment import Experiment
from dpfl_plugin.federation.memory import LEAST_CHUNK, advice, is_device_failure
from dpfl_plugin.federation.memory import text as memory_text
from dpfl_plugin.federation.outcome import Cause, Outcome
from dpfl_plugin.federation.progress import Progress
from dpfl_plugin.federation.runtime import Runtime
from dpfl_plugin.federation.silo_group import SiloMetrics
from dpfl_plugin.federation.survivors import TooFewSilosError
from dpfl_plugin.gradients.choice import faster
from dpfl_plugin.models.fixed import fixed_digest
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.costs import MOST_ROUNDS
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs import checkpoint as checkpoints
from dpfl_plugin.runs import environment, plugin_errors
from dpfl_plugin.runs.build import Parts, build
from dpfl_plugin.runs.folder import RunFolder, to_json
from dpfl_plugin.runs.forecast import solving, strain
from dpfl_plugin.runs.hooks import Hooks, Reporter, callbacks_of
from dpfl_plugin.runs.job import (
    Job,
    begun_with,
    evaluations_of,
    first_line_of,
    ledger_facts,
    look_ahead,
    make_job,
    planner_of,
    shared_facts,
    silo_noise_begun_with,
    stopping_of,
    waiting,
    with_slots,
)
from dpfl_plugin.runs.ledgers import NO_WAIT, Wait, check_ledger, check_shared, locked_shared, open_ledgers
from dpfl_plugin.runs.locations import folder_of, key_of, shared_key
from dpfl_plugin.runs.place import Place
from dpfl_plugin.runs.preflight import check_beginning, check_finished, check_marks, refuse_unfinished
from dpfl_plugin.runs.private_statistics import first_round_of
from dpfl_plugin.runs.public_facts import names_its_classes
from dpfl_plugin.runs.reach import far_features
from dpfl_plugin.runs.result import Ended, Result, finished_result, write_result
from dpfl_plugin.runs.resume import account_of, checkpoint_of, start, with_lost
from dpfl_plugin.runs.rules import cycle_facts, weak_claims
from dpfl_plugin.runs.silo_settings import describe_silos, in_facts, unequal
from dpfl_plugin.runs.stage import Stage
from dpfl_plugin.runs.statement import holders_of, published, void_statement

PROFILE_SCHEMA = 1
FRESH: Final = "randomness fresh: batches and noise come from the operating system, and another run draws other ones."
SEEDED: Final = (
    "randomness seeded (seed {seed}): a reproducible simulation, whose noise can be computed from its seed and "
    "protects nobody."
)


def run_session(
    config: Config,
    base: Path,
    *,
    resume: bool,
    place: Place,
    reporter: Reporter,
    stop: Callable[[], bool],
    label: str | None = None,
    ledger: Path | None = None,
    wait: Wait = NO_WAIT,
    profile: bool = False,
    callbacks: Sequence[Callback] = (),
    stage: Stage | None = None,
) -> Result:
    """Run ``config`` to its end, or until it is stopped; returns what `result.json` holds.

    Args:
        label: what the user's file calls the run, where it has several; None for what it was begun as.
        ledger: a file that several runs on the same data share, which states what all of them come to.
        wait: how to wait for it while another run has it.
        profile: take the time of each part, and write it to `profile.json`.
        callbacks: are told how it goes, with the trackers of the configuration; not of a run that finished before.
        stage: how far it goes now, as a candidate of a tuning; None for a run by itself.

    Raises:
        ConfigError: the configuration is wrong, or the folder holds an unfinished run and ``resume`` is not set.
        DataError: data files are missing or damaged, or are not those that the unfinished run began with.
        LedgerError: a ledger is damaged.
        LedgerBusyError: another run had the ledger for longer than ``wait`` says.
    """
    folder = folder_of(config)
    config = _with_seed_of(config, folder)
    result = finished_result(folder)
    if result is not None:
        _check_finished(config, base, folder, result, reporter, place, ledger, wait)
        _say_untold(config, callbacks, reporter)
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
        if shared is not None and not folder.ledger.exists() and (ahead := waiting(shared, config)) is not None:
            config = config.with_public_seed(int(ahead.facts["seed"]))
        job = _prepared(config, base, folder, ledger, shared, place, reporter)
        job = replace(job, label=label, clock=clock, stage=stage)
        if shared is not None and stage is None:
            job = with_slots(job, shared)
        job.parts.host.clock = clock
        with folder.locked():
            result = finished_result(folder)
            if result is not None:  # by another process, while this one was loading its data
                return result
            refuse_unfinished(folder, resume)
            check_marks(folder, job.parts, key_of(config, folder, ledger))
            place.begin()
            return _run_told(job, place, Hooks(reporter, folder, callbacks), stop)


def seed_of_begun(configs: Iterable[Config]) -> int | None:
    """The public seed that the first of these runs drew when it began; None if none of them has begun."""
    begun = (checkpoints.load_facts(folder_of(config).checkpoint) for config in configs)
    return next((int(facts["seed"]) for facts in begun if facts is not None), None)


def _with_seed_of(config: Config, folder: RunFolder) -> Config:
    """With the public seed that the run in the folder drew when it began, where the configuration names none."""
    begun = checkpoints.load_facts(folder.checkpoint)
    return config if begun is None else config.with_public_seed(int(begun["seed"]))


def _say_untold(config: Config, callbacks: Sequence[Callback], reporter: Reporter) -> None:
    if callbacks or config.trackers:
        reporter.note("callbacks and trackers are not told about it: to run it again, use another out folder")


def _prepared(
    config: Config,
    base: Path,
    folder: RunFolder,
    ledger: Path | None,
    shared: Ledger | None,
    place: Place,
    reporter: Reporter,
) -> Job:
    """The run, built; noise is solved for, unless the folder says what it began with."""
    if said := solving(config):
        reporter.note(said)
    parts = build(
        config,
        base,
        begun_with(config, folder),
        hold=functools.partial(place.hold, key=key_of(config, folder, ledger)),
        silo_noise=silo_noise_begun_with(config, folder),
    )
    torch.set_num_threads(config.runtime.threads)
    return make_job(config, base, folder, parts, ledger, shared)


def _check_finished(
    config: Config,
    base: Path,
    folder: RunFolder,
    result: Result,
    reporter: Reporter,
    place: Place,
    ledger: Path | None,
    wait: Wait,
) -> None:
    """Raise where what a finished run's folder, ledger and records hold is not what the run left."""
    if ledger is not None:
        with locked_shared(ledger, wait) as shared:
            check_shared(folder, ledger, shared)
    check_ledger(folder)
    check_finished(config, base, folder, reporter, place, key_of(config, folder, ledger))


def _run_told(job: Job, place: Place, hooks: Hooks, stop: Callable[[], bool]) -> Result:
    """Run a job whose folder is locked; ``hooks`` are closed after it."""
    try:
        return _run_in_memory(job, place, hooks, stop)
    finally:
        hooks.close()


def _run_in_memory(job: Job, place: Place, hooks: Hooks, stop: Callable[[], bool]) -> Result:
    """`_run`; where memory runs out, once more from the last finished round, with smaller chunks.

    With fresh noise the round that did not end is charged once more.
    """
    while True:
        try:
            return _run(job, place, hooks, stop)
        except MemoryShortError as error:
            chunk = job.parts.memory.chunk // 4
            if chunk < LEAST_CHUNK:
                raise MemoryShortError(
                    f"{error}. Smaller chunks of gradients will not help: {advice(_together(job.parts))}use a "
                    "smaller model or more machines, or free memory; then continue with resume."
                ) from error
            said = str(error)
        hooks.note(
            f"{said}. Continuing from the last finished round with chunks of {memory_text(chunk)} for gradients; give "
            "runtime.memory_budget to have them from the beginning."
        )
        noise, own = job.parts.noise_multiplier, in_facts({"silos": job.parts.own.facts(job.parts.rules)})[1]
        others = {f.name: getattr(job, f.name) for f in fields(job)}
        del job, others["parts"]  # before the records are loaded once more
        key = key_of(others["config"], others["folder"], others["shared"])
        held = functools.partial(place.hold, key=key)
        parts = build(others["config"], others["base"], noise, hold=held, chunk_bytes=chunk, silo_noise=own)
        check_marks(others["folder"], parts, key)  # a data set may answer otherwise when it is read again
        job = Job(parts=parts, **others)


def _together(parts: Parts) -> int:
    """Silos advanced together."""
    return min(parts.stack, parts.setting.num_participants)


def _tell_ahead(job: Job, account: PrivacyAccount, hooks: Hooks) -> None:
    """What a user may want to know, or to change, before a round is run."""
    config, parts = job.config, job.parts
    columns = () if parts.inputs is None or config.data.preprocess else parts.inputs.columns
    far = far_features((records.features for records in parts.train.values()), columns, parts.module)
    hooks.note(FRESH if config.fresh else SEEDED.format(seed=config.seed))
    for text in (*parts.notes, *([] if far is None else [far])):
        hooks.note(f"records: {text}.")
    if shared := parts.holding.shared_gpus:
        hooks.note(f"device: {'; '.join(shared)}. If memory runs short, give each its part: runtime.memory_budget.")
    hooks.detail(f"engine {parts.engine.name}: {parts.engine_reason}")
    for said in faster(parts.module, parts.engine.name):
        hooks.note(f"warning: engine {parts.engine.name}: {said}.")
    hooks.detail(f"memory: {parts.memory.summary()}")
    if parts.memory.warning:
        hooks.note(f"warning: {parts.memory.warning}.")
    if "delta" not in config.privacy.model_fields_set and parts.noise_multiplier:
        unit, most = config.privacy.unit, max(parts.num_records)
        of = (
            ""
            if unit == "silo"
            else f" The largest silo has {most:,} {unit}s to train on: keep delta well below 1/{most:,}."
        )
        hooks.note(f"delta is {digits(config.privacy.delta, 6)}, the default; privacy.delta changes it.{of}")
    for caveat in weak_claims(config, parts.rules, parts.num_records):
        hooks.note(f"warning: {caveat}")
    if config.privacy.noise_multiplier is None:
        noise = digits(parts.noise_multiplier, 6)
        hooks.note(f"noise_multiplier solved: {noise}, {_solved_for(config)}")
        if why := strain(parts.noise_multiplier):
            hooks.note(f"warning: {why}.")
    every, seconds = config.checkpoint.when(fresh=parts.rules.fresh)
    if parts.rules.fresh and every != 1 and seconds:
        hooks.note(
            "checkpoint: noise is fresh, so what was released after the last checkpoint is charged again if the run is "
            "killed. Leave out checkpoint.every and checkpoint.seconds to have one after every round."
        )
    _tell_silos(config, parts, hooks)


def _tell_silos(config: Config, parts: Parts, hooks: Hooks) -> None:
    """What silos with settings of their own have, and what that may cost the others."""
    for said in describe_silos(parts.own, parts.rules, config):
        hooks.note(said)
    noises = {silo: own.noise_multiplier for silo, own in parts.rules.silos.items()}
    for silo, noise in noises.items():
        if parts.own.config(config, silo).privacy.epsilon is not None and (why := strain(noise)):
            hooks.note(f"warning: silo {parts.own.names[silo]}: {why}.")
    if len({*noises.values(), parts.noise_multiplier}) > 1 and config.silo_weights in ("equal", "records"):
        hooks.note("silos differ in their noise: silo_weights=noise weighs them by it.")
    for text in unequal(config, parts.num_records):
        hooks.note(f"{text}.")


def _describe(job: Job) -> None:
    """Have where the run runs in its folder; as it ends once more, with all that it imported."""
    folder = job.folder
    described = {**environment.describe(), "base": str(job.base.resolve())}
    parts = job.parts
    described |= {"engine": parts.engine.name, "device": str(parts.model.device), "chunk_bytes": parts.memory.chunk}
    described |= {"lockstep": parts.stack if parts.lockstep else 0}
    described |= {"threads": job.config.runtime.threads, "memory": job.parts.memory.described(), "label": job.label}
    described["packages_before"] = folder.packages_before(described["package_sha256"])
    folder.write(folder.environment, to_json(described))


def _lasting_facts(job: Job) -> dict[str, Any]:
    """What every checkpoint of the run holds, and a resume of it has to find again."""
    parts = job.parts
    facts: dict[str, Any] = {"run": run_id(job.config), "run_name": job.run_name, "data_sha256": parts.data_sha256}
    facts |= {"seed": job.config.public_seed, "coins": job.coins, "code": dict(job.code)}
    facts |= {"fixed": fixed_digest(parts.module), **cycle_facts(parts.rules)}
    return facts | {"shared_key": None if job.shared is None else str(shared_key(job.shared))}


def _run_rounds(
    job: Job,
    experiment: Experiment,
    progress: Progress,
    *,
    save: Callable[[Progress], None],
    record: Callable[[dict[str, Any]], None],
    hooks: Hooks,
    stop: Callable[[], bool],
) -> Outcome:
    """How the rounds ended; a fault of a silo, or of a plugin's code, ends them with a checkpoint."""
    folder = job.folder
    try:
        return experiment.run(progress, save=save, record=record, tick=hooks.ticked, stop=stop, note=hooks.note)
    except MemoryShortError:
        save(progress)
        raise
    except Exception as error:
        if isinstance(error, DeviceError) or is_device_failure(error):  # what is on the device cannot be saved
            text = str(error).splitlines()[0].removesuffix(".")
            where = "" if isinstance(error, DeviceError) else f"runtime.device={job.config.runtime.device!r} failed: "
            hint = "nvidia-smi, or dmesg, may say why. The last good state is in the run's checkpoint; continue with"
            raise DeviceError(f"round {progress.rounds + 1}: {where}{text}. {hint} resume.") from error
        known = isinstance(error, SiloError | ChangedError)
        fault = str(error) if known else plugin_errors.place(error, job.parts.plugins)
        if fault is None:
            raise
        folder.append(folder.log, plugin_errors.trace(error))
        elsewhere = isinstance(error, SiloError)  # on the rank of that silo, whose log has what it raised
        reason = f"round {progress.rounds + 1}: {fault}" + ("" if elsewhere else "; the traceback is in log.txt")
        experiment.survivors.retry(progress, lambda: save(progress), save=save, note=hooks.note)
        return Outcome("failed", Cause.ERROR, reason)
    finally:
        hooks.end()


def _finish(
    experiment: Experiment,
    progress: Progress,
    outcome: Outcome,
    *,
    save: Callable[[Progress], None],
    hooks: Hooks,
) -> tuple[Ended, Outcome]:
    """What the run ended with, silos' own models made, if its rounds are over; and how it ended then.

    Nothing is measured of a candidate that the budget stops before the choice is made.
    """
    by_silo: dict[int, SiloMetrics] = {}
    notes: list[str] = []
    measured: dict[str, Any] | None = None
    if outcome.status in ("done", "budget_exhausted") and experiment.evaluations.made:
        try:
            by_silo, notes = experiment.finish(progress, save=save, note=hooks.note)
            kept, retry = experiment.kept(progress), experiment.survivors.retry
            measured = retry(progress, lambda: experiment.runtime.measures(kept), save=save, note=hooks.note)
        except TooFewSilosError as error:
            outcome = Outcome("failed", Cause.TOO_FEW_SILOS, str(error))
        except ChangedError as error:
            outcome = Outcome("failed", Cause.ERROR, f"at the end: {error}")
    return Ended(experiment.kept(progress), by_silo, tuple(notes), measured), outcome


def _run(job: Job, place: Place, hooks: Hooks, stop: Callable[[], bool]) -> Result:
    config, folder, parts = job.config, job.folder, job.parts
    found = checkpoints.load(folder.checkpoint)
    if found is not None:  # by another process, while this one was loading its data
        job = replace(job, coins=str(found.facts["coins"]), run_name=str(found.facts["run_name"]))
    void_statement(folder)  # before the ledger may grow beyond what an earlier session stated
    facts_of, first_line = functools.partial(shared_facts, job), functools.partial(first_line_of, job)
    with open_ledgers(folder, ledger_facts(job), found, job.shared, job.run_name, facts_of, first_line) as ledgers:
        folder.write(folder.config, to_yaml(config))
        _describe(job)
        for note in ledgers.own.notes:
            hooks.note(f"ledger: {note}")
        account = account_of(job, ledgers, found)
        look_ahead(job, account)
        runtime = place.runtime(parts, account, config)
        revealed = config.evaluation.reveal == "server" or (found is not None and bool(found.facts["revealed"]))
        given = max(hooks.given, 0 if found is None else int(found.facts.get("given", 0)))
        holders = holders_of(None if found is None else found.facts.get("held_by"), parts.held_by)
        facts = _lasting_facts(job) | {"revealed": revealed, "given": given, "held_by": holders}

        def save(progress: Progress) -> None:
            silos = with_lost(runtime.states(), progress, folder, parts)
            checkpoints.save(folder.checkpoint, checkpoint_of(progress, silos, account, facts))

        def record(line: dict[str, Any]) -> None:
            folder.add_metrics(line)
            hooks.evaluated(line, progress)

        progress, lines, silos = start(job, found, ledgers, hooks)
        experiment = _experiment(job, runtime, account, lines)
        if silos is not None:
            experiment.survivors.retry(progress, lambda: runtime.load_states(silos), save=save, note=hooks.note)
        # So that --resume always has one to go on from, and knows on what machine the rounds to come were released.
        experiment.survivors.retry(progress, lambda: save(progress), save=save, note=hooks.note)
        _tell_ahead(job, account, hooks)
        hooks.begin(config, parts.rules, account, experiment.expected_rounds, progress.rounds, job.label)
        rounds_before = progress.rounds
        job.clock.lap("start")
        job.clock.start(parts.model.device)
        outcome = _run_rounds(job, experiment, progress, save=save, record=record, hooks=hooks, stop=stop)
        final, outcome = _finish(experiment, progress, outcome, save=save, hooks=hooks)
        if job.clock.on:
            job.clock.lap("I/O")  # the last checkpoint
            folder.write(folder.profile, to_json(_profile(job.clock, runtime, progress.rounds - rounds_before)))
        if outcome.status in ("done", "budget_exhausted") and job.stage is None:
            ledgers.end()
    if config.rounds is None and outcome.status == "budget_exhausted":
        outcome = replace(outcome, status="done")  # the budget was what the run was asked to use up
    _describe(job)
    seen = () if job.stage is None else job.stage.seen
    result, stated = write_result(
        config, folder, parts, account, progress, outcome, final, revealed, given, holders, seen, job.code
    )
    named = parts.outcome.kind != "classes" or names_its_classes(config)  # levels and labels are the configuration's
    hooks.over(result, published(stated), named=named)
    return result


def _profile(clock: Stopwatch, runtime: Runtime, rounds: int) -> dict[str, Any]:
    """Seconds by part, of this process and of silo ranks; ``rounds`` were run meanwhile."""
    ranks = {rank: _by_part(seconds) for rank, seconds in runtime.profiles().items()}
    return {"schema": PROFILE_SCHEMA, "rounds": rounds, "server" if ranks else "process": _by_part(clock.seconds)} | (
        {"silo_ranks": ranks} if ranks else {}
    )


def _by_part(seconds: Mapping[Part, float]) -> dict[str, float]:
    return {part: round(seconds[part], 6) for part in PARTS if part in seconds}


def _solved_for(config: Config) -> str:
    """What noise was solved for."""
    privacy = config.privacy
    view = privacy.budget_view.replace("_", " ")
    cap, rounds = config.max_participations, config.rounds
    most = f"at most {cap} rounds of a silo" if cap and rounds and cap < rounds else counted(rounds or 0, "round")
    return f"for {most} within epsilon {privacy.epsilon:g} at delta {digits(privacy.delta, 6)} ({view} view)"


def _experiment(job: Job, runtime: Runtime, account: PrivacyAccount, lines: list[dict[str, Any]]) -> Experiment:
    config = job.config
    every, seconds = config.checkpoint.when(fresh=job.parts.rules.fresh)
    return Experiment(
        planner=planner_of(config, job.parts, job.coins),
        runtime=runtime,
        account=account,
        rounds=config.rounds or MOST_ROUNDS,
        until=None if job.stage is None else job.stage.until,
        expected_rounds=job.expected,
        run_name=job.run_name,
        fresh=config.fresh,
        score=job.parts.outcome.score,
        evaluations=replace(evaluations_of(job), may_end=job.stage is None),
        evaluated=lines[-1]["round"] if lines else 0,
        dissimilarity=config.evaluation.dissimilarity,
        checkpoint_every=every,
        checkpoint_seconds=seconds,
        first=first_round_of(job, account),
        stopping=stopping_of(config),
        personalise=config.personalise,
        min_silos=config.runtime.min_silos,
        clock=job.clock,
    )
