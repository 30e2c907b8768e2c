"""What `dpfl plan --paper` prints for configurations of this project: `python -m benchmarks.planning`.

Writes docs/planning.md. Needs the mushrooms and Adult files in data.folder or $DPFL_DATA; trains nothing.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from typing import Final
from unittest import mock

from benchmarks.pages import ROOT, put
from dpfl_plugin.cli.main import main as dpfl

PAGE: Final = "docs/planning.md"
EXAMPLES: Final = {
    "scaffnew": (
        "dpfl plan papers/configs/scaffnew_mushrooms.yaml --variant DP-ScaffNew --paper scaffnew --epsilon 1000"
    ),
    "noble": "dpfl plan papers/configs/noble_table1.yaml --variant 'eta_0 = 1' --paper noble --epsilon 3",
    "gao": "dpfl plan configs/gao_algorithms.yaml --variant 'localized MB-SGD' --paper gao --epsilon 2",
    "chang": "dpfl plan configs/quickstart.yaml --variant DP-SCAFFOLD --paper chang --beta 0.998 --threshold 20",
    "li": "dpfl plan papers/configs/li2025_adult.yaml --variant '2 / (mu (alpha + t))' --paper li --epsilon 0.5",
}


def printed(command: str) -> str:
    """What a command prints."""
    out = io.StringIO()
    with mock.patch.object(sys, "argv", shlex.split(command)), contextlib.redirect_stdout(out):
        try:
            dpfl()
        except SystemExit as end:
            if end.code:
                raise
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def main() -> None:
    os.chdir(ROOT)
    for name, command in EXAMPLES.items():
        text = f"```\n$ {command}\n{printed(command)}\n```"
        print(text)
        put(PAGE, name, text)


if __name__ == "__main__":
    main()
