"""Reading tables piece by piece: what Arrow's threads are given, and what they still hold afterwards."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest

from dpfl_plugin.data.error_collector import ErrorCollector
from dpfl_plugin.data.table_reader import TextFormat, open_table

NATIVE = (pa.OSFile, pa.BufferReader, pa.CompressedInputStream)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
def test_threads_of_arrow_hold_nothing_of_pythons_once_a_table_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """A process that ends while they drop it aborts: of short ones that had read a table, more than half did."""
    path, errors, given, open_csv = (
        tmp_path / "table.csv",
        ErrorCollector(Path("t"), "line"),
        list[Any](),
        pyarrow.csv.open_csv,
    )
    path.write_bytes("a,b\nä,2\n3,4\n5\n".encode(encoding))

    def spy(stream: Any, read: Any, parse: Any, convert: Any) -> Any:
        late = [parse.invalid_row_handler]
        given.append((type(stream), weakref.ref(late[0])))
        threading.Timer(0.3, late.clear).start()  # as a thread that is slow to let go of it
        return open_csv(stream, read, parse, convert)

    monkeypatch.setattr(pyarrow.csv, "open_csv", spy)
    table = open_table(path, TextFormat(encoding=None if encoding == "utf-16" else encoding))
    assert [cell for piece in table.rows(["a"], errors) for cell in piece["a"].to_pylist()] == ["ä", "3"]
    ((kind, handler),) = given
    assert kind in NATIVE and handler() is None
