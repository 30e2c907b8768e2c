"""The coefficients of a linear model in the units of the table that it was trained on: `run.coefficients`.

They are read off the model as it predicts: a made-up record in which every column has its reference value, and one more
for each change of a single column, take the same way to the model as new records do (`runs.predictions`). So every
encoding is inverted as it is, and a prediction by the coefficients is the model's own. No records are read.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfl_plugin.api.predict import COVERED, NOT_COVERED, statement_of
from dpfl_plugin.core.outcomes import Outcome, score_key
from dpfl_plugin.core.text import Printed, aligned
from dpfl_plugin.data import heart_disease
from dpfl_plugin.data.schema import Column, TableSchema
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.experiments.tuning.statement import check_run
from dpfl_plugin.models.fields import fields_of
from dpfl_plugin.models.score_heads import BaselineHazards, ScoreHead, Thresholds
from dpfl_plugin.runs.finished_run import FinishedRun
from dpfl_plugin.runs.predictions import gives_log_odds, prepared
from dpfl_plugin.runs.public_facts import has_schema
from dpfl_plugin.runs.records import steps_of
from dpfl_plugin.runs.training_diagnostics import worse_than_baseline

if TYPE_CHECKING:
    import pandas

INTERCEPT: Final = "(intercept)"
YEAR: Final = 365.25
OF_ONE_COLUMN: Final = ("scale", "standardise")
"""Steps of preprocessing that leave each feature a multiple of itself, and a constant."""
NO_INTERVALS: Final = (
    "no confidence intervals: those that follow from a private model miss the true value too often "
    "(docs/outcomes.md#intervals)."
)
SHRUNK: Final = (
    "noise moves the coefficients; clipped gradients and few rounds leave them nearer to 0 than they would be."
)
CLIPPED: Final = "a number outside the range of its column counts as the end of the range."
FROM_MODEL: Final = "The coefficients follow from the model and the schema: they reveal no more than the model does."


@dataclass(frozen=True, slots=True)
class Coefficient:
    """What a change of one column does to predictions.

    Attributes:
        column: its name, or "(intercept)", which is the prediction for a record with all reference values.
        level: of a category, the value, "other" or "missing"; None of a number.
        reference: the value that it is compared with.
        step: by how much a number grows, in the unit of the table (of a date, days); of an ordinal column one level.
        unit: of the step.
        output: which class, label, level or bin of time is predicted, where there are several.
        estimate: the logarithm of the ratio; of a regression the difference, in the unit of the label.
        ratio: of odds, rates or hazards; None of a regression. Of the intercept the odds, rate or hazard itself.
    """

    column: str
    level: str | None
    reference: str | float | None
    step: float | None
    unit: str | None
    output: str | None
    estimate: float
    ratio: float | None


@dataclass(frozen=True, slots=True)
class Coefficients(Printed):
    """A linear model's coefficients; ``print`` says it as `dpfl coefficients` does.

    The intercept and what each column of a record adds is the model's prediction as log-odds, the logarithm of a rate
    or hazard, or a mean: of a category the estimate of its value, 0 of the reference; of a number
    estimate * (value - reference) / step.

    Attributes:
        run: the id of the run whose model it is.
        what: what ratios, or differences, are of. scale: of estimates: "log odds ratio", "log rate ratio", "log hazard
            ratio" or "difference".
        rows: column by column, of each output; the intercepts last.
        statement: at which epsilon the model was trained. notes: what the numbers are to be read with.
    """

    run: str
    what: str
    scale: str
    rows: tuple[Coefficient, ...]
    statement: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def table(self) -> pandas.DataFrame:
        """A data frame with a row for each coefficient."""
        import pandas

        return pandas.DataFrame(list(map(asdict, self.rows)))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `dpfl coefficients --json` prints them."""
        return asdict(self)

    def __repr__(self) -> str:
        return f"Coefficients({self.what}, run {self.run})"

    def __str__(self) -> str:
        ratio = self.scale.removeprefix("log ")
        head = ["", "column", "level", "against", "per", self.scale, *[ratio] * (ratio != self.scale)]
        cells = [_cells(row) for row in self.rows]
        filled = [any(column) for column in zip(*cells, strict=True)]
        rows = [[cell for cell, there in zip(row, filled, strict=True) if there] for row in (head, *cells)]
        return "\n".join([f"{self.what}:", aligned(rows), *(f"note: {note}" for note in self.notes), *self.statement])


