"""What every algorithm must fulfil, built-in or not, as tests that pytest collects."""

from __future__ import annotations

import dataclasses
import tempfile
import unittest
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from dpfl_plugin.config.load import configure, load, to_yaml
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.streams import stream
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.runs.plugins import build_plugin
from dpfl_plugin.testing import mpi, resume
from dpfl_plugin.testing.contract_monitor import Call, ContractError, Steps, Trial, Watched, difference

__tracebackhide__ = True  # pytest shows what is wrong, and the algorithm's own lines
# Four silos of different sizes, 3 classes; d = 15 is the size of nothing else here.
BASE: dict[str, Any] = {
    "name": "contract",
    "seed": 3,
    "rounds": 4,
    "data": {
        "dataset": {"name": "synthetic", "num_features": 4, "num_classes": 3, "records_per_silo": 60},
        "partition": {"name": "quantity_skew", "alpha": 5.0, "min_records": 35},
        "num_silos": 4,
    },
    "privacy": {"clip_norm": 1.0, "noise_multiplier": 4.0, "record_rate": 0.5},
}
SILO_LEVEL: dict[str, Any] = {"privacy": {"unit": "silo", "noise_multiplier": 20.0}}
QUIET: dict[str, Any] = {
    "privacy": {"clip_norm": float("inf"), "noise_multiplier": 0.0, "sampler": "full", "record_rate": None}
}


