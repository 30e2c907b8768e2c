"""What the list, the index, pages and pictures say of published figures: how much was tried, and which way it went."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.api import papers as api
from dpfl_plugin.cli import papers as listing
from dpfl_plugin.published import catalog, fewer, index, lengths, pages, pictures, tables, verdicts
from dpfl_plugin.published import numbers as numbers_of
from dpfl_plugin.published.items import ALL, QUICK, Item, Paper
from dpfl_plugin.published.numbers import Point
from tests.cli.command import dpfl as command

ITEMS = [(paper, item) for paper in catalog.papers() for item in paper.items]
NAMES = [f"{paper.name} {item.name}" for paper, item in ITEMS]
STEPS = "algorithm.local_steps"
_index = functools.cache(index.index)


def test_places_are_in_the_order_of_their_numbers() -> None:
    places: list[dict[str, Any]] = [{"e": value} for value in (12, "none", 3, 0.75)]
    assert [place["e"] for place in sorted(places, key=tables.in_order)] == [0.75, 3, 12, "none"]


@pytest.mark.parametrize(("old", "marks"), [(0, 0), (2, 2), (-1, 0)])
def test_the_list_marks_what_is_of_earlier_sources_unless_all_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], old: int, marks: int
) -> None:
    found = [replace(one, current=True) for one in api.papers()]
    found = [replace(one, current=False) if old < 0 or place < old else one for place, one in enumerate(found)]
    monkeypatch.setattr(api, "papers", lambda: found)
    listing.list_papers(as_json=False)
    said = capsys.readouterr().out
    assert said.count(" *\n") == marks and said.count("earlier sources of this package") == (old != 0)


def test_the_list_names_authors_and_labels_and_has_the_times_of_the_pages() -> None:
    said = command("papers").out
    for line in said.splitlines():
        assert not line.startswith("noble2022  --table 1-authors") or "(Table 1, noble_authors)" in line
    times = {f"{one.paper} --{one.kind} {one.number}": one.seconds for one in api.papers() if one.seconds is not None}
    computing = _index().partition("## Computing")[2]
    for name, seconds in times.items():
        row = next(line for line in computing.splitlines() if line.startswith(f"| `dpfl papers {name}`"))
        assert tables.hours(seconds) in row and tables.hours(seconds) in _line(said, name)
    for one in catalog.papers():
        assert f"\n\n{one.reference}\n{one.name} " in said
    wrong = command("papers", "gao2025")
    assert wrong.code == 2 and "PAPER: 'gao2025' is not one of" in wrong.err


def test_a_run_that_figures_share_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 4 of DP-ScaffNew has FEMNIST at three clipping norms, Figure 2 at one of them, and CIFAR-10."""
    paper = catalog.find("scaffnew")
    shared = replace(paper, items=tuple(paper.by_name[name] for name in ("figure-2", "figure-4")))
    monkeypatch.setattr(lengths.catalog, "papers", lambda: [shared])
    monkeypatch.setattr(lengths, "kept", lambda *_: None)
    monkeypatch.setattr(lengths, "_timed", lambda: {name: 2.0 for name, _ in lengths.untimed()})
    steps = 10_000 * 5 * 6 * 3  # in a run; numbers of local steps, lines, seeds
    assert lengths.remaining() == 2 * 4 * steps
    assert sum(lengths.foreseen(shared, item)[0] or 0.0 for item in shared.items) == 2 * 5 * steps


