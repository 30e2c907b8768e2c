"""Progress lines: no time is left after the last round."""

from __future__ import annotations

import io
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from dpfl_plugin.api import progress
from dpfl_plugin.api.progress import Bar, Lines, SweepBar
from dpfl_plugin.config.sweep import Row
from dpfl_plugin.experiments.status import SweepStatus


def line(at: int) -> dict[str, Any]:
    return {"round": at, "train_loss": 1.0, "test_accuracy": 0.5, "epsilon": {"server": None}}


def told(
    clock: list[float], done: int, rounds: int, seconds: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tell a reporter of a session from round ``done`` on whose rounds take ``seconds``, ten where it is not said."""
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    reporter = Lines()
    reporter.start(rounds, done)
    for at in range(done + 1, rounds + 1):
        clock[0] += seconds.get(at, 10.0)
        reporter.evaluated(line(at))
        reporter.ticked(SimpleNamespace(rounds=at))  # type: ignore[arg-type]
    reporter.end()


def test_time_left_is_told_until_the_last_round(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told([100.0], 0, 3, {}, monkeypatch)
    first, second, last = capsys.readouterr().err.splitlines()
    assert first.startswith("round 1/3") and "left" not in first
    assert second.endswith(" 10 s left")
    assert last.startswith("round 3/3") and "left" not in last


def test_the_first_round_of_a_session_says_nothing_of_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loads and compiles; and few quick rounds say as little."""
    quick = dict.fromkeys(range(52, 201), 0.5)
    told([100.0], 50, 200, {51: 30.0} | quick, monkeypatch)
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith("round 51/200") and "left" not in first
    assert others[0].startswith("round 71/200") and others[0].endswith(" 1 min 4 s left")  # 129 rounds of half a second


def test_details_are_for_who_asks_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    for verbose in (False, True):
        Lines(verbose=verbose).detail("engine vmap: estimated 3 us")
        assert ("engine vmap" in capsys.readouterr().err) == verbose


def test_in_a_notebook_one_output_is_replaced_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ipywidgets, by what every IPython has."""
    shown: list[tuple[str, str, bool]] = []

    def display(content: dict[str, str], *, raw: bool, display_id: str, update: bool) -> None:
        assert raw and set(content) == {"text/plain", "text/html"}
        shown.append((content["text/plain"], display_id, update))

    fake: Any = ModuleType("IPython.display")
    fake.display = display
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr(progress, "REDRAW_SECONDS", 0.0)
    reporter = Bar(Console(file=io.StringIO(), force_jupyter=True), "fedavg")
    reporter.start(4, 1)
    for at in (2, 3, 4):
        reporter.evaluated({"round": at, "train_loss": 1.0, "test_accuracy": 0.5, "epsilon": {"server": 1.25}})
        reporter.ticked(SimpleNamespace(rounds=at))  # type: ignore[arg-type]
    reporter.end()
    assert len({one for _, one, _ in shown}) == 1 and [update for *_, update in shown] == [False, *[True] * 4]
    assert "fedavg" in shown[0][0] and "4/4" in shown[-1][0] and "accuracy 0.5000  epsilon 1.25" in shown[-1][0]


@pytest.mark.parametrize(
    ("loss", "said"), [(0.12345, "0.1235"), (999999.0, "999999.0000"), (1e6, "1e+06"), (1.076e29, "1.076e+29")]
)
def test_a_huge_loss_has_few_digits(loss: float, said: str) -> None:
    assert progress.short(loss) == said


@pytest.mark.parametrize("shown", [True, False])
def test_a_sweep_has_one_bar_for_all_runs_or_a_line_for_each(shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tuple(Row(i, f"{i}", "run", f"seed={i}", 10, {}) for i in range(4))
    rounds = {"done": 10, "running": 5, "pending": 0, "failed": 3}
    states: Any = tuple(SimpleNamespace(status=status, round=number) for status, number in rounds.items())
    with SweepBar(lambda: SweepStatus(rows, states), shown) as bar:
        bar.note("0: done  seed=0")
        bar.note("3: FAILED: out of memory  seed=3")
        bar.draw()
    text = capsys.readouterr().err
    assert "3: FAILED: out of memory  seed=3" in text
    assert ("1/4 runs  1 running  1 failed" in text) == shown and ("0: done" in text) != shown
    assert SweepStatus(rows, states).fraction == 2.5 / 4