def _cells(row: Coefficient) -> list[str]:
    reference = f"{row.reference:.4g}" if isinstance(row.reference, float) else row.reference or ""
    per = "" if row.step is None else f"{row.step:g} {row.unit or ''}".rstrip()
    cells = [row.output or "", row.column, row.level or "", reference, per, f"{row.estimate:.4g}"]
    return cells if row.ratio is None else [*cells, f"{row.ratio:.4g}"]


def coefficients(folder: Path) -> Coefficients:
    """The coefficients of a finished run's model.

    Raises:
        UnsupportedError: the model is not linear in the columns of a table.
        ConfigError, DataError: as `predict`.
    """
    check_run(folder, "coefficients")
    trained = FinishedRun.at(folder)
    columns = _columns(trained)
    changes = [change for column in columns for change in column.changes]
    ready = prepared(trained, _records(columns), dtype=torch.float64)
    linear, head = _parts(trained, ready.model.double(), ready.features)
    with torch.no_grad():
        scores = _scores(trained, linear(ready.features))
    rows = [
        change.coefficient(output, difference, trained.outcome)
        for output, differences in zip(_outputs(trained, head), (scores[1:] - scores[0]).T.tolist(), strict=True)
        for change, difference in zip(changes, differences, strict=True)
    ]
    rows += _intercepts(trained, scores[0], head)
    what, scale = _meaning(trained, head)
    statement = [line for line in statement_of(trained) if line not in (COVERED, NOT_COVERED)]
    return Coefficients(
        run=str(trained.result["id"]),
        what=what,
        scale=scale,
        rows=tuple(rows),
        statement=(*statement, FROM_MODEL),
        notes=tuple(_notes(trained, changes)),
    )


@dataclass(frozen=True, slots=True)
class _Change:
    """Another value of one column.

    Attributes:
        features: what the column becomes. share: of what that changes, which is the coefficient.
    """

    column: str
    features: Sequence[float]
    reference: str | float
    level: str | None = None
    share: float = 1.0
    step: float | None = None
    unit: str | None = None

    def coefficient(self, output: str | None, difference: float, outcome: Outcome) -> Coefficient:
        estimate = difference * self.share
        ratio = _ratio(estimate, outcome)
        return Coefficient(self.column, self.level, self.reference, self.step, self.unit, output, estimate, ratio)


@dataclass(frozen=True, slots=True)
class _TableColumn:
    """``reference``: the features of its reference value."""

    reference: Sequence[float]
    changes: Sequence[_Change]


def _ratio(estimate: float, outcome: Outcome) -> float | None:
    if outcome.kind == "regression":
        return None
    return math.exp(estimate) if estimate < 700 else math.inf


def _records(columns: Sequence[_TableColumn]) -> NDArray[np.float64]:
    """(1 + changes, d): the record of all reference values, then those with one change each."""
    reference = [value for column in columns for value in column.reference]
    rows, first = [reference], 0
    for column in columns:
        end = first + len(column.reference)
        rows += [[*reference[:first], *change.features, *reference[end:]] for change in column.changes]
        first = end
    return np.array(rows, dtype=np.float64)


def _columns(trained: FinishedRun) -> list[_TableColumn]:
    """The columns of the run's table that are features.

    Raises:
        UnsupportedError: features are not those of a table's columns.
    """
    for index, step in enumerate(steps_of(trained.config)):
        if step["name"] not in OF_ONE_COLUMN:
            raise UnsupportedError(
                f"data.preprocess[{index}]: after {step['name']}, what a column adds to a prediction is not a multiple "
                "of its value. Train without it, to have coefficients of columns."
            )
    scaling = trained.scaling
    statistics = () if scaling is None else zip(scaling.measured, scaling.centres, scaling.scales, strict=True)
    scaled = {column.name: (centre, scale) for column, centre, scale in statistics if column.kind != "counts"}
    if (schema := _schema(trained)) is not None:
        return [_of_schema(name, column, scaled.get(name)) for name, column in schema.items() if column.features(name)]
    name = trained.config.data.dataset.name
    if not trained.inputs.columns or name not in ("csv", None):
        raise UnsupportedError(
            f"the run was trained on {name or 'arrays'}: only columns of a table, csv or by a schema, have "
            "coefficients in its units. Run.model has the weights."
        )
    return [_TableColumn([0.0], [_Change(column, [1.0], 0.0, step=1.0)]) for column in trained.inputs.columns]


