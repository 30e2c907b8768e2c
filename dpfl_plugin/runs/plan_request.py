"""A plan that is asked for: of which runs, for which budget, and how they are started then."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dpfl_plugin import own_folders
from dpfl_plugin.config.load import Variant, base_of, load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError, require
from dpfl_plugin.privacy.pld import check_delta

VIEWS: Final = (None, "server", "third_party")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A plan that is asked for: a file, what changes it, and a budget.

    Attributes:
        settings: "key=value", as ``--set`` has them.
        epsilon, delta, view: of the budget; the configuration's where None.
        variant: the one run of the file that is asked for.
    """

    path: Path
    settings: tuple[str, ...] = ()
    epsilon: float | None = None
    delta: float | None = None
    view: str | None = None
    variant: str | None = None

    def __post_init__(self) -> None:
        require(self.view in VIEWS, "view", self.view, "be server or third_party")
        if self.epsilon is not None:
            known = _is_number(self.epsilon) and 0 < self.epsilon < math.inf
            require(known, "epsilon", self.epsilon, "be positive and finite")
        if self.delta is not None:
            require(_is_number(self.delta), "delta", self.delta, "be a number in (0, 1)")
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
        """The runs that are asked for; private ones have this budget."""
        own_folders.look_in(self.base)
        return load(self.path, self.settings, variant=self.variant, budget=self.budget).variants

    def command(self, label: str | None, settings: list[str]) -> list[str]:
        """The words of ``dpfl run`` for one run of the file."""
        words = ["dpfl", "run", str(self.path)]
        words += [] if label is None else ["--variant", label]
        return [*words, *(word for setting in settings for word in ("--set", setting))]

    def with_budget(self, config: Config) -> Config:
        """``config`` with this budget, also where its noise multiplier is 0.

        Raises:
            ConfigError: there is none, nor one of the configuration.
        """
        privacy = config.privacy.model_copy(update=self.budget)
        if privacy.epsilon is None:
            raise ConfigError("epsilon is missing, and the configuration has no privacy.epsilon.")
        return config.model_copy(update={"privacy": privacy})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
