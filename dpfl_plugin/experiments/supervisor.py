"""Runs of a sweep on one machine: a process each, so that one that crashes takes no other with it.

`task.json` in a run's folder says what became of it: "running", with the number of this process, before one is forked
for it, and touched while that lives; then "stopped", "failed" or "done". A run over MPI, whose process is a launcher
that may end with any exit code, writes by itself how it "ended". `status_of` reads it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import math
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from dpfl_plugin import own_folders
from dpfl_plugin.config.sweep import Row, config_of
from dpfl_plugin.errors import BusyError, ConfigError, DpflError, is_full, system_says
from dpfl_plugin.experiments import manifest
from dpfl_plugin.experiments.manifest import Sweep
from dpfl_plugin.federation.outcome import EXIT_CODES
from dpfl_plugin.runs.checkpoint import saved_rounds
from dpfl_plugin.runs.folder import RunFolder, read_object, to_json
from dpfl_plugin.runs.run_status import status_of, task_file, task_of, write_task

TRIES: Final = 3  # of a run that is killed, by a lack of memory say, before it counts as failed
# LOST: ranks of it are gone, which says nothing of the run; FULL: a disk is, and no run can go on
DONE, FAILED, INTERRUPTED, BUSY, LOST, FULL = 0, 1, 4, 75, 76, 77
NO_ROUND: Final = 7  # of a task: interrupted before one of its runs finished a round
POLL_SECONDS: Final = 0.05
BEAT_SECONDS: Final = 5.0  # between touches of `task.json`
BUSY_SECONDS: Final = 1.0  # between looks at a run that another process is at
# Before a launcher that was killed is started again. One whose allocation is gone fails at once, each time: by then the
# batch system has ended this process, too.
AGAIN_SECONDS: Final = (5.0, 30.0)
IMPORTED_BY_RUNS: Final = (  # as they need it
    "dpfl_plugin.runs.run",
    "dpfl_plugin.runtimes.choice",
    "jinja2",
    "scipy.fft",
    "scipy.linalg.blas",
    "scipy.optimize",
    "scipy.special",
)
OMP_PAUSE_HARD: Final = 2


class Bar(Protocol):
    """Shows how far a sweep is."""

    def note(self, text: str) -> None: ...

    def draw(self) -> None: ...


Begin = Callable[[Row, Callable[[], bool]], tuple[int, str]]


class Stop:
    """Whether SIGINT, SIGTERM or SIGUSR1 came; a second SIGINT asks to end at once.

    Args:
        with_parent: the end of the parent process counts, too: a batch job whose script was killed may be gone, and its
            runs with others, while its processes live on.
    """

    def __init__(self, *, with_parent: bool = False) -> None:
        self._asked = self.at_once = False
        self._pid = os.getpid()
        self._parent = os.getppid() if with_parent else None

    @property
    def asked(self) -> bool:
        orphaned = self._parent is not None and os.getpid() == self._pid and os.getppid() != self._parent
        return self._asked or orphaned

    @contextlib.contextmanager
    def listening(self) -> Iterator[Stop]:
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        hears = threading.current_thread() is threading.main_thread()  # no other thread gets signals
        before = {number: signal.signal(number, self._ask) for number in signals if hears}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, frame: Any) -> None:
        # Runs inherit this handler: a batch system may well signal them, too, and repeatedly. They only take note.
        self.at_once = self._asked and number == signal.SIGINT and os.getpid() == self._pid
        self._asked = True


@dataclass(slots=True)
class _Live:
    row: Row
    pipe: int
    tries: int
    beaten: float
    slot: int


@dataclass
class Supervisor:
    """Runs rows, at most ``jobs`` at a time.

    Attributes:
        begin: does a run, or becomes the program that does; called in a process of its own with the row and what to
            ask whether to stop. Returns an exit code of `dpfl run`, and the reason in words.
        folder_of: a row's run folder.
        facts: for `task.json`, e.g. the batch job.
        say: gets a line for every run that ends.
        launched: `begin` becomes a launcher of ranks. It may end with any exit code if it, one of its ranks or Slurm's
            step was killed, so what counts is how the run itself says that it ended.
        gpus: as CUDA_VISIBLE_DEVICES names them; runs at the same time have one each, or share evenly. Without any,
            runs see what this process sees.
        watch: called again and again, to show how far all is.
    """

    begin: Begin
    folder_of: Callable[[Row], RunFolder]
    jobs: int
    stop: Stop
    say: Callable[[str], None]
    facts: dict[str, Any] = field(default_factory=dict)
    launched: bool = False
    gpus: Sequence[str] = ()
    watch: Callable[[], None] = lambda: None

    def run(self, rows: Iterable[Row]) -> int:
        """Run all that are neither finished nor failed; returns 0, 1 (failures, or a full disk) or 4 (interrupted)."""
        self._waiting: deque[tuple[float, int, Row]] = deque((0.0, 1, row) for row in rows)  # not before, try, row
        self._live: dict[int, _Live] = {}
        self._failed = self._unfinished = 0
        self._busy = set[int]()  # rows of which it was said that another process is at them
        self._full, is_stopping = "", False  # what a full disk refused
        while self._waiting or self._live:
            if (self.stop.asked or self._full) and not is_stopping:
                is_stopping = True
                self._unfinished += len(self._waiting)
                self._waiting.clear()
                self._signal(signal.SIGUSR1)  # mpirun and srun hand this one on; they end at others
            if self.stop.at_once:
                self._signal(signal.SIGKILL)
            self._start_some()
            self._reap()
            self._beat()
            time.sleep(POLL_SECONDS)
        return FAILED if self._full else INTERRUPTED if self._unfinished else FAILED if self._failed else DONE

    def _start_some(self) -> None:
        for _ in range(len(self._waiting)):
            if len(self._live) >= self.jobs or self._full:
                return
            not_before, tries, row = self._waiting.popleft()
            folder = self.folder_of(row)
            state = status_of(folder)
            if state.status in ("done", "failed"):
                self._failed += state.status == "failed"
                self.say(f"{row.index}: {state.status} before, not run again  {row.label}")
            elif time.monotonic() < not_before:
                self._waiting.append((not_before, tries, row))
            elif self._taken(row, folder):
                self._waiting.append((time.monotonic() + BUSY_SECONDS, tries, row))
            elif status_of(folder).status == "done":  # by the one that just let go of the folder
                self.say(f"{row.index}: done before, not run again  {row.label}")
            else:
                self._start(row, folder, tries)

    def _taken(self, row: Row, folder: RunFolder) -> bool:
        """Whether another process is at this run: then it is waited for, as that one may die."""
        try:
            with folder.locked():
                return False
        except BusyError as error:
            if row.index not in self._busy:
                self._busy.add(row.index)
                self.say(f"{row.index}: {error} Until then this sweep waits.  {row.label}")
            return True
        except (ConfigError, OSError):  # a full disk, or a folder of others: the run will say so
            return False

    def _start(self, row: Row, folder: RunFolder, tries: int) -> None:
        self._note(row, "running", pid=os.getpid(), tries=tries)
        if self._full:
            self._note(row, "stopped", reason=self._full)
            return
        slots = {live.slot for live in self._live.values()}
        slot = next(number for number in range(self.jobs) if number not in slots)
        out, into = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Libraries' threads that wait for work are no harm: this process computes nothing.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os.close(out)
            self._be(row, into, slot)
        os.close(into)
        self._live[pid] = _Live(row, out, tries, time.monotonic(), slot)

    def _be(self, row: Row, into: int, slot: int) -> None:
        """The run's own process; never returns."""
        code, reason, parent = FAILED, "", os.getppid()
        if self.gpus:  # CUDA has not begun yet: a process that is forked after that cannot use it
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
        try:
            # An orphan ends, too: else it would go on beside the task that takes its place, as far as locks allow.
            code, reason = self.begin(row, lambda: self.stop.asked or os.getppid() != parent)
        except BusyError:
            code = BUSY
        except (DpflError, OSError) as error:
            code, reason = FULL if is_full(error) else FAILED, system_says(error)
        except BaseException as error:
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}"
        finally:
            with contextlib.suppress(OSError):
                os.write(into, reason.encode()[:4000])
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        for pid in list(self._live):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                live = self._live.pop(pid)
                with open(live.pipe, "rb") as pipe:
                    reason = pipe.read().decode(errors="replace")
                self._ended(live, _exit_code(status), reason)

    def _ended(self, live: _Live, code: int, reason: str) -> None:
        row, folder, killed = live.row, self.folder_of(live.row), code < 0
        how = f"killed by {signal.Signals(-code).name}" if killed else f"its launcher ended with exit code {code}"
        if self.launched and not reason:
            task = task_of(folder) or {}
            code, reason = (task["code"], task["reason"]) if task.get("state") == "ended" else (LOST, "")
            killed = code == LOST
        state = status_of(folder)
        if state.status == "done":
            self._note(row, "done")
            self.say(f"{row.index}: done{state.ended_early(row.rounds)}  {row.label}")
        elif code == BUSY:
            self._go_on(row, live.tries)
        elif code == FULL:
            self._stop_for(row, reason)
            self._note(row, "stopped", reason=reason)
        elif code == INTERRUPTED or (killed and (live.tries < TRIES or self.stop.asked)):
            self._note(row, "stopped")
            if killed and not self.stop.asked:
                self.say(f"{row.index}: {(reason or how).removesuffix('.')}; it is tried again  {row.label}")
            again = AGAIN_SECONDS[min(live.tries, len(AGAIN_SECONDS)) - 1] if self.launched and killed else 0.0
            self._go_on(row, live.tries + killed, again)
        else:
            if killed:
                reason = f"{(reason or how).removesuffix('.')}, in {live.tries} tries; see the log"
            reason = reason or f"exit code {code}; see the log"
            self._failed += 1
            self._note(row, "failed", reason=reason)
            self.say(f"{row.index}: FAILED: {reason}  {row.label}")

    def _go_on(self, row: Row, tries: int, seconds: float = 0.0) -> None:
        if self.stop.asked or self._full:
            self._unfinished += 1
            self.say(f"{row.index}: interrupted, saved  {row.label}")
        else:
            self._waiting.append((time.monotonic() + seconds, tries, row))

    def _beat(self) -> None:
        self.watch()
        now = time.monotonic()
        for live in self._live.values():
            if now - live.beaten >= BEAT_SECONDS:
                live.beaten = now
                with contextlib.suppress(OSError):
                    os.utime(task_file(self.folder_of(live.row)))

    def _note(self, row: Row, what: str, **more: Any) -> None:
        try:
            write_task(self.folder_of(row), what, host=os.uname().nodename, **self.facts, **more)
        except OSError as error:
            if is_full(error):
                self._stop_for(row, system_says(error))
            else:
                self.say(f"{row.index}: {system_says(error)}")

    def _stop_for(self, row: Row, reason: str) -> None:
        """Stop, as a disk is full: all runs that are left would fail for the same reason."""
        if not self._full:
            self._full = reason
            self.say(f"{row.index}: {reason} The sweep stops until then.  {row.label}")

    def _signal(self, number: int) -> None:
        for pid in self._live:
            os.kill(pid, number)


