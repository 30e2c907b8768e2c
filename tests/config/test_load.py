"""YAML to configurations: what is read as what, merging, and the way back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin import registry
from dpfl_plugin.config import load as loading
from dpfl_plugin.config.load import _known_keys, base_of, configure, json_schema, load, run_id, to_yaml
from dpfl_plugin.config.schema import Config
from dpfl_plugin.config.yaml_text import parse
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.synonyms import SYNONYMS

TEXT = """
rounds: 3
algorithm: {name: fedavg, local_steps: 2, local_lr: 0.1}
privacy: {clip_norm: 1, noise_multiplier: 2, record_rate: 0.5}
"""


def read(tmp_path: Path, more: str = "", *settings: str) -> Config:
    path = tmp_path / "config.yaml"
    path.write_text(TEXT + more)
    (variant,) = load(path, settings).variants
    return variant.config


@pytest.mark.parametrize(
    ("text", "value"), [("1e-5", 1e-5), ("1E-5", 1e-5), ("1.0e-5", 1e-5), (".5", 0.5), ("2.5e-6", 2.5e-6)]
)
def test_numbers(tmp_path: Path, text: str, value: float) -> None:
    assert read(tmp_path, "", f"privacy.delta={text}").privacy.delta == value
    assert read(tmp_path, "", f"algorithm.local_lr={text}").algorithm.options["local_lr"] == value  # no string


def test_infinity_may_be_written_in_two_ways(tmp_path: Path) -> None:
    for text in ("inf", ".inf"):
        config = read(tmp_path, "", f"privacy.clip_norm={text}", "privacy.noise_multiplier=0")
        assert config.privacy.clip_norm == math.inf


def test_dates_are_text_and_merge_keys_work(tmp_path: Path) -> None:
    assert read(tmp_path, "name: 2024-01-31").name == "2024-01-31"
    config = read(tmp_path, "data: &d {num_silos: 3}\nevaluation: {every: 1}\n", "data={<<: {num_silos: 4}}")
    assert config.data.num_silos == 4


def test_settings_are_applied_in_order_after_variants(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(TEXT + "variants: {a: {seed: 1}, 2: {seed: 2, privacy: {clip_norm: 3}}}\ncompare: [[a, 2]]")
    plan = load(path, ["seed=5", "seed=6"])
    assert [variant.label for variant in plan.variants] == ["a", "2"] and plan.compare == (("a", "2"),)
    assert [variant.config.seed for variant in plan.variants] == [6, 6]
    assert [variant.config.privacy.clip_norm for variant in plan.variants] == [1, 3]
    assert all(variant.config.privacy.record_rate == 0.5 for variant in plan.variants)


def test_variants_are_changed_and_taken_out_by_settings(tmp_path: Path) -> None:
    path = tmp_path / "several.yaml"
    path.write_text(TEXT + "variants: {a: {seed: 1}, b: {seed: 2}}\ncompare: [[a, b]]")
    assert load(path, ["variants=null"]) == load(_written(tmp_path, TEXT))
    assert [v.config.seed for v in load(path, ["variants.a.seed=9"]).variants] == [9, 2]
    assert load(path, ["compare=null"]).compare == () and len(load(path, ["compare=null"]).variants) == 2
    added = load(_written(tmp_path, TEXT), ["variants={c: {}, d: {seed: 4}}", "compare=[[c, d]]", "rounds=2"])
    assert [(v.label, v.config.rounds) for v in added.variants] == [("c", 2), ("d", 2)]
    assert added.compare == (("c", "d"),)
    with pytest.raises(ConfigError, match="compare names variants, but the file has none"):
        load(_written(tmp_path, TEXT + "compare: [[a, b]]"))
    with pytest.raises(ConfigError, match="variants must map labels"):
        load(path, ["variants=[a, b]"])


def _written(folder: Path, text: str) -> Path:
    path = folder / "one.yaml"
    path.write_text(text)
    return path


def test_a_block_keeps_its_options_when_its_name_changes(tmp_path: Path) -> None:
    config = read(tmp_path, "", "algorithm.name=scaffold", "model=mlp", "model.hidden=[50]")
    assert config.algorithm.name == "scaffold" and config.algorithm.options == {"local_steps": 2, "local_lr": 0.1}
    assert config.model.name == "mlp" and config.model.options == {"hidden": [50]}


def test_own_code_takes_a_plugins_place_and_back(tmp_path: Path) -> None:
    mine = read(tmp_path, "", "algorithm.module=my.code:thing")
    assert (mine.algorithm.name, mine.algorithm.module) == (None, "my.code:thing")
    assert mine.algorithm.options == {"local_steps": 2, "local_lr": 0.1}
    back = read(tmp_path, "", "algorithm.module=my.code:thing", "algorithm.name=fedavg")
    assert (back.algorithm.name, back.algorithm.module) == ("fedavg", None)


@pytest.mark.parametrize(
    "settings", [["algorithm.name=fedsgd", "algorithm.form=single"], ["algorithm.form=single", "algorithm.name=fedsgd"]]
)
def test_another_plugin_keeps_the_options_that_it_has(tmp_path: Path, settings: list[str]) -> None:
    text = "data: {partition: {name: similarity, gamma: 10}}\n"
    config = read(tmp_path, text, "data.partition={name: dirichlet, alpha: 0.1}", *settings)
    assert config.data.partition.options == {"alpha": 0.1}
    assert config.algorithm.options == {"local_steps": 2, "local_lr": 0.1, "form": "single"}


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["privacy.clip_norm=inf", "privacy.noise_multiplier=0"],
        ["algorithm.eta_0=null", "model={name: mlp, hidden: [3, 4]}", "description='a: b # c'"],
        ["data.preprocess=[unit_norm, {name: pca, components: 5}]", "seed=9223372036854775807"],
        ["privacy.delta=1e-300", "l2=0.1"],
        ["name='08'", "description='1e-5'"],
        ["name='010'", "description='12:00:00'"],
    ],
)
def test_what_is_written_reads_back_the_same(tmp_path: Path, settings: list[str]) -> None:
    config = read(tmp_path, "", *settings)
    path = tmp_path / "resolved.yaml"
    path.write_text(to_yaml(config))
    (variant,) = load(path).variants
    assert variant.config == config
    assert run_id(variant.config) == run_id(config)


def test_the_id_of_a_run(tmp_path: Path) -> None:
    base = read(tmp_path)
    for setting in ("name=x", "out=x", "description=x", "checkpoint.every=1", "data.folder=x", "runtime.stack=2"):
        assert run_id(read(tmp_path, "", setting)) == run_id(base), setting
    for setting in (
        "seed=1",
        "evaluation.every=2",
        "rounds=4",
        "privacy.clip_norm=2",
        "algorithm.local_lr=0.2",
        "l2=1",
        "model=mlp",
    ):
        assert run_id(read(tmp_path, "", setting)) != run_id(base), setting


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "", "seed=-1", "privacy.delta=2", "sed=1")
    assert all(part in str(caught.value) for part in ("seed=-1", "privacy.delta=2", "did you mean 'seed'"))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("silos={north: {epsilonn: 1}}", "silos.north.epsilonn is not a known key (did you mean 'epsilon'?)"),
        ("early_stopping={shar: 0.1}", "early_stopping.shar is not a known key (did you mean 'share'?)"),
        ("privacy.sigma=1", "privacy.sigma is not a known key (did you mean 'noise_multiplier'? It is the noise's "),
        (
            "silos={a: {sigma: 1}}",
            "silos.a.sigma is not a known key (did you mean 'noise_multiplier'? It is the noise's ",
        ),
        ("privacy.max_grad_norm=1", "privacy.max_grad_norm is not a known key (did you mean 'clip_norm'?)"),
        (
            "privacy.sample_rate=1",
            "(did you mean 'record_rate'? It is the share of a silo's records in the batch of a step; ",
        ),
        (
            "fraction-fit=0.5",
            "fraction-fit is not a known key (did you mean 'silo_rate'? It is the share of silos in a ",
        ),
        ("epsilom=4", "epsilom is not a known key (did you mean 'privacy.epsilon'?)"),
        ("epsilon=4", "epsilon is not a known key (did you mean 'privacy.epsilon'?)"),
        ("data.num_clients=4", "data.num_clients is not a known key (did you mean 'num_silos'?)"),
        ("lr=0.1", "lr is not a known key (did you mean 'algorithm.local_lr'?)"),
        ("silos={north: 1}", "silos.north=1: must be a mapping of keys to values."),
        ("silo_weights=nois", "silo_weights='nois': must be 'equal', 'records' or 'noise'."),
        ("silo_weights={a: 0, b: 1}", "silo_weights.a=0: must be greater than 0."),
        ("silo_weights=3", "silo_weights=3: must be 'equal', 'records' or 'noise'."),
    ],
)
def test_a_wrong_key_is_told_wherever_it_is(tmp_path: Path, setting: str, message: str) -> None:
    """Also below keys of the user's, in blocks that may be left out, and where a word or a mapping may stand."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "", setting)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_other_words_for_a_key_name_one_that_there_is() -> None:
    """In the schema, among the options of a plugin, or among the arguments of `Federation.from_frame`."""
    plugins = {
        "algorithm": [("algorithms", "scaffold"), ("algorithms", "mb_sgd")],
        "model": [("models", "mlp")],
        "data.dataset": [("datasets", "csv")],
    }
    for word, paths in SYNONYMS.items():
        for path in paths:
            where, _, key = path.rpartition(".")
            known = {one for plugin in plugins.get(where, ()) for one in registry.options(registry.load(*plugin))}
            known |= set() if where in plugins else {*_known_keys(where.split(".") if where else [])}
            known |= {"label", "silo", "person"} if where == "" else set()
            assert key in known, (word, path)
        assert word != paths[0].rpartition(".")[2]


