"""`dpfl.plan`: the noise, rounds, local steps, participation cap or record rate that a privacy budget allows."""

from __future__ import annotations

import contextlib
import functools
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from dpfl_plugin import own_folders, terminal
from dpfl_plugin.algorithms.base import Algorithm
from dpfl_plugin.api.experiment import Experiment, experiment_of
from dpfl_plugin.api.runs import Run
from dpfl_plugin.config.blocks import Block
from dpfl_plugin.config.load import Variant, in_file, load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.core.text import Printed
from dpfl_plugin.errors import ConfigError, DataError, UnsupportedError, is_real, require
from dpfl_plugin.privacy.pld import check_delta
from dpfl_plugin.runs.forecast import MOST_PLANNED, Forecast, forecast
from dpfl_plugin.runs.plugins import algorithm_options, build_plugin
from dpfl_plugin.runs.prepare import slots_ahead, total_with
from dpfl_plugin.runs.records import check_records
from dpfl_plugin.runs.start_notes import total_with_others

KEYS: Final = {
    "noise_multiplier": "privacy.noise_multiplier",
    "rounds": "rounds",
    "local_steps": "algorithm.local_steps",
    "max_participations": "max_participations",
    "record_rate": "privacy.record_rate",
}
"""What can be solved for: keys of the configuration."""
RATES: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0)
"""Record rates that are tried: 1/s is a whole number, as fedsgd takes it."""
NEAR: Final = 1.1
"""A batch is large enough if the noise on its mean is at most so many times what it is with all records."""


@dataclass(frozen=True, slots=True)
class TriedRate:
    """A record rate within the budget.

    Attributes:
        rate: s, fraction of the records in a batch.
        noise_multiplier: the least with which all rounds fit.
        noise: its standard deviation in each coordinate of a silo's mean gradient, of the smallest silo.
    """

    rate: float
    noise_multiplier: float
    noise: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """What a budget allows one run.

    Attributes:
        run: its label.
        solved: the key that was solved for.
        value: None if the run is not private; ``why`` says so.
        budget: its ``epsilon``, ``delta`` and ``view``.
        settings: changes of the configuration for a run of the answer, "key=value" as ``--set`` has them.
        command: that starts this run; empty if only this process has its records.
        at_limit: whether more would fit, too, but was not tried.
        rounds: that will be run.
        epsilon: of the views "server" and "third_party".
        tried: record rates, if one is solved for.
        capped: a cap on how often each silo takes part (``max_participations``), and the noise that it takes, where
            noise is solved for silos that are drawn.
        warning: why so much noise deserves a second thought, or "".
        total: what the ledger that the configuration names comes to with this run, whatever decided on its runs:
            "epsilon" (None: no total holds), "delta", "why", "ledger" and "num_runs", which it holds; None where it
            holds none.
    """

    run: str
    solved: str
    value: float | None
    why: str = ""
    budget: Mapping[str, Any] = field(default_factory=dict)
    accountant: str = ""
    settings: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    at_limit: bool = False
    rounds: int = 0
    epsilon: Mapping[str, float] = field(default_factory=dict)
    tried: tuple[TriedRate, ...] = ()
    capped: Mapping[str, float] | None = None
    warning: str = ""
    total: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As one run of ``--json``."""
        if self.value is None:
            return {"solved": self.solved, "value": None, "why": self.why}
        optional = {
            "warning": self.warning,
            "tried": [asdict(item) for item in self.tried],
            "capped": self.capped,
            "command": list(self.command),
            "total": self.total,
        }
        return {
            "solved": self.solved,
            "value": self.value,
            "asked": dict(self.budget),
            "accountant": self.accountant,
            "set": list(self.settings),
            "at_limit": self.at_limit,
            "rounds": self.rounds,
            "epsilon": dict(self.epsilon),
            **{key: value for key, value in optional.items() if value},
        }


@dataclass(frozen=True, slots=True)
class BudgetPlan(Printed):
    """What a budget allows each run of an experiment.

    Attributes:
        runs: in the order of the file's variants.
    """

    runs: tuple[PlannedRun, ...]

    @property
    def run(self) -> PlannedRun:
        """The run, if there is one.

        Raises:
            ConfigError: there are several.
        """
        if len(self.runs) > 1:
            raise ConfigError(
                f"there are several variants: {', '.join(item.run for item in self.runs)}. Choose of runs."
            )
        return self.runs[0]

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints: of one run; by label if there are several."""
        documents = {item.run: item.to_dict() for item in self.runs}
        return documents if len(documents) > 1 else self.run.to_dict()

    def __str__(self) -> str:
        return terminal.printed(lambda console: _show(console, self.runs))

    __repr__ = __str__


