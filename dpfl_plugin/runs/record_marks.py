"""By what a run knows its records again: marks of them that tell nothing to whoever has not the silos' key.

A plain digest of records can be searched for: whoever guesses all of a silo's records but one tries all values of
that one. A mark is HMAC-SHA256 of the digest under 32 bytes of the operating system's randomness, which are in a file
of the silos. Two marks of one key are equal if the records are, and that is all that they tell without the key.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dpfl_plugin.config.schema import Config
from dpfl_plugin.data.base import Cut, Survey
from dpfl_plugin.errors import DataError, is_full
from dpfl_plugin.file_permissions import private_folder
from dpfl_plugin.runs import checkpoint as checkpoints
from dpfl_plugin.runs.folder import RunFolder, sync_folder

KEY_BYTES: Final = 32


@dataclass(slots=True)
class MarkKey:
    """The silos' key.

    Attributes:
        path: its file.
        kept: whether it is there.
    """

    path: Path
    value: bytes
    kept: bool

    @classmethod
    def at(cls, path: Path) -> MarkKey:
        """The key in a file; a fresh one, which nobody has yet, where there is no file. Nothing is written.

        Raises:
            DataError: the file holds no key, or cannot be read.
        """
        try:
            value = bytes.fromhex(path.read_text().strip())
        except (FileNotFoundError, NotADirectoryError):
            return cls(path, secrets.token_bytes(KEY_BYTES), False)
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: the silos' key cannot be read ({error}). Restore it from a copy.") from error
        if len(value) != KEY_BYTES:
            raise DataError(f"{path}: holds {len(value)} bytes, not the {KEY_BYTES} of a key. Restore it from a copy.")
        return cls(path, value, True)

    def keep(self) -> None:
        """Have it in its file, which nobody but its owner reads.

        Raises:
            DataError: it cannot be written, or another process wrote another one meanwhile.
        """
        if self.kept:
            return
        temporary = self.path.with_name(f".{self.path.name}.tmp-{os.getpid()}")
        try:
            private_folder(self.path.parent)
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(self.value.hex() + "\n")
                file.flush()
                os.fsync(file.fileno())
            _put(temporary, self.path)
            sync_folder(self.path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            if is_full(error):
                raise OSError(error.errno, error.strerror, str(self.path)) from error
            raise DataError(f"{self.path}: the silos' key cannot be written ({error.strerror}).") from error
        self.kept = True

    def mark(self, digest: str) -> str:
        """Of the records with this digest."""
        return hmac.new(self.value, digest.encode(), hashlib.sha256).hexdigest()

    @property
    def id(self) -> str:
        """By which it is known whether two marks are of one key."""
        return self.mark("id of the key")[:16]

    def marked_cut(self, cut: Cut) -> Cut:
        """With a mark that tells nothing without this key: that of a seeded order confirms guesses of records."""
        return cut._replace(mark=self.mark(cut.mark))

    def marked(self, survey: Survey) -> Survey:
        """The survey with marks in place of digests."""
        marks, cuts = tuple(map(self.mark, survey.digests)), tuple(map(self.marked_cut, survey.cuts))
        return replace(survey, digests=marks, cuts=cuts, key=self.id)


def _put(temporary: Path, path: Path) -> None:
    """Rename: whole, or not at all; and never over another file where the file system has links."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        temporary.unlink()
        raise
    except OSError:
        os.rename(temporary, path)
    else:
        temporary.unlink()


def key_file(config: Config, folder: RunFolder, ledger: Path | None) -> Path:
    """The file of the silos' key: one for all runs of a shared ledger, which must recognise the same records."""
    if config.runtime.silo_folder is not None:
        return Path(config.runtime.silo_folder) / "key"
    if ledger is not None:
        return shared_key_file(ledger)
    facts = checkpoints.load_facts(folder.checkpoint)  # a finished run is shown without its ledger, too
    shared = None if facts is None else facts["shared_key"]
    return folder.silo_ranks / "key" if shared is None else Path(shared)


def shared_key_file(ledger: Path) -> Path:
    """The file of the key by which all runs of a shared ledger recognise records."""
    real = ledger.resolve()
    return real.with_name(f"{real.name}.key")
