"""What a finished run's model says of records, and what that tells of whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dpfl_plugin.api.plots import of_measures
from dpfl_plugin.api.plots import shown as in_notebook
from dpfl_plugin.api.runs import Run
from dpfl_plugin.core.outcomes import OutcomeKind, score_key
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.core.text import Printed, aligned
from dpfl_plugin.data.table import is_frame
from dpfl_plugin.errors import ConfigError, require
from dpfl_plugin.experiments.tuning.statement import check_run
from dpfl_plugin.runs.csv_cells import csv_text
from dpfl_plugin.runs.finished_run import FinishedRun
from dpfl_plugin.runs.prediction_input import id_notes, ids_of, read, read_array, read_frame, written_otherwise
from dpfl_plugin.runs.predictions import Predictions, by_record
from dpfl_plugin.runs.predictions import predict as predict_records
from dpfl_plugin.runs.result import views_of_all
from dpfl_plugin.runs.training_diagnostics import WEIGHTED, worse_than_baseline

if TYPE_CHECKING:
    import pandas
    import torch
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

COVERED: Final = (
    "What the model, and so any prediction, reveals about the people it was trained on is covered by that epsilon, "
    "whoever the prediction is about."
)
NOT_COVERED: Final = (
    "What a prediction reveals about the person whose record it was computed from is not covered by any epsilon: "
    "publishing predictions about people, new ones above all, is not the same as publishing the model."
)
NO_EPSILON: Final = "No epsilon holds for this run: its model, and any prediction, may reveal its training records."
SIMULATED: Final = (
    "The noise of this run follows from its seed, which whoever has the folder knows: before predictions leave your "
    "hands, train with privacy.randomness=fresh."
)
CONSTANTS: Final[dict[OutcomeKind, str]] = {
    "classes": "the most frequent class, and each class's share as its probability,",
    "ordinal": "the median level, and each level's share as its probability,",
    "regression": "the mean label",
    "counts": "all counts over all exposure",
    "multi_label": "each label's share as its probability",
    "survival": "each bin's share of events among those at risk in it",
}
"""What `measures.answers.baseline` says of a record."""
NO_PROBABILITIES: Final = "no probabilities: the outputs of a model with this loss are not log-odds."
NO_NAMES: Final = (
    "the run's server was not told the names of classes: classes are numbers, in the order of the training labels, "
    "and labels in DATA are not compared. Name classes in the configuration to have them."
)
SHOWN: Final = 10  # records that are printed
NUMBER: Final = 7  # significant digits in a file of predictions, as many as a float32 has
PROBABILITY: Final = 4  # significant digits there


@dataclass(frozen=True, slots=True)
class Predicted(Printed):
    """Predictions for records, and what they are to be read with; ``print`` says it as `dpfl predict` does.

    Attributes:
        run: the id of the run whose model it is.
        predictions: ``classes`` in the order of the model's outputs, ``predicted`` [n] numbers of classes,
            ``probabilities`` [n, classes] or None, ``labelled``, how many records have a label; ``measures`` of these.
        epsilon: of the run, as in result.json.
        rows: a mapping for each record: its ``line`` in a table (else its ``record``, from 0), the class that is
            ``predicted`` (as in `labels`), and the ``probabilities`` by the names of classes. Of other outcomes
            ``predicted`` is the mean of a regression, the expected count for exposure 1, or a list of the labels that
            hold; of survival there is ``survival``: the probability of no event up to the end of each bin of time.
        statement: at which epsilon the model was trained, what it covers and what it does not.
        notes: what was not used, or changed since.
    """

    run: str
    predictions: Predictions
    epsilon: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    statement: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.predictions.classes

    @property
    def labels(self) -> list[Any]:
        """[n], the class of each record: a number or a truth value where the labels were, which a program gave; else
        its name. Of other outcomes what `rows` has; "" of survival."""
        return [row.get("predicted", "") for row in self.rows]

    @property
    def measures(self) -> Mapping[str, Any] | None:
        """Of the records that have a label: AUC, RMSE ..., by name, the one that runs are ranked by first, as
        `Run.measures` has them (docs/outcomes.md); None where one is not defined. Computed from raw records: no epsilon
        covers them. None without labels."""
        return self.predictions.measures

    @property
    def constant_measures(self) -> Mapping[str, Any] | None:
        """The same of a constant, fitted to these very labels: what a model without features can be worth there."""
        return self.predictions.constant

    @property
    def accuracy(self) -> float | None:
        """Of `measures`."""
        return (self.measures or {}).get("accuracy")

    @property
    def positive_class(self) -> str | None:
        """Of two classes the second, of which AUC, sensitivity and others are; else None."""
        return self.classes[1] if self.predictions.outcome.kind == "classes" and len(self.classes) == 2 else None

    def to_csv(self) -> str:
        """A header and a line for each record: where it is in its file, its class, the probability of each class."""
        return csv_text(self._flat(_plainly))

    @property
    def table(self) -> pandas.DataFrame:
        """What `to_csv` writes, as a data frame: one row for each record."""
        import pandas

        return pandas.DataFrame(self._flat())

    def plot(self, kind: str) -> Figure:
        """A picture of `measures`: calibration or roc of two classes, or survival, as `Run.plot`.

        Raises:
            ConfigError: these records have no such picture.
        """
        return in_notebook(of_measures(kind, self.measures or {}, f"{self.predictions.labelled} records"))

    def _flat(self, shown: Callable[[float, int], Any] | None = None) -> list[dict[str, Any]]:
        shown, rows = shown or (lambda value, digits: value), []
        for row in self.rows:
            plain = {key: value for key, value in row.items() if key not in ("probabilities", "survival")}
            if isinstance(plain.get("predicted"), list):
                plain["predicted"] = " ".join(plain["predicted"])
            elif isinstance(plain.get("predicted"), float) and not self.predictions.outcome.has_classes:
                plain["predicted"] = shown(plain["predicted"], NUMBER)
            for key, prefix in (("probabilities", "p"), ("survival", "survival")):
                plain |= {f"{prefix}({name})": shown(p, PROBABILITY) for name, p in row.get(key, {}).items()}
            rows.append(plain)
        return rows

    def __repr__(self) -> str:
        return f"Predicted({len(self.rows)} records by run {self.run})"

    def __str__(self) -> str:
        rows = self._flat(_plainly)
        columns = list(dict.fromkeys(column for row in rows for column in row))
        shown = [[str(row.get(column, "")) for column in columns] for row in rows[:SHOWN]]
        more = [f"... and {len(rows) - SHOWN} more: table, rows, to_csv()"] if len(rows) > SHOWN else []
        return "\n".join([f"{self!r}:", aligned([columns, *shown]), *more, *self.remarks])

    @property
    def remarks(self) -> list[str]:
        """What the predictions are to be read with, a line each: notes, measures, epsilon and what it covers."""
        return [*(f"note: {note}" for note in self.notes), *self._measured(), *self.statement]

    def _measured(self) -> list[str]:
        """How good the predictions are for records that have a label, beside a constant."""
        if self.measures is None or self.constant_measures is None:
            return []
        rows = [["", "model", "constant"]] + [
            [name.replace("_", " "), _four_digits(value), _four_digits(self.constant_measures.get(name))]
            for name, value in self.measures.items()
            if not isinstance(value, dict | list)
        ]
        constant = CONSTANTS[self.predictions.outcome.kind]
        positive = "" if self.positive_class is None else f" The positive class is {self.positive_class}."
        return [
            f"{self.predictions.labelled} of {len(self.rows)} records have a label:",
            *(f"  {line}" for line in aligned(rows).splitlines()),
            f"  The constant, fitted to these very labels, predicts {constant} for every record.{positive}",
            "  Computed from raw records: no epsilon covers them.",
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `dpfl predict --json` prints them."""
        return {
            "run": self.run,
            "epsilon": self.epsilon,
            "statement": list(self.statement),
            "classes": list(self.classes),
            "accuracy": self.accuracy,
            "labelled": self.predictions.labelled,
            "measures": self.measures,
            "constant_measures": self.constant_measures,
            "predictions": list(self.rows),
        }