def _schema(trained: FinishedRun) -> Mapping[str, Column] | None:
    """What the columns of the run's table hold; None where nothing says so."""
    dataset = trained.config.data.dataset
    if has_schema(trained.config):
        return TableSchema.parse(dataset.options["schema"]).columns
    if dataset.name == "heart_disease":
        return heart_disease.columns(keep_all=dataset.options.get("missing") != "drop")
    return None


def _of_schema(name: str, column: Column, scaled: tuple[float, float] | None) -> _TableColumn:
    """
    Args:
        scaled: centre and scale of its private statistics.
    """
    if column.type == "category":
        return _category(name, column)
    indicator = column.missing == "indicator"
    step: float
    unit: str | None
    reference: str | float
    if column.type == "ordinal":
        low, high = 0.0, len(column.listed) - 1.0
        start, width, step, unit, reference = -1.0, 2.0, 1.0, "level", column.listed[0]
    else:
        low, high = column.bounds
        start, width = scaled or (0.0 if column.default is None else _encoded(column, low, high), 1.0)
        step, unit = _step(column, high - low), "days" if column.type == "date" else column.unit
        reference = _decoded(column, low + (start + 1) * (high - low) / 2)
    share = step / (width * (high - low) / 2)
    blank = [0.0] * indicator
    changes = [_Change(name, [start + width, *blank], reference, share=share, step=step, unit=unit)]
    if indicator:
        middle = 0.0 if column.default is None else _encoded(column, low, high)
        changes.append(_Change(name, [middle, 1.0], reference, "missing"))
    return _TableColumn([start, *blank], changes)


def _encoded(column: Column, low: float, high: float) -> float:
    """The default, from -1 to 1."""
    assert column.default is not None
    return (column.number_of(column.default) - low) / (high - low) * 2 - 1


def _decoded(column: Column, value: float) -> str | float:
    """As the table has it."""
    if column.type != "date":
        return value
    moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(days=value)
    return moment.isoformat(" ", "minutes").removesuffix(" 00:00")


def _step(column: Column, width: float) -> float:
    """A power of ten, at most a tenth of the range: 1 year of age, 10 mmHg. Of dates a year, or a day."""
    if column.type == "date":
        return YEAR if width >= YEAR else 1.0
    step = 10.0 ** math.floor(math.log10(width / 10) + 1e-9)
    return max(1.0, step) if column.type == "integer" else step


def _category(name: str, column: Column) -> _TableColumn:
    """Against the first of its values."""
    features = column.features(name)
    if len(features) == 1:
        return _TableColumn([0.0], [_Change(name, [1.0], column.listed[0], column.listed[1])])
    levels = [*column.listed, *["other"] * column.other, "missing"][: len(features)]
    hot = np.eye(len(levels)).tolist()
    changes = [_Change(name, row, levels[0], level) for row, level in zip(hot[1:], levels[1:], strict=True)]
    return _TableColumn(hot[0], changes)


def _parts(trained: FinishedRun, model: nn.Module, records: Tensor) -> tuple[nn.Module, ScoreHead | None]:
    """(the linear part of a model, what is behind it).

    Raises:
        UnsupportedError: there is no such part.
    """
    layers = list(model.children()) if isinstance(model, nn.Sequential) else [model]
    last = layers[-1]
    head = last if isinstance(last, ScoreHead) else None
    linear = nn.Sequential(*(layers if head is None else layers[:-1]))
    if fields_of(model) is not None or not _is_linear(linear, records):
        raise UnsupportedError(
            f"the model, {trained.config.model.name or trained.config.model.module}, is not linear: it has no "
            "coefficients, which hold for all records. Train softmax, logistic, linear or grouped_cox to have some."
        )
    return linear, head


