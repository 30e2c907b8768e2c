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

from dpfl_plugin import given, own_folders, registry
from dpfl_plugin.config.load import base_of, load, run_id
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.outcomes import CLASSES, Outcome
from dpfl_plugin.core.scaling import Scaling
from dpfl_plugin.data import tables
from dpfl_plugin.data.base import Dataset, Features, Federation, Inputs, Integers, Silo, validate
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.files import numeric_features, read_npz
from dpfl_plugin.data.frame_rows import FRAME, FrameRows, is_frame
from dpfl_plugin.data.preprocess import fitted_on_records, preprocess
from dpfl_plugin.data.table import Columns, Table
from dpfl_plugin.errors import ConfigError, DataError, UnsupportedError, Worded, told
from dpfl_plugin.gradients import losses
from dpfl_plugin.measures.answers import answers
from dpfl_plugin.models.build import build_model
from dpfl_plugin.runs import checkpoint, environment
from dpfl_plugin.runs.backbone import MORE_STEPS, without_cache
from dpfl_plugin.runs.carried import carried
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.integrity import check_kept
from dpfl_plugin.runs.naming import check_shown
from dpfl_plugin.runs.plugins import model_block
from dpfl_plugin.runs.result import finished_result
from dpfl_plugin.runs.setting import federate, steps_of

FILES: Final = ("csv", "npz", tables.NAME)
"""Data sets of users' own files."""
AT_ONCE: Final = 4096  # records; so many outputs and hidden layers are in memory


@dataclass(frozen=True, slots=True)
class Trained:
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
    def at(cls, path: Path) -> Trained:
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
                f"RUN_FOLDER={str(path)!r} is not the folder of a run: it has no {folder.config.name}. Give the one "
                "that dpfl run names at its end, runs/<name>/<id>."
            )
        result = finished_result(folder)
        if result is None:
            raise ConfigError(
                f"{path}: the run is not finished, so it has no model to predict with. Continue it: dpfl run "
                f"--resume {folder.config}, or dpfl.resume({str(path)!r})."
            )
        if not folder.model.exists():
            raise DataError(f"{folder.model} is missing: it is the run's model. Restore it from a copy.")
        check_kept(folder, result)
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
        facts = checkpoint.load_facts(folder.checkpoint)
        notes = [] if facts is None else check_shown(folder, config, facts, environment.package_sha256())
        _check_steps(config)
        found = result.get("inputs")
        if found is None:
            raise UnsupportedError(
                Worded(
                    f"{folder.result} does not say what the records were (their columns, in order): the run was made "
                    "by an earlier version. Run its configuration again with another {out}."
                )
            )
        return cls(folder, config, base, result, _inputs(found), tuple(notes))

    @property
    def outcome(self) -> Outcome:
        """What labels are."""
        return Outcome.of_result(self.result)

    @property
    def scaling(self) -> Scaling | None:
        """By what released statistics records were scaled; None where they were not."""
        found = self.result.get("private_statistics")
        return None if found is None else Scaling.of(found["scaling"])

    @property
    def labels(self) -> tuple[str, ...]:
        """The run's classes before preprocessing, by number; none where they were words and nobody told them. The
        labels of a multi-label outcome; none of others."""
        if not self.outcome.has_classes:
            return self.inputs.classes
        if self.inputs.classes or self.config.data.dataset.name in FILES:
            return self.inputs.classes
        return tuple(map(str, range(self.inputs.num_classes)))


