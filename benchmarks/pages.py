"""Generated parts of hand-written pages: what lies between `<!-- NAME: begin -->` and `<!-- NAME: end -->`."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any, Final

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


def show(page: str, name: str, text: str, *, write: bool) -> None:
    """Print a text, and with ``write`` `put` it into a page."""
    print(text, flush=True)
    if write:
        put(page, name, text)


def save(figure: Any, path: Path) -> None:
    """As PNG with 64 colours, which is a third of the size."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=95)
    Image.open(drawn).convert("RGB").quantize(64).save(path, optimize=True)