def _exit_code(status: int) -> int:
    """Of a process that was waited for; minus the signal that ended it, or that ended a rank, as launchers say it."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code - 128 in signal.valid_signals() else code


def run_task(folder: Path, task: int, pack: int, jobs: int) -> int:
    """Do what a batch task does: its rows of the manifest, those that are not finished; returns the exit code."""
    sweep = manifest.read(folder)
    rows = sweep.rows_of(task, pack)
    if not rows:
        raise ConfigError(f"{folder}: there is no task {task} of {pack} runs: the manifest has {len(sweep.rows)}.")
    _fail_those_requeued(sweep, rows)
    before = _progress(sweep, rows)
    code = run_rows(sweep, list(rows), jobs, with_parent=True)
    return NO_ROUND if code == INTERRUPTED and _progress(sweep, rows) == before else code


def _progress(sweep: Sweep, rows: Sequence[Row]) -> list[tuple[int, bool]]:
    """Of each run the rounds that are saved, and whether it has ended."""
    folders = list(map(sweep.folder_of, rows))
    return [(saved_rounds(run.checkpoint), status_of(run).status in ("done", "failed")) for run in folders]


def run_rows(sweep: Sweep, rows: list[Row], jobs: int, *, bar: Bar | None = None, with_parent: bool = False) -> int:
    """Run rows, at most ``jobs`` at the same time; returns 0, 1 (some failed) or 4 (interrupted)."""
    shown = (say, lambda: None) if bar is None else (bar.note, bar.draw)
    with Stop(with_parent=with_parent).listening() as stop:
        launched = sweep.spec.ranks is not None
        gpus = [] if launched else _gpus(jobs)  # ranks of a run share the GPUs of their node by themselves
        supervisor = Supervisor(begin(sweep), sweep.folder_of, jobs, stop, shown[0], _where(), launched, gpus, shown[1])
        return supervisor.run(rows)


def run_ranks(folder: Path, index: int) -> int:
    """Do what each rank of a run over MPI does: the first runs it, the others hold silos and do what it asks."""
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
            code, reason = FULL if is_full(error) else FAILED, system_says(error)
            raise
        except BaseException as error:
            code = LOST if job.is_of_mpi(error) else FAILED  # whose calls fail where a peer is gone
            reason = f"{type(error).__name__}: {error}."
            raise
        finally:
            with contextlib.suppress(OSError):  # a full disk
                write_task(sweep.folder_of(row), "ended", code=code, reason=reason, **_where())
    return code


def begin(sweep: Sweep) -> Callable[[Row, Callable[[], bool]], tuple[int, str]]:
    """What a process of its own does with a row, see `Supervisor`."""
    if sweep.spec.ranks is not None:
        return lambda row, stop: _become_ranks(sweep, row)
    import_for_runs()
    end_idle_threads()
    return lambda row, stop: _run_row(sweep, row, stop)


def import_for_runs() -> None:
    """Import what runs need, before a process is forked for each: it would import it anew, in about two seconds."""
    for name in IMPORTED_BY_RUNS:
        importlib.import_module(name)
    importlib.import_module("dpfl_plugin.gradients.fused").kernels()


def end_idle_threads() -> None:
    """Have OpenMP end the threads that an earlier computation of this program left: a fork lacks them, and would wait
    for them for ever. The next computation starts new ones."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []  # elsewhere than on Linux OpenMP is another
    for path in {path for line in lines if "gomp" in Path(path := line.split()[-1]).name}:
        ctypes.CDLL(path).omp_pause_resource_all(OMP_PAUSE_HARD)


