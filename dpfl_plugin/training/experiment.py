"""T rounds of an algorithm: who takes part, the budget, evaluation, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.core.vectors import Vectors, all_finite
from dpfl_plugin.errors import TrainingError
from dpfl_plugin.oracle import Draw
from dpfl_plugin.training.accounting import PrivacyAccount
from dpfl_plugin.training.host import SiloMetrics
from dpfl_plugin.training.planning import Planner
from dpfl_plugin.training.runtime import Interrupted, Runtime

MOST_IN_TAIL = 50

Status = Literal["done", "budget_exhausted", "interrupted", "failed"]


@dataclass(slots=True)
class Progress:
    """What goes on from one round to the next, and into a checkpoint."""

    server: Vectors
    rounds: int = 0
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended; ``reason`` in words where it did not simply finish."""

    status: Status
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A run, ready to go.

    Attributes:
        run_name: names the run's random bits, with ``attempt``.
        rounds: T; expected_rounds: where the budget is expected to end it, by which evaluations are scheduled.
        evaluated: the last round that a run which is resumed was evaluated after; 0 for none.
    """

    planner: Planner
    runtime: Runtime
    account: PrivacyAccount
    rounds: int
    expected_rounds: int
    run_name: str
    attempt: int
    evaluate_every: int
    dissimilarity: bool
    checkpoint_every: int | None
    checkpoint_seconds: float
    evaluated: int = 0

    def run(
        self,
        progress: Progress,
        *,
        save: Callable[[Progress], None],
        record: Callable[[dict[str, Any]], None],
        tick: Callable[[Progress], None],
        stop: Callable[[], bool],
    ) -> Outcome:
        """Go on from ``progress`` to the last round, or to what ends the run before it.

        Args:
            save: writes a checkpoint; record: gets each evaluation as plain values; tick: called after every round;
            stop: asked before every round, true ends the run.
        """
        saved_at, saved_rounds, began = time.monotonic(), progress.rounds, time.monotonic() - progress.seconds
        evaluated = last_finite = self.evaluated
        outcome = Outcome("done")
        while progress.rounds < self.rounds:
            plan = self.planner.plan(progress.server, progress.rounds, self.account.eligible())
            if plan is None:
                outcome = Outcome("budget_exhausted", self.account.why_nobody_is_left())
                break
            if not self.account.affords(progress.rounds, plan):
                outcome = Outcome("budget_exhausted", self.account.why_not())
                break
            try:
                if stop():
                    raise Interrupted
                server = self.advance(progress, plan)
            except Interrupted:
                outcome = Outcome("interrupted", f"asked to stop in round {progress.rounds + 1}")
                break
            except TrainingError as error:
                outcome = Outcome("failed", f"round {progress.rounds + 1}: {error}")
                break
            if not all_finite(server):
                reason = f"the global model is not finite after round {progress.rounds + 1}"
                outcome = Outcome("failed", f"{reason}; its loss was last finite after round {last_finite}")
                break
            self.runtime.commit()
            progress.server, progress.rounds = server, progress.rounds + 1
            progress.seconds = time.monotonic() - began
            if self._evaluates(progress.rounds):
                line = self.evaluation(progress, plan.phase)
                record(line)
                evaluated = progress.rounds
                if not math.isfinite(line["train_loss"]):
                    reason = f"the training loss is {line['train_loss']} after round {progress.rounds}"
                    return Outcome("failed", f"{reason}; it was last finite after round {last_finite}")
                last_finite = progress.rounds
            tick(progress)
            due = self.checkpoint_every is not None and progress.rounds - saved_rounds >= self.checkpoint_every
            if due or time.monotonic() - saved_at >= self.checkpoint_seconds:
                save(progress)
                saved_at, saved_rounds = time.monotonic(), progress.rounds
        if outcome.status == "budget_exhausted" and progress.rounds > evaluated:
            record(self.evaluation(progress, self.planner.asks(progress.server, progress.rounds - 1).phase))
        save(progress)
        return outcome

    def advance(self, progress: Progress, plan: RoundPlan) -> Vectors:
        """One round; returns the server's next state."""
        down = self.planner.algorithm.download(progress.server)
        draw = Draw(self.planner.seed, progress.rounds, self.attempt, self.run_name)
        self.account.begin_round(progress.rounds, plan)
        mean_up = self.runtime.run_round(down, plan, draw)
        progress.bytes_down += len(plan.participants) * _size(down)
        progress.bytes_up += len(plan.participants) * _size(mean_up)
        return self.planner.algorithm.aggregate(progress.server, mean_up, plan)

    def evaluation(self, progress: Progress, phase: str) -> dict[str, Any]:
        """Metrics of the global model, means over silos, and what has been spent."""
        by_silo = self.runtime.evaluate(progress.server["model"], self.dissimilarity)
        metrics = list(by_silo.values())
        line: dict[str, Any] = {
            "round": progress.rounds,
            "phase": phase,
            "train_loss": math.fsum(m.train_loss for m in metrics) / len(metrics),
            "test_accuracy": math.fsum(m.test_accuracy for m in metrics) / len(metrics),
            "epsilon": self.account.so_far(),
            "seconds": round(progress.seconds, 4),
            "bytes_up": progress.bytes_up,
            "bytes_down": progress.bytes_down,
        }
        if self.dissimilarity:
            line["gradient_dissimilarity"] = gradient_dissimilarity(metrics)
        return line

    def _evaluates(self, rounds: int) -> bool:
        """Every so often, and in the last 10 % of rounds, whose mean is the number to report: in all, or 50 of them."""
        last = self.expected_rounds
        tail = math.ceil(last / 10)
        in_tail = rounds > last - tail and (last - rounds) % math.ceil(tail / MOST_IN_TAIL) == 0
        return rounds % self.evaluate_every == 0 or in_tail


def gradient_dissimilarity(metrics: list[SiloMetrics]) -> float:
    """1/M sum ||grad F_i||^2 - ||grad F||^2 ([N] App. D.3.1)."""
    gradients = torch.stack([m.gradient.double() for m in metrics if m.gradient is not None])
    return float(gradients.square().sum(dim=1).mean() - gradients.mean(dim=0).square().sum())


def _size(vectors: Vectors) -> int:
    return sum(value.numel() * value.element_size() for value in vectors.values())
