"""T rounds of an algorithm: who takes part, the budget, evaluation, checkpoints."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.config.schema import PersonaliseConfig
from dpfl_plugin.core.outcomes import CLASSES
from dpfl_plugin.core.stopwatch import STOPPED, Stopwatch
from dpfl_plugin.core.vectors import Vectors, all_finite
from dpfl_plugin.errors import TrainingError
from dpfl_plugin.federation.evaluation_schedule import EvaluationSchedule
from dpfl_plugin.federation.outcome import Cause, RunOutcome
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.federation.progress import Progress
from dpfl_plugin.federation.rehearsal import rehearsal
from dpfl_plugin.federation.runtime import Runtime, SilosLost
from dpfl_plugin.federation.silo_group import SiloMetrics
from dpfl_plugin.federation.statistics_round import StatisticsRound
from dpfl_plugin.federation.stopping import Stopping
from dpfl_plugin.federation.summaries import means
from dpfl_plugin.federation.survivors import Survivors, TooFewSilosError
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.extra_releases import NOT_RUN

WERE_LOST: Final = (
    "were left out: a crash, or silos that failed, lost them after they were charged, and the budget has no room for "
    "others."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLoop:
    """A run, ready to go.

    Attributes:
        run_name: names the run in the ledger; fresh: whether each computation draws new random bits.
        min_silos: the fewest to go on with, when silos are lost.
        rounds: T; until: after how many it is paused; None: never. expected_rounds: where its budget may end it.
        evaluations: after which rounds the model is evaluated.
        evaluated: the last round that a run which is resumed was evaluated after; 0 for none.
        first: statistics of columns; stopping: when scores end it; personalise: silos' own models; None for none.
        clock: takes the time of each part.
        save: writes a checkpoint. record: gets each evaluation as plain values. tick: called after every round.
        stop: asked before every round, and before silos make models of their own; true ends the run there.
        ending: asked before every round: how a callback ended the run; None while none has.
        note: gets a line on silos that were lost.
    """

    planner: Planner
    runtime: Runtime
    account: PrivacyAccount
    rounds: int
    until: int | None = None
    expected_rounds: int
    run_name: str
    evaluations: EvaluationSchedule
    dissimilarity: bool
    checkpoint_every: int | None
    checkpoint_seconds: float
    evaluated: int = 0
    fresh: bool = False
    score: str = CLASSES.score
    first: StatisticsRound | None = None
    stopping: Stopping | None = None
    personalise: PersonaliseConfig | None = None
    min_silos: int = 1
    clock: Stopwatch = STOPPED
    save: Callable[[Progress], None] = lambda progress: None
    record: Callable[[dict[str, Any]], None] = lambda line: None
    tick: Callable[[Progress], None] = lambda progress: None
    stop: Callable[[], bool] = lambda: False
    ending: Callable[[], RunOutcome | None] = lambda: None
    note: Callable[[str], None] = lambda text: None

    @property
    def survivors(self) -> Survivors:
        """How this run goes on when silos are lost."""
        return Survivors(self.planner, self.runtime, self.account, self.min_silos, self.save, self.note)

    def run(self, progress: Progress) -> RunOutcome:
        """Go on from ``progress`` to the last round, or to what ends the run before it.

        A round in which silos are lost is run again by the others, and counts as released twice. One whose uploads had
        all come counts.
        """
        try:
            return self._run(progress)
        except TooFewSilosError as error:
            return RunOutcome("failed", Cause.TOO_FEW_SILOS, str(error))

    def checkpoint(self, progress: Progress) -> None:
        """Write a checkpoint, whatever silos are lost meanwhile.

        Raises:
            TooFewSilosError: see `Survivors.lose`.
        """
        self.survivors.retry(progress, lambda: self.save(progress))

    def _run(self, progress: Progress) -> RunOutcome:
        def measured(phase: str) -> dict[str, Any]:
            return self.survivors.retry(progress, lambda: self.evaluation(progress, phase))

        began = time.monotonic() - progress.seconds
        checkpoints = _Checkpoints(self.checkpoint_every, self.checkpoint_seconds, progress.rounds)
        evaluated = last_finite = self.evaluated
        while True:
            try:
                made = self._round(progress, last_finite)
            except SilosLost as lost:
                self.survivors.lose(progress, lost)
                continue
            if isinstance(made, RunOutcome):
                outcome = made
                break
            plan, server = made
            self.clock.lap("server")
            self.runtime.commit()
            progress.server, progress.rounds = server, progress.rounds + 1
            progress.seconds = time.monotonic() - began
            if self.evaluations.due(progress.rounds):
                line = measured(plan.phase)
                self.record(line)
                self.clock.lap("I/O")
                evaluated = progress.rounds
                if line["train_loss"] is None or math.isfinite(line["train_loss"]):
                    last_finite = progress.rounds
                elif self.evaluations.may_end:
                    return _not_finite(line, last_finite)
            self.tick(progress)
            self.clock.lap("I/O")
            if checkpoints.due(progress.rounds):
                with checkpoints.timed(progress.rounds):
                    self.checkpoint(progress)
                self.clock.lap("I/O")
        if self.personalise is not None and outcome.status in ("done", "budget_exhausted") and self.stop():
            outcome = _stopped_after(progress)  # silos' own models may take as long as a round
        stopping = self.stopping if outcome.status == "done" and self._stopped(progress) else None
        stopped = bool(stopping) or outcome.cause in (Cause.CALLBACK, Cause.CALLBACK_OF_RELEASED)
        ended = stopped or outcome.status == "budget_exhausted"
        if ended and self.evaluations.made and progress.rounds > evaluated:
            self.record(measured(self.planner.asks(progress.server, progress.rounds - 1).phase))
        self.checkpoint(progress)
        self.clock.lap("I/O")
        if stopped:
            # Saved before: the charges of rounds that will not run must not count where a resume runs some again.
            self._charge_what_was_planned(progress)
            self.checkpoint(progress)
        if stopping:
            why = stopping.why(progress.scores, progress.rounds, self.rounds)
            return RunOutcome("done", Cause.EARLY_STOPPING, why)
        return outcome

    def _round(self, progress: Progress, last_finite: int) -> tuple[RoundPlan, Vectors] | RunOutcome:
        """(its plan, the server's next state) of the next round, with what is before it; or why there is none.

        Args:
            last_finite: after how many rounds the loss was last known to be finite.

        Raises:
            SilosLost: the round does not count.
        """
        if self.first and not self.first.run(progress, draw=self.draw, send=self._sent, save=self.checkpoint):
            return RunOutcome("budget_exhausted", Cause.BUDGET, f"private statistics: {self.account.why_not()}")
        self._score(progress)
        if self._stopped(progress) or progress.rounds >= self.rounds:
            return RunOutcome("done", Cause.ROUNDS)
        if progress.stopped is None and (outcome := self.ending()) is not None:
            if outcome.status == "failed":
                return outcome
            progress.stopped = outcome
        if progress.stopped is not None:
            return progress.stopped
        if self.until is not None and progress.rounds >= self.until:
            return RunOutcome("interrupted", Cause.PAUSED, f"paused after round {progress.rounds}, as planned")
        down = self.planner.algorithm.download(progress.server)
        plan = self.planner.plan(progress.server, progress.rounds, self.account.eligible(), progress.lost)
        if plan is None:
            return RunOutcome("budget_exhausted", Cause.MAX_PARTICIPATIONS, self.account.cap_reason(progress.lost))
        if not self.account.affords(progress.rounds, plan):
            return RunOutcome("budget_exhausted", Cause.BUDGET, self.account.why_not())
        if self.stop():
            return _stopped_after(progress)
        try:
            server = self.advance(progress, plan, down)
        except TrainingError as error:
            return RunOutcome("failed", Cause.ERROR, f"round {progress.rounds + 1}: {error}")
        if not all_finite(server):
            reason = f"the global model is not finite after round {progress.rounds + 1}"
            reason += f"; its loss was last finite after round {last_finite}"
            return RunOutcome("failed", Cause.NOT_FINITE, reason)
        return plan, server

    def _score(self, progress: Progress) -> None:
        """A score of the global model, if one is due, and the budget has room for it: after a crash it may not."""
        if self.stopping is None or not self.stopping.due(progress.rounds, progress.scores):
            return
        plan, down = self.planner.of_all("score", lost=progress.lost), {"model": progress.server["model"]}
        draw = self.draw(progress, progress.rounds, "score")
        if not self.account.affords_extra("score", progress.rounds, draw.noise_id):
            return
        mean = self._sent(progress, down, plan, draw)
        progress.scored(mean["score"].flatten().tolist(), self.stopping.score)
        if self.stopping.keep_best and self.stopping.best(progress.scores) == len(progress.scores) - 1:
            progress.best = progress.server["model"]
        if self.checkpoint_every == 1:
            self.checkpoint(progress)

    def _sent(self, progress: Progress, down: Vectors, plan: RoundPlan, draw: Draw) -> Vectors:
        mean_up = self.runtime.run_round(down, plan, draw)
        progress.bytes_down += len(plan.participants) * _size(down)
        progress.bytes_up += len(plan.participants) * _size(mean_up)
        return mean_up

    def draw(self, progress: Progress, round: int, kind: str = "") -> Draw:
        """Of one computation of a round, or of what is released beside it; fresh bits have another name each time.

        A seeded round that is run again because silos were lost, or came back, has the same bits, and counts as it
        would with fresh ones: twice.
        """
        if self.fresh:
            return Draw.fresh(round, self.run_name)
        changes = sum(1 + (loss["back"] is not None) for loss in progress.losses)
        name = ".".join([self.run_name, *([str(changes)] if changes else []), *([kind] if kind else [])])
        return Draw(self.planner.seed, round, name)

    def _stopped(self, progress: Progress) -> bool:
        return self.stopping is not None and progress.rounds < self.rounds and self.stopping.stops(progress.scores)

    def _charge_what_was_planned(self, progress: Progress) -> None:
        """Charge the rounds and scores that will not be made, as if they were.

        When to stop depends on what was released, and then the composition of what was released proves nothing: its
        length may tell of a record. The whole plan's length does not, and a run that stops is a function of it.
        """
        name = f"{NOT_RUN}.{self.run_name}" if self.fresh else NOT_RUN  # in a ledger that other runs share
        rounds = (self.rounds, progress.server, progress.rounds)
        for _ in rehearsal(self.account, self.planner, *rounds, name, progress.lost):
            pass
        if self.stopping is not None:
            left = range(progress.rounds + 1, self.rounds + 1)
            planned = self.stopping.planned
            self.account.charge_scores_not_made([n for n in left if planned(n) > planned(n - 1)], name)
        self.account.sync()

    def final_model(self, progress: Progress) -> Tensor:
        """The model (d,) that is the result: the best by its scores, where that is kept, or the last."""
        return progress.server["model"] if progress.best is None else progress.best

    def finish(self, progress: Progress) -> tuple[dict[int, SiloMetrics], list[str]]:
        """(metrics of the final model at each silo, notes); before that, silos' own models, if the budget allows them.

        Raises:
            TooFewSilosError: see `Survivors.lose`.
        """
        model, notes = self.final_model(progress), []
        left_out = 0 if self.stopping is None else self.stopping.planned(progress.rounds) - len(progress.scores)
        if left_out:
            notes.append(f"validation scores: {left_out} {WERE_LOST}")
        if self.personalise is not None:
            own = self.personalise
            draw = self.draw(progress, self.rounds, "personalise")
            if self.account.affords_extra("personalise", self.rounds, draw.noise_id):
                made = self._own_models(progress, own)
                self.survivors.retry(progress, lambda: made(draw))
            else:
                notes.append(f"personalise: no silo made a model of its own: {self.account.why_not()}.")
        if self.personalise is None and progress.best is None and progress.measured is not None:
            rounds, by_silo = progress.measured
            if rounds == progress.rounds:
                return by_silo, notes
        by_silo = self.survivors.retry(progress, lambda: self.runtime.evaluate(model, False))
        return by_silo, notes

    def _own_models(self, progress: Progress, own: PersonaliseConfig) -> Callable[[Draw], None]:
        """Has silos make models of their own; those that have not, if some were lost meanwhile.

        A silo's own model stays with it and depends on no other silo: those that were made and charged stay.
        """
        model = self.final_model(progress)

        def make(draw: Draw) -> None:
            released = self.account.was_released
            made = {
                silo
                for silo in range(self.planner.setting.num_silos)
                if silo in begun and released("personalise", silo, draw.round, draw.noise_id)
            }
            plan = self.planner.of_all("personalise", own.local_steps, own.local_lr, lost=progress.lost | made)
            begun.update(plan.participants)
            if plan.participants:
                self._sent(progress, {"model": model}, plan, draw)

        begun: set[int] = set()
        return make

    def advance(self, progress: Progress, plan: RoundPlan, down: Vectors) -> Vectors:
        """One round; returns the server's next state."""
        self.account.begin_round(progress.rounds, plan)
        progress.begun += 1
        self.clock.lap("server")
        mean_up = self._sent(progress, down, plan, self.draw(progress, progress.rounds))
        return self.planner.algorithm.aggregate(progress.server, mean_up, plan)

    def evaluation(self, progress: Progress, phase: str) -> dict[str, Any]:
        """Metrics of the global model, means over silos where they come here, and what has been spent."""
        by_silo = self.runtime.evaluate(progress.server["model"], self.dissimilarity, progress.rounds)
        if not self.dissimilarity:  # silos' gradients are not to be kept
            progress.measured = progress.rounds, by_silo
        progress.by_silo = {silo: replace(found, gradient=None) for silo, found in by_silo.items()}
        metrics = list(by_silo.values())
        found = means([m.train_loss for m in metrics], [m.test_score for m in metrics], self.score)
        line: dict[str, Any] = {
            "round": progress.rounds,
            "phase": phase,
            "train_loss": found["train_loss"],
            "test_accuracy": found["test_accuracy"],
            "epsilon": self.account.epsilons_so_far(),
            "seconds": round(progress.seconds, 4),
            "bytes_up": progress.bytes_up,
            "bytes_down": progress.bytes_down,
            "test_accuracy_of_silos": found["test_accuracy_of_silos"],
        }
        line |= {key: value for key, value in found.items() if key not in line}
        if self.dissimilarity:
            line["gradient_dissimilarity"] = gradient_dissimilarity(metrics)
        self.clock.lap("evaluation")
        return line


class _Checkpoints:
    """Written every so many rounds, or seconds, whichever comes first.

    Args:
        every: rounds; None for any number of them. seconds: 0 for after every round.
        rounds: that a run which goes on has made already.
    """

    def __init__(self, every: int | None, seconds: float, rounds: int) -> None:
        self._every, self._seconds = every, seconds
        self._at, self._rounds, self._took = time.monotonic(), rounds, 0.0

    def due(self, rounds: int) -> bool:
        """Whether one is to be written after ``rounds``."""
        if self._every is not None and rounds - self._rounds >= self._every:
            return True
        # States of many silos take long to write: so seldom then that it is a twentieth of the time.
        pause = max(self._seconds, 20 * self._took) if self._seconds else 0.0
        return time.monotonic() - self._at >= pause

    @contextlib.contextmanager
    def timed(self, rounds: int) -> Iterator[None]:
        """Take the time of writing one."""
        began = time.monotonic()
        yield
        self._at, self._rounds = time.monotonic(), rounds
        self._took = self._at - began


def _not_finite(line: dict[str, Any], last_finite: int) -> RunOutcome:
    """How a run ends whose training loss is not finite in ``line``; it was last after round ``last_finite``."""
    reason = f"the training loss is {line['train_loss']} after round {line['round']}"
    return RunOutcome("failed", Cause.NOT_FINITE, f"{reason}; it was last finite after round {last_finite}")


def _stopped_after(progress: Progress) -> RunOutcome:
    return RunOutcome("interrupted", Cause.STOP_REQUESTED, f"asked to stop; ended after round {progress.rounds}")


def gradient_dissimilarity(metrics: list[SiloMetrics]) -> float:
    """1/M sum ||grad F_i||^2 - ||grad F||^2 ([N] App. D.3.1)."""
    gradients = torch.stack([m.gradient.double() for m in metrics if m.gradient is not None])
    return float(gradients.square().sum(dim=1).mean() - gradients.mean(dim=0).square().sum())


def _size(vectors: Vectors) -> int:
    return sum(value.numel() * value.element_size() for value in vectors.values())
