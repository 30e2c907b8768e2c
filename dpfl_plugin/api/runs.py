"""A run's result as an object: its numbers, its model, its statement; and several runs beside each other."""

from __future__ import annotations

import base64
import html
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dpfl_plugin import given, own_folders
from dpfl_plugin.api.pandas_frames import pandas_for
from dpfl_plugin.api.pictures import detailed
from dpfl_plugin.api.plots import png, shown
from dpfl_plugin.api.run_text import run_lines, two_classes
from dpfl_plugin.config.load import base_of, load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.outcomes import Outcome, higher_is_better, score_key
from dpfl_plugin.core.rounding import places
from dpfl_plugin.core.text import aligned, counted
from dpfl_plugin.errors import ConfigError, DataError, require
from dpfl_plugin.runs.folder import RunFolder

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from torch import nn

Shape = tuple[tuple[int, ...], int]
"""(shape of a record's features, number of classes)."""


class Run:
    """The result of a run, read from its folder; `dpfl.train` returns one, and `Run.open` reads it again.

    Attributes:
        folder: the run's folder, with all its files.
        result: what `result.json` holds.
    """

    def __init__(self, folder: Path, result: Mapping[str, Any], *, held: object = None, shape: Shape | None = None):
        self.folder, self.result = Path(folder), dict(result)
        self._files, self._held, self._shape = RunFolder(self.folder), held, shape

    def __getstate__(self) -> dict[str, Any]:
        """Without the records and other objects that the program gave: who is sent a result is not sent these."""
        return {**self.__dict__, "_held": None}

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """The run of a folder, ``OUT/NAME/ID``, begun in Python or by `dpfl run`.

        Raises:
            DataError: no run ended there, its result cannot be read, or the statement beside it says something else.
        """
        require(isinstance(folder, str | Path), "folder", folder, "be the path of a run's folder, OUT/NAME/ID")
        files = RunFolder(Path(folder))
        try:
            result = json.loads(files.result.read_text())
        except FileNotFoundError as error:
            raise DataError(
                f"{folder} has no result.json: no run ended there. Give a run's folder, OUT/NAME/ID."
            ) from error
        except (OSError, ValueError) as error:
            raise DataError(f"{files.result} cannot be read: {error}.") from error
        return cls(files.path, result)

    @property
    def status(self) -> str:
        """ "done", "budget_exhausted", "interrupted" or "failed"; ``result["reason"]`` says why."""
        return str(self.result["status"])

    @property
    def epsilon(self) -> float:
        """Of this run, for the server, at the worst silo; math.inf where nothing is guaranteed. See `statement`.

        Of a candidate of a tuning that of the whole tuning: it was chosen by what all candidates released.
        """
        if "tuning" in self.result:
            return float(self.result["tuning"]["epsilon"])
        found = self.result["epsilon"]["server"]["epsilon"]
        return math.inf if found is None else float(found)

    @property
    def delta(self) -> float:
        """At which `epsilon` holds."""
        return float(self.result["epsilon"]["server"]["delta"])

    @property
    def accuracy(self) -> float | None:
        """Mean over silos of the final model's test accuracy; None where nothing was measured."""
        found = self.result["test_accuracy"]["last"]
        return None if found is None else float(found)

    @property
    def score(self) -> float | None:
        """Mean over silos of what the outcome is ranked by, of the final model on test records: the accuracy of
        classes, the error of a regression (`score_name`), ...; None where nothing was measured."""
        found = self.result[score_key(self.result)]["last"]
        return None if found is None else float(found)

    @property
    def score_name(self) -> str:
        """What `score` is, e.g. "accuracy" or "rmse"."""
        return score_key(self.result).removeprefix("test_")

    @property
    def measures(self) -> dict[str, Any] | None:
        """All measures of the final model on test records, pooled and by silo, with a baseline that knows no feature
        beside each, and those of silos' own models where they have some (docs/outcomes.md); None where they were not
        made. They are computed without noise: no epsilon covers them."""
        found: dict[str, Any] | None = self.result.get("measures")
        return found

    @property
    def positive_class(self) -> str | None:
        """Of two classes the one that sensitivity, precision, F1, AUC and PR-AUC are of: the second; None of other
        outcomes, and of runs of earlier versions."""
        found: str | None = self.result.get("positive_class")
        return found

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The evaluations, as `metrics.jsonl` has them."""
        return self._files.read_metrics()

    @property
    def metrics(self) -> pandas.DataFrame:
        """The evaluations, one row each.

        Raises:
            ConfigError: pandas is not installed.
        """
        return pandas_for("metrics", "lines").json_normalize(self.lines, sep="_")

    @property
    def profile(self) -> dict[str, Any] | None:
        """Where the time went, as `profile.json` has it: ``rounds``, and seconds by part; None where none was taken.

        The parts are those of ``process``, or with MPI of ``server`` and of each of ``silo_ranks``.

        Raises:
            DataError: the file cannot be read.
        """
        path = self._files.profile
        try:
            found: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read: {error}.") from error
        return found

    @property
    def config(self) -> Config:
        """The configuration, as `config.yaml` holds it."""
        return load(self._files.config).variants[0].config

    @property
    def statement(self) -> str:
        """What is guaranteed to whom, and what is not, in words: `privacy.md`.

        Raises:
            DataError: the run did not end, or the file is gone.
        """
        try:
            return self._files.privacy.read_text()
        except OSError as error:
            raise DataError(f"{self._files.privacy} cannot be read: {error.strerror}.") from error

    @property
    def model(self) -> nn.Module:
        """The final model, in eval mode on the CPU; a new one at each call. Of a simulation it is not to be published.

        Raises:
            DataError: its file is missing or damaged; ConfigError: the code that it is built from is missing, or, of a
                run by an earlier version, the records.
        """
        from dpfl_plugin.api.training import trained_model
        from dpfl_plugin.runs.predictions import shape_of

        config, base = self.config, base_of(self._files.config)
        told = self._shape is not None or self.result.get("inputs") is not None
        given.check_all(config.model_dump(), records=not told)
        own_folders.look_in(base)
        if self._shape is None:
            self._shape = shape_of(config, base, self.result)
        return trained_model(self._files, config, *self._shape, Outcome.of_result(self.result))

    def export(self, folder: str | Path, *, onnx: bool = False) -> Path:
        """Write the model for other programs into a new folder; see `dpfl_plugin.api.exports.export`."""
        from dpfl_plugin.api.exports import export

        return export(self, folder, onnx=onnx)

    def plot(self) -> Figure:
        """Accuracy and epsilon against rounds, as in `curves.png`."""
        name = str(self.result["name"])
        return shown(detailed({name: self.lines}, f"{name}: {self.result['algorithm']}", self.delta))

    def __repr__(self) -> str:
        return f"Run({self._summary()}, folder={str(self.folder)!r})"

    def _summary(self) -> str:
        score = "not measured" if self.score is None else f"{self.score:.4f}{MEAN * (self.result['num_silos'] > 1)}"
        epsilon = "none" if math.isinf(self.epsilon) else f"{places(self.epsilon, 3)} at delta {self.delta:.15g}"
        more = f", {said}" if (said := two_classes(self.result)) else ""
        done = counted(self.result["rounds"], "round")
        return f"{self.status} after {done}, {self.score_name} {score}{more}, epsilon {epsilon}"

    def _lines(self) -> list[str]:
        return run_lines(self.result, self.config.algorithm.options, self.folder)

    def __str__(self) -> str:
        return "\n".join([f"{self.result['name']}: {self._summary()}", str(self.folder), *self._lines()])

    def _repr_html_(self) -> str:
        name, summary, folder = (html.escape(str(one)) for one in (self.result["name"], self._summary(), self.folder))
        lines = html.escape("\n".join(self._lines()))
        told = f'<pre style="white-space: pre-wrap">{lines}</pre>' if lines else ""
        return f"<p><b>{name}</b>: {summary}<br><code>{folder}</code></p>{told}" + (
            _picture(self.plot()) if self.lines else ""
        )


class Comparison(Mapping[str, Run]):
    """Runs by label, as a table and a plot; ``by``: a measure of the final models that has a column of its own."""

    def __init__(self, runs: Mapping[str, Run], by: str | None = None) -> None:
        self._runs, self._by = dict(runs), by

    def __getitem__(self, label: str) -> Run:
        return self._runs[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One for each run: what `table` shows, with "auc" where there are two classes. What a run lacks is None."""
        scores = dict.fromkeys(run.score_name for run in self.values())
        of_two = any(run.positive_class is not None and _pooled(run, AUC) is not None for run in self.values())
        more = dict.fromkeys([*([] if self._by is None else [self._by]), *([AUC] if of_two else [])])
        return [
            {
                "run": label,
                "algorithm": run.result["algorithm"],
                "seed": run.result["seed"],
                "rounds": run.result["rounds"],
                **{name: run.score if run.score_name == name else None for name in scores},
                **{name: _pooled(run, name) for name in more},
                "epsilon": run.epsilon,
                "delta": run.delta,
                "status": run.status,
            }
            for label, run in self._runs.items()
        ]

    @property
    def table(self) -> pandas.DataFrame:
        """One row for each run.

        Raises:
            ConfigError: pandas is not installed.
        """
        return pandas_for("table", "rows").DataFrame(self.rows).set_index("run")

    def ranked(self, by: str | None = None) -> Comparison:
        """The same runs, the best first; those without a finite number last.

        Args:
            by: a measure of the final models on all test records (`Run.measures`), such as "auc", which gets a column;
                None, or its name: what the outcome is ranked by (`Run.score`).

        Raises:
            ConfigError: no run has such a measure, or outcomes are ranked by different ones.
        """
        scores = list(dict.fromkeys(run.score_name for run in self.values()))
        if by is None and len(scores) > 1:
            raise ConfigError(f"ranked: these runs are ranked by {' and '.join(scores)}, which do not compare.")
        known = dict.fromkeys([*scores, *(name for run in self.values() for name in _measured(run))])
        name = scores[0] if by is None else by
        require(name in known, "by", by, f"be a measure of these runs, one of {', '.join(known)}")
        sign = -1 if higher_is_better(name) else 1

        def order(pair: tuple[str, Run]) -> float:
            value = pair[1].score if name in scores else _pooled(pair[1], name)
            return math.inf if value is None or not math.isfinite(value) else sign * value

        return Comparison(dict(sorted(self.items(), key=order)), None if name in scores else name)

    def difference(self, first: str, second: str) -> str:
        """How the accuracies of two runs differ, in words, and whether by more than chance would make them.

        Raises:
            ConfigError: there is no such run, or it measured nothing.
        """
        found: list[Scored] = []
        for label in (first, second):
            require(label in self._runs, "label", label, f"be one of {', '.join(self._runs)}")
            run = self._runs[label]
            if (scored := Scored.of(run.result, run.config)) is None:
                score = run.score_name
                why = "" if score == "accuracy" else f", but {score}: chance is known of shares of right answers only"
                raise ConfigError(f"{label} measured no accuracy{why}: there is nothing to compare.")
            found.append(scored)
        return difference(*found)

    def plot(self) -> Figure:
        """Accuracy and epsilon against rounds, a line for each run."""
        private = {run.delta for run in self.values() if not math.isinf(run.epsilon)}
        delta = private.pop() if len(private) == 1 else None
        return shown(detailed({label: run.lines for label, run in self._runs.items()}, "", delta))

    def _cells(self) -> list[list[str]]:
        return [
            [_cell(key, None if key == "delta" and math.isinf(row["epsilon"]) else value) for key, value in row.items()]
            for row in self.rows
        ]

    def _averages(self) -> str:
        """What columns of measures are averages of, where it is not the same."""
        several = any(run.result["num_silos"] > 1 for run in self.values())
        scores = dict.fromkeys(run.score_name for run in self.values() if run.score is not None)
        pooled = [key for key in self.rows[0] if key in (self._by, AUC) and key not in scores]
        if not several or not scores:
            return ""
        said = f"{', '.join(scores)}: mean over silos, each counts alike"
        return said + (f"; {', '.join(pooled)}: of all test records (Run.measures)." if pooled else ".")

    def __repr__(self) -> str:
        return "\n".join(filter(None, [aligned([list(self.rows[0]), *self._cells()]), self._averages()]))

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(key)}</th>" for key in self.rows[0])
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in self._cells())
        return f"<table><tr>{head}</tr>{body}</table><p>{html.escape(self._averages())}</p>{_picture(self.plot())}"


