"""Files are found, checked and fetched; a damaged or missing one is named, quickly."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import pickle
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dpfl_plugin.data.cifar10 import cifar10
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.errors import DataError, NoFileError

CONTENT = b"some records\n" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
NO_SERVER = "http://127.0.0.1:9/set/file.gz"  # the discard port: nothing listens


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """A web server on this machine, and the folder that it serves."""
    served = tmp_path / "served"
    served.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(served))  # type: ignore[arg-type]

        def log_message(self, *args: object) -> None:
            pass

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}", served
        httpd.shutdown()


def folder_with(tmp_path: Path, name: str, content: bytes) -> DataSource:
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return DataSource(folder=tmp_path / "data")


@pytest.mark.parametrize("level", [1, 9])
def test_plain_and_compressed_files_are_the_same_file(tmp_path: Path, level: int) -> None:
    plain = folder_with(tmp_path / "a", "set/file", CONTENT)
    packed = folder_with(tmp_path / "b", "set/file.gz", gzip.compress(CONTENT, level))
    for source in (plain, packed):
        assert source.file("set/file", url=None, sha256=SHA256) == CONTENT


def test_alternative_names_are_tried(tmp_path: Path) -> None:
    source = folder_with(tmp_path, "MNIST/raw/file", CONTENT)
    assert source.file("mnist/file", url=None, alternatives=["file", "MNIST/raw/file"]) == CONTENT


def test_folder_of_the_configuration_goes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "environment"))
    assert DataSource().root == tmp_path / "environment"
    assert DataSource(folder=Path("data"), base=tmp_path).root == tmp_path / "data"
    monkeypatch.delenv("DPFL_DATA")
    assert DataSource().root == Path.home() / ".cache" / "dpfl"


@pytest.mark.parametrize("place", [0, 5000, -1])
def test_one_changed_byte_is_noticed(tmp_path: Path, place: int) -> None:
    changed = bytearray(CONTENT)
    changed[place] ^= 1
    source = folder_with(tmp_path, "set/file", bytes(changed))
    with pytest.raises(DataError) as error:
        source.file("set/file", url=None, sha256=SHA256)
    for part in (str(tmp_path / "data/set/file"), SHA256, hashlib.sha256(changed).hexdigest()):
        assert part in str(error.value)


@pytest.mark.parametrize("keep", [5, 60, -1])
def test_a_truncated_gzip_file_is_noticed(tmp_path: Path, keep: int) -> None:
    source = folder_with(tmp_path, "set/file.gz", gzip.compress(CONTENT)[:keep])
    with pytest.raises(DataError, match=r"file\.gz is damaged"):
        source.file("set/file", url=None)


def test_a_flipped_byte_in_a_gzip_file_is_noticed(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(CONTENT))
    packed[40] ^= 0xFF
    source = folder_with(tmp_path, "set/file.gz", bytes(packed))
    with pytest.raises(DataError, match=r"file\.gz is damaged"):
        source.file("set/file", url=None)


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path) -> None:
    source = DataSource(folder=tmp_path / "data")
    with pytest.raises(DataError) as error:
        source.file("set/file", url=NO_SERVER, sha256=SHA256)
    for part in ("set/file", NO_SERVER, str(tmp_path / "data/set/file.gz"), "or DPFL_DATA names the folder"):
        assert part in str(error.value)
    assert "could not be fetched: no connection to " in str(error.value) and "Pool" not in str(error.value)
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value), "processes hand errors on"
    assert [path for path in (tmp_path / "data").rglob("*") if path.is_file()] == []


def test_a_file_without_a_url_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"set/file .*Put it there"):
        DataSource(folder=tmp_path).file("set/file", url=None)


def test_a_file_is_fetched_once_and_kept(tmp_path: Path, server: tuple[str, Path]) -> None:
    url, served = server
    (served / "file.gz").write_bytes(gzip.compress(CONTENT))
    source = DataSource(folder=tmp_path / "data")
    assert source.file("set/file", url=f"{url}/file.gz", sha256=SHA256) == CONTENT
    (served / "file.gz").unlink()
    assert source.file("set/file", url=f"{url}/file.gz", sha256=SHA256) == CONTENT
    assert [path.name for path in (tmp_path / "data").rglob("*") if path.is_file()] == ["file.gz"]


@pytest.mark.parametrize("fault", ["another file", "cut short", "not there", "wrong hash"])
def test_a_bad_download_leaves_nothing_behind(tmp_path: Path, server: tuple[str, Path], fault: str) -> None:
    url, served = server
    packed = gzip.compress(CONTENT)
    if fault != "not there":
        content = {"another file": gzip.compress(b"else"), "cut short": packed[:-20], "wrong hash": packed}[fault]
        (served / "file.gz").write_bytes(content)
    source = DataSource(folder=tmp_path / "data")
    md5 = "md5:" + "0" * 32 if fault == "wrong hash" else None
    with pytest.raises(DataError):
        source.file("set/file", url=f"{url}/file.gz", sha256=SHA256, download_hash=md5)
    assert [path for path in (tmp_path / "data").rglob("*") if path.name != "set"] == []


def test_a_file_is_taken_from_a_fetched_zip_archive(tmp_path: Path, server: tuple[str, Path]) -> None:
    url, served = server
    with zipfile.ZipFile(served / "all.zip", "w") as archive:
        archive.writestr("gzip/other.gz", gzip.compress(b"other"))
        archive.writestr("gzip/file.gz", gzip.compress(CONTENT))
    source = DataSource(folder=tmp_path / "data")
    assert source.file("set/file", url=f"{url}/all.zip", sha256=SHA256, archive="set/all.zip") == CONTENT
    assert (tmp_path / "data/set/all.zip").is_file()
    with pytest.raises(DataError, match=r"holds no absent\.gz"):
        source.file("set/absent", url=f"{url}/all.zip", archive="set/all.zip")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file, not a folder")
    with pytest.raises(DataError, match="cannot be written to"):
        DataSource(folder=tmp_path / "data").file("set/file", url=NO_SERVER)


def test_users_paths_are_relative_to_the_configuration(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv"):
        (tmp_path / name).write_text("x")
    source = DataSource(base=tmp_path)
    assert source.paths("*.csv", "files") == [tmp_path / "a.csv", tmp_path / "b.csv"]
    assert source.paths(["b.csv", "a.csv"], "files") == [tmp_path / "b.csv", tmp_path / "a.csv"]
    with pytest.raises(DataError, match=r"files='c\.csv': there is no such file"):
        source.paths("c.csv", "files")
    (tmp_path / "silos").mkdir()
    with pytest.raises(DataError, match=r"files='silos' is a folder\. .*'silos/\*\.csv'"):
        source.paths("silos", "files")
    with pytest.raises(DataError, match="files names no file"):
        source.paths([], "files")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("silos/nort.csv", "silos/north.csv"),
        ("silo/north.csv", "silos/north.csv"),
        ("silos/north.txt", "silos/north.csv"),
        ("silos/admissions.csv", None),
        ("elsewhere/nowhere/north.csv", None),
    ],
)
def test_a_file_that_was_probably_meant_is_named(tmp_path: Path, name: str, meant: str | None) -> None:
    (tmp_path / "silos").mkdir()
    for site in ("north", "west"):
        (tmp_path / "silos" / f"{site}.csv").write_text("x")
    said = "there is no such file; looked" if meant is None else rf"no such file \(did you mean '{meant}'\?\); looked"
    with pytest.raises(DataError, match=said):
        DataSource(base=tmp_path).paths(name, "files")


def test_users_files_that_are_not_beside_the_configuration_are_looked_for_in_the_folder_of_data(tmp_path: Path) -> None:
    beside, data = tmp_path / "study", tmp_path / "data"
    for folder, names in {beside: ("a.csv",), data: ("a.csv", "b.csv", "c.csv")}.items():
        folder.mkdir()
        for name in names:
            (folder / name).write_text("x\n1\n")
    source = DataSource(folder=data, base=beside)
    assert source.paths(["a.csv", "[bc].csv"], "files") == [beside / "a.csv", data / "b.csv", data / "c.csv"]
    assert source.paths("*.csv", "files") == [beside / "a.csv"]  # never of both
    with pytest.raises(DataError, match=r"study/d\.csv and .*data/d\.csv"):
        source.paths("d.csv", "files")


MISSING: dict[str, tuple[Callable[[DataSource], object], str]] = {
    "a file": (lambda source: source.file("set/file", url=None), "set/file (or set/file.gz) is not in "),
    "one that cannot be fetched": (lambda source: source.file("set/file", url=NO_SERVER), "set/file is not in "),
    "a user's": (lambda source: source.paths("c.csv", "files"), "files='c.csv': there is no such file beside "),
    "a part of CIFAR-10": (lambda source: cifar10(source), "cifar-10-batches-bin: "),
}


@pytest.mark.parametrize("own", [True, False], ids=["data.folder", "DPFL_DATA"])
@pytest.mark.parametrize("missing", MISSING)
def test_what_others_are_told_of_a_missing_file_names_no_path_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, own: bool
) -> None:
    look, said = MISSING[missing]
    batch = tmp_path / "data" / "cifar-10-batches-bin" / "test_batch.bin"
    batch.parent.mkdir(parents=True)
    batch.touch()
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "data"))
    with pytest.raises(NoFileError) as found:
        look(DataSource(folder=Path("data") if own else None, base=tmp_path))
    for error in (found.value, pickle.loads(pickle.dumps(found.value))):
        assert str(tmp_path) in str(error) and str(tmp_path) not in error.public
        assert said in error.public and ("data.folder='data'" if own else "DPFL_DATA") in error.public
