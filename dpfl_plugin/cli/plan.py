"""`dpfl plan`: the noise, rounds, local steps or participation cap that a privacy budget allows."""

from __future__ import annotations

import functools
import math
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from dpfl_plugin import own_folders
from dpfl_plugin.algorithms.base import Algorithm
from dpfl_plugin.api.numbers import calibrate
from dpfl_plugin.cli import fitting
from dpfl_plugin.cli.account import MECHANISMS, WIDTH, mechanism_release, named_accountant
from dpfl_plugin.config.load import Variant, base_of, load
from dpfl_plugin.config.schema import Block, Config
from dpfl_plugin.errors import ConfigError, require
from dpfl_plugin.privacy.calibration import max_rounds
from dpfl_plugin.privacy.events import Term
from dpfl_plugin.privacy.pld import check_delta
from dpfl_plugin.privacy.prior import Prior
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.training.folder import to_json
from dpfl_plugin.training.job import shared_prior
from dpfl_plugin.training.locations import folder_of, key_of
from dpfl_plugin.training.plugins import algorithm_options, build_plugin
from dpfl_plugin.training.prospect import MOST_PLANNED, Prospect, prospect, strain

MOST_RELEASES: Final = 10**7
KEYS: Final = {
    "sigma": "privacy.noise_multiplier",
    "rounds": "rounds",
    "steps": "algorithm.local_steps",
    "cap": "max_participations",
}

Answer = dict[str, Any]


# By numbers


def plan_mechanism(
    mechanism: str,
    q: float | None,
    sigma: float | None,
    steps: int | None,
    epsilon: float | None,
    delta: float | None,
    solve: str | None,
    accountant: str,
    *,
    as_json: bool,
) -> None:
    """Print the least noise of ``steps`` releases, or the most releases at noise ``sigma``."""
    solve = solve or ("sigma" if sigma is None else "steps")
    require(
        solve in ("sigma", "steps"),
        "--solve",
        solve,
        "be sigma or steps with --mechanism",
        "rounds and cap need CONFIG.",
    )
    given: dict[str, float | None] = {"--sigma": sigma, "--steps": steps, "--epsilon": epsilon, "--delta": delta}
    solved = f"--{solve}"
    if given.pop(solved) is not None:
        raise ConfigError(f"{solved} is what --solve {solve} finds: leave it out, or solve for another.")
    for name, value in given.items():
        if value is None:
            raise ConfigError(
                f"{name} is missing: --mechanism with --solve {solve} needs {', '.join(given)} (and --q)."
            )
    assert epsilon is not None
    assert delta is not None
    _check_budget(epsilon, delta)
    chosen = named_accountant(accountant)

    def term(noise: float, releases: int) -> Term:
        return Term(release=mechanism_release(mechanism, q, noise), count=1, rounds=releases)

    if solve == "sigma":
        assert steps is not None
        require(steps >= 1, "--steps", steps, "be at least 1")
        release = mechanism_release(mechanism, q, 1.0)  # whose messages name the options
        sigma = calibrate(
            epsilon=epsilon,
            record_rate=release.rate,
            steps=steps,
            delta=delta,
            sampler=MECHANISMS[mechanism][0],
            accountant=accountant,
        ).noise_multiplier
        found = f"noise_multiplier {sigma:g}"
    else:
        assert sigma is not None
        require(0 < sigma < math.inf, "--sigma", sigma, "be positive and finite: without noise no epsilon holds")
        steps = max_rounds(chosen, term(sigma, 1), (), epsilon, delta, MOST_RELEASES)
        found = f"{steps} releases" + (" or more" if steps == MOST_RELEASES else "")
    own = chosen.epsilon([term(sigma, steps)], delta)
    if as_json:
        numbers = {"noise_multiplier": sigma, "steps": steps, "epsilon": own, "delta": delta}
        print(
            to_json(
                {
                    "solved": KEYS["sigma"].split(".")[1] if solve == "sigma" else "steps",
                    **numbers,
                    "accountant": chosen.name,
                }
            )
        )
    else:
        print(f"{found}: epsilon {own:.6g} at delta {delta:g} (accountant {chosen.name})")


def _check_budget(epsilon: float, delta: float) -> None:
    require(0 < epsilon < math.inf, "--epsilon", epsilon, "be positive and finite")
    check_delta(delta)