def compare(runs: Sequence[Run] | Mapping[str, Run]) -> Comparison:
    """Runs side by side: labelled as in a mapping, or, for a sequence, by their names and by what differs.

    Raises:
        ConfigError: there are no runs, or one of them is not a `Run`.
    """
    require(isinstance(runs, Iterable), "runs", runs, "be a list of runs, or a mapping of labels to runs")
    labelled = runs if isinstance(runs, Mapping) else _labelled(runs)
    if not labelled:
        raise ConfigError("compare needs at least one run: dpfl.compare([run, other]).")
    for label, run in labelled.items():
        if not isinstance(run, Run):
            raise ConfigError(f"compare: {label} is a {type(run).__name__}, not a Run. Use dpfl.Run.open(folder).")
    return Comparison({str(label): run for label, run in labelled.items()})


AUC: Final = "auc"
MEAN: Final = " (mean over silos)"
LABEL: Final = {"algorithm": "{}", "seed": "seed {}", "id": "{}"}
LABELLED_BY: Final = ((), ("algorithm",), ("seed",), ("algorithm", "seed"), ("algorithm", "seed", "id"))


@dataclass(frozen=True, slots=True)
class Scored:
    """An accuracy, and on what: the number of test records, and where they are from."""

    accuracy: float
    count: int
    source: object

    @classmethod
    def of(cls, result: Mapping[str, Any], config: Config) -> Scored | None:
        """Of a run's result; None if it measured nothing."""
        accuracy, data = result["test_accuracy"]["mean_last_10_percent"], config.data
        if accuracy is None:
            return None
        return cls(float(accuracy), int(result["num_test_records"]), (data.dataset, data.test, data.test_fraction))


