"""One run in its folder: start it, resume it, or find that it is finished; and say how it ended."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save as serialise

from dpfl_plugin.config.load import noise_name, run_id, to_yaml
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError, DataError
from dpfl_plugin.oracle import PrivacyRules
from dpfl_plugin.privacy.accountants import LEAST_NOISE
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.prior import Prior, prior_of
from dpfl_plugin.training import checkpoint as checkpoints
from dpfl_plugin.training import environment
from dpfl_plugin.training.accounting import MOST_ROUNDS, NO_PRIOR, PrivacyAccount, RoundCost, earlier_runs
from dpfl_plugin.training.build import Parts, build, federate, fingerprint
from dpfl_plugin.training.checkpoint import Checkpoint
from dpfl_plugin.training.experiment import Experiment, Outcome, Progress
from dpfl_plugin.training.folder import RunFolder, to_json, write_atomic
from dpfl_plugin.training.ledgers import Ledgers, check_shared, locked_shared, open_ledgers
from dpfl_plugin.training.planning import Planner
from dpfl_plugin.training.runtime import ChargeSink, Runtime
from dpfl_plugin.training.statement import markdown, statement

RESULT_SCHEMA = 1
EVALUATIONS = 100  # about so many in a run, unless the configuration says otherwise
Result = dict[str, Any]
MakeRuntime = Callable[[Parts, ChargeSink, Config, Callable[[], bool]], Runtime]


class Reporter(Protocol):
    """Tells a person how it goes."""

    def note(self, text: str) -> None: ...

    def start(self, rounds: int, done: int) -> None: ...

    def evaluated(self, line: dict[str, Any]) -> None: ...

    def ticked(self, progress: Progress) -> None: ...

    def end(self) -> None: ...


def folder_of(config: Config) -> RunFolder:
    """`<out>/<name>/<id>`."""
    return RunFolder(Path(config.out) / config.name / run_id(config))


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
        noise: names the run: what it computes, of which records.
        bits: names its random bits: the same, unless they are secure.
        expected: how many rounds the budget will allow; the same before a run and when it is resumed.
    """

    config: Config
    folder: RunFolder
    parts: Parts
    shared: Path | None
    prior: Prior
    noise: str
    bits: str
    expected: int


def run_session(
    config: Config,
    base: Path,
    *,
    resume: bool,
    make_runtime: MakeRuntime,
    reporter: Reporter,
    stop: Callable[[], bool],
    ledger: Path | None = None,
) -> Result:
    """Run ``config`` to its end, or until it is stopped; returns what `result.json` holds.

    Args:
        ledger: a file that several runs on the same data share, so that the budget is for all of them together.

    Raises:
        ConfigError: the configuration is wrong, or the folder holds an unfinished run and ``resume`` is not set.
        DataError: data files are missing or damaged, or are not those that the unfinished run began with.
        LedgerError: a ledger is damaged.
    """
    folder = folder_of(config)
    result = finished_result(folder)
    if result is not None:
        if ledger is not None:
            with locked_shared(ledger) as shared:
                check_shared(folder, ledger, shared)
        _check_records(config, base, folder, reporter)
        return result
    _refuse_unfinished(folder, resume)
    with locked_shared(ledger) as shared:
        check_shared(folder, ledger, shared)
        # Bad input is found before anything is written.
        parts = build(config, base, _begun_with(config, folder), functools.partial(_prior, ledger, shared, ""))
        torch.set_num_threads(config.runtime.threads)
        job = _job(config, folder, parts, ledger, shared)
        with folder.locked():
            result = finished_result(folder)
            if result is not None:  # by another process, while this one was loading its data
                return result
            _refuse_unfinished(folder, resume)
            return _run(job, make_runtime, _logged(reporter, folder), stop)


def _job(config: Config, folder: RunFolder, parts: Parts, path: Path | None, shared: Ledger | None) -> _Job:
    noise = noise_name(config, parts.data_sha256, parts.noise_multiplier)
    prior = _prior(path, shared, noise, parts.data_sha256, parts.setting.num_silos, parts.rules)
    expected = _expected_rounds(config, parts, prior, path)
    # Noise that no name can bring back has a name of its own each time, so that it is never taken for a repetition.
    bits = secrets.token_hex(6) if parts.rules.secure else noise
    return _Job(config, folder, parts, path, prior, noise, bits, expected)


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


