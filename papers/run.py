"""Repeating a figure or table: its sweeps by `dpfl sweep`, and what they came to."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dpfl_plugin as dpfl
from dpfl_plugin.errors import DataError, TrainingError
from papers import pages, pictures
from papers.items import EXCESS, Item, Paper, Part
from papers.numbers import Numbers, gather, places, runs_digest
from papers.optimum import optimum_of

Words = Sequence[str]


@dataclass(frozen=True, slots=True)
class Repeated:
    """A figure or table that was repeated.

    Attributes:
        numbers: None where runs are missing. missing: how many.
        page: what is published, what came out, and whether they agree; beside it are the numbers and the picture.
    """

    numbers: Numbers | None
    missing: int
    page: Path | None = None


def repeat(
    paper: Paper, item: Item, *, quick: bool, out: Path, sweep: Words = (), say: Callable[[str], None] = print
) -> Repeated:
    """Run what is not finished in ``out``, and write numbers, page and picture.

    Args:
        quick: fewer seeds, places or rounds. sweep: options of `dpfl sweep`, e.g. ``--jobs 8``.

    Raises:
        TrainingError: runs failed. KeyboardInterrupt: what is done is saved.
    """
    if item.computed is not None:
        say(f"{item.heading}: computed without a run; up to a few minutes")
        numbers = Numbers(paper.name, item.name, False, dpfl.__version__, [], table=item.computed())
    else:
        for part in item.ran(quick):
            say(f"{item.heading}, {part.title}: {len(part.expansion(quick).rows)} runs in {out / paper.name}")
            _sweep(part, quick, out / paper.name, sweep)
        found, missing = _gathered(paper, item, quick, out / paper.name)
        if found is None:
            return Repeated(None, missing)
        numbers = found
    path = numbers.write(out)
    if pictures.has_picture(item, numbers):
        pictures.draw(path.with_suffix(".png"), paper, item, numbers)
    text = pages.section(paper, item, numbers, path.with_suffix(".png").name)
    path.with_suffix(".md").write_text(f"# {paper.reference}\n\n{pages.RULES}\n\n{text}\n", encoding="utf-8")
    return Repeated(numbers, 0, path.with_suffix(".md"))


def _sweep(part: Part, quick: bool, folder: Path, options: Words) -> None:
    changes = [word for change in part.changes(quick) for word in ("--set", change)]
    command = ["sweep", str(part.path), "--out", str(folder), "--retry", *changes, *options]
    code = subprocess.run([sys.executable, "-m", "dpfl_plugin", *command], check=False).returncode
    if code == 4:
        raise KeyboardInterrupt
    if code:
        raise TrainingError(f"{part.title}: runs failed, see above. The same command tries them again.")


def _gathered(paper: Paper, item: Item, quick: bool, folder: Path) -> tuple[Numbers | None, int]:
    """Return the numbers of all runs, or how many are missing."""
    points, code, missing = [], set[str](), 0
    for part in item.ran(quick):
        made = []
        for row, place in places(item, part, part.expansion(quick)):
            run = _finished(folder / "runs" / row.name / row.id)
            if run is None:
                missing += 1
                continue
            made_by = json.loads((run.folder / "environment.json").read_text())
            code |= {made_by["package_sha256"], *made_by["packages_before"]}
            made.append((place, run, _lines(item, run, part.path.parent, folder)))
        points += gather(part, item.measure, made)
    if missing:
        return None, missing
    runs = runs_digest(part.expansion(quick) for part in item.ran(quick))
    return Numbers(paper.name, item.name, quick, dpfl.__version__, sorted(code), runs, points), 0


def _finished(folder: Path) -> dpfl.Run | None:
    try:
        run = dpfl.Run.open(folder)
    except DataError:
        return None
    return run if run.status in ("done", "budget_exhausted") else None


def _lines(item: Item, run: dpfl.Run, base: Path, folder: Path) -> list[dict[str, Any]]:
    """Return a run's evaluations, with the log of the training loss above the least that there is where that counts."""
    if item.measure != EXCESS:
        return run.lines
    least = _least_loss(run, base, folder)
    return [{**line, EXCESS: _log10(line["train_loss"] - least)} for line in run.lines]


def _log10(value: float) -> float:
    return math.log10(value) if value > 0 else math.nan


def _least_loss(run: dpfl.Run, base: Path, folder: Path) -> float:
    """Return min F of the run's records, without a regulariser as in the training loss; kept beside the runs."""
    config = run.config
    facts = [config.data.model_dump(mode="json"), config.model.model_dump(mode="json"), config.public_seed]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    path = folder / f"least-{digest}.json"
    if not path.exists():
        path.write_text(json.dumps(optimum_of(config, base, 0.0).loss), encoding="utf-8")
    return float(json.loads(path.read_text(encoding="utf-8")))
