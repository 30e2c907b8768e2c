"""A finished run: its configuration, what its records were, and what its model was scaled by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dpfl_plugin import given, own_folders
from dpfl_plugin.config.load import base_of, load, run_id
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.core.scaling import Scaling
from dpfl_plugin.data import tables
from dpfl_plugin.data.base import Inputs
from dpfl_plugin.data.preprocess import fitted_on_records
from dpfl_plugin.errors import ConfigError, DataError, UnsupportedError
from dpfl_plugin.runs.environment import check_shown
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.ledgers import check_ledger
from dpfl_plugin.runs.records import steps_of

FILES: Final = ("csv", "npz", tables.NAME)
"""Data sets of users' own files."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished run.

    Attributes:
        base: where relative paths in its configuration start.
        inputs: what a record is, before preprocessing.
        notes: what changed since, in words.
    """

    folder: RunFolder
    config: Config
    base: Path
    result: Mapping[str, Any]
    inputs: Inputs
    notes: tuple[str, ...]

    @classmethod
    def at(cls, path: Path) -> FinishedRun:
        """The run whose folder is at ``path``.

        Raises:
            ConfigError: it is no folder of a finished run, or was made with different code.
            DataError: its files are damaged.
            UnsupportedError: what a record is, or how it was preprocessed, is not in the folder.
            MissingError: a Python program gave an object, other than its records, that is not here.
        """
        folder = RunFolder(path)
        if not folder.config.exists():
            raise ConfigError(
                f"run_folder={str(path)!r} is not the folder of a run: it has no {folder.config.name}. Give the "
                "one that a run names at its end, OUT/<name>/<id>."
            )
        result = folder.finished_result()
        if result is None and (tuning := folder.tuning()) is not None:
            raise ConfigError(
                f"{path}: a candidate that its tuning left behind, or has not decided about, has no model to predict "
                f"with. dpfl predict {tuning} names the winner, once there is one."
            )
        if result is None:
            raise ConfigError(
                f"{path}: the run is not finished, so it has no model to predict with. Continue it: dpfl run "
                f"--resume {folder.config}, or dpfl.resume({str(path)!r})."
            )
        if not folder.model.exists():
            raise DataError(f"{folder.model} is missing: it is the run's model. Restore it from a copy.")
        check_ledger(folder)
        base = base_of(folder.config)
        own_folders.look_in(base)
        (variant,) = load(folder.config).variants
        config = variant.config
        if run_id(config) != result["id"]:
            raise DataError(
                f"{folder.config} is not what this run was made with: its id would be {run_id(config)}, not "
                f"{result['id']}. Restore it from a copy."
            )
        given.check_all(config.model_dump(), records=False)
        config = config.with_public_seed(int(result["seed"]))
        notes = check_shown(folder, config)
        _check_steps(config)
        inputs = result.get("inputs")
        if inputs is None:
            raise UnsupportedError(
                f"{folder.result} does not say what the records were (their columns, in order): the run was made "
                "by an earlier version. Run its configuration again with another out."
            )
        return cls(folder, config, base, result, inputs_of(inputs), tuple(notes))

    @property
    def outcome(self) -> Outcome:
        """What labels are."""
        return Outcome.of_result(self.result)

    @property
    def scaling(self) -> Scaling | None:
        """By what released statistics records were scaled; None where they were not."""
        statistics = self.result.get("private_statistics")
        return None if statistics is None else Scaling.of(statistics["scaling"])

    @property
    def labels(self) -> tuple[str, ...]:
        """The run's classes before preprocessing, by number; none where they were words and nobody told them. The
        labels of a multi-label outcome; none of others."""
        if not self.outcome.has_classes:
            return self.inputs.classes
        if self.inputs.classes or self.config.data.dataset.name in FILES:
            return self.inputs.classes
        return tuple(map(str, range(self.inputs.num_classes)))


def inputs_of(inputs: Mapping[str, Any]) -> Inputs:
    """From `result.json`."""
    return Inputs(
        tuple(inputs["shape"]),
        int(inputs["num_classes"]),
        tuple(inputs["columns"]),
        tuple(inputs["classes"]),
        tuple(inputs.get("backbones", ())),
        label_type=inputs.get("label_type", "text"),  # of a run by an earlier version
    )


def _check_steps(config: Config) -> None:
    fitted = fitted_on_records(steps_of(config))
    if fitted:
        raise UnsupportedError(
            f"data.preprocess: {', '.join(fitted)} was fitted to the run's private training records. What it took from "
            "them is not in the run's folder, no epsilon covers it, and every prediction would be made with it. Train "
            "with public constants (standardise with fit: none, scale, unit_norm), or with pca fitted to a file of "
            "public records."
        )
