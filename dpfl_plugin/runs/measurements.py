"""Measurements of raw records that rank 0 must not have: where they are, and how they join the rest.

Losses and accuracies are computed from records without noise. On MPI ranks they stay with the silo ranks: each writes
those of its silos to a file of its own (`Notes`), and whoever may read these files joins them to what rank 0 wrote.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.core.outcomes import Outcome, score_key
from dpfl_plugin.errors import DataError
from dpfl_plugin.federation.summaries import last, means, of_ranks, of_silos
from dpfl_plugin.file_permissions import private_folder
from dpfl_plugin.runs.folder import naming, to_json

FINAL: Final = "final"
MEASURES: Final = "measures"
Measures = Mapping[int, Sequence[float | None]]
"""By silo: (train loss, test score, test score of its own model or None)."""


@dataclass(slots=True)
class Notes:
    """A silo rank's file of measurements, which nobody but its owner reads: a line for each evaluation.

    Attributes:
        own: whether one that another user made is refused: its folder is named by rank 0, which may have done so.
    """

    path: Path
    own: bool = False

    def add(self, after: int | None, at: int, measures: Measures) -> None:
        """What silos measured after so many rounds; None: at the final model.

        Args:
            at: names the evaluation, the same at all silo ranks; a later one has a larger number.
        """
        silos = [[silo, *values] for silo, values in measures.items()]
        self._append({"after": FINAL if after is None else after, "at": at, "silos": silos})

    def add_measures(self, at: int, measures: Mapping[int, Mapping[str, Any]]) -> None:
        """All measures of the final model, of each silo: `summaries.of_ranks`."""
        self._append({"after": MEASURES, "at": at, "silos": list(measures.items())})

    def _append(self, line: Mapping[str, Any]) -> None:
        private_folder(self.path.parent)
        how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with naming(self.path), open(os.open(self.path, how, 0o600), "a") as file:
            if self.own and os.fstat(file.fileno()).st_uid != os.getuid():
                raise DataError(
                    f"{self.path} is another user's: measurements would be theirs. Move it away, or set "
                    "runtime.silo_folder to a folder of your own."
                )
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _noted(folder: Path) -> dict[Any, dict[int, list[Any]]]:
    """{after: {silo: values}} of all silo ranks' files; of evaluations after the same round the last one counts."""
    lines = []
    for path in folder.glob("rank-*.jsonl"):
        for text in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):  # a crash while it was written
                lines.append(json.loads(text))
    newest: dict[Any, int] = {}
    for line in lines:
        newest[line["after"]] = max(line["at"], newest.get(line["after"], 0))
    values_of: dict[Any, dict[int, list[Any]]] = {}
    for line in lines:
        if line["at"] == newest[line["after"]]:
            values_of.setdefault(line["after"], {}).update({silo: values for silo, *values in line["silos"]})
    return values_of


def join_lines(lines: Iterable[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Evaluations as rank 0 wrote them, with what the silo ranks noted in ``folder``; as they are, without one."""
    noted = _noted(folder) if folder.is_dir() else {}
    joined = []
    for line in lines:
        values = [of for _, of in sorted(noted.get(line["round"], {}).items())]
        hidden = line.get("train_loss") is None and line.get(score_key(line)) is None
        more = (
            means([of[0] for of in values], [of[1] for of in values], score_key(line).removeprefix("test_"))
            if hidden and values
            else {}
        )
        joined.append(json.loads(to_json({**line, **more})))  # as it is read from a file
    return joined


def join_result(result: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    """A result as rank 0 wrote it, with what silo ranks noted; ``lines``: the evaluations, joined."""
    noted = _noted(folder) if folder.is_dir() else {}
    values = noted.get(FINAL) or noted.get(result.get("rounds"))
    if not result or result.get("silos") is not None or not values:
        return dict(result)
    ids, of = sorted(values), [silo for _, silo in sorted(values.items())]
    own = [silo[2] for silo in of if silo[2] is not None]
    outcome = Outcome.of_result(result)
    more: dict[str, Any] = {"silos": of_silos(ids, [silo[1] for silo in of], own, outcome)}
    more |= {"measures": of_ranks(outcome, {silo: table for silo, (table,) in noted.get(MEASURES, {}).items()})}
    keys = dict.fromkeys(("test_accuracy", "train_loss", f"test_{outcome.score}"))
    return {**result, **{key: last(lines, key) for key in keys}, **more}
