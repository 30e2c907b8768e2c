"""`dpfl.describe`: one release of each site, charged before anything is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import dpfl_plugin as dpfl
from dpfl_plugin.api import describe as describing
from dpfl_plugin.api.description import _count, _estimate, _interval
from dpfl_plugin.config import yaml_text
from dpfl_plugin.data.base import survey
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.shared_ledger import adaptive_total, runs_in
from dpfl_plugin.runs.records import federate
from tests.cli.command import dpfl as command
from tests.cli.command import one_message

SITES, N, DELTA = ("north", "south"), 200, 1e-5
SCHEMA: dict[str, Any] = {
    "label": {"column": "ill", "classes": ["no", "yes"]},
    "columns": {
        "age": {"type": "number", "range": [0, 100], "unit": "years", "missing": "indicator"},
        "sex": {"type": "category", "values": ["f", "m"]},
        "stage": {"type": "ordinal", "values": ["I", "II", "III"]},
        "born": {"type": "date", "range": ["1920-01-01", "2020-01-01"]},
    },
}


def table(site: int) -> pandas.DataFrame:
    rng = np.random.default_rng(site)
    age = pandas.Series(rng.normal(50 + 5 * site, 10, N).clip(0, 100).round(1), dtype=object)
    return pandas.DataFrame(
        {
            "age": age.where(rng.random(N) > 0.1, None),
            "sex": rng.choice(["f", "m"], N),
            "stage": rng.choice(["I", "II", "III"], N, p=[0.7, 0.2, 0.1]),
            "born": [f"{year}-06-15" for year in rng.integers(1930, 2000, N)],
            "ill": rng.choice(["no", "yes"], N),
            "patient": rng.integers(0, N // 2, N) + 1000 * site,
        }
    )


def study(folder: Path, **changes: Any) -> Path:
    """A project whose run takes a part of a second."""
    for number, site in enumerate(SITES):
        table(number).to_csv(folder / f"{site}.csv", index=False)
    privacy = {"epsilon": 2.0, "delta": DELTA, "ledger": "ledger.jsonl", **changes.pop("privacy", {})}
    schema = {**SCHEMA, "other_columns": "ignore", **changes.pop("schema", {})}
    data = {"dataset": {"name": "table", "files": "*.csv"}, "schema": schema, "partition": "natural"}
    values = {
        **{"name": "study", "rounds": 2, "data": {**data, "preprocess": ["unit_norm"]}, "model": "logistic"},
        **{"algorithm": {"name": "fedavg", "local_steps": 1, "local_lr": 0.1}, "privacy": privacy, **changes},
    }
    path = folder / "study.yaml"
    path.write_text(yaml_text.dump(values))
    return path


def ledger_of(path: Path) -> Ledger:
    return Ledger.open(path.with_name("ledger.jsonl"), append=False)


def test_half_of_delta_is_for_the_run_that_is_to_follow(tmp_path: Path) -> None:
    path = study(tmp_path)
    dpfl.describe(path, epsilon=0.2)
    odometer = ledger_of(path).facts["odometer"]
    assert sorted(odometer["shares"])[-1] == 0.5 and sum(odometer["shares"]) == pytest.approx(1)


def training_rows(path: Path) -> int:
    config = dpfl.load(path).config
    return sum(len(silo.train_y) for silo in federate(config, path.parent).silos)


def test_with_hardly_any_noise_it_is_the_table_itself(tmp_path: Path) -> None:
    """Of a simulation, which has no test part to speak of: the noise of epsilon 4000 is a hundredth of a record."""
    path = study(tmp_path, seed=3)
    changed = dpfl.load(path).with_(data={"test_fraction": 1e-9})
    found = dpfl.describe(changed, epsilon=4000, cross=[("sex", "ill")])
    assert found.noise_std < 0.2 and found.total is None and found.randomness == "seeded"
    assert "protects nobody" in str(found)
    left_out = 2  # a test record of each site, whatever the fraction
    frames = {site: table(number) for number, site in enumerate(SITES)}
    for site, frame in {**frames, "all sites": pandas.concat(frames.values())}.items():
        entry = found.sites[site]
        of_age = entry["columns"]["age"]
        counts = {cell["level"]: cell["value"] for cell in of_age["counts"]}
        assert entry["usable"]["value"] == pytest.approx(len(frame), abs=left_out + 1)
        assert counts["missing"] == pytest.approx(frame.age.isna().sum(), abs=left_out + 1)
        assert of_age["mean"]["value"] == pytest.approx(frame.age.astype(float).mean(), abs=0.5)
        assert of_age["std"]["value"] == pytest.approx(frame.age.astype(float).std(), abs=0.5)
        median = of_age["quantiles"]["0.5"]
        assert median["low"] - 0.5 <= frame.age.astype(float).median() <= median["high"] + 0.5
        stages = {cell["level"]: cell["value"] for cell in entry["columns"]["stage"]["counts"]}
        assert stages == pytest.approx(frame.stage.value_counts().to_dict(), abs=left_out + 1)
        cross = {tuple(cell["levels"]): cell["value"] for cell in entry["cross"][0]["cells"]}
        assert cross == pytest.approx(frame.groupby(["sex", "ill"]).size().to_dict(), abs=left_out + 1)


def test_it_is_charged_before_anything_is_shown_and_a_second_one_adds_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, release = study(tmp_path), describing._Study.release
    planned = dpfl.describe(path, epsilon=1.0, plan=True)
    assert not planned.sites and not path.with_name("ledger.jsonl").exists() and "would cost epsilon" in str(planned)
    begins = "begins ledger.jsonl and fixes its totals, with privacy.epsilon=2 in view"
    assert begins in str(planned)

    def killed(*args: Any) -> None:
        assert [charge.kind for charge in ledger_of(path)] == ["statistics"] * len(SITES)
        raise KeyboardInterrupt

    monkeypatch.setattr(describing._Study, "release", killed)
    with pytest.raises(KeyboardInterrupt):
        dpfl.describe(path, epsilon=1.0)
    monkeypatch.setattr(describing._Study, "release", release)
    ahead = dpfl.describe(path, epsilon=1.0, plan=True).total
    second = dpfl.describe(path, epsilon=1.0)
    assert begins not in str(second)
    total = adaptive_total(ledger_of(path), DELTA)["epsilon"]
    assert second.epsilon <= 1.0 and second.noise_multiplier == planned.noise_multiplier
    assert ahead is not None and second.total is not None
    assert ahead["epsilon"] == second.total["epsilon"] == total > 1.0 and second.total["num_runs"] == 2
    assert len(ledger_of(path)) == 2 * len(SITES)
    run = dpfl.load(path).run(out=tmp_path / "runs", progress=False)
    records = {entry.records for entry in runs_in(ledger_of(path))}
    assert len(records) == 1, "the run knows the records that were described"
    assert run.result["earlier_runs"] == 2 and "describe study" in dpfl.statement(run).text


def test_differing_sites_are_named_before_the_charge(tmp_path: Path) -> None:
    path, texts = study(tmp_path), []
    frame = table(1)
    frame.assign(age=frame.age.astype(float) / 18).to_csv(tmp_path / "south.csv", index=False)

    def tell(text: str) -> None:
        assert not path.with_name("ledger.jsonl").exists()
        texts.append(text)

    found = dpfl.describe(path, epsilon=1.0, tell=tell)
    assert any("age" in text and "south" in text for text in texts)
    assert not any(text in str(found) for text in texts), "a description may be passed on"
    planned = command("describe", path, "--epsilon", 1, "--plan").err
    assert all(f"records: {text}" in planned for text in texts)


def test_each_site_adds_its_own_noise(tmp_path: Path) -> None:
    found = dpfl.describe(study(tmp_path), epsilon=0.5)
    first, *sites = (found.sites[name]["columns"]["sex"]["counts"] for name in ("all sites", *SITES))
    for place, cell in enumerate(first):
        assert cell["noisy"] == pytest.approx(sum(of[place]["noisy"] for of in sites))
        assert cell["noise_std"] == pytest.approx(2**0.5 * found.noise_std)
        assert cell["value"] == min(max(0.0, cell["noisy"]), 320) and 0 <= cell["share"] <= 1
    rows = found.table
    assert set(rows["site"]) == {"all sites", *SITES} and not rows["value"].isna().any()
    assert json.loads(json.dumps(found.to_dict()))["num_records"] == {"all sites": 320, "north": 160, "south": 160}
    assert "age, years: mean" in str(found) and "<pre" in found._repr_html_()


def test_cells_show_what_is_possible_and_nothing_where_all_of_it_is() -> None:
    years, date = {"type": "number", "range": [0, 700]}, {"type": "date", "range": [0, 10000]}
    cases = [
        (_count({"value": 747, "noisy": 812, "noise_std": 100.3, "share": 1.0}), "747* ± 100 (100.0 %)"),
        (_count({"value": 74, "noisy": 74, "noise_std": 9.96, "share": 0.5}), "74 ± 10 (50.0 %)"),
        (_estimate({"value": 12345.6, "noise_std": 2.34, "cut": False}, years), "12346 ± 2.3"),
        (_estimate({"value": 365.0, "noise_std": 99.9, "cut": False}, date), "1971-01-01 ± 100 days"),
        (_estimate({"value": 0.0, "noise_std": 30196.0, "cut": True}, years), "-"),
        (_interval({"value": 0.0, "low": 0.0, "high": 9.5, "cut": True}, years), "0* (0 to 9.5)"),
        (_interval({"value": 5.103, "low": 0, "high": 700}, years), "-"),
    ]
    assert [cell for cell, _ in cases] == [text for _, text in cases]


def test_persons_count_once(tmp_path: Path) -> None:
    privacy = {"unit": "person", "max_records_per_person": 3}
    path = study(tmp_path, schema={"person": "patient"}, privacy=privacy, seed=1)
    found = dpfl.describe(path, epsilon=4000)
    persons = found.num_records["all sites"]
    assert persons == training_rows(path) < 200
    assert found.sites["all sites"]["usable"]["value"] == pytest.approx(persons, abs=1)
    sexes = [cell["value"] for cell in found.sites["all sites"]["columns"]["sex"]["counts"]]
    assert sum(sexes) == pytest.approx(persons, abs=1) and "Each person counts once" in str(found)


def test_what_cannot_be_described_is_refused(tmp_path: Path) -> None:
    path = study(tmp_path)
    with pytest.raises(ConfigError, match=r"cross: 'sexe' is no column that is described .did you mean .sex"):
        dpfl.describe(path, epsilon=1.0, cross=[("sexe", "ill")])
    with pytest.raises(ConfigError, match="needs a ledger"):
        dpfl.describe(dpfl.load(path).with_(privacy={"ledger": None}), epsilon=1.0)
    with pytest.raises(UnsupportedError, match="unit: silo hides all"):
        dpfl.describe(dpfl.load(path).with_(privacy={"unit": "silo", "ledger": None}, seed=1), epsilon=1.0)
    one_message(command("describe", path, "--epsilon", "0"), "epsilon=0.0 must be positive")
    (tmp_path / "plain.yaml").write_text(
        "data: {dataset: {name: synthetic, records_per_silo: 20}, num_silos: 2}\n"
        "algorithm: {name: fedavg, local_lr: 1}\nrounds: 1\nprivacy: {epsilon: 1}\n"
    )
    with pytest.raises(UnsupportedError, match="needs a table with a schema"):
        dpfl.describe(tmp_path / "plain.yaml", epsilon=1.0)


def test_records_are_those_of_the_run_before_preprocessing(tmp_path: Path) -> None:
    path = study(tmp_path, seed=2)
    config = dpfl.load(path).config
    study_of = describing._Study.of(config, tmp_path, 1.0, (), 16)
    own, known = study_of.sites(study_of.federation()), federate(config, tmp_path)
    assert [site.num_records for site in own] == [len(silo.train_y) for silo in known.silos]
    assert len(survey(known).cuts) == len(own)
    plain = config.model_copy(update={"data": config.data.model_copy(update={"preprocess": []})})
    for site, silo in zip(own, federate(plain, tmp_path).silos, strict=True):
        assert (site.codes[-1] == silo.train_y).all()
