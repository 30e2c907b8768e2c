"""What the plans of all papers share: what is prescribed, from which constants, and what is proven of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal

import dpfl_plugin as dpfl
from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.errors import ConfigError, require
from dpfl_plugin.privacy.events import Neighbouring, SampledGaussian
from dpfl_plugin.runs.algorithm_setting import make_setting
from dpfl_plugin.runs.records import dimension, federate

NEIGHBOURS: Final[Mapping[str, Neighbouring]] = {"fixed": "replace_one", "full": "replace_one"}
NORM_1: Final = "records of norm 1 (unit_norm)"
MOST: Final = 100_000  # rounds that are looked for
Classifier = Literal["logistic", "softmax"]
# The largest eigenvalue that the Hessian of a record's loss in its scores can have: p (1 - p), and diag(p) - p p^T.
_CURVATURE: Final[Mapping[Classifier, float]] = {"logistic": 0.25, "softmax": 0.5}


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that a theorem needs, and where it came from."""

    name: str
    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Value:
    """A number that a theorem prescribes, and what it is."""

    name: str
    value: float
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the accountant proves of prescribed numbers, beside what the paper claims; None: nothing.

    Attributes:
        noise: multipliers: one, or of each phase. command: that runs it; none where no run can be made of it.
    """

    name: str
    rounds: int
    noise: tuple[float, ...]
    claimed: float | None = None
    claimed_view: Literal["server", "third_party"] = "server"
    server: float | None
    third_party: float | None
    delta: float
    command: tuple[str, ...] = ()

    @property
    def confirmed(self) -> bool:
        proven = self.server if self.claimed_view == "server" else self.third_party
        return self.claimed is None or (proven is not None and proven <= self.claimed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a theorem says of a configuration.

    Attributes:
        rows: a table of what does not fit into ``values``: a row for each phase, or scheme.
        fails: conditions of the theorem that the configuration does not meet.
        advised: false where by the theorem itself its runs are not worth making: they are shown without commands.
    """

    theorem: str
    values: Sequence[Value]
    constants: Sequence[Constant]
    rows: Sequence[Mapping[str, Any]] = ()
    fails: Sequence[str] = ()
    notes: Sequence[str] = ()
    proofs: Sequence[Proof] = ()
    advised: bool = True


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run of a file, for which a plan is asked.

    Attributes:
        constants: of the theorem, that are given. epsilon: the budget that is asked for; None: the configuration's.
    """

    experiment: dpfl.Experiment
    constants: Mapping[str, float] = field(default_factory=dict)
    epsilon: float | None = None

    @cached_property
    def config(self) -> Any:
        return self.experiment.config

    @cached_property
    def federation(self) -> Any:
        return federate(self.config, self.experiment.base)

    @property
    def num_records(self) -> list[int]:
        return [len(silo.train_y) for silo in self.federation.silos]

    @property
    def dimension(self) -> int:
        return dimension(self.config, self.federation)

    @property
    def setting(self) -> Setting:
        """What an algorithm may know of the run."""
        return make_setting(self.config, self.num_records)

    def changed(self, settings: Sequence[str]) -> dpfl.Experiment:
        """Return the run with these settings; of several for one key the last counts."""
        last = {setting.partition("=")[0]: setting for setting in [*self.experiment.settings, *settings]}
        return replace(self.experiment, settings=tuple(last.values()))

    def needed(self, name: str, why: str) -> float:
        """Return a constant of the theorem. Raises ConfigError where it is not given."""
        if name not in self.constants:
            raise ConfigError(f"--{name.replace('_', '-')} is missing: {why}")
        return self.constants[name]

    def needed_epsilon(self) -> float:
        if self.config.privacy.epsilon is None:
            raise ConfigError("--epsilon is missing, and the configuration has no privacy.epsilon.")
        return float(self.config.privacy.epsilon)

    def release(self) -> SampledGaussian:
        """Return what a release is charged as at the silo whose batches hold the largest part of its records.

        Raises:
            ConfigError: the noise is left open, or 0.
        """
        privacy = self.config.privacy
        if not privacy.noise_multiplier:
            raise ConfigError(
                "privacy.noise_multiplier must be given and above 0. Add --set privacy.noise_multiplier=NUMBER."
            )
        full = privacy.unit == "silo" or privacy.sampler == "full"
        rate = 1.0 if full else privacy.record_rate or privacy.batch_size / min(self.num_records)
        relation = NEIGHBOURS.get("full" if full else privacy.sampler, "add_or_remove")
        return SampledGaussian(
            noise_multiplier=privacy.noise_multiplier,
            sampler="full" if full else privacy.sampler,
            rate=rate,
            neighbouring=relation,
            unit=privacy.unit,
        )

    def local_steps(self) -> int:
        """Return K. Raises ConfigError where it is not the same in all rounds, on all records of a silo."""
        options = self.config.algorithm.options
        if not options.get("local_steps") or options.get("p"):
            raise ConfigError(
                "algorithm: the paper is of rounds with one fixed number of local steps on all records of a silo. Use "
                "scaffold or fedavg with local_steps."
            )
        return int(options["local_steps"])

    def proven(
        self,
        name: str,
        settings: Sequence[str],
        claimed: float | None = None,
        claimed_view: Literal["server", "third_party"] = "server",
    ) -> Proof:
        """Return what the accountant proves of a run with these settings; solves for noise that is left open.

        Raises:
            ConfigError: the run is not possible.
        """
        experiment = self.changed(settings)
        privacy = experiment.config.privacy

        spent: Mapping[str, float | None]
        if privacy.noise_multiplier is None:
            planned = dpfl.plan(experiment).run
            assert planned.value is not None
            noise, rounds, spent = planned.value, planned.rounds, planned.epsilon
            experiment = self.changed([*settings, f"privacy.noise_multiplier={noise:g}"])
        else:
            noise, rounds = privacy.noise_multiplier, experiment.config.rounds or 0
            rows = dpfl.account(experiment).rows
            by_view = {row.view: row.epsilon for row in rows if row.accountant.lower() == privacy.accountant.name}
            spent = {"server": by_view["server, worst case"], "third_party": by_view["third party"]}
        words = ["dpfl", "run", str(experiment.path)]
        words += [] if experiment.variant is None else ["--variant", experiment.variant]
        return Proof(
            name=name,
            rounds=rounds,
            noise=(noise,),
            claimed=claimed,
            claimed_view=claimed_view,
            server=spent["server"],
            third_party=spent["third_party"],
            delta=privacy.delta,
            command=(*words, *(word for setting in experiment.settings for word in ("--set", setting))),
        )


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear classifier on records of norm at most 1, started at 0: what is known of its loss without any record."""

    model: Classifier
    bias: bool
    num_classes: int

    def smoothness(self, l2: float) -> float:
        """L of a silo's mean loss with its regulariser."""
        return _CURVATURE[self.model] * (1 + self.bias) + l2

    @property
    def lipschitz(self) -> float:
        """L of a record's loss, without a regulariser: sqrt(1 + bias) times the longest gradient in the scores."""
        return math.sqrt((1 if self.model == "logistic" else 2) * (1 + self.bias))

    @property
    def initial_loss(self) -> float:
        """F(0)."""
        return math.log(self.num_classes)


