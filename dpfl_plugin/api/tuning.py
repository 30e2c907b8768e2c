"""Tuning under one budget: `dpfl.tune`, `Federation.tune`, `dpfl tune`."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dpfl_plugin import own_folders
from dpfl_plugin.api.experiment import Experiment, experiment_of
from dpfl_plugin.api.objects import plain
from dpfl_plugin.api.progress import python_reporter
from dpfl_plugin.api.runs import Run
from dpfl_plugin.api.training import LEDGER_WAIT, check_path, values_of
from dpfl_plugin.config.load import base_of, joined, merged, parse_setting, read_yaml
from dpfl_plugin.config.tune import TuneFile, tune_of
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.core.text import Printed
from dpfl_plugin.errors import ConfigError, TrainingError, require
from dpfl_plugin.experiments.tuning import price as prices
from dpfl_plugin.experiments.tuning import successive_halving
from dpfl_plugin.experiments.tuning.statement import RESULT, failed_winner, price_lines, statement
from dpfl_plugin.interrupts import startup_is_over, stopping
from dpfl_plugin.runs.folder import RunFolder, to_json
from dpfl_plugin.runs.hooks import Reporter
from dpfl_plugin.runs.ledgers import Wait
from dpfl_plugin.runs.prepare import total_with
from dpfl_plugin.runs.start_notes import total_with_others
from dpfl_plugin.runtimes.choice import backend_here

if TYPE_CHECKING:
    import pandas

    from dpfl_plugin.api.federation import Federation

OUT = "tunes"  # folder of tunings
REPORT = "tuning.md"
SOURCE = "Federation.tune"


@dataclass(frozen=True, eq=False, repr=False)
class Tuning(Mapping[str, Run]):
    """A tuning that is done: the winner's run, and the runs of all candidates by what they changed.

    Attributes:
        folder: of the tuning; result: what its `result.json` holds; held: as of a `Run`.
    """

    folder: Path
    result: dict[str, Any]
    held: object = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the records and other objects that the program gave, as a `Run`."""
        return {**self.__dict__, "held": None}

    @property
    def _folders(self) -> dict[str, str]:
        return {candidate["label"]: candidate["folder"] for candidate in self.result["ranking"]}

    def __getitem__(self, label: str) -> Run:
        return self._run(self._folders[label])

    def __iter__(self) -> Iterator[str]:
        return iter(self._folders)

    def __len__(self) -> int:
        return len(self._folders)

    @property
    def winner(self) -> Run:
        """The run that was trained to its end; its epsilon is that of the tuning."""
        return self._run(self.result["winner"]["folder"])

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
        return statement(self.result, self.folder.name)

    @property
    def failure(self) -> str:
        """What to do where the winner failed; "" where it did not."""
        return failed_winner(self.result, why=True)

    def to_dict(self) -> dict[str, Any]:
        """What `dpfl tune --json` prints: `result`."""
        return self.result

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One for each candidate, the winner first: what `table` shows.

        Scores are None from where it went no further; ``noise`` is the standard deviation of the noise in each, and
        ``failed`` why it did, if it did.
        """
        ends = [place["last"] for place in self.result["places"]]
        found = []
        for one in self.result["ranking"]:
            scores = dict(map(tuple, one["scores"]))
            score = {f"score after {end}": scores.get(end) for end in ends}
            found.append({"candidate": one["label"], **score, "noise": one["noise_std"], "failed": one["failed"]})
        return found

    @property
    def table(self) -> pandas.DataFrame:
        """One row for each candidate."""
        import pandas

        return pandas.DataFrame(self.rows).set_index("candidate")

    def __repr__(self) -> str:
        return f"Tuning({self._summary()}, folder={str(self.folder)!r})"

    def __str__(self) -> str:
        return f"{self.statement}\n{self._score()}"

    def _score(self) -> str:
        """The winner's score on test records, as `dpfl run` reports it; it is for the owner, and not in the report."""
        winner = self.winner
        if winner.score is None:
            return "The winner's model was not evaluated on test records."
        measures = winner.measures or {}
        auc = ((measures.get("pooled") or measures.get("mean_of_silos") or {}).get("model") or {}).get("auc")
        return (
            f"The winner on its test records: {winner.score_name.replace('_', ' ')} {winner.score:.4f}"
            + ("" if auc is None else f", AUC {auc:.4f}")
            + ". It is computed from raw records, as dpfl run reports it; no epsilon covers it."
        )

    def _summary(self) -> str:
        return (
            f"{self.result['winner']['label']} of {len(self)} candidates, epsilon {digits(self.epsilon, 6)} at "
            f"delta {digits(self.delta, 6)} in all"
        )

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(key)}</th>" for key in self.rows[0])
        cells = [[_cell(value) for value in row.values()] for row in self.rows]
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells)
        return (
            f"<p>{html.escape(self._summary())}<br><code>{html.escape(str(self.folder))}</code></p>"
            f"<table><tr>{head}</tr>{body}</table>"
        )

    def _run(self, folder: str) -> Run:
        return replace(Run.open(folder), held=self.held)


def _cell(value: Any) -> str:
    shown = "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
    return html.escape(shown)


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
    return _succeeded(_tuned(*_file_of(experiment_of(experiment), spec), out, python_reporter(progress)))


