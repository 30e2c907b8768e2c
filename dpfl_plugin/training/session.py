"""One run in its folder: start it, resume it, or find that it is finished; and say how it ended."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save as serialise

from dpfl_plugin import given
from dpfl_plugin.access import too_open
from dpfl_plugin.algorithms.base import Regrouping, Setting
from dpfl_plugin.callbacks.base import Callback
from dpfl_plugin.config.load import run_id, to_yaml
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.stopwatch import PARTS, STOPPED, Part, Stopwatch
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.data.base import Holding
from dpfl_plugin.errors import (
    BudgetError,
    ConfigError,
    DataError,
    MemoryShortError,
    PluginError,
    SiloError,
    UnsupportedError,
)
from dpfl_plugin.models.fixed import BUILT_ANEW, fixed_digest, whole_state
from dpfl_plugin.oracle import PrivacyRules, is_of
from dpfl_plugin.privacy.accountants import LEAST_NOISE
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.paper import chang_theorem
from dpfl_plugin.privacy.prior import Prior, prior_of
from dpfl_plugin.privacy.schedules import Geometric
from dpfl_plugin.training import checkpoint as checkpoints
from dpfl_plugin.training import environment, strangers
from dpfl_plugin.training.accounting import MOST_ROUNDS, NO_PRIOR, PrivacyAccount, RoundCost, earlier_runs
from dpfl_plugin.training.beside import NOT_RUN, SHARED, refuse_beside
from dpfl_plugin.training.build import Parts, build, privacy_rules, weak_claims
from dpfl_plugin.training.cells import csv_text
from dpfl_plugin.training.checkpoint import Checkpoint
from dpfl_plugin.training.evaluations import Evaluations, affordable, evaluation_work, round_work
from dpfl_plugin.training.experiment import Experiment, Outcome, Progress, TooFewSilosError
from dpfl_plugin.training.folder import RunFolder, to_json
from dpfl_plugin.training.hooks import GIVEN, Hooks, Reporter, callbacks_of
from dpfl_plugin.training.host import SiloMetrics, begun
from dpfl_plugin.training.kept import check_kept, model_file_sha256
from dpfl_plugin.training.ledgers import NO_WAIT, Ledgers, Wait, check_shared, locked_shared, open_ledgers, read_shared
from dpfl_plugin.training.measured import last, of_silos
from dpfl_plugin.training.memory import LEAST_CHUNK, advice
from dpfl_plugin.training.memory import text as memory_text
from dpfl_plugin.training.naming import Naming, StillTheSame, check_same, check_shown, name_run
from dpfl_plugin.training.planning import WITH_REPLACEMENT, Planner, fresh_coins
from dpfl_plugin.training.prospect import Prospect, solving, strain
from dpfl_plugin.training.published import published
from dpfl_plugin.training.published import write as write_statement
from dpfl_plugin.training.runtime import ChargeSink, Interrupted, Runtime
from dpfl_plugin.training.statement import MEASUREMENTS, SIMULATION, statement
from dpfl_plugin.training.stopping import Score, Stopping
from dpfl_plugin.training.untouched import TouchedError, decides
from dpfl_plugin.training.voiding import void_statement

RESULT_SCHEMA = 1
PROFILE_SCHEMA = 1
STAYED = (
    "losses and accuracies stayed with the silo ranks, since the server must not have them: dpfl report joins them; or "
    "give evaluation.reveal: server, which no epsilon covers."
)
HUGE_LOSS = 1e6
GROWN = 1000.0  # a loss that ends so many times above its least, or above 1, is that of a run that diverged
PLANS_LOOKED_AT = 10  # rounds by whose plans the work of a round is told
BEST = "early_stopping.best"  # in a checkpoint, beside the server's vectors
Result = dict[str, Any]


class Place(Protocol):
    """Where silos live: a plugin of the group `runtimes`, made without arguments."""

    def hold(self, config: Config, base: Path, key: Path) -> Holding:
        """Have the records loaded; those that this process holds, and what is public of all.

        Args:
            key: the file of the silos' key, by which records are marked (`marks`). Nothing is written to it.

        Raises:
            ConfigError, DataError: something in the configuration or in the data files is wrong.
        """
        ...

    def begin(self) -> None:
        """The run begins: have the silos' key on disk."""
        ...

    def runtime(self, parts: Parts, charges: ChargeSink, config: Config, stop: Callable[[], bool]) -> Runtime: ...


def folder_of(config: Config) -> RunFolder:
    """`<out>/<name>/<id>`."""
    return RunFolder(Path(config.out) / config.name / run_id(config), config.access)


def silo_folder(config: Config) -> Path:
    """Where silo ranks keep what rank 0 must not have of a run."""
    folder, elsewhere = folder_of(config), config.runtime.silo_folder
    return folder.silo_ranks if elsewhere is None else Path(elsewhere) / config.name / folder.path.name


def key_of(config: Config, folder: RunFolder, ledger: Path | None) -> Path:
    """The file of the silos' key: one for all runs of a shared ledger, which have to know records again."""
    if config.runtime.silo_folder is not None:
        return Path(config.runtime.silo_folder) / "key"
    if ledger is not None:
        return shared_key(ledger)
    facts = checkpoints.load_facts(folder.checkpoint)  # a finished run is shown without its ledger, too
    shared = None if facts is None else facts["shared_key"]
    return folder.silo_ranks / "key" if shared is None else Path(shared)


