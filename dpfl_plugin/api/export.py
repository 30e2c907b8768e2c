"""`export`: a run's model for programs without this package: torch, ONNX, a model card and the privacy statement."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from dpfl_plugin import given
from dpfl_plugin.api.runs import Run
from dpfl_plugin.config.blocks import Block
from dpfl_plugin.config.schema import SCHEMA_KEY, Config
from dpfl_plugin.core.scaling import Scaling
from dpfl_plugin.core.text import Printed, render
from dpfl_plugin.data.schema import Column, TableSchema
from dpfl_plugin.errors import ConfigError, DataError, UnsupportedError, require
from dpfl_plugin.experiments.tuning.statement import check_run
from dpfl_plugin.measures.answers import answers
from dpfl_plugin.models.fields import Fields, fields_of
from dpfl_plugin.runs.backbone import Backbone
from dpfl_plugin.runs.finished_run import FinishedRun
from dpfl_plugin.runs.folder import try_folder
from dpfl_plugin.runs.prediction_input import PredictionInput
from dpfl_plugin.runs.predictions import Predictions, predict
from dpfl_plugin.runs.public_facts import has_schema, names_its_classes
from dpfl_plugin.runs.result import views_of_all

FILES: Final = {"torch": "model.pt2", "onnx": "model.onnx"}
CARD: Final = "README.md"
INSTALL: Final = "pip install 'dpfl-plugin[onnx]'"
RECORDS: Final = 5  # made-up ones, on which what was written is compared with the run's model
TOLERANCE: Final = 1e-5


class Exported(nn.Module):
    """A model together with the preprocessing of its training: records [n, *shape] in, its outputs out.

    Args:
        steps: of the configuration, in order. Only those that were fitted to nothing can be part of a model.
        shape: of a record.
        scaling: by released statistics, after all steps; None for none.

    Raises:
        UnsupportedError: a step cannot.
    """

    def __init__(
        self, model: nn.Module, steps: Sequence[Block], shape: tuple[int, ...], scaling: Scaling | None = None
    ) -> None:
        super().__init__()
        self.model, self.backbones, self.scaling = model, nn.ModuleList(), scaling
        self.steps: list[tuple[str, float, float]] = []
        for place, step in enumerate(steps):
            options = step.options
            match step.name:
                case "scale":
                    self.steps.append(("affine", float(options.get("factor", 1.0)), float(options.get("offset", 0.0))))
                case "standardise" if options.get("fit") == "none":
                    std, mean = float(options["std"]), float(options["mean"])
                    self.steps.append(("standardise", mean, std))
                case "unit_norm":
                    self.steps.append(("unit_norm", 0.0, 0.0))
                case "backbone":
                    made = Backbone.made(options["factory"], options.get("options") or {}, shape)
                    self.steps.append(("backbone", 0.0, 0.0))
                    self.backbones.append(made.module)
                    shape = made.features(np.zeros((1, *shape), np.float32), 1, torch.device("cpu")).shape[1:]
                case "parity":  # of labels
                    pass
                case _:
                    raise UnsupportedError(
                        f"data.preprocess[{place}].name={step.name!r} cannot be part of an exported model: only scale, "
                        "standardise with fit: none, unit_norm, backbone and parity can. Use dpfl predict, or "
                        "preprocess the files before training."
                    )

    def forward(self, x: Tensor) -> Tensor:
        backbones = iter(self.backbones)
        for kind, first, second in self.steps:
            if kind == "affine":
                x = x * first + second
            elif kind == "standardise":
                x = (x - first) / second
            elif kind == "backbone":
                x = next(backbones)(x)
                x = x.unsqueeze(1) if x.dim() == 1 else x
            else:
                norms = x.flatten(1).square().sum(1).sqrt()
                norms = torch.where(norms > 0, norms, torch.ones_like(norms))
                x = x / norms.reshape(-1, *[1] * (x.ndim - 1))
        out: Tensor = self.model(x if self.scaling is None else self.scaling(x))
        return out


@dataclass(frozen=True, slots=True)
class Export(Printed):
    """A model that was written for other programs.

    Attributes:
        folder: of the files, by name: the models, README.md, which is the card, and privacy.md.
    """

    folder: Path
    files: tuple[str, ...]

    def __str__(self) -> str:
        names = "\n".join(str(self.folder / name) for name in self.files)
        return f"{names}\nREADME.md and privacy.md state what the model may reveal, and whether it may be published."

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"folder": str(self.folder), "files": list(self.files)}


def export(run: Run | str | Path, out: str | Path, *, onnx: bool = False) -> Export:
    """Write a finished run's model, with its preprocessing, into a new folder.

    The folder holds ``model.pt2`` (`torch.export`; read it by ``torch.export.load(path).module()``), with ``onnx`` also
    ``model.onnx``, ``privacy.md`` and a model card, ``README.md``. Both models take raw records [n, *shape], float32,
    for any n, and give the model's outputs. What is written is compared with the run's model on made-up records.

    Args:
        run: or its folder. out: a new folder. onnx: whether to write the model as ONNX, too.

    Raises:
        ConfigError: the folder exists or cannot be written, the run is not finished or seeded, or onnx is
            not installed.
        UnsupportedError: the preprocessing, or the model, cannot be exported. DataError: a file is damaged.
    """
    require(isinstance(run, Run | str | Path), "run", run, "be a run, or the path of its folder")
    require(isinstance(out, str | Path), "out", out, "be the path of a new folder")
    target = Path(out)
    if os.path.lexists(target):
        raise ConfigError(f"{target}: it exists, and was left as it is. Name a new folder.")
    try:
        try_folder(target)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}. Name another folder.") from error
    folder = run.folder if isinstance(run, Run) else Path(run)
    check_run(folder, "export", str(target))
    trained = FinishedRun.at(folder)
    source = Run.open(trained.folder.path)
    config = trained.config
    if not config.fresh and trained.result["noise_multiplier"]:
        raise ConfigError(
            f"{folder}: privacy.randomness: seeded: the noise of this model can be computed from its seed, so no card "
            "can state an epsilon for it. Train with privacy.randomness: fresh to export a model."
        )
    module = Exported(source.model.float(), config.data.preprocess, trained.inputs.shape, trained.scaling).eval()
    x = torch.from_numpy(np.random.default_rng(0).random((RECORDS, *trained.inputs.shape), dtype=np.float32))
    fields = None if config.data.preprocess or trained.scaling is not None else fields_of(module.model)
    if fields is not None:
        x = fields.stretched(x)
    predictions, shape = _compare(module, x, trained)
    program = _program(module, x)
    with torch.no_grad():
        for rows in (x[:1], x.repeat(2, *[1] * (x.ndim - 1))):  # not as many as it was traced with
            _same(program.module()(rows), module(rows), FILES["torch"])
    made = {
        CARD: model_card(trained, predictions, shape, onnx=onnx, fields=fields).encode(),
        "privacy.md": source.statement.encode(),
    }
    if onnx:
        made[FILES["onnx"]] = _onnx(program, x, module)
    target.mkdir(parents=True)
    try:
        torch.export.save(program, target / FILES["torch"])
        for name, content in made.items():
            _write(target / name, content)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error}. Remove it and try again.") from error
    return Export(target, tuple(sorted(path.name for path in target.iterdir())))


def _write(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)


def _program(module: nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    try:
        program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    except Exception as error:  # torch raises many kinds of its own
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnsupportedError(
            f"the model cannot be exported by torch.export: {what.rstrip('. ')}. Its code must not branch on "
            "values, nor on how many records there are (as len(x) does, and x.shape[0] does not); the weights "
            "alone are in the run's folder, model.safetensors."
        ) from error
    for node in program.graph.nodes:  # with paths and lines of code of this machine, in what is to be given away
        node.meta.pop("stack_trace", None)
    return program


def _onnx(program: torch.export.ExportedProgram, x: Tensor, module: nn.Module) -> bytes:
    try:
        import onnx
        import onnxscript  # noqa: F401  # torch's exporter needs it, and says so less well
        from onnx.reference import ReferenceEvaluator
    except ImportError as error:
        raise ConfigError(f"onnx needs packages that are not installed ({error.name}): {INSTALL}.") from error
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of packages that no model here needs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch about torch
            made: Any = torch.onnx.export(program, dynamo=True, verbose=False)
    finally:
        log.setLevel(level)
    model = made.model_proto
    onnx.checker.check_model(model)
    (name,) = (given.name for given in model.graph.input)
    for rows in (x, x[:1]):
        (actual,) = ReferenceEvaluator(model).run(None, {name: rows.numpy()})
        with torch.no_grad():
            _same(torch.from_numpy(np.array(actual)), module(rows), "model.onnx")
    content: bytes = model.SerializeToString()
    return content


def _compare(module: nn.Module, x: Tensor, trained: FinishedRun) -> tuple[Predictions, tuple[int, ...]]:
    """By the way that `dpfl predict` goes, with its own preprocessing.

    Returns:
        (what that says of ``x``, the shape of the module's outputs for one record)
    """
    predictions = predict(trained, PredictionInput(x.numpy().copy()), made_up=True)
    with torch.no_grad():
        outputs = module(x)
    if trained.outcome.kind != "classes":
        again = answers(trained.outcome, outputs.reshape(len(outputs), -1).double().numpy())
        curves = again.survival() if trained.outcome.kind == "survival" else again.probabilities
        actual = again.predicted if curves is None else curves
        expected = predictions.predicted if curves is None else predictions.probabilities
        assert actual is not None and expected is not None
        _same(torch.from_numpy(actual), torch.from_numpy(expected), "the exported model")
    elif outputs.ndim == 2 and outputs.shape[1] > 1 and predictions.probabilities is not None:
        _same(outputs.softmax(1).double(), torch.from_numpy(predictions.probabilities).double(), "the exported model")
    return predictions, tuple(outputs.shape[1:])


def _same(actual: Tensor, expected: Tensor, what: str) -> None:
    if not torch.allclose(actual.double(), expected.double(), rtol=TOLERANCE, atol=TOLERANCE):
        raise DataError(
            f"{what} does not say what the run's model says of the same records: they differ by "
            f"{json.dumps(float((actual.double() - expected.double()).abs().max()))}. Nothing was written."
        )


def model_card(
    trained: FinishedRun, predictions: Predictions, shape: tuple[int, ...], *, onnx: bool, fields: Fields | None = None
) -> str:
    """The card of a finished run's model, as Hugging Face's hub reads it; nothing in it was computed from records.

    Args:
        predictions: of made-up records. shape: of its outputs for one record. fields: of its inputs, where
            it gets the records as they are.
    """
    config, result = trained.config, trained.result
    views = views_of_all(result)
    schema = TableSchema.parse(config.data.dataset.options[SCHEMA_KEY]) if has_schema(config) else None
    columns = {} if schema is None else schema.columns
    return render(
        "pages/model_card.md.jinja",
        name=config.name,
        description=config.description or "",
        server=views["server"],
        third_party=views["third_party"],
        record_shape=("n", *trained.inputs.shape),
        output_shape=("n", *shape),
        onnx=onnx,
        fields="" if fields is None else fields.told,
        columns=trained.inputs.columns,
        schema=[(name, features, column) for name, column in columns.items() if (features := column.features(name))],
        encoding=encoding,
        outcome=trained.outcome,
        edges=[f"{edge:g}" for edge in trained.outcome.edges],
        classes=predictions.classes,
        two_classes=len(predictions.classes) == 2 and shape in ((), (1,)),
        log_odds=predictions.probabilities is not None,
        hidden=not (trained.labels and names_its_classes(config)),
        labels=trained.labels,
        algorithm=config.algorithm.name or config.algorithm.module,
        rounds=result["rounds"],
        num_silos=result["num_silos"],
        data=_data(config),
        id=result["id"],
        unit=config.privacy.unit,
    )


def _data(config: Config) -> str:
    """What a configuration calls its records; those that a program gave have a name that tells others nothing."""
    dataset = config.data.dataset
    module = dataset.module or ""
    return "given by a Python program" if module.startswith(f"{given.__name__}:") else dataset.name or module


def encoding(column: Column) -> str:
    """How a cell of a table becomes features, in words."""
    if column.type == "category":
        two = len(column.listed) == 2 and not column.other and column.missing not in ("category", "indicator")
        text = f"1 for {column.listed[1]}, 0 for {column.listed[0]}" if two else "1 for the cell's value, 0 for others"
        text += "; other: a value that is not listed" if column.other else ""
        if column.missing in ("category", "indicator"):
            return f"{text}; missing: a cell without value"
        return text + (f"; a cell without value is {column.default}" if column.missing == "default" else "")
    if column.type == "ordinal":
        low, high = 0.0, len(column.listed) - 1.0
        text = f"evenly from -1 ({column.listed[0]}) to 1 ({column.listed[-1]})"
    else:
        (low, high), (first, last) = column.bounds, column.ends
        what = f"days since {first}" if column.type == "date" else f"x - {first}"
        text = f"2 * ({what}) / {high - low:g} - 1, of {first} to {last}; beyond is "
        text += "clipped" if column.outside == "clip" else "refused"
    fill = 0.0 if column.default is None else (column.number_of(column.default) - low) / (high - low) * 2 - 1
    if column.missing == "refuse":
        return text
    return f"{text}; {fill:g} for a cell without value" + ", and 1 then, else 0" * (column.missing == "indicator")