def difference(first: Scored, second: Scored) -> str:
    """Two accuracies in words, with the normal approximation's standard error.

    It is that of independent test records; where the same ones test both, the error of the difference is at most that.
    Records of other data (say one hospital's, and all hospitals') are another task: no difference is stated.
    """
    a, b = first.accuracy, second.accuracy
    if first.source != second.source:
        return (
            f"{a:.3f} and {b:.3f}, on other test records ({first.count} and {second.count}): these accuracies do not "
            "compare."
        )
    error = math.sqrt(a * (1 - a) / first.count + b * (1 - b) / second.count)
    points = f"{100 * (a - b):+.1f} points ({a:.3f}, {b:.3f})"
    if abs(a - b) > 2 * error:
        return f"{points}, more than two standard errors ({200 * error:.1f}): a difference, for this seed."
    return f"{points}, within two standard errors ({200 * error:.1f}): one run does not show a difference."


def _measured(run: Run) -> dict[str, float | None]:
    """Measures that are single numbers, of the final model on the test records of all silos."""
    found: Mapping[str, Any] = ((run.measures or {}).get("pooled") or {}).get("model") or {}
    return {name: value for name, value in found.items() if value is None or isinstance(value, int | float)}


def _pooled(run: Run, name: str) -> float | None:
    return _measured(run).get(name)


def _labelled(runs: Sequence[Run]) -> dict[str, Run]:
    """By their names, and by as little more as tells all of them apart."""
    results = [run.result if isinstance(run, Run) else {"name": str(place)} for place, run in enumerate(runs)]
    labels: list[str] = []
    for keys in LABELLED_BY:
        labels = [", ".join([str(one["name"]), *(LABEL[key].format(one.get(key)) for key in keys)]) for one in results]
        if len(set(labels)) == len(labels):
            break
    found: dict[str, Run] = {}
    for label, run in zip(labels, runs, strict=True):  # the same run may be there twice
        number = next(number for number in itertools.count(1) if _numbered(label, number) not in found)
        found[_numbered(label, number)] = run
    return found


def _numbered(label: str, number: int) -> str:
    return label if number == 1 else f"{label} ({number})"


def _cell(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if key == "epsilon":
        return "none" if math.isinf(value) else places(value, 3)
    return f"{value:.4f}" if key in ("accuracy", AUC) else f"{value:g}" if isinstance(value, float) else str(value)


def _picture(figure: Figure) -> str:
    return f'<img alt="curves" src="data:image/png;base64,{base64.b64encode(png(figure)).decode()}">'
