"""What may go wrong between a server and its silos, beside what happens to bytes on their way; see `wire`.

Faults are put where they arise: into what a silo answers, what a server asks, the clock and the disk of a process.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar
from unittest import mock

from dpfl_plugin.adapters.message import PROTOCOL, Message
from dpfl_plugin.adapters.server import Server
from dpfl_plugin.adapters.silo import Silo
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.testing.contract_monitor import ContractError

if TYPE_CHECKING:
    from dpfl_plugin.testing.wire import Carry, Federation, Parties

__tracebackhide__ = True
DAY: Final = 86400.0  # seconds
ANNOUNCED: Final = 2**31  # bytes
SPARE: Final = 2**30  # bytes of addresses that a process may take while it refuses `ANNOUNCED`

Check = TypeVar("Check", bound=Callable[..., None])


@dataclass(frozen=True, slots=True)
class Declared:
    """Why a wire does not run a check of `WireContract`.

    Attributes:
        reason: in a sentence, for the table of wires.
    """

    reason: str

    def __post_init__(self) -> None:
        if len(self.reason.split()) < 4:
            raise TypeError(f"{type(self).__name__}({self.reason!r}): the reason has to be a sentence.")


class Impossible(Declared):
    """The fault cannot happen on this wire."""


class DecidedByPlatform(Declared):
    """The platform decides it before any code of an adapter sees it; the reason says how."""


@dataclass(frozen=True, slots=True)
class Elsewhere(Declared):
    """It is tested where its processes are real ones.

    Attributes:
        tests: as pytest names them, from the repository's root.
    """

    tests: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Declared.__post_init__(self)
        if not self.tests:
            raise TypeError(f"Elsewhere({self.reason!r}): tests is missing.")


def against(fault: str) -> Callable[[Check], Check]:
    """Say which fault a check is about: the row of the table of wires."""

    def mark(check: Check) -> Check:
        check.fault = fault  # type: ignore[attr-defined]
        return check

    return mark


class FaultChecks(ABC):
    """Checks of `WireContract` whose faults are in a process, not on the way.

    Attributes:
        declared: checks that this wire does not run, by their names, with the reason. Their tests are taken away.
        lacks: what a platform cannot do with this package, for the table of wires.
        checks_bytes: whether the platform sees that a byte changed on the way; TLS does, and files with checksums.
        waits_for_all: whether the platform waits however long for what was lost, and then has it sent again: the same
            bits, at no cost. Then nothing is lost.
    """

    declared: ClassVar[dict[str, Declared]] = {}
    lacks: ClassVar[tuple[str, ...]] = ()
    checks_bytes: ClassVar[bool] = True
    waits_for_all: ClassVar[bool] = False

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name, why in vars(cls).get("declared", {}).items():
            if not hasattr(getattr(cls, name, None), "fault"):
                raise TypeError(f"{cls.__name__}.declared: {name} is not a check of the contract.")
            if not isinstance(why, Declared) or type(why) is Declared:
                raise TypeError(
                    f"{cls.__name__}.declared[{name!r}] must be Impossible, DecidedByPlatform or Elsewhere."
                )
            setattr(cls, name, None)

    @classmethod
    def faults(cls) -> dict[str, tuple[str, Declared | None]]:
        """{check: (the fault, why it is not run)}, in the order of their definition."""
        found: dict[str, tuple[str, Declared | None]] = {}
        why: dict[str, Declared] = {}
        for kind in reversed(cls.__mro__):
            why |= vars(kind).get("declared", {})
            for name, check in vars(kind).items():
                if hasattr(check, "fault"):
                    found[name] = (check.fault, None)
        return {name: (fault, why.get(name)) for name, (fault, _) in found.items()}

    @abstractmethod
    def _compare(
        self,
        carry: Carry,
        lost: Set[tuple[int, int]],
        *,
        until: int = 0,
        restart: bool = False,
        breaks: bool = False,
        uncharged: Set[tuple[int, int]] = frozenset(),
        during: Callable[[Parties], contextlib.AbstractContextManager[Any]] | None = None,
        then: Callable[[Parties, Server], None] | None = None,
    ) -> None: ...

    @abstractmethod
    def _missed(self, uploads: set[tuple[int, int]]) -> set[tuple[int, int]]: ...

    @abstractmethod
    def _generous(self) -> contextlib.AbstractContextManager[tuple[Parties, Federation]]: ...

    def announcing(self, data: bytes) -> bytes:
        """``data``, which a silo sent, made to announce `ANNOUNCED` bytes.

        For platforms that carry something else than `Message.to_bytes`, as it is or in an envelope.
        """
        raise NotImplementedError

    @against("an upload of an earlier round that comes before the right one")
    def test_a_late_upload_does_not_take_the_place_of_the_right_one(self) -> None:
        kept: dict[int, bytes] = {}

        def late(silo: int, data: bytes) -> list[bytes]:
            first = kept.setdefault(silo, data)
            return [data] if silo or first is data else [first, data]

        self._compare(late, set())

    @against("a silo that says it is another one")
    def test_a_silo_that_claims_to_be_another_is_refused_and_the_other_counts(self) -> None:
        def claims(parties: Parties) -> contextlib.AbstractContextManager[None]:
            return answering(0, lambda message: Message({**message.header, "silo": 1}, message.vectors))

        self._compare(_faithful, {(0, 0)}, until=1, during=claims)

    @against("another version at a silo")
    def test_a_silo_of_another_version_is_named_and_the_others_go_on(self) -> None:
        def differs(parties: Parties) -> contextlib.AbstractContextManager[None]:
            return answering(2, lambda message: Message({**message.header, "dpfl": PROTOCOL + 1}, message.vectors))

        def named(parties: Parties, server: Server) -> None:
            why = [one["why"] for one in server.summary()["refused"] if one["silo"] == 2]
            check(any("version" in one for one in why), f"the server does not say that the version is another: {why}")

        self._compare(_faithful, {(0, 2)}, until=1, during=differs, then=named)

    @against("another version at the server; its messages of another run, not finite, or with more in them")
    def test_messages_of_a_server_that_are_not_as_agreed_release_nothing(self) -> None:
        """Each in a round of its own, which does not count: what follows is as if it had never been."""
        bad: list[Callable[[Message], Message]] = [
            lambda message: Message({**message.header, "dpfl": PROTOCOL + 1}, message.vectors),
            lambda message: Message(message.header, {n: v * float("nan") for n, v in message.vectors.items()}),
            lambda message: Message(
                message.header, {**message.vectors, "../../evil": message.vectors["model"].clone()}
            ),
        ]

        def every_other(number: int, message: Message) -> Message:
            return message if number % 2 or number // 2 >= len(bad) else bad[number // 2](message)

        self._compare(_faithful, set(), during=lambda parties: asking(every_other), then=_nothing_evil)

    @against("a server that asks for more than was agreed")
    def test_a_server_that_asks_for_more_than_was_agreed_gets_nothing(self) -> None:
        def greedy(number: int, message: Message) -> Message:
            plan = message.header["plan"]
            more = {"num_gradients": 100 * plan["num_gradients"], "local_steps": 100 * plan["local_steps"]}
            return Message({**message.header, "plan": {**plan, **more}}, message.vectors)

        with asking(greedy), self._generous() as (parties, over):  # a platform may ask at once
            with contextlib.suppress(Exception):  # a platform may end with it
                while over.round(_faithful):
                    check(over.server.rounds == 0, "a round counts whose plan nobody agreed to")
            check(over.server.rounds == 0, "a round counts whose plan nobody agreed to")
            for silo in range(parties.agreement.num_silos):
                check(not parties.charges(silo), f"silo {silo} released what was not agreed")

    @against("a silo that is away for a day, and whose upload then comes late")
    def test_a_silo_that_is_away_for_a_day_comes_back(self) -> None:
        missed: list[bytes] = []
        with clock() as watch:

            def away(silo: int, data: bytes) -> list[bytes]:
                if silo != 1:
                    return [data]
                watch.ahead += DAY
                if len(missed) < 2:
                    missed.append(data)
                    return []
                return [missed[0], data]

            self._compare(away, self._missed({(0, 1), (1, 1)}), restart=True)

    @against("a full disk at a silo: no room for a charge, or for what it goes on from")
    def test_a_silo_whose_disk_is_full_sends_nothing_and_goes_on_when_there_is_room(self) -> None:
        def no_charge(parties: Parties) -> contextlib.AbstractContextManager[None]:
            return full_disk(*parties.folders(1), ledger=True)

        def no_state(parties: Parties) -> contextlib.AbstractContextManager[None]:
            return full_disk(*parties.folders(1), name="state")

        self._compare(_faithful, {(0, 1)}, until=1, during=no_charge, uncharged={(0, 1)})
        self._compare(_faithful, {(0, 1)}, until=1, during=no_state)

    @against("a full disk at the server")
    def test_a_server_whose_disk_is_full_goes_on_from_what_it_has_when_there_is_room(self) -> None:
        """Nothing is asked that could not be written down, and nothing charged twice."""
        for after in (0, 1):
            came: list[int] = []

            def carry(silo: int, data: bytes, came: list[int] = came) -> list[bytes]:
                came.append(silo)
                return [data]

            def full(
                parties: Parties, came: list[int] = came, after: int = after
            ) -> contextlib.AbstractContextManager[None]:
                return full_disk(parties.server_folder, when=lambda: len(came) >= after)

            self._compare(carry, set(), until=1, during=full, breaks=True)

    @against("an upload that announces 2 GiB")
    def test_what_is_announced_is_not_allocated(self) -> None:
        own = type(self).announcing is not FaultChecks.announcing

        def announced(parties: Parties) -> contextlib.AbstractContextManager[Any]:
            return contextlib.nullcontext() if own else answering(2, lambda message: _Announcing(message.header))

        def carry(silo: int, data: bytes) -> list[bytes]:
            return [self.announcing(data) if own and silo == 2 else data]

        with few_addresses():
            self._compare(carry, {(0, 2)}, until=1, during=announced)

    @against("paths in place of names")
    def test_names_are_never_paths(self) -> None:
        evil = "../../../evil"

        def tricks(parties: Parties) -> contextlib.AbstractContextManager[None]:
            def change(message: Message) -> Message:
                named = {f"{evil}-{name}": value for name, value in message.vectors.items()}
                return Message({**message.header, "run": evil, evil: evil, "status": evil}, named)

            return answering(2, change)

        self._compare(_faithful, {(0, 2)}, until=1, during=tricks, then=_nothing_evil)


def _faithful(silo: int, data: bytes) -> list[bytes]:
    return [data]


def check(right: bool, wrong: str) -> None:
    """Raise ContractError unless it is right."""
    if not right:
        raise ContractError(wrong)


def _nothing_evil(parties: Parties, server: Server) -> None:
    places = (
        parties.folder.rglob("*"),
        parties.folder.parent.glob("*"),
        Path.cwd().parent.glob("*"),
        Path.cwd().glob("*"),
    )
    found = [str(path) for some in places for path in some if "evil" in path.name]
    check(not found, f"a name in a message became a file: {found}")


@contextlib.contextmanager
def answering(silo: int, change: Callable[[Message], Message]) -> Iterator[None]:
    """While this lasts, what one silo answers is another."""
    true = Silo.answer

    def answer(self: Silo, message: Message) -> Message:
        found = true(self, message)
        return change(found) if self.id == silo else found

    with mock.patch.object(Silo, "answer", answer):
        yield


@contextlib.contextmanager
def asking(change: Callable[[int, Message], Message]) -> Iterator[None]:
    """While this lasts, what the server asks is another; ``change`` gets the number of the request, from 0."""
    true, number = Server.begin, 0

    def begin(self: Server, *given: Any, **more: Any) -> Message | None:
        nonlocal number
        message = true(self, *given, **more)
        if message is None:
            return None
        number += 1
        return change(number - 1, message)

    with mock.patch.object(Server, "begin", begin):
        yield


@dataclass
class Watch:
    """Attributes:
    ahead: of the right time, in seconds.
    """

    ahead: float = 0.0


@contextlib.contextmanager
def clock() -> Iterator[Watch]:
    """While this lasts, the time of day in this process is what the watch says."""
    watch, true = Watch(), time.time

    def now() -> float:
        return true() + watch.ahead

    with mock.patch.object(time, "time", now):
        yield watch


@contextlib.contextmanager
def full_disk(
    *folders: Path, name: str = "", ledger: bool = False, when: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """While this lasts, there is no room for files below these folders.

    Args:
        name: how those that there is no room for begin. ledger: no room for further lines of ledgers alone.
        when: whether it is full now.
    """
    replaces, appends = os.replace, Ledger.append_all

    def hit(path: Any) -> bool:
        return when() and any(Path(path).is_relative_to(folder) for folder in folders)

    def no_room(path: Any) -> OSError:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def move(source: Any, target: Any, **more: Any) -> None:
        if not more and not ledger and Path(target).name.startswith(name) and hit(target):
            raise no_room(target)
        replaces(source, target, **more)

    def append(self: Ledger, *given: Any) -> Any:
        if self.path is not None and ledger and hit(self.path):
            raise no_room(self.path)
        return appends(self, *given)

    with mock.patch.object(os, "replace", move), mock.patch.object(Ledger, "append_all", append):
        yield


@contextlib.contextmanager
def few_addresses() -> Iterator[None]:
    """Raise ContractError if this process takes more than `SPARE` bytes of addresses meanwhile.

    Addresses, not memory: what is never touched takes no memory, until somebody does.
    """
    before = _addresses()
    yield
    taken = _addresses()["VmPeak"] - max(before["VmPeak"], before["VmSize"] + SPARE)
    check(taken <= 0, f"what a message announces is allocated: {ANNOUNCED} bytes")


def _addresses() -> dict[str, int]:
    """Of this process, in bytes: see proc(5)."""
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    return {name.rstrip(":"): int(more[0]) * 1024 for name, *more in lines if name in ("VmPeak:", "VmSize:")}


class _Announcing(Message):
    """Its bytes say that they are `ANNOUNCED`, and there are few."""

    def to_bytes(self) -> bytes:
        length = ANNOUNCED // 8
        about = {"model": {"dtype": "F64", "shape": [length], "data_offsets": [0, ANNOUNCED]}}
        text = json.dumps(about).encode()
        return len(text).to_bytes(8, "little") + text + bytes(64)
