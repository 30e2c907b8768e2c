"""How good predictions are for records that have a label, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpfl_plugin.api.predictions import Predicted


def measures_lines(made: Predicted) -> list[str]:
    """A line for each that is a number, of the records that have a label; beside it that of a constant."""
    if made.measures is None or made.constant_measures is None:
        return []
    names = [name for name, value in made.measures.items() if not isinstance(value, dict | list)]
    rows = [("", "model", "constant")] + [
        (name.replace("_", " "), _shown(made.measures[name]), _shown(made.constant_measures.get(name)))
        for name in names
    ]
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    positive = "" if made.positive_class is None else f" The positive class is {made.positive_class}."
    return [
        f"of {made.found.labelled} records with a label, of {len(made.rows)}:",
        *(
            f"  {name:<{first}}" + "".join(f"  {text:>{width}}" for text, width in zip(cells, others, strict=True))
            for name, *cells in rows
        ),
        f"  The constant says of each record what these labels have in the mean.{positive}",
        "  Computed from raw records: no epsilon covers them.",
    ]


def _shown(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4g}"
