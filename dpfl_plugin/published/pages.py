"""Pages of docs/papers/, and what `dpfl papers` prints, from numbers: theirs, ours, and whether they agree."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dpfl_plugin.config.load import merged
from dpfl_plugin.config.sweep import Expansion
from dpfl_plugin.core.rounding import places as up
from dpfl_plugin.published import catalog
from dpfl_plugin.published.items import ACCURACY, MEASURES, Item, Paper, Part
from dpfl_plugin.published.numbers import Numbers, Point, cell_verdict, differences, kept, look_up, short

SHOWN_DIGEST: Final = 12
RULES: Final = textwrap.fill(
    "A published number agrees where ours is within two standard deviations (of both together); a published ordering "
    "where the mean difference over seeds is above two standard errors. Epsilon is what is proven, by this package's "
    "accountant, of the worst seed: towards the server, and towards a third party who sees the final model. Scores are "
    "means over the last 10 % of rounds, ± the standard deviation over seeds.",
    120,
)

SLURM: Final = "export DPFL_DATA=/shared/data SBATCH_PARTITION=short    # where tasks find the data files, and nodes"
MADE: Final = "<!-- Made by python -m benchmarks.papers; do not edit. -->"
INTRODUCTION: Final = """\
Figures and tables of papers, and what comes out here. `dpfl papers` lists them; `dpfl papers PAPER --figure N` repeats
one, and goes on where it was interrupted (`--quick`: its direction, in minutes); in Python, `dpfl.papers()` and
`dpfl.reproduce(...)`. `--on slurm` submits the runs to a cluster, a task each; the same command without it gathers
them. The configurations are in `configs/papers/`: each is a file for `dpfl run` or `dpfl sweep`."""


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in columns of equal width, which reads well in a terminal, too."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    rule = ["-" * max(3, width) for width in widths]
    padded = [[cell.ljust(max(3, width)) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in (padded[0], rule, *padded[1:]))


def outcome(item: Item, numbers: Numbers | None) -> str:
    """The tables of an item: what is published beside what came out."""
    if numbers is None:
        return "No numbers yet."
    if numbers.table is not None:
        return markdown(*numbers.table)
    parts = [_claims(item, numbers)] if item.claims else []
    parts += [_grids(item, numbers) if item.kind == "table" else _points(item, numbers)]
    return "\n\n".join(parts)


def section(paper: Paper, item: Item, numbers: Numbers | None, picture: str) -> str:
    """An item's section of a page, without links but to its picture."""
    text = [f"## {item.heading}: {item.title}", f"{item.source}. {_how_to_run(paper, item, numbers)}"]
    if numbers is not None:
        text.append(outcome(item, numbers))
        text += [f"![{item.heading}: {item.title}]({picture})"] if numbers.points else []
        text.append(_made_by(numbers))
    if item.differs:
        text.append("What differs from the paper, by decision:\n\n" + "\n".join(f"* {line}" for line in item.differs))
    if item.why:
        text.append("Why results differ:\n\n" + "\n".join(f"* {line}" for line in item.why))
    return "\n\n".join(text)


def _how_to_run(paper: Paper, item: Item, numbers: Numbers | None) -> str:
    if item.computed is not None:
        return f"Computed without a run: `dpfl papers {paper.name} --{item.kind} {item.number}`."
    command = f"`dpfl papers {paper.name} --{item.kind} {item.number}`"
    whole, _ = foreseen(paper, item)
    runs = sum(len(part.expansion(False).rows) for part in item.parts)
    length = "" if whole is None else f", about {_hours(whole)} on two cores"
    if numbers is None:
        return f"**Not run on these pages yet**: {command} does ({runs} runs{length}); with `--quick` in minutes."
    if not numbers.quick:
        return f"{command} makes these numbers ({runs} runs, {_hours(numbers.seconds)} on two cores)."
    shorter = f"`--quick`, {_hours(numbers.seconds)} on two cores"
    return f"**Quick numbers** ({shorter}): they show the direction. {command} makes all {runs} runs{length}."


def _hours(seconds: float) -> str:
    """Of processors, on two cores."""
    minutes = seconds / 120
    return f"{max(1, math.ceil(minutes))} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _made_by(numbers: Numbers) -> str:
    code = ", ".join(f"`{one[:SHOWN_DIGEST]}`" for one in numbers.code)
    made = f"Numbers of dpfl {numbers.version}, {'versions of the code' if len(numbers.code) > 1 else 'code'} {code}"
    if not numbers.modules:
        return f"{made}; `dpfl papers` says whether that is the code you have."
    mixed = sum(len(found) > 1 for found in numbers.modules.values())
    said = f", {mixed} of them not the same for all" if mixed else ""
    return (
        f"{made}. The runs imported {len(numbers.modules)} of its modules"
        f"{said}; they are by another version, and `dpfl papers` says so, once one of these has changed: what no run "
        "imports cannot change what it computes, but for which noise is drawn."
    )