def plan(
    experiment: Experiment | Run | str | Path,
    *,
    solve: str = "noise_multiplier",
    epsilon: float | None = None,
    delta: float | None = None,
    view: str | None = None,
) -> BudgetPlan:
    """The noise, rounds, local steps, cap or record rate that a privacy budget allows; trains nothing.

    Args:
        solve: "noise_multiplier", the least; "rounds", "local_steps" or "max_participations", the most; or
            "record_rate", the smallest that has next to the least noise on a mean gradient.
        epsilon, delta: the budget; view: whose it is, "server" or "third_party". None: the configuration's.

    Raises:
        ConfigError, DataError: an argument, the configuration or its records are wrong; or not even the least of what
            is solved for fits, and the message says what to raise, and by how much.
    """
    require(solve in KEYS, "solve", solve, f"be one of {', '.join(KEYS)}")
    require(view in (None, "server", "third_party"), "view", view, "be server or third_party")
    require(
        epsilon is None or (is_real(epsilon) and 0 < epsilon < math.inf), "epsilon", epsilon, "be positive and finite"
    )
    if delta is not None:
        check_delta(delta)
    budget = {"epsilon": epsilon, "delta": delta, "budget_view": view}
    budget = {key: value for key, value in budget.items() if value is not None}
    experiment = experiment_of(experiment)
    own_folders.look_in(experiment.base)
    variants = load(experiment.path, experiment.settings, variant=experiment.variant, budget=budget).variants
    runs = []
    for variant in variants:
        if variant.config.privacy.noise_multiplier == 0 and len(variants) > 1:
            why = "not private: its noise_multiplier is 0"
            runs.append(PlannedRun(run=_label(variant), solved=solve, value=None, why=why))
            continue
        try:
            runs.append(_planned(experiment, variant, solve, budget))
        except (ConfigError, DataError) as error:
            raise in_file(error, experiment.path, variant) from error
    return BudgetPlan(tuple(runs))


def _label(variant: Variant) -> str:
    return variant.label or variant.config.name


def _planned(experiment: Experiment, variant: Variant, solve: str, budget: Mapping[str, Any]) -> PlannedRun:
    config = variant.config
    privacy = config.privacy.model_copy(update=dict(budget))  # also where its noise multiplier is 0
    if privacy.epsilon is None:
        raise ConfigError("epsilon is missing: the configuration has no privacy.epsilon.")
    ahead = forecast(config.model_copy(update={"privacy": privacy}), experiment.base)
    ahead.check()
    tried: list[tuple[TriedRate, Forecast]] = []
    if solve == "record_rate":
        tried = _rates(ahead)
        least = min(item.noise for item, _ in tried)
        best, solution = next((item, there) for item, there in tried if item.noise <= NEAR * least)
        value, noise = best.rate, best.noise_multiplier
    else:
        value, solution = _solved(ahead, solve)
        noise = value
    costs = solution.costs(solution.config.rounds or MOST_PLANNED)
    account = solution.unlimited().account(costs=costs)
    epsilons = {"server": account.epsilon_ahead("server"), "third_party": account.epsilon_ahead("third_party")}
    if not value:
        raise _unfit(solution, solve, epsilons[privacy.budget_view])
    settings = [*experiment.settings, *_budget_settings(experiment, variant, solve, budget)]
    if solve != "noise_multiplier":
        settings.append(f"{KEYS[solve]}={value}")
    if solve == "record_rate" and privacy.batch_size is not None:
        settings.append("privacy.batch_size=null")
    if (
        solve in ("noise_multiplier", "record_rate") and privacy.noise_multiplier is not None
    ):  # others solve for the same by themselves
        settings.append(f"privacy.noise_multiplier={noise:g}")
    words = ["dpfl", "run", str(experiment.path), *([] if variant.label is None else ["--variant", variant.label])]
    words += [word for setting in settings for word in ("--set", setting)]
    own_noise = solution.config.privacy.noise_multiplier or 0.0
    slots = functools.partial(slots_ahead, solution, own_noise, len(costs))
    return PlannedRun(
        run=_label(variant),
        solved=solve,
        value=value,
        budget={"epsilon": privacy.epsilon, "delta": privacy.delta, "view": privacy.budget_view},
        accountant=ahead.accountant.name,
        settings=tuple(settings),
        command=() if experiment.held is not None else tuple(words),
        at_limit=solve in ("rounds", "local_steps") and value == MOST_PLANNED,
        rounds=len(costs),
        epsilon=epsilons,
        tried=tuple(item for item, _ in tried),
        capped=ahead.capped(value) if solve == "noise_multiplier" else None,
        warning=solution.weak_signal(value, costs) if solve == "noise_multiplier" else "",
        total=total_with(solution.config, experiment.base, slots),
    )