def _inputs(found: Mapping[str, Any]) -> Inputs:
    return Inputs(
        tuple(found["shape"]),
        int(found["num_classes"]),
        tuple(found["columns"]),
        tuple(found["classes"]),
        tuple(found.get("backbones", ())),
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


@dataclass(frozen=True, slots=True)
class Asked:
    """Records that a model is asked about.

    Attributes:
        features: [n, *shape], before preprocessing.
        labels: [n] in the run's classes before preprocessing, -1 where none is given; None if none is given at all.
        lines: [n], where they are in their file, for tables.
        notes: what of them was changed.
        unused: columns that the model was not trained on.
    """

    features: Features
    labels: Integers | None
    lines: Integers | None = None
    notes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


def read(trained: Trained, data: str) -> Asked:
    """The records in a CSV or NPZ file, or the test part of the run's own data set by its name.

    Raises:
        DataError: the file is missing, or its records are not of the kind that the model was trained on; the message
            names file, line and column.
        ConfigError: ``data`` is neither a file nor the run's data set, or the data set has no test part.
    """
    path, dataset = Path(data), trained.config.data.dataset
    if not path.is_file():
        if data == dataset.name and data not in FILES:
            return _test_part(trained, data)
        by_name = "" if dataset.name in (*FILES, None) else f", nor the run's data set ({dataset.name})"
        raise ConfigError(f"DATA={data!r} is not a file{by_name}; looked for {path.absolute()}.")
    if "schema" in dataset.options:
        return _by_schema(trained, tables.asked(path, dataset.options))
    named = dataset.name == "csv" or (dataset.name is None and trained.inputs.columns)  # or of a program's data frame
    return _table(trained, path) if named else _arrays(trained, path)


def read_frame(trained: Trained, frame: Any) -> Asked:
    """The records in a data frame, by the names of its columns.

    Raises:
        DataError: they are not of the kind that the model was trained on; the message names row (from 0) and column.
    """
    if "schema" in trained.config.data.dataset.options:
        found = _by_schema(trained, tables.asked_frame(frame, trained.config.data.dataset.options))
    elif trained.inputs.columns:
        columns = _columns(trained)
        rows = FrameRows(frame, (columns.label, columns.silo, columns.person))
        found = _of_table(trained, *columns.parse_new(FRAME, rows, trained.inputs.columns, "row"))
    else:
        raise DataError("the run was trained on arrays, whose columns have no names: give an array, not a data frame.")
    return replace(found, lines=None)  # a row is counted as a record is, from 0


def read_array(trained: Trained, given: Any) -> Asked:
    """The records in an array or a tensor, [n, *shape] as before preprocessing.

    Raises:
        DataError: it is of another shape, or holds something else than finite numbers.
    """
    x, where = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given), Path("the array")
    if "schema" in trained.config.data.dataset.options:
        raise DataError("the run was trained on tables with a schema: give a data frame or a file, not an array.")
    if x.shape[1:] != trained.inputs.shape or not len(x):
        raise DataError(f"{where} has shape {x.shape}; the model was trained on [n, {_sizes(trained.inputs.shape)}].")
    return Asked(numeric_features(x, where), None)


def ids_of(trained: Trained, data: Any, name: str) -> list[str]:
    """A column [n] of the records that `read` or `read_frame` read, as text; see `carried`.

    Raises:
        ConfigError: it is not there, or the records are no table.
    """
    options = trained.config.data.dataset.options
    named = "schema" in options or bool(trained.inputs.columns)
    if not named or not (is_frame(data) or (isinstance(data, str | Path) and Path(data).is_file())):
        raise ConfigError(f"a column to carry, {name!r}, is of a table: these records are none.")
    return carried(data, name, _columns(trained), options)


def _by_schema(trained: Trained, found: tables.Asked) -> Asked:
    """Records of a table that a schema describes: what it refuses in training is refused here, too."""
    if found.columns != trained.inputs.columns:
        raise DataError(f"{trained.folder.config}: data.schema makes other features than the run was trained on.")
    return Asked(found.features, found.labels, found.lines, found.notes, found.unused)


def _table(trained: Trained, path: Path) -> Asked:
    return _of_table(trained, *_columns(trained).read_new(path, trained.inputs.columns))


def _columns(trained: Trained) -> Columns:
    options = trained.config.data.dataset.options
    return Columns(
        options.get("label_column", "label"),
        options.get("silo_column"),
        tuple(options.get("ignore_columns") or ()),
        options.get("delimiter", ","),
        options.get("person_column"),
    )


def _of_table(trained: Trained, table: Table, unused: tuple[str, ...]) -> Asked:
    return Asked(table.features, _labels(trained, table), table.lines, unused=unused)


def _labels(trained: Trained, table: Table) -> Integers | None:
    names = table.labels.tolist()
    if not any(names) or not trained.labels or not trained.outcome.has_classes:
        return None
    number = {name: index for index, name in enumerate(trained.labels)} | {"": -1}
    for record, name in enumerate(names):
        if name not in number:
            raise DataError(
                f"{table.place(record)}: {name!r} is not one of the run's classes "
                f"{', '.join(trained.labels[:20])}. Correct it, or leave the cell empty: a label is not needed."
            )
    return np.array([number[name] for name in names], dtype=np.int64)


