"""What the plans of all papers share: what is given, what is prescribed, and what the accountant proves of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from dpfl_plugin.algorithms.base import Setting
from papers.plans.bounds import Classifier
from dpfl_plugin.config.load import load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.data.base import Federation
from dpfl_plugin.errors import ArgumentError, require_argument
from dpfl_plugin.privacy.views import View
from dpfl_plugin.runs.algorithm_setting import make_setting
from dpfl_plugin.runs.forecast import forecast
from dpfl_plugin.runs.plan_request import Question
from dpfl_plugin.runs.setting import dimension, federate

OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "scaffnew": ("psi0", "strong_convexity", "smoothness", "from_records"),
    "gao": ("smoothness", "lipschitz", "distance"),
    "noble": (),
    "chang": ("beta", "threshold"),
    "li": ("strong_convexity", "smoothness"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Constants of theorems that are given, each None if it is not; see `dpfl plan --help`."""

    psi0: float | None = None
    strong_convexity: float | None = None
    smoothness: float | None = None
    lipschitz: float | None = None
    distance: float | None = None
    beta: float | None = None
    threshold: int | None = None
    from_records: bool | None = None

    def check(self, paper: str | None) -> None:
        """Raise ConfigError for an option of another paper, or out of its range."""
        require_argument(paper is None or paper in OPTIONS, "paper", paper, f"be one of {', '.join(OPTIONS)}")
        for name in (one.name for one in fields(self) if getattr(self, one.name) is not None):
            if name not in OPTIONS.get(paper or "", ()):
                of = " or ".join(f"{{paper={other}}}" for other, names in OPTIONS.items() if name in names)
                raise ArgumentError(f"{{{name}}} belongs to {of}: leave it out.")
        for name in ("psi0", "strong_convexity", "smoothness", "lipschitz", "distance"):
            value = getattr(self, name)
            require_argument(value is None or 0 < value < math.inf, name, value, "be positive and finite")
        require_argument(self.beta is None or 0 < self.beta <= 1, "beta", self.beta, "be in (0, 1]")
        known = self.threshold is None or self.threshold >= 0
        require_argument(known, "threshold", self.threshold, "be at least 0")
        if self.from_records and self.psi0 and self.smoothness:
            raise ArgumentError("{from_records} has nothing to find: {psi0} and {smoothness} are given.")


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that a theorem needs, and where it came from."""

    name: str
    value: float
    source: str
    from_records: bool = False  # then it tells something of them


@dataclass(frozen=True, slots=True)
class Value:
    """A number that a theorem prescribes, and what it is."""

    name: str
    value: float | int
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Settings to run; ``claimed``: the epsilon that the paper claims of them, towards whom."""

    name: str
    settings: tuple[str, ...]
    claimed: float | None = None
    claimed_view: View = "server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prescription:
    """What a theorem says of a configuration.

    Attributes:
        rows: a table of what does not fit into ``values``: a row for each phase, or scheme.
        fails: conditions of the theorem that the configuration does not meet.
        proofs: rows as `Proof` gives them, of what no run can be made of.
        advised: false where by the theorem itself its runs are not worth making: they are shown without commands.
    """

    theorem: str
    values: Sequence[Value]
    constants: Sequence[Constant]
    rows: Sequence[dict[str, Any]] = ()
    fails: Sequence[str] = ()
    notes: Sequence[str] = ()
    proofs: Sequence[dict[str, Any]] = ()
    runs: Sequence[Run] = ()
    advised: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run of a file, for which a plan is asked."""

    question: Question
    given: Given
    label: str | None
    config: Config
    federation: Federation = field(repr=False)

    @classmethod
    def of(cls, question: Question, given: Given, label: str | None, config: Config) -> Case:
        federation = federate(config, question.base)
        return cls(question=question, given=given, label=label, config=config, federation=federation)

    @property
    def setting(self) -> Setting:
        return make_setting(self.config, self.num_records, self.federation.names)

    @property
    def num_records(self) -> list[int]:
        return [len(silo.train_y) for silo in self.federation.silos]

    @property
    def dimension(self) -> int:
        return dimension(self.config, self.federation)

    def changed(self, settings: Sequence[str]) -> Config:
        """The configuration that ``dpfl run`` makes of these settings."""
        given = self.settings(settings)
        return load(self.question.path, given, variant=self.label).variants[0].config

    def settings(self, more: Sequence[str]) -> list[str]:
        """Of the command line and ``more``; of several for one key the last."""
        last = {setting.partition("=")[0]: setting for setting in [*self.question.given, *more]}
        return list(last.values())

    def needed_epsilon(self) -> float:
        if self.config.privacy.epsilon is None:
            raise ArgumentError("{epsilon} is missing, and the configuration has no privacy.epsilon.")
        return self.config.privacy.epsilon

    def proven(self, run: Run) -> dict[str, Any]:
        """What the accountant proves of a run, and the command that makes it; solves for noise that is left open.

        Raises:
            ConfigError: the run is not possible.
        """
        config = self.changed(run.settings)
        ahead = forecast(config, self.question.base, federation=self.federation)
        noise, settings = config.privacy.noise_multiplier, self.settings(run.settings)
        if noise is None:
            noise = ahead.noise()
            settings = self.settings([*run.settings, f"privacy.noise_multiplier={noise:g}"])
        costs = ahead.costs(config.rounds or 1, noise)
        account = ahead.unlimited().account(noise, costs)
        return {
            "name": run.name,
            "rounds": len(costs),
            "noise_multiplier": noise,
            "claimed_epsilon": run.claimed,
            "claimed_view": run.claimed_view,
            "epsilon": {view: account.epsilon_ahead(view) for view in ("server", "third_party")},
            "delta": config.privacy.delta,
            "accountant": ahead.accountant.name,
            "set": settings,
            "command": self.question.command(self.label, settings),
        }


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear classifier on records of norm at most 1, started at 0: what is known of its loss without any record."""

    model: Classifier
    bias: bool
    num_classes: int


NORM_1: Final = "records of norm 1 (unit_norm)"


def linear(case: Case) -> Linear | None:
    """None if the configuration is not of that kind."""
    config, model = case.config, case.config.model
    steps = [step.name for step in config.data.preprocess if step.name != "parity"]  # which changes labels only
    if case.federation.outcome.kind != "classes":
        return None
    if model.name not in ("logistic", "softmax") or steps[-1:] != ["unit_norm"]:
        return None
    if config.loss not in ("auto", "logistic" if model.name == "logistic" else "cross_entropy"):
        return None
    kind: Classifier = "logistic" if model.name == "logistic" else "softmax"
    return Linear(kind, bool(model.options.get("bias", True)), case.federation.num_classes)


def number(value: float, *, down: bool = False) -> float:
    """With 6 significant digits, rounded down if it must not grow."""
    rounded = float(f"{value:.6g}")
    return rounded if not down or rounded <= value else float(f"{value * (1 - 1e-6):.6g}")
