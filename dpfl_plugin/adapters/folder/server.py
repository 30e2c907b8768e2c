"""The server of a folder: asks, takes what has come, ends the round when all have answered or patience is over.

Nothing is decided here but when to stop waiting: `adapters.Server` plans, checks and aggregates. What lasts is in the
server's own folder, the request with its number before it is published; so whenever the process ends, the next one asks
by the same file, and finds the answers where they are.
"""

from __future__ import annotations

import datetime
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torch import nn

import dpfl_plugin
from dpfl_plugin.adapters.agreement import Agreement
from dpfl_plugin.adapters.folder.envelope import (
    HEAD_BYTES,
    MOST_BYTES,
    About,
    Head,
    IncompleteError,
    StrangerError,
    VersionError,
    check_size,
    opened,
    seal,
    verify,
)
from dpfl_plugin.adapters.folder.keys import SERVER, Members, SecretKey
from dpfl_plugin.adapters.folder.place import Place, answer_name, message_name
from dpfl_plugin.adapters.folder.status import write_status
from dpfl_plugin.adapters.message import Message, num_bytes
from dpfl_plugin.adapters.server import Server
from dpfl_plugin.callbacks.base import Callback
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import DataError, MessageError, printable
from dpfl_plugin.runs.folder import to_json, write_atomic

FILE: Final = "folder.json"
OVERHEAD: Final = HEAD_BYTES + 2**12  # of an envelope, encryption included
LOG: Final = logging.getLogger("dpfl_plugin.server")


@dataclass(frozen=True, slots=True)
class Waits:
    """For whom a step left off to wait.

    Attributes:
        silos: the names of those who have not answered. since: seconds since the epoch, by this machine's clock.
        round: from 1. odd: by silo, what of its file is not as it should be.
    """

    silos: tuple[str, ...]
    since: float
    round: int
    odd: dict[str, str] = field(default_factory=dict)


