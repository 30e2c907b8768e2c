"""The pages of docs/papers/, from numbers: what is published, what came out here, and whether they agree."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

from dpfl_plugin.core.rounding import places as up
from papers import pictures
from papers.items import ACCURACY, Item, Paper, Part
from papers.numbers import (
    Numbers,
    Point,
    cell_verdict,
    chosen,
    kept,
    short,
)
from papers.tables import hours, in_order, markdown, measure_of, number, option, place, run_of
from papers.verdicts import verdicts

SHOWN_DIGEST: Final = 12
RULES: Final = textwrap.fill(
    "A published number agrees where ours is within two standard deviations (of both together); a published ordering "
    "where the mean difference over seeds is above 0 with 95 % confidence (Student's t, two-sided: with three seeds, "
    "4.3 standard errors); where a size is published, above half of it. Epsilon is what is proven, by this package's "
    "accountant, of the worst seed: towards the server, of the silo that was drawn most often (as drawn), and of one "
    "that is drawn in every round; and towards a third party who sees all models. It covers neither preprocessing that "
    "is fitted to records (standardising, PCA) nor the choice of step sizes. Scores are means over the last 10 % of "
    "rounds, ± the standard deviation over seeds; differences have ± their standard error over seeds, and say by how "
    "much the line is better that is published to be: below 0 what came out is against what is published.",
    120,
)
SERVER: Final = "epsilon, server (as drawn)"
MADE: Final = "<!-- Made by python -m papers --pages; do not edit. -->"


def outcome(item: Item, numbers: Numbers | None) -> str:
    """The tables of an item: what is published beside what came out."""
    if numbers is None:
        return "No numbers yet."
    if numbers.table is not None:
        return markdown(*numbers.table)
    parts = [verdicts(item, numbers)] if item.claims else []
    parts += [_tuned(item, numbers)] if item.tuned else []
    parts += [_best(item, numbers, item.predicted)] if item.predicted is not None else []
    parts += [_grids(item, numbers) if item.kind == "table" else _points(item, numbers)]
    return "\n\n".join(parts)


def section(paper: Paper, item: Item, numbers: Numbers | None, picture: str) -> str:
    """Return an item's section of a page, without links but to its picture."""
    text = [f"## {item.heading}: {item.title}", f"{item.source}. {_how_to_run(paper, item, numbers)}"]
    if numbers is not None:
        text.append(outcome(item, numbers))
        text += [f"![{item.heading}: {item.title}]({picture})"] if pictures.has_picture(item, numbers) else []
        text.append(_made_by(numbers))
    said = [f"{one.text[0].upper()}{one.text[1:]} ({one.source}). Here: {one.ours}" for one in item.stated]
    text.append(_listed("What the paper says in words", said))
    quick = item.differs_quick if numbers is not None and numbers.quick else ()
    text.append(_listed("What differs from the paper, by decision", (*item.differs, *quick)))
    text.append(_listed("Why results differ", item.why))
    if numbers is not None and numbers.quick:
        text.append(_listed("What quick numbers show", item.found_quick))
    whole = numbers is None or not numbers.quick
    text.append(_listed("What all runs show" + ("" if whole else ", which these numbers are not of"), item.found))
    return "\n\n".join(filter(None, text))


def _listed(what: str, lines: Sequence[str]) -> str:
    return f"{what}:\n\n" + "\n".join(f"* {line}" for line in lines) if lines else ""


def _how_to_run(paper: Paper, item: Item, numbers: Numbers | None) -> str:
    command = f"`python -m papers {paper.name} {option(item)}`"
    if item.computed is not None:
        return f"Computed without a run: {command}."
    runs = sum(len(part.expansion().rows) for part in item.parts)
    if numbers is None:
        return f"**Not run on these pages yet**: {command} does ({runs} runs); with `--quick` in minutes."
    took = f"{hours(numbers.seconds)} on two cores"
    if numbers.quick:
        return f"**Quick numbers** (`--quick`, {took}): they show the direction. {command} makes all {runs} runs."
    return f"{command} makes these numbers ({runs} runs, {took})."


def _made_by(numbers: Numbers) -> str:
    code = ", ".join(f"`{one[:SHOWN_DIGEST]}`" for one in numbers.code)
    return f"Computed with dpfl {numbers.version}{f' (code {code})' if code else ''}."


