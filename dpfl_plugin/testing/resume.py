"""Interrupt a run after each of its rounds, resume it, and compare what is left behind."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.config.schema import Config
from dpfl_plugin.federation.progress import Progress
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.hooks import Silent
from dpfl_plugin.runs.run import run_config
from dpfl_plugin.runtimes.in_process import InProcessBackend
from dpfl_plugin.testing.contract_monitor import ContractError

__tracebackhide__ = True
NOT_SAVED: Final = (
    "What a round needs of earlier ones belongs into the server's or the silos' states: nothing else is saved, neither "
    "attributes of self nor globals, nor the state of a random generator."
)


@dataclass(frozen=True)
class Ending:
    """What a run left behind: the digest of its model, its evaluations without times, its ledger."""

    model: str
    metrics: list[dict[str, Any]]
    charges: set[Charge]


class _Stopper(Silent):
    """A reporter that asks the run to stop after ``rounds`` rounds; None: never."""

    def __init__(self, rounds: int | None) -> None:
        self._rounds, self.stopped = rounds, False

    def ticked(self, progress: Progress) -> None:
        self.stopped = progress.rounds == self._rounds


def check(config: Config) -> None:
    """Raise ContractError unless the run, resumed after any round, ends as the undisturbed one.

    Every run is interrupted first, then one goes through, then the others go on: what an algorithm keeps outside of
    its states is by then what the last of them left.
    """
    rounds = config.rounds or 1
    with contextlib.ExitStack() as stack:
        folders = {k: Path(stack.enter_context(tempfile.TemporaryDirectory())) for k in range(rounds)}
        for k in range(1, rounds):
            go(config, folders[k], stop_after=k)
        whole = go(config, folders[0])
        for k in range(1, rounds):
            _compare(whole, go(config, folders[k], resume=True), k)


def _compare(whole: Ending, resumed: Ending, k: int) -> None:
    for what, one, other in (
        ("model", whole.model, resumed.model),
        ("metrics", whole.metrics, resumed.metrics),
        ("ledger", whole.charges, resumed.charges),
    ):
        if one != other:
            raise ContractError(
                f"interrupted after round {k} and resumed, the run ends with another {what} than without the "
                f"interruption. {NOT_SAVED}"
            )


def go(config: Config, folder: Path, *, stop_after: int | None = None, resume: bool = False) -> Ending:
    """Run ``config`` in ``folder``, up to a round or to its end.

    Raises:
        ContractError: it fails.
    """
    stopper = _Stopper(stop_after)
    result = run_config(
        config.model_copy(update={"out": str(folder)}),
        Path(),
        resume=resume,
        backend=InProcessBackend(),
        reporter=stopper,
        stop=lambda: stopper.stopped,
    )
    if result["status"] != ("done" if stop_after is None else "interrupted"):
        raise ContractError(f"the run {result['status']}: {result['reason']}.")
    return ending(result)


def ending(result: dict[str, Any]) -> Ending:
    """What the run that gave ``result`` left in its folder."""
    folder = RunFolder(Path(result["folder"]))
    lines = [{key: value for key, value in line.items() if key != "seconds"} for line in folder.read_metrics()]
    return Ending(result["model_sha256"], lines, set(Ledger.open(folder.ledger, append=False)))
