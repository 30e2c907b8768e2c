"""Matplotlib figures that show themselves in a notebook."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def shown(figure: Figure) -> Figure:
    """A figure that shows itself in a notebook."""
    figure._repr_png_ = lambda: png(figure)  # type: ignore[attr-defined]
    return figure


def png(figure: Figure, dpi: int = 110) -> bytes:
    """A figure's picture."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=dpi, metadata={"Software": None})
    return picture.getvalue()
