"""`dpfl list` and `dpfl schema`."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from dpfl_plugin import registry
from dpfl_plugin.config.load import load, read_yaml
from dpfl_plugin.config.sweep import expand
from dpfl_plugin.config.tune import has_tune, read_tune
from tests.cli.command import dpfl, one_message, write

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(CONFIGS.glob("**/*.yaml"))


def test_list() -> None:
    found = dpfl("list", "--json").json
    assert list(found) == list(registry.GROUPS)
    assert [plugin["name"] for plugin in found["algorithms"]] == registry.names("algorithms")
    (scaffold,) = (plugin for plugin in found["algorithms"] if plugin["name"] == "scaffold")
    assert "local_steps" in scaffold["options"] and "option='II'" in scaffold["options"]
    done = dpfl("list", "engines")
    assert done.code == 0 and "closed_form" in done.out and "scaffold" not in done.out


def test_list_engines_for_a_configuration(tmp_path: Path) -> None:
    config = write(tmp_path, {"model": {"name": "mlp", "hidden": [3]}})
    found = dpfl("list", "engines", "--for", config, "--json").json
    assert {line["engine"] for line in found["engines"]} == set(registry.names("engines"))
    assert [line["engine"] for line in found["engines"] if line["chosen"]] == ["dense"]
    assert (found["batch_size"], found["participants"], found["dimension"]) == (12, 4, 27)
    for line in found["engines"]:
        assert (
            line["supported"]
            == (line["engine"] not in ("closed_form", "shared_score"))
            == (line["measured_us"] is not None)
        )
        assert (line["why_not"] is None) == line["supported"] == (line["estimated_us"] is not None)
    named = dpfl("list", "engines", "--for", config, "--set", "engine=vmap", "--json").json
    assert [line["engine"] for line in named["engines"] if line["chosen"]] == ["vmap"]
    told = dpfl("list", "engines", "--for", config).out
    assert "chosen" in told and "no: the model is not one Linear layer" in " ".join(told.split())


def test_engines_for_a_configuration_that_is_wrong(tmp_path: Path) -> None:
    one_message(dpfl("list", "models", "--for", write(tmp_path)), "dpfl list engines --for")
    config = write(tmp_path, {"runtime": {"memory_budget": "2kB"}})
    one_message(dpfl("list", "engines", "--for", config), str(config), "memory: this run needs")


def test_list_nonsense() -> None:
    one_message(dpfl("list", "nonsense"), "'nonsense'", "Known: algorithms")
    one_message(dpfl("list", "algorithm"), "did you mean 'algorithms'")


def test_a_broken_plugin_is_listed_as_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    real = registry.load

    def load_plugin(group: str, name: str) -> object:
        if name == "vmap":
            raise registry.PluginError("it burns")
        return real(group, name)

    monkeypatch.setattr(registry, "load", load_plugin)
    done = dpfl("list", "engines")
    assert done.code == 0 and "BROKEN: it burns" in " ".join(done.out.split()) and "closed_form" in done.out


def test_the_committed_schema_is_current() -> None:
    """If not: dpfl schema > configs/schema.json"""
    assert dpfl("schema").out == (CONFIGS / "schema.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_every_configuration_is_valid(path: Path) -> None:
    if has_tune(path):
        assert read_tune(path).candidates
    else:
        assert expand(path).rows if "sweep" in read_yaml(path) else load(path).variants
    values = json.loads(json.dumps(read_yaml(path)))
    jsonschema.validate(values, json.loads((CONFIGS / "schema.json").read_text(encoding="utf-8")))


def test_help_and_version() -> None:
    assert "account" in dpfl("--help").out and dpfl("--version").out.startswith("dpfl ")
    for words in (["run"], ["nonsense"], ["run", "--nonsense"]):
        done = dpfl(*words)
        assert done.code == 2 and "Traceback" not in done.err
