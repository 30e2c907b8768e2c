"""The pages of published experiments, docs/papers/: `python -m benchmarks.papers` writes them from the kept numbers.

`--keep DIR` first takes numbers from the folder of `dpfl papers --out DIR`, and draws the pictures, which `--pictures`
draws alone, too. `--lengths` times a round of runs whose length nobody has measured; on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Final

import dpfl_plugin as dpfl
from benchmarks.pages import ROOT
from dpfl_plugin.config.load import merged
from dpfl_plugin.config.yaml_text import dump
from papers import catalog, index, lengths, numbers, pictures
from papers.items import ALL, QUICK, Extent, Item, Part, files
from papers.joined import joined
from papers.numbers import Numbers

PAGES: Final = ROOT / "docs" / "papers"
PICTURES: Final = ROOT / "docs" / "pictures" / "papers"
TIMED_STEPS: Final = 200
SEVERAL: Final = ("sweep", "variants")


def keep(folder: Path) -> list[str]:
    """Take the numbers in a folder; returns the names of what was taken.

    All runs replace those of some seeds and quick ones; seeds are added to those of the same runs that are kept.

    Raises:
        DataError: seeds are there that cannot be added.
    """
    taken = []
    for paper in catalog.papers():
        for item in paper.items:
            for extent in dict.fromkeys((QUICK, Extent(seeds=item.seeds), ALL)):
                name = numbers.file_of(paper.name, item.name, extent)
                found = numbers.read(folder / name)
                if found is not None and _keep(item, found):
                    taken.append(name)
    return taken


def draw() -> None:
    """All pictures anew, of the kept numbers."""
    for paper in catalog.papers():
        for item in paper.items:
            found = numbers.kept(paper.name, item)
            if found is not None and pictures.has_picture(item, found):
                pictures.draw(PICTURES / f"{paper.name}_{item.name}.png", paper, item, found)


def time_steps() -> dict[str, float]:
    """Seconds of a local step of all silos, by records and model that no kept numbers are of: of a round of each."""
    return {name: round(_step(part), 6) for name, part in lengths.untimed()}


def _step(part: Part) -> float:
    few = {"rounds": 1, "algorithm": {"local_steps": TIMED_STEPS}, "privacy": {"noise_multiplier": 0}}
    values = {key: value for key, value in merged(part.expansion().base, few).items() if key not in SEVERAL}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "timed.yaml"
        path.write_text(dump(values), encoding="utf-8")
        run = dpfl.Experiment(path).run(out=folder)
        assert isinstance(run, dpfl.Run)
        return float(run.result["seconds"]) / lengths.steps_of(values, 1)


def _keep(item: Item, found: Numbers) -> bool:
    """Whether they are now what is kept: numbers of all runs stay, and others are added or take the place of fewer."""
    before = numbers.kept(found.paper, item)
    if before is not None and not before.quick and found.extent != ALL:
        if found.quick or (before.extent == ALL and before.runs == found.runs):
            return False
        if before.runs == found.runs and not set(before.seeds) <= set(found.seeds):
            found = joined(item, before, found)
    for extent in (QUICK, Extent(seeds=item.seeds), ALL):
        (files() / "kept" / numbers.file_of(found.paper, item.name, extent)).unlink(missing_ok=True)
    found.write(files() / "kept")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="take the numbers of dpfl papers --out DIR")
    parser.add_argument("--pictures", action="store_true", help="draw all pictures anew, as --keep does")
    parser.add_argument("--lengths", action="store_true", help="time what nobody has measured the length of")
    arguments = parser.parse_args()
    if arguments.lengths:
        timed = json.dumps(time_steps(), indent=2, sort_keys=True)
        (files() / lengths.FILE).write_text(f"{timed}\n", encoding="utf-8")
    if arguments.keep is not None:
        print("\n".join(keep(arguments.keep)) or f"{arguments.keep} has no numbers.")
    if arguments.pictures or arguments.keep is not None:
        draw()
    PAGES.mkdir(exist_ok=True)
    for name, text in index.pages().items():
        (PAGES / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
