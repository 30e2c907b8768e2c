"""A model card, as Hugging Face's hub reads it: what the model is, and what it may reveal."""

from __future__ import annotations

from typing import Any, Final

import yaml

from dpfl_plugin import given
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.core.text import counted
from dpfl_plugin.data.schema import Column, TableSchema
from dpfl_plugin.models.fields import Fields
from dpfl_plugin.runs.predictions import Predictions
from dpfl_plugin.runs.public_facts import has_schema, names_its_classes
from dpfl_plugin.runs.result import views_of_all
from dpfl_plugin.runs.trained import Trained

UNPROTECTED: Final = "**Not to be published**: no noise was added; the model may reveal any record it was trained on."
NO_ACCURACY: Final = (
    "No accuracy is given: it would be computed from raw records, which no epsilon covers. Test the model on records "
    "of your own."
)
FROM_RECORDS: Final = "Names of classes were read from private records, and are left out"
ORDER: Final = "Classes, in the order of outputs: {}."
OUTPUTS: Final = {
    "regression": "[n, 1], the label scaled from its public range, {low:g} to {high:g}, to [-1, 1]",
    "counts": "[n, 1], the logarithm of the rate",
    "multi_label": "[n, labels], log-odds of each label",
    "survival": "[n, bins], log-odds of an event in each bin of time, if there was none before; bins end at {edges}",
}


def columns(schema: TableSchema) -> list[str]:
    """How a row of a table becomes a record, for programs that have the model alone: lines of Markdown."""
    lines = [
        "A record is made of a row of a table by public facts, as `dpfl predict` makes it:",
        "",
        "| column | features | how |",
        "| --- | --- | --- |",
    ]
    for name, column in schema.columns.items():
        if features := column.features(name):
            cells = (name, ", ".join(features), _how(column))
            lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return lines


def _how(column: Column) -> str:
    """What a cell becomes."""
    if column.type == "category":
        two = len(column.listed) == 2 and not column.other and column.missing not in ("category", "indicator")
        says = f"1 for {column.listed[1]}, 0 for {column.listed[0]}" if two else "1 for the cell's value, 0 for others"
        says += "; other: a value that is not listed" if column.other else ""
        if column.missing in ("category", "indicator"):
            return f"{says}; missing: a cell without value"
        return says + (f"; a cell without value is {column.default}" if column.missing == "default" else "")
    if column.type == "ordinal":
        low, high = 0.0, len(column.listed) - 1.0
        says = f"evenly from -1 ({column.listed[0]}) to 1 ({column.listed[-1]})"
    else:
        (low, high), (first, last) = column.bounds, column.ends
        what = f"days since {first}" if column.type == "date" else f"x - {first}"
        says = f"2 * ({what}) / {high - low:g} - 1, of {first} to {last}; beyond is "
        says += "clipped" if column.outside == "clip" else "refused"
    fill = 0.0 if column.default is None else (column.number_of(column.default) - low) / (high - low) * 2 - 1
    if column.missing == "refuse":
        return says
    return f"{says}; {fill:g} for a cell without value" + ", and 1 then, else 0" * (column.missing == "indicator")


def card(
    trained: Trained, said: Predictions, shape: tuple[int, ...], *, onnx: bool, fields: Fields | None = None
) -> str:
    """The card of a finished run's model, in Markdown with a YAML head; nothing in it was computed from records.

    Args:
        said: what the model says of made-up records. shape: of its outputs for one record. fields: of its inputs, where
            it gets the records as they are.
    """
    config, result = trained.config, trained.result
    views = views_of_all(result)
    server, outside = views["server"], views["third_party"]
    head = {"library_name": "dpfl", "tags": ["federated-learning", "differential-privacy"]}
    lines = ["---", yaml.safe_dump(head, sort_keys=False).strip(), "---", "", f"# {config.name}", ""]
    lines += [config.description, ""] if config.description else []
    if server["epsilon"] is None:
        lines += [UNPROTECTED, ""]
    lines += ["## Use", "", _use(trained, said, shape, fields, onnx=onnx), "", "## Training", ""]
    lines += [
        f"* algorithm: {config.algorithm.name or config.algorithm.module}, {counted(result['rounds'], 'round')}, "
        f"{counted(result['num_silos'], 'silo')}",
        f"* data: {_data(config)}",
        f"* run: `{result['id']}`, made by dpfl",
        "",
        NO_ACCURACY,
        "",
        "## Privacy",
        "",
        f"* server: {_epsilon(server)}",
        f"* third party: {_epsilon(outside)}",
        f"* unit: one {'whole' if config.privacy.unit == 'silo' else f'{config.privacy.unit} of a'} silo",
        "",
        "Whom this protects, against whom, and what it does not cover: [privacy.md](privacy.md).",
        "",
    ]
    return "\n".join(lines)


def _data(config: Config) -> str:
    """What a configuration calls its records; those that a program gave have a name that says nothing to others."""
    dataset = config.data.dataset
    module = dataset.module or ""
    return "given by a Python program" if module.startswith(f"{given.__name__}:") else dataset.name or module


def _epsilon(view: dict[str, Any]) -> str:
    if view["epsilon"] is None:
        return "no epsilon holds"
    return f"epsilon {digits(view['epsilon'], 4)} at delta {view['delta']:.15g}"


def _use(trained: Trained, said: Predictions, shape: tuple[int, ...], fields: Fields | None, *, onnx: bool) -> str:
    record, output = (", ".join(map(str, ("n", *each))) for each in (trained.inputs.shape, shape))
    lines = [
        "```python",
        "import torch",
        "",
        'model = torch.export.load("model.pt2").module()',
        f"outputs = model(records)  # float32 [{record}], before preprocessing; outputs: [{output}]",
        "```",
        "",
        "Preprocessing is part of the model." + (" `model.onnx` is the same for ONNX." if onnx else ""),
    ]
    if fields is not None:
        lines += ["", fields.told]
    if trained.inputs.columns:
        lines += ["", f"Columns, in order: {', '.join(trained.inputs.columns)}."]
    if has_schema(trained.config):
        lines += ["", *columns(TableSchema.parse(trained.config.data.dataset.options["schema"]))]
    if trained.outcome.kind == "classes":
        return "\n".join([*lines, "", _of_classes(trained, said, shape)])
    if trained.outcome.kind == "ordinal":
        lines += ["", f"Outputs: cumulative logits of the levels {', '.join(trained.labels)} (docs/outcomes.md)."]
        return "\n".join(lines)
    low, high = trained.outcome.range or (0.0, 0.0)
    edges = ", ".join(f"{edge:g}" for edge in trained.outcome.edges)
    says = OUTPUTS[trained.outcome.kind].format(low=low, high=high, edges=edges)
    lines += ["", f"Outputs: {says} (docs/outcomes.md)."]
    lines += [f"Labels, in order: {', '.join(trained.labels)}."] if trained.labels else []
    return "\n".join(lines)


def _of_classes(trained: Trained, said: Predictions, shape: tuple[int, ...]) -> str:
    """Which classes the outputs are of: in their order, or the second of two where there is one output."""
    hidden = not (trained.labels and names_its_classes(trained.config))
    if len(said.classes) != 2 or shape not in ((), (1,)):
        return f"{FROM_RECORDS}: outputs are in their order." if hidden else ORDER.format(", ".join(said.classes))
    first, second = ("the first", "the second") if hidden else said.classes
    what = f"the log-odds of {second} against {first}" if said.probabilities is not None else "a score"
    output = f"output is {what}, above 0 for {second}."
    return f"{FROM_RECORDS}: the {output}" if hidden else f"The {output}"
