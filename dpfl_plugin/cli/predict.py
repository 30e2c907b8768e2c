"""`dpfl predict`: a finished run's model, applied to records that it is given."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dpfl_plugin.api.prediction_text import measures_lines
from dpfl_plugin.api.predictions import Predicted, predict
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runs.folder import naming, to_json, try_file


def predict_file(folder: Path, data: str, out: Path | None, id_column: str | None, *, as_json: bool) -> None:
    """Print predictions, or write them to ``out``; what they mean is said on stderr.

    Raises:
        ConfigError: ``out`` exists, or cannot be written; or as `dpfl.predict`.
    """
    if out is not None:
        _check_free(out)
    made = predict(folder, data, id_column=id_column)
    for line in made.notes:
        print(f"note: {line}", file=sys.stderr)
    for line in (*measures_lines(made), *made.statement):
        print(line, file=sys.stderr)
    text = to_json(_document(made)) if as_json else made.to_csv()
    if out is None:
        print(text, end="" if text.endswith("\n") else "\n")
        return
    try:
        with naming(out), open(out, "x", encoding="utf-8") as file:
            file.write(text if text.endswith("\n") else f"{text}\n")
    except FileExistsError as error:
        raise ConfigError(f"--out {out}: the file exists, and was left as it is. Use another name.") from error
    print(f"{len(made.rows)} predictions: {out}", file=sys.stderr)


def _check_free(out: Path) -> None:
    """Before anything is computed, and said."""
    try:
        try_file(out)
    except FileExistsError as error:
        raise ConfigError(f"--out {out}: the file exists, and was left as it is. Use another name.") from error
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror}. Use another --out.") from error


def _document(made: Predicted) -> dict[str, Any]:
    return {
        "run": made.run,
        "epsilon": made.epsilon,
        "statement": list(made.statement),
        "classes": list(made.classes),
        "accuracy": made.accuracy,
        "labelled": made.found.labelled,
        "measures": made.measures,
        "constant_measures": made.constant_measures,
        "predictions": list(made.rows),
    }