def _check_records(config: Config, base: Path, folder: RunFolder, reporter: Reporter) -> None:
    """Say that a finished run is shown, and refuse to if the records are others by now.

    Raises:
        DataError: they are.
    """
    found = checkpoints.load(folder.checkpoint)
    try:
        now = fingerprint(federate(config, base))
    except DataError as error:
        reporter.note(f"the records of this finished run cannot be read any more: {error}")
        return
    if found is not None and found.facts["data_sha256"] != now:
        raise DataError(
            f"{folder.path} holds the result of this configuration on other records than it names now. Use another "
            "--out for the new ones."
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
            "or another --out to begin anew (what was released so far stays released)."
        )


def _run(job: _Job, make_runtime: MakeRuntime, reporter: Reporter, stop: Callable[[], bool]) -> Result:
    config, folder, parts = job.config, job.folder, job.parts
    here = environment.arithmetic(config.runtime.device, config.runtime.threads, parts.plugins)
    here["engine"] = parts.engine_name
    here["repeats"] = here["repeats"] and not parts.rules.secure
    found = _found(folder, parts)
    with open_ledgers(folder, _facts(job), found, here, job.shared, _run_facts(job)) as ledgers:
        write_atomic(folder.config, to_yaml(config))
        write_atomic(folder.environment, to_json({**environment.describe(), "arithmetic": here}))
        for note in ledgers.own.notes:
            reporter.note(f"ledger: {note}")
        account = _account_of(job, ledgers, found)
        runtime = make_runtime(parts, account, config, stop)
        progress, lines = _start(job, runtime, found, reporter)
        facts = {
            "run": run_id(config),
            "data_sha256": parts.data_sha256,
            "arithmetic": here,
            "attempt": ledgers.attempt,
        }

        def save(progress: Progress) -> None:
            checkpoints.save(folder.checkpoint, _checkpoint(progress, runtime, account, facts))

        def record(line: dict[str, Any]) -> None:
            folder.add_metrics(line)
            reporter.evaluated(line)

        # So that --resume always has one to go on from, and knows on what machine the rounds to come were released.
        save(progress)
        experiment = _experiment(job, runtime, account, ledgers.attempt, lines)
        reporter.note(f"engine {parts.engine_name}: {parts.engine_reason}")
        if config.privacy.noise_multiplier is None:
            reporter.note(f"noise_multiplier solved: {parts.noise_multiplier:g}, {_solved_for(config)}")
        reporter.start(experiment.expected_rounds, progress.rounds)
        try:
            outcome = experiment.run(progress, save=save, record=record, tick=reporter.ticked, stop=stop)
        finally:
            reporter.end()
    if config.rounds is None and outcome.status == "budget_exhausted":
        outcome = Outcome("done", outcome.reason)  # the budget was what the run was asked to use up
    return _write_result(config, folder, parts, account, progress, outcome)


def _solved_for(config: Config) -> str:
    privacy = config.privacy
    view = privacy.budget_view.replace("_", " ")
    cap, rounds = config.max_participations, config.rounds
    most = f"at most {cap} rounds of a silo" if cap and rounds and cap < rounds else f"{rounds} rounds"
    return f"for {most} within epsilon {privacy.epsilon:g} at delta {privacy.delta:g} ({view} view)"


def _found(folder: RunFolder, parts: Parts) -> Checkpoint | None:
    found = checkpoints.load(folder.checkpoint)
    if found is not None and found.facts["data_sha256"] != parts.data_sha256:
        raise DataError(
            f"{folder.path}: the records are not those that this run began with (sha256 {parts.data_sha256[:16]}..., "
            f"then {found.facts['data_sha256'][:16]}...). Restore the data files, or begin anew with another --out."
        )
    return found


def _facts(job: _Job) -> dict[str, Any]:
    """What a run's own ledger says of it."""
    parts = job.parts
    numbers = {"noise_multiplier": parts.noise_multiplier, "num_records": list(parts.num_records)}
    return {"run": run_id(job.config), "name": job.config.name, **numbers}