def _claims(item: Item, numbers: Numbers) -> str:
    rows = []
    unit = 100 if item.measure == ACCURACY else 1
    for claim in item.claims:
        for at, found in differences(numbers, item, claim):
            ours, said = "a run diverged, or is missing", "no"
            if found is not None:
                error = "" if found.seeds == 1 else f" ± {unit * found.error:.2g}"
                ours, said = f"{unit * found.mean:+.3g}{error}", found.verdict
            where = ", ".join([item.part(claim.part).title, *_at(at)])
            rows.append([claim.text, claim.source, where, claim.better, claim.worse, ours, said])
    what = "points" if item.measure == ACCURACY else MEASURES.get(item.measure, item.measure)
    return markdown(["published", "source", "at", "better", "worse", f"ours: by ({what})", "verdict"], rows)


def _at(at: Mapping[str, Any]) -> list[str]:
    return [f"{short(key)} = {_number(value)}" for key, value in at.items()]


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _score(item: Item, point: Point) -> str:
    if point.mean is None:
        return "diverged"
    unit, form = (100, ".1f") if item.measure == ACCURACY else (1, ".3g")
    error = "" if len(point.scores) == 1 else f" ± {unit * point.std:{form}}"
    return f"{unit * point.mean:{form}}{error}"


def _epsilon(value: float | None) -> str:
    return "none" if value is None else up(value, 2)


def _points(item: Item, numbers: Numbers) -> str:
    keys = list(dict.fromkeys(key for point in numbers.points for key in point.at))
    published = {(cell.part, cell.line, tuple(sorted(cell.at.items()))): cell for cell in item.cells}
    rows = []
    for point in numbers.points:
        cell = published.get((point.part, point.line, tuple(sorted(point.at.items()))))
        theirs = (
            []
            if not published
            else ["", ""]
            if cell is None
            else [_theirs(cell.mean, cell.std), cell_verdict(numbers, cell)[1]]
        )
        rows.append(
            [
                item.part(point.part).title,
                *(_number(point.at[key]) if key in point.at else "" for key in keys),
                point.line,
                _score(item, point),
                *theirs,
                _epsilon(point.server),
                _epsilon(point.third_party),
                f"{point.delta:g}",
                _range(point.rounds),
            ]
        )
    measure = MEASURES.get(item.measure, item.measure) + (", %" if item.measure == ACCURACY else "")
    theirs = ["published", "verdict"] if published else []
    header = ["data", *map(short, keys), "run", measure, *theirs, "epsilon, server", "third party", "delta", "rounds"]
    return markdown(header, rows)


def _theirs(mean: float, std: float | None) -> str:
    return f"{100 * mean:.1f}" + ("" if std is None else f" ± {100 * std:.1f}")


