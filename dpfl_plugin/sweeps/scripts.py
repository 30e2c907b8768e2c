"""Batch scripts for Slurm: for a sweep, and the ones for people in `slurm/`. All share one way to stop and go on."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Final

from dpfl_plugin.errors import ConfigError

_PLAIN: Final = re.compile(r"[\w.,:;@%+=/{}()\[\]*&|-]+")  # what sbatch takes as it stands
LEAD_SECONDS: Final = 120  # between USR1 and the time limit: for a silo's work and a checkpoint
LEAST_SECONDS: Final = LEAD_SECONDS + 60  # of a time limit: a run starts, and does its first rounds, before the signal
MOST_IDLE: Final = 3  # restarts of a job after which an attempt that finished no round is not queued again

_STOPPING = """\
# Slurm sends USR1 before the time limit: dpfl saves a checkpoint and exits with code 4, and the job is queued again.
# TERM (preemption, scancel) saves a checkpoint, too; whether the job is queued again is then Slurm's decision alone.
again=no signal= child=
pass() { signal=$1; [ -z "$child" ] || kill -s USR1 "$child" 2>/dev/null; }
trap 'again=yes; pass USR1' USR1
trap 'again=no; pass TERM' TERM
trap 'pass INT' INT
"""

_RUNNING = """\
if [ -n "$signal" ]; then
  echo "dpfl: told to stop by $signal before the run began; it is not begun" >&2
  status=7
else
  "${command[@]}" &
  child=$!
  # A signal before this line went to this script alone; and until bash's fork is the command, it may swallow another.
  [ -z "$signal" ] || { sleep 1; kill -s USR1 "$child"; }
  while :; do
    signal=
    wait "$child" && status=0 || status=$?
    [ -n "$signal" ] || break    # a signal only interrupted the waiting
  done
fi
# 4: saved; 7: interrupted before it finished a round; 138: ended by USR1 itself, before it listened to it.
case "$again $status" in
  "yes 4" | "yes 7" | "yes 138") ;;
  *) exit "$status" ;;
esac
if [ "$status" != 4 ] && [ "${SLURM_RESTART_COUNT:-0}" -ge {idle} ]; then
  echo "dpfl: no round was finished; after $SLURM_RESTART_COUNT restarts, ask for more time (sbatch --time)" >&2
  exit "$status"