def _run_facts(job: _Job) -> dict[str, Any]:
    """What a shared ledger says of a run."""
    privacy, setting, rules = job.config.privacy, job.parts.setting, job.parts.rules
    drawn = setting.num_participants < setting.num_silos
    ended = (privacy.epsilon is not None and privacy.budget_view == "server") or job.config.max_participations
    return {
        "noise": job.noise,
        "name": job.config.name,
        "data_sha256": job.parts.data_sha256,
        "num_silos": setting.num_silos,
        "delta": privacy.delta,
        "drawn": drawn,
        "draws_decided": drawn and bool(ended),
        "largest_rate": max(rules.release(rules.sampler.rate(count)).rate for count in job.parts.num_records),
    }


def _account_of(job: _Job, ledgers: Ledgers, found: Checkpoint | None) -> PrivacyAccount:
    noise_id, rounds = f"{job.bits}.{ledgers.attempt}", found.rounds if found else 0
    return _account(
        job.config,
        job.parts,
        job.prior,
        ledgers.own,
        shared=ledgers.shared,
        costs=read_costs(None if found is None else found.facts),
        repeats=lambda charge: charge.noise_id == noise_id and charge.round >= rounds,
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
    )


def _start(
    job: _Job, runtime: Runtime, found: Checkpoint | None, reporter: Reporter
) -> tuple[Progress, list[dict[str, Any]]]:
    """The state to go on from, and the evaluations that it comes with."""
    parts = job.parts
    if found is None:
        server = parts.algorithm.init_server(parts.model, parts.setting)
        return Progress(server=server), job.folder.keep_metrics(-1)
    device = parts.model.device
    runtime.load_states(_moved(found.silos, device))
    reporter.note(f"resumed after round {found.rounds}")
    return _progress(found, device), job.folder.keep_metrics(found.rounds)


def _checkpoint(progress: Progress, runtime: Runtime, account: PrivacyAccount, facts: dict[str, Any]) -> Checkpoint:
    spent = {"seconds": progress.seconds, "bytes_up": progress.bytes_up, "bytes_down": progress.bytes_down}
    costs = [[round, *asdict(cost).values()] for round, cost in sorted(account.costs.items())]
    account.sync()  # so that the ledger never holds less than a checkpoint says
    more = {**spent, "costs": costs, "charges": len(account.ledger)}
    return Checkpoint(progress.rounds, progress.server, runtime.states(), {**facts, **more})