def keys(model: Any, schema: dict[str, Any]) -> None:
    for name, field in schema["properties"].items():
        if name in ("variants", "compare", "sweep", "tune"):
            continue
        assert name in model.model_fields
        assert "description" in field or "$ref" in field or "anyOf" in field, name


def test_the_schema_names_every_key() -> None:
    schema = json_schema()
    keys(Config, schema)
    assert set(schema["properties"]) == {*Config.model_fields, "variants", "compare", "sweep", "tune"}
    assert {"grid", "list", "seeds"} <= set(schema["properties"]["sweep"]["properties"])
    assert schema["additionalProperties"] is False and set(schema["required"]) == {"algorithm", "privacy"}
    for block in (schema["properties"]["trackers"]["items"], schema["properties"]["model"]):
        assert {"type": "string"} in block["anyOf"], "a plugin's name alone is one, also in a list"


def test_relative_paths_start_at_the_files_folder_unless_a_run_folder_knows_another(tmp_path: Path) -> None:
    run, data = tmp_path / "run", tmp_path / "data"
    run.mkdir()
    data.mkdir()
    assert base_of(run / "config.yaml") == run
    (run / "environment.json").write_text(f'{{"base": "{data}"}}')
    assert base_of(run / "config.yaml") == data
    assert base_of(run / "other.yaml") == run
    data.rmdir()  # as on another machine
    assert base_of(run / "config.yaml") == run
    for damaged in ("{", "[]", '{"base": 3}', "{}"):
        (run / "environment.json").write_text(damaged)
        assert base_of(run / "config.yaml") == run


def test_the_text_of_a_configuration_is_its_own_whatever_was_written_before():
    """Values that are equal, and read otherwise: the text of one must not be taken for that of the other."""
    given = (1, 1.0, True, "1", [1], [1.0], [True], None, math.inf, 0, -0.0, 0.0, False, "null", "", *range(2, 20))
    for _ in range(2):
        for value in given:
            algorithm = {"name": "scaffold", "local_steps": 1, "local_lr": 0.1, "own": value}
            found = parse(
                to_yaml(
                    configure({"algorithm": algorithm, "privacy": {"noise_multiplier": 1.0}, "rounds": 1}, source="")
                )
            )["algorithm"]["own"]
            assert repr(found) == repr(value)
    assert len(loading._texts) == loading.MOST_TEXTS
