"""Files of data sets: found in a folder, checked against a digest, or fetched into the folder."""

from __future__ import annotations

import glob
import gzip
import hashlib
import logging
import os
import shutil
import tempfile
import textwrap
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pooch

from dpfl_plugin.data.base import Ownership
from dpfl_plugin.data.memmap_store import Scratch
from dpfl_plugin.errors import DataError, NoFileError, closest

CONNECT_SECONDS = 4.0  # a machine without a network must say so in seconds
READ_SECONDS = 30.0
LONGEST_REASON = 200


class NotFetchedError(NoFileError):
    """A file is not there, and could not be fetched.

    Attributes:
        missing: the message without how another folder is named; "" of one that says more.
    """

    def __init__(self, message: str, missing: str = "", public: str = "a data file is missing") -> None:
        super().__init__(message, public)
        self.missing = missing

    def __reduce__(self) -> tuple[type[NotFetchedError], tuple[str, str, str]]:
        return type(self), (str(self), self.missing, self.public)


@dataclass(frozen=True, slots=True)
class DataSource:
    """What a data set plugin is given.

    folder: where the files are and where fetched ones go (None: $DPFL_DATA, else ~/.cache/dpfl); seed: of the
    experiment; num_silos: as configured; base: the folder of the configuration file, from which a user's relative
    paths start; ownership: a data set of a file for each silo reads only those of this process (None: all of them);
    scratch: where arrays of records are to lie.
    """

    folder: Path | None = None
    seed: int = 0
    num_silos: int | None = None
    base: Path = field(default_factory=Path)
    ownership: Ownership | None = None
    scratch: Scratch = field(default_factory=Scratch)

    @property
    def root(self) -> Path:
        """The folder in use."""
        if self.folder is not None:
            return self.base / self.folder.expanduser()
        return Path(os.environ.get("DPFL_DATA") or "~/.cache/dpfl").expanduser()

    @property
    def called(self) -> str:
        """The folder in others' words, without its path on this machine."""
        return f"data.folder={str(self.folder)!r}" if self.folder is not None else "the folder that DPFL_DATA names"

    def file(
        self,
        relative: str,
        *,
        url: str | None,
        sha256: str | None = None,
        alternatives: Sequence[str] = (),
        download_hash: str | None = None,
        archive: str | None = None,
    ) -> bytes:
        """The uncompressed content of a data file, e.g. ``mnist/train-labels-idx1-ubyte``, plain or as .gz.

        sha256: of the uncompressed content (a .gz of the same bytes can differ); alternatives: other names of the
        same file; download_hash: pooch's "md5:..." or "sha256:..." of what the URL delivers; archive: the name of a
        zip file in the folder, which the URL delivers and which holds the file.

        Raises:
            DataError: the file is damaged, or is neither in the folder nor to be had from the URL.
        """
        names = (relative, *alternatives)
        content = self._local(names, archive)
        if content is None:
            if url is None:
                missing = f"{relative} (or {relative}.gz) is not in"
                raise NoFileError(
                    f"{missing} {self.root}. Put it there.", f"{missing} {self.called} of the silo. Put it there."
                )
            self._fetch(relative, url, sha256, download_hash, archive)
            content = self._local(names, archive)
        if content is None:
            raise DataError(f"{archive} from {url} holds no {Path(relative).name}.gz.")
        where, data = content
        _check_digest(data, sha256, where)
        return data

    def matching(self, pattern: str) -> list[Path]:
        """The files in the folder that match a glob pattern, sorted by name."""
        return sorted(path for path in self.root.glob(pattern) if path.is_file())

    def paths(self, named: str | Sequence[str], key: str) -> list[Path]:
        """The files of a user's own: one path, a list, or a glob pattern; relative ones start at ``base``, or, where it
        has none of that name, at the folder of data files.

        Raises:
            NoFileError: there is no such file; the message names the key and the full paths, what is public of it
                ``named`` alone, which is the configuration's.
        """
        paths: list[Path] = []
        for name in [named] if isinstance(named, str) else named:
            looked = list(dict.fromkeys(start / Path(name).expanduser() for start in (self.base, self.root)))
            matches = next((files for files in map(_files, looked) if files), [])
            if not matches:
                if any(path.is_dir() for path in looked):
                    inside = str(Path(name) / "*.csv")
                    raise NoFileError(f"{key}={name!r} is a folder. Name the files in it by a pattern, as {inside!r}.")
                where = " and ".join(str(path.absolute()) for path in looked)
                message = f"{key}={name!r}: there is no such file"
                public = f"{message} beside the configuration, nor in {self.called}."
                raise NoFileError(f"{message}{_meant(name, looked)}; looked for {where}.", public)
            paths += matches
        if not paths:
            raise NoFileError(f"{key} names no file.")
        return paths

    def _local(self, names: Sequence[str], archive: str | None) -> tuple[Path, bytes] | None:
        for name in names:
            for path in (self.root / name, self.root / f"{name}.gz"):
                if path.is_file():
                    return path, read_file(path)
        if archive is None or not (self.root / archive).is_file():
            return None
        return _read_zip(self.root / archive, names)

    def _fetch(
        self, relative: str, url: str, sha256: str | None, download_hash: str | None, zipped: str | None
    ) -> None:
        name = zipped or (f"{relative}.gz" if url.endswith(".gz") else relative)
        target = self.root / name
        help_text = f"Download {url} on a machine with a network and put it at {target}."
        elsewhere = "Where it is already, data.folder or DPFL_DATA names the folder."
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=".fetch-", dir=target.parent))
        except OSError as error:
            raise DataError(
                f"{relative} is not in {self.root}, which cannot be written to: {error}. {help_text} {elsewhere}"
            ) from error
        try:
            part = _download(url, temporary, target.name, download_hash)
            if not zipped:
                _check_digest(read_file(part), sha256, Path(url))
            os.replace(part, target)  # whole and checked, or not there at all
        except DataError:
            raise
        except Exception as error:  # requests, urllib3 and pooch each raise their own
            missing = f"{relative} is not in {self.root} and could not be fetched: {_reason(url, error)}. {help_text}"
            public = f"{relative} is not in {self.called} and could not be fetched. Download {url} and put it there"
            named = f" as {name}" * (name != relative)
            raise NotFetchedError(f"{missing} {elsewhere}", missing, f"{public}{named}.") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _reason(url: str, error: Exception) -> str:
    """Why a download failed, without what libraries quote of each other, which may be pages long."""
    from requests.exceptions import ConnectionError, Timeout

    if isinstance(error, ConnectionError | Timeout):  # whose text quotes urllib3's, which quotes the system's
        return f"no connection to {urlsplit(url).hostname}"
    return textwrap.shorten(f"{type(error).__name__}: {error}", LONGEST_REASON, placeholder=" ...")


