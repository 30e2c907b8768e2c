"""The benchmark of real tables: equal terms for all methods, and whose measures it shows."""

from __future__ import annotations

import glob
import math
from pathlib import Path

import pytest

import dpfl_plugin as dpfl
from benchmarks import hospitals
from benchmarks.pages import ROOT

TABLES = ROOT / "configs" / "tables"
FORMAT = ("header", "delimiter")


def test_each_table_has_a_study_and_a_place_in_the_page() -> None:
    assert {path.stem for path in TABLES.glob("*.yaml")} == set(hospitals.STUDIES)
    page = (ROOT / hospitals.PAGE).read_text()
    for name in (*hospitals.STUDIES, "machine"):
        assert page.count(f"<!-- {name}: begin -->") == 1, name


@pytest.mark.parametrize("how", hospitals.METHODS)
def test_all_methods_release_equally_often(how: str, tmp_path: Path) -> None:
    config = dpfl.load(TABLES / "azpro.yaml").with_(**hospitals.method(how, 0.3), out=str(tmp_path)).config
    local_steps = config.algorithm.options.get("local_steps", 1)
    assert config.rounds * local_steps == hospitals.STEPS and config.privacy.sampler == "full"


def test_silos_own_models_count_where_there_are_some() -> None:
    pooled = {"model": {"auc": 0.5}, "baseline": {"auc": 0.4}}
    result = {"folder": "f", "measures": {"pooled": pooled}}
    assert hospitals.measured(result, "auc") == 0.5 and hospitals.measured(result, "auc", "baseline") == 0.4
    pooled["own_models"] = {"auc": 0.75}
    assert hospitals.measured(result, "auc") == 0.75 and math.isnan(hospitals.measured(result, "c_index"))


def test_ranks_within_silos_are_weighed_by_test_records_and_leave_out_who_has_none(tmp_path: Path) -> None:
    (tmp_path / "silos.csv").write_text("silo,num_test\n0,30\n1,10\n2,60\n")
    of = {"0": {"model": {"auc": 0.9}}, "1": {"model": {"auc": 0.2}, "own_models": {"auc": 0.5}}}
    silos = {**of, "2": {"model": {"auc": None}}}
    result = {"folder": str(tmp_path), "num_silos": 3, "measures": {"pooled": {"model": {"auc": 0.1}}, "silos": silos}}
    assert hospitals.within_silos(result, "auc") == pytest.approx(0.75 * 0.9 + 0.25 * 0.5)
    study = hospitals.STUDIES["heart_disease"]
    assert hospitals.judged(result, study) == hospitals.within_silos(result, "auc")
    assert hospitals.judged({**result, "num_silos": 1}, study) == 0.1


@pytest.mark.parametrize(
    ("name", "records", "features"),
    [
        ("heart_disease", 920, 38),
        ("heart_stages", 920, 38),
        ("azpro", 3589, 4),
        ("dialysis", 6805, 7),
        ("school", 15362, 27),
    ],
)
def test_the_schemas_read_the_tables(data_folder: Path, name: str, records: int, features: int) -> None:
    options = dpfl.load(TABLES / f"{name}.yaml").config.data.dataset.options
    files = sorted(glob.glob(str(data_folder / options["files"])))
    how = {key: options[key] for key in FORMAT if key in options}
    found = dpfl.check_tables(files, options["schema"], **how)
    assert sum(found.num_records.values()) == records and len(found.features) == features