class FolderServer:
    """One server, whose silos reach the same folder.

    Args:
        folder: the shared one. key: the server's.
        model: the initial one. own: what lasts, on this machine; see `Server`.
        patience: seconds after which a round goes on without those who have not answered, if enough have; None: never.
        most_bytes: of any file. clock: seconds since the epoch.

    Raises:
        ConfigError: the key is not the server's; messages would be too large; or as `Server`.
        BusyError: another process is the server in this folder of its own.
    """

    def __init__(
        self,
        folder: Path,
        members: Members,
        key: SecretKey,
        agreement: Agreement,
        model: nn.Module,
        own: Path,
        *,
        patience: float | None = None,
        most_bytes: int = MOST_BYTES,
        clock: Callable[[], float] = time.time,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self._members, self._key, self._agreement, self._own = members, key, agreement, own
        self._folder, self._patience, self._most, self._clock = folder, patience, most_bytes, clock
        fixed = agreement.fixed_bytes
        check_size(OVERHEAD + num_bytes(agreement.down) + fixed, most_bytes, "a message to the silos")
        self._place = Place(folder, SERVER)
        self._place.make()
        self.server = Server(agreement, model, own, callbacks=callbacks)
        self._places = {name: Place(folder, name) for name in members.silos}
        self._published = _read(own / FILE)
        self._request: Message | None = None
        self._said: set[str] = set()
        self._seen: set[str] = set()  # files of ours that are whole
        self._uploads = 0

    def close(self) -> None:
        """Let go of the server's own folder."""
        self.server.close()

    def __enter__(self) -> FolderServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def step(self) -> Waits | None:
        """Do what can be done now; None if the run is over, which all silos then are told.

        Raises:
            TrainingError: see `Server.end`. OSError: a file cannot be written: the same step goes on later.
        """
        while True:
            if self._request is None:
                self._request = self.server.begin()
                if self._request is None:
                    self._end()
                    return None
                self._uploads = 0
            self._publish(self._request)
            odd = self._collect()
            waits = Waits(self._names(self.server.missing), self._published["asked_at"], self.server.rounds + 1, odd)
            if waits.silos and not self._enough():
                self._tell(waits)
                return waits
            self._request = None
            self.server.end()

    def _enough(self) -> bool:
        """Whether the round goes on without those who are missing."""
        waited = self._clock() - self._published["asked_at"]
        return self._patience is not None and waited >= self._patience and self._uploads >= self.server.needed

    def _names(self, silos: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._members.silos[silo] for silo in silos)

    def _publish(self, message: Message) -> None:
        """Have the request in the folder, unless it is there; its number is on disk here before."""
        tag, now = message.header["tag"], self._clock()
        if self._published["tag"] != tag:
            check_size(self.server.max_bytes + OVERHEAD, self._most, "an upload of a silo")
            self._keep(tag, now)
        asked = self._names(self.server.asked)
        self._write("request", message, asked)

    def _keep(self, tag: str, now: float) -> None:
        published = {"tag": tag, "sequence": self._published["sequence"] + 1, "asked_at": now}
        write_atomic(self._own / FILE, to_json(published))
        self._published = published

    def _write(self, kind: str, message: Message, receivers: tuple[str, ...]) -> None:
        """Write what is not there as it should be; then remove what was there before."""
        sequence = self._published["sequence"]
        apart = receivers if self._members.encrypt else (None,)
        names = {message_name(sequence, one): one for one in apart}
        for name, one in names.items():
            if not self._stands(name, kind):
                about = self._about(kind, (one,) if one else receivers, message)
                self._place.put(name, seal(about, message, self._key, self._members.keys[one] if one else None))
        for name in self._place.names():
            if name.startswith("message-") and name.endswith(".dpfl") and name not in names:
                self._place.remove(name)

    def _about(self, kind: str, receivers: tuple[str, ...], message: Message) -> About:
        return About(
            kind,
            SERVER,
            receivers,
            self._agreement.run,
            self._members.digest,
            self._published["sequence"],
            self.server.rounds,
            self._published["tag"],
            time=utc(self._clock()),
        )

    def _stands(self, name: str, kind: str) -> bool:
        """Whether our own file is whole, and is this request; all of it is looked at once in a process."""
        try:
            head = self._place.head(name)
            if head is None:
                return False
            verify(head, self._members, SERVER)  # before more is read than we wrote
            if name not in self._seen and not self._place.is_whole(name, head):
                return False
        except MessageError:
            return False
        self._seen, about = {*self._seen, name}, head.about
        of = (about.kind, about.run, about.members, about.sequence, about.tag)
        return of == (
            kind,
            self._agreement.run,
            self._members.digest,
            self._published["sequence"],
            self._published["tag"],
        )

    def _collect(self) -> dict[str, str]:
        """Take what has come; what is odd of the others, by silo."""
        odd = {}
        for silo in self.server.missing:
            name = self._members.silos[silo]
            try:
                self._take(silo, name)
            except MessageError as error:  # of a stranger, or not whole: the silo may still answer
                odd[name] = str(error).rstrip(".")
                self._say(f"round {self.server.rounds + 1}: the file of {name} is not taken: {error}")
        return odd

    def _take(self, silo: int, name: str) -> None:
        file, limit = answer_name(self._published["sequence"]), min(self._most, self.server.max_bytes + OVERHEAD)
        try:
            found = self._places[name].read(file, limit)
            if found is None:
                return
            head, body = found
            verify(head, self._members, name)
        except (IncompleteError, StrangerError, VersionError):
            raise
        except MessageError as error:
            raise StrangerError(str(error)) from error
        self._note_version(name, head)
        about = head.about
        upload: Message | MessageError
        if (about.sequence, about.tag) != (self._published["sequence"], self._published["tag"]):
            # First: what the silo signed elsewhere with this key uses up no place here, whoever put it there.
            raise StrangerError("it answers another request (a replay).")
        if about.kind != "answer" or about.receivers != (SERVER,) or about.members != self._members.digest:
            upload = MessageError("it is by another list of members: compare the lists (dpfl keys show).")
        else:
            try:
                upload = opened(head, body, self._members, self._key)
            except MessageError as error:
                upload = error
        refused = self.server.receive(silo, upload)
        if refused is None and not isinstance(upload, MessageError) and upload.header.get("status") == "upload":
            self._uploads += 1

    def _note_version(self, name: str, head: Head) -> None:
        if head.version != dpfl_plugin.__version__:
            self._say(
                f"{name} runs dpfl_plugin {head.version[:20]}, and this is {dpfl_plugin.__version__}: as long as "
                "messages are alike it goes on"
            )

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            LOG.warning("%s", printable(text))

    def _end(self) -> None:
        """Tell all silos that it is over, with the model."""
        tag = f"end-{self.server.status}"
        if self._published["tag"] != tag:
            self._keep(tag, self._clock())
        vectors: Vectors = {"model": self.server.model.detach().cpu().clone()}
        summary = self.server.summary()
        header: dict[str, Any] = {
            "run": summary["run"],
            "status": summary["status"],
            "reason": summary["reason"],
            "rounds": summary["rounds"],
        }
        self._write("end", Message(header, vectors), self._members.silos)
        self._tell(None)

    def _tell(self, waits: Waits | None) -> None:
        """For people; see `status`."""
        summary = self.server.summary()
        write_status(
            self._place,
            {
                "name": summary["name"],
                "run": summary["run"],
                "version": dpfl_plugin.__version__,
                "status": summary["status"],
                "reason": summary["reason"],
                "rounds": summary["rounds"],
                "of": self._agreement.config.rounds,
                "silos": list(self._members.silos),
                "waits_for": [] if waits is None else list(waits.silos),
                "since": None if waits is None else utc(waits.since),
                "odd": {} if waits is None else waits.odd,
                "refused": [
                    {"round": one["round"], "silo": self._members.silos[one["silo"]], "why": one["why"]}
                    for one in summary["refused"][-20:]
                ],
                "encrypted": self._members.encrypt,
            },
        )


def utc(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"tag": "", "sequence": 0, "asked_at": 0.0}
    try:
        found = json.loads(path.read_text())
        return {"tag": str(found["tag"]), "sequence": int(found["sequence"]), "asked_at": float(found["asked_at"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error}. Restore it from a copy.") from error
