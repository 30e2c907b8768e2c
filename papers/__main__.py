"""Figures and tables of papers, what their theorems prescribe, and where drift control wins.

    python -m papers                                       list the figures and tables that can be repeated
    python -m papers PAPER [--figure N | --table N]        repeat them: published, ours, the proven epsilon
    python -m papers plan PAPER CONFIG                     what its theorems prescribe for a configuration
    python -m papers advice CONFIG                         which method to begin with, by what was measured nearest

Repeating goes on where it was interrupted. Further options are those of `dpfl sweep`, e.g. --jobs 8 or --on slurm.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

from dpfl_plugin.core.text import aligned
from dpfl_plugin.errors import DpflError
from papers import drift, index, pictures, plans
from papers.items import FOLDER, chosen, find, papers
from papers.numbers import keep, kept
from papers.run import repeat
from papers.tables import hours, option

DOCS = FOLDER.parent / "docs"


def listed() -> str:
    """Return what can be repeated, in how many runs, and which numbers are kept."""
    rows = [("paper", "item", "what", "runs", "kept numbers", "took")]
    for paper in papers():
        for item in paper.items:
            numbers, runs = kept(paper.name, item), sum(len(part.expansion().rows) for part in item.parts)
            extent = "none" if numbers is None else "computed" if item.computed else "quick" if numbers.quick else "all"
            took = hours(numbers.seconds) if numbers is not None and item.computed is None else ""
            title = f"{item.title} ({item.label})" if item.label else item.title
            rows.append((paper.name, option(item), title, str(runs), extent, took))
    head, *lines = aligned(rows).splitlines()
    text = [head]
    for name, group in itertools.groupby(lines, key=lambda line: line.split()[0]):
        text += ["", find(name).reference, *group]
    return "\n".join(text)


def repeated(arguments: argparse.Namespace, sweep: list[str]) -> int:
    """Repeat figures and tables; returns the exit code: 0 done, 1 runs are missing."""
    paper, code = find(arguments.paper), 0
    for item in chosen(paper, arguments.figure, arguments.table):
        done = repeat(paper, item, quick=arguments.quick, out=arguments.out, sweep=sweep, say=say)
        if done.numbers is None or done.page is None:
            say(f"{item.heading}: {done.missing} runs are not finished. The same command gathers them when they are.")
            code = 1
            continue
        print(f"{done.page.read_text(encoding='utf-8')}\n{done.page}")
        if arguments.keep and not keep(done.numbers, item):
            say(f"{item.heading}: not kept, since the numbers of all runs are.")
    if arguments.keep:
        write_pages()
    return code


def write_pages() -> None:
    """Write all pages of docs/papers/, and draw their pictures, from the kept numbers."""
    for paper in papers():
        for item in paper.items:
            numbers = kept(paper.name, item)
            if numbers is not None and pictures.has_picture(item, numbers):
                pictures.draw(DOCS / "pictures" / "papers" / f"{paper.name}_{item.name}.png", paper, item, numbers)
    for name, text in index.pages().items():
        (DOCS / "papers" / name).write_text(text, encoding="utf-8")


def say(text: str) -> None:
    print(f"papers: {text}", file=sys.stderr, flush=True)


def main(words: list[str]) -> int:
    if words[:1] == ["plan"]:
        return plans.main(words[1:])
    if words[:1] == ["advice"]:
        return drift.main(words[1:])
    parser = argparse.ArgumentParser(
        "python -m papers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paper", nargs="?", metavar="PAPER", help="one of the list; left out: the list")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--figure", metavar="N", help="one figure (default: all of the paper)")
    one.add_argument("--table", metavar="N", help="one table")
    parser.add_argument("--quick", action="store_true", help="fewer seeds, places or rounds: the direction, in minutes")
    parser.add_argument("--out", type=Path, default=Path("runs/papers"), help="of runs, numbers, pages and pictures")
    parser.add_argument("--keep", action="store_true", help="keep the numbers in papers/kept, and write docs/papers/")
    parser.add_argument("--pages", action="store_true", help="only write docs/papers/ anew from the kept numbers")
    arguments, sweep = parser.parse_known_args(words)
    if arguments.pages:
        write_pages()
    elif arguments.paper is None:
        print(listed())
    else:
        return repeated(arguments, sweep)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        say("interrupted; what is done is saved. The same command continues.")
        sys.exit(4)
    except DpflError as error:
        say(str(error))
        sys.exit(2)