def _arrays(trained: Trained, path: Path) -> Asked:
    if path.suffix != ".npz":
        raise DataError(f"{path}: the run was trained on arrays, not on a table. Give an .npz file with an array x.")
    arrays, shape = read_npz(path), trained.inputs.shape
    x = arrays.get("x", arrays.get("features"))
    if x is None or x.shape[1:] != shape:
        found = f"holds {', '.join(arrays) or 'nothing'}" if x is None else f"has records of shape {x.shape[1:]}"
        raise DataError(f"{path} {found}; the model was trained on an array x (or features) [n, {_sizes(shape)}].")
    if not len(x):
        raise DataError(f"{path} holds no records: x has shape {x.shape}.")
    return Asked(numeric_features(x, path), _array_labels(trained, arrays, len(x), path))


def _sizes(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


def _array_labels(trained: Trained, arrays: Mapping[str, NDArray[Any]], count: int, path: Path) -> Integers | None:
    y = arrays.get("y", arrays.get("labels"))
    if y is None or not trained.outcome.has_classes:
        return None
    if y.shape != (count,) or y.dtype.kind not in "iubUS":
        raise DataError(
            f"{path}: y must be one integer or string for each of the {count} records, got {y.dtype} {y.shape}."
        )
    table = Table(path, np.zeros((count, 1), np.float32), y.astype(str), None, ())
    return _labels(trained, table)


def _test_part(trained: Trained, name: str) -> Asked:
    data = trained.config.data
    source = DataSource(Path(data.folder) if data.folder else None, trained.config.seed, data.num_silos, trained.base)
    loaded = registry.call(registry.load("datasets", name), source, where="data.dataset", **data.dataset.options)
    assert isinstance(loaded, Dataset)  # or the run would not be there
    if loaded.test is None:
        raise ConfigError(
            f"DATA={name!r}: this data set has no test part of its own; its records are those that the run was trained "
            "and tested on, of which result.json tells. Give other records, in a file."
        )
    validate(loaded, name)
    return Asked(loaded.test.features, loaded.test.labels)


@dataclass(frozen=True, slots=True)
class Predictions:
    """What a model says.

    Attributes:
        classes: their names, in the order of the model's outputs; of labels that hold or not; of survival the ends of
            bins of time; none of regression and counts.
        predicted: [n], numbers of classes or levels; means of a regression, expected counts for exposure 1; [n, k]
            labels that hold; None of survival.
        probabilities: [n, classes]; None if the loss gives none. Of survival [n, bins], of no event up to a bin's end.
        correct, labelled: how many of the records with a label got it; 0 where labels are not classes.
    """

    classes: tuple[str, ...]
    predicted: NDArray[Any] | None
    probabilities: NDArray[np.float64] | None
    correct: int
    labelled: int
    outcome: Outcome = CLASSES


def predict(trained: Trained, asked: Asked) -> Predictions:
    """The model's classes and probabilities of records, preprocessed as those of its training were.

    Raises:
        DataError: the model's file does not fit the configuration, or a file that preprocessing names is missing.
    """
    config, x = trained.config, asked.features.copy()  # steps work in place
    labels = np.zeros(len(x), np.int64) if asked.labels is None else np.maximum(asked.labels, 0)
    known = np.zeros(len(x), bool) if asked.labels is None else asked.labels >= 0
    num_classes = trained.inputs.num_classes
    # As a silo's test records, to which nothing is ever fitted; one to train on, as steps expect, is fitted to by none
    # of those that get here.
    silo = Silo(x[:1].copy(), labels[:1].copy(), x, labels)
    names = trained.labels or tuple(map(str, range(num_classes)))
    outcome = trained.outcome
    federation = _preprocessed(config, trained.base, trained.inputs, outcome, silo, names)
    check_backbones(trained, () if federation.inputs is None else federation.inputs.backbones)
    outputs = _outputs(trained, silo.test_x, federation)
    if outcome.kind != "classes":
        return _of_outcome(federation, outputs, silo.test_y, known)
    predicted = losses.predict(outputs).numpy()
    return Predictions(
        federation.class_names,
        predicted,
        _probabilities(config, outputs),
        int((predicted == silo.test_y)[known].sum()),
        int(known.sum()),
    )


def shape_of(config: Config, base: Path, result: Mapping[str, Any]) -> tuple[tuple[int, ...], int]:
    """(shape of a record's features, number of classes) of a run's model, after preprocessing.

    No records are read where the result says what they were: steps are taken with a made-up one.

    Args:
        base: where relative paths in the configuration start.

    Raises:
        ConfigError, DataError: of a run by an earlier version the records are missing; or a file that preprocessing
            names is.
    """
    if (found := result.get("inputs")) is None:
        records = federate(config, base)
        return records.feature_shape, records.num_classes
    inputs = _inputs(found)
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


def check_backbones(trained: Trained, found: tuple[str, ...]) -> None:
    """Raise DataError unless the frozen modules that make features now are those of the training."""
    if found != trained.inputs.backbones:
        raise DataError(
            f"data.preprocess: backbone: the run was trained on features of {', '.join(trained.inputs.backbones)}, and "
            f"{trained.folder.config} now makes {', '.join(found)}: weights or code changed. Put back what it was."
        )


def _of_outcome(
    federation: Federation, outputs: torch.Tensor, labels: Integers, known: NDArray[np.bool_]
) -> Predictions:
    """Of labels that are not classes; ``known``: which of the levels ``labels`` are."""
    outcome, names = federation.outcome, federation.class_names
    said = answers(outcome, outputs.reshape(len(outputs), -1).numpy())
    if outcome.kind == "ordinal":
        right = int(np.sum((said.predicted == labels) & known))
        return Predictions(names, said.predicted, said.probabilities, right, int(known.sum()), outcome)
    if outcome.kind == "survival":
        return Predictions(tuple(f"{end:g}" for end in outcome.edges), None, said.survival(), 0, 0, outcome)
    names = names if outcome.kind == "multi_label" else ()
    return Predictions(names, said.predicted, said.probabilities, 0, 0, outcome)


def _outputs(trained: Trained, x: Features, federation: Federation) -> torch.Tensor:
    config, folder = trained.config, trained.folder
    model = build_model(
        model_block(config.model), x.shape[1:], federation.num_classes, config.seed, federation.outcome
    ).eval()
    dtype = getattr(torch, config.runtime.dtype)
    try:
        model.to(dtype).load_state_dict(load_file(folder.model))
    except (RuntimeError, SafetensorError, OSError) as error:
        raise DataError(f"{folder.model} does not fit the model that {folder.config} names: {told(error)}.") from error
    scaling = trained.scaling
    with torch.no_grad():
        pieces = [piece.to(dtype) for piece in torch.from_numpy(x).split(AT_ONCE)]
        pieces = pieces if scaling is None else [scaling(piece) for piece in pieces]
        return torch.cat([model(piece).double() for piece in pieces])


def _probabilities(config: Config, outputs: torch.Tensor) -> NDArray[np.float64] | None:
    """(n, classes); None for a loss whose outputs are no log-odds."""
    single = outputs.dim() == 1 or outputs.shape[1] == 1
    if single and config.loss in ("auto", "logistic"):
        one = torch.sigmoid(outputs.reshape(len(outputs)))
        return torch.stack([1 - one, one], dim=1).numpy()
    if not single and config.loss in ("auto", "cross_entropy"):
        return outputs.softmax(dim=1).numpy()
    return None


def by_record(value: Predictions, lines: Integers | None) -> list[dict[str, Any]]:
    """A mapping for each record: its line (of a table) or its place from 0, the class, the probabilities; of other
    outcomes the mean, the labels that hold, or the probability of no event up to the end of each bin (survival)."""
    found = []
    count = len(value.probabilities if value.predicted is None else value.predicted)  # type: ignore[arg-type]
    for record in range(count):
        one: dict[str, Any] = {"record": record} if lines is None else {"line": int(lines[record])}
        if value.predicted is not None:
            one["predicted"] = _named(value, value.predicted[record])
        if value.outcome.kind == "survival" and value.probabilities is not None:
            one["survival"] = dict(zip(value.classes, value.probabilities[record].tolist(), strict=True))
        elif value.probabilities is not None:
            one["probabilities"] = dict(zip(value.classes, value.probabilities[record].tolist(), strict=True))
        found.append(one)
    return found


def _named(value: Predictions, predicted: Any) -> Any:
    if value.outcome.has_classes:
        return value.classes[int(predicted)]
    if value.outcome.kind == "multi_label":
        return [name for name, holds in zip(value.classes, predicted.tolist(), strict=True) if holds]
    return float(predicted)
