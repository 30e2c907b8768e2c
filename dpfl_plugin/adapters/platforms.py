"""What the adapters of platforms share: settings as a platform has them, and versions."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.adapters.agreement import Agreement
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.core.text import counted
from dpfl_plugin.errors import ConfigError, UnsupportedError, printable

LOG: Final = logging.getLogger("dpfl_plugin.platforms")


class _ToPlatform(logging.Handler):
    """To a logger that the platform shows, as it is when something is said: some put others in its place."""

    def __init__(self, of_platform: Callable[[], logging.Logger]) -> None:
        super().__init__()
        self._of_platform = of_platform

    def emit(self, record: logging.LogRecord) -> None:
        theirs = self._of_platform()
        if theirs.isEnabledFor(record.levelno):
            shown = copy.copy(record)  # other handlers have theirs as it is
            try:
                shown.msg, shown.args = printable(record.getMessage(), "\n\t"), None
            except Exception:  # as any handler has it: what cannot be formatted ends nothing
                self.handleError(record)
                return
            if record.exc_info:
                said = record.exc_text or logging.Formatter().formatException(record.exc_info)
                shown.exc_info, shown.exc_text = None, printable(said, "\n\t")
            theirs.handle(shown)


def show_log(of_platform: Callable[[], logging.Logger]) -> None:
    """Have what this package logs shown where the platform's own lines are.

    Args:
        of_platform: its logger, asked for every line.
    """
    ours = logging.getLogger("dpfl_plugin")
    if not any(isinstance(handler, _ToPlatform) for handler in ours.handlers):
        ours.addHandler(_ToPlatform(of_platform))
    ours.setLevel(logging.INFO)
    ours.propagate = False  # else twice, where the platform's logger hands on to the root


def over_before(folder: Path, summary: Mapping[str, Any]) -> str:
    """What to say of a server's folder whose run is over when it is opened."""
    reason = f" ({summary['reason']})" if summary["reason"] else ""
    again = "for another run" if summary["status"] != "refused" else "once the owners allow it,"
    return (
        f"dpfl: the run in {folder} was over before: {summary['status']} after "
        f"{counted(summary['rounds'], 'round')}{reason}. Nothing is trained; {again} give another folder: its epsilon "
        "adds to this one's"
    )


def begins(agreement: Agreement, asked: str = "") -> str:
    """What is agreed, for the log of a server that begins or goes on."""
    config, privacy = agreement.config, agreement.config.privacy
    noise = f"noise {privacy.noise_multiplier:g}" if privacy.epsilon is None else f"epsilon {privacy.epsilon:g}"
    return (
        f"dpfl: {config.algorithm.name}, {config.rounds or 'any number of'} rounds, {agreement.num_silos} silos{asked}"
        f", {noise} at delta {digits(privacy.delta, 6)} for each, unit {privacy.unit}"
    )


def round_counted(summary: Mapping[str, Any], planned: int | None) -> str:
    """What to say after a round that counted."""
    worst = _worst(summary)
    of = "" if planned is None else f" of {planned}"
    said = "none holds" if worst is None else f"at most {digits(worst, 4)}"
    return f"dpfl: round {summary['rounds']}{of}: epsilon {said}"


def _worst(summary: Mapping[str, Any]) -> float | None:
    """The largest epsilon of a silo's; None where one has none."""
    epsilons = [about["epsilon"] for about in summary["silos"].values()]
    return None if not epsilons or None in epsilons else max(epsilons)


def is_over(folder: Path, summary: Mapping[str, Any]) -> str:
    """What to say at the end of a run."""
    worst = _worst(summary)
    said = "none holds" if worst is None else f"at most {digits(worst, 4)}"
    if not summary["silos"]:
        said = "no upload was taken, so none is known here"
    return (
        f"dpfl: the run is over: {summary['status']} after {counted(summary['rounds'], 'round')}. "
        f"{summary['reason'] + '. ' if summary['reason'] else ''}Epsilon: {said}; see privacy.md in each "
        f"silo's folder; the server's is {folder}"
    )


def check_version(package: str, tested: Sequence[str]) -> None:
    """Raise UnsupportedError unless the platform is of a version that this package's tests run on.

    Args:
        tested: beginnings of version numbers.
    """
    found = _installed(package)
    if not any(found == version or found.startswith(f"{version}.") for version in tested):
        raise UnsupportedError(
            f"{package} {found} is not supported: this adapter was tested with {', '.join(tested)}. Install that "
            "version, or a version of dpfl-plugin that knows yours."
        )


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError as error:
        raise UnsupportedError(f"{package} is not installed. docs/adapters.md says how to install it.") from error


def check_seam(package: str, oldest: str, newest: str, seam: Callable[[], None]) -> None:
    """See to it that the platform does what this package relies on.

    Args:
        oldest, newest: versions that the tests run on, as MAJOR.MINOR; what lies between them is taken to be alike.
        seam: tries what is relied on, and raises if it is otherwise; called for a newer version, which is warned of.

    Raises:
        UnsupportedError: the version is older, or newer and does not do that.
    """
    found = _installed(package)
    numbers, right = _numbers(found), oldest if oldest == newest else f"{oldest} to {newest}"
    if numbers < _numbers(oldest):
        raise UnsupportedError(
            f"{package} {found} is older than {oldest}, the oldest that this adapter was tested with. Install {right}."
        )
    if numbers <= _numbers(newest):
        return
    try:
        seam()
    except Exception as error:  # of another version anything may be otherwise
        raise UnsupportedError(
            f"{package} {found} is newer than {newest}, the newest that this adapter was tested with, and does not do "
            f"what the adapter relies on ({type(error).__name__}: {error}). Install {right}, or a version "
            "of dpfl-plugin that knows yours."
        ) from error
    LOG.warning(
        "%s %s is newer than %s, the newest that this adapter was tested with. What the adapter relies on was tried, "
        "and works as it did",
        package,
        found,
        newest,
    )


def _numbers(version: str) -> tuple[int, ...]:
    """(1, 42) of 1.42.0.dev3."""
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split(".")[:2])


def nested(flat: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """{"dpfl.privacy.delta": x, ...} as {"privacy": {"delta": x}}, of the keys that begin with ``prefix`` and a dot."""
    found: dict[str, Any] = {}
    for key, value in flat.items():
        first, *path = key.split(".")
        if first != prefix or not path:
            continue
        place = found
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value
    return found


def ranges(ids: Iterable[int]) -> str:
    """Numbers in words: "0, 3-9" of 0, 3, 4, ..., 9."""
    parts: list[list[int]] = []
    for one in sorted(ids):
        if parts and one == parts[-1][-1] + 1:
            parts[-1][1:] = [one]
        else:
            parts.append([one])
    return ", ".join("-".join(map(str, part)) for part in parts)


def folder_from(value: Any, source: str, default: str) -> Path:
    """The folder that settings name; platforms start processes in folders of their own, so it must be absolute.

    Raises:
        ConfigError: it is not.
    """
    folder = Path(str(value or default)).expanduser()
    if not folder.is_absolute():
        raise ConfigError(f"{source}={value!r} must be an absolute path, or begin with ~.")
    return folder