def _budget_settings(experiment: Experiment, variant: Variant, solve: str, budget: Mapping[str, Any]) -> list[str]:
    """The budget as settings.

    Noise that is solved for is the budget's, so that a run is told one of them, by which the file goes: a file that
    names its noise multiplier, and no epsilon, gets no epsilon.
    """
    settings = [f"privacy.{key}={value}" for key, value in budget.items()]
    if solve not in ("noise_multiplier", "record_rate") or variant.config.privacy.noise_multiplier is None:
        return settings
    try:
        (alone,) = load(experiment.path, experiment.settings, variant=variant.label).variants
    except ConfigError:  # another variant needs the budget
        return settings
    if alone.config.privacy.epsilon is not None:
        return settings
    return [setting for setting in settings if setting.startswith("privacy.delta=")]


def _solved(ahead: Forecast, solve: str) -> tuple[float, Forecast]:
    """What is solved for, and the run with it; with 1 if it is 0: nothing fits."""
    config, noise = ahead.config, ahead.config.privacy.noise_multiplier
    if solve != "rounds" and config.rounds is None:
        raise ConfigError("rounds is missing: only solve=rounds does without it.")
    if solve == "noise_multiplier":
        least = ahead.noise()
        return least, ahead.changed(noise_multiplier=least)
    if not noise:
        what = "is missing" if noise is None else "is 0, and without noise no epsilon holds"
        raise ConfigError(f"privacy.noise_multiplier {what}: solve={solve} needs it above 0, e.g. 4.")
    if solve == "rounds":
        rounds = ahead.rounds()
        return rounds, ahead.changed(rounds=max(1, rounds))
    if solve == "local_steps":
        with_steps = _with_steps(config)
        steps = ahead.local_steps(with_steps)
        return steps, replace(ahead, algorithm=with_steps(max(1, steps)))
    cap = ahead.max_participations()
    return cap, ahead.changed(max_participations=max(1, cap))


def _with_steps(config: Config) -> Callable[[int], Algorithm]:
    options = algorithm_options(config)
    name = config.algorithm.name or config.algorithm.module
    if "local_steps" not in options:
        raise ConfigError(f"algorithm: {name} has no option local_steps to solve for; it has {', '.join(options)}.")
    if config.algorithm.options.get("p") is not None:
        raise ConfigError(
            f"algorithm.p={config.algorithm.options['p']!r}: {name} draws its numbers of local steps, 1/p in the mean, "
            "so that there is none to solve for. Solve for noise_multiplier or rounds with another p, or fix the "
            "number: algorithm.p=null and algorithm.local_steps=1."
        )

    @functools.cache
    def with_steps(steps: int) -> Algorithm:
        block = Block(**{**config.algorithm.model_dump(), "local_steps": steps})
        algorithm: Algorithm = build_plugin("algorithms", block, where="algorithm")
        return algorithm

    return with_steps