def _run_row(sweep: Sweep, row: Row, stop: Callable[[], bool]) -> tuple[int, str]:
    from dpfl_plugin.runs.hooks import Silent
    from dpfl_plugin.runs.ledgers import Wait
    from dpfl_plugin.runs.run import run_config
    from dpfl_plugin.runtimes.choice import backend_of

    base = sweep.source.parent
    own_folders.look_in(base)
    config = config_of(sweep.base, row, sweep.runs)
    result = run_config(
        config,
        base,
        resume=True,
        backend=backend_of(config),
        reporter=Silent(),
        stop=stop,
        label=row.label,
        ledger=sweep.ledger,
        wait=Wait(math.inf, lambda text: say(f"{row.index}: {text}"), stop),
    )
    return EXIT_CODES[result["status"]], result["reason"]


def _gpus(jobs: int) -> list[str]:
    """The GPUs that this process was given, if its runs can each have one of them."""
    gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip()]
    if jobs > 1 and len(gpus) > 1:
        much = f"{len(gpus) - jobs} of them are idle" if len(gpus) > jobs else "some share one"
        odd = f"; --jobs {jobs}: {much}" if jobs != len(gpus) else ""
        say(f"each run gets one of the {len(gpus)} GPUs in CUDA_VISIBLE_DEVICES{odd}.")
        return gpus
    return []