def tune_file(experiment: Experiment, out: Path | None, *, reporter: Reporter, exits: bool) -> Tuning:
    """As `tune`, for the command, which shows a tuning whose winner failed, too; ``exits``: as of `Stop`."""
    return _tuned(*_file_of(experiment, {}), out, reporter, exits=exits)


def tune_given(
    federation: Federation,
    spec: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    out: str | Path | None,
    progress: bool | None,
) -> Tuning:
    """`Federation.tune`; given: keys of a file, as `dpfl.train` takes them."""
    return _succeeded(_tuned(*_given(federation, spec, given), out, python_reporter(progress)))


def plan_given(
    federation: Federation, spec: Mapping[str, Any], given: Mapping[str, Any], *, out: str | Path | None
) -> Price:
    """`Federation.plan_tuning`; given: keys of a file, as `dpfl.train` takes them."""
    file, base, _ = _given(federation, spec, given)
    return _price(file, base, out)


def _given(federation: Federation, spec: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[TuneFile, Path, object]:
    """A file with `tune` and these keys, worked out; where its paths start; objects that have to be held."""
    block = "be what tune is in a file, e.g. {'grid': {'algorithm.local_lr': [0.1, 0.3]}, 'rungs': [5]}"
    require(isinstance(spec, Mapping), "tune", spec, block)
    keys = dict(given)
    values, held = values_of(federation, keys.pop("model"), keys.pop("algorithm"), keys.pop("privacy"), keys)
    base = Path.cwd()
    own_folders.look_in(base)
    return tune_of({**values, "tune": plain(spec)}, SOURCE), base, held


def _tuned(
    file: TuneFile, base: Path, held: object, out: str | Path | None, reporter: Reporter, *, exits: bool = False
) -> Tuning:
    """Begin a tuning in its folder, or go on with it.

    Raises:
        KeyboardInterrupt: asked to stop.
    """
    folder, threads = _folder(file, out), torch.get_num_threads()
    reporter.note(f"folder: {folder}")
    tuning = successive_halving.begin(file, base, folder)
    for line in _priced(file, tuning.price)["lines"]:
        reporter.note(line)
    startup_is_over()
    try:
        with stopping(exits=exits) as stop:
            wait = Wait(LEDGER_WAIT, reporter.note, stop)
            ranked = successive_halving.carry_out(tuning, backend=backend_here, reporter=reporter, stop=stop, wait=wait)
        if ranked is None:
            raise KeyboardInterrupt
        result = successive_halving.outcome(tuning, ranked)
        RunFolder(folder).write_together({RESULT: to_json(result), REPORT: statement(result, folder.name)})
    except KeyboardInterrupt:
        reporter.note(f"interrupted: what is done is saved in {folder}. The same call or command continues.")
        raise
    finally:
        torch.set_num_threads(threads)
    return Tuning(folder, result, held=held)


def _succeeded(tuning: Tuning) -> Tuning:
    if tuning.failure:
        raise TrainingError(tuning.failure)
    return tuning


class Price(Printed, dict[str, Any]):
    """What a tuning costs, by its keys; ``print`` shows what `dpfl tune --plan` does."""

    def to_dict(self) -> dict[str, Any]:
        """What `dpfl tune --plan --json` prints."""
        return {key: value for key, value in self.items() if key != "lines"}

    def __str__(self) -> str:
        return "\n".join(self["lines"])


def plan_tuning(experiment: Experiment | str | Path, *, out: str | Path | None = None, **spec: Any) -> Price:
    """What a tuning costs, before anything is trained: places, rounds, noise multipliers, epsilons; and in words.

    Arguments and errors as those of `tune`.
    """
    file, base, _ = _file_of(experiment_of(experiment), spec)
    return _price(file, base, out)


def _price(file: TuneFile, base: Path, out: str | Path | None) -> Price:
    tuning = successive_halving.begin(file, base, _folder(file, out))
    price = _priced(file, tuning.price)
    begun = tuning.ledger.exists()  # then it is registered
    total = None if begun else total_with(file.config, base, lambda: tuning.price.slots)
    if total is not None:
        price["lines"].append(f"In the ledger of the project: {total_with_others(total)}.")
        price["total"] = total
    return price


def _priced(file: TuneFile, price: prices.Price) -> Price:
    values, epsilon = price.to_dict(), file.config.privacy.epsilon
    assert epsilon is not None
    return Price(**values, budget=epsilon, lines=price_lines(values, epsilon))


def _file_of(experiment: Experiment, spec: Mapping[str, Any]) -> tuple[TuneFile, Path, None]:
    values = merged(read_yaml(experiment.path), joined(map(parse_setting, experiment.settings)))
    if experiment.variant is not None:
        raise ConfigError(f"{experiment.path}: tune takes a file without variants. Write that variant into its own.")
    if spec:
        values = {**values, "tune": {**(values.get("tune") or {}), **spec}}
    base = base_of(experiment.path)
    own_folders.look_in(base)
    return tune_of(values, str(experiment.path)), base, None


def _folder(file: TuneFile, out: str | Path | None) -> Path:
    check_path("out", out)
    return Path(OUT) / file.config.name if out is None else Path(out)