class AlgorithmContract:
    """The contract of an algorithm: derive a class whose name begins with Test, and pytest runs each check.

        class TestMine(AlgorithmContract):
            algorithm = {"name": "mine", "local_steps": 3, "local_lr": 0.1}

    Attributes:
        algorithm: its block as in a configuration, with ``name``, or ``module: "package.module:Class"``.
        config: what else of the configuration it needs, e.g. {"rounds": 7} or {"loss": "hinge"}.
        silo_level: it works at ``unit: silo``; False: it is refused there, because it sends more than one release.
        partial_participation: it works with ``silo_rate`` below 1; False: it refuses, and names ``silo_rate``.
        without_clipping: it works with ``clip_norm: inf``; False: it refuses, and names ``clip_norm``.
        ranks: numbers of MPI processes that `test_mpi` starts.
    """

    algorithm: ClassVar[str | Mapping[str, Any]] = ""
    config: ClassVar[Mapping[str, Any]] = {}
    silo_level: ClassVar[bool] = True
    partial_participation: ClassVar[bool] = True
    without_clipping: ClassVar[bool] = True
    ranks: ClassVar[tuple[int, ...]] = (2, 3)

    def configuration(self, *changes: Mapping[str, Any]) -> Config:
        """A small run of the algorithm."""
        block = {"name": self.algorithm} if isinstance(self.algorithm, str) else dict(self.algorithm)
        return configure({**BASE, "algorithm": block}, self.config, *changes, source=type(self).__name__)

    def run(self, *changes: Mapping[str, Any], stack: int = 1) -> Steps:
        """All rounds of `configuration`, watched."""
        return Trial(self.configuration(*changes), stack=stack).run()

    def test_options(self) -> None:
        """It is a frozen dataclass of its options, which a run's folder can write down and read back."""
        config = self.configuration()
        made = build_plugin("algorithms", config.algorithm, where="algorithm")
        label = type(made).__name__
        parameters = vars(type(made)).get("__dataclass_params__")  # of its own, not of a base
        if parameters is None or not parameters.frozen:
            raise ContractError(
                f"{label} is not a frozen dataclass: write @dataclass(frozen=True, kw_only=True) above it."
            )
        dataclasses.replace(made)  # builds it anew
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "config.yaml")
            path.write_text(to_yaml(config))
            (again,) = load(path).variants
        other = build_plugin("algorithms", again.config.algorithm, where="algorithm")
        if made != other:
            raise ContractError(
                f"{label} is not the same after its options were written to a file and read: {made} became {other}. "
                "Let it be made of its options alone: numbers, text, booleans, None, or tuples of these."
            )

    def test_shapes(self) -> None:
        """Vectors are (d,) at the server and (m, d) at silos, for one silo and for many, and have the model's type."""
        num_silos = self.configuration().data.num_silos or 1
        for dtype in ("float32", "float64"):
            for stack in (1, num_silos):
                self.run({"runtime": {"dtype": dtype}}, stack=stack)
        if self.partial_participation:
            self.run({"silo_rate": 1 / num_silos}, stack=num_silos)

    def test_stack(self) -> None:
        """Silos that are advanced together compute what each of them does alone, to the last bit."""
        num_silos = self.configuration().data.num_silos or 1
        alone = self.run()
        for stack in range(2, num_silos + 1):
            together = self.run(stack=stack)
            for round, (one, many) in enumerate(zip(alone.states, together.states, strict=True)):
                self._same(one, many, f"the silos' states after round {round}", stack)
            for round, (one, many) in enumerate(zip(alone.servers, together.servers, strict=True)):
                self._same(one, many, f"the server's state after round {round}", stack)

    def _same(self, one: Mapping[str, Any], many: Mapping[str, Any], what: str, stack: int) -> None:
        found = difference(one, many)
        if found is not None:
            raise ContractError(
                f"silos advanced {stack} at a time compute something else than one at a time: {found}, in {what}. Rows "
                "are silos: use no sum, mean or norm over dim 0 or over everything (dim=1, keepdim=True is a silo's), "
                "and no random numbers of your own."
            )

    def test_plan(self) -> None:
        """round_plan says before a round what it does: every gradient, and the same however often it is asked."""
        steps = self.run()
        for call in steps.calls:
            asked = sum(kind == "gradient" for kind, _, _ in call.asked)
            if asked != call.plan.num_gradients:
                raise ContractError(
                    f"local_update asks for {asked} gradients in round {call.round}, and its round_plan says "
                    f"num_gradients={call.plan.num_gradients}: the budget would stop the run for what it does not do."
                )
        trial = Trial(self.configuration())
        for round in range(len(steps.plans)):
            server = steps.servers[round - 1] if round else trial.server
            plans = [self._plan(trial, server, round) for _ in range(2)]
            if plans[0] != plans[1]:
                raise ContractError(
                    f"round_plan answers two equal questions differently in round {round}: {plans[0]} and {plans[1]}. "
                    "It may depend on its arguments only, and draw by rng only: what a round costs is computed before."
                )

    def _plan(self, trial: Trial, server: Mapping[str, Any], round: int) -> Any:
        return trial.watched.round_plan(dict(server), round, trial.parts.setting, stream(3, "plan", round))

    def test_partial_participation(self) -> None:
        """With a share of the silos in each round, weighted by their records, it works, or refuses."""
        half: dict[str, Any] = {"silo_rate": 0.5, "silo_weights": "records"}
        if not self.partial_participation:
            self._refused(half, "silo_rate", "partial_participation")
            return
        try:
            steps = self.run(half, stack=2)
        except ConfigError as error:
            raise ContractError(
                f"refuses silo_rate: 0.5: {error} If that is so by its theory, set partial_participation = False."
            ) from None
        for plan in steps.plans:
            if plan.participation == "all":
                raise ContractError(
                    "round_plan lets all silos take part although silo_rate is 0.5, which then means nothing. Refuse "
                    "it in init_server if setting.num_participants != setting.num_silos, with a ConfigError that "
                    "names silo_rate, and set partial_participation = False."
                )

    def test_without_noise(self) -> None:
        """noise_multiplier: 0 and clip_norm: inf are the algorithm that is not private, by the same code."""
        if not self.without_clipping:
            self._refused(QUIET, "clip_norm", "without_clipping")
            return
        try:
            self.run(QUIET)
        except ConfigError as error:
            raise ContractError(
                f"refuses clip_norm: inf: {error} If it needs C, set without_clipping = False."
            ) from None

    def _refused(self, changes: Mapping[str, Any], key: str, declared: str) -> None:
        try:
            self.run(changes)
        except ConfigError as error:
            if key in str(error):
                return
            raise ContractError(f"its refusal does not name {key}; name it in the message: {error}") from None
        raise ContractError(f"{declared} is False, but {key} is not refused: set it to True, or refuse it.")

    def test_resume(self) -> None:
        """Interrupted after any round and resumed, it gives the same model, metrics and ledger, to the last bit."""
        resume.check(self.configuration())

    def test_replay(self) -> None:
        """A new instance that gets the same arguments and the same answers of the oracle computes the same."""
        trial = Trial(self.configuration())
        steps = trial.run()
        config = self.configuration()
        replayed = Watched(build_plugin("algorithms", config.algorithm, where="algorithm"))
        replayed.init_server(trial.parts.model, trial.parts.setting)
        for call in steps.calls:
            self._replay(replayed, call)

    def _replay(self, algorithm: Watched, call: Call) -> None:
        algorithm.round = call.round
        up, new = algorithm.local_update(dict(call.down), dict(call.silos), _Replay(call), call.plan)
        for what, before, after in (("uploads", call.up, up), ("silo states", call.new, new)):
            found = difference(before, after)
            if found is not None:
                raise ContractError(
                    f"repeated with the same answers of the oracle, round {call.round} gives other {what}: {found}. "
                    "They depend on something beside the oracle, the download, the silos' states and the plan: on what "
                    "an earlier call left behind, or on random numbers of its own."
                )

    def test_ledger(self) -> None:
        """At both privacy units, every answer of the oracle is charged, and at silo level nothing else is sent."""
        self._check_charges(self.run(), "gradient")
        if not self.silo_level:
            try:
                self.run(SILO_LEVEL)
            except UnsupportedError:
                return
            raise ContractError("silo_level is False, but unit: silo is not refused: set it to True.")
        try:
            steps = self.run(SILO_LEVEL)
        except UnsupportedError as error:
            raise ContractError(
                f"{error} Send oracle.release(update) and nothing else, computed from it or not; or, if it has to send "
                "more, set silo_level = False."
            ) from None
        self._check_charges(steps, "release")
        for call in steps.calls:
            released = [answer for kind, _, answer in call.asked if kind == "release"]
            if len(released) != 1:
                raise ContractError(f"local_update calls release {len(released)} times in round {call.round}: once.")

    def _check_charges(self, steps: Steps, charged: str) -> None:
        unit = "record" if charged == "gradient" else "silo"
        expected: dict[tuple[int, int], int] = {}
        for round, plan in enumerate(steps.plans):
            calls = [call for call in steps.calls if call.round == round]  # one silo each, in the order of their ids
            for silo, call in zip(plan.participants, calls, strict=True):
                expected[round, silo] = sum(kind == charged for kind, _, _ in call.asked)
        found: dict[tuple[int, int], int] = {}
        for charge in steps.charges:
            key = (charge.round, charge.silo)
            found[key] = found.get(key, 0) + charge.count
            if charge.release.unit != unit or charge.share != steps.plans[charge.round].share:
                raise ContractError(f"a charge says something else than the round did: {charge}.")
            if not charge.release.noise_multiplier > 0:
                raise ContractError(f"a release without noise, where noise was asked for: {charge}.")
        if found != expected:
            wrong = sorted({*found.items()} ^ {*expected.items()})[0][0]
            raise ContractError(
                f"round {wrong[0]}, silo {wrong[1]}: {expected.get(wrong, 0)} answers of oracle.{charged}, and "
                f"{found.get(wrong, 0)} in the ledger. Nothing may leave that is not charged: is dpfl as released?"
            )

    def test_mpi(self) -> None:
        """On MPI processes it gives the model, metrics and ledger of the run in one process, to the last bit."""
        reason = mpi.missing()
        if reason is not None:
            raise unittest.SkipTest(reason)
        for ranks in self.ranks:
            found = mpi.difference(self.configuration(), ranks)
            if found is not None:
                raise ContractError(
                    f"mpirun -n {ranks} gives another result than one process: {found}. Silos are in other processes "
                    "there: what is kept belongs into the states, and random numbers into round_plan's rng."
                )


class _Replay:
    """Gives the answers that another oracle gave, to the same questions in the same order."""

    def __init__(self, call: Call) -> None:
        self.num_silos, self._call, self._answers = call.num_silos, call, iter(call.asked)

    def _next(self, kind: str, value: torch.Tensor) -> torch.Tensor:
        known, given, answer = next(self._answers, ("", value, value))
        if known != kind or not torch.equal(given, value):
            raise ContractError(
                f"repeated with the same answers of the oracle, local_update asks for another {kind} in round "
                f"{self._call.round}. What it asks depends on something beside the oracle's earlier answers, the "
                "download, the silos' states and the plan."
            )
        return answer.clone()

    def gradient(self, y: torch.Tensor) -> torch.Tensor:
        return self._next("gradient", y)

    def release(self, update: torch.Tensor) -> torch.Tensor:
        return self._next("release", update)