def _where() -> dict[str, str]:
    """The batch job that this is, for `task.json`."""
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return {"job": f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"}
    return {"job": os.environ["SLURM_JOB_ID"]} if "SLURM_JOB_ID" in os.environ else {}


def _fail_those_requeued(sweep: Sweep, rows: Sequence[Row]) -> None:
    """Count as failed what this task's job was queued again for more often than the sweep allows."""
    most, job = sweep.spec.max_requeues, _where().get("job")
    if most is None or job is None:
        return
    for row in rows:
        folder = sweep.folder_of(row)
        times = requeues_of(folder, job, int(os.environ.get("SLURM_RESTART_COUNT", "0")))
        if times > most and status_of(folder).status != "done":
            reason = f"Slurm queued it again {times} times in job {job}, more than sweep.max_requeues={most}"
            write_task(folder, "failed", reason=reason, job=job)
            say(f"{row.index}: FAILED: {reason}; --retry tries it again  {row.label}")


def requeues_of(folder: RunFolder, job: str, restarts: int) -> int:
    """How often the run had begun in this very job when Slurm queued its task again; to be asked as the task starts.

    Args:
        restarts: of the task, as SLURM_RESTART_COUNT has it; what it was counted for already is not counted again.
    """
    path, task = folder.path / "requeues.json", task_of(folder) or {}
    record = read_object(path) or {}
    if record.get("job") != job:
        record = {"job": job, "restarts": 0, "count": 0}
    if (
        task.get("job") == job
        and task.get("state") in ("running", "stopped", "ended")
        and restarts > record["restarts"]
    ):
        record = {"job": job, "restarts": restarts, "count": record["count"] + 1}
        folder.write(path, to_json(record, None))
    return int(record["count"])


def try_again(folder: RunFolder) -> None:
    """Have a failed run tried again, with requeues counted from 0."""
    write_task(folder, "pending")
    (folder.path / "requeues.json").unlink(missing_ok=True)


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
    version = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
    return {"MPIR_CVAR_CH4_NETMOD": "ofi"} if "ch4:ucx ofi" in version else {}


def say(text: str) -> None:
    """Tell how far the sweep is, on stderr."""
    print(f"dpfl: {text}", file=sys.stderr, flush=True)
