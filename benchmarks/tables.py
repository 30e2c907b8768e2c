"""How long a table takes to be read, checked and encoded by a schema: `python -m benchmarks.tables [--write]`.

A made-up CSV file of 50 columns: 35 of numbers, 12 of categories, a date, a person and a label. It is read in a process
of its own, whose largest memory is told, with and without what Python and the libraries take before. Seconds are told
by the clock and of the processor: on a machine that others use, too, the second ones say more.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv

from benchmarks.pages import show
from benchmarks.table import table
from dpfl_plugin.data import reading
from dpfl_plugin.data.schema import TableSchema

NUMBERS: Final = 35
CATEGORIES: Final = 12
VALUES: Final = ("a", "b", "c", "d")
AT_ONCE: Final = 100_000

SCHEMA: Final[dict[str, Any]] = {
    "label": {"column": "label", "classes": ["no", "yes"]},
    "person": "person",
    "columns": {
        **{f"number{i}": {"type": "number", "range": [0, 100], "missing": "indicator"} for i in range(NUMBERS)},
        **{f"category{i}": {"type": "category", "values": list(VALUES)} for i in range(CATEGORIES)},
        "date": {"type": "date", "range": ["2000-01-01", "2022-01-01"]},
    },
}


def write(path: Path, records: int) -> None:
    """A file of so many records; the same each time."""
    rng = np.random.default_rng(0)
    writer = None
    for first in range(0, records, AT_ONCE):
        size = min(AT_ONCE, records - first)
        columns: dict[str, Any] = {f"number{i}": rng.normal(50, 20, size).round(3) for i in range(NUMBERS)}
        columns |= {f"category{i}": rng.choice(VALUES, size) for i in range(CATEGORIES)}
        columns["date"] = np.datetime64("2000-01-01") + rng.integers(0, 8000, size)
        columns["person"] = rng.integers(0, max(1, records // 5), size).astype(str)
        columns["label"] = rng.choice(["no", "yes"], size)
        part = pa.table(columns)
        writer = writer or pyarrow.csv.CSVWriter(
            path, part.schema, write_options=pyarrow.csv.WriteOptions(quoting_style="needed")
        )
        writer.write_table(part)
    assert writer is not None
    writer.close()


def measure(path: Path) -> dict[str, float]:
    """Seconds, and MiB of this process before and at most, of reading a file."""
    before = _mebibytes()
    began, worked = time.perf_counter(), time.process_time()
    found = reading.read(path, TableSchema.parse(SCHEMA), reading.TextFormat())
    seconds, worked = time.perf_counter() - began, time.process_time() - worked
    assert found.wrong is None
    count = len(found.table.labels)
    return {"records": count, "seconds": seconds, "processor": worked, "before": before, "most": _mebibytes()}


def _mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description="Tables by a schema.")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--write", action="store_true", help="put the table on docs/benchmarks.md")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.read is not None:
        print(json.dumps(measure(options.read)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        write(path, options.records)
        command = [sys.executable, "-m", "benchmarks.tables", "--read", str(path)]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        row = [f"{found['records']:,.0f}", f"{path.stat().st_size / 2**20:.0f}", f"{found['seconds']:.1f}"]
    row += [f"{found['processor']:.1f}", f"{found['before']:.0f}", f"{found['most']:.0f}"]
    heading = ["records", "file MiB", "seconds", "of the processor", "MiB before", "MiB at most"]
    made = table(heading, [row])
    show("docs/benchmarks.md", "tables", made, write=options.write)


if __name__ == "__main__":
    main()