def finished_result(folder: RunFolder) -> Result | None:
    """The result of a run that ended for good, or None."""
    if not folder.result.exists():
        return None
    try:
        result: Result = json.loads(folder.result.read_text())
        schema, status = result["schema"], result["status"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder.result} cannot be read ({error}). Remove it, and use --resume.") from error
    if schema != RESULT_SCHEMA:
        raise DataError(f"{folder.result} has schema {schema}; this version reads {RESULT_SCHEMA}. Use another --out.")
    # The folder may have been moved, or be seen from another place.
    return {**result, "folder": str(folder.path)} if status in ("done", "budget_exhausted") else None


@dataclass(frozen=True, slots=True)
class _Job:
    """A run that passed every check that can be made before anything is written.

    Attributes:
        shared: the ledger that it shares with other runs, locked; prior: what that holds of them.
        naming: what names the run: what it computes, of which records, by which code. here: what computes it.
        bits: names its random bits, wherever they are drawn: without the records, which each silo adds for itself.
        expected: how many rounds the budget will allow; the same before a run and when it is resumed.
        coins: by which participants are drawn; empty where they follow from the seed. A resumed run goes on with them.
        label: what the user's file calls the run.
        clock: takes the time of each part.
    """

    config: Config
    base: Path
    folder: RunFolder
    parts: Parts
    shared: Path | None
    prior: Prior
    naming: Naming
    here: Mapping[str, Any]
    bits: str
    expected: int
    coins: str
    label: str | None = None
    clock: Stopwatch = STOPPED

    @property
    def records(self) -> str:
        """By what the records are known in the names of noise: only a shared ledger may hold runs on others."""
        return "" if self.shared is None else f"-{self.parts.data_sha256[:12]}"


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
) -> Result:
    """Run ``config`` to its end, or until it is stopped; returns what `result.json` holds.

    Args:
        label: what the user's file calls the run, where it has several; None for what it was begun as.
        ledger: a file that several runs on the same data share, so that the budget is for all of them together.
        wait: how to wait for it while another run has it.
        profile: take the time of each part, and write it to `profile.json`.
        callbacks: are told how it goes, with the trackers of the configuration; not of a run that finished before.

    Raises:
        ConfigError: the configuration is wrong, or the folder holds an unfinished run and ``resume`` is not set.
        DataError: data files are missing or damaged, or are not those that the unfinished run began with.
        LedgerError: a ledger is damaged.
        LedgerBusyError: another run had the ledger for longer than ``wait`` says.
    """
    clock = Stopwatch() if profile else STOPPED
    folder = folder_of(config)
    result = finished_result(folder)
    if result is None:
        given.check_all(config.model_dump(mode="python"))
    if result is not None:
        if ledger is not None:
            with locked_shared(ledger, wait) as shared:
                check_shared(folder, ledger, shared)
        check_kept(folder, result)
        _check_finished(config, base, folder, reporter, place, key_of(config, folder, ledger))
        if callbacks or config.trackers:
            reporter.note("callbacks and trackers are told nothing of it: another --out has it run again")
        return result
    _refuse_unfinished(folder, resume)
    callbacks = callbacks_of(config, base, callbacks)
    if ledger is not None:
        refuse_beside(config, SHARED)
    with locked_shared(ledger, wait) as shared:
        check_shared(folder, ledger, shared)
        # Bad input is found before anything is written.
        prior = functools.partial(_prior, ledger, shared, "")
        if said := solving(config):
            reporter.note(said)
        key = key_of(config, folder, ledger)
        parts = build(config, base, _begun_with(config, folder), prior, functools.partial(place.hold, key=key))
        torch.set_num_threads(config.runtime.threads)
        label = folder.label() if label is None and resume else label
        job = replace(_job(config, base, folder, parts, ledger, shared), label=label, clock=clock)
        parts.host.clock = job.clock
        with folder.locked():
            result = finished_result(folder)
            if result is not None:  # by another process, while this one was loading its data
                return result
            _refuse_unfinished(folder, resume)
            _check_marks(folder, parts, key)
            place.begin()
            hooks = Hooks(reporter, folder, callbacks)
            for path in (folder.path, ledger):
                if path is not None and (open_to := too_open(path, folder.access)):
                    hooks.note(f"warning: {open_to}")
            try:
                return _run_in_memory(job, place, hooks, stop)
            finally:
                hooks.close()


def _run_in_memory(job: _Job, place: Place, hooks: Hooks, stop: Callable[[], bool]) -> Result:
    """`_run`; where memory runs out, once more from the last finished round, with smaller chunks.

    Sums then round in another way. So it is as if the run were resumed on another machine: what a ledger holds of the
    round that did not end is charged once more, and drawn afresh.
    """
    while True:
        try:
            return _run(job, place, hooks, stop)
        except MemoryShortError as error:
            chunk = job.parts.memory.chunk // 4
            if chunk < LEAST_CHUNK:
                raise MemoryShortError(
                    f"{error}. Smaller chunks of gradients will not help: {advice(_together(job.parts))}use a "
                    "smaller model or more machines, or free memory; then go on with --resume."
                ) from error
            said = str(error)
        hooks.note(
            f"{said}. Going on from the last finished round with chunks of {memory_text(chunk)} for gradients; give "
            "runtime.memory_budget to have them from the beginning."
        )
        noise, others = job.parts.noise_multiplier, {f.name: getattr(job, f.name) for f in fields(job)}
        del job, others["parts"]  # before the records are loaded once more
        key = key_of(others["config"], others["folder"], others["shared"])
        held = functools.partial(place.hold, key=key)
        parts = build(others["config"], others["base"], noise, hold=held, chunk_bytes=chunk)
        job = _Job(parts=parts, **(others | {"here": _arithmetic(others["config"], parts)}))


