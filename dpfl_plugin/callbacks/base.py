"""What a callback is told of a run.

It gets copies of plain values: neither the model nor the noise, the budget or the ledger, so that whatever it does with
them changes nothing of the run. And it gets no more than docs/callbacks.md lists: measurements, what the published
files of a run say, sizes and times; no names of silos, no class names that were read from records, and, unless it asks
for them, no measurements of a single silo.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal


@dataclass(frozen=True)
class RunInfo:
    """A run that begins, or goes on.

    Attributes:
        name: as in the configuration. id: names the run's configuration; empty on a platform.
        label: of one of several runs of a file or of a sweep; None where there is one only.
        folder: the run's, None where it has none. out: the folder of run folders; the server's on a platform.
        config: the configuration as plain values, without ``trackers`` and ``silos``.
        rounds: where the run is expected to end; None if unknown. done: how many are already done, if the run is
            resumed.
        delta: that epsilon is stated for. epsilon_of: whom epsilon protects, and from what, in words.
    """

    name: str
    id: str
    label: str | None
    folder: Path | None
    out: Path | None
    config: Mapping[str, Any]
    rounds: int | None
    done: int
    delta: float
    epsilon_of: str


@dataclass(frozen=True)
class RoundInfo:
    """A round that is over.

    Attributes:
        number: from 1. seconds: since the run's first round began, not counting pauses between sessions.
        begun: how many rounds have begun so far, including those that were interrupted and repeated.
        metrics: of the global model where the round was evaluated, means over silos (``train_loss``,
            ``test_accuracy``); empty where measurements stay with the silos, None where the round was not evaluated.
            For a callback that sees what is released: ``private_score``, the last one; None before the first.
        epsilon: spent so far by this run, ``server`` and ``third_party``; one of them is None where nothing is
            guaranteed. None where the round was not evaluated, unless the callback asks for it. Where a run goes on
            after a crash, what it had released counts as it comes to it again; the statement counts all of it.
        silos: ``train_loss`` and ``test_accuracy`` of every silo, for a callback that asks for them; else None.
    """

    number: int
    seconds: float
    begun: int
    metrics: Mapping[str, float] | None
    epsilon: Mapping[str, float | None] | None
    silos: Mapping[int, Mapping[str, float]] | None = None


class Stop(Exception):
    """Raised by a callback, ends the run: ``raise dpfl.Stop("pruned")``.

    The run is done; its model and its result are those after this round. All planned rounds are charged: when a run
    ends may tell of records.
    """


class Callback:
    """Base class for whatever follows a run. If it raises `Stop` the run ends. If it raises anything else the run fails
    after a checkpoint, so that it can be resumed; of a tracker that is reported, and the run continues.

    Attributes:
        sees: what decides when it stops a run. "measurements": of raw records, and no epsilon covers when it stops.
            "released": it is given private scores in place of them, and epsilon covers that, too.
        per_silo: whether it is to have the measurements of every silo. epsilon_each_round: whether epsilon is to be
            composed for every round, which takes milliseconds, and not only where the model is evaluated.
    """

    sees: ClassVar[Literal["measurements", "released"]] = "measurements"
    per_silo: ClassVar[bool] = False
    epsilon_each_round: ClassVar[bool] = False

    def on_begin(self, run: RunInfo) -> None:
        """The run begins, or goes on after ``run.done`` rounds."""

    def on_round(self, round: RoundInfo) -> None:
        """A round is over. Its last one may come twice: where a budget ends the run, it is evaluated after that."""

    def on_end(self, result: Mapping[str, Any]) -> None:
        """The run ended for now: ``result["status"]`` is done, budget_exhausted, interrupted or failed."""
