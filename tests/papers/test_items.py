"""Published figures and tables: each can be run, goes on where it stopped, and says which code made its numbers."""

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
from benchmarks import papers as benchmark
from dpfl_plugin.api import papers as api
from dpfl_plugin.config.sweep import config_of
from dpfl_plugin.errors import ArgumentError, DataError, TrainingError
from dpfl_plugin.privacy.paper import noble_largest_rounds
from dpfl_plugin.runs.environment import package_sha256
from dpfl_plugin.sweeps.foreseen import Foresight
from papers import catalog, items, joined, noble_authors
from papers import numbers as numbers_of
from papers.items import ALL, QUICK, Cell, Claim, Item, Paper, Part
from papers.noble2022_privacy import CAPTIONS
from papers.numbers import Numbers, Point, look_up
from tests.cli.command import BASE
from tests.cli.command import dpfl as command

ITEMS = [(paper, item) for paper in catalog.papers() for item in paper.items]
NAMES = [f"{paper.name} {item.name}" for paper, item in ITEMS]
STEPS = "algorithm.local_steps"


@pytest.mark.parametrize(("paper", "item"), ITEMS, ids=NAMES)
def test_every_item_can_be_run_and_meets_what_is_published(paper: Paper, item: Item) -> None:
    """Configurations load, plugins can be made, accounting is planned; no published number is left over."""
    assert (item.computed is None) == bool(item.parts)
    check = Foresight()
    for extent in (ALL, QUICK):
        found, priced = set[tuple[Any, ...]](), set[tuple[Any, ...]]()
        for part in item.ran(extent):
            expansion = part.expansion(extent)
            for row, place in numbers_of.places(item, part, expansion):
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
        for sigma, rate, steps, delta in priced if extent.quick else ():
            spent = dpfl.epsilon(noise_multiplier=sigma, record_rate=rate, steps=steps, delta=delta)
            assert 0 < float(spent) < 100
        if extent.quick:
            continue
        assert {(part, seed) for part, _, _, seed in found} == {
            (p.name, seed) for p in item.parts for seed in item.seeds
        }
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
        item = catalog.find("noble2022").by_name[f"figure-{number}"]
        for part, caption, epsilon in zip(item.parts, CAPTIONS[:3], (5, 5, 3), strict=True):
            expansion = part.expansion()
            rates = {
                (row.changes.get("silo_rate", 0.1), look_up(row.changes, "privacy.record_rate") or 0.2, row.rounds)
                for row in expansion.rows
            }
            assert len(rates) == 3
            for silo_rate, record_rate, rounds in rates:
                assert rounds == noble_largest_rounds(
                    epsilon=epsilon,
                    noise_multiplier=caption.noise_multiplier,
                    local_steps=10,
                    silo_rate=silo_rate,
                    record_rate=record_rate,
                    num_silos=caption.num_silos,
                    delta=caption.delta,
                )


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paper:
    """A paper with one figure of two methods and two seeds, in a folder of its own."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "kept").mkdir()
    config = {
        **BASE,
        "name": "tiny",
        "variants": {"drift control": {}, "averaging": {"algorithm": {"name": "fedavg"}}},
        "sweep": {"grid": {STEPS: [2]}, "seeds": 2},
    }
    (tmp_path / "configs" / "tiny.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setattr(items, "files", lambda: tmp_path)
    monkeypatch.setattr(numbers_of, "files", lambda: tmp_path)
    part = Part(name="tiny", config="tiny.yaml", title="tiny", columns=STEPS, quick=("sweep.seeds=1", "rounds=3"))
    claim = Claim(
        text="better", source="section 1", part="tiny", better="drift control", worse="averaging", at={STEPS: 2}
    )
    item = Item(kind="figure", number="1", title="accuracy", source="Fig. 1", parts=(part,), claims=(claim,))
    made = Paper(name="tiny", short="Tiny", reference="Nobody: Nothing", items=(item,))
    monkeypatch.setattr(catalog, "find", lambda name: made)
    return made


def test_what_is_killed_goes_on_and_runs_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paper: Paper
) -> None:
    begun: list[int] = []
    carried_out = api.carried_out

    def counted(config: Any, *args: Any, **keys: Any) -> Any:
        if len(begun) == 2:
            begun.append(-1)
            raise SystemExit("killed")
        begun.append(config.seed)
        return carried_out(config, *args, **keys)

    monkeypatch.setattr(api, "carried_out", counted)
    with pytest.raises(SystemExit):
        dpfl.reproduce("tiny", figure=1, out=tmp_path / "out")
    assert not list((tmp_path / "out" / "tiny").glob("*.json")), "there are no numbers of half a figure"
    (done,) = dpfl.reproduce("tiny", figure=1, out=tmp_path / "out")
    assert len(begun) == 3 + 2, "4 runs, of which 2 were finished"
    assert dpfl.reproduce("tiny", figure=1, out=tmp_path / "out")[0].numbers == done.numbers and len(begun) == 5
    assert done.numbers is not None and [point.seeds for point in done.numbers.points] == [[0, 1]] * 2
    assert {point.line for point in done.numbers.points} == {"drift control", "averaging"}
    assert done.numbers.code == [package_sha256()] and done.numbers.seconds > 0
    result = json.loads(next((tmp_path / "out" / "tiny" / "runs" / "tiny").glob("*/result.json")).read_text())
    assert any(point.server == result["epsilon"]["server"]["epsilon"] for point in done.numbers.points)
    page = done.page.read_text() if done.page else ""
    assert "K = 2" in page and "| Tiny" not in page and done.picture is not None and done.picture.exists()


def test_numbers_of_another_version_say_so(tmp_path: Path, paper: Paper) -> None:
    told: list[str] = []
    (first,) = dpfl.reproduce("tiny", out=tmp_path / "out", quick=True, tell=told.append)
    assert first.numbers is not None and not any("another version" in text for text in told)
    one = next((tmp_path / "out").rglob("environment.json"))
    one.write_text(json.dumps(_without_modules(json.loads(one.read_text())) | {"package_sha256": "0" * 64}))
    (again,) = dpfl.reproduce("tiny", out=tmp_path / "out", quick=True, tell=told.append)
    assert again.numbers is not None and again.numbers.code == sorted(["0" * 64, package_sha256()])
    assert any("1 run was finished by another version of this package" in text for text in told)
    assert again.page is not None and f"`{'0' * 12}`" in again.page.read_text()
    for numbers, current in ((first.numbers, True), (again.numbers, False)):
        numbers.write(tmp_path / "kept")
        listed = api._listed(paper, paper.items[0])
        assert (listed.numbers, listed.current) == ("quick", current)


def _without_modules(described: dict[str, Any]) -> dict[str, Any]:
    """As `environment.json` was before runs told what they import."""
    return {key: value for key, value in described.items() if key not in ("modules", "packages_before")}


def test_a_run_of_two_versions_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paper: Paper) -> None:
    """Begun by one, continued by another: it is of both."""
    sweep, _ = api.planned(paper.items[0].parts[0], QUICK, api.folder_of(paper, tmp_path / "out"))
    asked = iter([False] * 2 + [True] * 100)
    assert api._run(sweep, sweep.rows[0], lambda: next(asked))[0] == api.INTERRUPTED
    one = sweep.folder_of(sweep.rows[0]).environment
    one.write_text(json.dumps({**json.loads(one.read_text()), "package_sha256": "0" * 64, "modules": {"oracle": "0"}}))
    told: list[str] = []
    (done,) = dpfl.reproduce("tiny", quick=True, out=tmp_path / "out", tell=told.append)
    assert any("1 run was begun by another version" in text and "oracle" in text for text in told)
    assert done.numbers is not None and done.numbers.code == sorted(["0" * 64, package_sha256()])
    assert done.numbers.changed() == [numbers_of.WHOLE]


def test_a_run_that_fails_is_told_and_leaves_no_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paper: Paper
) -> None:
    def failing(*args: Any, **keys: Any) -> Any:
        raise TrainingError("it does not work.")

    told: list[str] = []
    monkeypatch.setattr(api, "carried_out", failing)
    with pytest.raises(TrainingError, match=r"2 of 2 runs failed, see above\. "):
        dpfl.reproduce("tiny", quick=True, out=tmp_path / "out", tell=told.append)
    assert sum("FAILED: it does not work" in text for text in told) == 2


def test_runs_that_failed_before_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paper: Paper) -> None:
    carried_out = api.carried_out

    def failing(config: Any, *args: Any, **keys: Any) -> Any:
        if config.algorithm.name == "fedavg":
            raise TrainingError("it does not work.")
        return carried_out(config, *args, **keys)

    monkeypatch.setattr(api, "carried_out", failing)
    with pytest.raises(TrainingError, match=r"1 of 2 runs failed, see above; the others are finished\. "):
        dpfl.reproduce("tiny", quick=True, out=tmp_path / "out", jobs=2)
    monkeypatch.setattr(api, "carried_out", carried_out)
    (done,) = dpfl.reproduce("tiny", quick=True, out=tmp_path / "out", jobs=2)
    assert done.missing == 0 and done.numbers is not None


def test_missing_data_are_told_once_before_anything_is_run(tmp_path: Path) -> None:
    """Of all data sets, in the words of the caller; of what is finished nothing is asked for."""
    with pytest.raises(DataError) as error:
        dpfl.reproduce("noble2022", figure=2, quick=True, out=tmp_path / "out", data=tmp_path / "none")
    assert "data=FOLDER" in str(error.value) or "data='FOLDER'" in str(error.value)
    assert "--data FOLDER" in error.value.as_options and "femnist/train" in str(error.value)
    assert str(error.value).count("mnist/train-images-idx3-ubyte is not in") == 1
    assert not (tmp_path / "out").exists()


def test_what_a_sweep_has_run_is_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paper: Paper) -> None:
    """So it is after ``--on slurm``: the folder is that of `dpfl sweep`."""
    ((path, settings, folder),) = api.sweeps_of("tiny", figure="1", table=None, quick=True, out=tmp_path / "out")
    assert command("sweep", path, "--out", folder, *(word for one in settings for word in ("--set", one))).code == 0
    monkeypatch.setattr(api, "carried_out", None)
    (done,) = dpfl.reproduce("tiny", quick=True, out=tmp_path / "out")
    assert done.numbers is not None and len(done.numbers.points) == 2 and done.numbers.seconds > 0


def test_seeds_one_after_another_come_to_the_numbers_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paper: Paper
) -> None:
    """On two machines, whose numbers are joined; and in one folder, where what is there is not run again."""
    (item,) = paper.items
    parts = [dpfl.reproduce("tiny", seeds=[seed], out=tmp_path / f"machine {seed}")[0] for seed in (1, 0)]
    second, first = (part.numbers for part in parts)
    assert first is not None and second is not None and (first.seeds, second.seeds) == ([0], [1])
    assert parts[0].page is not None and "**1 of 2 seeds**" in parts[0].page.read_text()
    for folder, said in (("out", "0 finished before"), ("machine 1", "2 finished before")):
        told: list[str] = []
        (done,) = dpfl.reproduce("tiny", seeds=[1, 0], out=tmp_path / folder, tell=told.append)
        assert any(f"4 runs, {said}" in text for text in told)
        assert done.numbers is not None and done.numbers.extent == ALL
    whole = numbers_of.read(done.numbers.write(tmp_path / "whole"))
    assert whole is not None and first.runs == second.runs == whole.runs, "which says of which experiment they are"
    for both in (joined.joined(item, first, second), joined.joined(item, second, first)):
        assert both.extent == ALL and both.modules == whole.modules and both.code == whole.code
        for ours, theirs in zip(both.points, done.numbers.points, strict=True):
            assert replace(ours, curve={}, seconds=0) == replace(theirs, curve={}, seconds=0)
            assert ours.curve["round"] == theirs.curve["round"]
            for key in ("mean", "std"):
                assert ours.curve[key] == pytest.approx(theirs.curve[key], rel=1e-12)
    for other in (first, whole, replace(second, runs="others")):
        with pytest.raises(DataError, match="cannot be put together"):
            joined.joined(item, first, other)
    monkeypatch.setattr(benchmark, "files", lambda: tmp_path)
    for numbers, taken, extent in (
        (first, True, "1 of 2 seeds"),
        (second, True, "all"),
        (first, False, "all"),
        (replace(first, quick=True, seeds=[]), False, "all"),
        (replace(first, runs="of another configuration"), True, "1 of 2 seeds"),
    ):
        assert benchmark._keep(item, numbers) is taken
        assert api._listed(paper, item).numbers == extent and len(list((tmp_path / "kept").rglob("*.json"))) == 1


def test_standard_deviations_of_seeds_are_put_together() -> None:
    values = np.random.default_rng(0).normal(size=7)
    for some in (1, 2, 5):
        one, other = values[:some], values[some:]
        parts = [(float(np.mean(v)), float(np.std(v, ddof=1)) if len(v) > 1 else 0.0, len(v)) for v in (one, other)]
        mean, std = joined._together(*parts[0], *parts[1])
        assert (mean, std) == pytest.approx((np.mean(values), np.std(values, ddof=1)))


def test_the_list_and_wrong_names(tmp_path: Path) -> None:
    listed = command("papers", "--json").json
    assert [(one["paper"], one["number"]) for one in listed] == [(paper.name, item.number) for paper, item in ITEMS]
    with pytest.raises(ArgumentError, match="figure"):
        dpfl.reproduce("noble2022", figure=77, out=tmp_path)
    assert "--figure" in command("papers", "noble2022", "--figure", "77").err
    assert command("papers", "--figure", "2").code == 2
    for given, said in (("7", "0, 1, 2"), ("one", "whole numbers"), ("0 --quick", "quick runs have their own")):
        refused = command("papers", "noble2022", "--figure", "2", "--out", tmp_path, "--seeds", *given.split())
        assert refused.code == 2 and said in refused.err


def _points(first: list[float | None], second: list[float | None]) -> Numbers:
    points = [
        Point(part="p", line=line, at={}, seeds=list(range(len(scores))), rounds=[1] * len(scores), scores=scores)
        for line, scores in (("a", first), ("b", second))
    ]
    return Numbers("paper", "figure-1", False, "0", [], "", points)


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
    assert (None if found is None else found.verdict) == said


def test_tuned_methods_are_compared_at_the_best_of_their_own_settings() -> None:
    """a: .7 at 4; b: .6 at 1 (a setting that diverged is never the best), and of another place nothing."""
    scores: dict[str, list[float | None]] = {"a, 1": [0.5, 0.5], "a, 4": [0.8, 0.6], "b, 1": [0.6, 0.6], "b, 4": [None]}
    points = [
        Point(part="p", line=line, at={"e": e}, seeds=[0, 1], rounds=[1, 1], scores=of)
        for line, of in scores.items()
        for e in (1, 2)
        if (line, e) != ("a, 4", 2)
    ]
    numbers = Numbers("paper", "figure-1", False, "0", [], "", points)
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
