"""How a silo rank hears rank 0, and waits: message after message, with time-outs, and no error that nobody is told."""

from __future__ import annotations

import platform
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import DeviceError, DpflError, MessageError
from dpfl_plugin.federation.memory import is_device_failure
from dpfl_plugin.runs.public_errors import FAILED, kind_and_place, kind_of, public_text, text_of
from dpfl_plugin.runtimes.mpi.link import Link, Patience, Transfer, all_done, pull_all
from dpfl_plugin.runtimes.mpi.rank_log import RankLog
from dpfl_plugin.runtimes.mpi.wire import Header

UNTOLD: Final = "what it says may quote records, and is in the log of rank {rank}"


class ServerLostError(DpflError):
    """Rank 0 died, or hangs: nobody is left who would ask for anything."""


class _SomethingElse(BaseException):  # no plugin is to take it for an error of its own
    """Rank 0 asks for something else instead of what a rank waits for."""

    def __init__(self, header: Header) -> None:
        self.header = header


class Listener(ABC):
    """Serves rank 0: "do": "x" of a message is the method ``_do_x`` of whoever derives from this.

    Args:
        clock: seconds, for the time-out of rank 0.
        renew: told again and again how many seconds this rank may work on; None: as long as it likes.
        log: None: one that stays with the launcher.

    Attributes:
        lasts: whether the others go on when this rank fails.
        server: host and process id of rank 0, once it has said so.
    """

    def __init__(
        self,
        link: Link,
        clock: Callable[[], float] = time.monotonic,
        renew: Callable[[float | None], None] = lambda seconds: None,
        log: RankLog | None = None,
    ) -> None:
        self._link, self._clock, self._renew = link, clock, renew
        self._log = RankLog(link.rank) if log is None else log
        self.lasts = False
        self.server: tuple[str, int] | None = None
        self._heard, self._asked = clock(), False  # of rank 0
        self._number = 0  # of the command that is being answered
        self._config: Config | None = None
        self._where = torch.device("cpu")  # on which this rank computes
        self._dealt: Sequence[int] = ()  # the ranks that have silos
        self._talks = 0  # with the other silo ranks, for the command that is being answered
        self._told: dict[tuple[int, int, int], Any] = {}  # (command, talk, rank): what others said so far
        self._plugins: Sequence[object] = ()  # to be named where they fail
        self._leaving: list[Transfer] = []
        self._asked_to_quit = False

    @property
    @abstractmethod
    def _limited(self) -> bool:
        """Whether the owner of this rank's records has set limits."""

    @abstractmethod
    def _has_work(self) -> bool:
        """Whether there is something to do while no message waits."""

    @abstractmethod
    def _advance(self) -> None:
        """Do a piece of it."""

    @abstractmethod
    def _abandon(self) -> None:
        """Do no more of it: it failed, and rank 0 hears so."""

    @abstractmethod
    def _forget(self) -> None:
        """End what was begun."""

    def serve(self) -> None:
        """Until rank 0 says quit.

        Raises:
            ServerLostError: it never will.
        """
        patience = Patience()
        while not self._asked_to_quit:
            if self.step():
                patience.reset()
            else:
                self._wait(patience)

    def step(self) -> bool:
        """Do the next thing: what was asked first, else a stack of the round; False if there was nothing to do."""
        self._renew(self._config.runtime.silo_timeout if self.lasts and self._config else None)
        found = self._poll()
        if found is not None:
            self._obey(found)
        elif self._has_work():
            self._guarded(self._advance)
        else:
            self._leaving = [transfer for transfer in self._leaving if not transfer.done()]
            return False
        return True

    def _poll(self) -> Header | None:
        """What rank 0 asks for next; that it is there is all that a sign of it says."""
        while (found := self._link.poll()) is not None:
            self._heard, self._asked = self._clock(), False
            if found[1]["do"] != "here":
                return found[1]
        return None

    def _wait(self, patience: Patience) -> None:
        """Wait for rank 0.

        Raises:
            ServerLostError: it died; or it gave no sign for as long as it may take, though asked for one.
        """
        if 0 in self._link.gone():
            raise ServerLostError("rank 0, the server, was killed, or ended by itself")
        limit = self._config.runtime.server_timeout if self._config else None
        silent = self._clock() - self._heard
        if limit is not None and silent > limit / 2 and not self._asked:
            self._say("there?")
            self._asked = True
        if limit is not None and silent > limit:
            raise ServerLostError(
                f"rank 0, the server, did not answer for {limit:g} s: it hangs, or runtime.server_timeout is too short"
            )
        self._renew(None)
        patience.wait()

    def _obey(self, header: Header) -> None:
        self._number, self._talks = header["number"], 0
        self._guarded(lambda: getattr(self, f"_do_{header['do']}")(header))

    def _guarded(self, work: Callable[[], None]) -> None:
        """Tell rank 0 of an error, and wait for what it decides."""
        try:
            work()
        except _SomethingElse as other:
            self._obey(other.header)
        except ServerLostError:
            raise
        except BaseException as error:  # a stranger's code may fail in any way
            if not (self.lasts or isinstance(error, Exception)):
                raise  # which ends all ranks
            self._abandon()
            self._report(error)
        finally:
            self._heard, self._asked = self._clock(), False  # rank 0 was not the one to wait for

    def _report(self, error: BaseException) -> None:
        """To rank 0 without what may quote records, which is for this rank's own log; where owners have set limits,
        without kind and place, too, on which a record may have a bearing."""
        known, limited = kind_of(error), self._limited
        public, text = public_text(error, limited=limited), text_of(error)
        place = "it failed" if limited else kind_and_place(error, self._plugins)
        if is_device_failure(error) and not limited:
            known, public = DeviceError.__name__, f"its device, {self._where}, failed in its work ({place})"
        if public != text or isinstance(error, MessageError):
            self._log.tell(f"error: {text}" if known else "".join(traceback.format_exception(error)).rstrip())
            self._log.refer(place)
        hidden = FAILED if limited else f"{place}; {UNTOLD.format(rank=self._link.rank)}"
        kind = None if limited and public is None else known
        self._say("error", kind=kind, text=hidden if public is None else public, host=platform.node())

    def _say(self, say: str, **more: Any) -> None:
        self._link.send(0, {"say": say, "number": self._number, **more})

    def _finish(self, transfers: Sequence[Transfer]) -> None:
        patience = Patience()
        while not all_done(transfers):
            self._wait(patience)

    def _take(self, vectors: Vectors, header: Header) -> None:
        """What rank 0 sends to all ranks: to each by itself, where they are to outlive each other."""
        if header["apart"]:
            self._finish(pull_all(self._link, 0, vectors))
        else:
            self._finish([self._link.broadcast(value) for value in vectors.values()])

    def _agree(self, value: Any) -> list[Any]:
        """What every silo rank said, told from one to another: it may tell of records, and rank 0 hears nothing."""
        others = [rank for rank in self._dealt if rank != self._link.rank]
        talk, self._talks = (self._number, self._talks), self._talks + 1
        for rank in others:
            self._link.tell_peer(rank, {"number": talk[0], "talk": talk[1], "value": value})
        self._told = {key: said for key, said in self._told.items() if key[0] >= self._number}
        patience = Patience()
        while missing := [rank for rank in others if (*talk, rank) not in self._told]:
            for rank in missing:
                while (header := self._link.hear_peer(rank)) is not None:
                    self._told[header["number"], header["talk"], rank] = header["value"]
            if (asked := self._poll()) is not None:
                raise _SomethingElse(asked)
            self._wait(patience)
        said = {rank: self._told.pop((*talk, rank)) for rank in others} | {self._link.rank: value}
        return [said[rank] for rank in self._dealt]

    def _do_quit(self, header: Header) -> None:
        self._forget()
        self._asked_to_quit = True
        self._say("bye")
