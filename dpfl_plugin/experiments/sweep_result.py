"""The result of a sweep as an object."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfl_plugin.core.text import Printed
from dpfl_plugin.experiments.status import SweepStatus


@dataclass(frozen=True, slots=True)
class SweepResult(Printed):
    """What a call of `sweep` came to.

    Attributes:
        folder: of the sweep. status: of all its runs. submitted: the jobs that Slurm has now. failed: whether a run of
            this call failed, also where no file of it could say so.
        dry_run: what would be run, and by which batch scripts, where nothing was.
    """

    folder: Path
    status: SweepStatus
    submitted: tuple[str, ...] = ()
    failed: bool = False
    dry_run: str = ""

    @property
    def exit_code(self) -> int:
        """Of the command: 1 where runs failed, unless others were submitted."""
        failed = self.failed or self.status.counts["failed"] > 0
        return int(failed and not self.submitted and not self.dry_run)

    def to_dict(self) -> dict[str, Any]:
        """What `dpfl status --json` prints of the sweep."""
        return self.status.to_dict()

    def __str__(self) -> str:
        if self.dry_run:
            return self.dry_run
        folder = shlex.quote(str(self.folder))
        more = f"Single runs, with score and epsilon: dpfl status {folder}\nTables and plots: dpfl report {folder}"
        return f"{self.status.scores()}\n{more}".lstrip("\n")
