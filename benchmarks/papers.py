"""The pages of published experiments, docs/papers/: `python -m benchmarks.papers` writes them from the kept numbers.

`--keep DIR` first takes numbers from the folder of `dpfl papers --out DIR`, with their pictures.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Final

from benchmarks.pages import ROOT
from dpfl_plugin.published import catalog, index, numbers, pictures
from dpfl_plugin.published.items import files

PAGES: Final = ROOT / "docs" / "papers"
PICTURES: Final = ROOT / "docs" / "pictures" / "papers"


def keep(folder: Path) -> list[str]:
    """Take the numbers in a folder; returns the names of what was taken. All runs replace quick ones."""
    taken = []
    for paper in catalog.papers():
        for item in paper.items:
            for quick in (True, False):
                name = numbers.file_of(paper.name, item.name, quick)
                if not (folder / name).exists():
                    continue
                target = files() / "kept" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / name, target)
                if not quick:
                    (files() / "kept" / numbers.file_of(paper.name, item.name, True)).unlink(missing_ok=True)
                taken.append(name)
            found = numbers.kept(paper.name, item)
            if found is not None and pictures.has_picture(item, found):
                pictures.draw(PICTURES / f"{paper.name}_{item.name}.png", item, found)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="take the numbers of dpfl papers --out DIR")
    arguments = parser.parse_args()
    if arguments.keep is not None:
        print("\n".join(keep(arguments.keep)) or f"{arguments.keep} has no numbers.")
    PAGES.mkdir(exist_ok=True)
    for name, text in index.pages().items():
        (PAGES / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