def _together(parts: Parts) -> int:
    """Silos advanced together."""
    return min(parts.stack, parts.setting.num_participants)


def _job(config: Config, base: Path, folder: RunFolder, parts: Parts, path: Path | None, shared: Ledger | None) -> _Job:
    here, began = _arithmetic(config, parts), checkpoints.load_facts(folder.checkpoint)
    naming = name_run(_with_noise_of_scores(config, parts), parts, here, began)
    if began is not None:
        check_same(folder, began, naming, here)
    here["repeats"] = here["repeats"] and not naming.doubts
    prior = _prior(path, shared, naming.noise, parts.data_sha256, parts.setting.num_silos, parts.rules)
    if shared is not None and parts.rules.varies and config.privacy.epsilon is None:
        raise ConfigError(
            f"--ledger {path}: with privacy.schedule give privacy.epsilon: noise that falls could leave all that the "
            "ledger holds without an epsilon."
        )
    _check_lasting(config, parts)
    _check_states(config, parts)
    coins = _coins(checkpoints.load_facts(folder.checkpoint), parts.rules)
    expected = _expected_rounds(config, parts, prior, path, coins)
    # Noise that no name can bring back has a name of its own each time, so that it is never taken for a repetition.
    bits = secrets.token_hex(16) if parts.rules.secure else naming.bits
    return _Job(config, base, folder, parts, path, prior, naming, here, bits, expected, coins)


def _coins(found: Mapping[str, Any] | None, rules: PrivacyRules) -> str:
    """By which participants are drawn: known to nobody before the run where claims rest on the draw."""
    if found is not None:
        return str(found["coins"])
    return fresh_coins() if rules.secure else ""


def _arithmetic(config: Config, parts: Parts) -> dict[str, Any]:
    """What decides how the run's numbers round."""
    kernels = getattr(parts.engine, "kernels", None)
    here = environment.arithmetic(str(parts.model.device), config.runtime.threads, parts.plugins, kernels)
    here |= {"engine": parts.engine.name, "chunk_bytes": parts.memory.chunk}
    here["lockstep"] = parts.stack if parts.lockstep else 0
    here["ranks"] = len(parts.machines) if parts.lockstep else 0
    ordered = config.runtime.aggregation == "gather"
    # In lockstep sums round by who is in a stack, which ranks and lost silos change.
    here["repeats"] = here["repeats"] and ordered and not parts.rules.secure and not parts.lockstep
    return here | environment.elsewhere(here, parts.machines)


def _with_noise_of_scores(config: Config, parts: Parts) -> Config:
    """With what was solved for, which names the run's random bits as if it had been given."""
    if config.early_stopping is None or parts.beside.scores is None:
        return config
    solved = {"noise_multiplier": parts.beside.scores.noise_multiplier}
    return config.model_copy(update={"early_stopping": config.early_stopping.model_copy(update=solved)})


def _prior(
    path: Path | None, shared: Ledger | None, noise: str, data_sha256: str, num_silos: int, rules: PrivacyRules
) -> Prior:
    """What a shared ledger holds of other runs than ``noise``.

    Raises:
        ConfigError: no one epsilon bounds them together with this run.
    """
    if shared is None:
        return NO_PRIOR
    release = rules.release(1.0)
    if release.noise_multiplier < LEAST_NOISE:
        raise ConfigError(
            f"--ledger {path}: no noise covers what this run would release (noise_multiplier "
            f"{release.noise_multiplier:g}), so that after it nothing that the ledger holds would have an epsilon. "
            "Leave --ledger out."
        )
    try:
        return prior_of(shared, noise=noise, data_sha256=data_sha256, num_silos=num_silos, release=release)
    except ConfigError as error:
        raise type(error)(f"--ledger {path}: {error}") from error


def shared_prior(path: Path) -> Callable[[str, int, PrivacyRules], Prior]:
    """What a shared ledger holds, for planning a run that would share it: read, not locked; nothing if it is missing.

    Raises:
        ConfigError: it is one run's own ledger, or no one epsilon bounds its runs together with the planned one.
        LedgerError: it is damaged.
    """
    return functools.partial(_prior, path, read_shared(path) if path.exists() else Ledger(), "")


def shared_key(path: Path) -> Path:
    """The key by which the runs of a shared ledger know records again."""
    real = path.resolve()
    return real.with_name(f"{real.name}.key")


def _check_finished(config: Config, base: Path, folder: RunFolder, reporter: Reporter, place: Place, key: Path) -> None:
    """Say that a finished run is shown, and refuse to if the records or the code are others by now.

    Raises:
        DataError, ConfigError: they are.
    """
    facts = checkpoints.load_facts(folder.checkpoint)
    if facts is not None:
        try:
            notes = check_shown(folder, config, facts, environment.package_sha256())
        except PluginError as error:
            notes = [f"the code of this finished run cannot be loaded any more: {error}"]
        for note in notes:
            reporter.note(note)
    try:
        now = place.hold(config, base, key).survey.data_sha256
    except (DataError, given.MissingError) as error:
        reporter.note(f"the records that it names now cannot be compared with those of this finished run: {error}")
        return
    if facts is not None and facts["data_sha256"] != now:
        raise DataError(
            f"{folder.path} holds the result of this configuration on other records than it names now, or the silos' "
            f"key ({key}), by which they are known again, is another one. Use another --out for the new ones."
        )
    reporter.note(f"finished before, not run again: {folder.path}")


