"""The tables and the picture of docs/drift.md, from the kept numbers: `python -m papers.drift_page`."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.pages import ROOT, put, save
from benchmarks.table import table
from papers.drift import (
    PAGE,
    SKEWS,
    Cell,
    Numbers,
    Place,
    advice,
    best_of,
    count,
    families,
    gap,
    main,
    numbers,
    pays,
)
from papers.paired import Difference

PICTURE: Final = ROOT / "docs" / "pictures" / "drift" / "where.png"
FEDAVG, SCAFFOLD = ("FedAvg", "FedAvg, averaged", "FedAvg, momentum", "FedAvg, momentum, averaged"), "SCAFFOLD"
EXAMPLE: Final = ("configs/two_labels.yaml", "--variant", "DP-SCAFFOLD")


def gaps(cell: Cell, found: Numbers) -> list[Difference]:
    """SCAFFOLD against FedAvg, against FedAvg's averaged models, its momentum; and the best against the best."""
    plain, controlled = families(found.methods)
    against = [gap([cell], SCAFFOLD, name) for name in FEDAVG[:3]]
    return [*against, gap([cell], best_of([cell], controlled), best_of([cell], plain))]


COLUMNS: Final = (
    "SCAFFOLD against FedAvg",
    "against FedAvg, averaged",
    "against FedAvg, momentum",
    "best of SCAFFOLD against best of FedAvg",
)


def _where(cell: Cell) -> list[str]:
    return [f"{cell.silo_rate:g}", f"{cell.local_steps}", f"{cell.epsilon:g}"]


def _gap_table(found: Numbers, skew: str) -> str:
    rows = [[*_where(c), *(one.marked() for one in gaps(c, found))] for c in found.cells if c.skew == skew]
    return table(["silo_rate", "local steps", "epsilon", *COLUMNS], rows)


def _accuracies(found: Numbers) -> str:
    rows = [
        [
            c.skew,
            *_where(c),
            *(f"{c.methods[name].mean:.3f} ({c.methods[name].local_lr:.2g})" for name in found.methods),
        ]
        for c in found.cells
    ]
    return table(["silos", "silo_rate", "local steps", "epsilon", *found.methods], rows)


def _recommended(found: Numbers) -> str:
    """By the rule of the command: what `advice` says of a run in each cell."""
    rows = []
    for cell in found.cells:
        axes = ("skew", "silo_rate", "local_steps", "epsilon")
        said = advice([Place(axis, (getattr(cell, axis),)) for axis in axes], found)
        gain = "0" if said.method == "FedAvg" else said.gain.marked()
        lead = "0" if said.best == said.method else said.behind.marked()
        rows.append([cell.skew, *_where(cell), said.method, gain, said.best, lead])
    header = [
        "silos",
        "silo_rate",
        "local steps",
        "epsilon",
        "begin with",
        "ahead of FedAvg",
        "most accurate",
        "its lead",
    ]
    return table(header, rows, words=("begin with", "most accurate"))


def _range(values: Sequence[Difference]) -> str:
    """From the least to the most, and how many of them are told apart."""
    points = [100 * g.mean for g in values]
    apart = sum(g.significant for g in values)
    return f"{min(points):+.1f} to {max(points):+.1f} ({apart} of {len(values)} told apart)"


def verdict(against_plain: Sequence[Difference], best_against_best: Sequence[Difference]) -> str:
    """What most of some cells say; a difference counts where it is told apart, and half a point or more."""
    half = len(best_against_best) / 2
    behind = count(best_against_best, -1)
    if pays(best_against_best):
        return "SCAFFOLD"
    if count(against_plain, 1) >= half:
        return f"FedAvg, averaged or with momentum: level with SCAFFOLD{' or ahead of it' if behind else ''}"
    worse = max(behind, count(against_plain, -1)) >= half
    return f"FedAvg: SCAFFOLD {'loses accuracy' if worse else 'gains nothing'}"


