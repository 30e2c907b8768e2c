"""`dpfl.engines`: which engines support a configuration's model, and what they cost."""

from __future__ import annotations

import dataclasses
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dpfl_plugin import terminal
from dpfl_plugin.api.experiment import Experiment, experiment_of
from dpfl_plugin.api.runs import Run
from dpfl_plugin.config.load import in_file
from dpfl_plugin.core.text import Printed
from dpfl_plugin.core.threads import threads
from dpfl_plugin.errors import ConfigError, DataError, UnsupportedError
from dpfl_plugin.gradients.base import Engine
from dpfl_plugin.gradients.choice import Candidate
from dpfl_plugin.runs.engines import Engines, engines_for

__all__ = ["EngineCost", "EngineCosts", "engines"]

SECONDS: Final = 0.3  # for the sums of an engine that are timed, 3 at least
MAX_SUMS: Final = 100
WIDTH: Final = 160  # where there is no terminal to fit into: reasons are long


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
    """The engines for a configuration.

    Attributes:
        batch_size: records of a usual batch.
        dimension: parameters of the model.
        participants: silos of a round; times are of one of them.
        engines: cheapest first.
        refusal: what a run would end with, if none can be used.
    """

    batch_size: int
    dimension: int
    participants: int
    engines: tuple[EngineCost, ...]
    refusal: UnsupportedError | None

    @property
    def chosen(self) -> str | None:
        """The engine that a run would use; None if it would be refused."""
        return next((item.engine for item in self.engines if item.chosen), None)

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        document = {key: getattr(self, key) for key in ("batch_size", "dimension", "participants")}
        return {**document, "engines": [dataclasses.asdict(item) for item in self.engines]}

    def __str__(self) -> str:
        return terminal.printed(self._show, WIDTH)

    __repr__ = __str__

    def _show(self, console: Console) -> None:
        table = Table(box=None, pad_edge=False)
        for column in ("engine", "estimated us", "measured us"):
            table.add_column(column, justify="left" if column == "engine" else "right", no_wrap=True)
        table.add_column("", overflow="fold")
        for item in self.engines:
            times = ["" if value is None else f"{value:,}" for value in (item.estimated_us, item.measured_us)]
            verdict = "chosen" if item.chosen else "" if item.supported else f"no: {item.why_not}"
            table.add_row(item.engine, *times, escape(verdict))
        console.print(
            f"a clipped sum over {self.batch_size} records, d = {self.dimension:,}; {self.participants} silos a round, "
            "one by one"
        )
        console.print(table)
        if self.refusal is None:
            console.print("The estimate decides: a run that is resumed or repeated must make the same choice.")


def engines(experiment: Experiment | Run | str | Path) -> EngineCosts:
    """Which engines support a configuration's model, what they cost, and which one a run would use.

    Of several variants the first; ``load(path).variants[label]`` is another.

    Raises:
        ConfigError, DataError: the configuration or its records are wrong.
    """
    experiment = experiment_of(experiment)
    variant = experiment.loaded().variants[0]
    with threads(variant.config.runtime.threads):
        try:
            candidates = engines_for(variant.config, experiment.base)
        except (ConfigError, DataError) as error:
            raise in_file(error, experiment.path, variant) from error
        refusal = candidates.refusal
        return EngineCosts(
            batch_size=len(candidates.batch),
            dimension=candidates.parameters.numel(),
            participants=candidates.num_silos,
            engines=tuple(_cost(item, candidates) for item in candidates.candidates),
            refusal=None if refusal is None else in_file(refusal, experiment.path, variant),
        )


def _cost(candidate: Candidate, engines: Engines) -> EngineCost:
    supported, estimate = candidate.engine is not None, candidate.microseconds
    return EngineCost(
        engine=candidate.name,
        supported=supported,
        why_not=candidate.reason or None,
        estimated_us=round(estimate) if supported and estimate is not None else None,
        measured_us=None if candidate.engine is None else round(_measured(candidate.engine, engines), 1),
        chosen=candidate.name == engines.chosen,
    )


def _measured(engine: Engine, engines: Engines) -> float:
    """Microseconds of a clipped sum over made-up records, the median of those that fit into a fraction of a second."""
    out = torch.empty_like(engines.parameters, dtype=torch.float64)
    times: list[float] = []
    with torch.no_grad():
        batch, began = engine.prepare(engines.batch), time.perf_counter()
        while len(times) < 3 or (time.perf_counter() - began < SECONDS and len(times) < MAX_SUMS):
            start = time.perf_counter()
            engine.clipped_sum(engines.parameters, batch, 1.0, out)
            float(out[0])  # a GPU works on while Python does
            times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)
