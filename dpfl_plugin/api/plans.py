"""What a budget allows, before anything is trained."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpfl_plugin.algorithms.base import Algorithm
from dpfl_plugin.api.experiment import Experiment, experiment_of
from dpfl_plugin.api.plan_text import KEYS, Answer, Planned, PlannedVariants
from dpfl_plugin.api.rates import enough, rates
from dpfl_plugin.api.running import in_file
from dpfl_plugin.api.runs import Run
from dpfl_plugin.config.blocks import Block
from dpfl_plugin.config.load import Variant, load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.errors import ConfigError, DataError, UnsupportedError, require
from dpfl_plugin.runs.forecast import MOST_PLANNED, Forecast, forecast, strain
from dpfl_plugin.runs.plan_request import Question
from dpfl_plugin.runs.plugins import algorithm_options, build_plugin

__all__ = ["Answer", "Question", "plan", "plans"]


class UnfitError(ConfigError):
    """Not even the least of what is solved for fits the budget; the message says what to raise, and by how much."""


def plan(
    experiment: Experiment | Run | str | Path,
    *,
    solve: str | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    view: str | None = None,
) -> Any:
    """The noise, rounds, local steps, cap or record rate that a privacy budget allows, as `dpfl plan`.

    Args:
        solve: "sigma" (default), the least noise multiplier; "rounds", "steps" (local), "cap" (participations), the
            most; "rate", the smallest record rate that has next to the least noise on a mean gradient, and its noise
            multiplier: the answer's ``tried`` has others.
        epsilon, delta: the budget; view: whose it is, "server" or "third_party". None: the configuration's.

    Returns:
        a mapping for each run: its ``value`` (None, and ``why``, where not even 1 fits), the ``epsilon`` of each view,
        ``set`` and ``command`` to run it. By label where there are several variants. ``print`` shows them as the
        command does.

    Raises:
        ConfigError, DataError: an argument, the configuration or its records are wrong; nothing fits the budget, and
            the message says what to raise, and by how much.
    """
    asked = experiment_of(experiment)
    found = plans(question_of(asked, epsilon=epsilon, delta=delta, view=view), solve)
    if asked.held is not None:  # no other process has these records
        found = {label: _without_command(answer) for label, answer in found.items()}
    ((label, answer), *others) = found.items()
    return PlannedVariants(found) if others else Planned(answer, label)


def _without_command(answer: Answer) -> Answer:
    return {key: value for key, value in answer.items() if key != "command"}


def question_of(
    experiment: Experiment,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    view: str | None = None,
) -> Question:
    """A question about an experiment; arguments as those of `plan`."""
    return Question(
        path=experiment.path,
        settings=experiment.settings,
        variant=experiment.variant,
        epsilon=epsilon,
        delta=delta,
        view=view,
    )


def plans(question: Question, solve: str | None = None) -> dict[str, Answer]:
    """As `plan`, by label."""
    solve = "sigma" if solve is None else solve
    require(solve in KEYS, "solve", solve, f"be one of {', '.join(KEYS)}")
    variants = question.variants()
    answers: dict[str, Answer] = {}
    for variant in variants:
        label, config = variant.label or variant.config.name, variant.config
        if config.privacy.noise_multiplier == 0 and len(variants) > 1:
            answers[label] = {"solved": solve, "value": None, "why": "not private: its noise_multiplier is 0"}
            continue
        try:
            ahead = forecast(question.with_budget(config), question.base)
            ahead.check()
        except (ConfigError, DataError) as error:
            raise in_file(error, question.path, variant) from error
        try:
            answer = _solved(ahead, solve, _given(question, variant, solve))
        except UnfitError as error:
            raise in_file(error, question.path, variant) from error
        answers[label] = {**answer, "command": question.command(variant.label, answer["set"])}
    return answers


def _given(question: Question, variant: Variant, solve: str) -> list[str]:
    """What changes the file for a run of the answer, as settings.

    Noise that is solved for is the budget's, so that a run is told one of them, by which the file goes: a file that
    names its noise multiplier, and no epsilon, gets no epsilon.
    """
    if solve not in ("sigma", "rate") or variant.config.privacy.noise_multiplier is None:
        return question.given
    try:
        (alone,) = load(question.path, question.settings, variant=variant.label).variants
    except ConfigError:  # another variant needs the budget
        return question.given
    if alone.config.privacy.epsilon is not None:
        return question.given
    without = {key: value for key, value in question.budget.items() if key == "delta"}
    return [*question.settings, *(f"privacy.{key}={value}" for key, value in without.items())]


def _solved(ahead: Forecast, solve: str, given: list[str]) -> Answer:
    config = ahead.config
    answer = functools.partial(_answer, ahead, solve, given)
    if solve != "rounds" and config.rounds is None:
        raise ConfigError(f"rounds is missing: solve={solve} needs it. Use rounds=..., or solve=rounds.")
    if solve not in ("sigma", "rate") and not config.privacy.noise_multiplier:
        what = "is missing" if config.privacy.noise_multiplier is None else "is 0, and without noise no epsilon holds"
        raise ConfigError(
            f"privacy.noise_multiplier {what}: solve={solve} needs it above 0. Add privacy.noise_multiplier=NUMBER."
        )
    match solve:
        case "sigma":
            return answer(noise := ahead.noise(), ahead.changed(noise_multiplier=noise))
        case "rounds":
            return answer(rounds := ahead.rounds(), ahead.changed(rounds=max(1, rounds)))
        case "steps":
            with_steps = _with_steps(config)
            steps = ahead.local_steps(with_steps)
            return answer(steps, replace(ahead, algorithm=with_steps(max(1, steps))))
        case "rate":
            return _rate_answer(ahead, given)
        case _:
            cap = ahead.max_participations()
            return answer(cap, ahead.changed(max_participations=max(1, cap)))


def _rate_answer(ahead: Forecast, given: list[str]) -> Answer:
    tried = rates(ahead)
    best = enough(tried)
    found = _answer(best.ahead, "rate", given, best.rate, best.ahead)
    no_size = [] if ahead.config.privacy.batch_size is None else ["privacy.batch_size=null"]
    return {
        **found,
        "set": [*found["set"], *no_size, *_noise(ahead, best.noise_multiplier)],
        "tried": [{"rate": one.rate, "noise_multiplier": one.noise_multiplier, "noise": one.noise} for one in tried],
    }


def _with_steps(config: Config) -> Callable[[int], Algorithm]:
    options = algorithm_options(config)
    name = config.algorithm.name or config.algorithm.module
    if "local_steps" not in options:
        raise ConfigError(
            f"algorithm: {name} has no option local_steps for solve=steps to solve for; it has {', '.join(options)}."
        )

    if config.algorithm.options.get("p") is not None:
        raise ConfigError(
            f"algorithm.p={config.algorithm.options['p']!r}: {name} draws its numbers of local steps, 1/p in the mean, "
            "so that there is none to solve for. Use solve=sigma or solve=rounds with another p, or fix the "
            "number: algorithm.p=null algorithm.local_steps=1 solve=steps."
        )

    def with_steps(steps: int) -> Algorithm:
        block = Block(**{**config.algorithm.model_dump(), "local_steps": steps})
        algorithm: Algorithm = build_plugin("algorithms", block, where="algorithm")
        return algorithm

    return functools.cache(with_steps)


def _answer(ahead: Forecast, solve: str, given: list[str], value: float, then: Forecast) -> Answer:
    """The value with the epsilons that it gives, the rounds that will be run with it, and the settings to run them.

    Args:
        then: the run with the value; with 1 where the value is 0: nothing fits.

    Raises:
        UnfitError: the value is 0.
    """
    privacy = ahead.config.privacy
    asked = {"epsilon": privacy.epsilon, "delta": privacy.delta, "view": privacy.budget_view}
    costs = then.costs(then.config.rounds or MOST_PLANNED)
    account = then.unlimited().account(costs=costs)
    server, third_party = (account.epsilon_ahead(view) for view in ("server", "third_party"))
    if not value:
        raise _unfit(then, solve, server if privacy.budget_view == "server" else third_party)
    answer: Answer = {"solved": solve, "value": value, "asked": asked, "accountant": ahead.accountant.name}
    if solve == "sigma" and (why := strain(value)):
        answer["warning"] = why
    return {
        **answer,
        "set": [*given, *(_noise(ahead, value) if solve == "sigma" else [f"{KEYS[solve]}={value}"])],
        "at_limit": solve in ("rounds", "steps") and value == MOST_PLANNED,
        "rounds": len(costs),
        "epsilon": {"server": server, "third_party": third_party},
    }


def _noise(ahead: Forecast, noise_multiplier: float) -> list[str]:
    """Noise that was solved for, as a setting of a file that names it; others solve for the same by themselves."""
    named = ahead.config.privacy.noise_multiplier is not None
    return [f"{KEYS['sigma']}={noise_multiplier:g}"] if named else []


def _unfit(least: Forecast, solve: str, epsilon: float) -> UnfitError:
    """Why nothing fits, and what would.

    Args:
        least: the run with 1 of what is solved for; epsilon: its own, in the budget's view.
    """
    privacy, key = least.config.privacy, KEYS[solve]
    mends = [f"the budget to {digits(epsilon, 5)} (epsilon, or privacy.epsilon)"] if math.isfinite(epsilon) else []
    with contextlib.suppress(ConfigError, UnsupportedError):  # no noise is enough
        mends.insert(0, f"{KEYS['sigma']} to {least.noise():g}")
    mend = f"Raise {', or '.join(mends)}." if mends else "Ask for a larger budget."
    return UnfitError(
        f"nothing fits epsilon {privacy.epsilon:g} at delta {privacy.delta:g} ({privacy.budget_view.replace('_', ' ')} "
        f"view) with {KEYS['sigma']}={privacy.noise_multiplier:g}: {key}=1 is the least, and its epsilon is "
        f"{digits(epsilon, 5)}. {mend}"
    )
