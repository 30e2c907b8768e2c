"""Tables that read well in a terminal and in Markdown alike."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[str] = ()) -> str:
    """A Markdown table in columns of equal width: the first and those headed by ``words`` go left, others right."""
    widths = [max(len(line[column]) for line in (header, *rows)) for column in range(len(header))]
    left = [place == 0 or name in words for place, name in enumerate(header)]
    rule = ["-" * w if of_words else "-" * (w - 1) + ":" for w, of_words in zip(widths, left, strict=True)]
    return "\n".join(_line(line, widths, left) for line in (header, rule, *rows))


def _line(cells: Sequence[str], widths: Sequence[int], left: Sequence[bool]) -> str:
    aligned = zip(cells, widths, left, strict=True)
    padded = [cell.ljust(width) if of_words else cell.rjust(width) for cell, width, of_words in aligned]
    return f"| {' | '.join(padded)} |"
