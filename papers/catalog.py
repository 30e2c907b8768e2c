"""All papers of which figures and tables are repeated here."""

from __future__ import annotations

import importlib
from typing import Final

from dpfl_plugin.errors import ConfigError, require_argument
from papers.items import Item, Paper

PAPERS: Final = ("noble2022", "chang2022", "li2025", "gao2024", "scaffnew")
"""Modules of this package, each with a `Paper` as ``PAPER``."""


def papers() -> list[Paper]:
    return [importlib.import_module(f"papers.{name}").PAPER for name in PAPERS]


def find(name: str) -> Paper:
    """
    Raises:
        ConfigError: there is none of this name.
    """
    if name not in PAPERS:  # on the command line it is no option, which an ArgumentError would name
        raise ConfigError(f"PAPER: {name!r} is not one of {', '.join(PAPERS)}.")
    return next(paper for paper in papers() if paper.name == name)


def items(paper: Paper, figure: str | None = None, table: str | None = None) -> list[Item]:
    """The figure or table of a paper, or everything.

    Raises:
        ArgumentError: the paper has none of that number here.
    """
    if figure is None and table is None:
        return list(paper.items)
    found = []
    for kind, number in (("figure", figure), ("table", table)):
        if number is None:
            continue
        known = [item.number for item in paper.items if item.kind == kind]
        require_argument(
            str(number) in known, kind, number, f"be one of {', '.join(known) or 'none: it has no ' + kind}"
        )
        found.append(paper.by_name[f"{kind}-{number}"])
    return found
