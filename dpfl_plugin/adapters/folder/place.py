"""Files in a folder where anybody may write anything, and that others synchronise as they like.

Each member writes to a folder of its own, `FOLDER/NAME/`, and to no other. Names of files are made here and never
taken from a message; whatever has another name (half of a file, a conflict copy) is not looked at. Links are not
followed, and what is no plain file is not opened. No lock is relied on, and no time of a file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Final

from dpfl_plugin.adapters.folder.envelope import HEAD_BYTES, Head, IncompleteError, check_body, read_head
from dpfl_plugin.errors import ConfigError, MessageError
from dpfl_plugin.runs.folder import naming

MOST_NAMES: Final = 10_000  # entries that are looked at: a folder that somebody fills up stops nobody's machine
_TEMPORARY: Final = ".dpfl-tmp-"
_MESSAGE: Final = re.compile(r"message-([0-9]{8})(?:-([a-z0-9][a-z0-9_-]{0,39}))?\.dpfl")
_ANSWER: Final = re.compile(r"answer-([0-9]{8})\.dpfl")


def message_name(sequence: int, receiver: str | None) -> str:
    """Of a file for one receiver, or (None) for all that it names."""
    return f"message-{sequence:08d}{'' if receiver is None else f'-{receiver}'}.dpfl"


def answer_name(sequence: int) -> str:
    return f"answer-{sequence:08d}.dpfl"


def sequence_of(name: str, receiver: str | None = None) -> int | None:
    """That of a message to ``receiver``, or of an answer (None); None if the name is neither's."""
    if receiver is None:
        found = _ANSWER.fullmatch(name)
        return None if found is None else int(found[1])
    found = _MESSAGE.fullmatch(name)
    return None if found is None or found[2] not in (None, receiver) else int(found[1])


class SharedFolderError(OSError):
    """The shared folder cannot be reached, or written to: it may be away for a while."""


@contextlib.contextmanager
def _shared() -> Iterator[None]:
    """Tell errors of the shared folder from those of this machine's own."""
    try:
        yield
    except OSError as error:
        raise SharedFolderError(error.errno, error.strerror, error.filename) from error


class Place:
    """One member's folder.

    Raises:
        ConfigError: there is a link, or something else, in its place.
        SharedFolderError: it cannot be reached.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / name

    def make(self) -> None:
        """Make it, to write to it."""
        with _shared():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self.path.mkdir()
            with self._opened():
                pass

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise
        except OSError as error:
            if self.path.is_symlink() or not self.path.is_dir():
                raise ConfigError(
                    f"{self.path} is a link, or no folder: where it leads is for nobody else to say. Remove it."
                ) from error
            raise
        try:
            yield handle
        finally:
            os.close(handle)

    def names(self) -> list[str]:
        """What is there; nothing if the folder is not there yet."""
        try:
            with _shared(), self._opened() as handle, os.scandir(handle) as entries:
                return [entry.name for _, entry in zip(range(MOST_NAMES), entries, strict=False)]
        except SharedFolderError as error:
            if error.errno == errno.ENOENT:
                return []
            raise

    def put(self, name: str, data: bytes) -> None:
        """Write a file that nobody ever sees half written, and that is there after a power cut.

        Raises:
            SharedFolderError: it cannot be written; nothing of it stays.
        """
        with _shared(), self._opened() as folder:
            for left in os.listdir(folder):  # by a process that was killed: nobody else writes here
                if left.startswith(_TEMPORARY):
                    with contextlib.suppress(OSError):
                        os.unlink(left, dir_fd=folder)
            temporary = f"{_TEMPORARY}{secrets.token_hex(6)}"
            mode = 0o600 | (os.fstat(folder).st_mode & 0o066)  # no more open than the folder
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            try:
                with naming(self.path / name):
                    with open(os.open(temporary, flags, mode, dir_fd=folder), "wb") as file:
                        file.write(data)
                        file.flush()
                        os.fsync(file.fileno())
                    os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            with contextlib.suppress(OSError):  # file systems that cannot are left as they are
                os.fsync(folder)

    def remove(self, name: str) -> None:
        """If it is there, and may be."""
        with contextlib.suppress(OSError), self._opened() as folder:
            os.unlink(name, dir_fd=folder)

    def head(self, name: str) -> Head | None:
        """That of a message; None if there is no such file.

        Raises:
            IncompleteError: not all of the file is there.
            MessageError: it is no plain file, or no such message.
        """
        found = self._read(name, HEAD_BYTES, only_head=True)
        return None if found is None else found[0]

    def read(self, name: str, limit: int) -> tuple[Head, bytes] | None:
        """(head, body) of a message; None if there is no such file. Nothing is known of who wrote it.

        Args:
            limit: the most bytes that the file may have; more are never read.

        Raises:
            IncompleteError: not all of it is there, or it is damaged.
            MessageError: it is no plain file, too large, or no such message.
        """
        found = self._read(name, limit, only_head=False)
        if found is not None:
            check_body(*found)
        return found

    def is_whole(self, name: str, head: Head) -> bool:
        """Whether a message with this head, which is known to be ours, is there as we wrote it; no more is read."""
        found = self.read(name, head.start + head.size)
        return found is not None and found[0] == head

    def text(self, name: str, limit: int) -> bytes | None:
        """What a file that is no message holds, at most ``limit`` bytes of it; None if there is no such file.

        Raises:
            MessageError: it is no plain file.
        """
        file = self._file(name)
        if file is None:
            return None
        with file:
            return file.read(limit) or b""

    def _file(self, name: str) -> FileIO | None:
        """A plain file, to be read; None if it is not there."""
        try:
            with self._opened() as folder:
                # O_NONBLOCK: to open a FIFO would wait for its writer.
                handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MessageError(f"it cannot be opened ({error.strerror}).") from error
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise MessageError("it is no plain file.")
        return FileIO(handle)

    def _read(self, name: str, limit: int, *, only_head: bool) -> tuple[Head, bytes] | None:
        file = self._file(name)
        if file is None:
            return None
        with file:
            about = os.fstat(file.fileno())
            if not only_head and about.st_size > limit:
                raise MessageError(f"it has {about.st_size} bytes, where {limit} are enough.")
            start = file.read(HEAD_BYTES) or b""
            head = read_head(start)
            if about.st_size < head.start + head.size:
                raise IncompleteError(f"{about.st_size} of its {head.start + head.size} bytes are there.")
            if about.st_size > head.start + head.size:
                raise IncompleteError("it has more bytes than it says.")
            if only_head:
                return head, b""
            rest = bytearray(start[head.start :])
            while len(rest) < head.size and (more := file.read(head.size - len(rest))):
                rest += more
            return head, bytes(rest)
