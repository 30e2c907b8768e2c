"""One run in its folder: start it, resume it, or find that it is finished; and say how it ended."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save as serialise

from dpfl_plugin.config.load import noise_name, run_id, to_yaml
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError, DataError, LedgerError
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.training import checkpoint as checkpoints
from dpfl_plugin.training import environment
from dpfl_plugin.training.accounting import MOST_ROUNDS, PrivacyAccount, RoundCost, statement
from dpfl_plugin.training.build import Parts, build, federate, fingerprint
from dpfl_plugin.training.checkpoint import Checkpoint
from dpfl_plugin.training.experiment import Experiment, Outcome, Progress
from dpfl_plugin.training.folder import RunFolder, to_json, write_atomic
from dpfl_plugin.training.planning import Planner
from dpfl_plugin.training.runtime import ChargeSink, Runtime

RESULT_SCHEMA = 1
EVALUATIONS = 100  # about so many in a run, unless the configuration says otherwise
FRESH_NOISE = (
    "rounds that were released already cannot be repeated bit for bit here, because the machine or the versions "
    "differ, or the noise is secure: they are run with fresh noise and charged again."
)

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


def run_session(
    config: Config,
    base: Path,
    *,
    resume: bool,
    make_runtime: MakeRuntime,
    reporter: Reporter,
    stop: Callable[[], bool],
) -> Result:
    """Run ``config`` to its end, or until it is stopped; returns what `result.json` holds.

    Raises:
        ConfigError: the configuration is wrong, or the folder holds an unfinished run and ``resume`` is not set.
        DataError: data files are missing or damaged, or are not those that the unfinished run began with.
    """
    folder = folder_of(config)
    result = finished_result(folder)
    if result is not None:
        _check_records(config, base, folder, reporter)
        return result
    _refuse_unfinished(folder, resume)
    parts = build(config, base, _begun_with(config, folder))  # bad input is found before anything is written
    expected = _expected_rounds(config, parts)
    torch.set_num_threads(config.runtime.threads)
    with folder.locked():
        result = finished_result(folder)
        if result is not None:  # by another process, while this one was loading its data
            return result
        _refuse_unfinished(folder, resume)
        return _run(config, folder, parts, expected, make_runtime, _logged(reporter, folder), stop)


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


def _run(
    config: Config,
    folder: RunFolder,
    parts: Parts,
    expected: int,
    make_runtime: MakeRuntime,
    reporter: Reporter,
    stop: Callable[[], bool],
) -> Result:
    here = environment.arithmetic(config.runtime.device, config.runtime.threads, parts.plugins)
    here["engine"] = parts.engine_name
    here["repeats"] = here["repeats"] and not parts.rules.secure
    # Noise that no name can bring back has a name of its own each time, so that it is never taken for a repetition.
    run_name = (
        secrets.token_hex(6) if parts.rules.secure else noise_name(config, parts.data_sha256, parts.noise_multiplier)
    )
    found = checkpoints.load(folder.checkpoint)
    if found is not None and found.facts["data_sha256"] != parts.data_sha256:
        raise DataError(
            f"{folder.path}: the records are not those that this run began with (sha256 {parts.data_sha256[:16]}..., "
            f"then {found.facts['data_sha256'][:16]}...). Restore the data files, or begin anew with another --out."
        )
    with _ledger(folder, config, parts, found) as ledger:
        write_atomic(folder.config, to_yaml(config))
        write_atomic(folder.environment, to_json({**environment.describe(), "arithmetic": here}))
        for note in ledger.notes:
            reporter.note(f"ledger: {note}")
        attempt = _attempt(found, ledger, here)
        if attempt > (0 if found is None else found.facts["attempt"]):
            ledger.note(FRESH_NOISE)
            reporter.note(FRESH_NOISE)
        noise_id = f"{run_name}.{attempt}"
        account = PrivacyAccount(
            config,
            rules=parts.rules,
            accountant=parts.accountant,
            setting=parts.setting,
            num_records=parts.num_records,
            ledger=ledger,
            costs=read_costs(None if found is None else found.facts),
            repeats=lambda charge: charge.noise_id == noise_id and charge.round >= (found.rounds if found else 0),
        )
        runtime = make_runtime(parts, account, config, stop)
        if found is None:
            progress = Progress(server=parts.algorithm.init_server(parts.model, parts.setting))
            lines = folder.keep_metrics(-1)
        else:
            device = parts.model.device
            progress = _progress(found, device)
            runtime.load_states(_moved(found.silos, device))
            lines = folder.keep_metrics(found.rounds)
            reporter.note(f"resumed after round {found.rounds}")

        facts = {"run": run_id(config), "data_sha256": parts.data_sha256, "arithmetic": here, "attempt": attempt}

        def save(progress: Progress) -> None:
            spent = {"seconds": progress.seconds, "bytes_up": progress.bytes_up, "bytes_down": progress.bytes_down}
            costs = [[round, *asdict(cost).values()] for round, cost in sorted(account.costs.items())]
            account.sync()  # so that the ledger never holds less than a checkpoint says
            more = {**spent, "costs": costs, "charges": len(ledger)}
            state = Checkpoint(progress.rounds, progress.server, runtime.states(), {**facts, **more})
            checkpoints.save(folder.checkpoint, state)

        def record(line: dict[str, Any]) -> None:
            folder.add_metrics(line)
            reporter.evaluated(line)

        # So that --resume always has one to go on from, and knows on what machine the rounds to come were released.
        save(progress)
        experiment = Experiment(
            planner=_planner(config, parts),
            runtime=runtime,
            account=account,
            rounds=config.rounds or MOST_ROUNDS,
            expected_rounds=expected,
            run_name=run_name,
            attempt=attempt,
            evaluate_every=config.evaluation.every or max(1, expected // EVALUATIONS),
            evaluated=lines[-1]["round"] if lines else 0,
            dissimilarity=config.evaluation.dissimilarity,
            checkpoint_every=config.checkpoint.every,
            checkpoint_seconds=config.checkpoint.seconds,
        )
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
    return f"for {config.rounds} rounds within epsilon {privacy.epsilon:g} at delta {privacy.delta:g} ({view} view)"


def _planner(config: Config, parts: Parts) -> Planner:
    return Planner(parts.algorithm, parts.setting, parts.weights, config.seed)


def _expected_rounds(config: Config, parts: Parts) -> int:
    """How many rounds the budget will allow; the same before a run and when it is resumed."""
    account = PrivacyAccount(
        config,
        rules=parts.rules,
        accountant=parts.accountant,
        setting=parts.setting,
        num_records=parts.num_records,
        ledger=Ledger(),
    )
    server = parts.algorithm.init_server(parts.model, parts.setting)
    expected = account.expected_rounds(_planner(config, parts).asks(server, 0), config.rounds or MOST_ROUNDS)
    if expected == 0:
        raise ConfigError(
            f"privacy.epsilon={config.privacy.epsilon} does not last for one round. Raise it, or noise_multiplier; "
            "or lower record_rate or local_steps."
        )
    return expected


def _begun_with(config: Config, folder: RunFolder) -> float | None:
    """The noise multiplier that an unfinished run solved for, whatever would be found today; None if there is none."""
    if config.privacy.noise_multiplier is not None or not folder.ledger.exists():
        return None
    if b"\n" not in folder.ledger.read_bytes():  # nothing was charged: see `_ledger`
        return None
    known = Ledger.open(folder.ledger, append=False).facts.get("noise_multiplier")
    return None if known is None else float(known)


def _ledger(folder: RunFolder, config: Config, parts: Parts, found: Checkpoint | None) -> Ledger:
    """A new ledger, or the one that is there.

    Raises:
        LedgerError: it is damaged, or lacks charges that the checkpoint knows of.
    """
    if found is None and folder.ledger.exists() and b"\n" not in folder.ledger.read_bytes():
        folder.ledger.unlink()  # the process ended while it wrote the first line: nothing was charged
    known = 0 if found is None else int(found.facts["charges"])
    held = len(Ledger.open(folder.ledger, append=False)) if folder.ledger.exists() else 0
    if held < known:
        raise LedgerError(
            f"{folder.ledger} holds {held} charges where the checkpoint knows of {known}: its end is missing, and "
            "without it no epsilon can be stated. Restore the file from a copy."
        )
    if folder.ledger.exists():
        return Ledger.open(folder.ledger)
    facts = {"noise_multiplier": parts.noise_multiplier, "num_records": list(parts.num_records)}
    return Ledger(folder.ledger, {"run": run_id(config), "name": config.name, **facts})


def _attempt(found: Checkpoint | None, ledger: Ledger, here: dict[str, Any]) -> int:
    """0, or one more than before if rounds in the ledger will be run again and may not give the same bits."""
    before = 0 if found is None else int(found.facts["attempt"])
    replayed = any(charge.round >= (found.rounds if found else 0) for charge in ledger)
    same_bits = found is not None and found.facts["arithmetic"] == here and here["repeats"]
    if not replayed or same_bits:
        return before
    return 1 + max(int(charge.noise_id.rpartition(".")[2]) for charge in ledger)


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
        "epsilon": account.views(),
        "seconds": round(progress.seconds, 3),
        "bytes_up": progress.bytes_up,
        "bytes_down": progress.bytes_down,
        "engine": parts.engine_name,
        "model_sha256": model_sha256(model),
        "notes": notes,
        "folder": str(folder.path),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    write_atomic(folder.statement, to_json(statement(config, account, parts.caveats, notes)))
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
