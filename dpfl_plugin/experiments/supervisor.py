"""Several runs on one machine: a process each, so that one that crashes takes no other with it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dpfl_plugin.config.sweep import Row
from dpfl_plugin.errors import BusyError, ConfigError, DpflError, is_full, system_says
from dpfl_plugin.experiments import state
from dpfl_plugin.runs.folder import RunFolder

TRIES: Final = 3  # of a run that is killed, by a lack of memory say, before it counts as failed
# LOST: ranks of it are gone, which says nothing of the run; FULL: a disk is, and no run can go on
DONE, FAILED, INTERRUPTED, BUSY, LOST, FULL = 0, 1, 4, 75, 76, 77
NO_ROUND: Final = 7  # of a task: interrupted before one of its runs finished a round
POLL_SECONDS: Final = 0.05
BUSY_SECONDS: Final = 1.0  # between looks at a run that another process is at
# Before a launcher that was killed is started again. One whose allocation is gone fails at once, each time: by then the
# batch system has ended this process, too.
AGAIN_SECONDS: Final = (5.0, 30.0)

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
            step was killed, so what counts is what the run itself has noted (`state.note_end`).
        gpus: as CUDA_VISIBLE_DEVICES names them; runs at the same time have one each, or share evenly. Without any,
            runs see what this process sees.
    """

    begin: Begin
    folder_of: Callable[[Row], RunFolder]
    jobs: int
    stop: Stop
    say: Callable[[str], None]
    facts: dict[str, Any] = field(default_factory=dict)
    launched: bool = False
    gpus: Sequence[str] = ()

    def run(self, rows: Iterable[Row]) -> int:
        """Run all that are neither finished nor failed; returns 0, 1 (failures, or a full disk) or 4 (interrupted)."""
        self._waiting: deque[tuple[float, int, Row]] = deque((0.0, 1, row) for row in rows)  # not before, try, row
        self._live: dict[int, _Live] = {}
        self._failed = self._unfinished = 0
        self._told = set[int]()  # rows of which it was said that another process is at them
        self._disk_is_full = told = False
        while self._waiting or self._live:
            if (self.stop.asked or self._disk_is_full) and not told:
                told = True
                self._unfinished += len(self._waiting)
                self._waiting.clear()
                self._signal(signal.SIGUSR1)  # mpirun and srun hand this one on; they end at others
            if self.stop.at_once:
                self._signal(signal.SIGKILL)
            self._start_some()
            self._reap()
            self._beat()
            time.sleep(POLL_SECONDS)
        if self._disk_is_full:
            return FAILED
        return INTERRUPTED if self._unfinished else FAILED if self._failed else DONE

    def _start_some(self) -> None:
        for _ in range(len(self._waiting)):
            if len(self._live) >= self.jobs:
                return
            not_before, tries, row = self._waiting.popleft()
            folder = self.folder_of(row)
            known = state.state_of(folder, None, time.time())
            if known.status in ("done", "failed"):
                self._failed += known.status == "failed"
                self.say(f"{row.index}: {known.status} before, not run again  {row.label}")
            elif time.monotonic() < not_before:
                self._waiting.append((not_before, tries, row))
            elif self._taken(row, folder):
                self._waiting.append((time.monotonic() + BUSY_SECONDS, tries, row))
            elif state.finished(folder):  # by another process, after the first look and before it let go of the folder
                self.say(f"{row.index}: done before, not run again  {row.label}")
            else:
                self._start(row, folder, tries)

    def _taken(self, row: Row, folder: RunFolder) -> bool:
        """Whether another process is at this run: then it is waited for, as that one may die."""
        try:
            with folder.locked():
                return False
        except BusyError as error:
            if row.index not in self._told:
                self._told.add(row.index)
                self.say(f"{row.index}: {error} Until then this sweep waits.  {row.label}")
            return True
        except (ConfigError, OSError):  # a full disk, or a folder of others: the run will say so
            return False

    def _start(self, row: Row, folder: RunFolder, tries: int) -> None:
        if self.launched:
            with contextlib.suppress(OSError):  # the run will say so
                state.forget_end(folder)
        taken = {live.slot for live in self._live.values()}
        slot = next(number for number in range(self.jobs) if number not in taken)
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
        self._note(row, "running", pid=pid, tries=tries)

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
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                live = self._live.pop(pid)
                with open(live.pipe, "rb") as pipe:
                    reason = pipe.read().decode(errors="replace")
                self._ended(live, _exit_code(status), reason)

    def _ended(self, live: _Live, code: int, reason: str) -> None:
        row, folder, killed = live.row, self.folder_of(live.row), code < 0
        how = f"killed by {signal.Signals(-code).name}" if killed else f"its launcher ended with exit code {code}"
        if self.launched and not reason:
            code, reason = state.end_of(folder) or (LOST, "")
            killed = code == LOST
        if state.finished(folder):
            self._note(row, "done")
            self.say(f"{row.index}: done  {row.label}")
        elif code == BUSY:
            self._go_on(row, live.tries)
        elif code == FULL:
            self._stop_for(row, reason)
            self._note(row, "stopped", reason=reason)
        elif code == INTERRUPTED or (killed and (live.tries < TRIES or self.stop.asked)):
            self._note(row, "stopped")
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
        if self.stop.asked or self._disk_is_full:
            self._unfinished += 1
            self.say(f"{row.index}: interrupted, saved  {row.label}")
        else:
            self._waiting.append((time.monotonic() + seconds, tries, row))

    def _beat(self) -> None:
        now = time.monotonic()
        for live in self._live.values():
            if now - live.beaten >= state.BEAT_SECONDS:
                live.beaten = now
                with contextlib.suppress(OSError):
                    state.touch(self.folder_of(live.row))

    def _note(self, row: Row, what: str, **more: Any) -> None:
        try:
            state.write_task(self.folder_of(row), what, host=os.uname().nodename, **self.facts, **more)
        except OSError as error:
            if is_full(error):
                self._stop_for(row, system_says(error))
            else:
                self.say(f"{row.index}: {system_says(error)}")

    def _stop_for(self, row: Row, reason: str) -> None:
        """Stop, as a disk is full: all runs that are left would fail for the same reason."""
        if not self._disk_is_full:
            self.say(f"{row.index}: {reason} The sweep stops until then.  {row.label}")
        self._disk_is_full = True

    def _signal(self, number: int) -> None:
        for pid in self._live:
            os.kill(pid, number)


def _exit_code(status: int) -> int:
    """Of a process that was waited for; minus the signal that ended it, or that ended a rank, as launchers say it."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code - 128 in signal.valid_signals() else code
