"""The index of docs/papers/: figures and tables, theirs and ours, what was run of them, the commands of the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from papers.items import ACCURACY, Item, Paper, papers
from papers.numbers import Numbers, cell_verdict, kept, places
from papers.pages import MADE, RULES, paper_page
from papers.tables import ahead, hours, markdown, option, size, unit_of
from papers.verdicts import AGREES, Standing, standing

INTRODUCTION: Final = """\
Figures and tables of papers, and what comes out here. From a checkout, `python -m papers` lists them; `python -m papers
PAPER --figure N` repeats one, and goes on where it was interrupted (`--quick`: its direction, in minutes). Its runs are
sweeps, whose options it takes: `--jobs 8`; or `--on slurm`, which submits the runs to a cluster, a task each, and the
same command without it gathers them. The configurations are in `papers/configs/`: each is a file for `dpfl run` or
`dpfl sweep`."""
SIGNS: Final = """\
Below, "ahead" is by how much the line is better here that the paper says is better; "behind" is against what is
published. An ordering is of two lines at one place, e.g. at one epsilon; where not all places of a paper were tried, it
says of how many. "why not" names what does not agree, and the reason where we have one; "not told apart" is an ordering
of which the 95 % interval of the difference reaches 0."""
HEADER: Final = ("item", "published", "ours", "agrees", "why not")
FOR_IT: Final = (AGREES, "same sign, one seed")
COMPUTING: Final = ("command", "runs done", "took")
CURVES: Final = "only curves are published: there is no number and no ordering in words to compare with"
IN_WORDS: Final = "statements in words, see the page"
CLUSTER: Final = "What takes two cores a night, a cluster does at once, a task for each run:"
SLURM: Final = "export DPFL_DATA=/shared/data SBATCH_PARTITION=short    # where tasks find the data files, and nodes"
GATHER: Final = """\
When the tasks have ended, each of these commands without `--on slurm` makes the numbers, the page and the picture in
`runs/papers/`, and runs itself what is missing; `--keep` takes them into these pages."""


def index() -> str:
    """docs/papers/index.md."""
    text = ["# Published experiments", MADE, INTRODUCTION, RULES, SIGNS]
    for paper in papers():
        rows = [_verdicts(paper, item, kept(paper.name, item)) for item in paper.items]
        text += [f"## {paper.short}", markdown(HEADER, rows)]
    return "\n\n".join([*text, *_computing()]) + "\n"


def _computing() -> list[str]:
    """What was run, how long it took, and the commands of the rest."""
    rows = [
        [f"`python -m papers {paper.name} {option(item)}`", *_times(item, kept(paper.name, item))]
        for paper in papers()
        for item in paper.items
    ]
    said = (
        "Times are the seconds of runs, shared by two cores; some ran beside other work, or on another machine. "
        f"The numbers of these pages took {hours(_measured())}; in that sum a run that figures share counts once, and "
        "above it counts for each of them."
    )
    commands = "```sh\n" + "\n".join([SLURM, *_commands()]) + "\n```"
    return ["## Computing", markdown(COMPUTING, rows), said, CLUSTER, commands, GATHER]


def _measured() -> float:
    """Seconds of processors of all kept numbers; a run that figures share counts once."""
    runs = dict[str, float]()
    for paper in papers():
        for item in paper.items:
            if (numbers := kept(paper.name, item)) is None:
                continue
            for part in item.ran(numbers.quick):
                for row, run in places(item, part, part.expansion(numbers.quick)):
                    for point in numbers.of(part.name, run.line, run.at):
                        runs[row.id] = point.seconds / len(point.seeds)
    return math.fsum(runs.values())


def _verdicts(paper: Paper, item: Item, numbers: Numbers | None) -> list[str]:
    head = f"[{item.heading}]({paper.name}.md#{anchor(item)}), {item.title}" + (
        f" (`{option(item)}`)" if item.label else ""
    )
    if item.computed is not None:
        return [head, "see there", "computed, without a run", "see there", item.reason]
    if numbers is None:
        return [head, _published(item), "", "not run yet", ""]
    return [head, _published(item), *_ours(item, numbers)]


def _times(item: Item, numbers: Numbers | None) -> list[str]:
    if item.computed is not None:
        return ["no runs", "at once"]
    runs = sum(len(part.expansion().rows) for part in item.parts)
    if numbers is None:
        return [f"0 of {runs}", ""]
    did = sum(len(point.seeds) for point in numbers.points)
    return [f"{did} quick ones, 0 of {runs}" if numbers.quick else f"{did} of {runs}", hours(numbers.seconds)]


def _published(item: Item) -> str:
    """What is published, in words."""
    found = list(dict.fromkeys(claim.text for claim in item.claims if claim.published))
    if item.cells:
        places = {tuple(cell.at.items()): cell.mean for cell in item.cells}
        low, high = min(places.values()), max(places.values())
        found.append(f"{len(places)} accuracies, {100 * low:.2f} to {100 * high:.2f}")
    found += [one.text for one in item.stated]
    return "; ".join(found) or "curves only"


def _ours(item: Item, numbers: Numbers) -> list[str]:
    """What came out, how much of it agrees, and what does not, and why."""
    if not item.cells and not item.claims:
        if not item.stated:
            return ["see there", "nothing to compare", CURVES]
        return ["see there", IN_WORDS, "; ".join(filter(None, [item.reason, ("quick" if numbers.quick else "")]))]
    ours, said, why, whole = list[str](), list[str](), list[str](), True
    standings = list[Standing]()
    if item.cells:
        found = [word for _, word in (cell_verdict(numbers, cell) for cell in item.cells) if word != "not run"]
        agree, diverged = found.count("agrees"), found.count("diverged")
        higher = sum(word.startswith("higher") for word in found)
        lower = len(found) - agree - higher - diverged
        ours.append(f"higher in {higher}, lower in {lower}" + (f", diverged in {diverged}" if diverged else ""))
        tried = f" tried (of {len(item.cells)})" if len(found) < len(item.cells) else ""
        said.append(f"{agree} of {len(found)} numbers{tried}{_num_settings(item)}")
        whole &= agree == len(item.cells)
    for published, sized, control in ((True, False, ""), (True, True, ""), (False, False, "our control: ")):
        own = [claim for claim in item.claims if claim.published == published and (claim.least > 0) == sized]
        stands = standing(item, numbers, own)
        if stands.of:
            ours += [] if sized else [control + _least_to_most(item, stands)]
            said.append(control + stands.counted("sizes" if sized else "orderings"))
            why += [control + stands.others()] if stands.others() else []
            whole &= stands.whole or not published
            standings += [stands] if published else []
    if not whole:
        why += [item.reason] if item.reason and not _only_untold(standings) else []
        why += ["quick"] if numbers.quick else []
    return ["; ".join(ours), "; ".join(said), "; ".join(why)]


def _num_settings(item: Item) -> str:
    """Of how many settings the numbers of an item are, each beside all that is published."""
    settings, places = {cell.line for cell in item.cells}, {tuple(cell.at.items()) for cell in item.cells}
    return f" ({len(settings)} settings of {len(places)} cells)" if len(settings) > 1 else ""


def _only_untold(standings: Sequence[Standing]) -> bool:
    """Whether orderings that do not agree are merely not told apart, or of one seed: that is reason enough."""
    words = [one.verdict for stands in standings for one in stands.tried]
    return any(word in FOR_IT for word in words) and all(word in (*FOR_IT, "not told apart") for word in words)


def _least_to_most(item: Item, stands: Standing) -> str:
    """The least and the greatest difference, in the item's unit."""
    known = sorted((one.found for one in stands.tried if one.found is not None), key=lambda one: one.mean)
    if not known:
        return "diverged, or missing" if stands.tried else "not tried"
    first, final = known[0], known[-1]
    low = size(item, first) if (first.mean >= 0) == (final.mean >= 0) else ahead(item, first)
    unit = "" if item.measure == ACCURACY else f" {unit_of(item)}"
    return (f"{low} to " if len(known) > 1 else "") + ahead(item, final) + unit


def anchor(item: Item) -> str:
    """Of an item's heading, as GitHub makes it."""
    kept_letters = "".join(c for c in f"{item.heading}: {item.title}".lower() if c.isalnum() or c in " -_")
    return kept_letters.replace(" ", "-")


def _commands() -> list[str]:
    found = []
    for paper in papers():
        for item in paper.items:
            if item.computed is None and ((numbers := kept(paper.name, item)) is None or numbers.quick):
                found.append(f"python -m papers {paper.name} {option(item)} --on slurm")
    return found


def pages() -> dict[str, str]:
    """All pages by name."""
    return {"index.md": index(), **{f"{paper.name}.md": paper_page(paper) for paper in papers()}}
