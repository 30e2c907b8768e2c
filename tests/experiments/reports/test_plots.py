"""Plots: what is drawn is what groups say."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfl_plugin.api import plots
from dpfl_plugin.experiments.reports.groups import grouped
from dpfl_plugin.experiments.reports.plots import BESIDE, MOST_BANDS, left_out, plot, plot_tradeoff
from dpfl_plugin.experiments.reports.runs import read
from tests.experiments.reports.folders import made

NEAR = {"server": 3.9998, "third_party": 3.9998}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Axes of the figures that were saved."""
    from matplotlib.figure import Figure

    saved: list[Any] = []
    whole = Figure.savefig

    def savefig(self: Figure, *args: Any, **options: Any) -> None:
        saved.append(self.axes[0])
        whole(self, *args, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return saved


def test_png_and_pdf_of_mean_band_and_partial_runs(tmp_path: Path, drawn: list[Any]) -> None:
    made(tmp_path / "a", seed=0, accuracies=[0.1, 0.3])
    made(tmp_path / "b", seed=1, accuracies=[0.3, 0.5])
    made(tmp_path / "c", seed=2, accuracies=[0.9], status="failed")
    files = plot(tmp_path / "p", grouped([read(tmp_path / name) for name in "abc"]), "test_accuracy", "rounds")
    assert [file.name for file in files] == ["p.png", "p.pdf"]
    assert files[0].read_bytes().startswith(b"\x89PNG") and files[1].read_bytes().startswith(b"%PDF")
    mean, partial = drawn[0].lines
    np.testing.assert_allclose(mean.get_ydata(), [0.2, 0.4])
    assert "(n = 2)" in str(mean.get_label())
    assert "seed 2: failed" in str(partial.get_label()) and list(partial.get_ydata()) == [0.9]
    (shade,) = drawn[0].collections
    heights = [point[1] for point in shade.get_paths()[0].vertices]
    assert (min(heights), max(heights)) == (0, 1), "no accuracy is beyond them"


def test_epsilons_that_agree_are_drawn_at_one_place(tmp_path: Path, drawn: list[Any]) -> None:
    """But for the space between intervals, and without an offset: a point of 3.9998 is one of 4."""
    epsilons = {0.1: 3.99972, 0.2: 4.0, 0.5: 3.97, 1.0: 3.9, 2.0: 1.0}
    groups = grouped(
        [
            read(made(tmp_path / str(lr), accuracies=[lr / 4], epsilon=epsilon, changes={"algorithm.local_lr": lr}))
            for lr, epsilon in epsilons.items()
        ]
    )
    assert plot_tradeoff(tmp_path / "p", groups, "test_accuracy")
    at = {line.get_ydata()[0] * 4: line.get_xdata()[0] for line in drawn[0].lines if len(line.get_xdata()) == 1}
    step = BESIDE * (4.0 - 1.0)
    drawn_at = {lr: at[lr] - step * (place - 2) for place, lr in enumerate(epsilons)}
    assert drawn_at == pytest.approx({0.1: 4.0, 0.2: 4.0, 0.5: 4.0, 1.0: 3.9, 2.0: 1.0})
    assert not plot_tradeoff(tmp_path / "q", groups[:2], "test_accuracy"), "at one place there is nothing to compare"
    lines = [{"round": 1 + n, "test_accuracy": 0.5 + 1e-9 * n, "epsilon": NEAR} for n in range(3)]
    runs = {"run": lines}
    axes = [drawn[-1], *plots.detailed(runs, "", 1e-5).axes]
    for axis in axes:
        axis.figure.canvas.draw()
        assert not axis.xaxis.get_offset_text().get_text() and "+" not in axis.yaxis.get_offset_text().get_text()


def test_colours_tell_lines_and_dashes_tell_epsilons(tmp_path: Path, drawn: list[Any]) -> None:
    """In both pictures; with more than fit, each configuration is on its own, and bands are left out."""
    for name, epsilon, seed in itertools.product("abc", (1.0, 4.0), range(2)):
        changes = {"algorithm.name": name, "privacy.epsilon": epsilon}
        made(tmp_path / f"{name}{epsilon}{seed}", seed=seed, changes=changes, epsilon=epsilon)
    groups = grouped([read(folder) for folder in sorted(tmp_path.iterdir())])
    plot(tmp_path / "p", groups, "test_accuracy", "rounds")
    lines = {str(line.get_label()): (line.get_color(), line.get_linestyle()) for line in drawn[0].lines}
    assert len({colour for colour, _ in lines.values()}) == 3 and len({*lines.values()}) == 6
    assert lines["a, epsilon=1 (n = 2)"][0] == lines["a, epsilon=4 (n = 2)"][0]
    assert len(groups) > MOST_BANDS and not drawn[0].collections
    plot(tmp_path / "q", groups[:MOST_BANDS], "test_accuracy", "rounds")
    assert len(drawn[-1].collections) == MOST_BANDS


def test_nothing_to_draw(tmp_path: Path) -> None:
    group = grouped([read(made(tmp_path / "a", epsilon=None))])
    assert plot(tmp_path / "p", group, "test_accuracy", "epsilon") == []
    assert not (tmp_path / "p.png").exists()


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    group = grouped([read(made(tmp_path / "a", changes={"algorithm.name": "a $ b $ _"}))])
    first = [file.read_bytes() for file in plot(tmp_path / "p", group, "test_accuracy", "bytes")]
    assert [file.read_bytes() for file in plot(tmp_path / "q", group, "test_accuracy", "bytes")] == first


def test_what_no_curve_is_drawn_of_is_named(tmp_path: Path) -> None:
    made(tmp_path / "a", accuracies=[0.1, 0.3])
    for seed, epsilon in ((0, 1.0), (1, 100.0)):  # from 0.5 to 1, and from 50 to 100
        made(
            tmp_path / f"b{seed}",
            seed=seed,
            accuracies=[0.1, 0.3],
            epsilon=epsilon,
            changes={"algorithm.local_lr": 2.0},
        )
    groups = grouped([read(tmp_path / name) for name in ("a", "b0", "b1")])
    assert plot(tmp_path / "p", groups, "test_accuracy", "epsilon")
    assert [group.label for group in left_out(groups, "test_accuracy", "epsilon")] == ["local_lr=2"]
    assert left_out(groups, "test_accuracy", "rounds") == []
