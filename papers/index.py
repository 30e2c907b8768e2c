"""The index of docs/papers/: figures and tables, theirs and ours, what was run of them, the commands of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from papers import catalog
from papers.fewer import extent_of
from papers.items import ACCURACY, ALL, Item, Paper
from papers.lengths import foreseen, measured, remaining
from papers.numbers import Numbers, cell_verdict, kept
from papers.pages import MADE, RULES, paper_page
from papers.tables import ahead, hours, markdown, option, size, unit_of
from papers.verdicts import AGREES, Standing, standing

INTRODUCTION: Final = """\
Figures and tables of papers, and what comes out here. `dpfl papers` lists them; `dpfl papers PAPER --figure N` repeats
one, and goes on where it was interrupted (`--quick`: its direction, in minutes; `--seeds 0`: all rounds, of one seed);
in Python, `dpfl.papers()` and `dpfl.reproduce(...)`. `--device cuda` computes on a GPU, which `--jobs N` runs share.
`--on slurm` submits the runs to a cluster, a task each; the same command without it gathers them. The configurations
are in `papers/configs/`: each is a file for `dpfl run` or `dpfl sweep`."""
SIGNS: Final = """\
Below, "ahead" is by how much the line is better here that the paper says is better; "behind" is against what is
published. An ordering is of two lines at one place, e.g. at one epsilon; where not all places of a paper were tried, it
says of how many. "why not" names what does not agree, and the reason where we have one; "not told apart" is an ordering
of which the 95 % interval of the difference reaches 0."""
HEADER: Final = ("item", "published", "ours", "agrees", "why not")
FOR_IT: Final = (AGREES, "same sign, one seed")
COMPUTING: Final = ("command", "runs done", "took", "all runs take")
CURVES: Final = "only curves are published: there is no number and no ordering in words to compare with"
IN_WORDS: Final = "statements in words, see the page"
NIGHT: Final = 12 * 3600  # seconds, of two processors
CLUSTER: Final = "What two cores cannot do in a night, a cluster does at once, a task for each run:"
SLURM: Final = "export DPFL_DATA=/shared/data SBATCH_PARTITION=short    # where tasks find the data files, and nodes"
GATHER: Final = """\
When the tasks have ended, each of these commands without `--on slurm` makes the numbers, the page and the picture in
`papers/`, and runs itself what is missing; `python -m benchmarks.papers --keep papers` takes them into these pages."""


def index() -> str:
    """docs/papers/index.md."""
    text = ["# Published experiments", MADE, INTRODUCTION, RULES, SIGNS]
    for paper in catalog.papers():
        rows = [_verdicts(paper, item, kept(paper.name, item)) for item in paper.items]
        text += [f"## {paper.short}", markdown(HEADER, rows)]
    return "\n\n".join([*text, *_computing()]) + "\n"


def _computing() -> list[str]:
    """What was run, how long it took, and the commands of the rest."""
    rows, long = [], []
    for paper in catalog.papers():
        for item in paper.items:
            numbers = kept(paper.name, item)
            whole, _ = foreseen(paper, item)
            if whole is not None and whole > 2 * NIGHT and not _is_whole(numbers):
                long.append(f"`{paper.name} {option(item)}`")
            rows.append([f"`dpfl papers {paper.name} {option(item)}`", *_times(item, numbers, whole)])
    said = (
        "Times are the seconds of runs, shared by two cores; some ran beside other work, or on another machine. "
        f"The numbers of these pages took {hours(measured())}. What is quick, or not run yet, takes "
        f"{hours(remaining())}. In both sums a run that figures share counts once; above it counts for each of them."
    )
    if long:
        said += f" Each of these takes longer than a night ({NIGHT // 3600} h) on two cores: {', '.join(long)}."
    commands = "```sh\n" + "\n".join([SLURM, *_commands()]) + "\n```"
    return ["## Computing", markdown(COMPUTING, rows), said, CLUSTER, commands, GATHER]


def _is_whole(numbers: Numbers | None) -> bool:
    return numbers is not None and numbers.extent == ALL


def _verdicts(paper: Paper, item: Item, numbers: Numbers | None) -> list[str]:
    head = f"[{item.heading}]({paper.name}.md#{anchor(item)}), {item.title}" + (
        f" (`{option(item)}`)" if item.label else ""
    )
    if item.computed is not None:
        return [head, "see there", "computed, without a run", "see there", item.reason]
    if numbers is None:
        return [head, _theirs(item), "", "not run yet", ""]
    return [head, _theirs(item), *_ours(item, numbers)]


def _times(item: Item, numbers: Numbers | None, whole: float | None) -> list[str]:
    if item.computed is not None:
        return ["no runs", "at once", ""]
    runs = sum(len(part.expansion().rows) for part in item.parts)
    length = "not measured" if whole is None else hours(whole)
    if numbers is None:
        return [f"0 of {runs}", "", length]
    did = sum(len(point.seeds) for point in numbers.points)
    done = f"{did} quick ones, 0 of {runs}" if numbers.quick else f"{did} of {runs}"
    return [done, hours(numbers.seconds), length]


def _theirs(item: Item) -> str:
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
        return ["see there", IN_WORDS, "; ".join(filter(None, [item.reason, extent_of(item, numbers)]))]
    ours, said, why, whole = list[str](), list[str](), list[str](), True
    standings = list[Standing]()
    if item.cells:
        found = [word for _, word in (cell_verdict(numbers, cell) for cell in item.cells) if word != "not run"]
        agree, diverged = found.count("agrees"), found.count("diverged")
        higher = sum(word.startswith("higher") for word in found)
        lower = len(found) - agree - higher - diverged
        ours.append(f"higher in {higher}, lower in {lower}" + (f", diverged in {diverged}" if diverged else ""))
        tried = f" tried (of {len(item.cells)})" if len(found) < len(item.cells) else ""
        said.append(f"{agree} of {len(found)} numbers{tried}{_settings(item)}")
        whole &= agree == len(item.cells)
    for published, sized, control in ((True, False, ""), (True, True, ""), (False, False, "our control: ")):
        own = [claim for claim in item.claims if claim.published == published and (claim.least > 0) == sized]
        stands = standing(item, numbers, own)
        if stands.of:
            ours += [] if sized else [control + _range(item, stands)]
            said.append(control + stands.counted("sizes" if sized else "orderings"))
            why += [control + stands.others()] if stands.others() else []
            whole &= stands.whole or not published
            standings += [stands] if published else []
    of = extent_of(item, numbers)
    if not whole:
        why += [item.reason] if item.reason and not _only_untold(standings) else []
        why += [of] if of else []
    return ["; ".join(ours), "; ".join(said), "; ".join(why)]


def _settings(item: Item) -> str:
    """Of how many settings the numbers of an item are, each beside all that is published."""
    settings, places = {cell.line for cell in item.cells}, {tuple(cell.at.items()) for cell in item.cells}
    return f" ({len(settings)} settings of {len(places)} cells)" if len(settings) > 1 else ""


def _only_untold(standings: Sequence[Standing]) -> bool:
    """Whether orderings that do not agree are merely not told apart, or of one seed: that is reason enough."""
    words = [one.verdict for stands in standings for one in stands.tried]
    return any(word in FOR_IT for word in words) and all(word in (*FOR_IT, "not told apart") for word in words)


def _range(item: Item, stands: Standing) -> str:
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
    for paper in catalog.papers():
        for item in paper.items:
            if item.computed is None and not _is_whole(kept(paper.name, item)):
                found.append(f"dpfl papers {paper.name} {option(item)} --on slurm")
    return found


def pages() -> dict[str, str]:
    """All pages by name."""
    return {"index.md": index(), **{f"{paper.name}.md": paper_page(paper) for paper in catalog.papers()}}
