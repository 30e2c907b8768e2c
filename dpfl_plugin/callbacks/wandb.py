"""Weights & Biases: a run of a project, kept in the run's folder unless it is to be sent."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from dpfl_plugin.callbacks.base import RoundInfo, RunInfo
from dpfl_plugin.callbacks.tracker import Remembered, Tracker, finals, needed, scalars, statement_files
from dpfl_plugin.errors import ConfigError, require

Mode = Literal["offline", "online"]


class WandB(Tracker):
    """A run of Weights & Biases for each run.

    Of what W&B gathers by itself (console output, code, git, host, packages, hardware) nothing is taken.

    Args:
        project: its name. entity: user or team; None for the account's own.
        mode: offline writes files that ``wandb sync`` sends; online sends them while the run goes on.

    Raises:
        ConfigError: the package is missing, or an argument is wrong.
    """

    name = "wandb"

    def __init__(self, project: str = "dpfl", *, entity: str | None = None, mode: Mode = "offline") -> None:
        require(mode in ("offline", "online"), "mode", mode, "be offline or online")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it would send tracebacks to its makers
        self._wandb = needed("wandb", "wandb")
        if not hasattr(self._wandb.Settings(), "x_save_requirements"):
            raise ConfigError(
                f"the tracker wandb cannot be used: wandb {self._wandb.__version__} is too old, and would gather more "
                "than it is given. Install a newer one: pip install 'dpfl-plugin[wandb]'."
            )
        self._project, self._entity, self._mode = project, entity, mode
        self._at: Any = None

    def goes_to(self, run: RunInfo) -> str:
        if self._mode == "offline":
            return f"files in {self._place(run) / 'wandb'}; nothing leaves this machine before `wandb sync`"
        host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
        return (
            f"SENT over the network to {host}, project {self._project}: losses, accuracies, epsilon, the "
            "configuration, the result and the privacy statement"
        )

    def _place(self, run: RunInfo) -> Path:
        place = run.folder or run.out
        if place is None:
            raise ConfigError("WandB: the run has no folder in which its files could be. Give it one.")
        return place

    def on_begin(self, run: RunInfo) -> None:
        self._run, self._kept, self._exit_code = run, Remembered(run, self.name), 1
        if not run.done:
            self._kept.facts.clear()  # of a session that ended before its first checkpoint
        if "run" not in self._kept.facts:
            self._kept.keep(run=secrets.token_hex(4))
        quiet = {"console": "off", "silent": True, "save_code": False, "disable_code": True, "disable_git": True}
        gathers_nothing = {f"x_disable_{what}": True for what in ("meta", "stats", "machine_info")}
        self._at = self._wandb.init(
            project=self._project,
            entity=self._entity,
            id=self._kept.facts["run"],
            name=run.label or run.id or run.name,
            group=run.name,
            config={**run.config, "epsilon_of": run.epsilon_of},
            dir=str(self._place(run)),
            mode=self._mode,
            resume="allow",
            reinit="create_new",
            settings=self._wandb.Settings(**quiet, **gathers_nothing, x_save_requirements=False),
        )

    def on_round(self, round: RoundInfo) -> None:
        found = scalars(round)
        if found and self._kept.is_new(round.number):
            self._at.log(found, step=round.number)

    def on_end(self, result: Mapping[str, Any]) -> None:
        self._at.summary.update(
            {"status": result.get("status"), **{f"final/{k}": v for k, v in finals(result).items()}}
        )
        made = self._wandb.Artifact(f"dpfl-{self._kept.facts['run']}", type="privacy-statement", metadata=dict(result))
        for path in statement_files(self._run.folder):
            made.add_file(str(path))
        self._at.log_artifact(made)
        self._exit_code = int(result.get("status") == "failed")

    def close(self) -> None:
        if self._at is not None:
            self._at.finish(exit_code=self._exit_code)
            self._at = None


def wandb(base: Path, *, project: str = "dpfl", entity: str | None = None, mode: Mode = "offline") -> WandB:
    """A run of Weights & Biases, in files of the run's folder for `wandb sync`, or sent with `mode: online`."""
    return WandB(project, entity=entity, mode=mode)
