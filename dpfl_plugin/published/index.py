"""The index of docs/papers/: figures and tables, theirs and ours, what was run of them, the commands of the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from dpfl_plugin.published import catalog
from dpfl_plugin.published.items import ALL, Item, Paper
from dpfl_plugin.published.numbers import Difference, Numbers, cell_verdict, differences, kept, of_seeds
from dpfl_plugin.published.pages import MADE, RULES, by, foreseen, hours, markdown, paper_page, unit_of

INTRODUCTION: Final = """\
Figures and tables of papers, and what comes out here. `dpfl papers` lists them; `dpfl papers PAPER --figure N` repeats
one, and goes on where it was interrupted (`--quick`: its direction, in minutes; `--seeds 0`: all rounds, of one seed);
in Python, `dpfl.papers()` and `dpfl.reproduce(...)`. `--on slurm` submits the runs to a cluster, a task each; the same
command without it gathers them. The configurations are in `configs/papers/`: each is a file for `dpfl run` or
`dpfl sweep`."""
HEADER: Final = ("paper", "item", "what", "theirs", "ours", "agrees", "why not", "runs done", "took", "all runs take")
CLUSTER: Final = "What two cores cannot do in a night, a cluster does at once, a task for each run:"
SLURM: Final = "export DPFL_DATA=/shared/data SBATCH_PARTITION=short    # where tasks find the data files, and nodes"
GATHER: Final = """\
When the tasks have ended, each of these commands without `--on slurm` makes the numbers, the page and the picture in
`papers/`, and runs itself what is missing; `python -m benchmarks.papers --keep papers` takes them into these pages."""


def index() -> str:
    """docs/papers/index.md."""
    text = ["# Published experiments", MADE, INTRODUCTION, RULES]
    rows, measured, left = [], 0.0, 0.0
    for paper in catalog.papers():
        for item in paper.items:
            numbers = kept(paper.name, item)
            whole, _ = foreseen(paper, item)
            measured += numbers.seconds if numbers is not None else 0.0
            left += whole if whole is not None and not _is_whole(numbers) else 0.0
            rows.append(_row(paper, item, numbers, whole))
    text.append(markdown(HEADER, rows))
    text.append(
        f"Times are on two cores. The numbers of these pages took {hours(measured)}. What is quick, or not run yet, "
        f"takes {hours(left)}, as far as the length is known (figures that share runs count each by itself). {CLUSTER}"
    )
    text += ["```sh\n" + "\n".join([SLURM, *_commands()]) + "\n```", GATHER]
    return "\n\n".join(text) + "\n"


def _is_whole(numbers: Numbers | None) -> bool:
    return numbers is not None and numbers.extent == ALL


def _row(paper: Paper, item: Item, numbers: Numbers | None, whole: float | None) -> list[str]:
    link = f"[{paper.short}]({paper.name}.md#{anchor(item)})"
    head = [link, item.heading, item.title]
    if item.computed is not None:
        return [*head, "see there", "computed", "see there", _gist(item.why), "no runs", "at once", ""]
    runs = sum(len(part.expansion().rows) for part in item.parts)
    length = "not measured" if whole is None else hours(whole)
    if numbers is None:
        return [*head, _theirs(item), "", "not run yet", "", f"0 of {runs}", "", length]
    did = sum(len(point.seeds) for point in numbers.points)
    done = f"{did} quick ones, 0 of {runs}" if numbers.quick else f"{did} of {runs}"
    ours, said, agrees = _ours(item, numbers)
    why = "" if agrees else "fewer rounds and seeds" if numbers.quick else _gist(item.why)
    return [*head, _theirs(item), ours, said, why, done, hours(numbers.seconds), length]


def _theirs(item: Item) -> str:
    """What is published, in words."""
    found = list(dict.fromkeys(claim.text for claim in item.claims if claim.published))
    if item.cells:
        places = {tuple(cell.at.items()): cell.mean for cell in item.cells}
        low, high = min(places.values()), max(places.values())
        found.append(f"{len(places)} accuracies, {100 * low:.1f} to {100 * high:.1f}")
    return "; ".join(found) or "curves only"


def _ours(item: Item, numbers: Numbers) -> tuple[str, str, bool]:
    """What came out, how much of it agrees, and whether all of it does."""
    ours, said, whole = list[str](), list[str](), True
    if item.cells:
        found = [word for _, word in (cell_verdict(numbers, cell) for cell in item.cells) if word != "not run"]
        agree, diverged = found.count("agrees"), found.count("diverged")
        higher = sum(word.startswith("higher") for word in found)
        lower = len(found) - agree - higher - diverged
        ours.append(f"higher in {higher}, lower in {lower}" + (f", diverged in {diverged}" if diverged else ""))
        said.append(f"{agree} of {len(found)} numbers")
        whole &= agree == len(found)
    for published in (True, False):
        claims = [claim for claim in item.claims if claim.published == published]
        orders = [one for claim in claims for _, one in differences(numbers, item, claim)]
        if orders:
            ours.append(_range(item, orders) + ("" if published else " against the control"))
            agree, single = _counted(orders)
            words = f"{agree} of {len(orders)} orderings" + ("" if published else " against the control")
            more = f"; {single} {'has' if single == 1 else 'have'} its sign, from one seed" if single else ""
            said.append(words + more)
            whole &= agree == len(orders) or not published
    if not said:
        return "see there", "nothing that can be compared", False
    return "; ".join(ours), "; ".join(said) + _extent(item, numbers), whole


def _extent(item: Item, numbers: Numbers) -> str:
    return " (quick)" if numbers.quick else f" ({of_seeds(item, numbers)})" if numbers.seeds else ""


def _counted(orders: Sequence[Difference | None]) -> tuple[int, int]:
    """How many orderings agree, and how many more have the sign, of one seed each."""
    words = ["no" if one is None else one.verdict for one in orders]
    return words.count("agrees"), sum(word.startswith("same sign") for word in words)


def _range(item: Item, orders: Sequence[Difference | None]) -> str:
    """The least and the greatest difference, in the item's unit."""
    known = sorted((one for one in orders if one is not None), key=lambda one: one.mean)
    if not known:
        return "diverged, or missing"
    ends = [by(item, one) for one in (known[0], known[-1])]
    unit = unit_of(item)
    return f"{ends[0]} {unit}" if len(known) == 1 else f"{ends[0]} to {ends[1]} {unit}"


def _gist(why: Sequence[str]) -> str:
    """The first sentence of reasons, or what comes before its colon."""
    if not why:
        return ""
    return re.split(r": |\. (?=[A-Z])", why[0])[0].removesuffix(".")


def anchor(item: Item) -> str:
    """Of an item's heading, as GitHub makes it."""
    kept_letters = "".join(c for c in f"{item.heading}: {item.title}".lower() if c.isalnum() or c in " -_")
    return kept_letters.replace(" ", "-")


def _commands() -> list[str]:
    found = []
    for paper in catalog.papers():
        for item in paper.items:
            if item.computed is None and not _is_whole(kept(paper.name, item)):
                found.append(f"dpfl papers {paper.name} --{item.kind} {item.number} --on slurm")
    return found


def pages() -> dict[str, str]:
    """All pages by name."""
    return {"index.md": index(), **{f"{paper.name}.md": paper_page(paper) for paper in catalog.papers()}}
