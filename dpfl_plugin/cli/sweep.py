"""`dpfl sweep`, and the task of it that a batch job runs."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfl_plugin import own_folders
from dpfl_plugin.cli import sweep_scores
from dpfl_plugin.config.sweep import Row, config_of, expand
from dpfl_plugin.errors import BusyError, ConfigError, DpflError, system_says
from dpfl_plugin.sweeps import manifest, requeues, resources, scripts, slurm, state, submission
from dpfl_plugin.sweeps.foreseen import Foresight
from dpfl_plugin.sweeps.manifest import Sweep
from dpfl_plugin.sweeps.supervisor import BUSY, FAILED, INTERRUPTED, LOST, NO_ROUND, Stop, Supervisor

COMPOSES = (
    "Each run's epsilon is of that run alone: whoever sees several runs on the same records, or the best of them, "
    "sees their composition (docs/slurm.md)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to run a sweep.

    Attributes:
        jobs: runs at the same time, on this machine or in each task of Slurm; pack: runs in a task; at_once: tasks.
    """

    on: str
    jobs: int
    at_once: int | None
    pack: int
    retry: bool
    dry_run: bool


def sweep_file(path: Path, settings: list[str], out: Path | None, options: Options, ledger: Path | None = None) -> int:
    """Plan what a file describes and run, or submit, what is not finished; returns the exit code.

    Args:
        ledger: that all runs share.
    """
    expansion = expand(path, settings, Foresight(shared=ledger is not None).check)
    name = expansion.rows[0].name
    sweep = manifest.plan(expansion, path, out or Path("sweeps") / name, ledger)
    manifest.check_ledger(sweep)
    if sweep.ledger is not None and (options.jobs > 1 or options.on != "local"):
        _say(f"--ledger {sweep.ledger}: one run uses it at a time, and the others wait for it.")
    if options.on == "local" or options.dry_run:
        return _go(sweep, expansion.duplicates, options)
    with submission.alone(sweep, _say) as lock:
        submission.settle(sweep, _say)
        return _go(sweep, expansion.duplicates, options, lock)


def _go(sweep: Sweep, duplicates: int, options: Options, lock: int | None = None) -> int:
    """Run, submit or print what is not finished by now; the lock's descriptor is for what submits."""
    states = state.states((sweep.folder_of(row), row.rounds) for row in sweep.rows)
    found = list(zip(sweep.rows, states, strict=True))
    failed = [row for row, known in found if known.status == "failed"]
    wanted = [row for row, known in found if known.status in ("pending", "lost")]
    if options.retry:
        wanted = sorted([*wanted, *failed], key=lambda row: row.index)
    _say_what(sweep, duplicates, [known.status for known in states])
    _say_other_code(sweep, [row for row, known in found if known.status == "done"])
    if options.dry_run:
        _dry_run(sweep, wanted, options)
        return 0
    manifest.write(sweep)
    if options.retry:
        for row in failed:
            state.write_task(sweep.folder_of(row), "pending")
            requeues.forget(sweep.folder_of(row))
    elif failed:
        _say(f"{len(failed)} failed before and are left alone; --retry runs them again. dpfl status says why.")
    if not wanted:
        at_work = sum(known.status == "running" for known in states)
        _say("nothing is left to run" + (f" but {at_work} runs that are at work." if at_work else "."))
        return 1 if failed else 0
    _register(sweep, wanted)
    code = _here(sweep, wanted, options) if options.on == "local" else _submit(sweep, wanted, options, lock)
    if options.on == "local":
        sweep_scores.show(sweep)
    else:
        folder = shlex.quote(str(sweep.folder.parents[1]))
        _say(f"how far they are, scores and epsilons: dpfl status {folder}; tables and plots: dpfl report {folder}")
    if sweep.ledger is not None:
        _say(f"epsilon of all runs together: dpfl account {shlex.quote(str(sweep.ledger))}")
    elif _private(sweep):
        _say(COMPOSES)
    return code


