"""Errors that a user can mend: each says what is wrong, where, and how to mend it."""

from __future__ import annotations

import difflib
import errno
import re
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
MAKE_ROOM: Final = (
    "Free some space there, or have the quota raised (df -h, quota -s); then the same command continues from what was "
    "saved, a run with resume."
)
_INSTALLED = (__file__.removesuffix("errors.py"), traceback.__file__.removesuffix("traceback.py"), "<")


class DpflError(Exception):
    """Base of every error shown to a user as one message, without a traceback; it names keys of the configuration."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows."""
        return [f"{type(self).__name__}: {self}"]


Error = TypeVar("Error", bound=DpflError)


class ConfigError(DpflError, ValueError):
    """A value in the configuration is wrong; the message names the key and what is allowed."""

    exit_code = 2


class BudgetError(ConfigError):
    """Nothing is left of a privacy budget that several runs share; the message says what they spent."""

    exit_code = 3


class LimitError(DpflError):
    """The owner of the data does not let it be released; the message says why, and how the owner may change that.

    Attributes:
        public: what the other side is told: nothing of records, and no path of this machine.
    """

    exit_code = 3

    def __init__(self, message: str, public: str | None = None) -> None:
        super().__init__(message)
        self.public = message if public is None else public


class EarlierNameWarning(FutureWarning):
    """A key of an earlier version was read as what it is called now."""


class DataError(DpflError, ValueError):
    """A data file is missing, damaged or unusable; the message names the file."""

    exit_code = 2


class NoFileError(DataError):
    """There is no such data file, and nothing has been read.

    Attributes:
        public: what the other side is told, without the names of other files.
    """

    def __init__(self, message: str, public: str | None = None) -> None:
        super().__init__(message)
        self.public = message if public is None else public


class PluginError(ConfigError):
    """A plugin is unknown, broken or registered twice; the message names it."""


class UnsupportedError(ConfigError):
    """No sound way to do what was asked is known here; nothing is approximated in silence."""


class RecordKindError(UnsupportedError):
    """Records are of a kind that nothing here trains on, whatever their values.

    Attributes:
        public: what the other side is told of it, which no value of a record has a part in.
    """

    def __init__(self, message: str, public: str = "its records are of a kind that nothing here trains on") -> None:
        super().__init__(message)  # alone, by which an error is unpickled, and told with where it came up
        self.public = public


class BusyError(ConfigError):
    """Another process is at work there; the message says which."""


class LedgerBusyError(BusyError):
    """Another run had the shared ledger for longer than was waited; the message says which."""

    exit_code = 5


class LedgerError(DpflError):
    """The ledger is damaged; the message names the line and what is still proven."""


class TrainingError(DpflError):
    """A run failed; the message says in which round, and what is left behind."""


class UnplannedError(TrainingError):
    """Code does what the round was not planned for, or the run not named for; no record has a part in the message."""


class ChangedError(TrainingError):
    """A buffer, a mode or a frozen parameter of the model changed while silos computed; the message says which."""


class MemoryShortError(DpflError):
    """There is no memory left for what is computed; the message says where. Nothing was released of the round.

    Attributes:
        public: what the other side is told: no size of anything.
    """

    def __init__(self, message: str, public: str | None = None) -> None:
        super().__init__(message)
        self.public = message if public is None else public


class DeviceError(DpflError):
    """A GPU, or its driver, failed: the process that used it can do nothing more there. The message says whose."""


class MessageError(DpflError, ValueError):
    """A message from the other side is damaged, or does not belong here; the message says from whom, and why.

    It may quote what it is of, and so is `printable`.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class SiloError(DpflError):
    """Code failed at a silo on another rank; the message says where, and that rank's log what was raised."""


def require(ok: bool, key: str, value: Any, must: str, mend: str = "") -> None:
    """Raise ConfigError unless ``ok``: "key=value must <must>. <mend>"."""
    if not ok:
        raise ConfigError(f"{key}={value!r} must {must}." + _mended(value, must, mend))


def _mended(value: Any, must: str, mend: str) -> str:
    if not mend and isinstance(value, str) and _NUMBER.fullmatch(value) and _OF_NUMBERS.search(must):
        mend = "It is text: write it without quotes."
    return f" {mend}" if mend else ""


_NUMBER: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_OF_NUMBERS: Final = re.compile(r"\b(finite|number|at least|positive|above|from)\b")


def is_real(value: object) -> bool:
    """Whether it is a number, and neither text nor True."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def said_of(error: Error, before: str) -> Error:
    """An error of the same type, whose message says where it came up."""
    return type(error)(f"{before}{error}")


def is_full(error: BaseException | None) -> bool:
    """Whether a disk, a quota or the size of a file is at its end, or the error was raised from one that says so."""
    return error is not None and (getattr(error, "errno", None) in FULL or is_full(error.__cause__))


def system_says(error: Exception) -> str:
    """What the operating system refused, and for which file; for a full disk, how to go on."""
    if not isinstance(error, OSError) or error.errno not in FULL:
        return str(error)
    where = f"{error.filename}: cannot be written" if error.filename else "a file cannot be written"
    return f"{where} ({error.strerror}). {MAKE_ROOM}"


def printable(text: object, lines: str = "") -> str:
    """What others wrote: on one line but for ``lines``, and nothing in it tells a terminal, or a log, what to do."""
    return "".join(one if one.isprintable() or one in lines else "\N{REPLACEMENT CHARACTER}" for one in str(text))


def told(error: BaseException) -> str:
    """What somebody's own code raised, and where: "TypeError: message (path/to/file.py, line 3)".

    The place is the last one in a file that was not installed, and is not of this package: what was called from there
    may have raised it. Without such a place, what was raised alone.
    """
    what = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".rstrip(":. ")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        installed = frame.filename.startswith(_INSTALLED) or "site-packages" in frame.filename
        if not installed and "dist-packages" not in frame.filename:
            return f"{what} ({frame.filename}, line {frame.lineno})"
    return what


def nearest(word: str, known: Iterable[str]) -> str:
    """ " (did you mean 'x'?)" or nothing."""
    close = closest(word, known)
    return f" (did you mean {close!r}?)" if close is not None else ""


def closest(word: str, known: Iterable[str]) -> str | None:
    """The word of ``known`` that was probably meant, capitals aside; None where none is alike."""
    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def refusal(plugin: object, option: str) -> str:
    """Why a plugin has no such option, by its ``refuses`` ({option: why}); "" where it does not say."""
    refuses = getattr(plugin, "refuses", None)
    return str(refuses.get(option, "")) if isinstance(refuses, Mapping) else ""
