"""`dpfl export`."""

from __future__ import annotations

from pathlib import Path

from dpfl_plugin.api.exports import export


def export_run(folder: Path, out: Path, *, onnx: bool) -> None:
    """Write the model of a run's folder; errors as those of `dpfl_plugin.api.exports.export`."""
    made = export(folder, out, onnx=onnx)
    for path in sorted(made.iterdir()):
        print(path)
    print("What it may reveal, and whether it may be published: README.md and privacy.md there.")