fi
# Of an array, this task alone: SLURM_JOB_ID may be the number of the whole array.
job=$SLURM_JOB_ID
[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
answer=$(scontrol requeue "$job" 2>&1) && exit 0
[ $? -le 128 ] || exit 0    # ended by a signal: Slurm ends the job, and scontrol with it, when it queues it again
echo "dpfl: saved, but job $job could not be queued again (${answer:-no answer}); submit it once more" >&2
exit "$status"
"""


def script(
    options: Mapping[str, str | int | bool], setup: list[str], command: list[str], notes: list[str] | None = None
) -> str:
    """A batch script: ``options`` of sbatch, shell lines of ``setup``, and a command in words of shell."""
    running = _RUNNING.replace("{idle}", str(MOST_IDLE))
    lines = ["#!/usr/bin/env bash", *(f"# {note}".rstrip() for note in notes or [])]
    lines += [
        f"#SBATCH --{key}" + ("" if value is True else f"={_quoted(key, value)}") for key, value in options.items()
    ]
    return "\n".join([*lines, "", "set -u", _STOPPING + "\n".join([*setup, f"command=({' '.join(command)})"]), running])


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


def requeueing(**options: str | int | bool) -> dict[str, str | int | bool]:
    """Options that every script has; names with _ for -."""
    always: dict[str, str | int | bool] = {"open-mode": "append", "requeue": True, "signal": f"B:USR1@{LEAD_SECONDS}"}
    return {**{key.replace("_", "-"): value for key, value in options.items()}, **always}


def sweep_script(
    *,
    name: str,
    folder: str,
    python: str,
    tasks: str,
    at_once: int | None,
    pack: int,
    jobs: int,
    ranks: int | None,
    slurm: Mapping[str, str | int | bool],
    setup: list[str],
) -> str:
    """The script of a sweep: one array, a task for every ``pack`` successive rows of its manifest."""
    array = tasks + (f"%{at_once}" if at_once else "")
    # A % of the folder's own is no placeholder.
    log = f"{folder.replace('%', '%%')}/log/%A_%a.txt"
    options = requeueing(job_name=name, array=array, output=log, ntasks=ranks or 1)
    if jobs > 1 and "cpus-per-task" not in slurm:
        options["cpus-per-task"] = jobs
    options.update({key.lstrip("-"): value for key, value in slurm.items() if value is not False})
    # An assignment, where quotes are a shell's quotes: within "..." they would belong to the path.
    which = f"python=${{DPFL_PYTHON:-{shlex.quote(python)}}}"
    words = ['"$python"', "-P -m dpfl_plugin sweep-task", shlex.quote(folder)]
    return script(options, [*setup, which], [*words, '"$SLURM_ARRAY_TASK_ID"', f"--pack {pack} --jobs {jobs}"])


_VARIABLES: Final = {
    "CONFIG": "the configuration, e.g. configs/quickstart.yaml",
    "SWEEP": "a planned sweep, DIR/sweeps/<digest>, as dpfl sweep --on slurm makes one",
    "OUT": "folder of run folders; on a file system that all nodes see (default: the file's, else runs)",
    "DPFL_PYTHON": "interpreter with dpfl installed (default: .venv/bin/python below the folder of sbatch)",
    "DPFL_SETUP": "a file of shell lines to begin with, e.g. module load (default: none)",
    "PACK": "runs in a task (default: 1)",
    "JOBS": "of them at the same time (default: 1)",
    "SLURM_MPI_TYPE": "how srun starts MPI: pmi2 for MPICH, pmix for Open MPI (default: the site's; srun --mpi=list)",
}
_SETUP: Final = [
    "# shellcheck disable=SC1090",
    '[ -z "${DPFL_SETUP:-}" ] || . "$DPFL_SETUP"',
    "python=${DPFL_PYTHON:-.venv/bin/python}",
]
_DOCTOR: Final = '"$python" -P -m dpfl_plugin doctor --slurm {out} || echo "dpfl: going on all the same" >&2'

_SHORT_MESSAGES: Final = [
    "# Slurm's pmi2 reads 1,023 bytes of a message. MPICH's have any length over UCX, and are short over OFI.",
    "case $(\"$python\" -P -m mpi4py --mpi-lib-version 2>/dev/null | tr -d '\\0') in",
    '  *"ch4:ucx ofi"*) export MPIR_CVAR_CH4_NETMOD="${MPIR_CVAR_CH4_NETMOD:-ofi}" ;;',
    "esac",
]


def templates() -> dict[str, str]:
    """The scripts in `slurm/`, by file name."""
    once = {"output": "%x-%j.txt", "time": "01:00:00"}
    run = ["-m dpfl_plugin run", '"$CONFIG"', '${OUT:+--out "$OUT"}', "--resume"]
    srun, mpi = "srun --kill-on-bad-exit=1", "-m mpi4py"
    several = ["CONFIG", "OUT", "DPFL_PYTHON", "DPFL_SETUP", "SLURM_MPI_TYPE"]
    return {
        "one_node.sbatch": script(
            requeueing(job_name="dpfl", nodes=1, ntasks=1, **once),
            [*_SETUP, _DOCTOR.format(out='${OUT:+--out "$OUT"}')],
            ['"$python" -P', *run],
            _notes("A run on one node.", "CONFIG=configs/quickstart.yaml sbatch slurm/one_node.sbatch", several[:4]),
        ),
        "many_nodes.sbatch": script(
            requeueing(job_name="dpfl-mpi", nodes=2, ntasks=5, **once),
            [*_SETUP, *_SHORT_MESSAGES, _DOCTOR.format(out='${OUT:+--out "$OUT"}')],
            [srun, '"$python" -P', mpi, *run],
            _notes(
                "A run over MPI: rank 0 is the server, the others host silos. Any number of ranks gives the same bits.",
                "CONFIG=configs/quickstart.yaml sbatch --nodes=2 --ntasks=5 slurm/many_nodes.sbatch",
                several,
            ),
        ),
        "array.sbatch": script(
            requeueing(job_name="dpfl-sweep", array="0-11%3", output="%x-%A_%a.txt", time="01:00:00"),
            [*_SETUP, _DOCTOR.format(out='--out "$SWEEP"')],
            ['"$python"', '-P -m dpfl_plugin sweep-task "$SWEEP" "$SLURM_ARRAY_TASK_ID"', *_PACKED],
            _notes(
                "The tasks of a sweep by hand; dpfl sweep --on slurm writes and submits its own, with the right array.",
                "SWEEP=sweeps/NAME/sweeps/DIGEST sbatch --array=0-11%3 slurm/array.sbatch",
                ["SWEEP", "PACK", "JOBS", "DPFL_PYTHON", "DPFL_SETUP"],
            ),
        ),
    }


_PACKED: Final = ['--pack "${PACK:-1}"', '--jobs "${JOBS:-1}"']


def _notes(what: str, example: str, variables: list[str]) -> list[str]:
    width = max(map(len, variables))
    return [what, "", f"  {example}", "", *(f"  {name:{width}}  {_VARIABLES[name]}" for name in variables), ""]