def predict(
    run: Run | str | Path,
    data: str | Path | pandas.DataFrame | NDArray[Any] | torch.Tensor,
    *,
    id_column: str | None = None,
) -> Predicted:
    """Apply a finished run's model to records, as `dpfl predict`; they are preprocessed as those of its training were.

    Args:
        run: or its folder.
        data: a CSV or NPZ file as for training, labels optional; a data frame with the columns of training; an array
            [n, ...] of features, before preprocessing; or the run's data set by name.
        id_column: of ``data``, a table: what each prediction carries first, such as a patient's number. The model does
            not see it. A note says where it does not tell records apart.

    Raises:
        ConfigError: the run is not finished or was made with other code, or there are no such data, or no such column.
        DataError: a file is damaged, or holds records of another kind; UnsupportedError: the run's folder does not say
            how its records were preprocessed.
    """
    require(isinstance(run, Run | str | Path), "run", run, "be a run, or the path of its folder")
    named, framed = isinstance(data, str | Path), is_frame(data)
    if not (named or framed or hasattr(data, "__array__")):
        raise ConfigError(
            f"data is of type {type(data).__name__}: give the path of a CSV or NPZ file, a data frame, an array of "
            "features, or the name of the run's data set."
        )
    folder = run.folder if isinstance(run, Run) else Path(run)
    check_run(folder, "predict", str(data) if named else "DATA")
    trained = FinishedRun.at(folder)
    records = read(trained, str(data)) if named else (read_frame if framed else read_array)(trained, data)
    ids = None if id_column is None else ids_of(trained, data, id_column)
    predictions = predict_records(trained, records)
    scores = [line.get(score_key(line)) for line in trained.folder.read_metrics()]
    options = trained.config.algorithm.options
    useless = WEIGHTED if trained.config.class_weights else worse_than_baseline(trained.result, options, scores)
    rows = by_record(predictions, records.lines)
    if id_column is not None and ids is not None:
        rows = [{id_column: one, **row} for one, row in zip(ids, rows, strict=True)]
    notes = [*trained.notes, *records.notes]
    if unused := [f"'{column}'" for column in records.unused if column != id_column]:
        which = "it: column" if len(unused) == 1 else "them: columns"
        notes.append(f"not used, as the model was not trained on {which} {', '.join(unused)}.")
    notes += written_otherwise(trained, records)
    notes += [*id_notes(id_column or "", ids or []), *([] if useless is None else [useless])]
    if predictions.probabilities is None and predictions.outcome.has_classes:
        notes.append(NO_PROBABILITIES)
    if not trained.labels and predictions.outcome.has_classes:
        notes.append(NO_NAMES)
    return Predicted(
        run=str(trained.result["id"]),
        predictions=predictions,
        epsilon=trained.result["epsilon"],
        rows=rows,
        statement=tuple(statement_of(trained)),
        notes=tuple(notes),
    )


