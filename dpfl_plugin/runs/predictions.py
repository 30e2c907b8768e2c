"""What a finished run's model says of records that it is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file

from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.outcomes import CLASSES, Outcome
from dpfl_plugin.data.base import Federation, Inputs, Integers, Silo
from dpfl_plugin.data.labels import Labels, LabelType, typed, unlabelled
from dpfl_plugin.data.preprocess import preprocess
from dpfl_plugin.errors import DataError, told
from dpfl_plugin.measures.answers import answers, baseline
from dpfl_plugin.measures.tables import Table, table
from dpfl_plugin.models.build import build_model
from dpfl_plugin.models.fields import fields_of
from dpfl_plugin.runs.backbone import MORE_STEPS, without_cache
from dpfl_plugin.runs.finished_run import FinishedRun, inputs_of
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.plugins import model_block
from dpfl_plugin.runs.prediction_input import PredictionInput
from dpfl_plugin.runs.records import federate, steps_of

AT_ONCE: Final = 4096  # records; so many outputs and hidden layers are in memory
ONLY_KNOWN: Final = "The model knows no other: correct the record, or leave it out."


@dataclass(frozen=True, slots=True)
class Predictions:
    """What a model says.

    Attributes:
        classes: their names, in the order of the model's outputs; of labels that hold or not; of survival the ends of
            bins of time; none of regression and counts.
        label_type: what a class is in Python; ``classes`` are their names.
        predicted: [n], numbers of classes or levels; means of a regression, expected counts for exposure 1; [n, k]
            labels that hold; None of survival.
        probabilities: [n, classes]; None if the loss gives none. Of survival [n, bins], of no event up to a bin's end.
        labelled: how many of the records have a label. measures: of these, as `result.json` has those of test records;
            constant: the same measures of who knows these labels and no feature, and says the same of each record. None
            without labels.
    """

    classes: tuple[str, ...]
    predicted: NDArray[Any] | None
    probabilities: NDArray[np.float64] | None
    labelled: int = 0
    measures: Table | None = None
    constant: Table | None = None
    outcome: Outcome = CLASSES
    label_type: LabelType = "text"


def predict(trained: FinishedRun, records: PredictionInput, *, made_up: bool = False) -> Predictions:
    """What the model says of records, preprocessed as those of its training were; and how well, where they have labels.

    Args:
        made_up: the records are nobody's, to try the model on: they need not be of its fields.

    Raises:
        DataError: a record is none of the model's fields, the model's file does not fit the configuration, or a file
            that preprocessing names is missing.
    """
    labels, known = records.labels or unlabelled(trained.outcome, trained.inputs.num_classes, len(records.features))
    ready = prepared(trained, records.features, labels)
    model, federation, outcome = ready.model, ready.federation, trained.outcome
    if not made_up:
        _check_fields(model, ready.features, records.lines)
    with torch.no_grad():
        outputs = torch.cat([model(piece).double() for piece in ready.features.split(AT_ONCE)])
    answer = answers(
        outcome, outputs.reshape(len(outputs), -1).numpy(), probabilistic=gives_log_odds(trained.config, outputs)
    )
    predictions = Predictions(
        _names(federation),
        answer.predicted,
        answer.survival() if outcome.kind == "survival" else answer.probabilities,
        outcome=outcome,
        label_type=trained.inputs.label_type,
    )
    if not known.any():
        return predictions
    y = federation.silos[0].test_y[known]
    constant = baseline(outcome, y, len(predictions.classes), len(y))
    return replace(
        predictions,
        labelled=len(y),
        measures=table(outcome, answer.at(known), y),
        constant=table(outcome, constant, y, curves=False),
    )


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run's model, and records as it gets them.

    Attributes:
        federation: of these records, as test records of its one silo, after all steps.
    """

    model: torch.nn.Module
    features: torch.Tensor
    federation: Federation


def prepared(
    trained: FinishedRun, features: NDArray[np.floating], labels: Labels | None = None, dtype: torch.dtype | None = None
) -> Prepared:
    """Records [n, *shape] on their way to the model of a run: preprocessed as those of its training were, and scaled.

    Args:
        dtype: of the records; that of the run by default.
    """
    config, x = trained.config, features.copy()  # steps work in place
    if labels is None:
        labels = unlabelled(trained.outcome, trained.inputs.num_classes, len(x)).values
    names = trained.labels or tuple(map(str, range(trained.inputs.num_classes)))
    # As a silo's test records, to which nothing is ever fitted; one to train on, as steps expect, is fitted to by none
    # of those that get here.
    silo = Silo(x[:1].copy(), labels[:1].copy(), x, labels.copy())
    federation = _preprocessed(config, trained.base, trained.inputs, trained.outcome, silo, names)
    check_backbones(trained, () if federation.inputs is None else federation.inputs.backbones)
    model = trained_model(trained.folder, config, silo.test_x.shape[1:], federation.num_classes, federation.outcome)
    return Prepared(model, _fed(trained, silo.test_x, dtype), federation)


