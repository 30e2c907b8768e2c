"""Where a silo rank's process writes: to its launcher, or to a file for the owner of its records."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import IO

from dpfl_plugin.errors import DataError
from dpfl_plugin.file_permissions import private_folder
from dpfl_plugin.runs.folder import naming


class RankLog:
    """The standard streams of a silo rank.

    They are the launcher's until `keep`, and whoever started the job reads them: rank 0's user, mostly. Errors and
    warnings, of libraries and of users' own code, may quote records, so that from there on all of them go to a file:
    also what no code of this package prints.

    Args:
        alone: whether the streams are this rank's only, to be led elsewhere: not where ranks are threads of one
            process.

    Attributes:
        path: of the file, 0600; None where the streams are the launcher's.
    """

    def __init__(self, rank: int, *, alone: bool = False) -> None:
        self._rank, self._alone = rank, alone
        self._launcher: IO[str] | None = None
        self.path: Path | None = None
        self._passing = False  # the file is to be thrown away, unless somebody was sent to it

    def tell(self, text: str) -> None:
        """To whoever may know of the records."""
        print(f"dpfl: rank {self._rank}: {text}", file=sys.stderr, flush=True)

    def announce(self, text: str) -> None:
        """To whoever started the job: nothing that a record has a part in."""
        print(f"dpfl: {text}", file=self._launcher or sys.stderr, flush=True)

    def refer(self, text: str) -> None:
        """Announce what happened, and where the rest of it is; nothing where the launcher has all of it."""
        if self.path is not None:
            self._passing = False
            where = f"what else there is to say is in {self.path}, for the owner of its records"
            self.announce(f"rank {self._rank} on {platform.node()}: {text}; {where}")

    def keep(self) -> None:
        """Lead the streams to a file of its own, for as long as no run has begun: in the folder of temporary files."""
        if not self._alone:
            return
        self.close()
        if self._launcher is None:
            self._launcher = os.fdopen(os.dup(2), "w")
        file, path = tempfile.mkstemp(prefix=f"dpfl-rank-{self._rank}-", suffix=".log")
        self._lead_to(file)
        self.path, self._passing = Path(path), True

    def move(self, folder: Path, *, own: bool) -> None:
        """Go on in ``folder``, of a run that begins, after what is said there already.

        Args:
            own: whether a file that another user made is refused.

        Raises:
            DataError: it is.
        """
        if self.path is None:
            return
        target = folder / f"rank-{self._rank}.log"
        private_folder(folder)
        with naming(target):
            file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        if own and os.fstat(file).st_uid != os.getuid():
            os.close(file)
            raise DataError(
                f"{target} is another user's: what this rank says would be theirs. Move it away, or set "
                "runtime.silo_folder to a folder of your own."
            )
        before = self.path
        self._lead_to(file)
        with naming(target), open(before, "rb") as said, open(target, "ab") as log:
            log.write(said.read())
        before.unlink()
        self.path, self._passing = target, False

    def close(self) -> None:
        """Leave nothing behind that nobody was sent to."""
        if self.path is not None and self._passing:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._passing = False

    def _lead_to(self, file: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream in (1, 2):
            os.dup2(file, stream)
        os.close(file)