def _refuse_unfinished(folder: RunFolder, resume: bool) -> None:
    if folder.result.exists() and not resume:
        last = json.loads(folder.result.read_text())
        if last["status"] == "failed":
            raise ConfigError(
                f"{folder.path} holds a run of this configuration that failed: {last['reason']}. Change the "
                "configuration, or use --resume to try again from its last good state."
            )
    if not resume and (folder.ledger.exists() or folder.checkpoint.exists()):
        raise ConfigError(
            f"{folder.path} holds an unfinished run of this configuration. Use --resume to go on with it, "
            "or another --out to start over (what was released so far stays released)."
        )


def _look_ahead(job: _Job, account: PrivacyAccount) -> None:
    """Have the budget know of all rounds that noise was solved for, or that follow earlier runs in a shared ledger."""
    config, parts = job.config, job.parts
    planned = parts.planned
    if planned is None and job.prior.runs and config.rounds is not None:
        ahead = Prospect(
            config, parts.algorithm, parts.accountant, parts.setting, parts.num_records, privacy_rules, job.prior
        )
        planned = Counter(ahead.costs(config.rounds, parts.noise_multiplier).values())
    if planned is not None and not parts.rules.varies:
        account.look_ahead(planned)


def _tell_ahead(config: Config, parts: Parts, account: PrivacyAccount, hooks: Hooks) -> None:
    """What a user may want to know, or to change, before a round is run."""
    for text in parts.notes:
        hooks.note(f"records: {text}.")
    hooks.detail(f"engine {parts.engine.name}: {parts.engine_reason}")
    hooks.detail(f"memory: {parts.memory.summary()}")
    if parts.memory.warning:
        hooks.note(f"warning: {parts.memory.warning}.")
    for caveat in weak_claims(config, parts.rules, parts.num_records):
        hooks.note(f"warning: {caveat}")
    if config.privacy.noise_multiplier is None:
        hooks.note(f"noise_multiplier solved: {parts.noise_multiplier:g}, {_solved_for(config)}")
        assert config.privacy.epsilon is not None
        if why := strain(parts.noise_multiplier, config.privacy.epsilon, account.held()):
            hooks.note(f"warning: {why}.")


def _run(job: _Job, place: Place, hooks: Hooks, stop: Callable[[], bool]) -> Result:
    config, folder, parts, here = job.config, job.folder, job.parts, job.here
    found = checkpoints.load(folder.checkpoint)
    if found is not None:  # by another process, while this one was loading its data
        job = replace(job, coins=str(found.facts["coins"]))
    void_statement(folder)  # before the ledger may grow beyond what an earlier session stated
    with open_ledgers(folder, _facts(job), found, here, job.shared, _run_facts(job)) as ledgers:
        folder.write(folder.config, to_yaml(config))
        described = {**environment.describe(), "base": str(job.base.resolve()), "arithmetic": here}
        described |= {"memory": parts.memory.described(), "label": job.label}
        folder.write(folder.environment, to_json(described))
        for note in ledgers.own.notes:
            hooks.note(f"ledger: {note}")
        account = _account_of(job, ledgers, found)
        _look_ahead(job, account)
        runtime = place.runtime(parts, account, config, stop)
        revealed = config.evaluation.reveal == "server" or (found is not None and bool(found.facts["revealed"]))
        facts: dict[str, Any] = {"run": run_id(config), "data_sha256": parts.data_sha256, "arithmetic": here}
        facts |= {"coins": job.coins, "revealed": revealed, "fixed": fixed_digest(parts.module), **job.naming.facts}
        facts |= {"shared_key": None if job.shared is None else str(shared_key(job.shared))}

        given = max(hooks.given, 0 if found is None else int(found.facts.get("given", 0)))
        facts |= {"given": given}

        def save(progress: Progress) -> None:
            silos = _with_lost(runtime.states(), progress, folder, parts)
            checkpoints.save(folder.checkpoint, _checkpoint(progress, silos, account, facts), folder.access)

        def record(line: dict[str, Any]) -> None:
            folder.add_metrics(line)
            hooks.evaluated(line, progress)

        progress, lines, silos = _start(job, found, ledgers.attempt, hooks)
        experiment = _experiment(job, runtime, account, lines)
        if silos is not None:
            experiment.enduring(progress, lambda: runtime.load_states(silos), save=save, note=hooks.note)
        # So that --resume always has one to go on from, and knows on what machine the rounds to come were released.
        experiment.enduring(progress, lambda: save(progress), save=save, note=hooks.note)
        _tell_ahead(config, parts, account, hooks)
        for said in job.naming.said():
            hooks.note(said)
        hooks.begin(
            config, parts.rules, account, experiment.expected_rounds, progress.rounds, job.label, decides(parts)
        )
        rounds_before = progress.rounds
        job.clock.lap("start")
        job.clock.start(parts.model.device)
        try:
            outcome = experiment.run(progress, save=save, record=record, tick=hooks.ticked, stop=stop, note=hooks.note)
        except MemoryShortError:
            save(progress)
            raise
        except Exception as error:
            fault = str(error) if isinstance(error, SiloError | TouchedError) else strangers.place(error, parts.plugins)
            if fault is None:
                raise
            folder.append(folder.log, strangers.trace(error))
            outcome = Outcome("failed", f"round {progress.rounds + 1}: {fault}; the traceback is in log.txt")
            experiment.enduring(progress, lambda: save(progress), save=save, note=hooks.note)
        finally:
            hooks.end()
        by_silo: dict[int, SiloMetrics] = {}
        notes: list[str] = []
        if outcome.status in ("done", "budget_exhausted"):
            try:
                by_silo, notes = experiment.finish(progress, save=save, note=hooks.note)
            except Interrupted:
                outcome = Outcome("interrupted", "asked to stop during personalisation")
            except TooFewSilosError as error:
                outcome = Outcome("failed", str(error))
        if job.clock.on:
            job.clock.lap("I/O")  # the last checkpoint
            folder.write(folder.profile, to_json(_profile(job.clock, runtime, progress.rounds - rounds_before)))
    if config.rounds is None and outcome.status == "budget_exhausted":
        outcome = Outcome("done", outcome.reason)  # the budget was what the run was asked to use up
    final = Final(experiment.kept(progress), by_silo, tuple(notes))
    result, stated = _write_result(config, folder, parts, account, progress, outcome, final, revealed, given)
    hooks.over(result, published(stated))
    return result


