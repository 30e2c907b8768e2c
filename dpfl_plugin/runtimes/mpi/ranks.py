"""Rank 0's connections to the silo ranks: what they are told, what they owe, and which were lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dpfl_plugin import errors
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import DeviceError, DpflError, SiloError
from dpfl_plugin.runtimes.mpi.link import Link, Patience, Transfer, all_done, push_all
from dpfl_plugin.runtimes.mpi.silos import owner
from dpfl_plugin.runtimes.mpi.wire import Header

GO_ON = "The last good state is in the run's checkpoint; resume the run."


class SiloLostError(DpflError):
    """Silo ranks do not answer any more; the message says which, and what they were asked for.

    Attributes:
        late: {rank: what it owes}.
    """

    def __init__(self, text: str, late: Mapping[int, str]) -> None:
        super().__init__(text)
        self.late = dict(late)


class Ranks:
    """Rank 0's connections to the silo ranks.

    Args:
        timeout: seconds that a rank may take over one answer; None: for ever.
        clock: seconds, for the time-outs.
        end: ends the process of a rank that hangs, if it can be reached; whether it is no more.

    Attributes:
        retries_on_loss: whether to go on without ranks that fail.
        lost: ranks that failed, and why: nothing they say counts any more, and nothing is asked of them.
        dealt: the ranks that silos are dealt to.
        processes: (host, process id) of each rank that has said so.
    """

    def __init__(
        self,
        link: Link,
        timeout: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[int], bool] = lambda rank: False,
    ) -> None:
        self.link, self.timeout, self._clock, self._end = link, timeout, clock, end
        self.retries_on_loss = False
        self.lost: dict[int, str] = {}
        self.dealt: Sequence[int] = range(1, link.size)
        self.processes: dict[int, tuple[str, int]] = {}
        self.clean = True  # no rank is in the middle of anything
        self._ended: set[int] = set()  # of the lost, those whose process is no more, whatever MPI knows of it
        self._resting: set[int] = set()  # of the lost, those that live and wait for the end
        self._news: list[int] = []
        self._kept: list[object] = []  # buffers that MPI may still use, of messages that lost ranks owe
        self._number = 0

    @property
    def silo_ranks(self) -> list[int]:
        """Those that were not lost."""
        return [rank for rank in range(1, self.link.size) if rank not in self.lost]

    def owner(self, silo: int) -> int:
        return owner(silo, self.dealt)

    def lose(self, rank: int, why: str) -> None:
        """Go on without a rank.

        Raises:
            SiloLostError: the configuration does not say so.
        """
        if not self.retries_on_loss:
            raise SiloLostError(f"silo rank {rank}: {why}. {GO_ON}", {rank: why})
        if rank not in self.lost:
            self.lost[rank] = f"rank {rank} {why}"
            self._news.append(rank)

    def news(self) -> list[int]:
        """The ranks that were lost since this was asked last."""
        self.look()
        found, self._news = self._news, []
        return found

    def look(self) -> None:
        """Whether somebody died."""
        for rank in sorted(self.link.gone() - set(self.lost)):
            self.lose(rank, "was killed, or ended by itself")

    def keep(self, buffers: object) -> None:
        """Keep memory that a lost rank's messages may still be written to."""
        self._kept.append(buffers)

    def tell(self, do: str, **more: Any) -> None:
        """Begin something new at all silo ranks: answers to what was asked before are not listened to any more."""
        self._number += 1
        self.tell_some(self.silo_ranks, do, **more)

    def tell_some(self, ranks: Iterable[int], do: str, **more: Any) -> None:
        """Go on with what was begun."""
        for rank in ranks:
            self.link.send(rank, {"do": do, "number": self._number, **more})

    def hear(self) -> tuple[int, Header] | None:
        """The next header of a rank that was not lost, an answer or not; whoever asks for a sign gets one."""
        while (found := self.link.poll()) is not None:
            rank, header = found
            if header["say"] == "there?":
                self.tell_some([rank], "here")
            elif rank not in self.lost or rank in self._resting:
                return rank, header
        self.look()
        return None

    def poll(self) -> tuple[int, Header] | None:
        """The next answer to what was begun last. Without errors of strangers' code and of GPUs, if the run goes on
        without their silos.

        Raises:
            DpflError: a rank met with an error: the same one if it is one of ours, else a SiloError.
        """
        while (found := self.hear()) is not None:
            rank, header = found
            if rank in self.lost:
                continue
            of_rank = header["say"] == "error" and header["kind"] in (None, DeviceError.__name__)  # and of no other
            if self.retries_on_loss and of_rank:  # in whatever it was: a silo may fail where no answer is waited for
                self._lose_to_error(rank, header)
            elif header["number"] == self._number:
                if header["say"] == "error":
                    raise _error(rank, header)
                return rank, header
        return None

    def _lose_to_error(self, rank: int, header: Header) -> None:
        self.lose(rank, f"on {header['host']} failed: {header['text']}")
        self._resting.add(rank)
        self.tell_some([rank], "rest")

    def answers(self, say: str, what: str, ranks: Iterable[int] | None = None) -> dict[int, Header]:
        """What each of ``ranks`` (None: all silo ranks) says, by ascending rank; ``what``: its work meanwhile.

        Those that are lost meanwhile are left out.
        """
        asked = set(self.silo_ranks if ranks is None else ranks)
        got: dict[int, Header] = {}

        def missing() -> set[int]:
            return asked - set(got) - set(self.lost)

        self.until(lambda: self._collect(say, got) or not missing(), missing, what)
        return dict(sorted(got.items()))

    def _collect(self, say: str, got: dict[int, Header]) -> bool:
        while (found := self.poll()) is not None:
            rank, header = found
            if header["say"] == say:
                got[rank] = header
        return False

    def finish(self, transfers: Sequence[Transfer], ranks: Iterable[int], what: str) -> None:
        self.until(lambda: all_done(transfers), lambda: ranks, what)

    def finish_each(self, transfers: Mapping[int, Sequence[Transfer]], what: str) -> set[int]:
        """Wait for what is on its way to or from each rank; the ranks where it arrived, the others were lost."""
        waiting = dict(transfers)

        def ready() -> bool:
            for rank in [rank for rank, own in waiting.items() if all_done(own)]:
                del waiting[rank]
            self.look()
            return not set(waiting) - set(self.lost)

        self.until(ready, lambda: set(waiting) - set(self.lost), what)
        for own in waiting.values():
            self.keep(own)
        return set(transfers) - set(waiting)

    def spread(self, vectors: Vectors, what: str) -> None:
        """The same vectors to all silo ranks; one by one if some may die, which a collective call does not outlive."""
        held = {name: value.contiguous() for name, value in vectors.items()}
        if not self.retries_on_loss:
            self.finish([self.link.broadcast(value) for value in held.values()], self.silo_ranks, what)
            return
        self.finish_each({rank: push_all(self.link, rank, held) for rank in self.silo_ranks}, what)

    def until(self, ready: Callable[[], bool], owing: Callable[[], Iterable[int]], what: str) -> None:
        """Wait; the clock is for the whole wait."""
        patience, watch = Patience(), self.watch()
        while not ready():
            self.check(watch, dict.fromkeys(owing(), what))
            patience.wait()

    def check(self, watch: Watch, owing: Mapping[int, str]) -> None:
        """Give up ranks that have owed something for too long.

        Raises:
            SiloLostError: some have, or died, and the run does not go on without them.
        """
        self.look()
        try:
            watch.check({rank: what for rank, what in owing.items() if rank not in self.lost})
        except SiloLostError as error:
            self._ended |= {rank for rank in error.late if self.link.outlives and self._end(rank)}
            if not self.retries_on_loss:
                self.clean = False
                raise
            for rank, what in error.late.items():
                self.lose(rank, f"did not answer for {self.timeout:g} s ({what})")

    def watch(self) -> Watch:
        return Watch(self.timeout, self._clock)

    def part(self, seconds: float) -> bool:
        """Tell all ranks to end; whether they heard it in so many seconds, with nothing left on its way."""
        if not self.clean:
            return False
        self._number += 1
        self.retries_on_loss = True  # whoever dies from here on is missed by nobody
        living = {*self.silo_ranks, *self._resting} - self.link.gone()
        self.tell_some(sorted(living), "quit")
        said: set[int] = set()
        patience, end = Patience(), self._clock() + seconds
        while living - said - self.link.gone():
            found = self.hear()
            if found is not None and found[1]["say"] == "bye":
                said.add(found[0])
            if self._clock() > end:
                return False
            patience.wait()
        return set(range(1, self.link.size)) <= said | self.link.gone() | self._ended


