"""TensorBoard, by torch.utils.tensorboard: a folder of event files for each run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfl_plugin.callbacks.base import RoundInfo, RunInfo
from dpfl_plugin.callbacks.tracker import Tracker, finals, flat, needed, scalars, statement_files
from dpfl_plugin.errors import ConfigError


class TensorBoard(Tracker):
    """Event files for TensorBoard.

    Args:
        folder: they are in ``folder/<name>/<label>-<id>``; None for ``tensorboard`` in the run's own folder.

    Raises:
        ConfigError: the package is missing.
    """

    name = "tensorboard"

    def __init__(self, folder: str | Path | None = None) -> None:
        needed("tensorboard", "tensorboard")
        self._writers = needed("torch.utils.tensorboard", "tensorboard")
        self._folder = None if folder is None else Path(folder)
        self._writer: Any = None

    def _place(self, run: RunInfo) -> Path:
        if self._folder is not None:
            named = "-".join(part for part in (run.label, run.id) if part)
            return self._folder / run.name / named.replace("/", "_")
        if run.folder is None:
            raise ConfigError("TensorBoard: folder is missing: the run has no folder of its own to write to.")
        return run.folder / "tensorboard"

    def goes_to(self, run: RunInfo) -> str:
        return f"files in {self._place(run)}; nothing leaves this machine"

    def on_begin(self, run: RunInfo) -> None:
        self._run = run
        # What was drawn of rounds that will be run again is not shown any more.
        self._writer = self._writers.SummaryWriter(str(self._place(run)), purge_step=run.done + 1)
        self._writer.add_text("configuration", _code(run.config), run.done)
        self._writer.add_text("epsilon", run.epsilon_of, run.done)
        self._writer.flush()

    def on_round(self, round: RoundInfo) -> None:
        found = scalars(round)
        for name, value in found.items():
            self._writer.add_scalar(name, value, round.number)
        if found:
            self._writer.flush()

    def on_end(self, result: Mapping[str, Any]) -> None:
        rounds = int(result.get("rounds") or 0)
        self._writer.add_text("result", _code(result), rounds)
        for path in statement_files(self._run.folder):
            text = path.read_text()
            self._writer.add_text(path.name, text if path.suffix == ".md" else _code(json.loads(text)), rounds)
        found = {f"final/{name}": value for name, value in finals(result).items()}
        self._writer.add_hparams(flat(self._run.config), found, run_name=".", global_step=rounds)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _code(values: Mapping[str, Any]) -> str:
    """Plain values as a block of Markdown."""
    return "".join(f"    {line}\n" for line in json.dumps(values, indent=2, default=str).splitlines())


def tensorboard(base: Path, *, folder: str | None = None) -> TensorBoard:
    """Event files for TensorBoard, in the run's folder or in `folder/<name>/<label>-<id>`; nothing is sent."""
    return TensorBoard(None if folder is None else base / folder)