def _profile(clock: Stopwatch, runtime: Runtime, rounds: int) -> dict[str, Any]:
    """Seconds by part, of this process and of silo ranks; ``rounds`` were run meanwhile."""
    ranks = {rank: _by_part(seconds) for rank, seconds in runtime.profiles().items()}
    return {"schema": PROFILE_SCHEMA, "rounds": rounds, "server" if ranks else "process": _by_part(clock.seconds)} | (
        {"silo_ranks": ranks} if ranks else {}
    )


def _by_part(seconds: Mapping[Part, float]) -> dict[str, float]:
    return {part: round(seconds[part], 6) for part in PARTS if part in seconds}


@dataclass(frozen=True, slots=True)
class Final:
    """What a run ended with.

    Attributes:
        model: (d,); by_silo: its metrics, and those of silos' own models; empty for a run that can go on.
    """

    model: torch.Tensor
    by_silo: dict[int, SiloMetrics]
    notes: tuple[str, ...]


def _solved_for(config: Config) -> str:
    privacy = config.privacy
    view = privacy.budget_view.replace("_", " ")
    cap, rounds = config.max_participations, config.rounds
    most = f"at most {cap} rounds of a silo" if cap and rounds and cap < rounds else f"{rounds} rounds"
    return f"for {most} within epsilon {privacy.epsilon:g} at delta {privacy.delta:g} ({view} view)"


def _check_marks(folder: RunFolder, parts: Parts, key: Path) -> None:
    """Raise DataError unless the records are those that the run began with."""
    found = checkpoints.load_facts(folder.checkpoint)
    if found is not None and found["data_sha256"] != parts.data_sha256:
        raise DataError(
            f"{folder.path}: the records are not those that this run began with, or the silos' key ({key}), by which "
            "they are known again, is another one. Restore the data files, or the key, or start over with another "
            "--out."
        )
    if found is not None and found.get("fixed", fixed_digest(parts.module)) != fixed_digest(parts.module):
        raise ConfigError(
            f"{folder.path}: the model's frozen layers or buffers are not those that this run began with. "
            f"{BUILT_ANEW} Or start over with another --out."
        )


def _facts(job: _Job) -> dict[str, Any]:
    """What a run's own ledger says of it."""
    parts = job.parts
    numbers = {"noise_multiplier": parts.noise_multiplier, "num_records": list(parts.num_records)}
    return {"run": run_id(job.config), "name": job.config.name, **numbers}


def _run_facts(job: _Job) -> dict[str, Any]:
    """What a shared ledger says of a run."""
    privacy, setting, rules = job.config.privacy, job.parts.setting, job.parts.rules
    drawn = setting.num_participants < setting.num_silos or _draws_with_replacement(job.config, job.parts)
    # Silos that fail may decide how often a round is released, and who is drawn whether they do.
    lasting = job.config.runtime.on_silo_failure == "continue"
    ended = (privacy.epsilon is not None and privacy.budget_view == "server") or job.config.max_participations
    return {
        "noise": job.naming.noise,
        "name": job.config.name,
        "data_sha256": job.parts.data_sha256,
        "num_silos": setting.num_silos,
        "delta": privacy.delta,
        "drawn": drawn,
        "draws_decided": drawn and (bool(ended) or lasting),
        "largest_rate": max(rules.release(rules.sampler.rate(count)).rate for count in job.parts.num_records),
    }


def _draws_with_replacement(config: Config, parts: Parts) -> bool:
    server = parts.algorithm.init_server(parts.model, parts.setting)
    return _planner(config, parts).asks(server, 0).participation == WITH_REPLACEMENT