class Watch:
    """How long ranks have owed something."""

    def __init__(self, timeout: float | None, clock: Callable[[], float]) -> None:
        self._timeout, self._clock = timeout, clock
        self._since: dict[int, float] = {}

    def heard(self, rank: int) -> None:
        self._since.pop(rank, None)

    def check(self, owing: Mapping[int, str]) -> None:
        """Raise SiloLostError if one of ``owing``, {rank: what}, was so without a word for longer than the time-out."""
        if self._timeout is None:
            return
        now = self._clock()
        self._since = {rank: self._since.get(rank, now) for rank in owing}
        late = {rank: owing[rank] for rank, since in self._since.items() if now - since > self._timeout}
        said = [f"{rank} ({what})" for rank, what in late.items()]
        if late:
            raise SiloLostError(
                f"silo rank{'s' * (len(late) > 1)} {', '.join(said)} did not answer for {self._timeout:g} s: the "
                f"process hangs, or runtime.silo_timeout is shorter than its work takes. {GO_ON}",
                late,
            )


def _error(rank: int, header: Header) -> DpflError:
    """Of its kind, if that is one of ours: an error class of a plugin's may have the name of anything there."""
    found = getattr(errors, str(header["kind"]), None)
    kind = found if isinstance(found, type) and issubclass(found, DpflError) else SiloError
    return kind(f"rank {rank} on {header['host']}: {header['text']}")