def shape_of(config: Config, base: Path, result: Mapping[str, Any]) -> tuple[tuple[int, ...], int]:
    """(shape of a record's features, number of classes) of a run's model, after preprocessing.

    No records are read where the result says what they were: steps are taken with a made-up one.

    Args:
        base: where relative paths in the configuration start.

    Raises:
        ConfigError, DataError: of a run by an earlier version the records are missing; or a file that preprocessing
            names is.
    """
    if (facts := result.get("inputs")) is None:
        records = federate(config, base)
        return records.feature_shape, records.num_classes
    inputs = inputs_of(facts)
    x, y = np.zeros((1, *inputs.shape), np.float32), np.zeros(1, np.int64)
    silo = Silo(x, y, x.copy(), y.copy())
    made = _preprocessed(config, base, inputs, Outcome.of_result(result), silo, inputs.classes)
    return made.feature_shape, made.num_classes


def _preprocessed(
    config: Config, base: Path, inputs: Inputs, outcome: Outcome, silo: Silo, names: tuple[str, ...]
) -> Federation:
    """A federation of this silo alone, after all steps; its records change in place. ``names``: of classes."""
    asked_for = replace(inputs, backbones=())
    federation = Federation(
        [silo], inputs.num_classes, inputs.shape, inputs=asked_for, class_names=names, outcome=outcome
    )
    steps = without_cache(steps_of(config))
    preprocess(federation, steps, base, MORE_STEPS)
    return federation


def check_backbones(trained: FinishedRun, backbones: tuple[str, ...]) -> None:
    """Raise DataError unless the frozen modules that make features now are those of the training."""
    if backbones != trained.inputs.backbones:
        raise DataError(
            f"data.preprocess: backbone: the run was trained on features of {', '.join(trained.inputs.backbones)}, and "
            f"{trained.folder.config} now makes {', '.join(backbones)}: weights or code changed. Put back what it was."
        )


def _names(federation: Federation) -> tuple[str, ...]:
    """Of what probabilities are."""
    outcome = federation.outcome
    if outcome.kind == "survival":
        return tuple(f"{end:g}" for end in outcome.edges)
    return federation.class_names if outcome.has_classes or outcome.kind == "multi_label" else ()


def trained_model(
    folder: RunFolder, config: Config, shape: tuple[int, ...], num_classes: int, outcome: Outcome
) -> torch.nn.Module:
    """The model of a run's folder, in eval mode.

    Args:
        shape: of a record's features, after preprocessing.

    Raises:
        DataError: its file is missing or damaged, or of another model; ConfigError: as `build_model`.
    """
    model = build_model(model_block(config.model), shape, num_classes, config.public_seed, outcome).eval()
    try:
        model.to(getattr(torch, config.runtime.dtype)).load_state_dict(load_file(folder.model))
    except (RuntimeError, SafetensorError, OSError) as error:
        raise DataError(f"{folder.model} cannot be loaded into the run's model: {told(error)}.") from error
    return model


def _fed(trained: FinishedRun, x: NDArray[np.floating], dtype: torch.dtype | None) -> torch.Tensor:
    """Preprocessed records as the model gets them."""
    fed = torch.from_numpy(x).to(dtype or getattr(torch, trained.config.runtime.dtype))
    return fed if trained.scaling is None else torch.cat([trained.scaling(piece) for piece in fed.split(AT_ONCE)])


def _check_fields(model: torch.nn.Module, x: torch.Tensor, lines: Integers | None) -> None:
    """Raise DataError where a record has a word, or a category, that the model's fields do not have."""
    fields = fields_of(model)
    if fields is None or (problem := fields.wrong(x, ONLY_KNOWN)) is None:
        return
    record, wrong = problem
    where = f"record {record} (from 0)" if lines is None else f"line {lines[record]}"
    raise DataError(f"{where}: {wrong}")


def gives_log_odds(config: Config, outputs: torch.Tensor) -> bool:
    """Whether outputs for classes are; those of another loss need not be."""
    single = outputs.dim() == 1 or outputs.shape[1] == 1
    return config.loss in ("auto", "logistic" if single else "cross_entropy")


def by_record(value: Predictions, lines: Integers | None) -> list[dict[str, Any]]:
    """A mapping for each record: its line (of a table) or its place from 0, the class, the probabilities; of other
    outcomes the mean, the labels that hold, or the probability of no event up to the end of each bin (survival)."""
    rows = []
    count = len(value.probabilities if value.predicted is None else value.predicted)  # type: ignore[arg-type]
    for record in range(count):
        row: dict[str, Any] = {"record": record} if lines is None else {"line": int(lines[record])}
        if value.predicted is not None:
            row["predicted"] = _named(value, value.predicted[record])
        if value.outcome.kind == "survival" and value.probabilities is not None:
            row["survival"] = dict(zip(value.classes, value.probabilities[record].tolist(), strict=True))
        elif value.probabilities is not None:
            row["probabilities"] = dict(zip(value.classes, value.probabilities[record].tolist(), strict=True))
        rows.append(row)
    return rows


def _named(value: Predictions, predicted: Any) -> Any:
    if value.outcome.has_classes:
        return typed(value.classes[int(predicted)], value.label_type)
    if value.outcome.kind == "multi_label":
        return [name for name, holds in zip(value.classes, predicted.tolist(), strict=True) if holds]
    return float(predicted)
