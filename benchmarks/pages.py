"""Generated parts of hand-written pages: what lies between `<!-- NAME: begin -->` and `<!-- NAME: end -->`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


def put(page: str, name: str, text: str) -> None:
    """Replace the part ``name`` of ``page`` (from the project's root) by ``text``.

    Raises:
        ValueError: the page has no such part.
    """
    path = ROOT / page
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    changed, found = pattern.subn(lambda _: f"{begin}\n{text}\n{end}", path.read_text())
    if found != 1:
        raise ValueError(f"{page} has {found} parts {name!r}; it must have one.")
    path.write_text(changed)
