"""Runs beside each other: as a table, ranked, as a picture, and whether two differ by more than chance."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dpfl_plugin.api.plots import baseline_of, detailed, embedded, shown
from dpfl_plugin.api.runs import (
    Run,
    files_of,
    lines_of_any,
    lines_of_run,
    lines_of_shared_ledger,
    third_party_epsilon,
    worst_score,
)
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.outcomes import score_key, shortfall
from dpfl_plugin.core.rounding import places
from dpfl_plugin.core.text import aligned
from dpfl_plugin.errors import ConfigError, require

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

AUC: Final = "auc"
LAST: Final = "last 10 %"
EPSILONS: Final = ("epsilon", "third party")
LABEL: Final = {"algorithm": "{}", "seed": "seed {}", "id": "{}"}
LABELLED_BY: Final = ((), ("algorithm",), ("seed",), ("algorithm", "seed"), ("algorithm", "seed", "id"))


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Mapping[str, Run]):
    """Runs by label, as a table and a plot.

    Attributes:
        by: a measure of the final models that has a column of its own. pairs: of labels, whose difference is stated.
    """

    runs: Mapping[str, Run]
    by: str | None = None
    pairs: tuple[tuple[str, str], ...] = ()

    def __getitem__(self, label: str) -> Run:
        return self.runs[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def to_dict(self) -> dict[str, Any]:
        """What `dpfl run --json` prints of a file with variants: each run's `result`, by label."""
        return {label: run.result for label, run in self.items()}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One for each run: what `table` shows, with "auc" where there are two classes. What a run lacks is None."""
        scores = dict.fromkeys(run.score_name for run in self.values())
        of_two = any(run.positive_class is not None and _pooled(run, AUC) is not None for run in self.values())
        more = dict.fromkeys([*([] if self.by is None else [self.by]), *([AUC] if of_two else [])])
        return [
            {
                "run": label,
                "algorithm": run.result["algorithm"],
                "seed": run.result["seed"],
                "rounds": run.result["rounds"],
                **{name: run.score if run.score_name == name else None for name in scores},
                LAST: run.result[score_key(run.result)]["mean_last_10_percent"],
                "worst silo": worst_score(run.result),
                **{name: _pooled(run, name) for name in more},
                "epsilon": run.epsilon,
                "third party": _third_party(run),
                "delta": run.delta,
                "status": run.status,
                "seconds": run.result["seconds"],
            }
            for label, run in self.runs.items()
        ]

    @property
    def table(self) -> pandas.DataFrame:
        """One row for each run."""
        import pandas

        return pandas.DataFrame(self.rows).set_index("run")

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

        def order(pair: tuple[str, Run]) -> float:
            value = pair[1].score if name in scores else _pooled(pair[1], name)
            return math.inf if value is None or not math.isfinite(value) else shortfall(name, value)

        return Comparison(dict(sorted(self.items(), key=order)), None if name in scores else name, pairs=self.pairs)

    def plot(self) -> Figure:
        """Accuracy and epsilon against rounds, a line for each run."""
        private = {run.delta for run in self.values() if not math.isinf(run.epsilon)}
        delta = private.pop() if len(private) == 1 else None
        baseline = baseline_of(*(run.result for run in self.values()))
        return shown(detailed({label: run.lines for label, run in self.runs.items()}, "", delta, baseline))

    def _cells(self) -> list[list[str]]:
        return [
            [_cell(key, None if key == "delta" and math.isinf(row["epsilon"]) else value) for key, value in row.items()]
            for row in self.rows
        ]

    def _averages(self) -> str:
        """What columns of measures are averages of, where it is not the same."""
        several = any(run.result["num_silos"] > 1 for run in self.values())
        scores = dict.fromkeys(run.score_name for run in self.values() if run.score is not None)
        pooled = [key for key in self.rows[0] if key in (self.by, AUC) and key not in scores]
        if not several or not scores:
            return ""
        mean = f"{', '.join(scores)}: mean over silos, each counts alike"
        return mean + (f"; {', '.join(pooled)}: of all test records (Run.measures)." if pooled else ".")

    def _differences(self) -> list[str]:
        lines = []
        for first, second in self.pairs:
            if first in self and second in self:
                scores = [Scored.of(self[label].result, self[label].config) for label in (first, second)]
                if scores[0] is not None and scores[1] is not None:
                    lines.append(f"{first} against {second}: {difference(scores[0], scores[1])}")
        return lines

    def __repr__(self) -> str:
        return "\n".join(filter(None, [aligned([list(self.rows[0]), *self._cells()]), self._averages()]))

    def __str__(self) -> str:
        """The table, and all that is to be known of the runs."""
        runs = list(self.items())
        warnings = dict.fromkeys(text for _, run in runs for text in run.result.get("warnings", ()))
        text_lines = [line for label, run in runs for line in lines_of_run(run, label=label if len(runs) > 1 else "")]
        text_lines += dict.fromkeys(line for _, run in runs for line in lines_of_any(run))
        last = max(self.values(), key=lambda run: run.result.get("earlier_runs") or 0)
        text_lines += lines_of_shared_ledger(last.result)  # what the last of them came to
        text_lines += [*self._differences(), *(line for label, run in runs for line in files_of(run, label=label))]
        folders = {run.folder.parent for run in self.values()}
        picture = folders.pop() / "curves.png" if len(folders) == 1 else None
        text_lines += ["who is protected, against whom, and what is not covered: privacy.md there."]
        text_lines += [f"picture: {picture}"] if picture is not None and picture.exists() else []
        return "\n".join([*(f"warning: {text}" for text in warnings), repr(self), *text_lines])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(key)}</th>" for key in self.rows[0])
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in self._cells())
        return f"<table><tr>{head}</tr>{body}</table><p>{html.escape(self._averages())}</p>{embedded(self.plot())}"


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
    model: Mapping[str, Any] = ((run.measures or {}).get("pooled") or {}).get("model") or {}
    return {name: value for name, value in model.items() if value is None or isinstance(value, int | float)}


def _pooled(run: Run, name: str) -> float | None:
    return _measured(run).get(name)


def _third_party(run: Run) -> float:
    epsilon = third_party_epsilon(run.result)
    return math.inf if epsilon is None else epsilon


def _labelled(runs: Sequence[Run]) -> dict[str, Run]:
    """By their names, and by as little more as tells all of them apart."""
    results = [run.result if isinstance(run, Run) else {"name": str(place)} for place, run in enumerate(runs)]
    labels: list[str] = []
    for keys in LABELLED_BY:
        labels = [", ".join([str(r["name"]), *(LABEL[key].format(r.get(key)) for key in keys)]) for r in results]
        if len(set(labels)) == len(labels):
            break
    labelled: dict[str, Run] = {}
    for label, run in zip(labels, runs, strict=True):  # the same run may be there twice
        number = next(number for number in itertools.count(1) if _numbered(label, number) not in labelled)
        labelled[_numbered(label, number)] = run
    return labelled


def _numbered(label: str, number: int) -> str:
    return label if number == 1 else f"{label} ({number})"


def _cell(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if key in EPSILONS:
        return "none" if math.isinf(value) else places(value, 3)
    if key == "seconds":
        return f"{value:.1f}"
    scores = ("accuracy", AUC, LAST, "worst silo")
    return f"{value:.4f}" if key in scores else f"{value:g}" if isinstance(value, float) else str(value)
