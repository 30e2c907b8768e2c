"""Whether a run could begin: all that is refused before its first round, and nothing released or written."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dpfl_plugin import given
from dpfl_plugin.api.experiment import Experiment, experiment_of
from dpfl_plugin.api.running import in_file
from dpfl_plugin.api.runs import Run
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.core.text import Printed, counted
from dpfl_plugin.data.base import AS_READ
from dpfl_plugin.errors import ConfigError, DataError
from dpfl_plugin.runs.build import build
from dpfl_plugin.runs.forecast import strain
from dpfl_plugin.runs.hooks import callbacks_of
from dpfl_plugin.runs.job import make_job
from dpfl_plugin.runs.locations import folder_of
from dpfl_plugin.runs.silo_settings import told, unequal

NOTHING_DONE: Final = "Nothing was trained, released or written."
LEFT_OUT: Final = (
    "tune was left out: this is one run of the file's own values, with the whole budget. dpfl plan {0} says what the "
    "tuning costs."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked(Printed):
    """What a run would be; ``print`` says it as `dpfl check` does.

    Attributes:
        folder: where its files would be. rounds: how many the budget allows, of those that are asked for.
        num_records: of each silo, for training; not to be published.
        unit: what `num_records` counts: records, or with ``privacy.unit: person`` persons.
        noise_multiplier: given, or solved for. silos: a line on each silo with privacy settings of its own.
        engine: that takes per-example gradients, and why it. memory: what this process would use, in words.
        warnings: what its statement would warn of, and that `tune` was left out. notes: what the owner of the records
            should look at.
    """

    folder: Path
    rounds: int
    num_records: tuple[int, ...]
    unit: str
    noise_multiplier: float
    silos: tuple[str, ...]
    engine: str
    memory: str
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """All of it in words, but the folder."""
        counts = self.num_records
        each = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
        return [
            f"{counted(len(counts), 'silo')} with {each} training {self.unit} each, {sum(counts)} in all",
            f"{counted(self.rounds, 'round')}, noise multiplier {digits(self.noise_multiplier, 4)}",
            *self.silos,
            f"engine: {self.engine}",
            f"memory: {self.memory}",
            *(f"records: {note}" for note in self.notes),
            *(f"note: {warning}" for warning in self.warnings),
        ]

    def __str__(self) -> str:
        return "\n".join([*self.lines, NOTHING_DONE])

    __repr__ = __str__


class CheckedVariants(Printed, dict[str, Checked]):
    """What the runs of a file with variants would be, by label."""

    def __str__(self) -> str:
        lines = [line for label, one in self.items() for line in (f"{label}:", *one.lines)]
        return "\n".join([*lines, NOTHING_DONE])


def check(experiment: Experiment | Run | str | Path) -> Checked | Any:  # of several variants CheckedVariants
    """Check a configuration and its records as a new run of it would; train, release and write nothing.

    Returns:
        what the run would be; by label where there are several variants.

    Raises:
        ConfigError, DataError: what a run would raise before its first round.
    """
    asked = experiment_of(experiment)
    found, checked = asked.untuned, CheckedVariants()
    left_out = (LEFT_OUT.format(asked.path),) if found != asked and "tune=null" not in asked.settings else ()
    for one in found.loaded().variants:
        try:
            checked[one.label or one.config.name] = _checked(one.config, found.base, left_out)
        except (ConfigError, DataError) as error:
            raise in_file(error, found.path, one) from error
    return checked if len(checked) > 1 else next(iter(checked.values()))


def _checked(config: Config, base: Path, left_out: tuple[str, ...]) -> Checked:
    given.check_all(config.model_dump(mode="python"))
    callbacks_of(config, base, ())
    parts = build(config, base)
    with tempfile.TemporaryDirectory() as empty:  # whatever a folder of the run holds by now
        anew = folder_of(config.model_copy(update={"out": empty}))
        job = make_job(config, base, anew, parts, None, None)
    warnings = [text for text in parts.caveats if not text.startswith(AS_READ)]
    warnings += [parts.memory.warning] if parts.memory.warning else []
    if config.privacy.noise_multiplier is None and config.privacy.epsilon is not None:
        warnings += [why] if (why := strain(parts.noise_multiplier)) else []
    return Checked(
        folder=folder_of(config).path,
        rounds=job.expected,
        num_records=parts.num_records,
        unit="persons" if config.privacy.unit == "person" else "records",
        noise_multiplier=parts.noise_multiplier,
        silos=tuple(told(parts.own, parts.rules, config)),
        engine=f"{parts.engine.name}: {parts.engine_reason}",
        memory=parts.memory.summary(),
        warnings=(*left_out, *warnings, *unequal(config, parts.num_records)),
        notes=(*(text for text in parts.caveats if text.startswith(AS_READ)), *parts.notes),
    )
