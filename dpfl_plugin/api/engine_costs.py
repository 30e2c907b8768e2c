"""Which engines support a configuration's model, and what they cost."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dpfl_plugin import terminal
from dpfl_plugin.api.experiment import Experiment, experiment_of
from dpfl_plugin.api.running import in_file
from dpfl_plugin.api.runs import Run
from dpfl_plugin.core.text import Printed
from dpfl_plugin.core.threads import threads
from dpfl_plugin.errors import ConfigError, DataError, UnsupportedError
from dpfl_plugin.gradients.base import Engine
from dpfl_plugin.gradients.choice import Candidate
from dpfl_plugin.runs.engines import Engines, engines_for

__all__ = ["EngineCost", "EngineCosts", "engines"]

SECONDS: Final = 0.3  # for the sums of an engine that are timed, 3 at least
MOST_SUMS: Final = 100
ENGINES_WIDTH: Final = 160  # where there is no terminal to fit into: reasons are long


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCost:
    """What an engine of per-example gradients costs for a model.

    Attributes:
        supported: whether it computes the model's gradients exactly; why_not: None if it does.
        estimated_us: microseconds of a clipped sum by the cost model, which decides; None where it says nothing.
        measured_us: by this machine's clock, now.
        chosen: whether a run would use it.
    """

    engine: str
    supported: bool
    why_not: str | None
    estimated_us: int | None
    measured_us: float | None
    chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCosts(Printed):
    """The engines for a configuration; ``print`` shows them as `dpfl list engines --for` does.

    Attributes:
        engines: cheapest first.
        batch_size: records of a usual batch. dimension: parameters of the model.
        participants: silos of a round; times are of one of them.
        refusal: what a run would end with, where none can be used.
    """

    engines: tuple[EngineCost, ...]
    batch_size: int
    dimension: int
    participants: int
    refusal: UnsupportedError | None

    @property
    def chosen(self) -> str | None:
        """The engine that a run would use; None where it would be refused."""
        return next((one.engine for one in self.engines if one.chosen), None)

    def __str__(self) -> str:
        text = terminal.printed(self.show, ENGINES_WIDTH)
        return text if self.refusal is None else f"{text}\n{self.refusal}"

    __repr__ = __str__

    def show(self, console: Console) -> None:
        """Print what each costs, and which one is chosen."""
        table = Table(box=None, pad_edge=False)
        for column in ("engine", "estimated us", "measured us"):
            table.add_column(column, justify="left" if column == "engine" else "right", no_wrap=True)
        table.add_column("", overflow="fold")
        for one in self.engines:
            numbers = ["" if value is None else f"{value:,}" for value in (one.estimated_us, one.measured_us)]
            said = "chosen" if one.chosen else "" if one.supported else f"no: {one.why_not}"
            table.add_row(one.engine, *numbers, escape(said))
        console.print(
            f"a clipped sum over {self.batch_size} records, d = {self.dimension:,}; {self.participants} silos a round, "
            "one by one",
            style="bold",
        )
        console.print(table)
        if self.refusal is None:
            console.print("The estimate decides: a run that is resumed or repeated must make the same choice.")


def engines(experiment: Experiment | Run | str | Path) -> EngineCosts:
    """Which engines support a configuration's model, what they cost, and which one a run would use.

    As `dpfl list engines --for`; of several variants the first, and ``load(path).variants[label]`` names another.

    Raises:
        ConfigError, DataError: the configuration or its records are wrong.
    """
    found = experiment_of(experiment)
    one = found.loaded().variants[0]
    with threads(one.config.runtime.threads):
        try:
            made = engines_for(one.config, found.base)
        except (ConfigError, DataError) as error:
            raise in_file(error, found.path, one) from error
        return EngineCosts(
            engines=tuple(_cost(engine, made) for engine in made.candidates),
            batch_size=len(made.batch),
            dimension=made.parameters.numel(),
            participants=made.num_silos,
            refusal=None if made.refusal is None else in_file(made.refusal, found.path, one),
        )


def _cost(one: Candidate, found: Engines) -> EngineCost:
    supported, estimate = one.engine is not None, one.microseconds
    return EngineCost(
        engine=one.name,
        supported=supported,
        why_not=one.reason or None,
        estimated_us=round(estimate) if supported and estimate is not None else None,
        measured_us=None if one.engine is None else round(_measured(one.engine, found), 1),
        chosen=one.name == found.chosen,
    )


def _measured(engine: Engine, found: Engines) -> float:
    """Microseconds of a clipped sum over made-up records, the median of those that fit into a fraction of a second."""
    out = torch.empty_like(found.parameters, dtype=torch.float64)
    times: list[float] = []
    with torch.no_grad():
        batch, began = engine.prepare(found.batch), time.perf_counter()
        while len(times) < 3 or (time.perf_counter() - began < SECONDS and len(times) < MOST_SUMS):
            start = time.perf_counter()
            engine.clipped_sum(found.parameters, batch, 1.0, out)
            float(out[0])  # a GPU works on while Python does
            times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)