def _four_digits(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4g}"


def _plainly(value: float, most: int) -> str:
    """With so many significant digits at most, and no exponent."""
    text: str = np.format_float_positional(float(f"{value:.{most}g}"), trim="-")
    return text


def statement_of(trained: FinishedRun) -> list[str]:
    """At which epsilon the model was trained, and what it covers."""
    epsilon = trained.result["epsilon"]
    views = views_of_all(trained.result)
    server, outside = views["server"]["epsilon"], views["third_party"]["epsilon"]
    where = f"the model of {trained.folder.path}"
    if server is None and outside is None:
        return [f"{where}: {NO_EPSILON}", NOT_COVERED]
    level = epsilon["server"]["unit"]
    shared = ", with the other runs in its shared ledger" if trained.result.get("earlier_runs") else ""
    if "tuning" in trained.result:
        more = (
            ""
            if trained.config.privacy.ledger is None
            else f" (`dpfl statement` has all of {trained.config.privacy.ledger})"
        )
        shared = f", with all candidates of its tuning{more}"
    lines = [
        f"{where} was trained at epsilon {_number(server)} (server), {_number(outside)} (third party), delta "
        f"{digits(epsilon['server']['delta'], 6)}, {level} level{shared}.",
        COVERED,
        NOT_COVERED,
    ]
    return lines if trained.config.fresh else [*lines, SIMULATED]


def _number(epsilon: float | None) -> str:
    return "none" if epsilon is None else digits(epsilon, 4)