def _experiment(
    job: _Job, runtime: Runtime, account: PrivacyAccount, attempt: int, lines: list[dict[str, Any]]
) -> Experiment:
    config = job.config
    return Experiment(
        planner=_planner(config, job.parts),
        runtime=runtime,
        account=account,
        rounds=config.rounds or MOST_ROUNDS,
        expected_rounds=job.expected,
        run_name=job.bits,
        attempt=attempt,
        evaluate_every=config.evaluation.every or max(1, job.expected // EVALUATIONS),
        evaluated=lines[-1]["round"] if lines else 0,
        dissimilarity=config.evaluation.dissimilarity,
        checkpoint_every=config.checkpoint.every,
        checkpoint_seconds=config.checkpoint.seconds,
    )


def _planner(config: Config, parts: Parts) -> Planner:
    return Planner(parts.algorithm, parts.setting, parts.weights, config.seed)


def _expected_rounds(config: Config, parts: Parts, prior: Prior, shared: Path | None) -> int:
    """How many rounds the budget will allow.

    Raises:
        ConfigError: not one.
    """
    account = _account(config, parts, prior, Ledger())
    server = parts.algorithm.init_server(parts.model, parts.setting)
    expected = account.expected_rounds(_planner(config, parts).asks(server, 0), config.rounds or MOST_ROUNDS)
    epsilon = config.privacy.epsilon
    if epsilon is not None and prior.runs and (expected == 0 or account.held() > epsilon):
        raise ConfigError(
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


def _begun_with(config: Config, folder: RunFolder) -> float | None:
    """The noise multiplier that an unfinished run solved for, whatever would be found today; None if there is none."""
    if config.privacy.noise_multiplier is not None or not folder.ledger.exists():
        return None
    if b"\n" not in folder.ledger.read_bytes():  # nothing was charged: see `open_ledgers`
        return None
    known = Ledger.open(folder.ledger, append=False).facts.get("noise_multiplier")
    return None if known is None else float(known)


def read_costs(facts: dict[str, Any] | None) -> dict[int, RoundCost]:
    """What the rounds that a checkpoint knows cost, from its facts."""
    return {
        int(round): RoundCost(int(gradients), (float(share[0]), float(share[1])), float(probability))
        for round, gradients, share, probability in (facts or {"costs": ()})["costs"]
    }


def _moved(vectors: Vectors, device: torch.device) -> Vectors:
    return {name: value.to(device) for name, value in vectors.items()}


def _progress(found: Checkpoint, device: torch.device) -> Progress:
    facts = found.facts
    return Progress(
        server=_moved(found.server, device),
        rounds=found.rounds,
        seconds=float(facts["seconds"]),
        bytes_up=int(facts["bytes_up"]),
        bytes_down=int(facts["bytes_down"]),
    )


def _write_result(
    config: Config,
    folder: RunFolder,
    parts: Parts,
    account: PrivacyAccount,
    progress: Progress,
    outcome: Outcome,
) -> Result:
    model = progress.server["model"]
    named = {name: value.cpu().contiguous().clone() for name, value in parts.layout.unflatten(model).items()}
    write_atomic(folder.model, serialise(named, metadata={"run": run_id(config)}))
    lines = [line for line in folder.read_metrics() if line["round"] <= progress.rounds]
    notes = [*parts.caveats, *parts.algorithm.notes(progress.server), *account.ledger.notes]
    if lines and all(line["phase"] == "warm-up" for line in lines):
        notes.append("all rounds were warm-up: the model was never trained. Use more rounds, or fewer warm_rounds.")
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
        notes=notes,
    )
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
        "num_test_records": parts.num_test_records,
        "test_accuracy": _last(lines, "test_accuracy"),
        "train_loss": _last(lines, "train_loss"),
        "noise_multiplier": parts.noise_multiplier,
        "epsilon": said["views"],
        "seconds": round(progress.seconds, 3),
        "bytes_up": progress.bytes_up,
        "bytes_down": progress.bytes_down,
        "engine": parts.engine_name,
        "model_sha256": model_sha256(model),
        "notes": notes,
        "folder": str(folder.path),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    write_atomic(folder.statement, to_json(said))
    write_atomic(folder.privacy, markdown(said))
    write_atomic(folder.result, to_json(result))
    return result


def _last(lines: list[dict[str, Any]], key: str) -> dict[str, float | None]:
    """The last value, and the mean over the last 10 % of rounds ([N] D.3.2)."""
    if not lines:
        return {"last": None, "mean_last_10_percent": None}
    rounds = lines[-1]["round"]
    tail = [line[key] for line in lines if line["round"] > rounds - math.ceil(rounds / 10)]
    mean = math.fsum(tail) / len(tail) if all(value is not None for value in tail) else None
    return {"last": lines[-1][key], "mean_last_10_percent": mean}


def model_sha256(model: torch.Tensor) -> str:
    """Digest of the model's bits."""
    return hashlib.sha256(model.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def _logged(reporter: Reporter, folder: RunFolder) -> Reporter:
    return _Log(reporter, folder.log)


class _Log:
    """Passes everything on, and writes notes and evaluations to log.txt with the time."""

    def __init__(self, reporter: Reporter, path: Path) -> None:
        self._reporter, self._path = reporter, path

    def _write(self, text: str) -> None:
        with open(self._path, "a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def note(self, text: str) -> None:
        self._write(text)
        self._reporter.note(text)

    def start(self, rounds: int, done: int) -> None:
        self._write(f"rounds {done + 1} to {rounds}")
        self._reporter.start(rounds, done)

    def evaluated(self, line: dict[str, Any]) -> None:
        self._write(to_json(line, None))
        self._reporter.evaluated(line)

    def ticked(self, progress: Progress) -> None:
        self._reporter.ticked(progress)

    def end(self) -> None:
        self._reporter.end()
