"""Published figures and tables: each can be run, goes on where it stopped, and its kept numbers are of its runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import dpfl_plugin as dpfl
from dpfl_plugin.api.sweep import Preflight
from dpfl_plugin.config.sweep import config_of
from dpfl_plugin.errors import ConfigError, TrainingError
from dpfl_plugin.privacy.paper import noble_third_party_epsilon
from dpfl_plugin.runs.environment import package_sha256
from papers import __main__ as command
from papers import items, noble_authors
from papers import numbers as numbers_of
from papers.items import Cell, Claim, Item, Paper, Part, chosen, find, papers
from papers.noble2022_privacy import CAPTIONS, TABLE_1, TABLE_1_STEPS
from papers.numbers import Numbers, Point, first, kept, places, runs_digest, score
from papers.plans.noble import largest_rounds
from papers.run import repeat
from tests.cli.command import BASE

ITEMS = [(paper, item) for paper in papers() for item in paper.items]
NAMES = [f"{paper.name} {item.name}" for paper, item in ITEMS]
STEPS = "algorithm.local_steps"


@pytest.mark.parametrize(("paper", "item"), ITEMS, ids=NAMES)
def test_every_item_can_be_run_and_meets_what_is_published(paper: Paper, item: Item) -> None:
    """Configurations load, plugins can be made, accounting is planned; no published number is left over."""
    assert (item.computed is None) == bool(item.parts)
    check = Preflight()
    for quick in (False, True):
        found, priced = set[tuple[Any, ...]](), set[tuple[Any, ...]]()
        for part in item.ran(quick):
            expansion = part.expansion(quick)
            for row, place in places(item, part, expansion):
                config = config_of(expansion.base, row, Path("runs"))
                check.check(config)
                key = (part.name, place.line, tuple(place.at.items()), place.seed)
                assert key not in found, "two runs would be one point"
                found.add(key)
                options = config.algorithm.options
                if config.privacy.noise_multiplier and config.privacy.unit == "record" and config.rounds:
                    steps = config.rounds * int(options.get("local_steps") or 1)
                    priced.add(
                        (config.privacy.noise_multiplier, config.privacy.record_rate, steps, config.privacy.delta)
                    )
        lines = {(part, line, at) for part, line, at, _ in found}
        for sigma, rate, steps, delta in priced if quick else ():
            spent = dpfl.epsilon(noise_multiplier=sigma, record_rate=rate, steps=steps, delta=delta)
            assert 0 < float(spent) < 100
        if quick:
            continue
        assert len({frozenset(seed for part, _, _, seed in found if part == p.name) for p in item.parts}) <= 1
        for cell in item.cells:
            assert any((cell.part, cell.line) == key[:2] and cell.at.items() <= dict(key[2]).items() for key in lines)
        settings = [sum(label.startswith(f"{name}, ") for label in {key[1] for key in lines}) for name in item.tuned]
        assert len(set(settings)) <= 1 and 0 not in settings, "as many for each"
        for claim in item.claims:
            for line in (claim.better, claim.worse):
                if line in item.tuned:
                    continue
                assert any((claim.part, line) == key[:2] and claim.at.items() <= dict(key[2]).items() for key in lines)


def test_the_rounds_of_a_fixed_budget_are_those_of_the_papers_recipe() -> None:
    for number in ("9", "10"):
        item = find("noble2022").by_name[f"figure-{number}"]
        for part, caption, epsilon in zip(item.parts, CAPTIONS[:3], (5, 5, 3), strict=True):
            expansion = part.expansion()
            rates = {
                (row.changes.get("silo_rate", 0.1), first([row.changes], "privacy.record_rate") or 0.2, row.rounds)
                for row in expansion.rows
            }
            assert len(rates) == 3
            for silo_rate, record_rate, rounds in rates:
                assert rounds == largest_rounds(
                    epsilon=epsilon,
                    noise_multiplier=caption.noise_multiplier,
                    local_steps=10,
                    silo_rate=silo_rate,
                    record_rate=record_rate,
                    num_silos=caption.num_silos,
                    delta=caption.delta,
                )


# Noble et al. 2022, Table 1: the largest T; epsilon = 3, l = 0.05, s = 0.2, synthetic data
def test_noble_table_1() -> None:
    """22 of 25 cells exactly; at sigma_g = 160 three are one more, where the paper repeats the row above."""
    setting: dict[str, Any] = {
        "silo_rate": 0.05,
        "record_rate": 0.2,
        "num_silos": 100,
        "delta": CAPTIONS[0].delta,
    }
    more = {}
    for sigma, row in TABLE_1.items():
        for steps, published in zip(TABLE_1_STEPS, row, strict=True):
            one = {"noise_multiplier": float(sigma), "local_steps": steps, **setting}
            found = largest_rounds(epsilon=3.0, **one)
            if found != published:
                more[sigma, steps] = found - published
            assert noble_third_party_epsilon(rounds=found, **one) <= 3.0
            assert noble_third_party_epsilon(rounds=found + 1, **one) > 3.0
    assert more == {(160, 5): 1, (160, 10): 1, (160, 20): 1}


@pytest.mark.parametrize(("paper", "item"), ITEMS, ids=NAMES)
def test_the_kept_numbers_are_of_the_configured_runs(paper: Paper, item: Item) -> None:
    """Else run that figure again, and keep it: python -m papers PAPER --figure N --keep."""
    found = kept(paper.name, item)
    assert found is not None
    expansions = {part.name: part.expansion(found.quick) for part in item.ran(found.quick)}
    if item.computed is None:
        assert found.runs == runs_digest(expansions.values())
    there = [
        (part, place.line, place.at, place.seed)
        for part, expansion in expansions.items()
        for _, place in places(item, item.part(part), expansion)
    ]
    for point in found.points:
        for seed in point.seeds:
            there.remove((point.part, point.line, point.at, seed))
    assert not there


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paper:
    """A paper with one figure of two methods and two seeds, in a folder of its own."""
    (tmp_path / "configs").mkdir()
    config = {
        **BASE,
        "name": "tiny",
        "variants": {"drift control": {}, "averaging": {"algorithm": {"name": "fedavg"}}},
        "sweep": {"grid": {STEPS: [2]}, "seeds": 2},
    }
    (tmp_path / "configs" / "tiny.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setattr(items, "FOLDER", tmp_path)
    monkeypatch.setattr(numbers_of, "FOLDER", tmp_path)
    part = Part(name="tiny", config="tiny.yaml", title="tiny", columns=STEPS, quick=("sweep.seeds=1", "rounds=3"))
    claim = Claim(
        text="better", source="section 1", part="tiny", better="drift control", worse="averaging", at={STEPS: 2}
    )
    item = Item(kind="figure", number="1", title="accuracy", source="Fig. 1", parts=(part,), claims=(claim,))
    return Paper(name="tiny", short="Tiny", reference="Nobody: Nothing", items=(item,))


@pytest.mark.slow
def test_runs_are_made_once_gathered_and_kept(tmp_path: Path, paper: Paper) -> None:
    (item,) = paper.items
    done = repeat(paper, item, quick=False, out=tmp_path / "out")
    runs = sorted((tmp_path / "out" / "tiny" / "runs" / "tiny").glob("*/result.json"))
    times = [path.stat().st_mtime_ns for path in runs]
    assert done.numbers is not None and [point.seeds for point in done.numbers.points] == [[0, 1]] * 2
    assert {point.line for point in done.numbers.points} == {"drift control", "averaging"}
    assert done.numbers.code == [package_sha256()] and done.numbers.seconds > 0
    results = [json.loads(path.read_text()) for path in runs]
    assert {max(one["epsilon"]["server"]["epsilon"] for one in results)} <= {p.server for p in done.numbers.points}
    assert sorted(one["test_accuracy"]["mean_last_10_percent"] for one in results) == pytest.approx(
        sorted(score for point in done.numbers.points for score in point.finite)
    )
    assert done.page is not None and "K = 2" in done.page.read_text() and done.page.with_suffix(".png").exists()
    runs[0].unlink()
    again = repeat(paper, item, quick=False, out=tmp_path / "out")
    assert again.numbers is not None and again.numbers.points[0].scores == done.numbers.points[0].scores
    assert [path.stat().st_mtime_ns for path in runs][1:] == times[1:], "what is finished is not run again"
    quick = repeat(paper, item, quick=True, out=tmp_path / "out").numbers
    assert quick is not None and quick.quick and [point.seeds for point in quick.points] == [[0]] * 2
    for numbers, taken in ((quick, True), (done.numbers, True), (quick, False)):
        assert numbers_of.keep(numbers, item) is taken
    assert kept("tiny", item) == numbers_of.read(tmp_path / "out" / "tiny" / "figure-1.json")


@pytest.mark.slow
def test_runs_that_fail_leave_no_numbers(tmp_path: Path, paper: Paper) -> None:
    with pytest.raises(TrainingError, match="runs failed, see above"):
        repeat(paper, paper.items[0], quick=True, out=tmp_path / "out", sweep=["--set", "algorithm.local_lr=1e308"])
    assert not list((tmp_path / "out" / "tiny").glob("*.json"))


def test_the_list_and_wrong_names() -> None:
    listed = command.listed()
    assert all(f"{paper.name}  " in listed and item.title in listed for paper, item in ITEMS)
    with pytest.raises(ConfigError, match="--figure=77 must be one of those of noble2022: 1, 2"):
        chosen(find("noble2022"), figure="77")
    with pytest.raises(ConfigError, match="PAPER='noble' must be one of"):
        find("noble")


def test_scores_are_means_over_the_last_tenth_of_rounds() -> None:
    lines = [{"round": r, "loss": float(r)} for r in (5, 17, 18, 19, 20)]
    assert score(lines, "loss") == 19.5 and score([*lines, {"round": 40, "loss": math.nan}], "loss") is None


def _points(first: list[float | None], second: list[float | None]) -> Numbers:
    points = [
        Point(part="p", line=line, at={}, seeds=list(range(len(scores))), rounds=[1] * len(scores), scores=scores)
        for line, scores in (("a", first), ("b", second))
    ]
    return Numbers("paper", "figure-1", False, "0", [], points=points)


@pytest.mark.parametrize(
    ("first", "second", "higher", "said"),
    [
        ([0.5, 0.6], [0.3, 0.4], True, "agrees"),
        ([0.5, 0.6], [0.3, 0.4], False, "the other way"),
        ([0.5, 0.3], [0.3, 0.4], True, "not told apart"),
        ([0.5], [0.3], True, "same sign, one seed"),
        ([None, 0.5], [0.3, 0.4], True, None),
    ],
)
def test_what_an_ordering_is_judged_by(
    first: list[float | None], second: list[float | None], higher: bool, said: str | None
) -> None:
    item = Item(kind="figure", number="1", title="", source="", higher_is_better=higher)
    claim = Claim(text="", source="", part="p", better="a", worse="b", at={})
    ((_, found),) = numbers_of.differences(_points(first, second), item, claim)
    assert (None if found is None else found.verdict()) == said


def test_tuned_methods_are_compared_at_the_best_of_their_own_settings() -> None:
    """a: .7 at 4; b: .6 at 1 (a setting that diverged is never the best), and of another place nothing."""
    scores: dict[str, list[float | None]] = {"a, 1": [0.5, 0.5], "a, 4": [0.8, 0.6], "b, 1": [0.6, 0.6], "b, 4": [None]}
    points = [
        Point(part="p", line=line, at={"e": e}, seeds=[0, 1], rounds=[1, 1], scores=of)
        for line, of in scores.items()
        for e in (1, 2)
        if (line, e) != ("a, 4", 2)
    ]
    numbers = Numbers("paper", "figure-1", False, "0", [], points=points)
    item = Item(kind="figure", number="1", title="", source="", tuned=("a", "b"))
    claim = Claim(text="", source="", part="p", better="a", worse="b", at={})
    found = {at["e"]: difference for at, difference in numbers_of.differences(numbers, item, claim)}
    assert found[1] is not None and found[2] is not None
    assert found[1].mean == pytest.approx(0.1) and found[2].mean == pytest.approx(-0.1)
    lower = replace(item, higher_is_better=False)
    assert [one.line for one in numbers_of.chosen(numbers, lower, "p", "a", {"e": 1})] == ["a, 1"]
    assert [one.line for one in numbers_of.chosen(numbers, item, "p", "a, 1", {"e": 1})] == ["a, 1"]


@pytest.mark.parametrize(
    ("ours", "std", "said"),
    [
        ([0.5, 0.52], 0.0, "agrees"),
        ([0.6, 0.62], 0.0, "higher by 0.110"),
        ([0.6, 0.62], 0.06, "agrees"),
        ([None], 0.0, "diverged"),
    ],
)
def test_what_a_number_is_judged_by(ours: list[float | None], std: float, said: str) -> None:
    cell = Cell(part="p", line="a", at={}, mean=0.5, std=std)
    assert numbers_of.cell_verdict(_points(ours, [0.1]), cell)[1] == said
    assert numbers_of.cell_verdict(_points(ours, [0.1]), replace(cell, line="c"))[1] == "not run"


def test_numbers_are_read_as_they_were_written(tmp_path: Path) -> None:
    numbers = _points([0.5, None], [0.25, 0.75])
    numbers.points[0].curve = {"round": [1, 2], "mean": [0.5, None], "std": [0.0, 0.0]}
    assert numbers_of.read(numbers.write(tmp_path)) == numbers


def test_silos_of_the_authors_code_share_noise_and_batches_and_ours_do_not() -> None:
    options = noble_authors.NobleAuthors(noise_multiplier=1, eta_0=0.1, local_steps=2, rounds=3)
    for same in (True, False):
        draws = [noble_authors._draw(replace(options, same_noise=same), 0, 1, silo, 0, 50, (41, 10)) for silo in (3, 4)]
        assert all(np.array_equal(a, b) == same for a, b in zip(*draws, strict=True))


def test_the_emulations_gradient_is_the_softmax_gradient() -> None:
    """Against finite differences of the mean loss, without noise, where C is out of reach."""
    options = noble_authors.NobleAuthors(
        noise_multiplier=0, eta_0=0.1, local_steps=2, rounds=3, odd_scaling=False, median_clipping=False
    )
    data = noble_authors._data(options, 0, 2, 50)
    data = replace(data, x=0.1 * data.x)
    rng = np.random.default_rng(0)
    w, places = 0.01 * rng.standard_normal((41, 10)), np.arange(40)

    def loss(w: Any) -> float:
        z = data.x[1] @ w[:-1] + w[-1]
        return float(np.mean(np.log(np.exp(z).sum(axis=1)) - z[places, data.y[1]]))

    found = noble_authors._gradient(options, data, 1, w, places, np.zeros_like(w))
    direction = rng.standard_normal(w.shape)
    slope = (loss(w + 1e-5 * direction) - loss(w - 1e-5 * direction)) / 2e-5
    assert math.isclose(float((found * direction).sum()), slope, rel_tol=1e-6)
