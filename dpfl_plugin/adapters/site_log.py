"""What a site says of what went wrong there: kind and place to its platform's log, the rest to its owner's own file.

A platform's log is no place for text that may quote records: the platform may send it to the server, or let those who
administer the federation read it.
"""

from __future__ import annotations

import logging
import os
import re
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dpfl_plugin.errors import DpflError, LimitError, printable
from dpfl_plugin.file_permissions import private_folder
from dpfl_plugin.runs.public_errors import kind_and_place, owners_words, text_of

_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, slots=True)
class SiteLog:
    """Both of a site.

    Args:
        platforms: the platform's logger.
        folder: where the file is; None where whoever reads the platform's log has the records, too: it gets all then.
    """

    platforms: logging.Logger
    site: str
    folder: Path | None

    @property
    def path(self) -> Path | None:
        """The file, 0600; there once something went wrong."""
        return None if self.folder is None else self.folder / f"{_NOT_IN_A_NAME.sub('_', self.site)}.log"

    def tell(self, who: str, error: Exception) -> None:
        """Say that ``who`` met with an error; an owner's refusal says why in words that the server gets, too."""
        refuses = isinstance(error, LimitError)
        what = f"{who} takes no part" if refuses else who
        if self.path is None:
            whole = refuses or isinstance(error, DpflError | OSError)
            self.platforms.error("dpfl: %s: %s", what, text_of(error), exc_info=None if whole else error)
            return
        why = owners_words(error) or kind_and_place(error, ())
        self.platforms.error("dpfl: %s: %s; %s", what, printable(why), self._kept(what, error))

    def _kept(self, what: str, error: Exception) -> str:
        """Where the error is told in full."""
        assert self.path is not None and self.folder is not None
        try:
            private_folder(self.folder)
            _append(self.path, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {what}: {text_of(error)}\n{_trace(error)}\n")
        except OSError as failed:
            return f"what else there is to say could not be written to {self.path} ({failed.strerror})"
        return f"what else there is to say is in {self.path}, for the owner of the records"


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error))


def _append(path: Path, text: str) -> None:
    """To a file that nobody else reads, nor led elsewhere."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    with open(handle, "a", encoding="utf-8", errors="backslashreplace") as file:
        os.fchmod(handle, 0o600)  # fails where it is another user's
        file.write(printable(text, "\n\t"))