def _range(values: Sequence[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else f"{min(values)} to {max(values)}"


def _grids(item: Item, numbers: Numbers) -> str:
    """A grid for each part and line: rows and columns as in the paper, each cell ours, theirs and the verdict."""
    texts = []
    for part in item.ran(numbers.quick):
        own = [point for point in numbers.points if point.part == part.name]
        for line in dict.fromkeys(point.line for point in own):
            texts.append(f"**{part.title}, {line}**: ours (published: verdict); epsilon, server / third party")
            texts.append(_grid(item, part, numbers, [point for point in own if point.line == line]))
    return "\n\n".join(texts)


def _grid(item: Item, part: Part, numbers: Numbers, points: Sequence[Point]) -> str:
    assert part.rows is not None and part.columns is not None, "a table has rows and columns"
    columns = list(dict.fromkeys(point.at[part.columns] for point in points))
    rows = []
    for row in dict.fromkeys(point.at[part.rows] for point in points):
        cells = []
        for column in columns:
            found = [p for p in points if p.at[part.rows] == row and p.at[part.columns] == column]
            cells.append(_cell(item, numbers, found[0]) if found else "")
        rows.append([f"{short(part.rows)} = {_number(row)}", *cells])
    return markdown(["", *(f"{short(part.columns)} = {_number(column)}" for column in columns)], rows)


def _cell(item: Item, numbers: Numbers, point: Point) -> str:
    text = f"{_score(item, point)}"
    for cell in item.cells:
        if (
            cell.part == point.part
            and cell.line == point.line
            and all(point.at.get(k) == v for k, v in cell.at.items())
        ):
            text += f" ({_theirs(cell.mean, cell.std)}: {_in_points(cell_verdict(numbers, cell)[1])})"
    return f"{text}; {_epsilon(point.server)} / {_epsilon(point.third_party)}"


def _in_points(verdict: str) -> str:
    words, _, number = verdict.rpartition(" by ")
    return f"{words} by {100 * float(number):.1f}" if words else verdict


def verdict(item: Item, numbers: Numbers | None) -> str:
    """In a word or two, for the index."""
    if item.computed is not None:
        return "computed"
    if numbers is None:
        return "not run yet"
    said = [cell_verdict(numbers, cell)[1] for cell in item.cells]
    counted = [one for one in said if one != "not run"]
    found = [f"{counted.count('agrees')} of {len(counted)} numbers agree"] if counted else []
    orders = [one for claim in item.claims for _, one in differences(numbers, item, claim)]
    if orders:
        said = ["no" if one is None else one.verdict for one in orders]
        single = sum(one.startswith("same sign") for one in said)
        found.append(f"{said.count('agrees')} of {len(orders)} orderings agree")
        found += [f"{single} have the published sign with one seed"] if single else []
    return "; ".join(found) + (" (quick)" if numbers.quick else "")


def foreseen(paper: Paper, item: Item) -> tuple[float | None, float | None]:
    """Seconds of processors of all runs and of quick ones: measured, or by local steps of what is measured.

    What takes a step is taken from all kept numbers of the paper with the same records and model.
    """
    if item.computed is not None:
        return None, None
    numbers = kept(paper.name, item)
    each = _rates(paper)
    found: list[float | None] = []
    for quick in (False, True):
        parts = item.ran(quick)
        if numbers is not None and numbers.quick == quick:
            found.append(numbers.seconds)
        elif all(_records(part) in each for part in parts):
            found.append(math.fsum(each[_records(part)] * _work(part.expansion(quick)) for part in parts))
        else:
            found.append(None)
    return found[0], found[1]


def _rates(paper: Paper) -> dict[str, float]:
    """Seconds for a unit of `_work`, by records and model."""
    seconds, work = dict[str, float](), dict[str, float]()
    for item in paper.items:
        numbers = kept(paper.name, item)
        if numbers is None:
            continue
        for part in item.ran(numbers.quick):
            name = _records(part)
            seconds[name] = seconds.get(name, 0) + math.fsum(p.seconds for p in numbers.points if p.part == part.name)
            work[name] = work.get(name, 0) + _work(part.expansion(numbers.quick))
    return {name: seconds[name] / work[name] for name in seconds if work[name] > 0}


def _records(part: Part) -> str:
    base = part.expansion(False).base
    return f"{look_up(base, 'data.dataset')} {look_up(base, 'data.num_silos')} {look_up(base, 'model')}"


def _work(expansion: Expansion) -> float:
    """Local steps of all runs, of a silo; a unit in which parts of an item can be compared."""
    total = 0.0
    for row in expansion.rows:
        values = merged(expansion.base, row.changes)
        steps = look_up(values, "algorithm.local_steps") or 1 / float(look_up(values, "privacy.record_rate") or 1)
        total += float(row.rounds or 100) * float(values.get("silo_rate", 1)) * float(steps)
    return total


def paper_page(paper: Paper) -> str:
    """docs/papers/NAME.md."""
    text = [f"# {paper.short}", paper.reference, MADE]
    text += [paper.text.strip()] if paper.text else []
    text.append(RULES)
    for item in paper.items:
        text.append(section(paper, item, kept(paper.name, item), f"../pictures/papers/{paper.name}_{item.name}.png"))
    return "\n\n".join(text) + "\n"


def index() -> str:
    """docs/papers/index.md."""
    text = ["# Published experiments", MADE, INTRODUCTION, RULES]
    rows, measured, left = [], 0.0, 0.0
    for paper in catalog.papers():
        for item in paper.items:
            numbers = kept(paper.name, item)
            whole, _ = foreseen(paper, item)
            hours = "none" if item.computed is not None else "not measured" if whole is None else _hours(whole)
            done = numbers is not None and not numbers.quick
            measured += numbers.seconds if numbers is not None else 0.0
            left += whole if whole is not None and not done else 0.0
            link = f"[{paper.short}]({paper.name}.md#{anchor(item)})"
            rows.append([link, item.heading, item.title, verdict(item, numbers), hours])
    text.append(markdown(["paper", "item", "what", "theirs and ours", "all runs, two cores"], rows))
    text.append(
        f"The numbers of these pages took {_hours(measured)} on two cores. What is quick, or not run yet, takes two "
        f"cores {_hours(left)}, as far as the length is known. A cluster does all of it at once, a task for each run:"
    )
    text.append("```sh\n" + "\n".join([SLURM, *_commands()]) + "\n```")
    return "\n\n".join(text) + "\n"


def anchor(item: Item) -> str:
    """Of an item's heading, as GitHub makes it."""
    kept_letters = "".join(c for c in f"{item.heading}: {item.title}".lower() if c.isalnum() or c in " -_")
    return kept_letters.replace(" ", "-")


def _commands() -> list[str]:
    found = []
    for paper in catalog.papers():
        for item in paper.items:
            numbers = kept(paper.name, item)
            if item.computed is None and (numbers is None or numbers.quick):
                found.append(f"dpfl papers {paper.name} --{item.kind} {item.number} --on slurm")
    return found


def pages() -> dict[str, str]:
    """All pages by name."""
    return {"index.md": index(), **{f"{paper.name}.md": paper_page(paper) for paper in catalog.papers()}}
