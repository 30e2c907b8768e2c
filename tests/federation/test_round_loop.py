"""The loop by itself: what ends it, and what it has by then; without a command, a folder or an account."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import TrainingError
from dpfl_plugin.federation.outcome import Cause, RunOutcome
from dpfl_plugin.federation.progress import Progress
from dpfl_plugin.federation.round_loop import RoundLoop
from dpfl_plugin.federation.runtime import SilosLost
from dpfl_plugin.oracle import Draw
from tests.quadratics import Lab, rules, silo

ROUNDS = 4


class Account:
    """Allows ``rounds`` rounds, and keeps what was asked of it."""

    def __init__(self, rounds: int) -> None:
        self._rounds, self.begun, self.lost = rounds, [], 0

    def eligible(self) -> None: ...

    def affords(self, round: int, plan: RoundPlan) -> bool:
        return round < self._rounds

    def begin_round(self, round: int, plan: RoundPlan) -> None:
        self.begun.append(round)

    def lose(self) -> None:
        self.lost += 1

    def epsilons_so_far(self) -> None: ...

    def why_not(self) -> str:
        return "spent"

    def cap_reason(self, lost: Collection[int]) -> str:
        return "nobody"


@dataclass
class Plans:
    """Everybody in every round, as long as silos may take part."""

    lab: Lab
    rounds: int

    def __post_init__(self) -> None:
        self.algorithm, self.setting, self.seed = self.lab.algorithm, self.lab.setting, 0

    def plan(self, server: Vectors, round: int, eligible: None, lost: Collection[int]) -> RoundPlan | None:
        return self.lab.plan(self.alive(lost)) if round < self.rounds else None

    def asks(self, server: Vectors, round: int) -> RoundPlan:
        return self.lab.plan()

    def alive(self, lost: Collection[int]) -> Sequence[int]:
        return [silo for silo in range(3) if silo not in lost]

    def weights_of(self, silos: Sequence[int]) -> Sequence[float]:
        return [1 / len(silos)] * len(silos)


class Run:
    """An experiment on three silos, in which ``fault`` is called with the number of each round before it."""

    def __init__(self, fault: Callable[[int], Any] = lambda round: None, fresh: bool = False, **limits: int) -> None:
        self.lab = Lab(FedAvg(local_steps=1, local_lr=0.1), [silo([1.0], [float(i)]) for i in range(3)], rules(), [9.0])
        run_round = self.lab.runtime.run_round

        def faulty(down: Vectors, plan: RoundPlan, draw: Draw) -> Vectors:
            made = fault(draw.round)
            self.attempts.append((draw.round, draw.noise_id, tuple(plan.participants)))
            up = run_round(down, plan, draw)
            return {name: value * made for name, value in up.items()} if isinstance(made, float) else up

        self.lab.runtime.run_round = faulty  # type: ignore[method-assign]
        self.attempts: list[tuple[int, str, tuple[int, ...]]] = []
        self.account, self.lines, self.saved = Account(limits.get("budget", 99)), [], []
        self.progress = Progress(server=self.lab.server)
        self.experiment = RoundLoop(
            planner=Plans(self.lab, limits.get("participations", 99)),  # type: ignore[arg-type]
            runtime=self.lab.runtime,
            account=self.account,  # type: ignore[arg-type]
            rounds=ROUNDS,
            expected_rounds=ROUNDS,
            run_name="run",
            fresh=fresh,
            evaluations=SimpleNamespace(due=lambda rounds: True, made=True),  # type: ignore[arg-type]
            dissimilarity=False,
            checkpoint_every=None,
            checkpoint_seconds=0.0,
            min_silos=limits.get("min_silos", 1),
            save=lambda progress: self.saved.append(progress.rounds),
            record=self.lines.append,
        )

    def __call__(self, stop: Callable[[], bool] = lambda: False) -> RunOutcome:
        return replace(self.experiment, stop=stop).run(self.progress)


def in_round(number: int, what: Any) -> Callable[[int], Any]:
    """``what``, raised if it is an error, in one round, once."""
    left = [what]

    def fault(round: int) -> Any:
        made = left.pop() if round == number and left else None
        if isinstance(made, Exception):
            raise made
        return made

    return fault


ENDS: dict[str, tuple[Callable[[], Run], int, RunOutcome]] = {
    "all rounds": (Run, 4, RunOutcome("done", Cause.ROUNDS)),
    "budget": (lambda: Run(budget=2), 2, RunOutcome("budget_exhausted", Cause.BUDGET, "spent")),
    "cap": (lambda: Run(participations=3), 3, RunOutcome("budget_exhausted", Cause.MAX_PARTICIPATIONS, "nobody")),
    "fault": (
        lambda: Run(in_round(1, TrainingError("broken"))),
        1,
        RunOutcome("failed", Cause.ERROR, "round 2: broken"),
    ),
    "not finite": (
        lambda: Run(in_round(2, float("nan"))),
        2,
        RunOutcome(
            "failed",
            Cause.NOT_FINITE,
            "the global model is not finite after round 3; its loss was last finite after round 2",
        ),
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_ends_a_run_is_said_and_the_rounds_before_it_count(name: str) -> None:
    make, rounds, outcome = ENDS[name]
    run = make()
    assert run() == outcome
    assert run.progress.rounds == rounds and [line["round"] for line in run.lines] == list(range(1, rounds + 1))
    assert run.saved[-1] == rounds and torch.isfinite(run.progress.server["model"]).all()


def test_a_run_that_is_asked_to_stop_finishes_its_round_and_is_the_same_run_when_it_goes_on() -> None:
    asked: list[int] = []
    whole, parts = Run(), Run(lambda round: asked.append(round) if round == 1 else None)
    whole()
    assert parts(stop=lambda: bool(asked)).cause is Cause.STOP_REQUESTED
    assert parts.progress.rounds == parts.saved[-1] == 2
    assert parts().cause is Cause.ROUNDS
    assert torch.equal(whole.progress.server["model"], parts.progress.server["model"])
    assert whole.attempts == parts.attempts


@pytest.mark.parametrize("fresh", [False, True])
def test_a_round_that_loses_silos_is_made_again_by_the_others(fresh: bool) -> None:
    """Under another name, so that both are charged."""
    run = Run(in_round(1, SilosLost({2: "killed"})), fresh)
    assert run().cause is Cause.ROUNDS and run.account.lost == 1
    assert run.account.begun == [0, 1, 1, 2, 3]
    (_, first, everybody), (_, second, others), *_ = run.attempts
    assert first != second and everybody == (0, 1, 2) and others == (0, 1)


def test_with_too_few_silos_left_the_run_fails_and_what_counts_is_saved_before() -> None:
    run = Run(in_round(1, SilosLost({2: "killed"})), min_silos=3)
    outcome = run()
    assert (outcome.status, outcome.cause) == ("failed", Cause.TOO_FEW_SILOS) and "silo 2: killed" in outcome.reason
    assert run.saved[-1] == run.progress.rounds == 1 and run.progress.lost == {2}