def _meant(name: str, looked: Sequence[Path]) -> str:
    """ " (did you mean 'x'?)" by the files of the same folder; of a folder that is not there, by those beside it."""
    for path in looked:
        folder = path.parent
        if not folder.is_dir() and folder.parent.is_dir():
            near = closest(folder.name, [file.name for file in folder.parent.iterdir() if file.is_dir()])
            if near is not None and (folder.parent / near / path.name).is_file():
                return f" (did you mean {str(Path(name).parent.with_name(near) / path.name)!r}?)"
        if folder.is_dir():
            # By their stems: endings are alike anyway. Of some with one stem, that with the ending that was given.
            files = sorted(
                (file for file in folder.iterdir() if file.is_file()), key=lambda file: file.suffix == path.suffix
            )
            stems = {file.stem: file.name for file in files}
            near = closest(path.stem, stems)
            if near is not None:
                return f" (did you mean {str(Path(name).with_name(stems[near]))!r}?)"
    return ""


def _files(path: Path) -> list[Path]:
    """The file of this name, or those that match it as a pattern, sorted."""
    if path.is_file():
        return [path]
    return sorted(match for match in map(Path, glob.glob(str(path), recursive=True)) if match.is_file())


def _download(url: str, folder: Path, name: str, download_hash: str | None) -> Path:
    downloader = pooch.HTTPDownloader(timeout=(CONNECT_SECONDS, READ_SECONDS))
    log = pooch.get_logger()
    level = log.level
    log.setLevel(logging.WARNING)  # without a known hash pooch prints advice for programmers
    try:
        return Path(pooch.retrieve(url, known_hash=download_hash, fname=name, path=folder, downloader=downloader))
    finally:
        log.setLevel(level)


def read_file(path: Path) -> bytes:
    """The content of a file, uncompressed if its name ends in .gz.

    Raises:
        DataError: it cannot be read, or the compressed stream is damaged or cut short.
    """
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged ({error}). Remove it and fetch it again.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}.") from error


def _read_zip(path: Path, names: Sequence[str]) -> tuple[Path, bytes] | None:
    wanted = {f"{Path(name).name}.gz" for name in names}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if Path(member).name in wanted:
                    return path / member, gzip.decompress(archive.read(member))
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is damaged ({error}). Remove it and fetch it again.") from error
    return None


def _check_digest(data: bytes, sha256: str | None, where: Path) -> None:
    if sha256 is None:
        return
    digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        raise DataError(
            f"{where} is not the published file: sha256 of its uncompressed content is {digest}, "
            f"expected {sha256}. Remove it and fetch it again."
        )