def _register(sweep: Sweep, rows: Sequence[Row]) -> None:
    """Register all runs in the ledger that they share: they are then one plan, whatever is seen of the first."""
    if sweep.ledger is None:
        return
    from dpfl_plugin.api.running import Wait, register

    own_folders.look_in(sweep.source.parent)
    configs = [config_of(sweep.base, row, sweep.runs) for row in rows]
    register(configs, sweep.source.parent, sweep.ledger, Wait(math.inf, _say), _say)


def sweep_task(folder: Path, task: int, pack: int, jobs: int) -> int:
    """What a batch task does: its rows of the manifest, those that are not finished."""
    sweep = manifest.read(folder)
    rows = sweep.rows_of(task, pack)
    if not rows:
        raise ConfigError(f"{folder}: there is no task {task} of {pack} runs: the manifest has {len(sweep.rows)}.")
    _fail_those_requeued(sweep, rows)
    before = [state.progress(sweep.folder_of(row)) for row in rows]
    code = _run(sweep, list(rows), jobs, with_parent=True)
    idle = before == [state.progress(sweep.folder_of(row)) for row in rows]
    return NO_ROUND if code == INTERRUPTED and idle else code


def _fail_those_requeued(sweep: Sweep, rows: Sequence[Row]) -> None:
    """Count as failed what this task's job was queued again for more often than the sweep allows."""
    most, job = sweep.spec.max_requeues, _where().get("job")
    if most is None or job is None:
        return
    for row in rows:
        folder = sweep.folder_of(row)
        times = requeues.counted(folder, job, int(os.environ.get("SLURM_RESTART_COUNT", "0")))
        if times > most and not state.finished(folder):
            reason = f"Slurm queued it again {times} times in job {job}, more than sweep.max_requeues={most}"
            state.write_task(folder, "failed", reason=reason, job=job)
            _say(f"{row.index}: FAILED: {reason}; --retry tries it again  {row.label}")


def _say_other_code(sweep: Sweep, done: Sequence[Row]) -> None:
    """Name each finished run that was made with another file of users' code than there is now."""
    own_folders.look_in(sweep.source.parent)
    for row in done:
        if others := state.other_code(sweep.folder_of(row), config_of(sweep.base, row, sweep.runs)):
            _say(f"{row.index}: made with another version of {', '.join(others)} than there is now  {row.label}")


def _say_what(sweep: Sweep, duplicates: int, statuses: list[state.Status]) -> None:
    counts = ", ".join(f"{statuses.count(s)} {s}" for s in dict.fromkeys(statuses))
    again = f" ({duplicates} combinations are the same as others)" if duplicates else ""
    _say(f"{len(sweep.rows)} runs: {counts}{again}; in {sweep.runs}")


def _here(sweep: Sweep, rows: list[Row], options: Options) -> int:
    code = _run(sweep, rows, options.jobs)
    if code == INTERRUPTED:
        _say("interrupted; everything that began is saved. The same command continues.")
    return code


def _run(sweep: Sweep, rows: list[Row], jobs: int, *, with_parent: bool = False) -> int:
    with Stop(with_parent=with_parent).listening() as stop:
        launched = sweep.spec.ranks is not None
        gpus = [] if launched else _gpus(jobs)  # ranks of a run share the GPUs of their node by themselves
        supervisor = Supervisor(_begin(sweep), sweep.folder_of, jobs, stop, _say, _where(), launched, gpus)
        return supervisor.run(rows)


def _gpus(jobs: int) -> list[str]:
    """The GPUs that this process was given, if its runs can each have one of them."""
    given = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip()]
    if jobs > 1 and len(given) > 1:
        much = f"{len(given) - jobs} of them are idle" if len(given) > jobs else "some share one"
        odd = f"; --jobs {jobs}: {much}" if jobs != len(given) else ""
        _say(f"each run gets one of the {len(given)} GPUs in CUDA_VISIBLE_DEVICES{odd}.")
        return given
    return []


