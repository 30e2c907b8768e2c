"""The lines of a ledger on disk: chained by checksums, and synced before anything that they cover leaves.

Each line ends in a checksum over itself and the line before, so that damage and missing lines show; it is no signature:
whoever may write the file can write another history.

A crash can lose what was not synced, and nothing of that has left. So a last line without its newline is the one
damage that proves nothing wrong: it is set aside in a file beside the ledger. All else is refused.
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

_CHECK: Final = re.compile(rb',"check":"([0-9a-f]{16})"\}')
BEGINNING: Final = b'{"facts":{'  # of every ledger's first line
_CHECK_BYTES: Final = len(b',"check":"0123456789abcdef"}')
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
    """Lines of JSON objects that only grow; of one process, which forks of it must not use.

    Attributes:
        path: None for a ledger in memory, of which nothing is written.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._checks = array("Q")
        self._check = ""
        self._file: BinaryIO | None = None
        self._usable, self._process = True, os.getpid()
        self._unsynced = True  # of lines that were read, too, it is not known whether they are on disk
        self._size, self._rest, self._complete = 0, b"", False  # whole lines; what follows them, and is it a line?

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
            room = f" {MAKE_ROOM}" if is_full(error) else ""
            raise LedgerError(f"{self.path} cannot be written: {error.strerror}.{room}") from error
        try:
            self.write(first)
            self.sync()
            _sync_folder(self.path.parent)
        except LedgerError:
            with contextlib.suppress(OSError):
                self._file.close()  # nobody gets this ledger, who could
            raise

    def read(self) -> Iterator[tuple[int, bytes]]:
        """(number, object as JSON) of each line, as far as they are whole; `go_on` or `leave` comes next.

        Raises:
            DamagedLineError: a line is not what was written.
            LedgerError: the file cannot be read.
        """
        assert self.path is not None
        number = 0
        try:
            with self.path.open("rb") as file:
                # Up to a line without its end: what another process adds to that later is not another line.
                while (rest := file.readline()).endswith(b"\n"):
                    number, self._size = number + 1, self._size + len(rest)
                    yield number, self._verified(rest[:-1], number)
        except OSError as error:
            raise LedgerError(f"{self.path} cannot be read: {error.strerror}.") from error
        # A torn line is a strict beginning of one. With a checksum inside, it must be whole, or it was changed.
        self._rest, self._complete = rest, _CHECK.search(rest) is not None
        if self._complete:
            yield number + 1, self._verified(rest, number + 1)

    def go_on(self) -> str:
        """Append from here on; returns what was done about a torn line, or "".

        Raises:
            LedgerError: the file cannot be written.
        """
        assert self.path is not None
        torn, done = bool(self._rest) and not self._complete, ""
        try:
            if torn:
                aside = _set_aside(self.path, self._rest)
                with self.path.open("r+b") as file:
                    file.truncate(self._size)
                    os.fsync(file.fileno())
                done = _torn(len(self._rest), f"set aside in {aside.name}")
            self._file = self.path.open("ab")
            if self._complete:
                self._file.write(b"\n")
        except OSError as error:
            raise self._failed(error) from error
        if self._complete:
            self.sync()
        return done

    def leave(self) -> str:
        """Append nothing from here on; returns a remark on a torn line, or ""."""
        self._usable = False
        return _torn(len(self._rest), "left in place") if self._rest and not self._complete else ""

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

    @property
    def is_written(self) -> bool:
        """Whether lines go to a file."""
        return self._file is not None

    def write(self, content: Mapping[str, Any]) -> None:
        """Add a line, which is safe after the next `sync`.

        Raises:
            LedgerError: it is not plain JSON, or cannot be written.
        """
        if self._file is None:
            return
        body = _canonical(content)
        check = _checksum(self._check, body)
        self._unsynced = True
        try:
            self._file.write(body[:-1] + b',"check":"' + check.encode() + b'"}\n')
        except OSError as error:
            raise self._failed(error) from error
        self._advance(check)

    def sync(self) -> None:
        """Return once every line is on disk.

        Raises:
            LedgerError: it is not; nothing that was written since the last sync may leave.
        """
        self.require_usable()
        if self._file is None:
            return
        if self._unsynced:
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
            with contextlib.suppress(OSError):  # its buffer, too, of what could not be written
                file.close()

    @property
    def head(self) -> str:
        """The last line's checksum."""
        return self._check

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
        found = _CHECK.fullmatch(line, max(0, len(line) - _CHECK_BYTES))
        if not found:
            raise DamagedLineError(number, "it does not end in a checksum")
        body = line[: found.start()] + b"}"
        check = found.group(1).decode()
        if check != _checksum(self._check, body):
            raise DamagedLineError(number, "its checksum is wrong: it, or the order of the lines, was changed")
        self._advance(check)
        return body

    def _advance(self, check: str) -> None:
        self._check = check
        self._checks.append(int(check, 16))


def _canonical(content: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(content, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise LedgerError(f"a ledger line must be plain JSON: {error}.") from error


def _checksum(previous: str, body: bytes) -> str:
    return hashlib.sha256(previous.encode() + body).hexdigest()[:16]


def _torn(size: int, where: str) -> str:
    return (
        f"a last line of {size} bytes was cut off before it was synced, by a crash or a full disk: nothing of it "
        f"had left; {where}."
    )


def is_begun(path: Path) -> bool:
    """Whether a ledger is there; if not, the file is missing, or holds what a crash left of a first line.

    Raises:
        LedgerError: it holds something else, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            line = file.readline()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error.strerror}.") from error
    if line.endswith(b"\n") or _CHECK.search(line):
        return True
    if not line.startswith(BEGINNING[: len(line)]):
        raise LedgerError(
            f"{path} is not a ledger, nor the beginning of one: what was charged is not known, and nothing in it was "
            "changed. Restore it from a copy, or use another name."
        )
    return False


def _set_aside(path: Path, rest: bytes) -> Path:
    numbered = (path.with_name(f"{path.name}.torn-{number}") for number in itertools.count(1))
    aside = next(name for name in numbered if not name.exists())
    with open(aside, "xb", opener=private_file) as file:
        file.write(rest)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(path.parent)
    return aside


def _sync_folder(folder: Path) -> None:
    """Make a new file's name durable, where the system lets a folder be synced.

    Raises:
        LedgerError: it does, and this failed: a power cut could take the file, and what it charged, with it.
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
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