def test_quick_runs_of_a_smaller_model_do_not_foretell_how_long_others_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are of a layer of 32; a step of the convolutional network takes many times as long."""

    def only_quick(paper: str, item: Item) -> numbers_of.Numbers | None:
        found = numbers_of.kept(paper, item)
        return found if found is not None and found.quick else None

    paper = catalog.find("scaffnew")
    monkeypatch.setattr(lengths, "kept", only_quick)
    monkeypatch.setattr(lengths, "_timed", dict)
    whole, quick = lengths.foreseen(paper, paper.by_name["figure-6"])
    assert whole is None and quick is not None


def _line(said: str, name: str) -> str:
    return next(line for line in said.splitlines() if " ".join(line.split()).startswith(f"{name} "))


def test_what_is_about_to_run_is_told_before_anything_is(tmp_path: Path) -> None:
    """All of a paper, and how long; then, here, that its data are missing."""
    told = command("papers", "gao2024", "--seeds", "0", "--out", tmp_path / "out", "--data", tmp_path).err
    first, second, rest = told.split("\n", 2)
    assert first.startswith("dpfl: gao2024: about ") and "--figure 2 (" in first and "--figure 3 (" in first
    assert "all 2 of the paper" in second and "nothing was run" in rest and not (tmp_path / "out").exists()
    times = [one.seconds for one in api.papers() if one.paper == "gao2024" and one.seconds is not None]
    assert f"about {tables.hours(sum(times) / 5)} on" in first, "one of five seeds"


def test_an_ordering_of_many_places_does_not_agree_from_one() -> None:
    """Gao et al.: every epsilon. Of quick runs, one is tried."""
    item = catalog.find("gao2024").by_name["figure-2"]
    found = numbers_of.kept("gao2024", item)
    assert found is not None
    quick = replace(found, quick=True, points=[p for p in found.points if p.at["privacy.epsilon"] == 0.75])
    for numbers, counted, whole in ((found, "4 of 5 places", False), (quick, "1 of 1 places tried (of 5)", False)):
        stands = verdicts.standing(item, numbers, item.claims)
        assert (stands.counted("places"), stands.whole) == (counted, whole)
        assert f"agrees at {counted}" in pages.outcome(item, numbers)
    assert verdicts.standing(item, found, item.claims).others() == "not told apart at epsilon = 6"
    ours, said, why = index._ours(item, quick)
    assert said == "1 of 1 orderings tried (of 5)" and "1 of 5 values of epsilon" in why and "ahead" in ours
    page = pages.section(catalog.find("gao2024"), item, quick, "picture.png")
    assert "What all runs show, which these numbers are not of:" in page
    assert page.index("which these numbers are not of") < page.index(item.found[0])


@pytest.mark.parametrize(("paper", "item"), ITEMS, ids=NAMES)
def test_quick_runs_say_what_they_have_fewer_of(paper: Paper, item: Item) -> None:
    if item.computed is not None:
        return
    said = fewer.fewer(item)
    whole, quick = ([row for part in item.ran(of) for row in part.expansion(of).rows] for of in (ALL, QUICK))
    assert len(quick) < len(whole) and said != "the same runs"
    if (rounds := re.search(r"(\d+) of (\d+) rounds", said)) is not None:
        assert {row.rounds for row in quick} == {int(rounds[1])} and int(rounds[2]) in {row.rounds for row in whole}
    seeds = {int(row.changes.get("seed", 0)) for row in quick}
    assert (f"{len(seeds)} of {len(item.seeds)} seeds" in said) == (len(seeds) < len(item.seeds))


def test_what_all_runs_show_is_only_said_where_they_were_run() -> None:
    for paper, item in ITEMS:
        found = numbers_of.kept(paper.name, item)
        assert not item.found or (found is not None and found.extent == ALL), f"{paper.name} {item.name}"


def test_signs_are_words_in_the_index() -> None:
    item = Item(kind="figure", number="1", title="", source="", higher_is_better=False, measure="train_loss")
    for mean, said in ((-0.25, "0.25 behind"), (0.25, "0.25 ahead")):
        assert tables.ahead(item, numbers_of.Difference(mean, 0.0, 1)) == said
    assert not [line for line in _index().splitlines() if line.startswith("| [") and " -0" in line]


def test_a_setting_is_named_by_its_key() -> None:
    item = catalog.find("gao2024").by_name["figure-2"]
    for line, said in (
        ("localized MB-SGD, 16", "localized MB-SGD, lr = 16"),
        ("multi-pass AC-SA, 4", "multi-pass AC-SA, v = 0.25"),
    ):
        assert tables.run_of(item, Point(part="mnist", line=line, at={})) == said


def test_published_numbers_are_black_marks_in_the_picture_of_a_table() -> None:
    paper = catalog.find("noble2022")
    item = paper.by_name["table-1"]
    numbers = numbers_of.kept("noble2022", item)
    assert numbers is not None
    drawn = pictures.drawing(paper, item, numbers)
    assert len(drawn.axes) == 10 and all(len(axis.get_lines()) > 6 for axis in drawn.axes)
    for axis in drawn.axes:
        sigma = float(axis.get_title().partition("sigma_g = ")[2].partition(",")[0])
        black = next(container for container in axis.containers)[0]
        at = {(cell.at["privacy.noise_multiplier"], cell.at[STEPS]): cell.mean for cell in item.cells}
        for steps, mean in zip(*black.get_data(), strict=True):
            assert at[sigma, steps] == pytest.approx(mean)


def test_where_theory_has_a_line_best_is_dotted_in_the_picture() -> None:
    paper = catalog.find("scaffnew")
    for name in ("figure-12", "figure-12-T"):
        item = paper.by_name[name]
        numbers = numbers_of.kept("scaffnew", item)
        assert numbers is not None and item.predicted
        drawn = pictures.drawing(paper, item, numbers)
        (axis,) = drawn.axes
        dotted = [line for line in axis.get_lines() if line.get_linestyle() == ":" and len(line.get_xdata())]
        solid = {str(bars.get_label()): bars.lines[0].get_color() for bars in axis.containers}
        found = {line.get_xdata()[0]: line.get_color() for line in dotted}
        assert found == {x: solid.get(of, pictures.GREY) for of, x in item.predicted.items()}
        assert "predicted" in [text.get_text() for text in drawn.legends[0].get_texts()]
