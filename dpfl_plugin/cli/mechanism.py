"""`dpfl plan --mechanism`: the noise, or the number of releases, of a mechanism given by its numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from dpfl_plugin.api.numbers import calibrate, max_steps
from dpfl_plugin.cli.account import sampling
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.errors import ConfigError, require
from dpfl_plugin.runs.folder import to_json

SOLVED: Final = {"sigma": "noise_multiplier", "steps": "steps"}  # of a mechanism by its numbers, in --json


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """A mechanism by its numbers, each an option of that name; None for what is not given."""

    mechanism: str
    q: float | None
    sigma: float | None
    steps: int | None
    epsilon: float | None
    delta: float | None
    accountant: str | None = None

    def check(self, solve: str) -> None:
        """Raise ConfigError unless all numbers but the one to solve for are given, and in their ranges."""
        must = "be sigma or steps with --mechanism"
        require(solve in SOLVED, "--solve", solve, must, "rounds, cap and rate need CONFIG.")
        given = {name: getattr(self, name) for name in ("sigma", "steps", "epsilon", "delta")}
        if given.pop(solve) is not None:
            raise ConfigError(f"--{solve} is what --solve {solve} finds: leave it out, or solve for another.")
        for name, value in given.items():
            if value is None:
                needed = ", ".join(f"--{one}" for one in given)
                raise ConfigError(f"--{name} is missing: --mechanism with --solve {solve} needs {needed} (and --q).")
        assert self.epsilon is not None
        require(0 < self.epsilon < math.inf, "--epsilon", self.epsilon, "be positive and finite")
        require(self.steps is None or self.steps >= 1, "--steps", self.steps, "be at least 1")
        noisy = self.sigma is None or 0 < self.sigma < math.inf
        require(noisy, "--sigma", self.sigma, "be positive and finite: without noise no epsilon holds")


def plan_mechanism(numbers: Numbers, solve: str | None, *, as_json: bool) -> None:
    """Print the least noise of ``steps`` releases, or the most releases at noise ``sigma``."""
    solve = solve or ("sigma" if numbers.sigma is None else "steps")
    numbers.check(solve)
    assert numbers.epsilon is not None
    assert numbers.delta is not None
    sampled = sampling(numbers.mechanism, numbers.q)
    budget: dict[str, Any] = {"epsilon": numbers.epsilon, "delta": numbers.delta}
    budget["accountant"] = numbers.accountant or "pld"
    if solve == "sigma":
        assert numbers.steps is not None
        own = calibrate(steps=numbers.steps, **budget, **sampled).reached
        found = f"noise_multiplier {own.noise_multiplier:g}"
    else:
        assert numbers.sigma is not None
        own = max_steps(noise_multiplier=numbers.sigma, **budget, **sampled)
        found = f"{own.steps} releases"
    if as_json:
        said = {"noise_multiplier": own.noise_multiplier, "steps": own.steps, "epsilon": own.epsilon}
        print(to_json({"solved": SOLVED[solve], **said, "delta": own.delta, "accountant": own.accountant}))
    else:
        print(f"{found}: epsilon {digits(own.epsilon, 6)} at delta {own.delta:.15g} (accountant {own.accountant})")