def _tuned(item: Item, numbers: Numbers) -> str:
    """Methods at their own best setting, the best first."""
    rows = []
    for part in item.ran(numbers.quick):
        at_best = [point for name in item.tuned for point in chosen(numbers, item, part.name, name, {})]
        known = sorted(
            (point for point in at_best if point.mean is not None),
            key=lambda point: (in_order(point.at), (-1 if item.higher_is_better else 1) * (point.mean or 0.0)),
        )
        for point in known:
            where = ", ".join([part.title, *place(point.at)])
            rows.append([where, run_of(item, point), _score(item, point), _epsilon(point.server)])
    return f"Each method at the best of its settings. {_settings(item, numbers)}\n\n" + markdown(
        ["at", "method, setting", measure_of(item), SERVER], rows
    )


def _settings(item: Item, numbers: Numbers) -> str:
    """Which settings methods have, read from the configurations."""
    methods, values = dict[str, dict[str, None]](), dict[str, dict[str, None]]()
    for point in numbers.points:
        method, _, setting = run_of(item, point).rpartition(", ")
        name, _, value = setting.partition(" = ")
        methods.setdefault(name, {})[method] = None
        values.setdefault(name, {})[value] = None
    said = [f"{name} = {', '.join(values[name])} of {', '.join(methods[name])}" for name in methods]
    return f"Tried are {'; '.join(said)}."


def _best(item: Item, numbers: Numbers, predicted: Mapping[str, float]) -> str:
    """Where on the horizontal axis each line is best, and by how much that matters: its best and worst score."""
    lines: dict[tuple[str, ...], list[Point]] = {}
    for point in numbers.points:
        if point.mean is not None:
            elsewhere = {key: value for key, value in point.at.items() if key != item.against}
            where = ", ".join([item.part(point.part).title, *place(elsewhere)])
            lines.setdefault((where, point.line), []).append(point)
    rows, sign = [], 1 if item.higher_is_better else -1
    for (where, line), points in lines.items():
        ordered = sorted(points, key=lambda point: sign * (point.mean or 0.0))
        said = predicted.get(line, predicted.get(""))
        theirs = [] if not predicted else ["" if said is None else number(said)]
        best, worst = ordered[-1], ordered[0]
        rows.append([where, line, *theirs, number(best.at[item.against]), _score(item, best), _score(item, worst)])
    axis = short(item.against)
    header = ["at", "run", *(["predicted " + axis] if predicted else []), f"best {axis}", f"{measure_of(item)} there"]
    return "Where each line is best:\n\n" + markdown([*header, "worst of the line"], rows)


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
                *(number(point.at[key]) if key in point.at else "" for key in keys),
                run_of(item, point),
                _score(item, point),
                *theirs,
                _epsilon(point.server),
                _epsilon(point.worst_case),
                _epsilon(point.third_party),
                f"{point.delta:g}",
                _range(point.rounds),
            ]
        )
    theirs = ["published", "verdict"] if published else []
    header = [
        "data",
        *map(short, keys),
        "run",
        measure_of(item),
        *theirs,
        SERVER,
        "if drawn in every round",
        "third party",
        "delta",
        "rounds",
    ]
    return markdown(header, rows)


def _theirs(mean: float, std: float | None) -> str:
    return f"{100 * mean:.2f}" + ("" if std is None else f" ± {100 * std:.2f}")


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
        rows.append([f"{short(part.rows)} = {number(row)}", *cells])
    return markdown(["", *(f"{short(part.columns)} = {number(column)}" for column in columns)], rows)


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
    words, _, gap = verdict.rpartition(" by ")
    return f"{words} by {100 * float(gap):.1f}" if words else verdict


def paper_page(paper: Paper) -> str:
    """docs/papers/NAME.md."""
    text = [f"# {paper.short}", paper.reference, MADE]
    text += [paper.text.strip()] if paper.text else []
    text.append(RULES)
    for item in paper.items:
        text.append(section(paper, item, kept(paper.name, item), f"../pictures/papers/{paper.name}_{item.name}.png"))
    return "\n\n".join(text) + "\n"