def _account_of(job: _Job, ledgers: Ledgers, found: Checkpoint | None) -> PrivacyAccount:
    rounds = found.rounds if found else 0
    scored = {at for at, _ in _read_scores(found)}

    def repeats(charge: Charge) -> bool:
        if job.parts.beside.kind(charge) == "score" and charge.round in scored:
            return False
        return charge.noise_id == NOT_RUN or (
            is_of(charge.noise_id, f"{job.bits}{job.records}", ledgers.attempt) and charge.round >= rounds
        )

    return _account(
        job.config,
        job.parts,
        job.prior,
        ledgers.own,
        shared=ledgers.shared,
        costs=read_costs(None if found is None else found.facts),
        repeats=repeats,
        lost=bool(_losses(found)),
        coins=job.coins,
    )


def _account(
    config: Config,
    parts: Parts,
    prior: Prior,
    ledger: Ledger,
    *,
    shared: Ledger | None = None,
    costs: dict[int, RoundCost] | None = None,
    repeats: Callable[[Charge], bool] = lambda charge: False,
    lost: bool = False,
    coins: str = "",
) -> PrivacyAccount:
    return PrivacyAccount(
        config,
        rules=parts.rules,
        accountant=parts.accountant,
        setting=parts.setting,
        num_records=parts.num_records,
        ledger=ledger,
        shared=shared,
        prior=prior,
        costs=costs,
        repeats=repeats,
        stateless=not parts.algorithm.init_silos(parts.model[:1], 1),
        lost=lost,
        coins=coins,
    )


def _start(
    job: _Job, found: Checkpoint | None, attempt: int, hooks: Hooks
) -> tuple[Progress, list[dict[str, Any]], Vectors | None]:
    """The state to go on from, the evaluations that it comes with, and the silos' states; None for the first ones.

    Silos that were lost when the checkpoint was written are back, with the last states that are known of them.
    """
    parts = job.parts
    if found is None:
        server = parts.algorithm.init_server(parts.model, parts.setting)
        return Progress(server=server, attempt=attempt), job.folder.keep_metrics(-1), None
    device = parts.model.device
    progress, silos = _progress(found, device), _moved(found.silos, device)
    progress.attempt = attempt
    hooks.note(f"resumed after round {found.rounds}")
    back = sorted(progress.lost)
    if back:
        hooks.note(f"back after round {found.rounds}: silos {', '.join(map(str, back))}, which had been lost")
        for loss in progress.losses:
            loss["back"] = found.rounds if loss["back"] is None else loss["back"]
        if isinstance(parts.algorithm, Regrouping):
            ids = range(parts.setting.num_silos)
            progress.server, silos = parts.algorithm.regroup(progress.server, silos, ids, parts.setting.weights)
    return progress, job.folder.keep_metrics(found.rounds), silos


def _with_lost(states: Vectors, progress: Progress, folder: RunFolder, parts: Parts) -> Vectors:
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
    return begun(parts.algorithm.init_silos(parts.model, num_silos), parts.rules, num_silos)


def _losses(found: Checkpoint | None) -> list[dict[str, Any]]:
    return [] if found is None else [dict(loss) for loss in found.facts.get("losses", ())]


def _checkpoint(progress: Progress, silos: Vectors, account: PrivacyAccount, facts: dict[str, Any]) -> Checkpoint:
    spent = {"seconds": progress.seconds, "bytes_up": progress.bytes_up, "bytes_down": progress.bytes_down}
    costs = _in_runs(account.costs)
    account.sync()  # so that the ledger never holds less than a checkpoint says
    more = {**spent, "costs": costs, "charges": len(account.ledger), "scores": progress.scores}
    more |= {"attempt": progress.attempt, "losses": progress.losses, "begun": progress.begun}
    best = {} if progress.best is None else {BEST: progress.best.clone()}
    return Checkpoint(progress.rounds, {**progress.server, **best}, silos, {**facts, **more})


def _in_runs(costs: Mapping[int, RoundCost]) -> list[list[Any]]:
    """[first round, last round, what each of them cost], so that a checkpoint does not grow with every round."""
    runs: list[tuple[int, int, RoundCost]] = []
    for round, cost in sorted(costs.items()):
        if runs and runs[-1][1] == round - 1 and runs[-1][2] == cost:
            runs[-1] = (runs[-1][0], round, cost)
        else:
            runs.append((round, round, cost))
    return [[first, last, *asdict(cost).values()] for first, last, cost in runs]


def _experiment(job: _Job, runtime: Runtime, account: PrivacyAccount, lines: list[dict[str, Any]]) -> Experiment:
    config = job.config
    return Experiment(
        planner=_planner(config, job.parts, job.coins),
        runtime=runtime,
        account=account,
        rounds=config.rounds or MOST_ROUNDS,
        expected_rounds=job.expected,
        run_name=job.bits,
        records=job.records,
        evaluations=_evaluations(job),
        evaluated=lines[-1]["round"] if lines else 0,
        dissimilarity=config.evaluation.dissimilarity,
        checkpoint_every=config.checkpoint.every,
        checkpoint_seconds=config.checkpoint.seconds,
        stopping=_stopping(config),
        personalise=config.personalise,
        min_silos=config.runtime.min_silos,
        still_the_same=StillTheSame(config, job.parts.plugins, job.naming.facts["code"]["files"]),
        clock=job.clock,
    )


def _evaluations(job: _Job) -> Evaluations:
    config, parts = job.config, job.parts
    if config.evaluation.every is not None:
        return Evaluations(config.evaluation.every, job.expected)
    planner, server = _planner(config, parts), parts.algorithm.init_server(parts.model, parts.setting)
    plans = [planner.asks(server, round) for round in range(min(PLANS_LOOKED_AT, job.expected))]
    d = parts.model.numel()
    training = round_work(plans, parts.rules, parts.num_records, parts.setting.num_participants, d)
    once = evaluation_work(parts.num_records, parts.num_test_records, d, config.evaluation.dissimilarity)
    return affordable(job.expected, training, once)