# Of a configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line says of a plan of a configuration.

    Attributes:
        settings: "key=value", as ``--set`` has them.
        epsilon, delta, view: of the budget; the configuration's where None.
        ledger: a shared ledger, whose earlier runs the budget is for, too.
        variant: the one run of the file that is asked for.
    """

    path: Path
    settings: list[str]
    epsilon: float | None = None
    delta: float | None = None
    view: str | None = None
    ledger: Path | None = None
    variant: str | None = None

    def __post_init__(self) -> None:
        require(self.view in (None, "server", "third_party"), "--view", self.view, "be server or third_party")
        if self.epsilon is not None:
            require(0 < self.epsilon < math.inf, "--epsilon", self.epsilon, "be positive and finite")
        if self.delta is not None:
            check_delta(self.delta)

    @property
    def base(self) -> Path:
        """Where the configuration's relative paths begin."""
        return base_of(self.path)

    @property
    def budget(self) -> dict[str, Any]:
        """The keys of ``privacy`` that are given."""
        given = {"epsilon": self.epsilon, "delta": self.delta, "budget_view": self.view}
        return {key: value for key, value in given.items() if value is not None}

    @property
    def given(self) -> list[str]:
        """Everything that changes the file, as settings."""
        return [*self.settings, *(f"privacy.{key}={value}" for key, value in self.budget.items())]

    def variants(self) -> tuple[Variant, ...]:
        """The runs that are asked for; private ones have the budget of the command line."""
        own_folders.look_in(self.base)
        return load(self.path, self.settings, variant=self.variant, budget=self.budget).variants

    def command(self, label: str | None, settings: list[str]) -> list[str]:
        """The words of ``dpfl run`` for one run of the file."""
        words = ["dpfl", "run", str(self.path)]
        words += [] if label is None else ["--variant", label]
        words += [] if self.ledger is None else ["--ledger", str(self.ledger)]
        return [*words, *(word for setting in settings for word in ("--set", setting))]

    def prior(self) -> Callable[[str, int, PrivacyRules], Prior] | None:
        return None if self.ledger is None else shared_prior(self.ledger)


def plan_file(asked: Asked, solve: str, *, as_json: bool) -> None:
    """Print what is solved for, for each variant of a file."""
    require(solve in KEYS, "--solve", solve, f"be one of {', '.join(KEYS)}")
    variants, prior, base = asked.variants(), asked.prior(), asked.base
    answers: dict[str, Answer] = {}
    for variant in variants:
        label = variant.label or variant.config.name
        if variant.config.privacy.noise_multiplier == 0 and len(variants) > 1:
            answers[label] = {"solved": solve, "value": None, "why": "not private: its noise_multiplier is 0"}
            continue
        key = None if asked.ledger is None else key_of(variant.config, folder_of(variant.config), asked.ledger)
        answer = _solved(prospect(with_budget(variant.config, asked), base, prior, key=key), solve, asked.given)
        if answer["value"] is not None:
            answer["command"] = asked.command(variant.label, answer["set"])
        answers[label] = answer
    if as_json:
        print(to_json(answers if len(answers) > 1 else next(iter(answers.values()))))
        return
    _show(answers, solve)


def with_budget(config: Config, asked: Asked) -> Config:
    """With the budget of the command line, also where the noise multiplier is 0.

    Raises:
        ConfigError: there is none, nor one of the configuration.
    """
    privacy = config.privacy.model_copy(update=asked.budget)
    if privacy.epsilon is None:
        raise ConfigError("--epsilon is missing, and the configuration has no privacy.epsilon.")
    return config.model_copy(update={"privacy": privacy})


