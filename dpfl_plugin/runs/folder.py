"""Run folders: plain files that survive crashes and parallel file systems. No pickle is read or written."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

from dpfl_plugin.errors import BusyError, ConfigError, DataError, is_full
from dpfl_plugin.file_permissions import private_file, private_folder

if TYPE_CHECKING:
    from dpfl_plugin.config.schema import Config

TUNING: Final = "tuning.json"
"""What a tuning of several candidates has in its folder, which is none of a run."""
MOUNTS: Final = Path("/proc/self/mountinfo")  # of Linux
RESULT_SCHEMA: Final = 1
Result = dict[str, Any]
"""What `result.json` holds."""
TAIL: Final = 1 << 18  # bytes that are read of a file's end
OF_ONE_MACHINE: Final = {"nolock", "local_lock=flock", "local_lock=all", "localflock"}  # of NFS and Lustre


def write_atomic(path: Path, content: bytes | str, *, outlasts_power: bool = True) -> None:
    """Write a whole file or nothing: temporary, fsync, rename.

    Args:
        outlasts_power: whether it has to be there, and whole, after a power cut, too: that takes most of the time.
    """
    write_together(path.parent, {path.name: content}, outlasts_power=outlasts_power)


def write_together(folder: Path, contents: Mapping[str, bytes | str], *, outlasts_power: bool = True) -> None:
    """Write some files of one folder, each whole or not at all, and all of them before it returns.

    They are renamed in their order. A power cut before the end may leave any of them as it was: which of these are of
    one writing has to be told by what they hold.

    Args:
        contents: by name; outlasts_power: see `write_atomic`.
    """
    temporary = {name: folder / f".{name}.tmp-{os.getpid()}" for name in contents}
    try:
        for name, content in contents.items():
            temporary[name].unlink(missing_ok=True)  # a process of this number that crashed: its mode may be any
            with naming(folder / name), open(temporary[name], "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                if outlasts_power:
                    os.fsync(file.fileno())
    except OSError:
        for path in temporary.values():
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)  # on a full disk, what is there of it takes room from others
        raise
    for name, path in temporary.items():
        os.replace(path, folder / name)
    if outlasts_power:
        sync_folder(folder)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in errors of the system: those of writing and syncing, other than those of opening, do not."""
    try:
        yield
    except OSError as error:
        if error.errno is None or (error.filename is not None and not is_full(error)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable; file systems that cannot are left as they are."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def try_folder(path: Path) -> None:
    """See that files can be made in a folder, which may be missing, before anything is computed for it; leaves nothing.

    Permissions alone do not tell: a file system may be read only, or take no files.

    Raises:
        OSError: they cannot.
    """
    made: list[Path] = []
    try:
        for folder in reversed((path, *path.parents)):
            if not folder.is_dir():
                folder.mkdir()
                made.append(folder)
        tempfile.TemporaryFile(dir=path).close()
    finally:
        for folder in reversed(made):
            folder.rmdir()


def write_new(path: Path, text: str) -> None:
    """Write ``out``, a file that is not there yet.

    Raises:
        ConfigError: it is there, or cannot be written.
    """
    try:
        with naming(path), path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"out={str(path)!r} exists, and was left as it is. Use another name.") from error
    except OSError as error:
        raise ConfigError(f"out={str(path)!r} cannot be written: {error.strerror}. Use another file.") from error


def check_new(path: Path) -> None:
    """Raise what `write_new` would, before anything is computed; leaves nothing."""
    write_new(path, "")
    path.unlink()


def to_json(value: Any, indent: Literal[2] | None = 2) -> str:
    """JSON by the standard: infinities and NaN become null.

    The text is that of `json.dumps`, which takes three times as long to indent it; statements of privacy are written
    before every charge.
    """
    return json.dumps(_finite(value), allow_nan=False) if indent is None else _indented(value, "\n")


