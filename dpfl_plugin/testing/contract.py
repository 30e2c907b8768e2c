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
from dpfl_plugin.testing import endings
from dpfl_plugin.testing.contract_monitor import AlgorithmMonitor, Call, ContractError, Steps, Trial, difference

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
NOT_PRIVATE: dict[str, Any] = {
    "privacy": {"clip_norm": float("inf"), "noise_multiplier": 0.0, "sampler": "full", "record_rate": None}
}
HALF: dict[str, Any] = {"silo_rate": 0.5, "silo_weights": "records"}


class AlgorithmContract:
    """The contract of an algorithm: derive a class whose name begins with Test, and pytest runs each check.

        class TestMine(AlgorithmContract):
            algorithm = {"name": "mine", "local_steps": 3, "local_lr": 0.1}

    The name of a check is what it asserts. The simplest come first: with ``pytest -x`` the first failure is the cause
    of those after it.

    Attributes:
        algorithm: its block as in a configuration, with ``name``, or ``module: "package.module:Class"``.
        config: what else of the configuration it needs, e.g. {"rounds": 7} or {"loss": "hinge"}.
        silo_level: it works at ``unit: silo``; False: it is refused there, because it sends more than one release.
        partial_participation: it works with ``silo_rate`` below 1; False: it refuses, and names ``silo_rate``.
        without_clipping: it works with ``clip_norm: inf``; False: it refuses, and names ``clip_norm``.
    """

    algorithm: ClassVar[str | Mapping[str, Any]] = ""
    config: ClassVar[Mapping[str, Any]] = {}
    silo_level: ClassVar[bool] = True
    partial_participation: ClassVar[bool] = True
    without_clipping: ClassVar[bool] = True

    def configuration(self, *changes: Mapping[str, Any]) -> Config:
        """A small run of the algorithm; ``changes`` are made in turn, as a variant changes its file."""
        block = {"name": self.algorithm} if isinstance(self.algorithm, str) else dict(self.algorithm)
        return configure({**BASE, "algorithm": block}, self.config, *changes, source=type(self).__name__)

    def run(self, *changes: Mapping[str, Any], stack: int = 1) -> Steps:
        """All rounds of `configuration`: states, uploads, questions to the oracle and charges."""
        return Trial(self.configuration(*changes), stack=stack).run()

    def test_options_are_the_same_after_they_were_written_to_a_file(self) -> None:
        """A run's folder holds the options of a frozen dataclass, from which a resumed run makes it again."""
        config = self.configuration()
        algorithm = build_plugin("algorithms", config.algorithm, where="algorithm")
        label = type(algorithm).__name__
        parameters = vars(type(algorithm)).get("__dataclass_params__")  # of its own, not of a base
        if parameters is None or not parameters.frozen:
            raise ContractError(
                f"{label} is not a frozen dataclass: write @dataclass(frozen=True, kw_only=True) above it."
            )
        dataclasses.replace(algorithm)  # builds it anew
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "config.yaml")
            path.write_text(to_yaml(config))
            (variant,) = load(path).variants
        again = build_plugin("algorithms", variant.config.algorithm, where="algorithm")
        if algorithm != again:
            raise ContractError(
                f"{label} is not the same after its options were written to a file and read: {algorithm} became "
                f"{again}. Make it of its options alone: numbers, text, booleans, None, or tuples of these."
            )

    def test_equal_inputs_give_equal_results(self) -> None:
        """A new instance that gets the same arguments and the same answers of the oracle computes the same."""
        trial = Trial(self.configuration())
        servers, steps = [trial.server], trial.run()
        servers += steps.servers
        for call in steps.calls:
            up, new = self._new_instance(trial).local_update(
                dict(call.down), dict(call.silos), _Replay(call), call.plan
            )
            for what, before, after in (("uploads", call.up, up), ("silo states", call.new, new)):
                mismatch = difference(before, after)
                if mismatch is not None:
                    raise _not_repeatable("local_update", f"gives other {what} ({mismatch})", call.round)
        for round, (mean_up, plan) in enumerate(zip(steps.means, steps.plans, strict=True)):
            server = self._new_instance(trial).aggregate(dict(servers[round]), dict(mean_up), plan)
            mismatch = difference(servers[round + 1], server)
            if mismatch is not None:
                raise _not_repeatable("aggregate", f"gives another state ({mismatch})", round)

    def _new_instance(self, trial: Trial) -> AlgorithmMonitor:
        monitor = AlgorithmMonitor(build_plugin("algorithms", self.configuration().algorithm, where="algorithm"))
        monitor.init_server(trial.parts.model, trial.parts.setting)
        return monitor

    def test_vectors_have_the_shape_and_type_of_the_model(self) -> None:
        """(d,) at the server and (m, d) at silos, for one silo and for many; arguments stay as they were."""
        num_silos = self.configuration().data.num_silos or 1
        for dtype in ("float32", "float64"):
            for stack in (1, num_silos):
                self.run({"runtime": {"dtype": dtype}}, stack=stack)
        if self.partial_participation:
            self.run({"silo_rate": 1 / num_silos}, stack=num_silos)

    def test_silos_advanced_together_compute_what_each_computes_alone(self) -> None:
        """To the last bit, in the silos' and the server's states after every round."""
        num_silos = self.configuration().data.num_silos or 1
        alone = self.run()
        for stack in range(2, num_silos + 1):
            together = self.run(stack=stack)
            for of, one, many in (
                ("silos' states", alone.states, together.states),
                ("server's state", alone.servers, together.servers),
            ):
                for round, (before, after) in enumerate(zip(one, many, strict=True)):
                    mismatch = difference(before, after)
                    if mismatch is not None:
                        raise ContractError(
                            f"silos advanced {stack} at a time compute something else than one at a time: {mismatch}, "
                            f"in the {of} after round {round}. Rows are silos: use no sum, mean or norm over dim 0 or "
                            "over everything (dim=1, keepdim=True is a silo's), and no random numbers of your own."
                        )

    def test_round_plan_announces_every_gradient(self) -> None:
        """As many as local_update asks for, and the same however often round_plan is called."""
        steps = self.run()
        for call in steps.calls:
            gradients = _count(call, "gradient")
            if gradients != call.plan.num_gradients:
                raise ContractError(
                    f"local_update asks for {gradients} gradients in round {call.round}, but its round_plan says "
                    f"num_gradients={call.plan.num_gradients}, which would be charged to the budget. Plan as many as "
                    "are asked for."
                )
        trial = Trial(self.configuration())
        for round in range(len(steps.plans)):
            server = steps.servers[round - 1] if round else trial.server
            first, second = (
                trial.monitor.round_plan(dict(server), round, trial.parts.setting, stream(3, "plan", round))
                for _ in range(2)
            )
            if first != second:
                raise ContractError(
                    f"round_plan answers two equal questions differently in round {round}: {first} and {second}. The "
                    "cost of a round is computed before it starts: depend on the arguments only, and draw by rng only."
                )

    def test_half_of_the_silos_can_take_part_or_silo_rate_is_refused(self) -> None:
        """``silo_rate: 0.5`` with weights by records works, and half of the silos take part."""
        if not self.partial_participation:
            self._refused(HALF, "silo_rate", "partial_participation")
            return
        try:
            steps = self.run(HALF, stack=2)
        except ConfigError as error:
            raise ContractError(
                f"refuses silo_rate: 0.5: {error} If that is so by its theory, set partial_participation = False."
            ) from None
        if any(plan.participation == "all" for plan in steps.plans):
            raise ContractError(
                "round_plan lets all silos take part although silo_rate is 0.5. Leave participation out; or refuse it "
                "in init_server if setting.num_participants != setting.num_silos, with a ConfigError that names "
                "silo_rate, and set partial_participation = False."
            )

    def test_clipping_and_noise_can_be_left_out_or_clip_norm_is_refused(self) -> None:
        """``noise_multiplier: 0`` and ``clip_norm: inf`` give the algorithm that is not private, by the same code."""
        if not self.without_clipping:
            self._refused(NOT_PRIVATE, "clip_norm", "without_clipping")
            return
        try:
            self.run(NOT_PRIVATE)
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

    def test_every_answer_of_the_oracle_is_charged(self) -> None:
        """At record level each gradient; at ``unit: silo`` the one release of a round, and nothing else is sent."""
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
                f"{error} To fix it, send oracle.release(update) as it is and nothing else; if the algorithm has to "
                "send more, set silo_level = False."
            ) from None
        self._check_charges(steps, "release")
        for call in steps.calls:
            releases = _count(call, "release")
            if releases != 1:
                raise ContractError(f"local_update calls release {releases} times in round {call.round}: call it once.")

    def _check_charges(self, steps: Steps, charged: str) -> None:
        unit = "record" if charged == "gradient" else "silo"
        answers: dict[tuple[int, int], int] = {}
        for round, plan in enumerate(steps.plans):
            calls = [call for call in steps.calls if call.round == round]  # one silo each, in the order of their ids
            for silo, call in zip(plan.participants, calls, strict=True):
                answers[round, silo] = _count(call, charged)
        charges: dict[tuple[int, int], int] = {}
        for charge in steps.charges:
            key = (charge.round, charge.silo)
            charges[key] = charges.get(key, 0) + charge.count
            if charge.release.unit != unit or charge.share != steps.plans[charge.round].share:
                raise ContractError(f"a charge says something else than the round did: {charge}.")
            if not charge.release.noise_multiplier > 0:
                raise ContractError(f"a release without noise, where noise was asked for: {charge}.")
        if charges != answers:
            round, silo = min({*charges.items()} ^ {*answers.items()})[0]
            raise ContractError(
                f"round {round}, silo {silo}: {answers.get((round, silo), 0)} answers of oracle.{charged}, and "
                f"{charges.get((round, silo), 0)} in the ledger. Nothing may leave that is not charged: is dpfl as "
                "released?"
            )

    def test_a_resumed_run_ends_as_an_uninterrupted_one(self) -> None:
        """Interrupted after any round: the same model, metrics and ledger, to the last bit."""
        endings.check_resume(self.configuration())

    def test_mpi_processes_end_as_one_process(self) -> None:
        """The same model, metrics and ledger, to the last bit; skipped, with the reason, where there is no MPI."""
        reason = endings.mpi_missing()
        if reason is not None:
            raise unittest.SkipTest(reason)
        endings.check_mpi(self.configuration())