def _rates(ahead: Forecast) -> list[tuple[TriedRate, Forecast]]:
    """What a run costs in noise at each of `RATES` that leaves a record to every batch, ascending, and the run."""
    privacy = ahead.config.privacy
    if privacy.sampler not in ("fixed", "poisson") or privacy.unit == "silo":
        why = "whole silos are protected" if privacy.unit == "silo" else f"sampler: {privacy.sampler} has none"
        raise ConfigError(
            f"privacy.record_rate: {why}, so that there is none to solve for. Solve for noise_multiplier."
        )
    smallest = ahead.setting.num_records or min(ahead.num_records)
    tried = []
    for rate in RATES:
        there = ahead.changed(record_rate=rate, batch_size=None, noise_multiplier=None)
        try:
            check_records(there.config, there.rules(there.config, 1.0), there.num_records, {})
        except ConfigError:  # a batch without a record
            continue
        there = replace(there, setting=replace(there.setting, record_rate=rate, batch_size=None))
        sigma = there.noise()
        rules = there.rules(there.config, sigma)
        noise = rules.sampler.sensitivity * rules.clip_norm * sigma / rules.sampler.divisor(smallest)
        tried.append((TriedRate(rate, sigma, noise), there.changed(noise_multiplier=sigma)))
    return tried


def _unfit(least: Forecast, solve: str, epsilon: float) -> ConfigError:
    """Why nothing fits, and what would.

    Args:
        least: the run with 1 of what is solved for; epsilon: its own, in the budget's view.
    """
    privacy, fixes = least.config.privacy, []
    with contextlib.suppress(ConfigError, UnsupportedError):  # no noise is enough
        fixes.append(f"privacy.noise_multiplier to {least.noise():g}")
    if math.isfinite(epsilon):
        fixes.append(f"epsilon (privacy.epsilon) to {digits(epsilon, 5)}")
    fix = f"Raise {', or '.join(fixes)}." if fixes else "Ask for a larger budget."
    return ConfigError(
        f"nothing fits epsilon {privacy.epsilon:g} at delta {privacy.delta:g} ({privacy.budget_view.replace('_', ' ')} "
        f"view) with privacy.noise_multiplier={privacy.noise_multiplier:g}: {KEYS[solve]}=1 is the least, and its "
        f"epsilon is {digits(epsilon, 5)}. {fix}"
    )


def _show(console: Console, runs: Sequence[PlannedRun]) -> None:
    """Print what was solved for, a line for each run; then what it means, and how each is run."""
    solve = runs[0].solved
    columns = list(dict.fromkeys((solve, "rounds")))  # which may be the same
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    for column in (*columns, "epsilon, server", "third party", "delta"):
        table.add_column(column, justify="right", no_wrap=True)
    lines = []
    for item in runs:
        if item.value is None:
            table.add_row(item.run, *["-"] * (len(columns) + 3))
            lines.append(f"{item.run}: {item.why}.")
            continue
        value = f"{item.value:g}" if solve == "noise_multiplier" else str(item.value)
        cells = [value + (" or more" if item.at_limit else ""), str(item.rounds)][: len(columns)]
        cells += [places(item.epsilon[view], 4) for view in ("server", "third_party")]
        table.add_row(item.run, *cells, digits(item.budget["delta"], 6))
        how = shlex.join(item.command) if item.command else f"with {', '.join(item.settings)}"
        lines.append(f"{item.run}: {how}")
        lines += [
            f"{item.run}: record_rate {rate.rate:g}: noise_multiplier {digits(rate.noise_multiplier, 4)}, and noise "
            f"of {rate.noise:.3g} on each number of a mean gradient"
            for rate in item.tried
        ]
        if item.capped is not None:
            cap, noise = item.capped["max_participations"], digits(item.capped["noise_multiplier"], 4)
            lines.append(
                f"{item.run}: max_participations={cap} would take noise_multiplier {noise}: each silo then takes part "
                f"in at most {cap} rounds, and the run ends early if too few are left."
            )
        lines += [f"{item.run}: warning: {item.warning}."] if item.warning else []
        if item.total is not None:
            lines.append(f"{item.run}: {total_with_others(item.total)}.")
    terminal.show_table(console, table)
    for item in [item for item in runs if item.value is not None][:1]:
        console.print(
            f"Solved for {solve}: {item.budget['view'].replace('_', ' ')} view, accountant {item.accountant}. The "
            "server's epsilon is that of a silo in every round, or in as many as its cap allows: it holds whoever is "
            "drawn."
        )
        if solve == "record_rate":
            console.print(
                "The record_rate is the smallest that was tried whose noise on a mean gradient is at most "
                f"{NEAR - 1:.0%} above the least: larger batches cost computing, and gain next to nothing."
            )
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
