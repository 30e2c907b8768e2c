"""One silo of a folder: answers what the server asks, each request once, and is opened for each request anew.

Between requests nothing is held, no lock and no ledger: limits that the owner changes count from the next request on.
An answer is kept by `adapters.Silo` before it is put into the folder; where it is lost on the way, or half of it, the
same bits are put there again, at no charge.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from safetensors.torch import save
from torch import nn

import dpfl_plugin
from dpfl_plugin.adapters.agreement import Agreement
from dpfl_plugin.adapters.folder.envelope import (
    MOST_BYTES,
    About,
    Head,
    VersionError,
    opened,
    seal,
    verify,
)
from dpfl_plugin.adapters.folder.keys import SERVER, Members, SecretKey
from dpfl_plugin.adapters.folder.place import Place, answer_name, sequence_of
from dpfl_plugin.adapters.folder.server import OVERHEAD, utc
from dpfl_plugin.adapters.folder.status import write_status
from dpfl_plugin.adapters.frozen import FILE as FROZEN
from dpfl_plugin.adapters.frozen import Frozen
from dpfl_plugin.adapters.kept import Kept
from dpfl_plugin.adapters.message import Message, num_bytes
from dpfl_plugin.adapters.owner import place, silo_limits
from dpfl_plugin.adapters.replies import failure, refusal
from dpfl_plugin.adapters.silo import Silo
from dpfl_plugin.errors import BusyError, ConfigError, DataError, DpflError, LimitError, MessageError, printable
from dpfl_plugin.oracle import Draw
from dpfl_plugin.owners.limits import Limits, Surroundings
from dpfl_plugin.runs.folder import to_json, write_atomic
from dpfl_plugin.runs.public_errors import owners_words

FILE: Final = "folder.json"
MODEL: Final = "model.safetensors"
MOST_TRIES: Final = 3  # of one request: a silo that ends after its charge and before its answer is charged again
TRIED: Final = "each may be charged; the server was told, and asks again in its next round"
NEXT: Final = "the server's next request"
ELSEWHERE: Final = (
    "{}: request {} was answered with this site's key while this process worked at it: by another process, which has a "
    "folder of its own. What was computed here is charged in {}, and did not leave. Each of the two would state its "
    "own releases only, and the server would have both: end one of them for good, on whatever machine it is, and keep "
    "its ledger."
)
LOG: Final = logging.getLogger("dpfl_plugin.silo")
LOG_SAYS: Final = "its own log says why"


@dataclass(frozen=True, slots=True)
class Waits:
    """That a step left off to wait for the server.

    Attributes:
        what: in words. round: that was answered last, from 1; 0 before any.
    """

    what: str
    round: int = 0


@dataclass(frozen=True, slots=True)
class Over:
    """That the run is over.

    Attributes:
        status, reason, rounds: as the server says.
        folder: this silo's own, with the model; None where it never took part.
    """

    status: str
    reason: str
    rounds: int
    folder: Path | None


class FolderSilo:
    """One silo, whose server reaches the same folder.

    Args:
        folder: the shared one. key: of this site, whose name among the members says which silo it is.
        model, records, own, limits, surroundings, draw: see `Silo`; ``own`` is its ``folder``.
        most_bytes: of any file. refused: why it takes no part, where that is known before anything is asked: the owner
            does not allow it, or the records cannot be read. Then ``agreement`` may be None.

    Raises:
        ConfigError: the key is of no silo.
    """

    def __init__(
        self,
        folder: Path,
        members: Members,
        key: SecretKey,
        agreement: Agreement | None,
        model: nn.Module | None,
        records: Any,
        own: Path | None = None,
        *,
        limits: Limits | None = None,
        surroundings: Surroundings = "deployment",
        draw: Callable[[int], Draw] | None = None,
        most_bytes: int = MOST_BYTES,
        clock: Callable[[], float] = time.time,
        refused: DpflError | None = None,
    ) -> None:
        self.name = members.name_of(key)
        if self.name == SERVER:
            raise ConfigError("this key is the server's: dpfl server takes it. A silo has one of its own.")
        self.id, self._members, self._key = members.silos.index(self.name), members, key
        self._agreement, self._model, self._records, self._own = agreement, model, records, own
        self._limits, self._surroundings, self._draw = limits, surroundings, draw
        self._refused = refused
        self._most, self._clock, self._kept = most_bytes, clock, Kept()
        self._from, self._place = Place(folder, SERVER), Place(folder, self.name)
        self._place.make()
        self._said: set[str] = set()
        self._seen: set[str] = set()  # answers that are whole
        self._answered = 0  # the round that this process answered last, from 1

    def step(self) -> Waits | Over:
        """Do what can be done now.

        Raises:
            LimitError: the owner does not allow it; the server is told, and nothing was released.
            ConfigError, DataError, LedgerError: this silo cannot begin; the server is told that it failed.
            ConfigError: another process, with a folder of its own, answers with this site's key, too.
            OSError: a file cannot be written: the same step goes on later, at no further charge.
        """
        found = self._newest()
        if isinstance(found, Waits):
            self._tell("waits", found.what)
            return found
        about, message = found
        if about.kind == "end":
            return self._over(message)
        self._answer(about, message)
        self._answered = about.round + 1
        self._tell("answered", "")
        return Waits(NEXT, self._answered)

    # What the server asks

    def _newest(self) -> tuple[About, Message] | Waits:
        """The newest message of the server to this silo that is whole, and not answered; or what is waited for."""
        odd, elsewhere, unread = "", None, None
        numbered = [(sequence_of(name, self.name), name) for name in self._from.names()]
        for sequence, name in sorted(((n, name) for n, name in numbered if n is not None), reverse=True):
            try:
                head = self._signed(name, sequence)
                if head is None:
                    continue
                about = head.about
                if (about.run, about.members) != (self._run(about), self._members.digest):
                    elsewhere = elsewhere or head
                    continue
                if self.name not in about.receivers:
                    return Waits("the server, which asks others in this round", self._answered)
                if about.kind == "request" and self._is_there(about):
                    return Waits(NEXT, about.round + 1)
                if about.sequence < (last := self._last()):
                    raise MessageError(
                        f"request {sequence} after request {last}: an old one, or the server lost its folder."
                    )
                found = self._from.read(name, self._limit)
            except MessageError as error:
                if unread is None and isinstance(error, VersionError):
                    unread = sequence
                odd = odd or f"{name}: {str(error).rstrip('.')}"
                self._say(f"the server's {name} is not taken: {error}")
                continue
            if found is not None and found[0] == head:  # else it was written anew meanwhile
                return about, self._opened(head, found[1])
        if elsewhere is not None:
            self._fail_elsewhere(elsewhere)
        if unread is not None:
            self._tell_unread(unread)
        return Waits(f"the server: {odd}" if odd else "the server's first request", self._answered)

    @property
    def _limit(self) -> int:
        """Of the bytes of a file that is good."""
        agreed = self._agreement
        return self._most if agreed is None else min(self._most, OVERHEAD + num_bytes(agreed.down) + agreed.fixed_bytes)

    def _run(self, about: About) -> str:
        """What this silo agreed to; where its owner refuses that, what the server calls it."""
        return about.run if self._agreement is None else self._agreement.run

    def _signed(self, name: str, sequence: int) -> Head | None:
        """The head of a message that the server signed under this name; None if it is not there."""
        head = self._from.head(name)
        if head is None:
            return None
        verify(head, self._members, SERVER)
        if head.about.sequence != sequence or head.about.kind not in ("request", "end"):
            raise MessageError("it is the server's, and has another number in its name: a copy.")
        if head.version != dpfl_plugin.__version__:
            self._say(f"the server runs dpfl_plugin {head.version[:20]}, and this is {dpfl_plugin.__version__}")
        return head

    def _opened(self, head: Head, body: bytes) -> Message:
        try:
            return opened(head, body, self._members, self._key)
        except MessageError as error:
            self._put_failure(head.about)
            raise ConfigError(f"a message of the server: {error}") from error

    def _tell_unread(self, sequence: int) -> None:
        """Answer in our format what is in another, by which the server, if it is the server's, sees what is the matter.

        Nobody is known to have signed it: so it ends nothing, and the server is waited for.
        """
        run = "" if self._agreement is None else self._agreement.run
        about = About("request", SERVER, (self.name,), run, self._members.digest, sequence)
        if not self._is_there(about):
            self._put_failure(about)

    def _fail_elsewhere(self, head: Head) -> NoReturn:
        about = head.about
        self._put_failure(about)
        if about.members != self._members.digest:
            why = "the list of members there is another: compare them by their fingerprints (dpfl keys show)"
        else:
            run = printable(about.run[:32])
            why = f"it is of run {run}, and this silo agreed to {self._run(about)}: configurations differ"
        raise ConfigError(f"a message of the server: {why}. The server was told that this silo cannot answer.")

    # The answer

    def _answer(self, about: About, message: Message) -> None:
        """Open the silo, answer, and put it into the folder."""
        agreement = self._agreement
        try:
            if self._refused is not None:
                raise self._refused
            assert agreement is not None and self._model is not None
            limits, folder = self._kept_in()
            silo = Silo(
                agreement,
                self.id,
                self._model,
                self._records,
                folder,
                draw=self._draw,
                limits=limits,
                surroundings=self._surroundings,
                kept=self._kept,
            )
        except LimitError as error:
            self._put(about, refusal(agreement, self.id, message, error))
            words = owners_words(error)
            self._tell(*(("failed", LOG_SAYS) if words is None else ("refused", words)))
            raise
        except BusyError:
            raise
        except DpflError:
            self._put(about, failure(agreement, self.id, message))
            self._tell("failed", LOG_SAYS)
            raise
        with silo:
            known = _read(folder / FILE)
            tries = known.tries if known.sequence == about.sequence else 0
            again = known.sequence == about.sequence and known.how == "answered"
            if known.sequence == about.sequence and (known.how == "failed" or (tries >= MOST_TRIES and not again)):
                self._put(about, silo.failure(message))  # what fails after its charge would be charged each time
                LOG.error("round %d is not tried again after %d tries: %s", about.round + 1, tries, TRIED)
                return
            if not again:
                _write(folder / FILE, _Known(about.sequence, tries + 1, "begun"))
            reply, how = self._reply(silo, about, message)
            if not again:
                _write(folder / FILE, _Known(about.sequence, tries + 1, how))
                if self._is_there(about):
                    raise ConfigError(ELSEWHERE.format(self._place.path, about.sequence, folder))
            self._put(about, reply)

    def _reply(self, silo: Silo, about: About, message: Message) -> tuple[Message, str]:
        try:
            return silo.answer(message), "answered"
        except LimitError as error:
            LOG.error("%s", error)
            return refusal(self._agreement, self.id, message, error), "failed"
        except DpflError as error:
            LOG.error("round %d: %s", about.round + 1, error)
            return silo.failure(message), "failed"

    def _put(self, about: About, reply: Message) -> None:
        answers = About(
            "answer",
            self.name,
            (SERVER,),
            self._run(about),
            self._members.digest,
            about.sequence,
            about.round,
            about.tag,
            time=utc(self._clock()),
        )
        to = self._members.keys[SERVER] if self._members.encrypt else None
        name = answer_name(about.sequence)
        self._place.put(name, seal(answers, reply, self._key, to))
        for other in self._answers():
            if other != name:
                self._place.remove(other)

    def _put_failure(self, about: About) -> None:
        """That this silo cannot answer a request that the server signed."""
        self._put(about, failure(self._agreement, self.id, Message({"round": about.round, "tag": about.tag})))

    def _answers(self) -> Iterator[str]:
        return (name for name in self._place.names() if sequence_of(name) is not None)

    def _is_there(self, about: About) -> bool:
        """Whether our answer to it is in the folder as it should be; all of it is looked at once in a process."""
        name = answer_name(about.sequence)
        try:
            head = self._place.head(name)
            if head is None:
                return False
            verify(head, self._members, self.name)  # before more is read than we wrote
            if name not in self._seen and not self._place.is_whole(name, head):
                return False
        except MessageError:
            return False
        self._seen, mine = {name}, head.about
        return (mine.run, mine.members, mine.tag) == (self._run(about), self._members.digest, about.tag)

    # The end, and what people see

    def _over(self, message: Message) -> Over:
        header = message.header
        folder: Path | None = None
        if self._agreement is not None:
            with contextlib.suppress(LimitError, ConfigError):  # without limits it never took part
                folder = self._kept_in()[1]
        if folder is not None and folder.is_dir():
            self._keep_model(folder, message)
        for name in self._answers():
            self._place.remove(name)
        rounds = header.get("rounds")
        over = Over(
            printable(str(header.get("status"))[:40]),
            printable(str(header.get("reason"))[:500]),
            rounds if type(rounds) is int else 0,
            folder,
        )
        self._tell("over", over.status)
        return over

    def _keep_model(self, folder: Path, message: Message) -> None:
        vector = message.vectors.get("model")
        if self._agreement is None or self._model is None or vector is None:
            return
        if tuple(vector.shape) != (self._agreement.layout.dimension,):
            return
        model = copy.deepcopy(self._model)
        Frozen(folder / FROZEN, model).write_to(model)
        self._agreement.write(vector, model)
        named = {key: one.detach().cpu().contiguous() for key, one in model.state_dict().items()}
        write_atomic(folder / MODEL, save(named))

    def _kept_in(self) -> tuple[Limits | None, Path]:
        """(the owner's limits as they are now, this silo's own folder)."""
        own = self.id if self._surroundings == "simulation" else None
        limits = self._limits or silo_limits(self._surroundings, own=own)
        assert self._agreement is not None
        return limits, place(self._own, limits, self._agreement, self.id)

    def _last(self) -> int:
        """The number of the newest request that this silo began to answer."""
        if self._agreement is None:
            return 0
        try:
            return _read(self._kept_in()[1] / FILE).sequence
        except (LimitError, ConfigError):  # it never took part; to answer says why
            return 0

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            LOG.warning("%s", printable(text))

    def _tell(self, doing: str, why: str) -> None:
        facts = {"version": dpfl_plugin.__version__, "doing": doing, "why": why, "round": self._answered}
        write_status(self._place, facts)


@dataclass(frozen=True, slots=True)
class _Known:
    """What this silo knows of the server's newest request: how often it began to answer it, and how that went."""

    sequence: int = 0
    tries: int = 0
    how: str = "begun"


def _read(path: Path) -> _Known:
    if not path.exists():
        return _Known()
    try:
        found = json.loads(path.read_text())
        return _Known(int(found["sequence"]), int(found["tries"]), str(found["how"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error}. Restore it from a copy.") from error


def _write(path: Path, known: _Known) -> None:
    # That a try began has to be known after a power cut, too: it may be charged. So has how it went: a file that the
    # cut left empty would be all that is known of it.
    write_atomic(path, to_json(asdict(known)))