def _solved(ahead: Prospect, solve: str, given: list[str]) -> Answer:
    config = ahead.config
    answer = functools.partial(_answer, ahead, solve, given)
    if solve != "rounds" and config.rounds is None:
        raise ConfigError(f"rounds is missing: --solve {solve} needs it. Use --set rounds=..., or --solve rounds.")
    if solve != "sigma" and not config.privacy.noise_multiplier:
        what = "is missing" if config.privacy.noise_multiplier is None else "is 0, and without noise no epsilon holds"
        raise ConfigError(
            f"privacy.noise_multiplier {what}: --solve {solve} needs it above 0. "
            "Add --set privacy.noise_multiplier=NUMBER."
        )
    match solve:
        case "sigma":
            return answer(noise := ahead.noise(), ahead.changed(noise_multiplier=noise))
        case "rounds":
            return answer(rounds := ahead.rounds(), ahead.changed(rounds=rounds))
        case "steps":
            with_steps = _with_steps(config)
            steps = ahead.local_steps(with_steps)
            return answer(steps, replace(ahead, algorithm=with_steps(max(1, steps))))
        case _:
            cap = ahead.max_participations()
            return answer(cap, ahead.changed(max_participations=max(1, cap)))


def _with_steps(config: Config) -> Callable[[int], Algorithm]:
    options = algorithm_options(config)
    name = config.algorithm.name or config.algorithm.module
    if "local_steps" not in options:
        raise ConfigError(
            f"algorithm: {name} has no option local_steps for --solve steps to solve for; it has {', '.join(options)}."
        )

    if config.algorithm.options.get("p") is not None:
        raise ConfigError(
            f"algorithm.p={config.algorithm.options['p']!r}: {name} draws its numbers of local steps, 1/p in the mean, "
            "so that there is none to solve for. Use --solve sigma or rounds with another p, or fix the number: --set "
            "algorithm.p=null --set algorithm.local_steps=1 --solve steps."
        )

    def with_steps(steps: int) -> Algorithm:
        block = Block(**{**config.algorithm.model_dump(), "local_steps": steps})
        algorithm: Algorithm = build_plugin("algorithms", block, where="algorithm")
        return algorithm

    return functools.cache(with_steps)


def _answer(ahead: Prospect, solve: str, given: list[str], value: float, then: Prospect) -> Answer:
    """The value with the epsilons that it gives, the rounds that will be run with it, and the settings to run them."""
    privacy = ahead.config.privacy
    asked = {"epsilon": privacy.epsilon, "delta": privacy.delta, "view": privacy.budget_view}
    answer: Answer = {"solved": solve, "value": value or None, "asked": asked, "accountant": ahead.accountant.name}
    if not value:
        return {**answer, "why": f"not even 1 fits epsilon {privacy.epsilon:g} with this noise"}
    costs = then.costs(then.config.rounds or MOST_PLANNED)
    account = then.unlimited().account(costs=costs)
    server, third_party = (account.epsilon_ahead(view) for view in ("server", "third_party"))
    if solve == "sigma" and (why := strain(value, privacy.epsilon or 0.0, ahead.account().held())):
        answer["warning"] = why
    return {
        **answer,
        "set": [*given, f"{KEYS[solve]}={value:g}" if solve == "sigma" else f"{KEYS[solve]}={value}"],
        "at_limit": solve in ("rounds", "steps") and value == MOST_PLANNED,
        "rounds": len(costs),
        "epsilon": {"server": server, "third_party": third_party},
    }


def _show(answers: dict[str, Answer], solve: str) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    for column in (solve, "rounds", "epsilon, server", "third party", "delta"):
        table.add_column(column, justify="right", no_wrap=True)
    lines = []
    for label, answer in answers.items():
        if answer["value"] is None:
            table.add_row(label, "-", "-", "-", "-", "-")
            lines.append(f"{label}: {answer['why']}.")
            continue
        value = f"{answer['value']:g}" if solve == "sigma" else str(answer["value"])
        epsilons = [f"{answer['epsilon'][view]:.4f}" for view in ("server", "third_party")]
        more = " or more" if answer["at_limit"] else ""
        table.add_row(label, value + more, str(answer["rounds"]), *epsilons, f"{answer['asked']['delta']:g}")
        lines.append(f"{label}: {shlex.join(answer['command'])}")
        if "warning" in answer:
            lines.append(f"{label}: warning: {answer['warning']}.")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    fitting.show(console, table)
    asked = next((answer for answer in answers.values() if answer["value"] is not None), None)
    if asked is not None:
        view = asked["asked"]["view"].replace("_", " ")
        console.print(
            f"Solved for {solve}: {view} view, accountant {asked['accountant']}. The server's epsilon is that of a "
            "silo in every round, or in as many as its cap allows: it holds whoever is drawn."
        )
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