def _where() -> dict[str, str]:
    """The batch job that this is, for `task.json`."""
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return {"job": f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"}
    return {"job": os.environ["SLURM_JOB_ID"]} if "SLURM_JOB_ID" in os.environ else {}


def _begin(sweep: Sweep) -> Callable[[Row, Callable[[], bool]], tuple[int, str]]:
    if sweep.spec.ranks is not None:
        return lambda row, stop: _become_ranks(sweep, row)
    # torch and all, once, before the runs' processes begin: each would import it anew.
    importlib.import_module("dpfl_plugin.cli.run")
    importlib.import_module("dpfl_plugin.api.running").import_for_runs()
    return lambda row, stop: _run_row(sweep, row, stop)


def _run_row(sweep: Sweep, row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
    from dpfl_plugin.api.progress import Silent
    from dpfl_plugin.api.running import carried_out, place_of
    from dpfl_plugin.cli.run import EXIT_CODES

    base = sweep.source.parent
    own_folders.look_in(base)
    config = config_of(sweep.base, row, sweep.runs)
    result = carried_out(
        config,
        base,
        place=place_of(config),
        reporter=Silent(),
        stop=stop,
        resume=True,
        label=row.label,
        ledger=sweep.ledger,
        ledger_wait=math.inf,
        say_waiting=lambda text: _say(f"{row.index}: {text}"),
        picture=False,
    )
    return EXIT_CODES[result["status"]], result["reason"]


def sweep_run(folder: Path, index: int) -> int:
    """What each rank of a run over MPI does: the first runs it, the others hold silos and do what it asks."""
    from dpfl_plugin.runtimes.mpi import job
    from dpfl_plugin.runtimes.mpi.ranks import SiloLostError

    joined = job.join()
    if joined is not None and joined.rank > 0:
        joined.serve()
        return 0
    sweep = manifest.read(folder)
    row = sweep.rows[index]
    with Stop().listening() as stop:
        code, reason = FAILED, ""
        try:
            code, reason = _run_row(sweep, row, lambda: stop.asked)
        except BusyError as error:
            code, reason = BUSY, str(error)
            raise
        except SiloLostError as error:
            code, reason = LOST, str(error)
            raise
        except (DpflError, OSError) as error:
            reason = system_says(error) if isinstance(error, OSError) else str(error)
            raise
        except BaseException as error:
            code = LOST if job.is_of_mpi(error) else FAILED  # whose calls fail where a peer is gone
            reason = f"{type(error).__name__}: {error}."
            raise
        finally:
            with contextlib.suppress(OSError):  # a full disk
                state.note_end(sweep.folder_of(row), code, reason)
    return code


def _become_ranks(sweep: Sweep, row: Row) -> tuple[int, str]:
    """Become the launcher of a run's MPI ranks."""
    default = "srun --kill-on-bad-exit=1 --ntasks={ranks}" if "SLURM_JOB_ID" in os.environ else "mpirun -n {ranks}"
    words = shlex.split(sweep.spec.launcher or default)  # the configuration has checked that it can be split
    launcher = [word.replace("{ranks}", str(sweep.spec.ranks)) for word in words]
    # mpi4py ends all ranks when one of them raises; else the others would wait for it for ever.
    python = [sys.executable, "-P", "-m", "mpi4py", "-m", "dpfl_plugin"]
    command = [*python, "sweep-run", str(sweep.folder), str(row.index)]
    try:
        os.execvpe(launcher[0], [*launcher, *command], {**_fit_for(launcher[0]), **os.environ})
    except OSError as error:
        raise ConfigError(
            f"sweep.launcher: {launcher[0]} cannot be started ({error.strerror}); it should start the ranks of a run. "
            "It is split into words as by a shell: a path with spaces needs quotes of its own."
        ) from error


def _fit_for(launcher: str) -> dict[str, str]:
    """What MPICH needs in its environment under srun: Slurm's pmi2 reads 1,023 bytes of a message.

    Over UCX MPICH's have any length, by what happens to lie behind its address in memory; over OFI they are short.
    """
    if Path(launcher).name != "srun":
        return {}
    ask = [sys.executable, "-P", "-m", "mpi4py", "--mpi-lib-version"]
    said = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
    return {"MPIR_CVAR_CH4_NETMOD": "ofi"} if "ch4:ucx ofi" in said else {}


def _dry_run(sweep: Sweep, rows: list[Row], options: Options) -> None:
    for row in rows:
        print(f"# {row.index} {row.id} {row.label}")
    if options.on == "slurm" and rows:
        for asked, tasks in resources.arrays(sweep, sweep.tasks(rows, options.pack), options.pack, _say):
            print(_script(sweep, asked, tasks, options))


def _script(sweep: Sweep, asked: resources.Options, tasks: list[int], options: Options, name: str | None = None) -> str:
    return scripts.sweep_script(
        name=name or sweep.rows[0].name,
        folder=str(sweep.folder),
        python=sys.executable,
        tasks=slurm.spans(tasks),
        at_once=options.at_once,
        pack=options.pack,
        jobs=options.jobs,
        ranks=sweep.spec.ranks,
        slurm=asked,
        setup=sweep.spec.setup,
    )


def _submit(sweep: Sweep, rows: list[Row], options: Options, lock: int | None) -> int:
    queued = slurm.live_rows(sweep, _say)
    left = [row for row in rows if row.index not in queued]
    if len(left) < len(rows):
        _say(f"{len(rows) - len(left)} runs are in the queue already.")
    if not left:
        return 0
    tasks = sweep.tasks(left, options.pack)
    most = slurm.largest_array()
    if most is not None and tasks[-1] >= most:
        packs = range(math.ceil(len(sweep.rows) / most), len(sweep.rows) + 1)
        pack = next((pack for pack in packs if len(sweep.chunks(pack)) <= most), None)
        raise ConfigError(
            f"--pack {options.pack}: {tasks[-1] + 1} tasks are more than this Slurm takes in an array "
            f"(MaxArraySize {most}). "
            + (
                f"Use --pack {pack} or more: so many runs in a task."
                if pack
                else "Let more runs ask Slurm for the same."
            )
        )
    arrays = resources.arrays(sweep, tasks, options.pack, _say)
    if len(arrays) > 1 and options.at_once:
        _say(
            f"--at-once {options.at_once} holds in each of {len(arrays)} arrays, which ask Slurm for different things."
        )
    chunks, wanted = sweep.chunks(options.pack), {row.index for row in left}
    for asked, some in arrays:
        job = _hand_over(sweep, asked, some, options, lock)
        runs = sum(row.index in wanted for task in some for row in chunks[task])
        _say(f"submitted {runs} runs as job {job}: {len(some)} tasks" + _at_once(options.at_once))
    return 0


def _hand_over(sweep: Sweep, asked: resources.Options, tasks: list[int], options: Options, lock: int | None) -> str:
    """Submit tasks as one array and record it; returns the job's number."""
    # submitit's tasks have numbers of their own.
    name = submission.begin(sweep, options.pack, tasks if options.on == "submitit" else None)
    begun = time.time()
    try:
        if options.on == "submitit":
            from dpfl_plugin.sweeps import by_submitit

            job = by_submitit.submit(
                sweep, tasks, name=name, asked=asked, at_once=options.at_once, pack=options.pack, jobs=options.jobs
            )
        else:
            job = slurm.submit(_script(sweep, asked, tasks, options, name), sweep, lock)
    except slurm.UncertainError as error:
        found = slurm.job_named(name, begun)
        if not found:
            raise DpflError(
                f"{error} Slurm may have the job {name} all the same, or get it yet. The same command, in a minute or "
                "two, asks for it before it submits anything."
            ) from error
        job = found
    except DpflError:  # refused
        submission.end(sweep, None)
        raise
    submission.end(sweep, job)
    return job


def _at_once(tasks: int | None) -> str:
    return f", {tasks} at a time." if tasks else "."


def _private(sweep: Sweep) -> bool:
    privacy = sweep.base.get("privacy")
    return len(sweep.rows) > 1 and isinstance(privacy, dict) and privacy.get("noise_multiplier") != 0


def _say(text: str) -> None:
    print(f"dpfl: {text}", file=sys.stderr, flush=True)
