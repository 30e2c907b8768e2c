"""How often a run was queued again: one that never ends must not go round for ever."""

from __future__ import annotations

import json
from typing import Any

from dpfl_plugin.runs.folder import RunFolder, to_json
from dpfl_plugin.sweeps import state


def counted(folder: RunFolder, job: str, restarts: int) -> int:
    """How often the run had begun in this very job when Slurm queued its task again; to be asked as the task starts.

    Args:
        restarts: of the task, as SLURM_RESTART_COUNT has it; what it was counted for already is not counted again.
    """
    known, task = _read(folder), state.task_of(folder)
    if known.get("job") != job:
        known = {"job": job, "restarts": 0, "count": 0}
    begun = task is not None and task.get("job") == job and task.get("state") in ("running", "stopped")
    if begun and restarts > known["restarts"]:
        known = {"job": job, "restarts": restarts, "count": known["count"] + 1}
        folder.write(folder.path / "requeues.json", to_json(known, None))
    return int(known["count"])


def forget(folder: RunFolder) -> None:
    """Count from 0 again, for a run that is to be tried again."""
    (folder.path / "requeues.json").unlink(missing_ok=True)


def _read(folder: RunFolder) -> dict[str, Any]:
    try:
        known = json.loads((folder.path / "requeues.json").read_bytes())
        return {"job": str(known["job"]), "restarts": int(known["restarts"]), "count": int(known["count"])}
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or torn: counted from 0
        return {}