def _indented(value: Any, line: str) -> str:
    """As JSON; ``line`` ends a line, and begins the next as far to the right as ``value`` is."""
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if isinstance(value, float):
        return float.__repr__(value) if math.isfinite(value) else "null"
    inner = line + "  "
    if isinstance(value, Mapping):
        items = [f"{encode_basestring_ascii(str(key))}: {_indented(item, inner)}" for key, item in value.items()]
        return f"{{{inner}{f',{inner}'.join(items)}{line}}}" if items else "{}"
    if isinstance(value, list | tuple):
        items = [_indented(item, inner) for item in value]
        return f"[{inner}{f',{inner}'.join(items)}{line}]" if items else "[]"
    return json.dumps(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


@contextlib.contextmanager
def locked(path: Path, taken: str, *, other: str = "folder") -> Iterator[TextIO]:
    """Hold a lock file; the system lets go of it when the process ends, however it ends.

    Yields the file: a child that inherits its descriptor holds the lock, too, until it ends.

    Args:
        taken: the message for whom finds it held; ``{holder}`` says by which process.
        other: what to use another of, where locks do not work.

    Raises:
        BusyError: another process holds it; ConfigError: it cannot be written, or locks do not work there.
    """
    try:
        lock = open(path, "a+", opener=private_file)  # noqa: SIM115, it is closed below
    except OSError as error:
        if is_full(error):
            raise
        raise _unwritable(path.parent, error, other) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise BusyError(taken.replace("{holder}", lock.read().strip() or "unknown")) from error
        except OSError as error:
            raise _without_locks(path.parent, str(error.strerror), other) from error
        if not _excludes(path):
            raise _without_locks(path.parent, "a second one was granted in addition to the first", other)
        holder = f"pid {os.getpid()} on {os.uname().nodename}".encode()
        with naming(path):  # by the system's own call: what stayed in a buffer would fail once more at the file's close
            if os.pread(lock.fileno(), len(holder) + 1, 0) != holder:  # else this process has had it before
                os.ftruncate(lock.fileno(), 0)
                os.write(lock.fileno(), holder)
        yield lock


def _excludes(path: Path) -> bool:
    """Whether a lock that is held on a file keeps others from it; some file systems grant it to all who ask."""
    with open(path, "rb") as second:
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def locks_of_one_machine(path: Path) -> str:
    """The mount option by which locks on a file keep nobody on another machine from it; empty where none says so."""
    device = os.stat(path).st_dev
    with contextlib.suppress(OSError):
        for line in MOUNTS.read_text().splitlines():
            mount, _, of_file_system = line.partition(" - ")
            if mount.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                return min(OF_ONE_MACHINE.intersection(of_file_system.split()[-1].split(",")), default="")
    return ""


def _without_locks(folder: Path, why: str, other: str) -> ConfigError:
    return ConfigError(
        f"{folder}: file locks do not work there ({why}), so that two processes could write to one ledger at the "
        f"same time and damage it. Use another {other}, on a file system that has locks, or have this one mounted "
        "with them (Lustre: the mount option flock)."
    )


def _unwritable(folder: Path, error: OSError, other: str) -> ConfigError:
    return ConfigError(f"{folder}: the folder cannot be written to ({error.strerror}). Use another {other}.")


class RunFolder:
    """The files of one run, `<out>/<name>/<id>/`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.metrics = path / "metrics.jsonl"
        self.ledger = path / "ledger.jsonl"
        self.statement = path / "ledger.json"
        self.privacy = path / "privacy.md"
        self.details = path / "details.json"
        self.model = path / "model.safetensors"
        self.checkpoint = path / "checkpoint"
        self.result = path / "result.json"
        self.environment = path / "environment.json"
        self.log = path / "log.txt"
        self.curves = path / "curves.png"
        self.silos = path / "silos.csv"
        self.profile = path / "profile.json"
        self.silo_ranks = path / "silos"  # what the server of an MPI job must not have

    def make(self) -> None:
        """Make the folder, unless it is there."""
        private_folder(self.path)

    def write(self, path: Path, content: bytes | str) -> None:
        """Write a file of this folder, the whole of it or nothing."""
        write_atomic(path, content)

    def write_together(self, contents: Mapping[str, bytes | str]) -> None:
        """Write files of this folder, by their names: see the function."""
        write_together(self.path, contents)

    def append(self, path: Path, text: str) -> None:
        """Add to a file of this folder."""
        with naming(path), open(path, "a") as file:
            file.write(text)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process out of the folder.

        Raises:
            BusyError: another process is at work in it; ConfigError: it cannot be written to.
        """
        try:
            self.make()
        except OSError as error:
            if is_full(error):
                raise
            raise _unwritable(self.path, error, "out") from error
        what = f"{self.path}: another process ({{holder}}) is running this very configuration. "
        with locked(self.path / ".lock", what + "Wait for it, end it, or use another out.", other="out"):
            yield

    def holder(self) -> tuple[int, str] | None:
        """Number and host of the process that locked the folder last, whether it lives or not."""
        try:
            pid, host = (self.path / ".lock").read_text().removeprefix("pid ").split(" on ")
            return int(pid), host
        except (OSError, ValueError):
            return None

    def at_work(self) -> bool:
        """Whether the process that locked the folder last lives, on this machine. The lock itself is not touched."""
        holder = self.holder()
        return holder is not None and holder[1] == os.uname().nodename and not has_ended(*holder)

    def finished_result(self) -> Result | None:
        """The result of a run that ended for good, or None.

        Raises:
            DataError: it cannot be read.
        """
        if not self.result.exists():
            return None
        try:
            result: Result = json.loads(self.result.read_text())
            schema, status = result["schema"], result["status"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{self.result} cannot be read ({error}). Remove it, and use resume.") from error
        if schema != RESULT_SCHEMA:
            raise DataError(f"{self.result} has schema {schema}; this version reads {RESULT_SCHEMA}. Use another out.")
        if status not in ("done", "budget_exhausted"):
            return None
        return {**result, "folder": str(self.path)}  # which may have been moved, or be seen from another place

    def label(self) -> str | None:
        """What the file that the run is from calls it; None where that has one run only, or nobody told."""
        try:
            label = json.loads(self.environment.read_text())["label"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return None if label is None else str(label)

    def tuning(self) -> Path | None:
        """The folder of the tuning that the run is a candidate of; None of a run by itself."""
        above = self.path.absolute().parents[2:3]
        return next((folder for folder in above if (folder / TUNING).is_file()), None)

    def packages_before(self, now: str) -> list[str]:
        """Digests of the package that earlier sessions of the run had, other than that of ``now``."""
        if not self.environment.exists():
            return []
        try:
            environment = json.loads(self.environment.read_text())
            known = {str(environment["package_sha256"]), *map(str, environment.get("packages_before", []))}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            known = {"unknown"}
        return sorted(known - {now})

    def read_metrics(self) -> list[dict[str, Any]]:
        """The evaluations so far; a torn last line (a crash while writing) is left out."""
        if not self.metrics.exists():
            return []
        lines = []
        for line in self.metrics.read_text(errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                lines.append(json.loads(line))
        return lines

    def keep_metrics(self, last_round: int) -> list[dict[str, Any]]:
        """Keep the evaluations up to a checkpoint's round; the later ones will be made again."""
        kept = [line for line in self.read_metrics() if line["round"] <= last_round]
        self.write(self.metrics, "".join(to_json(line, None) + "\n" for line in kept))
        return kept

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        self.append(self.metrics, to_json(line, None) + "\n")


def has_ended(pid: int, host: str) -> bool:
    """Whether a process was one of this machine, and is no more."""
    if host != os.uname().nodename:
        return False
    try:
        os.kill(pid, 0)
        # Empty: it ended, and its parent did not notice, which a container without an init never does.
        return Path("/proc/self").exists() and not Path("/proc", str(pid), "cmdline").read_bytes()
    except PermissionError:  # another user's process
        return False
    except (OSError, OverflowError):
        return True


def folder_of(config: Config) -> RunFolder:
    """The folder of a run: ``<out>/<name>/<id>``."""
    from dpfl_plugin.config.load import run_id  # which imports pydantic: commands handle files without it

    return RunFolder(Path(config.out) / config.name / run_id(config))


def silo_folder(config: Config) -> Path:
    """The folder where silo ranks keep what rank 0 must not have of a run."""
    folder, elsewhere = folder_of(config), config.runtime.silo_folder
    return folder.silo_ranks if elsewhere is None else Path(elsewhere) / config.name / folder.path.name


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None where it is missing, damaged or something else."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def last_object(path: Path, key: str | None = None) -> dict[str, Any]:
    """The last JSON object (with a key) of a file with one on each line, whole lines only; {} of none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read().splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict) and (key is None or key in value):
                return value
    return {}


def run_folders(root: Path) -> Iterator[Path]:
    """``root`` itself or folders below it that hold a run's files; links are not followed."""
    for path, folders, files in os.walk(root):
        # A ledger alone may be one that runs share; a tuning has a result, and runs below it.
        is_run = {"result.json", "metrics.jsonl"} & set(files) or {"config.yaml", "ledger.jsonl"} <= set(files)
        if is_run and TUNING not in files:
            folders.clear()
            yield Path(path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