def _count(call: Call, kind: str) -> int:
    return sum(asked == kind for asked, _, _ in call.queries)


def _not_repeatable(method: str, what: str, round: int) -> ContractError:
    return ContractError(
        f"called again with equal inputs in round {round}, {method} {what}. Keep nothing in self, in the class or in "
        "globals, and draw no random numbers: memory belongs into the states, random choices into round_plan (by rng), "
        "and noise comes from the oracle."
    )


class _Replay:
    """An oracle that repeats recorded answers to the same questions in the same order."""

    def __init__(self, call: Call) -> None:
        self.num_silos, self._round, self._queries = call.num_silos, call.round, iter(call.queries)

    def gradient(self, y: torch.Tensor) -> torch.Tensor:
        return self._next("gradient", y)

    def release(self, update: torch.Tensor) -> torch.Tensor:
        return self._next("release", update)

    def squared_norm(self, update: torch.Tensor, scale: float) -> torch.Tensor:
        return self._next("squared_norm", update)

    def _next(self, kind: str, value: torch.Tensor) -> torch.Tensor:
        recorded, argument, answer = next(self._queries, ("", value, value))
        if recorded != kind or not torch.equal(argument, value):
            raise _not_repeatable("local_update", f"asks oracle.{kind} for something else", self._round)
        return answer.clone()
