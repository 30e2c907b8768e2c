"""`dpfl.check`: all that a run refuses before its first round; nothing is trained, released or written."""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from dpfl_plugin import given
from dpfl_plugin.api.experiment import Experiment, experiment_of
from dpfl_plugin.api.runs import Run
from dpfl_plugin.api.tables import NOTHING_DONE
from dpfl_plugin.config.load import Variant, in_file
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.core.text import Printed, counted
from dpfl_plugin.data.base import AS_READ
from dpfl_plugin.errors import ConfigError, DataError
from dpfl_plugin.federation.measuring import labels_of
from dpfl_plugin.measures.answers import counts_by_bin
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runs.folder import folder_of
from dpfl_plugin.runs.hooks import callbacks_of
from dpfl_plugin.runs.prepare import prepare
from dpfl_plugin.runs.records import compared_sites
from dpfl_plugin.runs.signal import weak_signal_of
from dpfl_plugin.runs.silo_settings import describe_silos, unequal

FEW_EVENTS: Final = 5  # of a bin of time
LEFT_OUT: Final = (
    "tune was left out: this is one run of the file's own values, with the whole budget. dpfl plan {0} says what the "
    "tuning costs."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCheck:
    """What a run would be.

    Attributes:
        run: its label.
        folder: where its files would be.
        rounds: how many the budget allows, of those that are asked for.
        num_records: of each silo, for training; not to be published.
        unit: what `num_records` counts: records, or with ``privacy.unit: person`` persons.
        noise_multiplier: given, or solved for.
        silos: a line on each silo with privacy settings of its own.
        engine: that takes per-example gradients, and why it. memory: what this process would use, in words.
        warnings: what its statement would warn of, and that `tune` was left out.
        notes: what the owner of the records should look at.
    """

    run: str
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

    def to_dict(self) -> dict[str, Any]:
        """As one run of ``--json``."""
        document = dataclasses.asdict(self) | {"folder": str(self.folder)}
        del document["run"]
        return document

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


@dataclass(frozen=True, slots=True)
class ExperimentCheck(Printed):
    """What the runs of an experiment would be.

    Attributes:
        runs: in the order of the file's variants.
    """

    runs: tuple[RunCheck, ...]

    @property
    def run(self) -> RunCheck:
        """The run, if there is one.

        Raises:
            ConfigError: there are several.
        """
        if len(self.runs) > 1:
            raise ConfigError(f"There are several variants: {', '.join(item.run for item in self.runs)}. Use runs.")
        return self.runs[0]

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints: of one run; by label if there are several."""
        documents = {item.run: item.to_dict() for item in self.runs}
        return documents if len(documents) > 1 else self.run.to_dict()

    def __str__(self) -> str:
        several = len(self.runs) > 1
        lines = [line for item in self.runs for line in ([f"{item.run}:"] * several + item.lines)]
        return "\n".join([*lines, NOTHING_DONE])

    __repr__ = __str__


def check(experiment: Experiment | Run | str | Path) -> ExperimentCheck:
    """Check a configuration and its records as a new run of it would; train, release and write nothing.

    Raises:
        ConfigError, DataError: what a run would raise before its first round.
    """
    given_experiment = experiment_of(experiment)
    untuned = given_experiment.untuned
    notes = (LEFT_OUT.format(untuned.path),) if untuned != given_experiment else ()
    runs = []
    for variant in untuned.loaded().variants:
        try:
            runs.append(_checked(variant, untuned.base, notes))
        except (ConfigError, DataError) as error:
            raise in_file(error, untuned.path, variant) from error
    return ExperimentCheck(tuple(runs))


def _checked(variant: Variant, base: Path, warnings: tuple[str, ...]) -> RunCheck:
    config = variant.config
    given.check_all(config.model_dump(mode="python"))
    callbacks_of(config, base, ())
    with tempfile.TemporaryDirectory() as empty:  # whatever a folder of the run holds by now
        run = prepare(config, base, folder_of(config.model_copy(update={"out": empty})))
    parts = run.parts
    as_read = tuple(text for text in parts.caveats if text.startswith(AS_READ))
    more = (parts.memory.warning, weak_signal_of(parts))
    return RunCheck(
        run=variant.label or config.name,
        folder=folder_of(config).path,
        rounds=run.expected,
        num_records=parts.num_records,
        unit="persons" if config.privacy.unit == "person" else "records",
        noise_multiplier=parts.noise_multiplier,
        silos=tuple(describe_silos(parts.own, parts.rules, config)),
        engine=f"{parts.engine.name}: {parts.engine_reason}",
        memory=parts.memory.summary(),
        warnings=(
            *warnings,
            *(text for text in parts.caveats if text not in as_read),
            *filter(None, more),
            *unequal(config, parts.num_records),
        ),
        notes=(
            *as_read,
            *parts.notes,
            *compared_sites(config, base),
            *_bins_of_time(parts, persons=config.privacy.unit == "person"),
        ),
    )


def _bins_of_time(parts: Parts, *, persons: bool) -> list[str]:
    """Of survival: how many training records are at risk in each bin, and what to do about bins of few events."""
    outcome = parts.outcome
    if outcome.kind != "survival":
        return []
    labels = np.concatenate([labels_of(records.only_usable(), persons=persons) for records in parts.train.values()])
    counts = counts_by_bin(outcome, labels)
    shown = "; ".join(f"to {end:g}: {events} of {there}" for end, there, events in counts)
    lines = [f"training records with the event, of those at risk, in each bin of time: {shown}"]
    if empty := [end for end, there, _ in counts if not there]:
        observed = next((f"{end:g}" for end, there, _ in reversed(counts) if there), "0")
        lines.append(
            f"nobody is at risk in the bins to {', '.join(f'{end:g}' for end in empty)}: what a model says there is no "
            f"more than what it began with. End the label's range and bins at {observed}."
        )
    if few := [end for end, there, events in counts if there and events < FEW_EVENTS]:
        lines.append(
            f"fewer than {FEW_EVENTS} events in the bins to {', '.join(f'{end:g}' for end in few)}: join them with "
            "their neighbours (bins of the label)."
        )
    return lines
