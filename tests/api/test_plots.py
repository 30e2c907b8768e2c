"""`curves.png`: what was measured is seen, also where it is one point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import colors, image

from dpfl_plugin.api.plots import curves, detailed


def line(round: int) -> dict[str, Any]:
    return {"round": round, "test_accuracy": 0.5, "epsilon": {"server": 1.0, "third_party": 0.5}}


@pytest.mark.parametrize("rounds", [[1], [10], [1, 10], list(range(1, 100))])
def test_every_number_of_evaluations_is_seen(tmp_path: Path, rounds: list[int]) -> None:
    curves(tmp_path / "a.png", {"run": [line(at) for at in rounds]}, "a title", 1e-5)
    picture = image.imread(tmp_path / "a.png")[:, :, :3]
    first = np.abs(picture - np.array(colors.to_rgb("C0"))).max(axis=2) < 0.02
    # Without the legend, which lies in the lower half of each pair of axes.
    assert first[: len(first) // 3].sum() > 20


def test_rounds_are_whole_numbers_from_0() -> None:
    for last in (1, 2, 10, 1000):
        axis = detailed({"run": [line(last)]}, "a title", 1e-5).axes[-1]
        low, high = axis.get_xlim()
        ticks = [tick for tick in axis.get_xticks() if low <= tick <= high]
        assert low == 0 and ticks[0] == 0 and len(ticks) > 1 and all(tick == int(tick) for tick in ticks)
