"""What is known of a published figure or table: its configurations, its numbers, and what it is said to show."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from dpfl_plugin.config.sweep import Expansion, expand
from dpfl_plugin.errors import ConfigError

FOLDER: Final = Path(__file__).parent
PAPERS: Final = ("noble2022", "chang2022", "li2025", "gao2024", "scaffnew")
"""Modules of this package, each with a `Paper` as ``PAPER``."""
Computed = tuple[Sequence[str], Sequence[Sequence[str]]]
"""A table: its header, and its rows."""
Lines = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""Curves by name: communication rounds, and a value at each."""
ROUND: Final = "round"
ACCURACY: Final = "test_accuracy"
EXCESS: Final = "excess_loss"
"""log10(F(x) - F*), of convex models: the loss of the model less the least that there is."""
MEASURES: Final = {
    ACCURACY: "test accuracy",
    "train_loss": "training loss",
    EXCESS: "log10(F(x) - F*)",
    "gradient_dissimilarity": "gradient dissimilarity",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Runs of one configuration, e.g. of one data set of a figure.

    Attributes:
        name: of files and of `Claim`s, e.g. "mnist".
        config: the file, below ``configs``.
        title: of its panels.
        rows, columns: keys whose values make a row and a column of panels each; None: one.
        hidden: keys that change along with an axis, and so are in no label.
        settings: changes of the file, as ``--set`` takes them; quick: further ones, of ``--quick``; None: not in it.
    """

    name: str
    config: str
    title: str
    rows: str | None = None
    columns: str | None = None
    hidden: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = ()

    @property
    def path(self) -> Path:
        return FOLDER / "configs" / self.config

    def changes(self, quick: bool) -> tuple[str, ...]:
        """All changes of the file."""
        return (*self.settings, *((self.quick or ()) if quick else ()))

    def expansion(self, quick: bool = False) -> Expansion:
        """Return the runs.

        Raises:
            ConfigError: something in the file or its changes is wrong.
        """
        return _expanded(self, quick)


@functools.cache
def _expanded(part: Part, quick: bool) -> Expansion:
    return expand(part.path, part.changes(quick))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An ordering that is published: one line is better than another.

    Attributes:
        text: what is published, in the paper's sense. source: where.
        part: of which part. better, worse: labels of lines, or methods of ``Item.tuned``.
        at: {key: value} of the panels that it is said of; all where it is empty. worse_at: where the worse line is,
            if elsewhere.
        least: how far ahead the better line has to be, in the measure: half of a size that is published. Below 0: how
            far behind it may be.
        published: whether it is; else it is a control that the paper lacks, asked as its claims are.
    """

    text: str
    source: str
    part: str
    better: str
    worse: str
    at: Mapping[str, Any]
    worse_at: Mapping[str, Any] | None = None
    least: float = 0.0
    published: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What a paper says in words that no pair of lines decides: text and source as of a `Claim`; ours: what is here."""

    text: str
    source: str
    ours: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A published number: mean ± standard deviation of the measure, at the values of keys.

    Attributes:
        line: the label of our line that is to repeat it.
    """

    part: str
    line: str
    at: Mapping[str, Any]
    mean: float
    std: float | None = None


@dataclass(frozen=True, kw_only=True)
class Item:
    """A figure or table.

    Attributes:
        number: in the paper, or a word. label: what it is called, if not by its number.
        source: the place there, for readers.
        measure: what is compared; a key of metrics.jsonl, or `EXCESS`. higher_is_better: of it.
        against: the horizontal axis: `ROUND`, or the key of a sweep.
        cells, claims, stated: what is published. why: why we differ, where we do, however much was run; sentences.
        reason: why in a sentence, for the index. found, found_quick: what all runs, and quick ones, show besides.
        computed: a table that takes no run, in place of parts. lines: curves of its picture; lines_of: their axis.
        shown: the part of the vertical axis that curves are told apart in; None for all of it.
        tuned: methods, whose lines are called "METHOD, SETTING", as many for each; compared at the best of their own.
        tuned_by: keys that a setting is a value of: the first that a variant has.
        predicted: {line: where on the horizontal axis it is said to be best}, "" for all lines; where it is given,
            empty or not, a page says where each line is best.
        differs, differs_quick: how all runs, and quick ones besides, differ from the published ones, by decision.
    """

    kind: Literal["figure", "table"]
    number: str
    title: str
    source: str
    parts: tuple[Part, ...] = ()
    measure: str = ACCURACY
    higher_is_better: bool = True
    against: str = ROUND
    cells: tuple[Cell, ...] = ()
    claims: tuple[Claim, ...] = ()
    stated: tuple[Stated, ...] = ()
    why: tuple[str, ...] = ()
    reason: str = ""
    found: tuple[str, ...] = ()
    found_quick: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    differs_quick: tuple[str, ...] = ()
    computed: Callable[[], Computed] | None = None
    lines: Callable[[], Lines] | None = None
    lines_of: str = ""
    shown: tuple[float, float] | None = None
    tuned: tuple[str, ...] = ()
    tuned_by: tuple[str, ...] = ()
    predicted: Mapping[str, float] | None = None
    label: str = ""

    @property
    def name(self) -> str:
        """Of files, e.g. "figure-2"."""
        return f"{self.kind}-{self.number}"

    @property
    def heading(self) -> str:
        """As the paper calls it, e.g. "Figure 2"."""
        return self.label or f"{self.kind.capitalize()} {self.number}"

    def ran(self, quick: bool) -> list[Part]:
        """Return the parts of all runs, or of quick ones."""
        return [part for part in self.parts if not quick or part.quick is not None]

    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper, and all that is repeated of it.

    Attributes:
        name: of the command, e.g. "noble2022". reference: authors, title, where. text: for its page, before the items.
    """

    name: str
    short: str
    reference: str
    items: tuple[Item, ...]
    text: str = ""

    @cached_property
    def by_name(self) -> dict[str, Item]:
        return {item.name: item for item in self.items}


def papers() -> list[Paper]:
    """Return all papers of which figures and tables are repeated here."""
    return [importlib.import_module(f"papers.{name}").PAPER for name in PAPERS]


def find(name: str) -> Paper:
    """Return the paper of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in PAPERS:
        raise ConfigError(f"PAPER={name!r} must be one of {', '.join(PAPERS)}.")
    return next(paper for paper in papers() if paper.name == name)


def chosen(paper: Paper, figure: str | None = None, table: str | None = None) -> list[Item]:
    """Return the figure or table of a paper, or everything.

    Raises:
        ConfigError: the paper has none of that number here.
    """
    if figure is None and table is None:
        return list(paper.items)
    kind, number = ("figure", figure) if figure is not None else ("table", table)
    if (item := paper.by_name.get(f"{kind}-{number}")) is None:
        known = ", ".join(item.number for item in paper.items if item.kind == kind)
        raise ConfigError(f"--{kind}={number} must be one of those of {paper.name}: {known or 'it has none'}.")
    return [item]
