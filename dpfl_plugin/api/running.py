"""What `dpfl run`, a sweep and `dpfl.train` have in common: a configuration's run, from its folder to its picture."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from dpfl_plugin import registry
from dpfl_plugin.api import pictures
from dpfl_plugin.callbacks.base import Callback
from dpfl_plugin.config.load import Plan, Variant
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError, Error, UnsupportedError, said_of
from dpfl_plugin.federation.outcome import Cause, cause_of
from dpfl_plugin.gradients import fused
from dpfl_plugin.runs.checkpoint import saved_rounds
from dpfl_plugin.runs.forecast import MANY_ROUNDS
from dpfl_plugin.runs.hooks import Reporter
from dpfl_plugin.runs.ledgers import Wait
from dpfl_plugin.runs.locations import folder_of
from dpfl_plugin.runs.place import Place
from dpfl_plugin.runs.registering import register_ahead
from dpfl_plugin.runs.result import Result, finished_result
from dpfl_plugin.runs.session import run_session, seed_of_begun
from dpfl_plugin.runs.shown_results import OtherCodeError
from dpfl_plugin.runs.usefulness import too_small_a_step, worse_than_baseline
from dpfl_plugin.runtimes.mpi import job

__all__ = [
    "LEDGER_WAIT",
    "MANY_ROUNDS",
    "Cause",
    "OtherCodeError",
    "Result",
    "Wait",
    "carried_out",
    "cause_of",
    "import_for_runs",
    "in_file",
    "of_one_seed",
    "place_here",
    "place_of",
    "register",
    "rounds_saved",
    "too_small_a_step",
    "worse_than_baseline",
]

IMPORTED_BY_RUNS: Final = (  # as they need it
    "scipy.fft",
    "scipy.linalg.blas",
    "scipy.optimize",
    "scipy.special",
    "sklearn.calibration",
    "sklearn.metrics",
)
LEDGER_WAIT: Final = 60.0  # seconds, for a run that is about to end


def carried_out(
    config: Config,
    base: Path,
    *,
    place: Place,
    reporter: Reporter,
    stop: Callable[[], bool],
    resume: bool = False,
    label: str | None = None,
    ledger: Path | None = None,
    ledger_wait: float = LEDGER_WAIT,
    say_waiting: Callable[[str], None] | None = None,
    callbacks: Sequence[Callback] = (),
    profile: bool = False,
    picture: bool = True,
) -> Result:
    """Run a configuration in its folder, or find that it is finished; arguments and errors as `run_session`.

    Args:
        ledger_wait: seconds, while another run has the ledger; say_waiting: is told so; None: ``reporter``.
        picture: have `curves.png` in the folder, too.
    """
    folder = folder_of(config)
    finished = finished_result(folder) is not None
    result = run_session(
        config,
        base,
        resume=resume,
        place=place,
        reporter=reporter,
        stop=stop,
        label=label,
        ledger=ledger,
        wait=Wait(ledger_wait, reporter.note if say_waiting is None else say_waiting, stop),
        profile=profile,
        callbacks=callbacks,
    )
    if picture:
        pictures.of_run(folder, config, label, anew=not finished)
    return result


def register(
    configs: Sequence[Config], base: Path, ledger: Path | None, wait: Wait, say: Callable[[str], None]
) -> None:
    """Register several runs in their shared ledger before the first of them begins, where this process can.

    MPI ranks and silos with folders of their own have records that it does not see: their runs are registered one by
    one, when each begins. Errors as `runs.registering.register_ahead`.
    """
    here = job.num_started() == 1 and all(config.runtime.silo_folder is None for config in configs)
    if ledger is not None and len(configs) > 1 and here:
        register_ahead(configs, base, ledger, registry.load("runtimes", "in_process")(), wait, say)


def rounds_saved(config: Config) -> int:
    """How many rounds of a configuration's run its newest checkpoint has."""
    return saved_rounds(folder_of(config).checkpoint)


def of_one_seed(plan: Plan) -> Plan:
    """A file's runs with one public seed where they name none, so that they differ in what the variants differ in."""
    begun = seed_of_begun(one.config for one in plan.variants)
    seed = plan.variants[0].config.public_seed if begun is None else begun
    return replace(
        plan, variants=tuple(replace(one, config=one.config.with_public_seed(seed)) for one in plan.variants)
    )


def import_for_runs() -> None:
    """Import what runs need, before a process is forked for each: it would import it anew, in about two seconds."""
    for name in IMPORTED_BY_RUNS:
        importlib.import_module(name)
    fused.kernels()


def place_of(config: Config) -> Place:
    """The runtime that a configuration names.

    Raises:
        ConfigError: it cannot be used by a process that was started like this one.
    """
    kind, several = config.runtime.kind, job.num_started() > 1
    if kind != "in_process":
        job.check_alone()
    if kind == "in_process" and several:
        raise ConfigError(
            f"runtime.kind='in_process', but {job.num_started()} processes were started. Start one, or use kind: auto."
        )
    place: Place = registry.load("runtimes", ("mpi" if several else "in_process") if kind == "auto" else kind)()
    return place


def place_here(config: Config) -> Place:
    """As `place_of`, for a Python program: never MPI, whose other ranks only hold silos."""
    if job.num_started() > 1 or config.runtime.kind == "mpi":
        raise UnsupportedError(
            "Python code trains in one process, and MPI has ranks that hold silos: write the configuration into a file "
            "and use mpirun dpfl run FILE (docs/mpi.md)."
        )
    return place_of(config)


def in_file(error: Error, path: Path, one: Variant, after: str = "") -> Error:
    """An error of the same type, which names the file and the variant that it is of."""
    return said_of(error, f"{path}{f' (variant {one.label})' if one.label else ''}: ", after)
