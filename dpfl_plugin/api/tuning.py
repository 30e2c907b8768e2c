"""Tuning under one budget: `dpfl.tune`, `dpfl tune`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from dpfl_plugin import own_folders
from dpfl_plugin.api.experiment import Experiment, experiment_of
from dpfl_plugin.api.progress import Teller
from dpfl_plugin.api.running import LEDGER_WAIT, place_here
from dpfl_plugin.api.runs import Run
from dpfl_plugin.api.training import stopping
from dpfl_plugin.config.load import base_of, joined, merged, parse_setting, read_yaml
from dpfl_plugin.config.tune import TuneFile, has_tune, tune_of
from dpfl_plugin.errors import ConfigError, TrainingError
from dpfl_plugin.runs.folder import RunFolder, to_json
from dpfl_plugin.runs.hooks import Reporter
from dpfl_plugin.runs.ledgers import Wait
from dpfl_plugin.tuning import course, told

__all__ = ["OUT", "REPORT", "Tuning", "has_tune", "plan_tuning", "tune", "tune_file"]

Stopping = Callable[[], AbstractContextManager[Callable[[], bool]]]

OUT = "tunes"  # folder of tunings
REPORT = "tuning.md"
RESULT = "result.json"


class Tuning(Mapping[str, Run]):
    """A tuning that is done: the winner's run, and the runs of all candidates by what they changed.

    Attributes:
        folder: of the tuning; result: what its `result.json` holds.
    """

    def __init__(self, folder: Path, result: Mapping[str, Any]) -> None:
        self.folder, self.result = Path(folder), dict(result)
        self._folders = {one["label"]: one["folder"] for one in self.result["ranking"]}

    def __getitem__(self, label: str) -> Run:
        return Run.open(self._folders[label])

    def __iter__(self) -> Iterator[str]:
        return iter(self._folders)

    def __len__(self) -> int:
        return len(self._folders)

    @property
    def winner(self) -> Run:
        """The run that was trained to its end; its epsilon is that of the tuning."""
        return Run.open(self.result["winner"]["folder"])

    @property
    def epsilon(self) -> float:
        """Of all candidates together, for the server, at the worst silo, which is the winner's guarantee, too."""
        return float(self.result["guarantee"]["epsilon"])

    @property
    def delta(self) -> float:
        """At which `epsilon` holds."""
        return float(self.result["guarantee"]["delta"])

    @property
    def statement(self) -> str:
        """The guarantee, what the tuning cost and the candidates' scores, in words: `tuning.md`."""
        return told.statement(self.result, self.folder.name)

    def __repr__(self) -> str:
        return (
            f"Tuning({self.result['winner']['label']} of {len(self)} candidates, epsilon {self.epsilon:g} at delta "
            f"{self.delta:g} in all, folder={str(self.folder)!r})"
        )


def tune(
    experiment: Experiment | str | Path,
    *,
    out: str | Path | None = None,
    progress: bool | None = None,
    **spec: Any,
) -> Tuning:
    """Successive halving over private scores, all candidates charged to one ledger; as `dpfl tune`.

    ``privacy.epsilon`` is what the server may learn from all candidates and from the winner's whole training together.
    A call like an earlier one goes on where that was, after whatever ended it.

    Args:
        experiment: a file with `tune:`, or whose keys ``spec`` gives.
        out: folder of the tuning; None: tunes/NAME.
        progress: whether to show a bar; None: in a terminal and in Jupyter.
        spec: keys of `tune`: grid, random, candidates, seed, rungs, eta, share.

    Raises:
        ConfigError, DataError, UnsupportedError: something that is given is wrong, or cannot be charged.
        TrainingError: the winner failed, or every candidate did; KeyboardInterrupt: asked to stop.
    """
    file, base = _file_of(experiment_of(experiment), spec)
    teller = Teller(progress)
    threads = torch.get_num_threads()
    try:
        result = _carried_out(file, base, _folder(file, out), teller, stopping)
    finally:
        torch.set_num_threads(threads)
    if result is None:
        raise KeyboardInterrupt
    if result["winner"]["status"] == "failed":
        raise TrainingError(f"the winner failed: see {result['winner']['folder']}.")
    return Tuning(_folder(file, out), result)


def plan_tuning(experiment: Experiment | str | Path, *, out: str | Path | None = None, **spec: Any) -> dict[str, Any]:
    """What a tuning costs, before anything is trained: places, rounds, noise multipliers, epsilons; and in words.

    Arguments and errors as those of `tune`.
    """
    file, base = _file_of(experiment_of(experiment), spec)
    price = course.begin(file, base, _folder(file, out)).price
    epsilon = file.config.privacy.epsilon
    assert epsilon is not None
    said = course.priced(price)
    return {**said, "budget": epsilon, "lines": told.price_lines(said, epsilon)}


def tune_file(
    experiment: Experiment, out: Path | None, *, reporter: Reporter, stopping: Stopping
) -> tuple[Path, dict[str, Any] | None]:
    """As `tune`, for the command: (folder, its result, or None if it was stopped)."""
    file, base = _file_of(experiment, {})
    folder = _folder(file, out)
    return folder, _carried_out(file, base, folder, reporter, stopping)


def _carried_out(file: TuneFile, base: Path, out: Path, said: Reporter, stopping: Stopping) -> dict[str, Any] | None:
    """Begin a tuning in a folder, or go on with it; its result, or None if it was stopped."""
    tuning = course.begin(file, base, out)
    epsilon = file.config.privacy.epsilon
    assert epsilon is not None
    for line in told.price_lines(course.priced(tuning.price), epsilon):
        said.note(line)
    with stopping() as stop:
        ranked = course.carry_out(
            tuning, place=place_here, reporter=said, stop=stop, wait=Wait(LEDGER_WAIT, said.note, stop)
        )
    if ranked is None:
        return None
    result = course.outcome(tuning, ranked)
    files = RunFolder(out, file.config.access)
    files.write_together({RESULT: to_json(result), REPORT: told.statement(result, out.name)})
    return result


def _file_of(experiment: Experiment, spec: Mapping[str, Any]) -> tuple[TuneFile, Path]:
    values = merged(read_yaml(experiment.path), joined(map(parse_setting, experiment.settings)))
    if experiment.variant is not None:
        raise ConfigError(f"{experiment.path}: tune takes a file without variants. Write that variant into its own.")
    if spec:
        values = {**values, "tune": {**(values.get("tune") or {}), **spec}}
    base = base_of(experiment.path)
    own_folders.look_in(base)
    return tune_of(values, str(experiment.path)), base


def _folder(file: TuneFile, out: str | Path | None) -> Path:
    return Path(OUT) / file.config.name if out is None else Path(out)
