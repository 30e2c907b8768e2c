"""Batch scripts for Slurm: for a sweep, and the ones for people in `slurm/`. All share one way to stop and go on."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from typing import Final

from dpfl_plugin.core.text import render
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.experiments import slurm
from dpfl_plugin.experiments.manifest import Options, Request, Sweep

_PLAIN: Final = re.compile(r"[\w.,:;@%+=/{}()\[\]*&|-]+")  # what sbatch takes as it stands
LEAD_SECONDS: Final = 120  # between USR1 and the time limit: for a silo's work and a checkpoint
LEAST_SECONDS: Final = LEAD_SECONDS + 60  # of a time limit: a run starts, and does its first rounds, before the signal
MOST_IDLE: Final = 3  # restarts of a job after which an attempt that finished no round is not queued again

SCRIPTS: Final = ("one_node.sbatch", "many_nodes.sbatch", "array.sbatch")
"""Those for people, in `slurm/`."""


def rendered() -> dict[str, str]:
    """The scripts in `slurm/`, by file name."""
    return {name: _render(name) for name in SCRIPTS}


def _render(name: str, **values: object) -> str:
    return render(f"slurm/{name}.jinja", lead_seconds=LEAD_SECONDS, most_idle=MOST_IDLE, **values)


def sweep_script(sweep: Sweep, tasks: Sequence[int], name: str, request: Request, options: Options) -> str:
    """The script of a sweep: one array of these tasks, with a job's ``name`` and what it asks Slurm for."""
    # A % of the folder's own is no placeholder.
    folder, jobs = str(sweep.folder), options.jobs
    header: Request = {
        "job-name": name,
        "array": slurm.spans(tasks) + (f"%{options.at_once}" if options.at_once else ""),
        "output": f"{folder.replace('%', '%%')}/log/%A_%a.txt",
        "ntasks": sweep.spec.ranks or 1,
        "open-mode": "append",
        "requeue": True,
        "signal": f"B:USR1@{LEAD_SECONDS}",
    }
    if jobs > 1 and "cpus-per-task" not in request:
        header["cpus-per-task"] = jobs
    header.update({key: value for key, value in request.items() if value is not False})
    return _render(
        "sweep.sbatch",
        options={key: value if value is True else _quoted(key, value) for key, value in header.items()},
        setup=sweep.spec.setup,
        python=shlex.quote(sys.executable),
        folder=shlex.quote(folder),
        pack=options.pack,
        jobs=jobs,
    )


def _quoted(key: str, value: str | int) -> str:
    """A value on a line for sbatch, which takes quotes as a shell does.

    Raises:
        ConfigError: it has a line's end, which no quotes help against.
    """
    text = str(value)
    if not text.isprintable():
        where = "--out: the folder" if key == "output" else f"sweep.slurm.{key}:"
        raise ConfigError(
            f"{where} {text!r} cannot be passed to sbatch, which reads options line by line: it has a line's end or "
            "another control character. Leave that out; spaces, quotes and % are fine."
        )
    # A backslash counts in any quotes of sbatch's.
    return text if _PLAIN.fullmatch(text) else shlex.quote(text.replace("\\", r"\\"))
