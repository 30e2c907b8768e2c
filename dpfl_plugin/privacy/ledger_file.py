"""The lines of a ledger on disk: chained by checksums, and synced before anything that they cover leaves.

Each line ends in a checksum over itself and the line before, so that damage and missing lines show. It is no signature:
whoever may write the file can write another history.

A crash or a full disk can cut off what was not synced, and nothing of that has left. So a last line without its newline
is the one damage that proves nothing wrong: it is set aside in a file beside the ledger. All else is refused.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import re
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from dpfl_plugin.errors import MAKE_ROOM, LedgerError, is_full
from dpfl_plugin.file_permissions import private_file

_BEGINNING: Final = b'{"facts":{'  # of every ledger's first line
_CHECK: Final = re.compile(rb',"check":"([0-9a-f]{16})"\}')
_CHECK_LENGTH: Final = len(b',"check":"0123456789abcdef"}')
_HEAD: Final = re.compile("[0-9a-f]{16}")
_NO_SYNC: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSUP})  # of file systems that sync no folders


class DamagedLineError(ValueError):
    """A line that is not what was written.

    Attributes:
        number: which, from 1.
    """

    def __init__(self, number: int, what: str) -> None:
        super().__init__(what)
        self.number = number


class LedgerFile:
    """Lines of JSON objects that only grow; of one process, not of its forks.

    Attributes:
        path: None for a ledger in memory, of which nothing is written.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._checks = array("Q")
        self._file: BinaryIO | None = None
        self._usable, self._process = True, os.getpid()
        self._unsynced = True  # lines that were read may not be on disk either
        self._size, self._rest = 0, b""  # of the lines that end in a newline; what follows them

    def create(self, first: Mapping[str, Any]) -> None:
        """Begin the file, with a first line that is on disk when this returns.

        It replaces what a crash left of a first line: nothing was charged there.

        Raises:
            LedgerError: it exists already, or cannot be written.
        """
        assert self.path is not None
        try:
            if self.path.exists() and not is_begun(self.path):
                self.path.unlink()
            self._file = open(self.path, "xb", opener=private_file)  # noqa: SIM115, it stays open
        except FileExistsError as error:
            raise LedgerError(f"{self.path} exists: open it to continue, or choose another folder.") from error
        except OSError as error:
            raise self._failed(error) from error
        try:
            self.write(first)
            self.sync()
            _sync_folder(self.path.parent)
        except LedgerError:
            self._usable = False
            self.close()
            raise

    def read(self) -> Iterator[tuple[int, bytes]]:
        """(number, object as JSON) of each line, as far as they are whole; `go_on` or `leave` comes next.

        Raises:
            DamagedLineError: a line is not what was written.
            LedgerError: the file cannot be read.
        """
        assert self.path is not None
        number = 1
        try:
            with self.path.open("rb") as file:
                # Up to a line without its end: what another process adds to that later is not another line.
                while (line := file.readline()).endswith(b"\n"):
                    yield number, self._verified(line[:-1], number)
                    number, self._size = number + 1, self._size + len(line)
        except OSError as error:
            raise LedgerError(f"{self.path} cannot be read: {error.strerror}.") from error
        self._rest = line
        if _CHECK.search(line):  # with a checksum inside it must be whole, or it was changed
            yield number, self._verified(line, number)

    def go_on(self) -> str:
        """Append from here on; returns what was done about a torn line, or "".

        Raises:
            LedgerError: the file cannot be written.
        """
        assert self.path is not None
        torn, done = self._torn, ""
        try:
            if torn:
                done = _cut_off(torn, f"set aside in {_set_aside(self.path, torn).name}")
                os.truncate(self.path, self._size)
            self._file = self.path.open("ab")
            if self._rest and not torn:
                self._file.write(b"\n")
        except OSError as error:
            raise self._failed(error) from error
        return done

    def leave(self) -> str:
        """Append nothing from here on; returns a remark on a torn line, or ""."""
        self._usable = False
        return _cut_off(self._torn, "left in place") if self._torn else ""

    @property
    def _torn(self) -> bytes:
        """The beginning of a last line without its end."""
        return b"" if _CHECK.search(self._rest) else self._rest

    def require_usable(self) -> None:
        """Raise LedgerError where nothing can be charged."""
        if self.path is not None and self._process != os.getpid():
            raise LedgerError(
                f"{self.path} was opened by process {self._process}, of which this is a fork: what both charged "
                "would count once. Nothing may leave here. Open it after the fork, in one process."
            )
        if not self._usable:
            raise LedgerError(
                f"{self.path} is closed, open for reading only, or failed before: nothing can be charged."
            )

    def write(self, content: Mapping[str, Any]) -> None:
        """Add a line, which is safe after the next `sync`.

        Raises:
            LedgerError: it is not plain JSON, or cannot be written.
        """
        if self._file is None:
            return
        try:
            body = json.dumps(content, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            self._usable = False  # what it was to charge is counted by now
            raise LedgerError(f"a ledger line must be plain JSON: {error}.") from error
        check = _checksum(self.head, body)
        self._unsynced = True
        try:
            self._file.write(body[:-1] + b',"check":"' + check.encode() + b'"}\n')
        except OSError as error:
            raise self._failed(error) from error
        self._checks.append(int(check, 16))

    def sync(self) -> None:
        """Return once every line is on disk.

        Raises:
            LedgerError: it is not; nothing that was written since the last sync may leave.
        """
        self.require_usable()
        if self._file is None or not self._unsynced:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failed(error) from error
        self._unsynced = False

    def close(self) -> None:
        """Sync and close."""
        if self._file is None:
            return
        file = self._file
        try:
            if self._unsynced and self._usable and self._process == os.getpid():
                self.sync()
        finally:
            self._file, self._usable = None, False
            with contextlib.suppress(OSError):  # of what could not be written, and is still in its buffer
                file.close()

    @property
    def head(self) -> str:
        """The last line's checksum; "" if there is no line."""
        return f"{self._checks[-1]:016x}" if self._checks else ""

    def holds(self, head: str) -> bool:
        """Whether some line has this checksum."""
        return _HEAD.fullmatch(head) is not None and int(head, 16) in self._checks

    def _failed(self, error: OSError) -> LedgerError:
        # After a failed write or fsync it is unknown what is on disk; a second try could report success wrongly.
        self._usable = False
        room = f" {MAKE_ROOM}" if is_full(error) else ""
        return LedgerError(
            f"{self.path} could not be written ({error.strerror}): nothing that it covers may leave.{room}"
        )

    def _verified(self, line: bytes, number: int) -> bytes:
        match = _CHECK.fullmatch(line, max(0, len(line) - _CHECK_LENGTH))
        if not match:
            raise DamagedLineError(number, "it does not end in a checksum")
        body, check = line[: match.start()] + b"}", match[1].decode()
        if check != _checksum(self.head, body):
            raise DamagedLineError(number, "its checksum is wrong: it, or the order of the lines, was changed")
        self._checks.append(int(check, 16))
        return body


def is_begun(path: Path) -> bool:
    """Whether a ledger is there; if not, the file is missing, or holds what a crash left of a first line.

    Raises:
        LedgerError: it holds something else, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            line = file.readline()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error.strerror}.") from error
    if line.endswith(b"\n") or _CHECK.search(line):
        return True
    if not line.startswith(_BEGINNING[: len(line)]):
        raise LedgerError(
            f"{path} is not a ledger, nor the beginning of one: what was charged is not known, and nothing in it was "
            "changed. Restore it from a copy, or use another name."
        )
    return False


def _checksum(previous: str, body: bytes) -> str:
    return hashlib.sha256(previous.encode() + body).hexdigest()[:16]


def _cut_off(torn: bytes, where: str) -> str:
    return (
        f"a last line of {len(torn)} bytes was cut off before it was synced, by a crash or a full disk: nothing of it "
        f"had left; {where}."
    )


def _set_aside(path: Path, torn: bytes) -> Path:
    """Write a torn line to a new file beside its ledger."""
    numbered = (path.with_name(f"{path.name}.torn-{number}") for number in itertools.count(1))
    aside = next(name for name in numbered if not name.exists())
    with open(aside, "xb", opener=private_file) as file:
        file.write(torn)
        file.flush()
        os.fsync(file.fileno())
    return aside


def _sync_folder(folder: Path) -> None:
    """Make a new file's name durable, where the file system lets a folder be synced.

    Raises:
        LedgerError: it does, and this failed: a power cut could take the file, and what it charged, with it.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise LedgerError(
                f"{folder} cannot be synced: {error.strerror}. Nothing was released. Its owner must be able to read it "
                "(ls -ld), on a disk without errors (dmesg); or use another folder."
            ) from error