def linear(case: Case) -> Linear | None:
    """Return what is known of a linear classifier; None if the configuration is of another kind."""
    config, model = case.config, case.config.model
    steps = [step.name for step in config.data.preprocess if step.name != "parity"]  # which changes labels only
    own = {"logistic": "logistic", "softmax": "cross_entropy"}
    if case.federation.outcome.kind != "classes" or model.name not in own or steps[-1:] != ["unit_norm"]:
        return None
    if config.loss not in ("auto", own[model.name]):
        return None
    return Linear(model.name, bool(model.options.get("bias", True)), case.federation.num_classes)


def convexity(case: Case, theorem: str) -> tuple[Constant, Constant]:
    """Return mu and L, given or known without records.

    Raises:
        ConfigError: neither, or the losses are not strongly convex.
    """
    config, known = case.config, linear(case)
    if known is None or "strong_convexity" in case.constants:
        mu = Constant("mu", case.needed("strong_convexity", _unknown("mu")), "--strong-convexity")
    else:
        require(config.l2 > 0, "l2", config.l2, f"be above 0: {theorem} is for strongly convex losses", "Use l2=0.005.")
        mu = Constant("mu", config.l2, "l2 of the configuration")
    if known is None or "smoothness" in case.constants:
        L = Constant("L", case.needed("smoothness", _unknown("L")), "--smoothness")
    else:
        factor = "1/4" if known.model == "logistic" else "1/2"
        source = f"{factor} ||(x{', 1' * known.bias})||^2 + l2 of {NORM_1}"
        L = Constant("L", known.smoothness(config.l2), source)
    require(mu.value <= L.value, "--strong-convexity", mu.value, f"be at most L = {L.value:.6g}")
    return mu, L


def _unknown(name: str) -> str:
    return (
        f"{name} is known without looking at records for model: logistic or softmax with their own loss and {NORM_1}, "
        "as the last step of data.preprocess."
    )


def most(fits: Callable[[int], bool], limit: int = MOST) -> int:
    """Return the largest number up to ``limit`` that fits, where all below it do; 0 if none does."""
    low, high = 0, 1
    while high <= limit and fits(high):
        low, high = high, 2 * high
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def number(value: float, *, down: bool = False) -> float:
    """Round to 6 significant digits, down if it must not grow."""
    rounded = float(f"{value:.6g}")
    return rounded if not down or rounded <= value else float(f"{value * (1 - 1e-6):.6g}")
