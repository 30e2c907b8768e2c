"""Which runtime holds the silos of a run, by its configuration and by how this process was started."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from dpfl_plugin import registry
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.runs.backend import Backend
from dpfl_plugin.runs.ledgers import Wait, ledger_of
from dpfl_plugin.runs.run_registration import register_ahead
from dpfl_plugin.runtimes.mpi import job


def backend_of(config: Config) -> Backend:
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
    backend: Backend = registry.load("runtimes", ("mpi" if several else "in_process") if kind == "auto" else kind)()
    return backend


def backend_here(config: Config) -> Backend:
    """As `backend_of`, for a Python program: never MPI, whose other ranks only hold silos."""
    if job.num_started() > 1 or config.runtime.kind == "mpi":
        raise UnsupportedError(
            "Python code trains in one process, and MPI has ranks that hold silos: write the configuration into a file "
            "and use mpirun dpfl run FILE (docs/mpi.md)."
        )
    return backend_of(config)


def register(
    configs: Sequence[Config], base: Path, ledger: Path | None, wait: Wait, say: Callable[[str], None]
) -> None:
    """Register several runs in the ledger that they share before the first of them begins, where this process can.

    MPI ranks and silos with folders of their own have records that it does not see: their runs are registered one by
    one, when each begins. Errors as `runs.run_registration.register_ahead`.
    """
    here = job.num_started() == 1 and all(config.runtime.silo_folder is None for config in configs)
    shared: defaultdict[Path | None, list[Config]] = defaultdict(list)
    for config in configs:
        shared[ledger_of(config, base, ledger)].append(config)
    for path, together in shared.items():
        if path is not None and len(together) > 1 and here:
            register_ahead(together, base, path, registry.load("runtimes", "in_process")(), wait, say)