def _stopping(config: Config) -> Stopping | None:
    early = config.early_stopping
    if early is None:
        return None
    return Stopping(every=early.every, patience=early.patience, min_gain=early.min_gain, keep_best=early.keep == "best")


def _planner(config: Config, parts: Parts, coins: str = "") -> Planner:
    return Planner(parts.algorithm, parts.setting, parts.setting.weights, config.seed, parts.beside.training, coins)


def _expected_rounds(config: Config, parts: Parts, prior: Prior, shared: Path | None, coins: str) -> int:
    """How many rounds the budget will allow.

    Raises:
        ConfigError: not one; BudgetError: not one after the runs that a shared ledger holds.
    """
    account = _account(config, parts, prior, Ledger(), coins=coins)
    server = parts.algorithm.init_server(parts.model, parts.setting)
    expected = account.expected_rounds(_planner(config, parts).asks(server, 0), config.rounds or MOST_ROUNDS)
    epsilon = config.privacy.epsilon
    if epsilon is not None and prior.runs and (expected == 0 or account.held() > epsilon):
        raise BudgetError(
            f"--ledger {shared} holds {earlier_runs(prior)}, at epsilon {account.held():.4g} at "
            f"delta {config.privacy.delta:g}: privacy.epsilon={epsilon} does not last for one more "
            "round. Raise it, or noise_multiplier; or lower record_rate or local_steps."
        )
    if expected == 0:
        raise ConfigError(
            f"privacy.epsilon={epsilon} does not last for one round. Raise it, or noise_multiplier; "
            "or lower record_rate or local_steps."
        )
    return expected


def _check_lasting(config: Config, parts: Parts) -> None:
    """Raise ConfigError if a run cannot go on without lost silos as its configuration says."""
    runtime, num_silos = config.runtime, parts.setting.num_silos
    if runtime.on_silo_failure != "continue":
        return
    if runtime.min_silos > num_silos:
        raise ConfigError(f"runtime.min_silos={runtime.min_silos} is more than the {num_silos} silos that there are.")
    if parts.algorithm.init_silos(parts.model[:1], 1) and not isinstance(parts.algorithm, Regrouping):
        raise UnsupportedError(
            f"runtime.on_silo_failure='continue': algorithm={config.algorithm.name or config.algorithm.module!r} keeps "
            "state at silos and does not say what becomes of it when silos are lost. Use abort, or give the algorithm "
            "the method regroup; see docs/plugins.md."
        )


def _check_states(config: Config, parts: Parts) -> None:
    """Raise UnsupportedError where rank 0 would get silos' states, in checkpoints, that may be no releases.

    At record level an algorithm has nothing but private gradients; at silo level only what it sends is checked.
    """
    stateful = bool(parts.algorithm.init_silos(parts.model[:1], 1))
    if parts.train or parts.rules.unit == "record" or not stateful:
        return
    if not getattr(parts.algorithm, "states_are_released", False):
        raise UnsupportedError(
            f"privacy.unit='silo' on MPI ranks: algorithm={config.algorithm.name or config.algorithm.module!r} keeps "
            "states at silos, which come to rank 0 in checkpoints, and does not say that they are functions of what "
            "was released. Run it in one process, or give the algorithm states_are_released = True (docs/plugins.md)."
        )


def _begun_with(config: Config, folder: RunFolder) -> float | None:
    """The noise multiplier that an unfinished run solved for, whatever would be found today; None if there is none."""
    if config.privacy.noise_multiplier is not None or not folder.ledger.exists():
        return None
    with folder.ledger.open("rb") as file:
        if not file.readline().endswith(b"\n"):  # nothing was charged: see `open_ledgers`
            return None
    known = Ledger.open(folder.ledger, append=False).facts.get("noise_multiplier")
    return None if known is None else float(known)


def read_costs(facts: dict[str, Any] | None) -> dict[int, RoundCost]:
    """What the rounds that a checkpoint knows cost, from its facts."""
    return {
        round: RoundCost(
            tuple((float(noise), int(count)) for noise, count in levels),
            (float(share[0]), float(share[1])),
            float(probability),
            most,
        )
        for first, last, levels, share, probability, most in (facts or {"costs": ()})["costs"]
        for round in range(int(first), int(last) + 1)
    }


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


def _moved(vectors: Vectors, device: torch.device) -> Vectors:
    return {name: value.to(device) for name, value in vectors.items()}


def _progress(found: Checkpoint, device: torch.device) -> Progress:
    facts, server = found.facts, _moved(found.server, device)
    best = server.pop(BEST, None)
    return Progress(
        server=server,
        rounds=found.rounds,
        seconds=float(facts["seconds"]),
        bytes_up=int(facts["bytes_up"]),
        bytes_down=int(facts["bytes_down"]),
        begun=int(facts.get("begun", found.rounds)),
        scores=_read_scores(found),
        best=best,
        losses=_losses(found),
    )


def _read_scores(found: Checkpoint | None) -> list[Score]:
    return [(int(at), float(score)) for at, score in (found.facts.get("scores", ()) if found else ())]