def _is_linear(model: nn.Module, like: Tensor) -> bool:
    """Whether it is, of far-off random records: f(x + y) + f(0) = f(x) + f(y)."""
    rng = torch.Generator().manual_seed(0)
    x, y = 100 * torch.randn(2, 8, *like.shape[1:], dtype=like.dtype, generator=rng)
    with torch.no_grad():
        left, right = model(x + y) + model(torch.zeros_like(x)), model(x) + model(y)
        return torch.allclose(left, right, rtol=1e-9, atol=1e-9 * float(right.abs().max()))


def _scores(trained: FinishedRun, outputs: Tensor) -> Tensor:
    """(n, outputs): log-odds, logarithms of rates or hazards, or means, of a linear part's outputs (n, c).

    Raises:
        UnsupportedError: the loss makes them something else.
    """
    outputs = outputs.reshape(len(outputs), -1)
    outcome = trained.outcome
    if outcome.kind == "regression":
        return outcome.middle + outcome.half_range * outputs
    if outcome.kind != "classes":
        return outputs
    if not gives_log_odds(trained.config, outputs):
        raise UnsupportedError(
            f"loss={trained.config.loss!r}: the outputs of a model with this loss are no log-odds, and coefficients no "
            "odds ratios. Train with loss: auto to have them."
        )
    return outputs if outputs.shape[1] == 1 else outputs[:, 1:] - outputs[:, :1]


def _classes(trained: FinishedRun) -> tuple[str, ...]:
    return trained.labels or tuple(map(str, range(trained.inputs.num_classes)))


def _outputs(trained: FinishedRun, head: ScoreHead | None) -> list[str | None]:
    """What each score is of; None where there is one."""
    kind = trained.outcome.kind
    if kind == "multi_label":
        return [*_classes(trained)]
    if kind == "classes" and trained.inputs.num_classes > 2:
        return [*_classes(trained)[1:]]
    return [*_bins(trained.outcome)] if kind == "survival" and head is None else [None]


def _bins(outcome: Outcome) -> list[str]:
    return [f"up to {end:g}" for end in outcome.edges]


def _intercepts(trained: FinishedRun, scores: Tensor, head: ScoreHead | None) -> Iterator[Coefficient]:
    """Of the record of reference values, whose ``scores`` these are."""
    names = _outputs(trained, head)
    if isinstance(head, Thresholds):
        names, scores = [f"above {level}" for level in _classes(trained)[:-1]], scores - head.thresholds().detach()
    elif isinstance(head, BaselineHazards):
        names, scores = [*_bins(trained.outcome)], scores + head.log_rates.detach()
    for name, value in zip(names, scores.tolist(), strict=True):
        yield Coefficient(INTERCEPT, None, None, None, None, name, value, _ratio(value, trained.outcome))


def _meaning(trained: FinishedRun, head: ScoreHead | None) -> tuple[str, str]:
    """(what ratios or differences are of, the scale of estimates)"""
    kind, classes, label = trained.outcome.kind, _classes(trained), _label(trained)
    if kind == "regression":
        return f"differences in {label}", "difference"
    if kind == "counts":
        return f"rate ratios of {label}", "log rate ratio"
    if kind == "survival" and head is not None:
        return f"hazard ratios of {label}", "log hazard ratio"
    what = {
        "classes": f"{classes[1] if len(classes) == 2 else 'each class'} against {classes[0]}",
        "ordinal": f"a higher {label}",
        "multi_label": "each label",
        "survival": f"{label} in a bin of time, without one before",
    }
    return f"odds ratios of {what[kind]}", "log odds ratio"


def _label(trained: FinishedRun) -> str:
    options = trained.config.data.dataset.options
    if not has_schema(trained.config):
        return str(options.get("label_column", "label"))
    label = TableSchema.parse(options["schema"]).label
    return f"{label.column or label.event or 'label'}" + (f" ({label.unit})" if label.unit else "")


def _notes(trained: FinishedRun, changes: Sequence[_Change]) -> Iterator[str]:
    yield from trained.notes
    if _schema(trained) is not None and any(change.level is None for change in changes):
        yield CLIPPED
    if trained.result["epsilon"]["server"]["epsilon"] is not None:
        yield SHRUNK
    yield NO_INTERVALS
    scores = [line.get(score_key(line)) for line in trained.folder.read_metrics()]
    useless = worse_than_baseline(trained.result, trained.config.algorithm.options, scores)
    if useless is not None:
        yield useless
