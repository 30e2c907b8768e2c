"""`dpfl.train` and `dpfl.resume`: runs of what a program has, by the schema, checks and session of runs of files."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Unpack

import torch
from torch import nn

from dpfl_plugin import own_folders
from dpfl_plugin.api import plots
from dpfl_plugin.api.federation import Federation
from dpfl_plugin.api.objects import algorithm_block, loss_name, model_block, plain
from dpfl_plugin.api.privacy import Privacy
from dpfl_plugin.api.progress import python_reporter
from dpfl_plugin.api.runs import Run, Shape, doubts
from dpfl_plugin.callbacks.base import Callback
from dpfl_plugin.config.keys import RunKeys, shows
from dpfl_plugin.config.load import Plan, Variant, base_of, configure, in_file, load
from dpfl_plugin.config.privacy import PrivacyConfig
from dpfl_plugin.config.schema import Config
from dpfl_plugin.data.base import Holding
from dpfl_plugin.errors import ConfigError, DataError, TrainingError, require
from dpfl_plugin.federation.runtime import ChargeSink, Runtime
from dpfl_plugin.interrupts import Stop, stopping
from dpfl_plugin.models.fields import fields_of
from dpfl_plugin.runs.backend import Backend
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runs.checkpoint import saved_rounds
from dpfl_plugin.runs.existing_run import begun_seed
from dpfl_plugin.runs.folder import RunFolder, folder_of
from dpfl_plugin.runs.forecast import MANY_ROUNDS
from dpfl_plugin.runs.hooks import Reporter
from dpfl_plugin.runs.ledgers import Wait
from dpfl_plugin.runs.run import run_config
from dpfl_plugin.runtimes.choice import backend_here, backend_of, register

RUNS: Final = "runs"
LEDGER_WAIT: Final = 60.0  # seconds, for a run that is about to end
UNTIMED: Final = (
    "finished before, without a profile: no times were taken. To take them, run it once more with another out or seed."
)


@shows(RunKeys)
def train(
    federation: Federation,
    *,
    model: Any = "softmax",
    algorithm: Any,
    privacy: Privacy | Mapping[str, Any],
    rounds: int | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    ledger: str | Path | None = None,
    callbacks: Sequence[Any] = (),
    progress: bool | None = None,
    profile: bool = False,
    **keys: Unpack[RunKeys],
) -> Run:
    """Train privately; the same run, to the bit, as `dpfl run` of a file with these keys.

    Args:
        federation: the records, see `Federation`.
        model: an ``nn.Module`` (which stays as it is), a function that makes one, or a plugin's name or block.
        algorithm: an instance, e.g. ``dpfl.algorithms.Scaffold(local_steps=20, local_lr=1.0)``, a name or a block.
        privacy: `Privacy`, or its keys as a mapping.
        rounds: None: as many as ``privacy.epsilon`` allows.
        seed: None: noise is fresh, and another run draws another one. A number: a simulation that repeats, whose noise
            whoever knows the seed can compute, unless ``privacy.randomness`` is "fresh".
        out: folder of run folders; None: one of its own, runs/DATE-TIME.
        resume: go on with the run that an earlier call with the same arguments began in ``out``.
        ledger: a file by which several runs on the same data share a budget.
        callbacks: told how it goes, in this order. profile: take times, for `Run.profile`.
        progress: whether to show a bar; None: in a terminal and in Jupyter.
        keys: any other key of a file (docs/configuration.md).

    Returns:
        the run that is done, or whose budget is used up (``status``).

    Raises:
        ConfigError, DataError: something that is given is wrong; names the key and the value. Nothing was released.
        TrainingError: the run failed; its folder holds the last good state.
        KeyboardInterrupt: asked to stop, by Ctrl-C, SIGTERM or SIGUSR1; the round was finished and saved, for
            ``resume``.
    """
    check_how(resume, ledger, callbacks, progress, profile)
    if resume and out is None:
        raise ConfigError("resume=True without out: give the folder in which the run began, out=....")
    check_path("out", out)
    values, held = values_of(federation, model, algorithm, privacy, keys)
    values |= {"seed": plain(seed), "out": own_folder() if out is None else str(out)}
    values |= {} if rounds is None else {"rounds": plain(rounds)}
    plan = Plan((Variant(None, configure(values, source="dpfl.train")),))
    runs = run_here(
        plan,
        Path.cwd(),
        resume=resume,
        ledger=ledger,
        callbacks=callbacks,
        progress=progress,
        profile=profile,
        held=held,
    )
    return next(iter(runs.values()))


def values_of(
    federation: Federation,
    model: Any,
    algorithm: Any,
    privacy: Privacy | Mapping[str, Any],
    keys: Mapping[str, Any],
) -> tuple[dict[str, Any], object]:
    """(what a file would hold, objects that it names and that have to be held); arguments as those of `train`.

    Raises:
        ConfigError: one of them is of another type.
    """
    if not isinstance(federation, Federation):
        raise ConfigError(
            f"federation is a {type(federation).__name__}: make one with dpfl.Federation.load, from_frame, from_table, "
            "from_arrays or from_datasets."
        )
    if "data" in keys:
        raise ConfigError(
            "data comes from the federation: give its keys there, e.g. Federation.load(..., num_silos=8)."
        )
    by_keys = isinstance(privacy, PrivacyConfig | Mapping)
    require(by_keys, "privacy", privacy, "be dpfl.Privacy(epsilon=..., ...), or its keys as a mapping")
    model_value, of_model = model_block(model)
    if isinstance(model, nn.Module) and (fields := fields_of(model)) is not None:
        federation.check_rows(fields)  # here, where rows still have the numbers that the program knows them by
    loss_value, of_loss = loss_name(keys.get("loss", "auto"))
    algorithm_value, of_algorithm = algorithm_block(algorithm)
    values: dict[str, Any] = {
        **{key: _plain(key, value) for key, value in keys.items() if key != "loss"},
        "data": federation.data,
        "model": model_value,
        "algorithm": algorithm_value,
        "privacy": privacy.model_dump(exclude_unset=True) if isinstance(privacy, PrivacyConfig) else plain(privacy),
    }
    values |= {} if loss_value == "auto" else {"loss": loss_value}
    return values, (federation, of_model, of_loss, of_algorithm)


def _plain(key: str, value: Any) -> Any:
    try:
        return plain(value)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error


def check_path(name: str, value: Any) -> None:
    """
    Raises:
        ConfigError: it is neither None nor a path.
    """
    named = value is None or (isinstance(value, str | os.PathLike) and str(value).strip() != "")
    require(named, name, value, "be a path, as text or a Path")


def check_how(
    resume: bool = False,
    ledger: str | Path | None = None,
    callbacks: Sequence[Any] = (),
    progress: bool | None = None,
    profile: bool = False,
) -> None:
    """Check how a run is to be made, before anything of it is looked at.

    Raises:
        ConfigError: an argument is of another type.
    """
    check_path("ledger", ledger)
    require(isinstance(resume, bool), "resume", resume, "be True or False")
    require(isinstance(profile, bool), "profile", profile, "be True or False")
    require(progress is None or isinstance(progress, bool), "progress", progress, "be True, False or None")
    several = isinstance(callbacks, Iterable) and not isinstance(callbacks, str | bytes)
    require(several, "callbacks", callbacks, "be a list of callbacks", "Give callbacks=[...].")


def resume(
    folder: str | Path,
    *,
    ledger: str | Path | None = None,
    callbacks: Sequence[Any] = (),
    progress: bool | None = None,
    profile: bool = False,
) -> Run:
    """Continue the run of a folder, ``OUT/NAME/ID``, begun here or by `dpfl run`; a finished one is shown again.

    Args:
        ledger: the one that it shares with other runs, if it began with one. Others as those of `train`.

    Raises:
        DataError: there is no run in the folder; ConfigError: objects of the program that began it are missing, or
            the folder was renamed; or as `train`.
    """
    plan, base = begun(folder)
    runs = run_here(plan, base, resume=True, ledger=ledger, callbacks=callbacks, progress=progress, profile=profile)
    return next(iter(runs.values()))


def begun(folder: str | Path) -> tuple[Plan, Path]:
    """The run that began in a folder, and where its relative paths start. Errors as those of `resume`."""
    require(isinstance(folder, str | Path), "folder", folder, "be the path of a run's folder, OUT/NAME/ID")
    files = RunFolder(Path(folder).absolute())
    if not (files.config.exists() and files.ledger.exists()):
        raise DataError(f"{folder}: no run began there, or its files are gone. Name its folder, OUT/NAME/ID.")
    path = Path(folder) if len(Path(folder).parts) > 2 else files.path
    config = load(files.config).variants[0].config.model_copy(update={"out": str(path.parents[1])})
    own = folder_of(config).path
    if own.parts[-2:] != files.path.parts[-2:]:
        raise ConfigError(f"{folder} is the folder of a run that belongs into {own}: give it its own name again.")
    return Plan((Variant(None, config),)), base_of(files.config)


def run_each(
    plan: Plan,
    base: Path,
    *,
    reporter: Callable[[str], Reporter],
    stop: Stop,
    backend: Callable[[Config], Backend] = backend_of,
    resume: bool = False,
    ledger: Path | None = None,
    ledger_wait: float = LEDGER_WAIT,
    callbacks: Sequence[Callback] = (),
    profile: bool = False,
    held: object = None,
    source: Path | None = None,
) -> Iterator[tuple[str, Run]]:
    """Run variants one after another, up to one that is interrupted; yields the label of each, and how it ended.

    Args:
        base: where relative paths start. backend: the runtime of a run; reporter: of one with a label.
        ledger_wait: seconds, while another run has the ledger.
        held: objects that the configurations name. source: the file that they are from.

    Raises:
        KeyboardInterrupt: asked to stop during planning, where nothing is to be saved. Others as `run_config`.
    """
    own_folders.look_in(base)
    wait = Wait(ledger_wait, reporter("").note)
    with _naming_source(source, replace(plan.variants[0], label=None)):
        register([variant.config for variant in plan.variants], base, ledger, wait, wait.say)
    runs: dict[str, Run] = {}
    try:
        for variant in plan.variants:
            config, label = variant.config, variant.label or variant.config.name
            stop.listening = (config.rounds or 0) < MANY_ROUNDS
            with _naming_source(source, variant):
                runs[label] = run_variant(
                    variant,
                    base,
                    backend=backend(config),
                    reporter=reporter(variant.label or ""),
                    stop=stop,
                    resume=resume,
                    ledger=ledger,
                    ledger_wait=ledger_wait,
                    callbacks=callbacks,
                    profile=profile,
                    held=held,
                )
            yield label, runs[label]
            if runs[label].status == "interrupted":
                break
    finally:  # of those that ended before an error, too
        if len(plan.variants) > 1 and runs:
            baseline = plots.baseline_of(*(run.result for run in runs.values()))
            plots.of_variants(plan.variants[0].config, {label: run.lines for label, run in runs.items()}, baseline)


@contextlib.contextmanager
def _naming_source(source: Path | None, variant: Variant) -> Iterator[None]:
    """Say in errors which file they are of, if one is named, and which variant."""
    try:
        yield
    except (ConfigError, DataError) as error:
        if source is None:
            raise
        raise in_file(error, source, variant) from error


def run_variant(
    variant: Variant,
    base: Path,
    *,
    backend: Backend,
    reporter: Reporter,
    stop: Callable[[], bool],
    resume: bool = False,
    ledger: Path | None = None,
    ledger_wait: float = LEDGER_WAIT,
    callbacks: Sequence[Callback] = (),
    profile: bool = False,
    picture: bool = True,
    held: object = None,
) -> Run:
    """Run a configuration in its folder, or find that it is finished; arguments and errors as `run_config`.

    Args:
        picture: have `curves.png` in the folder, too. held: as of `run_each`.
    """
    config, folder, recorder = variant.config, folder_of(variant.config), _ShapeRecorder(backend)
    finished = folder.finished_result() is not None
    result = run_config(
        config,
        base,
        resume=resume,
        backend=recorder,
        reporter=reporter,
        stop=stop,
        label=variant.label,
        ledger=ledger,
        wait=Wait(ledger_wait, reporter.note, stop),
        profile=profile,
        callbacks=callbacks,
    )
    if picture:
        plots.of_run(folder, config, variant.label, anew=not finished)
    run = Run(Path(result["folder"]), result, held=held, shape=recorder.shape)
    if profile and run.profile is None:
        reporter.note(UNTIMED)
    return run


def run_here(
    plan: Plan,
    base: Path,
    *,
    resume: bool = False,
    ledger: str | Path | None = None,
    callbacks: Sequence[Any] = (),
    progress: bool | None = None,
    profile: bool = False,
    held: object = None,
    source: Path | None = None,
) -> dict[str, Run]:
    """The runs of a plan, by label, in this Python program; arguments and errors as those of `train` and `run_each`."""
    check_how(resume, ledger, callbacks, progress, profile)
    reporter, threads, runs = python_reporter(progress), torch.get_num_threads(), dict[str, Run]()
    out = plan.variants[0].config.out
    reporter.note(f"folder: {Path(out) / plan.variants[0].config.name}")
    with stopping() as stop:
        try:
            for label, run in run_each(
                plan,
                base,
                backend=backend_here,
                reporter=lambda label: reporter,
                stop=stop,
                resume=resume,
                ledger=None if ledger is None else Path(ledger),
                callbacks=tuple(callbacks),
                profile=profile,
                held=held,
                source=source,
            ):
                runs[label] = run
                ending = run.ending(f"resume=True, out={out!r}")
                if run.status == "interrupted":
                    reporter.note(ending)
                    raise KeyboardInterrupt
                if run.status == "failed":
                    raise TrainingError(f"the run {ending}")
                for kind, text in doubts(run):
                    reporter.note(f"{kind}: {text}")
        finally:
            torch.set_num_threads(threads)
    return runs


def rounds_saved(plan: Plan) -> list[int]:
    """How many rounds the newest checkpoint of each run has."""
    return [saved_rounds(folder_of(variant.config).checkpoint) for variant in plan.variants]


def of_one_seed(plan: Plan) -> Plan:
    """A file's runs with one public seed where they name none, so that they differ in what the variants differ in."""
    begun = begun_seed(variant.config for variant in plan.variants)
    seed = plan.variants[0].config.public_seed if begun is None else begun
    variants = (replace(variant, config=variant.config.with_public_seed(seed)) for variant in plan.variants)
    return replace(plan, variants=tuple(variants))


def own_folder() -> str:
    """A folder of run folders that is not there, named by the time."""
    name = time.strftime(f"{RUNS}/%Y%m%d-%H%M%S")
    folder, number = name, 1
    while os.path.lexists(folder):
        number += 1
        folder = f"{name}-{number}"
    return folder


class _ShapeRecorder:
    """A `Backend` that keeps the shape of the records that it loads."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.shape: Shape | None = None

    def hold(self, config: Config, base: Path, key: Path) -> Holding:
        holding = self._backend.hold(config, base, key)
        self.shape = holding.survey.feature_shape, holding.survey.num_classes
        return holding

    def begin(self) -> None:
        self._backend.begin()

    def runtime(self, parts: Parts, charges: ChargeSink, config: Config) -> Runtime:
        return self._backend.runtime(parts, charges, config)
