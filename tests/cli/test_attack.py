"""`dpfl attack`: files, tables, JSON, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.attacks import rows
from dpfl_plugin.api.attack import image_shape
from dpfl_plugin.core.rounding import places
from tests.cli.command import Done, dpfl, one_message, write

PICTURE = b"\x89PNG\r\n"


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture takes longer than a small attack."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("dpfl_plugin.api.attack.write_pictures", lambda *args: None)


def attack(config: Path, *args: object) -> Done:
    return dpfl("attack", config, "--out", config.parent / "attack", "--repeats", 1, *args)


def test_pictures_json_and_words(tmp_path: Path, pictures: None) -> None:
    done = attack(write(tmp_path), "--repeats", 2)
    assert done.code == 0, done.err
    for name in ("membership.png", "inversion.png"):
        assert (tmp_path / "attack" / name).read_bytes().startswith(PICTURE)
    result = json.loads((tmp_path / "attack" / "attack.json").read_text())
    assert result["seeds"] == [3, 4] and result["inversion_refused"] is None
    quiet, noisy = result["membership"]["without noise"], result["membership"]["with noise"]
    assert (quiet["epsilon"], quiet["auc_bound"], quiet["tpr_bound"]) == (None, 1, 1)
    assert noisy["epsilon"] > 0 and 0.5 < noisy["auc_bound"] < 1 and 0.01 < noisy["tpr_bound"] < 1
    assert (noisy["members"], noisy["non_members"], noisy["rounds"]) == (24, 6, 6)
    single = result["inversion"]["without noise"]["batch_of_1"]
    assert len(single["correlations"]) == 8 and min(single["correlations"]) > 0.999
    first, *_ = done.err.splitlines()
    assert first.startswith("membership: 4 runs (2 seeds, with noise and without noise)")
    assert "; 3 more: about " in done.err
    assert done.out.count("what a guess gets") == 2 and "records have 4 numbers" in done.out
    assert "inversion without noise, batch of 1: no more" not in done.out
    assert "no budget is charged" in done.out and "a failed attack proves nothing" in done.out
    assert places(noisy["epsilon"], 3) in done.out and f"{quiet['auc']['value']:.3f}" in done.out


def test_nothing_else_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pictures: None) -> None:
    monkeypatch.chdir(tmp_path)
    done = dpfl("attack", write(tmp_path), "--repeats", 1, "--json")
    assert done.code == 0 and done.json["name"] == "run" and not done.err
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    folder = Path("attack") / "run"
    assert written == {"config.yaml", *(str(folder / n) for n in ("membership.png", "inversion.png", "attack.json"))}


def test_a_variant_by_its_label(tmp_path: Path) -> None:
    variants = {"private": {}, "open": {"privacy": {"noise_multiplier": 0.0}}}
    config = write(tmp_path, {"variants": variants})
    assert attack(config, "--json", "--rounds", 2).json["variant"] == "private"
    result = attack(config, "--json", "--rounds", 2, "--variant", "open").json
    assert list(result["membership"]) == list(result["inversion"]) == ["without noise"]
    assert result["membership"]["without noise"]["rounds"] == 2
    one_message(attack(config, "--variant", "shut"), "variant='shut'", "private, open")


def test_a_budget_ends_both_runs_alike(tmp_path: Path) -> None:
    config = write(tmp_path, {"rounds": None, "privacy": {"epsilon": 4.0}})
    found = attack(config, "--json").json["membership"]
    assert found["with noise"]["rounds"] == found["without noise"]["rounds"] > 0
    assert found["with noise"]["epsilon"] <= 4.0


def test_a_model_that_inversion_does_not_know_is_attacked_by_the_other(tmp_path: Path) -> None:
    done = attack(write(tmp_path, {"model": {"name": "softmax", "bias": False}}))
    assert done.code == 0 and "inversion was not tried: model: it has no bias" in done.out
    assert not (tmp_path / "attack" / "inversion.png").exists()


@pytest.mark.parametrize("clip", ["per_layer", "adaptive", "median"])
def test_other_clippings(tmp_path: Path, clip: str) -> None:
    found = attack(write(tmp_path, {"privacy": {"clip": clip}, "rounds": 2}), "--json").json
    assert list(found["membership"]) == list(found["inversion"]) == ["without noise", "with noise"]
    noisy = found["membership"]["with noise"]
    assert (noisy["epsilon"] is None, noisy["auc_bound"] == 1) == (clip == "median",) * 2


def test_a_silo_of_few_records(tmp_path: Path) -> None:
    """Fewer than the messages that would be shown."""
    config = write(tmp_path, {"data": {"max_records_per_silo": 5}, "rounds": 1})
    found = attack(config, "--json").json["inversion"]["without noise"]
    assert len(found["batch_of_1"]["correlations"]) == 4 and found["batch"] is None


@pytest.mark.parametrize(
    ("changes", "args", "part"),
    [
        ({}, ("--silo", 4), "silo=4"),
        ({}, ("--silo", -1), "silo=-1"),
        ({}, ("--repeats", 0), "repeats=0"),
        ({}, ("--rounds", 0), "rounds=0"),
        ({}, ("--variant", "x"), "has no variants"),
        ({"algorithm": {"name": "fedavg"}, "privacy": {"unit": "silo"}}, (), "unit: record"),
    ],
)
def test_bad_input(tmp_path: Path, changes: dict[str, Any], args: tuple[object, ...], part: str) -> None:
    one_message(attack(write(tmp_path, changes), *args), part)


def test_the_pages_table_says_what_was_measured(tmp_path: Path) -> None:
    result = attack(write(tmp_path, {"rounds": 2}), "--json").json
    text = rows(result)
    noisy = result["membership"]["with noise"]
    for number in (noisy["auc"]["value"], noisy["auc"]["low"], noisy["auc_bound"], noisy["tpr_bound"]):
        assert f"{number:.3f}" in text
    guesses = result["inversion"]["with noise"]["batch"]["correlations_of_guesses"]
    assert f"{sum(guesses) / len(guesses):.3f}" in text.splitlines()[-2]
    assert "24 members, 6 others, 1 seeds" in text and len(text.splitlines()) == 9


def test_which_features_are_images() -> None:
    assert image_shape((64,)) == image_shape((1, 8, 8)) == image_shape((8, 8)) == (8, 8)
    assert image_shape((784,)) == (28, 28) and image_shape((2, 3)) == (2, 3)
    assert image_shape((108,)) is image_shape((4,)) is image_shape((3, 8, 8)) is None