def _write_result(
    config: Config,
    folder: RunFolder,
    parts: Parts,
    account: PrivacyAccount,
    progress: Progress,
    outcome: Outcome,
    final: Final,
    revealed: bool,
    given: int,
) -> tuple[Result, dict[str, Any]]:
    """(result, statement), which are in the folder then.

    Args:
        given: how many kinds of measurements callbacks were given, see `hooks.GIVEN`.
    """
    model = final.model
    folder.write(folder.model, serialise(whole_state(parts.module, model), metadata={"run": run_id(config)}))
    lines = [line for line in folder.read_metrics() if line["round"] <= progress.rounds]
    notes = [*parts.caveats, *parts.algorithm.notes(progress.server), *account.ledger.notes, *final.notes]
    notes += schedule_notes(parts.rules, parts.setting, parts.num_records, account)
    if lines and all(line["phase"] == "warm-up" for line in lines):
        notes.append("all rounds were warm-up: the model was never trained. Use more rounds, or fewer warm_rounds.")
    hidden = lines and lines[-1]["test_accuracy"] is None
    notes += [STAYED] if hidden else []
    said = statement(
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
            "reason": outcome.reason,
        },
        caveats=parts.caveats,
        notes=[*notes, *(_loss_in_words({**loss, "why": "see result.json"}) for loss in progress.losses)],
        lost=progress.losses,
        measurements=(*MEASUREMENTS, *GIVEN[:given]),
        revealed=revealed,
    )
    measured = [line["train_loss"] for line in lines if line["test_accuracy"] is not None]
    # Not in the statement, which may be published: no epsilon covers what a loss tells.
    notes += [] if hidden else _diverged(measured)
    notes += [_loss_in_words(loss) for loss in progress.losses]
    result: Result = {
        "schema": RESULT_SCHEMA,
        "status": outcome.status,
        "reason": outcome.reason,
        "name": config.name,
        "id": run_id(config),
        "algorithm": config.algorithm.name or config.algorithm.module,
        "seed": config.seed,
        "rounds": progress.rounds,
        "num_silos": parts.setting.num_silos,
        "num_train_records": sum(parts.num_records),
        "num_test_records": sum(parts.num_test_records),
        "test_accuracy": last(lines, "test_accuracy"),
        "train_loss": last(lines, "train_loss"),
        "silos": _of_silos(final.by_silo),
        "silo_names": {str(silo): name for silo, name in sorted(parts.names.items())},
        "dearest_silo": _dearest(said["views"], said["silos"]),
        "lost": progress.losses,
        "early_stopping": _early_stopping(config, parts, progress),
        "inputs": None if parts.inputs is None else _lists(asdict(parts.inputs)),
        "noise_multiplier": parts.noise_multiplier,
        "warnings": [text for text in said["warnings"] if text != SIMULATION],
        "epsilon": said["views"],
        "earlier_runs": None if said["shared"] is None else said["shared"]["num_runs"],
        "seconds": round(progress.seconds, 3),
        "bytes_up": progress.bytes_up,
        "bytes_down": progress.bytes_down,
        "engine": parts.engine.name,
        "engine_reason": parts.engine_reason,
        "model_sha256": model_sha256(model),
        "model_file_sha256": model_file_sha256(folder),
        "notes": notes,
        "folder": str(folder.path),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if final.by_silo:
        folder.write(folder.silos, _table_of_silos(final.by_silo, parts))
    write_statement(folder, said)
    folder.write(folder.result, to_json(result))
    return result, said


def _lists(values: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON has them, so that a result is the same when it is read again."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


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


def _of_silos(by_silo: dict[int, SiloMetrics]) -> dict[str, Any] | None:
    """How the final model, and silos' own, do at the silos; None for a run that is not at its end."""
    own = [m.personalised_accuracy for m in by_silo.values() if m.personalised_accuracy is not None]
    return of_silos(list(by_silo), [m.test_accuracy for m in by_silo.values()], own)


def _table_of_silos(by_silo: dict[int, SiloMetrics], parts: Parts) -> str:
    """`silos.csv`: a line for each silo; what it has not, a model of its own or a name, is empty."""
    return csv_text(
        [
            {
                "silo": silo,
                "num_train": parts.num_records[silo],
                "num_test": parts.num_test_records[silo],
                "test_accuracy": m.test_accuracy,
                "personalised_accuracy": m.personalised_accuracy,
                "name": parts.names.get(silo, ""),
            }
            for silo, m in by_silo.items()
        ]
    )


def _dearest(views: Mapping[str, Any], silos: Sequence[Mapping[str, Any]]) -> int | None:
    """The silo that spent most; None where all spent alike."""
    worst: int | None = views["server"]["worst_silo"]
    return worst if len({silo["epsilon"] for silo in silos}) > 1 else None


def _early_stopping(config: Config, parts: Parts, progress: Progress) -> dict[str, Any] | None:
    stopping, scores = _stopping(config), parts.beside.scores
    if stopping is None or scores is None:
        return None
    best = stopping.best(progress.scores)
    kept = progress.rounds if best is None or not stopping.keep_best else progress.scores[best][0]
    return {
        "scores": progress.scores,
        "noise_multiplier": scores.noise_multiplier,
        "stopped": stopping.stops(progress.scores) and progress.rounds < (config.rounds or 0),
        "kept_round": kept,
    }


def model_sha256(model: torch.Tensor) -> str:
    """Digest of the model's bits."""
    return hashlib.sha256(model.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
