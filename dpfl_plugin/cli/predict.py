"""`dpfl predict`: a finished run's model, applied to records that it is given."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.access import opener
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.training.folder import naming, to_json
from dpfl_plugin.training.predictions import Predictions, Trained, by_record, predict, read

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
    "hands, train with privacy.secure=true."
)
NO_PROBABILITIES: Final = "no probabilities: the outputs of a model with this loss are not log-odds."
NO_NAMES: Final = (
    "the run's server was not told the names of classes: classes are numbers, in the order of the training labels, "
    "and labels in DATA are not compared. Name classes in the configuration to have them."
)


def predict_file(folder: Path, data: str, out: Path | None, *, as_json: bool) -> None:
    """Print predictions, or write them to ``out``; what they mean is said on stderr.

    Raises:
        ConfigError: ``out`` exists, or see `Trained.at` and `read`; DataError, UnsupportedError: as these.
    """
    if out is not None and out.exists():
        raise ConfigError(f"--out {out}: the file exists, and was left as it is. Use another name.")
    trained = Trained.at(folder)
    asked = read(trained, data)
    found = predict(trained, asked)
    said = [*trained.notes, *asked.notes]
    if found.probabilities is None:
        said.append(NO_PROBABILITIES)
    if not trained.labels:
        said.append(NO_NAMES)
    statement = _statement(trained)
    for line in said:
        print(f"note: {line}", file=sys.stderr)
    if found.labelled:
        share = f"{found.correct} of {found.labelled} records with a label: {found.correct / found.labelled:.4f}"
        print(f"accuracy: {share}. It is computed from raw records; no epsilon covers it.", file=sys.stderr)
    for line in statement:
        print(line, file=sys.stderr)
    text = to_json(_document(trained, found, asked.lines, statement)) if as_json else _csv(found, asked.lines)
    if out is None:
        print(text, end="" if text.endswith("\n") else "\n")
        return
    try:
        with naming(out), open(out, "x", encoding="utf-8", opener=opener(trained.config.access)) as file:
            file.write(text if text.endswith("\n") else f"{text}\n")
    except FileExistsError as error:
        raise ConfigError(f"--out {out}: the file exists, and was left as it is. Use another name.") from error
    print(f"{len(found.predicted)} predictions: {out}", file=sys.stderr)


def _statement(trained: Trained) -> list[str]:
    """At which epsilon the model was trained, and what it covers."""
    epsilon = trained.result["epsilon"]
    views = epsilon.get("total") or epsilon
    server, outside = views["server"]["epsilon"], views["third_party"]["epsilon"]
    where = f"the model of {trained.folder.path}"
    if server is None and outside is None:
        return [f"{where}: {NO_EPSILON}", NOT_COVERED]
    level = epsilon["server"]["unit"]
    shared = ", with the runs before it in its shared ledger" if "total" in epsilon else ""
    lines = [
        f"{where} was trained at epsilon {_number(server)} (server), {_number(outside)} (third party), delta "
        f"{epsilon['server']['delta']:g}, {level} level{shared}.",
        COVERED,
        NOT_COVERED,
    ]
    return lines if trained.config.privacy.secure else [*lines, SIMULATED]


def _number(epsilon: float | None) -> str:
    return "none" if epsilon is None else digits(epsilon, 4)


def _document(trained: Trained, found: Predictions, lines: Any, statement: list[str]) -> dict[str, Any]:
    return {
        "run": trained.result["id"],
        "epsilon": trained.result["epsilon"],
        "statement": statement,
        "classes": list(found.classes),
        "accuracy": found.correct / found.labelled if found.labelled else None,
        "predictions": by_record(found, lines),
    }


def _csv(found: Predictions, lines: Any) -> str:
    """A header and a line for each record: where it is in its file, its class, the probability of each class."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    several = () if found.probabilities is None else tuple(f"p({name})" for name in found.classes)
    writer.writerow(["record" if lines is None else "line", "predicted", *several])
    for record, number in enumerate(found.predicted.tolist()):
        place = record if lines is None else int(lines[record])
        row = [] if found.probabilities is None else [f"{p:.6g}" for p in found.probabilities[record]]
        writer.writerow([place, found.classes[number], *row])
    return text.getvalue()
