"""Text for people: tables for terminals and notebooks, and pages from the templates of this package."""

from __future__ import annotations

import functools
import html
import itertools
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from dpfl_plugin.core.rounding import digits, odds, places

if TYPE_CHECKING:
    import jinja2

_BLOCK: Final = re.compile(r"[#|]|[*-] | {4}")  # how a heading, a row, an item and a line of code begin in Markdown
_FENCES: Final = ("```", "---")
_UNDERSCORE: Final = re.compile(r"(?<![^\W_])_|_(?![^\W_])")  # one within a word is no mark-up


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table as text: the first row is the head; columns are as wide as their cells, and two spaces apart."""
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)).rstrip() for row in rows)


def counted(count: int, what: str) -> str:
    """E.g. "1 round", "20 rounds"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """ "42 s", "3 min 5 s" or "2 h 14 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Printed:
    """Shows in a notebook what ``print`` would."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


class Page:
    """A page in Markdown: ``str`` of it is its text, a notebook shows it as it will be read."""

    __slots__ = ()

    def _repr_markdown_(self) -> str:
        return str(self)


def render(template: str, **values: Any) -> str:
    """Render a template of `dpfl_plugin/templates`; in one of `pages/` a paragraph, an item and a row are one line."""
    page = template.startswith("pages/")
    text = _templates(page=page).get_template(template).render(values)
    return _unwrapped(text) if page else text


def items(template: str, **values: Any) -> list[str]:
    """Render a template that is a list; returns its items."""
    return [line.removeprefix("* ") for line in render(template, **values).splitlines() if line]


@functools.cache
def _templates(*, page: bool) -> jinja2.Environment:
    import jinja2  # here: most commands render nothing

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("dpfl_plugin"),
        autoescape=lambda name: name is not None and ".html" in name,
        undefined=jinja2.StrictUndefined,
        finalize=_one_line if page else None,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {
        "cell": cell,
        "counted": counted,
        "epsilon": epsilon,
        "factor": factor,
        "number": number,
        "odds": odds,
        "one_in": one_in,
        "places": places,
        "sentence": sentence,
    }
    templates.filters.update(filters)
    return templates


def _one_line(value: Any) -> Any:
    """Text of users, and not its line ends, which would begin a heading or a fence."""
    return " ".join(value.split()) if isinstance(value, str) and len(value.splitlines()) > 1 else value


def _unwrapped(text: str) -> str:
    lines: list[str] = []
    fenced = False
    for line in text.splitlines():
        last = lines[-1] if lines else ""
        if line.startswith(_FENCES):
            fenced = not fenced
            lines.append(line)
        elif fenced:
            lines.append(line)
        elif not line.strip():
            lines += [""] * bool(last)
        elif line.startswith("#"):
            lines += [""] * bool(last) + [line.rstrip()]
        elif not last or last.startswith(("#", "|", "```", "---")) or _BLOCK.match(line):
            lines.append(line.rstrip())
        else:
            lines[-1] = f"{last} {line.strip()}"
    return "\n".join(lines).strip("\n") + "\n"


def number(value: float | None) -> str:
    """With all its digits; "none" for None."""
    return "none" if value is None else f"{value:.15g}"


def epsilon(value: float | None) -> str:
    """With four digits, rounded up; "none" where nothing is guaranteed."""
    return "none" if value is None else digits(value, 4)


def factor(value: float | None) -> str:
    """What epsilon means, as a power of e and in plain digits."""
    return f"e^{epsilon(value)}" + ("" if value is None else f" ({odds(value)})")


def one_in(probability: float) -> str:
    """An upper bound as "1 in 100,000", rounded up."""
    return f"1 in {int(1 / Decimal(repr(probability))):,}" if probability else "0"


def sentence(text: str) -> str:
    """With a capital letter, unless it begins with a name of the configuration."""
    return text if "_" in text.split()[0] else text[0].upper() + text[1:]


def cell(text: str) -> str:
    """A name in Markdown on one line, which ends no cell of a table, and begins no mark-up."""
    escaped = "".join(f"\\{letter}" if letter in r"\`*|[]<>#" else letter for letter in " ".join(text.split()))
    return _UNDERSCORE.sub(r"\\_", escaped)
