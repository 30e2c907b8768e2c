"""What `python -m papers plan` prints for configurations of this project: `python -m papers.plans.page`.

Writes docs/planning.md. Needs the mushrooms and Adult files in $DPFL_DATA; trains nothing.
"""

from __future__ import annotations

import contextlib
import io
import shlex
from typing import Final

from benchmarks.pages import ROOT, put
from papers.plans import main

EXAMPLES: Final = {
    "scaffnew": "scaffnew papers/configs/scaffnew_mushrooms.yaml --variant DP-ScaffNew --epsilon 1000",
    "noble": "noble2022 papers/configs/noble_table1.yaml --variant 'eta_0 = 1' --epsilon 3",
    "gao": "gao2024 configs/gao_algorithms.yaml --variant 'localized MB-SGD' --epsilon 2",
    "chang": "chang2022 configs/quickstart.yaml --variant DP-SCAFFOLD --beta 0.998 --threshold 20",
    "li": "li2025 papers/configs/li2025_adult.yaml --variant '2 / (mu (alpha + t))' --epsilon 0.5",
}


def printed(command: str) -> str:
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(io.StringIO()) as out:
        main(shlex.split(command))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


if __name__ == "__main__":
    for name, command in EXAMPLES.items():
        put("docs/planning.md", name, f"```\n$ python -m papers plan {command}\n{printed(command)}\n```")
