"""Silos that are lost in the middle of a run, and how the others go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dpfl_plugin.algorithms.base import Regrouping
from dpfl_plugin.errors import TrainingError
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.federation.progress import Progress
from dpfl_plugin.federation.runtime import Runtime, SilosLost
from dpfl_plugin.privacy.account import PrivacyAccount

Result = TypeVar("Result")


class TooFewSilosError(TrainingError):
    """So many silos were lost that the run ends."""


@dataclass(frozen=True, slots=True)
class Survivors:
    """Goes on with the silos that are left.

    Attributes:
        min_silos: the fewest to go on with.
        save: writes a checkpoint; note: gets a line on silos that were lost.
    """

    planner: Planner
    runtime: Runtime
    account: PrivacyAccount
    min_silos: int
    save: Callable[[Progress], None]
    note: Callable[[str], None]

    def retry(self, progress: Progress, work: Callable[[], Result]) -> Result:
        """Do ``work``, and begin it again whenever silos are lost in it; nothing may be released by it.

        Raises:
            TooFewSilosError: see `lose`.
        """
        while True:
            try:
                return work()
            except SilosLost as lost:
                self.lose(progress, lost)

    def lose(self, progress: Progress, lost: SilosLost) -> None:
        """Go on without silos, from the state after the last round that counts; it is in a checkpoint then.

        Raises:
            TooFewSilosError: fewer than ``min_silos`` are left; the checkpoint is there nevertheless.
        """
        while True:
            for silo, why in lost.why.items():
                progress.losses.append({"silo": silo, "after_round": progress.rounds, "why": why, "back": None})
            self.account.lose()
            left = self.planner.alive(progress.lost)
            total = self.planner.setting.num_silos
            self.note(f"lost after round {progress.rounds}: {lost}. {len(left)} of {total} silos are left")
            try:
                if left:
                    self._regroup(progress, left)
                self.save(progress)
            except SilosLost as more:
                lost = more
                continue
            if len(left) < self.min_silos:
                raise TooFewSilosError(
                    f"after round {progress.rounds}: {len(left)} silos are left, fewer than "
                    f"runtime.min_silos={self.min_silos} to go on with. Lost: {_why(progress)}. With all ranks "
                    "back, resume the run"
                )
            return

    def _regroup(self, progress: Progress, silos: Sequence[int]) -> None:
        """What server and silos keep in common has to hold for those that are left."""
        algorithm = self.planner.algorithm
        if not isinstance(algorithm, Regrouping):
            return
        states = self.runtime.states()
        kept = {name: value[list(silos)] for name, value in states.items()}
        server, changed = algorithm.regroup(progress.server, kept, silos, self.planner.weights_of(silos))
        if changed is not kept:
            for name, value in changed.items():
                states[name][list(silos)] = value
            self.runtime.load_states(states)
        progress.server = server


def _why(progress: Progress) -> str:
    why = {loss["silo"]: loss["why"] for loss in progress.losses if loss["back"] is None}
    return "; ".join(f"silo {silo}: {text}" for silo, text in sorted(why.items()))