def _statement(found: Numbers) -> str:
    rows = []
    for skew, rate in dict.fromkeys((cell.skew, cell.silo_rate) for cell in found.cells):
        here = [gaps(cell, found) for cell in found.cells if (cell.skew, cell.silo_rate) == (skew, rate)]
        columns = list(zip(*here, strict=True))
        said = verdict(columns[0], columns[-1])
        rows.append([f"`{skew}`: {found.data[skew]}", f"{rate:g}", said, *map(_range, (columns[0], columns[-1]))])
    header = ["silos", "silo_rate", "begin with", COLUMNS[0], COLUMNS[-1]]
    return table(header, rows, words=header[2:])


def _origin(found: Numbers) -> str:
    sources = ", ".join(f"`{source[:12]}`" for source in found.sources)
    seeds = sorted({cell.seeds for cell in found.cells})
    steps = " and ".join(f"{K:g}" for K in found.levels("local_steps"))
    said = f"{' or '.join(map(str, seeds))} seeds. {found.setting} Local steps: {steps}."
    return f"{said} Measured with version {found.version}, source {sources}."


def example() -> str:
    """Return what the command prints."""
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(io.StringIO()) as out:
        main(EXAMPLE)
    lines = "\n".join(line.rstrip() for line in out.getvalue().splitlines())
    return f"```\n$ python -m papers advice {' '.join(EXAMPLE)}\n{lines}\n```"


def parts(found: Numbers) -> dict[str, str]:
    """Return the generated parts of the page, by name."""
    tables = {f"gaps {skew}": _gap_table(found, skew) for skew in SKEWS}
    whole = {"accuracies": _accuracies(found), "recommended": _recommended(found), "origin": _origin(found)}
    return {"statement": _statement(found), **whole, **tables, "example": example()}


def draw(found: Numbers, path: Path) -> None:
    """Points by which SCAFFOLD is ahead: of plain FedAvg, and the best of its variants of the best of FedAvg's."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    skews = [skew for skew in SKEWS if any(cell.skew == skew for cell in found.cells)]
    columns = sorted({(c.silo_rate, c.local_steps, c.epsilon) for c in found.cells})
    figure = Figure(figsize=(11, 4.1), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    titles = (
        "SCAFFOLD against plain FedAvg",
        "best of SCAFFOLD against best of FedAvg\n(averaged models, server momentum)",
    )
    for panel, (one, title) in enumerate(zip(axes, titles, strict=True)):
        for cell in found.cells:
            g = gaps(cell, found)[0 if panel == 0 else 3]
            row, column = skews.index(cell.skew), columns.index((cell.silo_rate, cell.local_steps, cell.epsilon))
            one.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=_colour(g), edgecolor="0.8"))
            text = f"{100 * g.mean:+.1f}" if g.significant else "="
            one.text(column, row, text, ha="center", va="center", fontsize=9)
        one.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(skews) - 0.5, -0.5), title=title)
        one.set_xticks(range(len(columns)), [f"{K} steps\nε {e:g}" for _, K, e in columns], fontsize=8)
        one.axvline(3.5, color="black", linewidth=1.5)
        for middle, rate in ((1.5, 0), (5.5, 4)):
            one.text(middle, -0.62, f"silo_rate {columns[rate][0]:g}", ha="center", va="bottom", fontsize=9)
        one.set_title(title, pad=20, fontsize=11)
        one.set_xlabel("local steps and epsilon", fontsize=9)
        one.tick_params(length=0)
    axes[0].set_yticks(range(len(skews)), [found.data[skew].replace(", ", ",\n") for skew in skews], fontsize=9)
    blank = "" if len(found.cells) == len(skews) * len(columns) else ", blank: not measured"
    figure.suptitle(
        f"Points of accuracy that drift control wins (blue) or loses (orange); = not told apart{blank}", fontsize=11
    )
    save(figure, path)


def _colour(g: Difference) -> tuple[float, float, float]:
    """White where nothing is told apart; blue or orange, full at 10 points."""
    full = (0.0, 0.447, 0.698) if g.mean > 0 else (0.902, 0.624, 0.0)
    share = 0.0 if not g.significant else 0.2 + 0.6 * min(1.0, abs(g.mean) / 0.1)
    red, green, blue = (1 - share * (1 - part) for part in full)
    return red, green, blue


def write() -> None:
    """Write the generated parts of the page, and its picture, from the kept numbers."""
    for name, text in parts(numbers()).items():
        put(PAGE, name, text)
    draw(numbers(), PICTURE)


if __name__ == "__main__":
    write()
